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


@pytest.mark.parametrize(("number", "on_hangup"), [(signal.SIGTERM, "ignored"), (signal.SIGHUP, "default")])
def test_shutdown_answers_pending_requests(model, number, on_hangup, inherit_hangup):
    """SIGHUP comes from a terminal that is closed; `nohup` keeps the server running."""
    inherit_hangup({"ignored": signal.SIG_IGN, "default": signal.SIG_DFL}[on_hangup])
    body = b'{"inputs": {"text": "the cat"}}'
    with serving(model) as (process, port):
        if on_hangup == "ignored":
            process.send_signal(signal.SIGHUP)
            sleep(0.5)
        with half_a_request(port, body) as connection:
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
    """A server with every option, whose key comes from the environment."""
    monkeypatch.chdir(model)
    monkeypatch.setenv("BERTIE_API_KEY", "secret")
    options = ["--device", "cpu", "--precision", "int8", "--max-texts", 2, "--max-body", 500]
    options += ["--max-waiting", 9, "--max-connections", 99, "--timeout", 5]
    options += ["--log-requests", "--root-path", "/bert/"]
    authorized = {"Authorization": "Bearer secret"}
    with (
        serving(".", *options) as (process, port),
        half_a_request(port, b"{}", authorized) as connection,
    ):
        with pytest.raises(HTTPError, match="401") as unauthorized:
            urlopen(f"http://127.0.0.1:{port}/bert/info")
        unauthorized.value.close()
        with urlopen(Request(f"http://127.0.0.1:{port}/bert/info", headers=authorized)) as response:
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
        log = process.stderr.read()
    requests = [r"GET '/bert/info' 401 .*", r"GET '/bert/info' 200 .*", r"POST '/bert/predict' 503 .*"]
    assert re.fullmatch("".join(rf".* {request}\n" for request in requests), log)
    assert "secret" not in log


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


# Runs `bertie serve` without each of the packages.
WITHOUT_PACKAGES = """
import sys
from bertie.commands.main import main

class MissingPackage:
    def find_spec(self, name, path=None, target=None):
        if name == package:
            raise ModuleNotFoundError(f"no {name} here", name=name)

sys.meta_path.insert(0, MissingPackage())
model, *packages = sys.argv[1:]
sys.argv = ["bertie", "serve", model]
for package in packages:
    for name in [*sys.modules]:
        if name.startswith((package, "bertie.inference.server")):
            del sys.modules[name]
    try:
        main()
    except SystemExit as exit:
        print(package, exit.code)
"""


def test_missing_package_names_the_extra_to_install(model):
    packages = ["prometheus_client", "starlette", "uvicorn"]
    command = [sys.executable, "-c", WITHOUT_PACKAGES, model, *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "".join(f"{package} 2\n" for package in packages)
    assert done.stderr == "".join(
        f"bertie: this needs {package}: {install_command('serve')}\n" for package in packages
    )
