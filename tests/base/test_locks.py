"""Exclusive locks on directories and files, between processes."""

import io
import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from bertie.base.errors import BertieError, SettingsError
from bertie.base.files import TEMPORARY_SUFFIX, atomic_directory, atomic_file
from bertie.base.locks import LockedError, lock_directory, lock_file

COUNTS = 300
SPAWN = multiprocessing.get_context("spawn")


def hold_lock(lock, path: Path, is_held) -> None:
    with lock(path):
        is_held.set()
        signal.pause()


def write_and_die(kind: str, path: Path) -> None:
    writer = atomic_file if kind == "file" else atomic_directory
    with writer(path) as temporary:
        (temporary if kind == "file" else temporary / "part").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def count_under_lock(counter: Path) -> None:
    with redirect_stderr(io.StringIO()):
        for _ in range(COUNTS):
            with lock_file(counter, wait=True):
                counter.write_text(str(int(counter.read_text()) + 1))


@pytest.fixture
def start_holder():
    """Start processes that hold a lock until they are killed."""
    holders = []

    def start(lock, path: Path):
        is_held = SPAWN.Event()
        process = SPAWN.Process(target=hold_lock, args=(lock, path, is_held))
        process.start()
        holders.append(process)
        assert is_held.wait(60)
        return process

    yield start
    for process in holders:
        process.kill()
        process.join()


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "new" / "run"


@pytest.mark.parametrize(("lock", "error"), [(lock_file, LockedError), (lock_directory, BertieError)])
def test_lock_is_released_when_its_holder_is_killed(start_holder, path, lock, error):
    holder = start_holder(lock, path)
    with pytest.raises(error), lock(path):
        pytest.fail("two processes hold the lock")
    holder.kill()
    holder.join()
    assert list(path.parent.rglob(".*lock"))  # the lock file stays, without effect
    with lock(path):
        pass
    assert not list(path.parent.rglob(".*lock"))


def test_lock_file_announces_that_it_waits(start_holder, path):
    holder = start_holder(lock_file, path)

    class KillsTheHolder(io.StringIO):
        def flush(self) -> None:
            holder.kill()

    with redirect_stderr(KillsTheHolder()) as stderr, lock_file(path, wait=True):
        assert stderr.getvalue() == f"{path}: waiting for the process that is writing here\n"


def test_lock_directory_admits_one_thread_at_a_time(path):
    def lock_again() -> None:
        with pytest.raises(BertieError, match="run: another bertie process"), lock_directory(path):
            pytest.fail("two threads hold the lock")

    with lock_directory(path), ThreadPoolExecutor(1) as pool:
        pool.submit(lock_again).result()


def test_lock_directory_can_be_locked_again_by_its_holder(path):
    with lock_directory(path):
        with lock_directory(path):
            pass
        assert (path / ".lock").exists()
    assert not path.exists()


def test_lock_is_never_held_by_two_processes_while_it_is_removed(tmp_path):
    """Each process counts in a file under the lock; a lost count means that two held it."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    processes = [SPAWN.Process(target=count_under_lock, args=(counter,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert counter.read_text() == str(3 * COUNTS)
    assert os.listdir(tmp_path) == ["counter"]


def test_lock_directory_removes_files_of_killed_writers(path):
    for kind in ("file", "directory"):
        writer = SPAWN.Process(target=write_and_die, args=(kind, path / "inner" / kind))
        writer.start()
        writer.join()
        assert writer.exitcode == -signal.SIGKILL
    assert len(os.listdir(path / "inner")) == 2
    mine = [".mine.tmp", "bertie-tmp", "mine.bertie-tmp"]
    for name in mine:
        (path / name).write_text("mine")
    with lock_directory(path):
        assert sorted(os.listdir(path)) == sorted([".lock", "inner", *mine])
        assert os.listdir(path / "inner") == []


def test_lock_file_removes_what_a_killed_writer_left_beside_it(path):
    writer = SPAWN.Process(target=write_and_die, args=("file", path))
    writer.start()
    writer.join()
    other = path.with_name(f".other.{writer.pid}.bertie-tmp")
    other.write_text("of another writer")
    assert len(os.listdir(path.parent)) == 2
    with lock_file(path):
        assert sorted(os.listdir(path.parent)) == sorted([".run.lock", other.name])


def test_lock_on_a_path_is_independent_of_its_directory_lock(path):
    with lock_file(path), lock_directory(path):
        assert path.with_name(".run.lock").exists()
        assert (path / ".lock").exists()


def test_shared_lock_is_held_until_its_last_holder_leaves(path):
    def lock_again(shared: bool) -> None:
        with lock_directory(path, shared=shared):
            pass

    unfinished = path / f".of-another-holder.{os.getpid()}{TEMPORARY_SUFFIX}"
    with lock_directory(path, shared=True), ThreadPoolExecutor(1) as pool:
        unfinished.touch()
        pool.submit(lock_again, True).result()
        assert unfinished.exists()
        with pytest.raises(BertieError, match="run: another bertie process"):
            pool.submit(lock_again, False).result()
        unfinished.unlink()
    assert not path.exists()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_file_with_the_name_of_a_lock_is_left_alone(path, kind):
    path.mkdir(parents=True)
    mine = path / (".lock" if kind == "file" else "mine")
    mine.write_text("mine")
    if kind == "link":
        (path / ".lock").symlink_to(mine)
    with pytest.raises(SettingsError, match=r"\.lock: not a lock of bertie"), lock_directory(path):
        pytest.fail("locked")
    assert mine.read_text() == (path / ".lock").read_text() == "mine"


def test_link_that_appears_after_the_check_is_not_followed(path, monkeypatch):
    path.mkdir(parents=True)
    (path / ".lock").symlink_to(path.parent / "elsewhere")

    def find_nothing(file):
        raise FileNotFoundError(file)

    monkeypatch.setattr(Path, "lstat", find_nothing)
    with pytest.raises(OSError, match="symbolic links"), lock_directory(path):
        pytest.fail("locked")
    monkeypatch.undo()
    assert not (path.parent / "elsewhere").exists()
