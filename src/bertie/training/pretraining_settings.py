"""Settings of a pre-training run (Appendix A.2)."""

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
import pydantic

from bertie.base.settings import Seed, Settings, Tree, merge
from bertie.corpus.examples import ExampleSettings
from bertie.corpus.sentence_pairs import PairKind
from bertie.model.config import BertConfig
from bertie.model.engines.hardware import Hardware, default_micro_batch_tokens
from bertie.training.loop import LoopSchedule
from bertie.training.optimizers import OptimizerSettings

# Settings that may change on resume. They change the hardware, the size of micro-batches or the files that
# are kept, and so may change rounding and dropout masks; never the examples or their order.
MAY_CHANGE = {
    "device",
    "precision",
    "gradient_checkpointing",
    "micro_batch_tokens",
    "save_every",
    "keep_checkpoints",
    "tensorboard",
    "shard",
}


class Phase(Settings):
    """A part of the run with one sequence length (Appendix A.2: 128, then 512).

    Attributes:
        steps: the number of steps.
        max_seq_length: the maximum number of tokens of an example, with [CLS] and [SEP].
        batch_size: sequences per step; None for the run's `batch_size`.
        masking_rate: the fraction of tokens to predict; None for `examples.masking_rate`.
        pairs: the kind of pairs; None for `examples.pairs`. In a phase with "none", the model
            learns masked tokens only.
    """

    steps: int = pydantic.Field(gt=0)
    max_seq_length: int = pydantic.Field(ge=5)  # [CLS] A [SEP] B [SEP] with a token in each segment
    batch_size: int | None = pydantic.Field(None, gt=0)
    masking_rate: float | None = pydantic.Field(None, gt=0, le=1)
    pairs: PairKind | None = None


