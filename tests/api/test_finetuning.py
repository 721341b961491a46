"""`bertie.finetune`: every kind of data, labels and settings; errors that name the table and the row."""

import html
import json
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import polars as pl
import pytest
import torch
import transformers

import bertie
from bertie.api.results import FinetuningResult
from bertie.base.errors import DataError, SettingsError
from bertie.model.formats.conversion import convert
from bertie.training import loop
from bertie.training.schedules import warmup_then_linear_decay

LABELS = ["good", "bad"] * 8
TEXTS = [f"the film was {label}" for label in LABELS]
ROWS = [{"review": text, "stars": label} for text, label in zip(TEXTS, LABELS, strict=True)]
COLUMNS = {"review": TEXTS, "stars": LABELS}
REVIEWS: dict[str, Any] = {"text": "review", "label": "stars"}
FAST: dict[str, Any] = {"epochs": 1, "max_seq_length": 32, "device": "cpu"}
CLASS_LABELS = datasets.Features(
    {"review": datasets.Value("string"), "stars": datasets.ClassLabel(names=["bad", "good"])}
)


def weights(run: FinetuningResult) -> bytes:
    return (run.model_directory / "model.safetensors").read_bytes()


def texts(model: Path, labels: list[Any], **options: Any) -> FinetuningResult:
    """Fine-tune on the texts with these labels."""
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]
    return bertie.finetune(model, train=rows, dev=rows, **options, **FAST)


def test_gradients_that_are_switched_off_are_computed(model):
    options = {**REVIEWS, **FAST}
    expected = weights(bertie.finetune(model, train=ROWS, out="run", **options))
    with torch.no_grad():
        assert weights(bertie.finetune(model, train=ROWS, out="again", **options)) == expected
    with torch.inference_mode():
        assert weights(bertie.finetune(model, train=ROWS, out="third", **options)) == expected


def test_random_numbers_of_a_script_do_not_change(model):
    options: dict[str, Any] = {"train": ROWS, **REVIEWS, "device": "cpu"}
    torch.manual_seed(3)
    before = torch.get_rng_state()
    bertie.finetune(model, **options, epochs=1)
    grid = {"batch_sizes": [8], "learning_rates": [1e-4], "epochs": [1], "restarts": 1}
    bertie.search(model, train=ROWS, dev=ROWS, out="search", **REVIEWS, **grid)
    assert torch.equal(torch.get_rng_state(), before)


def test_every_kind_of_table_gives_the_same_model(model):
    pd.DataFrame(COLUMNS).to_csv("reviews.csv", index=False)
    tables = {
        "path": "reviews.csv",
        "list of dicts": ROWS,
        "dict of columns": COLUMNS,
        "pandas": pd.DataFrame(COLUMNS),
        "polars": pl.DataFrame(COLUMNS),
        "dataset": datasets.Dataset.from_dict(COLUMNS, features=CLASS_LABELS),
    }
    runs = {
        name: bertie.finetune(model, train=table, dev=table, out=name, **REVIEWS, **FAST)
        for name, table in tables.items()
    }
    expected = runs["path"]
    assert sorted(expected.scores["dev"]) == ["accuracy", "f1_macro"]
    for name, run in runs.items():
        assert run.path == Path(name)
        assert run.scores == expected.scores, name
        assert weights(run) == weights(expected), name
        assert list(run.predictions["dev"]) == list(expected.predictions["dev"]), name
        assert run.load().labels == ("bad", "good")


def test_truncated_texts_are_counted(model, capsys):
    rows = {"text": ["good film"] * 5 + ["the good film was good " * 20] * 3, "label": [0, 1] * 4}
    run = bertie.finetune(model, train=rows, dev=rows, settings={"epochs": 1, "max_seq_length": 32})
    err = capsys.readouterr().err
    note = "texts longer than 32 tokens, whose ends are ignored: 3 of 8"
    remedy = "; to read them whole, fine-tune with --set long_texts=windows (long_texts='windows')"
    for part in ("train", "dev"):
        assert f"{part}: {note}{remedy}\n" in err
    bertie.evaluate(run.model_directory, rows)
    assert f"dev: {note}{remedy}\n" in capsys.readouterr().err
    classifier = run.load("cpu")
    classifier.classify(rows["text"])
    assert classifier.num_truncated == 3


