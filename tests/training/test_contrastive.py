"""Contrastive training from few labels: its pairs, its logistic regression, and the model it writes."""

import os
import signal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from tests.training.letters import LABELS, TASK, make_initial_model, make_texts
from tests.training.runs import assert_same_weights, read_rows
from transformers import AutoModelForSequenceClassification

import bertie
from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.base.files import read_json, write_json
from bertie.base.settings import resolve
from bertie.model.batch import pack
from bertie.model.formats.conversion import convert
from bertie.model.formats.directory import read_metadata
from bertie.model.heads import ContrastiveModel
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.custom.classification import CustomClassification
from bertie.tasks.evaluation import load_for_task
from bertie.training.contrastive import (
    ContrastiveBatches,
    check_contrastive,
    draw_pair,
    fit_logistic_regression,
)
from bertie.training.distributed import Ranks
from bertie.training.finetuning import finetune
from bertie.training.finetuning_settings import FinetuningSettings, step_bounds
from bertie.training.loop import Batch
from bertie.training.signals import Stopped


def make_settings(**changes: object) -> FinetuningSettings:
    base = {"contrastive_pairs": 10, "epochs": 1, "batch_size": 16, "max_seq_length": 16, "device": "cpu"}
    return resolve(FinetuningSettings, base, {"optimizer": {"learning_rate": 3e-3}}, changes)


@pytest.fixture(scope="module")
def initial_model(tmp_path_factory):
    return make_initial_model(tmp_path_factory.mktemp("model") / "initial")


@pytest.fixture(scope="module")
def run(initial_model, tmp_path_factory):
    """A run on 24 texts that was not disturbed, and its evaluation."""
    output = tmp_path_factory.mktemp("runs") / "run"
    dev = {"dev": make_texts(1, 100)}
    return output, finetune(TASK, initial_model, make_texts(0, 24), dev, make_settings(), output, silent=True)


classes = st.lists(st.integers(0, 3), max_size=20).map(
    lambda extra: np.array([0, 0, 1, 1, *(c for c in extra if c < 2 or extra.count(c) > 1)])
)


@given(classes, st.integers(0, 2**32), st.integers(0, 10**6))
def test_pairs_alternate_between_the_same_class_and_others(labels, seed, start):
    for index in range(start, start + 6):
        first, second, is_same = draw_pair(labels, index, seed)
        assert first != second
        assert is_same == (labels[first] == labels[second]) == (index % 2 == 0)
        assert draw_pair(labels, index, seed) == (first, second, is_same)


def test_seed_changes_the_pairs_and_every_text_is_drawn():
    labels = np.repeat([0, 1, 2], 8)
    pairs = [[draw_pair(labels, index, seed)[:2] for index in range(400)] for seed in (0, 1)]
    assert pairs[0] != pairs[1]
    assert {text for pair in pairs[0] for text in pair} == set(range(24))


def test_an_epoch_reads_as_many_pairs_as_the_setting_says(initial_model):
    settings, examples = make_settings(contrastive_pairs=3, max_training_examples=20), make_texts(0, 24)
    inputs = TASK.encode(examples, initial_model.tokenizer, 16)
    assert step_bounds(inputs, settings).tolist() == [0, 16, 32, 48, 60]
    batches = ContrastiveBatches(inputs, settings, 0)
    steps = [next(batches) for _ in range(8)]
    assert [len(_labels(batch)) for batch in steps] == [16, 16, 16, 12] * 2
    assert not torch.equal(_labels(steps[0]), _labels(steps[4]))  # other pairs in the second epoch
    resumed = ContrastiveBatches(inputs, settings, 5)
    assert torch.equal(_labels(next(resumed)), _labels(steps[5]))
    gold = dict(zip(_texts(inputs), TASK.gold(examples), strict=True))
    for batch in steps:
        texts = _texts(batch.micro_batches[0])
        for first, second, is_same in _labels(batch).tolist():
            assert first != second
            assert (gold[texts[first]] == gold[texts[second]]) == is_same


