"""Read and write tagged sentences in CoNLL format.

Each line has a word and its tag.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from bertie.base.arrays import Int64s
from bertie.base.errors import DataError
from bertie.base.files import write_text
from bertie.base.rows import read_held_lines
from bertie.base.texts import count_noun
from bertie.model.sequences import cumulative_bounds
from bertie.tasks.entities import Scheme, detect_scheme, find_invalid_tag, to_iob2

Tags = Sequence[Sequence[str]]  # of each word of each sentence

DOCUMENT_START = "-DOCSTART-"  # CoNLL-2003: the first column of a line before each document
# The first and the last name in a header.
_HEADER = re.compile(r"(word|token|form)s? ([a-z]+_)?(tag|label|pos|upos|xpos|ner)s?", re.IGNORECASE)


@dataclass(frozen=True)
class TaggedSentences:
    """n sentences in d documents; `from_tags` accepts the tags of any scheme.

    words            the words of each sentence
    tags             the tags of each sentence, in IOB2 (ill-formed where the file is) or plain;
                     None where unknown
    document_bounds  int64 (d+1,); document i is sentences document_bounds[i] to before
                     document_bounds[i + 1]
    scheme           the scheme of the file
    """

    words: Sequence[Sequence[str]]
    tags: Tags | None
    document_bounds: Int64s
    scheme: Scheme = "IOB2"

    @classmethod
    def from_tags(cls, words: Sequence[Sequence[str]], tags: Tags, document_bounds: Int64s) -> Self:
        """Convert tags of any scheme to IOB2; `find_invalid_tag` must accept them."""
        scheme = detect_scheme(tags)
        if scheme not in ("IOB2", "plain"):
            tags = [*map(to_iob2, tags)]
        return cls(words, tags, document_bounds, scheme)

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def bounds(self) -> Int64s:
        """int64 (n+1,): sentence i is words bounds[i] to bounds[i + 1] of all words."""
        return cumulative_bounds(np.fromiter(map(len, self.words), np.int64, len(self.words)))

    def by_sentence(self, values: Sequence[str]) -> list[Sequence[str]]:
        """Group values, one for each word, by sentence."""
        return _split(values, self.bounds.tolist())


def read_conll(path: Path, labelled: bool = True, plain: bool | None = False) -> TaggedSentences:
    """Read a file in CoNLL format, with a word in each line.

    Columns are separated by tabs or spaces; the first one is the word, the last one its tag. A
    blank line ends a sentence. A line that begins with -DOCSTART- begins a document; without such
    lines, the file is one document.

    Args:
        path: the file.
        labelled: whether to read the tags; otherwise only the words are read.
        plain: whether the tags must be plain or mark entities; None allows either.

    Raises:
        DataError: the file is missing, empty or not UTF-8, a line has only one column, or not as
            many as the first line, or a tag is not valid.
    """
    columns = _read_columns(path, labelled, plain)
    words = _split(columns.words, columns.sentence_bounds)
    document_bounds = np.array(columns.document_bounds, dtype=np.int64)
    if not labelled:
        return TaggedSentences(words, None, document_bounds)
    return TaggedSentences.from_tags(words, _split(columns.tags, columns.sentence_bounds), document_bounds)


class _Columns(NamedTuple):
    """The first and the last column of a file.

    line_numbers     the line of each word, from 1
    sentence_bounds  in words
    document_bounds  in sentences
    """

    words: list[str]
    tags: list[str]
    line_numbers: list[int]
    sentence_bounds: list[int]
    document_bounds: list[int]


def _read_columns(path: Path, tagged: bool, plain: bool | None) -> _Columns:
    words, tags, line_numbers, sentence_bounds, document_bounds = _Columns([], [], [], [0], [0])
    width = 0
    # A document start after the last line ends the last sentence and the last document.
    for line_number, columns in chain(_read_fields(path), [(0, [DOCUMENT_START])]):
        if not columns or columns[0] == DOCUMENT_START:
            if len(words) > sentence_bounds[-1]:
                sentence_bounds.append(len(words))
            if columns and len(sentence_bounds) - 1 > document_bounds[-1]:
                document_bounds.append(len(sentence_bounds) - 1)
            continue
        width = width or len(columns)
        if not words and columns[0].startswith('{"'):
            raise DataError(f"{path}, line {line_number}: JSON; give the file a name that ends in .jsonl")
        if tagged and len(columns) == 1:
            raise DataError(f"{path}, line {line_number}: only one column; write a word, a tab and its tag")
        if len(columns) != width:
            raise DataError(
                f"{path}, line {line_number}: {count_noun(len(columns), 'column')}, but the first line has "
                f"{width}; delete comments, and if words contain spaces, separate the columns by tabs"
            )
        words.append(columns[0])
        tags.append(columns[-1])
        line_numbers.append(line_number)
    if not words:
        raise DataError(f"{path}: no words in the file; write a word and its tag in each line")
    if tagged and (invalid := find_invalid_tag(tags, plain)):
        index, reason = invalid
        header = "" if index else "; if this is a header, delete it, and keep the words in the first column"
        raise DataError(f"{path}, line {line_numbers[index]}: {reason}{header}")
    # Plain tags may be any text, such as the tag in a header.
    if tagged and _HEADER.fullmatch(f"{words[0]} {tags[0]}") and tags.count(tags[0]) == 1:
        raise DataError(
            f"{path}, line {line_numbers[0]}: {words[0]!r} with the tag {tags[0]!r} is a header; delete it"
        )
    return _Columns(words, tags, line_numbers, sentence_bounds, document_bounds)


def _read_fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each line; a blank line has no fields.

    Only tabs and spaces separate: words may contain other white space.
    """
    for line_number, line in enumerate(read_held_lines(path), start=1):
        line = line.rstrip(" \t")
        yield line_number, line.split("\t") if "\t" in line else [part for part in line.split(" ") if part]


