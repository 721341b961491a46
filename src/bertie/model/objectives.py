"""Names of the token-level objectives, and the label that every loss ignores."""

from collections.abc import Iterable

# Labels with this value are no targets; torch's cross_entropy calls it ignore_index.
IGNORE_INDEX = -100

# Token-level objectives, by their prefix in metrics.jsonl, and how reports label their accuracy.
TOKEN_OBJECTIVES = {"masked_lm": "masked-token accuracy", "language_model": "next-token accuracy"}


def token_objective(keys: Iterable[str]) -> str:
    """Return the token-level objective that the keys of a row of metrics belong to."""
    return next(name for name in TOKEN_OBJECTIVES if f"{name}_loss" in keys)
