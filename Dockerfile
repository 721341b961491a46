# An exported model (docs/onnx.md) on a processor, without PyTorch. Use: docs/deployment.md.
#
#     docker build --tag bertie .
#     docker run --publish 8000:8000 --env BERTIE_API_KEY --volume ./mrpc-int8:/model:ro bertie
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN python -m venv /bertie && \
    /bertie/bin/pip install --no-cache-dir --constraint constraints.txt '.[onnx]'

FROM python:3.12-slim
COPY --from=build /bertie /bertie
RUN useradd --create-home --uid 1000 bertie
USER 1000
ENV PATH=/bertie/bin:$PATH
EXPOSE 8000
# The compiled kernels are kept in the home directory of the container: its first start takes ten seconds more.
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["bertie", "serve", "--host", "0.0.0.0"]
CMD ["/model"]
