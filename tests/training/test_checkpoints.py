"""A run's directory after stops, kills and what people do to it."""

from pathlib import Path

import pytest

from bertie.base.files import write_text
from bertie.model.config import BertConfig
from bertie.model.heads import MaskedLMModel
from bertie.training.checkpoints import RunDirectory, TrainState
from bertie.training.optimizers import OptimizerSettings, build_optimizer


@pytest.fixture
def learner():
    model = MaskedLMModel(BertConfig(vocab_size=9, hidden_size=12, num_hidden_layers=1, intermediate_size=4))
    return model, build_optimizer(model, OptimizerSettings())


def save(run: RunDirectory, state: TrainState, learner, every=1) -> None:
    run.save(state, *learner, every, keep=2)


def killed(path: Path, learner) -> None:
    """A run whose checkpoint is followed by rows that it does not know."""
    with RunDirectory(path) as run:
        run.log({"step": 1})
        save(run, TrainState(step=1), learner)
        run.log({"step": 2})


@pytest.mark.parametrize("metrics", ["as they were", "removed"])
def test_a_run_stopped_before_its_next_row_can_be_resumed(tmp_path, learner, metrics):
    killed(tmp_path, learner)
    if metrics == "removed":
        (tmp_path / "metrics.jsonl").unlink()
    with RunDirectory(tmp_path) as run:
        state = run.restore(*learner)
        state.step = 2
        save(run, state, learner)
    kept = run.rows()
    with RunDirectory(tmp_path) as run:
        run.restore(*learner)
        assert run.rows() == kept == ([{"step": 1}] if metrics == "as they were" else [])


def test_without_regular_checkpoints_the_newest_is_kept(tmp_path, learner):
    with RunDirectory(tmp_path) as run:
        for step in (1, 2):
            save(run, TrainState(step=step), learner, every=0)
    assert [path.name for path in run.checkpoints()] == ["step-00000002"]


def test_a_copy_of_a_checkpoint_is_none(tmp_path, learner):
    killed(tmp_path, learner)
    (tmp_path / "checkpoints" / "step-00000001.bak").mkdir()
    with RunDirectory(tmp_path) as run:
        save(run, run.restore(*learner), learner)


def test_checkpoints_may_be_a_link(tmp_path, learner):
    (tmp_path / "large disk").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "large disk")
    killed(tmp_path / "run", learner)
    with RunDirectory(tmp_path / "run") as run:
        assert run.restore(*learner).step == 1
    run.forget_checkpoints()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    killed(tmp_path / "run", learner)


def test_a_left_over_link_does_not_lock_a_run_out(tmp_path):
    write_text(tmp_path / "elsewhere" / "file", "kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".model.tmp").symlink_to(tmp_path / "elsewhere")
    with RunDirectory(tmp_path / "run"):
        assert not (tmp_path / "run" / ".model.tmp").is_symlink()
    assert (tmp_path / "elsewhere" / "file").read_text() == "kept"
