"""Fine-tuning learns, keeps the right epoch, and is a function of its seed."""

import json
import re
import shutil
import signal
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.training.letters import LABELS, TASK, WORDS, make_texts
from tests.training.runs import assert_same_weights, read_rows, read_weights, without_checksum

import bertie
from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.base.files import write_json
from bertie.base.settings import resolve
from bertie.model.formats.directory import read_metadata
from bertie.model.heads import ClassificationModel, EmbeddingModel
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.conll import TaggedSentences
from bertie.tasks.custom.classification import CustomClassification
from bertie.tasks.evaluation import load_for_task
from bertie.tasks.metrics import accuracy
from bertie.tasks.ner import NER
from bertie.tasks.squad.questions import Questions
from bertie.tasks.squad.task import SQUAD_TASKS
from bertie.tasks.swag import SWAG, Choices
from bertie.tasks.task import Inputs
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.training.checkpoints import RunDirectory
from bertie.training.distributed import Ranks
from bertie.training.finetuning import finetune, hash_weights
from bertie.training.finetuning_batches import FinetuningBatches
from bertie.training.finetuning_settings import FinetuningSettings, loop_schedule, training_indices
from bertie.training.signals import Stopped


def make_settings(**changes: object) -> FinetuningSettings:
    base = {"epochs": 8, "max_seq_length": 32, "optimizer": {"learning_rate": 3e-3}}
    return resolve(FinetuningSettings, base, changes)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_saved_model_repeats_its_dev_predictions(initial_model, tmp_path, precision):
    """Evaluation and inference are in float32, also after training in bfloat16."""
    dev, settings = make_texts(1, 100), make_settings(precision=precision)
    result = finetune(TASK, initial_model, make_texts(0, 200), {"dev": dev}, settings, tmp_path / "run")
    assert result.scores["dev"]["accuracy"] > 95
    predicted = result.predictions["dev"]
    assert accuracy(TASK.gold(dev), predicted) * 100 == result.scores["dev"]["accuracy"]
    answers = bertie.load(tmp_path / "run" / "model").classify(dev.texts)
    assert [labels[0].label for labels in answers] == [LABELS[index] for index in predicted]
    assert not (tmp_path / "run" / "checkpoints").exists()
    loaded = load_for_task(TASK, tmp_path / "run" / "model")
    assert loaded.max_seq_length == settings.max_seq_length


@pytest.mark.parametrize("bilstm", [False, True])
def test_left_to_right_model_learns_and_stays_causal(initial_model, tmp_path, bilstm):
    """The saved model is still left-to-right, and has its BiLSTM again after loading."""
    config = initial_model.config.model_copy(update={"is_decoder": True})
    dev, settings = make_texts(1, 100), make_settings(bilstm=bilstm)
    result = finetune(
        TASK,
        initial_model._replace(config=config),
        make_texts(0, 200),
        {"dev": dev},
        settings,
        tmp_path / "run",
    )
    assert result.scores["dev"]["accuracy"] > 95
    metadata = read_metadata(tmp_path / "run" / "model")
    assert metadata.config.is_decoder
    assert metadata.bilstm == bilstm
    model = bertie.load(tmp_path / "run" / "model")
    answers = [labels[0].label for labels in model.classify(dev.texts)]
    assert answers == [LABELS[index] for index in result.predictions["dev"]]


def test_run_is_a_function_of_its_seed(initial_model, tmp_path):
    training, dev = make_texts(0, 60), {"dev": make_texts(1, 10)}
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        settings = make_settings(seed=seed, epochs=1)
        finetune(TASK, initial_model, training, dev, settings, tmp_path / name)
    assert_same_weights(tmp_path / "one", tmp_path / "same")
    one, other = read_weights(tmp_path / "one"), read_weights(tmp_path / "other")
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_encoder_is_loaded_and_the_head_is_new(initial_model, tmp_path):
    training, dev = make_texts(0, 40), {"dev": make_texts(1, 10)}
    frozen = make_settings(epochs=1, optimizer={"learning_rate": 1e-30})  # too low to change a weight
    pretrained = load_file(initial_model.weights / "model.safetensors")
    finetune(TASK, initial_model, training, dev, frozen, tmp_path / "pretrained")
    finetune(TASK, initial_model._replace(weights=None), training, dev, frozen, tmp_path / "random")
    name = "bert.encoder.layer.0.output.dense.weight"
    assert torch.equal(read_weights(tmp_path / "pretrained")[name], pretrained[name])
    assert not torch.equal(read_weights(tmp_path / "random")[name], pretrained[name])
    assert read_weights(tmp_path / "pretrained")["classifier.weight"].shape == (3, 24)


