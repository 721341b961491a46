"""The keys of config.json and the tokenizer fit the model."""

import pytest
from tests.inference.small_models import CONFIG, TOKENIZER, save_small

from bertie.base.errors import ModelError
from bertie.base.files import read_json, write_json
from bertie.model.formats.conversion import convert
from bertie.model.formats.directory import (
    check_network,
    read_metadata,
    trim_tokenizer,
)
from bertie.model.formats.sentence_transformers import EmbeddingConfig, read_embedding_config
from bertie.text.added_tokens import AddedToken
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

pytestmark = pytest.mark.usefixtures("unverified")  # directories are changed here


@pytest.mark.parametrize(
    ("kind", "labels", "expected"),
    [
        ("classifier", ("no", "yes"), 1),
        ("classifier", ("a", "b", "c"), 0),
        ("multi-label", ("a", "b", "c"), 3),
    ],
)
def test_wrong_number_of_thresholds_is_rejected(tmp_path, kind, labels, expected):
    path = save_small(tmp_path, kind, labels=labels)
    config = read_json(path / "config.json")
    for number in range(4):
        write_json(path / "config.json", {**config, "decision_thresholds": [0.3] * number})
        if number == expected:
            assert read_metadata(path).decision_thresholds == (0.3,) * number
            continue
        message = rf"config\.json: decision_thresholds has {number} numbers, but this model takes {expected};"
        with pytest.raises(ModelError, match=message):
            read_metadata(path)


def test_only_entries_that_no_text_can_have_are_dropped():
    """A lower-casing tokenizer finds `Upper` only if it is an added token or is never split."""
    vocabulary = Vocabulary([*TOKENIZER.vocabulary.tokens, "Upper"])
    trimmed = trim_tokenizer(Tokenizer(vocabulary), CONFIG, "here")
    assert trimmed.vocabulary.tokens == TOKENIZER.vocabulary.tokens
    for changes in ({"never_split": ("Upper",)}, {"added_tokens": (AddedToken("Upper"),)}):
        with pytest.raises(ModelError, match="here: the tokenizer has"):
            trim_tokenizer(Tokenizer(vocabulary, **changes), CONFIG, "here")


def test_only_settings_of_training_may_differ_from_the_initial_model(tmp_path):
    path = save_small(tmp_path, "encoder")
    for key in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        check_network(path, CONFIG.model_copy(update={key: 0.25}))
    for key in ("initializer_range", "position_initializer_range"):
        check_network(path, CONFIG.model_copy(update={key: 0.25}))
    for key, value in {
        "layer_norm_eps": 0.1,
        "is_decoder": True,
        "vocab_size": CONFIG.vocab_size + 1,
    }.items():
        with pytest.raises(ModelError, match=rf"model\.{key} is .*; leave out model\.{key}$"):
            check_network(path, CONFIG.model_copy(update={key: value}))
    check_network(path, CONFIG.model_copy(update={"vocab_size": CONFIG.vocab_size + 1}), may_grow=True)


def test_config_has_the_id_of_the_padding_token(tmp_path):
    tokens = TOKENIZER.vocabulary.tokens
    first, *others = SPECIAL_TOKENS
    vocabulary = Vocabulary([*others, first, *tokens[len(SPECIAL_TOKENS) :]])
    path = save_small(tmp_path, "encoder", tokenizer=TOKENIZER.replace(vocabulary=vocabulary))
    assert read_json(path / "config.json")["pad_token_id"] == 4


@pytest.mark.parametrize(("embedding", "expected"), [(EmbeddingConfig("max", True, 20), 20), (None, 12)])
def test_conversion_prefers_the_length_limit_of_embeddings(tmp_path, embedding, expected):
    """The length in fine-tuning is the limit of a model in another layout."""
    path = save_small(tmp_path, "encoder", max_seq_length=12, embedding=embedding)
    convert(path, tmp_path / "converted", "sentence-transformers")
    converted = read_metadata(tmp_path / "converted").embedding
    assert converted == (embedding or EmbeddingConfig())._replace(max_seq_length=expected)


@pytest.mark.parametrize(
    ("tokenizer_limit", "transformer_limit", "expected"),
    [
        (64, 20, 20),
        (20, 64, 64),
        (20, None, 20),
        (None, 20, 20),
        (10**30, None, 128),
        (64, 1000, 128),
        (2, None, 2),
    ],
)
def test_the_limit_of_the_transformer_precedes_the_one_of_the_tokenizer(
    tmp_path, tokenizer_limit, transformer_limit, expected
):
    path = save_small(tmp_path, "encoder", embedding=EmbeddingConfig())
    write_json(path / "tokenizer_config.json", {"model_max_length": tokenizer_limit})
    write_json(path / "sentence_bert_config.json", {"max_seq_length": transformer_limit})
    assert read_embedding_config(path, 128).max_seq_length == expected
