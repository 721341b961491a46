"""Models with every head: devices, bfloat16, checkpointing, initial weights."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.parity.transformers_peer import ragged_batch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bertie.base.errors import ModelError
from bertie.model import bert
from bertie.model.attention import pooling_attention
from bertie.model.batch import PackedBatch, pack
from bertie.model.bert import BertModel, add_bilstm, initialize
from bertie.model.config import BertConfig
from bertie.model.heads import (
    ClassificationModel,
    EmbeddingModel,
    LanguageModel,
    MaskedLMModel,
    MultipleChoiceModel,
    PreTrainingModel,
    QuestionAnsweringModel,
    TokenClassificationModel,
)
from bertie.model.objectives import IGNORE_INDEX
from bertie.model.rows import pad_rows

LENGTHS = (40, 3, 17, 33, 64, 9)
CONFIG = BertConfig(
    vocab_size=211,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=64,
    initializer_range=0.1,
)
RANDOM = np.random.default_rng(0)
N, T = len(LENGTHS), sum(LENGTHS)
PARAMETERS = "make_model", "labels"
MODELS = [
    pytest.param(lambda: PreTrainingModel(CONFIG), None, id="pre-training"),
    pytest.param(lambda: MaskedLMModel(CONFIG), None, id="masked LM"),
    pytest.param(lambda: ClassificationModel(CONFIG, 3), RANDOM.integers(0, 3, N), id="classification"),
    pytest.param(
        lambda: ClassificationModel(CONFIG, 3, "multi_label_classification"),
        RANDOM.integers(0, 2, (N, 3)).astype(np.float32),
        id="multi-label",
    ),
    pytest.param(
        lambda: ClassificationModel(CONFIG, 1, "regression"),
        RANDOM.normal(size=N).astype(np.float32),
        id="regression",
    ),
    pytest.param(
        lambda: TokenClassificationModel(CONFIG, 3), RANDOM.integers(0, 3, T), id="token classification"
    ),
    pytest.param(
        lambda: QuestionAnsweringModel(CONFIG),
        RANDOM.integers(0, np.array([LENGTHS] * 2).T),
        id="question answering",
    ),
    pytest.param(lambda: MultipleChoiceModel(CONFIG), RANDOM.integers(0, 2, N // 2), id="multiple choice"),
    pytest.param(
        lambda: LanguageModel(CONFIG.model_copy(update={"is_decoder": True})), None, id="language model"
    ),
]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def mean_loss(model: nn.Module, batch: PackedBatch) -> torch.Tensor:
    """Return the loss of a batch as the training loop computes it."""
    losses = model.compute_losses(batch).values()
    return torch.stack([loss.loss_sum / loss.num_targets for loss in losses]).sum()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


class OnlyMetaTensors(TorchDispatchMode):
    """Fail if an operation returns a tensor on another device than meta."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        for value in results if isinstance(results, tuple | list) else (results,):
            assert not isinstance(value, torch.Tensor) or value.is_meta, func
        return results


@pytest.mark.parametrize(PARAMETERS, MODELS)
def test_training_stays_on_the_device_without_synchronization(make_model, labels):
    """Reading a value, which would synchronize a GPU, raises for meta tensors."""
    meta = torch.device("meta")
    model = make_model().to(meta).train()
    batch = ragged_batch(lengths=LENGTHS, labels=labels).to(meta)
    assert batch.buckets.slot_tokens.is_meta  # made on the CPU, and copied without waiting for the device
    with OnlyMetaTensors():
        mean_loss(model, batch).backward()
    assert all(gradient is not None and gradient.is_meta for gradient in gradients(model).values())


