"""Vectors of layers against `transformers`' hidden_states; windows, words and documents."""

from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.inference.small_models import CONFIG, TOKENIZER, save_small
from transformers import AutoModel

import bertie
from bertie.base.errors import SettingsError
from bertie.inference.features import LayerChoice, compute_features, read_sentences, read_texts
from bertie.model.engines.loading import load_engine
from bertie.tasks.ner import NER, TaggedSentences, lay_windows

L = CONFIG.num_hidden_layers
ALL = LayerChoice(range(L + 1))
TEXTS = ["the cat sat on a mat .", "", "Paris", "rings, cats and mats!", " ", "a cat sat ." * 9]


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return save_small(tmp_path_factory.mktemp("models"), "classifier")


@pytest.fixture(scope="module")
def engine(directory):
    return load_engine(directory, "cpu").engine


@pytest.fixture(scope="module")
def theirs(directory):
    model = AutoModel.from_pretrained(directory).eval()

    @torch.inference_mode()
    def hidden_states(pieces: list[int]) -> np.ndarray:
        """Every layer's vectors of one window's pieces: (L + 1, pieces, H)."""
        vocabulary = TOKENIZER.vocabulary
        ids = torch.tensor([[vocabulary.cls_id, *pieces, vocabulary.sep_id]])
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
        return torch.cat(states)[:, 1:-1].numpy()

    return hidden_states


def pieces_of(text: str) -> list[int]:
    return TOKENIZER.encode_batch([text], add_special_tokens=False).input_ids.tolist()


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_every_layer_of_every_piece(directory, theirs):
    features = bertie.load(directory, "cpu").features(TEXTS, [0, 2, -2])
    assert features.columns == ["layer_0", "layer_2", "layer_1"]
    assert len(features) == len([*features]) == len(TEXTS)
    assert (features[-1] == features[len(TEXTS) - 1]).all()
    for i, text in enumerate(TEXTS):
        first, end = features.bounds[i : i + 2]
        assert features.names[first:end] == TOKENIZER.tokens(pieces_of(text))
        assert features[i].shape == (3, end - first, CONFIG.hidden_size)
        if text.strip():
            close(features[i], theirs(pieces_of(text))[[0, 2, 1]])


@pytest.mark.parametrize("kind", ["pre-training", "tagger", "squad-v2", "encoder"])
def test_the_head_is_ignored(tmp_path, kind):
    directory = save_small(tmp_path, kind)
    model = AutoModel.from_pretrained(directory).eval()
    with torch.inference_mode():
        ids = torch.from_numpy(TOKENIZER.encode("the cat").input_ids)[None]
        expected = model(input_ids=ids).last_hidden_state[0, 1:-1]
    close(bertie.load(directory, "cpu").features(["the cat"])[0][0], expected)


def test_combinations(directory):
    model = bertie.load(directory, "cpu")
    apart = model.features(TEXTS, [0, -1]).vectors
    expected = {
        "concat": np.concatenate(list(apart), axis=1),
        "sum": apart[0] + apart[1],
        "mean": (apart[0] + apart[1]) / 2,
    }
    for combine, vectors in expected.items():
        features = model.features(TEXTS, [0, -1], combine=combine)
        assert features.columns == ["combined"]
        close(features.vectors, vectors[None])
    close(
        model.features(TEXTS, [0, -1], combine="sum", weights=[0.25, -2]).vectors[0],
        0.25 * apart[0] - 2 * apart[1],
    )


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (LayerChoice([3]), "layer 3: the model has 0, its embeddings, to 2, or -3 to -1"),
        (LayerChoice([0, -4]), "layer -4: the model has 0"),
        (LayerChoice([0, 1], "sum", [1.0]), "weights are for a sum, one for each layer: 1 for 2 layers"),
        (LayerChoice([0, 1], "mean", [1.0, 1.0]), "weights are for a sum"),
    ],
)
def test_a_choice_that_cannot_be_made(choice, message):
    with pytest.raises(SettingsError, match=message):
        choice.of(L)


