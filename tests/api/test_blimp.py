"""`bertie.evaluate_blimp` and `bertie evaluate --task blimp`."""

import json
import sys
from pathlib import Path

import pytest
from tests.inference.small_models import save_small

import bertie
from bertie.commands.main import main

PAIRS = [("the film was good.", "the film good was."), ("the film was bad.", "film the was bad.")]
RECIPE = """
warmup_steps = 1
batch_size = 4
log_every = 2
held_out_examples = 8
device = "cpu"
phases = [{ steps = 2, max_seq_length = 32 }]
[model]
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 32
max_position_embeddings = 64
"""


def write_blimp() -> None:
    Path("blimp").mkdir()
    for name, (good, bad) in zip(("word_order", "articles"), PAIRS, strict=True):
        row = {"sentence_good": good, "sentence_bad": bad, "linguistics_term": f"{name}_term"}
        Path(f"blimp/{name}.jsonl").write_text(json.dumps(row))


@pytest.fixture
def evaluate(monkeypatch, capsys):
    """Run `bertie evaluate --task blimp`; return its exit status, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bertie", "evaluate", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_status:
            main()
        return exit_status.value.code or 0, *capsys.readouterr()

    return run


def test_scores_are_those_of_the_command(model, evaluate):
    write_blimp()
    scores = bertie.evaluate_blimp(model, "blimp", device="cpu")
    assert scores.pairs == 2
    assert scores.accuracy == sum(scores.paradigms.values()) / 2
    arguments = ["--task", "BLiMP", "--model", model, "--data", "blimp", "--device", "cpu"]
    code, out, err = evaluate(*arguments, "--json")
    assert (code, json.loads(out)) == (0, scores._asdict())
    assert "blimp: 2 of BLiMP's 67 files; the scores are of these" in err
    assert "word_order_term" in evaluate(*arguments)[1]


def test_scores_are_shown_in_the_report_of_the_run(corpus):
    write_blimp()
    Path("small.toml").write_text(RECIPE)
    run = bertie.pretrain("small.toml", corpus=corpus, out="run")
    before = run.report.read_text()
    scores = bertie.evaluate_blimp(run.model_directory, "blimp", add_to_report=True)
    assert json.loads(Path("run/blimp.json").read_text()) == {"step": 2, **scores._asdict()}
    report = run.report.read_text()
    assert "of 2 minimal pairs" in report
    assert "small.toml" in report
    assert "BLiMP" not in before
    corpus_line = f"{corpus}, 27 documents"
    assert corpus_line in before
    assert corpus_line in report
    for damaged in ("[]", '{"step": 2}', '{"step', json.dumps({**scores._asdict(), "step": "2 or so"})):
        Path("run/blimp.json").write_text(damaged)
        with pytest.raises(bertie.DataError, match=r"^run/blimp\.json: damaged; delete the file, and run"):
            bertie.pretrain(out="run", resume=True)
    Path("run/blimp.json").unlink()
    bertie.pretrain(out="run", resume=True)
    Path("run/metrics.jsonl").write_text('{"kind": "train", "step": 2, "tokens": 8, "seconds": 1}\n')
    with pytest.raises(bertie.DataError, match=r"metrics\.jsonl: no row of the kind 'evaluation'; restore"):
        bertie.evaluate_blimp(run.model_directory, "missing", add_to_report=True)


def test_wrong_models_and_options_are_one_line(tmp_path, model, evaluate):
    write_blimp()
    save_small(tmp_path, "classifier")
    common = ["--data", "blimp", "--device", "cpu"]
    for arguments, message in (
        (["--task", "blimp", "--model", "classifier"], "classifier: the model is a BertForSequence"),
        (["--task", "blimp"], "blimp: give the directory of one pre-trained model (--model)"),
        (
            ["--task", "blimp", "--model", model, "--add-to-report"],
            f"{model}: not the model of a run",
        ),
        (
            ["--task", "cola", "--model", model, "--add-to-report"],
            "--add-to-report is for --task blimp",
        ),
    ):
        code, out, err = evaluate(*arguments, *common)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err
    with pytest.raises(bertie.SettingsError, match=r"call bertie\.evaluate_blimp"):
        bertie.evaluate(model, "blimp", task="blimp")


def test_sentence_that_the_model_cannot_read_is_an_error(model):
    row = {"sentence_good": "a" * 9, "sentence_bad": "a b " * 80, "linguistics_term": "length"}
    Path("a.jsonl").write_text(json.dumps(row))
    with pytest.raises(bertie.DataError, match=r"162 tokens in 'a b .*the model reads at most 128; use a"):
        bertie.evaluate_blimp(model, "a.jsonl", device="cpu")
