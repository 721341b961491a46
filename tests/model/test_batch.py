"""Packing loses nothing, and a sequence's numbers do not depend on its company."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.model import attention
from bertie.model.attention import packed_attention
from bertie.model.batch import BUCKET_RATIO, pack, pack_selected
from bertie.model.config import BertConfig
from bertie.model.heads import ClassificationModel
from bertie.model.sequences import token_budget_batches

lengths_of = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def bounds_of(lengths: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def random_batch(lengths: list[int], vocab_size: int = 30):
    random = np.random.default_rng(len(lengths))
    total = sum(lengths)
    ids = random.integers(0, vocab_size, total).astype(np.int32)
    return pack(ids, random.integers(0, 2, total).astype(np.int32), bounds_of(lengths))


@given(lengths_of)
def test_buckets_hold_each_token_once(lengths):
    batch = random_batch(lengths)
    rows, places = batch.bucket_rows.numpy(), batch.bucket_places.numpy()
    assert (rows[places] == np.arange(sum(lengths))).all()
    assert sum(n * S for n, S in batch.bucket_shapes) == len(rows)
    mask = np.ones(len(rows), bool) if batch.bucket_mask is None else batch.bucket_mask.numpy()
    assert mask.sum() == sum(lengths)
    assert mask[places].all()
    assert sum(lengths) >= BUCKET_RATIO * len(rows) or min(lengths) == 1


@given(lengths_of)
def test_positions_start_anew_in_each_sequence(lengths):
    batch = random_batch(lengths)
    expected = np.concatenate([np.arange(length) for length in lengths])
    assert (batch.position_ids.numpy() == expected).all()
    assert batch.cu_seqlens.tolist() == bounds_of(lengths).tolist()
    assert batch.max_seqlen == max(lengths)


@pytest.fixture(scope="module", params=[0, attention.SMALL_PRODUCT], ids=["large products", "small products"])
def small_product(request):
    """None of the buckets counts as small, or all of those here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "SMALL_PRODUCT", request.param)
        yield request.param


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
@pytest.mark.usefixtures("small_product")
@given(lengths_of)
@settings(max_examples=30)
def test_attention_is_that_of_each_sequence_alone(dtype, tolerance, lengths):
    torch.manual_seed(0)
    batch = random_batch(lengths)
    qkv = torch.randn(sum(lengths), 3 * 8, requires_grad=True)
    weight = torch.randn(sum(lengths), 8)
    packed = packed_attention(qkv.to(dtype), batch, num_heads=2, dropout=0.0).float()
    (gradient,) = torch.autograd.grad((packed * weight).sum(), qkv)
    outputs = []
    for start, end in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
        q, k, v = qkv[start:end].view(-1, 3, 2, 4).permute(1, 2, 0, 3)  # each (A, length, D)
        scores = (q @ k.transpose(1, 2) / 2.0).softmax(-1)
        outputs.append((scores @ v).transpose(0, 1).reshape(-1, 8))
    alone = torch.cat(outputs)
    (expected,) = torch.autograd.grad((alone * weight).sum(), qkv)
    torch.testing.assert_close(packed, alone, atol=tolerance, rtol=1e-4)
    torch.testing.assert_close(gradient, expected, atol=tolerance, rtol=1e-4)


def test_small_products_of_bfloat16_in_training_are_those_of_float32():
    batch = random_batch([5, 9, 9, 2])
    qkv = torch.randn(25, 24, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):  # which would make them bfloat16 again
        attended = packed_attention(qkv, batch, num_heads=2, dropout=0.0)
    expected = packed_attention(qkv.detach().float(), batch, num_heads=2, dropout=0.0).bfloat16()
    assert torch.equal(attended, expected)


def test_rows_of_no_sequence_change_nothing():
    batch = random_batch([5, 9, 2])
    qkv = torch.randn(16, 24, requires_grad=True)
    attended = packed_attention(qkv, batch, num_heads=2, dropout=0.0)
    longer = torch.cat([qkv.detach(), torch.randn(7, 24)]).requires_grad_()
    with_them = packed_attention(longer, batch, num_heads=2, dropout=0.0)
    assert torch.equal(with_them, F.pad(attended, (0, 0, 0, 7)))
    weight = torch.randn(23, 8)
    (attended * weight[:16]).sum().backward()
    (with_them * weight).sum().backward()
    assert torch.equal(longer.grad, F.pad(qkv.grad, (0, 0, 0, 7)))


