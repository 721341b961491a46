"""Rows of zeros after the tokens of a batch: which numbers of rows remain, and when rows are added."""

import pytest
import torch
from torch import nn

from bertie.model.packed_weights import PackedLinear
from bertie.model.rows import pad_rows

MAX_TOKENS = 2048  # of a batch in inference on a CPU: Hardware.inference_batch_tokens
PRIMITIVES = 1024  # that oneDNN keeps


LINEAR = nn.Linear(3, 3)


def count_rows(tokens: int, linear: nn.Module = LINEAR) -> int:
    return len(pad_rows(torch.empty(tokens, 3), linear))


def test_onednn_keeps_what_it_compiled_for_every_number_of_rows():
    with torch.autocast("cpu", torch.bfloat16):
        counts = [count_rows(tokens) for tokens in range(1, MAX_TOKENS + 1)]
    assert 4 * len(set(counts)) < PRIMITIVES  # a layer has four products
    assert all(tokens <= count < tokens + max(4, tokens / 8) for tokens, count in enumerate(counts, 1))


def test_added_rows_are_zeros():
    with torch.autocast("cpu", torch.bfloat16):
        padded = pad_rows(torch.ones(1001, 3), LINEAR)
    assert padded.shape == (1024, 3)
    assert padded[:1001].all()
    assert not padded[1001:].any()


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("bfloat16", [False, True])
def test_rows_are_added_only_where_onednn_multiplies(inference, bfloat16):
    with torch.inference_mode(inference), torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        assert count_rows(1001) == (1024 if bfloat16 else 1001)


@torch.inference_mode()
def test_rows_are_added_for_packed_weights():
    assert count_rows(1001, PackedLinear(LINEAR, torch.float32)) == 1024
