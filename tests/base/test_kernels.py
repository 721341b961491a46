"""Kernels are cached on disk, and compiled again when a source file changes."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from bertie.base import kernels
from bertie.base.random import mix

MIX_ONE = """
import numpy as np
from bertie.base.random import mix
print(int(mix(np.uint64(1))), mix.stats.cache_hits.total() if mix.stats.cache_path else "no cache")
"""
NOTICE = "compiling kernels for their first use, for up to a minute"


def mix_one(cache: Path, package: Path = kernels.PACKAGE) -> tuple[str, str, str]:
    """Compute `mix(1)` in a new process; return its value, the cache hits and stderr."""
    environment = {**os.environ, "BERTIE_CACHE": str(cache), "PYTHONPATH": str(package.parent)}
    command = [sys.executable, "-c", MIX_ONE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    value, hits = done.stdout.rstrip().split(maxsplit=1)
    return value, hits, done.stderr


def test_cache_is_shared_between_processes_and_clones(tmp_path: Path) -> None:
    """The compilation is announced only in the first process."""
    clone, cache = tmp_path / "clone" / "bertie", tmp_path / "cache"
    shutil.copytree(kernels.PACKAGE, clone, ignore=shutil.ignore_patterns("__pycache__"))
    value, hits, announced = mix_one(cache)
    assert (hits, announced) == ("0", f"{NOTICE} (kept in {cache}) …\n")
    assert mix_one(cache, clone) == (value, "1", "")


def test_kernels_run_without_a_writable_cache(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    problem = "not kept: the folder of the cache cannot be written to; set BERTIE_CACHE to another one"
    announced = f"{NOTICE} ({problem}) …\n"
    assert mix_one(file) == (str(int(mix(np.uint64(1)))), "no cache", announced)


@pytest.mark.parametrize("damage", ["empty", "cut", "changed"])
def test_damaged_cache_files_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(kernels, "cache_directory", lambda source: tmp_path)

    def mix_one() -> tuple[int, int]:
        """Compute `mix(1)` with a kernel that is not in memory; return its value and the cache hits."""
        new = kernels.kernel(mix.py_func)  # type: ignore[attr-defined]
        return int(new(np.uint64(1))), new.stats.cache_hits.total()

    value, _ = mix_one()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    intact = [file.read_bytes() for file in files]
    for file, content in zip(files, intact, strict=True):
        middle = len(content) // 2
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        file.write_bytes({"empty": b"", "cut": content[:middle], "changed": changed}[damage])
    assert mix_one() == (value, 0)
    assert mix_one() == (value, 1)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == files


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_kernels_run_when_the_cache_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(path: str, *_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(kernels, "cache_directory", lambda source: tmp_path)
    double = kernels.kernel(lambda x: 2 * x)
    assert double.stats.cache_path  # type: ignore[attr-defined]
    monkeypatch.setattr(numba.core.caching, "open", refuse, raising=False)
    assert double(4) == 8
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package: `kernels` imports `used`, which imports `deeper`; not `other`."""
    folder = tmp_path / "bertie" / "room"
    folder.mkdir(parents=True)
    (folder / "kernels.py").write_text("from bertie.room.used import x\n")
    (folder / "used.py").write_text("from bertie.room.deeper import (\n    x,\n)\n")
    (folder / "deeper.py").write_text("x = 1\n")
    (folder / "other.py").write_text("x = 1\n")
    monkeypatch.setattr(kernels, "PACKAGE", folder.parent)
    return folder


def directory_of(source: Path) -> Path:
    return kernels.cache_directory.__wrapped__(source)


@pytest.mark.parametrize(("changed", "matters"), [("kernels", True), ("deeper", True), ("other", False)])
def test_cache_directory_depends_on_imported_sources(package: Path, changed: str, matters: bool) -> None:
    before = directory_of(package / "kernels.py")
    assert directory_of(package / "kernels.py") == before
    with (package / f"{changed}.py").open("a") as file:
        file.write("y = 2\n")
    assert (directory_of(package / "kernels.py") != before) == matters


