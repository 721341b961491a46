"""Outputs that exist, that are also inputs, or that cannot be created are refused before any work."""

import os
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from bertie.base import storage
from bertie.base.errors import BertieError, SettingsError
from bertie.base.outputs import check_not_input, check_output, lock_output
from bertie.base.storage import RemotePath


def error(path: Path, **arguments: object) -> str:
    """Return the error of checking `path`, after the path."""
    with pytest.raises(SettingsError) as info:
        check_output(path, **{"force": False, **arguments})
    message = str(info.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_new_output_is_accepted_and_not_created(tmp_path):
    check_output(tmp_path / "new/folder/file", force=False)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_existing_output_needs_force(tmp_path, kind):
    path = tmp_path / "output"
    inner = path / "inner" if kind == "directory" else path
    inner.parent.mkdir(exist_ok=True)
    inner.write_text("mine")
    assert error(path) == "exists already; choose another name, or replace it with --force (force=True)"
    check_output(path, force=True)
    assert inner.read_text() == "mine"


def test_only_an_empty_directory_is_accepted(tmp_path):
    check_output(tmp_path, force=False)
    (tmp_path / "file").touch()
    assert error(tmp_path).startswith("exists already")


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["folder", "file", "link"])
def test_mount_point_is_refused(tmp_path, monkeypatch, name, force):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("folder")
    monkeypatch.setattr(os.path, "ismount", lambda path: path == (tmp_path / name).resolve())
    assert error(tmp_path / name, force=force) == (
        "is a mount point, which cannot be replaced; choose a path inside it"
    )


@pytest.mark.parametrize("force", [False, True])
def test_input_is_never_an_output(tmp_path, force):
    path = tmp_path / "folder/my.csv"
    path.parent.mkdir()
    path.write_text("text,label\n")
    link, hard_link = tmp_path / "link.csv", tmp_path / "hard.csv"
    link.symlink_to(path)
    hard_link.hardlink_to(path)
    for same in (path, tmp_path / "folder/../folder/my.csv", link, hard_link):
        assert error(path, force=force, inputs=[same]) == (
            f"would replace the input {same}; choose another name"
        )


def test_output_that_contains_an_input_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/text.txt").write_text("text")
    message = error(tmp_path / "folder", force=True, inputs=[tmp_path / "folder/text.txt"])
    assert message.startswith("would replace the input")


def test_output_inside_an_input_folder_is_accepted(tmp_path):
    (tmp_path / "text.txt").write_text("text")
    check_output(tmp_path / "tokenizer", force=False, inputs=[tmp_path])
    assert [file.name for file in tmp_path.iterdir()] == ["text.txt"]


def test_force_replaces_only_directories_that_the_command_wrote(tmp_path):
    path = tmp_path / "home"
    path.mkdir()
    (path / "letters.txt").write_text("mine")
    assert error(path, force=True, replaces=["vocab.txt"]) == (
        "has no vocab.txt, so --force does not replace it; choose another name"
    )
    (path / "vocab.txt").write_text("[PAD]\n")
    check_output(path, force=True, replaces=["vocab.txt"])
    check_output(path, force=True, replaces=["config.json", "vocab.txt"])  # one of them is enough


@pytest.mark.parametrize("force", [False, True])
def test_locked_file_is_not_a_folder_or_a_broken_link(tmp_path, force):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for name, reason in (
        ("folder", "is a folder; choose the name of a file"),
        ("link", "is a broken link; remove it, or choose another name"),
    ):
        path = tmp_path / name
        with pytest.raises(SettingsError) as info, lock_output(path, force=force):
            pass
        assert str(info.value) == f"{path}: {reason}"
    with lock_output(tmp_path / "folder", force=force, replaces=["vocab.txt"]) as path:
        assert path == tmp_path / "folder"
    assert sorted(os.listdir(tmp_path)) == ["folder", "link"]


