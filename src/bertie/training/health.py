"""The known failures of a pre-training run, each named in one line: what is wrong, the figures, what to do.

All of it is a function of the corpus and of the rows of metrics.jsonl, so a resumed run finds the same.
Thresholds stand well off every real corpus and every healthy run measured: the figures are beside them.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median, median_low
from typing import Any, NamedTuple

import numpy as np

from bertie.corpus.examples import ExampleSettings
from bertie.corpus.sampling import ExampleStream
from bertie.corpus.sentence_pairs import run_start
from bertie.corpus.shards import Corpus, Shard
from bertie.model.objectives import token_objective
from bertie.text.vocabulary import Vocabulary

BALANCE_EXAMPLES = 4096
# Wikipedia, Gutenberg, Python's documentation: 0.50 to 0.60 at lengths 64 to 512, and 0.78 at 32, where one
# sentence often fills the sequence. Documents of one sentence each: 1.0.
MAX_LABEL_SHARE = 0.85

SAMPLE_SENTENCES = 100_000  # in about 0.3 s
SAMPLE_SENTENCES_OF_DOCUMENT = 1000  # so that no long one is most of the sample
MIN_SENTENCE_TOKENS = 8  # headings and "Yes." come again in any text
# Python's documentation 0.044, Wikipedia 0.001, Gutenberg less.
MAX_REPEATED_SHARE = 0.1
# The commonest sentence: Gutenberg 0.08 of the documents ("Transcriber's note"), the others under 0.03.
MAX_DOCUMENT_SHARE = 0.5
MIN_DOCUMENTS = 10
EXCERPT_CHARACTERS = 60

# After warm-up healthy runs had at most 0.957 of the unigram loss (docs/decisions/small_recipes.md), one that
# never left the plateau 0.989 at its end.
PLATEAU_STEPS = 500
PLATEAU_RATIO = 0.97

# The middle of so many rows is judged: a spike is no explosion.
LEVEL_ROWS = 3
# Healthy rows were up to 1.07 × the best before them; at rate 0.1 it is 1.5 ×, at 1.0 more than 10 ×. The
# nat is for fine-tuning, whose losses near 0 vary by any factor, the factor for its regressions.
LOSS_GROWTH = 1.25
LOSS_RISE = 1.0
# Healthy rows were up to 5 × the median before them, and none above 15. No norm is taken for less than that
# to which Appendix A.2's code clips: a network that has learnt all has norms near 0.
NORM_GROWTH = 20
CLIPPED_NORM = 1.0


class Finding(NamedTuple):
    """A failure that was noticed.

    check    names it: label_balance, duplicated_lines, unigram_plateau or exploding_gradient
    message  one line for the user
    """

    check: str
    message: str


def check_corpus(
    corpus: Corpus, settings: ExampleSettings, vocabulary: Vocabulary, seed: int
) -> list[Finding]:
    """What is wrong with the corpus, judged by a sample of its sentences and its first examples."""
    findings = []
    if settings.pairs != "none":
        findings += _check_labels(corpus, settings, vocabulary, seed)
    return findings + _check_repetition(corpus, vocabulary)


class RunHealth:
    """Watches the rows of a run's metrics.jsonl; each failure is found once in a run.

    Args:
        rows: those so far, of a run that goes on.
        warmup_steps, total_steps: the pace of the run.
    """

    def __init__(self, rows: Sequence[dict[str, Any]], warmup_steps: int, total_steps: int) -> None:
        self._warmup_steps, self._total_steps = warmup_steps, total_steps
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._best_loss = math.inf  # the lowest level so far
        self._found: set[str] = set()
        for row in rows:
            self.check(row)

    def check(self, row: dict[str, Any]) -> list[Finding]:
        """What a new row shows that was not found before; rows must come in order."""
        findings = []
        if row["kind"] == "train":
            findings = self._check_training(row)
        elif row["kind"] == "evaluation" and "unigram_loss" in row:
            findings = self._check_plateau(row)
        findings = [finding for finding in findings if finding.check not in self._found]
        self._found.update(finding.check for finding in findings)
        return findings

    def _check_training(self, row: dict[str, Any]) -> list[Finding]:
        self._losses = [*self._losses, row["loss"]][-LEVEL_ROWS:]
        self._norms.append(row["gradient_norm"])
        loss, norm = median_low(self._losses), median_low(self._norms[-LEVEL_ROWS:])
        usual_norm = max(median(self._norms), CLIPPED_NORM)
        best_loss = self._best_loss = min(self._best_loss, loss)
        if loss > LOSS_GROWTH * best_loss + LOSS_RISE:
            what = f"the loss has risen from {best_loss:.2f} to {loss:.2f} (gradient norm {norm:.3g})"
        elif norm > NORM_GROWTH * usual_norm:
            what = f"the gradient norm is {norm:.3g} where {usual_norm:.3g} was usual (loss {loss:.2f})"
        else:
            return []
        return [
            Finding(
                "exploding_gradient",
                f"the gradient explodes: at step {row['step']:,} {what}, at rate {row['learning_rate']:.2g}; "
                f"lower optimizer.learning_rate, raise warmup_steps, or lower optimizer.max_gradient_norm",
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
                f"loss is {loss:.2f}, and knowing word frequencies alone gives {unigram_loss:.2f}; "
                f"try a first phase of much shorter sequences, a larger model.position_initializer_range, an "
                f"optimizer.learning_rate 3 times lower or higher, optimizer.bias_correction or more "
                f"warmup_steps, and see whether the vocabulary suits the text",
            )
        ]


def _check_labels(
    corpus: Corpus, settings: ExampleSettings, vocabulary: Vocabulary, seed: int
) -> list[Finding]:
    examples = ExampleStream(corpus.train, settings, vocabulary, seed).next(BALANCE_EXAMPLES)
    assert examples.next_sentence_labels is not None
    share = float(np.bincount(examples.next_sentence_labels).max() / len(examples))
    if share <= MAX_LABEL_SHARE:
        return []
    counts = corpus.manifest.train
    return [
        Finding(
            "label_balance",
            f"next-sentence labels are off balance: {share:.0%} of the pairs have the same one, where about "
            f"half should (a document has {counts.sentences / counts.documents:.1f} sentences of "
            f"{counts.tokens / counts.sentences:.0f} tokens on average, a sequence {settings.max_seq_length} "
            f"tokens at most); prepare documents of several sentences, raise max_seq_length, or set "
            f'examples.pairs = "none"',
        )
    ]


def _check_repetition(corpus: Corpus, vocabulary: Vocabulary) -> list[Finding]:
    stride = -(-corpus.manifest.train.sentences // SAMPLE_SENTENCES)
    documents = tokens = repeated_tokens = 0
    found_in: Counter[tuple[int, ...]] = Counter()  # in how many documents a sentence stands
    for shard in corpus.train:
        for sentences in _sample_documents(shard, stride):
            documents += 1
            tokens += sum(map(len, sentences))
            long = {tuple(sentence) for sentence in sentences if len(sentence) >= MIN_SENTENCE_TOKENS}
            repeated_tokens += sum(len(sentence) for sentence in long if sentence in found_in)
            found_in.update(long)
    if not found_in:
        return []
    (commonest, count), *_ = found_in.most_common(1)
    in_most = count >= max(MIN_DOCUMENTS, MAX_DOCUMENT_SHARE * documents)
    if repeated_tokens <= MAX_REPEATED_SHARE * tokens and not in_most:
        return []
    text = " ".join(vocabulary.tokens[token_id] for token_id in commonest).replace(" ##", "")
    return [
        Finding(
            "duplicated_lines",
            f"duplicated lines: {repeated_tokens / tokens:.1%} of the text are sentences that another "
            f"document has too (of {documents:,} looked at); {count:,} documents have "
            f'"{text[:EXCERPT_CHARACTERS]}"; remove such lines and prepare the corpus anew',
        )
    ]


def _sample_documents(shard: Shard, stride: int) -> Iterator[list[list[int]]]:
    """The ids of the sentences of every `stride`-th document."""
    for document in range(0, len(shard.document_ends), stride):
        first = run_start(shard.document_ends, document)
        last = min(int(shard.document_ends[document]), first + SAMPLE_SENTENCES_OF_DOCUMENT)
        start = run_start(shard.sentence_ends, first)
        ends = shard.sentence_ends[first:last]
        tokens = shard.tokens[start : ends[-1]].tolist()
        yield [tokens[begin:end] for begin, end in pairwise([0, *(ends - start).tolist()])]