LONG = [" ".join(["the film was"] * 20 + [label] * (i % 5)) for i, label in enumerate(LABELS)]
TYPES = {"classes": LABELS, "several": [[label, "film"] for label in LABELS], "numbers": [0.5, 3.25] * 8}


@pytest.mark.parametrize("labels", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(
    "how",
    [
        {"long_texts": "head-tail"},
        {"long_texts": "windows"},
        {"long_texts": "windows", "window_stride": 9, "window_pooling": "max"},
    ],
)
def test_long_texts_are_read_the_same_everywhere(model, capsys, labels, how):
    rows = {"text": LONG, "label": labels}
    run = bertie.finetune(model, train=rows, dev=rows, **FAST, **how)
    method = how["long_texts"]
    err = capsys.readouterr().err
    for note in (
        "texts longer",
        "train: texts longer than 32 tokens, whose middles are ignored: 16 of 16; to",
    ):
        assert (note in err) == (method == "head-tail")
    for models in (run.model_directory, [run.model_directory] * 2):  # also as an ensemble
        # Predictions of so short a training hardly differ, so a correlation with them amplifies rounding.
        tolerance = 1e-3 if labels is TYPES["numbers"] else None
        assert bertie.evaluate(models, rows).scores["dev"] == pytest.approx(run.scores["dev"], rel=tolerance)
    predictor = run.load("cpu")
    assert predictor.long_texts.method == method
    if labels is TYPES["numbers"]:
        assert predictor.regress(LONG) == pytest.approx(run.predictions["dev"].tolist(), abs=1e-6)
    elif labels is LABELS:
        best = [row[0].label for row in predictor.classify(LONG)]
        assert best == [predictor.labels[i] for i in run.predictions["dev"]]
    config = json.loads((run.model_directory / "config.json").read_text())
    stride, pooling = how.get("window_stride"), how.get("window_pooling")
    others = {"stride": stride, "pooling": pooling} if stride else {}
    assert config["long_texts"] == {"method": method, **others}
    assert "long texts: " in (run.model_directory / "README.md").read_text()


def test_long_texts_of_pairs_are_refused_and_truncated_without_the_setting(model, capsys):
    rows = {"text": LONG, "pair": TEXTS, "label": LABELS}
    with pytest.raises(SettingsError, match="long_texts=windows reads single texts, not pairs; leave it out"):
        bertie.finetune(model, train=rows, pair="pair", long_texts="windows", **FAST)
    bertie.finetune(model, train=rows, pair="pair", **FAST)
    assert "train: texts longer than 32 tokens, whose ends are ignored: 16 of 16\n" in capsys.readouterr().err


def test_settings_of_windows_need_windows(model):
    rows = {"text": LONG, "label": LABELS}
    with pytest.raises(SettingsError, match="window_pooling need long_texts=windows; add it"):
        bertie.finetune(model, train=rows, window_stride=9, **FAST)
    with pytest.raises(SettingsError, match=r"window_stride 31 exceeds the 30 tokens .*; use 30 or less"):
        bertie.finetune(model, train=rows, window_stride=31, long_texts="windows", **FAST)
    bertie.finetune(model, train=rows, window_stride=30, long_texts="windows", **FAST)


def test_lists_of_labels_are_multilabel(model):
    labels = [["good"], ["bad", "sad"], []] * 5 + [["sad"]]
    run = texts(model, labels)
    assert sorted(run.scores["dev"]) == ["accuracy", "f1_macro", "f1_micro"]
    classifier = run.load("cpu")
    assert classifier.is_multilabel
    assert classifier.labels == ("bad", "good", "sad")
    joined = texts(model, ["+".join(names) for names in labels], separator="+", out="joined")
    assert weights(joined) == weights(run)


def test_fractional_numbers_are_a_regression(model):
    run = texts(model, [0.5, 3.25] * 8)
    assert sorted(run.scores["dev"]) == ["pearson", "spearmanr"]
    assert isinstance(run.load("cpu").regress("good film"), float)


def test_sets_and_repeated_labels_are_lists_without_order(model):
    labels = [["good", "long"], ["bad"]] * 8
    run = texts(model, labels, out="lists")
    assert weights(texts(model, [set(names) for names in labels], out="sets")) == weights(run)
    assert weights(texts(model, [[*names, *names] for names in labels], out="twice")) == weights(run)


@pytest.mark.parametrize("one", [1, 1.0, True])
def test_a_flag_for_each_label_is_not_a_list_of_labels(model, one):
    rows = [[0, one, 0], [one, 0, 0]] * 8
    with pytest.raises(DataError, match=r"^train, row 1: \[0, .*has a flag for each label; list the names"):
        texts(model, rows)
    assert len(texts(model, [[0, one], [one]] * 8).load().labels) == 2


@pytest.mark.parametrize("flags", [[0, 1], [False, True]])
def test_two_flags_are_not_a_list_of_labels(model, flags):
    message = r"^train, row 1: all examples have the labels \[.*\]; if these are flags, list the names"
    with pytest.raises(DataError, match=message):
        texts(model, [flags, flags[::-1]] * 8)


def test_the_same_labels_in_another_order_are_all_the_same(model):
    with pytest.raises(DataError, match=r"^train, row 1: all examples have the labels \['good', 'long'\]"):
        texts(model, [["good", "long"], ["long", "good"]] * 8)


def test_labels_with_lone_surrogates_are_escaped(model):
    run = texts(model, ["good\ud800", "bad"] * 8)
    assert run.load().labels == ("bad", r"good\ud800")


def test_the_type_of_labels_can_be_chosen(model, capsys):
    whole = [5, 1] * 8
    ages = texts(model, whole, label_type="numbers")
    assert set(ages.scores["dev"]) == {"spearmanr", "pearson"}
    versions = texts(model, ["3.11", "2.7"] * 8, label_type="classes")
    assert versions.load().labels == ("2.7", "3.11")
    skipped = texts(model, [*whole[:-2], "N/A", "?"], label_type="numbers", on_error="skip")
    assert set(skipped.scores["dev"]) == {"spearmanr", "pearson"}
    assert "train, row 15: 'N/A' is not a number" in capsys.readouterr().err
    with pytest.raises(DataError, match="row 1: 'good' is not a number; write a number or"):
        texts(model, LABELS, label_type="numbers")


def test_pairs_read_a_second_column(model):
    rows = [{"a": "the film", "b": f"was {label}", "label": label} for label in LABELS]
    run = bertie.finetune(model, train=rows, dev=rows, text="a", pair="b", **FAST)
    assert run.load("cpu").classify("the film", "was good")


def test_the_model_keeps_the_names_of_its_columns(model, tmp_path):
    rows = [{"a": "a film", "b": word, "label": word} for word in ("good", "bad")] * 6
    run = bertie.finetune(model, train=rows, text="a", pair="b", **FAST)
    assert run.load().input_columns == {"text": "a", "pair": "b"}
    config = transformers.AutoConfig.from_pretrained(run.model_directory)
    assert config.input_columns == {"text": "a", "pair": "b"}
    convert(run.model_directory, tmp_path / "converted", "huggingface")
    assert bertie.load(tmp_path / "converted").input_columns == {"text": "a", "pair": "b"}


def test_tags_are_lists_in_rows(model):
    rows = [{"tokens": ["the", "film", "was", "good"], "tags": ["O", "B-ART", "O", "O"]}] * 8
    run = bertie.finetune(model, train=rows, dev=rows, kind="tags", columns={"words": "tokens"}, **FAST)
    assert "f1" in run.scores["dev"]
    assert run.load("cpu").labels == ("O", "B-ART")


def test_choices_are_columns_or_a_list(model):
    rows = [{"context": "the film was", "a": "good", "b": "bad", "label": i % 2} for i in range(16)]
    columns = {"endings": ["a", "b"]}
    run = bertie.finetune(model, train=rows, dev=rows, kind="choices", columns=columns, **FAST)
    lists = [{**row, "endings": [row["a"], row["b"]]} for row in rows]
    same = bertie.finetune(model, train=lists, dev=lists, kind="choices", **FAST)
    assert run.scores == same.scores
    assert weights(run) == weights(same)


def test_questions_have_answers_in_their_context(model):
    answers = {"text": ["good"], "answer_start": [13]}
    rows = [
        {"id": i, "question": "was the film", "context": "the film was good", "answers": answers}
        for i in range(8)
    ]
    options = {**FAST, "max_seq_length": 80}
    run = bertie.finetune(model, train=rows, dev=rows, kind="questions", **options)
    assert {"exact_match", "f1"} <= run.scores["dev"].keys()
    assert run.load("cpu").method == "answer"


def with_row_3(**changes: Any) -> list[dict[str, Any]]:
    return [{**row, **(changes if number == 3 else {})} for number, row in enumerate(ROWS, 1)]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"train": ROWS, "label": "star"},
            bertie.SettingsError,
            "train: no column 'star'; did you mean 'sta",
        ),
        ({"train": ROWS, "dev": [{"review": "a"}]}, bertie.SettingsError, "dev: no column 'stars'; the col"),
        ({"train": with_row_3(stars=None)}, bertie.DataError, "train, row 3: no label in the column 'stars'"),
        (
            {"train": with_row_3(stars={})},
            bertie.DataError,
            "train, row 3: {} in the column 'stars' is not a",
        ),
        (
            {"train": with_row_3(stars=object)},
            bertie.DataError,
            "train, row 3: <class 'object'> in the column 'stars' is not a label; write a string",
        ),
        ({"train": with_row_3(review=7)}, bertie.DataError, "train, row 3: 7 is not text in the column"),
        ({"train": with_row_3(stars="fair")}, bertie.DataError, "train, row 3: no other example has the lab"),
        ({"train": ROWS, "dev": with_row_3(stars="fair")}, bertie.DataError, "dev, row 3: "),
        ({"train": ROWS[:1]}, bertie.DataError, "train, row 1: all examples have the label 'good'"),
        ({"train": []}, bertie.DataError, "train: empty: no rows"),
        (
            {"train": TEXTS},
            bertie.DataError,
            "train: row 1 is a str, not a dict; give a path, a list of dict",
        ),
    ],
)
def test_wrong_data_are_an_error_at_the_row(model, options, error, message):
    with pytest.raises(error) as raised:
        bertie.finetune(model, out="run", **{**REVIEWS, **options}, **FAST)
    assert str(raised.value).startswith(message)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either task and data (its folder), or train and dev (your own examples)"),
        ({"task": "mrpc", "train": ROWS}, "give either task and data (its folder), or train and dev"),
        ({"task": "mrpc", "data": ".", "dev": ROWS}, "dev goes with train; a task of the paper has its own"),
        ({"task": "mrpc", "data": ".", "label": "stars"}, "task mrpc has its own file format; kind, text,"),
        ({"task": "mrcp", "data": "."}, "no task 'mrcp'; did you mean 'mrpc'?"),
        (
            {"train": ROWS, "columns": {"text": "review"}},
            "columns are for tags, entities, questions and choices; texts",
        ),
        ({"train": ROWS, "kind": "tag"}, "kind = 'tag': expected 'texts', 'tags', 'entities', "),
        (
            {"train": ROWS, "kind": "tags", "columns": {"word": "w"}},
            "columns: tags have no 'word'; use words",
        ),
        ({"train": ROWS, "label": "text"}, "text and label are both the column 'text'; choose two columns"),
        ({"train": ROWS, "pair": "label"}, "pair and label are both the column 'label'; choose two"),
        (
            {"train": ROWS, "text": "pair", "kind": "pairs"},
            "text and pair are both the column 'pair'; choose",
        ),
        (
            {"train": ROWS, "kind": "tags", "columns": {"words": ["a", "b"]}},
            "columns: words is ['a', 'b']; give the name of a column",
        ),
        (
            {"train": ROWS, "kind": "choices", "columns": {"endings": ["a", 3]}},
            "columns: endings is ['a', 3]; give the name of a column, or a list of names",
        ),
        (
            {"train": ROWS, "kind": "tags", "columns": {"words": "tags"}},
            "words and tags are both the column 'tags'; choose two columns",
        ),
        (
            {"train": ROWS, "kind": "choices", "columns": {"endings": "a,b,a"}},
            "endings and endings are both the column 'a'; choose two columns",
        ),
        ({"train": ROWS, "label_type": "numbers", "kind": "tags"}, "the label type is for texts; leave it"),
        (
            {"train": ROWS, "text": "x", "kind": "tags"},
            "text 'x': tags have no such column; name words, tags with --column (columns=…)",
        ),
        (
            {"train": ROWS, "pair": "x", "kind": "choices"},
            "pair 'x': choices have no such column; name context",
        ),
        (
            {"train": ROWS, "label": "x", "kind": "pairs"},
            "label 'x': pairs have no such column; leave it out",
        ),
        (
            {"train": ROWS, "label_type": "classes", "separator": "|"},
            "the label type is for one label a text",
        ),
        (
            {"train": ROWS, "settings": [("epochs", 1)]},
            "settings: expected a dict, got list",
        ),
        ({"train": ROWS, "settings": {1: 2}}, "settings: the key 1 is not the name of a setting"),
        ({"train": ROWS, "label_type": "words"}, "label_type = 'words': expected 'classes' or 'numbers'"),
        ({"train": ROWS, "separator": ""}, "the separator is empty; give the text between two labels"),
        (
            {"train": ROWS, "separator": "|", "kind": "pairs"},
            "the separator is for the labels of texts; leave it out with pairs",
        ),
        ({"train": ROWS, "epoch": 3}, "settings: unknown setting 'epoch'; did you mean 'epochs'?"),
        ({"train": ROWS, "settings": {"optimizer.rate": 1}}, "settings: unknown setting 'optimizer.rate'; "),
        (
            {"train": ROWS, "seed": 2**63},
            "settings: seed = 9223372036854775808: use a seed of less than 64 b",
        ),
        (
            {"train": ROWS, "seed": -(2**63) - 1},
            "settings: seed = -9223372036854775809: use a seed of less than 64 ",
        ),
        ({"train": ROWS, "epochs": 0}, "settings: epochs = 0: expected a number greater than 0"),
        ({"train": ROWS, "resume": True}, "resume needs the directory of the run; give it as out"),
        (
            {"train": ROWS, **REVIEWS, "resume": True, "out": "new"},
            "new: no run to resume here; start one without",
        ),
    ],
)
def test_wrong_arguments_are_a_settings_error(model, options, message):
    with pytest.raises(bertie.SettingsError) as raised:
        bertie.finetune(model, **{"device": "cpu", **options})
    assert str(raised.value).startswith(message)
    assert list(Path().iterdir()) == []


