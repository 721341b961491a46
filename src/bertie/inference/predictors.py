"""A model directory -> answers: `bertie.load(path)`."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import torch

from bertie.base.errors import DataError, ModelError
from bertie.model.batch import pack, pack_selected, token_budget_batches
from bertie.model.heads import ClassificationModel, PreTrainingModel
from bertie.model.weights import load_model

MASK = "[MASK]"
BATCH_TOKENS = 8192  # at most so many tokens in memory at a time


class Guess(NamedTuple):
    """A word piece for a masked place, named as in `transformers`' fill-mask."""

    score: float  # its probability
    token: int
    token_str: str
    sequence: str  # the text with the piece in place


class Label(NamedTuple):
    """A class for a text."""

    label: str
    score: float  # its probability


class Predictor:
    """A loaded model; which methods it can serve depends on its head."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model, description = load_model(path)
        self.config = description.config
        self.labels = description.labels
        self.tokenizer = description.tokenizer

    @torch.inference_mode()
    def fill_mask(self, text: str, top_k: int = 5) -> list[list[Guess]]:
        """The likeliest word pieces for each [MASK] in `text`, in the order of the text.

        Raises:
            ModelError: the model has no masked-LM head.
            DataError: there is no [MASK], or the text is longer than the model.
        """
        if not isinstance(self.model, PreTrainingModel):
            self._refuse("fill_mask", "a masked-LM head (architecture BertForPreTraining)")
        if MASK not in text:
            raise DataError(f"no {MASK} in the text: {text[:60]!r}; put one where a word is to be guessed")
        vocabulary = self.tokenizer.vocabulary
        # In a text [MASK] is plain text to the tokenizer; here it was asked for.
        parts = self.tokenizer.encode_batch(text.split(MASK), add_special_tokens=False)
        pieces = [parts.input_ids[a:b] for a, b in zip(parts.bounds, parts.bounds[1:], strict=False)]
        ids = [vocabulary.cls_id, *pieces[0]]
        for piece in pieces[1:]:
            ids += [vocabulary.mask_id, *piece]
        input_ids = np.array([*ids, vocabulary.sep_id], dtype=np.int32)
        if len(input_ids) > self.config.max_position_embeddings:
            raise DataError(
                f"the text has {len(input_ids):,} word pieces, the model at most "
                f"{self.config.max_position_embeddings:,}: {text[:60]!r}"
            )
        masked_positions = np.flatnonzero(input_ids == vocabulary.mask_id)
        batch = pack(
            input_ids,
            np.zeros_like(input_ids),
            np.array([0, len(input_ids)]),
            masked_positions=masked_positions,
        )
        logits, _ = self.model(batch)  # (M, V)
        scores, tokens = logits.softmax(-1).topk(min(top_k, logits.shape[1]))
        answers = []
        for place, (row_scores, row_tokens) in enumerate(zip(scores.tolist(), tokens.tolist(), strict=True)):
            names = self.tokenizer.tokens(row_tokens)
            answers.append(
                [
                    Guess(score, token, name, _fill(text, place, name))
                    for score, token, name in zip(row_scores, row_tokens, names, strict=True)
                ]
            )
        return answers

    @torch.inference_mode()
    def classify(self, texts: Sequence[str]) -> list[list[Label]]:
        """The labels of each text with their probabilities, the likeliest first. A long text is cut.

        Raises:
            ModelError: the model has no classifier.
        """
        if not isinstance(self.model, ClassificationModel):
            self._refuse("classify", "a classifier (architecture BertForSequenceClassification)")
        encoding = self.tokenizer.encode_batch(texts, max_length=self.config.max_position_embeddings)
        answers: list[list[Label]] = [[] for _ in texts]
        for chosen in token_budget_batches(encoding.bounds, BATCH_TOKENS):
            batch = pack_selected(encoding.input_ids, encoding.token_type_ids, encoding.bounds, chosen)
            probabilities = self.model(batch).softmax(-1)  # (N, labels)
            for number, row in zip(chosen.tolist(), probabilities.tolist(), strict=True):
                ranked = sorted(zip(row, self.labels, strict=True), key=lambda pair: -pair[0])
                answers[number] = [Label(label, score) for score, label in ranked]
        return answers

    def _refuse(self, method: str, needed: str) -> NoReturn:
        raise ModelError(f"{self.path}: {method} needs {needed}; this model is a {self.model.architecture}")


def _fill(text: str, place: int, piece: str) -> str:
    """`text` with the [MASK] number `place` replaced; a continuation joins the word before it."""
    parts = text.split(MASK)
    before, after = MASK.join(parts[: place + 1]), MASK.join(parts[place + 1 :])
    if piece.startswith("##"):
        return before.rstrip() + piece[2:] + after
    return before + piece + after


def load(path: str | Path) -> Predictor:
    """Load a model directory.

    Raises:
        ModelError: it is absent, damaged, or not a model's.
    """
    return Predictor(Path(path))
