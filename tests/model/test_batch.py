"""Packing keeps every token, and sequences of a batch do not affect each other."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.model import cpu_attention
from bertie.model.attention import packed_attention
from bertie.model.batch import PackedBatch, pack, pack_selected
from bertie.model.buckets import MIN_LENGTH_RATIO, make_buckets
from bertie.model.config import BertConfig
from bertie.model.heads import ClassificationModel
from bertie.model.objectives import IGNORE_INDEX
from bertie.model.sequences import batch_by_token_budget

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def bounds_of(lengths: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def random_batch(lengths: list[int], vocab_size: int = 30) -> PackedBatch:
    random = np.random.default_rng(len(lengths))
    total = sum(lengths)
    ids = random.integers(0, vocab_size, total).astype(np.int32)
    return pack(ids, random.integers(0, 2, total).astype(np.int32), bounds_of(lengths))


@given(LENGTHS)
def test_buckets_hold_each_token_once(lengths):
    batch = random_batch(lengths)
    buckets = batch.buckets
    slot_tokens, token_slots = buckets.slot_tokens.numpy(), buckets.token_slots.numpy()
    assert (slot_tokens[token_slots] == np.arange(sum(lengths))).all()
    assert sum(n * S for n, S in buckets.shapes) == len(slot_tokens)
    mask = np.ones(len(slot_tokens), bool) if buckets.mask is None else buckets.mask.numpy()
    assert mask.sum() == sum(lengths)
    assert mask[token_slots].all()
    assert sum(lengths) >= MIN_LENGTH_RATIO * len(slot_tokens) or min(lengths) == 1
    for tokens in buckets.tokens():
        sequences = batch.sequence_ids[tokens]
        assert (sequences == sequences[:, :1]).all()  # padding repeats a token of its own sequence


def test_a_bucket_ends_below_three_quarters_of_its_longest_sequence():
    assert make_buckets(np.array([29, 40, 30, 29])).shapes == ((2, 40), (2, 29))


@given(LENGTHS, st.sampled_from([1, 8, 16]))
def test_lengths_are_multiples_of_a_vector_where_little_is_missing(lengths, vector_length):
    padded = make_buckets(np.array(lengths), vector_length).shapes
    for (n, S), (same_n, longest) in zip(padded, make_buckets(np.array(lengths)).shapes, strict=True):
        assert n == same_n
        missing = -longest % vector_length
        assert longest + missing * (longest > vector_length and missing <= vector_length // 2) == S


def test_a_bucket_of_whole_vectors_changes_no_result():
    lengths, random = [31, 29, 27], np.random.default_rng(1)
    ids = random.integers(0, 30, sum(lengths)).astype(np.int32)
    plain, padded = (pack(ids, ids * 0, bounds_of(lengths), vector_length=length) for length in (1, 16))
    assert (plain.buckets.shapes, padded.buckets.shapes) == (((3, 31),), ((3, 32),))
    qkv = torch.randn(sum(lengths), 24)
    results = [packed_attention(qkv, batch, num_heads=2, dropout_p=0.0) for batch in (plain, padded)]
    torch.testing.assert_close(*results, atol=1e-6, rtol=1e-5)


@given(LENGTHS)
def test_position_ids_restart_in_each_sequence(lengths):
    batch = random_batch(lengths)
    expected = np.concatenate([np.arange(length) for length in lengths])
    assert (batch.position_ids.numpy() == expected).all()
    assert batch.cu_seqlens.tolist() == bounds_of(lengths).tolist()
    assert batch.max_seqlen == max(lengths)


@pytest.fixture(
    scope="module", params=[0, cpu_attention.SMALL_PRODUCT], ids=["large products", "small products"]
)
def small_product(request):
    """Make all attention products of this file count as large, or all as small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_attention, "SMALL_PRODUCT", request.param)
        yield request.param


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
@pytest.mark.usefixtures("small_product")
@given(LENGTHS)
@settings(max_examples=30)
def test_packed_attention_equals_attention_per_sequence(dtype, tolerance, lengths):
    torch.manual_seed(0)
    batch = random_batch(lengths)
    qkv = torch.randn(sum(lengths), 3 * 8, requires_grad=True)
    weight = torch.randn(sum(lengths), 8)
    packed = packed_attention(qkv.to(dtype), batch, num_heads=2, dropout_p=0.0).float()
    (gradient,) = torch.autograd.grad((packed * weight).sum(), qkv)
    outputs = []
    for start, end in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
        q, k, v = qkv[start:end].view(-1, 3, 2, 4).permute(1, 2, 0, 3)  # each (A, length, D)
        scores = (q @ k.transpose(1, 2) / 2.0).softmax(-1)
        outputs.append((scores @ v).transpose(0, 1).reshape(-1, 8))
    expected = torch.cat(outputs)
    (expected_gradient,) = torch.autograd.grad((expected * weight).sum(), qkv)
    torch.testing.assert_close(packed, expected, atol=tolerance, rtol=1e-4)
    torch.testing.assert_close(gradient, expected_gradient, atol=tolerance, rtol=1e-4)


def test_small_products_in_bfloat16_training_use_float32():
    batch = random_batch([5, 9, 9, 2])
    qkv = torch.randn(25, 24, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):  # must not turn the products into bfloat16 again
        attended = packed_attention(qkv, batch, num_heads=2, dropout_p=0.0)
    expected = cpu_attention.cpu_attention(qkv.detach().float(), batch.buckets, 2, 0.0).bfloat16()
    assert torch.equal(attended, expected)