def test_a_new_directory_removes_kernels_that_were_not_used_for_months(tmp_path: Path) -> None:
    digest = "0123456789abcdef"
    names = [f"used-{digest}", f"unused-{digest}", f"checked-{digest}-checked", f"other-{digest}", "remote-0"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mix.py311.1.nbc").touch()
    (tmp_path / f"other-{digest}" / "thesis.txt").touch()
    for name in names:
        os.utime(tmp_path / name, (0, 0))
    kernels.prepare_directory(tmp_path / names[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    kernels.prepare_directory(tmp_path / f"new-{digest}")
    kept = {path.name: sorted(file.name for file in path.iterdir()) for path in tmp_path.iterdir()}
    assert kept == {
        f"new-{digest}": [],
        f"used-{digest}": ["mix.py311.1.nbc"],
        f"other-{digest}": ["thesis.txt"],
        "remote-0": ["mix.py311.1.nbc"],
    }


def test_imported_sources_of_the_tokenizer() -> None:
    names = {path.stem for path in kernels.source_and_imports(kernels.PACKAGE / "text" / "tokenizer.py")}
    assert {"tokenizer", "wordpiece", "trie", "unicode", "vocabulary"} <= names
    assert "wordpiece_trainer" not in names


def test_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("BERTIE_CACHE", raising=False)
    assert directory_of(Path(kernels.__file__)).parent == tmp_path / "xdg" / "bertie"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("BERTIE_CACHE", str(tmp_path / "explicit"))
    monkeypatch.setattr(Path, "home", None)  # not needed
    assert directory_of(Path(kernels.__file__)).parent == tmp_path / "explicit"


def test_kernel_restores_numbas_cache_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", "another user")
    kernels.kernel(lambda: 0)
    assert numba.config.CACHE_DIR == "another user"


ANNOUNCED = """
import multiprocessing, sys
import numpy as np
from bertie.base.executor import run_tasks
from bertie.base.random import mix

if sys.argv[1] == "worker":
    print([int(value) for _, value in run_tasks(mix, [np.uint64(1), np.uint64(2)], 2)])
else:
    print([int(mix(np.uint64(value))) for value in (1, 2)])
    from bertie.corpus.sentence_pairs import start_of  # another kernel
    start_of(np.ones(3, np.int64), 0)
"""


def test_compilation_is_announced_once_and_only_in_the_main_process(tmp_path: Path) -> None:
    def run(where: str, cache: Path) -> str:
        command = [sys.executable, "-c", ANNOUNCED, where]
        environment = {**os.environ, "BERTIE_CACHE": str(cache)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stderr

    assert run("worker", tmp_path / "cache") == ""
    assert run("main", tmp_path / "new") == f"{NOTICE} (kept in {tmp_path / 'new'}) …\n"


OUT_OF_BOUNDS = """
import numpy as np
from bertie.corpus.sentence_pairs import start_of
print(start_of(np.ones(3, np.int64), 1000) is not None)
"""


def test_bounds_check_raises_for_an_index_outside_its_array(tmp_path: Path) -> None:
    """Both kinds of machine code are kept, each in its own directory."""
    environment = {**os.environ, "BERTIE_CACHE": str(tmp_path), "BERTIE_BOUNDS_CHECK": "1"}
    for _ in range(2):
        process = subprocess.run(
            [sys.executable, "-c", OUT_OF_BOUNDS], env=environment, capture_output=True, text=True
        )
        assert "IndexError: index is out of bounds" in process.stderr
    assert all(directory.name.endswith("-checked") for directory in tmp_path.iterdir())


START = """
import sys
import numpy as np, numba
from bertie.base.random import mix
mix(np.uint64(1))
before = "scipy.linalg" in sys.modules
double = numba.njit(lambda a: a @ a)
print(before, double(np.eye(2)).trace(), "scipy.linalg" in sys.modules)
"""


def test_scipy_is_only_imported_for_products_of_matrices() -> None:
    before, trace, after = subprocess.check_output([sys.executable, "-c", START], text=True).split()
    assert (before, trace, after) == ("False", "2.0", "True")


@pytest.mark.skipif(kernels.VECTOR < 16, reason="the processor has no vectors of 512 bits")
def test_widest_vectors_have_512_bits() -> None:
    @numba.njit(fastmath=True)
    def double(row: np.ndarray) -> None:
        kernels.vectorize_loops()
        for i in range(len(row)):
            row[i] *= 2

    row = np.arange(1000, dtype=np.float32)
    double(row)
    assert (row == 2 * np.arange(1000)).all()
    (machine_code,) = double.inspect_asm().values()
    assert "%zmm" in machine_code
