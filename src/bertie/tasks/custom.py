"""Custom data: tables with named columns, for every family of tasks."""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from bertie.base.errors import DataError, SettingsError
from bertie.base.memory import Source
from bertie.base.rows import Rows, format_suffix, read_rows, report_skipped
from bertie.model.config import ProblemType
from bertie.model.formats.directory import ModelMetadata
from bertie.tasks.classification import LabelledTexts, TextClassification
from bertie.tasks.conll import TaggedSentences
from bertie.tasks.entities import find_invalid_tag, is_plain
from bertie.tasks.label_types import (
    as_label_sets,
    infer_problem_type,
    label_name,
    parse_numbers,
    sort_labels,
)
from bertie.tasks.ner import Tagging
from bertie.tasks.squad.questions import Answer, Questions, find_duplicate, has_text_at, read_questions
from bertie.tasks.squad.task import QuestionAnswering
from bertie.tasks.swag import Choices, MultipleChoice

# The first metric selects the checkpoint.
_METRICS: dict[ProblemType, tuple[str, ...]] = {
    "single_label_classification": ("accuracy", "f1_macro"),
    "multi_label_classification": ("f1_micro", "f1_macro", "accuracy"),
    "regression": ("spearmanr", "pearson"),
}


@dataclass(frozen=True)
class _CustomFiles:
    """Mixin for tasks on custom files, which have no official names.

    on_error  what to do at a row of a table that is malformed or incomplete: stop, or skip and report it
    """

    on_error: Literal["stop", "skip"] = "stop"

    def file(self, data: Path, part: str) -> Path:
        """Return `data`, the file itself."""
        return data

    def _check_stops(self, path: Path, format: str) -> None:
        """Raise SettingsError if malformed rows are to be skipped, but the file is not a table."""
        if self.on_error == "skip":
            raise SettingsError(
                f"{path}: --on-error skip (on_error) is for rows of tables, and this file is {format}; "
                f"correct the file, and leave the option out"
            )

    def _read_rows(
        self, source: Source, columns: Sequence[str], check: Callable[[Rows, int], object]
    ) -> Rows:
        """Read the rows of a table that pass a check, which raises DataError for the others.

        Raises:
            SettingsError: a column is missing.
            DataError: the table cannot be read (see `read_rows`), or a row is not skipped, or all would be.
        """
        skipped: list[DataError] | None = [] if self.on_error == "skip" else None
        rows = read_rows(source, columns, skipped)
        kept = []
        for i in range(len(rows)):
            try:
                check(rows, i)
            except DataError as error:
                if skipped is None:
                    raise
                skipped.append(error)
            else:
                kept.append(i)
        if skipped:
            if not kept:
                raise skipped[0]
            report_skipped(source, skipped, len(kept))
            return rows.select(kept)
        return rows


