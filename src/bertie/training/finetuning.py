"""Fine-tuning (Section 4, Appendix A.3): BERT with a new head, all of it trained on a task's examples."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pydantic
import torch

from bertie.base.files import clear_leftovers, read_json, sha256, write_json
from bertie.base.progress import Progress
from bertie.base.random import permutation, stream_key
from bertie.base.settings import write_toml
from bertie.model.batch import pack_selected
from bertie.model.bert import add_bilstm
from bertie.model.config import BertConfig
from bertie.model.engines.hardware import Hardware
from bertie.model.engines.torch_engine import TorchEngine
from bertie.model.formats.directory import ModelMetadata, read_metadata
from bertie.model.formats.huggingface import weight_files
from bertie.model.formats.sentence_transformers import transformer_folder
from bertie.model.formats.weights import load_weights, save_model
from bertie.model.heads import (
    ClassificationModel,
    MultipleChoiceModel,
    QuestionAnsweringModel,
    TokenClassificationModel,
)
from bertie.tasks.evaluation import (
    DEFAULT_MAX_SEQ_LENGTH,
    Evaluation,
    Part,
    check_length,
    evaluate,
    null_threshold_of,
)
from bertie.tasks.task import Head, Inputs, Scores, Task
from bertie.text.tokenizer import Tokenizer
from bertie.training.checkpoints import RunDirectory, TrainState, check_run
from bertie.training.distributed import Ranks
from bertie.training.loop import GlobalBatch, LoopSchedule, split_micro_batches, train
from bertie.training.optimizers import OptimizerSettings, build_optimizer

TaskModel = ClassificationModel | TokenClassificationModel | QuestionAnsweringModel | MultipleChoiceModel
HEADS: dict[Head, type[TaskModel]] = {
    "classification": ClassificationModel,
    "tagging": TokenClassificationModel,
    "spans": QuestionAnsweringModel,
    "choices": MultipleChoiceModel,
}
# What may be another when a run goes on: where and in how large parts numbers are computed.
MAY_CHANGE = {"device", "precision", "gradient_checkpointing", "micro_batch_tokens"}

SCORES_FILE = "scores.json"
LOG_EVERY = 50  # steps


class FinetuningSettings(Hardware):
    """The defaults are those of Section 4.1, and the bias correction that few examples need."""

    seed: int = 0  # of the new head, the dropout and the order of the examples
    batch_size: int = pydantic.Field(32, gt=0)  # examples in a step
    epochs: int = pydantic.Field(3, gt=0)
    warmup_ratio: float = pydantic.Field(0.1, ge=0, le=1)  # run_classifier.py:843-845
    max_seq_length: int = pydantic.Field(DEFAULT_MAX_SEQ_LENGTH, gt=2)
    # Learn from so many examples (of spans and tags: windows), the same ones whatever the seed; 0 is all.
    max_training_examples: int = pydantic.Field(0, ge=0)
    micro_batch_tokens: int = pydantic.Field(16384, gt=0)  # about so many tokens in memory at a time
    bilstm: bool = False  # put a BiLSTM of random weights under the head (Section 5.1)
    keep_best: bool = True  # of all epochs the one with the best score on the first dev part, or the last
    # Hashes of what is learnt from, what judges it and the weights it starts from, filled in at the start,
    # checked on resuming.
    training_set: str = ""
    dev_sets: str = ""
    start: str = ""
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=5e-5, bias_correction=True)

    renamed: ClassVar[Mapping[str, str]] = {"warmup_share": "warmup_ratio"}


class InitialModel(NamedTuple):
    """What fine-tuning starts from: the encoder of a model directory, or random weights without one."""

    config: BertConfig
    tokenizer: Tokenizer
    weights: Path | None

    @classmethod
    def load(cls, model: Path) -> "InitialModel":
        """From a model directory. Raises ModelError where it is none."""
        metadata = read_metadata(model)
        return cls(metadata.config, metadata.tokenizer, model)


def finetune(
    task: Task[Any, Any],
    start: InitialModel,
    training: Any,
    dev: Mapping[str, Any],
    settings: FinetuningSettings,
    output: Path,
    *,
    resume: bool = False,
    silent: bool = False,
) -> Evaluation:
    """Train a task's head and the encoder under it; `output` holds the run, `output`/model the result.

    Args:
        task: with its labels known.
        start: the encoder.
        training: the task's examples to learn from.
        dev: examples to be judged by after each epoch, by the name of the part; the first one chooses.
        settings: of the run.
        output: the run's directory.
        resume: go on with the run in `output` from its last whole epoch.
        silent: show no progress.

    Returns:
        What the model that was kept says of dev, and what it scores.

    Raises:
        SettingsError: the settings do not fit the model, or the run that is there.
        Stopped: a signal came; the run is saved and can be resumed.
    """
    inputs, parts, settings = encode_all(task, start, training, dev, settings)
    run = RunDirectory(output)
    check_run(run, settings, resume, MAY_CHANGE)
    torch.manual_seed(int(stream_key(settings.seed)))
    model = new_model(task, start.config)
    if settings.bilstm:
        add_bilstm(model.bert, start.config)
    if start.weights is not None:
        load_weights(start.weights, model, only="bert.")
    model.bert.gradient_checkpointing = settings.gradient_checkpointing
    model.to(settings.device)
    optimizer = build_optimizer(model, settings.optimizer)
    steps_per_epoch = -(-len(_learnt(inputs, settings)) // settings.batch_size)
    total_steps = steps_per_epoch * settings.epochs
    metadata = ModelMetadata(
        start.config,
        model.architecture,
        task.labels,
        start.tokenizer,
        task.problem_type,
        max_seq_length=settings.max_seq_length,
        bilstm=settings.bilstm,
    )
    judge = _Judge(task, model, parts, settings, metadata, output)
    if not _has_ended(run, total_steps):
        with run:
            state = run.restore(model, optimizer) if resume else TrainState()
            write_toml(run.settings_file, settings)
            with Progress(
                f"fine-tuning {output.name}", total_steps, "steps", done=state.step, silent=silent
            ) as progress:
                train(
                    model,
                    _global_batches(inputs, settings, steps_per_epoch, state.step, model),
                    optimizer,
                    learning_rate=settings.optimizer.learning_rate,
                    max_gradient_norm=settings.optimizer.max_gradient_norm,
                    schedule=_pace(settings, steps_per_epoch),
                    seed=settings.seed,
                    state=state,
                    run=run,
                    evaluate=lambda: judge.evaluate_and_keep(state.step, progress),
                    progress=progress,
                    ranks=Ranks(),
                    autocast=settings.autocast(),
                )
        run.forget_checkpoints()
    else:
        clear_leftovers(output)  # of checkpoints, where a kill came while they were forgotten
    if judge.kept is None:  # the best epoch was before the run was resumed
        load_weights(run.model_directory, model)
        return evaluate(task, TorchEngine(model, settings.exact()), parts)
    return judge.kept


def _pace(settings: FinetuningSettings, steps_per_epoch: int) -> LoopSchedule:
    """Every epoch is judged and saved."""
    total_steps = steps_per_epoch * settings.epochs
    return LoopSchedule(
        total_steps=total_steps,
        warmup_steps=int(total_steps * settings.warmup_ratio),
        log_every=min(steps_per_epoch, LOG_EVERY),
        evaluate_every=steps_per_epoch,
        save_every=steps_per_epoch,
        keep_checkpoints=1,
    )


class _Judge:
    """Scores the model after each epoch, and keeps the best one."""

    def __init__(
        self,
        task: Task[Any, Any],
        model: TaskModel,
        parts: Mapping[str, Part],
        settings: FinetuningSettings,
        metadata: ModelMetadata,
        output: Path,
    ) -> None:
        self.task, self.model, self.parts, self.settings = task, model, parts, settings
        self.metadata, self.output = metadata, output
        self.kept: Evaluation | None = None

    def evaluate_and_keep(self, step: int, progress: Progress) -> dict[str, float]:
        """The scores of every dev part, for metrics.jsonl."""
        task, output = self.task, self.output
        now = evaluate(task, TorchEngine(self.model, self.settings.exact()), self.parts)
        for name, scores in now.scores.items():
            progress.say(f"step {step:,}: {name} {task.main_metric} {scores[task.main_metric]:.2f}")
        if not self.settings.keep_best or _is_better(task, now.scores, output):
            self.kept = now
            described = replace(self.metadata, null_threshold=null_threshold_of(now.task))
            save_model(output / "model", self.model, described, _card(task, now.scores))
            for name, predictions in now.predictions.items():
                file = output / "predictions" / name / task.predictions_file
                now.task.write_predictions(self.parts[name].examples, predictions, file)
            write_json(output / SCORES_FILE, {"step": step, "scores": now.scores})
        return {
            f"{part}/{metric}": value
            for part, scores in now.scores.items()
            for metric, value in scores.items()
        }


def _has_ended(run: RunDirectory, total_steps: int) -> bool:
    return not run.checkpoints() and any(row["step"] == total_steps for row in run.rows())


def new_model(task: Task[Any, Any], config: BertConfig) -> TaskModel:
    """The task's head on a new encoder."""
    head = HEADS[task.head]
    if head is ClassificationModel:
        return ClassificationModel(config, max(len(task.labels), 1), task.problem_type)
    if head is TokenClassificationModel:
        return TokenClassificationModel(config, len(task.labels))
    return head(config)  # type: ignore[call-arg]