def test_only_one_process_writes_an_output(tmp_path):
    """A link to the file is the same output."""
    (tmp_path / "link").symlink_to("file")
    with lock_output(tmp_path / "file", force=False):
        for name in ("file", "link"):
            with (
                pytest.raises(BertieError, match=f"{name}: another bertie process is writing here; wait"),
                lock_output(tmp_path / name, force=True),
            ):
                pass


@pytest.mark.parametrize("replaces", [(), ("config.json",)])
def test_local_output_of_a_url_is_removed_after_its_copy(tmp_path, monkeypatch, replaces):
    monkeypatch.setattr(storage, "cache_root", lambda: tmp_path)
    url = RemotePath("memory://outputs/model" if replaces else "memory://outputs/out.csv")
    inputs = [RemotePath("memory://outputs/in.csv")]
    with lock_output(url, force=False, inputs=inputs, replaces=replaces) as local:
        if replaces:
            local.mkdir()
        (local / replaces[0] if replaces else local).write_text("content")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    written = RemotePath(f"{url}/config.json") if replaces else url
    with written.open() as file:
        assert file.read() == b"content"
    with (
        pytest.raises(SettingsError, match=f"{url}: exists already; choose another URL"),
        lock_output(url, force=False, replaces=replaces),
    ):
        pass
    with (
        pytest.raises(SettingsError, match=f"{url}: would replace the input; choose another name"),
        lock_output(url, force=True, inputs=[url], replaces=replaces),
    ):
        pass
    fsspec.filesystem("memory").rm("/outputs", recursive=True)


def test_directory_to_fill_is_not_an_input(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "link").symlink_to("model")
    for path in (tmp_path / "model", tmp_path / "link", tmp_path / "model/../model"):
        with pytest.raises(SettingsError) as info:
            check_not_input(path, [None, tmp_path / "new", tmp_path / "model"])
        assert str(info.value) == f"{path}: is the input {tmp_path / 'model'}; choose another directory"
    check_not_input(tmp_path / "model/run", [tmp_path / "model"])


def test_current_folder_is_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    (tmp_path / "inner/file").write_text("mine")
    for path in (Path(), Path(".."), tmp_path):
        assert error(path, force=True) == "contains the current folder; choose another name"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("file/inner/out", "not a directory"),
        ("x" * 300, "file name too long"),
        ("x" * 250, "file name too long"),  # its temporary name is longer
        ("x" * 300 + "/out", "file name too long"),
        ("/proc/out", "no such file or directory"),
        ("/dev/null/out", "not a directory"),
        ("loop", "too many levels of symbolic links"),
        ("missing/../file", "no such file or directory"),
        ("missing/..", "no such file or directory"),
    ],
)
def test_output_that_cannot_be_created_is_refused(tmp_path, name, reason):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    assert error(tmp_path / name) == f"cannot be created ({reason}); choose another path"


def test_a_folder_called_tilde_is_not_created(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = "~ is not replaced by your home folder here; write its path"
    assert (error(Path("~/runs/out")), error(Path("~"))) == (message, message)
    Path("~").mkdir()
    check_output(Path("~/runs/out"), force=False)


def test_devices_are_refused_with_force():
    assert error(Path("/dev/full"), force=True) == "neither a file nor a folder; choose another name"


def test_folder_without_permission_is_refused(tmp_path):
    """In a user namespace without mapped users, permissions also bind root."""
    if subprocess.run(["unshare", "--user", "true"], capture_output=True).returncode:
        pytest.skip("this system does not allow user namespaces")
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked").chmod(0o500)
    for check, message in (
        ("outputs import *; check_output(Path('locked/new/out'), force=False)", "new/out: cannot be created"),
        ("locks import *; lock_directory(Path('locked')).__enter__()", "locked: cannot be written to"),
    ):
        done = subprocess.run(
            ["unshare", "--user", sys.executable, "-c", f"from bertie.base.{check}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert f"{message} (permission denied); " in done.stderr.splitlines()[-1]
