"""A classifier learns what can be learnt, and is a function of its seed."""

import json
import re
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bertie
from bertie.base.errors import DataError, SettingsError
from bertie.base.settings import resolve
from bertie.model.config import BertConfig
from bertie.model.formats.directory import ModelMetadata, read_metadata
from bertie.model.formats.weights import save_model
from bertie.model.heads import PreTrainingModel
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.custom import CustomClassification
from bertie.tasks.evaluation import load_for_task
from bertie.tasks.metrics import accuracy
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.training.finetuning import FinetuningSettings, InitialModel, finetune
from bertie.training.signals import Stopped

WORDS = [f"{letter}{number}" for letter in "abc" for number in range(10)]
LABELS = ("a", "b", "c")


def texts(seed: int, count: int) -> LabelledTexts:
    """Texts of one letter's words: the class is the letter."""
    random = np.random.default_rng(seed)
    labels = [LABELS[number] for number in random.integers(0, 3, count)]
    made = [
        " ".join(f"{label}{n}" for n in random.integers(0, 10, random.integers(1, 9))) for label in labels
    ]
    return LabelledTexts(made, labels=labels)


TASK = CustomClassification("letters", LABELS).settled("single_label_classification")


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> InitialModel:
    tokenizer = Tokenizer(Vocabulary([*SPECIAL_TOKENS, *WORDS]))
    config = BertConfig(
        vocab_size=len(tokenizer.vocabulary),
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=32,
        initializer_range=0.1,
    )
    path = tmp_path_factory.mktemp("models") / "pre-trained"
    torch.manual_seed(0)
    metadata = ModelMetadata(config, PreTrainingModel.architecture, (), tokenizer)
    save_model(path, PreTrainingModel(config), metadata, "card")
    return InitialModel(config, tokenizer, path)


def settings(**changes: object) -> FinetuningSettings:
    base = {"epochs": 8, "max_seq_length": 32, "optimizer": {"learning_rate": 3e-3}}
    return resolve(FinetuningSettings, base, changes)


def weights(run) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_learns_and_the_saved_model_gives_the_same_answers(start, tmp_path, precision):
    """In float32, whatever the matrix products of training were in."""
    unseen = texts(1, 100)
    learning = settings(precision=precision)
    result = finetune(TASK, start, texts(0, 300), {"dev": unseen}, learning, tmp_path / "run")
    assert result.scores["dev"]["accuracy"] > 95
    predicted = result.predictions["dev"]
    assert accuracy(TASK.gold(unseen), predicted) * 100 == result.scores["dev"]["accuracy"]
    answers = bertie.load(tmp_path / "run" / "model").classify(unseen.texts)
    assert [labels[0].label for labels in answers] == [LABELS[number] for number in predicted]
    assert not (tmp_path / "run" / "checkpoints").exists()
    loaded = load_for_task(TASK, tmp_path / "run" / "model")
    assert loaded.max_seq_length == learning.max_seq_length


@pytest.mark.parametrize("bilstm", [False, True])
def test_a_left_to_right_model_learns_and_stays_one(start, tmp_path, bilstm):
    """With a BiLSTM, too, which is there again after loading."""
    leftward = start._replace(config=start.config.model_copy(update={"is_decoder": True}))
    unseen = texts(1, 100)
    result = finetune(
        TASK, leftward, texts(0, 300), {"dev": unseen}, settings(bilstm=bilstm), tmp_path / "run"
    )
    assert result.scores["dev"]["accuracy"] > 95
    metadata = read_metadata(tmp_path / "run" / "model")
    assert metadata.config.is_decoder
    assert metadata.bilstm == bilstm
    model = bertie.load(tmp_path / "run" / "model")
    answers = [labels[0].label for labels in model.classify(unseen.texts)]
    assert answers == [LABELS[number] for number in result.predictions["dev"]]


