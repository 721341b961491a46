"""Sockets and shutdown; tests/commands/test_serve.py sends signals to processes."""

import asyncio
import errno
import gc
import json
import socket
import sys
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from signal import SIGTERM
from time import monotonic, sleep

import pytest
from tests.inference.server.serving import LIMITS, half_a_request, read_response, serving
from tests.inference.small_models import save_small

import bertie
from bertie.base.errors import SettingsError
from bertie.inference.server import running
from bertie.inference.server.middleware import OPEN, Access
from bertie.inference.server.running import GatheringTransport, Server, check_access, listen


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return bertie.load(save_small(tmp_path_factory.mktemp("models"), "classifier"))


def test_listen_takes_a_free_port_and_rejects_a_used_one():
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        assert port
        with pytest.raises(
            SettingsError, match=rf"--port {port}: cannot listen: Address already in use; choose another"
        ):
            listen("127.0.0.1", port)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_all_of_ipv6_includes_ipv4():
    with listen("::", 0) as listening:
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, listening.getsockname()[1]), timeout=60) as client:
                accepted, address = listening.accept()
                accepted.close()
                assert address[1] == client.getsockname()[1]


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host", "::zz"])
def test_listen_rejects_an_address_of_another_machine(host):
    message = f"--host {host} --port 0: cannot listen: [A-Za-z ]+; choose another"
    with pytest.raises(SettingsError, match=message):
        listen(host, 0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "203.0.113.7", ""])
def test_only_a_server_of_other_machines_needs_a_key(host):
    for loopback in ("127.0.0.1", "localhost", "::1", "127.1.2.3", "no such host"):
        check_access(loopback, OPEN, no_auth=False)
    with pytest.raises(SettingsError, match=f"--host {host}: .*; set BERTIE_API_KEY or --api-key, or allow"):
        check_access(host, OPEN, no_auth=False)
    check_access(host, OPEN, no_auth=True)
    check_access(host, Access("key"), no_auth=False)


@pytest.mark.parametrize(
    ("access", "message"),
    [
        (Access(""), "--api-key is empty; "),
        (Access("secret\r"), ".* ends with a blank or line break"),
        (Access("a\nb"), ".* has a control character, such as a line break, which no request can send"),
        (Access("a\x7fb"), ".* has a control character"),
        (Access(root_path="b"), ".*; use /b$"),
        (Access(cors=("*", "https://a.example/")), "--cors https://a.example/: not an origin; use one like"),
        (Access(cors=("localhost:3000",)), "--cors localhost:3000: not an origin; use one like"),
    ],
)
def test_useless_options_are_rejected(access, message):
    with pytest.raises(SettingsError, match=message):
        check_access("127.0.0.1", access, no_auth=True)


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://[::1]:3000", "chrome-extension://abc"])
def test_an_origin_has_no_path(origin):
    check_access("127.0.0.1", Access(cors=("*", "null", origin)), no_auth=False)
    with pytest.raises(SettingsError, match="not an origin"):
        check_access("127.0.0.1", Access(cors=(f"{origin}/page",)), no_auth=False)


class Packets:
    """A transport that records what it is given to send."""

    def __init__(self):
        self.sent = []

    def write(self, data):
        if data:
            self.sent.append(data)

    def close(self):
        self.sent.append("closed")


def test_head_and_body_are_one_packet():
    async def write():
        packets = Packets()
        transport = GatheringTransport(packets, asyncio.get_running_loop(), lambda: False)
        transport.write(b"head ")
        transport.write(b"body")
        assert packets.sent == []
        await asyncio.sleep(0)
        transport.write(b"next")
        await asyncio.sleep(0)
        transport.write(b"last")
        transport.close()
        await asyncio.sleep(0)
        return packets.sent

    assert asyncio.run(write()) == [b"head body", b"next", b"last", "closed"]


class ResetConnection(Packets):
    """A transport whose client has reset the connection, which the event loop has not noticed yet."""

    def write_eof(self):
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    def resume_reading(self):
        self.sent.append("reads")


def test_closing_a_connection_that_the_client_has_reset_is_no_error():
    async def close():
        connection = ResetConnection()
        GatheringTransport(connection, asyncio.get_running_loop(), lambda: True).close()
        return connection.sent

    assert asyncio.run(close()) == ["reads"]  # finds the reset


