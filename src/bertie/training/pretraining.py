"""Pre-training (Section 3.1): builds data, model and optimizer from settings, and calls the loop."""

from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
import pydantic
import torch

from bertie.base.errors import DataError, SettingsError
from bertie.base.progress import Progress
from bertie.base.random import stream_key
from bertie.base.settings import Settings, write_toml
from bertie.corpus.examples import Examples, ExampleSettings
from bertie.corpus.sampling import ExampleStream, held_out_examples
from bertie.corpus.shards import Corpus
from bertie.model.batch import PackedBatch, pack
from bertie.model.config import BertConfig
from bertie.model.engines.hardware import Hardware
from bertie.model.formats.directory import ModelMetadata, check_same_network, fit_tokenizer
from bertie.model.formats.weights import load_weights, save_model
from bertie.model.heads import LanguageModel, MaskedLMModel, PreTrainingModel
from bertie.text.tokenizer import Tokenizer
from bertie.training.checkpoints import RunDirectory, TrainState, check_run
from bertie.training.distributed import Ranks, join_ranks
from bertie.training.health import check_corpus
from bertie.training.held_out import (
    PretrainedModel,
    evaluate_pretraining,
    format_metrics,
    majority_baseline,
    unigram_baseline,
    unigram_counts,
)
from bertie.training.loop import GlobalBatch, LoopSchedule, split_micro_batches, train
from bertie.training.optimizers import OptimizerSettings, build_optimizer
from bertie.training.planning import PhaseWork, Plan, make_plan


class Phase(Settings):
    """A part of the run with sequences of one length (Appendix A.2: 128 first, then 512)."""

    steps: int = pydantic.Field(gt=0)
    max_seq_length: int = pydantic.Field(ge=5)  # [CLS] A [SEP] B [SEP], a token each


