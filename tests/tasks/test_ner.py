"""Tagging: names of files, encoding, decoding, labels and scores."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import DataError, ModelError
from bertie.tasks.conll import TaggedSentences
from bertie.tasks.custom.tagging import CustomTagging
from bertie.tasks.entities import find_entities
from bertie.tasks.ner import NER, Tagging
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

LETTERS = "abcdefgh"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A tokenizer with a token for every letter."""
    return Tokenizer(Vocabulary([*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]))


def sentences(words: list[list[str]], tags: list[list[str]], document_bounds: list[int]) -> TaggedSentences:
    return TaggedSentences.from_tags(words, tags, np.array(document_bounds))


def gold_logits(task: Tagging, inputs) -> np.ndarray:
    """Logits that predict the gold labels, and the last label for tokens without one."""
    predicted = np.where(inputs.labels < 0, len(task.labels) - 1, inputs.labels)
    return np.eye(len(task.labels), dtype=np.float32)[predicted]


# --- files


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(DataError, match=r"dev\.txt: no such file"):
        NER.read(NER.file(tmp_path, "dev"), labelled=True)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("train", "train.conll"),
        ("dev", "devel.tsv"),
        ("dev", "valid.txt"),
        ("dev", "testa.txt"),
        ("dev", "eng.testa"),
        ("test", "eng.testb"),
        ("test", "test.tsv"),
    ],
)
def test_files_of_parts_are_found_by_usual_names(tmp_path, part, name):
    (tmp_path / name).touch()
    assert NER.file(tmp_path, part) == tmp_path / name
    assert NER.file(tmp_path / name, "any") == tmp_path / name


# --- encoding and decoding


def test_a_window_never_spans_two_documents(tokenizer):
    examples = sentences([["ab", "c"], ["d"], ["e"]], [["O", "O"], ["O"], ["O"]], [0, 2, 3])
    inputs = NER.fitted(examples).encode(examples, tokenizer, 12)
    assert [
        tokenizer.convert_ids_to_tokens(inputs.input_ids[first:end]) for first, end in pairwise(inputs.bounds)
    ] == [
        ["[CLS]", "a", "##b", "c", "d", "[SEP]"],
        ["[CLS]", "e", "[SEP]"],
    ]
    assert inputs.labels.tolist() == [-100, 0, -100, 0, 0, -100, -100, 0, -100]
    assert not inputs.token_type_ids.any()


def test_a_long_document_is_split_into_windows(tokenizer):
    examples = sentences([["a", "b"], ["c"] * 9], [["O"] * 2, ["O"] * 9], [0, 1, 2])
    inputs = NER.fitted(examples).encode(examples, tokenizer, 8)
    assert np.diff(inputs.bounds).tolist() == [4, 8, 8]
    assert (inputs.labels == 0).sum() == 11


words_of_letters = st.lists(
    st.lists(st.text(LETTERS, min_size=1, max_size=12) | st.sampled_from(["", "\u200b", "\x07"]), min_size=1),
    min_size=1,
    max_size=6,
)


@given(words_of_letters, st.integers(3, 16), st.data())
def test_every_word_has_one_label_on_its_first_token(words, max_seq_length, data):
    tokenizer = Tokenizer(Vocabulary([*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]))
    tags = [[data.draw(st.sampled_from(["O", "B-X", "I-X", "B-Y"])) for _ in sentence] for sentence in words]
    cut = data.draw(st.integers(0, len(words)))
    examples = TaggedSentences(words, tags, np.unique([0, cut, len(words)]))
    task = NER.fitted(examples)
    inputs = task.encode(examples, tokenizer, max_seq_length)

    assert np.diff(inputs.bounds).max() <= max_seq_length
    flat = [word for sentence in words for word in sentence]
    assert (inputs.labels >= 0).sum() == len(flat)
    assert sorted(inputs.word_positions) == np.flatnonzero(inputs.labels >= 0).tolist()
    starts = tokenizer.convert_ids_to_tokens(inputs.input_ids[inputs.word_positions])
    assert starts == [word[0] if word.strip("\u200b\x07") else "[UNK]" for word in flat]
    assert task.decode(examples, inputs, gold_logits(task, inputs)) == tags


def test_a_sentence_of_2000_tokens_is_tagged_completely(tokenizer):
    """All words but the first and the last have context on both sides."""
    words = [["abcd"] * 500, ["a"]]
    tags = [["B-X", "I-X", "O", "B-Y"] * 125, ["O"]]
    examples = sentences(words, tags, [0, 2])
    task = NER.fitted(examples)
    inputs = task.encode(examples, tokenizer, 128)
    assert np.diff(inputs.bounds).max() == 128
    predictions = task.decode(examples, inputs, gold_logits(task, inputs))
    assert predictions == tags
    assert task.score(examples, predictions)["f1"] == 100
    inside = (
        inputs.word_positions
        - inputs.bounds[np.searchsorted(inputs.bounds, inputs.word_positions, "right") - 1]
    )
    assert (inside[20:-20] > 30).all()  # a quarter of 126 tokens on the left
    assert (inside[20:-20] < 128 - 30).all()


# --- labels


