"""What the model sees of labelled texts, what its logits say, and predictions there and back."""

from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.tasks.classification import LabelledTexts, TextClassification
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary


class Plain(TextClassification):
    """The family without files."""

    def file(self, data, part):
        return data

    def read(self, path, labelled):
        raise NotImplementedError


ONE = Plain("one", ("bad", "good", "so so"), "accuracy", {}, metrics=("accuracy", "f1_macro"))
SEVERAL = Plain(
    "several",
    ("a", 'b "B"', "c, d"),
    "f1_micro",
    {},
    problem_type="multi_label_classification",
    metrics=("f1_micro", "f1_macro", "accuracy"),
)
NUMBER = Plain("number", (), "spearmanr", {}, problem_type="regression", metrics=("spearmanr", "pearson"))
TEXTS = ["one two", "two", "three one one"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(Vocabulary([*SPECIAL_TOKENS, "one", "two", "three"]))


def examples(labels, n=None) -> LabelledTexts:
    return LabelledTexts(["a text"] * (n or len(labels)), labels=labels)


def test_one_text_is_segment_0_and_a_pair_has_both(tokenizer):
    pairs = ["three", "one", "two two"]
    alone = ONE.encode(LabelledTexts(TEXTS), tokenizer, 10)
    both = ONE.encode(LabelledTexts(TEXTS, pairs), tokenizer, 10)
    assert alone.labels is None
    assert alone.bounds.tolist() == [0, 4, 7, 12]
    assert not alone.token_type_ids.any()
    first = slice(0, both.bounds[1])
    assert tokenizer.tokens(both.input_ids[first]) == ["[CLS]", "one", "two", "[SEP]", "three", "[SEP]"]
    assert both.token_type_ids[first].tolist() == [0, 0, 0, 0, 1, 1]
    assert np.diff(ONE.encode(LabelledTexts(TEXTS, pairs), tokenizer, 5).bounds).max() == 5


def test_labels_as_a_model_learns_them(tokenizer):
    one = ONE.encode(LabelledTexts(TEXTS, labels=["good", "bad", "so so"]), tokenizer, 10).labels
    several = SEVERAL.encode(LabelledTexts(TEXTS, labels=[("c, d", "a"), (), ["a"]]), tokenizer, 10).labels
    number = NUMBER.encode(LabelledTexts(TEXTS, labels=["3.800", -1, 2.5]), tokenizer, 10).labels
    assert (one.tolist(), one.dtype) == ([1, 0, 2], np.int64)
    assert (several.tolist(), several.dtype) == ([[1, 0, 1], [0, 0, 0], [1, 0, 0]], np.float32)
    assert (number.tolist(), number.dtype) == (np.float32([3.8, -1, 2.5]).tolist(), np.float32)


def test_what_logits_say(tokenizer):
    inputs = ONE.encode(LabelledTexts(TEXTS), tokenizer, 10)
    logits = np.array([[0.1, 2, 1], [3, -1, 0.5], [-3, -2, -1]], dtype=np.float32)
    assert ONE.decode(LabelledTexts(TEXTS), inputs, logits).tolist() == [1, 0, 2]
    expected = [[True, True, True], [True, False, True], [False, False, False]]
    assert SEVERAL.decode(LabelledTexts(TEXTS), inputs, logits).tolist() == expected
    numbers = NUMBER.decode(LabelledTexts(TEXTS), inputs, logits[:, :1])
    assert numbers.tolist() == logits[:, 0].tolist()


def test_scores_are_in_percent():
    gold = examples(["bad", "good", "good", "so so"])
    scores = ONE.score(gold, np.array([0, 1, 0, 1]))
    f1 = sklearn.metrics.f1_score([0, 1, 1, 2], [0, 1, 0, 1], average="macro")
    assert scores == {"accuracy": 50.0, "f1_macro": pytest.approx(100 * f1)}
    assert NUMBER.score(examples([1, 2, 3]), np.array([0.5, 0.6, 0.9]))["spearmanr"] == pytest.approx(100)
    assert SEVERAL.score(examples([("a",), ()]), np.zeros((2, 3), dtype=bool))["accuracy"] == 50


def test_label_counts_and_the_majority():
    training = examples(["good", "bad", "good", "good"])
    assert ONE.label_counts(training) == {"bad": 1, "good": 3, "so so": 0}
    assert SEVERAL.label_counts(examples([("a", "c, d"), ("a",)])) == {"a": 2, 'b "B"': 0, "c, d": 1}
    assert NUMBER.label_counts(examples([1.5])) == {}
    assert ONE.majority(training, examples(None, n=2)).tolist() == [1, 1]


def test_an_unknown_label_is_named():
    with pytest.raises(DataError, match=r"^example 2: unknown label 'best'; known: bad, good, so so$"):
        ONE.gold(examples(["good", "best"]))
    with pytest.raises(DataError, match=r"^example 3: unknown label 'x'; known: "):
        SEVERAL.gold(examples([("a", "c, d"), (), ("a", "x")]))
    for label in ("high", "nan", "inf", ""):
        with pytest.raises(DataError, match=rf"^example 2: '{label}' is not a number"):
            NUMBER.gold(examples(["1", label]))


def test_a_models_labels():
    reordered = ONE.with_labels(["so so", "good", "bad"])
    assert reordered.gold(examples(["bad", "so so"])).tolist() == [2, 0]
    assert ONE.with_labels(["LABEL_0", "LABEL_1", "LABEL_2"]).labels == ONE.labels
    assert NUMBER.with_labels(["LABEL_0"]) == NUMBER
    digits = Plain("sst-2", ("0", "1"), "accuracy", {})
    assert digits.with_labels(["negative", "positive"]).labels == ("0", "1")
    for task, labels in ((ONE, ["bad", "good", "best"]), (ONE, ["LABEL_0", "LABEL_1"]), (digits, ["a"])):
        with pytest.raises(ModelError, match=r"the model's labels are .*; use a model fine-tuned on"):
            task.with_labels(labels)


predictions = st.one_of(
    st.tuples(st.just(ONE), st.lists(st.integers(0, 2), min_size=1).map(np.array)),
    st.tuples(
        st.just(SEVERAL),
        st.lists(st.tuples(*[st.booleans()] * 3), min_size=1).map(lambda marks: np.array(marks, dtype=bool)),
    ),
    st.tuples(st.just(NUMBER), st.lists(st.floats(-1e9, 1e9), min_size=1).map(np.array)),
)


@given(predictions, st.randoms())
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_predictions_there_and_back_in_any_order(tmp_path, answers, shuffler):
    task, values = answers
    path = tmp_path / "predictions.tsv"
    asked = examples(None, n=len(values))
    task.write_predictions(asked, values, path)
    header, *lines = path.read_text().splitlines()
    assert header == "index\tprediction"
    shuffler.shuffle(lines)
    path.write_text("\n".join([header, *lines]))
    assert (task.read_predictions(asked, path) == values).all()


def test_the_form_of_predictions(tmp_path):
    path = tmp_path / "predictions.tsv"
    ONE.write_predictions(examples(None, n=2), np.array([2, 0]), path)
    assert path.read_text() == "index\tprediction\n0\tso so\n1\tbad\n"
    SEVERAL.write_predictions(examples(None, n=2), np.array([[1, 1, 0], [0, 0, 0]], dtype=bool), path)
    assert path.read_text() == 'index\tprediction\n0\t["a", "b \\"B\\""]\n1\t[]\n'
    NUMBER.write_predictions(examples(None, n=1), np.array([1 / 3]), path)
    assert path.read_text() == "index\tprediction\n0\t0.3333333333333333\n"


@pytest.mark.parametrize(
    ("task", "lines", "message"),
    [
        (ONE, "0\tbad\n2\tgood", r"p\.tsv: no prediction for index 1;"),
        (ONE, "0\tbad\n1\tgood", r"p\.tsv: no prediction for index 2;"),
        (ONE, "0\tbad\n1\tbad\n0\tgood\n2\tgood", r"p\.tsv: line 4: a second prediction for index 0"),
        (ONE, "0\tbad\n3\tbad", r"p\.tsv: line 3: unknown index '3'; they are 0 to 2"),
        (ONE, "-1\tbad", r"p\.tsv: line 2: unknown index '-1'"),
        (ONE, "x\tbad", r"p\.tsv: line 2: unknown index 'x'"),
        (ONE, "2\tbad\n1\tbest\n0\tbad", r"p\.tsv: line 3: unknown label 'best'"),
        (ONE, "0\tbad\tgood", r"p\.tsv: line 2: 3 fields"),
        (NUMBER, "0\t1\n1\tnan\n2\t2", r"p\.tsv: line 3: 'nan' is not a number"),
        (SEVERAL, '2\t[]\n0\t[]\n1\t["a", "x"]', r"p\.tsv: line 4: unknown label 'x'"),
        (SEVERAL, "0\t[]\n1\ta\n2\t[]", r"p\.tsv: line 3: 'a' is not a JSON list of labels"),
        (SEVERAL, "0\t[]\n1\t[1]\n2\t[]", r"p\.tsv: line 3: '\[1\]' is not a JSON list of labels"),
    ],
)
def test_wrong_predictions_are_named(tmp_path, task, lines, message):
    path = tmp_path / "p.tsv"
    path.write_text("index\tprediction\n" + lines + "\n")
    with pytest.raises(DataError, match=message):
        task.read_predictions(examples(None, n=3), path)


def test_predictions_need_their_header(tmp_path: Path):
    path = tmp_path / "p.tsv"
    path.write_text("id\tprediction\n0\tbad\n")
    with pytest.raises(SettingsError, match=r"p\.tsv: no column 'index'"):
        ONE.read_predictions(examples(None, n=1), path)
