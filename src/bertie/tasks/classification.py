"""Classification and regression of texts and pairs of texts (Figure 4 a and b)."""

import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertie.base.arrays import Bools, Float32s, Float64s, Int64s
from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.base.files import write_text
from bertie.base.rows import Rows, read_header, read_unquoted
from bertie.base.schemas import visible
from bertie.model.config import ProblemType
from bertie.model.formats.directory import TRUNCATE, LongTexts, ModelMetadata
from bertie.tasks import metrics
from bertie.tasks.calibration import Calibration, fit_temperature, measure_calibration
from bertie.tasks.error_analysis import (
    MISTAKE_LENGTH,
    ErrorAnalysis,
    Mistake,
    analyze_classes,
    join_names,
    largest_errors,
    probability_at,
    sample_confusions,
    scores_by_label,
    shorten,
)
from bertie.tasks.label_types import with_decimal_point
from bertie.tasks.long_texts import encode_long_texts
from bertie.tasks.metrics import LabelArray, percent
from bertie.tasks.probabilities import chosen_softmax, label_probabilities
from bertie.tasks.task import Head, Inputs, Scores, Task
from bertie.tasks.thresholds import DEFAULT_THRESHOLD, tune_thresholds
from bertie.text.tokenizer import Tokenizer

LocationOf = Callable[[int], str]  # an example's index -> its file and line, for an error message

# Named as in GLUE's scorer (`evaluate`'s glue.py), the last two as in scikit-learn.
METRICS: dict[str, Callable[[LabelArray, LabelArray], float]] = {
    "accuracy": metrics.accuracy,
    "f1": metrics.f1,
    "matthews_correlation": metrics.matthews_correlation,
    "pearson": metrics.pearson,
    "spearmanr": metrics.spearman,
    "f1_micro": metrics.f1,
    "f1_macro": metrics.f1_macro,
}
_HEADER = ("index", "prediction")  # of GLUE's submissions
CONSTANT = 0.01  # predictions of a regression hardly vary below this fraction of the gold deviation
CORRELATED = 0.5  # predictions of a regression follow the labels above this correlation
_MAX_NUMBER = float(np.finfo(np.float32).max)
_MAX_LISTED_LABELS = 10  # in a message
_MAX_DESCRIBED_LABELS = 100  # with their numbers of examples


