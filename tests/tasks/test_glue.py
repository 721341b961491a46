"""GLUE: the official files are read, and submissions have the official form."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.model.formats.directory import ModelMetadata
from bertie.tasks.classification import METRICS, LabelledTexts
from bertie.tasks.glue import SUBMISSION_FILES, TASKS, write_submission

TASK = {task.name: task for task in TASKS}


def test_every_task_has_valid_metrics_and_files():
    assert " ".join(TASK) == "cola sst-2 mrpc sts-b qqp mnli qnli rte wnli ax"
    for task in TASKS:
        assert set(task.metrics) <= set(METRICS)
        assert task.main_metric in task.metrics
        assert set(task.submission_files) == set(task.test_parts)
    assert TASK["mnli"].labels == ("contradiction", "entailment", "neutral") == TASK["ax"].labels
    assert "majority" in TASK["wnli"].note


@pytest.mark.parametrize("name", TASK)
def test_every_official_file_is_read(shared_data, name):
    task = TASK[name]
    files = 0
    for part in ("train", *task.dev_parts, *task.test_parts):
        path = task.file(shared_data / "glue", part)
        if not path.exists():
            continue
        files += 1
        labelled = part not in task.test_parts
        examples = task.read(path, labelled)
        lines = path.read_bytes().decode("utf-8-sig").removesuffix("\n").split("\n")
        has_header = name != "cola" or not labelled
        assert len(examples) == len(lines) - has_header
        assert (examples.pairs is None) == (name in ("cola", "sst-2"))
        for i in (0, len(examples) - 1):
            fields = lines[i + has_header].split("\t")
            assert examples.texts[i] in fields
            assert examples.pairs is None or examples.pairs[i] in fields
            assert examples.labels is None or examples.labels[i] in fields
            assert examples.location(i) == f"{path}, line {i + has_header + 1}"
    assert files or name in ("qqp", "ax")


def test_data_may_be_a_file_or_a_folder(shared_data):
    folder = shared_data / "glue" / "RTE"
    for data in (folder, folder.parent, folder / "dev.tsv"):
        assert TASK["rte"].file(data, "dev") == folder / "dev.tsv"
    for data in (shared_data / "glue", shared_data / "glue" / "MNLI"):
        assert len(TASK["mnli"].read(TASK["mnli"].file(data, "diagnostic"), labelled=False)) == 1104


def test_a_missing_file_has_its_official_path(tmp_path):
    (tmp_path / "glue" / "MRPC").mkdir(parents=True)
    assert TASK["rte"].file(tmp_path / "glue", "dev") == tmp_path / "glue" / "RTE" / "dev.tsv"
    assert TASK["rte"].file(tmp_path / "dev.tsv", "dev") == tmp_path / "dev.tsv"


def test_diagnostic_set_is_found_from_within_mnlis_folder(tmp_path, monkeypatch):
    (tmp_path / "MNLI").mkdir()
    (tmp_path / "MNLI" / "train.tsv").touch()
    monkeypatch.chdir(tmp_path / "MNLI")
    assert TASK["mnli"].file(Path(), "diagnostic") == tmp_path / "diagnostic" / "diagnostic.tsv"


# The first lines of official files whose layouts are not in the shared data.
LAYOUTS = {
    ("qqp", "train"): "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    '1\t2\t3\tWhat is "it"?\tWhy?\t0\n4\t5\t6\tWho?\t\t1\n',
    ("qqp", "test"): "id\tquestion1\tquestion2\n0\tWould he?\tWould she?\n",
    (
        "mnli",
        "test_matched",
    ): "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
    "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\n0\t1\t1\tfiction\t\t\t\t\tA man.\tA woman.\n",
    ("qnli", "test"): "index\tquestion\tsentence\n0\tWhat?\tThat.\n",
    ("ax", "diagnostic-full"): "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\t"
    "Premise\tHypothesis\tLabel\n\t\tNegation\t\tArtificial\tThe cat sat.\tIt did not.\tcontradiction\n",
}


@pytest.mark.parametrize(("name", "part"), LAYOUTS)
def test_other_official_layouts_are_read(tmp_path, name, part):
    task = TASK[name]
    path = task.file(tmp_path, part)
    path.parent.mkdir()
    path.write_text(LAYOUTS[name, part])
    examples = task.read(path, labelled=part not in task.test_parts)
    fields = LAYOUTS[name, part].splitlines()[1].split("\t")
    assert examples.texts[0] in fields
    assert examples.pairs[0] in fields
    assert (examples.labels is None) == (part in task.test_parts)
    if name == "qqp" and examples.labels:
        assert examples.pairs == ["Why?", ""]
        assert examples.labels == ["0", "1"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "qnli",
            "index\tquestion\tsentence\tlabel\n0\ta\tb\tentailment\n1\ta\tb\tc",
            ", line 3: unknown label",
        ),
        ("cola", "gj04\t1\t\tA.\ngj04\t1\tB.\n", r", line 2: expected 4 fields, got 3"),
        ("sts-b", "sentence1\tsentence2\tscore\na\tb\tx\n", ", line 2: 'x' is not a number"),
        ("mrpc", "", "empty"),
    ],
)
def test_malformed_lines_are_rejected(tmp_path, name, content, message):
    path = tmp_path / "train.tsv"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        TASK[name].read(path, labelled=True)


# The second row is split by a line break, as some are in the official train.tsv.
SPLIT_ROW = (
    "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    '1\t2\t3\tWho?\tHow?\t0\n4\t5\t6\tWhy?\tWas "he\n"\tWhat?\t0\n7\t8\t9\tWhen?\tWhere?\t1\n'
)


def test_only_qqps_training_file_may_have_malformed_lines(tmp_path, capsys):
    path = tmp_path / "train.tsv"
    path.write_text(SPLIT_ROW)
    examples = TASK["qqp"].read(path, labelled=True)
    assert (examples.texts, examples.pairs) == (["Who?", "When?"], ["How?", "Where?"])
    assert examples.labels == ["0", "1"]
    assert examples.location(1) == f"{path}, line 5"
    assert ": skipped lines that do not have 6 fields: 2 (first: line 3)" in capsys.readouterr().err
    for name, labelled in (("dev.tsv", True), ("test.tsv", False)):
        (tmp_path / name).write_text(SPLIT_ROW)
        with pytest.raises(DataError, match=rf"{name}, line 3: expected 6 fields, got 5"):
            TASK["qqp"].read(tmp_path / name, labelled)
    assert [task.name for task in TASKS if task.malformed_file] == ["qqp"]


def test_labelled_reading_rejects_a_file_without_labels(shared_data):
    for name in ("cola", "rte"):
        path = TASK[name].file(shared_data / "glue", "test")
        with pytest.raises(
            SettingsError, match=r"test\.tsv: no column 'label'; the columns are index, sentence"
        ):
            TASK[name].read(path, labelled=True)


@pytest.mark.parametrize(
    "name", [name for name in TASK if name not in ("qqp", "ax")]
)  # not in the shared data
def test_scores_of_a_dev_submission_match_sklearn_and_scipy(shared_data, tmp_path, name):
    task = TASK[name]
    examples = task.read(task.file(shared_data / "glue", task.dev_parts[0]), labelled=True)
    random = np.random.default_rng(0)
    n = len(examples)
    if name == "sts-b":
        predictions = (task.gold(examples) + random.normal(0, 1, n)).round(3)
    else:
        predictions = np.where(random.random(n) < 0.7, task.gold(examples), 1)
    predicted = predictions.astype(str) if name == "sts-b" else np.array(task.labels)[predictions]
    rows = [f"{index}\t{label}" for index, label in enumerate(predicted)]
    random.shuffle(rows)
    (tmp_path / "submission.tsv").write_text("\n".join(["index\tprediction", *rows]))

    gold = examples.labels
    scorers = {
        "accuracy": lambda: sklearn.metrics.accuracy_score(gold, predicted),
        "f1": lambda: sklearn.metrics.f1_score(gold, predicted, pos_label="1"),
        "matthews_correlation": lambda: sklearn.metrics.matthews_corrcoef(gold, predicted),
        "pearson": lambda: scipy.stats.pearsonr(np.array(gold, float), predictions).statistic,
        "spearmanr": lambda: scipy.stats.spearmanr(np.array(gold, float), predictions).statistic,
    }
    scores = task.score(examples, task.read_predictions(examples, tmp_path / "submission.tsv"))
    assert scores == {metric: pytest.approx(100 * scorers[metric]()) for metric in task.metrics}


@pytest.mark.parametrize("name", ["mrpc", "qqp"])
def test_f1_is_of_label_1_in_any_order_of_labels(name):
    examples = LabelledTexts([""] * 4, [""] * 4, ["1", "1", "0", "1"])
    for labels in (["0", "1"], ["1", "0"]):
        task = TASK[name].with_labels(labels)
        predictions = np.array([labels.index(label) for label in ("1", "0", "0", "0")])
        assert task.score(examples, predictions) == {"f1": 50, "accuracy": 50}


def test_a_submission_may_lack_its_header(tmp_path):
    task, examples = TASK["rte"], LabelledTexts([""] * 2, [""] * 2, ["entailment"] * 2)
    path = tmp_path / "RTE.tsv"
    path.write_text("1\tnot_entailment\n0\tentailment\n\n")
    assert task.read_predictions(examples, path).tolist() == [0, 1]
    path.write_text("id\tprediction\n0\tentailment\n")
    with pytest.raises(SettingsError, match=r"RTE\.tsv: no column 'index'; the columns are id, prediction"):
        task.read_predictions(examples, path)


def test_written_sts_b_predictions_have_the_same_scores(tmp_path):
    task = TASK["sts-b"]
    random = np.random.default_rng(0)
    # The values differ by thousandths, so rounding makes ties.
    logits = random.normal(3, 0.002, (100, 1)).astype(np.float32)
    examples = LabelledTexts([""] * 100, [""] * 100, random.normal(3, 1, 100).tolist())
    predictions = task.decode(examples, None, logits)
    task.write_predictions(examples, predictions, tmp_path / "STS-B.tsv")
    lines = (tmp_path / "STS-B.tsv").read_text().splitlines()[1:]
    assert max(len(line.partition(".")[2]) for line in lines) == 3
    scores = task.score(examples, task.read_predictions(examples, tmp_path / "STS-B.tsv"))
    assert scores == task.score(examples, predictions)


def test_a_submission_has_all_files_and_reproducible_bytes(tmp_path):
    assert len(SUBMISSION_FILES) == 11
    files = {name: tmp_path / name for name in SUBMISSION_FILES}
    for name in SUBMISSION_FILES[:-2]:
        (tmp_path / name).write_text(f"index\tprediction\n0\t{name}\n")
    some = {name: tmp_path / name for name in SUBMISSION_FILES[:-2]}
    with pytest.raises(
        DataError,
        match=r"/submission\.zip: not written, .* predictions for RTE; a submission has all 11 files",
    ):
        write_submission(some, tmp_path / "submission.zip")
    with pytest.raises(DataError, match=r"predictions for RTE, WNLI; a submission"):
        write_submission(some, tmp_path / "submission.zip", wnli_majority=False)
    assert not (tmp_path / "submission.zip").exists()
    for name in SUBMISSION_FILES[-2:]:
        (tmp_path / name).write_text(f"index\tprediction\n0\t{name}\n")
    write_submission(files, tmp_path / "submission.zip")
    with zipfile.ZipFile(tmp_path / "submission.zip") as archive:
        assert archive.testzip() is None
        names = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm AX QNLI RTE WNLI"
        assert archive.namelist() == [f"{name}.tsv" for name in names.split()]
        assert archive.read("AX.tsv") == b"index\tprediction\n0\tAX.tsv\n"
    for name in SUBMISSION_FILES:
        (tmp_path / name).touch()  # a later modification time
    write_submission(files, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "submission.zip").read_bytes()


def test_submission_has_the_majority_class_for_wnli(tmp_path, shared_data):
    """As in the paper (Appendix B.1), unless the model's answers are asked for."""
    task = TASK["wnli"]
    training = task.read(task.file(shared_data / "glue", "train"), labelled=True)
    test = task.read(task.file(shared_data / "glue", "test"), labelled=False)
    files = {name: tmp_path / name for name in SUBMISSION_FILES}
    for file in files.values():
        file.write_text("index\tprediction\n0\t1\n")
    majority = np.full(len(test), task.gold(training).mean() > 0.5, dtype=np.int64)
    task.write_predictions(test, majority, tmp_path / "expected.tsv")
    for options, expected in (({}, "expected.tsv"), ({"wnli_majority": False}, "WNLI.tsv")):
        write_submission(files, tmp_path / "submission.zip", **options)
        with zipfile.ZipFile(tmp_path / "submission.zip") as archive:
            assert archive.read("WNLI.tsv") == (tmp_path / expected).read_bytes()


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("mrpc", {"text": "text"}, "fine-tuned on single texts, but mrpc has pairs of texts"),
        ("sst-2", {"text": "a", "pair": "b"}, "fine-tuned on pairs of texts, but sst-2 has single texts"),
        ("sst-2", {"text": "a"}, None),
        ("mrpc", {"text": "text", "pair": "pair"}, None),
        ("mrpc", {}, None),  # of another program
    ],
)
def test_a_model_of_single_texts_is_not_one_of_pairs(name, columns, message):
    model = ModelMetadata(None, "", ("1", "0"), None, "single_label_classification", input_columns=columns)
    if message is None:
        assert TASK[name].fitted_to_model(model).labels == ("1", "0")
        return
    with pytest.raises(ModelError, match=message):
        TASK[name].fitted_to_model(model)


def test_a_model_remembers_whether_the_task_has_pairs():
    columns = {task.name: task.input_columns for task in TASKS}
    assert columns["sst-2"] == {"text": "text"}
    assert columns["mrpc"] == {"text": "text", "pair": "pair"}
