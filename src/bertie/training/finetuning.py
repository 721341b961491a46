"""Fine-tuning (Section 4, Appendix A.3): an encoder and a new head learn a task.

`search.py` runs the grid of Appendix A.3. A task may change default settings (`Task.defaults`).
"""

import hashlib
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bertie.base.checksums import verify
from bertie.base.environment import require_memory
from bertie.base.errors import ModelError, SettingsError
from bertie.base.files import sha256
from bertie.base.locks import lock_directory
from bertie.base.progress import Progress
from bertie.base.random import stream_key
from bertie.base.texts import count_noun
from bertie.model.bert import add_bilstm
from bertie.model.config import BertConfig
from bertie.model.engines.torch_engine import evaluation_engine
from bertie.model.formats.directory import LongTexts, ModelMetadata, read_metadata
from bertie.model.formats.huggingface import find_weight_files
from bertie.model.formats.sentence_transformers import EmbeddingConfig, find_transformer_folder
from bertie.model.formats.weights import load_weights
from bertie.model.heads import (
    ClassificationModel,
    ContrastiveModel,
    EmbeddingModel,
    MultipleChoiceModel,
    QuestionAnsweringModel,
    TokenClassificationModel,
)
from bertie.tasks.evaluation import (
    EncodedExamples,
    Evaluation,
    check_length,
    evaluate,
    majority_baselines,
    report_shared,
    report_truncated,
)
from bertie.tasks.task import Inputs, Scores, Task
from bertie.text.tokenizer import Tokenizer
from bertie.training.checkpoints import RunDirectory, TrainState
from bertie.training.class_weights import check_class_weights, label_weights
from bertie.training.contrastive import (
    ContrastiveBatches,
    check_contrastive,
    describe_contrastive,
    fit_classifier,
)
from bertie.training.distributed import LossFunction, Ranks
from bertie.training.finetuning_batches import FinetuningBatches
from bertie.training.finetuning_settings import (
    MAY_CHANGE,
    FinetuningSettings,
    lacking_settings,
    loop_schedule,
    training_indices,
)
from bertie.training.loop import Batches, LoopSchedule, isolated_torch, train, training_lock
from bertie.training.model_selection import ModelSelection
from bertie.training.optimizers import build_optimizer, layer_of
from bertie.training.resuming import check_run

TaskModel = (
    ClassificationModel
    | TokenClassificationModel
    | QuestionAnsweringModel
    | MultipleChoiceModel
    | EmbeddingModel
)