@pytest.mark.parametrize(PARAMETERS, MODELS)
def test_autocast_keeps_norms_losses_and_gradients_in_float32(make_model, labels):
    model = make_model().eval()
    batch = ragged_batch(lengths=LENGTHS, labels=labels)
    float32_model = copy.deepcopy(model)
    expected_loss = mean_loss(float32_model, batch)
    expected_loss.backward()
    around_norms = []
    for part in model.modules():
        if isinstance(part, nn.LayerNorm):
            part.register_forward_hook(lambda _, inputs, output: around_norms.extend((inputs[0], output)))
    with torch.autocast("cpu", torch.bfloat16):
        assert model(batch)[0].dtype == torch.bfloat16  # autocast has an effect
        loss = mean_loss(model, batch)
    loss.backward()
    assert {values.dtype for values in around_norms} == {loss.dtype} == {torch.float32}
    torch.testing.assert_close(loss, expected_loss, rtol=0.01, atol=0)
    assert {gradient.dtype for gradient in gradients(model).values()} == {torch.float32}
    flat, expected = (torch.cat([g.flatten() for g in gradients(m).values()]) for m in (model, float32_model))
    assert flat.isfinite().all()
    assert nn.functional.cosine_similarity(flat, expected, dim=0) > 0.99


def test_bfloat16_on_a_cpu_pads_the_number_of_rows():
    model = PreTrainingModel(CONFIG)
    rows = []
    for layer in model.bert.layers:
        for part in (layer, *layer.children()):
            part.register_forward_hook(lambda _, inputs, output: rows.append(len(inputs[0])))
    for lengths in (LENGTHS, LENGTHS[:3], (5,)):
        batch = ragged_batch(lengths=lengths)
        with torch.autocast("cpu", torch.bfloat16):
            masked = batch.masked_positions
            assert len(model.train()(batch)[0]) == len(pad_rows(masked, model.masked_lm.dense))
            assert len(model.eval()(batch)[0]) == len(masked)
            assert len(model.bert.pool(batch)) == len(batch)
            qkv = model.bert.layers[0].qkv
            assert all(len(pad_rows(torch.empty(count, 1), qkv)) == count for count in rows)
            assert len(pad_rows(torch.empty(batch.num_tokens, 1), qkv)) in rows
        assert len(model.train().bert(batch)[0]) == batch.num_tokens
        assert batch.num_tokens in rows  # float32 is not padded
        rows.clear()