class PretrainingSettings(Hardware):
    """A whole pre-training run; the defaults are those of Appendix A.2."""

    seed: int = 0
    corpus: str = ""  # the fingerprint of the corpus, filled in at the start and checked on resuming
    batch_size: int = pydantic.Field(256, gt=0)  # sequences in a step
    micro_batch_tokens: int = pydantic.Field(16384, gt=0)  # about so many tokens in memory at a time
    warmup_steps: int = 10_000
    log_every: int = 100
    evaluate_every: int = 5_000
    save_every: int = 1_000
    keep_checkpoints: int = pydantic.Field(2, gt=0)
    held_out_examples: int = pydantic.Field(1024, gt=0)
    tensorboard: bool = False
    phases: tuple[Phase, ...] = (
        Phase(steps=900_000, max_seq_length=128),
        Phase(steps=100_000, max_seq_length=512),
    )
    model: BertConfig = BertConfig()
    examples: ExampleSettings = ExampleSettings()
    optimizer: OptimizerSettings = OptimizerSettings()

    @pydantic.field_validator("examples")
    @classmethod
    def _phases_say_the_length(cls, examples: ExampleSettings) -> ExampleSettings:
        if "max_seq_length" in examples.model_fields_set:
            raise ValueError("max_seq_length is a setting of each of the phases")
        return examples

    @pydantic.model_validator(mode="after")
    def _left_to_right_means_no_pairs(self) -> Self:
        if self.model.is_decoder and self.examples.pairs != "none":
            raise ValueError(
                "a left-to-right model (model.is_decoder) learns to predict the next token alone: set "
                'examples.pairs = "none"'
            )
        return self

    @pydantic.model_validator(mode="after")
    def _pairs_have_two_segments(self) -> Self:
        if self.model.type_vocab_size < 2 and self.examples.pairs != "none":
            raise ValueError('pairs of texts need model.type_vocab_size 2; or set examples.pairs = "none"')
        return self

    @property
    def total_steps(self) -> int:
        """The steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    def phase_at(self, step: int) -> int:
        """Which phase `step`, counted from 0, belongs to."""
        ends = np.cumsum([phase.steps for phase in self.phases])
        return int(np.searchsorted(ends, step, side="right"))

    def examples_of(self, phase: int) -> ExampleSettings:
        """How the examples of a phase are made."""
        examples = self.examples.model_copy(update={"max_seq_length": self.phases[phase].max_seq_length})
        # What is to be predicted from left to right stands in the future, not behind a mask.
        return examples.unmasked() if self.model.is_decoder else examples


# What may be another when a run goes on: where, how fast and in which parts numbers are computed. It changes
# their rounding, and with the parts the masks of dropout; never the examples or their order.
MAY_CHANGE = {
    "device",
    "precision",
    "gradient_checkpointing",
    "micro_batch_tokens",
    "save_every",
    "keep_checkpoints",
    "tensorboard",
}

PROBE_GROWTH = 4  # the plan is measured on 1, 4, 16, … sequences


def pretrain(
    settings: PretrainingSettings,
    corpus_path: Path,
    output: Path,
    *,
    init: Path | None = None,
    resume: bool = False,
) -> None:
    """Pre-train on a prepared corpus; `output` holds the run, `output`/model the result.

    Raises:
        SettingsError: the settings do not fit the corpus, or are not those of the run to be resumed.
        DataError: the corpus is not there or damaged.
        ModelError: `init` does not fit.
        Stopped: a signal came; the run is saved and can be resumed.
    """
    corpus = Corpus.open(corpus_path)
    corpus.verify()
    tokenizer = _tokenizer(settings, corpus)
    settings = _fit(settings, corpus, tokenizer)
    with join_ranks(torch.device(settings.device).type) as ranks:
        run = RunDirectory(output, ranks.is_main, settings.tensorboard)
        check_run(run, settings, resume, MAY_CHANGE)
        ranks.barrier()  # what the first one writes would be another run to those that come later
        model = _build_model(settings, tokenizer, init, ranks)
        optimizer = build_optimizer(model, settings.optimizer)
        held_out = HeldOut(corpus, tokenizer, settings)
        autocast = settings.autocast()
        with run:
            state = run.restore(model, optimizer) if resume else TrainState()
            if init is not None and state.step == 0:  # who goes on may not name it again
                run.save(state, model, optimizer, settings.save_every, settings.keep_checkpoints)
            with Progress(
                "pre-training", settings.total_steps, "steps", done=state.step, silent=not ranks.is_main
            ) as progress:
                progress.say(f"pre-training: {_plan(model, settings, corpus, tokenizer, ranks)}")
                if ranks.is_main:
                    write_toml(run.settings_file, settings)
                if state.step == 0:
                    # By the last phase: a first one may be too short for two sentences on purpose.
                    examples = settings.examples_of(len(settings.phases) - 1)
                    for finding in check_corpus(corpus, examples, tokenizer.vocabulary, settings.seed):
                        progress.say(f"warning: {finding.message}")
                        run.log({"kind": "warning", "step": 0, **finding._asdict()})

                def evaluate() -> dict[str, float]:
                    figures = held_out.evaluate(model, settings.phase_at(state.step - 1), autocast)
                    progress.say(f"step {state.step:,}, held out: {format_metrics(figures)}")
                    return figures

                train(
                    model,
                    global_batches(corpus, tokenizer, settings, state, ranks),
                    optimizer,
                    learning_rate=settings.optimizer.learning_rate,
                    max_gradient_norm=settings.optimizer.max_gradient_norm,
                    schedule=LoopSchedule(
                        total_steps=settings.total_steps,
                        warmup_steps=settings.warmup_steps,
                        log_every=settings.log_every,
                        evaluate_every=settings.evaluate_every,
                        save_every=settings.save_every,
                        keep_checkpoints=settings.keep_checkpoints,
                    ),
                    seed=settings.seed,
                    state=state,
                    run=run,
                    evaluate=evaluate,
                    progress=progress,
                    ranks=ranks,
                    autocast=autocast,
                )
        if ranks.is_main:
            metadata = ModelMetadata(settings.model, model.architecture, (), tokenizer)
            save_model(run.model_directory, model, metadata, _card(settings, corpus, state))
        ranks.barrier()  # torchrun ends all processes where one that is done goes first and fails in going


def plan(
    settings: PretrainingSettings, corpus_path: Path, output: Path, *, init: Path | None, resume: bool
) -> Plan:
    """What `pretrain` with the same arguments would take. Writes nothing; takes the corpus as undamaged."""
    corpus = Corpus.open(corpus_path)
    tokenizer = _tokenizer(settings, corpus)
    settings = _fit(settings, corpus, tokenizer)
    check_run(RunDirectory(output), settings, resume, MAY_CHANGE)
    model = _build_model(settings, tokenizer, init, Ranks())
    HeldOut(corpus, tokenizer, settings)
    return _plan(model, settings, corpus, tokenizer, Ranks())


def _build_model(
    settings: PretrainingSettings, tokenizer: Tokenizer, init: Path | None, ranks: Ranks
) -> PretrainedModel:
    """The model with its first weights, on its device."""
    torch.manual_seed(int(stream_key(settings.seed)))
    model = _model_of(settings)(settings.model)
    if init is not None:
        check_same_network(init, settings.model, tokenizer)
        load_weights(init, model)
    model.bert.gradient_checkpointing = settings.gradient_checkpointing
    device = torch.device(settings.device)
    if ranks.world_size > 1 and device.type == "cuda":
        device = torch.device("cuda", ranks.local_rank)
    return model.to(device)


def _model_of(settings: PretrainingSettings) -> type[PretrainedModel]:
    """The encoder with the heads of its objectives."""
    if settings.model.is_decoder:
        return LanguageModel
    return MaskedLMModel if settings.examples.pairs == "none" else PreTrainingModel


def _plan(
    model: PretrainedModel,
    settings: PretrainingSettings,
    corpus: Corpus,
    tokenizer: Tokenizer,
    ranks: Ranks,
) -> Plan:
    """Measured on examples of each phase, in batches that grow up to a micro-batch."""
    phases = []
    for number, phase in enumerate(settings.phases):
        stream = ExampleStream(
            corpus.train, settings.examples_of(number), tokenizer.vocabulary, settings.seed, number
        )
        examples = stream.next(settings.batch_size)
        batches, size = [], 1
        while size <= len(examples) and examples.bounds[size] <= settings.micro_batch_tokens:
            batches.append(_pack_range(examples, 0, size))
            size *= PROBE_GROWTH
        evaluations = 1 + (phase.steps // settings.evaluate_every if settings.evaluate_every else 0)
        mean_length = examples.bounds[-1] / len(examples)
        evaluated = round(evaluations * settings.held_out_examples * mean_length)
        batches = batches or [_pack_range(examples, 0, 1)]
        phases.append(PhaseWork(phase.steps, settings.batch_size, batches, evaluated))
    return make_plan(model, phases, settings.micro_batch_tokens, ranks.world_size, settings.autocast())


def global_batches(
    corpus: Corpus,
    tokenizer: Tokenizer,
    settings: PretrainingSettings,
    state: TrainState,
    ranks: Ranks,
) -> Iterator[GlobalBatch]:
    """The global batches from `state` on, without end. Each phase has a stream of its own."""
    step, cursor = state.step, state.cursor
    streaming = -1
    while step < settings.total_steps:
        phase = settings.phase_at(step)
        if phase != streaming:
            stream = ExampleStream(
                corpus.train, settings.examples_of(phase), tokenizer.vocabulary, settings.seed, phase
            )
            if cursor.get("phase") == phase:
                stream.restore(cursor["stream"])
            streaming = phase
        examples = stream.next(settings.batch_size)
        micro_batches = pack_examples(examples, settings.micro_batch_tokens, ranks.world_size)
        yield GlobalBatch(micro_batches, {"phase": phase, "stream": stream.state()}, phase)
        step += 1


def pack_examples(examples: Examples, micro_batch_tokens: int, multiple: int = 1) -> list[PackedBatch]:
    """Examples in packed batches; see `split_micro_batches`."""
    shares = split_micro_batches(examples.bounds, micro_batch_tokens, multiple)
    return [_pack_range(examples, first, last) for first, last in shares]


def _pack_range(examples: Examples, first: int, last: int) -> PackedBatch:
    start, end = examples.bounds[first], examples.bounds[last]
    masked = slice(examples.masked_bounds[first], examples.masked_bounds[last])
    next_sentences = examples.next_sentence_labels
    return pack(
        examples.input_ids[start:end],
        examples.token_type_ids[start:end],
        examples.bounds[first : last + 1],
        masked_positions=examples.masked_positions[masked] - start,
        masked_labels=examples.masked_labels[masked],
        next_sentence_labels=None if next_sentences is None else next_sentences[first:last],
    )


class HeldOut:
    """The fixed examples of the held-out documents that a run is judged by, for each phase."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, settings: PretrainingSettings) -> None:
        if not corpus.held_out:
            raise DataError(
                f"{corpus.path}: has no held-out documents to judge the model by; prepare it with a larger "
                f"--held-out, or from more documents"
            )
        counts = unigram_counts(corpus.train, len(tokenizer.vocabulary))
        self._batches: list[list[PackedBatch]] = []
        self._baselines: list[dict[str, float]] = []
        for phase in range(len(settings.phases)):
            examples = held_out_examples(
                corpus.held_out,
                settings.examples_of(phase),
                tokenizer.vocabulary,
                settings.seed,
                settings.held_out_examples,
            )
            self._batches.append(pack_examples(examples, settings.micro_batch_tokens))
            words = examples.masked_labels
            if settings.model.is_decoder:
                special = (tokenizer.vocabulary.cls_id, tokenizer.vocabulary.sep_id)
                words = examples.input_ids[~np.isin(examples.input_ids, special)].astype(np.int64)
            self._baselines.append(
                unigram_baseline(counts, words) | majority_baseline(examples.next_sentence_labels)
            )

    def evaluate(self, model: PretrainedModel, phase: int, autocast: torch.autocast) -> dict[str, float]:
        """A row of figures for metrics.jsonl."""
        with autocast:
            return evaluate_pretraining(model, self._batches[phase]) | self._baselines[phase]


