"""Exported graphs: ONNX Runtime computes what torch does, under the names that others look for."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers
from tests.inference.small_models import CONFIG, MODELS, save_small
from torch import nn

from bertie.base.errors import ModelError
from bertie.model.bert import add_bilstm
from bertie.model.engines.hardware import Hardware
from bertie.model.engines.onnx_engine import ONNX_FILE, OnnxEngine
from bertie.model.engines.torch_engine import TorchEngine
from bertie.model.formats.onnx import INT8_LIMIT, Quantization, save_onnx
from bertie.model.formats.weights import load_model
from bertie.model.heads import ClassificationModel, EncoderModel, LanguageModel
from bertie.model.sequences import Sequences

HARDWARE = Hardware(device="cpu", precision="float32")
FLOAT32 = Quantization()
INT8 = Quantization(layers=True, embeddings=True)
OUTPUTS = {  # those of optimum's exports, where it exports such a head
    "pre-training": {"prediction_logits": 3, "seq_relationship_logits": 2},
    "masked LM": {"logits": 3},
    "tagger": {"logits": 3},
    "squad-v1": {"start_logits": 2, "end_logits": 2},
    "squad-v2": {"start_logits": 2, "end_logits": 2},
    "encoder": {"last_hidden_state": 3, "pooler_output": 2},
}


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """One of the small models in torch and in ONNX Runtime, each only once."""
    directory, loaded = tmp_path_factory.mktemp("models"), {}

    def engines(kind: str, quantization: Quantization = FLOAT32) -> tuple[TorchEngine, OnnxEngine]:
        if (kind, quantization) not in loaded:
            path = save_small(directory, kind)
            model, metadata = load_model(path)
            save_onnx(path / ONNX_FILE, model, metadata.config, quantization)
            loaded[kind, quantization] = TorchEngine(model, HARDWARE), OnnxEngine(path, metadata)
        return loaded[kind, quantization]

    return engines


def sequences_of(lengths: list[int]) -> Sequences:
    random = np.random.default_rng(sum(lengths))
    ids = random.integers(0, CONFIG.vocab_size, sum(lengths)).astype(np.int32)
    return Sequences(ids, random.integers(0, 2, len(ids)).astype(np.int32), np.cumsum([0, *lengths]))


def everything(engine, batch: Sequences) -> list[np.ndarray]:
    """All that a model's head says of a batch."""
    said = []
    if engine.architecture in ("BertForPreTraining", "BertForMaskedLM"):
        said.append(engine.masked_lm_logits(batch, np.arange(0, batch.bounds[-1], 3)))
    if engine.architecture == "BertModel":
        said += engine.hidden_states(batch, [CONFIG.num_hidden_layers])
    elif engine.architecture != "BertForMaskedLM":
        said.append(engine.logits(batch))
    return said


@pytest.mark.parametrize("lengths", [[9], [5, 128, 2, 17], [7] * 6], ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_onnx_runtime_says_what_torch_says(engines, kind, lengths):
    batch = sequences_of(lengths)
    ours, exported = (everything(engine, batch) for engine in engines(kind))
    for one, other in zip(ours, exported, strict=True):
        assert other.dtype == np.float32
        np.testing.assert_allclose(other, one, atol=1e-4)


@pytest.mark.parametrize("change", [{"hidden_act": "gelu_new"}, {"layer_norm_eps": 0.1}], ids=str)
def test_the_configuration_is_in_the_graph(tmp_path, change):
    torch.manual_seed(0)
    config = CONFIG.model_copy(update=change)
    path = save_small(tmp_path, "classifier")
    _, metadata = load_model(path)
    model = ClassificationModel(config, 3).eval()
    save_onnx(path / ONNX_FILE, model, config, FLOAT32)
    batch = sequences_of([8, 3])
    expected = TorchEngine(model, HARDWARE).logits(batch)
    np.testing.assert_allclose(OnnxEngine(path, metadata).logits(batch), expected, atol=1e-5)


@pytest.mark.parametrize("quantization", [FLOAT32, INT8], ids=["float32", "int8"])
@pytest.mark.parametrize("kind", MODELS)
def test_inputs_and_outputs_are_those_that_others_look_for(tmp_path, kind, quantization):
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
def test_transformers_agrees_on_what_its_tokenizer_gives(tmp_path, kind):
    path = save_small(tmp_path, kind)
    model, metadata = load_model(path)
    save_onnx(path / ONNX_FILE, model, metadata.config, FLOAT32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    texts = ["the cat sat", "paris"], ["on a mat, 1990!", "cats"]
    encoding = tokenizer(*texts, padding=True, return_tensors="pt")
    if kind == "choices":  # two examples of two choices
        encoding = {name: torch.stack([value, value.flip(0)]) for name, value in encoding.items()}
    heads = {
        "classifier": transformers.AutoModelForSequenceClassification,
        "choices": transformers.AutoModelForMultipleChoice,
        "tagger": transformers.AutoModelForTokenClassification,
        "squad-v1": transformers.AutoModelForQuestionAnswering,
    }
    with torch.inference_mode():
        theirs = heads[kind].from_pretrained(path).eval()(**encoding)
    session = onnxruntime.InferenceSession(path / ONNX_FILE, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    mask = encoding["attention_mask"].numpy() > 0
    for name, values in zip(
        names, session.run(names, {k: v.numpy() for k, v in encoding.items()}), strict=True
    ):
        expected = theirs[name].numpy()
        assert values.shape == expected.shape
        if kind in ("tagger", "squad-v1"):
            values, expected = values[mask], expected[mask]
        np.testing.assert_allclose(values, expected, atol=1e-4)


def rounded(values: torch.Tensor, limit: int) -> torch.Tensor:
    """Each row in whole steps, of which there are `limit` from zero to the row's largest number."""
    step = values.abs().amax(-1, keepdim=True) / limit
    return (values / step).round() * step


@pytest.mark.parametrize("quantization", [Quantization(True), Quantization(False, True), INT8], ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_int8_rounds_weights_by_outputs_and_activations_by_tokens(tmp_path, kind, quantization):
    path = save_small(tmp_path, kind)
    model, metadata = load_model(path)
    save_onnx(path / ONNX_FILE, model, metadata.config, quantization)
    with torch.no_grad():
        parts = [
            part for name, part in model.named_modules() if isinstance(part, nn.Linear) and "layers" in name
        ]
        for part in parts if quantization.layers else []:
            part.weight.copy_(rounded(part.weight, INT8_LIMIT))
            part.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0], 127),))
        if quantization.embeddings:
            words = model.bert.embeddings.word_embeddings
            words.weight.copy_(rounded(words.weight, INT8_LIMIT))
            if hasattr(model, "masked_lm"):
                model.masked_lm.norm.register_forward_hook(lambda _, inputs, output: rounded(output, 127))
    batch = sequences_of([5, 40, 2, 17])
    engines = TorchEngine(model, HARDWARE), OnnxEngine(path, metadata)
    for one, other in zip(*(everything(engine, batch) for engine in engines), strict=True):
        # A number on the edge of a step may fall to either side.
        assert np.quantile(np.abs(one - other), 0.9) < 2e-2
        assert np.linalg.norm(one - other) < 0.1 * np.linalg.norm(one)


