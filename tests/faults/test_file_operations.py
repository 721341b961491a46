"""Commands that are killed at any of their file operations leave nothing wrong behind.

The same command, or with --resume, writes the same result as an undisturbed run, and removes what its
predecessor left.
"""

from pathlib import Path
from typing import Any

import pytest
from tests.faults.file_operations import run_and_kill
from tests.training.runs import read_rows

TASK = [
    "--train",
    "{}/rows.csv",
    "--dev",
    "{}/rows.csv",
    "--model",
    "{}/undisturbed/model",
    "--device",
    "cpu",
]
INPUT = ["{}/undisturbed/model", "--input", "{}/few.txt", "--device", "cpu"]
RUN = ["--set", "max_seq_length=16", "--set", "batch_size=8"]
GRID = [
    "--set",
    "finetuning.max_seq_length=16",
    "--set",
    "epochs=[1]",
    "--set",
    "batch_sizes=[16]",
    "--set",
    "learning_rates=[1e-4, 1e-3]",
]
# The arguments of each command, with {} for the folder of the inputs, but for the output.
COMMANDS = {
    "vocab": (["vocab", "{}/text.txt", "--size", "150", "--workers", "1", "--out"], "out"),
    "prepare": (["prepare", "{}/text.txt", "--tokenizer", "{}/tokenizer", "--workers", "1", "--out"], "out"),
    "pretrain": (["pretrain", "{}/short.toml", "--corpus", "{}/corpus", "--out"], "out"),
    "finetune": (["finetune", *TASK, *RUN, "--set", "epochs=1", "--out"], "out"),
    "finetune-2": (["finetune", *TASK, *RUN, "--set", "epochs=2", "--out"], "out"),
    "search": (["search", *TASK, *GRID, "--out"], "out"),
    "predict": (["predict", *INPUT, "--output"], "out.jsonl"),
    "embed": (["embed", *INPUT, "--output"], "out.npy"),
    "features": (["features", *INPUT, "--output"], "out.parquet"),
    "convert": (["convert", "{}/undisturbed/model", "--to", "bertie"], "out"),
    "export": (["export", "{}/undisturbed/model", "--onnx"], "out"),
}
QUICK = ("prepare", "pretrain", "finetune", "predict")  # in the default tests; all others are slow
KILLS = 2  # of each in the default tests


def read_result(folder: Path) -> dict[str, Any]:
    """Return the files below a folder, without what depends on the time."""
    result: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "metrics.jsonl":
            result[name] = read_rows(path.parent)
        elif path.is_file() and path.name not in ("report.html", "state.json"):
            result[name] = path.read_bytes()
        else:
            result[name] = None
    return result


@pytest.mark.parametrize("kills", [KILLS, pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "verb",
    [verb if verb in QUICK else pytest.param(verb, marks=pytest.mark.slow) for verb in COMMANDS],
)
def test_command_killed_at_a_file_operation_is_repeated(
    verb: str, kills: int, inputs: Path, tmp_path: Path
) -> None:
    arguments, name = COMMANDS[verb]
    command = [argument.format(inputs) for argument in arguments]

    def run(folder: Path, *options: str, killed_at: int = 0) -> tuple[int, int, str]:
        folder.mkdir(exist_ok=True)
        return run_and_kill([*command, folder / name, *options], folder, killed_at)

    status, operations, last_line = run(tmp_path / "undisturbed")
    assert status == 0, last_line
    expected = read_result(tmp_path / "undisturbed")
    step = max(1, operations // kills) if kills else 1
    for killed_at in range(1 + step // 2, operations + 1, step):
        folder = tmp_path / str(killed_at)
        assert run(folder, killed_at=killed_at)[0] == -9
        can_resume = (
            verb in ("pretrain", "finetune", "finetune-2") and (folder / name / "settings.toml").exists()
        )
        status, _, last_line = run(folder, *(["--resume"] if can_resume else []))
        if status == 2:  # the killed command had finished its work
            assert "exists already" in last_line or "already contains a prepared corpus" in last_line
        else:
            assert status == 0, (killed_at, last_line)
        left = read_result(folder)
        assert left.keys() == expected.keys(), killed_at
        assert [key for key in left if left[key] != expected[key]] == [], killed_at