def _labels(batch: Batch) -> torch.Tensor:
    (micro_batch,) = batch.micro_batches
    assert micro_batch.labels is not None
    return micro_batch.labels


def _texts(sequences) -> list[tuple[int, ...]]:
    bounds = sequences.cu_seqlens if hasattr(sequences, "cu_seqlens") else sequences.bounds
    return [tuple(sequences.input_ids[a:b].tolist()) for a, b in pairwise(bounds.tolist())]


def test_loss_is_the_squared_error_of_the_cosines(initial_model):
    torch.manual_seed(0)
    model = ContrastiveModel(initial_model.config, 3).eval()
    ids, bounds = np.arange(5, 17, dtype=np.int32), np.array([0, 3, 7, 12])
    labels = np.array([[0, 1, 1], [2, 0, 0]])
    batch = pack(ids, np.zeros_like(ids), bounds, labels=labels)
    hidden = model.bert.encode(batch)
    means = [hidden[a:b].mean(0) for a, b in pairwise(bounds)]
    cosine = torch.nn.functional.cosine_similarity
    expected = (cosine(means[0], means[1], 0) - 1) ** 2 + cosine(means[2], means[0], 0) ** 2
    loss = model.compute_losses(batch)["contrastive"]
    torch.testing.assert_close(loss.loss_sum, expected)
    assert loss.num_targets == model.count_targets(batch)["contrastive"] == 2


@pytest.mark.parametrize("num_labels", [2, 3])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_logistic_regression_equals_that_of_scikit_learn(num_labels, is_weighted):
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(num_labels), [4, 9, 6][:num_labels])
    vectors = random.normal(size=(len(labels), 12)) + 0.3 * np.eye(num_labels, 12)[labels]
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    weights = [1.0, 0.5, 3.0][:num_labels]
    chosen = torch.tensor(weights) if is_weighted else None
    weight, bias = fit_logistic_regression(vectors, labels, num_labels, chosen)
    class_weight = dict(enumerate(weights)) if is_weighted else None
    peer = LogisticRegression(class_weight=class_weight, max_iter=1000, tol=1e-8)
    expected = peer.fit(vectors.astype(np.float64), labels).predict_proba(vectors)
    probabilities = (torch.from_numpy(vectors).double() @ weight.T + bias).softmax(1)
    np.testing.assert_allclose(probabilities.numpy(), expected, atol=1e-5)


def test_trained_model_opens_like_any_classifier(run):
    output, result = run
    assert result.scores["dev"]["accuracy"] > 80
    metadata = read_metadata(output / "model")
    assert (metadata.classifier_pooling, metadata.labels) == ("mean", LABELS)
    dev = make_texts(1, 100)
    model = bertie.load(output / "model")
    answers = [labels[0].label for labels in model.classify(dev.texts)]
    assert answers == [LABELS[index] for index in result.predictions["dev"]]
    loaded = load_for_task(TASK, output / "model")
    assert loaded.max_seq_length == 16
    assert (loaded.predict(dev) == result.predictions["dev"]).all()
    card = (output / "model" / "README.md").read_text()
    assert "library_name: bertie" in card
    assert "- contrastive training: 240 pairs of 24 texts, then a logistic regression" in card


def test_classifier_is_a_logistic_regression_on_unit_means(run, initial_model):
    output, _ = run
    model, examples = bertie.load(output / "model"), make_texts(0, 24)
    vectors = model.embed(examples.texts, pooling="mean", normalize=True)
    peer = LogisticRegression(max_iter=1000, tol=1e-8).fit(vectors, TASK.gold(examples))
    dev = make_texts(1, 100).texts
    expected = peer.predict_proba(model.embed(dev, pooling="mean", normalize=True))
    for labels, probabilities in zip(model.classify(dev), expected, strict=True):
        by_label = {label.label: label.score for label in labels}
        np.testing.assert_allclose([by_label[label] for label in LABELS], probabilities, atol=1e-3)


