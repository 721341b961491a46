"""`bertie export`: measure an exported model, evaluate it and predict with it."""

from tests.commands.test_main import run
from tests.inference.small_models import save_small


def test_exported_model_is_measured_and_predicts(tmp_path, capsys):
    source = save_small(tmp_path, "classifier")
    dev = tmp_path / "dev.tsv"
    dev.write_text("sentence\tgold\nthe cat sat\tgood\nparis\tbad\na mat\tfair\n")
    out = tmp_path / "exported"
    columns = ["--text", "sentence", "--label", "gold"]
    status, printed, err = run(capsys, "export", source, "--onnx", out, "--int8", "--dev", dev, *columns)
    assert (status, err) == (0, "")
    rows = [line.split() for line in printed.splitlines()]
    assert rows[0] == ["dev.tsv", "agreement", "with", "float32,", "%", "100"]
    assert ["dev.tsv", "accuracy", "33.33", "→", "33.33"] in rows
    assert rows[-1] == [f"{out}:", "exported,", "0.0", "MB"]
    assert sorted(file.name for file in out.iterdir()) == [
        "README.md",
        "SHA256SUMS",
        "config.json",
        "model.onnx",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    status, _, err = run(capsys, "evaluate", "--model", out, "--data", dev, *columns)
    assert (status, err) == (0, "")
    status, _, err = run(capsys, "predict", out, "--text", "the cat sat")
    assert (status, err) == (0, "")
    status, _, err = run(capsys, "export", source, "--onnx", out)
    assert (status, err) == (
        2,
        f"bertie: {out}: exists already; choose another name, or replace it with --force (force=True)\n",
    )


def test_weight_bits_are_of_int8(tmp_path, capsys):
    source = save_small(tmp_path, "classifier")
    out = tmp_path / "exported"
    status, _, err = run(capsys, "export", source, "--onnx", out, "--weight-bits", "8")
    assert status == 2
    assert err == "bertie: weight_bits = 8: only weights in int8 have 8 bits; add --int8 (int8=True)\n"
    assert not out.exists()
    status, _, err = run(capsys, "export", source, "--onnx", out, "--weight-bits", "8", "--int8")
    assert (status, err) == (0, "")
    card = (out / "README.md").read_text()
    assert "int8 in the layers, float32 elsewhere; weights of 8 bits, for processors with VNNI." in card
