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
    """A package in which `kernels` imports `used`, `used` imports `deeper`, and nothing imports `other`."""
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
def test_a_source_that_is_imported_changes_the_cache_directory(
    package: Path, changed: str, matters: bool
) -> None:
    before = directory_of(package / "kernels.py")
    assert directory_of(package / "kernels.py") == before
    with (package / f"{changed}.py").open("a") as file:
        file.write("y = 2\n")
    assert (directory_of(package / "kernels.py") != before) == matters


def test_the_sources_of_the_tokenizer_are_found() -> None:
    names = {path.stem for path in kernels.with_imports(kernels.PACKAGE / "text" / "tokenizer.py")}
    assert {"tokenizer", "wordpiece", "trie", "unicode", "vocabulary"} <= names
    assert "learning" not in names


def test_the_place_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("BERTIE_CACHE", raising=False)
    assert directory_of(Path(kernels.__file__)).parent == tmp_path / "xdg" / "bertie"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("BERTIE_CACHE", str(tmp_path / "own"))
    monkeypatch.setattr(Path, "home", None)  # there need not be one
    assert directory_of(Path(kernels.__file__)).parent == tmp_path / "own"


def test_other_users_of_numba_keep_their_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", "theirs")
    kernels.kernel(lambda: 0)
    assert numba.config.CACHE_DIR == "theirs"
