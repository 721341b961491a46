"""Model directories give equal ids and logits in bertie and in `transformers`."""

import re

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.transformers_peer import (
    SHAPE,
    padded_inputs,
    ragged_batch,
    token_mask,
    vary_biases_and_norms,
)

import bertie
from bertie.base.errors import ModelError
from bertie.base.files import read_json, write_json
from bertie.model.batch import pack
from bertie.model.config import BertConfig
from bertie.model.formats.directory import ModelMetadata, read_metadata
from bertie.model.formats.weights import load_model, load_weights, save_model
from bertie.model.heads import (
    ClassificationModel,
    EncoderModel,
    MaskedLMModel,
    MultipleChoiceModel,
    NextSentenceModel,
    PreTrainingModel,
    QuestionAnsweringModel,
    TokenClassificationModel,
)
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

pytestmark = pytest.mark.usefixtures("unverified")  # directories are changed here

WORDS = [f"{letter}{end}" for letter in "abcdefghij" for end in ("", "an", "in", "on")]
WORDS += [f"##{word}" for word in WORDS]
VOCABULARY = Vocabulary([*SPECIAL_TOKENS, *WORDS])
CONFIG = BertConfig(**{**SHAPE, "vocab_size": len(VOCABULARY)})
THREE = ("bad", "fair", "good")
TWELVE = tuple(f"{prefix}-{entity}" for prefix in "BI" for entity in "uvwxyz")
BATCH = ragged_batch(vocab_size=len(VOCABULARY), lengths=(64, 3, 17, 49, 64, 30))


# A model, its labels, and a function that selects its outputs from the outputs of `transformers`.
HEADS = {
    "pre-training": (
        lambda: PreTrainingModel(CONFIG),
        (),
        lambda outputs: (
            outputs.prediction_logits[token_mask(BATCH)][BATCH.masked_positions],
            outputs.seq_relationship_logits,
        ),
    ),
    "masked LM": (
        lambda: MaskedLMModel(CONFIG),
        (),
        lambda outputs: outputs.logits[token_mask(BATCH)][BATCH.masked_positions],
    ),
    "encoder": (
        lambda: EncoderModel(CONFIG),
        (),
        lambda outputs: (outputs.last_hidden_state[token_mask(BATCH)], outputs.pooler_output),
    ),
    "next sentence": (lambda: NextSentenceModel(CONFIG), (), lambda outputs: outputs.logits),
    "classification": (lambda: ClassificationModel(CONFIG, 3), THREE, lambda outputs: outputs.logits),
    "two unnamed classes": (
        lambda: ClassificationModel(CONFIG, 2),
        ("LABEL_0", "LABEL_1"),
        lambda outputs: outputs.logits,
    ),
    "several labels": (
        lambda: ClassificationModel(CONFIG, 3, "multi_label_classification"),
        THREE,
        lambda outputs: outputs.logits,
    ),
    "regression": (
        lambda: ClassificationModel(CONFIG, 1, "regression"),
        ("score",),
        lambda outputs: outputs.logits,
    ),
    "tokens": (
        lambda: TokenClassificationModel(CONFIG, 12),
        TWELVE,
        lambda outputs: outputs.logits[token_mask(BATCH)],
    ),
    "answers": (
        lambda: QuestionAnsweringModel(CONFIG),
        (),
        lambda outputs: torch.stack([outputs.start_logits, outputs.end_logits], -1)[token_mask(BATCH)],
    ),
    "choices": (lambda: MultipleChoiceModel(CONFIG), (), lambda outputs: outputs.logits.view(-1, 1)),
}


def logits_of_transformers(reference, name):
    """Return the outputs of `transformers` for the batch, packed as in bertie."""
    inputs = padded_inputs(BATCH)
    if name == "choices":
        inputs = {key: values.view(3, 2, -1) for key, values in inputs.items()}
    return HEADS[name][2](reference.eval()(**inputs))


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def save_and_load(path, model, labels=(), problem_type="single_label_classification"):
    """Write a model directory; return its predictor."""
    metadata = ModelMetadata(CONFIG, model.architecture, labels, Tokenizer(VOCABULARY), problem_type)
    save_model(path, model, metadata, "card")
    return bertie.load(path)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", HEADS)