def _learnt(inputs: Inputs, settings: FinetuningSettings) -> Any:
    """The numbers of the examples that are learnt from: int64."""
    chosen = permutation(inputs.examples, 0)[: settings.max_training_examples or None]
    return np.sort(chosen)


def _global_batches(
    inputs: Inputs, settings: FinetuningSettings, steps_per_epoch: int, step: int, model: TaskModel
) -> Iterator[GlobalBatch]:
    """The batches from `step` on, each epoch's in an order of its own."""
    learnt = _learnt(inputs, settings)
    example_lengths = np.diff(inputs.bounds[:: inputs.group])
    per_token = isinstance(model, TokenClassificationModel)
    while True:
        epoch, place = divmod(step, steps_per_epoch)
        order = learnt[permutation(len(learnt), settings.seed, epoch)]
        chosen = order[place * settings.batch_size : (place + 1) * settings.batch_size]
        bounds = np.concatenate([[0], np.cumsum(example_lengths[chosen])])
        micro_batches = [
            pack_selected(
                inputs.input_ids,
                inputs.token_type_ids,
                inputs.bounds,
                chosen[first:last],
                None if per_token else inputs.labels,
                token_labels=inputs.labels if per_token else None,
                group=inputs.group,
            )
            for first, last in split_micro_batches(bounds, settings.micro_batch_tokens)
        ]
        yield GlobalBatch(micro_batches, {}, phase=0)
        step += 1