def test_settings_may_be_dotted_nested_or_keywords(model):
    ways: list[dict[str, Any]] = [
        {"settings": {"optimizer.learning_rate": 1e-3, "batch_size": 8}},
        {"settings": {"optimizer": {"learning_rate": 1e-3}}, "batch_size": 8},
        {"optimizer": {"learning_rate": 1e-3}, "batch_size": 8},
        {"settings": {"optimizer.learning_rate": 1, "batch_size": 8}, "optimizer": {"learning_rate": 1e-3}},
    ]
    runs = [bertie.finetune(model, train=ROWS, **REVIEWS, **FAST, **way) for way in ways]
    first, *others = [(run.path / "settings.toml").read_text() for run in runs]
    assert "learning_rate = 0.001" in first
    assert "batch_size = 8" in first
    assert others == [first] * 3


def test_without_dev_the_last_epoch_is_kept(model, capsys):
    run = bertie.finetune(model, train=ROWS, **REVIEWS, **FAST)
    assert (run.scores, run.predictions) == ({}, {})
    assert "no dev examples: the model of the last epoch is kept" in capsys.readouterr().err
    assert run.load("cpu").classify("a good film")


def test_out_defaults_to_a_free_directory(model):
    paths = [bertie.finetune(model, train=ROWS, **REVIEWS, **FAST).path for _ in range(2)]
    assert paths == [Path("finetuned"), Path("finetuned-2")]
    with pytest.raises(bertie.SettingsError, match="finetuned: already holds a run; pass --resume"):
        bertie.finetune(model, train=ROWS, out="finetuned", **REVIEWS, **FAST)


