"""Entity recognition and other tagging of words (Section 5.3, fine-tuning).

Each word has a tag, which the model predicts from the word's first token. In training and in
evaluation, the model reads each word in the context of its document: windows of the model's
sequence length are placed over the document (see `windows`), and each word is tagged in the window
where it has the most context. Sentence boundaries are not marked, and a sentence longer than a
window is tagged completely. There is no CRF. `entities` finds and scores the entities, as conlleval
does. Parts of speech and other plain tags are predicted in the same way, but scored by accuracy.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bertie.base.errors import DataError, ModelError
from bertie.base.files import write_text
from bertie.base.memory import Source
from bertie.base.rows import read_held_lines
from bertie.model.objectives import IGNORE_INDEX
from bertie.tasks.entities import (
    EntitySpan,
    Scheme,
    count_entities,
    detect_scheme,
    entity_scores,
    find_entities,
    find_invalid_tag,
    to_iob2,
)
from bertie.tasks.error_analysis import (
    ErrorAnalysis,
    LabelScores,
    Mistake,
    analyze_classes,
    join_names,
    largest_errors,
    probability_at,
    sample_confusions,
    shorten,
    top_probabilities,
)
from bertie.tasks.metrics import accuracy, f1_macro
from bertie.tasks.task import Float64s, Head, Inputs, Scores, Task
from bertie.tasks.windows import cumulative_bounds, split_into_windows
from bertie.text.encoding import Encoding
from bertie.text.tokenizer import Tokenizer

Int64s = npt.NDArray[np.int64]
Tags = Sequence[Sequence[str]]  # of each word of each sentence

DOCUMENT_START = "-DOCSTART-"  # CoNLL-2003: the first column of a line before each document
_STEMS = {"train": ("train",), "dev": ("dev", "devel", "valid", "testa"), "test": ("test", "testb")}


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


@dataclass(frozen=True, kw_only=True)
class WordWindows(Inputs):
    """Windows over documents with W words.

    word_positions  int64 (W,), index in `input_ids` of the token that tags each word: its first
                    one, in the window where it has the most context
    num_sentences   number of sentences in the documents
    """

    word_positions: Int64s
    num_sentences: int

    @property
    def num_batch_units(self) -> int:
        """The number of sentences: a window holds several, and overlaps its neighbours."""
        return self.num_sentences


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
        if tagged and len(columns) == 1:
            raise DataError(f"{path}, line {line_number}: only one column; write a word, a tab and its tag")
        if len(columns) != width:
            raise DataError(
                f"{path}, line {line_number}: {len(columns)} columns, but the first line has {width}; if "
                f"words contain spaces, separate the columns by tabs"
            )
        words.append(columns[0])
        tags.append(columns[-1])
        line_numbers.append(line_number)
    if not words:
        raise DataError(f"{path}: no words in the file; write a word and its tag in each line")
    if tagged and (invalid := find_invalid_tag(tags, plain)):
        index, reason = invalid
        raise DataError(f"{path}, line {line_numbers[index]}: {reason}")
    return _Columns(words, tags, line_numbers, sentence_bounds, document_bounds)


def _read_fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each line; a blank line has no fields.

    Only tabs and spaces separate: words may contain other white space.
    """
    for line_number, line in enumerate(read_held_lines(path), start=1):
        line = line.rstrip(" \t")
        yield line_number, line.split("\t") if "\t" in line else [part for part in line.split(" ") if part]