def test_an_answer_in_int8_is_the_same_in_any_company(engines):
    _, exported = engines("classifier", INT8)
    batch = sequences_of([5, 40, 2, 17])
    together = exported.logits(batch)
    for number in range(4):
        alone = exported.logits(batch.select(np.array([number])))
        np.testing.assert_allclose(alone[0], together[number], atol=1e-5)


def test_weights_in_int8(tmp_path):
    model, metadata = load_model(save_small(tmp_path, "pre-training"))
    with torch.no_grad():  # a pruned neuron, an entry of the vocabulary that no one learnt
        model.bert.layers[1].intermediate.weight[3] = 0
        model.bert.embeddings.word_embeddings.weight[9] = 0
    save_onnx(tmp_path / "model.onnx", model, metadata.config, INT8)
    save_onnx(tmp_path / "again.onnx", model, metadata.config, INT8)
    assert (tmp_path / "model.onnx").read_bytes() == (tmp_path / "again.onnx").read_bytes()
    graph = onnx.load(tmp_path / "model.onnx").graph
    stored = {weight.name: onnx.numpy_helper.to_array(weight) for weight in graph.initializer}
    for name, weight in model.state_dict().items():
        if f"{name}_int8" in stored:
            rounded, scale = stored[f"{name}_int8"].astype(np.float32), stored[f"{name}_scale"]
            assert np.abs(rounded).max() == INT8_LIMIT
            rounded = rounded if "embeddings" in name else rounded.T
            error = np.abs(rounded * scale[:, None] - weight.numpy())
            assert (error <= scale[:, None] / 2 + 1e-6).all()
            del stored[f"{name}_int8"]
    assert not [name for name in stored if name.endswith("_int8")]
    assert sum(name.endswith("_scale") for name in stored) == 1 + 4 * CONFIG.num_hidden_layers


def test_what_reads_from_left_to_right_or_has_a_bilstm_is_refused(tmp_path):
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


def test_a_model_that_is_too_large_for_a_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("bertie.model.formats.onnx.MAX_BYTES", 1000)
    with pytest.raises(ModelError, match=r"model\.onnx: [\d,]+ bytes of weights, of which ONNX takes 1,000;"):
        save_onnx(tmp_path / "model.onnx", EncoderModel(CONFIG), CONFIG, FLOAT32)
    assert not list(tmp_path.iterdir())


def test_a_real_model_of_transformers(shared_data, tmp_path):
    path = shared_data / "checkpoints" / "hf_tiny_bert_seqcls"
    if not path.is_dir():
        pytest.skip("hf_tiny_bert_seqcls is not there")
    model, metadata = load_model(path, allow_pickle=True)
    save_onnx(tmp_path / ONNX_FILE, model, metadata.config, FLOAT32)
    batch = sequences_of([12, 30, 5])
    expected = TorchEngine(model, HARDWARE).logits(batch)
    np.testing.assert_allclose(OnnxEngine(tmp_path, metadata).logits(batch), expected, atol=1e-4)
