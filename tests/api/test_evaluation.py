"""`bertie.evaluate`: a model and a file of predictions, against tables in memory and files."""

import json
from pathlib import Path

import pandas as pd
import pytest
from tests.inference.small_models import save_small

import bertie
from bertie.api.results import FinetuningResult
from bertie.base.errors import ModelError, SettingsError

ROWS = [{"review": f"the film was {stars}", "stars": stars} for stars in ["good", "bad"] * 8]
REVIEWS = {"text": "review", "label": "stars"}


@pytest.fixture
def run(model) -> FinetuningResult:
    """A run of fine-tuning, whose dev scores are those of ROWS."""
    options = {"epochs": 1, "max_seq_length": 32, "device": "cpu"}
    return bertie.finetune(model, train=ROWS, dev=ROWS, out="run", **REVIEWS, **options)


def test_the_columns_of_fine_tuning_are_read(model):
    rows = [{**row, "reply": "the film", "text": "bad"} for row in ROWS]
    options = {"epochs": 1, "max_seq_length": 32, "device": "cpu"}
    run = bertie.finetune(model, train=rows, dev=rows, out="run", pair="reply", **REVIEWS, **options)
    assert bertie.evaluate(run.model_directory, rows).scores == run.scores
    given = bertie.evaluate(run.model_directory, rows, text="text")
    assert given.scores["dev"]["accuracy"] == 50  # all texts are equal
    other = [{**row, "label": "bad"} for row in rows]
    assert bertie.evaluate(run.model_directory, other).scores == run.scores
    assert bertie.evaluate(run.model_directory, other, label="label").scores != run.scores
    old = json.loads((run.model_directory / "config.json").read_text())
    del old["label_columns"]  # as an earlier version wrote it
    (run.model_directory / "config.json").write_text(json.dumps(old))
    (run.model_directory / "SHA256SUMS").unlink()
    with pytest.raises(bertie.SettingsError, match=r"no column 'label'; .* pass --label NAME"):
        bertie.evaluate(run.model_directory, rows)


def test_the_separator_of_fine_tuning_is_used(model):
    rows = [{"text": f"the film was {label}", "label": label} for label in ["good|long", "long"] * 4]
    options = {"epochs": 1, "max_seq_length": 32, "device": "cpu"}
    run = bertie.finetune(model, train=rows, dev=rows, out="run", separator="|", **options)
    assert bertie.evaluate(run.model_directory, rows).scores == run.scores
    other = [{**row, "label": row["label"].replace("|", "+")} for row in rows]
    assert bertie.evaluate(run.model_directory, other, separator="+").scores == run.scores
    with pytest.raises(bertie.DataError, match=r"unknown label 'good\+long'; known: good, long"):
        bertie.evaluate(run.model_directory, other)


def test_the_endings_of_fine_tuning_are_read(model):
    rows = [{"start": "the film", "a": "was good", "b": "was bad", "right": i % 2} for i in range(4)]
    columns = {"context": "start", "endings": ["a", "b"]}
    options = {"kind": "choices", "label": "right", "columns": columns, "epochs": 1, "device": "cpu"}
    run = bertie.finetune(model, train=rows, dev=rows, out="run", max_seq_length=32, **options)
    assert bertie.evaluate(run.model_directory, rows, kind="choices").scores == run.scores
    other = [{**row, "label": 0} for row in rows]
    assert bertie.evaluate(run.model_directory, other, kind="choices", label="label").scores != run.scores
    assert bertie.evaluate(run.model_directory, other, kind="choices").scores == run.scores


def test_the_tags_of_fine_tuning_are_read(model):
    rows = [{"tokens": ["the", "film"], "names": ["O", f"B-{kind}"]} for kind in ["X", "Y"] * 4]
    columns = {"words": "tokens", "tags": "names"}
    options = {"kind": "tags", "columns": columns, "epochs": 1, "device": "cpu", "max_seq_length": 32}
    run = bertie.finetune(model, train=rows, dev=rows, out="run", **options)
    assert bertie.evaluate(run.model_directory, rows, kind="tags").scores == run.scores


def test_the_entities_of_fine_tuning_are_read(model):
    rows = [{"note": "the film", "names": [[4, 8, kind]]} for kind in ["X", "Y"] * 4]
    options = {"kind": "entities", "epochs": 1, "device": "cpu", "max_seq_length": 32}
    columns = {"entities": "names"}
    run = bertie.finetune(model, train=rows, dev=rows, out="run", text="note", columns=columns, **options)
    assert run.load().labels == ("O", "B-X", "B-Y")
    assert bertie.evaluate(run.model_directory, rows, kind="entities").scores == run.scores
    with pytest.raises(SettingsError, match="no column 'other'"):
        bertie.evaluate(run.model_directory, rows, kind="entities", text="other")
    with pytest.raises(ModelError, match=r"pass --kind entities \(kind='entities'\)$"):
        bertie.evaluate(run.model_directory, rows)


