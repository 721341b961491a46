"""Log-likelihoods of sentences under a language model.

A masked LM gives a pseudo-log-likelihood (Salazar et al., arXiv:1910.14659): each token is masked
in turn, and the log-probabilities of the original tokens are summed. A left-to-right model gives
the log-likelihood itself. Neither counts [CLS] and [SEP], and both are in nats.
"""

from collections.abc import Sequence

import numpy as np

from bertie.base.arrays import Float32s, Float64s, Int32s, Int64s
from bertie.base.errors import DataError
from bertie.base.progress import Progress
from bertie.inference.inputs import find_too_long
from bertie.model.engines.engine import Engine
from bertie.model.sequences import Sequences, batch_by_token_budget, cumulative_bounds
from bertie.tasks.task import Inputs
from bertie.text.tokenizer import Tokenizer

MASKED_LM_ARCHITECTURES = ("BertForPreTraining", "BertForMaskedLM")
CAUSAL_ARCHITECTURE = "BertLMHeadModel"
# A causal model returns logits of all tokens: 2,048 tokens with BERT's vocabulary take 250 MB.
_MAX_CAUSAL_BATCH_TOKENS = 2048


def encode_sentences(sentences: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Sequences:
    """Encode each sentence as [CLS] sentence [SEP].

    Raises:
        DataError: a sentence has more than `max_length` tokens.
    """
    sequences = Inputs.from_encoding(tokenizer.encode_batch(sentences)).sequences
    if found := find_too_long(sentences, sequences.lengths, max_length):
        raise DataError(f"{found[1]}; use a model with more positions")
    return sequences


def log_likelihoods(
    engine: Engine, sequences: Sequences, mask_id: int, progress: Progress | None = None
) -> Float64s:
    """Return the (pseudo-)log-likelihood of each sequence, float64 (N,).

    Args:
        engine: a masked or a left-to-right language model.
        sequences: sentences of `encode_sentences`.
        mask_id: id of [MASK].
        progress: advanced by each token whose probability is computed.
    """
    if engine.architecture == CAUSAL_ARCHITECTURE:
        return _causal(engine, sequences, progress)
    return _masked(engine, sequences, mask_id, progress)


def count_scored_tokens(sequences: Sequences) -> Int64s:
    """Count the tokens of each sequence between [CLS] and [SEP], int64 (N,)."""
    return sequences.lengths - 2


def _masked(engine: Engine, sequences: Sequences, mask_id: int, progress: Progress | None) -> Float64s:
    """Score one copy of a sequence for each of its tokens, with this token masked."""
    counts = count_scored_tokens(sequences)
    sequence_of_copy = np.repeat(np.arange(len(counts)), counts)
    # Copy i of a sequence masks its token i + 1; the first is [CLS].
    offset_of_copy = np.arange(len(sequence_of_copy)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    copy_bounds = cumulative_bounds((counts + 2)[sequence_of_copy])
    scores = np.zeros(len(counts))
    for copies in batch_by_token_budget(copy_bounds, engine.max_batch_tokens):
        batch = sequences.select(sequence_of_copy[copies])
        positions = batch.bounds[:-1] + offset_of_copy[copies]
        labels = batch.input_ids[positions]
        batch.input_ids[positions] = mask_id
        values = _log_probabilities(engine.masked_lm_logits(batch, positions), labels)
        np.add.at(scores, sequence_of_copy[copies], values)
        if progress is not None:
            progress.advance(len(copies))
    return scores


def _causal(engine: Engine, sequences: Sequences, progress: Progress | None) -> Float64s:
    """Score every token of a sequence given the tokens before it."""
    scores = np.empty(len(sequences.bounds) - 1)
    for indices, batch in sequences.batches(min(engine.max_batch_tokens, _MAX_CAUSAL_BATCH_TOKENS)):
        is_scored = np.ones(len(batch.input_ids), dtype=np.bool_)
        is_scored[batch.bounds[:-1]] = is_scored[batch.bounds[1:] - 1] = False
        targets = np.flatnonzero(is_scored)
        values = np.zeros(len(batch.input_ids))
        values[targets] = _log_probabilities(engine.logits(batch)[targets - 1], batch.input_ids[targets])
        scores[indices] = np.add.reduceat(values, batch.bounds[:-1])
        if progress is not None:
            progress.advance(len(targets))
    return scores


def _log_probabilities(logits: Float32s, labels: Int32s) -> Float32s:
    """Return the log-probability of each label, (M,).

    The logits, (M, V), are overwritten.
    """
    logits -= logits.max(axis=1, keepdims=True)
    chosen = logits[np.arange(len(labels)), labels]
    np.exp(logits, out=logits)
    log_probabilities: Float32s = chosen - np.log(logits.sum(axis=1))
    return log_probabilities
