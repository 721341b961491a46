"""Weights in the layouts of all years, against the model they were taken from."""

import json
import os
import pickle
import re
import subprocess
import sys
import warnings

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.parity.transformers_peer import SHAPE, copy_weights

from bertie.base.errors import ModelError
from bertie.base.files import write_json
from bertie.model.config import BertConfig
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.huggingface import check_tied, read_weights, tell_architecture
from bertie.model.formats.weights import load_weights, named_weights, save_model
from bertie.model.heads import EncoderModel, PreTrainingModel
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

CONFIG = BertConfig(**SHAPE)
EXPECTED = named_weights(PreTrainingModel(CONFIG))


def assert_same(found, expected=EXPECTED):
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(found[name], weight), name


def write(path, weights, layout):
    """Store weights as the libraries of some year did."""
    if layout == "safetensors":
        save_file(weights, path / "model.safetensors")
    elif layout == "pickle":
        torch.save(weights, path / "pytorch_model.bin")
    elif layout == "pickle of 2019":  # before torch 1.6
        torch.save(weights, path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    else:
        whole = {"sharded safetensors": "model.safetensors", "sharded pickle": "pytorch_model.bin"}[layout]
        stem, suffix = whole.split(".")
        shards = {f"{stem}-0000{i + 1}-of-00003.{suffix}": sorted(weights)[i::3] for i in range(3)}
        for file, names in shards.items():
            part = {name: weights[name] for name in names}
            save_file(part, path / file) if suffix == "safetensors" else torch.save(part, path / file)
        index = {"weight_map": {name: file for file, names in shards.items() for name in names}}
        (path / f"{whole}.index.json").write_text(json.dumps(index))


LAYOUTS = ["safetensors", "pickle", "pickle of 2019", "sharded safetensors", "sharded pickle"]


def old_name(name):
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def wrapped(prefix):
    """A model with the encoder under a prefix, which the heads have less `bert.`."""

    def rename(name):
        if name.startswith("bert."):
            return prefix + name.removeprefix("bert.")
        return prefix.removesuffix("bert.") + name

    return rename


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layout=st.sampled_from(LAYOUTS),
    prefix=st.sampled_from(["bert.", "", "model.", "model.bert."]),
    old=st.booleans(),
    buffers=st.booleans(),
    decoder=st.booleans(),
)
def test_any_layout_holds_the_same_weights(tmp_path_factory, layout, prefix, old, buffers, decoder):
    weights = dict(EXPECTED)
    if decoder:
        weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
        weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()
    rename = wrapped(prefix)
    weights = {rename(old_name(name) if old else name): weight for name, weight in weights.items()}
    if buffers:
        weights[f"{prefix}embeddings.position_ids"] = torch.arange(64)[None]
        weights[f"{prefix}embeddings.token_type_ids"] = torch.zeros(1, 64, dtype=torch.long)
    path = tmp_path_factory.mktemp("model")
    write(path, weights, layout)
    stored = read_weights(path, allow_pickle=True)
    check_tied(stored, path)
    assert_same(stored)


def test_their_own_shards(tmp_path):
    theirs = transformers.BertForPreTraining(transformers.BertConfig(**SHAPE))
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ours, expected = PreTrainingModel(CONFIG), PreTrainingModel(CONFIG)
    copy_weights(theirs, expected)
    load_weights(tmp_path, ours)
    assert_same(ours.state_dict(), expected.state_dict())


