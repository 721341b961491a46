"""Exported graphs compute what torch does and have optimum's inputs and outputs."""

from typing import get_args

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers
from tests.inference.small_models import CONFIG, MODELS, save_small
from torch import nn

from bertie.base.errors import ModelError
from bertie.model import bert
from bertie.model.bert import BertModel, add_bilstm
from bertie.model.config import Activation
from bertie.model.engines.hardware import Hardware
from bertie.model.engines.onnx_engine import ONNX_FILE, OnnxEngine, has_vnni
from bertie.model.engines.torch_engine import TorchEngine
from bertie.model.formats.onnx import LARGEST_WEIGHT, Quantization, save_onnx
from bertie.model.formats.weights import load_model
from bertie.model.heads import ClassificationModel, EncoderModel, LanguageModel
from bertie.model.sequences import Sequences

HARDWARE = Hardware(device="cpu", precision="float32")
FLOAT32 = Quantization()
INT8 = Quantization(layers=True, embeddings=True)
INT8_OF_8_BITS = INT8._replace(weight_bits=8)
# Names of the outputs of each head, and their numbers of dimensions. Heads that are not listed have
# two-dimensional `logits`.
OUTPUTS = {
    "pre-training": {"prediction_logits": 3, "seq_relationship_logits": 2},
    "masked LM": {"logits": 3},
    "tagger": {"logits": 3},
    "squad-v1": {"start_logits": 2, "end_logits": 2},
    "squad-v2": {"start_logits": 2, "end_logits": 2},
    "encoder": {"last_hidden_state": 3, "pooler_output": 2},
}


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """Return a function that loads a model in torch and in ONNX Runtime, once."""
    directory, cache = tmp_path_factory.mktemp("models"), {}

    def engines(kind: str, quantization: Quantization = FLOAT32) -> tuple[TorchEngine, OnnxEngine]:
        if (kind, quantization) not in cache:
            path = save_small(directory, kind)
            model, metadata = load_model(path)
            save_onnx(path / ONNX_FILE, model, metadata.config, quantization)
            cache[kind, quantization] = TorchEngine(model, HARDWARE), OnnxEngine(path, metadata)
        return cache[kind, quantization]

    return engines


def random_sequences(lengths: list[int]) -> Sequences:
    random = np.random.default_rng(sum(lengths))
    ids = random.integers(0, CONFIG.vocab_size, sum(lengths)).astype(np.int32)
    return Sequences(ids, random.integers(0, 2, len(ids)).astype(np.int32), np.cumsum([0, *lengths]))


def all_outputs(engine, batch: Sequences) -> list[np.ndarray]:
    """Return all outputs of a model's head for a batch."""
    outputs = []
    if engine.architecture in ("BertForPreTraining", "BertForMaskedLM"):
        outputs.append(engine.masked_lm_logits(batch, np.arange(0, batch.bounds[-1], 3)))
    if engine.architecture == "BertModel":
        outputs += engine.hidden_states(batch, [CONFIG.num_hidden_layers])
    elif engine.architecture != "BertForMaskedLM":
        outputs.append(engine.logits(batch))
    return outputs


@pytest.mark.parametrize("lengths", [[9], [5, 128, 2, 17], [7] * 6], ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_onnx_runtime_equals_torch(engines, kind, lengths):
    batch = random_sequences(lengths)
    expected, exported = (all_outputs(engine, batch) for engine in engines(kind))
    for values, expected_values in zip(exported, expected, strict=True):
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, expected_values, atol=1e-4)


CHANGES = [{"layer_norm_eps": 0.1}, *({"hidden_act": name} for name in get_args(Activation))]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_graph_follows_the_config(tmp_path, change):
    torch.manual_seed(0)
    config = CONFIG.model_copy(update=change)
    path = save_small(tmp_path, "classifier")
    _, metadata = load_model(path)
    model = ClassificationModel(config, 3).eval()
    save_onnx(path / ONNX_FILE, model, config, FLOAT32)
    batch = random_sequences([8, 3])
    expected = TorchEngine(model, HARDWARE).logits(batch)
    np.testing.assert_allclose(OnnxEngine(path, metadata).logits(batch), expected, atol=1e-5)


