"""Questions about contexts, and the JSON of SQuAD (Rajpurkar et al. 2016, 2018)."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertie.base.arrays import Bools, Int64s
from bertie.base.compression import is_compressed
from bertie.base.errors import DataError
from bertie.base.files import read_json


class Answer(NamedTuple):
    """A span of a context; `start` is the index of its first character."""

    text: str
    start: int


@dataclass(frozen=True)
class Questions:
    """n questions about contexts; several questions may share a context.

    ids              as in the file, each once
    questions        the text of each question
    contexts         the paragraphs, each once
    context_indices  int64 (n,), the context of each question
    answers          the gold answers of each question, empty where the context does not answer it;
                     None where unknown
    source           the file or table, for error messages; empty for texts of a caller
    """

    ids: Sequence[str]
    questions: Sequence[str]
    contexts: Sequence[str]
    context_indices: Int64s
    answers: Sequence[Sequence[tuple[str, int]]] | None = None
    source: str = ""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def answer_texts(self) -> list[list[str]]:
        """The texts of the gold answers of each question."""
        assert self.answers is not None
        return [[text for text, _ in answers] for answers in self.answers]

    @cached_property
    def is_impossible(self) -> Bools:
        """bool (n,): whether the context does not answer the question (SQuAD v2.0)."""
        assert self.answers is not None
        return np.array([not answers for answers in self.answers], dtype=np.bool_)

    @cached_property
    def is_misplaced(self) -> Bools:
        """bool (n,): whether the context lacks the first answer at its start.

        The model cannot be trained on such an answer.
        """
        assert self.answers is not None
        is_usable = [
            not answers or has_text_at(self.contexts[context], *answers[0])
            for context, answers in zip(self.context_indices, self.answers, strict=True)
        ]
        return ~np.array(is_usable, dtype=np.bool_)


def has_text_at(context: str, text: str, start: int) -> bool:
    """Return whether an answer is at its start in the context.

    White space is no answer.
    """
    return bool(text.strip()) and start >= 0 and context.startswith(text, start)


def find_duplicate(ids: Sequence[str]) -> int | None:
    """Return the index of the first id that an earlier question has, or None."""
    seen: set[str] = set()
    for index, name in enumerate(ids):
        if name in seen:
            return index
        seen.add(name)
    return None


def read_questions(path: Path, labelled: bool = True, allow_no_answer: bool = True) -> Questions:
    """Read a file in SQuAD's JSON, v1.1 or v2.0.

    A question is unanswerable if its `answers` are empty, as for the official scorer; its
    `is_impossible` is ignored. The number of answers that are not at their `answer_start` is
    printed on stderr.

    Args:
        path: the file.
        labelled: whether to read the answers.
        allow_no_answer: whether a question may have no answer (v2.0).

    Raises:
        DataError: the file has another form, no questions or a duplicate id, or a question has no
            answer although `allow_no_answer` is false.
    """
    ids: list[str] = []
    texts: list[str] = []
    contexts: list[str] = []
    context_indices: list[int] = []
    answers: list[list[Answer]] = []
    for location, paragraph in _paragraphs(path):
        contexts.append(_member(paragraph, "context", str, location))
        for question in _member(paragraph, "qas", list, location):
            ids.append(str(_member(question, "id", (str, int), location)))  # numbers as in a table
            question_location = f"{path}, question {ids[-1]}"
            texts.append(_member(question, "question", str, question_location))
            context_indices.append(len(contexts) - 1)
            if labelled:
                answers.append(_read_answers(question, question_location, allow_no_answer))
    if not ids:
        raise DataError(f"{path}: no questions in the file; add at least one to its 'qas'")
    if (i := find_duplicate(ids)) is not None:
        raise DataError(
            f"{path}: two questions have the id {ids[i]}; rename one, since predictions are matched by id"
        )
    indices = np.array(context_indices, dtype=np.int64)
    questions = Questions(ids, texts, contexts, indices, answers if labelled else None, str(path))
    if labelled and questions.is_misplaced.any():
        first = ids[int(questions.is_misplaced.argmax())]
        print(
            f"{path}: answers that are not at their answer_start, on which the model is not trained: "
            f"{questions.is_misplaced.sum()} (first: question {first})",
            file=sys.stderr,
        )
    return questions


def _paragraphs(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the paragraphs of all articles, each with its location in the file."""
    try:
        content = read_json(path)
        articles = [] if isinstance(content, list) else _member(content, "data", list, str(path))
    except DataError as error:
        if not path.is_file():
            raise
        if is_compressed(path):
            raise DataError(f"{path}: SQuAD's JSON is not read compressed; decompress the file") from None
        raise DataError(
            f"{error}; a table with a question on each line is a .jsonl file, for --kind questions "
            f"(kind='questions')"
        ) from None
    if isinstance(content, list):
        raise _rows_of_a_table(str(path), ".[]")
    for article_number, article in enumerate(articles, start=1):
        location = f"{path}, article {article_number}"
        if isinstance(article, dict) and "context" in article:  # as run_qa.py of transformers reads it
            raise _rows_of_a_table(location, ".data[]")
        for number, paragraph in enumerate(_member(article, "paragraphs", list, location), start=1):
            yield f"{location}, paragraph {number}", paragraph


def _rows_of_a_table(location: str, values: str) -> DataError:
    return DataError(
        f"{location}: rows of a table; write each on a line of a .jsonl file (jq --compact-output '{values}')"
    )


def _read_answers(question: Any, location: str, allow_none: bool) -> list[Answer]:
    answers = [
        Answer(_member(answer, "text", str, location), _member(answer, "answer_start", int, location))
        for answer in _member(question, "answers", list, location)
    ]
    if not answers and not allow_none:
        raise DataError(f"{location}: no answer, which only SQuAD v2.0 allows; use the task squad-v2")
    return answers


def _member(value: Any, key: str, expected: type | tuple[type, ...], location: str) -> Any:
    """Return `value[key]`; raise DataError unless it has the expected JSON type, or one of several."""
    if not isinstance(value, dict) or not isinstance(value.get(key), expected):
        name = {str: "string", (str, int): "string", int: "number", list: "list"}[expected]
        raise DataError(
            f"{location}: no {name} {key!r}; write the file in the form of train-v1.1.json of SQuAD"
        )
    return value[key]
