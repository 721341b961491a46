"""`bertie serve`: answer over HTTP."""

import logging
import signal
import sys
from pathlib import Path
from typing import Annotated
from unicodedata import normalize

import typer

from bertie.base.errors import SettingsError
from bertie.base.files import local_path
from bertie.commands.options import Device, NoVerify, Precision

# The limits with their defaults in Text Embeddings Inference: max-client-batch-size, payload-limit.
MaxTexts = Annotated[int, typer.Option(min=1, help="The largest number of texts in a request.")]
MaxBody = Annotated[int, typer.Option(min=1, help="The largest number of bytes in a request.")]
MaxWaiting = Annotated[
    int, typer.Option(min=1, help="Answer 429 while at least this number of tokens is queued.")
]
MemoryBudget = Annotated[
    float,
    typer.Option(
        min=0,
        max=1_000_000,
        help="The most gigabytes of weights in memory; models used least recently are unloaded. 0: no limit.",
    ),
]
MaxConnections = Annotated[int, typer.Option(min=1, help="The largest number of connections.")]
Timeout = Annotated[
    float,
    typer.Option(min=0.001, max=1_000_000, help="Seconds after which an unanswered request fails with 503."),
]
ApiKey = Annotated[
    str | None,
    typer.Option(envvar="BERTIE_API_KEY", help="The key that requests must send as a bearer token."),
]
NoAuth = Annotated[
    bool, typer.Option("--no-auth", help="Serve other machines without a key.", show_default=False)
]
Cors = Annotated[
    list[str] | None,
    typer.Option(metavar="ORIGIN", help="An origin whose pages may call the server; * means any."),
]
RootPath = Annotated[
    str,
    typer.Option(metavar="PATH", help="The path under which a proxy publishes the server, such as /bert."),
]
LogRequests = Annotated[
    bool, typer.Option("--log-requests", help="Log each request, without its texts.", show_default=False)
]


def serve(
    directories: Annotated[
        list[str], typer.Argument(metavar="DIR", help="Model directories; NAME=DIR names a model.")
    ],
    host: Annotated[
        str,
        typer.Option(help="The address to listen on; :: means all addresses, 0.0.0.0 all IPv4 addresses."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 chooses a free one.")] = 8000,
    device: Device = "auto",
    precision: Precision = "float32",
    max_texts: MaxTexts = 32,
    max_body: MaxBody = 2_000_000,
    max_waiting: MaxWaiting = 250_000,
    memory_budget: MemoryBudget = 0,
    max_connections: MaxConnections = 1024,
    timeout: Timeout = 60,
    api_key: ApiKey = None,
    no_auth: NoAuth = False,
    cors: Cors = None,
    root_path: RootPath = "",
    log_requests: LogRequests = False,
    no_verify: NoVerify = False,
) -> None:
    """Serve models over HTTP, with a page to try them.

    The first model is loaded at once, the others on first use. Clients of Text Embeddings Inference, of
    OpenAI's embeddings and of huggingface_hub can use the server. The page /docs lists all routes.
    """
    import bertie
    from bertie.base.environment import limit_free_memory
    from bertie.inference.server.app import create_app
    from bertie.inference.server.middleware import Access, Limits
    from bertie.inference.server.models import GIGABYTE, Models
    from bertie.inference.server.running import Server, check_access, listen

    access = Access(api_key, tuple(cors or ()), root_path.rstrip("/"))
    check_access(host, access, no_auth)
    limits = Limits(max_texts, max_body, max_waiting, max_connections, request_seconds=timeout)
    if log_requests:
        logging.basicConfig(format="%(asctime)s %(message)s")
        logging.getLogger("bertie.requests").setLevel(logging.INFO)
    limit_free_memory()
    models = Models(
        name_models(directories),
        lambda path: bertie.load(path, device, precision),
        limits,
        int(memory_budget * GIGABYTE),
        precision,
    )
    models.load_default()
    with listen(host, port) as listening:
        server = Server(create_app(models, access), limits)
        if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # `nohup` ignores it
            signal.signal(signal.SIGHUP, server.handle_exit)
        address, bound = listening.getsockname()[:2]
        url = f"http://[{address}]:{bound}" if ":" in address else f"http://{address}:{bound}"
        does = ", ".join(f"{model.name} ({(model.method or 'embed').replace('_', ' ')})" for model in models)
        print(f"bertie: {url} serves {does}; Ctrl-C stops it", file=sys.stderr, flush=True)
        server.run([listening])


def name_models(arguments: list[str]) -> dict[str, Path]:
    """Return the absolute paths of model directories by the name of the model.

    A missing directory keeps its relative path, which may be a model's name on the Hub. Names are in NFC.

    Raises:
        SettingsError: two models have the same name, or a name cannot be part of a URL.
    """
    paths: dict[str, Path] = {}
    for argument in arguments:
        name, separator, rest = argument.partition("=")
        named = separator and not Path(argument).exists()
        if "/" in name:  # as in BAAI/bge-small=DIR, unless a directory's name has the equals sign
            named = named and Path(rest).expanduser().exists()
        path = local_path(rest if named else argument, argument or "DIR")
        name = name if named else path.absolute().name  # because the name "." says nothing
        name = normalize("NFC", name)
        advice = f"NAME={rest if named else argument}"
        if separator and not name:
            raise SettingsError(f"{argument}: no name before the equals sign; name the model: NAME={rest}")
        # Clients remove the last three from an address.
        if set(name) & set("?#%") or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise SettingsError(
                f"{argument}: the name {name!r} cannot be part of a URL; name the model: {advice}"
            )
        if name in paths:
            raise SettingsError(f"{argument}: another model is named {name!r} too; name this one: {advice}")
        paths[name] = path.absolute() if path.exists() else path
    return paths
