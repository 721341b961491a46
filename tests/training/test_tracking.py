"""TensorBoard's own reader sees the metrics that were logged."""

import pytest

from bertie.training.tracking import TensorBoard

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def read_scalars(folder, tag) -> list[tuple[int, float]]:
    reader = event_accumulator.EventAccumulator(str(folder))
    reader.Reload()
    return [(event.step, event.value) for event in reader.Scalars(tag)]


def test_resumed_run_has_each_step_once(tmp_path):
    first = TensorBoard(tmp_path)
    for step in (10, 20, 30):
        first.log({"kind": "train", "step": step, "loss": step / 2})
    first.close()
    second = TensorBoard(tmp_path)
    for step in (20, 30):
        second.log({"kind": "train", "step": step, "loss": step / 4})
    second.log({"kind": "evaluation", "step": 30, "perplexity": 8.0})
    second.close()
    assert read_scalars(tmp_path, "train/loss") == [(10, 5.0), (20, 5.0), (30, 7.5)]
    assert read_scalars(tmp_path, "evaluation/perplexity") == [(30, 8.0)]


def test_text_is_not_logged(tmp_path):
    board = TensorBoard(tmp_path)
    board.log({"kind": "warning", "step": 1, "check": "a", "message": "b"})
    board.close()
