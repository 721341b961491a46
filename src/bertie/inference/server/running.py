"""A socket and an application -> a process that serves until it is told to stop."""

import socket
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from bertie.base.errors import SettingsError

DRAIN = 30  # seconds for the requests that are under way when the process is told to stop
HEADERS = [("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store")]


class Server(uvicorn.Server):
    """Stops on SIGTERM and SIGINT: answers what it has taken, takes nothing new, returns.

    uvicorn's own class raises the signal again in the end, which would be the exit status.
    """

    def __init__(self, app: Starlette) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="on",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                headers=HEADERS,
                timeout_graceful_shutdown=DRAIN,
            )
        )
        self._state = app.state

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """At the first signal stop; at a second one wait for nobody."""
        if self.should_exit:
            for request in self.server_state.tasks:
                request.cancel()
        self._state.stopping = self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any free one.

    Raises:
        SettingsError: it is taken, or not this machine's to give.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        where = f"--host {host} --port {port}"
        raise SettingsError(f"{where}: cannot listen there: {error.strerror}; name another") from None
