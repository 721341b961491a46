"""Predict the tokens at the [MASK]s of texts."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from bertie.base.texts import TextError
from bertie.inference.inputs import find_too_long, quote
from bertie.inference.results import MaskPrediction, Results
from bertie.model.engines.engine import Engine
from bertie.model.sequences import Sequences
from bertie.tasks.probabilities import top_softmax
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import MASK


def fill_masks(
    texts: Sequence[str], engine: Engine, tokenizer: Tokenizer, max_length: int, top_k: int
) -> list[Results[Results[MaskPrediction]]]:
    """Return the most likely tokens at each [MASK] of each text, best first.

    Args:
        texts: the texts.
        engine: a model with a masked-LM head.
        tokenizer, max_length: as in `encode_masks`.
        top_k: number of tokens for each [MASK].

    Raises:
        TextError: as in `encode_masks`.
    """
    sequences = encode_masks(texts, tokenizer, max_length)
    predictions: list[list[Results[MaskPrediction]]] = [[] for _ in texts]
    for indices, batch in sequences.batches(engine.max_batch_tokens):
        masked_positions = np.flatnonzero(batch.input_ids == tokenizer.vocabulary.mask_id)
        logits = engine.masked_lm_logits(batch, masked_positions)
        token_ids, scores = top_softmax(logits, top_k)
        text_of_mask = indices[np.searchsorted(batch.bounds, masked_positions, side="right") - 1]
        for i, ids, row in zip(text_of_mask.tolist(), token_ids.tolist(), scores.tolist(), strict=True):
            mask = len(predictions[i])
            tokens = zip(row, ids, tokenizer.convert_ids_to_tokens(ids), strict=True)
            predictions[i].append(
                Results(
                    MaskPrediction(score, token_id, token, replace_mask(texts[i], mask, token))
                    for score, token_id, token in tokens
                )
            )
    return [Results(masks) for masks in predictions]


def encode_masks(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Sequences:
    """Encode each text as [CLS] text [SEP], with a mask token for each [MASK].

    The tokenizer reads [MASK] in a text as plain text. This function therefore encodes the parts
    between the masks and puts the special tokens between them.

    Args:
        texts: the texts; each needs at least one [MASK].
        tokenizer: the tokenizer of the model.
        max_length: maximum number of tokens of a text, with [CLS] and [SEP].

    Raises:
        TextError: a text has no [MASK], or more than `max_length` tokens.
    """
    parts = [text.split(MASK) for text in texts]
    for i, text_parts in enumerate(parts):
        if len(text_parts) == 1:
            raise TextError(i, f"no {MASK} in {quote(texts[i])}; put one in place of the word to predict")
    encoding = tokenizer.encode_batch(list(chain.from_iterable(parts)), add_special_tokens=False)
    part_counts = np.fromiter(map(len, parts), np.int64, len(parts))
    text_of_part = np.repeat(np.arange(len(texts)), part_counts)
    part_of_token = np.repeat(np.arange(len(encoding)), np.diff(encoding.bounds))
    # [CLS] comes before the first part of a text, [MASK] before every other part, [SEP] after the last.
    openers = encoding.bounds[:-1] + np.arange(len(encoding)) + text_of_part
    first_parts = np.flatnonzero(np.diff(text_of_part, prepend=-1))
    total = len(encoding.input_ids) + len(encoding) + len(texts)
    input_ids = np.full(total, tokenizer.vocabulary.sep_id, dtype=np.int32)
    input_ids[openers] = tokenizer.vocabulary.mask_id
    input_ids[openers[first_parts]] = tokenizer.vocabulary.cls_id
    token_positions = np.arange(len(part_of_token)) + part_of_token + 1 + text_of_part[part_of_token]
    input_ids[token_positions] = encoding.input_ids
    bounds = np.append(openers[first_parts], total)
    if found := find_too_long(texts, np.diff(bounds), max_length):
        i, problem = found
        raise TextError(i, f"{problem}; shorten the text")
    return Sequences(input_ids, np.zeros_like(input_ids), bounds)


def replace_mask(text: str, index: int, token: str) -> str:
    """Replace the [MASK] at `index`, counted from 0, with a token.

    A continuation token (`##ing`) is joined to the word before it.
    """
    parts = text.split(MASK)
    before, after = MASK.join(parts[: index + 1]), MASK.join(parts[index + 1 :])
    if token.startswith("##"):
        return before.rstrip() + token[2:] + after
    return before + token + after
