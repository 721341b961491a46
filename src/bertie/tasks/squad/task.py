"""Question answering by spans of a context (Figure 4 c): SQuAD v1.1 and v2.0."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from bertie.base.arrays import Float32s, Float64s
from bertie.base.errors import DataError, SettingsError
from bertie.base.files import read_json, write_json
from bertie.base.memory import Source
from bertie.base.texts import TextError
from bertie.model.formats.directory import LongTexts, ModelMetadata
from bertie.tasks.error_analysis import (
    MAX_MISTAKES,
    ErrorAnalysis,
    Mistake,
    join_names,
    probability_at,
    shorten,
)
from bertie.tasks.squad.decoding import SpanPredictions, decode_spans, n_best_entries
from bertie.tasks.squad.questions import Questions, read_questions
from bertie.tasks.squad.scores import question_scores, score_v1, score_v2, threshold_curve
from bertie.tasks.squad.windows import ContextWindows, encode_windows
from bertie.tasks.task import Head, Inputs, Scores, Task
from bertie.text.tokenizer import Tokenizer

NULL_ODDS_FILE, N_BEST_FILE = "null_odds.json", "nbest_predictions.json"  # run_squad.py
NA_PROB_THRESHOLD = 1.0  # evaluate-v2.0.py, --na-prob-thresh


@dataclass(frozen=True)
class QuestionAnswering(Task[Questions, SpanPredictions]):
    """Tasks that answer questions by spans of their contexts.

    doc_stride, max_query_length, n_best and max_answer_length are flags of run_squad.py, in tokens
    except n_best.

    null_threshold  a question has no answer if the score of "no answer" exceeds the best
                    answer's score by more than this (Section 4.3's τ); `with_tuned_threshold`
                    chooses it. None if every question has an answer, as in SQuAD v1.1.
    """

    website: ClassVar[str] = "https://rajpurkar.github.io/SQuAD-explorer"
    doc_stride: int = 128
    max_query_length: int = 64
    n_best: int = 20
    max_answer_length: int = 30
    null_threshold: float | None = None

    @property
    def head(self) -> Head:
        """Start and end logits of every token."""
        return "spans"

    @property
    def predictions_file(self) -> str:
        """The name that run_squad.py uses."""
        return "predictions.json"

    @property
    def allow_no_answer(self) -> bool:
        """Whether a question may have no answer."""
        return self.null_threshold is not None

    @property
    def version(self) -> Literal["1.1", "2.0"]:
        """SQuAD's version: 2.0 if a question may have no answer, otherwise 1.1."""
        return "2.0" if self.allow_no_answer else "1.1"

    def with_long_texts(self, long_texts: LongTexts) -> Self:
        """Reject the setting: long contexts always have windows.

        Raises:
            SettingsError: always.
        """
        raise SettingsError(
            f"long_texts, window_stride and window_pooling are for classifiers and regressions of texts; "
            f"leave them out with {self.name}: its long contexts always have windows, with a stride of "
            f"at most {self.doc_stride} tokens"
        )

    def file(self, data: Path, part: str) -> Path:
        """Return the path of a part's .json file."""
        return data / f"{part}-v{self.version}.json" if data.is_dir() else data

    def read(self, path: Path, labelled: bool) -> Questions:
        """Read a file in SQuAD's JSON; see `read_questions`."""
        return read_questions(path, labelled, self.allow_no_answer)

    def check_training(self, examples: Questions, path: Source) -> None:
        """Reject questions whose answers are all misplaced.

        Questions without answers are allowed.
        """
        is_unusable = examples.is_misplaced | examples.is_impossible
        if examples.is_misplaced.any() and is_unusable.all():
            raise DataError(
                f"{path}: no answer is usable for training, as none is at its answer_start; correct these "
                f"positions, which count the characters of the context from 0"
            )

    def fitted_to_model(self, metadata: ModelMetadata) -> Self:
        """Return this task with the null threshold of a fine-tuned model."""
        task = super().fitted_to_model(metadata)
        if task.null_threshold is None or metadata.null_threshold is None:
            return task
        return replace(task, null_threshold=metadata.null_threshold)

    def encode(self, examples: Questions, tokenizer: Tokenizer, max_seq_length: int) -> ContextWindows:
        """Encode each question with windows of its context; see `encode_windows`.

        Raises:
            DataError: a question leaves no room for its context; a TextError if it is of a caller.
        """
        lengths = max_seq_length, self.doc_stride, self.max_query_length
        try:
            return encode_windows(examples, tokenizer, *lengths)
        except TextError as error:
            if not examples.source:
                raise
            question = f"{examples.source}, question {examples.ids[error.index]}"
            raise DataError(f"{question}: {error.reason}") from None

    def decode(self, examples: Questions, inputs: Inputs, logits: Float32s) -> SpanPredictions:
        """Return the best span of each question; see `decode_spans`."""
        assert isinstance(inputs, ContextWindows)
        return decode_spans(
            examples, inputs, logits, self.n_best, self.max_answer_length, self.null_threshold
        )

    def tuned(self, examples: Questions, inputs: Inputs, logits: Float32s) -> Self:
        """See `with_tuned_threshold`."""
        return self.with_tuned_threshold(examples, self.decode(examples, inputs, logits))

    def with_tuned_threshold(self, examples: Questions, predictions: SpanPredictions) -> Self:
        """Return this task with the threshold that maximizes F1 (Section 4.3).

        If answering no question at all is best, evaluate-v2.0.py reports the threshold 0, which would allow
        some answers; the returned task's threshold is then below all null odds. If several questions have
        the same null odds, the script may report an F1 that no threshold reaches; so both are compared by
        the F1 that they have.
        """
        if not self.allow_no_answer:
            return self
        assert predictions.null_odds is not None
        found = self.score(examples, predictions)["best_f1_thresh"]
        thresholds = (float(predictions.null_odds.min()) - 1, found)
        f1 = [
            self.score(examples, replace(predictions, null_threshold=threshold))["f1"]
            for threshold in thresholds
        ]
        return replace(self, null_threshold=thresholds[f1.index(max(f1))])

    def score(self, examples: Questions, predictions: SpanPredictions) -> Scores:
        """Compute `exact_match` and `f1`, or all scores of evaluate-v2.0.py.

        The best thresholds are sought among the answers before any threshold is applied. In a file
        of predictions, where a threshold has replaced answers by "", evaluate-v2.0.py only finds
        thresholds below that one.
        """
        golds = examples.answer_texts
        if not self.allow_no_answer:
            return score_v1(golds, predictions.texts)
        # `read_predictions` has rejected missing predictions (None).
        answers = [answer for answer in predictions.answers if answer is not None]
        return score_v2(golds, answers, predictions.null_odds, predictions.null_threshold)

    def majority_baseline(self, training: Questions, examples: Questions) -> Scores | None:
        """Score no answer for every question; None if every question has one."""
        return score_v2(examples.answer_texts, [""] * len(examples)) if self.allow_no_answer else None

    def constant_answer(self, examples: Questions, predictions: SpanPredictions) -> str | None:
        """Return "no answer" if no question is answered."""
        return None if any(predictions.texts) else "no answer"

    def analyze_errors(
        self, examples: Questions, predictions: SpanPredictions, confidence: Float64s | None = None
    ) -> ErrorAnalysis:
        """Return the scores at every threshold, and the most confident mistakes."""
        golds, answers = examples.answer_texts, predictions.texts
        exact_match, f1 = question_scores(golds, answers, self.allow_no_answer)
        wrong = np.flatnonzero(exact_match + f1 == 0)
        by_confidence = wrong[np.argsort(-_confidence(predictions)[wrong], kind="stable")]
        probabilities = _probabilities(predictions)
        mistakes = [
            Mistake(
                shorten(examples.questions[i]),
                join_names(dict.fromkeys(golds[i]), " | "),
                join_names([answers[i]]),
                probability_at(probabilities, i),
            )
            for i in by_confidence[:MAX_MISTAKES].tolist()
        ]
        curve = None
        if predictions.null_odds is not None:
            curve = threshold_curve(
                golds, predictions.answers, predictions.null_odds, predictions.null_threshold
            )
        return ErrorAnalysis(threshold_curve=curve, mistakes=mistakes)

    def select(self, examples: Questions, indices: Sequence[int]) -> Questions:
        """Return the questions with these indices, with their contexts."""
        used, context_indices = np.unique(examples.context_indices[list(indices)], return_inverse=True)
        return Questions(
            [examples.ids[i] for i in indices],
            [examples.questions[i] for i in indices],
            [examples.contexts[i] for i in used],
            context_indices,
            None if examples.answers is None else [examples.answers[i] for i in indices],
            examples.source,
        )

    def groups(self, examples: Questions) -> Sequence[int]:
        """Return the index of each question's context."""
        numbers: list[int] = examples.context_indices.tolist()
        return numbers

    def flatten_predictions(self, predictions: SpanPredictions) -> list[str | None]:
        """Return the text of each answer; "" for no answer."""
        return predictions.texts

    def write_predictions(self, examples: Questions, predictions: SpanPredictions, path: Path) -> None:
        """Write the answers by id, in the form of run_squad.py.

        Null odds and n-best lists, where known, are written to null_odds.json and
        nbest_predictions.json in the same folder.
        """
        write_json(path, dict(zip(examples.ids, predictions.texts, strict=True)))
        if predictions.null_odds is not None:
            odds = dict(zip(examples.ids, predictions.null_odds.tolist(), strict=True))
            write_json(path.with_name(NULL_ODDS_FILE), odds)
        if predictions.n_best is not None:
            entries = n_best_entries(examples, predictions.n_best)
            write_json(path.with_name(N_BEST_FILE), dict(zip(examples.ids, entries, strict=True)))

    def read_predictions(self, examples: Questions, path: Path) -> SpanPredictions:
        """Read answers by id.

        As for the official scorers, predictions may be missing in v1.1: they score 0, and their
        number is printed on stderr.
        """
        texts = _read_by_id(path, str, "a string")
        answers = [texts.get(name) for name in examples.ids]
        missing = [name for name, answer in zip(examples.ids, answers, strict=True) if answer is None]
        if missing and self.allow_no_answer:
            raise DataError(f'{path}: no prediction for question {missing[0]}; give "" for no answer')
        if missing:
            print(
                f"{path}: questions without a prediction, scored 0: {len(missing)} (first: {missing[0]})",
                file=sys.stderr,
            )
        return SpanPredictions(answers)

    def with_null_odds(
        self, examples: Questions, predictions: SpanPredictions, path: Path
    ) -> SpanPredictions:
        """Return predictions with the null odds that a file has for each question id.

        The predictions' threshold becomes the default of evaluate-v2.0.py.
        """
        if not self.allow_no_answer:
            return super().with_null_odds(examples, predictions, path)
        odds = _read_by_id(path, (int, float), "a number")
        for name, value in odds.items():
            if not math.isfinite(value):
                raise DataError(
                    f"{path}, question {name}: {value} is not a finite number; use the predictions of a "
                    f"model whose training has not diverged"
                )
        missing = [name for name in examples.ids if name not in odds]
        if missing:
            raise DataError(f"{path}: no null odds for question {missing[0]}; use the file of the same run")
        null_odds = np.array([odds[name] for name in examples.ids], dtype=np.float64)
        return replace(predictions, null_odds=null_odds, null_threshold=NA_PROB_THRESHOLD)


