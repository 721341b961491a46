"""The learning rate at the places where implementations differ."""

import pytest

from bertie.training.schedules import warmup_then_linear_decay


@pytest.mark.parametrize(
    ("step", "share"),
    [(0, 0.0), (5, 0.5), (9, 0.9), (10, 0.9), (50, 0.5), (99, 0.01)],  # falls from 1 - 10 / 100 on
)
def test_warmup_then_decay_from_the_start_of_training(step, share):
    assert warmup_then_linear_decay(step, total_steps=100, warmup_steps=10) == pytest.approx(share)


def test_no_warmup_begins_at_the_peak():
    assert warmup_then_linear_decay(0, total_steps=10, warmup_steps=0) == 1.0
