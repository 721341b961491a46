"""`bertie serve`: a process that says where it listens, answers, and ends well."""

import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from threading import Timer
from time import sleep
from urllib.request import urlopen

import pytest
from tests.inference.server.serving import answer_on, half_a_request
from tests.inference.small_models import save_small

import bertie
from bertie.commands.main import main

SERVE = [sys.executable, "-m", "bertie.commands.main", "serve"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_small(tmp_path_factory.mktemp("models"), "classifier")


@contextmanager
def serving(*arguments):
    """The process, and the port that its first line names."""
    command = [*SERVE, *map(str, arguments), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        alarm = Timer(60, process.kill)  # waiting for what never comes would last for ever
        alarm.start()
        try:
            line = process.stderr.readline()
            yield process, int(re.search(r"http://127\.0\.0\.1:(\d+) serves", line)[1])
        finally:
            process.kill()
            alarm.cancel()


def wait_until_closed(port):
    try:
        while True:
            socket.create_connection(("127.0.0.1", port)).close()
            sleep(0.02)
    except ConnectionRefusedError:
        pass


def test_told_to_stop_it_answers_what_is_under_way(model):
    body = b'{"inputs": "the cat"}'
    with serving(model) as (process, port), half_a_request(port, body) as connection:
        process.send_signal(signal.SIGTERM)
        wait_until_closed(port)
        connection.sendall(body)
        status, content = answer_on(connection)
        assert status == 200
        ((best, *_),) = content["predictions"]
        assert best["label"] == bertie.load(model).classify(["the cat"])[0][0].label
        assert process.wait() == 0
        assert process.stderr.read() == ""


def test_told_twice_it_waits_for_nobody(model, monkeypatch):
    monkeypatch.chdir(model)
    options = ["--device", "cpu", "--max-texts", 2, "--max-body", 500, "--max-waiting", 9]
    with serving(".", *options) as (process, port), half_a_request(port, b"{}") as connection:
        with urlopen(f"http://127.0.0.1:{port}/info") as response:
            info = json.load(response)
        assert info["limits"] == {"max_texts": 2, "max_body": 500, "max_waiting": 9}
        assert info["model"] == model.name
        process.send_signal(signal.SIGINT)
        wait_until_closed(port)
        process.send_signal(signal.SIGINT)
        status, content = answer_on(connection)
        assert (status, content["error_type"]) == (503, "Unhealthy")
        assert process.wait() == 0
        assert process.stderr.read() == ""


def run(capsys, *arguments):
    """Exit status and stderr of `bertie serve ARGUMENTS`, in this process."""
    sys.argv = ["bertie", "serve", *map(str, arguments)]
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr().err


def test_what_cannot_be_served_is_one_line_and_status_2(model, tmp_path, capsys):
    missing = tmp_path / "missing"
    assert run(capsys, missing) == (2, f"bertie: {missing}: no such model directory\n")
    damaged = save_small(tmp_path, "classifier")
    (damaged / "model.safetensors").write_bytes(b"no weights")
    status, err = run(capsys, damaged)
    assert (status, err.count("\n")) == (2, 1)
    assert f"{damaged}" in err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, err = run(capsys, model, "--port", port)
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith(
        f"bertie: --host 127.0.0.1 --port {port}: cannot listen there: Address already in use"
    )


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_without_its_packages_it_names_the_extra(model, package):
    script = f"""
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name == "{package}":
            raise ModuleNotFoundError(f"no {{name}} here", name=name)

sys.meta_path.insert(0, Without())
from bertie.commands.main import main
sys.argv = ["bertie", "serve", sys.argv[1]]
main()
"""
    done = subprocess.run([sys.executable, "-c", script, model], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"bertie: this needs {package}: pip install 'bertie[serve]'\n"
