"""Tasks that fine-tune an encoder to embed texts, from pairs of texts.

This is the method of Sentence-BERT. The model embeds the two texts of a pair independently of each other. In
scored pairs, the cosine of the two vectors learns the score. In pairs without scores, the second text of each
pair learns to be nearer to the first one than the second texts of other pairs.
"""

import sys
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bertie.base.arrays import Float32s, Float64s
from bertie.base.errors import DataError
from bertie.base.memory import Source
from bertie.model.config import ProblemType
from bertie.model.formats.directory import ModelMetadata
from bertie.tasks.classification import LabelledTexts, TextClassification
from bertie.tasks.custom.classification import CustomClassification
from bertie.tasks.error_analysis import ErrorAnalysis, Mistake, largest_errors
from bertie.tasks.glue import TASKS as GLUE_TASKS
from bertie.tasks.glue import GlueTask
from bertie.tasks.metrics import LabelArray, percent
from bertie.tasks.task import Head, Inputs, Scores, Task
from bertie.text.tokenizer import Tokenizer

_CHUNK = 1024  # pairs whose first texts are compared with all second texts at a time
_ROUNDING = 1e-6  # cosines of equal vectors may differ by this much


@dataclass(frozen=True)
class _Pairs(TextClassification):
    """Mixin for tasks on pairs of texts that the model embeds one by one.

    A prediction is a number.
    """

    problem_type: ProblemType = "regression"

    @property
    def head(self) -> Head:
        """The vectors of the texts."""
        return "embedding"

    @property
    def input_columns(self) -> dict[str, str]:
        """None: the model reads single texts."""
        return {}

    @property
    def label_columns(self) -> dict[str, str]:
        """None for STS-B, whose columns are known."""
        return {}

    def fitted_to_model(self, metadata: ModelMetadata) -> Self:
        """Return this task: an encoder has no labels."""
        return self

    def encode(self, examples: LabelledTexts, tokenizer: Tokenizer, max_seq_length: int) -> Inputs:
        """Encode the texts as [CLS] text [SEP], the two of a pair one after the other."""
        assert examples.pairs is not None
        texts = [text for pair in zip(examples.texts, examples.pairs, strict=True) for text in pair]
        encoding = tokenizer.encode_batch(texts, max_length=max_seq_length)
        return Inputs.from_encoding(encoding, self._training_labels(examples), group=2)

    def _training_labels(self, examples: LabelledTexts) -> npt.NDArray[Any] | None:
        """Return `Inputs.labels`."""
        return None if examples.labels is None else self.gold(examples).astype(np.float32)


@dataclass(frozen=True)
class _ScoredPairs(_Pairs):
    """Mixin for pairs with a score of their similarity; a prediction is a cosine.

    score_range  the scores that mean the cosines 0 and 1; None until `fitted`
    """

    score_range: tuple[float, float] | None = None

    def gold(self, examples: LabelledTexts) -> LabelArray:
        """Return the scores as the cosines that they mean, 0 to 1."""
        values = super().gold(examples)
        low, high = self.score_range or _range(values)
        return (values - low) / (high - low)

    def fitted(self, examples: LabelledTexts) -> Self:
        """Return this task with the range of the training scores."""
        if self.score_range is not None:
            return self
        return replace(self, score_range=_range(super().gold(examples)))

    def describe_labels(self, examples: LabelledTexts) -> str:
        """Return the range of the scores."""
        assert self.score_range is not None
        low, high = self.score_range
        return f"scores; {low:g} means a cosine of 0, {high:g} a cosine of 1"

    def decode(self, examples: LabelledTexts, inputs: Inputs, logits: Float32s) -> LabelArray:
        """Return the cosine of the two vectors of each pair."""
        first, second = _unit_vectors(logits)
        return np.asarray((first * second).sum(axis=1))


@dataclass(frozen=True)
class GlueEmbeddings(_ScoredPairs, GlueTask):
    """STS-B, where the cosine of two vectors is the similarity of the sentences."""


@dataclass(frozen=True)
class CustomScoredPairs(_ScoredPairs, CustomClassification):
    """Custom pairs of texts with scores in the column `label`."""

    name: str = "scored-pairs"
    labels: tuple[str, ...] = ()
    main_metric: str = "spearmanr"
    defaults: dict[str, Any] = field(default_factory=dict)
    metrics: tuple[str, ...] = ("spearmanr", "pearson")
    pair: str = "pair"
    infer_type: bool = False

    @property
    def label_columns(self) -> dict[str, str]:
        """The columns of the two texts and of their score, which only `evaluate` reads."""
        return {"text": self.text, "pair": self.pair, "label": self.label}

    def read(self, path: Source, labelled: bool) -> LabelledTexts:
        """Read a table of scored pairs.

        Report scores outside the range of the training scores on stderr.
        """
        examples = super().read(path, labelled)
        if labelled and self.score_range is not None:
            cosines = self.gold(examples)
            outside = np.flatnonzero((cosines < 0) | (cosines > 1))
            if len(outside):
                low, high = self.score_range
                print(
                    f"{path}: scores outside {low:g} to {high:g}, the range in training, which no cosine "
                    f"reaches: {len(outside):,} (first: {examples.location(int(outside[0]))})",
                    file=sys.stderr,
                )
        return examples


