"""Fine-tuning (Section 4, Appendix A.3): an encoder and a new head learn a task.

`search.py` runs the grid of Appendix A.3. A task may change default settings (`Task.defaults`).
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pydantic
import torch

from bertie import __version__
from bertie.base.files import read_json, sha256, write_json
from bertie.base.locks import lock_directory
from bertie.base.progress import Progress
from bertie.base.random import permutation, stream_key
from bertie.base.settings import read_toml
from bertie.model.batch import pack_selected
from bertie.model.bert import add_bilstm
from bertie.model.config import BertConfig
from bertie.model.engines.hardware import Hardware
from bertie.model.engines.torch_engine import TorchEngine
from bertie.model.formats.directory import ModelMetadata, read_metadata
from bertie.model.formats.huggingface import find_weight_files
from bertie.model.formats.sentence_transformers import find_transformer_folder
from bertie.model.formats.weights import load_weights, save_model
from bertie.model.heads import (
    ClassificationModel,
    MultipleChoiceModel,
    QuestionAnsweringModel,
    TokenClassificationModel,
)
from bertie.tasks.evaluation import (
    DEFAULT_MAX_SEQ_LENGTH,
    EncodedExamples,
    Evaluation,
    check_length,
    evaluate,
    majority_baselines,
)
from bertie.tasks.task import Inputs, Scores, Task
from bertie.text.tokenizer import Tokenizer
from bertie.training.checkpoints import RunDirectory, TrainState, check_run
from bertie.training.distributed import Ranks
from bertie.training.loop import GlobalBatch, LoopSchedule, split_micro_batches, train
from bertie.training.optimizers import OptimizerSettings, build_optimizer

TaskModel = ClassificationModel | TokenClassificationModel | QuestionAnsweringModel | MultipleChoiceModel

# Settings that may change on resume: where the run computes, and in which parts.
MAY_CHANGE = {"device", "precision", "gradient_checkpointing", "micro_batch_tokens"}

# Settings that runs of earlier versions lack; without them, such runs resume as they started.
ADDED = ("batch_unit", "dropout", "attention_dropout")

SCORES_FILE = "scores.json"
LOG_EVERY = 50  # steps


class FinetuningSettings(Hardware):
    """Settings of a fine-tuning run; the defaults are those of Section 4.1.

    Unlike the paper's code, fine-tuning corrects Adam's bias, which small training sets need.
    """

    seed: int = 0  # of the new head, dropout and the order of the examples
    batch_size: int = pydantic.Field(32, gt=0)  # examples per step; sentences, in tagging
    # Tagging: whether `batch_size` counts sentences or windows over documents. None, in runs of earlier
    # versions, is windows.
    batch_unit: Literal["sentences", "windows"] | None = "sentences"
    epochs: int = pydantic.Field(3, gt=0)
    warmup_ratio: float = pydantic.Field(0.1, ge=0, le=1)  # run_classifier.py:843-845
    max_seq_length: int = pydantic.Field(DEFAULT_MAX_SEQ_LENGTH, gt=2)
    # Train on this many examples (windows, in question answering and tagging), the same for every seed;
    # 0 means all.
    max_training_examples: int = pydantic.Field(0, ge=0)
    micro_batch_tokens: int = pydantic.Field(16384, gt=0)  # about how many tokens are in memory at a time
    # Dropout of the network's layers and of its attention weights: "always 0.1" (Appendix A.3), whatever the
    # initial model was pre-trained with. None, as in runs of earlier versions, keeps the initial model's.
    dropout: float | None = pydantic.Field(0.1, ge=0, lt=1)
    attention_dropout: float | None = pydantic.Field(0.1, ge=0, lt=1)
    bilstm: bool = False  # put a BiLSTM with random weights under the head (Section 5.1)
    keep_best: bool = True  # keep the epoch with the best score on the first dev part, not the last one
    # Hashes of the data and of the initial weights, filled in when the run starts, checked on resume.
    training_fingerprint: str = ""
    dev_fingerprint: str = ""
    initial_model_fingerprint: str = ""
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=5e-5, bias_correction=True)

    renamed: ClassVar[Mapping[str, str]] = {
        "warmup_share": "warmup_ratio",
        "training_set": "training_fingerprint",
        "dev_sets": "dev_fingerprint",
        "start": "initial_model_fingerprint",
    }


class InitialModel(NamedTuple):
    """The encoder to fine-tune; its weights are random if `weights` is None."""

    config: BertConfig
    tokenizer: Tokenizer
    weights: Path | None

    @classmethod
    def load(cls, path: Path) -> "InitialModel":
        """Read a model directory; raise ModelError if it is missing or not one."""
        metadata = read_metadata(path)
        return cls(metadata.config, metadata.tokenizer, path)


def finetune(
    task: Task[Any, Any],
    initial_model: InitialModel,
    training_examples: Any,
    dev_examples: Mapping[str, Any],
    settings: FinetuningSettings,
    output: Path,
    *,
    resume: bool = False,
    silent: bool = False,
    arguments: Mapping[str, Any] | None = None,
    sources: Mapping[str, str] | None = None,
) -> Evaluation:
    """Fine-tune an encoder with a new head; write the model to `output`/model.

    Args:
        task: the task, with its labels known.
        initial_model: the encoder to start from.
        training_examples: the task's examples to train on.
        dev_examples: for each dev part, examples to evaluate on after every epoch. The main score
            on the first part selects the epoch to keep.
        settings: settings of the run.
        output: directory of the run.
        resume: resume the run in `output` from its newest checkpoint, written after an epoch or
            on a stop.
        silent: show no progress.
        arguments: what to record in `output`/arguments.json.
        sources: descriptions of the model card: the initial model as "model", and the data by part.

    Returns:
        Predictions and scores of the model that was kept.

    Raises:
        SettingsError: the settings do not fit the model, the machine or the resumed run.
        DataError: the resumed run started with other examples or another model.
        BertieError: another process writes to `output`.
        Stopped: a signal stopped the run; it is saved and can be resumed.
    """
    with lock_directory(output):
        data = encode_examples(task, initial_model, training_examples, dev_examples, settings)
        baselines = majority_baselines(task, training_examples, dev_examples)
        run = RunDirectory(output, arguments=arguments)
        return _finetune(task, initial_model, *data, baselines, sources or {}, run, resume, silent)


def _finetune(
    task: Task[Any, Any],
    initial_model: InitialModel,
    inputs: Inputs,
    parts: Mapping[str, EncodedExamples],
    settings: FinetuningSettings,
    baselines: Mapping[str, Scores],
    sources: Mapping[str, str],
    run: RunDirectory,
    resume: bool,
    silent: bool,
) -> Evaluation:
    """Start, resume or only evaluate a run, whose directory is locked."""
    lacking = lacking_settings(run.settings_file)
    check_run(run, settings, resume, MAY_CHANGE | lacking)
    settings = settings.model_copy(update=dict.fromkeys(lacking))
    initial_model = initial_model._replace(config=_with_dropout(initial_model.config, settings))
    model = _build_model(task, initial_model, settings)
    metadata = ModelMetadata(
        initial_model.config,
        model.architecture,
        task.labels,
        initial_model.tokenizer,
        task.problem_type,
        max_seq_length=settings.max_seq_length,
        bilstm=settings.bilstm,
        input_columns=task.input_columns,
    )
    selection = _ModelSelection(task, model, metadata, parts, baselines, settings, run.path, sources)
    schedule = _loop_schedule(inputs, settings)
    if not run.is_finished(schedule.total_steps):
        _train(run, model, inputs, settings, schedule, selection, resume, silent)
    run.finish(schedule.total_steps)
    if selection.kept is not None:
        return selection.kept
    # An earlier process saved the model.
    load_weights(run.model_directory, model)
    return evaluate(task, TorchEngine(model, settings.in_float32()), parts)


def lacking_settings(file: Path, section: str = "") -> set[str]:
    """Return the settings in ADDED that the settings file of an existing run does not have.

    Args:
        file: the settings file; if there is none, nothing is lacking.
        section: the section of the file that has the settings of fine-tuning; "" for the whole file.
    """
    if not file.exists():
        return set()
    tree = read_toml(file)
    return set(ADDED) - (tree.get(section, {}) if section else tree).keys()


def _with_dropout(config: BertConfig, settings: FinetuningSettings) -> BertConfig:
    """Return the network's shape with the dropout of fine-tuning."""
    probabilities = {
        "hidden_dropout_prob": settings.dropout,
        "attention_probs_dropout_prob": settings.attention_dropout,
    }
    return config.model_copy(update={key: p for key, p in probabilities.items() if p is not None})


