"""Names of the token-level objectives, and the label that no loss counts."""

from collections.abc import Iterable

# The label ignored by every loss: torch's cross_entropy calls it ignore_index.
IGNORE_INDEX = -100

# Each objective's prefix in metrics.jsonl, and what its targets are called.
TOKEN_OBJECTIVES = {"masked_lm": "masked tokens", "language_model": "next tokens"}


def token_objective(keys: Iterable[str]) -> str:
    """Return the one of TOKEN_OBJECTIVES that a held-out row of metrics reports."""
    return next(name for name in TOKEN_OBJECTIVES if f"{name}_loss" in keys)
