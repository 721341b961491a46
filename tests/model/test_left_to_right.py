"""Left-to-right (causal) models and Table 5's BiLSTM: which tokens they read."""

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

VOCABULARY = Vocabulary([*SPECIAL_TOKENS, *(f"w{i}" for i in range(SHAPE["vocab_size"] - 5))])
CONFIG = BertConfig(**SHAPE, is_decoder=True)
PER_TOKEN = {
    "language model": LanguageModel,
    "token classification": lambda config: TokenClassificationModel(config, 3),
    "question answering": QuestionAnsweringModel,
}
PER_SEQUENCE = {
    "classification": lambda config: ClassificationModel(config, 3),
    "multiple choice": MultipleChoiceModel,
}
MODELS = PER_TOKEN | PER_SEQUENCE


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def save_and_load(path, model, bilstm=False):
    labels = ("a", "b", "c") if isinstance(model, ClassificationModel | TokenClassificationModel) else ()
    metadata = ModelMetadata(CONFIG, model.architecture, labels, Tokenizer(VOCABULARY), bilstm=bilstm)
    save_model(path, model, metadata, "card")
    return load_model(path)[0]


def replace_token(batch: PackedBatch, position: int) -> PackedBatch:
    """Return the batch with another token at `position`."""
    ids = batch.input_ids.numpy().copy()
    ids[position] = ids[position] % (SHAPE["vocab_size"] - 1) + 1
    return pack(ids, batch.token_type_ids.numpy(), batch.cu_seqlens.numpy().astype(np.int64))


def outputs(model, batch: PackedBatch, training: bool = False) -> torch.Tensor:
    torch.manual_seed(1)  # the same dropout
    with torch.inference_mode():
        return model.train(training)(batch)


LENGTHS = st.lists(st.integers(1, 64), min_size=1, max_size=8)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", PER_TOKEN)
@settings(max_examples=12, deadline=None)
@given(data=st.data(), lengths=LENGTHS)
def test_causal_outputs_do_not_depend_on_later_tokens(name, training, data, lengths):
    """Bit for bit, with the fused kernel, with dropout and in padded buckets."""
    config = CONFIG.model_copy(update={"attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1})
    model = PER_TOKEN[name](config)
    batch = ragged_batch(lengths=lengths)
    position = data.draw(st.integers(0, sum(lengths) - 1))
    before, after = (outputs(model, b, training) for b in (batch, replace_token(batch, position)))
    sequence_end = batch.cu_seqlens[1:][batch.sequence_ids[position]]
    unchanged = torch.ones(len(before), dtype=torch.bool)
    unchanged[position:sequence_end] = False
    assert torch.equal(before[unchanged], after[unchanged])
    assert not torch.equal(before[position], after[position])


@pytest.mark.parametrize("name", PER_SEQUENCE)
def test_causal_pooling_depends_on_every_token_of_the_sequence(name, tmp_path):
    model = save_and_load(tmp_path / name, PER_SEQUENCE[name](CONFIG))
    batch = ragged_batch(lengths=(9, 1, 30, 17))
    before = outputs(model, batch)
    for position in (0, 8, 11, 39):  # first and last tokens of a sequence, and one between
        after = outputs(model, replace_token(batch, position))
        assert (before != after).any(1).tolist() == [n == batch.sequence_ids[position] for n in range(4)]


def test_causal_pooling_reads_the_last_token():
    bert = ClassificationModel(CONFIG, 3).eval().bert
    batch = ragged_batch(lengths=(9, 1, 30, 17))
    with torch.inference_mode():
        last = bert.encode(batch)[batch.cu_seqlens[1:].long() - 1]
        for pooled in (bert.pool(batch), bert(batch)[1]):
            torch.testing.assert_close(pooled, torch.tanh(bert.pooler(last)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_causal_attention_survives_saving(name, tmp_path):
    model = MODELS[name](CONFIG)
    batch = ragged_batch(lengths=(9, 30, 17, 4))
    loaded = save_and_load(tmp_path / name, model)
    assert torch.equal(outputs(model, batch), outputs(loaded, batch))
    bidirectional = MODELS[name](CONFIG.model_copy(update={"is_decoder": False}))
    bidirectional.load_state_dict(model.state_dict())
    assert not torch.allclose(outputs(model, batch), outputs(bidirectional, batch))


@pytest.mark.parametrize("name", MODELS)
def test_bilstm_reads_both_directions_and_is_saved(name, tmp_path):
    model = MODELS[name](CONFIG)
    batch = ragged_batch(lengths=(9, 30))
    without_bilstm = outputs(model, batch)
    add_bilstm(model.bert, CONFIG)
    before, after = outputs(model, batch), outputs(model, replace_token(batch, 8))
    assert before.shape == without_bilstm.shape
    if name in PER_TOKEN:
        assert (before != after).any(1).tolist() == [True] * 9 + [False] * 30
    assert torch.equal(before, outputs(save_and_load(tmp_path / name, model, bilstm=True), batch))


@pytest.mark.parametrize("selection", [[0, 8, 20], []])
def test_selected_positions_have_the_same_outputs(selection):
    """Without a BiLSTM, and with one, for which the last layer computes all tokens."""
    batch, positions = ragged_batch(lengths=(9, 30)), torch.tensor(selection, dtype=torch.int64)
    model = ClassificationModel(CONFIG, 3).eval().bert
    for _ in range(2):
        sequence_output, pooled_output = model(batch)
        selected_output, same_pooled_output = model(batch, positions)
        torch.testing.assert_close(selected_output, sequence_output[positions], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(same_pooled_output, pooled_output, atol=1e-5, rtol=1e-5)
        add_bilstm(model, CONFIG)


@pytest.mark.parametrize("bilstm", [False, True])
def test_transformers_rejects_models_that_it_would_misread(bilstm, tmp_path):
    """A classifier that reads the last token, and any model with a BiLSTM."""
    model = TokenClassificationModel(CONFIG, 3) if bilstm else ClassificationModel(CONFIG, 3)
    if bilstm:
        add_bilstm(model.bert, CONFIG)
    save_and_load(tmp_path / "model", model, bilstm)
    for loader in (AutoConfig, AutoModel):
        with pytest.raises(ValueError, match="model type `bertie`"):
            loader.from_pretrained(tmp_path / "model")


@pytest.mark.usefixtures("unverified")
def test_causal_classifier_of_transformers_is_rejected(tmp_path):
    save_and_load(tmp_path / "model", ClassificationModel(CONFIG, 3))
    values = read_json(tmp_path / "model" / "config.json")
    write_json(tmp_path / "model" / "config.json", {**values, "model_type": "bert"})
    with pytest.raises(ModelError, match=r"config.json: a left-to-right BertForSequenceClassification that"):
        bertie.load(tmp_path / "model")


@pytest.mark.usefixtures("unverified")
def test_a_model_type_that_does_not_fit_is_rejected(tmp_path):
    save_and_load(tmp_path / "model", TokenClassificationModel(CONFIG, 3))
    values = read_json(tmp_path / "model" / "config.json")
    write_json(tmp_path / "model" / "config.json", {**values, "model_type": "bertie"})
    message = "model_type is 'bertie', but the other keys describe a model of the type 'bert'; correct it"
    with pytest.raises(ModelError, match=message):
        bertie.load(tmp_path / "model")
