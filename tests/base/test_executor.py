"""Results of worker processes, even if a worker dies, raises or is interrupted."""

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

import bertie
from bertie.base import executor
from bertie.base.errors import BertieError, DataError, SettingsError
from bertie.base.executor import MAX_DEATHS, run_tasks

TASKS = """
import os, signal, sys, time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from bertie.base.errors import DataError
from bertie.base.executor import run_tasks

def square(number):
    return number * number

def die_once(marker):
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return marker.name

def write_half_of_result(then):
    def send(connection, data):  # a large result is written in several parts
        os.write(connection.fileno(), data[: len(data) // 2])
        then()

    Connection._send = send

def die_in_result(marker):
    if not marker.exists():
        marker.touch()
        write_half_of_result(lambda: os.kill(os.getpid(), signal.SIGKILL))
    return marker.name

def pause_in_result(folder):
    if folder:
        write_half_of_result(lambda: sleep(folder))

def die_on_three(number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number

def die_after_note(file):
    if file:
        with file.open("a") as notes:
            notes.write("died\\n")
        os.kill(os.getpid(), signal.SIGKILL)

def fail_on_three(number):
    if number == 3:
        raise DataError("three.txt: line 3: no")
    return number

def read_parent(_):
    return os.getppid()

def read_variable(name):
    return os.environ.get(name)

def sleep(folder):
    (folder / str(os.getpid())).touch()
    time.sleep(60)

def work(folder):
    if folder:
        (folder / "begun").touch()
        time.sleep(20)
        (folder / "finished").touch()

if __name__ == "__main__":
    list(run_tasks(sleep, [Path(sys.argv[1])] * 4, 2))
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of tasks that workers can import by name."""
    (tmp_path / "executor_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("executor_tasks", None)
    return importlib.import_module("executor_tasks")


@pytest.fixture(params=["forked", "forked by a server"], autouse=True)
def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How workers start. Processes of pytest have several threads, none of which holds a lock here."""
    monkeypatch.setattr(executor, "_has_one_thread", lambda: request.param == "forked")
    return str(request.param)


@pytest.mark.parametrize("workers", [1, 2])
def test_each_argument_gives_one_result(tasks: ModuleType, workers: int) -> None:
    results = list(run_tasks(tasks.square, range(20), workers))
    assert sorted(results) == [(index, index * index) for index in range(20)]


def test_workers_see_variables_that_changed_between_runs(
    tasks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("first", "second"):
        monkeypatch.setenv("BERTIE_TEST", value)
        assert dict(run_tasks(tasks.read_variable, ["BERTIE_TEST"] * 2, 2)) == {0: value, 1: value}
    monkeypatch.delenv("BERTIE_TEST")
    assert dict(run_tasks(tasks.read_variable, ["BERTIE_TEST"] * 2, 2)) == {0: None, 1: None}


def test_no_arguments_give_no_results(tasks: ModuleType) -> None:
    assert list(run_tasks(tasks.square, [], 2)) == []


def test_there_is_at_least_one_worker(tasks: ModuleType) -> None:
    with pytest.raises(SettingsError, match="workers = 0: expected 1 or more"):
        list(run_tasks(tasks.square, [1], 0))


def test_tasks_of_a_killed_worker_run_again(tasks: ModuleType, tmp_path: Path) -> None:
    markers = [tmp_path / f"marker-{index}" for index in range(3)]
    assert dict(run_tasks(tasks.die_once, markers, 2)) == {i: f"marker-{i}" for i in range(3)}


@pytest.mark.parametrize("count", [2, 5])
def test_worker_may_die_while_it_writes_a_result(tasks: ModuleType, tmp_path: Path, count: int) -> None:
    markers = [tmp_path / f"marker-{index}" for index in range(count)]
    for marker in markers[1:]:
        marker.touch()
    assert dict(run_tasks(tasks.die_in_result, markers, 2)) == {i: f"marker-{i}" for i in range(count)}


def test_task_that_always_kills_its_worker_fails_the_run(tasks: ModuleType) -> None:
    with pytest.raises(BertieError, match=rf"died {MAX_DEATHS + 1} times .* fewer than 2 workers") as error:
        list(run_tasks(tasks.die_on_three, range(6), 2))
    assert "\n" not in str(error.value)


def test_task_that_kills_its_worker_is_tried_again_a_few_times(tasks: ModuleType, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with pytest.raises(BertieError, match="worker processes died"):
        list(run_tasks(tasks.die_after_note, [None, None, notes, None], 2))
    assert notes.read_text() == "died\n" * (MAX_DEATHS + 1)


def test_there_are_no_more_workers_than_tasks(tasks: ModuleType) -> None:
    counts = [len(multiprocessing.active_children()) for _ in run_tasks(tasks.square, range(2), 5)]
    assert counts[0] == 2


def test_one_task_runs_in_this_process(tasks: ModuleType) -> None:
    assert list(run_tasks(tasks.read_parent, [None], 5)) == [(0, os.getppid())]


def test_caller_that_wants_no_more_results_stops_the_running_tasks(tasks: ModuleType, tmp_path: Path) -> None:
    """Also where this process ignores SIGTERM, which forked workers would inherit."""
    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        results = run_tasks(tasks.work, [None, tmp_path, None], 2)
        next(results)
        _wait_until((tmp_path / "begun").exists)
        results.close()
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert not (tmp_path / "finished").exists()


def test_running_tasks_are_stopped_while_one_writes_its_result(tasks: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "begun"
    folder.mkdir()
    results = run_tasks(tasks.pause_in_result, [None, folder, None], 2)
    next(results)
    _wait_until(lambda: any(folder.iterdir()))
    results.close()
    assert not multiprocessing.active_children()


def test_worker_may_die_while_the_others_start(tasks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    start_worker = ProcessPoolExecutor._spawn_process

    def start_slowly(pool: ProcessPoolExecutor) -> None:
        time.sleep(0.05)
        start_worker(pool)

    monkeypatch.setattr(ProcessPoolExecutor, "_spawn_process", start_slowly)
    with pytest.raises(BertieError, match=f"died {MAX_DEATHS + 1} times"):
        list(run_tasks(tasks.die_on_three, [3, 0, 1, 2], 4))


@pytest.mark.parametrize("workers", [1, 2])
def test_exception_in_a_task_reaches_the_caller(tasks: ModuleType, workers: int) -> None:
    with pytest.raises(DataError, match=r"three.txt: line 3: no"):
        list(run_tasks(tasks.fail_on_three, range(6), workers))


@pytest.mark.parametrize(
    ("sign", "to_group"), [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGKILL, False)]
)
def test_workers_exit_with_their_parent(
    tasks: ModuleType, tmp_path: Path, sign: signal.Signals, to_group: bool
) -> None:
    """Ctrl-C in a terminal reaches all processes, and `kill` only the parent, which does not wait."""
    started = tmp_path / "started"
    started.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(bertie.__file__).parents[1])}
    parent = subprocess.Popen(
        [sys.executable, tmp_path / "executor_tasks.py", started],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    _wait_until(lambda: len(list(started.iterdir())) == 2)
    workers = [int(file.name) for file in started.iterdir()]
    if to_group:
        os.killpg(parent.pid, sign)
    else:
        parent.send_signal(sign)
    _, errors = parent.communicate(timeout=30)
    assert parent.returncode == -sign
    assert errors.count("Traceback") <= 1  # the parent's own
    _wait_until(lambda: not any(_is_running(worker) for worker in workers))


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_running(process: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False


SCRIPT = """
import math
from bertie.base.executor import run_tasks
print("started")
print(sorted(run_tasks(math.sqrt, [1.0, 4.0, 9.0], workers=2)))
"""


@pytest.mark.parametrize("stdin", [False, True])
def test_a_script_needs_no_main_guard(tmp_path, stdin):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-" if stdin else str(tmp_path / "script.py")]
    done = subprocess.run(command, input=SCRIPT, capture_output=True, text=True, check=True)
    assert done.stdout == "started\n[(0, 1.0), (1, 2.0), (2, 3.0)]\n"
    assert done.stderr == ""


PARTIAL = """
from functools import partial
from bertie.base.executor import run_tasks

def power(exponent, number):
    return number ** exponent

if __name__ == "__main__":
    print(sorted(run_tasks(partial(power, 2), [1, 2, 3], workers=2)))
"""


def test_a_script_may_define_the_function_of_a_partial(tmp_path):
    (tmp_path / "script.py").write_text(PARTIAL)
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[(0, 1), (1, 4), (2, 9)]\n"


THREADS = """
import threading
from executor_tasks import read_parent
from bertie.base.executor import run_tasks
print({parent for _, parent in run_tasks(read_parent, range(2), 2)} == {os.getpid()})
held = threading.Lock()
held.acquire()
threading.Thread(target=held.acquire, daemon=True).start()
print({parent for _, parent in run_tasks(read_parent, range(2), 2)} == {os.getpid()})
"""


def test_only_a_process_with_one_thread_is_forked(tasks: ModuleType, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import os" + THREADS],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(bertie.__file__).parents[1]}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\nFalse\n"


INTERRUPTED_IMPORT = """
import os, signal
main = int(os.environ["MAIN"])
if main != os.getpid():  # in the server
    for process in (os.getpid(), main):
        os.kill(process, signal.SIGINT)

def square(number):
    return number * number
"""
MAIN = """
import os, signal, threading
os.environ["MAIN"] = str(os.getpid())
from bertie.base.executor import run_tasks
from interrupted_import import square

threading.Thread(target=signal.pause, daemon=True).start()  # or workers would be forked without a server
try:
    list(run_tasks(square, range(3), 2))
except KeyboardInterrupt:
    print("stopped")
"""


@pytest.mark.parametrize("start", ["forked by a server"], indirect=True)
def test_ctrl_c_while_workers_import_prints_nothing(tmp_path: Path) -> None:
    (tmp_path / "interrupted_import.py").write_text(INTERRUPTED_IMPORT)
    (tmp_path / "main.py").write_text(MAIN)
    command = [sys.executable, "main.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped\n", "")
