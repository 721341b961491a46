"""`bertie convert`: from any layout to any other, without overwriting or leaving partial output."""

import shutil

import pytest
import torch
from tests.commands.test_main import run
from tests.inference.small_models import CONFIG, save_small

import bertie
from bertie.model.formats.conversion import load_any
from bertie.model.formats.weights import named_weights
from bertie.model.heads import MaskedLMModel

pytestmark = pytest.mark.usefixtures("unverified")  # directories are changed here

KINDS = ["pre-training", "classifier", "squad-v1", "encoder"]


def assert_same_model(first, second):
    (first_model, first_metadata), (second_model, second_metadata) = first, second
    assert second_metadata.architecture == first_metadata.architecture
    assert second_metadata.config == first_metadata.config
    assert second_metadata.labels == first_metadata.labels
    assert second_metadata.tokenizer.fingerprint == first_metadata.tokenizer.fingerprint
    weights = named_weights(second_model)
    for name, weight in named_weights(first_model).items():
        assert torch.equal(weights[name], weight), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["bertie", "huggingface", "tensorflow"])
def test_conversion_can_be_reversed(tmp_path, capsys, kind, layout):
    source = save_small(tmp_path, kind)
    status, out, err = run(capsys, "convert", source, tmp_path / "converted", "--to", layout)
    assert (status, err) == (0, "")
    assert out == f"{tmp_path / 'converted'}: {load_any(source)[1].architecture}, uncased\n"
    assert_same_model(load_any(source), load_any(tmp_path / "converted"))
    status, _, _ = run(capsys, "convert", tmp_path / "converted", tmp_path / "back", "--to", "bertie")
    assert status == 0
    bertie.load(tmp_path / "back")
    assert_same_model(load_any(source), load_any(tmp_path / "back"))


@pytest.mark.parametrize("layout", ["bertie", "huggingface", "sentence-transformers", "tensorflow"])
def test_sums_end_with_the_vocabulary(tmp_path, layout):
    """So a cut after any line is noticed."""
    bertie.convert(save_small(tmp_path, "encoder"), out=tmp_path / "out", to=layout)
    assert (tmp_path / "out/SHA256SUMS").read_text().endswith("  vocab.txt\n")


def test_pickle_needs_allow_pickle(tmp_path, capsys):
    source = save_small(tmp_path, "masked LM")
    model = MaskedLMModel(CONFIG)
    torch.save(named_weights(model), source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    status, _, err = run(capsys, "convert", source, tmp_path / "out", "--to", "bertie")
    assert status == 2
    assert err.startswith(f"bertie: {source / 'pytorch_model.bin'}: a pickle")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()
    status, _, _ = run(capsys, "convert", source, tmp_path / "out", "--to", "bertie", "--allow-pickle")
    assert status == 0
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "README.md",
        "SHA256SUMS",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    assert (tmp_path / "out" / "README.md").read_text() == (source / "README.md").read_text()


@pytest.mark.parametrize("layout", ["bertie", "sentence-transformers", "tensorflow"])
def test_source_is_not_overwritten(tmp_path, capsys, layout):
    source = save_small(tmp_path, "encoder")
    before = {file.name: file.read_bytes() for file in source.iterdir()}
    status, _, err = run(capsys, "convert", source, source, "--to", layout)
    assert status == 2
    assert err == f"bertie: {source}: would replace the input {source}; choose another name\n"
    assert {file.name: file.read_bytes() for file in source.iterdir()} == before


@pytest.mark.parametrize("layout", ["bertie", "sentence-transformers", "tensorflow"])
def test_damaged_model_leaves_no_output(tmp_path, capsys, layout):
    source = save_small(tmp_path / "models", "encoder")
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    status, out, err = run(capsys, "convert", source, tmp_path / "out", "--to", layout)
    assert (status, out) == (2, "")
    assert err.startswith(f"bertie: {weights}: damaged safetensors file")
    assert err.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["models"]


@pytest.mark.parametrize("layout", ["bertie", "sentence-transformers", "tensorflow"])
def test_casing_can_be_set(tmp_path, capsys, layout):
    source = save_small(tmp_path, "encoder")
    for options, expected in (((), "uncased"), (("--cased",), "cased"), (("--uncased",), "uncased")):
        out = tmp_path / " ".join(["out", *options])
        _, printed, _ = run(capsys, "convert", source, out, "--to", layout, *options)
        assert printed == f"{out}: BertModel, {expected}\n"
        assert load_any(out)[1].tokenizer.lowercase is (expected == "uncased")
        source = out


def test_real_tensorflow_checkpoint(shared_data, tmp_path, capsys):
    source = tmp_path / "uncased_tiny"
    shutil.copytree(shared_data / "checkpoints" / "keras_bert_tf1_tiny", source)
    status, _, err = run(capsys, "convert", source, tmp_path / "out", "--to", "huggingface")
    assert status == 0, err
    assert_same_model(load_any(source), load_any(tmp_path / "out"))
    prefix = source / "bert_model.ckpt"
    assert run(capsys, "convert", prefix, tmp_path / "again", "--to", "huggingface")[0] == 0
    assert_same_model(load_any(source), load_any(tmp_path / "again"))


def test_pretraining_continues_from_a_converted_checkpoint(shared_data, tmp_path, capsys):
    """Its vocabulary has 15 entries, so the text consists of unknown words and letters."""
    google = shared_data / "checkpoints" / "keras_bert_tf1_tiny"
    model, corpus, out = (tmp_path / name for name in ("model", "corpus", "run"))
    (tmp_path / "text").mkdir()
    for number in range(20):
        text = "\n".join(f"all work {word} and no play {number}." for word in "abcdefgh")
        (tmp_path / "text" / f"{number}.txt").write_text(text)
    changes = ["phases.0.steps=1", "phases.0.max_seq_length=16", "warmup_steps=1", "batch_size=2"]
    options = [option for change in changes for option in ("--set", change)]
    for arguments in (
        ["convert", google, model, "--to", "bertie"],
        ["prepare", tmp_path / "text", "--tokenizer", model, "--out", corpus, "--held-out", "0.2"],
        ["pretrain", "continue", "--corpus", corpus, "--init", model, "--out", out, *options],
    ):
        status, _, err = run(capsys, *arguments)
        assert status == 0, err
    assert load_any(out / "model")[1].config.hidden_size == load_any(model)[1].config.hidden_size