def test_the_collector_leaves_out_what_exists_before_the_server(model):
    with serving(model) as served:
        served.send("GET", "/health")
        assert gc.get_freeze_count() > 10_000
        assert gc.get_threshold()[0] == 10_000


def test_the_computing_thread_does_not_wait_long_for_the_event_loop(model):
    with serving(model) as served:
        served.send("GET", "/health")
        assert sys.getswitchinterval() < 0.001  # Python's default is 5 ms


def read_until_closed(connection):
    return b"".join(iter(lambda: connection.recv(1000), b""))


def refuses_connections(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


def test_connections_without_a_whole_head_are_closed(model, monkeypatch):
    """Silent clients, and those that send one header after the other, also after a request."""
    monkeypatch.setattr(running, "HEAD_SECONDS", 0.5)
    request = b"GET /health HTTP/1.1\r\nHost: a\r\n"
    with serving(model) as served:
        for sent, answers in [(b"", 0), (request, 0), (request + b"\r\n" + request, 1)]:
            with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
                connection.sendall(sent)
                assert read_until_closed(connection).count(b"HTTP/1.1 200") == answers


def test_an_idle_connection_is_kept_for_a_proxy(model, monkeypatch):
    """Longer than the head of a request may take, and than the 60 seconds of nginx."""
    monkeypatch.setattr(running, "HEAD_SECONDS", 0.3)
    assert running.KEEP_ALIVE_SECONDS > 60
    with serving(model) as served, closing(HTTPConnection("127.0.0.1", served.port)) as connection:
        connection.connect()
        kept = connection.sock
        for _ in range(2):
            connection.request("GET", "/health")
            assert connection.getresponse().read() == b'{"status":"ok"}'
            sleep(0.6)
        assert connection.sock is kept
        served.server.should_exit = True
        assert closes_all_connections(served, seconds=3)


def test_an_idle_connection_is_closed_in_the_end(model, monkeypatch):
    monkeypatch.setattr(running, "KEEP_ALIVE_SECONDS", 0.5)
    with serving(model) as served, socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.settimeout(10)
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert read_until_closed(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02", b"GET / HTTP/1.1\r\nno colon\r\n\r\n"])
def test_malformed_http_is_answered_in_json(model, garbage, caplog):
    with serving(model) as served, socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(garbage + b"\r\n\r\n")
        assert read_response(connection) == (
            400,
            {"error": "invalid HTTP request", "error_type": "Validation"},
        )
    assert caplog.text == ""  # only with --log-requests


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
def test_a_request_for_another_protocol_is_answered_in_http(model, caplog, protocol):
    headers = {"Connection": "Upgrade", "Upgrade": protocol, "Sec-WebSocket-Version": "13"}
    with serving(model) as served:
        assert served.send("GET", "/health", headers=headers)[0].status == 200
    assert caplog.text == ""


def test_a_slow_computation_is_not_a_slow_head(model, monkeypatch):
    monkeypatch.setattr(running, "HEAD_SECONDS", 0.2)
    with serving(model) as served, half_a_request(served.port, b'{"inputs": "a"}') as connection:
        sleep(0.5)
        connection.sendall(b'{"inputs": "a"}')
        assert read_response(connection)[0] == 200


@pytest.mark.parametrize("path", ["/health", "/nowhere"])
def test_a_body_that_goes_on_after_the_response_is_cut_off(model, path, monkeypatch):
    """The response, such as a 401, was sent before the body; each byte stops uvicorn's own timer."""
    monkeypatch.setattr(running, "HEAD_SECONDS", 0.5)
    with serving(model) as served, socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n".encode())
        assert connection.recv(10_000).startswith(b"HTTP/1.1 ")
        begin = monotonic()
        with suppress(ConnectionError):
            while monotonic() - begin < 4:
                connection.sendall(b"x")
                sleep(0.1)
        assert monotonic() - begin < 3


@pytest.mark.parametrize("path", ["/info", "/page/tabs.js"])
def test_a_client_that_closes_its_direction_is_answered(model, path):
    """Such as `nc -N`."""
    with serving(model) as served, socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        connection.shutdown(socket.SHUT_WR)
        response = read_until_closed(connection)
        assert response.startswith(b"HTTP/1.1 200")
        assert response.endswith(served.send_text("GET", path)[1].encode())


@pytest.mark.parametrize(
    "sent", [b"", b"GET /info HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{"]
)
def test_half_a_request_is_given_up_when_its_client_closes(model, sent):
    with serving(model) as served, socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        assert read_until_closed(connection) == b""
        assert closes_all_connections(served, seconds=5)


@contextmanager
def large_response(served):
    """Open a connection that has sent a request with a response of 8 MB."""
    body = json.dumps({"inputs": "a " * 100_000}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", served.port))
        head = f"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        connection.sendall(head + body)
        yield connection


def closes_all_connections(served, seconds):
    """Return whether the server closes all connections within so many seconds."""
    end = monotonic() + seconds
    while served.server.server_state.connections and monotonic() < end:
        sleep(0.02)
    return not served.server.server_state.connections


@pytest.mark.parametrize("next_request", [b"", b"G"], ids=["silent", "begins another request"])
def test_a_client_that_does_not_read_is_cut_off(model, monkeypatch, next_request):
    """Also if it sends something, which stops uvicorn's own timer."""
    monkeypatch.setattr(running, "READ_SECONDS", 0.5)
    monkeypatch.setattr(running, "HEAD_SECONDS", 0.5)
    with serving(model) as served, large_response(served) as connection:
        connection.recv(1)  # the response has begun
        connection.sendall(next_request)
        assert closes_all_connections(served, seconds=20)


def test_a_client_that_reads_slowly_is_not_cut_off(model, monkeypatch):
    """The kernel takes nothing from the server while the client reads the first megabytes."""
    monkeypatch.setattr(running, "READ_SECONDS", 0.5)
    monkeypatch.setattr(running, "LEAST_READ", 1)
    with serving(model) as served, large_response(served) as connection:
        served.server.config.timeout_keep_alive = 0.5
        connection.recv(1)
        begin = monotonic()
        while monotonic() - begin < 1.5:
            assert connection.recv(16_384)
            sleep(0.02)
        assert served.server.server_state.connections


def test_responses_of_tokenize_that_nobody_reads_fill_the_queue(model):
    with serving(model, limits=LIMITS._replace(max_waiting=1_000)) as served:
        with large_response(served) as connection:
            connection.recv(1)
            status, content = served.post("/tokenize", {"inputs": "a"})
            assert (status, content["error"]) == (429, "queue full; retry later")
            assert served.post("/predict", {"inputs": "a"})[0] == 200
        end = monotonic() + 10
        while served.post("/tokenize", {"inputs": "a"})[0] == 429:
            assert monotonic() < end
            sleep(0.02)


def test_a_client_that_reads_for_too_long_is_cut_off(model, monkeypatch):
    """Its connection and the results in memory are free again, however steadily it reads."""
    monkeypatch.setattr(running, "RESPONSE_SECONDS", 1)
    with serving(model) as served, large_response(served) as connection:
        connection.recv(1)
        begin = monotonic()
        with suppress(ConnectionError):
            while served.server.server_state.connections and monotonic() - begin < 20:
                connection.recv(4096)
                sleep(0.01)
        assert monotonic() - begin < 10
        assert closes_all_connections(served, seconds=5)


def test_a_malformed_chunk_after_the_response_only_closes(model, caplog):
    with serving(model) as served, socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert connection.recv(10_000).startswith(b"HTTP/1.1 404 ")
        connection.sendall(b"zz\r\n")
        assert read_until_closed(connection) == b""
    assert "Traceback" not in caplog.text


def test_a_large_head_is_answered(model):
    """Also while the client still sends it; to close the connection would reset it."""
    with serving(model) as served, socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nCookie: " + b"a" * 20_000_000 + b"\r\n\r\n")
        assert read_response(connection) == (
            431,
            {
                "error": "head larger than 65,536 bytes; send fewer or shorter headers",
                "error_type": "Validation",
            },
        )


@pytest.mark.parametrize(
    ("path", "cookie"),
    [("/health", 65_536), ("/v1/models", 65_536), ("/" + "a" * 65_500, 0), ("/?" + "a" * 65_500, 0)],
)
def test_a_large_head_in_one_piece_is_answered(model, path, cookie):
    """h11 limits only heads that it has to wait for."""
    message = "head larger than 65,536 bytes; send fewer or shorter headers"
    with serving(model) as served:
        response, content = served.send("GET", path, headers={"Cookie": "a" * cookie})
        assert (response.status, response.headers["Connection"]) == (431, "close")
        if path.startswith("/v1/"):
            assert content["error"]["message"] == message
        else:
            assert content == {"error": message, "error_type": "Validation"}
        assert served.send("GET", "/health", headers={"Cookie": "a" * 65_000})[0].status == 200


@pytest.mark.parametrize(
    ("path", "max_body", "status"), [("/embed", 2_000_000, 413), ("/nowhere", 30_000_000, 404)]
)
def test_a_large_body_on_a_closing_connection_is_answered(model, path, max_body, status):
    """As urllib sends it, which reads no response before it has sent the whole body."""
    with serving(model, limits=LIMITS._replace(max_body=max_body)) as served:
        response, _ = served.send("POST", path, b"a" * 20_000_000, headers={"Connection": "close"})
        assert response.status == status
        assert closes_all_connections(served, seconds=5)


def test_a_client_that_sends_on_after_the_last_response_is_cut_off(model, monkeypatch):
    monkeypatch.setattr(running, "HEAD_SECONDS", 0.5)
    head = b"POST /nowhere HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n"
    with serving(model) as served, socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(head)
        assert read_until_closed(connection).startswith(b"HTTP/1.1 404 ")
        begin = monotonic()
        with suppress(ConnectionError):
            while monotonic() - begin < 4:
                connection.sendall(b"x")
                sleep(0.1)
        assert monotonic() - begin < 3


def test_too_many_connections_are_turned_away(model):
    with serving(model, limits=LIMITS._replace(max_connections=2)) as served:
        with socket.create_connection(("127.0.0.1", served.port)):
            assert served.send("GET", "/health")[0].status == 200  # on the second connection
        with (
            socket.create_connection(("127.0.0.1", served.port)),
            socket.create_connection(("127.0.0.1", served.port)),
        ):
            response, content = served.send("GET", "/health")
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
            assert content == {"error": "too many connections; retry later", "error_type": "Overloaded"}
            assert served.send("GET", "/v1/models")[1]["error"]["type"] == "server_error"
        while served.send("GET", "/health")[0].status != 200:
            sleep(0.01)


def test_a_slow_request_does_not_delay_shutdown_forever(model, monkeypatch):
    monkeypatch.setattr(running, "DRAIN_SECONDS", 0)
    with serving(model) as served, half_a_request(served.port, b"{}") as connection:
        served.server.should_exit = True
        status, content = read_response(connection)
    assert (status, content["error_type"]) == (503, "Unhealthy")


def test_a_stopping_server_asks_clients_to_close_their_connections(model):
    with serving(model) as served:
        response, _ = served.send("POST", "/embed", {"inputs": "a"})
        assert "Connection" not in response.headers
        served.app.state.stopping = True
        for method, path, status in [("POST", "/embed", 200), ("GET", "/health", 503)]:
            response, _ = served.send(method, path, {"inputs": "a"})
            assert (response.status, response.headers["Connection"]) == (status, "close")


def test_a_stopping_server_answers_on_open_connections(model):
    """A proxy may be sending a request on a connection that is idle when the signal comes."""
    with (
        serving(model, closing_seconds=1) as served,
        closing(HTTPConnection("127.0.0.1", served.port)) as connection,
    ):
        connection.request("GET", "/info")
        assert connection.getresponse().read()
        served.server.handle_exit(SIGTERM, None)
        while not refuses_connections(served.port):
            sleep(0.01)
        sleep(0.2)
        kept = connection.sock
        connection.request("POST", "/predict", '{"inputs": "a"}')
        response = connection.getresponse()
        assert (response.status, response.headers["Connection"]) == (200, "close")
        assert response.read()
        assert kept.fileno() == -1


def test_a_stopping_server_answers_connections_that_wait_in_the_kernel(model, monkeypatch):
    """A client connects while the event loop is busy, and the signal comes before it accepts."""
    connections = []
    shutdown = Server.shutdown

    async def connect_and_shut_down(server, sockets):
        connection = HTTPConnection(*sockets[0].getsockname(), timeout=60)
        connection.request("POST", "/predict", '{"inputs": "a"}')
        connections.append(connection)
        await shutdown(server, sockets)

    monkeypatch.setattr(Server, "shutdown", connect_and_shut_down)
    with serving(model, closing_seconds=1):
        pass
    with closing(connections[0]) as connection:
        assert connection.getresponse().status == 200


def test_responses_do_not_wait_for_acknowledgements():
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
