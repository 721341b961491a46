"""`bertie serve`: the process prints its address, answers requests and shuts down cleanly."""

import json
import re
import signal
import socket
import subprocess
import sys
from time import monotonic, sleep
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.commands.serving import serving
from tests.inference.server.serving import half_a_request, read_response
from tests.inference.small_models import save_small

import bertie
from bertie.base.environment import install_command
from bertie.commands.main import main


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_small(tmp_path_factory.mktemp("models"), "classifier")


def wait_until_closed(port):
    deadline = monotonic() + 60
    try:
        while monotonic() < deadline:
            socket.create_connection(("127.0.0.1", port)).close()
            sleep(0.02)
        pytest.fail("the server still accepts connections")
    except ConnectionRefusedError:
        pass


@pytest.fixture
def inherit_hangup():
    """Return a function that sets how new processes handle SIGHUP, which `nohup` ignores."""
    previous = signal.getsignal(signal.SIGHUP)
    yield lambda action: signal.signal(signal.SIGHUP, action)
    signal.signal(signal.SIGHUP, previous)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_shutdown_answers_pending_requests(model, number, inherit_hangup):
    """SIGHUP comes from a terminal that is closed."""
    inherit_hangup(signal.SIG_DFL)
    body = b'{"inputs": {"text": "the cat"}}'
    with serving(model) as (process, port), half_a_request(port, body) as connection:
        process.send_signal(number)
        wait_until_closed(port)
        connection.sendall(body)
        status, content = read_response(connection)
        assert status == 200
        ((best, *_),) = content["predictions"]
        assert best["label"] == bertie.load(model).classify(["the cat"])[0][0].label
        assert process.wait() == 0
        assert process.stderr.read() == ""


def test_second_signal_aborts_pending_requests(model, monkeypatch):
    monkeypatch.chdir(model)
    options = ["--device", "cpu", "--precision", "int8", "--max-texts", 2, "--max-body", 500]
    options += ["--max-waiting", 9, "--max-connections", 99, "--timeout", 5]
    with serving(".", *options) as (process, port), half_a_request(port, b"{}") as connection:
        with urlopen(f"http://127.0.0.1:{port}/info") as response:
            info = json.load(response)
        limits = {"max_texts": 2, "max_body": 500, "max_waiting": 9, "max_connections": 99}
        assert info["limits"] == limits | {"body_seconds": 30, "request_seconds": 5}
        assert (info["model"], info["model_dtype"]) == (model.name, "int8")
        process.send_signal(signal.SIGINT)
        wait_until_closed(port)
        process.send_signal(signal.SIGINT)
        status, content = read_response(connection)
        assert (status, content["error_type"]) == (503, "Unhealthy")
        assert process.wait() == 0
        assert process.stderr.read() == ""


def test_nohup_keeps_the_server_running(model, inherit_hangup):
    inherit_hangup(signal.SIG_IGN)
    with serving(model) as (process, port):
        process.send_signal(signal.SIGHUP)
        sleep(0.5)
        with urlopen(f"http://127.0.0.1:{port}/health") as response:
            assert response.status == 200


def run(capsys, *arguments):
    """Run `bertie serve ARGUMENTS` in this process; return its exit status and stderr."""
    sys.argv = ["bertie", "serve", *map(str, arguments)]
    with pytest.raises(SystemExit) as exit_status:
        main()
    return exit_status.value.code, capsys.readouterr().err


def test_startup_errors_are_one_line_with_status_2(model, tmp_path, capsys):
    missing = tmp_path / "missing"
    assert run(capsys, missing) == (2, f"bertie: {missing}: no such model directory\n")
    status, err = run(capsys, "bert-base-uncased")
    assert status == 2
    assert err.endswith("run: hf download bert-base-uncased --local-dir bert-base-uncased\n")
    damaged = save_small(tmp_path, "classifier")
    (damaged / "model.safetensors").write_bytes(b"no weights")
    status, err = run(capsys, damaged)
    assert (status, err.count("\n")) == (2, 1)
    assert f"{damaged}" in err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, err = run(capsys, model, "--port", port)
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith(f"bertie: --host 127.0.0.1 --port {port}: cannot listen: Address already in use")


def test_an_infinite_timeout_is_rejected(model, capsys):
    """JSON has no infinity, so no client could read /info."""
    status, err = run(capsys, model, "--timeout", "inf", "--host", "no such host")
    assert status == 2
    assert "expected a number less than or equal to 1000000" in err


def test_a_server_of_other_machines_needs_a_key(model, capsys):
    status, err = run(capsys, model, "--host", "0.0.0.0")
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith("bertie: --host 0.0.0.0: other machines could use the server without a key; ")


def test_the_key_comes_from_the_environment_and_requests_are_logged(model, monkeypatch):
    monkeypatch.setenv("BERTIE_API_KEY", "secret")
    with serving(model, "--log-requests", "--root-path", "/bert/") as (process, port):
        with pytest.raises(HTTPError, match="401"):
            urlopen(f"http://127.0.0.1:{port}/bert/info")
        request = Request(f"http://127.0.0.1:{port}/bert/info", headers={"Authorization": "Bearer secret"})
        with urlopen(request) as response:
            assert json.load(response)["model"] == model.name
        process.send_signal(signal.SIGTERM)
        log = process.stderr.read()
    assert re.search(r"GET '/bert/info' 401 .*\n.*GET '/bert/info' 200 ", log)
    assert "secret" not in log


@pytest.mark.parametrize("package", ["prometheus_client", "starlette", "uvicorn"])
def test_missing_package_names_the_extra_to_install(model, package):
    script = f"""
import sys

class MissingPackage:
    def find_spec(self, name, path=None, target=None):
        if name == "{package}":
            raise ModuleNotFoundError(f"no {{name}} here", name=name)

sys.meta_path.insert(0, MissingPackage())
from bertie.commands.main import main
sys.argv = ["bertie", "serve", sys.argv[1]]
main()
"""
    done = subprocess.run([sys.executable, "-c", script, model], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"bertie: this needs {package}: {install_command('serve')}\n"
