"""Weights are read from every format of Hugging Face's libraries."""

import json
import os
import pickle
import re
import shlex
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
from bertie.model.formats.huggingface import infer_architecture, merge_tied_weights, read_weights
from bertie.model.formats.weights import load_weights, named_weights, save_model
from bertie.model.heads import EncoderModel, PreTrainingModel
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

pytestmark = pytest.mark.usefixtures("unverified")  # directories are changed here

CONFIG = BertConfig(**SHAPE)
WEIGHTS = named_weights(PreTrainingModel(CONFIG))


def assert_equal_weights(actual, expected=WEIGHTS):
    assert actual.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(actual[name], weight), name


def write_weights(path, weights, file_format):
    """Write weights as Hugging Face's libraries do, or did in 2019."""
    if file_format == "safetensors":
        save_file(weights, path / "model.safetensors")
    elif file_format == "pickle":
        torch.save(weights, path / "pytorch_model.bin")
    elif file_format == "pickle of 2019":  # before torch 1.6
        torch.save(weights, path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    else:
        whole = {"sharded safetensors": "model.safetensors", "sharded pickle": "pytorch_model.bin"}[
            file_format
        ]
        stem, suffix = whole.split(".")
        shards = {f"{stem}-0000{i + 1}-of-00003.{suffix}": sorted(weights)[i::3] for i in range(3)}
        for file, names in shards.items():
            part = {name: weights[name] for name in names}
            save_file(part, path / file) if suffix == "safetensors" else torch.save(part, path / file)
        index = {"weight_map": {name: file for file, names in shards.items() for name in names}}
        (path / f"{whole}.index.json").write_text(json.dumps(index))


FILE_FORMATS = ["safetensors", "pickle", "pickle of 2019", "sharded safetensors", "sharded pickle"]


def gamma_beta_name(name):
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def prefixed_name(name, prefix):
    """Return the name of a weight if the encoder's weights have a prefix.

    The heads have the same prefix without `bert.`.
    """
    if name.startswith("bert."):
        return prefix + name.removeprefix("bert.")
    return prefix.removesuffix("bert.") + name


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    file_format=st.sampled_from(FILE_FORMATS),
    prefix=st.sampled_from(["bert.", "", "model.", "model.bert.", "module.bert."]),
    gamma_beta=st.booleans(),
    buffers=st.booleans(),
    decoder=st.booleans(),
)
def test_every_format_gives_the_same_weights(
    tmp_path_factory, file_format, prefix, gamma_beta, buffers, decoder
):
    weights = dict(WEIGHTS)
    if decoder:
        weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
        weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()
    weights = {
        prefixed_name(gamma_beta_name(name) if gamma_beta else name, prefix): weight
        for name, weight in weights.items()
    }
    if buffers:
        weights[f"{prefix}embeddings.position_ids"] = torch.arange(64)[None]
        weights[f"{prefix}embeddings.token_type_ids"] = torch.zeros(1, 64, dtype=torch.long)
    path = tmp_path_factory.mktemp("model")
    write_weights(path, weights, file_format)
    stored = read_weights(path, allow_pickle=True)
    merge_tied_weights(stored, path)
    assert_equal_weights(stored)


def test_shards_written_by_transformers_load(tmp_path):
    reference = transformers.BertForPreTraining(transformers.BertConfig(**SHAPE))
    reference.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    model, expected = PreTrainingModel(CONFIG), PreTrainingModel(CONFIG)
    copy_weights(reference, expected)
    load_weights(tmp_path, model)
    assert_equal_weights(model.state_dict(), expected.state_dict())


def test_loading_skips_initialization_and_sympy(tmp_path):
    """torch's meta device imports SymPy for some operators, which takes seconds."""
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


