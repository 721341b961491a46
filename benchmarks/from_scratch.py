"""A small BERT from scratch in some minutes of a GPU, and five tasks of GLUE, beside google's of that size.

    python benchmarks/from_scratch.py OUT [--size small] [--minutes 25] [--pretrain KEY=VALUE …]
        [--search KEY=VALUE …]

A vocabulary and a corpus of all text of the data folder; both phases of Appendix A.2, nine steps in ten of
them of length 128, as many as the measured speed allows; then `bertie search` over google's grid for these
sizes. A part that is finished is not repeated, and one that was stopped goes on, so it may be given in
pieces: `timeout 9m python benchmarks/from_scratch.py OUT`, again and again. Where the text is not, carry
OUT/tokenizer and OUT/corpus there.

google's scores are of GLUE's hidden test sets, ours of dev: they tell whether the two are near, no more.
"""

import argparse
import io
import json
import os
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command line does
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

from bertie.base.files import write_text
from bertie.base.settings import read_toml
from bertie.commands.main import app
from bertie.reports.metrics import read_metrics
from bertie.tasks.registry import find_task

DATA = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
VOCABULARY_SIZE = 30522  # as google's
HELD_OUT = 0.005
PHASES = {128: 0.9, 512: 0.1}  # length: share of the steps (Appendix A.2)
CALIBRATION_STEPS = 60
WARMUP_SHARE = 0.01  # 10,000 of 1,000,000 steps
# Each task's main metric by size (google-research/bert README, 2020-03-11).
GOOGLE = {
    "cola": {"tiny": 0.0, "mini": 0.0, "small": 27.8, "medium": 38.0},
    "sst-2": {"tiny": 83.2, "mini": 85.9, "small": 89.7, "medium": 89.6},
    "mrpc": {"tiny": 81.1, "mini": 81.1, "small": 83.4, "medium": 86.6},
    "sts-b": {"tiny": 73.6, "mini": 73.3, "small": 77.0, "medium": 78.4},
    "rte": {"tiny": 57.2, "mini": 57.9, "small": 61.8, "medium": 62.2},
}


def bertie(*arguments: object) -> None:
    """A command of `bertie`."""
    app([str(argument) for argument in arguments], standalone_mode=False)


def assigned(changes: list[str]) -> list[str]:
    return [part for change in changes for part in ("--set", change)]


def prepare(out: Path) -> None:
    text = [DATA / "text" / "wikipedia", DATA / "text" / "gutenberg"]
    if not (out / "tokenizer").exists():
        bertie("vocab", *text, "--size", VOCABULARY_SIZE, "--out", out / "tokenizer")
    if not (out / "corpus" / "manifest.json").exists():
        options = ["--tokenizer", out / "tokenizer", "--out", out / "corpus", "--held-out", HELD_OUT]
        bertie("prepare", *text, *options)


def pretrain(out: Path, size: str, minutes: float, changes: list[str]) -> None:
    run = out / "pretraining"
    settings = run / "settings.toml"
    if settings.exists():
        phases = [(phase["steps"], phase["max_seq_length"]) for phase in read_toml(settings)["phases"]]
        resume = ["--resume"]
    else:
        speeds = {length: steps_per_second(out, size, length, changes) for length in PHASES}
        steps = minutes * 60 / sum(share / speeds[length] for length, share in PHASES.items())
        phases = [(max(round(share * steps), 1), length) for length, share in PHASES.items()]
        resume = []
    total = sum(steps for steps, _ in phases)
    every = [f"{key}={max(total // 50, 1)}" for key in ("evaluate_every", "save_every")]
    own = [f"phases={toml(phases)}", f"warmup_steps={round(total * WARMUP_SHARE)}", *every]
    command = ["pretrain", size, "--corpus", out / "corpus", "--out", run]
    bertie(*command, *assigned([*own, *changes]), *resume)


def toml(phases: list[tuple[int, int]]) -> str:
    return f"[{', '.join(f'{{steps={steps}, max_seq_length={length}}}' for steps, length in phases)}]"


def steps_per_second(out: Path, size: str, length: int, changes: list[str]) -> float:
    """Measured on some steps of a run that is thrown away."""
    own = [
        f"phases={toml([(CALIBRATION_STEPS, length)])}",
        "warmup_steps=1",
        f"log_every={CALIBRATION_STEPS // 3}",
    ]
    with tempfile.TemporaryDirectory(dir=out) as trial:
        run = Path(trial) / "run"
        bertie("pretrain", size, "--corpus", out / "corpus", "--out", run, *assigned([*changes, *own]))
        rows = [row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "train"]
    first, last = rows[0], rows[-1]  # the first holds the warm-up of caches and kernels
    return float((last["step"] - first["step"]) / (last["seconds"] - first["seconds"]))


def search(out: Path, task: str, changes: list[str]) -> dict[str, Any]:
    """The chosen cell of the grid."""
    model, data = out / "pretraining" / "model", DATA / "glue"
    command = ["search", "--task", task, "--model", model, "--data", data, "--out", out / task]
    printed = io.StringIO()
    with redirect_stdout(printed):
        bertie(*command, "--recipe", "search-small", *assigned(changes), "--json")
    cells: list[dict[str, Any]] = json.loads(printed.getvalue())
    return next(cell for cell in cells if cell["chosen"])


def table(size: str, chosen: dict[str, dict[str, Any]]) -> str:
    lines = ["| task | metric | batch | rate | ours, dev | google, test |", "|---|---|---|---|---|---|"]
    for task, cell in chosen.items():
        fields = [task, find_task(task).main_metric, cell["batch_size"], f"{cell['learning_rate']:g}"]
        lines.append(f"| {' | '.join(map(str, fields))} | {cell['mean']:.1f} | {GOOGLE[task][size]} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", choices=["tiny", "mini", "small", "medium"], default="small")
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--pretrain", action="append", default=[])
    parser.add_argument("--search", action="append", default=[])
    options = parser.parse_args()
    prepare(options.out)
    pretrain(options.out, options.size, options.minutes, options.pretrain)
    chosen = {}
    for task in GOOGLE:
        chosen[task] = search(options.out, task, options.search)
        write_text(options.out / "results.md", table(options.size, chosen))
    print((options.out / "results.md").read_text())


if __name__ == "__main__":
    main()
