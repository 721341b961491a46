"""The same weights and the same batch in `transformers` and here."""

import itertools

import numpy as np
import torch
from torch import nn
from transformers import BertModel

from bertie.model.batch import PackedBatch, pack
from bertie.model.formats.weight_names import their_names

# Wider initial weights than the paper's, so that attention is not nearly uniform.
SHAPE = {
    "vocab_size": 211,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
LENGTHS = (64, 3, 17, 49, 64, 1, 30)


def ragged_batch(seed: int = 0, lengths=LENGTHS, vocab_size: int = 211, labels=None) -> PackedBatch:
    """Random sequences, a sixth of their tokens to be predicted."""
    random = np.random.default_rng(seed)
    total, masked = sum(lengths), sum(lengths) // 6
    return pack(
        # From 1 on: theirs gives the embedding of id 0, its padding, no gradient.
        random.integers(1, vocab_size, total).astype(np.int32),
        np.concatenate([np.arange(length) >= length // 2 for length in lengths]).astype(np.int32),
        np.array([0, *itertools.accumulate(lengths)]),
        masked_positions=np.sort(random.choice(total, masked, replace=False)),
        masked_labels=random.integers(0, vocab_size, masked),
        next_sentence_labels=random.integers(0, 2, len(lengths)),
        labels=labels,
    )


def padded(batch: PackedBatch) -> dict[str, torch.Tensor]:
    """The ids of a batch in `transformers`' layout."""
    mask = real(batch)
    inputs = {"attention_mask": mask.long()}
    for name in ("input_ids", "token_type_ids"):
        inputs[name] = torch.zeros(mask.shape, dtype=torch.long)
        inputs[name][mask] = getattr(batch, name).long()
    return inputs


def real(batch: PackedBatch) -> torch.Tensor:
    """Which places of the padded layout hold a token: bool (N, S)."""
    return torch.arange(batch.max_seqlen) < batch.cu_seqlens.diff()[:, None]


def padded_labels(batch: PackedBatch, labels: torch.Tensor) -> torch.Tensor:
    """Labels of the tokens (T,) in `transformers`' layout (N, S)."""
    rows = torch.full((len(batch), batch.max_seqlen), -100)
    rows[real(batch)] = labels
    return rows


def masked_lm_labels(batch: PackedBatch) -> torch.Tensor:
    """The masked words in `transformers`' layout."""
    labels = torch.full((batch.num_tokens,), -100)
    labels[batch.masked_positions] = batch.masked_labels
    return padded_labels(batch, labels)


def copy_weights(theirs: nn.Module, ours: nn.Module) -> None:
    """Give ours, which may be on the meta device, the weights of theirs."""
    if isinstance(theirs, BertModel):  # its names have no prefix
        theirs = nn.ModuleDict({"bert": theirs})
    weights = theirs.state_dict()
    ours.load_state_dict(
        {name: torch.cat([weights[n] for n in their_names(name)]) for name in ours.state_dict()}, assign=True
    )


def assert_same_gradients(ours: nn.Module, theirs: nn.Module, zero: tuple[str, ...] = ()) -> None:
    """The relative error of each parameter's gradient is at most 1e-5.

    A bias that moves all scores of a softmax alike, as that of the keys and those named `zero`, has the
    gradient zero but for rounding.
    """
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        expected = torch.cat([gradients[n] for n in their_names(name)])
        actual = parameter.grad
        if name.endswith("qkv.bias"):
            (query, _, value), (their_query, _, their_value) = actual.chunk(3), expected.chunk(3)
            actual, expected = torch.cat([query, value]), torch.cat([their_query, their_value])
        if name in zero:
            assert max(actual.norm(), expected.norm()) <= 1e-6, name
        else:
            error = ((actual - expected).norm() / expected.norm()).item()
            assert error <= 1e-5, f"{name}: {error:.1e}"
