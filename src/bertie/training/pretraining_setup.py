"""Build the tokenizer, model and batches of a pre-training run."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bertie.base.errors import SettingsError
from bertie.base.random import stream_key
from bertie.corpus.examples import Examples
from bertie.corpus.sampling import ExampleStream
from bertie.corpus.shards import Corpus
from bertie.model.batch import PackedBatch, pack
from bertie.model.formats.directory import check_network, find_new_entries, trim_tokenizer
from bertie.model.formats.weights import load_initial_weights
from bertie.model.heads import LanguageModel, MaskedLMModel, PreTrainingModel
from bertie.text.tokenizer import Tokenizer
from bertie.training.checkpoints import TrainState
from bertie.training.distributed import Ranks, share_of_node
from bertie.training.loop import GlobalBatch, split_micro_batches
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
            tokenizer = trim_tokenizer(tokenizer, settings.model, "model.vocab_size")
        settings = _complete_settings(settings, corpus, tokenizer)
        if init is not None:
            check_network(init, settings.model, may_grow=bool(new_entries))
        return cls(corpus, tokenizer, settings, new_entries)

    def build_model(self, init: Path | None, ranks: Ranks) -> PretrainedModel:
        """Build the model for the settings' objectives, on this rank's device.

        The weights come from the model directory `init`; without it, they are random (a function of
        the seed). Heads that `init` lacks are random, and named on stderr. New entries of the
        vocabulary start as the mean of their former tokens, and are counted on stderr.

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
        device = torch.device(settings.device)
        if ranks.world_size > 1 and device.type == "cuda":
            device = torch.device("cuda", ranks.local_rank)
        return model.to(device)

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
        )

    def global_batches(self, state: TrainState, ranks: Ranks) -> Iterator[GlobalBatch]:
        """Yield the global batches from `state` to the end of the run.

        Each phase has its own stream of examples.
        """
        settings, cursor = self.settings, state.cursor
        stream_phase = -1
        for step in range(state.step, settings.total_steps):
            phase = settings.phase_at(step)
            if phase != stream_phase:
                stream = self.example_stream(phase)
                if cursor.get("phase") == phase:
                    stream.restore(cursor["stream"])
                stream_phase = phase
            examples = stream.next(settings.batch_size_of(phase))
            micro_batches = pack_examples(examples, settings.micro_batch_tokens, ranks.world_size)
            yield GlobalBatch(micro_batches, {"phase": phase, "stream": stream.state()}, phase)


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


def pack_examples(examples: Examples, micro_batch_tokens: int, multiple: int = 1) -> list[PackedBatch]:
    """Pack examples into micro-batches, with the arguments of `split_micro_batches`."""
    ranges = split_micro_batches(examples.bounds, micro_batch_tokens, multiple)
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
