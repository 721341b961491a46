"""Atomic writes survive errors and kills; errors name the final path."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError

from bertie.base.errors import DataError
from bertie.base.files import (
    atomic_directory,
    atomic_file,
    copy_directory,
    exists,
    read_json,
    remove_directory,
    remove_temporary_names,
    sha256,
    write_json,
    write_text,
)

DYING_WRITER = """
import os, signal, sys
from pathlib import Path
from bertie.base import files
from bertie.base.files import atomic_directory, atomic_file
kind, path = sys.argv[1], Path(sys.argv[2])
if kind == "file":
    with atomic_file(path) as temporary:
        temporary.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
elif kind == "directory":
    with atomic_directory(path) as temporary:
        (temporary / "part").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
else:
    rename, exchange = Path.rename, files._exchange
    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)
    def exchange_and_die(*names):
        assert exchange(*names)
        die()
    def rename_once(*names):
        Path.rename = die
        return rename(*names)
    if kind == "exchange":
        files._exchange = exchange_and_die
    else:
        files._exchange, Path.rename = lambda *_: False, rename_once
    with atomic_directory(path) as temporary:
        (temporary / "part").write_text("new")
"""


def die_while_writing(kind: str, path: Path) -> None:
    process = subprocess.run([sys.executable, "-c", DYING_WRITER, kind, str(path)])
    assert process.returncode == -signal.SIGKILL


def write_directory(path: Path, text: str) -> None:
    with atomic_directory(path) as temporary:
        (temporary / "part").write_text(text)


@pytest.mark.parametrize("before", [None, "old"])
def test_atomic_file_replaces_the_whole_file(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "new folder" / "file"
    if before is not None:
        write_text(path, before)
    with atomic_file(path) as temporary:
        temporary.write_text("new")
        assert (path.read_text() if path.exists() else None) == before
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == ["file"]


def test_atomic_directory_replaces_the_whole_directory(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with atomic_directory(path) as temporary:
        (temporary / "only in the first").write_text("x")
    with atomic_directory(path) as temporary:
        (temporary / "inner").mkdir()
        (temporary / "inner" / "part").write_text("new")
        assert os.listdir(path) == ["only in the first"]
    assert os.listdir(path) == ["inner"]
    assert (path / "inner" / "part").read_text() == "new"
    assert os.listdir(tmp_path) == ["model"]


def test_atomic_directory_keeps_a_symlink(tmp_path: Path) -> None:
    write_directory(tmp_path / "large disk" / "model", "old")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").symlink_to(tmp_path / "large disk" / "model")
    for text in ("new", "newer"):
        write_directory(tmp_path / "run" / "model", text)
        assert (tmp_path / "large disk" / "model" / "part").read_text() == text
    assert (tmp_path / "run" / "model").is_symlink()
    assert os.listdir(tmp_path / "run") == os.listdir(tmp_path / "large disk") == ["model"]


def fail_while_writing(kind: str, path: Path) -> None:
    if kind == "file":
        with atomic_file(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("midway")
    with atomic_directory(path) as temporary:
        (temporary / "part").write_text("half")
        raise RuntimeError("midway")


def test_exception_leaves_the_old_file(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "old")
    with pytest.raises(RuntimeError, match="midway"):
        fail_while_writing("file", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_exception_leaves_the_old_directory(tmp_path: Path) -> None:
    write_directory(tmp_path / "model", "old")
    with pytest.raises(RuntimeError, match="midway"):
        fail_while_writing("directory", tmp_path / "model")
    assert (tmp_path / "model" / "part").read_text() == "old"
    assert os.listdir(tmp_path) == ["model"]


def test_kill_leaves_the_old_file_and_next_write_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    die_while_writing("file", path)
    assert path.read_text() == "old"
    write_text(path, "new")
    assert path.read_text() == "new"


def test_kill_leaves_the_old_directory_and_next_write_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "model"
    write_directory(path, "old")
    die_while_writing("directory", path)
    assert (path / "part").read_text() == "old"
    write_directory(path, "new")
    assert (path / "part").read_text() == "new"


def test_directory_exists_at_all_times_while_replaced(tmp_path: Path) -> None:
    path = tmp_path / "model"
    write_directory(path, "0")
    reader = (
        "import sys, os; [os.stat(sys.argv[1]) for _ in iter(lambda: os.path.exists(sys.argv[2]), False)]"
    )
    (tmp_path / "keep reading").touch()
    process = subprocess.Popen([sys.executable, "-c", reader, path, tmp_path / "keep reading"])
    for number in range(100):
        write_directory(path, str(number))
    (tmp_path / "keep reading").unlink()
    assert process.wait() == 0


def test_kill_after_the_exchange_leaves_the_new_directory(tmp_path: Path) -> None:
    path = tmp_path / "model"
    write_directory(path, "old")
    die_while_writing("exchange", path)
    assert (path / "part").read_text() == "new"
    write_directory(path, "newer")
    assert (path / "part").read_text() == "newer"
    assert os.listdir(tmp_path) == ["model"]


def test_directory_is_replaced_without_an_exchange_of_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model"
    write_directory(path, "old")
    die_while_writing("two renames", path)
    assert (tmp_path / ".model.old.bertie-tmp" / "part").read_text() == "old"
    copy = shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    remove_temporary_names(copy / "model")
    assert (copy / "model" / "part").read_text() == "old"
    assert os.listdir(copy) == ["model"]
    monkeypatch.setattr("bertie.base.files._exchange", lambda *_: False)
    for text in ("new", "newer"):
        write_directory(path, text)
        assert (path / "part").read_text() == text
    assert os.listdir(tmp_path) == ["model"]


def test_the_first_of_several_writers_wins(tmp_path: Path) -> None:
    path = tmp_path / "part"
    with atomic_directory(path, has_twins=True) as slow:
        (slow / "file").write_text("slow")
        with atomic_directory(path, has_twins=True) as fast:
            (fast / "file").write_text("fast")
        assert (slow / "file").read_text() == "slow"
    assert (path / "file").read_text() == "fast"
    assert os.listdir(tmp_path) == ["part"]


def test_replaced_directory_of_a_killed_writer_is_removed(tmp_path: Path) -> None:
    """The writer was killed after both renames, so the new directory has its name."""
    write_directory(tmp_path / "model", "new")
    (tmp_path / ".model.old.bertie-tmp").mkdir()
    (tmp_path / ".model.old.bertie-tmp" / "part").write_text("old")
    (tmp_path / ".model.older.bertie-tmp").touch()  # of a writer of `model.older`
    remove_temporary_names(tmp_path / "model")
    assert (tmp_path / "model" / "part").read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == [".model.older.bertie-tmp", "model"]


@pytest.mark.parametrize("write", [atomic_file, atomic_directory])
def test_message_about_a_temporary_path_names_the_final_path(tmp_path: Path, write: Any) -> None:
    with pytest.raises(DataError) as info, write(tmp_path / "model") as temporary:
        raise DataError(f"{temporary}/model.onnx: too large")
    assert str(info.value) == f"{tmp_path}/model/model.onnx: too large"


@pytest.mark.parametrize("kind", ["file", "directory"])
@pytest.mark.parametrize(
    ("error", "message"),
    [(OSError, (28, "No space left on device")), (SafetensorError, ("I/O error: No space (os error 28)",))],
)
def test_write_error_names_the_final_path(
    tmp_path: Path, kind: str, error: type[Exception], message: tuple[object]
) -> None:
    path = tmp_path / "model"
    atomic = atomic_file if kind == "file" else atomic_directory
    with pytest.raises(OSError, match="No space") as raised, atomic(path):
        raise error(*message)
    assert raised.value.errno == 28
    assert raised.value.filename == str(path)
    assert os.listdir(tmp_path) == []


def test_error_inside_a_temporary_directory_names_the_final_path(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with pytest.raises(FileNotFoundError) as raised, atomic_directory(path) as temporary:
        (temporary / "absent" / "part").write_text("x")
    assert raised.value.filename == str(path / "absent" / "part")


def test_copy_directory_copies_files_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_text("text")
    (tmp_path / "copy").mkdir()
    copy_directory(tmp_path / "a", tmp_path / "copy")
    assert (tmp_path / "copy/b/file").read_text() == "text"


def test_copy_directory_reports_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*paths: Path, **options: bool) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "file").touch()
    monkeypatch.setattr(shutil, "copyfile", fail)
    with pytest.raises(OSError, match="No space") as error:
        copy_directory(tmp_path, tmp_path)
    assert error.value.errno == errno.ENOSPC


def test_error_on_another_file_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised, atomic_file(tmp_path / "file"):
        (tmp_path / "absent").read_text()
    assert raised.value.filename == str(tmp_path / "absent")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
).filter(lambda value: "\\ud" not in ascii(value))  # lone surrogates cannot be encoded as UTF-8


@given(value=json_values)
def test_json_round_trip(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.getbasetemp() / "value.json"
    write_json(path, value)
    assert read_json(path) == value


def test_json_is_indented_and_not_escaped(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"名": "Würde"})
    assert (tmp_path / "x.json").read_bytes().decode("utf-8") == '{\n  "名": "Würde"\n}\n'


def test_read_json_accepts_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"ü": 1}', encoding="utf-8-sig")
    assert read_json(tmp_path / "a.json") == {"ü": 1}


def test_read_json_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.json: no such file"):
        read_json(tmp_path / "absent.json")


def test_read_json_rejects_a_directory(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a directory; expected a file"):
        read_json(tmp_path)


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b'"\xff"', b"1" * 5000], ids=range(4))
def test_read_json_rejects_invalid_json(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.json").write_bytes(content)
    with pytest.raises(DataError, match=r"broken\.json: not valid JSON"):
        read_json(tmp_path / "broken.json")


def test_read_json_rejects_endless_nesting(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 200_000)
    with pytest.raises(DataError, match=r"deep\.json: not usable JSON \(nested too deeply\)"):
        read_json(tmp_path / "deep.json")


def test_sha256_matches_the_published_example(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")  # FIPS 180-2, appendix B.1
    assert sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.fixture
def disk_operations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The operations that a power loss makes visible, in order: ("sync", path) and ("rename", new path)."""
    operations = []

    def record(function: Any, entry: Any) -> Any:
        def recorded(*arguments: Any) -> Any:
            operations.append(entry(*arguments))
            return function(*arguments)

        return recorded

    monkeypatch.setattr(os, "fsync", record(os.fsync, lambda n: ("sync", os.readlink(f"/proc/self/fd/{n}"))))
    for name in ("replace", "rename"):
        rename = record(getattr(Path, name), lambda _, target: ("rename", str(target)))
        monkeypatch.setattr(Path, name, rename)
    return operations