class PretrainingSettings(Hardware):
    """Settings of a whole pre-training run, with the defaults of Appendix A.2.

    Attributes:
        seed: seed of the initial weights, the examples and their order, and dropout.
        corpus_fingerprint: hash of the corpus, filled in when the run starts and checked on resume.
        batch_size: sequences per step, unless a phase sets its own.
        micro_batch_tokens: about how many tokens are in memory at a time; fewer need less memory. 0 is
            4,096 on a CPU and 16,384 on a GPU.
        warmup_steps: steps in which the learning rate rises from 0 to `optimizer.learning_rate`.
        log_every: steps between two rows of training metrics; 0 for the last step only.
        evaluate_every: steps between two evaluations on held-out text; 0 for the last step only.
        save_every: steps between two checkpoints; 0 to save only when a signal stops the run.
        keep_checkpoints: the number of checkpoints to keep, the newest ones.
        held_out_examples: the number of held-out examples in an evaluation.
        tensorboard: also write the metrics for TensorBoard; needs the extra `tensorboard`.
        shard: divide weights, gradients and moments among the processes of torchrun (FSDP2).
        next_sentence_loss: learn next sentences. With false, examples keep their pairs, but the model
            learns masked tokens only.
        phases: the phases of the run, in their order.
        model: the shape of the network.
        examples: how pre-training examples are made.
        optimizer: the optimizer.
    """

    seed: Seed = 0
    corpus_fingerprint: str = ""
    batch_size: int = pydantic.Field(256, gt=0)
    micro_batch_tokens: int = pydantic.Field(0, ge=0)
    warmup_steps: int = pydantic.Field(10_000, ge=0)
    log_every: int = pydantic.Field(100, ge=0)
    evaluate_every: int = pydantic.Field(5_000, ge=0)
    save_every: int = pydantic.Field(1_000, ge=0)
    keep_checkpoints: int = pydantic.Field(2, gt=0)
    held_out_examples: int = pydantic.Field(1024, gt=0)
    tensorboard: bool = False
    shard: bool = False
    next_sentence_loss: bool = True
    phases: tuple[Phase, ...] = pydantic.Field(
        (Phase(steps=900_000, max_seq_length=128), Phase(steps=100_000, max_seq_length=512)),
        min_length=1,
    )
    model: BertConfig = BertConfig()
    examples: ExampleSettings = ExampleSettings()
    optimizer: OptimizerSettings = OptimizerSettings()

    renamed: ClassVar[Mapping[str, str]] = {"corpus": "corpus_fingerprint"}

    @pydantic.field_validator("examples")
    @classmethod
    def _length_is_set_per_phase(cls, examples: ExampleSettings) -> ExampleSettings:
        if "max_seq_length" in examples.model_fields_set:
            raise ValueError("set max_seq_length in each of the phases instead")
        return examples

    @pydantic.model_validator(mode="before")
    @classmethod
    def _earlier_runs_have_no_near_distance(cls, tree: Tree) -> Tree:
        """Keep the negatives of a run that started before there was `near_distance`.

        Only the settings of a run have a fingerprint of the corpus; a recipe gets the default.
        """
        examples = tree.get("examples", {})
        if tree.get("corpus_fingerprint") and examples.get("pairs") == "near":
            return merge({"examples": {"near_distance": 0}}, tree)
        return tree

    @pydantic.model_validator(mode="after")
    def _model_can_read_pairs(self) -> Self:
        for index, phase in enumerate(self.phases):
            if self.examples_of(index).pairs == "none":
                continue
            key = "examples.pairs" if phase.pairs is None else f"phases.{index}.pairs"
            if self.model.is_decoder:
                raise ValueError(
                    "a left-to-right model (model.is_decoder) is trained on next tokens only; set "
                    f'{key} = "none"'
                )
            if self.model.type_vocab_size < 2:
                raise ValueError(f'pairs of texts need model.type_vocab_size 2; or set {key} = "none"')
        return self

    def resolved(self) -> Self:
        """Return these settings with `auto` replaced by values for this machine.

        0 micro-batch tokens are replaced, too.

        Raises:
            SettingsError: this machine does not have the device.
        """
        resolved = super().resolved()
        tokens = self.micro_batch_tokens or default_micro_batch_tokens(resolved.device)
        return resolved.model_copy(update={"micro_batch_tokens": tokens})

    @property
    def total_steps(self) -> int:
        """Steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def schedule(self) -> LoopSchedule:
        """When the training loop ends, logs, evaluates and saves."""
        return LoopSchedule(
            total_steps=self.total_steps,
            warmup_steps=self.warmup_steps,
            log_every=self.log_every,
            evaluate_every=self.evaluate_every,
            save_every=self.save_every,
            keep_checkpoints=self.keep_checkpoints,
        )

    def phase_at(self, step: int) -> int:
        """Return the index of the phase of `step`, counted from 0."""
        ends = np.cumsum([phase.steps for phase in self.phases])
        return int(np.searchsorted(ends, step, side="right"))

    def batch_size_of(self, phase: int) -> int:
        """Return the number of sequences per step of a phase."""
        return self.phases[phase].batch_size or self.batch_size

    @property
    def learns_next_sentences(self) -> bool:
        """Whether the model has a next-sentence head.

        It has one if the loss of pairs counts in some phase.
        """
        return any(self.learns_next_sentences_in(phase) for phase in range(len(self.phases)))

    def learns_next_sentences_in(self, phase: int) -> bool:
        """Return whether the next-sentence head has a loss in a phase."""
        return self.next_sentence_loss and self.examples_of(phase).pairs != "none"

    def examples_of(self, phase: int) -> ExampleSettings:
        """Return the settings for making the examples of a phase."""
        own = self.phases[phase].model_dump(
            include={"max_seq_length", "masking_rate", "pairs"}, exclude_none=True
        )
        examples = self.examples.model_copy(update=own)
        # A left-to-right model predicts the next tokens, so none is masked.
        return examples.without_masks() if self.model.is_decoder else examples
