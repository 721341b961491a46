"""Texts, or pairs of texts, that have a label, several labels or a number (Figure 4 a and b)."""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bertie.base.errors import DataError, ModelError
from bertie.base.files import write_text
from bertie.base.rows import Rows, read_header, read_unquoted
from bertie.model.config import ProblemType
from bertie.tasks import metrics
from bertie.tasks.task import Head, Inputs, Scores, Task
from bertie.text.tokenizer import Tokenizer

Values = npt.NDArray[Any]
Location = Callable[[int], str]

# By the names of GLUE's scorer (`evaluate`'s glue.py) and, the last two, of scikit-learn's `scoring`.
METRICS: dict[str, Callable[[Values, Values], float]] = {
    "accuracy": metrics.accuracy,
    "f1": metrics.f1,
    "matthews_correlation": metrics.matthews_correlation,
    "pearson": metrics.pearson,
    "spearmanr": metrics.spearman,
    "f1_micro": metrics.f1,
    "f1_macro": metrics.f1_macro,
}
_HEADER = ("index", "prediction")  # of GLUE's submissions
_SHOWN_LABELS = 10


@dataclass(frozen=True)
class LabelledTexts:
    """Texts and what is said of them, as their file has it.

    texts   the texts, or the first ones of pairs
    pairs   the second ones
    labels  None where they are not known, else of each text its label's name; a sequence of names where it
            may have several; a number, or one as a string, in a regression
    rows    where they were read, for messages
    """

    texts: Sequence[str]
    pairs: Sequence[str] | None = None
    labels: Sequence[Any] | None = None
    rows: Rows | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def location(self, i: int) -> str:
        """Where example `i` stands, for a message."""
        return self.rows.location(i) if self.rows is not None else f"example {i + 1}"


