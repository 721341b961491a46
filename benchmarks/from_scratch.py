"""Pre-train a small BERT from scratch, and compare its GLUE scores with google's.

    python benchmarks/from_scratch.py OUT [--size small] [--minutes 25] [--pretrain KEY=VALUE …]
        [--search KEY=VALUE …]

The benchmark needs a GPU. It learns a vocabulary and prepares a corpus from all text of the data
folder. It pre-trains in the two phases of Appendix A.2, nine tenths of the steps at length 128, for
as many steps as the measured speed allows in the given minutes. Then it searches google's grid for
models of this size, on five tasks.

Complete parts are not repeated, and a part that was stopped resumes. So the benchmark can run in
several sessions: repeat `timeout 9m python benchmarks/from_scratch.py OUT`. On a machine without
the text, provide OUT/tokenizer and OUT/corpus.

google's scores are on GLUE's hidden test sets and bertie's on dev, so they are only roughly
comparable.
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
from bertie.tasks.registry import find_task
from bertie.training.metrics_file import read_metrics

DATA = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
VOCABULARY_SIZE = 30522  # as google's
HELD_OUT = 0.005
PHASES = {128: 0.9, 512: 0.1}  # length: fraction of the steps (Appendix A.2)
CALIBRATION_STEPS = 60
WARMUP_RATIO = 0.01  # 10,000 of 1,000,000 steps
# The main metric of each task, by size of the model (google-research/bert README, 2020-03-11).
GOOGLE = {
    "cola": {"tiny": 0.0, "mini": 0.0, "small": 27.8, "medium": 38.0},
    "sst-2": {"tiny": 83.2, "mini": 85.9, "small": 89.7, "medium": 89.6},
    "mrpc": {"tiny": 81.1, "mini": 81.1, "small": 83.4, "medium": 86.6},
    "sts-b": {"tiny": 73.6, "mini": 73.3, "small": 77.0, "medium": 78.4},
    "rte": {"tiny": 57.2, "mini": 57.9, "small": 61.8, "medium": 62.2},
}


def bertie(*arguments: object) -> None:
    """Run `bertie ARGUMENTS`."""
    app([str(argument) for argument in arguments], standalone_mode=False)


def set_options(changes: list[str]) -> list[str]:
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
        steps = minutes * 60 / sum(fraction / speeds[length] for length, fraction in PHASES.items())
        phases = [(max(round(fraction * steps), 1), length) for length, fraction in PHASES.items()]
        resume = []
    total = sum(steps for steps, _ in phases)
    every = [f"{key}={max(total // 50, 1)}" for key in ("evaluate_every", "save_every")]
    schedule = [f"phases={format_phases(phases)}", f"warmup_steps={round(total * WARMUP_RATIO)}", *every]
    command = ["pretrain", size, "--corpus", out / "corpus", "--out", run]
    bertie(*command, *set_options([*schedule, *changes]), *resume)


def format_phases(phases: list[tuple[int, int]]) -> str:
    """Return (steps, length) of each phase as a TOML value."""
    return f"[{', '.join(f'{{steps={steps}, max_seq_length={length}}}' for steps, length in phases)}]"


def steps_per_second(out: Path, size: str, length: int, changes: list[str]) -> float:
    """Measure the speed on a short run, and delete the run."""
    schedule = [
        f"phases={format_phases([(CALIBRATION_STEPS, length)])}",
        "warmup_steps=1",
        f"log_every={CALIBRATION_STEPS // 3}",
    ]
    options = set_options([*changes, *schedule])
    with tempfile.TemporaryDirectory(dir=out) as folder:
        run = Path(folder) / "run"
        bertie("pretrain", size, "--corpus", out / "corpus", "--out", run, *options)
        rows = [row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "train"]
    first, last = rows[0], rows[-1]  # caches and kernels warm up before the first row
    return float((last["step"] - first["step"]) / (last["seconds"] - first["seconds"]))


def search(out: Path, task: str, changes: list[str]) -> dict[str, Any]:
    """Run a search; return the chosen trial."""
    model, data = out / "pretraining" / "model", DATA / "glue"
    command = ["search", "--task", task, "--model", model, "--data", data, "--out", out / task]
    printed = io.StringIO()
    with redirect_stdout(printed):
        bertie(*command, "--recipe", "search-small", *set_options(changes), "--json")
    trials: list[dict[str, Any]] = json.loads(printed.getvalue())
    return next(trial for trial in trials if trial["chosen"])


def table(size: str, chosen: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| task | metric | batch size | learning rate | bertie, dev | google, test |",
        "|---|---|---|---|---|---|",
    ]
    for task, trial in chosen.items():
        fields = [task, find_task(task).main_metric, trial["batch_size"], f"{trial['learning_rate']:g}"]
        lines.append(f"| {' | '.join(map(str, fields))} | {trial['mean']:.1f} | {GOOGLE[task][size]} |")
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
