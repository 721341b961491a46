"""Tagging: files of columns, encoding, decoding, scores and predictions."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import DataError, ModelError
from bertie.tasks.entities import find_entities
from bertie.tasks.ner import NER, TaggedSentences, Tagging, read_conll
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

LETTERS = "abcdefgh"
CONLL_2003 = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
-DOCSTART- -X- O O

BRUSSELS NNP I-NP I-LOC
Paris NNP I-NP B-LOC
"""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A tokenizer with a token for every letter."""
    return Tokenizer(Vocabulary([*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]))


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def sentences(words: list[list[str]], tags: list[list[str]], document_bounds: list[int]) -> TaggedSentences:
    return TaggedSentences.from_tags(words, tags, np.array(document_bounds))


def gold_logits(task: Tagging, inputs) -> np.ndarray:
    """Logits that predict the gold labels, and the last label for tokens without one."""
    predicted = np.where(inputs.labels < 0, len(task.labels) - 1, inputs.labels)
    return np.eye(len(task.labels), dtype=np.float32)[predicted]


# --- files


def test_conll_2003_is_read_and_converted_to_iob2(tmp_path):
    examples = NER.read(write(tmp_path / "eng.testa", CONLL_2003), labelled=True)
    assert examples.words == [["EU", "rejects", "German"], ["Peter", "Blackburn"], ["BRUSSELS", "Paris"]]
    assert examples.tags == [["B-ORG", "O", "B-MISC"], ["B-PER", "I-PER"], ["B-LOC", "B-LOC"]]
    assert examples.document_bounds.tolist() == [0, 2, 3]
    assert examples.scheme == "IOB1"
    assert NER.file(tmp_path, "dev") == tmp_path / "eng.testa"


@pytest.mark.parametrize(
    "text",
    [
        "a\tO\nb\tB-X\n\nc\tO\n",
        "\ufeffa\tO\r\nb\tB-X\r\n\r\nc\tO\r\n",
        "a O  \nb   B-X\n   \n\n\nc O",
        "\n\na\tO\t \nb\tB-X\n\t\nc\tO\n\n\n",
        "-DOCSTART-\na O\nb B-X\n\nc O",
    ],
    ids=["plain", "windows", "spaces", "blank lines", "one document"],
)
def test_variants_of_the_format_give_the_same_sentences(tmp_path, text):
    examples = read_conll(write(tmp_path / "file", text))
    assert examples.words == [["a", "b"], ["c"]]
    assert examples.tags == [["O", "B-X"], ["O"]]
    assert examples.document_bounds.tolist() == [0, 2]


def test_words_may_contain_white_space_that_is_no_separator(tmp_path):
    examples = read_conll(
        write(tmp_path / "file", "New York\tB-LOC\n\u00a0\tO\n\u2028\tO\nx\u0085y\tO\n\tO\n")
    )
    assert examples.words == [["New York", "\u00a0", "\u2028", "x\u0085y", ""]]


@pytest.mark.parametrize("scheme", ["S-X B-Y E-Y", "U-X B-Y L-Y", "I-X I-Y I-Y"])
def test_other_schemes_are_converted_to_iob2(tmp_path, scheme):
    lines = [f"w {tag}" for tag in scheme.split()]
    assert read_conll(write(tmp_path / "file", "\n".join(lines))).tags == [["B-X", "B-Y", "I-Y"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a O\n\nb\n", ", line 3: only one column"),
        ("a\tO\nb\t\n", ", line 2: only one column"),
        ("a N O\n\nb c N O\n", "line 3: 4 columns, but the first line has 3"),
        ("# id 7\na O\n", "line 2: 2 columns, but the first line has 3"),
        ("-DOCSTART- O\n\na O\nb PER\n", "line 4: 'PER' is not the tag of an entity"),
        ("a E-X\n\nb L-X\n", "line 3: L-X here, but E-X before"),
        ("", ": no words in the file"),
        ("-DOCSTART- O\n\n", ": no words in the file"),
    ],
)
def test_malformed_files_are_reported_with_the_line(tmp_path, text, message):
    path = write(tmp_path / "file", text)
    with pytest.raises(DataError) as caught:
        read_conll(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(DataError, match=r"dev\.txt: no such file"):
        NER.read(NER.file(tmp_path, "dev"), labelled=True)


def test_unlabelled_files_may_have_only_words(tmp_path):
    examples = NER.read(write(tmp_path / "test.txt", "a\n\u00a0\n\nc\n"), labelled=False)
    assert (examples.words, examples.tags) == ([["a", "\u00a0"], ["c"]], None)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("train", "train.conll"),
        ("dev", "devel.tsv"),
        ("dev", "valid.txt"),
        ("dev", "testa.txt"),
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a O\nx O\n\nc O\n", "line 2: the word is 'x', but the gold file has 'b'"),
        ("a O\nb O\n", "2 words, but the gold file has 3"),
        ("a O\nb O\n\nc O\nd O\n", "4 words, but the gold file has 3"),
        ("a O\nb\n\nc O\n", ", line 2: only one column"),
        ("a O\nb X\n\nc O\n", "line 2: 'X' is not the tag"),
    ],
)
def test_predictions_for_other_words_are_rejected(tmp_path, text, message):
    examples = sentences([["a", "b"], ["c"]], [["O", "O"], ["O"]], [0, 2])
    with pytest.raises(DataError, match=message):
        NER.read_predictions(examples, write(tmp_path / "file", text))


def test_a_lone_surrogate_is_written_as_its_escape(tmp_path):
    examples = TaggedSentences([["\ud83d", "a"]], [["O", "O"]], np.array([0, 1]))
    NER.write_predictions(examples, [["O", "B-X"]], tmp_path / "predictions")
    assert (tmp_path / "predictions").read_text() == "\\ud83d\tO\tO\na\tO\tB-X\n\n"
    assert NER.read_predictions(examples, tmp_path / "predictions") == [["O", "B-X"]]


def test_predictions_may_be_appended_to_the_gold_columns(tmp_path):
    gold = NER.read(write(tmp_path / "gold", CONLL_2003), labelled=True)
    columns = "\n".join(f"{line} O" if line else "" for line in CONLL_2003.splitlines())
    predictions = NER.read_predictions(gold, write(tmp_path / "predictions", columns))
    assert predictions == [["O"] * 3, ["O"] * 2, ["O"] * 2]


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