def test_the_answers_of_fine_tuning_are_read(model):
    answer = {"text": ["good"], "answer_start": [13]}
    row = {"query": "how was it", "story": "the film was good", "gold": answer}
    rows = [{"number": str(i), **row} for i in range(4)]
    columns = {"identifier": "number", "question": "query", "context": "story", "answers": "gold"}
    options = {"kind": "questions", "columns": columns, "epochs": 1, "device": "cpu", "max_seq_length": 32}
    run = bertie.finetune(model, train=rows, dev=rows, out="run", **options)
    assert bertie.evaluate(run.model_directory, rows, kind="questions").scores == run.scores


@pytest.mark.parametrize("kind", ["pairs", "scored-pairs"])
def test_the_columns_of_pairs_are_read(model, kind):
    rows = [
        {"query": f"the {name}", "reply": f"film {i}", "stars": i}
        for i, name in enumerate(["film", "good", "bad"])
    ]
    options = {"kind": kind, "text": "query", "pair": "reply", "epochs": 1, "device": "cpu"}
    if kind == "scored-pairs":
        options["label"] = "stars"
    run = bertie.finetune(model, train=rows, dev=rows, out="run", max_seq_length=32, **options)
    result = bertie.evaluate(run.model_directory, rows, kind=kind)
    assert result.scores["dev"] == pytest.approx(run.scores["dev"])
    assert run.load().input_columns == {}  # an encoder embeds single texts of any column
    with pytest.raises(bertie.SettingsError, match="no column 'title'"):
        bertie.evaluate(run.model_directory, rows, kind=kind, text="title")


def test_model_and_predictions_have_the_scores_of_finetuning(run):
    by_model = bertie.evaluate(run.model_directory, pd.DataFrame(ROWS), **REVIEWS)
    file = run.path / "predictions" / "dev" / "predictions.tsv"
    by_file = bertie.evaluate(predictions=file, data=ROWS, **REVIEWS)
    assert by_model.scores == by_file.scores == run.scores
    assert list(by_model.predictions["dev"]) == list(by_file.predictions["dev"])
    assert by_model.analyses["dev"].as_json() == by_file.analyses["dev"].as_json()
    assert repr(by_file) == f"EvaluationResult(scores={by_file.scores!r})"


def test_labels_that_only_the_predictions_have_are_reported(run, capsys):
    Path("own.tsv").write_text("".join(f"{i}\t{label}\n" for i, label in enumerate(["good", "god"] * 8)))
    capsys.readouterr()
    bertie.evaluate(predictions="own.tsv", data=ROWS, **REVIEWS)
    assert capsys.readouterr().err == "labels that occur only in own.tsv: god\n"


def test_truncated_texts_of_each_part_have_its_name(run, capsys):
    rows = [{**row, "review": row["review"] * 20} for row in ROWS]
    for models in (run.model_directory, [run.model_directory] * 2):
        bertie.evaluate(models, rows, device="cpu")
        assert capsys.readouterr().err.startswith(
            "dev: texts longer than 32 tokens, whose ends are ignored: 16"
        )


def test_a_result_in_place_of_its_path_gets_advice(run):
    for value, advice in ((run, "its model_directory"), (run.load(), "its path")):
        with pytest.raises(bertie.DataError, match=rf"^model: expected a path .*, got \w+; pass {advice}$"):
            bertie.evaluate(value, ROWS)
        with pytest.raises(bertie.DataError, match=rf"^model\[1\]: expected a path, got \w+; pass {advice}$"):
            bertie.evaluate([run.model_directory, value], ROWS)


def test_an_unknown_part_is_refused(run):
    with pytest.raises(bertie.SettingsError, match="part 'test': classification has no such part; use dev"):
        bertie.evaluate(run.model_directory, ROWS, part="test", **REVIEWS)
    Path("MNLI").mkdir()
    known = "use dev_matched or dev_mismatched$"
    with pytest.raises(bertie.SettingsError, match=rf"part 'matched': mnli has no such part; {known}"):
        bertie.evaluate(run.model_directory, "MNLI", task="mnli", part="matched")
    for part in ("train", "test_matched"):
        with pytest.raises(bertie.DataError, match=rf"MNLI/{part}\.tsv: no such file"):
            bertie.evaluate(run.model_directory, "MNLI", task="mnli", part=part)


