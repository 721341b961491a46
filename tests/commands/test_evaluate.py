"""`bertie evaluate` from the command line: its scores on stdout, and its errors."""

import json
import sys

import pytest
from tests.inference.small_models import CONFIG, LABELS, save_small

from bertie.commands.main import main


@pytest.fixture
def evaluate(tmp_path, monkeypatch, capsys):
    """Run the command in an empty folder; return its exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bertie", "evaluate", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_status:
            main()
        return exit_status.value.code or 0, *capsys.readouterr()

    return run


QUESTIONS = [
    {"id": "a", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]},
    {"id": "b", "question": "Where?", "answers": [{"text": "London", "answer_start": 16}]},
    {"id": "c", "question": "When?", "answers": []},
]


def squad(questions):
    return json.dumps({"data": [{"paragraphs": [{"context": "Ada wrote it in London.", "qas": questions}]}]})


def test_null_scores_of_squad_v2(evaluate, tmp_path):
    (tmp_path / "dev.json").write_text(squad(QUESTIONS))
    (tmp_path / "predictions.json").write_text('{"a": "the Ada!", "b": "in London", "c": "it"}')
    (tmp_path / "null_odds.json").write_text('{"a": -3, "b": 1.5, "c": 2}')
    files = ["--data", "dev.json", "--predictions", "predictions.json"]
    code, out, err = evaluate("--task", "squad-v2", *files, "--json")
    scores = json.loads(out)
    assert (code, err) == (0, "")
    assert (scores["exact_match"], scores["f1"]) == (100 / 3, 100 * (1 + 2 / 3) / 3)
    scores = json.loads(
        evaluate("--task", "squad-v2", *files, "--null-scores", "null_odds.json", "--json")[1]
    )
    assert scores["exact_match"] == scores["f1"] == 200 / 3  # the answers to b and c are above the threshold
    assert scores["best_f1_thresh"] == 1.5
    code, out, err = evaluate("--task", "squad-v2", *files)
    assert "total 3  " in out

    (tmp_path / "dev.json").write_text(squad(QUESTIONS[:2]))
    code, out, err = evaluate("--task", "squad-v1", *files, "--null-scores", "null_odds.json")
    assert (code, out) == (2, "")
    assert "null scores are for tasks whose questions may have no answer" in err


def test_the_most_frequent_gold_label_is_below_the_scores(evaluate, tmp_path):
    (tmp_path / "dev.csv").write_text("text,label\na,x\nb,y\nc,y\n")
    (tmp_path / "predicted.tsv").write_text("index\tprediction\n0\tx\n1\ty\n2\tx\n")
    code, out, err = evaluate("--data", "dev.csv", "--predictions", "predicted.tsv")
    assert (code, err) == (0, "")
    accuracies = [line.partition("  f1_macro")[0] for line in out.splitlines()]
    assert accuracies == ["dev               accuracy 66.67", "gold majority     accuracy 66.67"]


def test_predictions_in_a_folder_are_an_error(evaluate, tmp_path):
    (tmp_path / "dev.json").write_text(squad(QUESTIONS[:2]))
    code, out, err = evaluate("--task", "squad-v1", "--data", "dev.json", "--predictions", ".")
    assert (code, out, err) == (2, "", "bertie: .: is a directory; expected a file\n")


def test_entity_scores_have_the_names_of_conlleval(evaluate, tmp_path):
    (tmp_path / "gold.txt").write_bytes(
        b"-DOCSTART- -X- O\r\n\r\nAda NNP I-PER\r\nsaw VBD O\r\n\r\nParis NNP I-LOC"
    )
    (tmp_path / "predicted.tsv").write_text("Ada\tS-PER\nsaw\tS-LOC\n\nParis\tS-LOC\n\n\n")
    code, out, err = evaluate(
        "--task", "ner", "--data", "gold.txt", "--predictions", "predicted.tsv", "--json"
    )
    assert (code, err) == (0, "")
    scores = json.loads(out)
    assert scores["precision"] == scores["accuracy"] == pytest.approx(200 / 3)
    assert (scores["recall"], scores["FB1"]) == (100, pytest.approx(80))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", ".", "--model", "m"], ".: a folder; give the name of its task, or a file of your own"),
        (
            ["--data", ".", "--model", "m", "--null-scores", "n.json"],
            "null scores belong to predictions; give both, or omit the null scores",
        ),
        (["--data", "."], "give either a model directory or a file of predictions"),
        (["--data", ".", "--task", "squad", "--model", "m"], "did you mean 'squad-v2' or 'squad-v1'? there"),
        (["--data", ".", "--task", "race", "--model", "m"], "no task 'race'; there are: cola, sst-2,"),
        (["--data", ".", "--task", "glue", "--model", "m"], "embeddings; `bertie evaluate` also has blimp"),
        (["--data", ".", "--task", "SST-3", "--model", "m"], "did you mean 'sst-2'? there are: cola,"),
        (
            ["--task", "blimp", "--model", "m", "--data", "d", "--text", "review"],
            "--text: not supported with --task blimp; omit it",
        ),
        (
            ["--task", "blimp", "--model", "m", "--data", "d", "--column", "a=b"],
            "--column: not supported with --task",
        ),
    ],
)
def test_wrong_arguments_are_one_line_with_status_2(evaluate, arguments, message):
    code, out, err = evaluate(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_max_seq_length_is_limited_by_the_positions(evaluate, tmp_path):
    save_small(tmp_path, "classifier")
    longest = CONFIG.max_position_embeddings
    (tmp_path / "dev.csv").write_text("text,label\n" + "a " * 2 * longest + f",{LABELS[0]}\n")
    arguments = ["--data", "dev.csv", "--model", "classifier", "--json", "--max-seq-length"]
    assert evaluate(*arguments, longest) == evaluate(*arguments[:-1])  # the directory does not record it
    code, _, err = evaluate(*arguments, longest + 1)
    assert code == 2
    assert (
        f"max_seq_length {longest + 1} exceeds the model's {longest} positions; use {longest} or less" in err
    )
