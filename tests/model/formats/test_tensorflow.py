"""google-research/bert's checkpoints: a real one against `transformers`, every head, refusals."""

import re
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
import transformers
from tests.parity.transformers_peer import padded, ragged_batch, real

from bertie.base.errors import ModelError
from bertie.base.files import read_json, write_json
from bertie.model.config import BertConfig
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.tensor_bundle import read_bundle, write_bundle
from bertie.model.formats.tensorflow import CHECKPOINT, CONFIG, find_checkpoint, load_model, save_model
from bertie.model.heads import ClassificationModel, EncoderModel, LanguageModel, Model, QuestionAnsweringModel
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

HIDDEN = 8
SMALL = BertConfig(
    vocab_size=9, hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12
)
TOKENS = (*SPECIAL_TOKENS, "w", "##x", "y", "z")
GOOGLES = (CONFIG, "vocab.txt", f"{CHECKPOINT}.index", f"{CHECKPOINT}.data-00000-of-00001")


@pytest.fixture(scope="module")
def tiny(shared_data):
    return shared_data / "checkpoints/keras_bert_tf1_tiny"


def made(kind, num_labels=3, tokens=TOKENS, lowercase=True):
    """A model of random weights, and its description."""
    torch.manual_seed(0)
    classifies = "Classification" in kind.architecture
    model = kind(SMALL, num_labels) if classifies else kind(SMALL)
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    labels = tuple("abc"[:num_labels]) if classifies else ()
    return model.eval(), ModelMetadata(
        SMALL, kind.architecture, labels, Tokenizer(Vocabulary(tokens), lowercase)
    )


def saved_as_google(folder, model, metadata):
    """A folder with the files that google's code writes, and no more."""
    save_model(folder, model, metadata)
    for file in folder.iterdir():
        if file.name not in GOOGLES:
            file.unlink()