@dataclass(frozen=True)
class Tagging(Task[TaggedSentences, Tags]):
    """Tasks that tag each word; the labels are the tags of the training examples.

    Predictions are the tags of each sentence.

    plain  whether the tags must be plain or mark entities; None until the labels are known
    """

    plain: bool | None = False

    @property
    def head(self) -> Head:
        """A linear layer on every token."""
        return "tagging"

    @property
    def predictions_file(self) -> str:
        """A file of columns, which conlleval reads."""
        return "predictions.conll"

    def file(self, data: Path, part: str) -> Path:
        """Return the first existing file with a usual name for the part.

        Usual names are train.txt, dev.conll, devel.tsv, eng.testb (CoNLL-2003) and the like. If no
        file exists, return the first of the usual names.
        """
        if not data.is_dir():
            return data
        stems = _STEMS.get(part, (part,))
        paths = [data / f"{stem}.{suffix}" for stem in stems for suffix in ("txt", "conll", "tsv")]
        paths += [data / f"eng.{stem}" for stem in stems]
        return next((path for path in paths if path.exists()), paths[0])

    def read(self, path: Path, labelled: bool) -> TaggedSentences:
        """Read a file in CoNLL format; see `read_conll`.

        Tags that are not among the task's labels are reported on stderr.
        """
        examples = read_conll(path, labelled, self.plain)
        self._report_unknown_tags(examples, path)
        return examples

    def fitted(self, examples: TaggedSentences) -> Self:
        """Return this task with the tags of training examples as labels.

        O comes first unless the tags are plain, then the other tags in alphabetical order.
        """
        assert examples.tags is not None
        outside = [] if examples.scheme == "plain" else ["O"]
        return self.with_labels([*outside, *sorted(set(chain.from_iterable(examples.tags)) - {"O"})])

    def check_training(self, examples: TaggedSentences, path: Source) -> None:
        """Reject training examples whose words all have the same tag."""
        if len(self.labels) == 1:
            raise DataError(f"{path}: all words have the tag {self.labels[0]!r}; add words with other tags")

    def _report_unknown_tags(self, examples: TaggedSentences, path: Source) -> None:
        unknown = set(chain.from_iterable(examples.tags or ())) - set(self.labels)
        if self.labels and unknown:
            assert examples.tags is not None
            first = next(i for i, tags in enumerate(examples.tags, 1) if not unknown.isdisjoint(tags))
            print(
                f"{path}, sentence {first}: tags that are not in the training data, so the model cannot "
                f"predict them: {', '.join(sorted(unknown))}",
                file=sys.stderr,
            )

    def with_labels(self, labels: Sequence[str]) -> Self:
        """Return this task with a model's labels, in the order of the model's logits.

        Raises:
            ModelError: a label is not a tag, or not of the kind that the task needs.
        """
        if invalid := find_invalid_tag(labels, self.plain):
            index, reason = invalid
            raise ModelError(f"the model's label {index} does not suit {self.name}: {reason}")
        return super().with_labels(labels)

    def encode(self, examples: TaggedSentences, tokenizer: Tokenizer, max_seq_length: int) -> WordWindows:
        """Encode documents as windows of at most `max_seq_length` tokens.

        A word without tokens, such as a control character, becomes [UNK]. A tag that is not among
        the labels is ignored by the loss, but counts in the scores.
        """
        words = list(chain.from_iterable(examples.words))
        encoding = tokenizer.encode_batch(words, add_special_tokens=False)
        sizes = np.diff(encoding.bounds)
        is_empty = sizes == 0
        sizes[is_empty] = 1
        word_bounds = cumulative_bounds(sizes)
        token_ids = np.full(word_bounds[-1], tokenizer.vocabulary.unk_id, dtype=np.int32)
        token_ids[~np.repeat(is_empty, sizes)] = encoding.input_ids

        document_bounds = word_bounds[examples.bounds[examples.document_bounds]]
        windows = split_into_windows(token_ids, document_bounds, tokenizer.vocabulary, max_seq_length)
        input_ids, bounds = windows.input_ids, windows.bounds
        word_positions = windows.positions[word_bounds[:-1]]
        labels = None
        if examples.tags is not None:
            index_of = {tag: index for index, tag in enumerate(self.labels)}
            labels = np.full(bounds[-1], IGNORE_INDEX, dtype=np.int64)
            labels[word_positions] = [
                index_of.get(tag, IGNORE_INDEX) for tag in chain.from_iterable(examples.tags)
            ]
        return WordWindows(
            input_ids,
            np.zeros_like(input_ids),
            bounds,
            labels,
            word_positions=word_positions,
            num_sentences=len(examples),
        )

    def decode(self, examples: TaggedSentences, inputs: Inputs, logits: npt.NDArray[np.float32]) -> Tags:
        """Return the likeliest tag of each word, independently: I may follow O."""
        assert isinstance(inputs, WordWindows)
        best = logits[inputs.word_positions].argmax(axis=1)
        return _split([self.labels[index] for index in best.tolist()], examples.bounds.tolist())

    def score(self, examples: TaggedSentences, predictions: Tags) -> Scores:
        """Compute conlleval's scores of entities, or accuracy and macro F1 of plain tags.

        See `entity_scores`. If the gold tags or the predictions had another scheme than IOB2, both
        are compared in IOB2.
        """
        assert examples.tags is not None
        if examples.scheme == "plain":
            tags = [*chain.from_iterable(examples.tags), *chain.from_iterable(predictions)]
            gold, predicted = np.split(np.unique(tags, return_inverse=True)[1], 2)
            return {"accuracy": 100 * accuracy(gold, predicted), "f1_macro": 100 * f1_macro(gold, predicted)}
        if examples.scheme != "IOB2" or detect_scheme(predictions) in ("IOBES", "BILOU"):
            predictions = [*map(to_iob2, predictions)]
        return entity_scores(examples.tags, predictions)

    def confidence(
        self, examples: TaggedSentences, inputs: Inputs, logits: npt.NDArray[np.float32]
    ) -> Float64s:
        """Return the probability of each word's tag."""
        assert isinstance(inputs, WordWindows)
        return top_probabilities(logits[inputs.word_positions])

    def majority_baseline(self, training: TaggedSentences, examples: TaggedSentences) -> Scores | None:
        """Score O for every word; for plain tags, the most frequent tag."""
        assert training.tags is not None
        tag = "O"
        if training.scheme == "plain":
            tag = Counter(chain.from_iterable(training.tags)).most_common(1)[0][0]
        return self.score(examples, [[tag] * len(words) for words in examples.words])

    def analyze_errors(
        self, examples: TaggedSentences, predictions: Tags, confidence: Float64s | None = None
    ) -> ErrorAnalysis:
        """Return scores by entity type, or scores and confusions of plain tags."""
        assert examples.tags is not None
        if examples.scheme == "plain":
            return _analyze_plain_tags(examples, examples.tags, predictions, confidence)
        return _analyze_entities(examples, examples.tags, predictions, confidence)

    def select(self, examples: TaggedSentences, indices: Sequence[int]) -> TaggedSentences:
        """Return the sentences with these indices, in the documents that have any of them."""
        return replace(
            examples,
            words=[examples.words[i] for i in indices],
            tags=None if examples.tags is None else [examples.tags[i] for i in indices],
            document_bounds=np.unique(np.searchsorted(indices, examples.document_bounds)),
        )

    def groups(self, examples: TaggedSentences) -> Sequence[int]:
        """Return the index of each sentence's document; a file without documents has one per sentence."""
        sizes = np.diff(examples.document_bounds)
        if len(sizes) == 1:
            return range(len(examples))
        numbers: list[int] = np.repeat(np.arange(len(sizes)), sizes).tolist()
        return numbers

    def flatten_predictions(self, predictions: Tags) -> list[str]:
        """Return the tag of each word of all sentences."""
        return list(chain.from_iterable(predictions))

    def write_predictions(self, examples: TaggedSentences, predictions: Tags, path: Path) -> None:
        """Write columns separated by tabs: word, gold tag where known, and prediction.

        `conlleval -d '\\t'` reads such files.
        """
        columns = [column for column in (examples.words, examples.tags, predictions) if column is not None]
        rows = zip(*map(chain.from_iterable, columns), strict=True)
        sentences = _split(["\t".join(map(_cell, row)) for row in rows], examples.bounds.tolist())
        write_text(path, "".join("\n".join(sentence) + "\n\n" for sentence in sentences))

    def read_predictions(self, examples: TaggedSentences, path: Path) -> Tags:
        """Read columns: the examples' words in the first, the predictions in the last.

        Raises:
            DataError: the file cannot be read (see `read_conll`), or its words are not those of
                the examples.
        """
        columns = _read_columns(path, tagged=True, plain=self.plain)
        gold_words = [_cell(word) for word in chain.from_iterable(examples.words)]
        for line_number, word, gold_word in zip(
            columns.line_numbers, columns.words, gold_words, strict=False
        ):
            if word != gold_word:
                raise DataError(
                    f"{path}, line {line_number}: the word is {word!r}, but the gold file has "
                    f"{gold_word!r}; keep the gold file's words and their order"
                )
        if len(columns.words) != len(gold_words):
            raise DataError(
                f"{path}: {len(columns.words)} words, but the gold file has {len(gold_words)}; give each "
                f"word a prediction"
            )
        return _split(columns.tags, examples.bounds.tolist())


