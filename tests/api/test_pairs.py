"""Tasks on pairs of texts that the model embeds one by one."""

import tracemalloc

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from tests.inference.small_models import CONFIG, TOKENIZER, save_small

import bertie
from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.base.memory import as_source
from bertie.model.batch import pack
from bertie.model.formats.sentence_transformers import EmbeddingConfig
from bertie.model.formats.weights import load_weights
from bertie.model.heads import EmbeddingModel
from bertie.tasks import pairs
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.evaluation import load_for_task
from bertie.tasks.pairs import STS_B_EMBEDDINGS, CustomPairs, CustomScoredPairs
from bertie.tasks.registry import find_task

PAIRS = [{"text": f"the {a} sat", "pair": f"on {a} mat"} for a in "abcdefgh"]
FAST = {"epochs": 1, "max_seq_length": 32, "batch_size": 4, "device": "cpu"}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_small(tmp_path_factory.mktemp("models"), "encoder", embedding=EmbeddingConfig("cls", True))


def scored(scores):
    return [{**pair, "label": score} for pair, score in zip(PAIRS, scores, strict=False)]


@pytest.mark.parametrize(
    ("scores", "cosines"),
    [([0.2, 0.4, 0.9], [0.2, 0.4, 0.9]), ([1, 3, 5], [0, 0.5, 1]), ([-1, 0, 1], [0, 0.5, 1])],
)
def test_scores_are_scaled_unless_they_are_cosines(scores, cosines):
    task = CustomScoredPairs()
    examples = task.read(as_source(scored(scores), "train"), labelled=True)
    task = task.fitted(examples)
    inputs = task.encode(examples, TOKENIZER, 32)
    assert (len(inputs), inputs.num_examples) == (6, 3)
    np.testing.assert_allclose(inputs.labels, cosines)


def test_dev_scores_are_scaled_like_the_training_scores():
    task = CustomScoredPairs()
    task = task.fitted(task.read(as_source(scored([0, 5]), "train"), labelled=True))
    dev = task.read(as_source(scored([1, 2]), "dev"), labelled=True)
    np.testing.assert_allclose(task.gold(dev), [0.2, 0.4])


def test_dev_scores_outside_the_training_range_are_reported(capsys):
    task = CustomScoredPairs()
    task = task.fitted(task.read(as_source(scored([0, 5]), "train"), labelled=True))
    task.read(as_source(scored([0, 6, -1, 5]), "dev"), labelled=True)
    assert capsys.readouterr().err == (
        "dev: scores outside 0 to 5, the range in training, which no cosine reaches: 2 (first: dev, row 2)\n"
    )


def test_training_labels_are_equal_for_equal_texts_only():
    task, texts = CustomPairs(), ["a", "b", "a\0", "long " * 20_000]
    rows = [{"text": text, "pair": pair} for text, pair in zip(texts, ["b", "c", "a", "d"], strict=True)]
    examples = task.read(as_source(rows, "train"), labelled=True)
    tracemalloc.start()
    labels = task._training_labels(examples)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    # Sorted, because the labels are part of the fingerprint by which earlier runs are resumed.
    assert labels.tolist() == [[0, 2], [2, 3], [1, 0], [5, 4]]


def test_rank_counts_the_second_texts_that_are_nearer():
    task = CustomPairs()
    examples = task.read(as_source(PAIRS[:3], "dev"), labelled=True)
    # The second texts of pairs 0 and 2 are equal; the one of pair 1 is the farthest from its first text.
    vectors = np.array([[1, 0], [2, 0], [1, 0.1], [0, 3], [0, 1], [5, 0]], dtype=np.float32)
    ranks = task.decode(examples, task.encode(examples, TOKENIZER, 32), vectors)
    assert ranks.tolist() == [1, 3, 2]
    assert task.score(examples, ranks) == {
        "mrr": pytest.approx(100 * (1 + 1 / 3 + 1 / 2) / 3),
        "accuracy": pytest.approx(100 / 3),
    }


@pytest.mark.parametrize("chunk", [1, 4, 5, 6])
def test_ranks_do_not_depend_on_the_pairs_compared_at_a_time(monkeypatch, chunk):
    vectors = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit[::2] @ unit[1::2].T
    expected = [1 + sum(cosines[i] > cosines[i, i]) for i in range(5)]
    monkeypatch.setattr(pairs, "_CHUNK", chunk)
    assert CustomPairs().decode(None, None, vectors).tolist() == expected
    assert len(set(expected)) > 1


def test_equal_second_texts_have_the_same_rank():
    """The lengths of their vectors differ, so their cosines differ by rounding."""
    one, other = np.random.default_rng(0).normal(size=(2, 64))
    vectors = np.array([row for i in range(1, 50) for row in (other / i, one * i)], np.float32)
    assert set(CustomPairs().decode(None, None, vectors)) == {1}


def test_mistakes_are_the_pairs_with_the_highest_ranks():
    task = CustomPairs()
    examples = task.read(as_source(PAIRS[:3], "dev"), labelled=True)
    mistakes = task.analyze_errors(examples, np.array([1.0, 2.0, 3.0])).mistakes
    assert [mistake[1:3] for mistake in mistakes] == [("rank 1", "rank 3"), ("rank 1", "rank 2")]
    assert [mistake.text for mistake in mistakes] == ["the c sat ‖ on c mat", "the b sat ‖ on b mat"]


