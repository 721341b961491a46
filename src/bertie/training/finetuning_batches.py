"""The batches of fine-tuning: which examples a step computes, on which rank."""

from typing import Any

import numpy as np

from bertie.base.arrays import Int64s
from bertie.base.errors import SettingsError
from bertie.base.random import permutation
from bertie.model.batch import pack_selected
from bertie.model.heads import EmbeddingModel, Model, TokenClassificationModel
from bertie.model.sequences import cumulative_bounds, token_indices
from bertie.tasks.long_texts import TextWindows
from bertie.tasks.task import Inputs
from bertie.training.distributed import Ranks
from bertie.training.finetuning_settings import FinetuningSettings, step_bounds, training_indices
from bertie.training.loop import Batch, count_micro_batches, split_sequences


class FinetuningBatches:
    """The batches of a rank, starting at `step`, in a new order each epoch.

    Each rank takes consecutive examples of a batch, about as many tokens as the others.

    Raises:
        SettingsError: texts compete with all others of the batch, and there are several ranks.
    """

    def __init__(
        self, inputs: Inputs, settings: FinetuningSettings, step: int, model: Model, ranks: Ranks
    ) -> None:
        self._inputs, self._settings, self._step, self._ranks = inputs, settings, step, ranks
        self._indices = self._order = training_indices(inputs, settings)
        self._epoch = -1  # of the order
        self._steps = step_bounds(inputs, settings)
        self._example_lengths = np.diff(inputs.bounds[:: inputs.group])
        labels = inputs.labels
        if isinstance(inputs, TextWindows) and labels is not None:
            labels = np.repeat(labels, np.diff(inputs.text_bounds), axis=0)  # a window has its text's label
        per_token = isinstance(model, TokenClassificationModel)
        self._labels = None if per_token else labels
        self._token_labels = labels if per_token else None
        # Texts compete only within a micro-batch, so that the whole batch has to be one.
        self._compete = isinstance(model, EmbeddingModel) and labels is not None and labels.ndim == 2
        if self._compete and ranks.world_size > 1:
            raise SettingsError(
                "in a batch of pairs every text competes with all others, which several "
                "processes cannot compare; start one process"
            )

    def __next__(self) -> Batch:
        """Return the next batch."""
        settings, inputs, ranks = self._settings, self._inputs, self._ranks
        epoch, step_in_epoch = divmod(self._step, len(self._steps) - 1)
        self._step += 1
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = self._indices[permutation(len(self._indices), settings.seed, epoch)]
        chosen = self._order[self._steps[step_in_epoch] : self._steps[step_in_epoch + 1]]
        if isinstance(inputs, TextWindows):
            chosen = token_indices(inputs.text_bounds, chosen)  # the windows of the chosen texts
        shares = split_sequences(self._bounds(chosen), ranks.world_size)
        is_spare = ranks.rank >= len(shares)
        start, stop = shares[-1 if is_spare else ranks.rank]
        chosen = chosen[start:stop]
        bounds = self._bounds(chosen)
        count = 1 if self._compete else count_micro_batches(bounds, settings.micro_batch_tokens)
        micro_batches = [
            pack_selected(
                inputs.input_ids,
                inputs.token_type_ids,
                inputs.bounds,
                chosen[start:stop],
                self._labels,
                token_labels=self._token_labels,
                group_size=inputs.group,
            )
            for start, stop in split_sequences(bounds, count)
        ]
        return Batch(micro_batches, 0, is_spare)

    def cursor(self, batch: Batch) -> dict[str, Any]:
        """Return nothing: the step is the position in the data."""
        return {}

    def _bounds(self, examples: Int64s) -> Int64s:
        """Return the bounds of examples in their tokens, int64 (n + 1,)."""
        return cumulative_bounds(self._example_lengths[examples])
