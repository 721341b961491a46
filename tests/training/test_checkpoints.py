"""A run directory survives stops, kills and manual changes."""

import shutil
from pathlib import Path

import pytest

from bertie.base.errors import DataError, ModelError
from bertie.base.files import write_text
from bertie.model.config import BertConfig
from bertie.model.heads import MaskedLMModel
from bertie.training.checkpoints import RunDirectory, TrainState
from bertie.training.optimizers import OptimizerSettings, build_optimizer

TOTAL_STEPS = 3


@pytest.fixture
def learner():
    """A model and its optimizer."""
    model = MaskedLMModel(BertConfig(vocab_size=9, hidden_size=12, num_hidden_layers=1, intermediate_size=4))
    return model, build_optimizer(model, OptimizerSettings())


def save(run: RunDirectory, state: TrainState, learner, save_every=1, keep_checkpoints=2) -> None:
    run.save(state, *learner, save_every, keep_checkpoints)


def make_killed_run(path: Path, learner) -> None:
    """Write a checkpoint of step 1, followed by a row of metrics of step 2."""
    with RunDirectory(path) as run:
        run.log({"kind": "train", "step": 1})
        save(run, TrainState(step=1), learner)
        run.log({"kind": "train", "step": 2})


def test_stop_right_after_resume_keeps_the_rows(tmp_path, learner):
    make_killed_run(tmp_path, learner)
    with RunDirectory(tmp_path) as run:
        state = run.restore(learner[0], TOTAL_STEPS)
        state.step = 2
        save(run, state, learner)
    rows = run.rows()
    assert rows == [{"kind": "train", "step": 1}]
    with RunDirectory(tmp_path) as run:
        run.restore(learner[0], TOTAL_STEPS)
        assert run.rows() == rows


@pytest.mark.parametrize("left", ["", '{"kind": "train", "st', '{"kind": "train", "step": 1}'])
def test_resume_without_earlier_metrics_warns(tmp_path, learner, capsys, left):
    make_killed_run(tmp_path, learner)
    (tmp_path / "metrics.jsonl").write_text(left)
    with RunDirectory(tmp_path) as run:
        run.restore(learner[0], TOTAL_STEPS)
        run.log({"kind": "train", "step": 2})
        save(run, TrainState(step=2), learner)
    with RunDirectory(tmp_path) as run:
        run.restore(learner[0], TOTAL_STEPS)
    assert run.rows() == [{"kind": "train", "step": 2}]
    problem = "lacks rows that were logged up to step 1; the run resumes, and its report lacks their figures"
    assert capsys.readouterr().err == f"warning: {tmp_path}/metrics.jsonl: {problem}\n"


@pytest.mark.parametrize("state", [TrainState(step=TOTAL_STEPS), TrainState(step=1, is_done=True)])
def test_resume_without_metrics_after_the_last_step_is_refused(tmp_path, learner, state):
    with RunDirectory(tmp_path) as run:
        run.log({"kind": "train", "step": state.step})
        save(run, state, learner)
    (tmp_path / "metrics.jsonl").unlink()
    message = rf"metrics\.jsonl: lacks rows .* up to step {state.step}; restore the file, or remove .*step-0"
    with RunDirectory(tmp_path) as run, pytest.raises(DataError, match=message):
        run.restore(learner[0], TOTAL_STEPS)


def test_resume_drops_a_torn_last_line(tmp_path, learner):
    make_killed_run(tmp_path, learner)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 3, "lo')
    with RunDirectory(tmp_path) as run:
        assert run.rows() == [{"kind": "train", "step": 1}, {"kind": "train", "step": 2}]
        run.restore(learner[0], TOTAL_STEPS)
        run.log({"kind": "train", "step": 2})
    assert (
        tmp_path / "metrics.jsonl"
    ).read_text() == '{"kind": "train", "step": 1}\n{"kind": "train", "step": 2}\n'


