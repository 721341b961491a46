"""Custom sentences with a tag for each word."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertie.base.errors import DataError
from bertie.base.memory import Source
from bertie.base.rows import Rows, format_suffix, reject_spreadsheet
from bertie.base.texts import count_noun
from bertie.tasks.conll import TaggedSentences
from bertie.tasks.custom.tables import CustomFiles, check_strings
from bertie.tasks.entities import find_invalid_tag, is_plain
from bertie.tasks.label_types import label_name
from bertie.tasks.ner import Tagging


@dataclass(frozen=True)
class CustomTagging(CustomFiles, Tagging):
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

    @property
    def label_columns(self) -> dict[str, str]:
        return {"tags": self.tags}

    def read(self, path: Source, labelled: bool) -> TaggedSentences:
        """Read a .jsonl or .parquet table.

        `read_conll` reads files with most other suffixes; see `_is_conll`.

        Raises:
            SettingsError: a column is missing.
            DataError: the file cannot be read, a row has no words or not one tag for each word, or
                a tag is not valid.
        """
        if isinstance(path, Path) and _is_conll(path):
            self._check_stops(path, "in CoNLL columns")
            return super().read(path, labelled)

        def check_words(rows: Rows, i: int) -> None:
            words = check_strings(rows, i, self.words, "words")
            if labelled and len(tags := check_strings(rows, i, self.tags, "tags")) != len(words):
                raise DataError(
                    f"{rows.location(i)}: {count_noun(len(tags), 'tag')} for "
                    f"{count_noun(len(words), 'word')}; give one for each"
                )

        plain, known = self.plain, dict[str, None]()  # the tags of the rows that are not skipped

        def check_tags(rows: Rows, i: int) -> None:
            nonlocal plain
            if plain is None:  # the whole file decides
                plain = is_plain(chain.from_iterable(rows.columns[self.tags]))
            tags = rows.columns[self.tags][i]
            if known.keys() >= {*tags}:
                return
            if invalid := find_invalid_tag([*known, *tags], plain):
                raise DataError(f"{rows.location(i)}: {invalid[1]}")
            known.update(dict.fromkeys(tags))

        columns = {self.words: "--column words=NAME"}
        if not labelled:
            words = self._read_rows(path, columns, check_words).columns[self.words]
            return TaggedSentences(words, None, np.arange(len(words) + 1))
        columns |= {self.tags: "--column tags=NAME"}
        rows = self._read_rows(path, columns, check_words, check_tags)
        names = {tag: label_name(tag) for tag in known}
        tags = [[names[tag] for tag in row] for row in rows.columns[self.tags]]
        examples = TaggedSentences.from_tags(rows.columns[self.words], tags, np.arange(len(rows) + 1))
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


def _is_conll(path: Path) -> bool:
    """Return whether to read a file in CoNLL format; otherwise it is a table.

    Raises:
        DataError: it is a csv file, a CoNLL-U file or a spreadsheet.
    """
    reject_spreadsheet(path)
    if format_suffix(path) == ".csv":
        raise DataError(
            f"{path}: a csv file cannot hold the words and tags of a sentence; write a .conll file with "
            f"a word, a tab and its tag in each line, and a blank line after each sentence, or a .jsonl "
            f'file with lines such as {{"words": ["Ada", "slept"], "tags": ["B-PER", "O"]}}'
        )
    if format_suffix(path) == ".conllu":
        raise DataError(
            f"{path}: a CoNLL-U file has other columns; write a .conll file with its words and, for example, "
            f"its parts of speech: grep -E '^([0-9]+[[:space:]]|$)' {shlex.quote(str(path))} | cut -f 2,4"
        )
    return format_suffix(path) not in (".jsonl", ".ndjson", ".parquet", ".json")