def _train(
    run: RunDirectory,
    model: TaskModel,
    inputs: Inputs,
    settings: FinetuningSettings,
    schedule: LoopSchedule,
    selection: "_ModelSelection",
    resume: bool,
    silent: bool,
) -> None:
    optimizer = build_optimizer(model, settings.optimizer)
    with run:
        state = run.restore(model, optimizer) if resume else TrainState()
        run.write_settings(settings)
        title = f"fine-tuning {run.path.name}"
        with Progress(title, schedule.total_steps, "steps", state.step, silent) as progress:
            train(
                model,
                _global_batches(inputs, settings, state.step, model),
                optimizer,
                learning_rate=settings.optimizer.learning_rate,
                max_gradient_norm=settings.optimizer.max_gradient_norm,
                schedule=schedule,
                seed=settings.seed,
                state=state,
                run=run,
                evaluate=lambda: selection.evaluate_and_save(state.step, progress),
                progress=progress,
                ranks=Ranks(),
                autocast=settings.autocast(),
            )


def _loop_schedule(inputs: Inputs, settings: FinetuningSettings) -> LoopSchedule:
    """Evaluate and save after every epoch; keep one checkpoint."""
    steps_per_epoch = _steps_per_epoch(inputs, settings)
    total_steps = steps_per_epoch * settings.epochs
    return LoopSchedule(
        total_steps=total_steps,
        warmup_steps=int(total_steps * settings.warmup_ratio),
        log_every=min(steps_per_epoch, LOG_EVERY),
        evaluate_every=steps_per_epoch,
        save_every=steps_per_epoch,
        keep_checkpoints=1,
    )


