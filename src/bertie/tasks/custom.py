"""A person's own labelled data, in tables with named columns (base/rows.py), for every family of tasks."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from bertie.base.errors import DataError
from bertie.base.rows import Rows, read_rows, suffix_of
from bertie.model.config import ProblemType
from bertie.tasks.classification import LabelledTexts, TextClassification
from bertie.tasks.entities import find_fault, is_plain
from bertie.tasks.label_types import detect_type, in_order, label_name, names_of_each, numbers_of
from bertie.tasks.ner import TaggedSentences, Tagging
from bertie.tasks.squad.questions import Answer, Questions, read_questions
from bertie.tasks.squad.task import QuestionAnswering
from bertie.tasks.swag import Choices, MultipleChoice

# The first is the one that chooses the checkpoint.
_METRICS: dict[ProblemType, tuple[str, ...]] = {
    "single_label_classification": ("accuracy", "f1_macro"),
    "multi_label_classification": ("f1_micro", "f1_macro", "accuracy"),
    "regression": ("spearmanr", "pearson"),
}


class _CustomFiles:
    def file(self, data: Path, part: str) -> Path:
        """`data`: one's own files have no official names."""
        return data


@dataclass(frozen=True)
class CustomClassification(_CustomFiles, TextClassification):
    """Texts with labels of one's own; the training examples say which there are, and of what type.

    text       the column of the texts, or of the first ones of pairs
    pair       the column of the second ones
    label      the column of the labels: strings, numbers, or lists where a text has several
    separator  what stands between the labels of a text, where several are in one string
    detect     whether `fitted` finds out the problem_type
    """

    name: str = "classification"
    labels: tuple[str, ...] = ()
    main_metric: str = "accuracy"
    defaults: dict[str, Any] = field(default_factory=dict)
    text: str = "text"
    pair: str | None = None
    label: str = "label"
    separator: str | None = None
    detect: bool = True

    def settled(self, problem_type: ProblemType) -> Self:
        """This task for labels of that type, by its metrics."""
        chosen = _METRICS[problem_type]
        return replace(self, problem_type=problem_type, metrics=chosen, main_metric=chosen[0], detect=False)

    def read(self, path: Path, labelled: bool) -> LabelledTexts:
        """Read a table; the training part before `fitted`, the others after it.

        Raises:
            SettingsError: there is no such column.
            DataError: the file cannot be read (see `read_rows`), a text or a label is empty, or a label is
                unknown to the task.
        """
        rows = read_rows(path, [self.text, *filter(None, [self.pair]), *[self.label] * labelled])
        examples = LabelledTexts(
            _texts(rows, self.text),
            _texts(rows, self.pair) if self.pair else None,
            [self._parse_label(rows, i) for i in range(len(rows))] if labelled else None,
            rows,
        )
        if labelled and not self.detect:
            self._check_type(examples)
            if self.labels or self.problem_type == "regression":
                self.gold(examples)  # an unknown label is to be found before anything is trained
        return examples

    def fitted(self, examples: LabelledTexts) -> Self:
        """This task with the type and the names of the training examples' labels.

        Where all are lists a text has several; where all are numbers, and not all whole, it is a regression;
        else they are names of classes, which come in alphabetical order, or by size where all are numbers.

        Raises:
            DataError: a label is not of the type.
        """
        assert examples.labels is not None
        task = self.settled(detect_type(examples.labels)) if self.detect else self
        task._check_type(examples)
        if task.problem_type == "regression":
            task.gold(examples)
            return task
        return replace(task, labels=in_order(set(chain.from_iterable(names_of_each(examples.labels)))))

    def fitted_to_predictions(self, examples: LabelledTexts, path: Path) -> Self:
        """By both, for a class may be predicted that is not gold, and gold numbers may all be whole."""
        task = self.fitted(examples)
        if task.problem_type == "regression":
            return task
        assert examples.labels is not None
        predicted, _ = task._read_labels(examples, path)
        if task.problem_type == "multi_label_classification":
            predicted = [tuple(names) for names in predicted]
        return self.fitted(replace(examples, labels=[*examples.labels, *predicted], rows=None))

    def check_training(self, examples: LabelledTexts, path: Path) -> None:
        """Look for labels that are all the same, and for a class with one example."""
        assert examples.labels is not None
        if len(set(examples.labels)) == 1:
            raise DataError(
                f"{examples.location(0)}: all examples have this one's label, {examples.labels[0]!r}; "
                f"add others"
            )
        if self.problem_type == "regression":
            return
        names_of = names_of_each(examples.labels)
        counts = Counter(chain.from_iterable(names_of))
        lone = [name for name, count in counts.items() if count == 1]
        if not lone:
            return

        def location(name: str) -> str:
            return examples.location(next(i for i, names in enumerate(names_of) if name in names))

        words = [name for name in counts if not numbers_of([name])]
        if words and numbers_of(lone[:1]):
            raise DataError(
                f"{location(words[0])}: {words[0]!r} is no number, so that all labels are names of classes, "
                f"{lone[0]!r} that of one example; mend or delete the row"
            )
        others = f" (and so it is with {len(lone) - 1} other labels)" if len(lone) > 1 else ""
        raise DataError(
            f"{location(lone[0])}: no other example has the label {lone[0]!r}{others}; add some or delete it"
        )

    def _parse_label(self, rows: Rows, i: int) -> str | tuple[str, ...]:
        value = rows.columns[self.label][i]
        if any(isinstance(item, list | dict) for item in (value if isinstance(value, list) else [value])):
            raise DataError(
                f"{rows.location(i)}: {value!r} in the column {self.label!r} is no label; write a string, a "
                f"number or a list of them"
            )
        if self.separator is not None and not isinstance(value, list):
            # Before white space is made alike, for it may be what separates.
            value = value.split(self.separator) if isinstance(value, str) else [value]
        if isinstance(value, list):
            return tuple(filter(None, map(label_name, value)))
        name = label_name(value)
        if not name:
            raise DataError(
                f"{rows.location(i)}: no label in the column {self.label!r}; add it or delete the row"
            )
        return name

    def _check_type(self, examples: LabelledTexts) -> None:
        several = self.problem_type == "multi_label_classification"
        for i, label in enumerate(examples.labels or ()):
            if isinstance(label, tuple) != several:
                expected = "a list of labels; name the separator" if several else "one label"
                raise DataError(
                    f"{examples.location(i)}: {label!r} is not {expected}, as it is in other rows"
                )


