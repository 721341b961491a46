"""Which runs may be resumed, and by which process."""

import pytest

from bertie.base.errors import SettingsError
from bertie.base.settings import resolve
from bertie.training.checkpoints import RunDirectory
from bertie.training.finetuning_settings import MAY_CHANGE as FINETUNING_MAY_CHANGE
from bertie.training.finetuning_settings import FinetuningSettings
from bertie.training.pretraining_settings import MAY_CHANGE, PretrainingSettings
from bertie.training.resuming import FINGERPRINTS, RESUME_NOTE, check_run, continues_job, lock_run


def make_settings(*steps: int) -> PretrainingSettings:
    """Make settings with a phase for each number of steps."""
    phases = [{"steps": number, "max_seq_length": 32} for number in steps]
    return resolve(PretrainingSettings, {"phases": phases})


def start_run(path, *steps: int, arguments=None) -> RunDirectory:
    path.mkdir()
    run = RunDirectory(path, arguments=arguments)
    run.write_settings(make_settings(*steps))
    return run


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((3,), r"run: phases\.1\.steps was 5 when the run started and is None now; resume without this"),
        ((3, 5, 7), r"run: phases\.2\.steps was None when the run started and is 7 now"),
    ],
    ids=["fewer", "more"],
)
def test_resume_with_fewer_or_more_phases_is_refused(tmp_path, steps, message):
    run = start_run(tmp_path / "run", 3, 5)
    check_run(run, make_settings(3, 5), True, MAY_CHANGE)
    with pytest.raises(SettingsError, match=message):
        check_run(run, make_settings(*steps), True, MAY_CHANGE)


HARDWARE = {
    "device": "cuda",
    "precision": "bfloat16",
    "gradient_checkpointing": True,
    "micro_batch_tokens": 9,
}
FILES = {"save_every": 9, "keep_checkpoints": 9, "tensorboard": True, "shard": True}


@pytest.mark.parametrize(
    ("settings", "may_change", "changes"),
    [
        (make_settings(3), MAY_CHANGE, HARDWARE | FILES),
        (FinetuningSettings(), FINETUNING_MAY_CHANGE, HARDWARE),
    ],
    ids=["pre-training", "fine-tuning"],
)
def test_only_hardware_and_files_may_change(tmp_path, settings, may_change, changes):
    run = RunDirectory(tmp_path)
    run.write_settings(settings)
    check_run(run, settings.model_copy(update=changes), True, may_change)
    for key in type(settings).model_fields.keys() - changes.keys() - FINGERPRINTS.keys():
        changed = settings.model_copy(update={key: 0.123})
        with pytest.raises(SettingsError, match=rf"{tmp_path}: {key}.* when the run started"):
            check_run(run, changed, True, may_change)


def test_a_job_continues_only_its_own_runs(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "first")
    start_run(tmp_path / "run", 3, arguments={})
    assert continues_job(tmp_path / "run")
    assert not continues_job(tmp_path / "new")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "second")
    assert not continues_job(tmp_path / "run")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert continues_job(tmp_path / "run")
    assert not continues_job(tmp_path / "new")


def test_the_default_id_of_torchrun_is_no_job(tmp_path, monkeypatch):
    """Every launch without --rdzv-id has it."""
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    start_run(tmp_path / "run", 3, arguments={})
    assert not continues_job(tmp_path / "run")


def test_error_of_the_disk_mentions_resume_only_with_a_run(tmp_path):
    with pytest.raises(OSError, match="full") as error, lock_run(tmp_path / "new"):
        raise OSError("full")
    assert not hasattr(error.value, "__notes__")
    start_run(tmp_path / "run", 3)
    with pytest.raises(OSError, match="full") as error, lock_run(tmp_path / "run"):
        raise OSError("full")
    assert error.value.__notes__ == [RESUME_NOTE]
