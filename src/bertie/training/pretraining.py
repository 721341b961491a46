"""Pre-training (Section 3.1): from a prepared corpus to a model directory.

`loop.py` takes the steps, `pretraining_setup.py` makes the model and the batches, and
`pretraining_settings.py` has the hyper-parameters of Appendix A.2.
"""

import math
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from bertie import __version__
from bertie.base.errors import BertieError
from bertie.base.locks import lock_directory
from bertie.base.progress import Progress
from bertie.base.texts import escape_markdown
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import save_model
from bertie.model.objectives import TOKEN_OBJECTIVES
from bertie.training.checkpoints import RunDirectory, TrainState
from bertie.training.distributed import LossFunction, Ranks, gather_weights, join_ranks
from bertie.training.held_out import HeldOut
from bertie.training.loop import isolated_torch, train, training_lock
from bertie.training.metrics_file import last_change
from bertie.training.optimizers import build_optimizer
from bertie.training.planning import measure_plan
from bertie.training.pretraining_settings import MAY_CHANGE, PretrainingSettings
from bertie.training.pretraining_setup import (
    PretrainedModel,
    PretrainingBatches,
    PretrainingSetup,
    check_batch_sizes,
)
from bertie.training.resuming import check_run


def pretrain(
    settings: PretrainingSettings,
    corpus_path: Path,
    output: Path,
    *,
    init: Path | None = None,
    resume: bool = False,
    silent: bool = False,
    arguments: Mapping[str, Any] | None = None,
) -> None:
    """Pre-train a model on a prepared corpus; write it to `output`/model.

    A run that starts from another model evaluates it first, so that step 0 has a row in metrics.jsonl.

    Args:
        settings: settings of the run.
        corpus_path: corpus written by `bertie prepare`.
        output: directory of the run.
        init: model directory with the initial weights; None for random ones.
        resume: resume the run in `output` from its newest checkpoint.
        silent: show no progress.
        arguments: recorded in `output`/arguments.json.

    Raises:
        SettingsError: the settings do not fit the corpus, the machine or the resumed run.
        DataError: the corpus is missing, damaged, or not the resumed run's.
        ModelError: the model in `init` does not fit the settings or the corpus.
        Stopped: a signal stopped the run; it is saved and can be resumed.
    """
    setup = PretrainingSetup.load(settings, corpus_path, init=init, verify=True)
    settings = setup.settings
    with (
        training_lock,
        join_ranks(torch.device(settings.device).type) as ranks,
        isolated_torch(ranks.place(settings.device)),
        lock_directory(output) if ranks.is_main else nullcontext(),
    ):
        run = RunDirectory(output, ranks.is_main, settings.tensorboard, arguments)
        _pretrain(setup, run, ranks, init, resume, silent)  # drops the model before the ranks part


def _pretrain(
    setup: PretrainingSetup,
    run: RunDirectory,
    ranks: Ranks,
    init: Path | None,
    resume: bool,
    silent: bool,
) -> None:
    """Pre-train as one of the ranks; see `pretrain`."""
    settings = setup.settings
    check_run(run, settings, resume, MAY_CHANGE)
    if resume and _is_finished(run, settings):
        if ranks.is_main:
            print(f"{run.path}: has finished; the model is in {run.model_directory}", file=sys.stderr)
        return
    check_batch_sizes(settings, ranks)
    ranks.barrier()  # let all ranks look for an earlier run before the main process writes this one
    model = setup.build_model(init, ranks)
    held_out = HeldOut(setup)
    with run:
        state = _train(setup, model, held_out, run, ranks, init is not None, resume, silent)
    weights = gather_weights(model)
    if ranks.is_main:
        evaluations = [row for row in run.rows() if row["kind"] == "evaluation"]
        losses = [row.get(f"{name}_loss", 0.0) for row in evaluations[-1:] for name in TOKEN_OBJECTIVES]
        if not all(map(math.isfinite, losses)):
            raise BertieError(
                f"{run.path}: the run has diverged: its last evaluation has no finite loss, so there is no "
                f"model; start again with a lower optimizer.learning_rate"
            )
        metadata = ModelMetadata(settings.model, model.architecture, (), setup.tokenizer)
        save_model(run.model_directory, weights, metadata, _model_card(run.path, setup, state))
    ranks.barrier()  # a rank that leaves first may fail on exit, and torchrun would stop the others