@dataclass(frozen=True)
class CustomTagging(_CustomFiles, Tagging):
    """Tagged words in jsonl or Parquet, a row a sentence without context; or in columns as NER's files.

    Where no tag of the training set has the form of an entity's they are plain: parts of speech, say.
    What is longer than `max_seq_length` is read in windows, so nothing is cut.

    words  the column of the words, a list in each row
    tags   the column of their tags, likewise
    """

    name: str = "tagging"
    labels: tuple[str, ...] = ()
    main_metric: str = "f1"
    defaults: dict[str, Any] = field(default_factory=dict)
    plain: bool | None = None
    words: str = "words"
    tags: str = "tags"

    def read(self, path: Path, labelled: bool) -> TaggedSentences:
        """Read .jsonl or .parquet, and any other file as `read_conll` does.

        Raises:
            SettingsError: there is no such column.
            DataError: the file cannot be read, a row has no words, or not a tag for each, or one is no tag of
                the kind that the others are.
        """
        if suffix_of(path) not in (".jsonl", ".ndjson", ".parquet"):
            return super().read(path, labelled)
        rows = read_rows(path, [self.words, *[self.tags] * labelled])
        words = _lists_of_strings(rows, self.words)
        documents = np.arange(len(rows) + 1)
        if not labelled:
            return TaggedSentences(words, None, documents)
        tags = _lists_of_strings(rows, self.tags)
        for i in range(len(rows)):
            if len(tags[i]) != len(words[i]):
                raise DataError(
                    f"{rows.location(i)}: {len(tags[i])} tags for {len(words[i])} words; give one for each"
                )
        if fault := find_fault(list(chain.from_iterable(tags)), self.plain):
            place, reason = fault
            i = int(np.searchsorted(np.cumsum([len(row) for row in tags]), place, side="right"))
            raise DataError(f"{rows.location(i)}: {reason}")
        examples = TaggedSentences.of(words, tags, documents)
        self._name_unknown_tags(examples, path)
        return examples

    def with_labels(self, labels: Sequence[str]) -> Self:
        """With a model's labels in the model's order, which say what kind of tags they are.

        Raises:
            ModelError: an earlier label was of the other kind.
        """
        plain = is_plain(labels)
        return replace(super().with_labels(labels), plain=plain, main_metric="accuracy" if plain else "f1")


