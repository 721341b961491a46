"""google-research/bert's checkpoints: a real one, every head, and rejections."""

import re
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
import transformers
from tests.parity.transformers_peer import padded_inputs, ragged_batch, token_mask

from bertie.base.errors import ModelError
from bertie.base.files import read_json, write_json
from bertie.model.config import BertConfig
from bertie.model.formats import weights
from bertie.model.formats.conversion import convert
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.tensor_bundle import read_bundle, write_bundle
from bertie.model.formats.tensorflow import (
    BERT_CONFIG_FILE,
    CHECKPOINT_NAME,
    find_checkpoint,
    load_model,
    save_model,
)
from bertie.model.heads import (
    ClassificationModel,
    EmbeddingModel,
    EncoderModel,
    LanguageModel,
    Model,
    QuestionAnsweringModel,
)
from bertie.text.added_tokens import AddedToken
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

pytestmark = pytest.mark.usefixtures("unverified")  # directories are changed here

HIDDEN = 8
SMALL = BertConfig(
    vocab_size=9, hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12
)
TOKENS = (*SPECIAL_TOKENS, "w", "##x", "y", "z")
DATA_FILE = f"{CHECKPOINT_NAME}.data-00000-of-00001"
GOOGLE_FILES = (BERT_CONFIG_FILE, "vocab.txt", f"{CHECKPOINT_NAME}.index", DATA_FILE)

ALL_MODELS = pytest.mark.parametrize(
    "model_class",
    [m for m in get_args(Model | EncoderModel) if m not in (LanguageModel, EmbeddingModel)],
    ids=lambda model_class: model_class.architecture,
)


@pytest.fixture(scope="module")
def tiny(shared_data):
    return shared_data / "checkpoints/keras_bert_tf1_tiny"


def make_model(model_class, num_labels=3, tokens=TOKENS, lowercase=True):
    """Return a model with random weights, and its metadata."""
    torch.manual_seed(0)
    is_classifier = "Classification" in model_class.architecture
    model = model_class(SMALL, num_labels) if is_classifier else model_class(SMALL)
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    labels = tuple("abc"[:num_labels]) if is_classifier else ()
    tokenizer = Tokenizer(Vocabulary(tokens), lowercase)
    return model.eval(), ModelMetadata(SMALL, model_class.architecture, labels, tokenizer)


def save_google_files(folder, model, metadata):
    """Write only the files that google's code writes."""
    save_model(folder, model, metadata)
    for file in folder.iterdir():
        if file.name not in GOOGLE_FILES:
            file.unlink()


def has_equal_weights(model, other):
    weights, others = model.state_dict(), other.state_dict()
    return weights.keys() == others.keys() and all(torch.equal(weights[n], others[n]) for n in weights)


def load_in_transformers(folder):
    """Load a checkpoint in `transformers`, as its converter did until version 4."""
    bundle = read_bundle(folder / CHECKPOINT_NAME)
    weights = {}
    for tensor_name in bundle.entries:
        if not tensor_name.startswith(("bert/", "cls/")) or "/adam_" in tensor_name:
            continue
        values = bundle.read(tensor_name)
        name = re.sub(r"(_embeddings|/kernel|/gamma|/output_weights)$", r"\1/weight", tensor_name)
        name = re.sub(r"/beta$|/output_bias$", "/bias", name)
        name = re.sub(r"/(kernel|gamma|output_weights)/", "/", name)
        name = re.sub(r"/layer_(\d+)/", r"/layer/\1/", name).replace("/", ".")
        weights[name] = torch.from_numpy(values.T if tensor_name.endswith("/kernel") else values).contiguous()
    model = transformers.BertForPreTraining(transformers.BertConfig(**read_json(folder / BERT_CONFIG_FILE)))
    model.load_state_dict(
        weights | {"cls.predictions.decoder.bias": weights["cls.predictions.bias"]}, strict=False
    )
    model.tie_weights()
    return model.eval()