@pytest.mark.parametrize("keep_best", [True, False])
def test_best_or_last_epoch_is_kept(initial_model, tmp_path, keep_best):
    training, dev = make_texts(0, 90), {"dev": make_texts(1, 50), "other": make_texts(2, 20)}
    # The rate is so high that scores go up and down.
    optimizer = {"learning_rate": 0.05, "bias_correction": True}
    settings = make_settings(keep_best=keep_best, epochs=6, optimizer=optimizer)
    result = finetune(TASK, initial_model, training, dev, settings, tmp_path)
    scores = [row["dev/accuracy"] for row in read_rows(tmp_path) if row["kind"] == "evaluation"]
    assert len(scores) == (6 if keep_best else 1)  # only an epoch that may be kept is evaluated
    assert result.scores["dev"]["accuracy"] == max(scores)
    answers = bertie.load(tmp_path / "model").classify(dev["dev"].texts)
    correct = [a[0].label == label for a, label in zip(answers, dev["dev"].labels, strict=True)]
    assert 100 * np.mean(correct) == result.scores["dev"]["accuracy"]


@pytest.fixture(scope="module")
def undisturbed(initial_model, tmp_path_factory):
    """A complete run: (its directory, its result, the arguments of `finetune`)."""
    arguments = (TASK, initial_model, make_texts(0, 100), {"dev": make_texts(1, 30)}, make_settings())
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    return run, finetune(*arguments, run), arguments


