"""Custom questions with answers in their contexts."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertie.base.errors import DataError
from bertie.base.memory import Source, is_missing
from bertie.base.rows import Rows, format_suffix
from bertie.model.formats.directory import ModelMetadata
from bertie.tasks.custom.tables import CustomFiles, check_text
from bertie.tasks.squad.questions import Answer, Questions, has_text_at, read_questions
from bertie.tasks.squad.task import QuestionAnswering


@dataclass(frozen=True)
class CustomQuestionAnswering(CustomFiles, QuestionAnswering):
    """Questions with answers in their contexts, in a table or in SQuAD's JSON.

    identifier  column of the questions' ids; where there is none, the number of the row is the id
    question    column of the questions
    context     column of the contexts
    answers     column of the answers, in one of the forms of `_parse_answers`
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

    @property
    def label_columns(self) -> dict[str, str]:
        return {"identifier": self.identifier, "answers": self.answers}

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
        roles = {self.question: "question", self.context: "context"}
        roles |= {self.answers: "answers"} if labelled else {}
        if chosen := self.identifier != "id":
            roles = {self.identifier: "identifier"} | roles
        columns = {column: f"--column {role}=NAME" for column, role in roles.items()}
        ids: dict[str, None] = {}  # of the rows that are not skipped

        def check(rows: Rows, i: int) -> None:
            for column in (self.question, self.context):
                check_text(rows, i, column)
            if labelled:
                context = rows.columns[self.context][i]
                answers = _parse_answers(rows, self.answers, context, i)
                if answers and not has_text_at(context, *answers[0]):
                    text, start = answers[0]
                    place = "in the context" if start < 0 else f"at character {start} of the context"
                    raise DataError(
                        f"{rows.location(i)}: the answer {text!r} is not {place}; correct or delete the row"
                    )
            identifier = rows.columns[self.identifier][i]
            is_unnamed = is_missing(identifier) or identifier == ""  # an empty cell of a csv file
            name = str(rows.numbers[i] if is_unnamed else identifier)
            if name in ids:
                raise DataError(
                    f"{rows.location(i)}: a second question has the id {name!r}; rename one, since "
                    f"predictions are matched by id"
                )
            ids[name] = None

        rows = self._read_rows(path, columns, check, optional=[] if chosen else [self.identifier])
        contexts = rows.columns[self.context]
        index_of = {context: index for index, context in enumerate(dict.fromkeys(contexts))}
        answers = None
        if labelled:
            answers = [_parse_answers(rows, self.answers, context, i) for i, context in enumerate(contexts)]
        return Questions(
            list(ids),
            rows.columns[self.question],
            list(index_of),
            np.array([index_of[context] for context in contexts], dtype=np.int64),
            answers,
            str(path),
        )

    def fitted(self, examples: Questions) -> Self:
        """Return this task as SQuAD v2.0 if a question has no answer, otherwise as v1.1."""
        return replace(self, null_threshold=0.0 if examples.is_impossible.any() else None)

    def fitted_to_model(self, metadata: ModelMetadata) -> Self:
        """Return this task as the model's version of SQuAD, with its null threshold."""
        return replace(super().fitted_to_model(metadata), null_threshold=metadata.null_threshold)


def _parse_answers(rows: Rows, column: str, context: str, i: int) -> list[Answer]:
    """Return the answers of a row.

    The value is a list of {"text", "answer_start"} objects, as in SQuAD; an object with two lists, as in the
    copy of SQuAD by Hugging Face; or a text or a list of texts. A text without a position is taken to be at
    its first occurrence in the context, or at -1 if there is none.
    """
    value = rows.columns[column][i]
    if isinstance(value, str):
        value = [value.strip()] if value.strip() else []
    match value:
        case {"text": list(texts), "answer_start": list(starts)} if len(texts) == len(starts):
            answers = list(map(Answer, texts, starts))
        case list(objects) if all(isinstance(answer, dict) for answer in objects):
            answers = [Answer(answer.get("text"), answer.get("answer_start")) for answer in objects]
        case list(texts) if all(isinstance(text, str) for text in texts):
            answers = [Answer(text, context.find(text)) for text in texts]
        case _:
            answers = [Answer("", -1)]
    if not all(isinstance(text, str) and isinstance(start, int) and text for text, start in answers):
        raise DataError(
            f"{rows.location(i)}: the answers have another form than "
            f'{{"text": ["…"], "answer_start": [0]}} or a text ("" if there is none); write them so'
        )
    return answers