@dataclass(frozen=True)
class LabelledTexts:
    """Texts and their labels, as read from a file.

    texts   the texts; of pairs, the first ones
    pairs   the second texts of pairs; None for single texts
    labels  one for each text: the label's name, a sequence of names (multi-label), or a number,
            possibly as a string (regression); None if the labels are unknown
    rows    the rows of the file, for error messages
    """

    texts: Sequence[str]
    pairs: Sequence[str] | None = None
    labels: Sequence[Any] | None = None
    rows: Rows | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def location(self, i: int) -> str:
        """Return the file and line of example `i`, for an error message."""
        return self.rows.location(i) if self.rows is not None else f"example {i + 1}"

    def excerpt(self, i: int) -> str:
        """Return the text or the pair of example `i` in one short line."""
        if self.pairs is None:
            return shorten(self.texts[i])
        return " ‖ ".join(shorten(text, MISTAKE_LENGTH // 2) for text in (self.texts[i], self.pairs[i]))


@dataclass(frozen=True)
class TextClassification(Task[LabelledTexts, LabelArray]):
    """Tasks that classify texts or pairs, or predict a number for them.

    Predictions are an array: int64 (n,) class indices, bool (n, labels) for multi-label examples,
    or float64 (n,) regression values.

    problem_type         one class for each text, several labels, or a number
    metrics              names of the task's scores, among METRICS
    decision_thresholds  as in `ModelMetadata`; `tuned` chooses them. None for 0.5, which stays
    temperature          the number that `tuned` fits, as in `ModelMetadata`
    is_calibrated        whether the logits are divided by it
    long_texts           how texts that are longer than a sequence are read
    """

    problem_type: ProblemType = "single_label_classification"
    metrics: tuple[str, ...] = ("accuracy",)
    decision_thresholds: tuple[float, ...] | None = None
    temperature: float = 1.0
    is_calibrated: bool = False
    long_texts: LongTexts = TRUNCATE

    @property
    def head(self) -> Head:
        """A linear layer on the pooled [CLS]."""
        return "classification"

    @property
    def applied_temperature(self) -> float | None:
        """The temperature if the task is calibrated."""
        return self.temperature if self.is_calibrated else None

    def with_main_metric(self, metric: str) -> Self:
        """Return this task with another of its metrics as the main one."""
        if metric not in self.metrics:
            raise SettingsError(
                f"main_metric: {self.name} does not compute {metric!r}; use {' or '.join(self.metrics)}"
            )
        return replace(self, main_metric=metric)

    def with_thresholds(self) -> Self:
        """Return this task with decision thresholds.

        There is one for each of several labels, or for the second of two classes.
        """
        if self.problem_type == "multi_label_classification":
            return replace(self, decision_thresholds=(DEFAULT_THRESHOLD,) * len(self.labels))
        if self.problem_type == "single_label_classification" and len(self.labels) == 2:
            return replace(self, decision_thresholds=(DEFAULT_THRESHOLD,))
        return super().with_thresholds()

    def with_calibration(self) -> Self:
        """Return this task with probabilities that are scaled by a temperature."""
        if self.problem_type == "regression":
            return super().with_calibration()
        return replace(self, is_calibrated=True)

    def with_long_texts(self, long_texts: LongTexts) -> Self:
        """Return this task with another way to read long texts."""
        if self.head != "classification":
            return super().with_long_texts(long_texts)
        return replace(self, long_texts=long_texts)

    def fitted_to_model(self, metadata: ModelMetadata) -> Self:
        """Return this task with the labels and other results of fine-tuning."""
        return replace(
            super().fitted_to_model(metadata),
            decision_thresholds=metadata.decision_thresholds,
            temperature=metadata.temperature or 1.0,
            is_calibrated=metadata.temperature is not None,
            long_texts=metadata.long_texts,
        )

    def tuned(self, examples: LabelledTexts, inputs: Inputs, logits: Float32s) -> Self:
        """Return this task with the temperature that fits dev logits.

        Its thresholds are fitted, too, if it has any.
        """
        if self.problem_type == "regression":
            return self
        task = replace(self, temperature=fit_temperature(*self._decisions(examples, logits)))
        if self.decision_thresholds is None:
            return task
        gold, is_multilabel = self.gold(examples), self.problem_type == "multi_label_classification"

        def score(decisions: Bools) -> float:
            predictions = decisions if is_multilabel else decisions[:, 0].astype(np.int64)
            return self._score(gold, predictions)[self.main_metric]

        return replace(task, decision_thresholds=tune_thresholds(task._probabilities(logits), score))

    def gold(self, examples: LabelledTexts) -> LabelArray:
        """Return the gold labels as an array of the same form as predictions.

        Raises:
            DataError: a label is not one of the task's, or, in a regression, not a number.
        """
        assert examples.labels is not None
        return self._to_array(examples.labels, examples.location)

    def label_counts(self, examples: LabelledTexts) -> dict[str, int]:
        """Count the examples that have each label; empty for a regression."""
        if self.problem_type == "regression":
            return {}
        gold = self.gold(examples)
        counts = gold.sum(axis=0) if gold.ndim == 2 else np.bincount(gold, minlength=len(self.labels))
        return dict(zip(self.labels, counts.tolist(), strict=True))

    def describe_labels(self, examples: LabelledTexts) -> str:
        """Return each label with its number of examples; of numbers, the range.

        Of many labels, the first ones are returned.
        """
        if self.problem_type == "regression":
            numbers = self.gold(examples)
            return f"numbers from {numbers.min():g} to {numbers.max():g}"
        counts = [f"{visible(label)} ({count:,})" for label, count in self.label_counts(examples).items()]
        shown = ", ".join(counts[:_MAX_DESCRIBED_LABELS])
        return shown if len(counts) <= _MAX_DESCRIBED_LABELS else f"{shown}, … ({len(counts):,} labels)"

    def with_labels(self, labels: Sequence[str]) -> Self:
        """Return this task with a model's labels, in the order of the model's logits.

        The task keeps its labels if the model's have no meaning (LABEL_0, …), or if the task's are
        numbers ("0", "1") and the model's are names ("negative", "positive"). Then both are printed on
        stderr, because they are matched by their order.

        Raises:
            ModelError: the model has other labels.
        """
        if self.problem_type == "regression":
            return self
        if not self.labels or set(labels) == set(self.labels):
            return replace(self, labels=tuple(labels))
        unnamed = all(map(str.isdigit, self.labels)) or all(re.fullmatch(r"LABEL_\d+", x) for x in labels)
        if unnamed and len(labels) == len(self.labels):
            names = f"the model's labels {list_labels(labels)}"
            print(f"{self.name}: {names} count as {list_labels(self.labels)}, in this order", file=sys.stderr)
            return self
        raise ModelError(
            f"the model's labels are {list_labels(labels)}, but {self.name} has "
            f"{list_labels(self.labels)}; use a model that was fine-tuned with these labels"
        )

    def encode(self, examples: LabelledTexts, tokenizer: Tokenizer, max_seq_length: int) -> Inputs:
        """Encode as [CLS] text [SEP], or [CLS] text [SEP] second text [SEP].

        A text that is too long is read as `long_texts` says. Of a pair, the longer text is truncated.

        Raises:
            SettingsError: there are pairs, but `long_texts` is not to truncate them.
        """
        labels = None if examples.labels is None else self.gold(examples)
        if labels is not None and self.problem_type != "single_label_classification":
            labels = labels.astype(np.float32)
        method = self.long_texts.method
        if method != "truncate":
            if examples.pairs is not None:
                raise SettingsError(
                    f"long_texts={method} reads single texts, not pairs; leave it out in fine-tuning, or "
                    f"give no second texts"
                )
            return encode_long_texts(examples.texts, labels, tokenizer, max_seq_length, self.long_texts)
        encoding = tokenizer.encode_batch(examples.texts, examples.pairs, max_length=max_seq_length)
        return Inputs.from_encoding(encoding, labels)

    def decode(self, examples: LabelledTexts, inputs: Inputs, logits: Float32s) -> LabelArray:
        """Return the likeliest class, the labels above their thresholds, or the number."""
        if self.problem_type == "regression":
            return logits[:, 0].astype(np.float64)
        is_multilabel = self.problem_type == "multi_label_classification"
        if self.decision_thresholds is not None:
            decisions = self._probabilities(logits) > np.array(self.decision_thresholds)
            return decisions if is_multilabel else decisions[:, 0].astype(np.int64)
        if is_multilabel:
            return np.asarray(logits > 0)  # the sigmoid of 0 is 0.5
        return np.asarray(logits.argmax(axis=1))

    def _probabilities(self, logits: Float32s) -> Float64s:
        """Return the probabilities that thresholds decide on.

        They are of each of several labels, (n, L), or of the second class, (n, 1).
        """
        is_multilabel = self.problem_type == "multi_label_classification"
        probabilities = label_probabilities(logits, is_multilabel, self.applied_temperature)
        return probabilities if is_multilabel else probabilities[:, 1:]

    def _decisions(self, examples: LabelledTexts, logits: Float32s) -> tuple[Float32s, Int64s]:
        """Return logits (n, classes) and gold classes.

        Several labels are each a choice of two classes.
        """
        gold = self.gold(examples)
        if self.problem_type == "multi_label_classification":
            logits = np.stack([np.zeros_like(logits), logits], axis=-1).reshape(-1, 2)
        return logits, gold.ravel().astype(np.int64)

    def score(self, examples: LabelledTexts, predictions: LabelArray) -> Scores:
        """Compute the task's metrics."""
        return self._score(self.gold(examples), predictions)

    def _score(self, gold: LabelArray, predictions: LabelArray) -> Scores:
        if "f1" in self.metrics:  # of the label "1" (MRPC, QQP), wherever the model has it
            positive = self.labels.index("1")
            gold, predictions = gold == positive, predictions == positive
        return {name: percent(METRICS[name](gold, predictions)) for name in self.metrics}

    def confidence(self, examples: LabelledTexts, inputs: Inputs, logits: Float32s) -> Float64s | None:
        """Return the probability of each class or set of labels; None for a regression."""
        if self.problem_type == "regression":
            return None
        predictions, temperature = self.decode(examples, inputs, logits), self.applied_temperature or 1.0
        if self.problem_type == "multi_label_classification":  # each label is decided independently
            scaled = logits.astype(np.float64) / temperature
            return np.asarray(np.exp(-np.logaddexp(0, np.where(predictions, -scaled, scaled)).sum(axis=1)))
        return chosen_softmax(logits, predictions, temperature)

    def calibration(self, examples: LabelledTexts, inputs: Inputs, logits: Float32s) -> Calibration | None:
        """Compare probabilities with the accuracy.

        They are of the likeliest classes, or of each label.
        """
        if self.problem_type == "regression":
            return None
        return measure_calibration(*self._decisions(examples, logits), self.temperature)

    def majority_baseline(self, training: LabelledTexts, examples: LabelledTexts) -> Scores | None:
        """Score the majority class, the most frequent set of labels, or the mean."""
        gold = self.gold(training)
        if self.problem_type == "regression":
            answer = gold.mean()
        else:
            answers, counts = np.unique(gold, axis=0, return_counts=True)
            answer = answers[counts.argmax()]
        return self.score(examples, np.repeat(answer[None], len(examples), axis=0))

    def constant_answer(self, examples: LabelledTexts, predictions: LabelArray) -> str | None:
        """Return the class or set of labels that every example gets.

        For a regression, return the mean prediction if predictions hardly vary and do not follow the labels.
        """
        if self.problem_type == "regression":
            gold = self.gold(examples)
            varies = (
                predictions.std() > CONSTANT * gold.std() or metrics.pearson(gold, predictions) > CORRELATED
            )
            return None if varies else f"{predictions.mean():.4g}"
        if (predictions != predictions[:1]).any():
            return None
        if self.problem_type == "multi_label_classification":
            return join_names(np.array(self.labels, dtype=object)[predictions[0]])
        return self.labels[int(predictions[0])]

    def analyze_errors(
        self, examples: LabelledTexts, predictions: LabelArray, confidence: Float64s | None = None
    ) -> ErrorAnalysis:
        """Return scores by label and confusions, or the values of a regression."""
        gold = self.gold(examples)
        if self.problem_type == "regression":
            mistakes = [
                Mistake(examples.excerpt(i), f"{gold[i]:.4g}", f"{predictions[i]:.4g}")
                for i in largest_errors(np.abs(gold - predictions))
            ]
            return ErrorAnalysis(gold_and_predicted=(gold, predictions), mistakes=mistakes)
        names = np.array(self.labels, dtype=object)
        if self.problem_type == "multi_label_classification":
            mistakes = [
                Mistake(
                    examples.excerpt(i),
                    join_names(names[gold[i]]),
                    join_names(names[predictions[i]]),
                    probability_at(confidence, i),
                )
                for i in largest_errors((gold != predictions).sum(axis=1), confidence)
            ]
            return ErrorAnalysis(scores_by_label(self.labels, gold, predictions), mistakes=mistakes)
        mistakes = [
            Mistake(examples.excerpt(i), names[gold[i]], names[predictions[i]], probability_at(confidence, i))
            for i in sample_confusions(gold, predictions, confidence)
        ]
        return analyze_classes(self.labels, gold, predictions, mistakes)

    def select(self, examples: LabelledTexts, indices: Sequence[int]) -> LabelledTexts:
        """Return the examples with these indices."""
        return LabelledTexts(
            [examples.texts[i] for i in indices],
            None if examples.pairs is None else [examples.pairs[i] for i in indices],
            None if examples.labels is None else [examples.labels[i] for i in indices],
            None if examples.rows is None else examples.rows.select(indices),
        )

    def strata(self, examples: LabelledTexts) -> Sequence[Any]:
        """Return the labels, or the numbers of a regression.

        A sample covers their range.
        """
        gold = self.gold(examples)
        return list(map(tuple, gold)) if gold.ndim == 2 else gold.tolist()

    def write_predictions(self, examples: LabelledTexts, predictions: LabelArray, path: Path) -> None:
        """Write a tsv file in the form of GLUE's submissions.

        The columns are `index`, the example's index from 0, and `prediction`: the label's name, a
        JSON list of names (multi-label), or a number.
        """
        if self.problem_type == "regression":
            values = [repr(number) for number in predictions.tolist()]
        elif self.problem_type == "multi_label_classification":
            names = np.array(self.labels, dtype=object)
            values = [json.dumps(names[chosen].tolist(), ensure_ascii=False) for chosen in predictions]
        else:
            values = [self.labels[class_index] for class_index in predictions.tolist()]
        lines = ["\t".join(_HEADER), *(f"{index}\t{value}" for index, value in enumerate(values))]
        write_text(path, "\n".join(lines) + "\n")

    def read_predictions(self, examples: LabelledTexts, path: Path) -> LabelArray:
        """Read a file in the form of `write_predictions`.

        The rows may be in any order, and the header may be missing.

        Raises:
            SettingsError: the header lacks a column.
            DataError: an index is missing, unknown or duplicated, or a prediction is not a label
                of the task.
        """
        return self._to_array(*self._read_labels(examples, path))

    def _read_labels(self, examples: LabelledTexts, path: Path) -> tuple[Sequence[Any], LocationOf]:
        """Read predicted labels, in the form and order of `LabelledTexts.labels`."""
        header = _HEADER if read_header(path)[0].isdecimal() else ()
        rows = read_unquoted(path, _HEADER, header)
        indices = dict.fromkeys(map(str, range(len(examples))))
        row_of: dict[str, int] = {}
        for row, index in enumerate(rows.columns["index"]):
            if index not in indices:
                raise DataError(
                    f"{rows.location(row)}: unknown index {index!r}; the indices are 0 to {len(examples) - 1}"
                )
            if index in row_of:
                raise DataError(f"{rows.location(row)}: a second prediction for index {index}; delete one")
            row_of[index] = row
        if len(row_of) < len(examples):
            missing = next(index for index in indices if index not in row_of)
            raise DataError(f"{path}: no prediction for index {missing}; add one for every example")
        order = [row_of[index] for index in indices]
        values = [rows.columns["prediction"][row] for row in order]

        def location(index: int) -> str:
            return rows.location(order[index])

        if self.problem_type == "multi_label_classification":
            return [_parse_names(value, location(index)) for index, value in enumerate(values)], location
        return values, location

    def _to_array(self, labels: Sequence[Any], location: LocationOf) -> LabelArray:
        if self.problem_type == "regression":
            return np.array([parse_number(label, location(i)) for i, label in enumerate(labels)])
        if self.problem_type == "single_label_classification":
            return self._to_class_indices(labels, location)
        owners = np.repeat(np.arange(len(labels)), [len(names) for names in labels])
        has_label = np.zeros((len(labels), len(self.labels)), dtype=bool)
        all_names = [name for names in labels for name in names]
        has_label[owners, self._to_class_indices(all_names, lambda i: location(owners[i]))] = True
        return has_label

    def _to_class_indices(self, names: Sequence[str], location: LocationOf) -> Int64s:
        index_of = {label: index for index, label in enumerate(self.labels)}
        indices = np.array([index_of.get(name, -1) for name in names], dtype=np.int64)
        if (unknown := np.flatnonzero(indices < 0)).size:
            first = int(unknown[0])
            raise DataError(
                f"{location(first)}: unknown label {names[first]!r}; known: {list_labels(self.labels)}"
            )
        return indices


def parse_number(label: Any, location: str) -> float:
    """Return the label of a regression; raise DataError if it is not a finite number in float32."""
    try:
        number = float(label)
    except (TypeError, ValueError):
        number = math.nan
    if _MAX_NUMBER < abs(number) < math.inf:
        raise DataError(f"{location}: {label!r} is too large; scale the numbers")
    if not math.isfinite(number):
        shown = list(label) if isinstance(label, tuple) else label
        example = with_decimal_point([label])
        remedy = f"write numbers with a point, such as {example}," if example else "write a number"
        raise DataError(f"{location}: {shown!r} is not a number; {remedy} or delete the row")
    return number


def _parse_names(value: str, location: str) -> list[str]:
    try:
        names = json.loads(value)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f'{location}: {value!r} is not a JSON list of labels, such as ["a", "b"]')
    return names


def list_labels(labels: Sequence[str]) -> str:
    """Return labels for an error message, of many the first ones; invisible characters are escaped."""
    return ", ".join(map(visible, labels[:_MAX_LISTED_LABELS])) + ", …" * (len(labels) > _MAX_LISTED_LABELS)
