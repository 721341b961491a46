"""Estimate how long a table from a given model takes, and fit it to a budget.

The estimate measures a few steps of each task, and a few of the tagger over features. Time that grows with
the number of training examples is separate from other time, which a cap on the examples cannot change.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bertie.api.task_data import TaskData
from bertie.base.errors import SettingsError
from bertie.reproduction.feature_tagger import FeatureTaggerSettings, train_feature_tagger
from bertie.training.finetuning import InitialModel, encode_examples, finetune
from bertie.training.metrics_file import read_metrics
from bertie.training.planning import EVALUATION_COST
from bertie.training.search import SearchSettings

MEASURED_STEPS, MEASURED_TOKENS = 4, 2048  # steps to measure, and about how many tokens each of them has
# Steps of the tagger to measure: their time is a difference between two calls, each of which also scores dev.
# With few steps the noise of scoring would be multiplied by the hundreds of steps of a run.
TAGGER_STEPS = 32
MIN_EXAMPLES = 32  # the lowest cap: one step at the paper's batch size


class Cost(NamedTuple):
    """The estimated time of a task's runs, or of the tagger's.

    fixed        seconds of evaluation, of predicting test parts and of starting runs
    per_example  seconds of all runs for each training example
    available    number of training examples, in the unit of `max_training_examples`
    """

    fixed: float
    per_example: float
    available: int

    def seconds(self, cap: int) -> float:
        """Return the seconds with at most `cap` training examples; 0 is no cap."""
        return self.fixed + self.per_example * min(self.available, cap or self.available)


def measure_search(data: TaskData, start: InitialModel, settings: SearchSettings) -> Cost:
    """Estimate a search, by running a few steps of fine-tuning."""
    task = data.task
    inputs, parts, finetuning = encode_examples(task, start, data.training, data.dev, settings.finetuning)
    tokens_per_example = len(inputs.input_ids) / inputs.num_examples
    batch_size = max(1, min(finetuning.batch_size, round(MEASURED_TOKENS / tokens_per_example)))
    changes = {
        "batch_size": batch_size,
        "epochs": 1,
        "batch_unit": None,  # in tagging, windows, as in `inputs`
        # These need a dev part, whose cost is added below.
        **{"patience": 0, "main_metric": None, "tune_threshold": False, "calibrate": False},
    }
    with TemporaryDirectory() as folder:
        for steps in (1, MEASURED_STEPS):  # the first run compiles kernels, or loads them
            run = Path(folder) / f"{steps} steps"
            update = {**changes, "max_training_examples": steps * batch_size}
            started = time.perf_counter()
            finetune(task, start, data.training, {}, finetuning.model_copy(update=update), run, silent=True)
        row = next(row for row in reversed(read_metrics(run / "metrics.jsonl")) if row["kind"] == "train")
    overhead = time.perf_counter() - started - row["seconds"]
    seconds_per_token = 1 / row["tokens_per_second"]
    dev_tokens = sum(len(part.inputs.input_ids) for part in parts.values())
    test_tokens = 0
    for examples in data.test.values():
        test_tokens += len(task.encode(examples, start.tokenizer, finetuning.max_seq_length).input_ids)
    runs = len(settings.batch_sizes) * len(settings.learning_rates) * settings.restarts
    epochs = runs * sum(settings.epochs)
    evaluations = epochs if finetuning.keep_best else runs * len(settings.epochs)
    evaluated_tokens = evaluations * dev_tokens + test_tokens
    return Cost(
        runs * len(settings.epochs) * overhead + evaluated_tokens * seconds_per_token * EVALUATION_COST,
        epochs * tokens_per_example * seconds_per_token,
        inputs.num_examples,
    )


def measure_tagger(model: Path, data: Path, sentences: int, settings: FeatureTaggerSettings) -> Cost:
    """Estimate a tagger over features, by a few steps over the widest ones.

    Args:
        model: the model directory.
        data: the folder of the task's files.
        sentences: the number of training sentences.
        settings: settings of the tagger.
    """
    seconds = []
    for steps in (1, 1, 1 + TAGGER_STEPS):  # the first call computes the features, which are kept
        changes = {"epochs": 1, "max_training_examples": steps * settings.batch_size}
        started = time.perf_counter()
        train_feature_tagger(model, data, "concat-last-four", settings.model_copy(update=changes))
        seconds.append(time.perf_counter() - started)
    per_step = max(seconds[2] - seconds[1], 0) / TAGGER_STEPS
    scoring = max(seconds[1] - per_step, 0)
    return Cost(scoring, settings.epochs * per_step / settings.batch_size, sentences)


def choose_cap(costs: Sequence[Cost], budget: float) -> int:
    """Return the largest cap on training examples that fits the budget.

    The cap is for each task; 0 is none.

    Args:
        costs: the estimates of all tasks.
        budget: seconds.

    Raises:
        SettingsError: even MIN_EXAMPLES examples a task take longer.
    """
    if sum(cost.seconds(0) for cost in costs) <= budget:
        return 0
    least = sum(cost.seconds(MIN_EXAMPLES) for cost in costs)
    if least > budget:
        raise SettingsError(
            f"--budget {budget / 60:g}: evaluation and {MIN_EXAMPLES} training examples a task take about "
            f"{least / 60:.1f} minutes; give at least --budget {int(least / 60) + 1}, or fewer restarts"
        )
    low, high = MIN_EXAMPLES, max(cost.available for cost in costs)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sum(cost.seconds(middle) for cost in costs) <= budget else (low, middle)
    return low