def test_a_run_is_a_function_of_its_seed(start, tmp_path):
    training, unseen = texts(0, 60), texts(1, 10)
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        finetune(TASK, start, training, {"dev": unseen}, settings(seed=seed, epochs=1), tmp_path / name)
    one, same, other = (weights(tmp_path / name) for name in ("one", "same", "other"))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_the_encoder_comes_from_the_start_and_the_head_does_not(start, tmp_path):
    training, dev = texts(0, 40), {"dev": texts(1, 10)}
    still = settings(epochs=1, optimizer={"learning_rate": 1e-30})  # too little to change a weight
    pre_trained = load_file(start.weights / "model.safetensors")
    finetune(TASK, start, training, dev, still, tmp_path / "from weights")
    finetune(TASK, start._replace(weights=None), training, dev, still, tmp_path / "from random")
    name = "bert.encoder.layer.0.output.dense.weight"
    assert torch.equal(weights(tmp_path / "from weights")[name], pre_trained[name])
    assert not torch.equal(weights(tmp_path / "from random")[name], pre_trained[name])
    assert weights(tmp_path / "from weights")["classifier.weight"].shape == (3, 24)


def rows_of(run) -> list[dict]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("seconds", "tokens_per_second")} for row in rows]


def test_the_best_epoch_is_kept_or_the_last(start, tmp_path):
    training, dev = texts(0, 90), {"dev": texts(1, 50), "other": texts(2, 20)}
    # So high a rate that scores go up and down.
    wild = {"epochs": 6, "optimizer": {"learning_rate": 0.05, "bias_correction": True}}
    for keep_best in (True, False):
        run = tmp_path / str(keep_best)
        result = finetune(TASK, start, training, dev, settings(keep_best=keep_best, **wild), run)
        scored = [row["dev/accuracy"] for row in rows_of(run) if row["kind"] == "evaluation"]
        assert len(scored) == 6
        assert result.scores["dev"]["accuracy"] == (max(scored) if keep_best else scored[-1])
        answers = bertie.load(run / "model").classify(dev["dev"].texts)
        right = [a[0].label == label for a, label in zip(answers, dev["dev"].labels, strict=True)]
        assert 100 * np.mean(right) == result.scores["dev"]["accuracy"]


def test_a_stopped_run_goes_on_bit_for_bit(start, tmp_path, monkeypatch):
    training, dev = texts(0, 100), {"dev": texts(1, 30)}
    undisturbed = finetune(TASK, start, training, dev, settings(), tmp_path / "undisturbed")
    score, calls = CustomClassification.score, []

    def stop_at_the_fourth(*arguments):
        calls.append(1)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGINT)
        return score(*arguments)

    monkeypatch.setattr(CustomClassification, "score", stop_at_the_fourth)
    with pytest.raises(Stopped):
        finetune(TASK, start, training, dev, settings(), tmp_path / "stopped")
    with pytest.raises(DataError, match="another training set"):
        finetune(TASK, start, texts(9, 100), dev, settings(), tmp_path / "stopped", resume=True)
    with pytest.raises(DataError, match="another dev sets"):
        finetune(TASK, start, training, {"dev": texts(9, 30)}, settings(), tmp_path / "stopped", resume=True)
    random = start._replace(weights=None)
    with pytest.raises(DataError, match="another model to start from"):
        finetune(TASK, random, training, dev, settings(), tmp_path / "stopped", resume=True)
    file = tmp_path / "stopped" / "settings.toml"  # as it was before it said what a run starts from
    file.write_text(re.sub('^start = ".+"$', 'start = ""', file.read_text(), flags=re.MULTILINE))
    resumed = finetune(TASK, start, training, dev, settings(), tmp_path / "stopped", resume=True)
    assert resumed.scores == undisturbed.scores
    monkeypatch.setattr("bertie.training.finetuning.train", None)  # what has ended is not trained again
    (tmp_path / "stopped" / ".checkpoints.tmp").mkdir()  # of a kill while they were forgotten
    again = finetune(TASK, start, training, dev, settings(), tmp_path / "stopped", resume=True)
    assert again.scores == undisturbed.scores
    assert not (tmp_path / "stopped" / ".checkpoints.tmp").exists()
    assert rows_of(tmp_path / "stopped") == rows_of(tmp_path / "undisturbed")
    one, two = weights(tmp_path / "stopped"), weights(tmp_path / "undisturbed")
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_too_long_for_the_model_is_refused(start, tmp_path):
    with pytest.raises(SettingsError, match="max_seq_length 64 is longer than the model's positions: 32"):
        finetune(TASK, start, texts(0, 9), {}, settings(max_seq_length=64), tmp_path / "run")
    assert not (tmp_path / "run").exists()
