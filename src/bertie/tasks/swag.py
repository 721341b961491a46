"""Multiple choice: SWAG (Section 4.4), and anything else that asks how a text goes on.

Each choice is a sequence of its own: the given sentence A, and as B its possible continuation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bertie.base.errors import DataError
from bertie.base.files import write_text
from bertie.base.rows import read_lines, read_rows
from bertie.tasks import metrics
from bertie.tasks.task import Head, Inputs, Scores, Task
from bertie.text.tokenizer import Tokenizer

Int64s = npt.NDArray[np.int64]

_HEADER = ",pred"  # as rowanz/swagaf csv_predict.py writes it


@dataclass(frozen=True)
class Choices:
    """n examples with as many choices each, two or more.

    contexts  sentence A
    starts    how sentence B begins, whichever choice is right; may be empty
    endings   the choices: how it may go on
    labels    int64 (n,)  which choice is right, from 0; None where nobody knows
    ids       what predictions go by
    """

    contexts: Sequence[str]
    starts: Sequence[str]
    endings: Sequence[Sequence[str]]
    labels: Int64s | None
    ids: Sequence[str]

    def __len__(self) -> int:
        return len(self.contexts)

    @property
    def choices(self) -> int:
        """The number of choices of an example."""
        return len(self.endings[0])


def read_swag(path: Path, labelled: bool = True) -> Choices:
    """Read one of SWAG's train.csv, val.csv and test.csv.

    Raises:
        SettingsError: a column is missing, as the labels are in test.csv.
        DataError: the file is missing, damaged or empty, or a label is none of the choices' numbers.
    """
    endings = [f"ending{number}" for number in range(4)]
    rows = read_rows(path, ["", "sent1", "sent2", *endings, *["label"] * labelled])
    labels = None
    if labelled:
        numbers = [str(number) for number in range(len(endings))]
        for row, label in enumerate(rows.columns["label"]):
            if label not in numbers:
                raise DataError(f"{rows.location(row)}: label {label!r}; use one of {', '.join(numbers)}")
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
    """Which of the choices is right; a prediction is its number."""

    @property
    def head(self) -> Head:
        return "choices"

    @property
    def predictions_file(self) -> str:
        """As rowanz/swagaf has it."""
        return "predictions.csv"

    def file(self, data: Path, part: str) -> Path:
        return data / f"{part}.csv" if data.is_dir() else data

    def read(self, path: Path, labelled: bool) -> Choices:
        return read_swag(path, labelled)

    def encode(self, examples: Choices, tokenizer: Tokenizer, max_seq_length: int) -> Inputs:
        """[CLS] context [SEP] start ending [SEP] for each ending; too long ones are cut as any pair is."""
        firsts = np.repeat(np.array(examples.contexts, dtype=object), examples.choices).tolist()
        seconds = [
            f"{start} {ending}"
            for start, endings in zip(examples.starts, examples.endings, strict=True)
            for ending in endings
        ]
        encoding = tokenizer.encode_batch(firsts, seconds, max_length=max_seq_length)
        return Inputs(
            encoding.input_ids, encoding.token_type_ids, encoding.bounds, examples.labels, examples.choices
        )

    def decode(self, examples: Choices, inputs: Inputs, logits: npt.NDArray[np.float32]) -> Int64s:
        numbers: Int64s = logits.reshape(len(examples), examples.choices).argmax(axis=1)
        return numbers

    def score(self, examples: Choices, predictions: Int64s) -> Scores:
        assert examples.labels is not None
        return {"accuracy": 100 * metrics.accuracy(examples.labels, predictions)}

    def write_predictions(self, examples: Choices, predictions: Int64s, path: Path) -> None:
        """Write csv: id, number of the choice."""
        rows = [f"{name},{number}" for name, number in zip(examples.ids, predictions.tolist(), strict=True)]
        write_text(path, "\n".join([_HEADER, *rows]) + "\n")

    def read_predictions(self, examples: Choices, path: Path) -> Int64s:
        """Read what `write_predictions` writes, in the order of the examples.

        Raises:
            DataError: the file is missing or of another form, or names other examples.
        """
        header, *lines = list(read_lines(path)) or [""]
        if header != _HEADER:
            raise DataError(f"{path}: line 1: not {_HEADER!r}, which is to be followed by lines of ID,NUMBER")
        numbers = [str(number) for number in range(examples.choices)]
        for line_number, (line, name) in enumerate(zip(lines, examples.ids, strict=False), start=2):
            found, _, number = line.rpartition(",")
            if found != name:
                raise DataError(f"{path}: line {line_number}: {found!r} where the example is {name!r}")
            if number not in numbers:
                raise DataError(
                    f"{path}: line {line_number}: {number!r} is no choice; use one of {', '.join(numbers)}"
                )
        if len(lines) != len(examples):
            raise DataError(
                f"{path}: {len(lines)} predictions for {len(examples)} examples; give one for each"
            )
        return np.array([line.rpartition(",")[2] for line in lines], dtype=np.int64)


SWAG = MultipleChoice(
    name="swag",
    labels=(),
    main_metric="accuracy",
    defaults={"epochs": 3, "batch_size": 16, "optimizer": {"learning_rate": 2e-5}},  # Section 4.4
    dev_parts=("val",),
)
