"""Helpers that compare a model of `transformers` with the same weights in bertie."""

import itertools

import numpy as np
import torch
from torch import nn
from transformers import BertModel

from bertie.model.batch import PackedBatch, pack
from bertie.model.formats.weight_names import hugging_face_names
from bertie.model.objectives import IGNORE_INDEX

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
    """Return a batch of random sequences of different lengths; a sixth is masked, the first with label 0."""
    random = np.random.default_rng(seed)
    total, masked = sum(lengths), sum(lengths) // 6
    return pack(
        # Without id 0: `transformers` treats it as padding, and its embedding gets no gradient.
        random.integers(1, vocab_size, total).astype(np.int32),
        np.concatenate([np.arange(length) >= length // 2 for length in lengths]).astype(np.int32),
        np.array([0, *itertools.accumulate(lengths)]),
        masked_positions=np.sort(random.choice(total, masked, replace=False)),
        masked_labels=random.integers(0, vocab_size, masked) * (np.arange(masked) > 0),
        next_sentence_labels=random.integers(0, 2, len(lengths)),
        labels=labels,
    )


def padded_inputs(batch: PackedBatch) -> dict[str, torch.Tensor]:
    """Return the inputs of a batch in the padded layout of `transformers`, (N, S)."""
    mask = token_mask(batch)
    inputs = {"attention_mask": mask.long()}
    for name in ("input_ids", "token_type_ids"):
        inputs[name] = torch.zeros(mask.shape, dtype=torch.long)
        inputs[name][mask] = getattr(batch, name).long()
    return inputs


def token_mask(batch: PackedBatch) -> torch.Tensor:
    """Return a mask of the tokens in the padded layout: bool (N, S)."""
    return torch.arange(batch.max_seqlen) < batch.cu_seqlens.diff()[:, None]


def padded_labels(batch: PackedBatch, labels: torch.Tensor) -> torch.Tensor:
    """Return token labels (T,) in the padded layout (N, S)."""
    rows = torch.full((len(batch), batch.max_seqlen), IGNORE_INDEX)
    rows[token_mask(batch)] = labels
    return rows


def masked_lm_labels(batch: PackedBatch) -> torch.Tensor:
    """Return the labels of the masked tokens in the padded layout (N, S)."""
    labels = torch.full((batch.num_tokens,), IGNORE_INDEX)
    labels[batch.masked_positions] = batch.masked_labels
    return padded_labels(batch, labels)


def vary_biases_and_norms(model: nn.Module) -> None:
    """Add noise to the biases and norms of a new model, so that all of them change its logits."""
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)


def copy_weights(reference: nn.Module, model: nn.Module) -> None:
    """Copy the weights of `reference`, a `transformers` model, into a model of bertie.

    `model` may be on the meta device.
    """
    if isinstance(reference, BertModel):  # the names of its weights have no prefix
        reference = nn.ModuleDict({"bert": reference})
    weights = reference.state_dict()
    model.load_state_dict(
        {name: torch.cat([weights[n] for n in hugging_face_names(name)]) for name in model.state_dict()},
        assign=True,
    )


def assert_same_gradients(model: nn.Module, reference: nn.Module, zero: tuple[str, ...] = ()) -> None:
    """Check that the relative error of each parameter's gradient is at most 1e-5.

    The gradient of a bias that adds the same value to all scores of a softmax is zero, except for
    rounding. These are the bias of the keys, which is skipped, and the parameters in `zero`, which
    must be below 1e-6.
    """
    gradients = {name: parameter.grad for name, parameter in reference.named_parameters()}
    for name, parameter in model.named_parameters():
        expected = torch.cat([gradients[n] for n in hugging_face_names(name)])
        actual = parameter.grad
        if name.endswith("qkv.bias"):
            (query, _, value), (expected_query, _, expected_value) = actual.chunk(3), expected.chunk(3)
            actual, expected = torch.cat([query, value]), torch.cat([expected_query, expected_value])
        if name in zero:
            assert max(actual.norm(), expected.norm()) <= 1e-6, name
        else:
            error = ((actual - expected).norm() / expected.norm()).item()
            assert error <= 1e-5, f"{name}: {error:.1e}"
