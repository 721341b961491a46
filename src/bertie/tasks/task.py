"""The interface of a task, from its files to its scores.

A `Task` reads labelled examples, encodes them for the model, decodes the model's logits into
predictions, and scores the predictions. It needs no torch: `training.finetuning` trains every task
with one loop, and `bertie evaluate` scores a file of predictions without a model.

The methods in the order in which fine-tuning calls them:

    file, read               a part's official file -> examples
    fitted, check_training   training examples -> the task with its labels
    encode                   examples -> `Inputs`, which the model reads
    decode                   logits -> predictions
    tuned                    dev logits -> the task with its thresholds
    score, analyze_errors    predictions -> metrics, error analysis
    write_predictions        predictions -> a file in the official form

Evaluation starts from a fine-tuned model (`fitted_to_model`) or from a file of predictions
(`fitted_to_predictions`, `read_predictions`) instead of training examples.

To add a task:

- Data in a known layout: add a row to `glue.TASKS`, or an instance of a family, such as
  `swag.SWAG`, to `registry.TASKS`.
- Known examples in another layout: subclass a family and override `file` and `read`, as `custom`
  does.
- Examples of a new form: subclass `Task` and implement its abstract methods. `swag.MultipleChoice`
  is the shortest family.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy.typing as npt

from bertie.base.arrays import Float32s, Float64s, Int32s, Int64s
from bertie.base.errors import ModelError, SettingsError
from bertie.base.schemas import visible
from bertie.model.config import ProblemType
from bertie.model.formats.directory import TRUNCATE, LongTexts, ModelMetadata
from bertie.model.sequences import Sequences
from bertie.tasks.calibration import Calibration
from bertie.tasks.error_analysis import ErrorAnalysis
from bertie.text.encoding import Encoding
from bertie.text.tokenizer import Tokenizer

Examples = TypeVar("Examples")
Predictions = TypeVar("Predictions")
Scores = dict[str, float]  # by the official scorer's names, in percent
# Figure 4 (a, b), (d), (c); Section 4.4; the vectors of two texts, compared by their cosine
Head = Literal["classification", "tagging", "spans", "choices", "embedding"]


@dataclass(frozen=True)
class Inputs:
    """Encoded examples: N sequences with T tokens in all, one after the other.

    In `TextWindows` a text has several sequences, and one label.

    input_ids       int32 (T,)
    token_type_ids  int32 (T,)    0 in segment A, 1 in segment B
    bounds          int64 (N+1,)  sequence i is tokens bounds[i] to bounds[i + 1]
    labels          the gold labels, None where they are unknown; their form depends on the head:
                    classification  int64 (N,) class indices; float32 (N,) regression values;
                                    float32 (N, L) multi-label, 0 or 1
                    tagging         int64 (T,) label indices; IGNORE_INDEX for tokens without one
                    spans           int64 (N, 2), first and last token of the answer in its sequence
                    choices         int64 (N / group,), index of the right choice
                    embedding       float32 (N / 2,) cosines; int64 (N / 2, 2) indices of the texts,
                                    for in-batch negatives
    group           number of consecutive sequences that are one example: the number of choices for
                    multiple choice, 2 for embedding, otherwise 1
    num_truncated   number of sequences that were truncated; 0 where long texts have windows
    unit            name of the inputs in messages
    """

    input_ids: Int32s
    token_type_ids: Int32s
    bounds: Int64s
    labels: npt.NDArray[Any] | None
    group: int = 1
    num_truncated: int = 0
    unit: ClassVar[str] = "inputs"

    @staticmethod
    def from_encoding(encoding: Encoding, labels: npt.NDArray[Any] | None = None, group: int = 1) -> "Inputs":
        """Return encoded texts, or pairs of texts, each one sequence, as inputs."""
        sequences = encoding.input_ids, encoding.token_type_ids, encoding.bounds
        return Inputs(*sequences, labels, group, encoding.num_truncated)

    @property
    def sequences(self) -> Sequences:
        """The sequences without their labels."""
        return Sequences(self.input_ids, self.token_type_ids, self.bounds)

    def __len__(self) -> int:
        """Return the number of sequences, N."""
        return len(self.bounds) - 1

    @property
    def unit_bounds(self) -> Int64s:
        """The bounds in tokens of the inputs that `unit` names, int64 (n+1,)."""
        return self.bounds[:: self.group]

    @property
    def num_examples(self) -> int:
        """The number of examples, N / group."""
        return len(self) // self.group

    @property
    def num_batch_units(self) -> int:
        """The number of units that a batch size counts: examples; in tagging, sentences."""
        return self.num_examples


@dataclass(frozen=True)
class Task(ABC, Generic[Examples, Predictions]):
    """A fine-tuning task; each subclass is a family of tasks.

    The tasks of a family have the same types of examples and predictions. `Examples` holds
    examples with or without gold labels ("labelled"), and `len` returns their number;
    `Predictions` has a prediction for each example. A task is immutable: methods that add to it,
    such as `fitted`, return a copy.

    name              the task's name on the command line
    labels            names of the classes or tags in the order of the logits; empty for the other
                      heads, for a regression, and until `fitted` takes them from training examples
    main_metric       the score that selects the best checkpoint
    defaults          settings of fine-tuning that differ from Section 4.1's
    dev_parts         parts with gold labels; the first one selects the checkpoint
    test_parts        parts without gold labels
    submission_files  by part, the names of files that the task's server expects; parts that are
                      missing here use `predictions_file`
    note              a caveat about the task's scores, printed before training
    trained_on        the task with the training examples, for a task that has none
    website           where the official files are, for an error message
    """

    website: ClassVar[str] = ""

    name: str
    labels: tuple[str, ...]
    main_metric: str
    defaults: dict[str, Any]
    dev_parts: tuple[str, ...] = ("dev",)
    test_parts: tuple[str, ...] = ("test",)
    submission_files: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    trained_on: str = ""

    @property
    def input_columns(self) -> dict[str, str]:
        """The columns of texts by their role, such as {"text": "review"}, for `predict`."""
        return {}

    @property
    def label_columns(self) -> dict[str, str]:
        """The columns that only labelled data have, such as {"label": "stars"}.

        They are for `evaluate`.
        """
        return {}

    @property
    def separator(self) -> str | None:
        """The separator of several labels in one string, for `evaluate`; None without one."""
        return None

    # The model

    @property
    @abstractmethod
    def head(self) -> Head:
        """The head that computes the logits."""

    @property
    def problem_type(self) -> ProblemType:
        """The kind of labels that a classification head predicts."""
        return "single_label_classification"

    @property
    def labels_per_token(self) -> bool:
        """Whether `Inputs.labels` has an entry for each token, not for each example."""
        return self.head == "tagging"

    @property
    def null_threshold(self) -> float | None:
        """Null odds above which a question has no answer; None if every question has one."""
        return None

    @property
    def decision_thresholds(self) -> tuple[float, ...] | None:
        """Probabilities above which labels are predicted, as in `ModelMetadata`."""
        return None

    @property
    def applied_temperature(self) -> float | None:
        """The number that logits are divided by; None for 1."""
        return None

    @property
    def long_texts(self) -> LongTexts:
        """How texts that are longer than a sequence are read."""
        return TRUNCATE

    # Settings of fine-tuning

    def with_main_metric(self, metric: str) -> Self:
        """Return this task with another main metric.

        Raises:
            SettingsError: the task does not compute this metric, or has no choice.
        """
        if metric != self.main_metric:
            raise SettingsError(
                f"main_metric: {metric!r} cannot select the model of {self.name}; use {self.main_metric}"
            )
        return self

    def with_thresholds(self) -> Self:
        """Return this task with decision thresholds, which `tuned` chooses.

        Raises:
            SettingsError: the task does not decide by thresholds.
        """
        if self.null_threshold is not None:
            return self
        raise SettingsError(
            f"tune_threshold: {self.name} decides without a threshold; two classes and several labels for "
            f"each text have one"
        )

    def with_calibration(self) -> Self:
        """Return this task with a temperature for its probabilities.

        `tuned` fits it.

        Raises:
            SettingsError: the task does not classify texts.
        """
        raise SettingsError(f"calibrate: {self.name} does not classify texts; leave it out")

    def with_long_texts(self, long_texts: LongTexts) -> Self:
        """Return this task with another way to read long texts.

        Raises:
            SettingsError: the task does not classify texts.
        """
        raise SettingsError(
            f"long_texts, window_stride and window_pooling are for classifiers and regressions of texts; "
            f"leave them out with {self.name}"
        )

    # Files and examples

    @abstractmethod
    def file(self, data: Path, part: str) -> Path:
        """Return the path of a part's official file, which need not exist.

        Args:
            data: the folder of the official files, or the file itself, which is returned unchanged.
            part: "train", or one of `dev_parts` and `test_parts`.
        """

    @abstractmethod
    def read(self, path: Path, labelled: bool) -> Examples:
        """Read one of the official files.

        Args:
            path: the file.
            labelled: whether to read the gold labels; if so, the file must have them.

        Raises:
            DataError: the file cannot be read; the message cites the line.
        """

    # Labels

    def fitted(self, examples: Examples) -> Self:
        """Return this task with the labels of its training examples.

        A task with fixed labels is returned unchanged.
        """
        return self

    def check_training(self, examples: Examples, path: Path) -> None:
        """Reject training examples from which nothing can be learned.

        Args:
            examples: the examples to which the task was `fitted`.
            path: the file from which they were read.

        Raises:
            DataError: for example, all labels are the same; the message cites the file.
        """
        return

    def fitted_to_predictions(self, examples: Examples, path: Path) -> Self:
        """Return this task with the labels of gold examples and of a file of predictions.

        It replaces `fitted` where predictions are scored without a model.
        """
        return self.fitted(examples)

    def fitted_to_model(self, metadata: ModelMetadata) -> Self:
        """Return this task with the labels and the null threshold of a fine-tuned model.

        Raises:
            ModelError: the model was fine-tuned for other labels.
        """
        if metadata.problem_type != self.problem_type:
            raise ModelError(
                f"the model was fine-tuned for {metadata.problem_type.replace('_', ' ')}, "
                f"but {self.name} is {self.problem_type.replace('_', ' ')}; use a model that was fine-tuned "
                f"on {self.name}"
            )
        return self.with_labels(metadata.labels) if metadata.labels else self

    def with_labels(self, labels: Sequence[str]) -> Self:
        """Return this task with a model's labels, in the order of the model's logits."""
        return replace(self, labels=tuple(labels))

    def describe_labels(self, examples: Examples) -> str:
        """Describe the labels of training examples in one line, "" without labels."""
        return ", ".join(map(visible, self.labels))

    # Examples in, predictions out

    @abstractmethod
    def encode(self, examples: Examples, tokenizer: Tokenizer, max_seq_length: int) -> Inputs:
        """Tokenize examples into sequences of at most `max_seq_length` tokens."""

    @abstractmethod
    def decode(self, examples: Examples, inputs: Inputs, logits: Float32s) -> Predictions:
        """Turn logits into predictions.

        Args:
            examples: the examples that were encoded.
            inputs: the result of `encode`.
            logits: by head: classification (N, labels), tagging (T, labels), spans (T, 2) with the
                start and the end logits, choices (N, 1), embedding (N, H), the vectors.
        """

    def tuned(self, examples: Examples, inputs: Inputs, logits: Float32s) -> Self:
        """Return this task with the thresholds of the best main score on dev.

        It takes the arguments of `decode`, for labelled examples.
        """
        return self

    # Scores

    @abstractmethod
    def score(self, examples: Examples, predictions: Predictions) -> Scores:
        """Compute the official metrics of predictions for labelled examples."""

    @abstractmethod
    def analyze_errors(
        self, examples: Examples, predictions: Predictions, confidence: Float64s | None = None
    ) -> ErrorAnalysis:
        """Compare predictions with the gold labels in detail.

        Args:
            examples: labelled examples.
            predictions: their predictions.
            confidence: the result of `confidence`, if a model predicted.
        """

    def confidence(self, examples: Examples, inputs: Inputs, logits: Float32s) -> Any:
        """Return the model's probability of each of its predictions, float64.

        It takes the arguments of `decode`. Tagging has a probability for each word, the other heads for
        each example. None where there are no probabilities, as in a regression, or where the predictions
        have their own.
        """
        return None

    def calibration(self, examples: Examples, inputs: Inputs, logits: Float32s) -> Calibration | None:
        """Compare the probabilities of labelled examples with the accuracy.

        It takes the arguments of `decode`. None where texts are not classified.
        """
        return None

    def majority_baseline(self, training: Examples, examples: Examples) -> Scores | None:
        """Score the most frequent answer in training, given to every example.

        It is the majority class or the most frequent set of labels; the mean, for a regression; O, or
        the most frequent plain tag; the most frequent index of the right choice; and no answer, for
        questions that may have none. None if there is no such answer, as in SQuAD v1.1.
        """
        return None

    def constant_answer(self, examples: Examples, predictions: Predictions) -> str | None:
        """Return the answer that all predictions have in common, or None if they differ.

        For a regression, it is a number to which all predictions are close.
        """
        answers = set(self.flatten_predictions(predictions))
        return str(answers.pop()) if len(answers) == 1 else None

    def flatten_predictions(self, predictions: Predictions) -> Any:
        """Return predictions as one flat sequence, such as the tag of each word.

        Two sets of predictions of the same examples can be compared element by element.
        """
        return predictions

    # Parts of the examples

    @abstractmethod
    def select(self, examples: Examples, indices: Sequence[int]) -> Examples:
        """Return the examples with these indices, which are in ascending order."""

    def groups(self, examples: Examples) -> Sequence[int]:
        """Return a number for each example; examples that share a text have the same one."""
        return range(len(examples))  # type: ignore[arg-type]

    def strata(self, examples: Examples) -> Sequence[Any]:
        """Return a value for each labelled example whose distribution a sample keeps."""
        return [0] * len(examples)  # type: ignore[arg-type]

    # Files of predictions

    @property
    def predictions_file(self) -> str:
        """The name of a file of predictions."""
        return "predictions.tsv"

    @abstractmethod
    def write_predictions(self, examples: Examples, predictions: Predictions, path: Path) -> None:
        """Write predictions in the official form."""

    @abstractmethod
    def read_predictions(self, examples: Examples, path: Path) -> Predictions:
        """Read predictions in the official form, from any source.

        Raises:
            DataError: an example has no prediction, or a prediction cannot be read.
        """

    def with_null_odds(self, examples: Examples, predictions: Predictions, path: Path) -> Predictions:
        """Return predictions with the null odds of each question, read from a file.

        Raises:
            SettingsError: the task has no questions without an answer.
            DataError: the file cannot be read, or a question has no null odds.
        """
        raise SettingsError("null scores are for tasks whose questions may have no answer, such as squad-v2")