def test_rows_after_the_tokens_change_nothing():
    batch = random_batch([5, 9, 2])
    qkv = torch.randn(16, 24, requires_grad=True)
    attended = packed_attention(qkv, batch, num_heads=2, dropout_p=0.0)
    longer = torch.cat([qkv.detach(), torch.randn(7, 24)]).requires_grad_()
    attended_longer = packed_attention(longer, batch, num_heads=2, dropout_p=0.0)
    assert torch.equal(attended_longer, F.pad(attended, (0, 0, 0, 7)))
    weight = torch.randn(23, 8)
    (attended * weight[:16]).sum().backward()
    (attended_longer * weight).sum().backward()
    assert torch.equal(longer.grad, F.pad(qkv.grad, (0, 0, 0, 7)))


@pytest.mark.parametrize("sequence", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_stays_inside_its_sequence(dtype, sequence):
    batch = random_batch([5, 9, 8, 2])
    assert batch.buckets.shapes == ((2, 9), (1, 5), (1, 2))
    qkv = torch.randn(24, 24).to(dtype)
    clean = packed_attention(qkv, batch, num_heads=2, dropout_p=0.0)
    is_nan = batch.sequence_ids == sequence
    qkv[is_nan] = float("nan")
    poisoned = packed_attention(qkv, batch, num_heads=2, dropout_p=0.0)
    assert torch.equal(clean[~is_nan], poisoned[~is_nan])
    assert poisoned[is_nan].isnan().all()


def test_logits_do_not_depend_on_the_rest_of_the_batch():
    torch.manual_seed(0)
    shape = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(**shape, intermediate_size=32, initializer_range=0.3)
    model = ClassificationModel(config, num_labels=3).eval()
    lengths = [7, 40, 3, 31]
    batch = random_batch(lengths)
    ids, segments = batch.input_ids.numpy(), batch.token_type_ids.numpy()
    with torch.no_grad():
        together = model(batch)
        for index in range(len(lengths)):
            single = pack_selected(ids, segments, bounds_of(lengths), np.array([index]))
            torch.testing.assert_close(model(single)[0], together[index], atol=1e-5, rtol=1e-4)


@given(LENGTHS, st.randoms(use_true_random=False))
def test_selected_sequences_keep_the_given_order(lengths, random):
    batch = random_batch(lengths)
    ids, segments = batch.input_ids.numpy(), batch.token_type_ids.numpy()
    indices = np.array([random.randrange(len(lengths)) for _ in range(5)])
    bounds = bounds_of(lengths)
    selected = pack_selected(ids, segments, bounds, indices, labels=np.arange(len(lengths)))
    expected = np.concatenate([ids[bounds[i] : bounds[i + 1]] for i in indices])
    assert (selected.input_ids.numpy() == expected).all()
    assert selected.labels.tolist() == indices.tolist()


@given(LENGTHS, st.randoms(use_true_random=False))
def test_selection_keeps_token_labels_with_their_tokens(lengths, random):
    batch = random_batch(lengths)
    ids, segments = batch.input_ids.numpy(), batch.token_type_ids.numpy()
    indices = np.array([random.randrange(len(lengths)) for _ in range(5)])
    token_labels = np.where(ids % 3, ids, IGNORE_INDEX).astype(np.int64)
    selected = pack_selected(ids, segments, bounds_of(lengths), indices, token_labels=token_labels)
    selected_ids = selected.input_ids.numpy()
    assert (selected.labels.numpy() == np.where(selected_ids % 3, selected_ids, IGNORE_INDEX)).all()
    assert selected.num_targets == (selected_ids % 3 > 0).sum()


@given(LENGTHS, st.integers(1, 4), st.integers(1, 60))
def test_sequences_of_an_example_stay_together(lengths, group_size, max_tokens):
    lengths = np.repeat(lengths, group_size) + np.arange(len(lengths) * group_size) % 3
    bounds = bounds_of(lengths)
    ids = np.repeat(np.arange(len(lengths)), lengths).astype(np.int32)  # the index of the sequence
    segments = np.zeros_like(ids)
    examples = np.arange(len(lengths) // group_size)
    batches = batch_by_token_budget(bounds[::group_size], max_tokens)
    assert sorted(np.concatenate(batches).tolist()) == examples.tolist()
    for indices in batches:
        batch = pack_selected(ids, segments, bounds, indices, labels=examples, group_size=group_size)
        assert batch.labels.tolist() == indices.tolist()
        sequences = batch.input_ids.numpy()[batch.cu_seqlens[:-1]]
        expected = indices[:, None] * group_size + np.arange(group_size)
        assert (sequences.reshape(-1, group_size) == expected).all()
        assert len(indices) == 1 or batch.num_tokens <= max_tokens


@given(LENGTHS)
def test_sequence_ids_count_the_sequences(lengths):
    batch = random_batch(lengths)
    assert batch.sequence_ids.tolist() == np.repeat(np.arange(len(lengths)), lengths).tolist()


@given(LENGTHS, st.integers(1, 60), st.none() | st.integers(0, 20))
def test_token_budget_batches_hold_each_sequence_once(lengths, max_tokens, max_padding):
    batches = batch_by_token_budget(bounds_of(lengths), max_tokens, max_padding)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        of_batch = np.array(lengths)[batch]
        assert len(batch) == 1 or of_batch.sum() <= max_tokens
        assert max_padding is None or (of_batch.max() - of_batch).sum() <= max_padding
    for batch, following in pairwise(batches):  # a batch is as large as it may be
        of_batch = np.array(lengths)[[*batch, following[0]]]
        too_long = of_batch.sum() > max_tokens
        assert too_long or (max_padding is not None and (of_batch[-1] - of_batch).sum() > max_padding)