def test_real_checkpoint_has_the_logits_of_transformers(tiny, capsys):
    model, metadata = load_model(tiny)
    assert metadata.architecture == "BertForPreTraining"
    assert metadata.tokenizer.lowercase
    assert capsys.readouterr().err == f"{tiny / CHECKPOINT_NAME}: skipped 93 optimizer tensors\n"
    batch = ragged_batch(lengths=(16, 3, 9), vocab_size=15)
    reference = load_in_transformers(tiny)
    with torch.no_grad():
        expected = reference(**padded_inputs(batch))
        masked_lm, next_sentence = model(batch)
    predictions = expected.prediction_logits[token_mask(batch)][batch.masked_positions]
    torch.testing.assert_close(masked_lm, predictions, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(next_sentence, expected.seq_relationship_logits, atol=1e-5, rtol=1e-5)


def test_real_checkpoint_survives_a_round_trip(tiny, tmp_path):
    save_model(tmp_path / "copy", *load_model(tiny))
    copy, original = read_bundle(tmp_path / "copy" / CHECKPOINT_NAME), read_bundle(tiny / CHECKPOINT_NAME)
    assert set(copy.entries) == {n for n in original.entries if "adam" not in n and n != "global_step"}
    for name in copy.entries:
        np.testing.assert_array_equal(copy.read(name), original.read(name))
    config, original_config = (
        read_json(tmp_path / "copy" / BERT_CONFIG_FILE),
        read_json(tiny / BERT_CONFIG_FILE),
    )
    assert config.items() <= original_config.items()
    assert "--do_lower_case=True" in (tmp_path / "copy/README.md").read_text()


@ALL_MODELS
def test_every_head_survives_a_round_trip(tmp_path, model_class, capsys):
    model, metadata = make_model(model_class)
    save_model(tmp_path / "model", model, metadata)
    loaded, loaded_metadata = load_model(tmp_path / "model")
    assert type(loaded) is model_class
    assert has_equal_weights(loaded, model)
    assert not loaded.training
    assert replace(loaded_metadata, tokenizer=metadata.tokenizer) == metadata
    assert loaded_metadata.tokenizer.fingerprint == metadata.tokenizer.fingerprint
    assert capsys.readouterr().err == ""


@ALL_MODELS
def test_head_is_inferred_from_google_files(tmp_path, model_class):
    """Except multiple choice and token classification, which google's code lacks."""
    model, metadata = make_model(model_class)
    save_google_files(tmp_path / "google", model, metadata)
    if model_class.architecture == "BertForTokenClassification":
        with pytest.raises(ModelError, match="a classifier without a pooler, such as a tagger;"):
            load_model(tmp_path / "google")
        return
    loaded, loaded_metadata = load_model(tmp_path / "google")
    expected = {"BertForMultipleChoice": "BertForSequenceClassification"}.get(
        model_class.architecture, model_class.architecture
    )
    assert loaded_metadata.architecture == loaded.architecture == expected
    assert has_equal_weights(loaded, model)


@pytest.mark.parametrize(
    ("num_labels", "labels", "problem_type"),
    [(3, ("LABEL_0", "LABEL_1", "LABEL_2"), "single_label_classification"), (1, ("LABEL_0",), "regression")],
)
def test_google_classifier_has_default_labels(tmp_path, num_labels, labels, problem_type):
    save_google_files(tmp_path / "model", *make_model(ClassificationModel, num_labels))
    model, metadata = load_model(tmp_path / "model")
    assert (metadata.labels, metadata.problem_type) == (labels, problem_type)
    assert model.problem_type == problem_type


def change_tensors(folder, added, removed=()):
    """Add tensors to a checkpoint, or replace them, and remove others."""
    bundle = read_bundle(folder / CHECKPOINT_NAME)
    tensors = {name: bundle.read(name) for name in bundle.entries if name not in removed}
    write_bundle(folder / CHECKPOINT_NAME, tensors | added)


def test_unused_tensors_are_reported(tmp_path, capsys):
    """run_squad.py stores its optimizer, and a pooler that it does not use."""
    folder = tmp_path / "model"
    save_google_files(folder, *make_model(QuestionAnsweringModel))
    pooler = {
        "bert/pooler/dense/bias": np.ones(HIDDEN),
        "bert/pooler/dense/kernel": np.ones((HIDDEN, HIDDEN)),
    }
    optimizer = ("cls/squad/output_bias/adam_v", "cls/squad/output_bias/Adam_1", "beta1_power", "global_step")
    change_tensors(folder, pooler | dict.fromkeys(optimizer, np.array(0.9)))
    model, _ = load_model(folder)
    assert isinstance(model, QuestionAnsweringModel)
    assert capsys.readouterr().err.splitlines() == [
        f"{folder / CHECKPOINT_NAME}: skipped 4 optimizer tensors",
        f"{folder / CHECKPOINT_NAME}: skipped tensors that BertForQuestionAnswering does not use: "
        "bert/pooler/dense/bias, bert/pooler/dense/kernel",
    ]


@pytest.mark.parametrize(
    ("added", "removed", "message"),
    [
        ({"_CHECKPOINTABLE_OBJECT_GRAPH": np.zeros(1)}, (), "object-based TensorFlow 2 checkpoint"),
        (
            {"bert/encoder/layer_2/output/dense/bias": np.zeros(8)},
            (),
            "unexpected tensor bert/encoder/layer_2/output/dense/bias;",
        ),
        ({}, ("bert/encoder/layer_1/output/dense/bias",), "layer_1/output/dense/bias is missing"),
        ({"output_bias": np.zeros(4)}, (), r"output_bias has shape \(4,\), but .* \(3,\)"),
        ({"bert/embeddings/LayerNorm/beta": np.zeros(())}, (), r"LayerNorm/beta has shape \(\)"),
        ({"output_weights": np.zeros(3)}, (), r"output_weights has shape \(3,\), which no classifier has"),
        ({"output_bias": np.array([0, np.nan, 0])}, (), "output_bias has NaN or infinite numbers; the"),
        ({"output_bias": np.array([0, -np.inf, 0])}, (), "output_bias has NaN or infinite numbers; the"),
    ],
)
def test_checkpoint_that_does_not_fit_is_rejected(tmp_path, added, removed, message):
    save_google_files(tmp_path / "model", *make_model(ClassificationModel))
    change_tensors(tmp_path / "model", added, removed)
    with pytest.raises(ModelError, match=message):
        load_model(tmp_path / "model")


def test_damage_error_names_the_tensor(tmp_path):
    save_google_files(tmp_path / "model", *make_model(EncoderModel))
    path = tmp_path / "model" / DATA_FILE
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match="data-00000-of-00001: truncated in bert/pooler/dense/kernel"):
        load_model(tmp_path / "model")