def _is_finished(run: RunDirectory, settings: PretrainingSettings) -> bool:
    """Return whether a run without checkpoints has its model.

    With a checkpoint, `train` finds no steps left.
    """
    if run.checkpoints() or not run.model_directory.exists():
        return False
    return settings.total_steps in {row["step"] for row in run.rows() if row["kind"] == "train"}


def _train(
    setup: PretrainingSetup,
    model: PretrainedModel,
    held_out: HeldOut,
    run: RunDirectory,
    ranks: Ranks,
    is_initialized: bool,
    resume: bool,
    silent: bool,
) -> TrainState:
    """Start or resume training, and return its last state."""
    settings = setup.settings
    state = run.restore(model, settings.total_steps, setup.check_cursor) if resume else TrainState()
    batches = PretrainingBatches(setup, state, ranks)
    silent = silent or not ranks.is_main
    with Progress("pre-training", settings.total_steps, "steps", state.step, silent) as progress:
        # Measuring may run out of memory, so it comes before the file that makes `output` a run.
        progress.print(f"pre-training: {measure_plan(model, setup, ranks, state.step)}")
        if settings.shard and ranks.world_size == 1:
            progress.print("shard: one process has nothing to divide; start several with torchrun")
        phases = range(len(settings.phases))
        compute_losses = LossFunction(
            model,
            ranks,
            shard=settings.shard,
            may_skip_parameters=len({settings.learns_next_sentences_in(phase) for phase in phases}) > 1,
        )
        optimizer = build_optimizer(model, settings.optimizer)
        if resume:
            run.restore_moments(model, optimizer)
        if is_initialized and state.step == 0:  # so that `resume` works without `init`
            run.save(state, model, optimizer, settings.save_every, settings.keep_checkpoints)
        elif not resume:  # an `--init` that was killed before it wrote its settings may have left one
            run.remove_checkpoints()
        run.write_settings(settings)
        if state.step == 0:
            if ranks.is_main:
                _warn_before_training(setup, run, progress)
            if is_initialized or (resume and run.checkpoints()):  # of the initial weights
                model.eval()
                metrics = held_out.evaluate(compute_losses, 0, progress, ranks)
                run.log({"kind": "evaluation", "step": 0, "phase": 0, **metrics})
        train(
            compute_losses,
            batches,
            optimizer,
            learning_rate=settings.optimizer.learning_rate,
            max_gradient_norm=settings.optimizer.max_gradient_norm,
            schedule=settings.schedule,
            seed=settings.seed,
            state=state,
            run=run,
            evaluate=lambda: held_out.evaluate(compute_losses, state.step, progress, ranks),
            progress=progress,
            ranks=ranks,
            autocast=settings.autocast(),
        )
    return state


def _warn_before_training(setup: PretrainingSetup, run: RunDirectory, progress: Progress) -> None:
    """Show problems of the schedule and the corpus.

    They are logged as warnings of step 0.
    """
    for finding in setup.find_problems():
        progress.print(f"warning: {finding.message}")
        run.log({"kind": "warning", "step": 0, **finding._asdict()})


def _model_card(run: Path, setup: PretrainingSetup, state: TrainState) -> str:
    """Return the README.md of the model directory, without local folders."""
    settings, corpus = setup.settings, setup.corpus
    model, counts = settings.model, corpus.manifest.train
    objectives = "masked language modelling"
    if settings.learns_next_sentences:
        objectives += " and next-sentence prediction"
    tag = "fill-mask"
    if model.is_decoder:
        objectives, tag = "left-to-right (causal) language modelling", "text-generation"
    return f"""---
library_name: transformers
tags: [bert, {tag}]
---
# {escape_markdown(run.resolve().name)}: a BERT pre-trained with bertie

{model.num_hidden_layers} layers, hidden size {model.hidden_size}, {model.num_attention_heads} heads,
{model.vocab_size:,} WordPiece tokens. Pre-trained with {objectives}
(arXiv:1810.04805, Section 3.1) for {state.step:,} steps on {state.tokens:,} tokens.

Trained on {last_change(run):%Y-%m-%d} with bertie {__version__}.
The corpus "{escape_markdown(corpus.path.resolve().name)}" has {counts.documents:,} training documents with
{counts.tokens:,} tokens; its fingerprint is `{settings.corpus_fingerprint}`.
The settings of the run are in the file `settings.toml` beside this folder.
"""
