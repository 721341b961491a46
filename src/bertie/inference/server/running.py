"""Run an application on a socket until a signal stops it."""

import asyncio
import logging
import re
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from fcntl import ioctl
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from termios import TIOCOUTQ
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from bertie.base.environment import only_new_collected, threads_switched_quickly
from bertie.base.errors import SettingsError
from bertie.inference.server.errors import error_format, error_response
from bertie.inference.server.middleware import MAX_HEAD, Access, Limits, head_too_large

logger = logging.getLogger("bertie.requests")

DRAIN_SECONDS = 30  # time for running requests to finish after the signal to stop
# Time after the signal in which requests on open connections are answered, with `Connection: close`. To close
# the connections at once would lose the requests that a proxy or client is sending on them.
CLOSING_SECONDS = 1
HEAD_SECONDS = 10  # time for a client to send the line and the headers of a request
# More than the 60 seconds for which nginx and AWS's load balancers keep an idle connection to a server. A
# proxy that sends a request on a connection that the server closes meanwhile answers its client with 502.
KEEP_ALIVE_SECONDS = 75
READ_SECONDS = 10  # time for a client to read LEAST_READ bytes of a response
LEAST_READ = 65_536
# Time for a client to read a whole response: 270 kB a second for the largest, 80 MB of /tokenize. Until then,
# the response keeps its connection, and its results in memory.
RESPONSE_SECONDS = 300
HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    # The pages consist of files of this server, without inline scripts and styles.
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]


