"""Custom texts with entities, given as spans of characters."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertie.base.errors import DataError
from bertie.base.memory import Source
from bertie.base.rows import Rows
from bertie.base.schemas import shorten
from bertie.tasks.conll import TaggedSentences
from bertie.tasks.custom.tables import CustomFiles, check_text
from bertie.tasks.label_types import label_name
from bertie.tasks.ner import Tagging
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.text.words import Span, slice_words, word_spans

# Words do not depend on the vocabulary. Uncased, so that a word does not begin with a mark, such as U+FE0F
# between punctuation and a name.
_SPLITTER = Tokenizer(Vocabulary(SPECIAL_TOKENS))


@dataclass(frozen=True)
class CustomEntities(CustomFiles, Tagging):
    """Texts with entities, in the rows of a table.

    Each text is a document. It is split into words as in prediction, and the words of an entity get the
    tags B-TYPE and I-TYPE.

    text      column of the texts
    entities  column of their entities, a list in each row; see `_parse_entity`
    """

    name: str = "entities"
    labels: tuple[str, ...] = ()
    main_metric: str = "f1"
    defaults: dict[str, Any] = field(default_factory=dict)
    text: str = "text"
    entities: str = "entities"

    @property
    def input_columns(self) -> dict[str, str]:
        return {"text": self.text}

    @property
    def label_columns(self) -> dict[str, str]:
        return {"entities": self.entities}

    def read(self, path: Source, labelled: bool) -> TaggedSentences:
        """Read a table of texts and their entities.

        Raises:
            SettingsError: a column is missing.
            DataError: the file cannot be read, a text is empty, or an entity has another form, does not
                consist of whole words of the text, or overlaps another one.
        """
        spans: list[list[Span]] = []
        words: list[list[str]] = []  # of the rows that are not skipped, like their tags
        tags: list[list[str]] = []

        def check_row_text(rows: Rows, i: int) -> None:
            check_text(rows, i, self.text)

        def read_words(rows: Rows, i: int) -> None:
            if not spans:  # all rows at once, which is faster
                spans.extend(word_spans(rows.columns[self.text], _SPLITTER))
            if labelled:
                tags.append(_tag_words(rows, i, self.text, self.entities, spans[i]))
            words.append(slice_words(rows.columns[self.text][i], spans[i]))

        columns = {self.text: "--text NAME"}
        if labelled:
            columns |= {self.entities: "--column entities=NAME"}
        self._read_rows(path, columns, check_row_text, read_words)
        examples = TaggedSentences(words, tags if labelled else None, np.arange(len(words) + 1))
        self._report_unknown_tags(examples, path)
        return examples


def _tag_words(rows: Rows, i: int, text_column: str, column: str, words: Sequence[Span]) -> list[str]:
    """Return the tag of each word of a row's text."""
    text, entities = rows.columns[text_column][i], rows.columns[column][i]
    if not isinstance(entities, list):
        raise DataError(
            f"{rows.location(i)}: {shorten(entities)} in the column {column!r} is not a list of entities; "
            f"write one, such as [] for none, in a .jsonl or .parquet file"
        )
    tags = ["O"] * len(words)
    for entity in entities:
        start, end, label = _parse_entity(entity, f"{rows.location(i)}, column {column!r}")
        covered = [n for n, (first, last) in enumerate(words) if first < end and start < last]
        problem = ""
        if not 0 <= start < end <= len(text):
            problem = f"is not a part of the text, which has {len(text):,} characters"
        elif not covered:
            problem = "has no word"
        elif words[covered[0]][0] < start or words[covered[-1]][1] > end:
            whole = text[words[covered[0]][0] : words[covered[-1]][1]]
            problem = f"begins or ends inside a word of {shorten(whole)}"
        elif any(tags[n] != "O" for n in covered):
            problem = "overlaps another one, but a word has one tag"
        if problem:
            raise DataError(
                f"{rows.location(i)}: the entity {shorten(text[start:end])} ({start}-{end}) {problem}; "
                f"correct or delete it"
            )
        for n in covered:
            tags[n] = f"{'B' if n == covered[0] else 'I'}-{label}"
    return tags


def _parse_entity(value: Any, location: str) -> tuple[int, int, str]:
    """Return the start, the end and the label of an entity, written as by one of the tools below.

    Characters are counted from 0, and the end is the character after the last one.
    """
    match value:
        case (
            [int(start), int(end), str(label)]  # spaCy, doccano
            | {"start": int(start), "end": int(end), "label": str(label)}  # spaCy, Prodigy, `bertie predict`
            | {"start_offset": int(start), "end_offset": int(end), "label": str(label)}  # doccano
            | {"start": int(start), "end": int(end), "labels": [str(label)]}  # Label Studio
        ) if label.strip():
            return start, end, label_name(label)
    raise DataError(
        f'{location}: {shorten(value)} is not an entity; write it as [0, 3, "PER"] or '
        f'{{"start": 0, "end": 3, "label": "PER"}}'
    )