def same_weights(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def in_transformers(folder):
    """The checkpoint of a folder in `transformers`, by rules as those of its converter until version 4."""
    bundle = read_bundle(folder / CHECKPOINT)
    weights = {}
    for name in bundle.entries:
        if not name.startswith(("bert/", "cls/")) or "/adam_" in name:
            continue
        values = bundle.read(name)
        theirs = re.sub(r"(_embeddings|/kernel|/gamma|/output_weights)$", r"\1/weight", name)
        theirs = re.sub(r"/beta$|/output_bias$", "/bias", theirs)
        theirs = re.sub(r"/(kernel|gamma|output_weights)/", "/", theirs)
        theirs = re.sub(r"/layer_(\d+)/", r"/layer/\1/", theirs).replace("/", ".")
        weights[theirs] = torch.from_numpy(values.T if name.endswith("/kernel") else values).contiguous()
    model = transformers.BertForPreTraining(transformers.BertConfig(**read_json(folder / CONFIG)))
    model.load_state_dict(
        weights | {"cls.predictions.decoder.bias": weights["cls.predictions.bias"]}, strict=False
    )
    model.tie_weights()
    return model.eval()


def test_a_real_checkpoint_says_what_it_says_in_transformers(tiny, capsys):
    model, metadata = load_model(tiny)
    assert metadata.architecture == "BertForPreTraining"
    assert metadata.tokenizer.lowercase
    assert capsys.readouterr().err == f"{tiny / CHECKPOINT}: 93 tensors of the optimiser left out\n"
    batch = ragged_batch(lengths=(16, 3, 9), vocab_size=15)
    theirs = in_transformers(tiny)
    with torch.no_grad():
        expected = theirs(**padded(batch))
        masked_lm, next_sentence = model(batch)
    predictions = expected.prediction_logits[real(batch)][batch.masked_positions]
    torch.testing.assert_close(masked_lm, predictions, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(next_sentence, expected.seq_relationship_logits, atol=1e-5, rtol=1e-5)


def test_a_real_checkpoint_is_written_again_as_it_was(tiny, tmp_path):
    save_model(tmp_path / "copy", *load_model(tiny))
    copy, original = read_bundle(tmp_path / "copy" / CHECKPOINT), read_bundle(tiny / CHECKPOINT)
    assert set(copy.entries) == {n for n in original.entries if "adam" not in n and n != "global_step"}
    for name in copy.entries:
        np.testing.assert_array_equal(copy.read(name), original.read(name))
    config, googles = read_json(tmp_path / "copy" / CONFIG), read_json(tiny / CONFIG)
    assert config.items() <= googles.items()
    assert "--do_lower_case=True" in (tmp_path / "copy/README.md").read_text()


@pytest.mark.parametrize(
    "kind",
    [kind for kind in get_args(Model | EncoderModel) if kind is not LanguageModel],
    ids=lambda kind: kind.architecture,
)
def test_every_head_there_and_back(tmp_path, kind, capsys):
    model, metadata = made(kind)
    save_model(tmp_path / "model", model, metadata)
    again, described = load_model(tmp_path / "model")
    assert type(again) is kind
    assert same_weights(again, model)
    assert not again.training
    assert replace(described, tokenizer=metadata.tokenizer) == metadata
    assert described.tokenizer.fingerprint == metadata.tokenizer.fingerprint
    assert capsys.readouterr().err == ""
    # google's files alone tell all heads but those that google's code has not.
    saved_as_google(tmp_path / "google", model, metadata)
    expected = {
        "BertForMultipleChoice": "BertForSequenceClassification",
        "BertForTokenClassification": "BertForSequenceClassification",
    }.get(kind.architecture, kind.architecture)
    if kind.architecture == "BertForTokenClassification":
        with pytest.raises(ModelError, match="bert/pooler/dense/kernel is missing"):
            load_model(tmp_path / "google")
    else:
        again, described = load_model(tmp_path / "google")
        assert described.architecture == again.architecture == expected
        assert same_weights(again, model)


@pytest.mark.parametrize(
    ("num_labels", "labels", "problem_type"),
    [(3, ("LABEL_0", "LABEL_1", "LABEL_2"), "single_label_classification"), (1, ("LABEL_0",), "regression")],
)
def test_a_classifier_of_googles_has_labels_without_names(tmp_path, num_labels, labels, problem_type):
    saved_as_google(tmp_path / "model", *made(ClassificationModel, num_labels))
    model, metadata = load_model(tmp_path / "model")
    assert (metadata.labels, metadata.problem_type) == (labels, problem_type)
    assert model.problem_type == problem_type


def with_tensors(folder, more, without=()):
    """Change the tensors of a checkpoint."""
    bundle = read_bundle(folder / CHECKPOINT)
    tensors = {name: bundle.read(name) for name in bundle.entries if name not in without}
    write_bundle(folder / CHECKPOINT, tensors | more)


def test_what_is_not_read_is_told(tmp_path, capsys):
    """run_squad.py stores a pooler that it does not use, and its optimiser."""
    folder = tmp_path / "model"
    saved_as_google(folder, *made(QuestionAnsweringModel))
    pooler = {
        "bert/pooler/dense/bias": np.ones(HIDDEN),
        "bert/pooler/dense/kernel": np.ones((HIDDEN, HIDDEN)),
    }
    weights = ("cls/squad/output_bias/adam_v", "cls/squad/output_bias/Adam_1", "beta1_power", "global_step")
    with_tensors(folder, pooler | dict.fromkeys(weights, np.array(0.9)))
    model, _ = load_model(folder)
    assert isinstance(model, QuestionAnsweringModel)
    assert capsys.readouterr().err.splitlines() == [
        f"{folder / CHECKPOINT}: 4 tensors of the optimiser left out",
        f"{folder / CHECKPOINT}: BertForQuestionAnswering does not read "
        "bert/pooler/dense/bias, bert/pooler/dense/kernel",
    ]


@pytest.mark.parametrize(
    ("more", "without", "message"),
    [
        ({"_CHECKPOINTABLE_OBJECT_GRAPH": np.zeros(1)}, (), "TensorFlow 2's objects"),
        (
            {"bert/encoder/layer_2/output/dense/bias": np.zeros(8)},
            (),
            "layer_2/output/dense/bias has no place",
        ),
        ({}, ("bert/encoder/layer_1/output/dense/bias",), "layer_1/output/dense/bias is missing"),
        ({"output_bias": np.zeros(4)}, (), r"output_bias has the shape \(4,\), but .* \(3,\)"),
        ({"bert/embeddings/LayerNorm/beta": np.zeros(())}, (), r"LayerNorm/beta has the shape \(\)"),
    ],
)
def test_what_is_not_this_bert_is_refused(tmp_path, more, without, message):
    saved_as_google(tmp_path / "model", *made(ClassificationModel))
    with_tensors(tmp_path / "model", more, without)
    with pytest.raises(ModelError, match=message):
        load_model(tmp_path / "model")


def test_damage_is_named(tmp_path):
    saved_as_google(tmp_path / "model", *made(EncoderModel))
    path = tmp_path / "model" / GOOGLES[-1]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match="data-00000-of-00001: cut off in bert/pooler/dense/kernel"):
        load_model(tmp_path / "model")


def test_files_of_google_that_are_missing(tmp_path):
    folder = tmp_path / "model"
    saved_as_google(folder, *made(EncoderModel))
    (folder / "vocab.txt").rename(tmp_path / "vocab.txt")
    with pytest.raises(ModelError, match=r"vocab\.txt: cannot be read"):
        load_model(folder)
    (folder / CONFIG).unlink()
    with pytest.raises(ModelError, match=r"bert_config\.json: no such file; take it"):
        load_model(folder)
    (folder / f"{CHECKPOINT}.index").unlink()
    with pytest.raises(ModelError, match="found: none"):
        load_model(folder)
    with pytest.raises(ModelError, match=r"bert_model\.ckpt\.index: cannot be read"):
        load_model(folder / CHECKPOINT)


@pytest.mark.parametrize(
    ("checkpoint", "found"),
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
def test_one_of_several_checkpoints(tmp_path, checkpoint, found):
    for name in ("model.ckpt-0", "model.ckpt-343"):
        (tmp_path / f"{name}.index").touch()
    if checkpoint is not None:
        (tmp_path / "checkpoint").write_text(checkpoint)
    if found is not None:
        assert find_checkpoint(tmp_path) == tmp_path / found
    else:
        with pytest.raises(ModelError, match=r"name one checkpoint, .*found: model.ckpt-0, model.ckpt-343"):
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
def test_casing(tmp_path, name, tokens, lowercase):
    """What tokenizer_config.json, else the folder's name, else the vocabulary says."""
    model, metadata = made(EncoderModel, tokens=tokens, lowercase=not lowercase)
    saved_as_google(tmp_path / "google" / name, model, metadata)
    save_model(tmp_path / "ours" / name, model, metadata)
    for folder, expected in (("google", lowercase), ("ours", not lowercase)):
        _, described = load_model(tmp_path / folder / name)
        assert described.tokenizer.lowercase is expected


def test_googles_code_calls_either_gelu_gelu(tmp_path):
    model, metadata = made(EncoderModel)
    metadata = replace(metadata, config=SMALL.model_copy(update={"hidden_act": "gelu_new"}))
    save_model(tmp_path / "model", model, metadata)
    assert read_json(tmp_path / "model" / CONFIG)["hidden_act"] == "gelu"
    assert load_model(tmp_path / "model")[1].config.hidden_act == "gelu_new"
    # Who knows that a checkpoint of google's was trained with the other one says so where the file does.
    (tmp_path / "model/config.json").unlink()
    assert load_model(tmp_path / "model")[1].config.hidden_act == "gelu"
    write_json(
        tmp_path / "model" / CONFIG, read_json(tmp_path / "model" / CONFIG) | {"hidden_act": "gelu_new"}
    )
    assert load_model(tmp_path / "model")[1].config.hidden_act == "gelu_new"


@pytest.mark.parametrize(
    "changes", [{"config": SMALL.model_copy(update={"is_decoder": True})}, {"bilstm": True}]
)
def test_what_googles_code_has_not_is_not_written(tmp_path, changes):
    model, metadata = made(EncoderModel)
    with pytest.raises(ModelError, match="has no left-to-right models and no BiLSTM"):
        save_model(tmp_path / "model", model, replace(metadata, **changes))
    assert not list(tmp_path.iterdir())