@dataclass(frozen=True)
class CustomQuestionAnswering(_CustomFiles, QuestionAnswering):
    """Questions that a span of their context answers, or nothing, in a table or in SQuAD's json.

    identifier, question, context, answers  the columns. Answers are those of SQuAD, {"text", "answer_start"}
        objects in a list, or those of Hugging Face's copy of it, one object of two lists.
    """

    name: str = "questions"
    labels: tuple[str, ...] = ()
    main_metric: str = "f1"
    defaults: dict[str, Any] = field(default_factory=lambda: {"max_seq_length": 384})  # run_squad.py
    identifier: str = "id"
    question: str = "question"
    context: str = "context"
    answers: str = "answers"
    version: Literal["1.1", "2.0"] = "2.0"  # until `fitted`, any question may have no answer

    def read(self, path: Path, labelled: bool) -> Questions:
        """Read a table, or a .json file as `read_questions` does.

        Raises:
            SettingsError: there is no such column.
            DataError: the file cannot be read, a text is empty, an id is there twice, or an answer is not of
                the form or does not stand where it says.
        """
        table = suffix_of(path) != ".json"
        questions = self._read_table(path, labelled) if table else read_questions(path, labelled)
        if labelled and not self.allow_no_answer and (count := questions.impossible.sum()):
            first = questions.ids[int(questions.impossible.argmax())]
            message = f"{count} questions have no answer, where all have one in training; they score 0"
            print(f"{path}: {message} (first: {first})", file=sys.stderr)
        return questions

    def _read_table(self, path: Path, labelled: bool) -> Questions:
        columns = [self.identifier, self.question, self.context, *[self.answers] * labelled]
        rows = read_rows(path, columns)
        ids = [str(value) for value in rows.columns[self.identifier]]
        if len(set(ids)) < len(ids):
            i = next(i for i, name in enumerate(ids) if name in ids[:i])
            raise DataError(
                f"{rows.location(i)}: a second question {ids[i]!r}; predictions go by id, so rename one"
            )
        contexts = _texts(rows, self.context)
        number_of = {context: number for number, context in enumerate(dict.fromkeys(contexts))}
        questions = Questions(
            ids,
            _texts(rows, self.question),
            list(number_of),
            np.array([number_of[context] for context in contexts], dtype=np.int64),
            [_parse_answers(rows, self.answers, i) for i in range(len(rows))] if labelled else None,
        )
        if questions.answers is not None and questions.unlocated.any():
            i = int(questions.unlocated.argmax())
            text, start = questions.answers[i][0]
            raise DataError(
                f"{rows.location(i)}: the answer {text!r} does not stand at character {start} of the "
                f"context; "
                f"mend or delete such rows, of which there are {questions.unlocated.sum()}"
            )
        return questions

    def fitted(self, examples: Questions) -> Self:
        """As SQuAD v2.0 where a question has no answer, otherwise as v1.1."""
        return replace(self, version="2.0" if examples.impossible.any() else "1.1")


@dataclass(frozen=True)
class CustomMultipleChoice(_CustomFiles, MultipleChoice):
    """Contexts and several endings, one of which is right.

    context  the column of the contexts
    endings  the columns of the endings, or the one column that has a list of them in each row
    label    the column that says which is right: its number, from 0
    """

    name: str = "choices"
    labels: tuple[str, ...] = ()
    main_metric: str = "accuracy"
    defaults: dict[str, Any] = field(default_factory=dict)
    context: str = "context"
    endings: tuple[str, ...] = ("endings",)
    label: str = "label"

    def read(self, path: Path, labelled: bool) -> Choices:
        """Read a table.

        Raises:
            SettingsError: there is no such column.
            DataError: the file cannot be read, a text is empty, a row has too few endings, or not as many as
                the first, or its label is not the number of one.
        """
        rows = read_rows(path, [self.context, *self.endings, *[self.label] * labelled])
        if len(self.endings) == 1:
            endings = _lists_of_strings(rows, self.endings[0])
        else:
            endings = list(map(list, zip(*(rows.columns[column] for column in self.endings), strict=True)))
        count = len(endings[0])
        for i, row in enumerate(endings):
            if len(row) != count or count < 2:
                raise DataError(
                    f"{rows.location(i)}: {len(row)} endings; every row needs as many, two at the least"
                )
            if not all(isinstance(ending, str) and ending.strip() for ending in row):
                raise DataError(f"{rows.location(i)}: an ending is no text; add it or delete the row")
        labels = None
        if labelled:
            numbers = [str(number) for number in range(count)]
            names = list(map(label_name, rows.columns[self.label]))
            if wrong := [i for i, name in enumerate(names) if name not in numbers]:
                raise DataError(
                    f"{rows.location(wrong[0])}: label {names[wrong[0]]!r}; use one of {', '.join(numbers)}"
                )
            labels = np.array(names, dtype=np.int64)
        ids = [str(number) for number in range(len(rows))]
        return Choices(_texts(rows, self.context), [""] * len(rows), endings, labels, ids)


def _texts(rows: Rows, column: str) -> list[str]:
    texts = rows.columns[column]
    for i, text in enumerate(texts):
        if not (isinstance(text, str) and text.strip()):
            found = "no text" if text is None or text == "" else f"{text!r}, which is no text,"
            raise DataError(f"{rows.location(i)}: {found} in the column {column!r}; add it or delete the row")
    return texts


def _lists_of_strings(rows: Rows, column: str) -> list[list[str]]:
    for i, value in enumerate(rows.columns[column]):
        if not (isinstance(value, list) and value and all(isinstance(item, str) for item in value)):
            raise DataError(
                f"{rows.location(i)}: {value!r} in the column {column!r} is not a list of strings"
            )
    return rows.columns[column]


def _parse_answers(rows: Rows, column: str, i: int) -> list[Answer]:
    match rows.columns[column][i]:
        case {"text": list(texts), "answer_start": list(starts)} if len(texts) == len(starts):
            answers = list(map(Answer, texts, starts))
        case list(objects) if all(isinstance(answer, dict) for answer in objects):
            answers = [Answer(answer.get("text"), answer.get("answer_start")) for answer in objects]
        case _:
            answers = [Answer("", -1)]
    if not all(isinstance(text, str) and isinstance(start, int) and text for text, start in answers):
        raise DataError(
            f'{rows.location(i)}: the answers are not of the form {{"text": ["…"], "answer_start": [0]}}'
        )
    return answers