@dataclass(frozen=True)
class CustomPairs(_Pairs, CustomClassification):
    """Custom pairs of texts that belong together, such as questions and their answers.

    A prediction is the rank of the second text among all second texts of the file by their cosine
    with the first one, from 1.
    """

    name: str = "pairs"
    labels: tuple[str, ...] = ()
    main_metric: str = "mrr"
    metrics: tuple[str, ...] = ("mrr", "accuracy")
    defaults: dict[str, Any] = field(default_factory=dict)
    pair: str = "pair"
    infer_type: bool = False

    @property
    def label_columns(self) -> dict[str, str]:
        """The columns of the two texts, which only `evaluate` reads."""
        return {"text": self.text, "pair": self.pair}

    def read(self, path: Source, labelled: bool) -> LabelledTexts:
        """Read a table of pairs, which has no labels."""
        return super().read(path, labelled=False)

    def fitted(self, examples: LabelledTexts) -> Self:
        """Return this task."""
        return self

    def check_training(self, examples: LabelledTexts, path: Source) -> None:
        """Reject a single pair, which has no negatives."""
        if len(examples) == 1:
            raise DataError(f"{path}: one pair; add others, whose texts are its negatives")

    def describe_labels(self, examples: LabelledTexts) -> str:
        """Return "": there are no labels."""
        return ""

    def _training_labels(self, examples: LabelledTexts) -> npt.NDArray[Any]:
        """Return an index for each text, the same for the same text: int64 (n, 2)."""
        assert examples.pairs is not None
        index_of = {text: index for index, text in enumerate(sorted({*examples.texts, *examples.pairs}))}
        pairs = zip(examples.texts, examples.pairs, strict=True)
        return np.array([[index_of[text] for text in pair] for pair in pairs], dtype=np.int64)

    def decode(self, examples: LabelledTexts, inputs: Inputs, logits: Float32s) -> LabelArray:
        """Return the rank of each second text."""
        first, second = _unit_vectors(logits)
        ranks = []
        for start in range(0, len(first), _CHUNK):
            cosines = first[start : start + _CHUNK] @ second.T
            own = np.diagonal(cosines, start)[:, None]
            ranks.append(1 + (cosines > own + _ROUNDING).sum(axis=1))
        return np.concatenate(ranks).astype(np.float64)

    def score(self, examples: LabelledTexts, predictions: LabelArray) -> Scores:
        """Compute the mean reciprocal rank, and how often the second text is the nearest."""
        accuracy = float((predictions == 1).mean())
        return {"mrr": percent(float((1 / predictions).mean())), "accuracy": percent(accuracy)}

    def majority_baseline(self, training: LabelledTexts, examples: LabelledTexts) -> None:
        """Return None: no answer is the most frequent one."""
        return

    def constant_answer(self, examples: LabelledTexts, predictions: LabelArray) -> None:
        """Return None: equal ranks are no sign of a failure."""
        return

    def analyze_errors(
        self, examples: LabelledTexts, predictions: LabelArray, confidence: Float64s | None = None
    ) -> ErrorAnalysis:
        """Return the pairs whose second text has the highest ranks."""
        return ErrorAnalysis(
            mistakes=[
                Mistake(examples.excerpt(i), "rank 1", f"rank {predictions[i]:g}")
                for i in largest_errors(predictions - 1)
            ]
        )

    def strata(self, examples: LabelledTexts) -> list[Any]:
        """Return the same value for all pairs."""
        return [0] * len(examples)


_STS_B = next(task for task in GLUE_TASKS if task.name == "sts-b")
STS_B_EMBEDDINGS = GlueEmbeddings(
    "sts-b-embeddings",
    (),
    main_metric=_STS_B.main_metric,
    defaults=_STS_B.defaults,
    metrics=_STS_B.metrics,
    folder=_STS_B.folder,
    columns=_STS_B.columns,
    score_range=(0, 5),
)


def for_embeddings(task: Task[Any, Any]) -> Task[Any, Any]:
    """Return STS-B on embeddings in place of STS-B; return another task unchanged."""
    return STS_B_EMBEDDINGS if task is _STS_B else task


def _range(scores: Float64s) -> tuple[float, float]:
    """Return the range of scores: 0 and 1 if they fit, otherwise the ends.

    The ends are the lowest and the highest score.
    """
    low, high = float(scores.min()), float(scores.max())
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return low, high if high > low else low + 1


def _unit_vectors(vectors: Float32s) -> tuple[Float64s, Float64s]:
    """Return the vectors of both texts, float64 (n, H), scaled to length 1."""
    unit = vectors.astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    return unit[::2], unit[1::2]
