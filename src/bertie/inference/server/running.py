"""Run an application on a socket until a signal stops it."""

import socket
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from bertie.base.errors import SettingsError

DRAIN_SECONDS = 30  # time for running requests to finish after the signal to stop
HEADERS = [("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store")]


class Server(uvicorn.Server):
    """A server that returns after SIGTERM or SIGINT.

    It accepts no new requests and finishes the running ones. uvicorn's own class raises the signal
    again afterwards, which would change the exit status.
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
                timeout_graceful_shutdown=DRAIN_SECONDS,
            )
        )
        self._state = app.state

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the first signal; at a second one cancel the running requests."""
        if self.should_exit:
            for request in self.server_state.tasks:
                request.cancel()
        self._state.stopping = self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any free port.

    Raises:
        SettingsError: the port is in use, or the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise SettingsError(
            f"--host {host} --port {port}: cannot listen: {error.strerror}; choose another address or port"
        ) from None
