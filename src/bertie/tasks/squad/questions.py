"""Questions about contexts, and the official JSON of SQuAD (Rajpurkar et al. 2016, 2018) they come in."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.base.errors import DataError
from bertie.base.files import read_json


class Answer(NamedTuple):
    """A piece of a context; `start` is its first character there."""

    text: str
    start: int


@dataclass(frozen=True)
class Questions:
    """n questions about fewer contexts.

    ids                  as in the file, each once
    questions            their texts
    contexts             the paragraphs, each once
    context_of_question  int64 (n,)  which context each question is about
    answers              the gold answers of each question, none where the context does not answer it;
                         None where nobody knows them
    """

    ids: Sequence[str]
    questions: Sequence[str]
    contexts: Sequence[str]
    context_of_question: npt.NDArray[np.int64]
    answers: Sequence[Sequence[tuple[str, int]]] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def impossible(self) -> npt.NDArray[np.bool_]:
        """bool (n,): whether the context does not answer the question (SQuAD v2.0)."""
        assert self.answers is not None
        return np.array([not answers for answers in self.answers], dtype=np.bool_)

    @cached_property
    def unlocated(self) -> npt.NDArray[np.bool_]:
        """bool (n,): whether the first answer does not stand where it says, and so cannot be learnt."""
        assert self.answers is not None
        found = [
            not answers or _stands_at(self.contexts[context], *answers[0])
            for context, answers in zip(self.context_of_question, self.answers, strict=True)
        ]
        return ~np.array(found, dtype=np.bool_)


def _stands_at(context: str, text: str, start: int) -> bool:
    return bool(text.strip()) and start >= 0 and context.startswith(text, start)


def read_questions(path: Path, labelled: bool = True, allow_no_answer: bool = True) -> Questions:
    """Read a file in SQuAD's official JSON, v1.1 or v2.0; without answers where they are not wanted.

    Answers that do not stand at their `answer_start` are counted in one line on stderr. Like the official
    scorer, this takes a question for unanswerable by its empty `answers`, not by its `is_impossible`.

    Raises:
        DataError: the file is not of that form, has no questions or one id twice, or a question has no
            answer where that is not allowed.
    """
    ids: list[str] = []
    texts: list[str] = []
    contexts: list[str] = []
    context_of_question: list[int] = []
    answers: list[list[Answer]] = []
    for place, paragraph in _paragraphs(path):
        contexts.append(_member(paragraph, "context", str, place))
        for question in _member(paragraph, "qas", list, place):
            ids.append(_member(question, "id", str, place))
            texts.append(_member(question, "question", str, f"{path}: question {ids[-1]}"))
            context_of_question.append(len(contexts) - 1)
            if labelled:
                answers.append(_answers(question, f"{path}: question {ids[-1]}", allow_no_answer))
    if not ids:
        raise DataError(f"{path}: no questions in it")
    if len(set(ids)) < len(ids):
        twice = next(name for number, name in enumerate(ids) if name in ids[:number])
        raise DataError(f"{path}: question {twice} is there twice; predictions go by id, so rename one")
    about = np.array(context_of_question, dtype=np.int64)
    found = Questions(ids, texts, contexts, about, answers if labelled else None)
    if labelled and found.unlocated.any():
        first = ids[int(found.unlocated.argmax())]
        message = f"{found.unlocated.sum()} answers are not at their answer_start (first: question {first})"
        print(f"{path}: {message}; nothing is learnt of them", file=sys.stderr)
    return found


def _paragraphs(path: Path) -> Iterator[tuple[str, Any]]:
    """The paragraphs of all articles, each with its place in the file."""
    for article_number, article in enumerate(_member(read_json(path), "data", list, str(path)), start=1):
        place = f"{path}: article {article_number}"
        for number, paragraph in enumerate(_member(article, "paragraphs", list, place), start=1):
            yield f"{place}, paragraph {number}", paragraph


def _answers(question: Any, place: str, allow_none: bool) -> list[Answer]:
    answers = [
        Answer(_member(answer, "text", str, place), _member(answer, "answer_start", int, place))
        for answer in _member(question, "answers", list, place)
    ]
    if not answers and not allow_none:
        raise DataError(f"{place} has no answer, as in SQuAD v2.0 only: use the task squad-v2")
    return answers


def _member(value: Any, key: str, kind: type, place: str) -> Any:
    """`value[key]`, which must be of a kind that JSON has."""
    if not isinstance(value, dict) or not isinstance(value.get(key), kind):
        name = {str: "string", int: "number", list: "list"}[kind]
        raise DataError(f"{place}: no {name} {key!r}; the form is that of SQuAD's train-v1.1.json")
    return value[key]