def test_sts_b_is_scaled_from_0_to_5_whatever_its_scores():
    task = STS_B_EMBEDDINGS
    examples = LabelledTexts(["a", "b"], ["c", "d"], labels=["1.0", "4.0"])
    np.testing.assert_allclose(task.fitted(examples).gold(examples), [0.2, 0.8])
    assert task.describe_labels(examples) == "scores; 0 means a cosine of 0, 5 a cosine of 1"


def test_pairs_that_share_a_text_do_not_compete():
    task = CustomPairs()
    rows = [{"text": "cat", "pair": "mat"}, {"text": "the cat", "pair": "cat"}]
    model = EmbeddingModel(CONFIG, "mean").eval()

    def loss(rows):
        inputs = task.encode(task.read(as_source(rows, "train"), labelled=True), TOKENIZER, 32)
        batch = pack(inputs.input_ids, inputs.token_type_ids, inputs.bounds, labels=inputs.labels)
        return model.compute_losses(batch)["embedding"].loss_sum.item()

    assert loss(rows) == pytest.approx(0, abs=1e-6)
    assert loss([*rows, {"text": "paris", "pair": "on"}]) > 0.1


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_training_and_inference_pool_equally(encoder, pooling):
    model = EmbeddingModel(CONFIG, pooling).eval()
    load_weights(encoder, model)
    texts = ["the cat", "sat on a long mat .", "paris"]
    encoding = TOKENIZER.encode_batch(texts)
    with torch.inference_mode():
        vectors = model.embed(pack(encoding.input_ids, encoding.token_type_ids, encoding.bounds))
    expected = bertie.load(encoder).embed(texts, pooling=pooling, normalize=False)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "rows", "metrics"),
    [
        ("pairs", PAIRS, ["mrr", "accuracy"]),
        ("scored-pairs", scored([0, 1, 2, 3, 4, 5, 4.5, 2.5]), ["spearmanr", "pearson"]),
    ],
)
def test_fine_tuned_model_keeps_its_pooling(encoder, tmp_path, kind, rows, metrics):
    run = bertie.finetune(encoder, train=rows, dev=rows, kind=kind, out=tmp_path / "run", **FAST)
    assert list(run.scores["dev"]) == metrics
    model = bertie.load(run.model_directory)
    assert model.embedding == EmbeddingConfig("cls", True, 32)
    scores = bertie.evaluate(run.model_directory, rows, kind=kind).scores["dev"]
    assert scores == pytest.approx(run.scores["dev"], rel=1e-5)
    first, second = (model.embed([row[column] for row in rows]) for column in ("text", "pair"))
    if kind == "scored-pairs":
        expected = 100 * spearmanr((first * second).sum(1), [row["label"] for row in rows])[0]
        assert run.scores["dev"]["spearmanr"] == pytest.approx(expected)


def test_small_micro_batches_do_not_split_the_negatives(encoder, tmp_path):
    losses = [
        bertie.finetune(
            encoder, train=PAIRS, kind="pairs", out=tmp_path / str(size), micro_batch_tokens=size, **FAST
        ).metrics[-2]["loss"]
        for size in (4, 1024)
    ]
    assert losses[0] == losses[1] > 0


def test_sts_b_scores_the_cosines_of_an_encoder(encoder, shared_data):
    """Real sentences."""
    data = shared_data / "glue"
    result = bertie.evaluate(encoder, data, task="sts-b")
    lines = (data / "STS-B" / "dev.tsv").read_text().splitlines()[1:]
    first, second, gold = zip(*(line.split("\t")[-3:] for line in lines), strict=True)
    model = bertie.load(encoder)
    cosines = (model.embed(list(first)) * model.embed(list(second))).sum(1)
    assert result.scores["dev"]["spearmanr"] == pytest.approx(
        100 * spearmanr(cosines, [float(score) for score in gold])[0], abs=1e-3
    )
    assert result.scores == bertie.evaluate(encoder, data, task="sts-b-embeddings").scores


def test_encoders_are_not_averaged(encoder):
    with pytest.raises(ModelError, match="encoder: vectors of several encoders are not averaged"):
        bertie.evaluate([encoder, encoder], PAIRS, kind="pairs")


def test_sts_b_still_needs_a_regression_of_another_head(tmp_path):
    classifier = save_small(tmp_path, "regression")
    assert load_for_task(find_task("sts-b"), classifier).task.name == "sts-b"


@pytest.mark.parametrize(
    ("kind", "row", "message"),
    [
        ("scored-pairs", {"text": "a", "pair": "b", "label": "high"}, "train, row 9: 'high' is not a number"),
        ("scored-pairs", {"text": "a", "pair": "b", "label": None}, "train, row 9: no label"),
        ("pairs", {"text": "a", "pair": ""}, "train, row 9: no text in the column 'pair'"),
    ],
)
def test_bad_row_is_cited(encoder, tmp_path, kind, row, message):
    rows = [*(scored(range(8)) if kind == "scored-pairs" else PAIRS), row]
    with pytest.raises(DataError, match=message):
        bertie.finetune(encoder, train=rows, kind=kind, out=tmp_path / "run", **FAST)


def test_one_pair_and_a_bilstm_are_refused(encoder, tmp_path):
    with pytest.raises(DataError, match="one pair; add others"):
        bertie.finetune(encoder, train=PAIRS[:1], kind="pairs", out=tmp_path / "run", **FAST)
    with pytest.raises(SettingsError, match="bilstm: embeddings are computed from the encoder"):
        bertie.finetune(encoder, train=PAIRS, kind="pairs", out=tmp_path / "run", bilstm=True, **FAST)
