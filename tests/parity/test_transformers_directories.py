"""Directories of `transformers` load here, and ours load there, with equal ids and logits."""

import re

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.transformers_peer import SHAPE, padded, ragged_batch, real

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

WORDS = [f"{letter}{end}" for letter in "abcdefghij" for end in ("", "an", "in", "on")]
WORDS += [f"##{word}" for word in WORDS]
VOCABULARY = Vocabulary([*SPECIAL_TOKENS, *WORDS])
CONFIG = BertConfig(**{**SHAPE, "vocab_size": len(VOCABULARY)})
THREE = ("bad", "fair", "good")
TWELVE = tuple(f"{kind}-{what}" for kind in "BI" for what in "uvwxyz")
BATCH = ragged_batch(vocab_size=len(VOCABULARY), lengths=(64, 3, 17, 49, 64, 30))


# Ours, the labels, and how the logits of theirs are laid out here.
HEADS = {
    "pre-training": (
        lambda: PreTrainingModel(CONFIG),
        (),
        lambda theirs: (
            theirs.prediction_logits[real(BATCH)][BATCH.masked_positions],
            theirs.seq_relationship_logits,
        ),
    ),
    "masked LM": (
        lambda: MaskedLMModel(CONFIG),
        (),
        lambda theirs: theirs.logits[real(BATCH)][BATCH.masked_positions],
    ),
    "encoder": (
        lambda: EncoderModel(CONFIG),
        (),
        lambda theirs: (theirs.last_hidden_state[real(BATCH)], theirs.pooler_output),
    ),
    "next sentence": (lambda: NextSentenceModel(CONFIG), (), lambda theirs: theirs.logits),
    "classification": (lambda: ClassificationModel(CONFIG, 3), THREE, lambda theirs: theirs.logits),
    "two unnamed classes": (
        lambda: ClassificationModel(CONFIG, 2),
        ("LABEL_0", "LABEL_1"),
        lambda theirs: theirs.logits,
    ),
    "several labels": (
        lambda: ClassificationModel(CONFIG, 3, "multi_label_classification"),
        THREE,
        lambda theirs: theirs.logits,
    ),
    "regression": (
        lambda: ClassificationModel(CONFIG, 1, "regression"),
        ("score",),
        lambda theirs: theirs.logits,
    ),
    "tokens": (
        lambda: TokenClassificationModel(CONFIG, 12),
        TWELVE,
        lambda theirs: theirs.logits[real(BATCH)],
    ),
    "answers": (
        lambda: QuestionAnsweringModel(CONFIG),
        (),
        lambda theirs: torch.stack([theirs.start_logits, theirs.end_logits], -1)[real(BATCH)],
    ),
    "choices": (lambda: MultipleChoiceModel(CONFIG), (), lambda theirs: theirs.logits.view(-1, 1)),
}


def their_logits(theirs, name):
    """Their answer to the batch, in our layout."""
    inputs = padded(BATCH)
    if name == "choices":
        inputs = {key: values.view(3, 2, -1) for key, values in inputs.items()}
    return HEADS[name][2](theirs.eval()(**inputs))


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def saved(path, model, labels=(), problem_type="single_label_classification"):
    """The model, from a directory."""
    metadata = ModelMetadata(CONFIG, model.architecture, labels, Tokenizer(VOCABULARY), problem_type)
    save_model(path, model, metadata, "card")
    return bertie.load(path)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", HEADS)
