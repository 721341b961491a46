"""The formats of input files, and how a file's format is detected.

A whole file has one format, and the end of a file always ends a document:

  plain          The file is one document; each line is a paragraph.
  wrapped        The file is one document; its lines are broken at a fixed width, and blank lines
                 separate the paragraphs.
  sentences      One sentence per line, blank lines between documents (the layout of
                 google-research/bert).
  wikiextractor  A `<doc …>` line, the title, the text, a `</doc>` line. The title is dropped, since
                 Appendix A.2 of the paper uses text passages only.
  wikipedia      An XML dump of MediaWiki: `<page>` elements, of which namespace 0 has the articles.
  jsonl          One JSON object per line, its text under a key ("text" by default).
  csv, tsv       A table whose first line has the names of the columns. One document per row, its text
                 in a column ("text" by default). Fields may be quoted, and then hold line breaks.
  parquet        One document per row, its text in a column ("text" by default).
  arrow          The same, as saved by Hugging Face's `datasets`.

Files of all formats except the last two may be compressed: .gz, .bz2, .xz or .zst.
"""

import codecs
import re
from itertools import pairwise
from pathlib import Path
from typing import Literal

from bertie.base.compression import open_binary
from bertie.base.rows import format_suffix
from bertie.corpus.documents import InputError
from bertie.text.sentences import split_sentences

Format = Literal[
    "plain", "wrapped", "sentences", "wikiextractor", "wikipedia", "jsonl", "csv", "tsv", "parquet", "arrow"
]
# By file name suffix.
TABLE_FORMATS: dict[str, Format] = {".parquet": "parquet", ".arrow": "arrow"}
DELIMITED_FORMATS: dict[str, Format] = {".csv": "csv", ".tsv": "tsv"}
TABLES = TABLE_FORMATS | DELIMITED_FORMATS
TEXT_FORMATS = DELIMITED_FORMATS | {".jsonl": "jsonl", ".ndjson": "jsonl"}
ROW_FORMATS = {*TABLE_FORMATS.values(), *TEXT_FORMATS.values()}

_HEAD_BYTES = 1 << 16
_SENTENCE_FINAL = tuple(".!?;:…。！？।\"'”’»)")
_MAX_WRAPPED_WIDTH = 100  # characters; books are wrapped at 65 to 80
_JSON_OBJECT = re.compile(rb'\{\s*"')
_JSON_ARRAY = re.compile(rb'\[\s*\{\s*"')
_HTML = re.compile(rb"(<\?xml[^>]*>\s*)?<(!doctype\s+)?html\b", re.IGNORECASE)


def detect_format(path: Path) -> Format:
    """Detect the format of a file from its name and its first 64 kB.

    Raises:
        DataError: the file is missing, empty, binary, damaged, a single JSON array, or HTML or other XML.
    """
    if format := TABLE_FORMATS.get(path.suffix.lower()):
        return format
    head = _read_head(path)
    if format := TEXT_FORMATS.get(format_suffix(path)):
        return format
    start = head.lstrip()[:1000]
    if start.startswith(b"<doc "):
        return "wikiextractor"
    if start.startswith(b"<mediawiki") or (start.startswith(b"<?xml") and b"<mediawiki" in head):
        return "wikipedia"
    if _JSON_OBJECT.match(start):
        return "jsonl"
    if _JSON_ARRAY.match(start) or (format_suffix(path) == ".json" and start.startswith(b"[")):
        values = "'.[]'" if _JSON_ARRAY.match(start) else "'{text: .[]}'"
        message = f"{path}: a single JSON array; write one object per line (jq --compact-output {values})"
        raise InputError(message, "malformed_documents")
    if (is_html := _HTML.match(start)) or start.startswith(b"<?xml"):
        problem = f"{'an HTML page' if is_html else 'an XML file'}, whose tags would become words"
        raise InputError(f"{path}: {problem}; convert it to plain text", "binary_files")
    return _detect_line_layout(head.decode("utf-8", errors="ignore"))


def resolve_format(path: Path, format: Format | None, column: str | None = None) -> Format:
    """Return `format`, or the detected format if it is None.

    Args:
        path: the file.
        format: its format; None to detect it.
        column: a key or column that the file needs besides its text.

    Raises:
        DataError: the format cannot be detected (see `detect_format`), it has no columns, or a file
            of text is missing, empty, binary or damaged.
    """
    if format is None:
        format = detect_format(path)
    elif format not in TABLE_FORMATS.values():
        _read_head(path)
    if column and format not in ROW_FORMATS:
        raise InputError(f"{path}: {format} text, without a column {column!r}; remove it from the inputs")
    return format


def _detect_line_layout(text: str) -> Format:
    """Tell `plain`, `wrapped` and `sentences` apart by how lines end.

    Only text with blank lines can be one of the last two. Lines that nearly all end like sentences,
    and hold hardly more than one each, are `sentences`. Short lines that mostly do not end like
    sentences are `wrapped`.
    """
    lines = [line.strip() for line in text.splitlines()]
    inner_lines = [line for line, following in pairwise(lines) if line and following]
    if not inner_lines or "" not in lines[:-1]:
        return "plain"
    final = sum(line.endswith(_SENTENCE_FINAL) for line in inner_lines) / len(inner_lines)
    # Count sentences in all lines: in text whose paragraphs are single lines, the few inner lines
    # may all be dialogue, which looks like one sentence per line.
    # Sentences end with "\n" only, and the other formats with any line break of `str.splitlines`.
    if final > 0.8 and "\n" in text and len(split_sentences("\n".join(lines))) < 1.5 * sum(map(bool, lines)):
        return "sentences"
    narrow = sum(len(line) <= _MAX_WRAPPED_WIDTH for line in inner_lines) / len(inner_lines)
    return "wrapped" if final < 0.5 and narrow > 0.95 else "plain"


def _read_head(path: Path) -> bytes:
    """Read the first 64 kB of a text file that are not blank.

    A byte order mark is left out.

    Raises:
        DataError: the file is missing, empty, binary or damaged.
    """
    with open_binary(path) as file:
        head = file.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8)
        while head.isspace():
            head = file.read(_HEAD_BYTES)
    if not head:
        raise InputError(f"{path}: the file holds no text; remove it from the inputs", "empty_files")
    if b"\0" in head or head.startswith((b"%PDF-", rb"{\rtf")):
        problem = "a binary, PDF or RTF file, or text in UTF-16"
        message = f"{path}: {problem}; remove it from the inputs, or convert it to text in UTF-8"
        raise InputError(message, "binary_files")
    return head