def test_missing_google_file_is_named(tmp_path):
    folder = tmp_path / "model"
    save_google_files(folder, *make_model(EncoderModel))
    (folder / "vocab.txt").rename(tmp_path / "vocab.txt")
    with pytest.raises(ModelError, match=r"vocab\.txt: cannot be read"):
        load_model(folder)
    (folder / BERT_CONFIG_FILE).unlink()
    with pytest.raises(ModelError, match=r"bert_config\.json: no such file; copy it"):
        load_model(folder)
    (folder / f"{CHECKPOINT_NAME}.index").unlink()
    with pytest.raises(ModelError, match="found none"):
        load_model(folder)
    with pytest.raises(ModelError, match=r"bert_model\.ckpt\.index: cannot be read"):
        load_model(folder / CHECKPOINT_NAME)


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        (
            'model_checkpoint_path: "model.ckpt-343"\nall_model_checkpoint_paths: "model.ckpt-0"\n',
            "model.ckpt-343",
        ),
        ('model_checkpoint_path: "/tmp/mrpc_output/model.ckpt-0"\n', "model.ckpt-0"),
        ('model_checkpoint_path: "model.ckpt-500"\n', None),
        (None, None),
    ],
)
def test_latest_of_several_checkpoints_is_found(tmp_path, checkpoint, expected):
    for name in ("model.ckpt-0", "model.ckpt-343"):
        (tmp_path / f"{name}.index").touch()
    if checkpoint is not None:
        (tmp_path / "checkpoint").write_text(checkpoint)
    if expected is not None:
        assert find_checkpoint(tmp_path) == tmp_path / expected
    else:
        with pytest.raises(ModelError, match=r"one checkpoint, found model.ckpt-0, model.ckpt-343; name one"):
            find_checkpoint(tmp_path)
    assert find_checkpoint(tmp_path / "model.ckpt-0") == tmp_path / "model.ckpt-0"