@pytest.fixture
def stopped(undisturbed, tmp_path, monkeypatch):
    """The same run, stopped by a signal in the evaluation of its fourth epoch."""
    _, _, arguments = undisturbed
    score, calls = CustomClassification.score, []

    def stop_in_the_fourth_call(*arguments):
        calls.append(1)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGINT)
        return score(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(CustomClassification, "score", stop_in_the_fourth_call)
        with pytest.raises(Stopped):
            finetune(*arguments, tmp_path / "stopped")
    return tmp_path / "stopped"


@pytest.fixture(scope="module")
def impatient(initial_model, tmp_path_factory):
    """A run that stops early: its directory, its result and the arguments of `finetune`.

    The rate of the first epochs is too high, so the best epoch is the first one.
    """
    optimizer = {"learning_rate": 0.05, "bias_correction": True}
    settings = make_settings(patience=2, epochs=9, optimizer=optimizer)
    arguments = (TASK, initial_model, make_texts(0, 90), {"dev": make_texts(1, 50)}, settings)
    run = tmp_path_factory.mktemp("impatient") / "run"
    return run, finetune(*arguments, run), arguments


def test_patience_stops_a_run_without_better_epochs(impatient):
    run, result, (*arguments, settings) = impatient
    rows = read_rows(run)
    scores = [row["dev/accuracy"] for row in rows if row["kind"] == "evaluation"]
    best = scores.index(max(scores))
    assert len(scores) == best + 1 + 2 < 9
    assert result.scores["dev"]["accuracy"] == scores[best]
    last_step = 3 * len(scores)
    assert json.loads((run / "finished.json").read_text()) == {"step": last_step}
    assert json.loads((run / "scores.json").read_text())["step"] == 3 * (best + 1)
    assert [row["examples"] for row in rows if row["kind"] == "train"][-1] == 90 * len(scores)
    unlimited = settings.model_copy(update={"patience": 0})
    finetune(*arguments, unlimited, run.parent / "unlimited")
    assert read_rows(run.parent / "unlimited")[: len(rows)] == rows  # until then the runs are the same
    assert len(read_rows(run.parent / "unlimited")) > len(rows)


def test_steps_before_an_early_stop_are_logged(impatient, tmp_path, monkeypatch, capsys):
    """No epoch is better than the first, so the run stops after the third, in step 9."""
    _, _, arguments = impatient
    score, scores = CustomClassification.score, []

    def score_as_in_the_first_epoch(*arguments):
        scores.append(score(*arguments))
        return scores[0]

    monkeypatch.setattr(CustomClassification, "score", score_as_in_the_first_epoch)
    monkeypatch.setattr("bertie.training.finetuning_settings.LOG_EVERY", 2)
    finetune(*arguments, tmp_path / "run")
    rows = [row for row in read_rows(tmp_path / "run") if row["kind"] == "train"]
    assert [row["step"] for row in rows] == [2, 4, 6, 8, 9]
    assert "loss" in rows[-1]
    assert "stopped at step 9: 2 epochs without a better score (patience)\n" in capsys.readouterr().err


def test_resume_does_not_continue_a_run_that_stopped_early(impatient, tmp_path, monkeypatch):
    run, expected, arguments = impatient
    finish = RunDirectory.finish

    def die(self, last_step):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:  # after its last checkpoint, before finished.json
        patch.setattr(RunDirectory, "finish", die)
        with pytest.raises(RuntimeError, match="killed"):
            finetune(*arguments, tmp_path)
    assert (tmp_path / "checkpoints").exists()
    assert finetune(*arguments, tmp_path, resume=True).scores == expected.scores
    assert read_rows(tmp_path) == read_rows(run)
    assert_same_weights(tmp_path, run)
    monkeypatch.setattr("bertie.training.finetuning.train", None)
    assert finetune(*arguments, tmp_path, resume=True).scores == expected.scores
    finished = [json.loads((path / "finished.json").read_text()) for path in (run, tmp_path)]
    assert finished[0] == finished[1]
    assert finish is RunDirectory.finish


def test_frozen_layers_keep_their_weights(initial_model, tmp_path):
    training, dev = make_texts(0, 90), {"dev": make_texts(1, 30)}
    pretrained = load_file(initial_model.weights / "model.safetensors")
    finetune(TASK, initial_model, training, dev, make_settings(frozen_layers=1, epochs=1), tmp_path / "run")
    weights = read_weights(tmp_path / "run")
    same = {name for name, weight in weights.items() if name in pretrained and weight.equal(pretrained[name])}
    assert same == {name for name in weights if "embeddings." in name or "encoder.layer." in name}
    assert not weights["bert.pooler.dense.weight"].equal(pretrained["bert.pooler.dense.weight"])
    with pytest.raises(SettingsError, match="frozen_layers 2 exceeds the model's 1 layer; use 1 or less"):
        finetune(TASK, initial_model, training, dev, make_settings(frozen_layers=2), tmp_path / "other")
    assert not (tmp_path / "other" / "settings.toml").exists()


def test_layer_decay_slows_the_lower_layers(initial_model, tmp_path):
    """In a step of Adam with bias correction every weight moves by about its rate."""
    pretrained = load_file(initial_model.weights / "model.safetensors")
    optimizer = {"learning_rate": 1e-3, "weight_decay": 0, "epsilon": 1e-12}
    settings = make_settings(epochs=1, layer_decay=0.25, warmup_ratio=0, optimizer=optimizer)
    finetune(TASK, initial_model, make_texts(0, 30), {}, settings, tmp_path)
    weights = read_weights(tmp_path)
    moved = {name: (weights[name] - pretrained[name]).abs().max() for name in weights if name in pretrained}
    assert moved["bert.pooler.dense.weight"] == pytest.approx(1e-3, rel=0.01)
    assert moved["bert.encoder.layer.0.output.dense.weight"] == pytest.approx(1e-3, rel=0.01)
    assert moved["bert.embeddings.position_embeddings.weight"] == pytest.approx(0.25e-3, rel=0.01)


TWO = LabelledTexts(["a1 b2", "a3", "b4 b5", "a6 a7 b8"] * 10, labels=["a", "a", "b", "a"] * 10)
TWO_TASK = replace(TASK, labels=("a", "b"))


def test_tuned_threshold_and_temperature_are_saved_with_the_model(initial_model, tmp_path):
    """Prediction, evaluation and a resumed run decide as the run did on dev."""
    dev = LabelledTexts(["a1", "b2 a3", "b4", "a6 a7"] * 5, labels=["a", "b", "b", "a"] * 5)
    decisions = {"tune_threshold": True, "calibrate": True, "main_metric": "f1_macro"}
    settings = make_settings(epochs=1, optimizer={"learning_rate": 1e-9}, **decisions)  # a random head
    arguments = (TWO_TASK, initial_model, TWO, {"dev": dev}, settings)
    result = finetune(*arguments, tmp_path)
    (limit,) = result.task.decision_thresholds
    assert limit != 0.5
    assert result.task.main_metric == "f1_macro"
    metadata = read_metadata(tmp_path / "model")
    assert (metadata.decision_thresholds, metadata.temperature) == ((limit,), result.task.temperature)
    loaded = load_for_task(TWO_TASK, tmp_path / "model")
    assert (loaded.predict(dev) == result.predictions["dev"]).all()
    model = bertie.load(tmp_path / "model")
    assert model.decision_thresholds == {"b": limit}
    answers = model.classify(dev.texts)
    assert [labels[0].label for labels in answers] == ["ab"[i] for i in result.predictions["dev"]]
    assert [labels[0].score for labels in answers] == pytest.approx(result.confidence["dev"], abs=1e-5)
    card = (tmp_path / "model/README.md").read_text()
    assert f"- decision threshold: b: {limit:.4g}, tuned on dev\n- temperature: " in card
    again = finetune(*arguments, tmp_path, resume=True)
    assert again.task.decision_thresholds == pytest.approx((limit,), abs=1e-6)
    calibration = json.loads((tmp_path / "scores.json").read_text())["calibration"]["dev"]
    assert calibration == result.calibration["dev"].as_json()


def test_thresholds_are_not_saved_unless_asked(initial_model, tmp_path):
    finetune(TWO_TASK, initial_model, TWO, {"dev": TWO}, make_settings(epochs=1), tmp_path)
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert not {"decision_thresholds", "temperature"} & config.keys()


@pytest.mark.parametrize(
    "change", [{"patience": 1}, {"tune_threshold": True}, {"calibrate": True}, {"main_metric": "accuracy"}]
)
def test_settings_that_need_dev_examples_are_refused_without(initial_model, tmp_path, change):
    with pytest.raises(SettingsError, match=f"{next(iter(change))} needs dev examples; give some as --dev"):
        finetune(TWO_TASK, initial_model, TWO, {}, make_settings(**change), tmp_path)
    with pytest.raises(SettingsError, match="does not compute 'f1'; use accuracy or f1_macro"):
        finetune(TASK, initial_model, TWO, {"dev": TWO}, make_settings(main_metric="f1"), tmp_path)
    with pytest.raises(SettingsError, match="'accuracy' cannot select the model of ner; use f1"):
        NER.with_main_metric("accuracy")


def test_stopped_run_resumes_bit_for_bit(undisturbed, stopped, monkeypatch):
    run, expected, arguments = undisturbed
    assert finetune(*arguments, stopped, resume=True).scores == expected.scores
    monkeypatch.setattr("bertie.training.finetuning.train", None)  # a complete run is not trained again
    (stopped / "checkpoints/step-00000031").mkdir(parents=True)  # a kill while checkpoints were removed
    assert finetune(*arguments, stopped, resume=True).scores == expected.scores
    assert not (stopped / "checkpoints").exists()
    assert read_rows(stopped) == read_rows(run)
    assert_same_weights(stopped, run)
    (stopped / "finished.json").unlink()  # earlier versions did not write it
    assert finetune(*arguments, stopped, resume=True).scores == expected.scores


def test_resume_rejects_other_data_and_another_model(undisturbed, stopped):
    _, _, (task, initial_model, training, dev, settings) = undisturbed
    with pytest.raises(DataError, match="a different training set; pass the original one"):
        finetune(task, initial_model, make_texts(9, 100), dev, settings, stopped, resume=True)
    with pytest.raises(DataError, match="a different dev set"):
        finetune(task, initial_model, training, {"dev": make_texts(9, 30)}, settings, stopped, resume=True)
    random = initial_model._replace(weights=None)
    with pytest.raises(DataError, match="a different initial model"):
        finetune(task, random, training, dev, settings, stopped, resume=True)
    respelled = random._replace(tokenizer=Tokenizer(Vocabulary([*SPECIAL_TOKENS, *WORDS[::-1]])))
    with pytest.raises(DataError, match="a different initial model"):  # which encodes the data differently
        finetune(task, respelled, training, dev, settings, stopped, resume=True)
    relabelled = LabelledTexts(training.texts, labels=training.labels[::-1])
    with pytest.raises(DataError, match="a different training set"):
        finetune(task, initial_model, relabelled, dev, settings, stopped, resume=True)


def test_resume_refuses_a_damaged_file_of_the_kept_model(undisturbed, tmp_path):
    run, _, arguments = undisturbed
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run/model/vocab.txt").write_text("[PAD]\n")
    with pytest.raises(ModelError, match=r"model/vocab\.txt: does not match its checksum in SHA256SUMS"):
        finetune(*arguments, tmp_path / "run", resume=True)


def test_hash_of_the_weights_includes_every_shard(initial_model, tmp_path):
    shards = [tmp_path / f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    weight_map = {f"weight{i}": shard.name for i, shard in enumerate(shards)}
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": weight_map})
    hashes = set()
    for contents in (("a", "b"), ("c", "b"), ("a", "d")):
        for shard, content in zip(shards, contents, strict=True):
            shard.write_text(content)
        hashes.add(hash_weights(initial_model._replace(weights=tmp_path)))
    assert len(hashes) == 3


def with_dropout(initial_model, probability):
    """The initial model, pre-trained with another dropout."""
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    return initial_model._replace(
        config=initial_model.config.model_copy(update=dict.fromkeys(names, probability))
    )


def test_dropout_does_not_depend_on_pretraining(initial_model, tmp_path):
    """Appendix A.3: always 0.1; the config says what the model was trained with."""
    arguments = make_texts(0, 60), {"dev": make_texts(1, 10)}
    runs = {
        "without": (with_dropout(initial_model, 0.0), {}),
        "with": (with_dropout(initial_model, 0.1), {}),
        "set": (initial_model, {"dropout": 0.0, "attention_dropout": 0.2}),
        "kept": (with_dropout(initial_model, 0.3), {"dropout": None, "attention_dropout": None}),
    }
    probabilities = {}
    for name, (model, changes) in runs.items():
        finetune(TASK, model, *arguments, make_settings(epochs=1, **changes), tmp_path / name)
        config = read_metadata(tmp_path / name / "model").config
        probabilities[name] = (config.hidden_dropout_prob, config.attention_probs_dropout_prob)
    assert_same_weights(tmp_path / "without", tmp_path / "with")
    assert probabilities == {"without": (0.1, 0.1), "with": (0.1, 0.1), "set": (0.0, 0.2), "kept": (0.3, 0.3)}
    one, other = read_weights(tmp_path / "with"), read_weights(tmp_path / "set")
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_run_of_an_earlier_version_resumes_with_the_models_dropout(initial_model, tmp_path, monkeypatch):
    """Its settings do not name dropout, and then it was the initial model's; also if it stops again."""
    model, training, dev = with_dropout(initial_model, 0.0), make_texts(0, 100), {"dev": make_texts(1, 30)}
    former = make_settings(dropout=None, attention_dropout=None, batch_unit=None)
    expected = finetune(TASK, model, training, dev, former, tmp_path / "whole")
    score, calls = CustomClassification.score, []

    def stop_every_second_call(*arguments):
        calls.append(1)
        if len(calls) % 2 == 0:
            signal.raise_signal(signal.SIGINT)
        return score(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(CustomClassification, "score", stop_every_second_call)
        for number in range(2):
            settings = former if number == 0 else make_settings()
            with pytest.raises(Stopped):
                finetune(TASK, model, training, dev, settings, tmp_path / "run", resume=number > 0)
    assert "dropout" not in (tmp_path / "run/settings.toml").read_text()
    resumed = finetune(TASK, model, training, dev, make_settings(), tmp_path / "run", resume=True)
    assert resumed.scores == expected.scores
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


TAGGED = TaggedSentences.from_tags(
    [[f"a{i % 10}", "b1", "c2"] for i in range(100)], [["B-X", "O", "O"]] * 100, np.array([0, 100])
)


@pytest.mark.parametrize(
    ("changes", "steps", "windows"),
    [
        ({"batch_size": 32}, 4, 19),  # 100 / 32, rounded up
        ({"batch_size": 16}, 7, 19),
        ({"batch_size": 100}, 1, 19),
        ({"batch_size": 1}, 17, 19),  # a step reads at least one window, of 100 / 19 sentences, rounded up
        ({"batch_size": 32, "max_training_examples": 7}, 2, 7),  # 7 of 19 windows, so 37 sentences
        ({"batch_size": 4, "batch_unit": "windows"}, 5, 19),
        ({"batch_size": 4, "batch_unit": None}, 5, 19),
    ],
)
def test_batches_of_a_tagging_task_count_sentences(initial_model, tmp_path, changes, steps, windows):
    task = NER.fitted(TAGGED)
    inputs = task.encode(TAGGED, initial_model.tokenizer, 32)
    assert (len(inputs), inputs.num_batch_units) == (19, 100)
    finetune(task, initial_model, TAGGED, {"dev": TAGGED}, make_settings(epochs=1, **changes), tmp_path)
    train, evaluation = read_rows(tmp_path)
    assert (train["step"], evaluation["step"], train["examples"]) == (steps, steps, windows)


def test_finished_tagging_run_of_an_earlier_version_is_not_trained_again(
    initial_model, tmp_path, monkeypatch
):
    """Its settings do not name the unit of the batch size, and then it was windows."""
    arguments = NER.fitted(TAGGED), initial_model, TAGGED, {"dev": TAGGED}
    changes = {"epochs": 1, "batch_size": 4}
    expected = finetune(*arguments, make_settings(batch_unit=None, **changes), tmp_path)
    (tmp_path / "finished.json").unlink()  # earlier versions did not write it
    monkeypatch.setattr("bertie.training.finetuning.train", None)
    assert finetune(*arguments, make_settings(**changes), tmp_path, resume=True).scores == expected.scores


def test_defaults_are_those_of_the_paper():
    """Section 4.1 and Appendix A.3; run_classifier.py:83-116."""
    settings = FinetuningSettings()
    assert (settings.batch_size, settings.epochs, settings.optimizer.learning_rate) == (32, 3, 5e-5)
    assert (settings.max_seq_length, settings.warmup_ratio) == (128, 0.1)
    assert (settings.dropout, settings.attention_dropout) == (0.1, 0.1)
    assert settings.keep_best
    assert settings.optimizer.bias_correction  # unlike the paper's code


FIFTY = Inputs(np.arange(50, dtype=np.int32), np.zeros(50, np.int32), np.arange(51), None)


@pytest.mark.parametrize(("epochs", "warmup_steps"), [(1, 0), (2, 1), (3, 2)])
def test_a_tenth_of_the_steps_is_warmup_rounded_down(epochs, warmup_steps):
    """As in run_classifier.py:845."""
    schedule = loop_schedule(FIFTY, make_settings(epochs=epochs, batch_size=8))
    assert (schedule.total_steps, schedule.warmup_steps) == (7 * epochs, warmup_steps)


def orders_of_epochs(model, start: int = 0, **changes: object) -> list[list[int]]:
    """Return the examples of FIFTY in the order in which the epochs from step `start` on read them."""
    settings = make_settings(epochs=3, batch_size=8, **changes).resolved()  # seven steps an epoch
    batches = FinetuningBatches(FIFTY, settings, start, ClassificationModel(model.config, 2), Ranks())
    steps = [batch.input_ids.tolist() for _ in range(start, 21) for batch in next(batches).micro_batches]
    return [list(chain.from_iterable(steps[i : i + 7])) for i in range(0, len(steps), 7)]


def test_each_epoch_reads_every_example_in_a_new_order(initial_model):
    orders = orders_of_epochs(initial_model) + orders_of_epochs(initial_model, seed=1)
    assert [sorted(order) for order in orders] == [list(range(50))] * 6
    assert len({tuple(order) for order in [*orders, range(50)]}) == 7
    assert orders_of_epochs(initial_model, start=7) == orders[1:3]


@pytest.mark.parametrize("world_size", [2, 3, 9])
def test_ranks_share_the_examples_of_each_step(initial_model, world_size):
    """The last step of an epoch has two examples; a rank without one computes another's, as a spare."""
    settings = make_settings(epochs=1, batch_size=8).resolved()
    model = ClassificationModel(initial_model.config, 2)
    ranks = [Ranks(rank, world_size) for rank in range(world_size)]
    batches = [FinetuningBatches(FIFTY, settings, 0, model, each) for each in ranks]
    whole = FinetuningBatches(FIFTY, settings, 0, model, Ranks())
    for _ in range(7):
        (expected,) = next(whole).micro_batches
        shares = [next(each) for each in batches]
        lengths = [len(batch) for share in shares for batch in share.micro_batches]
        assert 1 <= min(lengths) <= max(lengths) <= min(lengths) + 1
        read = [share.micro_batches[0].input_ids.tolist() for share in shares if not share.is_spare]
        assert list(chain.from_iterable(read)) == expected.input_ids.tolist()
        assert len(read) == min(world_size, len(expected))


def test_texts_that_compete_are_trained_in_one_process(initial_model):
    settings, model = make_settings().resolved(), EmbeddingModel(initial_model.config, "mean")
    pairs, scores = np.arange(50).reshape(25, 2), np.linspace(0, 1, 25, dtype=np.float32)
    for labels in (pairs, scores):
        inputs = Inputs(FIFTY.input_ids, FIFTY.token_type_ids, FIFTY.bounds, labels, group=2)
        FinetuningBatches(inputs, settings, 0, model, Ranks())
        with pytest.raises(SettingsError, match="start one process") if labels is pairs else nullcontext():
            FinetuningBatches(inputs, settings, 0, model, Ranks(0, 2))


@pytest.mark.parametrize(
    ("changes", "evaluate_every"),
    [({}, 7), ({"keep_best": False}, 21), ({"keep_best": False, "patience": 1}, 7)],
)
def test_epochs_that_may_be_kept_or_end_the_run_are_evaluated(changes, evaluate_every):
    schedule = loop_schedule(FIFTY, make_settings(epochs=3, batch_size=8, **changes))
    assert schedule.evaluate_every == evaluate_every
    assert (schedule.log_every, schedule.save_every, schedule.keep_checkpoints) == (7, 7, 1)


def test_a_limit_chooses_the_same_examples_for_every_seed():
    chosen = [
        training_indices(FIFTY, make_settings(max_training_examples=20, seed=seed)).tolist()
        for seed in (0, 1)
    ]
    assert chosen[0] == chosen[1] == sorted({*chosen[0]}) != [*range(20)]
    assert len(chosen[0]) == 20
    assert training_indices(FIFTY, make_settings(max_training_examples=51)).tolist() == [*range(50)]


def test_batches_of_other_tasks_count_examples(initial_model, tmp_path):
    finetune(TASK, initial_model, make_texts(0, 70), {}, make_settings(epochs=1), tmp_path)
    (train, *_) = read_rows(tmp_path)
    assert (train["step"], train["examples"]) == (3, 70)


def test_batches_of_questions_count_windows(initial_model):
    """run_squad.py:1160 counts questions, although its batches have windows."""
    questions = Questions(["0", "1"], ["a1"] * 2, ["b2 " * 150, "b2"], np.array([0, 1]))
    inputs = SQUAD_TASKS[0].encode(questions, initial_model.tokenizer, 64)
    assert (len(inputs), len(questions)) == (4, 2)
    assert loop_schedule(inputs, make_settings(epochs=1, batch_size=1)).total_steps == 4


FORMER_NAMES = {
    "training_fingerprint": "training_set",
    "dev_fingerprint": "dev_sets",
    "initial_model_fingerprint": "start",
    "warmup_ratio": "warmup_share",
}


def test_resume_reads_settings_of_earlier_versions(undisturbed, stopped):
    """Settings had other names, and the oldest runs did not record the initial model."""
    run, expected, arguments = undisturbed
    file = stopped / "settings.toml"
    text = without_checksum(file)
    for name, former in FORMER_NAMES.items():
        text, count = re.subn(f"^{name} = ", f"{former} = ", text, flags=re.MULTILINE)
        assert count == 1
    file.write_text(text)
    with pytest.raises(DataError, match="a different training set"):
        finetune(*arguments[:2], make_texts(9, 100), *arguments[3:], stopped, resume=True)
    file.write_text(re.sub('^start = ".+"$', 'start = ""', text, flags=re.MULTILINE))
    assert finetune(*arguments, stopped, resume=True).scores == expected.scores
    assert_same_weights(stopped, run)


def test_resume_of_a_run_killed_in_its_first_epoch(undisturbed, tmp_path, monkeypatch):
    """Without a checkpoint the run starts over, even if the last metrics line is torn."""
    run, expected, arguments = undisturbed

    def tear_and_die(self, row):
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"kind": "train", "step": 4, "lo')
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "log", tear_and_die)
        with pytest.raises(RuntimeError, match="killed"):
            finetune(*arguments, tmp_path)
    assert finetune(*arguments, tmp_path, resume=True).scores == expected.scores
    assert read_rows(tmp_path) == read_rows(run)
    assert_same_weights(tmp_path, run)


def test_resume_of_a_complete_run_with_a_torn_last_line(undisturbed, tmp_path, monkeypatch):
    run, expected, arguments = undisturbed
    shutil.copytree(run, tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 4, "lo')
    monkeypatch.setattr("bertie.training.finetuning.train", None)
    assert finetune(*arguments, tmp_path / "run", resume=True).scores == expected.scores


def test_sequences_longer_than_the_positions_are_refused(initial_model, tmp_path):
    settings = make_settings(max_seq_length=64)
    with pytest.raises(
        SettingsError, match="max_seq_length 64 exceeds the model's 32 positions; use 32 or less"
    ):
        finetune(TASK, initial_model, make_texts(0, 9), {}, settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


ONE_CONTEXT = ["a1 a2"], np.zeros(1, np.int64)
PAIRS = {
    "letters": (TASK, LabelledTexts(["a1", "b1"], ["a2", "b2"], labels=["a", "b"])),
    "squad-v2": (SQUAD_TASKS[1], Questions(["1"], ["b1"], *ONE_CONTEXT, [[("a1", 0)]])),
    "swag": (SWAG, Choices(["a1"], ["a2"], [("a3", "b3")], np.array([0]), ["1"])),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_refused_before_a_run_of_a_model_with_one_segment(initial_model, tmp_path, name):
    config = initial_model.config.model_copy(update={"type_vocab_size": 1})
    model = initial_model._replace(config=config, weights=None)
    task, examples = PAIRS[name]
    with pytest.raises(ModelError, match=rf"{name} has pairs of texts, but .* single texts \(type_vocab"):
        finetune(task, model, examples, {}, make_settings(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    finetune(TASK, model, make_texts(0, 9), {}, make_settings(epochs=1), tmp_path / "run")
