"""Answers -> text for people, JSON lines, tables, CoNLL columns: one row for each record, in order."""

import csv
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TextIO

from bertie.base.errors import SettingsError
from bertie.inference.records import DELIMITERS, Record
from bertie.inference.results import Answer, Choice, Entity, Label, MaskPrediction, Method, TaggedWord

OutputFormat = Literal["text", "jsonl", "csv", "tsv", "conll"]
# A record and what the method gives for it; where it is blank an empty list, of a number None.
Answered = Iterable[tuple[Record, Any]]

_FORMATS: dict[str, OutputFormat] = {".jsonl": "jsonl", ".csv": "csv", ".tsv": "tsv", ".conll": "conll"}
# The columns of a table; those behind `prediction` belong to the best answer.
_COLUMNS: dict[Method, tuple[str, ...]] = {
    "fill_mask": ("prediction",),
    "next_sentence": ("prediction",),
    "classify": ("prediction", "score"),
    "rate": ("prediction",),
    "tag": ("prediction",),
    "answer": ("prediction", "start", "end", "score"),
    "choose": ("prediction", "ending", "score"),
}


def output_format(path: Path) -> OutputFormat:
    """The format that the name of a file to be written says.

    Raises:
        SettingsError: it says none.
    """
    if path.suffix not in _FORMATS:
        raise SettingsError(f"--output {path}: name it {', '.join(_FORMATS)}")
    return _FORMATS[path.suffix]


def write_results(
    answered: Answered, file: TextIO, format: OutputFormat, method: Method, is_multilabel: bool
) -> None:
    """Write all answers, each as soon as it is there.

    In JSON lines a row keeps its own columns and has its answers under `prediction`; a table has the columns
    of the first row and the best answer (see `_best`), whose columns are `prediction_score` and so on where
    the row has one of that name.
    """
    if format in DELIMITERS:
        _write_table(answered, file, DELIMITERS[format], method, is_multilabel)
        return
    for record, answers in answered:
        if format == "jsonl":
            print(_json({**record.row, "prediction": as_json(answers)}), file=file)
        elif format == "conll":
            print("".join(f"{word.word}\t{word.tag}\n" for word in answers), file=file)
        else:
            print(*_lines(record, answers, method), sep="\n", file=file)


def as_json(answers: Any) -> Any:
    """Answers as JSON has them: objects under the names of their fields."""
    if isinstance(answers, list):
        return [as_json(answer) for answer in answers]
    return answers._asdict() if hasattr(answers, "_asdict") else answers


def _write_table(
    answered: Answered, file: TextIO, delimiter: str, method: Method, is_multilabel: bool
) -> None:
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    first, *others = _COLUMNS[method]
    added: list[str] = []
    names: list[str] = []
    for record, answers in answered:
        if not names:
            added = [first, *(f"{first}_{name}" if name in record.row else name for name in others)]
            names = list(dict.fromkeys([*record.row, *added]))
            writer.writerow(names)
        row = {**record.row, **dict.fromkeys(added, "")}
        if answers not in ([], None):
            row |= dict(zip(added, _best(answers, method, is_multilabel), strict=False))
        writer.writerow([_cell(row.get(name, "")) for name in names])


def _best(answers: Any, method: Method, is_multilabel: bool) -> tuple[Any, ...]:
    """The pieces for all [MASK]s; all entities; all labels likelier than not; otherwise the best answer."""
    match method:
        case "fill_mask":
            return (" ".join(guesses[0].token_str for guesses in answers),)
        case "next_sentence" | "rate":
            return (answers,)
        case "tag":
            return (as_json(answers),)
        case "classify" if is_multilabel:
            return ([label.label for label in answers if label.score > 0.5],)
        case _:
            return tuple(answers[0])


def _cell(value: Any) -> Any:
    return _json(value) if isinstance(value, list | dict) else value


def _json(value: Any) -> str:
    """In one line. What Parquet has besides, such as decimals, becomes strings."""
    return json.dumps(_finite(value), ensure_ascii=False, default=str)


def _finite(value: Any) -> Any:
    """The same with null for NaN and infinities, which JSON has not."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lines(record: Record, answers: Any, method: Method) -> Iterator[str]:
    """The text, and below it its answers; the text again for each further [MASK]."""
    asked = [text for text in record.texts if isinstance(text, str)]
    title = asked[0] if method == "answer" else " | ".join(asked)
    if method in ("next_sentence", "rate"):
        yield title
        if answers is not None:
            yield f"  {answers:.4g}"
        return
    for group in answers if method == "fill_mask" and answers else [answers]:
        yield title
        for answer in group:
            yield f"  {answer.score:6.1%}  {_shown(answer)}"


def _shown(answer: MaskPrediction | Label | Entity | TaggedWord | Answer | Choice) -> str:
    match answer:
        case MaskPrediction():
            return answer.sequence
        case Label():
            return answer.label
        case Entity():
            return f"{answer.label}  {answer.text}  ({answer.start}-{answer.end})"
        case TaggedWord():
            return f"{answer.tag}  {answer.word}"
        case Answer():
            return f"{answer.text}  ({answer.start}-{answer.end})" if answer.text else "(no answer)"
        case Choice():
            return answer.ending