def test_transformers_loads_directories_of_bertie(tmp_path, name):
    make, labels, _ = HEADS[name]
    model = make().eval()
    vary_biases_and_norms(model)
    problem_type = getattr(model, "problem_type", "single_label_classification")
    save_and_load(tmp_path / "model", model, labels, problem_type)
    reference, info = getattr(transformers, model.architecture).from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    if labels:
        assert tuple(reference.config.id2label.values()) == labels
    if isinstance(model, ClassificationModel):
        assert reference.config.problem_type == model.problem_type
    assert_close(model(BATCH), logits_of_transformers(reference, name))

    loaded, metadata = load_model(tmp_path / "model")
    assert metadata.labels == labels
    assert metadata.problem_type == problem_type
    assert not loaded.training
    for (key, weight), value in zip(model.state_dict().items(), loaded.state_dict().values(), strict=True):
        assert torch.equal(weight, value), key


@pytest.mark.parametrize("name", HEADS)
def test_bertie_loads_directories_of_transformers(tmp_path, name):
    make, labels, _ = HEADS[name]
    expected = make()
    config = transformers.BertConfig(**CONFIG.model_dump())
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: i for i, label in enumerate(labels)}
    if name == "several labels":
        config.problem_type = expected.problem_type
    reference = getattr(transformers, expected.architecture)(config)
    vary_biases_and_norms(reference)
    reference.save_pretrained(tmp_path)
    VOCABULARY.save(tmp_path / "vocab.txt")
    model, metadata = load_model(tmp_path)
    assert type(model) is type(expected)
    assert metadata.labels == labels
    assert getattr(model, "problem_type", None) == getattr(expected, "problem_type", None)
    assert_close(model(BATCH), logits_of_transformers(reference, name))


def test_auto_classes_load_model_and_tokenizer(tmp_path):
    path = tmp_path / "model"
    model = PreTrainingModel(CONFIG).eval()
    tokenizer = save_and_load(path, model).tokenizer
    reference = transformers.AutoTokenizer.from_pretrained(path)
    for text in ("ban ain, jon?", "A BAN hin\tiné", ""):
        assert reference(text)["input_ids"] == tokenizer.encode(text).input_ids.tolist()
    masked_lm_logits, next_sentence_logits = model(BATCH)
    inputs, mask = padded_inputs(BATCH), token_mask(BATCH)
    pre_training = transformers.AutoModelForPreTraining.from_pretrained(path)(**inputs)
    assert_close(pre_training.prediction_logits[mask][BATCH.masked_positions], masked_lm_logits)
    assert_close(pre_training.seq_relationship_logits, next_sentence_logits)
    masked_lm = transformers.AutoModelForMaskedLM.from_pretrained(path)(**inputs)
    assert_close(masked_lm.logits[mask][BATCH.masked_positions], masked_lm_logits)


@pytest.mark.parametrize("pooler", [True, False])
def test_classifier_starts_from_a_bare_encoder(tmp_path, pooler):
    reference = transformers.BertModel(
        transformers.BertConfig(**CONFIG.model_dump()), add_pooling_layer=pooler
    ).eval()
    reference.save_pretrained(tmp_path)
    model = ClassificationModel(CONFIG, 3).eval()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    load_weights(tmp_path / "model.safetensors", model, prefix="bert.")
    sequence_output, _ = model.bert(BATCH)
    assert_close(sequence_output, reference(**padded_inputs(BATCH)).last_hidden_state[token_mask(BATCH)])
    kept = {name for name, weight in model.state_dict().items() if torch.equal(weight, before[name])}
    untouched = {"classifier.weight", "classifier.bias"}
    assert untouched <= kept
    assert ("bert.pooler.weight" in kept) == (not pooler)


@pytest.fixture
def file(tmp_path):
    """The weights of a BertForPreTraining of `transformers`."""
    reference = transformers.BertForPreTraining(transformers.BertConfig(**CONFIG.model_dump()))
    reference.save_pretrained(tmp_path)
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize(
    "missing", ["bert.encoder.layer.1.attention.self.key.bias", "bert.embeddings.LayerNorm.weight"]
)
@pytest.mark.parametrize("prefix", ["", "bert."])
def test_missing_weight_is_an_error(file, missing, prefix):
    weights = load_file(file)
    del weights[missing]
    save_file(weights, file)
    with pytest.raises(ModelError, match=missing):
        load_weights(file, PreTrainingModel(CONFIG), prefix=prefix)


def test_pre_training_model_needs_a_pooler(file):
    weights = {name: weight for name, weight in load_file(file).items() if "pooler" not in name}
    save_file(weights, file)
    with pytest.raises(ModelError, match=r"bert\.pooler\.dense\.weight"):
        load_weights(file, PreTrainingModel(CONFIG))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_weights_become_float32(file, dtype):
    weights = {name: weight.to(dtype) for name, weight in load_file(file).items()}
    save_file(weights, file)
    model = PreTrainingModel(CONFIG)
    load_weights(file, model)
    assert {weight.dtype for weight in model.state_dict().values()} == {torch.float32}
    assert torch.equal(
        model.bert.embeddings.word_embeddings.weight,
        weights["bert.embeddings.word_embeddings.weight"].float(),
    )


