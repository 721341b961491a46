"""Rank the endings of a context."""

from collections.abc import Callable, Sequence

import numpy as np

from bertie.base.arrays import Float32s
from bertie.inference.results import Choice, Results
from bertie.tasks.probabilities import rank, softmax
from bertie.tasks.swag import Choices


def rank_endings(
    contexts: Sequence[str],
    endings: Sequence[Sequence[str]],
    top_k: int | None,
    compute_scores: Callable[[Choices], Float32s],
) -> list[Results[Choice]]:
    """Return the endings of each context with their probabilities, most likely first.

    Args:
        contexts: the contexts.
        endings: the endings of each context, any number.
        top_k: the number of endings to return for each context; None for all.
        compute_scores: returns the scores of all endings of some examples, which have the same number.
    """
    results: list[Results[Choice]] = [Results() for _ in contexts]
    counts = np.array([len(row) for row in endings], dtype=np.int64)
    for count in np.unique(counts[counts > 0]).tolist():
        chosen = np.flatnonzero(counts == count).tolist()
        examples = Choices(
            [contexts[i] for i in chosen], [""] * len(chosen), [endings[i] for i in chosen], None, []
        )
        probabilities = softmax(compute_scores(examples).reshape(len(chosen), count))
        for i, row in zip(chosen, probabilities, strict=True):
            results[i] = Results(
                Choice(number, endings[i][number], score) for number, score in rank(row)[:top_k]
            )
    return results
