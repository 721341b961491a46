"""`bertie inspect`: facts about a model, and checks that its files fit together."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.commands.test_main import run
from tests.inference.small_models import CONFIG, LABELS, TOKENIZER, save_small

from bertie.base.files import read_json, write_json
from bertie.inference.export import export
from bertie.model.formats.conversion import convert
from bertie.model.formats.onnx import Quantization
from bertie.text.added_tokens import AddedToken
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import Vocabulary

pytestmark = pytest.mark.usefixtures("unverified")  # directories are changed here


def inspect(capsys, path, *options):
    status, out, err = run(capsys, "inspect", path, "--json", *options)
    assert (status, err) == (0, "")
    facts = json.loads(out)
    return facts, {check["name"]: check for check in facts.pop("checks")}


@pytest.fixture
def classifier(tmp_path):
    return save_small(tmp_path, "classifier")


def change(path, edit):
    weights = load_file(path / "model.safetensors")
    edit(weights)
    save_file(weights, path / "model.safetensors")


def test_facts_and_checks_of_a_sound_model(classifier, capsys):
    facts, checks = inspect(capsys, classifier)
    assert facts["layout"] == "Hugging Face"
    assert facts["files"] == {"model.safetensors": (classifier / "model.safetensors").stat().st_size}
    assert facts["dtype"] == ["float32"]
    assert facts["architecture"] == "BertForSequenceClassification"
    assert facts["labels"] == list(LABELS)
    for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "max_position_embeddings"):
        assert facts[key] == getattr(CONFIG, key)
    weights = load_file(classifier / "model.safetensors")
    tables = CONFIG.vocab_size + CONFIG.max_position_embeddings + CONFIG.type_vocab_size
    assert facts["parameters"] == sum(weight.numel() for weight in weights.values())
    assert facts["parameters_without_embeddings"] == facts["parameters"] - tables * CONFIG.hidden_size
    assert facts["vocabulary"] == len(TOKENIZER.vocabulary)
    assert facts["casing"] == "lower-cased"
    assert facts["special_tokens"]["[MASK]"] == TOKENIZER.vocabulary.mask_id
    assert (facts["added_tokens"], facts["unused_slots"]) == ({}, 0)
    assert all(check["passed"] for check in checks.values())
    assert len(checks) == 6


def test_added_tokens_are_listed_and_do_not_count_as_casing(classifier, capsys):
    vocabulary = Vocabulary([*TOKENIZER.vocabulary.tokens[:-1], "@USER"])
    Tokenizer(vocabulary, added_tokens=[AddedToken("@USER")]).save(classifier)
    facts, checks = inspect(capsys, classifier)
    assert facts["added_tokens"] == {"@USER": len(vocabulary) - 1}
    assert checks["casing matches the vocabulary"]["passed"]


def test_table_for_people(classifier, capsys):
    status, out, _ = run(capsys, "inspect", classifier)
    assert status == 0
    rows = dict(re.split("  +", line, maxsplit=1) for line in out.splitlines() if line)
    assert rows["labels"] == "bad, fair, good"
    assert rows["vocabulary"] == f"{len(TOKENIZER.vocabulary)}"
    assert rows["is_decoder"] == "no"
    assert rows["weights complete"].startswith("yes")
    change(classifier, lambda weights: weights.pop("classifier.bias"))
    _, out, _ = run(capsys, "inspect", classifier)
    assert re.search(r"weights complete +NO +classifier\.bias$", out, re.MULTILINE)


BROKEN = {
    "missing": ("weights complete", "classifier.bias", lambda w: w.pop("classifier.bias")),
    "wrong shape": (
        "weights complete",
        "classifier.bias (4,), not (3,)",
        lambda w: w.update({"classifier.bias": torch.zeros(4)}),
    ),
    "unexpected": (
        "no unexpected weights",
        "regressor.bias",
        lambda w: w.update({"regressor.bias": torch.zeros(4)}),
    ),
    "not finite": (
        "weights finite",
        "classifier.bias",
        lambda w: w.update({"classifier.bias": torch.tensor([0, torch.inf, 0])}),
    ),
    "untied": (
        "decoder tied",
        "cls.predictions.decoder.weight differs from bert.embeddings",
        lambda w: w.update({"cls.predictions.decoder.weight": torch.zeros(2)}),
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_wrong_weights_fail_a_check(classifier, capsys, case):
    name, detail, edit = BROKEN[case]
    change(classifier, edit)
    _, checks = inspect(capsys, classifier)
    assert [check for check in checks if not checks[check]["passed"]] == [name]
    assert detail in checks[name]["found"]


@pytest.mark.parametrize(("extra_token", "passed"), [("Ä", True), ("another", False)])
def test_vocabulary_longer_than_the_embeddings(classifier, capsys, extra_token, passed):
    """The check passes if no text can have the extra token, such as capitals in a lower-cased model."""
    Vocabulary([*TOKENIZER.vocabulary.tokens, extra_token]).save(classifier / "vocab.txt")
    (classifier / "tokenizer.json").unlink()  # it would disagree
    _, checks = inspect(capsys, classifier)
    rows = CONFIG.vocab_size
    assert checks["vocabulary fits the embeddings"] == {
        "name": "vocabulary fits the embeddings",
        "passed": passed,
        "found": f"{rows + 1} entries, {rows} embeddings",
    }


def test_casing_must_match_the_vocabulary(classifier, capsys):
    """For example bert-base-cased with the tokenizer_config.json of an uncased model."""
    config = read_json(classifier / "tokenizer_config.json")
    write_json(classifier / "tokenizer_config.json", {**config, "do_lower_case": False})
    facts, checks = inspect(capsys, classifier)
    assert facts["casing"] == "cased"
    assert not checks["casing matches the vocabulary"]["passed"]


def test_float16_weights(classifier, capsys):
    change(classifier, lambda weights: weights.update({n: w.half() for n, w in weights.items()}))
    facts, checks = inspect(capsys, classifier)
    assert facts["dtype"] == ["float16"]
    assert all(check["passed"] for check in checks.values())


@pytest.mark.parametrize("layout", ["sentence-transformers", "tensorflow"])
def test_layouts_other_than_bertie_s(tmp_path, capsys, layout):
    convert(save_small(tmp_path, "encoder"), tmp_path / "converted", layout)
    facts, checks = inspect(capsys, tmp_path / "converted")
    assert facts["layout"].lower() == layout
    assert sum(facts["files"].values()) > 4 * facts["parameters"]
    assert all(check["passed"] for check in checks.values())


def test_exported_model(classifier, tmp_path, capsys):
    original, _ = inspect(capsys, classifier)
    export(classifier, tmp_path / "exported", Quantization(layers=True))
    facts, checks = inspect(capsys, tmp_path / "exported")
    assert facts.pop("layout") == "ONNX"
    assert facts.pop("files").keys() == {"model.onnx"}
    assert facts.items() <= original.items()
    assert {"labels", "parameters", "vocabulary"} <= facts.keys()
    assert all(check["passed"] for check in checks.values())
    (tmp_path / "exported" / "model.onnx").write_bytes(b"damaged")
    status, _, err = run(capsys, "inspect", tmp_path / "exported")
    assert status == 2
    assert "model.onnx: ONNX Runtime cannot read it" in err


def test_real_pickle(shared_data, capsys):
    path = shared_data / "checkpoints" / "hf_tiny_bert_seqcls"
    status, _, err = run(capsys, "inspect", path)
    assert status == 2
    assert "--allow-pickle" in err
    facts, checks = inspect(capsys, path, "--allow-pickle")
    assert facts["written_by"] == "transformers 4.30.2"
    assert facts["labels"] == ["LABEL_0", "LABEL_1"]
    assert all(check["passed"] for check in checks.values())


def test_folder_that_is_not_a_model(tmp_path, capsys):
    status, _, err = run(capsys, "inspect", tmp_path)
    assert status == 2
    assert err == f"bertie: {tmp_path}: not a model directory: it has no config.json\n"
    save_small(tmp_path, "encoder").rename(tmp_path / "model")
    _, _, err = run(capsys, "inspect", tmp_path)
    assert err.endswith(f"it has no config.json; the model of this run is {tmp_path / 'model'}\n")
