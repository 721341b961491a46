"""Learning-rate schedules, which are functions of the step only."""


def warmup_then_linear_decay(step: int, total_steps: int, warmup_steps: int) -> float:
    """Return the fraction of the peak learning rate at `step`, counted from 0.

    The schedule of optimization.py:32-54. It is step / warmup_steps during warm-up, so the first
    step has the rate 0, and 1 - step / total_steps afterwards. The decay counts from the start of
    training, not from the end of warm-up, so the rate drops by warmup_steps / total_steps of its
    peak when warm-up ends.
    """
    if step < warmup_steps:
        return step / warmup_steps
    return 1.0 - step / total_steps
