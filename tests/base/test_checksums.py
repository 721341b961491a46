"""Directories that bertie writes carry SHA-256 sums, which loading verifies."""

import subprocess
import threading
from pathlib import Path

import pytest

from bertie.base.checksums import NO_VERIFY, verification, verify, weights_verified, write_sums
from bertie.base.errors import ModelError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "1_Pooling").mkdir()
    for name in ("config.json", "1_Pooling/config.json", "model.safetensors", "README.md"):
        (tmp_path / name).write_text(name)
    write_sums(tmp_path)
    return tmp_path


def test_sums_are_those_of_sha256sum(directory: Path) -> None:
    subprocess.run(
        ["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=directory, check=True, capture_output=True
    )
    names = [line.split()[1] for line in (directory / "SHA256SUMS").read_text().splitlines()]
    assert names == ["1_Pooling/config.json", "config.json", "model.safetensors"]


@pytest.mark.parametrize("name", ["config.json", "1_Pooling/config.json"])
def test_changed_file_is_refused_and_the_advice_works(directory: Path, name: str) -> None:
    (directory / name).write_text("else")
    with pytest.raises(ModelError) as error:
        verify(directory)
    assert str(error.value) == (
        f"{directory / name}: does not match its checksum in SHA256SUMS; copy the directory again, or accept "
        f"the change: delete {directory / 'SHA256SUMS'}, or pass --no-verify (verify=False)"
    )
    with verification(False):
        verify(directory)
    (directory / "SHA256SUMS").unlink()
    verify(directory)


def test_the_environment_skips_verification(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json: missing, but in SHA256SUMS"):
        verify(directory)
    monkeypatch.setenv(NO_VERIFY, "1")
    verify(directory)


def test_other_files_and_the_card_may_change(directory: Path) -> None:
    (directory / "README.md").write_text("Ours.")
    (directory / "notes.txt").write_text("Ours.")
    verify(directory)
    (directory / "config.json").write_text("Ours.")
    with pytest.raises(ModelError, match=r"config\.json: does not match"):
        verify(directory)


def test_weights_are_verified_while_they_are_loaded(directory: Path) -> None:
    with weights_verified(directory):
        assert threading.active_count() > 1
    (directory / "model.safetensors").write_text("else")
    verify(directory)
    with pytest.raises(ModelError, match=r"model\.safetensors: does not match"), weights_verified(directory):
        pass
    # The damage is the cause of an error while loading, and the error of the block otherwise.
    with pytest.raises(ModelError, match=r"model\.safetensors: does not match"), weights_verified(directory):
        raise ModelError("not finite")
    (directory / "model.safetensors").write_text("model.safetensors")
    with pytest.raises(ModelError, match="not finite"), weights_verified(directory):
        raise ModelError("not finite")


@pytest.mark.parametrize(
    "line", ["", "\n", "abc  config.json\n", f"{'0' * 64}  ../x\n", f"{'0' * 64}  /x\n", "\xff\n"]
)
def test_damaged_sums_are_one_line(directory: Path, line: str) -> None:
    (directory / "SHA256SUMS").write_text(line, encoding="latin-1")
    with pytest.raises(ModelError, match="SHA256SUMS, line 1: damaged; copy the directory again, or delete"):
        verify(directory)


@pytest.mark.parametrize("last", ["vocab.txt", "state.json"])
def test_sums_without_their_last_line_are_refused(directory: Path, last: str) -> None:
    (directory / last).write_text("last")
    write_sums(directory)
    verify(directory)
    sums = directory / "SHA256SUMS"
    sums.write_text("".join(sums.read_text().splitlines(keepends=True)[:-1]))
    message = rf"SHA256SUMS: does not list {last}, so its last lines are missing; copy the directory"
    with pytest.raises(ModelError, match=message):
        verify(directory)
    with pytest.raises(ModelError, match=message), weights_verified(directory):
        pass