@dataclass(frozen=True)
class TextClassification(Task[LabelledTexts, Values]):
    """A family of tasks. Predictions have the form of `gold`.

    problem_type  what the labels of a text are
    metrics       which of METRICS are its scores
    """

    problem_type: ProblemType = "single_label_classification"
    metrics: tuple[str, ...] = ("accuracy",)

    @property
    def head(self) -> Head:
        """On the pooled [CLS]."""
        return "classification"

    def gold(self, examples: LabelledTexts) -> Values:
        """Labels as numbers: int64 (n,) classes; bool (n, labels) several labels; float64 (n,) regression.

        Raises:
            DataError: a label is not one of the task's, or no number.
        """
        assert examples.labels is not None
        return self._to_values(examples.labels, examples.location)

    def label_counts(self, examples: LabelledTexts) -> dict[str, int]:
        """How many examples have each label, to be shown; nothing for a regression."""
        if self.problem_type == "regression":
            return {}
        gold = self.gold(examples)
        counts = gold.sum(axis=0) if gold.ndim == 2 else np.bincount(gold, minlength=len(self.labels))
        return dict(zip(self.labels, counts.tolist(), strict=True))

    def majority(self, training: LabelledTexts, examples: LabelledTexts) -> Values:
        """The predictions that always give the training examples' commonest class."""
        return np.full(len(examples), np.bincount(self.gold(training)).argmax())

    def with_labels(self, labels: Sequence[str]) -> Self:
        """This task with a model's labels in the model's order.

        A model without names for its classes has the task's; classes that the task itself only numbers may
        have names in the model (`negative`, `positive`).

        Raises:
            ModelError: the model has other labels.
        """
        if self.problem_type == "regression":
            return self
        if not self.labels or set(labels) == set(self.labels):
            return replace(self, labels=tuple(labels))
        numbered = all(map(str.isdigit, self.labels)) or all(re.fullmatch(r"LABEL_\d+", x) for x in labels)
        if numbered and len(labels) == len(self.labels):
            return self
        raise ModelError(
            f"the model's labels are {_listed(labels)}, those of {self.name} are {_listed(self.labels)}; "
            f"use a model fine-tuned on {self.name}"
        )

    def encode(self, examples: LabelledTexts, tokenizer: Tokenizer, max_seq_length: int) -> Inputs:
        """[CLS] text [SEP], or [CLS] text [SEP] second text [SEP], cut at the end of the longer one."""
        encoding = tokenizer.encode_batch(examples.texts, examples.pairs, max_length=max_seq_length)
        labels = None if examples.labels is None else self.gold(examples)
        if labels is not None and self.problem_type != "single_label_classification":
            labels = labels.astype(np.float32)
        return Inputs(encoding.input_ids, encoding.token_type_ids, encoding.bounds, labels)

    def decode(self, examples: LabelledTexts, inputs: Inputs, logits: npt.NDArray[np.float32]) -> Values:
        """The likeliest class; the labels likelier than not; the number."""
        if self.problem_type == "regression":
            return logits[:, 0].astype(np.float64)
        if self.problem_type == "multi_label_classification":
            return np.asarray(logits > 0)  # a probability of 0.5
        return np.asarray(logits.argmax(axis=1))

    def score(self, examples: LabelledTexts, predictions: Values) -> Scores:
        """The task's metrics."""
        gold = self.gold(examples)
        if "f1" in self.metrics:  # of the label 1 (MRPC, QQP), whichever class of a model's that is
            positive = self.labels.index("1")
            gold, predictions = gold == positive, predictions == positive
        return {name: 100 * METRICS[name](gold, predictions) for name in self.metrics}

    def write_predictions(self, examples: LabelledTexts, predictions: Values, path: Path) -> None:
        """Write a tsv with the header `index` and `prediction`: an example's number from 0, and its label.

        Several labels are a JSON list. This is the form of GLUE's submissions.
        """
        if self.problem_type == "regression":
            values = [repr(number) for number in predictions.tolist()]
        elif self.problem_type == "multi_label_classification":
            names = np.array(self.labels, dtype=object)
            values = [json.dumps(names[chosen].tolist(), ensure_ascii=False) for chosen in predictions]
        else:
            values = [self.labels[number] for number in predictions.tolist()]
        lines = ["\t".join(_HEADER), *(f"{index}\t{value}" for index, value in enumerate(values))]
        write_text(path, "\n".join(lines) + "\n")

    def read_predictions(self, examples: LabelledTexts, path: Path) -> Values:
        """Read such a file, its rows in any order; the header may be left out.

        Raises:
            SettingsError: the header lacks one of the columns.
            DataError: an index is missing, doubled or unknown, or a prediction is no label of the task.
        """
        return self._to_values(*self._read_labels(examples, path))

    def _read_labels(self, examples: LabelledTexts, path: Path) -> tuple[Sequence[Any], Location]:
        """The labels of a file of predictions as `LabelledTexts` has them, and where they stand."""
        header = _HEADER if read_header(path)[0].isdecimal() else ()
        rows = read_unquoted(path, _HEADER, header)
        row_of: dict[int, int] = {}
        for row, index in enumerate(rows.columns["index"]):
            if not index.isdecimal() or int(index) >= len(examples):
                raise DataError(
                    f"{rows.location(row)}: unknown index {index!r}; they are 0 to {len(examples) - 1}"
                )
            if int(index) in row_of:
                raise DataError(f"{rows.location(row)}: a second prediction for index {index}; delete one")
            row_of[int(index)] = row
        if len(row_of) < len(examples):
            missing = next(index for index in range(len(examples)) if index not in row_of)
            raise DataError(f"{path}: no prediction for index {missing}; add one for every example")
        order = [row_of[index] for index in range(len(examples))]
        values = [rows.columns["prediction"][row] for row in order]

        def location(index: int) -> str:
            return rows.location(order[index])

        if self.problem_type == "multi_label_classification":
            return [_parse_names(value, location(index)) for index, value in enumerate(values)], location
        return values, location

    def _to_values(self, labels: Sequence[Any], place: Location) -> Values:
        if self.problem_type == "regression":
            return np.array([_to_number(label, place(i)) for i, label in enumerate(labels)])
        if self.problem_type == "single_label_classification":
            return self._to_numbers(labels, place)
        owners = np.repeat(np.arange(len(labels)), [len(names) for names in labels])
        marks = np.zeros((len(labels), len(self.labels)), dtype=bool)
        names = [name for names in labels for name in names]
        marks[owners, self._to_numbers(names, lambda i: place(owners[i]))] = True
        return marks

    def _to_numbers(self, names: Sequence[str], place: Location) -> npt.NDArray[np.int64]:
        known = {label: number for number, label in enumerate(self.labels)}
        numbers = np.array([known.get(name, -1) for name in names], dtype=np.int64)
        if (unknown := np.flatnonzero(numbers < 0)).size:
            first = int(unknown[0])
            raise DataError(f"{place(first)}: unknown label {names[first]!r}; known: {_listed(self.labels)}")
        return numbers


def _to_number(label: Any, place: str) -> float:
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{place}: {label!r} is not a number, which every label of a regression has to be")
    return number


def _parse_names(value: str, place: str) -> list[str]:
    try:
        names = json.loads(value)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f'{place}: {value!r} is not a JSON list of labels, such as ["a", "b"]')
    return names


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels[:_SHOWN_LABELS]) + ", …" * (len(labels) > _SHOWN_LABELS)