def _is_better(task: Task[Any, Any], scores: dict[str, Scores], output: Path) -> bool:
    """Whether the first dev part's main score beats that of the best model so far."""
    if not scores or not (output / SCORES_FILE).exists():
        return True
    first = next(iter(scores))
    best = read_json(output / SCORES_FILE)["scores"][first][task.main_metric]
    return bool(scores[first][task.main_metric] > best)


def encode_all(
    task: Task[Any, Any],
    start: InitialModel,
    training: Any,
    dev: Mapping[str, Any],
    settings: FinetuningSettings,
) -> tuple[Inputs, dict[str, Part], FinetuningSettings]:
    """What is learnt from, what judges it, and the settings with what only these and the machine can tell.

    Raises:
        SettingsError: they do not fit the model, or there is no such device.
    """
    check_length(settings.max_seq_length, start.config)
    inputs = task.encode(training, start.tokenizer, settings.max_seq_length)
    parts = {
        name: Part(examples, task.encode(examples, start.tokenizer, settings.max_seq_length))
        for name, examples in dev.items()
    }
    found = {
        "training_set": _digest([inputs]),
        "dev_sets": _digest(part.inputs for part in parts.values()),
        "start": _fingerprint(start),
    }
    return inputs, parts, settings.resolved().model_copy(update=found)


def _digest(parts: Iterable[Inputs]) -> str:
    """The hash of all tokens and labels."""
    digest = hashlib.sha256()
    for inputs in parts:
        for values in (inputs.input_ids, inputs.bounds, inputs.labels):
            digest.update(b"" if values is None else values.tobytes())
    return digest.hexdigest()


def _fingerprint(start: InitialModel) -> str:
    """The hashes of the files that weights come from. One that is missing, loading names."""
    if start.weights is None:
        return "random"
    files = weight_files(transformer_folder(start.weights))
    return " ".join(sha256(file) for file in files if file.exists())


def _card(task: Task[Any, Any], scores: dict[str, Scores]) -> str:
    """The model directory's README.md."""
    rows = [
        f"| {part} | {name} | {value:.2f} |"
        for part, part_scores in scores.items()
        for name, value in part_scores.items()
    ]
    table = ["| part | score | percent |", "|---|---|---|", *rows] if rows else []
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            f"tags: [bert, {task.head}]",
            "---",
            f"# A BERT fine-tuned with bertie: {task.name}",
            "",
            *([f"Labels: {', '.join(task.labels)}.", ""] if task.labels else []),
            *table,
            "",
        ]
    )
