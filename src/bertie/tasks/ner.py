"""Named entity recognition as Section 5.3 fine-tunes for it: a tag for each word, from its first sub-token.

A word is seen with its document around it, in training as in evaluation: the pieces of a document stand in
one row, windows as long as the model can read are laid over it, and each word is tagged in one of them, where
it has most context. Sentence boundaries are not marked; a sentence longer than a window loses nothing. There
is no CRF. Parts of speech, or other plain tags, are told in the same way; only their scores are others.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bertie.base.errors import DataError, ModelError
from bertie.base.files import write_text
from bertie.base.rows import read_lines
from bertie.model.objectives import IGNORE_INDEX
from bertie.tasks.entities import Scheme, entity_scores, find_fault, scheme_of, to_iob2
from bertie.tasks.metrics import accuracy, f1_macro
from bertie.tasks.task import Head, Inputs, Scores, Task
from bertie.text.tokenizer import Encoding, Tokenizer
from bertie.text.vocabulary import Vocabulary

Int64s = npt.NDArray[np.int64]
Tags = Sequence[Sequence[str]]

DOCUMENT_START = "-DOCSTART-"  # CoNLL-2003: in the first column of a line before each document
_STEMS = {"train": ("train",), "dev": ("dev", "devel", "valid", "testa"), "test": ("test", "testb")}


@dataclass(frozen=True)
class TaggedSentences:
    """n sentences in documents; `of` makes them from tags in any scheme.

    words      of each sentence
    tags       of each word, in IOB2, ill-formed where the file's are, or plain; None where nobody knows them
    documents  int64 (d+1,)  sentences of document i: documents[i] to documents[i + 1]
    scheme     that of the file
    """

    words: Sequence[Sequence[str]]
    tags: Tags | None
    documents: Int64s
    scheme: Scheme = "IOB2"

    @classmethod
    def of(cls, words: Sequence[Sequence[str]], tags: Tags, documents: Int64s) -> Self:
        """With tags in which `find_fault` finds no fault."""
        scheme = scheme_of(tags)
        return cls(words, tags if scheme in ("IOB2", "plain") else [*map(to_iob2, tags)], documents, scheme)

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def bounds(self) -> Int64s:
        """int64 (n+1,): the words of sentence i, all words being counted through."""
        return _bounds(np.fromiter(map(len, self.words), np.int64, len(self.words)))


@dataclass(frozen=True, kw_only=True)
class WordWindows(Inputs):
    """Windows over documents.

    word_tokens  int64 (W,)  the token by which each word is tagged: its first piece, in one of the windows
    """

    word_tokens: Int64s


def read_conll(path: Path, labelled: bool = True, plain: bool | None = False) -> TaggedSentences:
    """Read columns cut by tabs or spaces: the word first, its tag last, a blank line after each sentence.

    Without lines of -DOCSTART- the file is one document. Without labels only the words are looked at.
    `plain` is whether the tags are of no entities; None is whatever they are.

    Raises:
        DataError: the file is missing, empty or not UTF-8, a line has one column or not as many as the first
            line, or a tag cannot be read.
    """
    lines = _read_columns(path, labelled, plain)
    words, documents = _cut(lines.words, lines.sentences), np.array(lines.documents, dtype=np.int64)
    if not labelled:
        return TaggedSentences(words, None, documents)
    return TaggedSentences.of(words, _cut(lines.tags, lines.sentences), documents)


class _Columns(NamedTuple):
    """First and last column of a file, the numbers of their lines; the bounds of sentences and documents."""

    words: list[str]
    tags: list[str]
    numbers: list[int]
    sentences: list[int]
    documents: list[int]


def _read_columns(path: Path, tagged: bool, plain: bool | None) -> _Columns:
    words, tags, numbers, sentences, documents = _Columns([], [], [], [0], [0])
    width = 0
    for number, columns in chain(_lines(path), [(0, [DOCUMENT_START])]):
        if not columns or columns[0] == DOCUMENT_START:
            if len(words) > sentences[-1]:
                sentences.append(len(words))
            if columns and len(sentences) - 1 > documents[-1]:
                documents.append(len(sentences) - 1)
            continue
        width = width or len(columns)
        if tagged and len(columns) == 1:
            raise DataError(f"{path}: line {number}: one column only; write a word, a tab and its tag")
        if len(columns) != width:
            raise DataError(
                f"{path}: line {number}: {len(columns)} columns, where the first line has {width}; if words "
                f"hold spaces, cut the columns by tabs"
            )
        words.append(columns[0])
        tags.append(columns[-1])
        numbers.append(number)
    if not words:
        raise DataError(f"{path}: empty: no words")
    fault = find_fault(tags, plain) if tagged else None
    if fault:
        raise DataError(f"{path}: line {numbers[fault[0]]}: {fault[1]}")
    return _Columns(words, tags, numbers, sentences, documents)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Each line's number and columns, none in a blank line. Words may hold other white space."""
    for number, line in enumerate(read_lines(path), start=1):
        line = line.rstrip(" \t")
        yield number, line.split("\t") if "\t" in line else [part for part in line.split(" ") if part]