def test_finetuning_runs_in_another_thread(model):
    runs = []
    thread = threading.Thread(
        target=lambda: runs.append(bertie.finetune(model, train=ROWS, **REVIEWS, **FAST))
    )
    thread.start()
    thread.join()
    assert len(runs) == 1


def test_interrupted_run_is_saved_and_resumes(model, monkeypatch):
    options: dict[str, Any] = {"train": ROWS, "dev": ROWS, **REVIEWS, **FAST, "batch_size": 8}
    expected = bertie.finetune(model, out="whole", **options)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "warmup_then_linear_decay", interrupt)
        with pytest.raises(bertie.Stopped, match="run; repeat the call with out='run' and resume=True"):
            bertie.finetune(model, out="run", **options)
    assert not Path("run/model").exists()
    with pytest.raises(
        bertie.SettingsError, match="data in memory, which are not recorded; pass train and dev"
    ):
        bertie.finetune(out="run", resume=True)
    resumed = bertie.finetune(out="run", resume=True, train=ROWS, dev=ROWS)
    assert resumed.scores == expected.scores
    assert weights(resumed) == weights(expected)


def test_run_of_files_resumes_from_its_directory(model, monkeypatch):
    pd.DataFrame(COLUMNS).to_csv("reviews.csv", index=False)
    options: dict[str, Any] = {
        "train": "reviews.csv",
        "dev": "reviews.csv",
        **REVIEWS,
        **FAST,
        "batch_size": 8,
    }
    expected = bertie.finetune(model, out="whole", **options)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "warmup_then_linear_decay", interrupt)
        with pytest.raises(bertie.Stopped):
            bertie.finetune(model, out="run", **options)
    shutil.copytree("run", "old")
    for changes, message in (
        (
            {"label": "rating"},
            "run: label was 'stars' when the run started and is 'rating' now; leave it out",
        ),
        ({"task": "mrpc"}, "run: task was None when the run started and is 'mrpc' now; leave it out"),
        ({"batch_size": 4}, "run: batch_size was 8 when the run started and is 4 now; resume without"),
    ):
        with pytest.raises(bertie.SettingsError, match=message):
            bertie.finetune(out="run", resume=True, **changes)
    Path("empty").mkdir()
    monkeypatch.chdir("empty")
    resumed = weights(bertie.finetune(out="../run", resume=True))
    monkeypatch.chdir("..")
    assert resumed == weights(expected)
    Path("old/arguments.json").unlink()
    with pytest.raises(
        bertie.SettingsError, match=r"old: an earlier version .* \(--model, model=…\) and the train"
    ):
        bertie.finetune(out="old", resume=True)
    inputs = {"train": "reviews.csv", "dev": "reviews.csv", **REVIEWS}
    assert weights(bertie.finetune(model, out="old", resume=True, **inputs)) == weights(expected)


