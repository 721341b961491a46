"""The learning rate as a function of the step, and of nothing else."""


def warmup_then_linear_decay(step: int, total_steps: int, warmup_steps: int) -> float:
    """The share of the peak learning rate at `step`, which counts from 0 (optimization.py:32-54).

    During warm-up it is step / warmup_steps, so the first step has the rate 0; after it
    1 - step / total_steps, which is decayed from the start of training, not from the end of warm-up.
    """
    if step < warmup_steps:
        return step / warmup_steps
    return 1.0 - step / total_steps
