"""Vectors of layers, equal to `transformers`' hidden_states."""

from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.inference.small_models import CONFIG, TOKENIZER, save_small
from transformers import AutoModel

import bertie
from bertie.base.errors import SettingsError
from bertie.inference.features import LayerSelection, compute_features, encode_sentences, encode_texts
from bertie.model.engines.loading import load_engine
from bertie.tasks.conll import TaggedSentences
from bertie.tasks.ner import NER
from bertie.tasks.windows import place_windows

L = CONFIG.num_hidden_layers
ALL_LAYERS = LayerSelection(range(L + 1))
TEXTS = ["the cat sat on a mat .", "", "Paris", "rings, cats and mats!", " ", "a cat sat ." * 9]


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return save_small(tmp_path_factory.mktemp("models"), "classifier")


@pytest.fixture(scope="module")
def engine(directory):
    return load_engine(directory, "cpu").engine


@pytest.fixture(scope="module")
def reference(directory):
    """Return `transformers`' vectors of a window's tokens: (L + 1, tokens, H)."""
    model = AutoModel.from_pretrained(directory).eval()

    @torch.inference_mode()
    def hidden_states(token_ids: list[int]) -> np.ndarray:
        vocabulary = TOKENIZER.vocabulary
        ids = torch.tensor([[vocabulary.cls_id, *token_ids, vocabulary.sep_id]])
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
        return torch.cat(states)[:, 1:-1].numpy()

    return hidden_states


def token_ids(text: str) -> list[int]:
    return TOKENIZER.encode_batch([text], add_special_tokens=False).input_ids.tolist()


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_every_token_has_its_vector_in_each_layer(directory, reference):
    features = bertie.load(directory, "cpu").features(TEXTS, [0, 2, -2])
    assert features.columns == ["layer_0", "layer_2", "layer_1"]
    assert len(features) == len([*features]) == len(TEXTS)
    assert (features[-1].vectors == features[len(TEXTS) - 1].vectors).all()
    for i, text in enumerate(TEXTS):
        first, end = features.bounds[i : i + 2]
        assert (
            features.tokens[first:end]
            == features[i].tokens
            == TOKENIZER.convert_ids_to_tokens(token_ids(text))
        )
        assert features[i].columns == features.columns
        assert features[i].vectors.shape == (3, end - first, CONFIG.hidden_size)
        if text.strip():
            assert_close(features[i].vectors, reference(token_ids(text))[[0, 2, 1]])


def test_one_text_has_the_same_vectors_as_in_a_list(directory):
    model = bertie.load(directory, "cpu")
    one, (same, *_) = model.features(TEXTS[0], words=True), model.features([TEXTS[0]], words=True)
    assert (one.columns, one.tokens) == (same.columns, same.tokens)
    assert (one.vectors == same.vectors).all()


def test_repr_shows_shapes_instead_of_arrays(directory):
    model = bertie.load(directory, "cpu")
    features = model.features(["the cat", "mat"])
    assert repr(features) == "Features(2 texts, columns=['layer_2'], vectors=(1, 3, 16))"
    assert repr(model.features(["a"])).startswith("Features(1 text, ")
    assert repr(features[1]) == "TextFeatures(columns=['layer_2'], vectors=(1, 1, 16), tokens=['mat'])"


@pytest.mark.parametrize("kind", ["pre-training", "tagger", "squad-v2", "encoder"])
def test_the_head_is_ignored(tmp_path, kind):
    directory = save_small(tmp_path, kind)
    model = AutoModel.from_pretrained(directory).eval()
    with torch.inference_mode():
        ids = torch.from_numpy(TOKENIZER.encode("the cat").input_ids)[None]
        expected = model(input_ids=ids).last_hidden_state[0, 1:-1]
    assert_close(bertie.load(directory, "cpu").features("the cat").vectors[0], expected)


def test_layers_are_concatenated_summed_or_averaged(directory):
    model = bertie.load(directory, "cpu")
    separate = model.features(TEXTS, [0, -1]).vectors
    expected = {
        "concat": np.concatenate(list(separate), axis=1),
        "sum": separate[0] + separate[1],
        "mean": (separate[0] + separate[1]) / 2,
    }
    for combine, vectors in expected.items():
        features = model.features(TEXTS, [0, -1], combine=combine)
        assert features.columns == ["combined"]
        assert_close(features.vectors, vectors[None])
    for weights in ([0.25, -2], np.array([0.25, -2])):
        assert_close(
            model.features(TEXTS, [0, -1], combine="sum", weights=weights).vectors[0],
            0.25 * separate[0] - 2 * separate[1],
        )


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (LayerSelection([3]), "layer 3: not in this model; choose from 0, the embeddings, to 2, or from -3"),
        (LayerSelection([0, -4]), "layer -4: not in this model"),
        (LayerSelection([-1, 2]), r"layers \[-1, 2\]: layer 2 is there twice; select it once"),
        (LayerSelection([]), r"layers=\[\]: expected a list of integers, such as \[-1\]"),
        (LayerSelection(-1), "layers=-1: expected a list of integers"),
        (LayerSelection("12"), "layers='12': expected a list of integers"),
        (LayerSelection([0, 1], "max"), "combine='max': unknown combination; use one of concat, sum, mean"),
        (LayerSelection([0, 1], "sum", [1.0]), "1 weight for 2 layers; give one for each layer$"),
        (LayerSelection([0, 1], "sum", [1, 1e39]), "weights: expected a list of finite numbers"),
        (LayerSelection([0, 1], "sum", ["1", "2"]), "weights: expected a list of finite numbers"),
        (LayerSelection([0, 1], "sum", [[1.0], [2.0]]), "weights: expected a list of finite numbers"),
        (LayerSelection([0, 1], "sum", 1.0), "weights: expected a list of finite numbers"),
        (LayerSelection([0], np.array(["sum", "mean"])), r"combine=array\(.*\): unknown combination"),
        (LayerSelection([0, 1], "mean", [1.0, 1.0]), r"weighted sum of layers; pass --combine sum \("),
    ],
)
def test_impossible_selections_are_rejected(selection, message):
    with pytest.raises(SettingsError, match=message):
        selection.resolve(L)


