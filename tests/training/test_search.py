"""A search resumes, even if an earlier version of bertie started it."""

import re
import shutil
import statistics
from pathlib import Path

import pytest
from tests.training.letters import TASK, make_texts
from tests.training.runs import without_checksum

from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.base.settings import resolve
from bertie.training.search import SearchSettings, Trial, search

GRID = {"batch_sizes": [32], "learning_rates": [3e-3, 1e-6], "epochs": [1]}
SETTINGS = resolve(SearchSettings, GRID, {"finetuning": {"max_seq_length": 32}})


@pytest.fixture
def arguments(initial_model):
    return TASK, initial_model, make_texts(0, 40), {"dev": make_texts(1, 20)}, SETTINGS


def test_search_of_an_earlier_version_resumes(arguments, tmp_path, monkeypatch):
    """The runs are in the folder `cells`, and the settings have former names."""
    first = search(*arguments, tmp_path)
    assert [run.parent.name for trial in first.trials for run in trial.runs] == ["trials", "trials"]
    (tmp_path / "trials").rename(tmp_path / "cells")
    file = tmp_path / "settings.toml"
    text = without_checksum(file)
    for name, former in (("training_fingerprint", "training_set"), ("dev_fingerprint", "dev_sets")):
        assert text.count(f"{name} =") == 2  # of the search, and of its fine-tuning
        text = text.replace(f"{name} =", f"{former} =")
    file.write_text(text)
    monkeypatch.setattr("bertie.training.search.finetune", None)  # no run is repeated
    again = search(*arguments, tmp_path)
    assert [trial.scores for trial in again.trials] == [trial.scores for trial in first.trials]
    assert again.chosen.runs[0].parent.name == "cells"


def test_search_with_other_examples_is_rejected(arguments, tmp_path):
    search(*arguments, tmp_path)
    task, initial_model, _, dev, settings = arguments
    with pytest.raises(DataError, match="a different training set"):
        search(task, initial_model, make_texts(9, 40), dev, settings, tmp_path)


def test_a_setting_that_changes_the_encoded_texts_is_named(arguments, tmp_path):
    search(*arguments, tmp_path)
    shorter = SETTINGS.finetuning.model_copy(update={"max_seq_length": 4})
    settings = SETTINGS.model_copy(update={"finetuning": shorter})
    with pytest.raises(SettingsError, match=r"finetuning\.max_seq_length was \d+ when .* and is 4 now"):
        search(*arguments[:-1], settings, tmp_path)


def test_damaged_scores_of_a_run_are_reported(arguments, tmp_path):
    first = search(*arguments, tmp_path)
    best, other = (trial.runs[0] / "result.json" for trial in first.trials)
    for content in (b"", b'{"dev": {"accu', b"[]", b"{}", b'{"dev": {}}', b'{"dev": "a"}', b"\xff"):
        best.write_bytes(content)
        with pytest.raises(DataError, match=r"seed0/result\.json: damaged; delete it and resume the search"):
            search(*arguments, tmp_path)
    best.unlink()
    other.unlink()  # its model is gone, too
    again = search(*arguments, tmp_path)
    assert [trial.scores for trial in again.trials] == [trial.scores for trial in first.trials]


def test_new_trials_of_an_earlier_search_use_the_models_dropout(arguments, tmp_path):
    """Its settings do not name dropout, and then it was the initial model's, here 0.1."""
    search(*arguments, tmp_path)
    for file in tmp_path.glob("**/settings.toml"):
        lines = without_checksum(file).splitlines(keepends=True)
        file.write_text("".join(line for line in lines if not line.startswith(("dropout", "attention_d"))))
    *others, settings = arguments
    search(*others, settings.model_copy(update={"learning_rates": (1e-3,)}), tmp_path)
    (run,) = (tmp_path / "trials").glob("*rate0.001*")
    assert "dropout" not in (run / "settings.toml").read_text()
    assert "dropout" not in (tmp_path / "settings.toml").read_text()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("learning_rates", [-1], "learning_rates.0 = -1: expected a number greater than 0"),
        ("learning_rates", [0.1, float("nan")], "learning_rates.1 = nan: expected"),
        ("batch_sizes", [16, 0], "batch_sizes.1 = 0: expected a number greater than 0"),
        ("epochs", [0], "epochs.0 = 0: expected a number greater than 0"),
        ("epochs", [], "epochs = []: the list is too short; give at least 1 value"),
    ],
)
def test_a_grid_has_only_values_of_fine_tuning(key, value, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        resolve(SearchSettings, {key: value})


def test_rates_that_hardly_differ_have_runs_of_their_own(arguments, tmp_path):
    *others, settings = arguments
    found = search(*others, settings.model_copy(update={"learning_rates": (3e-3, 3.0000001e-3)}), tmp_path)
    assert len({run for trial in found.trials for run in trial.runs}) == 2


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt"])
def test_a_damaged_best_model_does_not_replace_the_copy(arguments, tmp_path, name):
    model = search(*arguments, tmp_path).chosen.best_run / "model"
    copied = (tmp_path / "model" / name).read_bytes()
    with (model / name).open("ab") as file:
        file.write(b"\0")
    message = f"{name}: does not match its checksum in SHA256SUMS; delete {model} and resume the search"
    with pytest.raises(ModelError, match=re.escape(message)):
        search(*arguments, tmp_path)
    assert (tmp_path / "model" / name).read_bytes() == copied
    shutil.rmtree(model)  # the advice works
    search(*arguments, tmp_path)
    assert (model / name).read_bytes() == (tmp_path / "model" / name).read_bytes() == copied


def test_notes_about_inputs_are_printed_once(arguments, tmp_path, capsys):
    task, initial_model, training, _, settings = arguments
    found = search(task, initial_model, training, {"dev": training}, settings, tmp_path)
    assert len(found.trials) == 2
    assert capsys.readouterr().err.count("dev: 40 of 40 inputs are also training inputs") == 1


def test_a_trial_summarises_its_restarts():
    runs = tuple(Path(f"seed{seed}") for seed in range(3))
    trial = Trial(32, 2e-5, 3, runs, (80.0, 84.0, 83.0))
    assert (trial.mean, trial.best_run) == (pytest.approx(82.333333), runs[1])
    assert trial.std == pytest.approx(statistics.stdev(trial.scores))
    assert Trial(32, 2e-5, 3, runs[:1], (80.0,)).std == 0