def test_loading_draws_no_weights_and_imports_no_compiler(tmp_path):
    """torch's meta device imports SymPy and more for some operators, which takes longer than the loading."""
    save_model(
        tmp_path / "model",
        PreTrainingModel(CONFIG),
        ModelMetadata(CONFIG, "BertForPreTraining", (), Tokenizer(Vocabulary([*SPECIAL_TOKENS]))),
        "card",
    )
    script = """
import sys
from pathlib import Path
import torch
from bertie.model.formats.weights import load_model
before = torch.get_rng_state()
load_model(Path(sys.argv[1]))
assert torch.equal(torch.get_rng_state(), before)
assert "sympy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script, tmp_path / "model"], check=True)


def test_a_missing_shard_is_named(tmp_path):
    write(tmp_path, EXPECTED, "sharded safetensors")
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00003\.safetensors: no such file"):
        read_weights(tmp_path)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": null}', '{"weight_map": {"a": 1}}'])
def test_an_index_that_names_no_files(tmp_path, content):
    write(tmp_path, EXPECTED, "sharded safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match=r"index\.json: its weight_map names no files"):
        read_weights(tmp_path)


def test_a_folder_of_the_name_of_the_weights(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(ModelError, match=r"model\.safetensors: no such file"):
        read_weights(tmp_path)


@pytest.mark.parametrize("only", ["", "bert."])
def test_an_encoder_that_is_larger_than_the_configuration_is_refused(tmp_path, only):
    write(tmp_path, EXPECTED, "safetensors")
    fewer = CONFIG.model_copy(update={"num_hidden_layers": CONFIG.num_hidden_layers - 1})
    message = rf"bert\.encoder\.layer\.{fewer.num_hidden_layers}\.\S+ has no place in the network that config"
    with pytest.raises(ModelError, match=message):
        load_weights(tmp_path, PreTrainingModel(fewer), only)


@pytest.mark.parametrize("layout", ["pickle", "sharded pickle"])
def test_a_pickle_is_read_only_where_it_is_allowed(tmp_path, layout):
    write(tmp_path, EXPECTED, layout)
    with pytest.raises(ModelError, match=r"a pickle, which may run code .* --allow-pickle$"):
        read_weights(tmp_path)
    assert_same(read_weights(tmp_path, allow_pickle=True))


class Malicious:
    """What runs a command where it is unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("how", ["torch", "torch of 2019", "pickle"])
def test_no_code_in_a_pickle_is_run(tmp_path, how):
    trace = tmp_path / "it-ran"
    weights = {**EXPECTED, "bert.evil": Malicious(f"touch {trace}")}
    file = tmp_path / "pytorch_model.bin"
    if how == "pickle":
        file.write_bytes(pickle.dumps(weights["bert.evil"], protocol=2))
    else:
        torch.save(weights, file, _use_new_zipfile_serialization=how == "torch")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: not read: it calls \w+\.system, which"):
        read_weights(tmp_path, allow_pickle=True)
    assert not trace.exists()
    with warnings.catch_warnings():  # it would have
        warnings.simplefilter("ignore")
        torch.load(file, weights_only=False) if how != "pickle" else pickle.loads(file.read_bytes())
    assert trace.exists()


@pytest.mark.parametrize(
    "value", [[1, 2], {"epoch": 3}, {"state_dict": dict(EXPECTED)}], ids=["list", "numbers", "nested"]
)
def test_a_pickle_of_something_else(tmp_path, value):
    torch.save(value, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="not a table of weights"):
        read_weights(tmp_path, allow_pickle=True)


def test_a_changed_byte_of_a_weight_in_a_pickle_is_noticed(tmp_path):
    """Each has a checksum in the archive that torch.save has written since 1.6."""
    write(tmp_path, EXPECTED, "pickle")
    file = tmp_path / "pytorch_model.bin"
    content = bytearray(file.read_bytes())
    weight = EXPECTED["bert.embeddings.word_embeddings.weight"].numpy().tobytes()
    content[content.index(weight) + 100] ^= 1
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: damaged"):
        read_weights(tmp_path, allow_pickle=True)


