"""Entity recognition and other tagging of words (Section 5.3, fine-tuning).

Each word has a tag, which the model predicts from the word's first token. In training and in
evaluation, the model reads each word in the context of its document: windows of the model's
sequence length are placed over the document (see `windows`), and each word is tagged in the window
where it has the most context. Sentence boundaries are not marked, and a sentence longer than a
window is tagged completely. There is no CRF. `entities` finds and scores the entities, as conlleval
does. Parts of speech and other plain tags are predicted in the same way, but scored by accuracy.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from bertie.base.arrays import Float32s, Float64s, Int64s
from bertie.base.errors import DataError, ModelError
from bertie.base.memory import Source
from bertie.model.objectives import IGNORE_INDEX
from bertie.model.sequences import cumulative_bounds
from bertie.tasks.conll import TaggedSentences, Tags, read_conll, read_tags, write_tags
from bertie.tasks.entities import detect_scheme, entity_scores, find_invalid_tag, to_iob2
from bertie.tasks.error_analysis import ErrorAnalysis, top_probabilities
from bertie.tasks.metrics import accuracy, f1_macro, percent
from bertie.tasks.tagging_errors import analyze_entities, analyze_plain_tags
from bertie.tasks.task import Head, Inputs, Scores, Task
from bertie.tasks.windows import split_into_windows
from bertie.text.tokenizer import Tokenizer

_STEMS = {"train": ("train",), "dev": ("dev", "devel", "valid", "testa"), "test": ("test", "testb")}


@dataclass(frozen=True, kw_only=True)
class WordWindows(Inputs):
    """Windows over documents with W words.

    word_positions  int64 (W,), index in `input_ids` of the token that tags each word: its first
                    one, in the window where it has the most context
    num_sentences   number of sentences in the documents
    """

    word_positions: Int64s
    num_sentences: int
    unit: ClassVar[str] = "windows"

    @property
    def num_batch_units(self) -> int:
        """The number of sentences: a window holds several, and overlaps its neighbours."""
        return self.num_sentences


@dataclass(frozen=True)
class Tagging(Task[TaggedSentences, Tags]):
    """Tasks that tag each word; the labels are the tags of the training examples.

    Predictions are the tags of each sentence.

    plain  whether the tags must be plain or mark entities; None until the labels are known
    """

    website: ClassVar[str] = "https://www.clips.uantwerpen.be/conll2003/ner"
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

    def decode(self, examples: TaggedSentences, inputs: Inputs, logits: Float32s) -> Tags:
        """Return the likeliest tag of each word, independently: I may follow O."""
        assert isinstance(inputs, WordWindows)
        best = logits[inputs.word_positions].argmax(axis=1)
        return examples.by_sentence([self.labels[index] for index in best.tolist()])

    def score(self, examples: TaggedSentences, predictions: Tags) -> Scores:
        """Compute conlleval's scores of entities, or accuracy and macro F1 of plain tags.

        See `entity_scores`. If the gold tags or the predictions had another scheme than IOB2, both
        are compared in IOB2.
        """
        assert examples.tags is not None
        if examples.scheme == "plain":
            tags = [*chain.from_iterable(examples.tags), *chain.from_iterable(predictions)]
            gold, predicted = np.split(np.unique(tags, return_inverse=True)[1], 2)
            return {
                "accuracy": percent(accuracy(gold, predicted)),
                "f1_macro": percent(f1_macro(gold, predicted)),
            }
        if examples.scheme != "IOB2" or detect_scheme(predictions) in ("IOBES", "BILOU"):
            predictions = [*map(to_iob2, predictions)]
        return entity_scores(examples.tags, predictions)

    def confidence(self, examples: TaggedSentences, inputs: Inputs, logits: Float32s) -> Float64s:
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
            return analyze_plain_tags(examples, examples.tags, predictions, confidence)
        return analyze_entities(examples, examples.tags, predictions, confidence)

    def select(self, examples: TaggedSentences, indices: Sequence[int]) -> TaggedSentences:
        """Return the sentences with these indices, in the documents that have any of them."""
        return replace(
            examples,
            words=[examples.words[i] for i in indices],
            tags=None if examples.tags is None else [examples.tags[i] for i in indices],
            document_bounds=np.unique(np.searchsorted(indices, examples.document_bounds)),
        )

    def groups(self, examples: TaggedSentences) -> Sequence[int]:
        """Return the index of each sentence's document.

        A file without documents has one per sentence.
        """
        sizes = np.diff(examples.document_bounds)
        if len(sizes) == 1:
            return range(len(examples))
        numbers: list[int] = np.repeat(np.arange(len(sizes)), sizes).tolist()
        return numbers

    def flatten_predictions(self, predictions: Tags) -> list[str]:
        """Return the tag of each word of all sentences."""
        return list(chain.from_iterable(predictions))

    def write_predictions(self, examples: TaggedSentences, predictions: Tags, path: Path) -> None:
        """Write columns that conlleval reads; see `write_tags`."""
        write_tags(examples, predictions, path)

    def read_predictions(self, examples: TaggedSentences, path: Path) -> Tags:
        """Read columns: the examples' words in the first, the predictions in the last.

        Raises:
            DataError: the file cannot be read, or has other words; see `read_tags`.
        """
        return read_tags(examples, path, self.plain)


# Section 5.3 names no settings of fine-tuning; these are from Appendix A.3's grid.
NER = Tagging(
    name="ner",
    labels=(),
    main_metric="f1",
    defaults={"batch_size": 32, "epochs": 4, "max_seq_length": 512, "optimizer": {"learning_rate": 5e-5}},
)