class InitialModel(NamedTuple):
    """The encoder to fine-tune; its weights are random if `weights` is None.

    `embedding` is how its directory embeds texts, None unless it has sentence-transformers' layout.
    """

    config: BertConfig
    tokenizer: Tokenizer
    weights: Path | None
    embedding: EmbeddingConfig | None = None

    @classmethod
    def load(cls, path: Path) -> "InitialModel":
        """Read a model directory; raise ModelError if it is missing or not one."""
        metadata = read_metadata(path)
        return cls(metadata.config, metadata.tokenizer, path, metadata.embedding)


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
    inputs_reported: bool = False,
    ranks: Ranks | None = None,
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
        inputs_reported: whether the notes of `report_inputs` have been printed before.
        ranks: the processes that train together; None for only this one.
        arguments: recorded in `output`/arguments.json.
        sources: descriptions of the model card: the initial model as "base model", and the data by
            part.

    Returns:
        Predictions and scores of the model that was kept.

    Raises:
        SettingsError: the settings do not fit the model, the machine or the resumed run.
        ModelError: the model reads no pairs of texts, or the model of a resumed run is damaged.
        DataError: the resumed run started with other examples or another model.
        BertieError: another process writes to `output`.
        Stopped: a signal stopped the run; it is saved and can be resumed.
    """
    require_memory(192)  # for oneDNN, compiled kernels and the pictures of the report, which abort without it
    ranks = ranks or Ranks()
    with training_lock, lock_directory(output) if ranks.is_main else nullcontext():
        task = apply_settings(task, settings, dev_examples)
        check_class_weights(task, settings)  # before the examples are encoded, which takes long
        data = encode_examples(task, initial_model, training_examples, dev_examples, settings)
        if settings.contrastive_pairs:
            check_contrastive(task, data[0], settings, ranks)
        sources = {**(sources or {}), **describe_contrastive(len(data[0]), settings)}
        silent = silent or not ranks.is_main
        if not (silent or inputs_reported):
            report_inputs(task, *data)
        baselines = majority_baselines(task, training_examples, dev_examples)
        run = RunDirectory(output, ranks.is_main, arguments=arguments)
        with isolated_torch(ranks.place(data[-1].device)):
            return _finetune(task, initial_model, *data, baselines, sources, run, ranks, resume, silent)


def report_inputs(
    task: Task[Any, Any], training: Inputs, parts: Mapping[str, EncodedExamples], settings: FinetuningSettings
) -> None:
    """Print how many examples are left out or truncated.

    Also print how many dev inputs are training inputs.
    """
    if (count := len(training_indices(training, settings))) < training.num_examples:
        unit = "windows" if task.head in ("spans", "tagging") else "examples"
        whole = f"{training.num_examples:,} {unit}"
        print(f"train: trains on {count:,} of {whole} (max_training_examples)", file=sys.stderr)
    length, pooling = settings.max_seq_length, settings.classifier_pooling
    report_truncated("train", task, training, length, pooling)
    for name, part in parts.items():
        report_truncated(name, task, part.inputs, length, pooling)
        report_shared(name, part.inputs, training)


def _finetune(
    task: Task[Any, Any],
    initial_model: InitialModel,
    inputs: Inputs,
    parts: Mapping[str, EncodedExamples],
    settings: FinetuningSettings,
    baselines: Mapping[str, Scores],
    sources: Mapping[str, str],
    run: RunDirectory,
    ranks: Ranks,
    resume: bool,
    silent: bool,
) -> Evaluation:
    """Start, resume or only evaluate a run, whose directory is locked."""
    lacking = lacking_settings(run.settings_file)
    check_run(run, settings, resume, MAY_CHANGE | lacking)
    settings = settings.model_copy(update=dict.fromkeys(lacking))
    schedule = loop_schedule(inputs, settings)
    is_finished = run.is_finished(schedule.total_steps)
    ranks.barrier()  # let all ranks look for an earlier run before the main process writes this one
    initial_model = initial_model._replace(config=_with_dropout(initial_model.config, settings))
    class_weights = label_weights(task, inputs, settings)
    model = _build_model(task, initial_model, settings, class_weights).to(ranks.place(settings.device))
    metadata = ModelMetadata(
        initial_model.config,
        model.architecture,
        task.labels,
        initial_model.tokenizer,
        task.problem_type,
        max_seq_length=settings.max_seq_length,
        embedding=_embedding_config(task, initial_model, settings),
        bilstm=settings.bilstm,
        input_columns=task.input_columns,
        label_columns=task.label_columns,
        label_separator=task.separator,
        long_texts=task.long_texts,
        classifier_pooling=settings.classifier_pooling,
    )
    selection = ModelSelection(
        task, model, metadata, parts, baselines, settings, run.path, sources, class_weights
    )
    last_step = schedule.total_steps
    if not is_finished:
        last_step = _train(run, model, inputs, settings, schedule, selection, ranks, resume, silent)
    evaluation = None
    if ranks.is_main:
        run.finish(last_step)
        evaluation = selection.kept
        if evaluation is None:  # an earlier process saved the model
            verify(run.model_directory)
            load_weights(run.model_directory, model)
            with evaluation_engine(model, settings.in_float32()) as engine:
                evaluation = evaluate(task, engine, parts, metadata.embedding)
    evaluation = ranks.share(evaluation)
    assert evaluation is not None
    return evaluation


def _embedding_config(
    task: Task[Any, Any], initial_model: InitialModel, settings: FinetuningSettings
) -> EmbeddingConfig | None:
    """Return how the fine-tuned model embeds texts; None if the task has another head.

    Raises:
        SettingsError: there is a BiLSTM, which the vectors do not include.
    """
    if task.head != "embedding":
        return None
    if settings.bilstm:
        raise SettingsError("bilstm: embeddings are computed from the encoder; omit the BiLSTM")
    embedding = initial_model.embedding or EmbeddingConfig()
    return embedding._replace(max_seq_length=settings.max_seq_length)


def apply_settings(
    task: Task[Any, Any], settings: FinetuningSettings, dev_examples: Mapping[str, Any]
) -> Task[Any, Any]:
    """Return a task with the settings that concern its inputs, scores and decisions.

    Raises:
        SettingsError: a setting does not fit the task, or needs dev examples and there are none.
    """
    for key in ("patience", "main_metric", "tune_threshold", "calibrate"):
        if getattr(settings, key) and not dev_examples:
            raise SettingsError(f"{key} needs dev examples; give some as --dev (dev=…), or leave it out")
    if settings.main_metric is not None:
        task = task.with_main_metric(settings.main_metric)
    if settings.tune_threshold:
        task = task.with_thresholds()
    long_texts = LongTexts(
        method=settings.long_texts, stride=settings.window_stride, pooling=settings.window_pooling
    )
    has_windows = settings.window_stride > 0 or settings.window_pooling != "mean"
    if settings.long_texts != "truncate" or has_windows:
        task = task.with_long_texts(long_texts)
    if settings.long_texts != "windows" and has_windows:
        raise SettingsError(
            "window_stride and window_pooling need long_texts=windows; add it, or leave them out"
        )
    return task.with_calibration() if settings.calibrate else task


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
    selection: ModelSelection,
    ranks: Ranks,
    resume: bool,
    silent: bool,
) -> int:
    """Train to the end of the schedule, or until there is no better epoch.

    Return the last step.
    """

    def evaluate_and_save() -> dict[str, float]:
        if isinstance(model, ContrastiveModel):
            fit_classifier(model, inputs, settings)
        return selection.evaluate_and_save(state, progress) if ranks.is_main else {}

    with run:
        state = run.restore(model, schedule.total_steps) if resume else TrainState()
        # Embeddings are learned without BERT's pooler, which the model keeps.
        compute_losses = LossFunction(model, ranks, may_skip_parameters=isinstance(model, EmbeddingModel))
        optimizer = build_optimizer(model, settings.optimizer, settings.layer_decay)
        if resume:
            run.restore_moments(model, optimizer)
        run.write_settings(settings)
        title = f"fine-tuning {run.path.name}"
        with Progress(title, schedule.total_steps, "steps", state.step, silent) as progress:
            train(
                compute_losses,
                _batches(inputs, settings, state.step, model, ranks),
                optimizer,
                learning_rate=settings.optimizer.learning_rate,
                max_gradient_norm=settings.optimizer.max_gradient_norm,
                schedule=schedule,
                seed=settings.seed,
                state=state,
                run=run,
                evaluate=evaluate_and_save,
                progress=progress,
                ranks=ranks,
                autocast=settings.autocast(),
            )
            if state.step < schedule.total_steps:
                epochs = count_noun(settings.patience, "epoch")
                progress.print(f"stopped at step {state.step:,}: {epochs} without a better score (patience)")
    return state.step


def _batches(
    inputs: Inputs, settings: FinetuningSettings, step: int, model: TaskModel, ranks: Ranks
) -> Batches:
    if isinstance(model, ContrastiveModel):
        return ContrastiveBatches(inputs, settings, step)
    return FinetuningBatches(inputs, settings, step, model, ranks)


def _build_model(
    task: Task[Any, Any],
    initial_model: InitialModel,
    settings: FinetuningSettings,
    class_weights: Mapping[str, float],
) -> TaskModel:
    """Build the encoder with a new head for the task."""
    torch.manual_seed(int(stream_key(settings.seed)))
    model = _new_model(task, initial_model, settings)
    if settings.bilstm:
        add_bilstm(model.bert, initial_model.config)
    if initial_model.weights is not None:
        load_weights(initial_model.weights, model, prefix="bert.")
    if class_weights:
        assert isinstance(model, ClassificationModel | TokenClassificationModel)
        model.class_weights = torch.tensor([class_weights[label] for label in task.labels])
    _freeze_layers(model, settings.frozen_layers)
    model.bert.gradient_checkpointing = settings.gradient_checkpointing
    return model


def check_frozen_layers(settings: FinetuningSettings, config: BertConfig) -> None:
    """Raise SettingsError if `frozen_layers` exceeds the layers of a model."""
    num_layers = config.num_hidden_layers
    if settings.frozen_layers > num_layers:
        raise SettingsError(
            f"frozen_layers {settings.frozen_layers} exceeds the model's {count_noun(num_layers, 'layer')}; "
            f"use {num_layers} or less"
        )


def _freeze_layers(model: TaskModel, frozen_layers: int) -> None:
    """Exclude the embeddings and the lowest layers from training; 0 excludes nothing."""
    for name, parameter in model.named_parameters():
        layer = layer_of(name)
        parameter.requires_grad = not frozen_layers or layer is None or layer > frozen_layers


def _new_model(task: Task[Any, Any], initial_model: InitialModel, settings: FinetuningSettings) -> TaskModel:
    """Build an encoder with the task's head, with random weights."""
    config = initial_model.config
    if settings.contrastive_pairs:
        return ContrastiveModel(config, len(task.labels))
    match task.head:
        case "classification":
            return ClassificationModel(config, max(len(task.labels), 1), task.problem_type)
        case "tagging":
            return TokenClassificationModel(config, len(task.labels))
        case "spans":
            return QuestionAnsweringModel(config)
        case "choices":
            return MultipleChoiceModel(config)
        case "embedding":
            return EmbeddingModel(config, (initial_model.embedding or EmbeddingConfig()).pooling)


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
        SettingsError: sequences would be longer than the model's positions, more layers are frozen
            than the model has, or there is no such device.
        ModelError: the examples are pairs of texts, and the model reads only single texts.
    """
    check_length(settings.max_seq_length, initial_model.config)
    check_frozen_layers(settings, initial_model.config)
    tokenizer, max_seq_length = initial_model.tokenizer, settings.max_seq_length
    inputs = task.encode(training_examples, tokenizer, max_seq_length)
    if initial_model.config.type_vocab_size == 1 and inputs.token_type_ids.any():
        raise ModelError(
            f"{task.name} has pairs of texts, but the model reads only single texts (type_vocab_size is 1); "
            f"start from a model with type_vocab_size 2"
        )
    parts = {
        name: EncodedExamples(examples, task.encode(examples, tokenizer, max_seq_length))
        for name, examples in dev_examples.items()
    }
    fingerprints = {
        "training_fingerprint": _hash_inputs([inputs]),
        "dev_fingerprint": _hash_inputs(part.inputs for part in parts.values()),
        "labels_fingerprint": hashlib.sha256("\n".join(task.labels).encode()).hexdigest(),
        "initial_model_fingerprint": hash_weights(initial_model),
    }
    return inputs, parts, settings.resolved().model_copy(update=fingerprints)


def _hash_inputs(parts: Iterable[Inputs]) -> str:
    """Return a hash of all tokens and labels."""
    digest = hashlib.sha256()
    for inputs in parts:
        for values in (inputs.input_ids, inputs.bounds, inputs.labels):
            digest.update(b"" if values is None else values.tobytes())
    return digest.hexdigest()


def hash_weights(initial_model: InitialModel) -> str:
    """Return the hashes of the weight files, or "random" if there are none to load."""
    if initial_model.weights is None:
        return "random"
    files = find_weight_files(find_transformer_folder(initial_model.weights))
    return " ".join(sha256(file) for file in files if file.exists())  # loading reports a missing file