def test_finished_run_without_its_metrics_is_an_error(model):
    run = bertie.finetune(model, train=ROWS, out="run", **REVIEWS, **FAST)
    (run.path / "metrics.jsonl").write_text("")
    with pytest.raises(bertie.DataError, match=r"metrics\.jsonl: no row of the kind 'train'; restore"):
        bertie.finetune(train=ROWS, out="run", resume=True, **REVIEWS)


def test_search_resumes_from_its_directory(model):
    pd.DataFrame(COLUMNS).to_csv("reviews.csv", index=False)
    grid = {"batch_sizes": [8], "learning_rates": [1e-3], "epochs": [1], "finetuning.max_seq_length": 32}
    inputs = {"train": "reviews.csv", "dev": "reviews.csv", **REVIEWS}
    first = bertie.search(model, **inputs, out="search", settings=grid)
    shutil.rmtree("search/model")
    again = bertie.search(out="search", resume=True)
    assert again == first
    assert Path("search/model").exists()
    wider = bertie.search(out="search", resume=True, restarts=2)
    assert len(wider.chosen.scores) == 2
    assert wider.table["mean"] == [wider.chosen.mean]
    assert wider.table["chosen"] == [True]
    assert wider.metric in wider.baselines[wider.part]
    assert wider.load().labels == ("bad", "good")
    with pytest.raises(bertie.SettingsError, match="nothing: no run to resume here"):
        bertie.search(out="nothing", resume=True)


