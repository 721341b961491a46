"""What a notebook does with the results of the API, and with loaded models."""

from pathlib import Path

import pandas as pd
import pytest

import bertie
from bertie.inference.predictor import Predictor
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

ROWS = [{"text": f"the film was {label}", "label": label} for label in ["good", "bad"] * 8]


@pytest.fixture(scope="module")
def classifier(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a classifier with the labels bad and good."""
    out = tmp_path_factory.mktemp("runs") / "run"
    return bertie.finetune(model, train=ROWS, out=out, epochs=1, device="cpu").model_directory


@pytest.fixture
def loaded(classifier: Path) -> Predictor:
    return bertie.load(classifier, device="cpu")


def test_result_for_one_text_is_a_data_frame(loaded):
    labels = loaded.classify("the film was good")
    table = pd.DataFrame(labels)
    assert table["label"].tolist() == [label.label for label in labels]
    assert table["score"].tolist() == [label.score for label in labels]


def test_completion_shows_only_public_names():
    assert {name for name in dir(bertie) if not name.startswith("__")} == set(bertie.__all__)


@pytest.mark.parametrize(("lowercase", "casing"), [(True, "uncased"), (False, "cased")])
def test_tokenizer_and_vocabulary_have_short_reprs(lowercase, casing):
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *map(str, range(2000))])
    assert repr(vocabulary) == "Vocabulary(2,005 tokens)"
    assert repr(bertie.Tokenizer(vocabulary, lowercase)) == f"Tokenizer(2,005 tokens, {casing})"


def test_predictions_are_indices_of_the_labels_of_the_model(model):
    run = bertie.finetune(model, train=ROWS, dev=ROWS, out="run", epochs=1, device="cpu")
    loaded = run.load("cpu")
    best = [labels[0].label for labels in loaded.classify(row["text"] for row in ROWS)]
    assert [loaded.labels[index] for index in run.predictions["dev"]] == best
    predictions = bertie.evaluate(run.model_directory, ROWS, device="cpu").predictions
    assert [loaded.labels[index] for index in predictions["dev"]] == best
