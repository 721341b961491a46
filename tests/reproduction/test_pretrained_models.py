"""Tests of the models that rows are fine-tuned from."""

import json
from pathlib import Path

import pytest

from bertie.base.errors import SettingsError
from bertie.base.locks import lock_file
from bertie.base.settings import SETTINGS_FILE, write_toml
from bertie.reproduction import pretrained_models
from bertie.reproduction.cells import pretraining_directories, pretraining_directory
from bertie.reproduction.pretrained_models import Pretraining
from bertie.training.pretraining_settings import Phase, PretrainingSettings

STEPS = 8
PHASES = (Phase(steps=STEPS, max_seq_length=16),)
FORMER = PretrainingSettings(phases=PHASES, evaluate_every=2, save_every=1, keep_checkpoints=2)
QUARTERS = PretrainingSettings(phases=PHASES, evaluate_every=2, save_every=2, keep_checkpoints=4)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, PretrainingSettings]]:
    """Write the files of a run without training; return the runs that were started or resumed."""
    runs = []

    def pretrain(settings: PretrainingSettings, corpus: Path, run: Path, init: object, resume: bool) -> None:
        runs.append((run, settings))
        for directory in ("model", *checkpoints_of(settings)):
            (run / directory).mkdir(parents=True)
        evaluations = range(settings.evaluate_every, STEPS + 1, settings.evaluate_every)
        rows = [{"kind": "evaluation", "step": step, "masked_lm_loss": 1.0} for step in evaluations]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.setattr(pretrained_models, "pretrain", pretrain)
    return runs


def checkpoints_of(settings: PretrainingSettings) -> list[str]:
    steps = range(settings.save_every, STEPS + 1, settings.save_every)[-settings.keep_checkpoints :]
    return [f"checkpoints/step-{step:08d}" for step in steps]


def run_row(
    out: Path, fraction: float, settings: PretrainingSettings = QUARTERS
) -> pretrained_models.PretrainedModel:
    return Pretraining(settings, None, fraction).run(out / "corpus", "fingerprint", out, "title")


def test_rows_start_from_the_checkpoints_of_one_run(tmp_path, made):
    models = [run_row(tmp_path, fraction) for fraction in (1.0, 0.25, 0.5, 0.75)]
    assert [model.weights.name for model in models] == ["model", *checkpoint_names(2, 4, 6)]
    assert len(made) == 1


def checkpoint_names(*steps: int) -> list[str]:
    return [f"step-{step:08d}" for step in steps]


def test_a_run_of_an_earlier_version_is_found(tmp_path, made, monkeypatch):
    former = pretraining_directory(tmp_path, QUARTERS, "fingerprint")
    pretrained_models._pretrain(QUARTERS, tmp_path / "corpus", former, None)
    assert {run_row(tmp_path, fraction).run for fraction in (0.25, 0.5, 1.0)} == {former}
    assert len(made) == 1


def test_a_run_that_kept_too_few_checkpoints_is_made_again(tmp_path, made):
    """The finished run stays, for the row that needs only its last weights."""
    shared, own = pretraining_directories(tmp_path, QUARTERS, "fingerprint", "")
    assert run_row(tmp_path, 1.0, FORMER).run == shared
    assert run_row(tmp_path, 0.25).run == own
    assert run_row(tmp_path, 0.5).run == own
    assert run_row(tmp_path, 1.0).run == shared
    assert [run for run, _ in made] == [shared, own]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"save_every": 3}, "set save_every to a divisor of the step"),
        ({"keep_checkpoints": 3}, "raise keep_checkpoints"),
        ({"evaluate_every": 4}, "set evaluate_every to a divisor"),
    ],
)
def test_a_run_is_not_made_again_in_vain(tmp_path, made, change, message):
    settings = QUARTERS.model_copy(update=change)
    run_row(tmp_path, 1.0, settings)
    model = run_row(tmp_path, 0.25, settings)
    assert len(made) == 1
    with pytest.raises(SettingsError, match=message):
        assert (model.weights, model.read_held_out()) is None


def test_a_stopped_run_resumes_with_its_own_evaluations(tmp_path, made):
    shared, _ = pretraining_directories(tmp_path, QUARTERS, "fingerprint", "")
    shared.mkdir(parents=True)
    write_toml(shared / SETTINGS_FILE, QUARTERS.model_copy(update={"evaluate_every": 1}))
    run_row(tmp_path, 0.25)
    ((run, settings),) = made
    assert (run, settings.evaluate_every, settings.save_every) == (shared, 1, 2)


def test_a_trunk_is_not_locked_while_a_row_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def pretrain(settings: PretrainingSettings, corpus: Path, run: Path, init: Path | None) -> None:
        if init is not None:
            with lock_file(init.parent):  # as another process would, for another row of the seed
                pass
        made.append(settings.seed)
        (run / "model").mkdir(parents=True)

    monkeypatch.setattr(pretrained_models, "_pretrain", pretrain)
    pretraining = Pretraining(PretrainingSettings(seed=1), PretrainingSettings(seed=2), 1.0)
    model = pretraining.run(tmp_path / "corpus", "fingerprint", tmp_path / "out", "title")
    assert made == [2, 1]
    assert model.is_last