def _step_bounds(inputs: Inputs, settings: FinetuningSettings) -> npt.NDArray[np.int64]:
    """Return which training examples of a shuffled epoch each step reads.

    Step i reads those from bounds[i] to before bounds[i + 1]. Usually these are `batch_size` examples,
    fewer in the last step. In tagging, an example is a window over a document. There, an epoch has as many
    steps as a batch size in sentences gives it, n / batch_size rounded up for n sentences, and the windows
    are divided among its steps in proportion. A step reads at least one window.

    Returns:
        int64 (steps + 1,), from 0 to the number of examples.
    """
    num_examples = len(_training_indices(inputs, settings))
    num_units = num_examples
    if settings.batch_unit == "sentences":  # those of the examples that are trained on
        num_units = -(-inputs.num_batch_units * num_examples // inputs.num_examples)
    batch_size = max(settings.batch_size, -(-num_units // num_examples))
    units = np.append(np.arange(0, num_units, batch_size), num_units)
    return units * num_examples // num_units


def _steps_per_epoch(inputs: Inputs, settings: FinetuningSettings) -> int:
    return len(_step_bounds(inputs, settings)) - 1


class _ModelSelection:
    """Evaluates the model after each epoch, and saves it if it is to be kept.

    kept  evaluation of the saved model; None if this process has saved none
    """

    def __init__(
        self,
        task: Task[Any, Any],
        model: TaskModel,
        metadata: ModelMetadata,
        parts: Mapping[str, EncodedExamples],
        baselines: Mapping[str, Scores],
        settings: FinetuningSettings,
        output: Path,
        sources: Mapping[str, str],
    ) -> None:
        self.task, self.model, self.metadata = task, model, metadata
        self.parts, self.baselines, self.settings = parts, baselines, settings
        self.output, self.sources = output, sources
        self.kept: Evaluation | None = None

    def evaluate_and_save(self, step: int, progress: Progress) -> dict[str, float]:
        """Evaluate on every dev part; return its scores as `PART/METRIC`."""
        evaluation = evaluate(self.task, TorchEngine(self.model, self.settings.in_float32()), self.parts)
        metric = self.task.main_metric
        for part, scores in evaluation.scores.items():
            baseline = self.baselines.get(part)
            beside = f" (majority baseline {baseline[metric]:.2f})" if baseline else ""
            progress.print(f"step {step:,}: {part} {metric} {scores[metric]:.2f}{beside}")
        if not self.settings.keep_best or self._is_best(evaluation.scores):
            self._save(evaluation, step)
        return {
            f"{part}/{metric}": value
            for part, scores in evaluation.scores.items()
            for metric, value in scores.items()
        }

    def _is_best(self, scores: Mapping[str, Scores]) -> bool:
        """Return whether the main score on the first dev part beats the saved model's."""
        files = (self.output / "model", self.output / SCORES_FILE)
        if not scores or not all(file.exists() for file in files):
            return True
        first, metric = next(iter(scores)), self.task.main_metric
        best = read_json(self.output / SCORES_FILE)["scores"][first][metric]
        return bool(scores[first][metric] > best)

    def _save(self, evaluation: Evaluation, step: int) -> None:
        """Save the model, its predictions and its scores."""
        self.kept = evaluation
        metadata = replace(self.metadata, null_threshold=evaluation.task.null_threshold)
        card = _model_card(self.task, self.sources, evaluation.scores, self.baselines)
        save_model(self.output / "model", self.model, metadata, card)
        for part, predictions in evaluation.predictions.items():
            file = self.output / "predictions" / part / self.task.predictions_file
            evaluation.task.write_predictions(self.parts[part].examples, predictions, file)
        scores = {"step": step, "scores": evaluation.scores, "majority_baseline": self.baselines}
        write_json(self.output / SCORES_FILE, scores)


def _build_model(
    task: Task[Any, Any], initial_model: InitialModel, settings: FinetuningSettings
) -> TaskModel:
    """Build the encoder with a new head for the task, on the run's device."""
    torch.manual_seed(int(stream_key(settings.seed)))
    model = _new_model(task, initial_model.config)
    if settings.bilstm:
        add_bilstm(model.bert, initial_model.config)
    if initial_model.weights is not None:
        load_weights(initial_model.weights, model, prefix="bert.")
    model.bert.gradient_checkpointing = settings.gradient_checkpointing
    return model.to(settings.device)


def _new_model(task: Task[Any, Any], config: BertConfig) -> TaskModel:
    """Build an encoder with the task's head, with random weights."""
    match task.head:
        case "classification":
            return ClassificationModel(config, max(len(task.labels), 1), task.problem_type)
        case "tagging":
            return TokenClassificationModel(config, len(task.labels))
        case "spans":
            return QuestionAnsweringModel(config)
        case "choices":
            return MultipleChoiceModel(config)


def _training_indices(inputs: Inputs, settings: FinetuningSettings) -> npt.NDArray[np.int64]:
    """Return the indices of the training examples: int64 (n,), ascending."""
    chosen = permutation(inputs.num_examples, 0)[: settings.max_training_examples or None]
    return np.sort(chosen)


def _global_batches(
    inputs: Inputs, settings: FinetuningSettings, step: int, model: TaskModel
) -> Iterator[GlobalBatch]:
    """Yield batches endlessly, starting at `step`, in a new order each epoch."""
    indices = _training_indices(inputs, settings)
    step_bounds = _step_bounds(inputs, settings)
    example_lengths = np.diff(inputs.bounds[:: inputs.group])
    per_token = isinstance(model, TokenClassificationModel)
    while True:
        epoch, step_in_epoch = divmod(step, len(step_bounds) - 1)
        order = indices[permutation(len(indices), settings.seed, epoch)]
        chosen = order[step_bounds[step_in_epoch] : step_bounds[step_in_epoch + 1]]
        bounds = np.concatenate([[0], np.cumsum(example_lengths[chosen])])
        micro_batches = [
            pack_selected(
                inputs.input_ids,
                inputs.token_type_ids,
                inputs.bounds,
                chosen[start:stop],
                None if per_token else inputs.labels,
                token_labels=inputs.labels if per_token else None,
                group_size=inputs.group,
            )
            for start, stop in split_micro_batches(bounds, settings.micro_batch_tokens)
        ]
        yield GlobalBatch(micro_batches, {}, phase=0)
        step += 1


def encode_examples(
    task: Task[Any, Any],
    initial_model: InitialModel,
    training_examples: Any,
    dev_examples: Mapping[str, Any],
    settings: FinetuningSettings,
) -> tuple[Inputs, dict[str, EncodedExamples], FinetuningSettings]:
    """Encode all examples, and fill in settings that depend on them and the machine.

    Returns:
        The training inputs, the dev parts and the completed settings.

    Raises:
        SettingsError: sequences would be longer than the model's positions, or there is no such
            device.
    """
    check_length(settings.max_seq_length, initial_model.config)
    tokenizer, max_seq_length = initial_model.tokenizer, settings.max_seq_length
    inputs = task.encode(training_examples, tokenizer, max_seq_length)
    parts = {
        name: EncodedExamples(examples, task.encode(examples, tokenizer, max_seq_length))
        for name, examples in dev_examples.items()
    }
    fingerprints = {
        "training_fingerprint": _hash_inputs([inputs]),
        "dev_fingerprint": _hash_inputs(part.inputs for part in parts.values()),
        "initial_model_fingerprint": _hash_weights(initial_model),
    }
    return inputs, parts, settings.resolved().model_copy(update=fingerprints)


def _hash_inputs(parts: Iterable[Inputs]) -> str:
    """Return a hash of all tokens and labels."""
    digest = hashlib.sha256()
    for inputs in parts:
        for values in (inputs.input_ids, inputs.bounds, inputs.labels):
            digest.update(b"" if values is None else values.tobytes())
    return digest.hexdigest()


def _hash_weights(initial_model: InitialModel) -> str:
    """Return the hashes of the weight files, or "random" if there are none to load."""
    if initial_model.weights is None:
        return "random"
    files = find_weight_files(find_transformer_folder(initial_model.weights))
    return " ".join(sha256(file) for file in files if file.exists())  # loading reports a missing file


def _model_card(
    task: Task[Any, Any],
    sources: Mapping[str, str],
    scores: Mapping[str, Scores],
    baselines: Mapping[str, Scores],
) -> str:
    """Return the README.md of the model directory."""
    rows = [
        f"| {part} | {name} | {value:.2f} | {f'{baseline:.2f}' if baseline is not None else ''} |"
        for part, part_scores in scores.items()
        for name, value in part_scores.items()
        for baseline in [baselines.get(part, {}).get(name)]
    ]
    table = ["| part | score | percent | majority baseline |", "|---|---|---|---|", *rows] if rows else []
    facts = [f"- {name}: {value}" for name, value in sources.items()]
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            f"tags: [bert, {task.head}]",
            "---",
            f"# A BERT fine-tuned with bertie: {task.name}",
            "",
            *facts,
            f"- date: {datetime.now(UTC):%Y-%m-%d}",
            f"- bertie: {__version__}",
            "",
            *([f"Labels: {', '.join(task.labels)}.", ""] if task.labels else []),
            *table,
            "",
        ]
    )
