"""Sockets, and the end; signals are sent to processes, in tests/commands/test_serve.py."""

import pytest
from tests.inference.server.serving import answer_on, half_a_request, serving
from tests.inference.small_models import save_small

import bertie
from bertie.base.errors import SettingsError
from bertie.inference.server import running
from bertie.inference.server.running import listen


def test_a_free_port_is_found_and_a_taken_one_named():
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        assert port
        with pytest.raises(
            SettingsError, match=rf"--port {port}: cannot listen there: Address already in use.*; name"
        ):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host", "::zz"])
def test_an_address_that_is_not_this_machine_s_is_named(host):
    with pytest.raises(SettingsError, match=f"--host {host} --port 0: cannot listen there: .*; name another"):
        listen(host, 0)


def test_a_request_that_takes_too_long_does_not_keep_it_from_ending(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "DRAIN", 0)
    model = bertie.load(save_small(tmp_path, "classifier"))
    with serving(model) as served, half_a_request(served.port, b"{}") as connection:
        served.server.should_exit = True
        status, content = answer_on(connection)
    assert (status, content["error_type"]) == (503, "Unhealthy")
