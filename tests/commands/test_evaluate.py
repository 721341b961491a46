"""`bertie evaluate`, as a user types it: what goes to standard output, and what is refused."""

import json
import sys

import pytest
from tests.inference.small_models import CONFIG, LABELS, save_small

from bertie.commands.main import main


@pytest.fixture
def evaluate(tmp_path, monkeypatch, capsys):
    """Run the command in an empty folder: its exit status, and what it printed."""
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


def test_squad_with_null_scores(evaluate, tmp_path):
    (tmp_path / "dev.json").write_text(squad(QUESTIONS))
    (tmp_path / "predictions.json").write_text('{"a": "the Ada!", "b": "in London", "c": "it"}')
    (tmp_path / "null_odds.json").write_text('{"a": -3, "b": 1.5, "c": 2}')
    files = ["--data", "dev.json", "--predictions", "predictions.json"]
    code, out, err = evaluate("--task", "squad-v2", *files, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert (found["exact_match"], found["f1"]) == (100 / 3, 100 * (1 + 2 / 3) / 3)
    found = json.loads(evaluate("--task", "squad-v2", *files, "--null-scores", "null_odds.json", "--json")[1])
    assert found["exact_match"] == found["f1"] == 200 / 3  # the answers to b and c are above the threshold
    assert found["best_f1_thresh"] == 1.5
    code, out, err = evaluate("--task", "squad-v2", *files)
    assert "total 3  " in out

    (tmp_path / "dev.json").write_text(squad(QUESTIONS[:2]))
    code, out, err = evaluate("--task", "squad-v1", *files, "--null-scores", "null_odds.json")
    assert (code, out) == (2, "")
    assert "--null-scores is for questions that may have no answer" in err


def test_a_folder_of_predictions_is_refused(evaluate, tmp_path):
    (tmp_path / "dev.json").write_text(squad(QUESTIONS[:2]))
    code, out, err = evaluate("--task", "squad-v1", "--data", "dev.json", "--predictions", ".")
    assert (code, out, err) == (2, "", "bertie: .: a folder, where a file is wanted\n")


def test_entities_by_the_names_of_conlleval(evaluate, tmp_path):
    (tmp_path / "gold.txt").write_bytes(
        b"-DOCSTART- -X- O\r\n\r\nAda NNP I-PER\r\nsaw VBD O\r\n\r\nParis NNP I-LOC"
    )
    (tmp_path / "predicted.tsv").write_text("Ada\tS-PER\nsaw\tS-LOC\n\nParis\tS-LOC\n\n\n")
    code, out, err = evaluate(
        "--task", "ner", "--data", "gold.txt", "--predictions", "predicted.tsv", "--json"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["precision"] == found["accuracy"] == pytest.approx(200 / 3)
    assert (found["recall"], found["FB1"]) == (100, pytest.approx(80))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", ".", "--model", "m"], "--data .: a folder; name its task with --task, or give your own"),
        (["--data", "."], "give either --model DIR or --predictions FILE"),
        (["--data", ".", "--task", "squad", "--model", "m"], "did you mean 'squad-v2' or 'squad-v1'? there"),
        (["--data", ".", "--task", "conll", "--model", "m"], "no task 'conll'; there are: cola, sst-2,"),
        (["--data", ".", "--task", "SST2", "--model", "m"], "did you mean 'sst-2'? there are: cola,"),
    ],
)
def test_what_is_refused(evaluate, arguments, message):
    code, out, err = evaluate(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_no_sequence_is_longer_than_the_model(evaluate, tmp_path):
    save_small(tmp_path, "classifier")
    longest = CONFIG.max_position_embeddings
    (tmp_path / "dev.csv").write_text("text,label\n" + "a " * 2 * longest + f",{LABELS[0]}\n")
    arguments = ["--data", "dev.csv", "--model", "classifier", "--json", "--max-seq-length"]
    assert evaluate(*arguments, longest) == evaluate(*arguments[:-1])  # its directory does not say it
    code, _, err = evaluate(*arguments, longest + 1)
    assert code == 2
    assert f"max_seq_length {longest + 1} is longer than the model's positions: {longest} at most" in err
