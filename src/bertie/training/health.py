"""Detect known failures of a training run.

Each is reported in one line: the problem, its figures and a remedy. All checks are functions of the
settings, the corpus and the rows of metrics.jsonl, so a resumed run reports the same. The thresholds are well
beyond every real corpus and every healthy run measured; the comments beside them have the figures.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median, median_low
from typing import Any, NamedTuple

import numpy as np

from bertie.corpus.examples import ExampleSettings
from bertie.corpus.prepared import Corpus
from bertie.corpus.sampling import ExampleStream
from bertie.corpus.sentence_pairs import NOT_NEXT, start_of
from bertie.corpus.shards import Shard
from bertie.model.objectives import token_objective
from bertie.text.vocabulary import Vocabulary

LABEL_EXAMPLES = 4096
# Wikipedia, Gutenberg and Python's documentation: 0.50 to 0.60 at lengths 64 to 512, and 0.78 at 32, where
# one sentence often fills the sequence. At 16 Wikipedia has 0.92; documents of one sentence each have 1.0.
MAX_LABEL_FRACTION = 0.85
# Swapped pairs on Wikipedia: 0.87 to 0.90 of the negatives at lengths 128 and 512, 0.71 at 64, 0.30 at 32 and
# 0.08 at 16. Near pairs: 0.98 and more at every length.
MIN_INTENDED_FRACTION = 0.5

SAMPLE_SENTENCES = 100_000  # in about 0.3 s
SAMPLE_SENTENCES_PER_DOCUMENT = 1000  # so that no long document makes up most of the sample
MIN_SENTENCE_TOKENS = 8  # headings and "Yes." recur in any text
# Python's documentation 0.044, Wikipedia 0.001, Gutenberg less.
MAX_REPEATED_FRACTION = 0.1
# The most frequent sentence of Gutenberg ("Transcriber's note") is in 0.08 of its documents; in the other
# corpora, it is in less than 0.03.
MAX_DOCUMENT_FRACTION = 0.5
MIN_DOCUMENTS = 10
EXCERPT_CHARACTERS = 60

# After warm-up, the loss of healthy runs was at most 0.957 of the unigram baseline's
# (docs/decisions/small_recipes.md); a run that never escaped the plateau was at 0.989 after its last step.
PLATEAU_STEPS = 500
PLATEAU_RATIO = 0.97

# Use the median of this many rows, so that one spike does not count.
MEDIAN_ROWS = 3
# Rows of healthy runs were up to 1.07 × the best row before them. At learning rate 0.1 it is 1.5 ×, at 1.0
# more than 10 ×. The absolute rise (nats) is for fine-tuning, where losses near 0 vary by any factor; the
# factor is for regressions, where losses are large.
LOSS_GROWTH = 1.25
LOSS_RISE = 1.0
# Rows of healthy runs were up to 5 × the median before them, and none above 15. A median below the norm
# that Appendix A.2's code clips to counts as that norm: once a network has nothing left to learn, its
# norms are near 0.
NORM_GROWTH = 20
CLIPPED_NORM = 1.0


class Finding(NamedTuple):
    """A detected failure.

    check    warmup, label_balance, random_negatives, duplicated_lines, unigram_plateau, skipped_steps
             or exploding_gradient
    message  one line for the user: the problem, its figures and a remedy
    """

    check: str
    message: str


def check_warmup(warmup_steps: int, total_steps: int) -> list[Finding]:
    """Check that the warm-up of a run ends before the run."""
    if warmup_steps <= total_steps:
        return []
    return [
        Finding(
            "warmup",
            f"the warm-up has {warmup_steps:,} steps, more than the run's {total_steps:,}, so the learning "
            f"rate only rises to {(total_steps - 1) / warmup_steps:.0%} of optimizer.learning_rate; set "
            f"warmup_steps to a tenth of the steps or less",
        )
    ]


def check_corpus(
    corpus: Corpus, phases: Sequence[ExampleSettings], vocabulary: Vocabulary, seed: int
) -> list[Finding]:
    """Check the pairs of each phase that has any, and sampled text for repetition."""
    findings = []
    for phase, settings in enumerate(phases):
        if settings.pairs != "none":
            findings += _check_pairs(corpus, settings, vocabulary, seed, phase)
    return findings + _check_repetition(corpus, vocabulary)


class RunHealth:
    """Checks the rows of metrics.jsonl; reports each kind of failure once per run.

    Args:
        rows: the rows so far, if the run is resumed.
        warmup_steps, total_steps: the schedule of the run.
    """

    def __init__(self, rows: Sequence[dict[str, Any]], warmup_steps: int, total_steps: int) -> None:
        self._warmup_steps, self._total_steps = warmup_steps, total_steps
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._best_loss = math.inf  # the lowest median so far
        self._objectives: set[str] = set()
        self._reported: set[str] = set()
        for row in rows:
            self.check(row)

    def check(self, row: dict[str, Any]) -> list[Finding]:
        """Return the failures first seen in `row`; rows must come in order."""
        findings = []
        if row["kind"] == "train":
            findings = self._check_skipped(row)
            if "loss" in row:  # not every step was skipped
                findings += self._check_explosion(row)
        elif row["kind"] == "evaluation" and "unigram_loss" in row:
            findings = self._check_plateau(row)
        findings = [finding for finding in findings if finding.check not in self._reported]
        self._reported.update(finding.check for finding in findings)
        return findings

    def _check_skipped(self, row: dict[str, Any]) -> list[Finding]:
        if not row.get("skipped_steps"):
            return []
        return [
            Finding(
                "skipped_steps",
                f"{row['skipped_steps']:,} of the steps up to step {row['step']:,} had a gradient that is "
                f"not finite, and changed nothing; if there are more, lower optimizer.learning_rate",
            )
        ]

    def _check_explosion(self, row: dict[str, Any]) -> list[Finding]:
        objectives = {key for key in row if key.endswith("_loss")}
        if objectives != self._objectives:  # another phase may add the loss of next sentences
            self._objectives, self._losses, self._best_loss = objectives, [], math.inf
        self._losses = [*self._losses, row["loss"]][-MEDIAN_ROWS:]
        self._norms.append(row["gradient_norm"])
        loss, norm = median_low(self._losses), median_low(self._norms[-MEDIAN_ROWS:])
        usual_norm = max(median(self._norms), CLIPPED_NORM)
        best_loss = self._best_loss = min(self._best_loss, loss)
        if loss > LOSS_GROWTH * best_loss + LOSS_RISE:
            symptom = f"the loss has risen from {best_loss:.2f} to {loss:.2f} (gradient norm {norm:.3g})"
        elif norm > NORM_GROWTH * usual_norm:
            symptom = f"the gradient norm is {norm:.3g}, usually it is {usual_norm:.3g} (loss {loss:.2f})"
        else:
            return []
        return [
            Finding(
                "exploding_gradient",
                f"the gradient explodes: at step {row['step']:,} {symptom}, learning rate "
                f"{row['learning_rate']:.2g}; lower optimizer.learning_rate, lengthen the warm-up, or lower "
                f"optimizer.max_gradient_norm",
            )
        ]

    def _check_plateau(self, row: dict[str, Any]) -> list[Finding]:
        step, unigram_loss = row["step"], row["unigram_loss"]
        loss = row[f"{token_objective(row)}_loss"]
        if step < self._warmup_steps + PLATEAU_STEPS or loss <= PLATEAU_RATIO * unigram_loss:
            return []
        return [
            Finding(
                "unigram_plateau",
                f"stuck at the unigram plateau: after {step:,} of {self._total_steps:,} steps the held-out "
                f"loss is {loss:.2f}, and the unigram baseline has {unigram_loss:.2f}; try a first phase of "
                f"much shorter sequences, a larger model.position_initializer_range, an "
                f"optimizer.learning_rate 3 times lower or higher, optimizer.bias_correction or more "
                f"warmup_steps, and check that the vocabulary suits the text",
            )
        ]


def _check_pairs(
    corpus: Corpus, settings: ExampleSettings, vocabulary: Vocabulary, seed: int, phase: int
) -> list[Finding]:
    """Check the labels of a phase's first pairs, and the kind of their negatives."""
    stream = ExampleStream(corpus.train, settings, vocabulary, seed, phase, corpus.train_languages)
    fraction, intended = _measure_pairs(stream)
    counts = corpus.manifest.train
    sizes = (
        f"an average document has {counts.sentences / counts.documents:.1f} sentences of "
        f"{counts.tokens / counts.sentences:.0f} tokens, a sequence of phase {phase} up to "
        f"{settings.max_seq_length} tokens"
    )
    remedy = f'raise phases.{phase}.max_seq_length, or set phases.{phase}.pairs = "none"'
    findings = []
    if fraction > MAX_LABEL_FRACTION:
        findings.append(
            Finding(
                "label_balance",
                f"unbalanced next-sentence labels at length {settings.max_seq_length}: {fraction:.0%} of the "
                f"pairs have the same label, and about half should ({sizes}); prepare documents of several "
                f"sentences, {remedy}",
            )
        )
    if settings.pairs in ("near", "order") and intended < MIN_INTENDED_FRACTION:
        kind = "swapped" if settings.pairs == "order" else "of the same document"
        findings.append(
            Finding(
                "random_negatives",
                f"only {intended:.0%} of the negatives at length {settings.max_seq_length} are {kind}, the "
                f"others come from other documents ({sizes}); prepare longer documents, {remedy}",
            )
        )
    return findings


