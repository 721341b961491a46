"""A classifier learns what can be learnt, and is a function of its seed."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bertie
from bertie.base.settings import resolve
from bertie.model.config import BertConfig
from bertie.model.directory import Description
from bertie.model.heads import PreTrainingModel
from bertie.model.weights import save_model
from bertie.tasks.finetuning import FinetuningSettings, LabelledTexts, Start, finetune_classifier
from bertie.tasks.metrics import accuracy
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

WORDS = [f"{letter}{number}" for letter in "abc" for number in range(10)]
LABELS = ("a", "b", "c")


def texts(seed: int, count: int) -> LabelledTexts:
    """Texts of one letter's words among those of no letter: the class is the letter."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, count)
    made = [
        " ".join(f"{LABELS[label]}{n}" for n in random.integers(0, 10, random.integers(1, 9)))
        for label in labels
    ]
    return LabelledTexts(made, labels)


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Start:
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
    path = tmp_path_factory.mktemp("models") / "pre-trained"
    torch.manual_seed(0)
    description = Description(config, PreTrainingModel.architecture, (), tokenizer)
    save_model(path, PreTrainingModel(config), description, "card")
    return Start(config, tokenizer, path)


def settings(**changes: object) -> FinetuningSettings:
    base = {"epochs": 8, "max_seq_length": 32, "optimizer": {"learning_rate": 3e-3}}
    return resolve(FinetuningSettings, base, changes)


def weights(run) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def test_it_learns_and_the_saved_model_gives_the_same_answers(start, tmp_path):
    unseen = texts(1, 100)
    predicted = finetune_classifier(start, texts(0, 300), unseen, LABELS, settings(), tmp_path / "run")
    assert accuracy(unseen.labels, predicted) > 0.95
    answers = bertie.load(tmp_path / "run" / "model").classify(unseen.texts)
    assert [labels[0].label for labels in answers] == [LABELS[number] for number in predicted]


def test_a_run_is_a_function_of_its_seed(start, tmp_path):
    training, unseen = texts(0, 60), texts(1, 10)
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        run = tmp_path / name
        finetune_classifier(start, training, unseen, LABELS, settings(seed=seed, epochs=1), run)
    one, same, other = (weights(tmp_path / name) for name in ("one", "same", "other"))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_the_encoder_comes_from_the_start_and_the_head_does_not(start, tmp_path):
    training, unseen = texts(0, 40), texts(1, 10)
    still = settings(epochs=1, optimizer={"learning_rate": 0.0})
    pre_trained = load_file(start.weights / "model.safetensors")
    finetune_classifier(start, training, unseen, LABELS, still, tmp_path / "from weights")
    finetune_classifier(
        start._replace(weights=None), training, unseen, LABELS, still, tmp_path / "from random"
    )
    name = "bert.encoder.layer.0.output.dense.weight"
    assert torch.equal(weights(tmp_path / "from weights")[name], pre_trained[name])
    assert not torch.equal(weights(tmp_path / "from random")[name], pre_trained[name])
    assert weights(tmp_path / "from weights")["classifier.weight"].shape == (3, 24)
