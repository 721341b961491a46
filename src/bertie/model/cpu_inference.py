"""Linear layers for inference on a CPU, fused with what follows.

These are the operations after them. For shapes, see bert.py. torch copies the bias into the result before it
multiplies, and writes the activation, the sum with the residual connection, and its norm to new memory. Here
a kernel computes them in place, row by row (docs/decisions/processors.md has the measurements).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertie.base.threads import run_in_threads
from bertie.model.batch import PackedBatch
from bertie.model.cpu import count_threads, is_exact_gelu
from bertie.model.cpu_inference_kernels import add_and_normalize, add_bias_and_gelu, embed_tokens
from bertie.model.packed_weights import PackedLinear
from bertie.model.products import multiply


def embed_and_normalize(
    batch: PackedBatch,
    words: nn.Embedding,
    segments: nn.Embedding,
    positions: nn.Embedding,
    norm: nn.LayerNorm,
) -> Tensor:
    """Sum the three embeddings of each token, and normalize, (T, H).

    Raises:
        IndexError: an id is not in the vocabulary, or a sequence is longer than the positions.
    """
    if batch.input_ids.max() >= words.num_embeddings or batch.max_seqlen > positions.num_embeddings:
        raise IndexError("a token has no embedding; use the tokenizer and the maximum length of the model")
    tokens = [batch.input_ids, batch.token_type_ids, batch.position_ids]
    weights = [words.weight, segments.weight, positions.weight, norm.weight, norm.bias]
    result = torch.empty(batch.num_tokens, words.embedding_dim)
    arguments: list[Any] = [array.detach().numpy() for array in tokens + weights]
    arguments += [np.float32(norm.eps), result.numpy()]
    run_in_threads(partial(embed_tokens, *arguments), len(result), count_threads(result.numel()))
    return result


def multiply_by_weights(inputs: Tensor, linear: nn.Linear | PackedLinear) -> Tensor:
    """Compute a linear layer without its bias, (rows, in) -> float32 (rows, out).

    Under autocast the product is rounded to bfloat16 and then converted. A kernel that reads bfloat16 is not
    faster (docs/decisions/inference.md, "Fused layers in bfloat16").
    """
    if not isinstance(linear, nn.Linear):
        return linear.without_bias(inputs).float()
    if torch.is_autocast_enabled("cpu"):
        return torch.mm(inputs, linear.weight.t()).float()
    return multiply(inputs, linear.weight.t(), out=inputs.new_empty(len(inputs), linear.out_features))


def linear_and_activation(inputs: Tensor, linear: nn.Linear | PackedLinear, activation: nn.Module) -> Tensor:
    """Compute activation(linear(inputs)), (rows, in) -> (rows, out)."""
    if not is_exact_gelu(activation):
        activated: Tensor = activation(linear(inputs))
        return activated
    if isinstance(linear, PackedLinear):
        return linear.with_gelu(inputs)
    return _finish(multiply_by_weights(inputs, linear), add_bias_and_gelu, linear.bias)


def linear_and_norm(
    inputs: Tensor, linear: nn.Linear | PackedLinear, residual: Tensor, norm: nn.LayerNorm
) -> Tensor:
    """Compute norm(residual + linear(inputs)), (rows, in) -> (rows, out)."""
    product = multiply_by_weights(inputs, linear)
    return _finish(product, add_and_normalize, linear.bias, residual, norm.weight, norm.bias, eps=norm.eps)


def _finish(product: Tensor, kernel: Callable[..., None], *arrays: Tensor, **constants: float) -> Tensor:
    """Run a kernel on the rows of a product, in place."""
    rows = product.numpy()
    arguments: list[Any] = [array.detach().numpy() for array in arrays]
    arguments += map(np.float32, constants.values())
    run_in_threads(
        lambda first, last: kernel(rows, *arguments, first, last), len(rows), count_threads(rows.size)
    )
    return product