def _tokenizer(settings: PretrainingSettings, corpus: Corpus) -> Tokenizer:
    """The corpus's own, less what the settings leave no embeddings for."""
    tokenizer = Tokenizer.load(corpus.tokenizer_directory)
    if "vocab_size" in settings.model.model_fields_set:
        return fit_tokenizer(tokenizer, settings.model, "model.vocab_size")
    return tokenizer


def _fit(settings: PretrainingSettings, corpus: Corpus, tokenizer: Tokenizer) -> PretrainingSettings:
    """The settings with what only corpus and machine can tell."""
    vocab_size = len(tokenizer.vocabulary)
    if "vocab_size" in settings.model.model_fields_set:
        vocab_size = settings.model.vocab_size
    longest = max(phase.max_seq_length for phase in settings.phases)
    if longest > settings.model.max_position_embeddings:
        raise SettingsError(
            f"max_seq_length {longest} is longer than the model's positions: set "
            f"model.max_position_embeddings to {longest} or more"
        )
    return settings.resolved().model_copy(
        update={
            "corpus": corpus.fingerprint,
            "model": settings.model.model_copy(update={"vocab_size": vocab_size}),
        }
    )


def _card(settings: PretrainingSettings, corpus: Corpus, state: TrainState) -> str:
    """The model directory's README.md."""
    model = settings.model
    objectives = "masked words" if settings.examples.pairs == "none" else "masked words and next sentences"
    kind = "fill-mask"
    if model.is_decoder:
        objectives, kind = "next words, from left to right", "text-generation"
    return f"""---
library_name: transformers
tags: [bert, {kind}]
---
# A BERT pre-trained with bertie

{model.num_hidden_layers} layers, hidden size {model.hidden_size}, {model.num_attention_heads} heads,
{model.vocab_size:,} word pieces. Pre-trained with {objectives}
(arXiv:1810.04805, Section 3.1) for {state.step:,} steps on {state.tokens:,} tokens.

The corpus has the fingerprint `{corpus.fingerprint}`; the run's `settings.toml` stands beside this folder.
"""
