"""Build the tokenizer, model and batches of a pre-training run."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic
import torch

from bertie.base.errors import SettingsError
from bertie.base.random import stream_key
from bertie.corpus.examples import Examples
from bertie.corpus.prepared import Corpus
from bertie.corpus.sampling import ExampleStream, StreamPosition
from bertie.model.batch import PackedBatch, pack
from bertie.model.formats.directory import check_network, find_new_entries, trim_tokenizer
from bertie.model.formats.weights import load_initial_weights
from bertie.model.heads import LanguageModel, MaskedLMModel, PreTrainingModel
from bertie.text.tokenizer import Tokenizer
from bertie.training.checkpoints import TrainState
from bertie.training.distributed import Ranks, share_of_node
from bertie.training.health import Finding, check_corpus, check_warmup
from bertie.training.loop import Batch, count_micro_batches, split_sequences
from bertie.training.pretraining_settings import PretrainingSettings

PretrainedModel = PreTrainingModel | MaskedLMModel | LanguageModel


@dataclass(frozen=True)
class PretrainingSetup:
    """An open corpus, its tokenizer, and the settings completed for both.

    Attributes:
        corpus: the corpus
        tokenizer: its tokenizer
        settings: the complete settings
        new_entries: for the id of each entry of the vocabulary that the initial model lacks, the ids
            of the tokens into which that model's tokenizer splits it
    """

    corpus: Corpus
    tokenizer: Tokenizer
    settings: PretrainingSettings
    new_entries: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        settings: PretrainingSettings,
        corpus_path: Path,
        *,
        init: Path | None = None,
        verify: bool = False,
    ) -> "PretrainingSetup":
        """Open a corpus for a run that starts from the model in `init`, if it is given.

        `verify` checks the hashes of the corpus's files first, and not only their structure; the
        processes of a machine share the work.

        Raises:
            DataError: the corpus is missing or damaged.
            SettingsError: the settings do not fit the corpus or the machine.
            ModelError: `model.vocab_size` is too small for the tokenizer's tokens, or the model in
                `init` has another network, or a tokenizer that the corpus's does not extend.
        """
        corpus = Corpus.open(corpus_path)
        if verify:
            corpus.verify(*share_of_node())
        else:
            corpus.check_structure()
        tokenizer = Tokenizer.load(corpus.tokenizer_directory)
        new_entries = {} if init is None else find_new_entries(init, tokenizer)
        if "vocab_size" in settings.model.model_fields_set:
            remedy = f"set model.vocab_size to {len(tokenizer.vocabulary)} or more, or leave it out"
            tokenizer = trim_tokenizer(tokenizer, settings.model, "model.vocab_size", remedy)
        settings = _complete_settings(settings, corpus, tokenizer)
        if init is not None:
            check_network(init, settings.model, may_grow=bool(new_entries))
        return cls(corpus, tokenizer, settings, new_entries)

    def build_model(self, init: Path | None, ranks: Ranks) -> PretrainedModel:
        """Build the model for the settings' objectives, on this rank's device.

        The weights come from the model directory `init`; without it, they are random (a function of
        the seed). Heads that `init` lacks are random, and reported on stderr. New entries of the
        vocabulary start as the mean of their former tokens, and their number is reported on stderr.

        Raises:
            ModelError: the weights in `init` are missing or damaged.
        """
        settings = self.settings
        torch.manual_seed(int(stream_key(settings.seed)))
        model = _model_class(settings)(settings.model)
        if init is not None:
            new_parts = load_initial_weights(init, model, self.new_entries)
            if self.new_entries and ranks.is_main:
                print(
                    f"{init}: {len(self.new_entries):,} of {settings.model.vocab_size:,} rows of the "
                    f"embeddings are new; each starts as the mean of the entry's former tokens",
                    file=sys.stderr,
                )
            if new_parts and ranks.is_main:
                print(f"{init}: new with random weights: {', '.join(new_parts)}", file=sys.stderr)
        model.bert.gradient_checkpointing = settings.gradient_checkpointing
        return model.to(ranks.place(settings.device))

    def example_stream(self, phase: int) -> ExampleStream:
        """Open the stream of a phase's training examples, at its start."""
        settings = self.settings
        return ExampleStream(
            self.corpus.train,
            settings.examples_of(phase),
            self.tokenizer.vocabulary,
            settings.seed,
            phase,
            self.corpus.train_languages,
            settings.batch_size_of(phase),
        )

    def check_cursor(self, state: TrainState) -> None:
        """Raise ValueError if the position in the data is not one after the state's step."""
        if state.step:
            cursor = _Cursor.model_validate(state.cursor)
            if cursor.phase != self.settings.phase_at(state.step - 1):
                raise ValueError(f"phase {cursor.phase}")

    def find_problems(self) -> list[Finding]:
        """Return problems of the schedule and the corpus that are known before training."""
        settings, phases = self.settings, []
        if settings.learns_next_sentences:
            phases = [settings.examples_of(phase) for phase in range(len(settings.phases))]
        findings = check_warmup(settings.warmup_steps, settings.total_steps)
        return findings + check_corpus(self.corpus, phases, self.tokenizer.vocabulary, settings.seed)