def interrupt(*arguments: Any) -> float:
    """Press Ctrl-C in the middle of a step."""
    os.kill(os.getpid(), signal.SIGINT)
    return warmup_then_linear_decay(*arguments)


def test_bad_rows_are_skipped_and_reported(model, capsys):
    bad = [{"review": "no label", "stars": None}, {"review": " ", "stars": "good"}]
    run = bertie.finetune(model, train=[*ROWS, *bad], dev=[*ROWS, *bad], on_error="skip", **REVIEWS, **FAST)
    assert len(run.predictions["dev"]) == len(ROWS)
    lines = capsys.readouterr().err.splitlines()
    for name in ("train", "dev"):
        assert f"skipped: {name}, row 17: no label in the column 'stars'; add it or delete the row" in lines
        assert f"{name}: skipped 2 of 18 rows" in lines
    with pytest.raises(bertie.DataError, match="train, row 1: no label"):
        bertie.finetune(model, train=bad[:1], on_error="skip", **REVIEWS, **FAST)
    with pytest.raises(bertie.SettingsError, match="on_error = 'ignore': expected 'stop' or 'skip'"):
        bertie.finetune(model, train=ROWS, on_error="ignore", **REVIEWS, **FAST)


def test_malformed_rows_of_files_are_skipped(model, capsys):
    table = "review,stars\n" + "a good film,good\na bad film,bad\n" * 4 + 'a,b,c\nthe "x" y,good\n"a" b,bad\n'
    Path("train.csv").write_text(table + "was good,good\n")
    run = bertie.finetune(model, train="train.csv", dev="train.csv", on_error="skip", **REVIEWS, **FAST)
    assert len(run.predictions["dev"]) == 10
    assert "train.csv: skipped 2 of 12 rows" in capsys.readouterr().err
    with pytest.raises(bertie.DataError, match=r"train.csv, line 10: expected 2 fields, got 3"):
        bertie.finetune(model, train="train.csv", out="other", **REVIEWS, **FAST)