def test_stored_buffers_and_tied_decoder_are_skipped(file):
    weights = load_file(file)
    weights["bert.embeddings.position_ids"] = torch.arange(64)[None]
    weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
    weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()
    save_file(weights, file)
    model = PreTrainingModel(CONFIG)
    load_weights(file, model)
    assert torch.equal(model.masked_lm.bias, weights["cls.predictions.bias"])


def test_unsupported_architecture_error_lists_supported_ones(tmp_path):
    save_and_load(tmp_path, PreTrainingModel(CONFIG))
    config = read_json(tmp_path / "config.json")
    write_json(tmp_path / "config.json", {**config, "architectures": ["BertForDependencyParsing"]})
    with pytest.raises(ModelError, match=r"'BertForDependencyParsing'; bertie supports BertForPreTraining,"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["Roberta", "DistilBert", "ModernBert", "Electra", "Albert", "MPNet"])
def test_other_model_types_are_rejected(tmp_path, name):
    config = getattr(transformers, f"{name}Config")()
    config.save_pretrained(tmp_path)
    VOCABULARY.save(tmp_path / "vocab.txt")
    with pytest.raises(ModelError, match=f"model_type is '{name.lower()}', .* use `transformers`"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("position_embedding_type", "relative_key_query"),
        ("add_cross_attention", True),
        ("pruned_heads", {"0": [1]}),
        ("quantization_config", {"load_in_8bit": True}),
    ],
)
def test_features_that_bert_lacks_are_rejected(tmp_path, key, value):
    write_json(tmp_path / "config.json", {**CONFIG.model_dump(), key: value})
    with pytest.raises(ModelError, match=re.escape(f"config.json: {key} is {value!r}; only")):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "not a JSON object"),
        ({}, "missing or empty"),
        (
            {"hidden_size": 10, "num_attention_heads": 4},
            "num_attention_heads = 4: expected a divisor of hidden_size 10, such as 5",
        ),
        ({"id2label": ["bad", "good"]}, "id2label = "),
        ({"id2label": {"bad": "0", "good": "1"}}, "id2label.bad"),
        ({"num_labels": "two"}, "num_labels = 'two': expected an integer"),
        ({"architectures": "BertModel"}, "architectures = 'BertModel': expected a list"),
        ({"problem_type": "guess"}, "problem_type = 'guess': expected 'single_label_classification'"),
    ],
    ids=str,
)
def test_malformed_config_error_names_the_key(tmp_path, content, message):
    write_json(tmp_path / "config.json", content)
    VOCABULARY.save(tmp_path / "vocab.txt")
    with pytest.raises(ModelError, match=f"config.json: {re.escape(message)}"):
        load_model(tmp_path)


def test_hub_name_error_suggests_a_download(tmp_path):
    with pytest.raises(ModelError, match=r"hf download bert-base-uncased --local-dir bert-base-uncased$"):
        bertie.load("bert-base-uncased")
    with pytest.raises(ModelError, match=r"no such model directory$"):
        bertie.load(tmp_path / "absent")


def test_encoder_without_a_pooler_loads_and_saves(tmp_path):
    reference = transformers.BertModel(
        transformers.BertConfig(**CONFIG.model_dump()), add_pooling_layer=False
    )
    reference.save_pretrained(tmp_path / "reference")
    VOCABULARY.save(tmp_path / "reference" / "vocab.txt")
    model, metadata = load_model(tmp_path / "reference")
    sequence_output, pooled_output = model(BATCH)
    assert pooled_output is None
    assert_close(
        sequence_output, reference.eval()(**padded_inputs(BATCH)).last_hidden_state[token_mask(BATCH)]
    )
    save_model(tmp_path / "copy", model, metadata, "card")
    assert not any("pooler" in name for name in load_file(tmp_path / "copy" / "model.safetensors"))
    load_model(tmp_path / "copy")


