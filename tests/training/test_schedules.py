"""The learning rate at the steps where implementations differ."""

import pytest

from bertie.training.schedules import warmup_then_linear_decay


@pytest.mark.parametrize(
    ("step", "fraction"),
    [(0, 0.0), (5, 0.5), (9, 0.9), (10, 0.9), (50, 0.5), (99, 0.01)],  # the decay starts at 1 - 10 / 100
)
def test_decay_counts_from_the_start_of_training(step, fraction):
    assert warmup_then_linear_decay(step, total_steps=100, warmup_steps=10) == pytest.approx(fraction)


def test_without_warmup_the_first_step_has_the_peak():
    assert warmup_then_linear_decay(0, total_steps=10, warmup_steps=0) == 1.0