def test_fraction_as_dev_is_drawn_from_the_training_examples(model):
    run = bertie.finetune(model, train=ROWS, dev=0.25, out="run", **REVIEWS, **FAST)
    rows = json.loads(Path("run/dev_rows.json").read_text())["rows"]
    assert len(run.predictions["dev"]) == len(rows) == 4
    assert sorted(ROWS[row - 1]["stars"] for row in rows) == ["bad", "bad", "good", "good"]
    card = (run.model_directory / "README.md").read_text()
    assert f"- base model: {model.parent.name}/model, 1 layer, hidden size 16\n" in card
    dev = "a table in memory, 4 rows, drawn from it"
    assert f"- train: a table in memory, 12 rows\n- dev: {dev}\n" in card
    assert dev in run.report.read_text()
    again = bertie.finetune(model, train=ROWS, dev=0.25, out="run", resume=True, **REVIEWS, **FAST)
    assert again.scores == run.scores
    other = bertie.finetune(model, train=ROWS, dev=torch.tensor(0.25), out="other", seed=1, **REVIEWS, **FAST)
    assert json.loads(Path("other/dev_rows.json").read_text())["rows"] == rows
    assert other.baselines["dev"]["accuracy"] == 50


def test_model_that_has_learnt_nothing_is_reported(model, capsys):
    frozen = {**FAST, "optimizer": {"learning_rate": 1e-30}}
    run = bertie.finetune(model, train=ROWS, dev=ROWS, out="run", **REVIEWS, **frozen)
    error = capsys.readouterr().err
    assert f"accuracy {run.scores['dev']['accuracy']:.2f} (majority baseline 50.00)" in error
    constant = len(set(run.predictions["dev"])) == 1
    assert ("for every example, so the model has learnt nothing" in error) == constant
    scores = json.loads(Path("run/scores.json").read_text())
    assert scores["majority_baseline"] == run.baselines
    assert run.baselines["dev"] == pytest.approx({"accuracy": 50, "f1_macro": 100 / 3})
    card = (run.model_directory / "README.md").read_text()
    assert "- train: a table in memory, 16 rows\n- dev: a table in memory, 16 rows\n" in card
    assert f"- bertie: {bertie.__version__}\n" in card


