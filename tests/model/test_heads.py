"""All models: what a GPU asks of them, bfloat16, gradient checkpointing, gradients by the whole batch."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.parity.transformers_peer import ragged_batch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bertie.base.errors import ModelError
from bertie.model.batch import PackedBatch, pack
from bertie.model.bert import FILLED_ROWS, BertModel, initialize
from bertie.model.config import BertConfig
from bertie.model.heads import (
    ClassificationModel,
    LanguageModel,
    MaskedLMModel,
    MultipleChoiceModel,
    PreTrainingModel,
    QuestionAnsweringModel,
    TokenClassificationModel,
)

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
PARAMETERS = "make", "labels"
MODELS = [
    pytest.param(lambda: PreTrainingModel(CONFIG), None, id="pre-training"),
    pytest.param(lambda: MaskedLMModel(CONFIG), None, id="masked LM"),
    pytest.param(lambda: ClassificationModel(CONFIG, 3), RANDOM.integers(0, 3, N), id="classification"),
    pytest.param(
        lambda: ClassificationModel(CONFIG, 3, "multi_label_classification"),
        RANDOM.integers(0, 2, (N, 3)).astype(np.float32),
        id="several labels",
    ),
    pytest.param(
        lambda: ClassificationModel(CONFIG, 1, "regression"),
        RANDOM.normal(size=N).astype(np.float32),
        id="regression",
    ),
    pytest.param(lambda: TokenClassificationModel(CONFIG, 3), RANDOM.integers(0, 3, T), id="tokens"),
    pytest.param(
        lambda: QuestionAnsweringModel(CONFIG), RANDOM.integers(0, np.array([LENGTHS] * 2).T), id="answers"
    ),
    pytest.param(lambda: MultipleChoiceModel(CONFIG), RANDOM.integers(0, 2, N // 2), id="choices"),
    pytest.param(
        lambda: LanguageModel(CONFIG.model_copy(update={"is_decoder": True})), None, id="language model"
    ),
]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def mean_loss(model: nn.Module, batch: PackedBatch) -> torch.Tensor:
    """What the loop makes of a batch that is a whole global batch."""
    terms = [objective.loss_sum / objective.targets for objective in model.losses(batch).values()]
    return torch.stack(terms).sum()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


class OnMetaAlone(TorchDispatchMode):
    """Fails where an operation makes a tensor on another device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for value in made if isinstance(made, tuple | list) else (made,):
            assert not isinstance(value, torch.Tensor) or value.is_meta, func
        return made


@pytest.mark.parametrize(PARAMETERS, MODELS)
def test_nothing_is_made_on_another_device_or_waited_for(make, labels):
    """The meta device has no values, so to ask for one, as a GPU would have to be waited for, is an error."""
    meta = torch.device("meta")
    model = make().to(meta).train()
    batch = ragged_batch(lengths=LENGTHS, labels=labels).to(meta)
    with OnMetaAlone():
        mean_loss(model, batch).backward()
    assert all(gradient is not None and gradient.is_meta for gradient in gradients(model).values())


@pytest.mark.parametrize(PARAMETERS, MODELS)
def test_bfloat16_autocast(make, labels):
    model = make().eval()
    batch = ragged_batch(lengths=LENGTHS, labels=labels)
    exact = copy.deepcopy(model)
    loss = mean_loss(exact, batch)
    loss.backward()
    norms = []
    for part in model.modules():
        if isinstance(part, nn.LayerNorm):
            part.register_forward_hook(lambda _, inputs, output: norms.extend((inputs[0], output)))
    with torch.autocast("cpu", torch.bfloat16):
        assert model(batch)[0].dtype == torch.bfloat16  # autocast has an effect
        rough = mean_loss(model, batch)
    rough.backward()
    assert {values.dtype for values in norms} == {rough.dtype} == {torch.float32}
    torch.testing.assert_close(rough, loss, rtol=0.01, atol=0)
    assert {gradient.dtype for gradient in gradients(model).values()} == {torch.float32}
    flat, expected = (torch.cat([g.flatten() for g in gradients(m).values()]) for m in (model, exact))
    assert flat.isfinite().all()
    assert nn.functional.cosine_similarity(flat, expected, dim=0) > 0.99


def test_a_processor_meets_few_numbers_of_rows_in_bfloat16():
    model = MaskedLMModel(CONFIG)
    rows = []
    for part in (*model.bert.layers[0].children(), *model.bert.layers[-1].children()):
        part.register_forward_hook(lambda _, inputs, output: rows.append(len(inputs[0])))
    for lengths in (LENGTHS, LENGTHS[:3], (5,)):
        batch = ragged_batch(lengths=lengths)
        with torch.autocast("cpu", torch.bfloat16):
            assert len(model(batch)) == len(batch.masked_positions)
            assert all(count % FILLED_ROWS == 0 for count in rows)
        assert len(model.bert(batch)[0]) == batch.num_tokens
        assert batch.num_tokens in rows  # in float32 there are no fillers
        rows.clear()