@pytest.mark.parametrize(PARAMETERS, MODELS[:1] + MODELS[5:6])
def test_gradient_checkpointing_saves_memory(make_model, labels):
    model = make_model().train()
    batch = ragged_batch(lengths=LENGTHS, labels=labels)

    def step(gradient_checkpointing: bool) -> tuple[dict[str, torch.Tensor], int]:
        """Return the gradients, and the bytes kept for the backward pass."""
        kept_bytes = 0

        def count_bytes(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept_bytes
            kept_bytes += tensor.nbytes
            return tensor

        model.bert.gradient_checkpointing = gradient_checkpointing
        model.zero_grad()
        torch.manual_seed(1)  # the same dropout
        with torch.autograd.graph.saved_tensors_hooks(count_bytes, lambda tensor: tensor):
            loss = mean_loss(model, batch)
        loss.backward()
        return gradients(model), kept_bytes

    expected, expected_bytes = step(False)
    checkpointed, checkpointed_bytes = step(True)
    assert all(torch.equal(expected[name], checkpointed[name]) for name in expected)
    # The hooks do not see the inputs of the layers, which are kept too.
    input_bytes = CONFIG.num_hidden_layers * T * CONFIG.hidden_size * 4
    assert checkpointed_bytes + input_bytes < expected_bytes / 2


def test_gradient_checkpointing_is_off_in_evaluation():
    model = ClassificationModel(CONFIG, 2).eval()
    model.bert.gradient_checkpointing = True
    calls = []
    model.bert.layers[0].register_forward_pre_hook(lambda *_: calls.append(1))
    model(ragged_batch(lengths=LENGTHS)).sum().backward()
    assert len(calls) == 1


def test_pooled_output_is_none_without_a_pooler():
    model = TokenClassificationModel(CONFIG, 2)
    assert not any("pooler" in name for name in model.state_dict())
    sequence_output, pooled_output = model.bert(ragged_batch(lengths=LENGTHS))
    assert sequence_output.shape == (T, CONFIG.hidden_size)
    assert pooled_output is None


@pytest.mark.parametrize("pooler", [True, False])
@pytest.mark.parametrize("selection", [[0, 7, 41, T - 1], []])
def test_last_layer_transforms_only_the_tokens_needed(pooler, selection):
    batch, positions = ragged_batch(lengths=LENGTHS), torch.tensor(selection, dtype=torch.int64)
    model = BertModel(CONFIG, pooler).eval()
    initialize(model, CONFIG)
    transformed = []
    model.layers[-1].intermediate.register_forward_pre_hook(lambda _, inputs: transformed.append(inputs[0]))

    def outputs_and_gradients(positions_argument):
        model.zero_grad()
        sequence_output, pooled_output = model(batch, positions_argument)
        if positions_argument is None:
            sequence_output = sequence_output[positions]
        outputs = [output for output in (sequence_output, pooled_output) if output is not None]
        torch.stack([output.sin().sum() for output in outputs]).sum().backward()
        return outputs + [weight.grad for weight in model.parameters() if weight.grad is not None]

    for expected, actual in zip(outputs_and_gradients(None), outputs_and_gradients(positions), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
    assert [len(inputs) for inputs in transformed] == [T, len(selection) + N * pooler]


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("bilstm", [False, True])
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_pooled_output_alone_needs_no_other_token_of_the_last_layer(
    is_decoder, bilstm, gradient_checkpointing, fused, monkeypatch
):
    monkeypatch.setattr(bert, "can_fuse", lambda values: fused)
    config = CONFIG.model_copy(
        update={"is_decoder": is_decoder, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    )
    batch, model = ragged_batch(lengths=LENGTHS), BertModel(config)
    if bilstm:
        add_bilstm(model, config)
    initialize(model, config)
    nn.init.normal_(model.layers[-1].qkv.bias)
    model.gradient_checkpointing = gradient_checkpointing
    transformed: dict[str, int] = {}
    for name in ("qkv", "intermediate"):
        model.layers[-1].get_submodule(name).register_forward_pre_hook(
            lambda _, inputs, name=name: transformed.update({name: len(inputs[0])})
        )

    def output_and_gradients(pooled_output):
        model.zero_grad()
        pooled_output.sin().sum().backward()
        return [pooled_output] + [weight.grad for weight in model.parameters()]

    expected = output_and_gradients(model(batch)[1])
    transformed.clear()
    for actual, wanted in zip(output_and_gradients(model.pool(batch)), expected, strict=True):
        torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=1e-4)
    if not fused:  # fused layers use the weights of `intermediate`, but do not call it
        assert transformed == ({"qkv": T, "intermediate": T} if bilstm else {"intermediate": N})


@pytest.mark.parametrize("is_decoder", [False, True])
def test_embedding_of_cls_needs_one_query_in_the_last_layer(is_decoder, monkeypatch):
    without_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = CONFIG.model_copy(update={"is_decoder": is_decoder, **without_dropout})
    model = EmbeddingModel(config, "cls")
    nn.init.normal_(model.bert.layers[-1].qkv.bias)
    labels = np.arange(N).reshape(N // 2, 2)  # all texts compete
    batch = ragged_batch(lengths=LENGTHS, labels=labels)
    calls = []
    monkeypatch.setattr(bert, "pooling_attention", lambda *args: calls.append(1) or pooling_attention(*args))

    def results() -> dict[str, torch.Tensor]:
        model.zero_grad()
        loss = mean_loss(model, batch)
        loss.backward()
        return {"loss": loss, **{name: g for name, g in gradients(model).items() if g is not None}}

    actual = results()
    assert bool(calls) != is_decoder
    vectors_of_all_tokens = model.bert.encode
    model.bert.encode = lambda batch, positions, **_: vectors_of_all_tokens(batch).index_select(0, positions)
    torch.testing.assert_close(actual, results(), atol=1e-5, rtol=1e-4)


def test_type_vocab_size_1_rejects_pairs():
    model = BertModel(BertConfig(**{**CONFIG.model_dump(), "type_vocab_size": 1}))
    ids, bounds = np.arange(4, dtype=np.int32), np.array([0, 4])
    model(pack(ids, np.zeros(4, np.int32), bounds))
    with pytest.raises(
        ModelError, match="type_vocab_size is 1: the model reads only single texts; pass no pairs"
    ):
        model(pack(ids, np.array([0, 0, 1, 1], np.int32), bounds))


WEIGHTED = [
    pytest.param(lambda: ClassificationModel(CONFIG, 3), RANDOM.integers(0, 3, N), id="classification"),
    pytest.param(
        lambda: ClassificationModel(CONFIG, 3, "multi_label_classification"),
        RANDOM.integers(0, 2, (N, 3)).astype(np.float32),
        id="multi-label",
    ),
    pytest.param(
        lambda: TokenClassificationModel(CONFIG, 3),
        np.where(np.arange(T) % 5 == 0, IGNORE_INDEX, RANDOM.integers(0, 3, T)),
        id="token classification",
    ),
]


@pytest.mark.parametrize(PARAMETERS, WEIGHTED)
def test_class_weights_scale_the_loss_of_each_label(make_model, labels):
    """As in torch's own losses with reduction="sum"; the number of targets, which divides, stays the same."""
    model, batch = make_model().eval(), ragged_batch(lengths=LENGTHS, labels=labels)
    (plain,) = model.compute_losses(batch).values()
    logits, gold = model(batch).detach(), torch.from_numpy(labels)
    model.class_weights = torch.tensor([0.5, 3.0, 1.5])
    (weighted,) = model.compute_losses(batch).values()
    if gold.is_floating_point():
        loss = nn.BCEWithLogitsLoss(pos_weight=model.class_weights, reduction="sum")(logits, gold) / 3
    else:
        loss = nn.CrossEntropyLoss(model.class_weights, reduction="sum")(logits, gold)
    torch.testing.assert_close(weighted.loss_sum, loss)
    assert (weighted.num_correct, weighted.num_targets) == (plain.num_correct, plain.num_targets)
    model.class_weights = torch.ones(3)
    (equal,) = model.compute_losses(batch).values()
    torch.testing.assert_close(equal.loss_sum, plain.loss_sum)
    assert "class_weights" not in model.state_dict()


def test_a_text_is_correct_only_if_all_its_labels_are():
    model = ClassificationModel(CONFIG, 3, "multi_label_classification").eval()
    predicted = (model(ragged_batch(lengths=LENGTHS)) > 0).float()
    predicted[1:3, 1] = 1 - predicted[1:3, 1]  # one label of two texts is wrong
    (objective,) = model.compute_losses(ragged_batch(lengths=LENGTHS, labels=predicted.numpy())).values()
    assert objective.num_correct == N - 2


def test_without_next_sentence_labels_only_masked_lm_is_trained():
    model = PreTrainingModel(CONFIG)
    both = ragged_batch(lengths=LENGTHS)
    only_masked = replace(both, next_sentence_labels=None)
    for batch, names in ((only_masked, {"masked_lm"}), (both, {"masked_lm", "next_sentence"})):
        assert model.compute_losses(batch).keys() == model.count_targets(batch).keys() == names


def test_every_layer_norm_has_the_papers_epsilon():
    """1e-12, the default of tf.contrib.layers.layer_norm, which modeling.py calls."""
    with torch.device("meta"):
        model = PreTrainingModel(BertConfig())
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert [norm.eps for norm in norms] == [1e-12] * (1 + 2 * 12 + 1)  # embeddings, layers, masked-LM head


@pytest.mark.parametrize(PARAMETERS, MODELS)
def test_initial_weights_are_truncated_at_two_deviations(make_model, labels):
    for name, weight in make_model().named_parameters():
        if "norm" in name:
            assert (weight == (1.0 if name.endswith("weight") else 0.0)).all(), name
        elif name.endswith("bias"):
            assert (weight == 0).all(), name
        else:
            largest = weight.abs().amax(1)  # of each row; not zero for [PAD], unlike in `transformers`
            assert ((largest > 0) & (largest <= 2 * CONFIG.initializer_range)).all(), name
            if weight.numel() > 1000:
                # Truncation at two standard deviations leaves 0.88 of the standard deviation.
                assert weight.std().item() == pytest.approx(0.88 * CONFIG.initializer_range, rel=0.08), name


def test_position_initializer_range_scales_only_the_positions():
    default = PreTrainingModel(CONFIG)
    torch.manual_seed(0)
    scaled = PreTrainingModel(CONFIG.model_copy(update={"position_initializer_range": 0.3}))
    for (name, expected), weight in zip(default.named_parameters(), scaled.parameters(), strict=True):
        factor = 3 if name.endswith("position_embeddings.weight") else 1
        torch.testing.assert_close(weight, expected * factor, msg=name)