@dataclass(frozen=True)
class Tagging(Task[TaggedSentences, Tags]):
    """A tag for each word; the labels are those of the training set, in IOB2 or plain.

    plain  whether the tags are of no entities; None where the labels, once known, say it
    """

    plain: bool | None = False

    @property
    def head(self) -> Head:
        return "tagging"

    def file(self, data: Path, part: str) -> Path:
        """train.txt, dev.conll, devel.tsv, eng.testb (CoNLL-2003) and the like: the first that is there."""
        if not data.is_dir():
            return data
        stems = _STEMS.get(part, (part,))
        paths = [data / f"{stem}.{suffix}" for stem in stems for suffix in ("txt", "conll", "tsv")]
        paths += [data / f"eng.{stem}" for stem in stems]
        return next((path for path in paths if path.exists()), paths[0])

    @property
    def predictions_file(self) -> str:
        """Columns, which conlleval reads."""
        return "predictions.conll"

    def read(self, path: Path, labelled: bool) -> TaggedSentences:
        examples = read_conll(path, labelled, self.plain)
        self._name_unknown_tags(examples, path)
        return examples

    def fitted(self, examples: TaggedSentences) -> Self:
        """With the tags of the examples as labels: O unless they are plain, then the others in order."""
        assert examples.tags is not None
        outside = [] if examples.scheme == "plain" else ["O"]
        return self.with_labels([*outside, *sorted(set(chain.from_iterable(examples.tags)) - {"O"})])

    def check_training(self, examples: TaggedSentences, path: Path) -> None:
        """Look for tags that are all the same."""
        if len(self.labels) == 1:
            raise DataError(f"{path}: all words have the first one's tag, {self.labels[0]!r}; add others")

    def _name_unknown_tags(self, examples: TaggedSentences, path: Path) -> None:
        """Say on stderr which tags the model, once its labels are known, can only miss; they are scored."""
        unknown = set(chain.from_iterable(examples.tags or ())) - set(self.labels)
        if self.labels and unknown:
            assert examples.tags is not None
            first = next(i for i, tags in enumerate(examples.tags, 1) if not unknown.isdisjoint(tags))
            names = ", ".join(sorted(unknown))
            print(
                f"{path}: sentence {first}: tags that training does not have, and no answer will: {names}",
                file=sys.stderr,
            )

    def with_labels(self, labels: Sequence[str]) -> Self:
        """With a model's labels in the model's order.

        Raises:
            ModelError: they are not tags of the task's kind.
        """
        fault = find_fault(labels, self.plain)
        if fault:
            raise ModelError(f"the model's label {fault[0]} cannot be used here: {fault[1]}")
        return super().with_labels(labels)

    def encode(self, examples: TaggedSentences, tokenizer: Tokenizer, max_seq_length: int) -> WordWindows:
        """Windows of at most `max_seq_length` tokens, [CLS] and [SEP] among them.

        A word without pieces, such as a control character, is [UNK]. A tag that training has not seen is not
        learnt; it counts in the scores.
        """
        words = list(chain.from_iterable(examples.words))
        encoding = tokenizer.encode_batch(words, add_special_tokens=False)
        sizes = np.diff(encoding.bounds)
        without_pieces = sizes == 0
        sizes[without_pieces] = 1
        word_bounds = _bounds(sizes)
        pieces = np.full(word_bounds[-1], tokenizer.vocabulary.unk_id, dtype=np.int32)
        pieces[~np.repeat(without_pieces, sizes)] = encoding.input_ids

        texts = word_bounds[examples.bounds[examples.documents]]
        windows = cut_into_windows(pieces, texts, tokenizer.vocabulary, max_seq_length)
        input_ids, bounds = windows.input_ids, windows.bounds
        word_tokens = windows.piece_tokens[word_bounds[:-1]]
        labels = None
        if examples.tags is not None:
            numbers = {tag: number for number, tag in enumerate(self.labels)}
            labels = np.full(bounds[-1], IGNORE_INDEX, dtype=np.int64)
            labels[word_tokens] = [
                numbers.get(tag, IGNORE_INDEX) for tag in chain.from_iterable(examples.tags)
            ]
        return WordWindows(input_ids, np.zeros_like(input_ids), bounds, labels, word_tokens=word_tokens)

    def decode(self, examples: TaggedSentences, inputs: Inputs, logits: npt.NDArray[np.float32]) -> Tags:
        """The likeliest label of each word, one by one: nothing keeps an I from following on O."""
        assert isinstance(inputs, WordWindows)
        numbers = logits[inputs.word_tokens].argmax(axis=1)
        return _cut([self.labels[number] for number in numbers.tolist()], examples.bounds.tolist())

    def score(self, examples: TaggedSentences, predictions: Tags) -> Scores:
        """As conlleval: see `entity_scores`. Where gold or predictions were not in IOB2, both now are.

        Of plain tags `accuracy` and `f1_macro`, of all words.
        """
        assert examples.tags is not None
        if examples.scheme == "plain":
            words = [*chain.from_iterable(examples.tags), *chain.from_iterable(predictions)]
            gold, predicted = np.split(np.unique(words, return_inverse=True)[1], 2)
            return {"accuracy": 100 * accuracy(gold, predicted), "f1_macro": 100 * f1_macro(gold, predicted)}
        if examples.scheme != "IOB2" or scheme_of(predictions) in ("IOBES", "BILOU"):
            predictions = [*map(to_iob2, predictions)]
        return entity_scores(examples.tags, predictions)

    def write_predictions(self, examples: TaggedSentences, predictions: Tags, path: Path) -> None:
        """Write word, gold tag where known and prediction, cut by tabs: what `conlleval -d '\\t'` reads."""
        columns = [column for column in (examples.words, examples.tags, predictions) if column is not None]
        rows = zip(*map(chain.from_iterable, columns), strict=True)
        sentences = _cut(["\t".join(map(_cell, row)) for row in rows], examples.bounds.tolist())
        write_text(path, "".join("\n".join(sentence) + "\n\n" for sentence in sentences))

    def read_predictions(self, examples: TaggedSentences, path: Path) -> Tags:
        """Read columns with the examples' words first and the predictions last.

        Raises:
            DataError: as in `read_conll`, or the words are not the examples'.
        """
        lines = _read_columns(path, tagged=True, plain=self.plain)
        words = [_cell(word) for word in chain.from_iterable(examples.words)]
        for number, found, word in zip(lines.numbers, lines.words, words, strict=False):
            if found != word:
                raise DataError(f"{path}: line {number}: the word is {found!r}, but the gold file's {word!r}")
        if len(lines.words) != len(words):
            raise DataError(
                f"{path}: {len(lines.words)} words, but the gold file has {len(words)}; predict all of it"
            )
        return _cut(lines.tags, examples.bounds.tolist())


