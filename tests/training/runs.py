"""Read and compare the metrics and weights of runs."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from bertie.base.settings import CHECKSUM
from bertie.training.metrics_file import read_metrics

TIMINGS = ("seconds", "tokens_per_second")
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def read_rows(run: Path) -> list[dict[str, Any]]:
    """Read a run's metrics without its timings."""
    rows = read_metrics(run / "metrics.jsonl")
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in rows]


def read_weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def assert_same_weights(run: Path, other: Path) -> None:
    """Assert that the weights of two runs are equal bit for bit."""
    weights, other_weights = read_weights(run), read_weights(other)
    assert weights.keys() == other_weights.keys()
    for name, weight in weights.items():
        assert torch.equal(weight, other_weights[name]), name


def without_checksum(settings: Path) -> str:
    """Read the settings of a run as earlier versions wrote them."""
    first_line, _, rest = settings.read_text().partition("\n")
    assert first_line.startswith(CHECKSUM)
    return rest