def test_ours_load_there(tmp_path, name):
    make, labels, _ = HEADS[name]
    ours = make().eval()
    problem_type = getattr(ours, "problem_type", "single_label_classification")
    saved(tmp_path / "model", ours, labels, problem_type)
    theirs, info = getattr(transformers, ours.architecture).from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    if labels:
        assert tuple(theirs.config.id2label.values()) == labels
    if isinstance(ours, ClassificationModel):
        assert theirs.config.problem_type == ours.problem_type
    close(ours(BATCH), their_logits(theirs, name))

    again, described = load_model(tmp_path / "model")
    assert described.labels == labels
    assert described.problem_type == problem_type
    assert not again.training
    for (key, weight), value in zip(ours.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(weight, value), key


@pytest.mark.parametrize("name", HEADS)
def test_theirs_load_here(tmp_path, name):
    make, labels, _ = HEADS[name]
    wanted = make()
    config = transformers.BertConfig(**CONFIG.model_dump())
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
    if name == "several labels":
        config.problem_type = wanted.problem_type
    theirs = getattr(transformers, wanted.architecture)(config)
    theirs.save_pretrained(tmp_path)
    VOCABULARY.save(tmp_path / "vocab.txt")
    ours, metadata = load_model(tmp_path)
    assert type(ours) is type(wanted)
    assert metadata.labels == labels
    assert getattr(ours, "problem_type", None) == getattr(wanted, "problem_type", None)
    close(ours(BATCH), their_logits(theirs, name))


def test_auto_classes_and_tokenizer(tmp_path):
    path = tmp_path / "model"
    ours = PreTrainingModel(CONFIG).eval()
    tokenizer = saved(path, ours).tokenizer
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    for text in ("ban ain, jon?", "A BAN hin\tiné", ""):
        assert theirs(text)["input_ids"] == tokenizer.encode(text).input_ids.tolist()
    masked_lm_logits, next_sentence_logits = ours(BATCH)
    inputs, places = padded(BATCH), real(BATCH)
    pre_training = transformers.AutoModelForPreTraining.from_pretrained(path)(**inputs)
    close(pre_training.prediction_logits[places][BATCH.masked_positions], masked_lm_logits)
    close(pre_training.seq_relationship_logits, next_sentence_logits)
    masked_lm = transformers.AutoModelForMaskedLM.from_pretrained(path)(**inputs)
    close(masked_lm.logits[places][BATCH.masked_positions], masked_lm_logits)


@pytest.mark.parametrize("pooler", [True, False])
def test_a_bare_encoder_starts_a_classifier(tmp_path, pooler):
    theirs = transformers.BertModel(
        transformers.BertConfig(**CONFIG.model_dump()), add_pooling_layer=pooler
    ).eval()
    theirs.save_pretrained(tmp_path)
    ours = ClassificationModel(CONFIG, 3).eval()
    before = {name: weight.clone() for name, weight in ours.state_dict().items()}
    load_weights(tmp_path / "model.safetensors", ours, only="bert.")
    sequence_output, _ = ours.bert(BATCH)
    close(sequence_output, theirs(**padded(BATCH)).last_hidden_state[real(BATCH)])
    kept = {name for name, weight in ours.state_dict().items() if torch.equal(weight, before[name])}
    untouched = {"classifier.weight", "classifier.bias"}
    assert untouched <= kept
    assert ("bert.pooler.weight" in kept) == (not pooler)


@pytest.fixture
def file(tmp_path):
    """The weights of their BertForPreTraining."""
    theirs = transformers.BertForPreTraining(transformers.BertConfig(**CONFIG.model_dump()))
    theirs.save_pretrained(tmp_path)
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize(
    "missing", ["bert.encoder.layer.1.attention.self.key.bias", "bert.embeddings.LayerNorm.weight"]
)
@pytest.mark.parametrize("only", ["", "bert."])
def test_a_missing_weight_is_an_error(file, missing, only):
    weights = load_file(file)
    del weights[missing]
    save_file(weights, file)
    with pytest.raises(ModelError, match=missing):
        load_weights(file, PreTrainingModel(CONFIG), only=only)


def test_a_whole_model_needs_its_pooler(file):
    weights = {name: weight for name, weight in load_file(file).items() if "pooler" not in name}
    save_file(weights, file)
    with pytest.raises(ModelError, match=r"bert\.pooler\.dense\.weight"):
        load_weights(file, PreTrainingModel(CONFIG))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_become_float32(file, dtype):
    weights = {name: weight.to(dtype) for name, weight in load_file(file).items()}
    save_file(weights, file)
    ours = PreTrainingModel(CONFIG)
    load_weights(file, ours)
    assert {weight.dtype for weight in ours.state_dict().values()} == {torch.float32}
    assert torch.equal(
        ours.bert.embeddings.word_embeddings.weight,
        weights["bert.embeddings.word_embeddings.weight"].float(),
    )


def test_old_files_with_buffers_and_the_tied_decoder_load(file):
    weights = load_file(file)
    weights["bert.embeddings.position_ids"] = torch.arange(64)[None]
    weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
    weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()
    save_file(weights, file)
    ours = PreTrainingModel(CONFIG)
    load_weights(file, ours)
    assert torch.equal(ours.masked_lm.bias, weights["cls.predictions.bias"])


def test_an_unknown_architecture_names_the_known(tmp_path):
    saved(tmp_path, PreTrainingModel(CONFIG))
    config = read_json(tmp_path / "config.json")
    write_json(tmp_path / "config.json", {**config, "architectures": ["BertForDependencyParsing"]})
    with pytest.raises(ModelError, match=r"'BertForDependencyParsing' is not one of BertForPreTraining,"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["Roberta", "DistilBert", "ModernBert", "Electra", "Albert", "MPNet"])
def test_other_models_are_refused_by_their_name(tmp_path, name):
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
def test_what_bert_had_not_is_refused_by_its_name(tmp_path, key, value):
    write_json(tmp_path / "config.json", {**CONFIG.model_dump(), key: value})
    with pytest.raises(ModelError, match=re.escape(f"config.json: {key} is {value!r}; only")):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "not a JSON object"),
        ({}, "absent or empty"),
        ({"hidden_size": 10, "num_attention_heads": 4}, "hidden_size 10 is not a multiple"),
        ({"id2label": ["bad", "good"]}, "id2label = "),
        ({"id2label": {"bad": "0", "good": "1"}}, "id2label.bad"),
        ({"num_labels": "two"}, "num_labels = 'two': input should be a valid integer"),
        ({"architectures": "BertModel"}, "architectures = 'BertModel': several are expected"),
        ({"problem_type": "guess"}, "problem_type = 'guess': input should be 'single_label_classification'"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_is_named(tmp_path, content, message):
    write_json(tmp_path / "config.json", content)
    VOCABULARY.save(tmp_path / "vocab.txt")
    with pytest.raises(ModelError, match=f"config.json: {re.escape(message)}"):
        load_model(tmp_path)


def test_a_name_on_the_hub_is_answered_with_what_to_do(tmp_path):
    with pytest.raises(ModelError, match=r"hf download bert-base-uncased --local-dir bert-base-uncased$"):
        bertie.load("bert-base-uncased")
    with pytest.raises(ModelError, match=r"no such model directory$"):
        bertie.load(tmp_path / "absent")


def test_an_encoder_without_a_pooler_has_none(tmp_path):
    theirs = transformers.BertModel(transformers.BertConfig(**CONFIG.model_dump()), add_pooling_layer=False)
    theirs.save_pretrained(tmp_path / "theirs")
    VOCABULARY.save(tmp_path / "theirs" / "vocab.txt")
    ours, metadata = load_model(tmp_path / "theirs")
    sequence_output, pooled_output = ours(BATCH)
    assert pooled_output is None
    close(sequence_output, theirs.eval()(**padded(BATCH)).last_hidden_state[real(BATCH)])
    save_model(tmp_path / "again", ours, metadata, "card")
    assert not any("pooler" in name for name in load_file(tmp_path / "again" / "model.safetensors"))
    load_model(tmp_path / "again")


@pytest.mark.parametrize("file", ["config.json", "bert_config.json"])
def test_a_directory_of_2019(tmp_path, file):
    """A fine-tuned pytorch_model.bin with TensorFlow's names and no architecture, beside a bare vocab.txt."""
    theirs = transformers.BertForSequenceClassification(
        transformers.BertConfig(**CONFIG.model_dump(), num_labels=3)
    ).eval()
    weights = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in theirs.state_dict().items()
    }
    torch.save(weights, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    config = {**CONFIG.model_dump(exclude={"is_decoder"}), "finetuning_task": "mnli", "num_labels": 3}
    write_json(tmp_path / file, {**config, "torchscript": False, "pruned_heads": {}})
    VOCABULARY.save(tmp_path / "vocab.txt")
    ours, metadata = load_model(tmp_path, allow_pickle=True)
    assert metadata.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert metadata.tokenizer.lowercase
    close(ours(BATCH), theirs(**padded(BATCH)).logits)


@pytest.mark.parametrize("name", ["hf_tiny_bert_seqcls", "camphr_ner_bert"])
def test_real_files(shared_data, tmp_path, name):
    path = shared_data / "checkpoints" / name
    with pytest.raises(ModelError, match="--allow-pickle"):
        load_model(path)
    ours, metadata = load_model(path, allow_pickle=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    theirs = getattr(transformers, ours.architecture).from_pretrained(path).eval()
    assert metadata.labels == tuple(theirs.config.id2label.values())
    save_model(tmp_path / "again", ours, metadata, "card")
    again, _ = load_model(tmp_path / "again")
    text = "A sentence of 2021, with Names: Café Müller!"
    for pair in (None, "and another"):
        encoding = metadata.tokenizer.encode(text, pair, max_length=16)
        inputs = tokenizer(text, pair, max_length=16, truncation=True, return_tensors="pt")
        assert encoding.input_ids.tolist() == inputs["input_ids"][0].tolist()
        batch = pack(encoding.input_ids, encoding.token_type_ids, encoding.bounds)
        expected = theirs(**inputs).logits
        expected = expected[0] if expected.ndim == 3 else expected
        close(ours(batch), expected)
        assert torch.equal(again(batch), ours(batch))


def test_entries_beyond_the_embeddings(tmp_path):
    """Those that no text has are dropped; any other is refused."""
    saved(tmp_path, PreTrainingModel(CONFIG))
    Vocabulary([*VOCABULARY.tokens, "Upper", "##É", "two words"]).save(tmp_path / "vocab.txt")
    assert read_metadata(tmp_path).tokenizer.vocabulary.tokens == VOCABULARY.tokens
    Vocabulary([*VOCABULARY.tokens, "Upper", "##z"]).save(tmp_path / "vocab.txt")
    with pytest.raises(ModelError, match="the tokenizer has 87 entries, but the model has embeddings for 85"):
        read_metadata(tmp_path)


def test_a_regression_with_several_outputs_is_refused(tmp_path):
    config = transformers.BertConfig(**SHAPE, num_labels=3, problem_type="regression")
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    VOCABULARY.save(tmp_path / "vocab.txt")
    with pytest.raises(ModelError, match="a regression with 3 outputs"):
        load_model(tmp_path)


def test_labels_stand_in_the_order_of_their_numbers(tmp_path):
    config = {"architectures": ["BertForTokenClassification"], **CONFIG.model_dump()}
    numbers = {str(number): label for number, label in enumerate(TWELVE)}
    config["id2label"] = {number: numbers[number] for number in sorted(numbers)}  # 0, 1, 10, 11, 2, …
    write_json(tmp_path / "config.json", config)
    VOCABULARY.save(tmp_path / "vocab.txt")
    assert read_metadata(tmp_path).labels == TWELVE


def test_a_masked_lm_alone_fills_masks(tmp_path):
    text = "ban [MASK] jon"
    answers = saved(tmp_path, MaskedLMModel(CONFIG)).fill_mask(text, top_k=3)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    inputs = tokenizer(text, return_tensors="pt")
    (place,) = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero()
    expected = theirs(**inputs).logits[0, place[0]].softmax(-1).topk(3)
    assert [guess.token for guess in answers[0]] == expected.indices.tolist()
    assert [guess.score for guess in answers[0]] == pytest.approx(expected.values.tolist(), abs=1e-5)


def test_several_labels_have_a_probability_each_and_a_regression_none(tmp_path):
    model = ClassificationModel(CONFIG, 3, "multi_label_classification")
    model.classifier.bias.data = torch.tensor([9.0, 9.0, -9.0])
    answers = saved(tmp_path / "several", model, THREE, model.problem_type).classify(["ban ain"])
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "several")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "several")
    expected = theirs(**tokenizer("ban ain", return_tensors="pt")).logits[0].sigmoid()
    scores = {label.label: label.score for label in answers[0]}
    assert [scores[label] for label in THREE] == pytest.approx(expected.tolist(), abs=1e-5)
    number = saved(tmp_path / "number", ClassificationModel(CONFIG, 1, "regression"), ("x",), "regression")
    with pytest.raises(ModelError, match="problem_type is not regression"):
        number.classify(["ban ain"])
