"""`bertie prepare` on real articles writes the same bytes after any kill."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def start_prepare(shared_data: Path, output: Path, workers: int) -> subprocess.Popen[bytes]:
    inputs = sorted((shared_data / "text/wikipedia").glob("*.xz"))[:4]  # one task each
    tokenizer = next((shared_data / "vocab").glob("*uncased*"))
    command = [sys.executable, "-m", "bertie.commands.main", "prepare", *inputs, "--tokenizer", tokenizer]
    return subprocess.Popen([*command, "--out", output, "--workers", str(workers)], stderr=subprocess.DEVNULL)


def read_tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def find_workers(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@pytest.fixture(scope="module")
def expected(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files that an uninterrupted run on one worker writes."""
    output = tmp_path_factory.mktemp("expected") / "corpus"
    assert start_prepare(shared_data, output, workers=1).wait() == 0
    return read_tree(output)


def test_killed_worker_does_not_change_the_bytes(
    shared_data: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    process = start_prepare(shared_data, tmp_path / "corpus", workers=4)
    wait_until(lambda: list((tmp_path / "corpus").glob("parts/.0*.bertie-tmp")))
    os.kill(find_workers(process.pid)[0], signal.SIGKILL)
    assert process.wait() == 0
    assert read_tree(tmp_path / "corpus") == expected


def test_killed_run_resumes_with_the_same_bytes(
    shared_data: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    process = start_prepare(shared_data, tmp_path / "corpus", workers=2)
    wait_until(lambda: list((tmp_path / "corpus").glob("parts/0*")))
    workers = find_workers(process.pid)
    process.kill()
    process.wait()
    wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    assert not (tmp_path / "corpus/manifest.json").exists()
    assert start_prepare(shared_data, tmp_path / "corpus", workers=2).wait() == 0
    assert read_tree(tmp_path / "corpus") == expected