def test_words_is_a_flag(directory):
    with pytest.raises(SettingsError, match="words='first': expected True or False"):
        bertie.load(directory, "cpu").features("the cat", words="first")
    with pytest.raises(SettingsError, match=r"words=array\(.*\): expected True or False"):
        bertie.load(directory, "cpu").features("the cat", words=np.array([True, False]))


def most_context(reference, ids: list[int], room: int) -> np.ndarray:
    """Return each token's vectors from the window in which it is farthest from a cut."""
    first, end, _ = place_windows(np.array([0, len(ids)]), room)
    vectors = np.empty((L + 1, len(ids), CONFIG.hidden_size), np.float32)
    context = np.full(len(ids), -1.0)
    for low, high in zip(first.tolist(), end.tolist(), strict=True):
        window = reference(ids[low:high])
        for i in range(low, high):
            left = np.inf if low == 0 else i - low
            right = np.inf if high == len(ids) else high - 1 - i
            if min(left, right) > context[i]:  # at a tie the earlier window
                context[i] = min(left, right)
                vectors[:, i] = window[:, i - low]
    return vectors


def test_a_long_text_is_cut_into_windows(engine, reference):
    text = " ".join(np.random.default_rng(0).choice(["cat", "sat", "rings", "."], 40))
    ids, length = token_ids(text), 22
    encoded = encode_texts(["mat", text], TOKENIZER, length, words=False)
    features = compute_features(engine, encoded, ALL_LAYERS, CONFIG)
    assert len(ids) > 2 * length
    assert_close(features[0].vectors, reference(token_ids("mat")))
    assert_close(features[1].vectors, most_context(reference, ids, length - 2))


def test_a_word_has_the_vector_of_its_first_token(engine):
    tokens, words = (
        compute_features(engine, encode_texts(TEXTS, TOKENIZER, 128, words), ALL_LAYERS, CONFIG)
        for words in (False, True)
    )
    assert words.tokens[:8] == ["the", "cat", "sat", "on", "a", "mat", ".", "Paris"]
    assert [words.tokens[first:end] for first, end in pairwise(words.bounds)][3] == [
        *("rings", ",", "cats", "and", "mats", "!")
    ]
    first_tokens = [i for i, token in enumerate(tokens.tokens) if not token.startswith("##")]
    assert_close(words.vectors, tokens.vectors[:, first_tokens])


def test_words_have_their_document_as_context(engine, reference):
    words = [["the", "cats"], ["sat", "rings"], ["\x07"], ["on", "mats", "."] * 6]
    sentences = TaggedSentences(words, [["O"] * len(row) for row in words], np.array([0, 1, 4]))
    encoded = encode_sentences(sentences, TOKENIZER, 16)
    features = compute_features(engine, encoded, ALL_LAYERS, CONFIG)
    assert features.tokens == [*chain(*words)]
    assert_close(features[0].vectors, reference(token_ids("the cats"))[:, :2])
    inputs = NER.encode(TaggedSentences(words, None, sentences.document_bounds), TOKENIZER, 16)
    assert (np.diff(inputs.bounds) <= 16).all()
    unknown = TOKENIZER.vocabulary.unk_id  # a control character has no tokens
    ids = [*token_ids("sat rings"), unknown, *token_ids("on mats . " * 6)]
    first_tokens = [
        i for i, token in enumerate(TOKENIZER.convert_ids_to_tokens(ids)) if not token.startswith("##")
    ]
    second_document = np.concatenate([features[i].vectors for i in (1, 2, 3)], axis=1)
    assert_close(second_document, most_context(reference, ids, 14)[:, first_tokens])

    slices = [
        compute_features(engine, encoded.slice(*bounds), ALL_LAYERS, CONFIG)
        for bounds in ((0, 3), (3, 3), (3, 4))
    ]
    assert [len(part) for part in slices] == [3, 0, 1]
    assert_close(np.concatenate([part.vectors for part in slices], 1), features.vectors)
    assert [*chain(*(part.tokens for part in slices))] == features.tokens


def test_no_texts_have_no_vectors(engine):
    features = compute_features(engine, encode_texts([], TOKENIZER, 128, words=True), ALL_LAYERS, CONFIG)
    assert (len(features), features.vectors.shape) == (0, (L + 1, 0, CONFIG.hidden_size))
