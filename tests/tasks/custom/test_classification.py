"""Texts with custom labels: how they are read, their labels, and errors in rows."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.custom.tables import write

from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.base.memory import MemoryTable
from bertie.model.formats.directory import ModelMetadata
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.custom.classification import CustomClassification


def texts_and_labels(labels):
    return {"text": [f"text {i}" for i in range(len(labels))], "label": labels}


def fit(path, task=None):
    """Return the task fitted to a file, and the gold labels as an array."""
    task = task or CustomClassification()
    examples = task.read(path, labelled=True)
    task = task.fitted(examples)
    task.check_training(examples, path)
    return task, task.gold(examples).tolist()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_classes_are_inferred_from_training_labels(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", texts_and_labels(["good", "bad", "bad", "good", " good  "]))
    task, gold = fit(path)
    assert (task.labels, task.problem_type, task.main_metric) == (
        ("bad", "good"),
        "single_label_classification",
        "accuracy",
    )
    assert gold == [1, 0, 0, 1, 1]
    assert task.label_counts(task.read(path, labelled=True)) == {"bad": 2, "good": 3}
    assert CustomClassification().read(path, labelled=False).labels is None


def test_whole_numbers_are_classes_and_fractions_a_regression(tmp_path):
    stars = ["10", "9", "10", "9", "1", "1"]
    assert fit(write(tmp_path / "stars.csv", texts_and_labels(stars)))[0].labels == ("1", "9", "10")
    floats = write(tmp_path / "floats.parquet", texts_and_labels([1.0, 2.0, 1.0, 2.0]))
    assert fit(floats)[0].labels == ("1", "2")
    for suffix in (".csv", ".jsonl", ".parquet"):
        task, gold = fit(write(tmp_path / f"a{suffix}", texts_and_labels([3.5, 4.0, -1.25])))
        assert (task.problem_type, task.labels, gold) == ("regression", (), [3.5, 4, -1.25])
        assert task.main_metric in task.metrics


@pytest.mark.parametrize("training", [".csv", ".jsonl", ".parquet", ""])
def test_whole_floats_are_the_same_classes_in_every_format(tmp_path, training):
    table = texts_and_labels([0.0, 1.0, 1.0, 0.0])
    sources = [write(tmp_path / f"a{suffix}", table) for suffix in (".csv", ".jsonl", ".parquet")]
    sources.append(MemoryTable("", table))
    task, gold = fit(next(source for source in sources if str(source).endswith(training)))
    assert (task.labels, gold) == (("0", "1"), [0, 1, 1, 0])
    for source in sources:
        for labels in (("0", "1"), ("0.0", "1.0")):  # earlier versions had the second ones, from csv
            read = task.with_labels(labels) if training == ".csv" else task
            assert read.gold(read.read(source, labelled=True)).tolist() == gold


def test_classes_with_fractions_have_one_name_in_every_format(tmp_path):
    table = texts_and_labels([1.0, 2.5, 2.5, 1.0])
    for source in (
        *(write(tmp_path / f"a{suffix}", table) for suffix in (".csv", ".jsonl")),
        MemoryTable("", table),
    ):
        task = CustomClassification().with_problem_type("single_label_classification")
        assert task.fitted(task.read(source, labelled=True)).labels == ("1", "2.5")


def test_numbers_with_a_decimal_comma_are_pointed_out(tmp_path):
    advice = "for a regression, write numbers with a point, such as 1.5"
    for labels, description in (
        (["3", "1,5"], f"1,5 (2), 3 (2); {advice}"),
        (["1,5", "high"], "1,5 (2), high (2)"),
        (["3", "15"], "3 (2), 15 (2)"),
    ):
        path = tmp_path / "train.tsv"
        path.write_text("text\tlabel\n" + "".join(f"a\t{label}\n" for label in labels * 2))
        examples = CustomClassification().read(path, labelled=True)
        assert CustomClassification().fitted(examples).describe_labels(examples) == description


def test_numbers_among_names_stay_strings(tmp_path):
    versions = ["1.0", "beta", "1.0", "beta", "2.0", "2.0"]
    assert fit(write(tmp_path / "a.csv", texts_and_labels(versions)))[0].labels == ("1.0", "2.0", "beta")


def test_the_problem_type_can_be_set(tmp_path):
    path = write(tmp_path / "a.csv", texts_and_labels(["1", "2", "2", "1"]))
    assert fit(path, CustomClassification().with_problem_type("regression"))[1] == [1, 2, 2, 1]
    path = write(tmp_path / "b.csv", texts_and_labels(["1.1", "2.1", "2.1", "1.1"]))
    assert fit(path, CustomClassification().with_problem_type("single_label_classification"))[0].labels == (
        "1.1",
        "2.1",
    )


def test_lists_of_labels_are_multilabel(tmp_path):
    labels = [["sport", "news"], [], ["news"], ["news", "sport"]]
    for suffix, separator in ((".jsonl", None), (".jsonl", "|"), (".parquet", None)):
        path = write(tmp_path / f"a{suffix}", texts_and_labels(labels))
        task, gold = fit(path, CustomClassification(separator=separator))
        assert (task.labels, task.problem_type) == (("news", "sport"), "multi_label_classification")
        assert gold == [[True, True], [False, False], [True, False], [True, True]]
    joined = write(tmp_path / "a.csv", texts_and_labels(["sport | news", "", "news", "news|sport|"]))
    assert fit(joined, CustomClassification(separator="|"))[1] == gold
    assert task.label_counts(task.read(tmp_path / "a.jsonl", labelled=True)) == {"news": 3, "sport": 2}


def test_columns_can_be_named(tmp_path):
    table = {"b": ["x", "y", "z"], "a": ["1", "2", "3"], "stars": ["p", "q", "p"], "other": ["", "", ""]}
    path = write(tmp_path / "a.csv", table)
    examples = CustomClassification(text="a", pair="b", label="stars").read(path, labelled=True)
    assert (examples.texts, examples.pairs, examples.labels) == (table["a"], table["b"], table["stars"])


names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1)


@given(st.lists(names, min_size=2, unique=True))
def test_every_label_has_its_own_class_index(labels):
    labels = labels * 2
    examples = LabelledTexts(["text"] * len(labels), labels=labels)
    task = CustomClassification().with_problem_type("single_label_classification").fitted(examples)
    assert sorted(task.labels) == sorted(set(labels))
    assert [task.labels[index] for index in task.gold(examples)] == labels


def training_csv(lines):
    return "text,label\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("task", "content", "message"),
    [
        (
            CustomClassification(),
            training_csv(["a,x", "b,y", "c,x", "d,z"]),
            r"line 3: no other example has the label 'y' \(",
        ),
        (
            CustomClassification(),
            training_csv(["a,x", '"b\nb",x', "c,z", "d,x"]),
            "line 5: no other example has .* 'z'; add",
        ),
        (
            CustomClassification(),
            training_csv(["a,x", "b,x"]),
            "line 2: all examples have the label 'x'; add examples with other labels",
        ),
        (
            CustomClassification(),
            training_csv(['a,"1,5"', 'b,"2,25"', "c,3"]),
            r"line 2: no other example has the label '1,5' .*; add some or delete it; for a regression, "
            r"write numbers with a point, such as 1\.5$",
        ),
        (
            CustomClassification(),
            training_csv(["a,1.5", "b,high", "c,2.5"]),
            "line 3: 'high' is a non-numeric label, so labels are class names; class '1.5' has only one",
        ),
        (
            CustomClassification(),
            training_csv(["a,1.5", "b,1.5", "c,N/A", "d,2.5", "e,2.5", "f,N/A"]),
            "line 4: label 'N/A' is not a number, but the other labels are numbers with fractions, as in a "
            "regression; write a number or delete the row; if the labels are names of classes, rename",
        ),
        (CustomClassification(), training_csv(["a,0.5", "b,0.5"]), "line 2: all examples have the label"),
        (
            CustomClassification(),
            training_csv(["a,x", ",y"]),
            "line 3: no text in the column 'text'; add it or delete the row",
        ),
        (
            CustomClassification(),
            training_csv(["a,x", " ,y"]),
            "line 3: no text in the column 'text'",
        ),
        (
            CustomClassification(),
            training_csv(["a,x", "b,"]),
            "line 3: no label in the column 'label'; add it or delete",
        ),
        (
            CustomClassification().with_problem_type("regression"),
            training_csv(["a,1", "b,high"]),
            "line 3: 'high' is not a number",
        ),
        (
            CustomClassification(),
            training_csv(["a,1.5", "b,-1e39"]),
            "line 3: '-1e39' is too large; scale the numbers$",
        ),
        (
            CustomClassification().with_problem_type("regression"),
            training_csv(["a,1", 'b,"1,5"']),
            r"line 3: '1,5' is not a number; write numbers with a point, such as 1\.5, or delete the row$",
        ),
        (
            CustomClassification().with_problem_type("multi_label_classification"),
            training_csv(["a,x|y", "b,x"]),
            r"line 2: 'x\|y' is not a list of labels, but the model gives a text several labels; write "
            r"lists, or name the separator with --separator '\|' \(separator=…\)$",
        ),
        (CustomClassification(), "text,label\n", "empty: no rows below the header; add at least one$"),
        (CustomClassification(), "", "empty"),
    ],
)
def test_bad_training_files_are_rejected(tmp_path, task, content, message):
    path = tmp_path / "train.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=r"train\.csv[,:] " + message):
        fit(path, task)


@pytest.mark.parametrize("label", [{"a": 1}, [["a"]]])
def test_labels_must_be_strings_numbers_or_lists(tmp_path, label):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "a", "label": label}))
    with pytest.raises(DataError, match=r"line 1: .* in the column 'label' is not a label; write a string"):
        CustomClassification().read(path, labelled=True)


def test_long_values_in_the_wrong_column_are_shortened(tmp_path):
    vector = [0.1] * 768
    for row in ({"text": "a", "label": {"vector": vector}}, {"text": vector, "label": "x"}):
        path = tmp_path / "a.jsonl"
        path.write_text(json.dumps(row) + "\n")
        with pytest.raises(DataError, match=r"line 1: .*\.\.\.\]") as error:
            CustomClassification().read(path, labelled=True)
        assert len(str(error.value)) < len(str(path)) + 200


def test_missing_labels_are_reported_but_not_in_lists(tmp_path):
    path = write(tmp_path / "a.jsonl", texts_and_labels(["x", None]))
    with pytest.raises(DataError, match="line 2: no label in the column 'label'; add it or delete the row"):
        CustomClassification().read(path, labelled=True)
    path = write(tmp_path / "a.jsonl", texts_and_labels([["x"], [None]]))
    assert CustomClassification().read(path, labelled=True).labels == [("x",), ()]


@pytest.mark.parametrize(
    ("gold", "predicted", "labels", "scores"),
    [
        # These files cannot be trained on, but predictions can be scored with them.
        (["a", "b", "a"], ["a", "b", "c"], ("a", "b", "c"), {"accuracy": 200 / 3, "f1_macro": 500 / 9}),
        (["a", "a", "a"], ["a", "a", "a"], ("a",), {"accuracy": 100, "f1_macro": 100}),
        (["1", "2", "1"], ["1.0", "2.0 ", "1"], ("1", "2"), {"accuracy": 100, "f1_macro": 100}),
        (
            ["1.0", "2.0", "1.0"],
            ["1", "2", "3"],
            ("1", "2", "3"),
            {"accuracy": 200 / 3, "f1_macro": 500 / 9},
        ),
        (
            [["1.0"], ["2"]],
            ['["1.0"]', '["2.0"]'],
            ("1", "2"),
            {"f1_micro": 100, "f1_macro": 100, "accuracy": 100},
        ),
        (["1", "2", "3"], ["1.5", "2.5", "3.5"], (), {"spearmanr": 100, "pearson": 100}),
        (["1.5", "2.5", "3.5"], ["1", "2", "3"], (), {"spearmanr": 100, "pearson": 100}),
        (
            [["a"], [], ["a"]],
            ['["a"]', '["b"]', "[]"],
            ("a", "b"),
            {"f1_micro": 50, "f1_macro": 100 / 3, "accuracy": 100 / 3},
        ),
    ],
)
def test_predictions_are_scored_without_training_examples(tmp_path, gold, predicted, labels, scores):
    path = write(tmp_path / "gold.jsonl", texts_and_labels(gold))
    rows = [f"{i}\t{label}\n" for i, label in enumerate(predicted)]
    (tmp_path / "predictions.tsv").write_text("index\tprediction\n" + "".join(rows))
    examples = CustomClassification().read(path, labelled=True)
    task = CustomClassification().fitted_to_predictions(examples, tmp_path / "predictions.tsv")
    assert task.labels == labels
    predictions = task.read_predictions(examples, tmp_path / "predictions.tsv")
    assert task.score(examples, predictions) == pytest.approx(scores)


def test_a_missing_prediction_is_reported(tmp_path):
    path = write(tmp_path / "gold.csv", texts_and_labels(["a", "b"]))
    (tmp_path / "predictions.tsv").write_text("index\tprediction\n0\ta\n1\t \n")
    examples = CustomClassification().read(path, labelled=True)
    with pytest.raises(DataError, match=r"predictions\.tsv, line 3: no prediction; write a label"):
        CustomClassification().fitted_to_predictions(examples, tmp_path / "predictions.tsv")


def test_predicted_numbers_that_are_missing_are_reported(tmp_path):
    path = write(tmp_path / "gold.csv", texts_and_labels(["1", "2", "3"]))
    (tmp_path / "predictions.tsv").write_text("index\tprediction\n2\t2.5\n1\tnan\n0\t1.5\n")
    examples = CustomClassification().read(path, labelled=True)
    with pytest.raises(DataError, match=r"predictions\.tsv, line 3: label 'nan' is not a number"):
        CustomClassification().fitted_to_predictions(examples, tmp_path / "predictions.tsv")


@pytest.mark.parametrize("separator", [None, ","])
@pytest.mark.parametrize("label", [["x", "it's"], ["x"], [0, 1], [], "['x' 'y']"])
def test_list_that_was_written_as_a_string_is_not_a_label(tmp_path, label, separator):
    path = write(tmp_path / "a.csv", texts_and_labels(["[x]", label]))
    with pytest.raises(DataError, match=r"a\.csv, line 3: .* is a list in a string; write lists"):
        CustomClassification(separator=separator).read(path, labelled=True)


@pytest.mark.parametrize("flags", ["0,1,0", "1, 1", "False,True,False"])
def test_joined_flags_are_not_labels(tmp_path, flags):
    path = write(tmp_path / "a.csv", texts_and_labels(["1,0", flags]))
    with pytest.raises(DataError, match=r"a\.csv, line 3: \['.*'\] in .* has a flag for each label; list"):
        CustomClassification(separator=",").read(path, labelled=True)


@pytest.mark.parametrize("separator", ["\t", "\n", " ", "  "])
def test_white_space_can_separate_labels(tmp_path, separator):
    path = write(tmp_path / "a.jsonl", texts_and_labels([f"x{separator} y", 3]))
    assert CustomClassification(separator=separator).read(path, labelled=True).labels == [("x", "y"), ("3",)]


def test_labels_with_one_example_are_counted(tmp_path):
    for labels, others in ((["x", "y", "z", "x", "u"], "2 other labels have"), ("xyzx", "1 other label has")):
        path = write(tmp_path / "a.csv", texts_and_labels(list(labels)))
        with pytest.raises(
            DataError, match=rf"line 3: no other .* 'y' \(and {others} only one example\); add"
        ):
            fit(path)


def test_missing_column_is_reported_with_the_nearest(tmp_path):
    path = write(tmp_path / "a.csv", texts_and_labels(["x", "y"]))
    with pytest.raises(
        SettingsError, match=r"no column 'texts'; did you mean 'text'\? the columns are text, label"
    ):
        CustomClassification(text="texts").read(path, labelled=True)
    with pytest.raises(
        SettingsError, match=r"pass --text NAME --pair NAME --label NAME \(text='NAME', pair="
    ):
        CustomClassification(text="a", pair="b", label="c").read(path, labelled=True)


def test_single_labels_and_lists_cannot_be_mixed(tmp_path):
    path = write(tmp_path / "a.jsonl", texts_and_labels([["x"], "y", ["x"]]))
    with pytest.raises(DataError, match=r"line 1: \['x'\] is not a single label, as other rows have"):
        fit(path)
    multilabel = CustomClassification().with_problem_type("multi_label_classification")
    with pytest.raises(DataError, match=r"'y' is not a list of labels, as other rows have; write a list$"):
        fit(path, multilabel)
    for value in (None, [None], 7):
        bad = {"text": ["a", "b"], "label": [["x"], value]}
        with pytest.raises(DataError, match=r"a\.jsonl, line"):
            fit(write(tmp_path / "a.jsonl", bad))


def test_dev_labels_must_be_among_the_training_labels(tmp_path):
    task, _ = fit(write(tmp_path / "train.csv", texts_and_labels(["x", "y", "y", "x"])))
    assert task.read(write(tmp_path / "dev.csv", texts_and_labels(["y"])), labelled=True).labels == ["y"]
    assert task.read(write(tmp_path / "test.csv", {"text": ["a"]}), labelled=False).labels is None
    dev = write(tmp_path / "dev.csv", texts_and_labels(["x", "z"]))
    with pytest.raises(DataError, match=r"dev\.csv, line 3: unknown label 'z'; known: x, y"):
        task.read(dev, labelled=True)
    multilabel, _ = fit(write(tmp_path / "train.jsonl", texts_and_labels([["x"], ["y"], ["y", "x"]])))
    dev = write(tmp_path / "dev.jsonl", texts_and_labels(["x"]))
    with pytest.raises(DataError, match=r"dev\.jsonl, line 1: 'x' is not a list of labels"):
        multilabel.read(dev, labelled=True)
    lists = write(tmp_path / "lists.jsonl", texts_and_labels([["x"], ["y"]]))
    with pytest.raises(DataError, match=r"\['x'\] is not a single label, but the model gives a text one"):
        task.read(lists, labelled=True)
    regression, _ = fit(write(tmp_path / "numbers.csv", texts_and_labels(["0.5", "1.5"])))
    with pytest.raises(DataError, match=r"dev\.csv, line 2: 'x' is not a number"):
        regression.read(write(tmp_path / "dev.csv", texts_and_labels(["x"])), labelled=True)
    with pytest.raises(DataError, match=r"lists\.jsonl, line 1: \['x'\] is not a number; write a number or"):
        regression.read(lists, labelled=True)


def test_rows_with_labels_unknown_to_training_can_be_skipped(tmp_path, capsys):
    task, _ = fit(write(tmp_path / "train.csv", texts_and_labels(["1", "2", "2", "1"])))
    dev = write(tmp_path / "dev.csv", texts_and_labels(["2.0", "3", "1", "3"]))
    assert replace(task, on_error="skip").read(dev, labelled=True).labels == ["2", "1"]
    err = capsys.readouterr().err
    assert f"skipped: {dev}, line 3: unknown label '3'; known: 1, 2\n" in err
    assert err.endswith(f"{dev}: skipped 2 of 4 rows\n")
    multilabel, _ = fit(write(tmp_path / "train.jsonl", texts_and_labels([["x"], ["y"], ["y", "x"]])))
    dev = write(tmp_path / "dev.jsonl", texts_and_labels([["x"], ["x", "z"]]))
    assert replace(multilabel, on_error="skip").read(dev, labelled=True).labels == [("x",)]


def test_a_models_labels_replace_training_examples(tmp_path):
    task = CustomClassification().with_problem_type("single_label_classification").with_labels(["y", "x"])
    examples = task.read(write(tmp_path / "a.csv", texts_and_labels(["x", "x"])), labelled=True)
    assert task.gold(examples).tolist() == [1, 1]


def test_fitted_to_model_takes_the_problem_type_and_labels():
    model = ModelMetadata(None, "", ("y", "x"), None, "multi_label_classification")
    task = CustomClassification().fitted_to_model(model)
    assert (task.problem_type, task.labels) == ("multi_label_classification", ("y", "x"))
    assert task.main_metric == "f1_micro"
    message = "for multi label classification, but .* is regression; use a model that was fine-tuned on reg"
    with pytest.raises(ModelError, match=message):
        CustomClassification().with_problem_type("regression").fitted_to_model(model)


def test_a_model_of_pairs_needs_the_column_of_the_second_text():
    """Without it, every text would be scored without its second text."""
    model = ModelMetadata(
        None,
        "",
        ("y", "x"),
        None,
        "single_label_classification",
        input_columns={"text": "question", "pair": "the answer"},
    )
    with pytest.raises(SettingsError, match=r"pairs of texts; name .* such as --pair 'the answer' \(pair="):
        CustomClassification().fitted_to_model(model)
    assert CustomClassification(pair="b").fitted_to_model(model).labels == ("y", "x")
    single = replace(model, input_columns={"text": "question"})
    with pytest.raises(SettingsError, match="fine-tuned on single texts; leave out --pair"):
        CustomClassification(pair="b").fitted_to_model(single)
    unknown = replace(model, input_columns={})  # an earlier version did not record the columns
    for fitting in (single, unknown):
        assert CustomClassification().fitted_to_model(fitting).labels == ("y", "x")
    assert CustomClassification(pair="b").fitted_to_model(unknown).labels == ("y", "x")


def test_nan_in_a_column_of_floats_is_a_missing_text(tmp_path):
    table = texts_and_labels(["x", "y"]) | {"text": [float("nan")] * 2}
    message = "row 1: no text in the column 'text'; add it or delete the row"
    for source in (write(tmp_path / "a.parquet", table), MemoryTable("", table)):
        with pytest.raises(DataError, match=message):
            CustomClassification().read(source, labelled=True)