def test_weights_are_as_readable_as_other_files(tmp_path, learner):
    make_killed_run(tmp_path, learner)
    modes = {file.stat().st_mode for file in (tmp_path / "checkpoints/step-00000001").iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_changed_byte_in_a_checkpoint_is_detected(tmp_path, learner, name):
    make_killed_run(tmp_path, learner)
    file = tmp_path / "checkpoints" / "step-00000001" / name
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    message = rf"{name}: does not match its checksum in SHA256SUMS; remove {file.parent} to resume from the"
    with RunDirectory(tmp_path) as run, pytest.raises(ModelError, match=message):
        run.restore(learner[0], TOTAL_STEPS)


@pytest.mark.parametrize("lines", [1, 2])
def test_cut_sums_of_a_checkpoint_are_detected(tmp_path, learner, lines):
    make_killed_run(tmp_path, learner)
    sums = tmp_path / "checkpoints/step-00000001/SHA256SUMS"
    sums.write_text("".join(sums.read_text().splitlines(keepends=True)[:lines]))
    with RunDirectory(tmp_path) as run, pytest.raises(ModelError, match=r"does not list state\.json, so its"):
        run.restore(learner[0], TOTAL_STEPS)


def test_only_the_main_process_writes(tmp_path, learner):
    make_killed_run(tmp_path / "run", learner)
    with RunDirectory(tmp_path / "run") as run:
        save(run, TrainState(step=2), learner)
    shutil.copytree(tmp_path / "run", tmp_path / "before")
    with RunDirectory(tmp_path / "run", is_main=False, tensorboard=True, arguments={}) as run:
        state = run.restore(learner[0], TOTAL_STEPS)
        run.restore_moments(*learner)
        run.write_settings(OptimizerSettings())
        run.log({"kind": "train", "step": 3})
        state.step = 3
        save(run, state, learner)
        run.rotate(save_every=0, keep_checkpoints=1)
        run.remove_checkpoints()
    for file in (tmp_path / "before").rglob("*"):
        copy = tmp_path / "run" / file.relative_to(tmp_path / "before")
        assert copy.is_dir() if file.is_dir() else copy.read_bytes() == file.read_bytes()
    assert len([*(tmp_path / "run").rglob("*")]) == len([*(tmp_path / "before").rglob("*")])


def test_newest_checkpoint_is_kept_without_regular_ones(tmp_path, learner):
    with RunDirectory(tmp_path) as run:
        for step in (1, 2):
            save(run, TrainState(step=step), learner, save_every=0)
    assert [path.name for path in run.checkpoints()] == ["step-00000002"]


def test_rotation_that_a_kill_interrupted_is_repeated(tmp_path, learner):
    with RunDirectory(tmp_path) as run:
        for step in (1, 2, 3):
            save(run, TrainState(step=step), learner, save_every=1, keep_checkpoints=3)
        run.rotate(save_every=1, keep_checkpoints=2)
    assert [path.name for path in run.checkpoints()] == ["step-00000002", "step-00000003"]


def test_copy_of_a_checkpoint_is_ignored(tmp_path, learner):
    make_killed_run(tmp_path, learner)
    (tmp_path / "checkpoints" / "step-00000001.bak").mkdir()
    with RunDirectory(tmp_path) as run:
        save(run, run.restore(learner[0], TOTAL_STEPS), learner)


def test_checkpoints_folder_may_be_a_link(tmp_path, learner):
    (tmp_path / "large disk").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "large disk")
    make_killed_run(tmp_path / "run", learner)
    with RunDirectory(tmp_path / "run") as run:
        assert run.restore(learner[0], TOTAL_STEPS).step == 1
    run.finish(1)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not (tmp_path / "run" / "checkpoints").is_symlink()
    make_killed_run(tmp_path / "run", learner)


def test_leftover_link_is_removed_but_not_its_target(tmp_path):
    write_text(tmp_path / "elsewhere" / "file", "kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".model.bertie-tmp").symlink_to(tmp_path / "elsewhere")
    with RunDirectory(tmp_path / "run"):
        assert not (tmp_path / "run" / ".model.bertie-tmp").is_symlink()
    assert (tmp_path / "elsewhere" / "file").read_text() == "kept"