@pytest.mark.parametrize("quantization", [FLOAT32, INT8], ids=["float32", "int8"])
@pytest.mark.parametrize("kind", MODELS)
def test_inputs_and_outputs_are_those_of_optimum(tmp_path, kind, quantization):
    model, metadata = load_model(save_small(tmp_path, kind))
    file = tmp_path / "model.onnx"
    save_onnx(file, model, metadata.config, quantization)
    onnx.checker.check_model(file, full_check=True)
    assert {opset.domain: opset.version for opset in onnx.load(file).opset_import} == {"": 23}
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    inputs = {value.name: (value.type, value.shape) for value in session.get_inputs()}
    shape = ["batch", "choices", "sequence"] if kind == "choices" else ["batch", "sequence"]
    names = ("input_ids", "attention_mask", "token_type_ids")
    assert inputs == dict.fromkeys(names, ("tensor(int64)", shape))
    outputs = {value.name: len(value.shape) for value in session.get_outputs()}
    assert outputs == OUTPUTS.get(kind, {"logits": 2})


@pytest.mark.parametrize("kind", ["classifier", "choices", "tagger", "squad-v1"])
def test_graph_equals_transformers_on_its_own_input(tmp_path, kind):
    path = save_small(tmp_path, kind)
    model, metadata = load_model(path)
    save_onnx(path / ONNX_FILE, model, metadata.config, FLOAT32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    texts = ["the cat sat", "paris"], ["on a mat, 1990!", "cats"]
    encoding = tokenizer(*texts, padding=True, return_tensors="pt")
    if kind == "choices":  # two examples with two choices each
        encoding = {name: torch.stack([value, value.flip(0)]) for name, value in encoding.items()}
    heads = {
        "classifier": transformers.AutoModelForSequenceClassification,
        "choices": transformers.AutoModelForMultipleChoice,
        "tagger": transformers.AutoModelForTokenClassification,
        "squad-v1": transformers.AutoModelForQuestionAnswering,
    }
    with torch.inference_mode():
        reference_outputs = heads[kind].from_pretrained(path).eval()(**encoding)
    session = onnxruntime.InferenceSession(path / ONNX_FILE, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    mask = encoding["attention_mask"].numpy() > 0
    for name, values in zip(
        names, session.run(names, {k: v.numpy() for k, v in encoding.items()}), strict=True
    ):
        expected = reference_outputs[name].numpy()
        assert values.shape == expected.shape
        if kind in ("tagger", "squad-v1"):
            values, expected = values[mask], expected[mask]
        np.testing.assert_allclose(values, expected, atol=1e-4)


def round_rows(values: torch.Tensor, limit: int) -> torch.Tensor:
    """Round each row to multiples of its largest absolute value divided by `limit`."""
    step = values.abs().amax(-1, keepdim=True) / limit
    return (values / step).round() * step


@pytest.mark.parametrize(
    "quantization", [Quantization(True), Quantization(False, True), INT8, INT8_OF_8_BITS], ids=str
)
@pytest.mark.parametrize("kind", MODELS)
def test_int8_scales_per_output_and_per_token(tmp_path, kind, quantization, monkeypatch):
    if quantization.weight_bits == 8 and not has_vnni():
        pytest.skip("products of weights of 8 bits need VNNI")
    # So that the model calls all its linear layers, whose inputs are rounded below.
    monkeypatch.setattr(BertModel, "pool", lambda model, batch: model(batch)[1])
    monkeypatch.setattr(bert, "can_fuse_inference", lambda values: False)
    largest = LARGEST_WEIGHT[quantization.weight_bits]
    path = save_small(tmp_path, kind)
    model, metadata = load_model(path)
    save_onnx(path / ONNX_FILE, model, metadata.config, quantization)
    with torch.no_grad():
        modules = [
            module
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and "layers" in name
        ]
        for module in modules if quantization.layers else []:
            module.weight.copy_(round_rows(module.weight, largest))
            module.register_forward_pre_hook(lambda _, inputs: (round_rows(inputs[0], 127),))
        if quantization.embeddings:
            words = model.bert.embeddings.word_embeddings
            words.weight.copy_(round_rows(words.weight, largest))
            if hasattr(model, "masked_lm"):
                model.masked_lm.norm.register_forward_hook(lambda _, inputs, output: round_rows(output, 127))
    batch = random_sequences([5, 40, 2, 17])
    engines = TorchEngine(model, HARDWARE), OnnxEngine(path, metadata)
    for expected, exported in zip(*(all_outputs(engine, batch) for engine in engines), strict=True):
        # A value halfway between two steps may be rounded either way.
        assert np.quantile(np.abs(expected - exported), 0.9) < 2e-2
        assert np.linalg.norm(expected - exported) < 0.1 * np.linalg.norm(expected)


def test_int8_result_does_not_depend_on_the_batch(engines):
    _, exported = engines("classifier", INT8)
    batch = random_sequences([5, 40, 2, 17])
    together = exported.logits(batch)
    for i in range(4):
        single = exported.logits(batch.select(np.array([i])))
        np.testing.assert_allclose(single[0], together[i], atol=1e-5)


@pytest.mark.parametrize("quantization", [INT8, INT8_OF_8_BITS], ids=str)
def test_int8_weights_are_off_by_half_a_step_at_most(tmp_path, quantization):
    model, metadata = load_model(save_small(tmp_path, "pre-training"))
    with torch.no_grad():  # a pruned neuron, an unused entry of the vocabulary
        model.bert.layers[1].intermediate.weight[3] = 0
        model.bert.embeddings.word_embeddings.weight[9] = 0
    save_onnx(tmp_path / "model.onnx", model, metadata.config, quantization)
    save_onnx(tmp_path / "again.onnx", model, metadata.config, quantization)
    assert (tmp_path / "model.onnx").read_bytes() == (tmp_path / "again.onnx").read_bytes()
    graph = onnx.load(tmp_path / "model.onnx").graph
    stored = {weight.name: onnx.numpy_helper.to_array(weight) for weight in graph.initializer}
    for name, weight in model.state_dict().items():
        if f"{name}_int8" in stored:
            rounded, scale = stored[f"{name}_int8"].astype(np.float32), stored[f"{name}_scale"]
            assert np.abs(rounded).max() == LARGEST_WEIGHT[quantization.weight_bits]
            rounded = rounded if "embeddings" in name else rounded.T
            error = np.abs(rounded * scale[:, None] - weight.numpy())
            assert (error <= scale[:, None] / 2 + 1e-6).all()
            del stored[f"{name}_int8"]
    assert not [name for name in stored if name.endswith("_int8")]
    assert sum(name.endswith("_scale") for name in stored) == 1 + 4 * CONFIG.num_hidden_layers


def test_left_to_right_and_bilstm_are_not_exported(tmp_path):
    bilstm = ClassificationModel(CONFIG, 2)
    add_bilstm(bilstm.bert, CONFIG)
    decoder = CONFIG.model_copy(update={"is_decoder": True})
    for model, config in [
        (bilstm, CONFIG),
        (EncoderModel(decoder), decoder),
        (LanguageModel(decoder), decoder),
    ]:
        with pytest.raises(ModelError, match=f"{model.architecture} .* cannot be exported"):
            save_onnx(tmp_path / "model.onnx", model, config, FLOAT32)


def test_model_over_the_size_limit_is_not_exported(tmp_path, monkeypatch):
    monkeypatch.setattr("bertie.model.formats.onnx.MAX_BYTES", 1000)
    with pytest.raises(
        ModelError, match=r"model\.onnx: [\d,]+ bytes of weights exceed ONNX's limit of 1,000;"
    ):
        save_onnx(tmp_path / "model.onnx", EncoderModel(CONFIG), CONFIG, FLOAT32)
    assert not list(tmp_path.iterdir())


def test_real_model_of_transformers_is_exported(shared_data, tmp_path):
    path = shared_data / "checkpoints" / "hf_tiny_bert_seqcls"
    if not path.is_dir():
        pytest.skip("hf_tiny_bert_seqcls is not in the shared data")
    model, metadata = load_model(path, allow_pickle=True)
    save_onnx(tmp_path / ONNX_FILE, model, metadata.config, FLOAT32)
    batch = random_sequences([12, 30, 5])
    expected = TorchEngine(model, HARDWARE).logits(batch)
    np.testing.assert_allclose(OnnxEngine(tmp_path, metadata).logits(batch), expected, atol=1e-4)