class Windows(NamedTuple):
    """Rows of P pieces as sequences for a model, with [CLS] and [SEP].

    input_ids     int32 (T,)
    bounds        int64 (N+1,)  cuts them into windows
    piece_tokens  int64 (P,)    each piece's token, in that window where it has most context
    """

    input_ids: npt.NDArray[np.int32]
    bounds: Int64s
    piece_tokens: Int64s


def cut_into_windows(
    pieces: npt.NDArray[np.int32], texts: Int64s, vocabulary: Vocabulary, max_seq_length: int
) -> Windows:
    """Cut the texts, whose pieces `texts` (n+1,) bounds, into windows of at most `max_seq_length` tokens."""
    first, end, scored = lay_windows(texts, max_seq_length - 2)
    bounds = _bounds(end - first + 2)
    input_ids = np.empty(bounds[-1], dtype=np.int32)
    special = np.zeros(bounds[-1], dtype=np.bool_)
    for places, token_id in ((bounds[:-1], vocabulary.cls_id), (bounds[1:] - 1, vocabulary.sep_id)):
        input_ids[places], special[places] = token_id, True
    shifts = np.repeat(first - bounds[:-1] - 1, end - first + 2)  # from a token to its piece
    input_ids[~special] = pieces[(np.arange(bounds[-1]) + shifts)[~special]]

    numbers = np.arange(len(pieces))
    window = np.searchsorted(scored, numbers, side="right") - 1
    return Windows(input_ids, bounds, bounds[window] + 1 + numbers - first[window])


