"""Write results as text, JSON lines, tables or CoNLL columns, record by record."""

import csv
import json
import math
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any, Literal, TextIO

from bertie.base.outputs import check_suffix
from bertie.base.rows import DELIMITERS
from bertie.inference.records import Record, reject_column
from bertie.inference.results import (
    Answer,
    Choice,
    Entity,
    Label,
    MaskPrediction,
    Method,
    Result,
    TaggedWord,
)
from bertie.tasks.conll import conll_cell

OutputFormat = Literal["text", "jsonl", "csv", "tsv", "conll"]
# Pairs of a record and its results from `answer_records`.
AnsweredRecords = Iterable[tuple[Record, Any]]

_FORMATS: dict[str, OutputFormat] = {".jsonl": "jsonl", ".csv": "csv", ".tsv": "tsv", ".conll": "conll"}
# The columns added to a table; the columns after `prediction` describe the best result.
_COLUMNS: dict[Method, tuple[str, ...]] = {
    "fill_mask": ("prediction",),
    "next_sentence": ("prediction",),
    "classify": ("prediction", "score"),
    "regress": ("prediction",),
    "tag": ("prediction",),
    "answer": ("prediction", "start", "end", "score"),
    "choose": ("prediction", "ending", "score"),
}


def output_format(path: Path) -> OutputFormat:
    """Return the format that an output file's suffix indicates.

    Raises:
        SettingsError: no format has this suffix.
    """
    return _FORMATS[check_suffix(path, _FORMATS)]


def with_free_columns(records: Iterable[Record], format: OutputFormat, method: Method) -> Iterator[Record]:
    """Yield records that have no column with the name of a column for the results.

    The results are in the column `prediction`. A table also has columns such as `score`, or
    `prediction_score` if the first row already has a column `score`.

    Args:
        records: the records to answer.
        format: the format of the output; text and CoNLL have no columns.
        method: the main method of the model.

    Raises:
        DataError: a record has a column of such a name.
    """
    added = ["prediction"] if format == "jsonl" else []
    for record in records:
        if format in DELIMITERS and not added:
            added = _result_columns(record.row, method)
        for name in added:
            reject_column(name, record.row, record.location)
        yield record


def write_results(
    answered: AnsweredRecords,
    file: TextIO,
    format: OutputFormat,
    method: Method,
    thresholds: Mapping[str, float] | None = None,
    columns: Sequence[str] = (),
) -> None:
    """Write the results of each record as soon as they are computed.

    A JSON line holds the columns of the record's row, and all its results under `prediction`. A
    table has the columns of the first row and columns for the best result (see `_best_cells`); columns
    that only later rows have are reported on standard error and left out. The columns of the results have
    the names in `with_free_columns`.

    Args:
        answered: the records with their results.
        file: the file to write to.
        format: the format of the file.
        method: the main method of the model.
        thresholds: of a multi-label model, the probability above which a text has each label; otherwise
            None.
        columns: the columns of the input, for the header of a table without rows.
    """
    if format in DELIMITERS:
        _write_table(answered, file, DELIMITERS[format], method, thresholds, columns)
        return
    for record, results in answered:
        if format == "jsonl":
            print(dump_json({**record.row, "prediction": as_json(results)}), file=file)
        elif format == "conll":
            print("".join(f"{conll_cell(word.word)}\t{word.tag}\n" for word in results), file=file)
        else:
            print(*_text_lines(record, results, method), sep="\n", file=file)


def as_json(results: Any) -> Any:
    """Convert results to JSON values: each result becomes an object with its fields."""
    if isinstance(results, list | tuple):
        return [as_json(result) for result in results]
    return asdict(results) if isinstance(results, Result) else results


def _write_table(
    answered: AnsweredRecords,
    file: TextIO,
    delimiter: str,
    method: Method,
    thresholds: Mapping[str, float] | None,
    columns: Sequence[str],
) -> None:
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    added: list[str] = []
    header: list[str] = []
    left_out: set[str] = set()
    for record, results in answered:
        if not header:
            added = _result_columns(record.row, method)
            header = [*record.row, *added]
            writer.writerow(header)
        for name in record.row.keys() - left_out.union(header):
            left_out.add(name)
            print(
                f"{record.location}: the first row has no column {name!r}, so the table leaves it out; "
                "a .jsonl file keeps it",
                file=sys.stderr,
            )
        row = {**record.row, **dict.fromkeys(added, "")}
        if results not in (None, ()):
            row |= dict(zip(added, _best_cells(results, method, thresholds), strict=False))
        writer.writerow([_to_cell(row.get(name, "")) for name in header])
    if not header:
        writer.writerow([*columns, *_result_columns(columns, method)])


def _result_columns(row: Container[str], method: Method) -> list[str]:
    """Return the columns that a table has for the results.

    They depend on the columns of its first row.
    """
    main, *others = _COLUMNS[method]
    return [main, *(f"{main}_{name}" if name in row else name for name in others)]


def _best_cells(results: Any, method: Method, thresholds: Mapping[str, float] | None) -> tuple[Any, ...]:
    """Return the cells of a table for a record's best result.

    These are the best tokens of all masks; all entities or words; of a multi-label model, the list of the
    labels with a probability above their thresholds and the list of these probabilities; otherwise the fields
    of the first result.
    """
    match method:
        case "fill_mask":
            return (" ".join(predictions[0].token_str for predictions in results),)
        case "next_sentence" | "regress":
            return (results,)
        case "tag":
            return (as_json(results),)
        case "classify" if thresholds is not None:
            assigned = [label for label in results if label.score > thresholds[label.label]]
            return [label.label for label in assigned], [label.score for label in assigned]
        case _:
            return astuple(results[0])


def _to_cell(value: Any) -> Any:
    return dump_json(value) if isinstance(value, list | dict) else value


def dump_json(value: Any) -> str:
    """Format JSON in one line.

    Types that only Parquet has, such as decimals, become strings.
    """
    return json.dumps(_without_nan(value), ensure_ascii=False, default=str)


def _without_nan(value: Any) -> Any:
    """Replace NaN and infinities, which JSON cannot express, with None."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text_lines(record: Record, results: Any, method: Method) -> Iterator[str]:
    """Yield the texts, then one line for each result; repeat both for each [MASK]."""
    texts = [text for text in record.texts if isinstance(text, str)] or [" ".join(record.texts[0])]
    title = texts[0] if method == "answer" else " | ".join(texts)
    if method in ("next_sentence", "regress"):
        yield title
        if results is not None:
            yield f"  {results:.4g}"
        return
    for group in results if method == "fill_mask" and results else [results]:
        yield title
        for result in group:
            yield f"  {result.score:6.1%}  {_format(result)}"


def _format(result: MaskPrediction | Label | Entity | TaggedWord | Answer | Choice) -> str:
    match result:
        case MaskPrediction():
            return result.sequence
        case Label():
            return result.label
        case Entity():
            return f"{result.label}  {result.text}  ({result.start}-{result.end})"
        case TaggedWord():
            return f"{result.tag}  {result.word}"
        case Answer():
            return f"{result.text}  ({result.start}-{result.end})" if result.text else "(no answer)"
        case Choice():
            return result.ending
