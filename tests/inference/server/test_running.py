"""Sockets and shutdown; tests/commands/test_serve.py sends signals to processes."""

import pytest
from tests.inference.server.serving import half_a_request, read_response, serving
from tests.inference.small_models import save_small

import bertie
from bertie.base.errors import SettingsError
from bertie.inference.server import running
from bertie.inference.server.running import listen


def test_listen_takes_a_free_port_and_rejects_a_used_one():
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        assert port
        with pytest.raises(
            SettingsError, match=rf"--port {port}: cannot listen: Address already in use.*; choose another"
        ):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host", "::zz"])
def test_listen_rejects_an_address_of_another_machine(host):
    with pytest.raises(SettingsError, match=f"--host {host} --port 0: cannot listen: .*; choose another"):
        listen(host, 0)


def test_a_slow_request_does_not_delay_shutdown_forever(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "DRAIN_SECONDS", 0)
    model = bertie.load(save_small(tmp_path, "classifier"))
    with serving(model) as served, half_a_request(served.port, b"{}") as connection:
        served.server.should_exit = True
        status, content = read_response(connection)
    assert (status, content["error_type"]) == (503, "Unhealthy")
