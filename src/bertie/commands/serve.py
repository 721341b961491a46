"""`bertie serve`: answer over HTTP."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from bertie.commands.options import Device, Precision


def serve(
    directory: Annotated[Path, typer.Argument(help="A model directory.")],
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 means all addresses.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 chooses a free one.")] = 8000,
    device: Device = "auto",
    precision: Precision = "float32",
    # The defaults of Text Embeddings Inference: max-client-batch-size, payload-limit.
    max_texts: Annotated[int, typer.Option(min=1, help="The largest number of texts in a request.")] = 32,
    max_body: Annotated[
        int, typer.Option(min=1, help="The largest number of bytes in a request.")
    ] = 2_000_000,
    max_waiting: Annotated[
        int,
        typer.Option(min=1, help="Queued tokens from which on clients are asked to retry later."),
    ] = 250_000,
    max_connections: Annotated[int, typer.Option(min=1, help="The largest number of connections.")] = 1024,
    timeout: Annotated[
        float,
        typer.Option(min=0.001, help="Seconds after which an unanswered request fails with 503."),
    ] = 60,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="BERTIE_API_KEY", help="The key that requests must send as a bearer token."),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Serve other machines without a key.", show_default=False)
    ] = False,
    cors: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="An origin whose pages may call the server; * means any."),
    ] = None,
    root_path: Annotated[
        str, typer.Option(metavar="PATH", help="The path under which a proxy publishes the server: /bert.")
    ] = "",
    log_requests: Annotated[
        bool,
        typer.Option("--log-requests", help="Log each request, without its texts.", show_default=False),
    ] = False,
) -> None:
    """Serve a model over HTTP, with a page to try it.

    The routes are /predict, /embed, and / for huggingface_hub's clients.
    """
    import bertie
    from bertie.inference.server.app import create_app
    from bertie.inference.server.middleware import Access, Limits
    from bertie.inference.server.running import Server, check_access, listen

    access = Access(api_key, tuple(cors or ()), root_path.rstrip("/"))
    check_access(host, access, no_auth)
    limits = Limits(max_texts, max_body, max_waiting, max_connections, request_seconds=timeout)
    if log_requests:
        logging.basicConfig(format="%(asctime)s %(message)s")
        logging.getLogger("bertie.requests").setLevel(logging.INFO)
    model = bertie.load(
        directory.absolute(), device, precision
    )  # absolute, because the name "." says nothing
    model.tokenizer.encode("")  # compile the kernels before the first request, which takes ten seconds once
    with listen(host, port) as listening:
        server = Server(create_app(model, limits, access), limits)
        address, bound = listening.getsockname()[:2]
        url = f"http://[{address}]:{bound}" if ":" in address else f"http://{address}:{bound}"
        does = (model.method or "embed").replace("_", " ")
        print(f"bertie: {url} serves {directory} (to {does}); Ctrl-C stops it", file=sys.stderr, flush=True)
        server.run([listening])
