"""What pre-training learns to tell of words, under its names in metrics.jsonl."""

from collections.abc import Iterable

# The objective's prefix there, and what its targets are called.
WORD_OBJECTIVES = {"masked_lm": "masked words", "language_model": "next words"}


def word_objective(keys: Iterable[str]) -> str:
    """Which of WORD_OBJECTIVES a held-out row of metrics has."""
    return next(name for name in WORD_OBJECTIVES if f"{name}_loss" in keys)