@dataclass(frozen=True)
class CustomClassification(_CustomFiles, TextClassification):
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

    def with_problem_type(self, problem_type: ProblemType) -> Self:
        """Return this task for labels of one type, with the metrics of that type."""
        metrics = _METRICS[problem_type]
        return replace(
            self, problem_type=problem_type, metrics=metrics, main_metric=metrics[0], infer_type=False
        )

    def read(self, path: Source, labelled: bool) -> LabelledTexts:
        """Read a table of texts.

        Read the training part before `fitted`, and the other parts after it.

        Raises:
            SettingsError: a column is missing.
            DataError: the file cannot be read (see `read_rows`), a text or a label is empty, or a
                label is not one of the labels that the task was `fitted` to.
        """
        texts = [self.text, *filter(None, [self.pair])]

        def check(rows: Rows, i: int) -> None:
            for column in texts:
                _check_text(rows, i, column)
            if labelled:
                self._parse_label(rows, i)

        rows = self._read_rows(path, [*texts, *[self.label] * labelled], check)
        examples = LabelledTexts(
            rows.columns[self.text],
            rows.columns[self.pair] if self.pair else None,
            [self._parse_label(rows, i) for i in range(len(rows))] if labelled else None,
            rows,
        )
        if labelled and not self.infer_type:
            self._check_type(examples)
            if self.labels or self.problem_type == "regression":
                self.gold(examples)  # reject unknown labels before anything is trained
        return examples

    def fitted(self, examples: LabelledTexts) -> Self:
        """Return this task with the problem type and the labels of training examples.

        See `infer_problem_type` and `sort_labels`.

        Raises:
            DataError: a label is not of the problem type.
        """
        assert examples.labels is not None
        task = self.with_problem_type(infer_problem_type(examples.labels)) if self.infer_type else self
        task._check_type(examples)
        if task.problem_type == "regression":
            task.gold(examples)
            return task
        return replace(task, labels=sort_labels(set(chain.from_iterable(as_label_sets(examples.labels)))))

    def fitted_to_predictions(self, examples: LabelledTexts, path: Path) -> Self:
        """Return this task with the labels of gold examples and of a file of predictions.

        Both are needed: a predicted class may be missing from the gold labels, and the gold values
        of a regression may all be whole.
        """
        task = self.fitted(examples)
        if task.problem_type == "regression":
            return task
        assert examples.labels is not None
        predicted, _ = task._read_labels(examples, path)
        if task.problem_type == "multi_label_classification":
            predicted = [tuple(names) for names in predicted]
        return self.fitted(replace(examples, labels=[*examples.labels, *predicted], rows=None))

    def fitted_to_model(self, metadata: ModelMetadata) -> Self:
        """Return this task with the problem type and the labels of a fine-tuned model."""
        if self.infer_type:
            return self.with_problem_type(metadata.problem_type).fitted_to_model(metadata)
        return super().fitted_to_model(metadata)

    def check_training(self, examples: LabelledTexts, path: Source) -> None:
        """Reject labels that are all the same, and a class with only one example."""
        assert examples.labels is not None
        if len(set(examples.labels)) == 1:
            raise DataError(
                f"{examples.location(0)}: all examples have the label {examples.labels[0]!r}; add examples "
                f"with other labels"
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
        others = f" (and {len(rare) - 1} other labels have only one example)" if len(rare) > 1 else ""
        raise DataError(
            f"{location(rare[0])}: no other example has the label {rare[0]!r}{others}; add some or delete it"
        )

    def _parse_label(self, rows: Rows, i: int) -> str | tuple[str, ...]:
        value = rows.columns[self.label][i]
        if any(isinstance(item, list | dict) for item in (value if isinstance(value, list) else [value])):
            raise DataError(
                f"{rows.location(i)}: {value!r} in the column {self.label!r} is not a label; write a string, "
                f"a number or a list of them"
            )
        if self.separator is not None and not isinstance(value, list):
            # Split before white space is normalized, since white space may be the separator.
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
        is_multilabel = self.problem_type == "multi_label_classification"
        for i, label in enumerate(examples.labels or ()):
            if isinstance(label, tuple) != is_multilabel:
                if is_multilabel:
                    advice = "a list of labels, as other rows have; write a list, or name the separator"
                else:
                    advice = "a single label, as other rows have; write the labels of all rows in one way"
                shown = list(label) if isinstance(label, tuple) else label
                raise DataError(f"{examples.location(i)}: {shown!r} is not {advice}")


@dataclass(frozen=True)
class CustomTagging(_CustomFiles, Tagging):
    """Tagged sentences, in the rows of a table or in a file in CoNLL format.

    Each sentence of a table is a document. A sentence longer than `max_seq_length` is read in
    windows. If no tag of the training examples marks an entity, the tags are plain, such as
    parts of speech.

    words  column of the words, a list in each row
    tags   column of their tags, likewise
    """

    name: str = "tagging"
    labels: tuple[str, ...] = ()
    main_metric: str = "f1"
    defaults: dict[str, Any] = field(default_factory=dict)
    plain: bool | None = None
    words: str = "words"
    tags: str = "tags"

    @property
    def input_columns(self) -> dict[str, str]:
        return {"words": self.words}

    def read(self, path: Source, labelled: bool) -> TaggedSentences:
        """Read a .jsonl or .parquet table; any other file but .csv is read by `read_conll`.

        Raises:
            SettingsError: a column is missing.
            DataError: the file cannot be read, a row has no words or not one tag for each word, or
                a tag is not valid.
        """
        if isinstance(path, Path) and format_suffix(path) == ".csv":
            raise DataError(
                f"{path}: a csv file cannot hold the words and tags of a sentence; write a .conll file with "
                f"a word, a tab and its tag in each line, and a blank line after each sentence, or a .jsonl "
                f'file with lines such as {{"words": ["Ada", "slept"], "tags": ["B-PER", "O"]}}'
            )
        if isinstance(path, Path) and format_suffix(path) not in (".jsonl", ".ndjson", ".parquet"):
            self._check_stops(path, "in CoNLL columns")
            return super().read(path, labelled)

        def check(rows: Rows, i: int) -> None:
            words = _check_strings(rows, i, self.words)
            if labelled and len(tags := _check_strings(rows, i, self.tags)) != len(words):
                raise DataError(
                    f"{rows.location(i)}: {len(tags)} tags for {len(words)} words; give one for each"
                )

        rows = self._read_rows(path, [self.words, *[self.tags] * labelled], check)
        words, document_bounds = rows.columns[self.words], np.arange(len(rows) + 1)
        if not labelled:
            return TaggedSentences(words, None, document_bounds)
        tags = rows.columns[self.tags]
        if invalid := find_invalid_tag(list(chain.from_iterable(tags)), self.plain):
            index, reason = invalid
            i = int(np.searchsorted(np.cumsum([len(row) for row in tags]), index, side="right"))
            raise DataError(f"{rows.location(i)}: {reason}")
        examples = TaggedSentences.from_tags(words, tags, document_bounds)
        self._report_unknown_tags(examples, path)
        return examples

    def with_labels(self, labels: Sequence[str]) -> Self:
        """Return this task with a model's labels, which decide whether tags are plain.

        Raises:
            ModelError: the labels mix plain tags with tags of entities, or the task's tags are of
                the other kind.
        """
        plain = is_plain(labels)
        return replace(super().with_labels(labels), plain=plain, main_metric="accuracy" if plain else "f1")


@dataclass(frozen=True)
class CustomQuestionAnswering(_CustomFiles, QuestionAnswering):
    """Questions with answers in their contexts, in a table or in SQuAD's JSON.

    identifier  column of the questions' ids
    question    column of the questions
    context     column of the contexts
    answers     column of the answers in the form of SQuAD, a list of {"text", "answer_start"}
                objects, or of its copy by Hugging Face, an object with two lists
    """

    name: str = "questions"
    labels: tuple[str, ...] = ()
    main_metric: str = "f1"
    defaults: dict[str, Any] = field(default_factory=lambda: {"max_seq_length": 384})  # run_squad.py
    identifier: str = "id"
    question: str = "question"
    context: str = "context"
    answers: str = "answers"
    null_threshold: float | None = 0.0  # until `fitted`, a question may have no answer

    @property
    def input_columns(self) -> dict[str, str]:
        return {"question": self.question, "context": self.context}

    def read(self, path: Source, labelled: bool) -> Questions:
        """Read a table of questions; a .json file is read by `read_questions`.

        Questions without an answer, where all training questions have one, are reported on stderr.

        Raises:
            SettingsError: a column is missing.
            DataError: the file cannot be read, a text is empty, an id occurs twice, an answer has
                another form, or an answer in a table is not at its position in the context.
        """
        if isinstance(path, Path) and format_suffix(path) == ".json":
            self._check_stops(path, "SQuAD's JSON")
            questions = read_questions(path, labelled)
        else:
            questions = self._read_table(path, labelled)
        if labelled and not self.allow_no_answer and (count := questions.is_impossible.sum()):
            first = questions.ids[int(questions.is_impossible.argmax())]
            print(
                f"{path}: questions without an answer, which score 0, as all training questions have one: "
                f"{count} (first: {first})",
                file=sys.stderr,
            )
        return questions

    def _read_table(self, path: Source, labelled: bool) -> Questions:
        columns = [self.identifier, self.question, self.context, *[self.answers] * labelled]

        def check(rows: Rows, i: int) -> None:
            for column in (self.question, self.context):
                _check_text(rows, i, column)
            if labelled:
                answers = _parse_answers(rows, self.answers, i)
                if answers and not has_text_at(rows.columns[self.context][i], *answers[0]):
                    text, start = answers[0]
                    raise DataError(
                        f"{rows.location(i)}: the answer {text!r} is not at character {start} of the "
                        f"context; correct or delete the row"
                    )

        rows = self._read_rows(path, columns, check)
        ids = [str(value) for value in rows.columns[self.identifier]]
        if (i := find_duplicate(ids)) is not None:
            raise DataError(
                f"{rows.location(i)}: a second question has the id {ids[i]!r}; rename one, since predictions "
                f"are matched by id"
            )
        contexts = rows.columns[self.context]
        index_of = {context: index for index, context in enumerate(dict.fromkeys(contexts))}
        return Questions(
            ids,
            rows.columns[self.question],
            list(index_of),
            np.array([index_of[context] for context in contexts], dtype=np.int64),
            [_parse_answers(rows, self.answers, i) for i in range(len(rows))] if labelled else None,
        )

    def fitted(self, examples: Questions) -> Self:
        """Return this task as SQuAD v2.0 if a question has no answer, otherwise as v1.1."""
        return replace(self, null_threshold=0.0 if examples.is_impossible.any() else None)

    def fitted_to_model(self, metadata: ModelMetadata) -> Self:
        """Return this task as the model's version of SQuAD, with its null threshold."""
        return replace(super().fitted_to_model(metadata), null_threshold=metadata.null_threshold)


@dataclass(frozen=True)
class CustomMultipleChoice(_CustomFiles, MultipleChoice):
    """Contexts with several endings, one of which is right.

    context  column of the contexts
    endings  columns of the endings, or a single column with a list of them in each row
    label    column of the right ending's index, from 0
    """

    name: str = "choices"
    labels: tuple[str, ...] = ()
    main_metric: str = "accuracy"
    defaults: dict[str, Any] = field(default_factory=dict)
    context: str = "context"
    endings: tuple[str, ...] = ("endings",)
    label: str = "label"

    @property
    def input_columns(self) -> dict[str, str]:
        return {"context": self.context, "endings": ",".join(self.endings)}

    def read(self, path: Source, labelled: bool) -> Choices:
        """Read a table of contexts, endings and labels.

        Raises:
            SettingsError: a column is missing.
            DataError: the file cannot be read, a text is empty, a row has fewer than two endings or
                not as many as the first row, or its label is not the index of an ending.
        """

        def check(rows: Rows, i: int) -> None:
            _check_text(rows, i, self.context)
            count = len(self._endings(rows, 0))
            if len(endings := self._endings(rows, i)) != count or count < 2:
                raise DataError(
                    f"{rows.location(i)}: {len(endings)} endings; every row needs the same number, at least "
                    f"two"
                )
            if not all(isinstance(ending, str) and ending.strip() for ending in endings):
                raise DataError(f"{rows.location(i)}: an ending is not text; add it or delete the row")
            indices = [str(index) for index in range(count)]
            if labelled and (name := label_name(rows.columns[self.label][i])) not in indices:
                raise DataError(f"{rows.location(i)}: label {name!r}; use one of {', '.join(indices)}")

        rows = self._read_rows(path, [self.context, *self.endings, *[self.label] * labelled], check)
        endings = [self._endings(rows, i) for i in range(len(rows))]
        labels = None
        if labelled:
            labels = np.array([label_name(value) for value in rows.columns[self.label]], dtype=np.int64)
        ids = [str(index) for index in range(len(rows))]
        return Choices(rows.columns[self.context], [""] * len(rows), endings, labels, ids)

    def _endings(self, rows: Rows, i: int) -> list[str]:
        if len(self.endings) == 1:
            return _check_strings(rows, i, self.endings[0])
        return [rows.columns[column][i] for column in self.endings]


def _check_text(rows: Rows, i: int, column: str) -> None:
    text = rows.columns[column][i]
    if not (isinstance(text, str) and text.strip()):
        problem = "no text" if text is None or text == "" else f"{text!r} is not text"
        raise DataError(f"{rows.location(i)}: {problem} in the column {column!r}; add it or delete the row")


def _check_strings(rows: Rows, i: int, column: str) -> list[str]:
    """Return a list of strings; raise DataError if the value is something else."""
    value = rows.columns[column][i]
    if not (isinstance(value, list) and value and all(isinstance(item, str) for item in value)):
        advice = 'write one such as ["a", "b"]'
        if isinstance(value, str):
            advice += ", in a .jsonl or .parquet file"
        raise DataError(
            f"{rows.location(i)}: {value!r} in the column {column!r} is not a list of strings; {advice}"
        )
    return value


def _parse_answers(rows: Rows, column: str, i: int) -> list[Answer]:
    match rows.columns[column][i]:
        case {"text": list(texts), "answer_start": list(starts)} if len(texts) == len(starts):
            answers = list(map(Answer, texts, starts))
        case list(objects) if all(isinstance(answer, dict) for answer in objects):
            answers = [Answer(answer.get("text"), answer.get("answer_start")) for answer in objects]
        case _:
            answers = [Answer("", -1)]
    if not all(isinstance(text, str) and isinstance(start, int) and text for text, start in answers):
        file = ", in a .jsonl or .parquet file" if isinstance(rows.columns[column][i], str) else ""
        raise DataError(
            f"{rows.location(i)}: the answers have another form than "
            f'{{"text": ["…"], "answer_start": [0]}}; write them so{file}'
        )
    return answers
