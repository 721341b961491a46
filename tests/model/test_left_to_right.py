"""A model that reads from left to right, and the BiLSTM of Table 5: what may depend on what."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.parity.transformers_peer import SHAPE, ragged_batch
from transformers import AutoConfig, AutoModel

import bertie
from bertie.base.errors import ModelError
from bertie.base.files import read_json, write_json
from bertie.model.batch import PackedBatch, pack
from bertie.model.bert import add_bilstm
from bertie.model.config import BertConfig
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import load_model, save_model
from bertie.model.heads import (
    ClassificationModel,
    LanguageModel,
    MultipleChoiceModel,
    QuestionAnsweringModel,
    TokenClassificationModel,
)
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

VOCABULARY = Vocabulary([*SPECIAL_TOKENS, *(f"w{number}" for number in range(SHAPE["vocab_size"] - 5))])
CONFIG = BertConfig(**SHAPE, is_decoder=True)
PER_TOKEN = {
    "language model": lambda: LanguageModel(CONFIG),
    "tokens": lambda: TokenClassificationModel(CONFIG, 3),
    "answers": lambda: QuestionAnsweringModel(CONFIG),
}
PER_SEQUENCE = {
    "classification": lambda: ClassificationModel(CONFIG, 3),
    "choices": lambda: MultipleChoiceModel(CONFIG),
}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def saved(path, model, bilstm=False):
    labels = ("a", "b", "c") if isinstance(model, ClassificationModel | TokenClassificationModel) else ()
    metadata = ModelMetadata(CONFIG, model.architecture, labels, Tokenizer(VOCABULARY), bilstm=bilstm)
    save_model(path, model, metadata, "card")
    return load_model(path)[0]


def changed_after(batch: PackedBatch, place: int) -> PackedBatch:
    """The batch with another token at `place`."""
    ids = batch.input_ids.numpy().copy()
    ids[place] = ids[place] % (SHAPE["vocab_size"] - 1) + 1
    return pack(ids, batch.token_type_ids.numpy(), batch.cu_seqlens.numpy().astype(np.int64))


def outputs(model, batch, training: bool) -> torch.Tensor:
    torch.manual_seed(1)  # the same dropout
    with torch.inference_mode():
        return model.train(training)(batch)


LENGTHS = st.lists(st.integers(1, 64), min_size=1, max_size=8)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", PER_TOKEN)
@settings(max_examples=12, deadline=None)
@given(data=st.data(), lengths=LENGTHS)
def test_a_later_token_changes_nothing_earlier_by_a_bit(name, training, data, lengths):
    """Also where dropout takes the place of the fused kernel, and of sequences that stand beside padding."""
    config = CONFIG.model_copy(update={"attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1})
    model = type(PER_TOKEN[name]())(config, *((3,) if name == "tokens" else ()))
    batch = ragged_batch(lengths=lengths)
    place = data.draw(st.integers(0, sum(lengths) - 1))
    before, after = (outputs(model, b, training) for b in (batch, changed_after(batch, place)))
    end = batch.cu_seqlens[1:][batch.sequence_ids[place]]  # of its sequence
    unchanged = torch.ones(len(before), dtype=torch.bool)
    unchanged[place:end] = False
    assert torch.equal(before[unchanged], after[unchanged])
    assert not torch.equal(before[place], after[place])


@pytest.mark.parametrize("name", PER_SEQUENCE)
def test_a_sequence_is_told_by_its_last_token(name, tmp_path):
    model = saved(tmp_path / name, PER_SEQUENCE[name]())
    batch = ragged_batch(lengths=(9, 1, 30, 17))
    before = outputs(model, batch, False)
    for place in (0, 8, 11, 39):  # the first and the last of a sequence, and others
        after = outputs(model, changed_after(batch, place), False)
        assert (before != after).any(1).tolist() == [n == batch.sequence_ids[place] for n in range(4)]


@pytest.mark.parametrize("name", PER_TOKEN | PER_SEQUENCE)
def test_it_is_the_same_after_reload(name, tmp_path):
    model = (PER_TOKEN | PER_SEQUENCE)[name]()
    batch = ragged_batch(lengths=(9, 30, 17, 4))
    again = saved(tmp_path / name, model)
    assert torch.equal(outputs(model, batch, False), outputs(again, batch, False))
    both_ways = CONFIG.model_copy(update={"is_decoder": False})
    other = type(model)(both_ways, *((3,) if name in ("tokens", "classification") else ()))
    other.load_state_dict(model.state_dict())
    assert not torch.allclose(outputs(model, batch, False), outputs(other, batch, False))


@pytest.mark.parametrize("name", PER_TOKEN | PER_SEQUENCE)
def test_a_bilstm_reads_both_ways_and_is_saved(name, tmp_path):
    model = (PER_TOKEN | PER_SEQUENCE)[name]()
    without = outputs(model, ragged_batch(lengths=(9, 30)), False)
    add_bilstm(model.bert, CONFIG)
    batch = ragged_batch(lengths=(9, 30))
    before, after = outputs(model, batch, False), outputs(model, changed_after(batch, 8), False)
    assert before.shape == without.shape
    if name in PER_TOKEN:
        assert (before != after).any(1).tolist() == [True] * 9 + [False] * 30
    assert torch.equal(before, outputs(saved(tmp_path / name, model, bilstm=True), batch, False))


@pytest.mark.parametrize("tokens", [[0, 8, 20], []])
def test_only_what_is_read_is_given_on(tokens):
    """Of a classifier the last token; with a BiLSTM too, which itself reads all."""
    batch, places = ragged_batch(lengths=(9, 30)), torch.tensor(tokens, dtype=torch.int64)
    model = ClassificationModel(CONFIG, 3).eval().bert
    for _ in range(2):
        all_tokens, pooled = model(batch)
        read, pooled_again = model(batch, places)
        torch.testing.assert_close(read, all_tokens[places], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(pooled_again, pooled, atol=1e-5, rtol=1e-5)
        add_bilstm(model, CONFIG)


@pytest.mark.parametrize("bilstm", [False, True])
def test_transformers_refuses_what_it_would_take_for_something_else(bilstm, tmp_path):
    """A classifier on the last token; anything with a BiLSTM."""
    model = TokenClassificationModel(CONFIG, 3) if bilstm else ClassificationModel(CONFIG, 3)
    if bilstm:
        add_bilstm(model.bert, CONFIG)
    saved(tmp_path / "model", model, bilstm)
    for loader in (AutoConfig, AutoModel):
        with pytest.raises(ValueError, match="model type `bertie`"):
            loader.from_pretrained(tmp_path / "model")


def test_a_left_to_right_classifier_of_others_is_refused(tmp_path):
    saved(tmp_path / "model", ClassificationModel(CONFIG, 3))
    values = read_json(tmp_path / "model" / "config.json")
    write_json(tmp_path / "model" / "config.json", {**values, "model_type": "bert"})
    with pytest.raises(ModelError, match=r"config.json: a left-to-right BertForSequenceClassification that"):
        bertie.load(tmp_path / "model")
