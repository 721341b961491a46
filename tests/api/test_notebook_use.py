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


def test_advice_about_inputs_names_the_arguments_in_python(corpus, tmp_path):
    text = tmp_path / "text.csv"
    text.write_text("words,number\nThe film was good.,1\n")
    with pytest.raises(bertie.SettingsError, match=r"choose one with --column NAME \(column='NAME'\)$"):
        bertie.learn_vocabulary(text, size=50, workers=1)
    tokenizer = corpus / "tokenizer"
    with pytest.raises(bertie.DataError, match=r"replace it with --force \(force=True\)$"):
        bertie.prepare(text, tokenizer=tokenizer, out=corpus, column="words", workers=1)
    text.write_bytes(b"words\n\xff\n")
    with pytest.raises(
        bertie.DataError, match=r"or skip such inputs with --on-error skip \(on_error='skip'\)$"
    ):
        bertie.learn_vocabulary(text, size=50, column="words", workers=1)


def test_report_of_the_casing_names_the_argument_in_python(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("The film was good.")
    bertie.learn_vocabulary(tmp_path / "text.txt", size=50, workers=1)
    assert "; --cased or --uncased (cased=True, cased=False) overrides this\n" in capsys.readouterr().err


def test_longest_sequence_may_be_set_up_to_the_positions_of_the_model(loaded):
    loaded.max_seq_length = 5
    assert len(loaded.attention("good film " * 9).tokens) == 5
    for length in (129, 0, "128"):
        with pytest.raises(bertie.SettingsError, match=r"expected an integer of at least 3 and at most 128$"):
            loaded.max_seq_length = length
    assert loaded.max_seq_length == 5


def test_swapped_arguments_of_evaluate_get_one_line(classifier):
    with pytest.raises(bertie.DataError, match=r"^model: expected a path or a list of paths, got DataFrame$"):
        bertie.evaluate(pd.DataFrame(ROWS), classifier)


@pytest.mark.parametrize("values", [(0, 1), (False, True)])
def test_labels_of_a_model_are_strings(model, values):
    rows = [{**row, "label": values[row["label"] == "good"]} for row in ROWS]
    run = bertie.finetune(model, train=rows, out="run", epochs=1, device="cpu")
    assert run.load("cpu").labels == tuple(map(str, values))


def test_truncated_texts_of_a_test_part_have_its_name(model, tmp_path, capsys):
    labels = ["entailment", "not_entailment"] * 4
    rows = [f"{i}\tThe film was good .\tIt was bad .\t{label}" for i, label in enumerate(labels)]
    for part in ("train", "dev"):
        table = "\n".join(["index\tsentence1\tsentence2\tlabel", *rows])
        (tmp_path / f"{part}.tsv").write_text(table)
    (tmp_path / "test.tsv").write_text("index\tsentence1\tsentence2\n0\tthe film\tit was good and bad")
    bertie.finetune(
        model, task="rte", data=tmp_path, out="run", epochs=1, max_seq_length=8, batch_size=8, device="cpu"
    )
    assert "test: texts longer than 8 tokens, whose ends are ignored: 1 of 1\n" in capsys.readouterr().err


def test_predictions_are_indices_of_the_labels_of_the_model(model):
    run = bertie.finetune(model, train=ROWS, dev=ROWS, out="run", epochs=1, device="cpu")
    loaded = run.load("cpu")
    best = [labels[0].label for labels in loaded.classify(row["text"] for row in ROWS)]
    assert [loaded.labels[index] for index in run.predictions["dev"]] == best
    predictions = bertie.evaluate(run.model_directory, ROWS, device="cpu").predictions
    assert [loaded.labels[index] for index in predictions["dev"]] == best