def _confidence(predictions: SpanPredictions) -> Float64s:
    """Return how confident each prediction is: float64 (n,), for comparison only.

    It is the distance of the null odds from the threshold, else the probability of the best answer,
    else 0 for all.
    """
    if predictions.null_odds is not None:
        return np.abs(predictions.null_odds - predictions.null_threshold)
    if predictions.n_best is not None:
        return predictions.n_best.probabilities[:, 0]
    return np.zeros(len(predictions.answers))


def _probabilities(predictions: SpanPredictions) -> Float64s | None:
    """Return the model's probability of each prediction, float64 (n,).

    It is None if they are unknown.

    It is the probability among the best spans, as in nbest_predictions.json; where a question may have
    no answer, the probability of the prediction against its alternative, no answer or the best answer.
    """
    if predictions.null_odds is not None:
        is_null = predictions.null_odds > predictions.null_threshold
        return np.asarray(np.exp(-np.logaddexp(0, np.where(is_null, -1, 1) * predictions.null_odds)))
    return None if predictions.n_best is None else predictions.n_best.probabilities[:, 0]


def _read_by_id(path: Path, expected: type | tuple[type, ...], name: str) -> dict[str, Any]:
    """Read a JSON object from question ids to values of one type."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise DataError(
            f"{path}: not a JSON object; write one with a value for each question id, as run_squad.py does"
        )
    for question, value in values.items():
        if not isinstance(value, expected):
            raise DataError(
                f"{path}, question {question}: {shorten(json.dumps(value))} is not {name}; write "
                f"{name} for each question id"
            )
    return values


SQUAD_TASKS = (
    QuestionAnswering(
        name="squad-v1",
        labels=(),
        main_metric="f1",
        defaults={  # Section 4.2; the sequence length is run_squad.py's
            "epochs": 3,
            "batch_size": 32,
            "max_seq_length": 384,
            "optimizer": {"learning_rate": 5e-5},
        },
        test_parts=(),  # not published
    ),
    QuestionAnswering(
        name="squad-v2",
        labels=(),
        main_metric="f1",
        defaults={  # Section 4.3
            "epochs": 2,
            "batch_size": 48,
            "max_seq_length": 384,
            "optimizer": {"learning_rate": 5e-5},
        },
        test_parts=(),
        null_threshold=0.0,
    ),
)