@pytest.mark.parametrize(
    ("name", "tokens", "lowercase"),
    [
        ("uncased_L-2_H-8_A-2", (*TOKENS[:-1], "Z"), True),
        ("multi_cased_L-2_H-8_A-2", TOKENS, False),
        ("multilingual_L-2_H-8_A-2", (*TOKENS[:-1], "Ⅱ"), True),
        ("mrpc_output", (*TOKENS[:-1], "Z"), False),
        ("mrpc_output", TOKENS, True),
    ],
)
def test_casing_comes_from_config_folder_name_or_vocabulary(tmp_path, name, tokens, lowercase):
    model, metadata = make_model(EncoderModel, tokens=tokens, lowercase=not lowercase)
    save_google_files(tmp_path / "google" / name, model, metadata)
    save_model(tmp_path / "with_config" / name, model, metadata)
    for folder, expected in (("google", lowercase), ("with_config", not lowercase)):
        _, loaded_metadata = load_model(tmp_path / folder / name)
        assert loaded_metadata.tokenizer.lowercase is expected


def test_google_config_has_one_name_for_both_gelus(tmp_path):
    model, metadata = make_model(EncoderModel)
    metadata = replace(metadata, config=SMALL.model_copy(update={"hidden_act": "gelu_new"}))
    save_model(tmp_path / "model", model, metadata)
    assert read_json(tmp_path / "model" / BERT_CONFIG_FILE)["hidden_act"] == "gelu"
    assert load_model(tmp_path / "model")[1].config.hidden_act == "gelu_new"
    # For a checkpoint of google's code that was trained with the approximation, the user edits the config.
    (tmp_path / "model/config.json").unlink()
    assert load_model(tmp_path / "model")[1].config.hidden_act == "gelu"
    edited = read_json(tmp_path / "model" / BERT_CONFIG_FILE) | {"hidden_act": "gelu_new"}
    write_json(tmp_path / "model" / BERT_CONFIG_FILE, edited)
    assert load_model(tmp_path / "model")[1].config.hidden_act == "gelu_new"


@pytest.mark.parametrize("hidden_act", ["relu", "tanh", "linear"])
def test_google_config_has_the_other_activations(tmp_path, hidden_act):
    model, metadata = make_model(EncoderModel)
    metadata = replace(metadata, config=SMALL.model_copy(update={"hidden_act": hidden_act}))
    save_model(tmp_path / "model", model, metadata)
    (tmp_path / "model/config.json").unlink()
    assert read_json(tmp_path / "model" / BERT_CONFIG_FILE)["hidden_act"] == hidden_act
    assert load_model(tmp_path / "model")[1].config.hidden_act == hidden_act


@pytest.mark.parametrize(
    "options",
    [
        {"strip_accents": False},
        {"tokenize_chinese_chars": False},
        {"never_split": ("a",)},
        {"added_tokens": (AddedToken(TOKENS[-1], single_word=True),)},
    ],
)
def test_tokenizer_options_that_google_lacks_are_not_written(tmp_path, options):
    model, metadata = make_model(EncoderModel)
    tokenizer = Tokenizer(metadata.tokenizer.vocabulary, **options)
    metadata = replace(metadata, tokenizer=tokenizer)
    with pytest.raises(ModelError, match=r"no strip_accents, .*; choose another layout"):
        save_model(tmp_path / "google", model, metadata)
    weights.save_model(tmp_path / "ours", model, metadata, "")
    converted = convert(tmp_path / "ours", tmp_path / "converted", "huggingface")
    assert converted.tokenizer.fingerprint == tokenizer.fingerprint
    assert Tokenizer.load(tmp_path / "converted").fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize(
    "changes", [{"config": SMALL.model_copy(update={"is_decoder": True})}, {"bilstm": True}]
)
def test_models_that_google_lacks_are_not_written(tmp_path, changes):
    model, metadata = make_model(EncoderModel)
    with pytest.raises(ModelError, match="has no left-to-right models and no BiLSTM"):
        save_model(tmp_path / "model", model, replace(metadata, **changes))
    assert not list(tmp_path.iterdir())