def _measure_pairs(stream: ExampleStream) -> tuple[float, float]:
    """Measure the balance of labels, and how many negatives are from A's document.

    Return the fraction of the more frequent label, and the fraction of such negatives.
    """
    labels: list[int] = []
    from_same_document: list[bool] = []
    for number in range(stream.block_count):
        block = stream.block(number)
        negatives = block.pairs[block.pairs["label"] == NOT_NEXT]
        document_ends = block.shard.sentence_ends[block.shard.document_ends - 1]
        a, b = (np.searchsorted(document_ends, negatives[name], "right") for name in ("a_start", "b_start"))
        labels += block.pairs["label"].tolist()
        from_same_document += (a == b).tolist()
        if len(labels) >= LABEL_EXAMPLES:
            break
    return float(np.bincount(labels).max() / len(labels)), float(np.mean(from_same_document or [True]))


def _check_repetition(corpus: Corpus, vocabulary: Vocabulary) -> list[Finding]:
    stride = -(-corpus.manifest.train.sentences // SAMPLE_SENTENCES)
    documents = tokens = repeated_tokens = 0
    document_counts: Counter[tuple[int, ...]] = Counter()  # sentence -> documents that contain it
    for shard in corpus.train:
        for sentences in _sample_documents(shard, stride):
            documents += 1
            tokens += sum(map(len, sentences))
            long = {tuple(sentence) for sentence in sentences if len(sentence) >= MIN_SENTENCE_TOKENS}
            repeated_tokens += sum(len(sentence) for sentence in long if sentence in document_counts)
            document_counts.update(long)
    if not document_counts:
        return []
    (most_frequent, count), *_ = document_counts.most_common(1)
    in_most_documents = count >= max(MIN_DOCUMENTS, MAX_DOCUMENT_FRACTION * documents)
    if repeated_tokens <= MAX_REPEATED_FRACTION * tokens and not in_most_documents:
        return []
    text = " ".join(vocabulary.tokens[token_id] for token_id in most_frequent).replace(" ##", "")
    return [
        Finding(
            "duplicated_lines",
            f"duplicated lines: {repeated_tokens / tokens:.1%} of the text repeats sentences of other "
            f"documents (in a sample of {documents:,}); {count:,} documents have "
            f'"{text[:EXCERPT_CHARACTERS]}"; remove such lines and prepare the corpus again',
        )
    ]


def _sample_documents(shard: Shard, stride: int) -> Iterator[list[list[int]]]:
    """Yield the token ids of the sentences of every `stride`-th document."""
    for document in range(0, len(shard.document_ends), stride):
        first = start_of(shard.document_ends, document)
        last = min(int(shard.document_ends[document]), first + SAMPLE_SENTENCES_PER_DOCUMENT)
        start = start_of(shard.sentence_ends, first)
        ends = shard.sentence_ends[first:last]
        tokens = shard.tokens[start : ends[-1]].tolist()
        yield [tokens[begin:end] for begin, end in pairwise([0, *(ends - start).tolist()])]