@pytest.mark.parametrize("layout", ["safetensors", "pickle", "pickle of 2019"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_an_error_or_harmless(tmp_path_factory, layout, data):
    path = tmp_path_factory.mktemp("damaged")
    write(path, {"embeddings.word_embeddings.weight": torch.ones(3, 4)}, layout)
    (file,) = path.iterdir()
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    try:
        read_weights(path, allow_pickle=True)
        message = f"harmless: {path}"
    except ModelError as error:
        message = str(error)
    assert str(path) in message
    assert "\n" not in message


def test_an_untied_decoder_is_refused_where_it_is_needed(tmp_path):
    weights = dict(EXPECTED)
    weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"] + 1
    write(tmp_path, weights, "safetensors")
    with pytest.raises(ModelError, match=r"cls\.predictions\.decoder\.weight is not bert\.embeddings"):
        load_weights(tmp_path, PreTrainingModel(CONFIG))
    load_weights(tmp_path, EncoderModel(CONFIG), only="bert.")


def test_a_bias_stored_with_the_decoder_alone(tmp_path):
    weights = dict(EXPECTED)
    weights["cls.predictions.decoder.bias"] = weights.pop("cls.predictions.bias") + 1
    write(tmp_path, weights, "safetensors")
    ours = PreTrainingModel(CONFIG)
    load_weights(tmp_path, ours)
    assert torch.equal(ours.masked_lm.bias, weights["cls.predictions.decoder.bias"])


def test_weights_of_another_architecture_are_refused_by_its_name(tmp_path):
    transformers.RobertaForMaskedLM(transformers.RobertaConfig(**SHAPE)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="those of 'roberta', not of a BERT"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    ("file", "advice"),
    [
        ("tf_model.h5", "from_tf=True"),
        ("flax_model.msgpack", "from_flax=True"),
        ("model.ckpt-343.index", "bertie convert"),
        ("bert_model.ckpt.data-00000-of-00001", "is missing; fetch it too"),
    ],
)
def test_weights_for_other_libraries_alone(tmp_path, file, advice):
    (tmp_path / file).touch()
    with pytest.raises(ModelError, match=f"{re.escape(file)}: weights for another library alone; .*{advice}"):
        read_weights(tmp_path)
    write(tmp_path, EXPECTED, "safetensors")
    assert_same(read_weights(tmp_path))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_clone_without_git_lfs(tmp_path, name):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 133466304\n"
    (tmp_path / name).write_text(pointer)
    with pytest.raises(ModelError, match=f"{re.escape(name)}: a pointer of Git LFS; .*git lfs pull"):
        read_weights(tmp_path, allow_pickle=True)


def test_no_weights_at_all(tmp_path):
    with pytest.raises(ModelError, match=r"model\.safetensors: no such file"):
        read_weights(tmp_path)


NAMELESS = {
    "BertModel": {},
    "BertForPreTraining": {},
    "BertForMaskedLM": {},
    "BertForNextSentencePrediction": {},
    "BertForQuestionAnswering": {},
    "BertForSequenceClassification": {"finetuning_task": "mrpc", "num_labels": 2},
}


@pytest.mark.parametrize("architecture", NAMELESS)
def test_the_architecture_is_told_from_the_weights(tmp_path, architecture):
    theirs = getattr(transformers, architecture)(transformers.BertConfig(**SHAPE))
    theirs.save_pretrained(tmp_path)
    write_json(tmp_path / "config.json", {**SHAPE, **NAMELESS[architecture]})
    assert tell_architecture(read_weights(tmp_path), tmp_path) == architecture


@pytest.mark.parametrize(
    "architecture", ["BertForSequenceClassification", "BertForTokenClassification", "BertForMultipleChoice"]
)
def test_a_classifier_that_may_be_any_is_refused(tmp_path, architecture):
    getattr(transformers, architecture)(transformers.BertConfig(**SHAPE)).save_pretrained(tmp_path)
    write_json(tmp_path / "config.json", SHAPE)
    with pytest.raises(ModelError, match='names no architecture; add "num_labels" and "arch'):
        tell_architecture(load_file(tmp_path / "model.safetensors"), tmp_path)
