"""What a task is: how its files are read, what the model sees of them, what logits mean, how it is scored.

A task knows nothing of torch. `finetuning.py` trains any of them with the one loop; `bertie evaluate` scores
a file of predictions without a model.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt

from bertie.model.config import ProblemType
from bertie.text.tokenizer import Tokenizer

Examples = TypeVar("Examples")
Predictions = TypeVar("Predictions")
Scores = dict[str, float]  # by the official scorer's names, in percent, unrounded
Head = Literal["classification", "tagging", "spans", "choices"]  # Figure 4 (a, b), (d), (c); Section 4.4


@dataclass(frozen=True)
class Inputs:
    """What a model reads of some examples, sequences end to end, and what it should answer.

    input_ids       int32 (T,)
    token_type_ids  int32 (T,)
    bounds          int64 (N+1,)   where each sequence begins; the last entry is T
    labels          None where they are not known, else
                    classification  int64 (N,); float32 (N,) regression; float32 (N, L) several labels at once
                    tagging         int64 (T,), -100 where nothing is to be said
                    spans           int64 (N, 2), first and last token of the answer, within the sequence
                    choices         int64 (N / group,)
    group           so many sequences are one example and stand together: the number of choices, otherwise 1
    """

    input_ids: npt.NDArray[np.int32]
    token_type_ids: npt.NDArray[np.int32]
    bounds: npt.NDArray[np.int64]
    labels: npt.NDArray[Any] | None
    group: int = 1

    def __len__(self) -> int:
        """The number of sequences, N."""
        return len(self.bounds) - 1

    @property
    def examples(self) -> int:
        """The number of examples."""
        return len(self) // self.group


@dataclass(frozen=True)
class Task(ABC, Generic[Examples, Predictions]):
    """A row of the table of tasks; the subclasses are the families.

    name         as on the command line
    labels       what the classes are called, in the order of the logits; empty until `fitted` where the
                 training examples say it
    main_metric  the score by which the best checkpoint is kept
    defaults     settings of fine-tuning that differ from Section 4.1's
    dev_parts    the parts with gold labels to be judged by; the first one chooses the checkpoint
    test_parts   the parts without
    """

    name: str
    labels: tuple[str, ...]
    main_metric: str
    defaults: dict[str, Any]
    dev_parts: tuple[str, ...] = ("dev",)
    test_parts: tuple[str, ...] = ("test",)

    @property
    @abstractmethod
    def head(self) -> Head:
        """Which of Figure 4's heads answers."""

    @property
    def problem_type(self) -> ProblemType:
        """What a classifier's labels are."""
        return "single_label_classification"

    @abstractmethod
    def file(self, data: Path, part: str) -> Path:
        """The official file of a part: in the folder `data`, or `data` itself where it is a file."""

    @abstractmethod
    def read(self, path: Path, labelled: bool) -> Examples:
        """Read one of the official files; without labels where it has none, or they are not wanted.

        Raises:
            DataError: names the file and the row.
        """

    @abstractmethod
    def encode(self, examples: Examples, tokenizer: Tokenizer, max_seq_length: int) -> Inputs:
        """What the model reads."""

    @abstractmethod
    def decode(self, examples: Examples, inputs: Inputs, logits: npt.NDArray[np.float32]) -> Predictions:
        """What the logits of `inputs` say.

        Args:
            examples: those that were encoded.
            inputs: what `encode` gave.
            logits: (N, labels), (T, labels), (T, 2) or (N,), as the head is.
        """

    @abstractmethod
    def score(self, examples: Examples, predictions: Predictions) -> Scores:
        """The official metrics of predictions against the examples' own labels."""

    @abstractmethod
    def write_predictions(self, examples: Examples, predictions: Predictions, path: Path) -> None:
        """Write predictions in the official form."""

    @abstractmethod
    def read_predictions(self, examples: Examples, path: Path) -> Predictions:
        """Read what `write_predictions`, or anyone else, wrote in the official form.

        Raises:
            DataError: an example has no prediction, or a prediction cannot be read.
        """

    @property
    def predictions_file(self) -> str:
        """What a file of predictions is called in a run."""
        return "predictions.tsv"

    def with_tuned_threshold(self, examples: Examples, predictions: Predictions) -> Self:
        """This task with what it chooses on dev, if anything: a threshold."""
        return self

    def fitted(self, examples: Examples) -> Self:
        """This task with the labels that the training examples have, where it does not bring its own."""
        return self

    def fitted_to_predictions(self, examples: Examples, path: Path) -> Self:
        """The same by gold examples and a file of predictions, where there is no training to go by."""
        return self.fitted(examples)

    def check_training(self, examples: Examples, path: Path) -> None:
        """Look at the training examples, which were read from `path`, with the labels they have.

        Raises:
            DataError: nothing can be learnt from them; names the file and the row.
        """
        return

    def with_labels(self, labels: Sequence[str]) -> Self:
        """This task with a model's labels in the model's order."""
        return replace(self, labels=tuple(labels))
