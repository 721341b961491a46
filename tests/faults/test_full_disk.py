"""A full disk is reported in one line; with enough space, the command resumes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.faults.commands import (
    COMMANDS,
    RESUMABLE,
    RESUMED_WITH_OPTION,
    Undisturbed,
    arguments_of,
    read_result,
)
from tests.faults.runs import BERTIE, assert_same_run, fork_bertie
from tests.faults.small_disk import PAGE
from tests.training.runs import read_rows

NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]  # lets an ordinary user mount


def run_on_small_disk(tmp_path: Path, size: int, *command: str) -> str:
    """Run a command with small_disk.py in `tmp_path`; return its error line."""
    if subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode:
        pytest.skip("this system does not let ordinary users mount")
    (tmp_path / "disk").mkdir(exist_ok=True)
    process = fork_bertie(tmp_path, *command, disk_bytes=size)
    process.join()
    assert process.output.splitlines()[-2:] == ["2", "0"], process.output
    (line,) = [line for line in process.output.splitlines() if line.startswith("bertie: ")]
    assert "Traceback" not in process.output
    return line


def pretrain_command(folder: Path, out: str) -> list[str]:
    return ["pretrain", str(folder / "recipe.toml"), "--corpus", str(folder / "corpus"), "--out", out]


@pytest.mark.parametrize(
    "checkpoints",
    [1.5, *(pytest.param(size, marks=pytest.mark.slow) for size in (0.5, 1.2, 1.95, 2.5, 2.95))],
)
def test_disk_fills_while_a_checkpoint_is_saved(folder: Path, tmp_path: Path, checkpoints: float) -> None:
    one = (folder / "undisturbed/checkpoints/step-00000060").iterdir()
    size = int(checkpoints * sum(file.stat().st_size for file in one))
    line = run_on_small_disk(tmp_path, size, *pretrain_command(folder, "disk/run"))
    saved = int(checkpoints)
    assert line.startswith(f"bertie: disk/run/checkpoints/step-{7 * (saved + 1):08}")
    assert line.endswith(": the disk is full; free some space and run the command again with --resume")
    left = tmp_path / "copy/full/run"
    assert sorted(os.listdir(left / "checkpoints")) == [f"step-{7 * (n + 1):08}" for n in range(saved)]
    assert_same_run(tmp_path / "copy/room/run", folder / "undisturbed")


@pytest.mark.slow
def test_disk_fills_while_metrics_are_logged(folder: Path, tmp_path: Path) -> None:
    """Only the metrics are on the small disk, which has space for their first page."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").symlink_to(tmp_path / "disk/metrics.jsonl")
    line = run_on_small_disk(tmp_path, PAGE, *pretrain_command(folder, "run"))
    assert line.startswith("bertie: run/metrics.jsonl: the disk is full; free")
    assert (tmp_path / "copy/full/metrics.jsonl").stat().st_size == PAGE
    shutil.copy(tmp_path / "copy/room/metrics.jsonl", tmp_path / "disk")
    assert len(read_rows(run)) > 20
    assert_same_run(run, folder / "undisturbed")


def read_tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("pages", "path"),
    [
        (13, "parts/000001"),
        pytest.param(1, "parts/plan.json", marks=pytest.mark.slow),
        pytest.param(22, "train-00000", marks=pytest.mark.slow),
    ],
)
def test_disk_fills_during_prepare(folder: Path, tmp_path: Path, pages: int, path: str) -> None:
    command = ["prepare", str(folder / "text.txt"), "--tokenizer", str(folder / "tokenizer")]
    options = ["--held-out", "0.1", "--workers", "1", "--out", "disk/corpus"]
    line = run_on_small_disk(tmp_path, pages * PAGE, *command, *options)
    assert line.startswith(f"bertie: disk/corpus/{path}: the disk is full; free")
    assert not list((tmp_path / "copy/full").rglob("*.bertie-tmp"))
    assert not (tmp_path / "copy/full/corpus/manifest.json").exists()
    corpora = (tmp_path / "copy/room/corpus", folder / "corpus")
    shards, expected = [{k: v for k, v in read_tree(c).items() if ".json" not in k} for c in corpora]
    assert shards == expected


@pytest.mark.parametrize("pages", [8, *(pytest.param(size, marks=pytest.mark.slow) for size in (0.5, 40))])
def test_disk_fills_during_finetune(folder: Path, tmp_path: Path, pages: float) -> None:
    """The disk is full before or after the run can be resumed; the error says which."""
    rows = "".join(f"{'good' if n % 2 else 'bad'} word{n},{n % 2}\n" for n in range(16))
    (tmp_path / "rows.csv").write_text("text,label\n" + rows)
    data = ["--train", str(tmp_path / "rows.csv"), "--dev", str(tmp_path / "rows.csv"), "--set", "epochs=1"]
    data += ["--set", "max_seq_length=16"]
    command = ["finetune", *data, "--model", str(folder / "undisturbed/model"), "--device", "cpu"]
    line = run_on_small_disk(tmp_path, int(pages * PAGE), *command, "--out", "disk/run")
    resumable = (tmp_path / "copy/full/run/settings.toml").exists()
    assert line.endswith(f"run the command again{' with --resume' if resumable else ''}")
    names = {path.name for path in (tmp_path / "copy/room/run").iterdir()}
    assert {"model", "scores.json", "finished.json", "report.html"} <= names


def test_disk_fills_during_vocab(folder: Path, tmp_path: Path) -> None:
    options = ["--size", "150", "--workers", "1", "--out", "disk/tokenizer"]
    line = run_on_small_disk(tmp_path, PAGE, "vocab", str(folder / "text.txt"), *options)
    assert line.startswith("bertie: disk/tokenizer/tokenizer.json: the disk is full; free")
    assert read_tree(tmp_path / "copy/room/tokenizer") == read_tree(folder / "tokenizer")


@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=() if verb == "predict" else pytest.mark.slow) for verb in COMMANDS]
)
def test_disk_fills_during_any_command(
    verb: str, inputs: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Run a command on a disk with too little room for its result, then again with enough."""
    expected = undisturbed(verb)[1]
    pages = sum(-(-len(content) // PAGE) for content in expected.values() if isinstance(content, bytes))
    sizes = sorted({PAGE * int(fraction * pages) for fraction in (0, 0.02, 0.2, 0.4, 0.6, 0.8, 0.95)})
    for size in sizes:
        folder = tmp_path / str(size)
        folder.mkdir()
        line = run_on_small_disk(folder, size, *arguments_of(verb, inputs), f"disk/{COMMANDS[verb][1]}")
        line = line.removesuffix(" with --resume" if verb in RESUMED_WITH_OPTION else "")
        assert line.endswith("the disk is full; free some space and run the command again")
        if verb not in RESUMABLE:
            assert not [path for path in (folder / "copy/full").rglob("*") if path.suffix != ".lock"]
        assert read_result(folder / "copy/room") == expected, size
    print(f"{verb}: {len(sizes)} full disks")


def test_full_disk_under_standard_output_is_reported(folder: Path) -> None:
    words = ["word"] * 20_000  # more than a buffer holds
    with Path("/dev/full").open("w") as full:
        command = [*BERTIE, "tokenize", str(folder / "tokenizer"), " ".join(words)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("bertie: the disk is full; free")


def test_full_disk_under_standard_error_stops_nothing(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [*BERTIE, "vocab", "text.txt", "--size", "100", "--workers", "1", "--out", "logged"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True, cwd=folder)
    assert (done.returncode, done.stdout) == (0, "logged\n")
    assert (folder / "logged" / "vocab.txt").exists()
