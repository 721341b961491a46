"""The shape of a network: its defaults and its limits."""

import pydantic
import pytest
import transformers

from bertie.model.config import BertConfig


def test_defaults_are_those_of_bert_base():
    reference = transformers.BertConfig().to_dict()
    ours = BertConfig().model_dump(exclude={"position_initializer_range"})
    assert ours == {key: reference[key] for key in ours}


IN_RANGE = {
    "vocab_size": (1, 2**26),
    "hidden_size": (12, 12 * 2**16),
    "num_hidden_layers": (1, 1024),
    "intermediate_size": (1, 2**20),
    "hidden_dropout_prob": (0.0, 0.999),
    "attention_probs_dropout_prob": (0.0, 0.999),
    "max_position_embeddings": (1, 2**20),
    "type_vocab_size": (1, 2**20),
    "initializer_range": (1e-9, 9.0),
    "position_initializer_range": (1e-9, 9.0),
    "layer_norm_eps": (1e-30, 1.0),
}
OUT_OF_RANGE = {
    "vocab_size": (0, 2**26 + 1),
    "hidden_size": (0, 12 * 2**20),
    "num_hidden_layers": (0, 1025),
    "num_attention_heads": (0, -1),
    "intermediate_size": (0, 2**20 + 1),
    "hidden_dropout_prob": (-0.1, 1.0),
    "attention_probs_dropout_prob": (-0.1, 1.0),
    "max_position_embeddings": (0, 2**20 + 1),
    "type_vocab_size": (0, 2**20 + 1),
    "initializer_range": (0.0, -1.0),
    "position_initializer_range": (0.0, -1.0),
    "layer_norm_eps": (0.0, -1.0),
}


@pytest.mark.parametrize("key", OUT_OF_RANGE)
def test_impossible_sizes_are_refused(key):
    for value in IN_RANGE.get(key, ()):
        assert getattr(BertConfig(**{key: value}), key) == value
    for value in OUT_OF_RANGE[key]:
        with pytest.raises(pydantic.ValidationError, match=key):
            BertConfig(**{key: value})


@pytest.mark.parametrize(("heads", "nearest"), [(5, 4), (9, 8), (11, 12), (21, 24), (100, 48)])
def test_error_about_heads_suggests_the_nearest_divisor(heads, nearest):
    with pytest.raises(
        pydantic.ValidationError, match=rf"a divisor of hidden_size 48, such as {nearest} \[type"
    ):
        BertConfig(hidden_size=48, num_attention_heads=heads)
