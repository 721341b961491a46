import os
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


def mix_one(cache: Path) -> list[str]:
    """What a new process makes of `mix(1)`, and how often it found the kernel in the cache."""
    environment = {**os.environ, "BERTIE_CACHE": str(cache)}
    return subprocess.check_output([sys.executable, "-c", MIX_ONE], env=environment, text=True).split(
        maxsplit=1
    )


def test_the_cache_of_another_process_is_used(tmp_path: Path) -> None:
    first, second = mix_one(tmp_path), mix_one(tmp_path)
    assert first[1] == "0\n"
    assert second == [first[0], "1\n"]


def test_without_a_writable_cache_kernels_still_run(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    value, cached = mix_one(file)
    assert int(value) == int(mix(np.uint64(1)))
    assert cached == "no cache\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a source per room, which `cache_directory` takes for its own."""
    for room in (*kernels.KERNEL_ROOMS, "reports"):
        (tmp_path / "bertie" / room).mkdir(parents=True)
        (tmp_path / "bertie" / room / "source.py").write_text("x = 1\n")
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "bertie" / "base" / "kernels.py"))
    return tmp_path / "bertie"


@pytest.mark.parametrize("room", kernels.KERNEL_ROOMS)
def test_a_changed_source_changes_the_cache_directory(package: Path, room: str) -> None:
    before = kernels.cache_directory.__wrapped__()
    assert kernels.cache_directory.__wrapped__() == before
    (package / room / "source.py").write_text("x = 2\n")
    assert kernels.cache_directory.__wrapped__() != before


def test_a_room_without_kernels_does_not_change_the_cache_directory(package: Path) -> None:
    before = kernels.cache_directory.__wrapped__()
    (package / "reports" / "source.py").write_text("x = 2\n")
    assert kernels.cache_directory.__wrapped__() == before


def test_every_module_with_kernels_stands_in_a_room_that_is_hashed() -> None:
    package = Path(kernels.__file__).parent.parent
    holders = {path.parent.name for path in package.rglob("*.py") if "\n@kernel\n" in path.read_text()}
    assert holders <= set(kernels.KERNEL_ROOMS)


def test_the_place_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("BERTIE_CACHE", raising=False)
    assert kernels.cache_directory.__wrapped__().parent == tmp_path / "xdg" / "bertie"
    monkeypatch.setenv("BERTIE_CACHE", str(tmp_path / "own"))
    assert kernels.cache_directory.__wrapped__().parent == tmp_path / "own"


def test_other_users_of_numba_keep_their_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", "theirs")
    kernels.kernel(lambda: 0)
    assert numba.config.CACHE_DIR == "theirs"
