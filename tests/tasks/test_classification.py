"""Text classification: inputs, decoding, scores and files of predictions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.tasks.classification import LabelledTexts, TextClassification
from bertie.tasks.error_analysis import scores_by_label
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary


class MemoryTask(TextClassification):
    """A task without files."""

    def file(self, data, part):
        return data

    def read(self, path, labelled):
        raise NotImplementedError


SINGLE = MemoryTask("single", ("bad", "good", "so so"), "accuracy", {}, metrics=("accuracy", "f1_macro"))
MULTILABEL = MemoryTask(
    "multilabel",
    ("a", 'b "B"', "c, d"),
    "f1_micro",
    {},
    problem_type="multi_label_classification",
    metrics=("f1_micro", "f1_macro", "accuracy"),
)
REGRESSION = MemoryTask(
    "regression", (), "spearmanr", {}, problem_type="regression", metrics=("spearmanr", "pearson")
)
TEXTS = ["one two", "two", "three one one"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(Vocabulary([*SPECIAL_TOKENS, "one", "two", "three"]))


def examples(labels, n=None) -> LabelledTexts:
    return LabelledTexts(["a text"] * (n or len(labels)), labels=labels)


def test_a_text_is_segment_0_and_a_pair_both_segments(tokenizer):
    pairs = ["three", "one", "two two"]
    single = SINGLE.encode(LabelledTexts(TEXTS), tokenizer, 10)
    paired = SINGLE.encode(LabelledTexts(TEXTS, pairs), tokenizer, 10)
    assert single.labels is None
    assert single.bounds.tolist() == [0, 4, 7, 12]
    assert not single.token_type_ids.any()
    first = slice(0, paired.bounds[1])
    assert tokenizer.convert_ids_to_tokens(paired.input_ids[first]) == [
        "[CLS]",
        "one",
        "two",
        "[SEP]",
        "three",
        "[SEP]",
    ]
    assert paired.token_type_ids[first].tolist() == [0, 0, 0, 0, 1, 1]
    assert np.diff(SINGLE.encode(LabelledTexts(TEXTS, pairs), tokenizer, 5).bounds).max() == 5


def test_encode_returns_labels_in_the_form_of_the_loss(tokenizer):
    single = SINGLE.encode(LabelledTexts(TEXTS, labels=["good", "bad", "so so"]), tokenizer, 10).labels
    multilabel = MULTILABEL.encode(
        LabelledTexts(TEXTS, labels=[("c, d", "a"), (), ["a"]]), tokenizer, 10
    ).labels
    regression = REGRESSION.encode(LabelledTexts(TEXTS, labels=["3.800", -1, 2.5]), tokenizer, 10).labels
    assert (single.tolist(), single.dtype) == ([1, 0, 2], np.int64)
    assert (multilabel.tolist(), multilabel.dtype) == ([[1, 0, 1], [0, 0, 0], [1, 0, 0]], np.float32)
    assert (regression.tolist(), regression.dtype) == (np.float32([3.8, -1, 2.5]).tolist(), np.float32)


def test_decode_depends_on_the_problem_type(tokenizer):
    inputs = SINGLE.encode(LabelledTexts(TEXTS), tokenizer, 10)
    logits = np.array([[0.1, 2, 1], [3, -1, 0.5], [-3, -2, -1]], dtype=np.float32)
    assert SINGLE.decode(LabelledTexts(TEXTS), inputs, logits).tolist() == [1, 0, 2]
    expected = [[True, True, True], [True, False, True], [False, False, False]]
    assert MULTILABEL.decode(LabelledTexts(TEXTS), inputs, logits).tolist() == expected
    assert not MULTILABEL.decode(LabelledTexts(TEXTS), inputs, np.zeros((3, 3), np.float32)).any()
    values = REGRESSION.decode(LabelledTexts(TEXTS), inputs, logits[:, :1])
    assert values.tolist() == logits[:, 0].tolist()


def test_scores_are_in_percent():
    gold = examples(["bad", "good", "good", "so so"])
    scores = SINGLE.score(gold, np.array([0, 1, 0, 1]))
    f1 = sklearn.metrics.f1_score([0, 1, 1, 2], [0, 1, 0, 1], average="macro")
    assert scores == {"accuracy": 50.0, "f1_macro": pytest.approx(100 * f1)}
    assert REGRESSION.score(examples([1, 2, 3]), np.array([0.5, 0.6, 0.9]))["spearmanr"] == pytest.approx(100)
    assert MULTILABEL.score(examples([("a",), ()]), np.zeros((2, 3), dtype=bool))["accuracy"] == 50


def test_scores_have_no_rounding_error():
    gold, predictions = np.zeros(20, dtype=np.int64), np.repeat([0, 1], [11, 9])
    labels = [SINGLE.labels[0]] * 20
    assert SINGLE.score(examples(labels), predictions)["accuracy"] == 55
    assert scores_by_label(SINGLE.labels, gold, predictions)[SINGLE.labels[0]].recall == 55


def test_labels_are_counted_and_described():
    training = examples(["good", "bad", "good", "good"])
    assert SINGLE.label_counts(training) == {"bad": 1, "good": 3, "so so": 0}
    assert MULTILABEL.label_counts(examples([("a", "c, d"), ("a",)])) == {"a": 2, 'b "B"': 0, "c, d": 1}
    assert REGRESSION.label_counts(examples([1.5])) == {}
    assert SINGLE.describe_labels(training) == "bad (1), good (3), so so (0)"
    hidden = replace(SINGLE, labels=("bad", "good", "good\u200b"))
    assert hidden.describe_labels(training) == r"bad (1), good (3), good\u200b (0)"
    assert REGRESSION.describe_labels(examples([1.5, -2.0])) == "numbers from -2 to 1.5"


def test_majority_baseline_predicts_the_training_majority():
    training, dev = examples(["good", "bad", "good", "good"]), examples(["bad", "bad", "bad", "good"])
    always_good = np.array([1, 1, 1, 1])
    assert SINGLE.majority_baseline(training, dev) == SINGLE.score(dev, always_good)
    assert SINGLE.majority_baseline(training, dev)["accuracy"] == 25
    training, dev = examples([("a",), ("a", "c, d"), ("a", "c, d")]), examples([("a",), ("c, d", "a")])
    assert MULTILABEL.majority_baseline(training, dev)["accuracy"] == 50
    assert REGRESSION.majority_baseline(examples([1.0, 2.0]), examples([1.5, 3.0]))["pearson"] == 0


def test_constant_answers_are_found():
    dev = examples(["bad", "good", "good"])
    assert SINGLE.constant_answer(dev, np.array([1, 1, 1])) == "good"
    assert SINGLE.constant_answer(dev, np.array([1, 0, 1])) is None
    dev = examples([("a",), ("c, d",)])
    both = np.array([[True, False, True]] * 2)
    assert MULTILABEL.constant_answer(dev, both) == "a, c, d"
    assert MULTILABEL.constant_answer(dev, np.array([[True, False, True], [True, False, False]])) is None
    dev = examples([1.0, 2.0, 3.0])
    assert REGRESSION.constant_answer(dev, np.array([2.0, 2.001, 2.0])) == "2"
    assert REGRESSION.constant_answer(dev, np.array([1.9, 2.1, 2.0])) is None
    assert REGRESSION.constant_answer(dev, np.array([2.0, 2.001, 2.002])) is None  # follow the labels


def test_confidence_is_the_probability_of_the_prediction():
    logits = np.log(np.array([[0.2, 0.5, 0.3], [0.9, 0.05, 0.05]], dtype=np.float32))
    assert SINGLE.confidence(None, None, logits) == pytest.approx([0.5, 0.9])
    odds = np.log(np.array([[0.8 / 0.2, 0.1 / 0.9]], dtype=np.float32))
    assert MULTILABEL.confidence(None, None, odds) == pytest.approx([0.8 * 0.9])
    assert REGRESSION.confidence(None, None, logits) is None


def test_gold_rejects_unknown_labels():
    with pytest.raises(DataError, match=r"^example 2: unknown label 'best'; known: bad, good, so so$"):
        SINGLE.gold(examples(["good", "best"]))
    with pytest.raises(DataError, match=r"^example 3: unknown label 'x'; known: "):
        MULTILABEL.gold(examples([("a", "c, d"), (), ("a", "x")]))
    for label in ("high", "nan", "inf", ""):
        with pytest.raises(DataError, match=rf"^example 2: '{label}' is not a number"):
            REGRESSION.gold(examples(["1", label]))


def test_labels_that_are_matched_by_their_order_are_printed(capsys):
    replace(SINGLE, labels=("0", "1"), name="sst-2").with_labels(["negative", "positive"])
    assert capsys.readouterr().err == (
        "sst-2: the model's labels negative, positive count as 0, 1, in this order\n"
    )
    SINGLE.with_labels(SINGLE.labels[::-1])
    assert capsys.readouterr().err == ""


def test_with_labels_takes_a_models_labels_and_order():
    reordered = SINGLE.with_labels(["so so", "good", "bad"])
    assert reordered.gold(examples(["bad", "so so"])).tolist() == [2, 0]
    assert SINGLE.with_labels(["LABEL_0", "LABEL_1", "LABEL_2"]).labels == SINGLE.labels
    assert REGRESSION.with_labels(["LABEL_0"]) == REGRESSION
    digits = MemoryTask("sst-2", ("0", "1"), "accuracy", {})
    assert digits.with_labels(["negative", "positive"]).labels == ("0", "1")
    for task, labels in (
        (SINGLE, ["bad", "good", "best"]),
        (SINGLE, ["LABEL_0", "LABEL_1"]),
        (digits, ["a"]),
    ):
        with pytest.raises(
            ModelError, match=r"the model's labels are .*; use a model that was fine-tuned with these labels"
        ):
            task.with_labels(labels)


predictions = st.one_of(
    st.tuples(st.just(SINGLE), st.lists(st.integers(0, 2), min_size=1).map(np.array)),
    st.tuples(
        st.just(MULTILABEL),
        st.lists(st.tuples(*[st.booleans()] * 3), min_size=1).map(lambda rows: np.array(rows, dtype=bool)),
    ),
    st.tuples(st.just(REGRESSION), st.lists(st.floats(-1e9, 1e9), min_size=1).map(np.array)),
)


@given(predictions, st.randoms())
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_written_predictions_are_read_back_in_any_order(tmp_path, predicted, shuffler):
    task, values = predicted
    path = tmp_path / "predictions.tsv"
    unlabelled = examples(None, n=len(values))
    task.write_predictions(unlabelled, values, path)
    header, *lines = path.read_text().splitlines()
    assert header == "index\tprediction"
    shuffler.shuffle(lines)
    path.write_text("\n".join([header, *lines]))
    assert (task.read_predictions(unlabelled, path) == values).all()


def test_predictions_are_written_as_index_and_label(tmp_path):
    path = tmp_path / "predictions.tsv"
    SINGLE.write_predictions(examples(None, n=2), np.array([2, 0]), path)
    assert path.read_text() == "index\tprediction\n0\tso so\n1\tbad\n"
    MULTILABEL.write_predictions(examples(None, n=2), np.array([[1, 1, 0], [0, 0, 0]], dtype=bool), path)
    assert path.read_text() == 'index\tprediction\n0\t["a", "b \\"B\\""]\n1\t[]\n'
    REGRESSION.write_predictions(examples(None, n=1), np.array([1 / 3]), path)
    assert path.read_text() == "index\tprediction\n0\t0.3333333333333333\n"


@pytest.mark.parametrize(
    ("task", "lines", "message"),
    [
        (SINGLE, "0\tbad\n2\tgood", r"p\.tsv: no prediction for index 1;"),
        (SINGLE, "0\tbad\n1\tgood", r"p\.tsv: no prediction for index 2;"),
        (SINGLE, "0\tbad\n1\tbad\n0\tgood\n2\tgood", r"p\.tsv, line 4: a second prediction for index 0"),
        (SINGLE, "0\tbad\n3\tbad", r"p\.tsv, line 3: unknown index '3'; the indices are 0 to 2"),
        (SINGLE, "-1\tbad", r"p\.tsv, line 2: unknown index '-1'"),
        (SINGLE, "x\tbad", r"p\.tsv, line 2: unknown index 'x'"),
        (SINGLE, "9" * 5000 + "\tbad", r"p\.tsv, line 2: unknown index '9+'"),  # too long for `int`
        (SINGLE, "2\tbad\n1\tbest\n0\tbad", r"p\.tsv, line 3: unknown label 'best'"),
        (SINGLE, "0\tbad\tgood", r"p\.tsv, line 2: expected 2 fields, got 3"),
        (REGRESSION, "0\t1\n1\tnan\n2\t2", r"p\.tsv, line 3: 'nan' is not a number"),
        (MULTILABEL, '2\t[]\n0\t[]\n1\t["a", "x"]', r"p\.tsv, line 4: unknown label 'x'"),
        (MULTILABEL, "0\t[]\n1\ta\n2\t[]", r"p\.tsv, line 3: 'a' is not a JSON list of labels"),
        (MULTILABEL, "0\t[]\n1\t[1]\n2\t[]", r"p\.tsv, line 3: '\[1\]' is not a JSON list of labels"),
    ],
)
def test_read_predictions_reports_the_wrong_line(tmp_path, task, lines, message):
    path = tmp_path / "p.tsv"
    path.write_text("index\tprediction\n" + lines + "\n")
    with pytest.raises(DataError, match=message):
        task.read_predictions(examples(None, n=3), path)


def test_read_predictions_rejects_another_header(tmp_path: Path):
    path = tmp_path / "p.tsv"
    path.write_text("id\tprediction\n0\tbad\n")
    with pytest.raises(SettingsError, match=r"p\.tsv: no column 'index'"):
        SINGLE.read_predictions(examples(None, n=1), path)
