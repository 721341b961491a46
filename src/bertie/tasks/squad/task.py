"""Answers that are spans of a context (Figure 4 c): SQuAD v1.1 (Section 4.2) and v2.0 (Section 4.3)."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from bertie.base.errors import DataError
from bertie.base.files import read_json, write_json
from bertie.tasks.squad.decoding import SpanPredictions, decode_spans, n_best_entries
from bertie.tasks.squad.questions import Questions, read_questions
from bertie.tasks.squad.scores import score_v1, score_v2
from bertie.tasks.squad.windows import Windows, encode_windows
from bertie.tasks.task import Head, Inputs, Scores, Task
from bertie.text.tokenizer import Tokenizer

NULL_ODDS_FILE, N_BEST_FILE = "null_odds.json", "nbest_predictions.json"  # run_squad.py
NA_PROB_THRESHOLD = 1.0  # evaluate-v2.0.py, --na-prob-thresh


@dataclass(frozen=True)
class QuestionAnswering(Task[Questions, SpanPredictions]):
    """A family of two: in v2.0 a question may have no answer.

    doc_stride, max_query_length, n_best, max_answer_length are run_squad.py's flags, in pieces.

    version         which of SQuAD's
    null_threshold  no answer where the score of "no answer" exceeds the best answer's by more (Section 4.3's
                    τ); `with_tuned_threshold` chooses it
    """

    version: Literal["1.1", "2.0"] = "1.1"
    doc_stride: int = 128
    max_query_length: int = 64
    n_best: int = 20
    max_answer_length: int = 30
    null_threshold: float = 0.0

    @property
    def head(self) -> Head:
        return "spans"

    @property
    def predictions_file(self) -> str:
        """As run_squad.py has it."""
        return "predictions.json"

    @property
    def allow_no_answer(self) -> bool:
        """Whether a question may have no answer."""
        return self.version == "2.0"

    def file(self, data: Path, part: str) -> Path:
        return data / f"{part}-v{self.version}.json" if data.is_dir() else data

    def read(self, path: Path, labelled: bool) -> Questions:
        return read_questions(path, labelled, self.allow_no_answer)

    def encode(self, examples: Questions, tokenizer: Tokenizer, max_seq_length: int) -> Windows:
        return encode_windows(examples, tokenizer, max_seq_length, self.doc_stride, self.max_query_length)

    def decode(self, examples: Questions, inputs: Inputs, logits: npt.NDArray[np.float32]) -> SpanPredictions:
        assert isinstance(inputs, Windows)
        threshold = self.null_threshold if self.allow_no_answer else None
        return decode_spans(examples, inputs, logits, self.n_best, self.max_answer_length, threshold)

    def with_tuned_threshold(self, examples: Questions, predictions: SpanPredictions) -> Self:
        """This task with the threshold that gives these predictions the highest F1, as Section 4.3 has it.

        Where that is never to answer, evaluate-v2.0.py names the threshold 0, which is not that of no answer.
        """
        if not self.allow_no_answer:
            return self
        assert predictions.null_odds is not None
        scores = self.score(examples, predictions)
        tuned = replace(self, null_threshold=scores["best_f1_thresh"])
        found = replace(predictions, null_threshold=tuned.null_threshold)
        if self.score(examples, found)["f1"] < scores["best_f1"]:
            return replace(self, null_threshold=float(predictions.null_odds.min()) - 1)
        return tuned

    def score(self, examples: Questions, predictions: SpanPredictions) -> Scores:
        """`exact_match` and `f1`; for v2.0 also what else evaluate-v2.0.py gives.

        The best thresholds are sought among the answers as they are before a threshold; in a file written at
        another one, where evaluate-v2.0.py sees "", it can find only those below that.
        """
        assert examples.answers is not None
        golds = [[text for text, _ in answers] for answers in examples.answers]
        if not self.allow_no_answer:
            return score_v1(golds, predictions.texts)
        # None is missing: `read_predictions` saw to it.
        answers = [answer for answer in predictions.answers if answer is not None]
        return score_v2(golds, answers, predictions.null_odds, predictions.null_threshold)

    def write_predictions(self, examples: Questions, predictions: SpanPredictions, path: Path) -> None:
        """Write answers by id, and beside them null_odds.json and nbest_predictions.json where known."""
        write_json(path, dict(zip(examples.ids, predictions.texts, strict=True)))
        if predictions.null_odds is not None:
            odds = dict(zip(examples.ids, predictions.null_odds.tolist(), strict=True))
            write_json(path.with_name(NULL_ODDS_FILE), odds)
        if predictions.n_best is not None:
            entries = n_best_entries(examples, predictions.n_best)
            write_json(path.with_name(N_BEST_FILE), dict(zip(examples.ids, entries, strict=True)))

    def read_predictions(
        self, examples: Questions, path: Path, null_odds: Path | None = None
    ) -> SpanPredictions:
        """Read answers by id, and for v2.0 the null odds by id where there are any.

        As in the official scorers, in v1.1 a question may be left out, which scores 0 and is said on stderr.
        """
        texts = _by_id(path, str, "a string")
        answers = [texts.get(name) for name in examples.ids]
        missing = [name for name, answer in zip(examples.ids, answers, strict=True) if answer is None]
        if missing and self.allow_no_answer:
            raise DataError(f'{path}: no prediction for question {missing[0]}; give "" for no answer')
        if missing:
            message = f"{len(missing)} questions have no prediction and score 0 (first: {missing[0]})"
            print(f"{path}: {message}", file=sys.stderr)
        if null_odds is None:
            return SpanPredictions(answers)
        odds = _by_id(null_odds, (int, float), "a number")
        absent = [name for name in examples.ids if name not in odds]
        if absent:
            raise DataError(f"{null_odds}: nothing for question {absent[0]}; is it of the same predictions?")
        numbers = np.array([odds[name] for name in examples.ids], dtype=np.float64)
        return SpanPredictions(answers, numbers, NA_PROB_THRESHOLD)


def _by_id(path: Path, kind: type | tuple[type, ...], name: str) -> dict[str, Any]:
    """A JSON object from question ids to values of one kind."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise DataError(f"{path}: not a JSON object from question ids to values, as run_squad.py writes")
    for question, value in values.items():
        if not isinstance(value, kind):
            raise DataError(f"{path}: question {question}: {json.dumps(value)} is not {name}")
    return values


SQUAD_TASKS = (
    QuestionAnswering(
        name="squad-v1",
        version="1.1",
        labels=(),
        main_metric="f1",
        defaults={  # Section 4.2; the sequence length is run_squad.py's
            "epochs": 3,
            "batch_size": 32,
            "max_seq_length": 384,
            "optimizer": {"learning_rate": 5e-5},
        },
        test_parts=(),  # kept by the authors
    ),
    QuestionAnswering(
        name="squad-v2",
        version="2.0",
        labels=(),
        main_metric="f1",
        defaults={  # Section 4.3
            "epochs": 2,
            "batch_size": 48,
            "max_seq_length": 384,
            "optimizer": {"learning_rate": 5e-5},
        },
        test_parts=(),
    ),
)
