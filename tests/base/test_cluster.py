"""Tasks on a Dask cluster: the same results as in local processes, and errors of one line."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from tests.inference.small_models import save_small

import bertie
from bertie.base import cluster
from bertie.base.errors import BertieError, SettingsError
from bertie.base.executor import run_tasks
from bertie.base.locks import lock_directory

pytest.importorskip("distributed")
import dask
from distributed import LocalCluster

SOURCE = str(Path(bertie.__file__).parents[1])


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start `dask ARGUMENTS`, without a dashboard, with its log in `folder`."""
    with (folder / f"{arguments[0]}.log").open("ab") as log:
        command = [sys.executable, "-m", "dask", *arguments]
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a scheduler with one worker of two threads, in processes of their own."""
    folder = tmp_path_factory.mktemp("dask")
    file = folder / "scheduler.json"
    options = ["--scheduler-file", str(file)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{SOURCE}:{Path(__file__).parents[2]}")
        processes = [
            start(folder, "scheduler", *options, "--host", "127.0.0.1", "--port", "0", "--no-dashboard"),
            start(folder, "worker", *options, "--no-nanny", "--nthreads", "2", "--no-dashboard"),
        ]
    while not file.exists() or not file.read_text():
        time.sleep(0.05)
    yield json.loads(file.read_text())["address"]
    for process in processes[::-1]:
        process.terminate()
        process.wait()


def fail(number: int) -> None:
    raise OSError(28, "No space left on device", f"/corpus/{number}")


def test_cluster_gives_the_results_of_local_tasks(scheduler, tmp_path, capsys):
    with cluster.connect(scheduler, writes=tmp_path / "out") as workers:
        assert sorted(run_tasks(str, range(40), workers)) == [(n, str(n)) for n in range(40)]
        assert list(workers.map(str, range(40))) == [str(n) for n in range(40)]
        with pytest.raises(OSError, match=r"No space left .*'/corpus/1 on worker tcp://127.0.0.1:"):
            list(run_tasks(fail, [1], workers))
    assert capsys.readouterr().err.count("dashboard") <= 1
    assert not list(tmp_path.iterdir())


def test_an_abandoned_run_cancels_its_tasks(scheduler, monkeypatch):
    """The list keeps the futures: Dask also drops a task whose future nobody has."""
    submit, futures = cluster.DaskCluster._submit, []

    def record(workers, function, argument):
        futures.append(submit(workers, function, argument))
        return futures[-1]

    monkeypatch.setattr(cluster.DaskCluster, "_submit", record)
    with cluster.connect(scheduler) as workers:
        for results in (run_tasks(str, range(9), workers), workers.map(str, range(9))):
            next(results)
            results.close()
            first, *others = sorted(future.status == "cancelled" for future in futures)
            assert not first
            assert others
            assert all(others)
            futures.clear()


def test_prepare_writes_the_bytes_of_a_local_run(scheduler, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        Path(f"{name}.txt").write_text("".join(f"The {name} {n} sat. A dog ran.\n\n" for n in range(50)))
    for out, options in (("local", {"workers": 1}), ("dask", {"scheduler": scheduler})):
        bertie.learn_vocabulary(["a.txt", "b.txt"], f"{out}-words", size=120, **options)
        bertie.prepare(
            ["a.txt", "b.txt", "c.txt"], tokenizer=f"{out}-words", out=out, held_out=0.1, **options
        )
    files = sorted(path.relative_to("local") for path in Path("local").rglob("*") if path.is_file())
    assert files == sorted(path.relative_to("dask") for path in Path("dask").rglob("*") if path.is_file())
    assert all((Path("local") / file).read_bytes() == (Path("dask") / file).read_bytes() for file in files)


@pytest.mark.parametrize("command", ["predict", "features"])
def test_models_give_the_bytes_of_a_local_run(scheduler, tmp_path, monkeypatch, command):
    from bertie.commands import main, predict

    monkeypatch.setattr(predict, "CHUNK", 3)
    model = save_small(tmp_path, "classifier")
    (tmp_path / "in.txt").write_text("".join(f"the cat {n} sat\n" for n in range(20)))
    suffix = {"predict": "jsonl", "features": "parquet"}[command]
    for name, options in (("local", []), ("dask", ["--scheduler", scheduler])):
        output = ["--input", str(tmp_path / "in.txt"), "--out", str(tmp_path / f"{name}.{suffix}")]
        monkeypatch.setattr(sys, "argv", ["bertie", command, str(model), *output, *options])
        with pytest.raises(SystemExit) as status:
            main.main()
        assert not status.value.code
    assert (tmp_path / f"local.{suffix}").read_bytes() == (tmp_path / f"dask.{suffix}").read_bytes()


def test_a_worker_that_lacks_the_files_is_named(scheduler, tmp_path, monkeypatch):
    (tmp_path / "text").write_text("a")
    monkeypatch.setattr(cluster, "_size", lambda path: 7)
    with pytest.raises(BertieError, match=r"worker tcp://\S+: does not see .*/text as this machine"):
        cluster.connect(scheduler, [tmp_path / "text"]).__enter__()


def test_a_worker_with_other_versions_is_named(scheduler, monkeypatch):
    versions = cluster._versions()
    monkeypatch.setattr(cluster, "_versions", lambda: versions | {"bertie": "9.9"})
    with pytest.raises(BertieError, match=r"worker tcp://\S+: has bertie \S+, and this process has 9.9"):
        cluster.connect(scheduler).__enter__()


def test_versions_of_a_worker_are_compared():
    """Patch versions of Python may differ."""
    expected = (("python", "3.11.7.final.0"), ("numpy", "2.1.0"))
    cluster._compare_versions("tcp://a", expected, {"python": "3.11.2.final.0", "numpy": "2.1.0"})
    for found, message in (
        (
            {"python": "3.12.7.final.0", "numpy": "2.1.0"},
            "has python 3.12, and this process has 3.11; install",
        ),
        (
            {"python": "3.11.7.final.0", "numpy": "2.1.1"},
            "has numpy 2.1.1, and this process has 2.1.0; install",
        ),
        ({"python": "3.11.7.final.0", "numpy": None}, "lacks numpy, and this process has 2.1.0; install"),
    ):
        with pytest.raises(BertieError, match=f"worker tcp://a: {message}"):
            cluster._compare_versions("tcp://a", expected, found)


def test_worker_sees_the_files_and_answers_in_the_probe_folder(tmp_path):
    (tmp_path / "text").write_text("abc")
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe/token").write_text("right")

    def check(size=3, file="text", token="right", probe="probe"):
        reads = ((tmp_path / file, size), (tmp_path, -1))
        return cluster._check_worker(cluster._Requirements((), reads, tmp_path / probe, token), "tcp://a")

    address, reply = check()
    assert address == "tcp://a"
    assert reply.parent == tmp_path / "probe"
    assert reply.exists()
    for wrong in ({"size": 4}, {"file": "none"}, {"token": "of another folder"}, {"probe": "none"}):
        with pytest.raises(BertieError, match=rf"worker tcp://a: does not see {tmp_path}\S* as this machine"):
            check(**wrong)
    assert cluster._check_worker(cluster._Requirements((), (), None, ""), "tcp://a") == ("tcp://a", None)


def test_reply_that_is_not_seen_here_names_its_worker(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "VISIBILITY_TIMEOUT", 0)
    workers = object.__new__(cluster.DaskCluster)
    workers._confirmed = set()
    reply = tmp_path / ".out.probe/reply"
    with pytest.raises(BertieError, match=f"worker tcp://a: does not see {tmp_path} as this machine"):
        workers._confirm("tcp://a", reply)
    reply.parent.mkdir()
    reply.touch()
    workers._confirm("tcp://a", reply)
    reply.unlink()
    workers._confirm("tcp://a", reply)  # has been seen


def test_the_output_of_the_tasks_is_locked(scheduler, tmp_path):
    """A lock of another thread is a lock of another process."""

    def write() -> None:
        with lock_directory(tmp_path / "out"):
            pass

    with (
        cluster.connect(scheduler, writes=tmp_path / "out"),
        ThreadPoolExecutor(1) as thread,
        pytest.raises(BertieError, match="another bertie process is writing here"),
    ):
        thread.submit(write).result()


def test_scheduler_without_workers_is_one_line(monkeypatch):
    monkeypatch.setattr(cluster, "WORKER_TIMEOUT", 0.2)
    with (
        LocalCluster(n_workers=0, dashboard_address=":0", protocol="tcp") as empty,
        pytest.raises(BertieError, match=r"tcp://\S+: no worker in 0.2 seconds; .* dask worker tcp://"),
    ):
        cluster.connect(empty.scheduler_address).__enter__()


@pytest.mark.slow
def test_task_that_kills_each_worker_is_one_line():
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as mortal,
        cluster.connect(mortal.scheduler_address) as workers,
        pytest.raises(BertieError, match=r"workers died 2 times on the same task .* --memory-limit"),
    ):
        list(run_tasks(os._exit, [1], workers))


@pytest.mark.slow
@pytest.mark.parametrize("difference", ["version", "files"])
def test_late_worker_that_differs_is_named(scheduler, tmp_path, monkeypatch, difference):
    folder = tmp_path / "shared"
    folder.mkdir()
    worker = f"{sys.executable} -m dask worker {scheduler} --no-nanny --no-dashboard"
    if difference == "version":
        (tmp_path / "other.py").write_text(
            "from bertie.base import cluster\n"
            "versions = cluster._versions() | {'bertie': '9.9'}\n"
            "cluster._versions = lambda: versions\n"
        )
        command, message = (
            f"exec {worker} --preload {tmp_path}/other.py",
            "has bertie 9.9, and this process",
        )
    else:
        if os.geteuid() or not shutil.which("unshare"):
            pytest.skip("needs root and unshare, to hide a folder from a worker")
        command = f"exec unshare --mount sh -c 'mount -t tmpfs none {folder} && exec {worker}'"
        message = "does not see .*/shared as this machine does; mount the same file system"
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    with (tmp_path / "log").open("wb") as log, cluster.connect(scheduler, writes=folder / "out") as workers:
        process = subprocess.Popen(["sh", "-c", command], stdout=log, stderr=log, cwd=tmp_path)
        try:
            with pytest.raises(BertieError, match=rf"worker tcp://\S+: {message}"):
                list(run_tasks(time.sleep, [0.1] * 600, workers))
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nonsense://1"])
def test_missing_scheduler_is_one_line(monkeypatch, address):
    monkeypatch.setattr(cluster, "CONNECT_TIMEOUT", 0.5)
    with pytest.raises(SettingsError, match=r"no Dask scheduler answers .* start one"):
        cluster.connect(address).__enter__()


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""], ids=["reply", "silence"])
def test_another_server_than_a_scheduler_is_one_line(monkeypatch, reply):
    """Such as the dashboard of the scheduler, which is silent."""
    monkeypatch.setattr(cluster, "CONNECT_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections = []

        def answer() -> None:
            connection, _ = server.accept()
            connections.append(connection)
            with suppress(OSError):  # on a slow machine the client may be gone
                connection.sendall(reply)

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(SettingsError, match=r"no Dask scheduler answers .* start one"):
            cluster.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}").__enter__()
        answering.join()
        connections[0].close()


def test_wrong_address_leaves_nothing_that_fails_at_exit():
    code = (
        "from bertie.base import cluster\n"
        "cluster.CONNECT_TIMEOUT = 0.5\n"
        "try: cluster.connect('tcp://127.0.0.1').__enter__()\n"
        "except cluster.SettingsError as error: print(error)"
    )
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "no Dask scheduler answers" in process.stdout
    assert process.stderr == ""