def test_labels_are_the_training_tags_with_o_first(tokenizer):
    training = sentences([["a", "b", "c"]], [["B-Y", "I-Y", "B-A"]], [0, 1])
    task = NER.fitted(training)
    assert task.labels == ("O", "B-A", "B-Y", "I-Y")
    dev = sentences([["a", "b"]], [["B-NEW", "B-A"]], [0, 1])
    inputs = task.encode(dev, tokenizer, 8)
    assert inputs.labels.tolist() == [-100, -100, 1, -100]
    scores = task.score(dev, task.decode(dev, inputs, gold_logits(task, inputs)))
    assert (scores["recall"], scores["f1 NEW"], scores["f1 A"]) == (50, 0, 100)


def test_a_models_labels_may_have_any_order(tokenizer):
    task = NER.with_labels(["I-X", "O", "B-X"])
    examples = sentences([["a", "b", "c"]], [["B-X", "I-X", "O"]], [0, 1])
    inputs = task.encode(examples, tokenizer, 8)
    assert inputs.labels.tolist() == [-100, 2, 0, 1, -100]
    assert task.decode(examples, inputs, gold_logits(task, inputs)) == examples.tags
    with pytest.raises(ModelError, match="label 1 does not suit ner: 'LABEL_1'"):
        NER.with_labels(["O", "LABEL_1"])


# --- scores and predictions


def test_flattened_predictions_are_the_tags_of_words():
    assert NER.flatten_predictions([["O", "B-LOC"], ["O"]]) == ["O", "B-LOC", "O"]


def test_majority_baseline_is_o_or_the_most_frequent_plain_tag_in_training():
    gold = sentences([["a", "b", "c"]], [["O", "B-X", "B-X"]], [0, 1])
    assert NER.majority_baseline(gold, gold) == NER.score(gold, [["O"] * 3])
    training = sentences([["a", "b", "c"]], [["N", "V", "V"]], [0, 1])
    dev = sentences([["a", "b", "c"]], [["N", "N", "V"]], [0, 1])
    task = CustomTagging().fitted(training)
    assert task.majority_baseline(training, dev)["accuracy"] == pytest.approx(100 / 3)


def test_confidence_is_the_probability_of_the_tag_of_each_word(tokenizer):
    examples = sentences([["ab", "c"]], [["O", "B-X"]], [0, 1])
    task = NER.fitted(examples)
    logits = np.log([[1, 1], [3, 1], [1, 1], [1, 4], [1, 1]])  # [CLS] a ##b c [SEP]
    confidence = task.confidence(examples, task.encode(examples, tokenizer, 8), logits)
    assert confidence == pytest.approx([0.75, 0.8])


def test_ill_formed_predictions_are_scored_as_by_conlleval():
    examples = sentences([["a", "b", "c"]], [["O", "B-X", "O"]], [0, 1])
    scores = NER.score(examples, [["O", "I-X", "O"]])
    assert scores["f1"] == 100
    assert scores["accuracy"] == pytest.approx(200 / 3)


def test_gold_and_predicted_schemes_may_differ():
    tags = [["I-X", "B-X", "O", "I-Y", "I-Y"]]  # IOB1
    examples = sentences([list("abcde")], tags, [0, 1])
    perfect = {"precision": 100, "recall": 100, "accuracy": 100}
    perfect |= dict.fromkeys(["f1", "FB1", "f1 X", "f1 Y"], 100)
    assert NER.score(examples, tags) == perfect
    assert NER.score(examples, examples.tags) == perfect
    gold = sentences([list("abcde")], examples.tags, [0, 1])
    assert NER.score(gold, [["S-X", "S-X", "O", "B-Y", "E-Y"]]) == perfect


def test_written_predictions_are_read_back(tmp_path):
    words = [["a", "New\tYork"], ["\n", ""]]
    gold = sentences(words, [["O", "B-X"], ["O", "O"]], [0, 2])
    predictions = [["B-X", "I-X"], ["O", "I-Y"]]
    path = tmp_path / "predictions" / "dev"
    for examples in (gold, TaggedSentences(words, None, gold.document_bounds)):
        NER.write_predictions(examples, predictions, path)
        assert NER.read_predictions(examples, path) == predictions
    NER.write_predictions(gold, predictions, path)
    assert path.read_text().splitlines()[:3] == ["a\tO\tB-X", "New York\tB-X\tI-X", ""]


# --- real files


@pytest.mark.parametrize(("name", "entity_types", "entities"), [("wnut17", 6, 1975), ("bc5cdr", 2, 9385)])
@pytest.mark.parametrize("max_seq_length", [64, 512])
def test_gold_logits_of_real_files_score_100(shared_data, name, entity_types, entities, max_seq_length):
    folder = shared_data / "ner" / name
    examples = NER.read(NER.file(folder, "train"), labelled=True)
    task = NER.fitted(examples)
    assert len(task.labels) == 1 + 2 * entity_types
    assert sum(len(find_entities(tags)) for tags in examples.tags) == entities  # lines with B-
    inputs = task.encode(examples, Tokenizer.load(shared_data / "vocab" / "uncased_en"), max_seq_length)
    predictions = task.decode(examples, inputs, gold_logits(task, inputs))
    assert predictions == examples.tags
    scores = task.score(examples, predictions)
    assert set(scores.values()) == {100}
    assert (inputs.labels >= 0).sum() == examples.bounds[-1]
    assert len(NER.read(NER.file(folder, "dev"), labelled=True)) > 1000
