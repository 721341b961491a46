"""Small random models, one for each head, that read any lower-case text."""

import string
from pathlib import Path

import numpy as np
import torch

from bertie.model.config import BertConfig
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import save_model
from bertie.model.heads import (
    ClassificationModel,
    EncoderModel,
    MaskedLMModel,
    MultipleChoiceModel,
    NextSentenceModel,
    PreTrainingModel,
    QuestionAnsweringModel,
    TokenClassificationModel,
)
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

LETTERS = [*string.ascii_lowercase, *string.digits]
WORDS = ["the", "cat", "sat", "on", "mat", "paris", "##ting"]
TOKENIZER = Tokenizer(
    Vocabulary([*SPECIAL_TOKENS, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,?!-'[]()"])
)
CONFIG = BertConfig(
    vocab_size=len(TOKENIZER.vocabulary),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=128,
    initializer_range=0.5,
)
LABELS = ("bad", "fair", "good")
TAGS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")

# By kind: a function that makes the model, its labels, and the rest of its metadata.
MODELS = {
    "pre-training": (lambda: PreTrainingModel(CONFIG), (), {}),
    "masked LM": (lambda: MaskedLMModel(CONFIG), (), {}),
    "next sentence": (lambda: NextSentenceModel(CONFIG), (), {}),
    "classifier": (lambda: ClassificationModel(CONFIG, 3), LABELS, {}),
    "mean classifier": (
        lambda: ClassificationModel(CONFIG, 3, pooling="mean"),
        LABELS,
        {"classifier_pooling": "mean"},
    ),
    "multi-label": (
        lambda: ClassificationModel(CONFIG, 3, "multi_label_classification"),
        LABELS,
        {"problem_type": "multi_label_classification"},
    ),
    "regression": (
        lambda: ClassificationModel(CONFIG, 1, "regression"),
        ("number",),
        {"problem_type": "regression"},
    ),
    "tagger": (lambda: TokenClassificationModel(CONFIG, len(TAGS)), TAGS, {}),
    "squad-v1": (lambda: QuestionAnsweringModel(CONFIG), (), {}),
    "squad-v2": (lambda: QuestionAnsweringModel(CONFIG), (), {"null_threshold": 0.5}),
    "choices": (lambda: MultipleChoiceModel(CONFIG), (), {}),
    "encoder": (lambda: EncoderModel(CONFIG), (), {}),
}


def save_small(directory: Path, kind: str, **metadata: object) -> Path:
    """Write one of MODELS to a directory of the same name, and return the directory.

    The weights are the same in every run and with every version of torch. `metadata` replaces
    parts of the model's metadata.
    """
    random = np.random.default_rng(13)
    make, labels, rest = MODELS[kind]
    model = make()
    for weight in (parameter for parameter in model.parameters() if parameter.ndim > 1):
        values = random.normal(0, CONFIG.initializer_range, weight.shape)
        weight.data = torch.from_numpy(values.astype(np.float32))
    fields = {"labels": labels, "tokenizer": TOKENIZER, **rest, **metadata}
    save_model(
        directory / kind,
        model,
        ModelMetadata(CONFIG, model.architecture, **fields),
        card="card",
    )
    return directory / kind
