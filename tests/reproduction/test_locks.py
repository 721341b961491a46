"""Who has what, between processes."""

import io
import multiprocessing
import signal
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from bertie.reproduction.locks import Taken, taken


def hold(path: Path, holds) -> None:
    with taken(path):
        holds.set()
        signal.pause()


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "new" / "cell"


@pytest.fixture
def other(path):
    """A process that has it."""
    spawn = multiprocessing.get_context("spawn")
    holds = spawn.Event()
    process = spawn.Process(target=hold, args=(path, holds))
    process.start()
    assert holds.wait(60)
    yield process
    process.kill()
    process.join()


def test_it_is_free_again_when_the_process_that_has_it_is_killed(path, other):
    with pytest.raises(Taken), taken(path):
        pass
    other.kill()
    other.join()
    with taken(path), pytest.raises(Taken), taken(path):
        pass


def test_one_that_waits_says_so(path, other):
    class KillsTheOther(io.StringIO):
        def flush(self) -> None:
            other.kill()

    with redirect_stderr(KillsTheOther()) as told, taken(path, wait=True):
        assert told.getvalue() == f"waiting for another process that makes {path}\n"