class _StreamPosition(pydantic.BaseModel):
    """See `StreamPosition.to_json`."""

    taken: pydantic.NonNegativeInt
    lanes: list[tuple[pydantic.NonNegativeInt, pydantic.NonNegativeInt]] = pydantic.Field(min_length=1)


class _Cursor(pydantic.BaseModel):
    """See `PretrainingBatches.cursor`."""

    phase: int
    stream: _StreamPosition


def check_batch_sizes(settings: PretrainingSettings, ranks: Ranks) -> None:
    """Check that every rank has a sequence in each batch; raise SettingsError if not."""
    smallest = min(settings.batch_size_of(phase) for phase in range(len(settings.phases)))
    if smallest < ranks.world_size:
        raise SettingsError(
            f"batch_size {smallest} is less than the {ranks.world_size} processes; raise it, or start fewer "
            f"processes"
        )


class PretrainingBatches:
    """The batches of a rank, from `state` to the end of the run.

    Each phase has its own stream of examples, and the ranks share the rows of each batch in turn. The
    examples of a batch do not depend on the number of ranks.
    """

    def __init__(self, setup: PretrainingSetup, state: TrainState, ranks: Ranks) -> None:
        self._setup, self._ranks, self._step = setup, ranks, state.step
        self._phase = min(setup.settings.phase_at(state.step), len(setup.settings.phases) - 1)
        self._stream = setup.example_stream(self._phase)
        if state.cursor.get("phase") == self._phase:
            self._stream.restore(state.cursor["stream"])

    def __next__(self) -> Batch:
        """Return the next batch."""
        settings, ranks = self._setup.settings, self._ranks
        phase = settings.phase_at(self._step)
        if phase != self._phase:
            self._phase, self._stream = phase, self._setup.example_stream(phase)
        self._step += 1
        examples = self._stream.next(settings.batch_size_of(phase), ranks.rank, ranks.world_size)
        count = ranks.max(count_micro_batches(examples.bounds, settings.micro_batch_tokens))
        # Every rank needs a row for each micro-batch.
        count = min(count, settings.batch_size_of(phase) // ranks.world_size)
        micro_batches = [
            pack_range(examples, start, stop) for start, stop in split_sequences(examples.bounds, count)
        ]
        return Batch(micro_batches, phase, position=self._stream.position())

    def cursor(self, batch: Batch) -> dict[str, Any]:
        """Return the position in the data after a batch, for TrainState.

        All ranks must call it together.
        """
        position: StreamPosition = batch.position
        cursors = self._ranks.elementwise_max(position.cursors)
        return {"phase": batch.phase, "stream": position._replace(cursors=cursors).to_json()}


def _complete_settings(
    settings: PretrainingSettings, corpus: Corpus, tokenizer: Tokenizer
) -> PretrainingSettings:
    """Fill in settings that depend on the corpus and the machine."""
    vocab_size = len(tokenizer.vocabulary)
    if "vocab_size" in settings.model.model_fields_set:
        vocab_size = settings.model.vocab_size
    if settings.examples.language_smoothing != 1 and len({*corpus.train_languages}) == 1:
        raise SettingsError(
            f"examples.language_smoothing = {settings.examples.language_smoothing}: {corpus.path} has one "
            f"language; prepare it with --language CODE=PATH for each language, or omit the setting"
        )
    longest = max(phase.max_seq_length for phase in settings.phases)
    if longest > settings.model.max_position_embeddings:
        raise SettingsError(
            f"max_seq_length {longest} is more than the model's {settings.model.max_position_embeddings} "
            f"positions; set model.max_position_embeddings to {longest} or more"
        )
    return settings.resolved().model_copy(
        update={
            "corpus_fingerprint": corpus.fingerprint,
            "model": settings.model.model_copy(update={"vocab_size": vocab_size}),
        }
    )


def _model_class(settings: PretrainingSettings) -> type[PretrainedModel]:
    if settings.model.is_decoder:
        return LanguageModel
    return PreTrainingModel if settings.learns_next_sentences else MaskedLMModel


def pack_examples(examples: Examples, micro_batch_tokens: int) -> list[PackedBatch]:
    """Pack examples into micro-batches of about equal token counts."""
    count = count_micro_batches(examples.bounds, micro_batch_tokens)
    ranges = split_sequences(examples.bounds, count)
    return [pack_range(examples, start, stop) for start, stop in ranges]


def pack_range(examples: Examples, start: int, stop: int) -> PackedBatch:
    """Pack the examples `start` to `stop`, exclusive, into one batch."""
    first_token, end_token = examples.bounds[start], examples.bounds[stop]
    masked = slice(examples.masked_bounds[start], examples.masked_bounds[stop])
    next_sentences = examples.next_sentence_labels
    return pack(
        examples.input_ids[first_token:end_token],
        examples.token_type_ids[first_token:end_token],
        examples.bounds[start : stop + 1],
        masked_positions=examples.masked_positions[masked] - first_token,
        masked_labels=examples.masked_labels[masked],
        next_sentence_labels=None if next_sentences is None else next_sentences[start:stop],
    )
