"""A classification task that a tiny model learns within seconds."""

from pathlib import Path

import numpy as np
import torch

from bertie.model.config import BertConfig
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import save_model
from bertie.model.heads import PreTrainingModel
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.custom.classification import CustomClassification
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.training.finetuning import InitialModel

WORDS = [f"{letter}{number}" for letter in "abc" for number in range(10)]
LABELS = ("a", "b", "c")
TASK = CustomClassification("letters", LABELS).with_problem_type("single_label_classification")


def make_texts(seed: int, count: int) -> LabelledTexts:
    """Make texts of words that start with the same letter, which is the label."""
    rng = np.random.default_rng(seed)
    labels = [LABELS[index] for index in rng.integers(0, 3, count)]
    texts = [" ".join(f"{label}{n}" for n in rng.integers(0, 10, rng.integers(1, 9))) for label in labels]
    return LabelledTexts(texts, labels=labels)


def make_initial_model(path: Path) -> InitialModel:
    """Write a tiny pre-training model with random weights."""
    tokenizer = Tokenizer(Vocabulary([*SPECIAL_TOKENS, *WORDS]))
    config = BertConfig(
        vocab_size=len(tokenizer.vocabulary),
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=32,
        initializer_range=0.1,
    )
    torch.manual_seed(0)
    metadata = ModelMetadata(config, PreTrainingModel.architecture, (), tokenizer)
    save_model(path, PreTrainingModel(config), metadata, "card")
    return InitialModel(config, tokenizer, path)
