"""The format of a file.

Formats (a file is one of them throughout):
  plain          the file is one document, its lines are paragraphs
  wrapped        the same, but lines are broken at a fixed width, and blank lines part the paragraphs
  sentences      one sentence a line, blank lines between documents (google-research/bert's layout)
  wikiextractor  `<doc …>` line, title, text, `</doc>` line. The title is dropped: it is no running text, and
                 the paper (A.2) takes text passages only
  wikipedia      an XML dump, `<page>` and `</page>` on lines of their own, as MediaWiki writes it
  jsonl          one JSON object a line, its text under a key, "text" if no other is named
  parquet        a row a document, its text in a column, named likewise
  arrow          the same: the files of a data set saved by Hugging Face's `datasets`
All but the last two may be compressed: .gz, .bz2, .xz, .zst. A file's end always ends a document.
"""

import re
from itertools import pairwise
from pathlib import Path
from typing import Literal

from bertie.base.compression import is_compressed, open_binary
from bertie.corpus.documents import InputError
from bertie.text.sentences import split_sentences

Format = Literal["plain", "wrapped", "sentences", "wikiextractor", "wikipedia", "jsonl", "parquet", "arrow"]
TABLE_FORMATS: dict[str, Format] = {".parquet": "parquet", ".arrow": "arrow"}
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_HEAD_BYTES = 1 << 16
_SENTENCE_FINAL = tuple(".!?;:…。！？।\"'”’»)")
_MAX_WRAPPED_WIDTH = 100  # characters; books are wrapped at 65 to 80
_JSON_ARRAY = re.compile(rb'\[\s*\{\s*"')


def detect_format(path: Path) -> Format:
    """The format of a file, from its name (.jsonl, .parquet, .arrow) and its first 64 kB.

    Plain text tells its layout by its line ends. Where blank lines part it, lines that nearly all end as
    sentences do, and hold hardly more than one each, are `sentences`; short lines that mostly do not are
    `wrapped`.

    Raises:
        DataError: the file is missing, empty, binary or damaged, or one JSON array.
    """
    if path.suffix in TABLE_FORMATS:
        return TABLE_FORMATS[path.suffix]
    head = _read_head(path)
    name = path.with_suffix("").name if is_compressed(path) else path.name
    if name.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    start = head.lstrip()[:1000]
    if start.startswith(b"<doc "):
        return "wikiextractor"
    if start.startswith(b"<mediawiki") or (start.startswith(b"<?xml") and b"<mediawiki" in start):
        return "wikipedia"
    if start.startswith(b'{"'):
        return "jsonl"
    if _JSON_ARRAY.match(start):
        message = f"{path}: one JSON array; write one object a line instead (jq --compact-output '.[]')"
        raise InputError(message, "malformed_documents")
    lines = [line.strip() for line in head.decode("utf-8", errors="ignore").splitlines()]
    inner = [line for line, following in pairwise(lines) if line and following]
    if not inner or "" not in lines[:-1]:
        return "plain"
    final = sum(line.endswith(_SENTENCE_FINAL) for line in inner) / len(inner)
    # All lines, not `inner` alone: between paragraphs parted by blank lines a dialogue may be all of that.
    if final > 0.8 and len(split_sentences("\n".join(lines))) < 1.5 * sum(map(bool, lines)):
        return "sentences"
    narrow = sum(len(line) <= _MAX_WRAPPED_WIDTH for line in inner) / len(inner)
    return "wrapped" if final < 0.5 and narrow > 0.95 else "plain"


def settle_format(path: Path, format: Format | None) -> Format:
    """The `format` given, of a file that has text at all, or else that detected.

    Raises:
        DataError: as in `detect_format`.
    """
    if format is None:
        return detect_format(path)
    if format not in TABLE_FORMATS.values():
        _read_head(path)
    return format


def _read_head(path: Path) -> bytes:
    """The first 64 kB of a file of text; errors as in `detect_format`."""
    with open_binary(path) as file:
        head = file.read(_HEAD_BYTES)
    if not head.removeprefix(BYTE_ORDER_MARK).strip():
        raise InputError(f"{path}: there is no text in this file; leave it out", "empty_files")
    if b"\0" in head:
        message = f"{path}: binary, or text in UTF-16; leave it out, or convert it to UTF-8"
        raise InputError(message, "binary_files")
    return head.removeprefix(BYTE_ORDER_MARK)