def _analyze_plain_tags(
    examples: TaggedSentences, gold_tags: Tags, predictions: Tags, confidence: Float64s | None
) -> ErrorAnalysis:
    """Treat each word as an example with one class."""
    tags = [*chain.from_iterable(gold_tags), *chain.from_iterable(predictions)]
    distinct, indices = np.unique(tags, return_inverse=True)
    labels: list[str] = distinct.tolist()
    gold, predicted = np.split(indices, 2)
    words = list(chain.from_iterable(examples.words))
    sentence_of_word = np.repeat(np.arange(len(examples)), np.diff(examples.bounds))
    mistakes = [
        Mistake(
            shorten(f"{words[i]} ‖ {' '.join(examples.words[sentence_of_word[i]])}"),
            labels[gold[i]],
            labels[predicted[i]],
            probability_at(confidence, i),
        )
        for i in sample_confusions(gold, predicted, confidence)
    ]
    return analyze_classes(labels, gold, predicted, mistakes)


def _analyze_entities(
    examples: TaggedSentences, gold_tags: Tags, predictions: Tags, confidence: Float64s | None
) -> ErrorAnalysis:
    """Compare entities; they are the same in every scheme, so no tags are converted.

    The probability of a sentence with mistakes is that of its least certain word in a wrong or a
    missed entity.
    """
    by_type = {
        name: LabelScores(counts.precision, counts.recall, counts.f1, counts.gold)
        for name, counts in count_entities(gold_tags, predictions).items()
    }
    entities = [
        (set(find_entities(gold)), set(find_entities(predicted)))
        for gold, predicted in zip(gold_tags, predictions, strict=True)
    ]

    certainty = None
    if confidence is not None:
        certainty = np.ones(len(examples))
        for i, (gold, predicted) in enumerate(entities):
            wrong = [w for _, first, end in gold ^ predicted for w in range(first, end)]
            if wrong:
                certainty[i] = confidence[examples.bounds[i] + np.array(wrong)].min()

    def describe(words: Sequence[str], spans: set[EntitySpan]) -> str:
        in_order = sorted(spans, key=lambda entity: entity.first)
        return join_names(f"{' '.join(words[first:end])} ({name})" for name, first, end in in_order)

    mistakes = [
        Mistake(
            shorten(" ".join(examples.words[i])),
            describe(examples.words[i], entities[i][0]),
            describe(examples.words[i], entities[i][1]),
            probability_at(certainty, i),
        )
        for i in largest_errors(np.array([len(gold ^ predicted) for gold, predicted in entities]), certainty)
    ]
    return ErrorAnalysis(by_type, mistakes=mistakes)


def word_token_ranges(encoding: Encoding) -> tuple[Int64s, Int64s]:
    """Return the range of tokens of each word in texts without special tokens.

    Returns:
        The index of each word's first token, and the index after its last; int64 (words,) each.
    """
    begins_word = np.diff(encoding.word_ids, prepend=-1) != 0
    begins_word[encoding.bounds[:-1][np.diff(encoding.bounds) > 0]] = True
    first = np.flatnonzero(begins_word)
    return first, np.append(first, len(begins_word))[1:]


def _cell(word: str) -> str:
    """Replace the separators in a word, and encode it as `write_text` does."""
    return re.sub(r"[\t\r\n]", " ", word).encode(errors="backslashreplace").decode()


def _split(values: Sequence[str], bounds: Iterable[int]) -> list[Sequence[str]]:
    return [values[first:end] for first, end in pairwise(bounds)]


# Section 5.3 names no settings of fine-tuning; these are from Appendix A.3's grid.
NER = Tagging(
    name="ner",
    labels=(),
    main_metric="f1",
    defaults={"batch_size": 32, "epochs": 4, "max_seq_length": 512, "optimizer": {"learning_rate": 5e-5}},
)
