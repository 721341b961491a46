"""Train a classifier from few labels with a contrastive loss.

This is SetFit (Tunstall et al., arXiv:2209.11055). First the encoder learns from pairs of labelled texts:
texts of the same class get similar vectors. Then a logistic regression learns the classes from the vectors.
Few texts make many pairs, so the encoder has more to learn from than in ordinary fine-tuning.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.base.arrays import Float32s, Int64s
from bertie.base.errors import DataError, SettingsError
from bertie.base.random import open_stream, random_below
from bertie.model.batch import pack
from bertie.model.engines.embeddings import embed
from bertie.model.engines.torch_engine import evaluation_engine
from bertie.model.formats.sentence_transformers import EmbeddingConfig
from bertie.model.heads import ContrastiveModel
from bertie.tasks.long_texts import TextWindows
from bertie.tasks.task import Inputs, Task
from bertie.training.distributed import Ranks
from bertie.training.finetuning_settings import FinetuningSettings, step_bounds, training_indices
from bertie.training.loop import Batch

MAX_ITERATIONS = 1000  # of L-BFGS, which converges in some ten of them


def check_contrastive(
    task: Task[Any, Any], inputs: Inputs, settings: FinetuningSettings, ranks: Ranks
) -> None:
    """Reject tasks, data and settings that contrastive training does not fit.

    Raises:
        SettingsError: a text has no class or several, there are pairs of texts or windows, a BiLSTM, or
            several processes.
        DataError: there is only one class, or a class has only one text.
    """
    reason = ""
    if task.head != "classification" or task.problem_type != "single_label_classification":
        reason = f"{task.name} does not give each text one class; leave it out"
    elif inputs.token_type_ids.any():
        reason = "it compares single texts, not pairs; leave it out, or give no second texts"
    elif isinstance(inputs, TextWindows):
        reason = "it reads one sequence of each text; leave out long_texts=windows"
    elif settings.bilstm:
        reason = "the vectors come from the encoder; leave out the BiLSTM"
    elif ranks.world_size > 1:
        reason = "it runs in one process; start one"
    if reason:
        raise SettingsError(f"contrastive_pairs: {reason}")
    assert inputs.labels is not None
    counts = np.bincount(inputs.labels[training_indices(inputs, settings)])
    if (single := np.flatnonzero(counts == 1)).size:
        raise DataError(
            f"contrastive_pairs: the class {task.labels[single[0]]!r} has one training text, which makes no "
            f"pair; add another one"
        )
    if np.count_nonzero(counts) < 2:
        raise DataError("contrastive_pairs: all training texts have the same class; add texts of another one")


def describe_contrastive(num_texts: int, settings: FinetuningSettings) -> dict[str, str]:
    """Return the facts about contrastive training.

    They are for a report and a model card; there are none without it.
    """
    if not settings.contrastive_pairs:
        return {}
    texts = min(num_texts, settings.max_training_examples or num_texts)
    pairs = f"{texts * settings.contrastive_pairs:,} pairs of {texts:,} texts"
    if settings.epochs > 1:
        pairs += f" in each of {settings.epochs} epochs"
    return {"contrastive training": f"{pairs}, then a logistic regression"}


def draw_pair(labels: Int64s, index: int, seed: int) -> tuple[int, int, int]:
    """Draw pair `index` of the run with this seed.

    Even ones have the same class, odd ones do not.

    Args:
        labels: the classes of the texts, int64 (n,). Each class has at least two texts, and there are
            at least two classes.
        index: index of the pair, from 0.
        seed: seed of the run.

    Returns:
        The indices of two different texts, and 1 if they have the same class, 0 if not.
    """
    stream, is_same = open_stream(seed, index), index % 2 == 0
    first = int(random_below(stream, len(labels)))
    candidates = np.flatnonzero((labels == labels[first]) == is_same)
    candidates = candidates[candidates != first]
    return first, int(candidates[random_below(stream, len(candidates))]), int(is_same)


class ContrastiveBatches:
    """The batches of pairs from `step` on, in the form of `ContrastiveModel`.

    A text that is in several pairs of a batch is encoded once.
    """

    def __init__(self, inputs: Inputs, settings: FinetuningSettings, step: int) -> None:
        assert inputs.labels is not None
        self._inputs, self._seed, self._step = inputs, settings.seed, step
        self._indices = training_indices(inputs, settings)
        self._classes = inputs.labels[self._indices]
        self._steps = step_bounds(inputs, settings)

    def __next__(self) -> Batch:
        """Return the next batch."""
        epoch, step_in_epoch = divmod(self._step, len(self._steps) - 1)
        self._step += 1
        start, stop = epoch * self._steps[-1] + self._steps[step_in_epoch : step_in_epoch + 2]
        pairs = np.array([draw_pair(self._classes, i, self._seed) for i in range(start, stop)])  # (P, 3)
        texts, positions = np.unique(pairs[:, :2], return_inverse=True)
        labels = np.concatenate([positions.reshape(-1, 2), pairs[:, 2:]], axis=1)
        return Batch([pack(*self._inputs.sequences.select(self._indices[texts]), labels=labels)], 0)

    def cursor(self, batch: Batch) -> dict[str, Any]:
        """Return nothing: the step is the position in the data."""
        return {}


def fit_classifier(model: ContrastiveModel, inputs: Inputs, settings: FinetuningSettings) -> None:
    """Replace a model's classifier by a logistic regression.

    It is fitted to the vectors of the training texts.
    """
    assert inputs.labels is not None
    chosen = training_indices(inputs, settings)
    with evaluation_engine(model, settings.in_float32()) as engine:
        vectors = embed(engine, inputs.sequences.select(chosen), EmbeddingConfig(normalize=True))
    weight, bias = fit_logistic_regression(
        vectors, inputs.labels[chosen], model.classifier.out_features, model.class_weights
    )
    with torch.no_grad():
        model.classifier.weight.copy_(weight)
        model.classifier.bias.copy_(bias)


def fit_logistic_regression(
    vectors: Float32s,
    labels: Int64s,
    num_labels: int,
    class_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Fit a logistic regression.

    It is the same as scikit-learn's `LogisticRegression` with its default C = 1. It minimizes the sum of the
    cross-entropies and half the squared norm of the weights, without the biases.

    Args:
        vectors: float32 (n, H).
        labels: the classes, int64 (n,).
        num_labels: the number of classes.
        class_weights: float32 (num_labels,), weights of the classes in the loss; None for equal weights.

    Returns:
        The weights, float64 (num_labels, H), and the biases, float64 (num_labels,).

    Example:
        >>> vectors = np.array([[-1.0], [-0.5], [0.5], [1.0]], dtype=np.float32)
        >>> weight, bias = fit_logistic_regression(vectors, np.array([0, 0, 1, 1]), 2)
        >>> (torch.tensor([[2.0]]).double() @ weight.T + bias).argmax().item()
        1
    """
    x, y = torch.from_numpy(vectors).double(), torch.from_numpy(labels)
    class_weights = None if class_weights is None else class_weights.cpu().double()
    weight = torch.zeros(num_labels, x.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(num_labels, dtype=torch.float64, requires_grad=True)
    # For two classes, scikit-learn has one vector w. Here the classes have w / 2 and -w / 2, whose squared
    # norms sum to half the squared norm of w.
    penalty = 1.0 if num_labels == 2 else 0.5
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=MAX_ITERATIONS,
        tolerance_grad=1e-8,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def compute_loss() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(x @ weight.T + bias, y, class_weights, reduction="sum")
        loss = loss + penalty * weight.square().sum()
        torch.autograd.backward(loss)
        return loss

    optimizer.step(compute_loss)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()
