"""No command removes or changes anything that a person, or another run, has put where it writes."""

import os
import shutil
from pathlib import Path

import pytest
from tests.faults.commands import COMMANDS, RESUMABLE, arguments_of
from tests.faults.runs import fork_bertie

VERBS = [verb for verb in COMMANDS if verb not in ("vocab-workers", "prepare-workers", "finetune-2")]
FORCE = ("vocab", "prepare", "predict", "embed", "features", "submission", "convert", "export")
# An input of each command that has one, relative to the folder of the inputs.
INPUTS = {
    "vocab": "text.txt",
    "prepare": "tokenizer",
    "pretrain": "corpus",
    "finetune": "undisturbed/model",
    "search": "undisturbed/model",
    "predict": "few.txt",
    "embed": "few.txt",
    "features": "few.txt",
    "submission": "glue-run/submission/CoLA.tsv",
    "convert": "undisturbed/model",
    "export": "undisturbed/model",
    "reproduce": "data",
    "reproduce-model": "undisturbed/model",
}


def read_tree(folder: Path) -> dict[str, object]:
    """Return the content of each file, and the target of each link, below a folder."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def is_file(verb: str) -> bool:
    return "." in COMMANDS[verb][1]


def put_folder(verb: str, out: Path) -> None:
    """A folder, or file, of a person has the name of the output."""
    if is_file(verb):
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "notes.txt").write_text("mine")


def put_link(verb: str, out: Path) -> None:
    """The output is a link to a folder, or file, of a person."""
    put_folder(verb, out.with_name(f"mine-{out.name}"))
    out.symlink_to(f"mine-{out.name}")


def put_dangling_link(verb: str, out: Path) -> None:
    out.symlink_to("elsewhere/nowhere")


def lock_of(verb: str, out: Path) -> Path:
    lock = out / ".lock" if verb in RESUMABLE else out.with_name(f".{out.name}.lock")
    lock.parent.mkdir(exist_ok=True)
    return lock


def put_linked_lock(verb: str, out: Path) -> None:
    """The lock is a link to a file of a person."""
    (out.parent / "precious").write_text("mine")
    lock_of(verb, out).symlink_to(out.parent / "precious")


def put_dangling_lock(verb: str, out: Path) -> None:
    lock_of(verb, out).symlink_to(out.parent / "precious")


def put_file_as_lock(verb: str, out: Path) -> None:
    """Write a file with the name of the lock; a lock is always empty."""
    lock_of(verb, out).write_text("mine")


def put_folder_as_lock(verb: str, out: Path) -> None:
    lock_of(verb, out).mkdir()
    (lock_of(verb, out) / "notes.txt").write_text("mine")


SITUATIONS = [
    put_folder,
    put_link,
    put_dangling_link,
    put_linked_lock,
    put_dangling_lock,
    put_file_as_lock,
    put_folder_as_lock,
]


def check_kept(verb: str, inputs: Path, out: Path, before: dict[str, object], *options: str) -> int:
    """Run a command, which must leave everything in `before` as it is; return its exit status."""
    process = fork_bertie(out.parent, *arguments_of(verb, inputs), out, *options)
    status = process.join()
    assert status in (0, 2), process.output
    assert "Traceback" not in process.output, process.output
    if status:
        assert process.last_line.startswith("bertie: ")
    after = read_tree(out.parent)
    assert {name: after.get(name) for name in before} == before
    return status


@pytest.mark.parametrize("verb", ["convert", pytest.param("export", marks=pytest.mark.slow)])
@pytest.mark.parametrize("own", ["config.json", "notes.txt", "data/table.csv"])
def test_force_keeps_a_persons_files_beside_a_model(
    verb: str, own: str, inputs: Path, tmp_path: Path
) -> None:
    """With a file of that name, a folder looks like a model that --force replaces."""
    out = tmp_path / COMMANDS[verb][1]
    if own != "config.json":
        shutil.copytree(inputs / "undisturbed/model", out)
    (out / own).parent.mkdir(parents=True, exist_ok=True)
    (out / own).write_text("{}")
    assert check_kept(verb, inputs, out, read_tree(tmp_path), "--force") == 2


# Fast ones, which refuse the output before they load a model; the rest is slow.
QUICK = ("vocab", "prepare", "pretrain", "predict", "convert")


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize(
    "verb", [verb if verb in QUICK else pytest.param(verb, marks=pytest.mark.slow) for verb in VERBS]
)
def test_files_of_a_person_are_kept(verb: str, situation: object, inputs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    out = folder / COMMANDS[verb][1]
    situation(verb, out)  # type: ignore[operator]
    before = read_tree(folder)
    status = check_kept(verb, inputs, out, before)
    locks_all = not verb.startswith("reproduce")  # which locks only what it writes, below the folder
    if "lock" in situation.__name__ and locks_all:  # type: ignore[attr-defined]
        assert status == 2
        assert read_tree(folder) == before
    if verb in FORCE and not is_file(verb):
        check_kept(verb, inputs, out, before, "--force")


@pytest.mark.parametrize(
    "verb", [verb if verb in QUICK else pytest.param(verb, marks=pytest.mark.slow) for verb in INPUTS]
)
def test_an_input_is_kept(verb: str, inputs: Path, tmp_path: Path) -> None:
    """The output is an input, or inside one; also with --force."""
    ours = shutil.copytree(inputs, tmp_path / "inputs", symlinks=True)
    before = read_tree(ours)
    name = Path(INPUTS[verb])
    outs = [ours / name, *([ours / name / COMMANDS[verb][1]] if (ours / name).is_dir() else [])]
    for options in [(), ("--force",)] if verb in FORCE else [()]:
        for out in outs:
            process = fork_bertie(tmp_path, *arguments_of(verb, ours), out, *options)
            status = process.join()
            assert status in (0, 2), process.output
            assert "Traceback" not in process.output
            after = read_tree(ours)
            changed = [file for file in before if after.get(file) != before[file]]
            assert (changed, status) == ([], 2 if out == ours / name else status), process.output