def test_transformers_rejects_the_model(run):
    with pytest.raises(ValueError, match="model type `bertie`"):
        AutoModelForSequenceClassification.from_pretrained(run[0] / "model")


def test_google_checkpoint_of_the_model_is_refused(run, tmp_path):
    with pytest.raises(ModelError, match=r"read \[CLS\], not the mean of the tokens"):
        convert(run[0] / "model", tmp_path / "converted", "tensorflow")


@pytest.mark.usefixtures("unverified")
def test_model_type_of_other_libraries_is_rejected(run, tmp_path):
    for file in (run[0] / "model").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    values = read_json(tmp_path / "config.json")
    write_json(tmp_path / "config.json", {**values, "model_type": "bert"})
    with pytest.raises(ModelError, match=r"config.json: model_type is 'bert', but the other keys describe"):
        bertie.load(tmp_path)


def test_stopped_run_resumes_bit_for_bit(run, initial_model, tmp_path, monkeypatch):
    output, expected = run
    arguments = (TASK, initial_model, make_texts(0, 24), {"dev": make_texts(1, 100)}, make_settings())
    draw, drawn = ContrastiveBatches.__next__, []

    def stop_at_the_sixth(batches: ContrastiveBatches) -> Batch:
        drawn.append(1)
        if len(drawn) == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return draw(batches)

    monkeypatch.setattr(ContrastiveBatches, "__next__", stop_at_the_sixth)
    with pytest.raises(Stopped):
        finetune(*arguments, tmp_path / "run", silent=True)
    assert not (tmp_path / "run" / "model").exists()
    resumed = finetune(*arguments, tmp_path / "run", resume=True, silent=True)
    assert resumed.scores == expected.scores
    assert_same_weights(output, tmp_path / "run")
    assert read_rows(output)[-1] == read_rows(tmp_path / "run")[-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"long_texts": "windows"}, "it reads one sequence of each text; leave out long_texts=windows"),
        ({"bilstm": True}, "the vectors come from the encoder; leave out the BiLSTM"),
    ],
)
def test_settings_that_do_not_fit_are_rejected(initial_model, tmp_path, changes, message):
    settings = make_settings(**changes)
    with pytest.raises(SettingsError, match=f"contrastive_pairs: {message}"):
        finetune(TASK, initial_model, make_texts(0, 24), {}, settings, tmp_path, silent=True)


def test_several_processes_are_rejected(initial_model):
    inputs = TASK.encode(make_texts(0, 24), initial_model.tokenizer, 16)
    check_contrastive(TASK, inputs, make_settings(), Ranks())
    with pytest.raises(SettingsError, match="contrastive_pairs: it runs in one process; start one"):
        check_contrastive(TASK, inputs, make_settings(), Ranks(0, 2))


ONE_EACH = LabelledTexts(["a1", "a2", "b1"], labels=["a", "a", "b"])
ALL_SAME = LabelledTexts(["a1", "a2"], labels=["a", "a"])
PAIRS = LabelledTexts(["a1", "a2"] * 2, ["b1", "b2"] * 2, ["a", "b"] * 2)
SEVERAL = LabelledTexts(["a1", "a2"], labels=[["a"], ["a", "b"]])


@pytest.mark.parametrize(
    ("kind", "examples", "error", "message"),
    [
        ("single_label", ONE_EACH, DataError, "the class 'b' has one training text"),
        ("single_label", ALL_SAME, DataError, "all training texts have the same class"),
        ("single_label", PAIRS, SettingsError, "it compares single texts, not pairs"),
        (
            "multi_label",
            SEVERAL,
            SettingsError,
            "multi-label classification does not give each text",
        ),
    ],
)
def test_data_that_do_not_fit_are_rejected(initial_model, tmp_path, kind, examples, error, message):
    task = CustomClassification("letters", LABELS).with_problem_type(f"{kind}_classification")
    with pytest.raises(error, match=f"contrastive_pairs: {message}"):
        finetune(task, initial_model, examples, {}, make_settings(), tmp_path / "run", silent=True)
    assert not (tmp_path / "run" / "settings.toml").exists()