async def too_many_connections(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer the requests of a connection that is one too many; an ASGI application."""
    response = error_response(
        503,
        "too many connections; retry later",
        format=error_format(scope),
        error_type="Overloaded",
        headers={"Retry-After": "1", "Connection": "close"},
    )
    await response(scope, receive, send)


class GatheringTransport:
    """A transport that joins the writes of one iteration of the event loop.

    uvicorn writes the head and the body of a response separately, which would be two packets.

    Args:
        transport: sends the data.
        loop: the event loop.
        is_receiving: whether the client may still send a request whose response is complete.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, is_receiving: Callable[[], bool]
    ) -> None:
        self._transport, self._loop, self._is_receiving = transport, loop, is_receiving
        self._written: list[bytes] = []
        self._is_ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send data in the next iteration of the event loop."""
        if not self._written:
            self._loop.call_soon(self._send)
        self._written.append(data)

    def close(self) -> None:
        """Send pending data, then close the connection.

        While the client sends, only the server's direction is closed at first. To close both would reset the
        connection, and a client that has not finished sending would see that instead of the response.
        """
        self._send()
        if self._is_ended or not self._is_receiving():
            self._transport.close()
            return
        self._is_ended = True
        with suppress(OSError):  # the client has reset the connection
            self._transport.write_eof()
        self._transport.resume_reading()
        self._loop.call_later(HEAD_SECONDS, self._transport.close)  # unless the client closes it before

    def is_closing(self) -> bool:
        """Return whether nothing more can be sent."""
        return self._is_ended or self._transport.is_closing()

    def _send(self) -> None:
        if self._written:
            self._transport.write(b"".join(self._written))
            self._written.clear()


class Protocol(H11Protocol):
    """A connection that is closed if its client is too slow.

    uvicorn limits only the time between two requests. A client that sends its headers one by one, or does not
    read its response, would otherwise keep a connection for ever.
    """

    max_connections: int  # set by `Server` in a subclass
    _head_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None
    _unread: int = 0  # bytes of the response at the last check
    _read_cycle: RequestResponseCycle | None = None  # the request whose response is being read
    _read_deadline: float = 0  # for its response

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(0)  # `pause_writing` is called whenever bytes wait for the client
        gathering: Any = GatheringTransport(transport, self.loop, self._is_receiving)
        super().connection_made(gathering)
        if len(self.connections) > self.max_connections:
            self.app = too_many_connections
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():  # otherwise it is the rest of a request that was answered
            super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        self._watch_head()

    def _should_upgrade(self) -> bool:
        """Ignore a request for another protocol, as HTTP allows.

        uvicorn would log two lines about it.
        """
        return False

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio reads the value
        """Answer a client that has only closed its sending side.

        This is what `nc -N` does. Then close the connection. A client that has gone looks the same, so a
        computation for it is cancelled.
        """
        is_answering = (
            self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        )
        if is_answering:
            self.cycle.keep_alive = False
            self.cycle.message_event.set()  # a task that waits for a disconnect takes this for one
        else:
            self.transport.close()  # sends what it has gathered
        return is_answering

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection.

        While its client reads a response, wait for the same time again.
        """
        if self._read_timer is None:
            super().timeout_keep_alive_handler()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._read_cycle is not self.cycle:
            self._read_cycle, self._read_deadline = self.cycle, self.loop.time() + RESPONSE_SECONDS
        self._watch_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_read_timer()

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid HTTP request in the format of all errors.

        uvicorn would send plain text.
        """
        logger.info("invalid HTTP request")
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # there is a response already
            self.transport.close()
            return
        response = error_response(400, "invalid HTTP request", headers={"Connection": "close"})
        if getattr(sys.exception(), "error_status_hint", 400) == 431:
            response = head_too_large()
        headers = [*self.server_state.default_headers, *response.raw_headers]
        reason = HTTPStatus(response.status_code).phrase.encode()
        start = h11.Response(status_code=response.status_code, headers=headers, reason=reason)
        for event in (start, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        self._stop_read_timer()
        super().connection_lost(exc)

    def _is_receiving(self) -> bool:
        """Return whether the client still sends a request that was answered.

        This server has sent the last response to it. A server that stops does not wait for the rest of the
        request.
        """
        is_stopping = self.cycle is not None and not self.cycle.keep_alive
        is_last = self.conn.our_state in (h11.MUST_CLOSE, h11.CLOSED) and not is_stopping
        return is_last and self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    def _watch_head(self) -> None:
        """Start the timer while a head is awaited, and stop it when it is complete.

        The rest of a body whose response was sent before it, such as a 401, counts as part of the next head.
        uvicorn has its own timer for a connection that is idle after a response.
        """
        is_idle = self.timeout_keep_alive_task is not None and not self.conn.trailing_data[0]
        is_answered = self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
        if is_idle or (self.conn.their_state is not h11.IDLE and not is_answered):
            self._stop_watching()
        elif self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_watching(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _watch_reading(self) -> None:
        self._unread = self._count_unread()
        next_check = min(self.loop.time() + READ_SECONDS, self._read_deadline)
        self._read_timer = self.loop.call_at(next_check, self._check_reading)

    def _check_reading(self) -> None:
        """Abort the connection of a client that reads too slowly.

        It has read too little since the last check, or takes too long in all.
        """
        has_read_little = self._count_unread() > self._unread - LEAST_READ
        if has_read_little or self.loop.time() >= self._read_deadline:
            self.transport.abort()
        else:
            self._watch_reading()

    def _count_unread(self) -> int:
        """Return the bytes that the client has not acknowledged, here and in the kernel.

        The kernel holds megabytes and takes more only when a third of them is gone, so a slow client changes
        nothing here for many seconds.
        """
        in_kernel = ioctl(self.transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4))
        return self.transport.get_write_buffer_size() + int.from_bytes(in_kernel, sys.byteorder)

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None


class Server(uvicorn.Server):
    """A server that returns after SIGTERM or SIGINT.

    Another signal whose handler is `handle_exit` stops it, too.

    It accepts no new requests and finishes the running ones. uvicorn's own class raises the signal
    again afterwards, which would change the exit status.
    """

    def __init__(self, app: Starlette, limits: Limits) -> None:
        protocol: Any = type("LimitedProtocol", (Protocol,), {"max_connections": limits.max_connections})
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                lifespan="on",
                ws="none",
                h11_max_incomplete_event_size=MAX_HEAD,
                log_config=None,
                access_log=False,
                server_header=False,
                headers=HEADERS,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=DRAIN_SECONDS,
            )
        )
        self._state = app.state
        logging.getLogger("uvicorn.error").addFilter(_concerns_the_server)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer requests until a signal stops the server."""
        with only_new_collected(), threads_switched_quickly():
            super().run(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, let clients close their connections, then finish the running requests."""
        await self._stop_listening(sockets or [])
        for _ in range(10 * CLOSING_SECONDS):
            if not self.server_state.connections:
                break
            await asyncio.sleep(0.1)
        await super().shutdown(sockets)

    async def _stop_listening(self, sockets: list[socket.socket]) -> None:
        """Accept the connections that wait in the kernel, then close the sockets, which would reset them."""
        loop = asyncio.get_running_loop()
        for listening in sockets:
            loop.remove_reader(listening)
        await asyncio.sleep(0)  # asyncio makes the transports of the connections that it has accepted
        waiting = []
        for listening in sockets:
            with suppress(OSError):  # there are no more, or too many files are open
                while True:
                    waiting.append(listening.accept()[0])
        for server in self.servers:
            server.close()
        protocol: Any = self.config.http_protocol_class
        make_protocol = partial(protocol, self.config, self.server_state, self.lifespan.state)
        for connection in waiting:
            await loop.connect_accepted_socket(make_protocol, connection)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the first signal; at a second one cancel the running requests."""
        if self.should_exit:
            for request in self.server_state.tasks:
                request.cancel()
        self._state.stopping = self.should_exit = True


def _concerns_the_server(record: logging.LogRecord) -> bool:
    """Filter out uvicorn's warning, one for each malformed request of any client."""
    return record.msg != "Invalid HTTP request received."


def check_access(host: str, access: Access, no_auth: bool) -> None:
    """Check that other machines can use the server only with a key, unless `no_auth`.

    Raises:
        SettingsError: the server has no key, and `host` is not an address of this machine only; or
            an option has a value that can never work.
    """
    if access.api_key == "":
        raise SettingsError("--api-key is empty; give a key, or omit the option")
    if access.api_key and access.api_key != access.api_key.strip():
        raise SettingsError(
            "--api-key (or BERTIE_API_KEY) begins or ends with a blank or line break, which no request can "
            "send; remove it"
        )
    if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", access.api_key or ""):  # RFC 9110, Section 5.5
        raise SettingsError(
            "--api-key (or BERTIE_API_KEY) has a control character, such as a line break, which no request "
            "can send; remove it"
        )
    if access.root_path and not access.root_path.startswith("/"):
        raise SettingsError(f"--root-path {access.root_path}: no leading slash; use /{access.root_path}")
    for origin in access.cors:  # browsers send it without a path; a file's page sends null
        if origin not in ("*", "null") and not re.fullmatch(r"[^:/]+://[^/]+", origin):
            raise SettingsError(
                f"--cors {origin}: not an origin; use one like https://example.org:8080, or *"
            )
    if access.api_key or no_auth or _is_loopback(host):
        return
    raise SettingsError(
        f"--host {host}: other machines could use the server without a key; set BERTIE_API_KEY or --api-key, "
        f"or allow everybody with --no-auth"
    )


def _is_loopback(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None)  # as `listen` does
    except (OSError, UnicodeError):
        return True  # unknown: `listen` reports it
    return all(ip_address(address[0]).is_loopback for *_, address in found)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Port 0 takes any free port; the host `::` listens on IPv4, too.

    Raises:
        SettingsError: the port is in use, or the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        listening = socket.create_server((host, port), family=family, dualstack_ipv6=dual)
    except OSError as error:
        # Without "(while attempting to bind on address (…))", which `create_server` adds.
        reason = str(error.strerror).partition(" (while")[0]
        raise SettingsError(
            f"--host {host} --port {port}: cannot listen: {reason}; choose another address or port"
        ) from None
    # Its connections inherit the option. Without it, the second packet of a response waits some 40 ms until
    # the client acknowledges the first. asyncio sets it only for sockets whose protocol is given, which
    # `create_server` does not.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
