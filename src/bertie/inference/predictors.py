"""A model directory -> answers: `bertie.load(path)`.

What a task's evaluation does is done here by the same code: the families of `tasks` encode and decode.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from bertie.base.errors import ModelError
from bertie.inference.answers import Answer, Choice, Guess, Label, Mention, RowError, TaggedWord
from bertie.model.batch import pack, token_budget_batches, token_places
from bertie.model.heads import (
    ClassificationModel,
    MaskedLMModel,
    MultipleChoiceModel,
    PreTrainingModel,
    QuestionAnsweringModel,
    TokenClassificationModel,
)
from bertie.model.weights import load_model
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.custom import OwnChoices, OwnQuestions, OwnTags, OwnTexts
from bertie.tasks.entities import find_entities
from bertie.tasks.evaluation import TaskModel, compute_logits
from bertie.tasks.ner import TaggedSentences
from bertie.tasks.squad_questions import Questions
from bertie.tasks.swag import Choices
from bertie.tasks.task import Inputs
from bertie.text.tokenizer import Tokenizer
from bertie.training.hardware import Hardware

MASK = "[MASK]"
BATCH_TOKENS = 8192  # at most so many tokens in memory at a time

Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
Method = Literal["fill_mask", "classify", "rate", "tag", "answer", "choose"]

NEEDED: dict[Method, str] = {
    "fill_mask": "a masked-LM head (architecture BertForPreTraining or BertForMaskedLM)",
    "classify": "a classifier whose problem_type is not regression (BertForSequenceClassification)",
    "rate": "a classifier whose problem_type is regression (BertForSequenceClassification)",
    "tag": "a classifier of tokens (BertForTokenClassification)",
    "answer": "a head for spans (BertForQuestionAnswering)",
    "choose": "a head for multiple choice (BertForMultipleChoice)",
}


class Predictor:
    """A loaded model, on a GPU where there is one. Which of the methods it serves depends on its head.

    path       the directory
    model      what `load_model` gave
    config     the network's shape
    labels     of a classifier, in the order of its logits
    tokenizer  the model's
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model, self._description = load_model(path)
        self.config = self._description.config
        self.labels = self._description.labels
        self.tokenizer = self._description.tokenizer
        self._hardware = Hardware().resolved()
        self.model.to(self._hardware.device)

    @property
    def method(self) -> Method | None:
        """The method that the head serves; None for an encoder without one. `tag` is also `tag_words`."""
        match self.model:
            case PreTrainingModel() | MaskedLMModel():
                return "fill_mask"
            case ClassificationModel(problem_type="regression"):
                return "rate"
            case ClassificationModel():
                return "classify"
            case TokenClassificationModel():
                return "tag"
            case QuestionAnsweringModel():
                return "answer"
            case MultipleChoiceModel():
                return "choose"
            case _:
                return None

    @property
    def several_labels(self) -> bool:
        """Whether a text may have several labels, each of them with a probability of its own."""
        return self._description.problem_type == "multi_label_classification"

    def fill_mask(self, text: str, top_k: int = 5) -> list[list[Guess]]:
        """The likeliest word pieces for each [MASK] in `text`, in the order of the text.

        Raises:
            ModelError: the model has no masked-LM head.
            RowError: there is no [MASK], or the text is longer than the model.
        """
        return self.fill_masks([text], top_k)[0]

    @torch.inference_mode()
    def fill_masks(self, texts: Sequence[str], top_k: int = 5) -> list[list[list[Guess]]]:
        """The same for many texts."""
        self._require("fill_mask")
        input_ids, bounds = _encode_masks(texts, self.tokenizer, self.config.max_position_embeddings)
        answers: list[list[list[Guess]]] = [[] for _ in texts]
        for chosen in token_budget_batches(bounds, BATCH_TOKENS):
            ids = input_ids[token_places(bounds, chosen)]
            masked_positions = np.flatnonzero(ids == self.tokenizer.vocabulary.mask_id)
            batch_bounds = np.concatenate([[0], np.cumsum(np.diff(bounds)[chosen])])
            batch = pack(ids, np.zeros_like(ids), batch_bounds, masked_positions=masked_positions)
            with self._hardware.autocast():
                logits = self.model(batch.to(torch.device(self._hardware.device)))
            if isinstance(self.model, PreTrainingModel):
                logits, _ = logits
            best = logits.float().softmax(-1).topk(min(top_k, logits.shape[1]))  # (M, k) of (M, V)
            owners = chosen[np.searchsorted(batch_bounds, masked_positions, side="right") - 1]
            for number, scores, tokens in zip(
                owners.tolist(), best.values.tolist(), best.indices.tolist(), strict=True
            ):
                text, place = texts[number], len(answers[number])
                answers[number].append(
                    [
                        Guess(score, token, name, _fill(text, place, name))
                        for score, token, name in zip(
                            scores, tokens, self.tokenizer.tokens(tokens), strict=True
                        )
                    ]
                )
        return answers

    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[list[Label]]:
        """The labels of each text, or pair of texts, with their probabilities, the likeliest first.

        A text longer than the model is cut.

        Raises:
            ModelError: the model has no classifier, or one that gives a number.
        """
        self._require("classify")
        logits = self._classifier_logits(texts, pairs)
        probabilities = _sigmoid(logits) if self.several_labels else _softmax(logits)
        return [
            [Label(self.labels[number], score) for number, score in _ranked(row)] for row in probabilities
        ]

    def rate(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[float]:
        """The number that a regression gives to each text, or pair of texts. A long text is cut.

        Raises:
            ModelError: the model is no regression.
        """
        self._require("rate")
        numbers: list[float] = self._classifier_logits(texts, pairs)[:, 0].astype(np.float64).tolist()
        return numbers

    def tag(self, texts: Sequence[str]) -> list[list[Mention]]:
        """The entities that each text names, in order. No text is too long.

        A word is what BERT's basic tokenizer takes for one: punctuation stands alone. Its first piece decides.

        Raises:
            ModelError: the model has no classifier of tokens, or its labels are not tags of entities.
        """
        spans = [_split_words(text_spans) for text_spans in self._word_spans(texts)]
        tagged = self.tag_words(texts)
        mentions = []
        for text, places, words in zip(texts, spans, tagged, strict=True):
            found = []
            for label, first, end in find_entities([word.tag for word in words]):
                start, stop = places[first][0], places[end - 1][1]
                score = float(np.mean([word.score for word in words[first:end]]))
                found.append(Mention(label, text[start:stop], start, stop, score))
            mentions.append(found)
        return mentions