@pytest.mark.parametrize("file", ["config.json", "bert_config.json"])
def test_directory_saved_in_2019_loads(tmp_path, file):
    """A classifier with TensorFlow's names, no architecture and only a vocab.txt."""
    reference = transformers.BertForSequenceClassification(
        transformers.BertConfig(**CONFIG.model_dump(), num_labels=3)
    ).eval()
    weights = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in reference.state_dict().items()
    }
    torch.save(weights, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    config = {**CONFIG.model_dump(exclude={"is_decoder"}), "finetuning_task": "mnli", "num_labels": 3}
    write_json(tmp_path / file, {**config, "torchscript": False, "pruned_heads": {}})
    VOCABULARY.save(tmp_path / "vocab.txt")
    model, metadata = load_model(tmp_path, allow_pickle=True)
    assert metadata.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert metadata.tokenizer.lowercase
    assert_close(model(BATCH), reference(**padded_inputs(BATCH)).logits)


@pytest.mark.parametrize("name", ["hf_tiny_bert_seqcls", "camphr_ner_bert"])
def test_real_checkpoints_equal_transformers(shared_data, tmp_path, name):
    path = shared_data / "checkpoints" / name
    with pytest.raises(ModelError, match="--allow-pickle"):
        load_model(path)
    model, metadata = load_model(path, allow_pickle=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    reference = getattr(transformers, model.architecture).from_pretrained(path).eval()
    assert metadata.labels == tuple(reference.config.id2label.values())
    save_model(tmp_path / "copy", model, metadata, "card")
    copy, _ = load_model(tmp_path / "copy")
    text = "A sentence of 2021, with Names: Café Müller!"
    for pair in (None, "and another"):
        encoding = metadata.tokenizer.encode(text, pair, max_length=16)
        inputs = tokenizer(text, pair, max_length=16, truncation=True, return_tensors="pt")
        assert encoding.input_ids.tolist() == inputs["input_ids"][0].tolist()
        batch = pack(encoding.input_ids, encoding.token_type_ids, encoding.bounds)
        expected = reference(**inputs).logits
        expected = expected[0] if expected.ndim == 3 else expected
        assert_close(model(batch), expected)
        assert torch.equal(copy(batch), model(batch))


def test_vocabulary_is_trimmed_if_no_text_needs_the_rest(tmp_path):
    save_and_load(tmp_path, PreTrainingModel(CONFIG))
    (tmp_path / "tokenizer.json").unlink()  # it would disagree
    Vocabulary([*VOCABULARY.tokens, "Upper", "##É", "two words"]).save(tmp_path / "vocab.txt")
    assert read_metadata(tmp_path).tokenizer.vocabulary.tokens == VOCABULARY.tokens
    Vocabulary([*VOCABULARY.tokens, "Upper", "##z"]).save(tmp_path / "vocab.txt")
    with pytest.raises(ModelError, match="the tokenizer has 87 entries, but the model has embeddings for 85"):
        read_metadata(tmp_path)


def test_regression_with_several_outputs_is_rejected(tmp_path):
    config = transformers.BertConfig(**SHAPE, num_labels=3, problem_type="regression")
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    VOCABULARY.save(tmp_path / "vocab.txt")
    with pytest.raises(ModelError, match="a regression with 3 outputs"):
        load_model(tmp_path)


def test_labels_are_sorted_by_index(tmp_path):
    config = {"architectures": ["BertForTokenClassification"], **CONFIG.model_dump()}
    labels = {str(index): label for index, label in enumerate(TWELVE)}
    config["id2label"] = {index: labels[index] for index in sorted(labels)}  # 0, 1, 10, 11, 2, …
    write_json(tmp_path / "config.json", config)
    VOCABULARY.save(tmp_path / "vocab.txt")
    assert read_metadata(tmp_path).labels == TWELVE


def test_fill_mask_equals_transformers(tmp_path):
    text = "ban [MASK] jon"
    answers = save_and_load(tmp_path, MaskedLMModel(CONFIG)).fill_mask(text, top_k=3)
    reference = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    inputs = tokenizer(text, return_tensors="pt")
    position = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    expected = reference(**inputs).logits[0, position].softmax(-1).topk(3)
    assert [prediction.token for prediction in answers[0]] == expected.indices.tolist()
    assert [prediction.score for prediction in answers[0]] == pytest.approx(
        expected.values.tolist(), abs=1e-5
    )


def test_classify_scores_each_label_and_rejects_regressions(tmp_path):
    model = ClassificationModel(CONFIG, 3, "multi_label_classification")
    model.classifier.bias.data = torch.tensor([9.0, 9.0, -9.0])
    answers = save_and_load(tmp_path / "several", model, THREE, model.problem_type).classify(["ban ain"])
    reference = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "several")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "several")
    expected = reference(**tokenizer("ban ain", return_tensors="pt")).logits[0].sigmoid()
    scores = {label.label: label.score for label in answers[0]}
    assert [scores[label] for label in THREE] == pytest.approx(expected.tolist(), abs=1e-5)
    number = save_and_load(
        tmp_path / "number", ClassificationModel(CONFIG, 1, "regression"), ("x",), "regression"
    )
    with pytest.raises(ModelError, match="problem_type is not regression"):
        number.classify(["ban ain"])