class Layout(NamedTuple):
    """Where windows lie over rows of pieces, all rows being counted through: int64 (N,) each.

    first   its first piece
    end     behind its last piece
    scored  from this piece to before the next window's, its pieces have most context in it
    """

    first: Int64s
    end: Int64s
    scored: Int64s


def lay_windows(bounds: Int64s, room: int) -> Layout:
    """Lay windows of `room` pieces evenly over the texts that `bounds` (n+1,) cuts, half overlapping or more.

    So a piece has a quarter of a window as context on either side, or all there is. Most context is most on
    the scarcer side, as in SQuAD's windows; where the text ends, nothing is scarce.
    """
    sizes = np.diff(bounds)
    surplus = np.maximum(sizes - room, 0)
    steps = -(-surplus // max(room // 2, 1))
    counts = np.minimum(sizes, 1) + steps
    text = np.repeat(np.arange(len(sizes)), counts)
    number = np.arange(len(text)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = bounds[text] + surplus[text] * number // np.maximum(steps[text], 1)
    end = np.minimum(first + room, bounds[text + 1])
    # In the middle of what two windows share; those of two texts share nothing and meet there.
    scored = np.concatenate([first[:1], (end[:-1] + first[1:] + 1) // 2])
    return Layout(first, end, scored)


def word_token_ranges(encoding: Encoding) -> tuple[Int64s, Int64s]:
    """The first piece of each word, and the one behind its last, of texts without special tokens."""
    begins = np.diff(encoding.word_ids, prepend=-1) != 0
    begins[encoding.bounds[:-1][np.diff(encoding.bounds) > 0]] = True
    first = np.flatnonzero(begins)
    return first, np.append(first, len(begins))[1:]


def _cell(word: str) -> str:
    """A word as a column can hold it, and as `write_text` writes it."""
    return re.sub(r"[\t\r\n]", " ", word).encode(errors="backslashreplace").decode()


def _cut(values: Sequence[str], bounds: Iterable[int]) -> list[Sequence[str]]:
    return [values[first:end] for first, end in pairwise(bounds)]


def _bounds(sizes: Int64s) -> Int64s:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])


# Appendix A.3's grid. A window holds some twenty sentences, so an epoch has few steps: the smaller batch and
# the most epochs.
NER = Tagging(
    name="ner",
    labels=(),
    main_metric="f1",
    defaults={"batch_size": 16, "epochs": 4, "max_seq_length": 512, "optimizer": {"learning_rate": 5e-5}},
)