def test_file_has_the_same_scores_as_a_table(run):
    pd.DataFrame(ROWS).to_csv("dev.csv", index=False)
    assert bertie.evaluate(run.model_directory, "dev.csv", **REVIEWS).scores == run.scores


def test_null_scores_of_squad_v2():
    answers = [{"text": "Ada", "answer_start": 0}]
    questions = [
        {"id": "a", "question": "Who?", "answers": answers},
        {"id": "b", "question": "When?", "answers": []},
    ]
    squad = {"data": [{"paragraphs": [{"context": "Ada wrote it.", "qas": questions}]}]}
    contents = {"dev": squad, "predictions": {"a": "Ada", "b": "it"}, "odds": {"a": -1, "b": 2}}
    for name, content in contents.items():
        Path(f"{name}.json").write_text(json.dumps(content))
    options = {"task": "squad-v2", "data": "dev.json", "predictions": "predictions.json"}
    assert bertie.evaluate(**options).scores["dev"]["exact_match"] == 50
    assert bertie.evaluate(**options, null_scores="odds.json").scores["dev"]["exact_match"] == 100
    options["task"] = "squad-v1"
    with pytest.raises(bertie.BertieError):
        bertie.evaluate(**options, null_scores="odds.json")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"data": ROWS}, bertie.SettingsError, "give either a model directory or a file of predictions"),
        ({"model": "m", "predictions": "p", "data": ROWS}, bertie.SettingsError, "give either a model dir"),
        ({"model": "m"}, bertie.SettingsError, "no data: give a table or file with gold labels, or the"),
        ({"model": "m", "data": "."}, bertie.SettingsError, ".: a folder; give the name of its task, or a"),
        ({"model": "m", "data": ROWS}, bertie.ModelError, "m: no such model directory"),
        (
            {"model": "m", "data": ROWS, "task": "cola"},
            bertie.SettingsError,
            "data: task cola reads its official files; give one of them or their folder, or leave task out",
        ),
        (
            {"predictions": "p.tsv", "data": ROWS},
            bertie.SettingsError,
            "data: no column 'text'; the columns are",
        ),
        (
            {"model": "m", "data": ROWS, "kind": "tags", "label": "stars"},
            bertie.SettingsError,
            "label 'stars': tags have no such column; name words, tags with --column (columns=…)",
        ),
        (
            {"predictions": "p.tsv", "data": ".", "task": "mnli"},
            bertie.SettingsError,
            "predictions are for one part; give its name as the part: dev_matched, dev_mismatched",
        ),
    ],
)
def test_wrong_arguments_are_an_error(options, error, message):
    with pytest.raises(error) as raised:
        bertie.evaluate(**options)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_seq_length": 129}, "max_seq_length 129 exceeds the model's 128 positions"),
        ({"device": "tpu"}, "device = 'tpu': not available on this machine"),
    ],
)
def test_options_reach_the_model(tmp_path, options, message):
    path = save_small(tmp_path, "classifier")
    with pytest.raises(bertie.SettingsError, match=message):
        bertie.evaluate(path, [{"text": "the cat", "label": "good"}], **options)


@pytest.mark.parametrize("is_file", [False, True])
def test_official_test_parts_have_no_public_labels(tmp_path, is_file):
    file = tmp_path / "test.tsv"
    options = {"task": "mrpc", "data": file if is_file else tmp_path, "part": None if is_file else "test"}
    file.write_text("index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\ta\tb\n")
    message = f"{file}: the labels of this part of mrpc are not public; score dev instead"
    with pytest.raises(bertie.SettingsError, match=message):
        bertie.evaluate("model", **options)
    file.write_text("index\t#1 String\n0\ta\n")
    with pytest.raises(bertie.SettingsError, match="no column '#2 String'"):
        bertie.evaluate("model", **options)
    file.write_text("Quality\t#1 String\t#2 String\n1\ta\tb\n")  # of one who knows the labels
    predictions = tmp_path / "predictions.tsv"
    predictions.write_text("index\tprediction\n0\t1\n")
    assert bertie.evaluate(predictions=predictions, **options).scores[options["part"] or "dev"]["f1"] == 100


def test_wrong_labels_are_an_error_at_the_row(run):
    rows = [*ROWS[:2], {"review": "a film", "stars": "fair"}]
    with pytest.raises(bertie.DataError, match=r"^data, row 3: "):
        bertie.evaluate(run.model_directory, rows, **REVIEWS)
