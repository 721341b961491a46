"""Multiple choice: which of several endings continues a text (SWAG, Section 4.4).

Each choice is a separate sequence: the given sentence as segment A, and a possible continuation
as segment B.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from bertie.base.arrays import Float32s, Float64s, Int64s
from bertie.base.errors import DataError
from bertie.base.files import write_text
from bertie.base.rows import read_held_lines, read_rows
from bertie.base.texts import count_noun
from bertie.tasks import metrics
from bertie.tasks.error_analysis import (
    ErrorAnalysis,
    Mistake,
    analyze_classes,
    probability_at,
    sample_confusions,
    shorten,
    top_probabilities,
)
from bertie.tasks.task import Head, Inputs, Scores, Task
from bertie.text.tokenizer import Tokenizer

_HEADER = ",pred"  # as rowanz/swagaf csv_predict.py writes it


@dataclass(frozen=True)
class Choices:
    """n examples with the same number of choices, at least two.

    contexts  sentence A
    starts    how sentence B begins, whichever choice is right; may be empty
    endings   the choices of each example: how sentence B ends
    labels    int64 (n,), index of the right choice; None where unknown
    ids       names of the examples in files of predictions
    """

    contexts: Sequence[str]
    starts: Sequence[str]
    endings: Sequence[Sequence[str]]
    labels: Int64s | None
    ids: Sequence[str]

    def __len__(self) -> int:
        return len(self.contexts)

    @property
    def num_choices(self) -> int:
        """The number of choices of each example."""
        return len(self.endings[0])


def read_swag(path: Path, labelled: bool = True) -> Choices:
    """Read SWAG's train.csv, val.csv or test.csv.

    Raises:
        SettingsError: a column is missing, as the labels are in test.csv.
        DataError: the file is missing, damaged or empty, or a label is not the index of a choice.
    """
    endings = [f"ending{index}" for index in range(4)]
    rows = read_rows(path, ["", "sent1", "sent2", *endings, *["label"] * labelled])
    labels = None
    if labelled:
        indices = [str(index) for index in range(len(endings))]
        for row, label in enumerate(rows.columns["label"]):
            if label not in indices:
                raise DataError(f"{rows.location(row)}: label {label!r}; use one of {', '.join(indices)}")
        labels = np.array(rows.columns["label"], dtype=np.int64)
    return Choices(
        rows.columns["sent1"],
        rows.columns["sent2"],
        list(zip(*(rows.columns[name] for name in endings), strict=True)),
        labels,
        rows.columns[""],
    )


@dataclass(frozen=True)
class MultipleChoice(Task[Choices, Int64s]):
    """Tasks that choose one of several endings; predictions are indices of choices."""

    website: ClassVar[str] = "https://github.com/rowanz/swagaf"

    @property
    def head(self) -> Head:
        """A score of each choice, from its pooled [CLS]."""
        return "choices"

    @property
    def predictions_file(self) -> str:
        """The name that rowanz/swagaf uses."""
        return "predictions.csv"

    def file(self, data: Path, part: str) -> Path:
        """Return the path of a part's .csv file."""
        return data / f"{part}.csv" if data.is_dir() else data

    def read(self, path: Path, labelled: bool) -> Choices:
        """Read a file in SWAG's format; see `read_swag`."""
        return read_swag(path, labelled)

    def encode(self, examples: Choices, tokenizer: Tokenizer, max_seq_length: int) -> Inputs:
        """Encode each ending as [CLS] context [SEP] start ending [SEP].

        Pairs that are too long are truncated as in text classification.
        """
        firsts = np.repeat(np.array(examples.contexts, dtype=object), examples.num_choices).tolist()
        seconds = [
            f"{start} {ending}"
            for start, endings in zip(examples.starts, examples.endings, strict=True)
            for ending in endings
        ]
        encoding = tokenizer.encode_batch(firsts, seconds, max_length=max_seq_length)
        return Inputs.from_encoding(encoding, examples.labels, group=examples.num_choices)

    def decode(self, examples: Choices, inputs: Inputs, logits: Float32s) -> Int64s:
        """Return the choice with the highest score."""
        choices: Int64s = logits.reshape(len(examples), examples.num_choices).argmax(axis=1)
        return choices

    def score(self, examples: Choices, predictions: Int64s) -> Scores:
        """Compute the accuracy."""
        assert examples.labels is not None
        return {"accuracy": metrics.percent(metrics.accuracy(examples.labels, predictions))}

    def confidence(self, examples: Choices, inputs: Inputs, logits: Float32s) -> Float64s:
        """Return the probability of each choice among the example's choices."""
        return top_probabilities(logits.reshape(len(examples), examples.num_choices))

    def majority_baseline(self, training: Choices, examples: Choices) -> Scores | None:
        """Score the most frequent index of the right choice.

        It is at chance if the choices are shuffled.
        """
        assert training.labels is not None
        return self.score(examples, np.full(len(examples), np.bincount(training.labels).argmax()))

    def analyze_errors(
        self, examples: Choices, predictions: Int64s, confidence: Float64s | None = None
    ) -> ErrorAnalysis:
        """Return scores by the index of the choice, and mistakes."""
        assert examples.labels is not None
        mistakes = [
            Mistake(
                shorten(f"{examples.contexts[i]} {examples.starts[i]}"),
                shorten(examples.endings[i][examples.labels[i]]),
                shorten(examples.endings[i][predictions[i]]),
                probability_at(confidence, i),
            )
            for i in sample_confusions(examples.labels, predictions, confidence)
        ]
        labels = [str(index) for index in range(examples.num_choices)]
        return analyze_classes(labels, examples.labels, predictions, mistakes)

    def select(self, examples: Choices, indices: Sequence[int]) -> Choices:
        """Return the examples with these indices."""
        return Choices(
            [examples.contexts[i] for i in indices],
            [examples.starts[i] for i in indices],
            [examples.endings[i] for i in indices],
            None if examples.labels is None else examples.labels[list(indices)],
            [examples.ids[i] for i in indices],
        )

    def write_predictions(self, examples: Choices, predictions: Int64s, path: Path) -> None:
        """Write a csv file: the example's id, and the index of the choice."""
        rows = [f"{name},{choice}" for name, choice in zip(examples.ids, predictions.tolist(), strict=True)]
        write_text(path, "\n".join([_HEADER, *rows]) + "\n")

    def read_predictions(self, examples: Choices, path: Path) -> Int64s:
        """Read a file in the form of `write_predictions`, in the order of the examples.

        Raises:
            DataError: the file is missing or malformed, or has the ids of other examples.
        """
        header, *lines = list(read_held_lines(path)) or [""]
        if header != _HEADER:
            raise DataError(f"{path}, line 1: not {_HEADER!r}; write this header, then lines of ID,CHOICE")
        indices = [str(index) for index in range(examples.num_choices)]
        choices = []
        for line_number, (line, expected_id) in enumerate(zip(lines, examples.ids, strict=False), start=2):
            name, _, choice = line.rpartition(",")
            if name != expected_id:
                raise DataError(
                    f"{path}, line {line_number}: id {name!r}, but the example is {expected_id!r}; keep the "
                    f"order of the examples"
                )
            if choice not in indices:
                raise DataError(
                    f"{path}, line {line_number}: {choice!r} is not a choice; use one of {', '.join(indices)}"
                )
            choices.append(int(choice))
        if len(lines) != len(examples):
            raise DataError(
                f"{path}: {count_noun(len(lines), 'prediction')} for {count_noun(len(examples), 'example')}; "
                f"give one for each"
            )
        return np.array(choices, dtype=np.int64)


SWAG = MultipleChoice(
    name="swag",
    labels=(),
    main_metric="accuracy",
    defaults={"epochs": 3, "batch_size": 16, "optimizer": {"learning_rate": 2e-5}},  # Section 4.4
    dev_parts=("val",),
)
