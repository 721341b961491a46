"""Texts with custom labels: classes, several labels for each text, or numbers."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, time
from itertools import chain
from numbers import Number
from pathlib import Path
from typing import Any, Self

from bertie.base.errors import DataError, SettingsError
from bertie.base.memory import Source, is_missing
from bertie.base.rows import Rows
from bertie.base.schemas import shorten
from bertie.model.config import ProblemType
from bertie.model.formats.directory import ModelMetadata
from bertie.tasks.classification import LabelledTexts, LocationOf, TextClassification, parse_number
from bertie.tasks.custom.tables import CustomFiles, check_text
from bertie.tasks.label_types import (
    as_label_sets,
    infer_problem_type,
    label_name,
    parse_numbers,
    sort_labels,
    unify_labels,
    with_decimal_point,
)

# The task's name where it differs from "classification".
_NAMES: dict[ProblemType, str] = {
    "multi_label_classification": "multi-label classification",
    "regression": "regression",
}
# The first metric selects the checkpoint.
_METRICS: dict[ProblemType, tuple[str, ...]] = {
    "single_label_classification": ("accuracy", "f1_macro"),
    "multi_label_classification": ("f1_micro", "f1_macro", "accuracy"),
    "regression": ("spearmanr", "pearson"),
}
# ['a', 'b'], ["a"] or [0, 1], which pandas writes to a csv file for a list
_WRITTEN_LIST = re.compile(r"""\[(['"].*['"]|\d+([\s,]+\d+)+)?\]""")


@dataclass(frozen=True)
class CustomClassification(CustomFiles, TextClassification):
    """Texts with custom labels, which the training examples define.

    text        column of the texts, or of the first texts of pairs
    pair        column of the second texts; None for single texts
    label       column of the labels: strings, numbers, or lists of labels (multi-label)
    separator   separator of labels that are joined in one string; None if labels are not joined
    infer_type  whether `fitted` infers the problem type from the labels
    """

    name: str = "classification"
    labels: tuple[str, ...] = ()
    main_metric: str = "accuracy"
    defaults: dict[str, Any] = field(default_factory=dict)
    text: str = "text"
    pair: str | None = None
    label: str = "label"
    separator: str | None = None
    infer_type: bool = True

    @property
    def input_columns(self) -> dict[str, str]:
        return {"text": self.text} | ({"pair": self.pair} if self.pair else {})

    @property
    def label_columns(self) -> dict[str, str]:
        return {"label": self.label}

    def with_problem_type(self, problem_type: ProblemType) -> Self:
        """Return this task with the name and the metrics of a type of labels."""
        metrics = _METRICS[problem_type]
        return replace(
            self,
            name=_NAMES.get(problem_type, self.name),
            problem_type=problem_type,
            metrics=metrics,
            main_metric=metrics[0],
            infer_type=False,
        )

    def read(self, path: Source, labelled: bool) -> LabelledTexts:
        """Read a table of texts.

        Read the training part before `fitted`, and the other parts after it.

        Raises:
            SettingsError: a column is missing.
            DataError: the file cannot be read (see `read_rows`), a text or a label is empty, or a
                label is not one of the labels that the task was `fitted` to.
        """
        texts = {self.text: "--text NAME"} | ({self.pair: "--pair NAME"} if self.pair else {})
        columns = texts | ({self.label: "--label NAME"} if labelled else {})
        known: set[str | tuple[str, ...]] = set()

        def check(rows: Rows, i: int) -> None:
            for column in texts:
                check_text(rows, i, column)
            if labelled:
                label = self._parse_label(rows, i)
                if self.problem_type == "regression":
                    parse_number(label, rows.location(i))
                elif label not in known:
                    self._reject_unknown(label, rows.location(i))
                    known.add(label)

        rows = self._read_rows(path, columns, check)
        examples = LabelledTexts(
            rows.columns[self.text],
            rows.columns[self.pair] if self.pair else None,
            self._unify([self._parse_label(rows, i) for i in range(len(rows))]) if labelled else None,
            rows,
        )
        if labelled and not self.infer_type:
            self._check_type(examples.labels or (), examples.location)
        return examples

    def fitted(self, examples: LabelledTexts) -> Self:
        """Return this task with the problem type and the labels of training examples.

        See `infer_problem_type` and `sort_labels`.

        Raises:
            DataError: a label is not of the problem type.
        """
        assert examples.labels is not None
        return self._fitted(examples.labels, examples.location)

    def _fitted(self, labels: Sequence[Any], location: LocationOf) -> Self:
        task = self.with_problem_type(infer_problem_type(labels, location)) if self.infer_type else self
        task._check_type(labels, location)
        if task.problem_type == "regression":
            return task
        return replace(task, labels=sort_labels(set(chain.from_iterable(as_label_sets(labels)))))

    def fitted_to_predictions(self, examples: LabelledTexts, path: Path) -> Self:
        """Return this task with the labels of gold examples and of a file of predictions.

        Both are needed: a predicted class may be missing from the gold labels, and the gold values
        of a regression may all be whole.
        """
        task = self.fitted(examples)
        if task.problem_type == "regression":
            return task
        assert examples.labels is not None
        gold = examples.labels
        predicted, location_of_prediction = task._read_labels(examples, path)

        def location(i: int) -> str:
            return examples.location(i) if i < len(gold) else location_of_prediction(i - len(gold))

        return self._fitted([*gold, *predicted], location)

    def _read_labels(self, examples: LabelledTexts, path: Path) -> tuple[Sequence[Any], LocationOf]:
        labels, location = super()._read_labels(examples, path)
        if self.problem_type == "regression":
            return labels, location
        if self.problem_type == "multi_label_classification":
            return self._unify([tuple(names) for names in labels]), location
        names = list(map(label_name, labels))
        if "" in names:
            raise DataError(f"{location(names.index(''))}: no prediction; write a label")
        return self._unify(names), location

    def _unify(self, labels: Sequence[Any]) -> list[Any]:
        """Return labels in the form of the task's; see `unify_labels`."""
        label_sets = as_label_sets(labels)
        unified = unify_labels(set(chain.from_iterable(label_sets)), self.labels)
        renamed = [tuple(dict.fromkeys(unified[name] for name in names)) for names in label_sets]
        return [
            names if isinstance(label, tuple) else names[0]
            for label, names in zip(labels, renamed, strict=True)
        ]

    def fitted_to_model(self, metadata: ModelMetadata) -> Self:
        """Return this task with the problem type and the labels of a fine-tuned model.

        Raises:
            SettingsError: the model was fine-tuned on pairs of texts, and the task reads single texts, or the
                other way round.
        """
        if self.pair and metadata.input_columns and "pair" not in metadata.input_columns:
            raise SettingsError("the model was fine-tuned on single texts; leave out --pair (pair=…)")
        if (pair := metadata.input_columns.get("pair")) and not self.pair:
            raise SettingsError(
                f"the model was fine-tuned on pairs of texts; name the column of the second text, such as "
                f"--pair {shlex.quote(pair)} (pair={pair!r})"
            )
        if self.infer_type:
            return self.with_problem_type(metadata.problem_type).fitted_to_model(metadata)
        return super().fitted_to_model(metadata)

    def check_training(self, examples: LabelledTexts, path: Source) -> None:
        """Reject labels that are all the same, and a class with only one example."""
        assert examples.labels is not None
        if len({frozenset(names) for names in as_label_sets(examples.labels)}) == 1:
            label = examples.labels[0]
            shown = f"the labels {list(label)!r}" if isinstance(label, tuple) else f"the label {label!r}"
            advice = "add examples with other labels"
            # [0, 1] in one row and [1, 0] in another
            if isinstance(label, tuple) and {*label} in ({"0", "1"}, {"False", "True"}):
                advice = "if these are flags, list the names of each row's labels"
            raise DataError(
                f"{examples.location(0)}: all examples have {shown if label else 'no label'}; {advice}"
            )
        if self.problem_type == "regression":
            return
        label_sets = as_label_sets(examples.labels)
        counts = Counter(chain.from_iterable(label_sets))
        rare = [name for name, count in counts.items() if count == 1]
        if not rare:
            return

        def location(name: str) -> str:
            return examples.location(next(i for i, names in enumerate(label_sets) if name in names))

        non_numeric = [name for name in counts if not parse_numbers([name])]
        if non_numeric and parse_numbers(rare[:1]):
            raise DataError(
                f"{location(non_numeric[0])}: {non_numeric[0]!r} is a non-numeric label, so labels are class "
                f"names; class {rare[0]!r} has only one example; correct or delete the row"
            )
        number = len(rare) - 1
        others = f" (and {number} other label{' has' if number == 1 else 's have'} only one example)"
        others = others if number else ""
        raise DataError(
            f"{location(rare[0])}: no other example has the label {rare[0]!r}{others}; add some or delete it"
            + _regression_advice(counts)
        )

    def describe_labels(self, examples: LabelledTexts) -> str:
        """Return each label with its number of examples.

        Point out numbers with a decimal comma.
        """
        return super().describe_labels(examples) + _regression_advice(self.labels)

    def _parse_label(self, rows: Rows, i: int) -> str | tuple[str, ...]:
        value = rows.columns[self.label][i]
        if not all(
            isinstance(item, str | Number | date | time) or is_missing(item)
            for item in (value if isinstance(value, list) else [value])
        ):
            raise DataError(
                f"{rows.location(i)}: {shorten(value)} in the column {self.label!r} is not a label; write a "
                f"string, a number or a list of them"
            )
        if isinstance(value, str) and _WRITTEN_LIST.fullmatch(value):
            raise DataError(
                f"{rows.location(i)}: {shorten(value)} in the column {self.label!r} is a list in a string; "
                f"write lists to a .jsonl or .parquet file, or join the labels of a row, and name their "
                f"separator with --separator '|' (separator=…)"
            )
        if self.separator is not None and not isinstance(value, list):
            # Split before white space is normalized, since white space may be the separator.
            value = value.split(self.separator) if isinstance(value, str) else [value]
        if isinstance(value, list):
            names = list(map(label_name, value))
            if len({*names}) < len(names) and {*names} <= {"0", "1", "False", "True"}:
                raise DataError(
                    f"{rows.location(i)}: {shorten(value)} in the column {self.label!r} has a flag for each "
                    f"label; list the names of the row's labels"
                )
            return tuple(dict.fromkeys(filter(None, names)))
        name = label_name(value)
        if not name:
            raise DataError(
                f"{rows.location(i)}: no label in the column {self.label!r}; add it or delete the row"
            )
        return name

    def _reject_unknown(self, label: str | tuple[str, ...], location: str) -> None:
        """Raise DataError if the task is fitted to other labels.

        `_check_type` rejects a label of another type, with better advice.
        """
        is_multilabel = self.problem_type == "multi_label_classification"
        if self.labels and isinstance(label, tuple) == is_multilabel:
            self._to_array(self._unify([label]), lambda _: location)

    def _check_type(self, labels: Sequence[Any], location: LocationOf) -> None:
        is_multilabel = self.problem_type == "multi_label_classification"
        others_fit = any(isinstance(label, tuple) == is_multilabel for label in labels)
        for i, label in enumerate(labels):
            if isinstance(label, tuple) != is_multilabel:
                shown = list(label) if isinstance(label, tuple) else label
                raise DataError(f"{location(i)}: {shown!r} is not {_type_advice(is_multilabel, others_fit)}")


def _regression_advice(labels: Iterable[str]) -> str:
    """Return the end of a message about labels with a decimal comma, or ""."""
    example = with_decimal_point(labels)
    return f"; for a regression, write numbers with a point, such as {example}" if example else ""


def _type_advice(is_multilabel: bool, others_fit: bool) -> str:
    """Return the expected kind of label and the remedy.

    They depend on whether other rows fit the task.
    """
    if is_multilabel and others_fit:
        return "a list of labels, as other rows have; write a list"
    if is_multilabel:
        separator = "name the separator with --separator '|' (separator=…)"
        return f"a list of labels, but the model gives a text several labels; write lists, or {separator}"
    if others_fit:
        return "a single label, as other rows have; write the labels of all rows in one way"
    return "a single label, but the model gives a text one label; write it without a list or a separator"