def test_a_poisoned_neighbour_is_not_felt():
    batch = random_batch([5, 9, 2])
    qkv = torch.randn(16, 24)
    clean = packed_attention(qkv, batch, num_heads=2, dropout=0.0)
    qkv[5:14] = float("nan")
    poisoned = packed_attention(qkv, batch, num_heads=2, dropout=0.0)
    assert torch.equal(clean[:5], poisoned[:5])
    assert torch.equal(clean[14:], poisoned[14:])


def test_model_gives_a_sequence_the_same_logits_in_any_batch():
    torch.manual_seed(0)
    shape = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(**shape, intermediate_size=32, initializer_range=0.3)
    model = ClassificationModel(config, num_labels=3).eval()
    lengths = [7, 40, 3, 31]
    batch = random_batch(lengths)
    ids, segments = batch.input_ids.numpy(), batch.token_type_ids.numpy()
    with torch.no_grad():
        together = model(batch)
        for number in range(len(lengths)):
            one = pack_selected(ids, segments, bounds_of(lengths), np.array([number]))
            torch.testing.assert_close(model(one)[0], together[number], atol=1e-5, rtol=1e-4)


@given(lengths_of, st.randoms(use_true_random=False))
def test_selected_sequences_come_in_the_order_asked_for(lengths, random):
    batch = random_batch(lengths)
    ids, segments = batch.input_ids.numpy(), batch.token_type_ids.numpy()
    chosen = np.array([random.randrange(len(lengths)) for _ in range(5)])
    bounds = bounds_of(lengths)
    selected = pack_selected(ids, segments, bounds, chosen, labels=np.arange(len(lengths)))
    expected = np.concatenate([ids[bounds[c] : bounds[c + 1]] for c in chosen])
    assert (selected.input_ids.numpy() == expected).all()
    assert selected.labels.tolist() == chosen.tolist()


@given(lengths_of, st.randoms(use_true_random=False))
def test_labels_of_tokens_come_with_their_tokens(lengths, random):
    batch = random_batch(lengths)
    ids, segments = batch.input_ids.numpy(), batch.token_type_ids.numpy()
    chosen = np.array([random.randrange(len(lengths)) for _ in range(5)])
    token_labels = np.where(ids % 3, ids, -100).astype(np.int64)
    selected = pack_selected(ids, segments, bounds_of(lengths), chosen, token_labels=token_labels)
    kept = selected.input_ids.numpy()
    assert (selected.labels.numpy() == np.where(kept % 3, kept, -100)).all()
    assert selected.num_targets == (kept % 3 > 0).sum()


@given(lengths_of, st.integers(1, 4), st.integers(1, 60))
def test_groups_stay_together(lengths, group, budget):
    lengths = np.repeat(lengths, group) + np.arange(len(lengths) * group) % 3
    bounds = bounds_of(lengths)
    ids = np.repeat(np.arange(len(lengths)), lengths).astype(np.int32)  # the number of the sequence
    examples = np.arange(len(lengths) // group)
    batches = token_budget_batches(bounds[::group], budget)
    assert sorted(np.concatenate(batches).tolist()) == examples.tolist()
    for chosen in batches:
        batch = pack_selected(ids, np.zeros_like(ids), bounds, chosen, labels=examples, group=group)
        assert batch.labels.tolist() == chosen.tolist()
        firsts = batch.input_ids.numpy()[batch.cu_seqlens[:-1]]
        assert (firsts.reshape(-1, group) == chosen[:, None] * group + np.arange(group)).all()
        assert len(chosen) == 1 or batch.num_tokens <= budget


@given(lengths_of)
def test_sequence_ids_number_the_sequences(lengths):
    batch = random_batch(lengths)
    assert batch.sequence_ids.tolist() == np.repeat(np.arange(len(lengths)), lengths).tolist()


@given(lengths_of, st.integers(1, 60))
def test_token_budget_batches_hold_each_sequence_once(lengths, budget):
    batches = token_budget_batches(bounds_of(lengths), budget)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or np.array(lengths)[batch].sum() <= budget