def most_context(theirs, pieces: list[int], room: int) -> np.ndarray:
    """Each piece's vectors from the window in which it is farthest from where the text was cut."""
    first, end, _ = lay_windows(np.array([0, len(pieces)]), room)
    vectors, best = None, np.full(len(pieces), -1.0)
    for low, high in zip(first.tolist(), end.tolist(), strict=True):
        here = theirs(pieces[low:high])
        vectors = (
            np.empty((len(here), len(pieces), here.shape[2]), np.float32) if vectors is None else vectors
        )
        for piece in range(low, high):
            left = np.inf if low == 0 else piece - low
            right = np.inf if high == len(pieces) else high - 1 - piece
            if min(left, right) > best[piece]:  # of two that are equal the earlier one
                best[piece] = min(left, right)
                vectors[:, piece] = here[:, piece - low]
    return vectors


def test_a_text_longer_than_the_model_has_windows(engine, theirs):
    text = " ".join(np.random.default_rng(0).choice(["cat", "sat", "rings", "."], 40))
    pieces, length = pieces_of(text), 22
    features = compute_features(engine, read_texts(["mat", text], TOKENIZER, length, False), ALL, CONFIG)
    assert len(pieces) > 2 * length
    close(features[0], theirs(pieces_of("mat")))
    close(features[1], most_context(theirs, pieces, length - 2))


def test_a_word_has_its_first_pieces_vector(engine):
    pieces = compute_features(engine, read_texts(TEXTS, TOKENIZER, 128, False), ALL, CONFIG)
    words = compute_features(engine, read_texts(TEXTS, TOKENIZER, 128, True), ALL, CONFIG)
    assert words.names[:8] == ["the", "cat", "sat", "on", "a", "mat", ".", "Paris"]
    assert [words.names[first:end] for first, end in pairwise(words.bounds)][3] == [
        *("rings", ",", "cats", "and", "mats", "!")
    ]
    begins = [place for place, piece in enumerate(pieces.names) if not piece.startswith("##")]
    close(words.vectors, pieces.vectors[:, begins])


def test_words_of_a_document_are_seen_together_in_whatever_parts_they_are_computed(engine, theirs):
    words = [["the", "cats"], ["sat", "rings"], ["\x07"], ["on", "mats", "."] * 6]
    sentences = TaggedSentences(words, [["O"] * len(row) for row in words], np.array([0, 1, 4]))
    reading = read_sentences(sentences, TOKENIZER, 16)
    whole = compute_features(engine, reading, ALL, CONFIG)
    assert whole.names == [*chain(*words)]
    close(whole[0], theirs(pieces_of("the cats"))[:, :2])
    inputs = NER.encode(TaggedSentences(words, None, sentences.documents), TOKENIZER, 16)
    assert (np.diff(inputs.bounds) <= 16).all()
    unknown = TOKENIZER.vocabulary.unk_id  # a control character has no piece
    pieces = [*pieces_of("sat rings"), unknown, *pieces_of("on mats . " * 6)]
    begins = [i for i, piece in enumerate(TOKENIZER.tokens(pieces)) if not piece.startswith("##")]
    close(np.concatenate([whole[1], whole[2], whole[3]], 1), most_context(theirs, pieces, 14)[:, begins])

    parts = [compute_features(engine, reading.part(*part), ALL, CONFIG) for part in ((0, 3), (3, 3), (3, 4))]
    assert [len(part) for part in parts] == [3, 0, 1]
    close(np.concatenate([part.vectors for part in parts], 1), whole.vectors)
    assert [*chain(*(part.names for part in parts))] == whole.names


def test_no_texts(engine):
    features = compute_features(engine, read_texts([], TOKENIZER, 128, True), ALL, CONFIG)
    assert (len(features), features.vectors.shape) == (0, (L + 1, 0, CONFIG.hidden_size))
