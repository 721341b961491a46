"""`bertie serve`: answer over HTTP."""

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
        typer.Option(
            min=1, help="The number of queued characters from which on clients are asked to retry later."
        ),
    ] = 1_000_000,
) -> None:
    """Serve a model over HTTP, with a page to try it.

    The routes are /predict, /embed, and / for huggingface_hub's clients.
    """
    import bertie
    from bertie.inference.server.app import Limits, create_app
    from bertie.inference.server.running import Server, listen

    model = bertie.load(
        directory.absolute(), device, precision
    )  # absolute, because the name "." says nothing
    model.tokenizer.encode("")  # compile the kernels before the first request, which takes ten seconds once
    with listen(host, port) as listening:
        server = Server(create_app(model, Limits(max_texts, max_body, max_waiting)))
        address, bound = listening.getsockname()[:2]
        url = f"http://[{address}]:{bound}" if ":" in address else f"http://{address}:{bound}"
        does = (model.method or "embed").replace("_", " ")
        print(f"bertie: {url} serves {directory} (to {does}); Ctrl-C stops it", file=sys.stderr, flush=True)
        server.run([listening])