def test_file_is_on_disk_before_it_has_its_name(tmp_path, disk_operations):
    with atomic_file(tmp_path / "file") as temporary:
        temporary.write_text("text")
    renamed = ("rename", str(tmp_path / "file"))
    assert disk_operations == [("sync", str(temporary)), renamed, ("sync", str(tmp_path))]


def test_directory_is_on_disk_before_it_has_its_name(tmp_path, disk_operations):
    with atomic_directory(tmp_path / "folder") as temporary:
        (temporary / "inner").mkdir()
        (temporary / "inner" / "file").write_text("text")
    *before, renamed, after = disk_operations
    contents = [temporary, temporary / "inner", temporary / "inner" / "file"]
    assert sorted(before) == [("sync", str(path)) for path in contents]
    assert renamed == ("rename", str(tmp_path / "folder"))
    assert after == ("sync", str(tmp_path))


def test_removed_directory_never_has_its_name_in_part(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()

    def check(folder: Path, **_: Any) -> None:
        assert not (tmp_path / "folder").exists() or not folder.exists()

    monkeypatch.setattr(shutil, "rmtree", check)
    remove_directory(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_existence_that_the_system_cannot_tell_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    assert exists(tmp_path / "file")
    for name in ("missing", "file/below", "loop", "null\0"):
        assert not exists(tmp_path / name)
    with pytest.raises(OSError, match="File name too long"):
        exists(tmp_path / ("n" * 300))