def test_defaults_are_those_of_setfit(initial_model, tmp_path):
    rows = [{"text": f"{label}{n}", "label": label} for label in "ab" for n in range(3)]
    options = {"train": rows, "contrastive_pairs": 4, "max_seq_length": 8, "device": "cpu"}
    run = bertie.finetune(initial_model.weights, out=tmp_path / "run", **options)
    text = (run.path / "settings.toml").read_text()
    for line in ("batch_size = 16", "epochs = 1", "learning_rate = 2e-05", "contrastive_pairs = 4"):
        assert line in text.splitlines()
    assert "24 pairs of 6 texts, then a logistic regression" in (run.path / "report.html").read_text()
    other = bertie.finetune(initial_model.weights, out=tmp_path / "other", **options, epochs=2, batch_size=8)
    assert "24 pairs of 6 texts in each of 2 epochs" in (other.path / "report.html").read_text()
    assert "batch_size = 8" in (other.path / "settings.toml").read_text()


def test_note_on_long_texts_does_not_suggest_windows(initial_model, tmp_path, capsys):
    rows = [{"text": f"{label}1 " * 20, "label": label} for label in "ab" for _ in range(2)]
    options = {"contrastive_pairs": 1, "max_seq_length": 8, "device": "cpu"}
    run = bertie.finetune(initial_model.weights, train=rows, out=tmp_path / "run", **options)
    note = "texts longer than 8 tokens, whose ends are ignored: 4 of 4\n"
    assert f"train: {note}" in capsys.readouterr().err
    bertie.evaluate(run.model_directory, data=rows, device="cpu")
    assert f"dev: {note}" in capsys.readouterr().err


def test_search_keeps_the_best_trial_and_reports_its_pairs(initial_model, tmp_path):
    rows = [{"text": f"{label}{n}", "label": label} for label in "ab" for n in range(3)]
    grid = {"batch_sizes": [16], "learning_rates": [3e-3, 1e-6], "epochs": [2]}
    changes = {"contrastive_pairs": 4, "max_seq_length": 8, "device": "cpu"}
    result = bertie.search(
        initial_model.weights, train=rows, dev=rows, out=tmp_path, settings={**grid, "finetuning": changes}
    )
    assert len(result.trials) == 2
    assert (
        "24 pairs of 6 texts in each of 2 epochs, then a logistic" in (tmp_path / "report.html").read_text()
    )
    assert read_metadata(tmp_path / "model").classifier_pooling == "mean"
    scores = bertie.evaluate(tmp_path / "model", data=rows, device="cpu").scores["dev"]
    assert scores[result.metric] == max(result.chosen.scores)


@pytest.mark.skipif("BERTIE_DATA" not in os.environ, reason="needs BERTIE_DATA")
def test_eight_labels_a_class_of_sst_2(initial_model, tmp_path):
    """The scores of the run are those of its model directory."""
    file = Path(os.environ["BERTIE_DATA"]) / "glue" / "SST-2" / "dev.tsv"
    lines = (line.rsplit("\t", 1) for line in file.read_text(encoding="utf-8").splitlines()[1:200])
    rows = [{"text": text, "label": label} for text, label in lines]
    train = [row for label in "01" for row in [row for row in rows if row["label"] == label][:8]]
    options = {"contrastive_pairs": 4, "max_seq_length": 32, "device": "cpu"}
    run = bertie.finetune(initial_model.weights, train=train, dev=rows[-50:], out=tmp_path / "run", **options)
    assert bertie.evaluate(run.model_directory, data=rows[-50:], device="cpu").scores == run.scores
