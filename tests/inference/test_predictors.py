"""Answers of saved models, against `transformers` on the same directory."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

import bertie
from bertie.base.errors import DataError, ModelError
from bertie.model.config import BertConfig
from bertie.model.directory import Description
from bertie.model.heads import ClassificationModel, PreTrainingModel
from bertie.model.weights import save_model
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    ".",
    "##s",
    "##ting",
    "r",
    "##i",
    "##n",
    "##g",
    "[",
    "]",
    "mask",
]
CONFIG = BertConfig(
    vocab_size=len(SPECIAL_TOKENS) + len(WORDS),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=24,
    initializer_range=0.5,
)
LABELS = ("bad", "fair", "good")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(Vocabulary([*SPECIAL_TOKENS, *WORDS]))


@pytest.fixture(scope="module")
def pre_trained(tmp_path_factory, tokenizer):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("models") / "pre-trained"
    description = Description(CONFIG, PreTrainingModel.architecture, (), tokenizer)
    save_model(path, PreTrainingModel(CONFIG), description, "card")
    return bertie.load(path)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory, tokenizer):
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("models") / "classifier"
    description = Description(CONFIG, ClassificationModel.architecture, LABELS, tokenizer)
    save_model(path, ClassificationModel(CONFIG, len(LABELS)), description, "card")
    return bertie.load(path)


def test_each_mask_has_its_guesses(pre_trained):
    first, second = pre_trained.fill_mask("the [MASK] sat on [MASK].", top_k=3)
    assert len(first) == len(second) == 3
    assert [guess.score for guess in first] == sorted((guess.score for guess in first), reverse=True)
    everything = pre_trained.fill_mask("the [MASK] sat", top_k=10_000)[0]
    assert sum(guess.score for guess in everything) == pytest.approx(1, abs=1e-5)
    assert len(everything) == CONFIG.vocab_size


def test_a_continuation_joins_the_word_before(pre_trained):
    (guesses,) = pre_trained.fill_mask("the cat [MASK] sat", top_k=CONFIG.vocab_size)
    by_piece = {guess.token_str: guess.sequence for guess in guesses}
    assert by_piece["##s"] == "the cats sat"
    assert by_piece["mat"] == "the cat mat sat"


def test_no_mask_and_too_long_a_text_are_refused(pre_trained):
    with pytest.raises(DataError, match=r"no \[MASK\]"):
        pre_trained.fill_mask("the cat sat")
    with pytest.raises(DataError, match="32 word pieces, the model at most 24"):
        pre_trained.fill_mask("[MASK]" + " cat" * 29)


def test_classifier_agrees_with_transformers(classifier):
    theirs = AutoModelForSequenceClassification.from_pretrained(classifier.path).eval()
    assert theirs.config.id2label == dict(enumerate(LABELS))
    texts = ["the cat sat on a mat .", "rings", "", "a cat ." * 30]
    answers = classifier.classify(texts)
    for text, answer in zip(texts, answers, strict=True):
        encoding = classifier.tokenizer.encode(text, max_length=CONFIG.max_position_embeddings)
        ids = torch.from_numpy(encoding.input_ids.astype(np.int64))[None]
        expected = theirs(input_ids=ids).logits.softmax(-1)[0]
        assert [label.score for label in answer] == sorted((label.score for label in answer), reverse=True)
        for label in answer:
            assert label.score == pytest.approx(expected[LABELS.index(label.label)].item(), abs=1e-5)


def test_many_texts_come_back_in_their_order(classifier, monkeypatch):
    texts = [" ".join(["cat"] * (number % 7 + 1)) for number in range(40)]
    whole = classifier.classify(texts)
    monkeypatch.setattr("bertie.inference.predictors.BATCH_TOKENS", 10)
    for one, other in zip(whole, classifier.classify(texts), strict=True):
        assert [label.label for label in one] == [label.label for label in other]


def test_a_method_the_head_cannot_serve_says_which_is_needed(pre_trained, classifier):
    with pytest.raises(ModelError, match="needs a classifier"):
        pre_trained.classify(["the cat"])
    with pytest.raises(ModelError, match="needs a masked-LM head"):
        classifier.fill_mask("[MASK]")