def test_missing_shard_is_an_error(tmp_path):
    write_weights(tmp_path, WEIGHTS, "sharded safetensors")
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00003\.safetensors: no such file"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "weight_map is missing"),
        ('{"weight_map": null}', "weight_map is None: expected a dictionary"),
        ('{"weight_map": {"a": 1}}', "weight_map.a is 1: expected a string"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "'../x.safetensors' is not the name of a file in"),
        (
            '{"weight_map": {"a": "/etc/passwd"}}',
            "'/etc/passwd' is not the name of a file in",
        ),
    ],
)
def test_malformed_index_of_shards_is_rejected(tmp_path, content, message):
    write_weights(tmp_path, WEIGHTS, "sharded safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match=rf"index\.json: .*{message}"):
        read_weights(tmp_path)


def test_folder_named_model_safetensors_is_an_error(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(ModelError, match=r"model\.safetensors: no such file"):
        read_weights(tmp_path)


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_encoder_with_more_layers_than_the_config_is_rejected(tmp_path, prefix):
    write_weights(tmp_path, WEIGHTS, "safetensors")
    fewer = CONFIG.model_copy(update={"num_hidden_layers": CONFIG.num_hidden_layers - 1})
    message = rf"unexpected weight bert\.encoder\.layer\.{fewer.num_hidden_layers}\.\S+; check that config"
    with pytest.raises(ModelError, match=message):
        load_weights(tmp_path, PreTrainingModel(fewer), prefix)


@pytest.mark.parametrize("file_format", ["pickle", "sharded pickle"])
def test_pickle_needs_permission(tmp_path, file_format):
    path = tmp_path / "a model"
    path.mkdir()
    write_weights(path, WEIGHTS, file_format)
    with pytest.raises(ModelError, match=r"a pickle, which may run code .*: bertie convert ") as refused:
        read_weights(path)
    command = str(refused.value).partition(" it: ")[2]
    assert shlex.split(command)[2:] == [str(path), "OUT", "--to", "bertie", "--allow-pickle"]
    assert_equal_weights(read_weights(path, allow_pickle=True))


class Malicious:
    """An object that runs a command when it is unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("writer", ["torch", "torch of 2019", "pickle"])
def test_code_in_a_pickle_does_not_run(tmp_path, writer):
    trace = tmp_path / "it-ran"
    weights = {**WEIGHTS, "bert.evil": Malicious(f"touch {trace}")}
    file = tmp_path / "pytorch_model.bin"
    if writer == "pickle":
        file.write_bytes(pickle.dumps(weights["bert.evil"], protocol=2))
    else:
        torch.save(weights, file, _use_new_zipfile_serialization=writer == "torch")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: not loaded: it calls \w+\.system, which"):
        read_weights(tmp_path, allow_pickle=True)
    assert not trace.exists()
    with warnings.catch_warnings():  # an unrestricted load does run it
        warnings.simplefilter("ignore")
        torch.load(file, weights_only=False) if writer != "pickle" else pickle.loads(file.read_bytes())
    assert trace.exists()


@pytest.mark.parametrize(
    "value", [[1, 2], {"epoch": 3}, {"state_dict": dict(WEIGHTS)}], ids=["list", "numbers", "nested"]
)
def test_pickle_without_weights_is_rejected(tmp_path, value):
    torch.save(value, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="not a dictionary of weights"):
        read_weights(tmp_path, allow_pickle=True)


def test_changed_byte_in_a_pickle_is_detected(tmp_path):
    """Since 1.6 torch.save has written archives with a checksum for each weight."""
    write_weights(tmp_path, WEIGHTS, "pickle")
    file = tmp_path / "pytorch_model.bin"
    content = bytearray(file.read_bytes())
    weight = WEIGHTS["bert.embeddings.word_embeddings.weight"].numpy().tobytes()
    content[content.index(weight) + 100] ^= 1
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: damaged"):
        read_weights(tmp_path, allow_pickle=True)


@pytest.mark.parametrize("file_format", ["safetensors", "pickle", "pickle of 2019"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_a_model_error_or_harmless(tmp_path_factory, file_format, data):
    path = tmp_path_factory.mktemp("damaged")
    write_weights(path, {"embeddings.word_embeddings.weight": torch.ones(3, 4)}, file_format)
    (file,) = path.iterdir()
    content = bytearray(file.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[position:]
    else:
        content[position] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    try:
        read_weights(path, allow_pickle=True)
        message = f"harmless: {path}"
    except ModelError as error:
        message = str(error)
    assert str(path) in message
    assert "\n" not in message


def test_untied_decoder_is_rejected_only_if_needed(tmp_path):
    weights = dict(WEIGHTS)
    weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"] + 1
    write_weights(tmp_path, weights, "safetensors")
    with pytest.raises(ModelError, match=r"cls\.predictions\.decoder\.weight differs from bert\.embeddings"):
        load_weights(tmp_path, PreTrainingModel(CONFIG))
    load_weights(tmp_path, EncoderModel(CONFIG), prefix="bert.")


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_weight_that_is_not_finite_is_rejected(tmp_path, number):
    name = "bert.pooler.dense.bias"
    damaged = WEIGHTS[name].clone()
    damaged[3] = number
    write_weights(tmp_path, WEIGHTS | {name: damaged}, "safetensors")
    with pytest.raises(ModelError, match=f"{re.escape(name)} has NaN or infinite numbers"):
        load_weights(tmp_path, PreTrainingModel(CONFIG))


def test_weights_whose_sum_is_infinite_are_loaded(tmp_path):
    name = "bert.pooler.dense.bias"
    large = torch.full_like(WEIGHTS[name], 3e38)
    write_weights(tmp_path, WEIGHTS | {name: large}, "safetensors")
    model = PreTrainingModel(CONFIG)
    load_weights(tmp_path, model)
    assert torch.equal(model.bert.pooler.bias, large)


def test_safetensors_are_read_before_a_pickle(tmp_path):
    """Many models of the Hub have both, and shards beside a whole file."""
    other = {name: weight + 1 for name, weight in WEIGHTS.items()}
    for file_format in ("pickle", "sharded pickle"):
        write_weights(tmp_path, other, file_format)
    write_weights(tmp_path, WEIGHTS, "sharded safetensors")
    assert_equal_weights(read_weights(tmp_path))
    whole = {name: weight + 2 for name, weight in WEIGHTS.items()}
    write_weights(tmp_path, whole, "safetensors")
    assert_equal_weights(read_weights(tmp_path), whole)


def test_bias_stored_only_with_the_decoder_is_loaded(tmp_path):
    weights = dict(WEIGHTS)
    weights["cls.predictions.decoder.bias"] = weights.pop("cls.predictions.bias") + 1
    write_weights(tmp_path, weights, "safetensors")
    model = PreTrainingModel(CONFIG)
    load_weights(tmp_path, model)
    assert torch.equal(model.masked_lm.bias, weights["cls.predictions.decoder.bias"])


def test_error_names_the_other_architecture(tmp_path):
    transformers.RobertaForMaskedLM(transformers.RobertaConfig(**SHAPE)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="weights of 'roberta', not of a BERT"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    ("file", "advice"),
    [
        ("tf_model.h5", "from_tf=True"),
        ("flax_model.msgpack", "from_flax=True"),
        ("model.ckpt-343.index", "bertie convert"),
        ("bert_model.ckpt.data-00000-of-00001", r"download its \*\.index file"),
    ],
)
def test_unsupported_formats_are_rejected_without_others(tmp_path, file, advice):
    (tmp_path / file).touch()
    with pytest.raises(ModelError, match=f"{re.escape(file)}: unsupported weight format; .*{advice}"):
        read_weights(tmp_path)
    write_weights(tmp_path, WEIGHTS, "safetensors")
    assert_equal_weights(read_weights(tmp_path))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_git_lfs_pointer_is_rejected(tmp_path, name):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 133466304\n"
    (tmp_path / name).write_text(pointer)
    with pytest.raises(ModelError, match=f"{re.escape(name)}: a Git LFS pointer, .*git lfs pull"):
        read_weights(tmp_path, allow_pickle=True)


def test_directory_without_weights_is_an_error(tmp_path):
    with pytest.raises(ModelError, match=r"model\.safetensors: no such file"):
        read_weights(tmp_path)


# Keys of config.json besides the shape, before it named the architecture.
CONFIGS_OF_2019 = {
    "BertModel": {},
    "BertForPreTraining": {},
    "BertForMaskedLM": {},
    "BertForNextSentencePrediction": {},
    "BertForQuestionAnswering": {},
    "BertForSequenceClassification": {"finetuning_task": "mrpc", "num_labels": 2},
}


@pytest.mark.parametrize("architecture", CONFIGS_OF_2019)
def test_architecture_is_inferred_from_the_weights(tmp_path, architecture):
    reference = getattr(transformers, architecture)(transformers.BertConfig(**SHAPE))
    reference.save_pretrained(tmp_path)
    write_json(tmp_path / "config.json", {**SHAPE, **CONFIGS_OF_2019[architecture]})
    assert infer_architecture(read_weights(tmp_path), tmp_path) == architecture


@pytest.mark.parametrize(
    "architecture", ["BertForSequenceClassification", "BertForTokenClassification", "BertForMultipleChoice"]
)
def test_ambiguous_classifier_is_rejected(tmp_path, architecture):
    getattr(transformers, architecture)(transformers.BertConfig(**SHAPE)).save_pretrained(tmp_path)
    write_json(tmp_path / "config.json", SHAPE)
    with pytest.raises(ModelError, match=r'no "architectures", .* add "num_labels" and "arch'):
        infer_architecture(load_file(tmp_path / "model.safetensors"), tmp_path)