def test_a_regression_whose_predictions_hardly_vary_is_reported(model, capsys):
    frozen = {"optimizer": {"learning_rate": 1e-30}}
    run = texts(model, [0.0, 100.5] * 8, **frozen)
    assert len(set(run.predictions["dev"])) > 1
    answer = f"{run.predictions['dev'].mean():.4g}"
    assert f"warning: dev: the answer is close to {answer} for every example" in capsys.readouterr().err


@pytest.mark.parametrize(("calibrate", "is_wrong"), [(True, True), (True, False), (False, True)])
def test_a_temperature_at_its_limit_is_reported(model, capsys, calibrate, is_wrong):
    """It is at its limit if all predictions on dev are wrong."""
    wrong = [{"review": row["review"], "stars": {"good": "bad", "bad": "good"}[row["stars"]]} for row in ROWS]
    settings = {**FAST, "epochs": 8, "optimizer": {"learning_rate": 3e-3}, "calibrate": calibrate}
    dev = wrong if is_wrong else ROWS + wrong[:4]
    run = bertie.finetune(model, train=ROWS, dev=dev, **REVIEWS, **settings, keep_best=False)
    limit = "calibrate: the temperature 20 is the upper limit of its range"
    is_reported = calibrate and is_wrong
    assert (f"warning: {limit}" in capsys.readouterr().err) == is_reported
    assert (limit in (run.path / "report.html").read_text()) == is_reported


def test_csv_of_tags_names_the_formats_that_work(model):
    Path("train.csv").write_text("words,tags\nAda,B-PER\n")
    with pytest.raises(bertie.DataError, match=r"write a .conll file .* or a .jsonl file") as raised:
        bertie.finetune(model, train="train.csv", kind="tags", **FAST)
    line = str(raised.value).partition("lines such as ")[2]
    Path("train.jsonl").write_text(f"{line}\n" * 4)
    Path("train.conll").write_text("Ada\tB-PER\nslept\tO\n\n" * 4)
    for name in ("train.jsonl", "train.conll"):  # the advice works
        assert bertie.finetune(model, train=name, kind="tags", **FAST).load("cpu").labels == ("O", "B-PER")


def test_a_search_warns_about_its_best_model_as_finetuning_does(model, capsys):
    settings = {
        **FAST,
        "epochs": 1,
        "batch_size": 16,
        "optimizer": {"learning_rate": 1e-9},
        "calibrate": True,
    }
    inputs = {"train": ROWS, "dev": ROWS, **REVIEWS}
    bertie.finetune(model, **inputs, out="run", settings=settings)
    expected = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert expected
    grid = {"learning_rates": [1e-9], "batch_sizes": [16], "epochs": [1], "restarts": 1}
    rest = {key: settings[key] for key in settings.keys() - {"epochs", "batch_size", "optimizer"}}
    bertie.search(model, **inputs, out="search", settings={**grid, "finetuning": rest})
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("warning: ")] == expected
    report = Path("search/report.html").read_text()
    assert all(line.removeprefix("warning: ") in html.unescape(report) for line in expected)


def test_resume_rejects_renamed_labels(model):
    rows = [{**row, "stars": str(i % 2)} for i, row in enumerate(ROWS)]
    bertie.finetune(model, train=rows, out="run", **REVIEWS, **FAST)
    renamed = [{**row, "stars": row["stars"].replace("1", "2")} for row in rows]
    with pytest.raises(DataError, match="run: this run started with a different set of labels; pass the"):
        bertie.finetune(model, train=renamed, out="run", resume=True, **REVIEWS, **FAST)


@pytest.mark.parametrize("key", ["training_fingerprint", "training_set"])
def test_fingerprints_cannot_be_set(model, key):
    message = f"{key}: a run fills in this setting; leave it out, and choose the training set with its"
    for train in (bertie.finetune, bertie.search):
        with pytest.raises(SettingsError, match=message):
            train(model, train=ROWS, dev=ROWS, out="run", settings={key: "x"}, **REVIEWS)
    with pytest.raises(SettingsError, match=message):
        bertie.search(model, train=ROWS, dev=ROWS, out="run", settings={f"finetuning.{key}": "x"}, **REVIEWS)