@pytest.mark.parametrize(PARAMETERS, MODELS[:1] + MODELS[5:6])
def test_gradient_checkpointing_saves_memory_and_changes_nothing(make, labels):
    model = make().train()
    batch = ragged_batch(lengths=LENGTHS, labels=labels)

    def step(gradient_checkpointing: bool) -> tuple[dict[str, torch.Tensor], int]:
        """The gradients, and the bytes kept for the backward pass."""
        kept = 0

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            kept += tensor.nbytes
            return tensor

        model.bert.gradient_checkpointing = gradient_checkpointing
        model.zero_grad()
        torch.manual_seed(1)  # the same dropout
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = mean_loss(model, batch)
        loss.backward()
        return gradients(model), kept

    usual, usual_bytes = step(False)
    checkpointed, checkpointed_bytes = step(True)
    assert all(torch.equal(usual[name], checkpointed[name]) for name in usual)
    # What goes into each layer is kept outside these hooks.
    inputs = CONFIG.num_hidden_layers * T * CONFIG.hidden_size * 4
    assert checkpointed_bytes + inputs < usual_bytes / 2


def test_without_training_nothing_is_computed_twice():
    model = ClassificationModel(CONFIG, 2).eval()
    model.bert.gradient_checkpointing = True
    calls = []
    model.bert.layers[0].register_forward_pre_hook(lambda *_: calls.append(1))
    model(ragged_batch(lengths=LENGTHS)).sum().backward()
    assert len(calls) == 1


def test_without_a_pooler_there_is_no_pooled_output():
    model = TokenClassificationModel(CONFIG, 2)
    assert not any("pooler" in name for name in model.state_dict())
    sequence_output, pooled_output = model.bert(ragged_batch(lengths=LENGTHS))
    assert sequence_output.shape == (T, CONFIG.hidden_size)
    assert pooled_output is None


@pytest.mark.parametrize("pooler", [True, False])
@pytest.mark.parametrize("tokens", [[0, 7, 41, T - 1], []])
def test_the_last_layer_transforms_only_what_is_read(pooler, tokens):
    batch, places = ragged_batch(lengths=LENGTHS), torch.tensor(tokens, dtype=torch.int64)
    model = BertModel(CONFIG, pooler).eval()
    initialize(model, CONFIG)
    transformed = []
    model.layers[-1].intermediate.register_forward_pre_hook(lambda _, inputs: transformed.append(inputs[0]))

    def outputs(chosen):
        sequence_output, pooled_output = model(batch, chosen)
        read = sequence_output[places] if chosen is None else sequence_output
        return [output for output in (read, pooled_output) if output is not None]

    found = []
    for chosen in (None, places):
        model.zero_grad()
        values = outputs(chosen)
        torch.stack([value.sin().sum() for value in values]).sum().backward()
        found.append(values + [weight.grad for weight in model.parameters() if weight.grad is not None])
    for of_all, of_read in zip(*found, strict=True):
        torch.testing.assert_close(of_read, of_all, atol=1e-5, rtol=1e-4)
    assert [len(inputs) for inputs in transformed] == [T, len(tokens) + N * pooler]


def test_one_segment_reads_no_pairs():
    model = BertModel(BertConfig(**{**CONFIG.model_dump(), "type_vocab_size": 1}))
    ids, bounds = np.arange(4, dtype=np.int32), np.array([0, 4])
    model(pack(ids, np.zeros(4, np.int32), bounds))
    with pytest.raises(ModelError, match="type_vocab_size 1 reads single texts, no pairs"):
        model(pack(ids, np.array([0, 0, 1, 1], np.int32), bounds))


def test_without_next_sentences_the_first_objective_is_alone():
    batch = ragged_batch(lengths=LENGTHS)
    model = PreTrainingModel(CONFIG)
    alone = replace(batch, next_sentence_labels=None)
    assert model.losses(alone).keys() == model.target_counts(alone).keys() == {"masked_lm"}
    assert model.losses(batch).keys() == model.target_counts(batch).keys() == {"masked_lm", "next_sentence"}


@pytest.mark.parametrize(PARAMETERS, MODELS)
def test_initial_weights_are_cut_at_two_deviations(make, labels):
    for name, weight in make().named_parameters():
        if "norm" in name:
            assert (weight == (1.0 if name.endswith("weight") else 0.0)).all(), name
        elif name.endswith("bias"):
            assert (weight == 0).all(), name
        else:
            assert 0 < weight.abs().max() <= 2 * CONFIG.initializer_range, name
            if weight.numel() > 1000:
                # What is left of a normal distribution's deviation when it is cut at two of them.
                assert weight.std().item() == pytest.approx(0.88 * CONFIG.initializer_range, rel=0.08), name


def test_positions_can_start_larger_and_nothing_else_changes():
    usual = PreTrainingModel(CONFIG)
    torch.manual_seed(0)
    larger = PreTrainingModel(CONFIG.model_copy(update={"position_initializer_range": 0.3}))
    for (name, before), after in zip(usual.named_parameters(), larger.parameters(), strict=True):
        factor = 3 if name.endswith("position_embeddings.weight") else 1
        torch.testing.assert_close(after, before * factor, msg=name)