def write_tags(examples: TaggedSentences, predictions: Tags, path: Path) -> None:
    """Write columns separated by tabs: word, gold tag where known, and prediction.

    `conlleval -d '\\t'` reads such files.
    """
    columns = [column for column in (examples.words, examples.tags, predictions) if column is not None]
    rows = zip(*map(chain.from_iterable, columns), strict=True)
    sentences = examples.by_sentence(["\t".join(map(conll_cell, row)) for row in rows])
    write_text(path, "".join("\n".join(sentence) + "\n\n" for sentence in sentences))


def read_tags(examples: TaggedSentences, path: Path, plain: bool | None) -> Tags:
    """Read predicted tags, the last column of a file.

    The first column has the examples' words. `plain` is as in `read_conll`.

    Raises:
        DataError: the file cannot be read (see `read_conll`), or its words differ from the words of
            the examples.
    """
    columns = _read_columns(path, tagged=True, plain=plain)
    gold_words = [conll_cell(word) for word in chain.from_iterable(examples.words)]
    for line_number, word, gold_word in zip(columns.line_numbers, columns.words, gold_words, strict=False):
        if word != gold_word:
            raise DataError(
                f"{path}, line {line_number}: the word is {word!r}, but the gold file has "
                f"{gold_word!r}; keep the gold file's words and their order"
            )
    if len(columns.words) != len(gold_words):
        raise DataError(
            f"{path}: {count_noun(len(columns.words), 'word')}, but the gold file has {len(gold_words):,}; "
            f"give each word a prediction"
        )
    return examples.by_sentence(columns.tags)


def conll_cell(word: str) -> str:
    """Replace the separators in a word, and encode it as `write_text` does."""
    return re.sub(r"[\t\r\n]", " ", word).encode(errors="backslashreplace").decode()


def _split(values: Sequence[str], bounds: Iterable[int]) -> list[Sequence[str]]:
    return [values[first:end] for first, end in pairwise(bounds)]
