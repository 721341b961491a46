"""Every command that writes, with arguments for the files of the fixture `inputs`."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.runs import fork_bertie
from tests.training.runs import TIMINGS, read_rows

TASK = ["--train", "{}/rows.csv", "--dev", "{}/rows.csv", "--model", "{}/undisturbed/model"]
TASK += ["--device", "cpu"]
INPUT = ["{}/undisturbed/model", "--input", "{}/few.txt", "--device", "cpu"]
RUN = ["--set", "max_seq_length=16", "--set", "batch_size=8"]
GRID = ["--set", "finetuning.max_seq_length=16", "--set", "epochs=[1]", "--set", "batch_sizes=[16]"]
GRID += ["--set", "learning_rates=[1e-4, 1e-3]"]
TEXTS = ["{}/text.txt", "{}/more.txt"]
TABLE = [
    "--text",
    "{}/text.txt",
    "--workers",
    "1",
    "--data",
    "{}/data",
    "--scale",
    "{}/scale.toml",
    "--device",
    "cpu",
]
GIVEN = ["--model", "{}/undisturbed/model", "--data", "{}/data", "--device", "cpu"]
# The arguments of each command, with {} for the folder of the inputs, but for the output; and its name.
COMMANDS = {
    "vocab": (["vocab", "{}/text.txt", "--size", "150", "--workers", "1", "--out"], "out"),
    "vocab-workers": (["vocab", *TEXTS, "--size", "150", "--workers", "2", "--out"], "out"),
    "prepare": (["prepare", "{}/text.txt", "--tokenizer", "{}/tokenizer", "--workers", "1", "--out"], "out"),
    "prepare-workers": (["prepare", *TEXTS, "--tokenizer", "{}/tokenizer", "--workers", "2", "--out"], "out"),
    "pretrain": (["pretrain", "{}/short.toml", "--corpus", "{}/corpus", "--out"], "out"),
    "finetune": (["finetune", *TASK, *RUN, "--set", "epochs=1", "--out"], "out"),
    "finetune-2": (["finetune", *TASK, *RUN, "--set", "epochs=2", "--out"], "out"),
    "search": (["search", *TASK, *GRID, "--out"], "out"),
    "predict": (["predict", *INPUT, "--out"], "out.jsonl"),
    "embed": (["embed", *INPUT, "--out"], "out.npy"),
    "features": (["features", *INPUT, "--out"], "out.parquet"),
    "convert": (["convert", "{}/undisturbed/model", "--to", "bertie"], "out"),
    "export": (["export", "{}/undisturbed/model", "--onnx"], "out"),
    "submission": (["submission", "{}/glue-run", "--out"], "out.zip"),
    "reproduce": (["reproduce", "{}/table.toml", *TABLE, "--out"], "out"),
    "reproduce-model": (["reproduce", "{}/given.toml", *GIVEN, "--out"], "out"),
    "demo": (["demo", "--out"], "out"),  # with the text and the sizes of small_demo.py
}
RESUMABLE = (
    "prepare",
    "prepare-workers",
    "pretrain",
    "finetune",
    "finetune-2",
    "search",
    "reproduce",
    "reproduce-model",
    "demo",
)
RESUMED_WITH_OPTION = ("pretrain", "finetune", "finetune-2")  # --resume; the others by the same command

# Of state.json: what depends on the time, and the size of metrics.jsonl, whose rows have timings.
TIMED_STATE = (*TIMINGS, "window_seconds", "metrics_bytes")
TIMED_LINE = "All runs so far took"  # of the report of `reproduce --model`

# Returns the number of operations on files and the result of a command that nothing disturbs.
Undisturbed = Callable[[str], tuple[int, dict[str, Any]]]


def arguments_of(verb: str, inputs: Path) -> list[str]:
    """Return the arguments of a command but for its output."""
    return [argument.format(inputs) for argument in COMMANDS[verb][0]]


def run(verb: str, inputs: Path, folder: Path, resume: bool = False, **faults: Any) -> tuple[int, int, str]:
    """Fork a command that writes into `folder`, and wait for it and its workers.

    Args:
        resume: whether to resume a run if the folder holds one that is resumed with an option.
        faults: as in `Job`.

    Returns:
        The exit status, the number of operations on files, and the output.
    """
    folder.mkdir(exist_ok=True)
    out = folder / COMMANDS[verb][1]
    can_resume = resume and verb in RESUMED_WITH_OPTION and (out / "settings.toml").exists()
    options = ["--resume"] if can_resume else []
    process = fork_bertie(folder, *arguments_of(verb, inputs), out, *options, watched=str(folder), **faults)
    status = process.join()
    deadline = time.monotonic() + 20
    while process.has_workers():
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.01)
    killed = status < 0 or not os.path.exists(f"{process.job.log}.count")
    return status, 0 if killed else process.operations, process.output


def read_result(folder: Path) -> dict[str, Any]:
    """Return the files below a folder, without what depends on the time."""
    result: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        # The sums of a checkpoint are of its state.json, too, which has timings.
        is_timed = path.name == "report.html" or path.match("checkpoints/*/SHA256SUMS")
        if path.name == "metrics.jsonl":
            result[name] = read_rows(path.parent)
        elif path.name == "state.json":
            state = json.loads(path.read_text())
            result[name] = {k: v for k, v in state.items() if k not in TIMED_STATE}
        elif path.parent.is_relative_to(folder / "out/given") and path.name in ("plan.json", "result.json"):
            result[name] = _without_seconds(json.loads(path.read_text()))
        elif path.name == "given.md":
            lines = path.read_text().splitlines()
            result[name] = [line for line in lines if not line.startswith(TIMED_LINE)]
        elif path.is_file() and not is_timed:
            result[name] = path.read_bytes()
        else:
            result[name] = None
    return result


def _without_seconds(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {key: _without_seconds(value) for key, value in tree.items() if not key.startswith("seconds")}
