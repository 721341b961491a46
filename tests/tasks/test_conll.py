"""Files in CoNLL format: sentences, documents, tags and predictions."""

from pathlib import Path

import numpy as np
import pytest

from bertie.base.errors import DataError
from bertie.tasks.conll import TaggedSentences, read_conll, read_tags, write_tags

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


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def sentences(words: list[list[str]], tags: list[list[str]], document_bounds: list[int]) -> TaggedSentences:
    return TaggedSentences.from_tags(words, tags, np.array(document_bounds))


def test_conll_2003_is_read_and_converted_to_iob2(tmp_path):
    examples = read_conll(write(tmp_path / "eng.testa", CONLL_2003))
    assert examples.words == [["EU", "rejects", "German"], ["Peter", "Blackburn"], ["BRUSSELS", "Paris"]]
    assert examples.tags == [["B-ORG", "O", "B-MISC"], ["B-PER", "I-PER"], ["B-LOC", "B-LOC"]]
    assert examples.document_bounds.tolist() == [0, 2, 3]
    assert examples.scheme == "IOB1"


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
        ("# id 7\na O\n", "line 2: 2 columns, but the first line has 3; delete comments, and if"),
        (
            "word tag\na O\n",
            "line 1: 'tag' is not the tag of an entity; write O, or B-TYPE and I-TYPE; if this is a h",
        ),
        ("a O\nb B- PER\n", "line 2: 3 columns"),
        ("-DOCSTART- O\n\na O\nb PER\n", "line 4: 'PER' is not the tag of an entity"),
        ('{"words": ["a"], "tags": ["O"]}\n', "line 1: JSON; give the file a name that ends in .jsonl"),
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


@pytest.mark.parametrize("header", ["Token\tPOS", "words ner_tags", "form lemma upos"])
def test_a_header_before_plain_tags_is_reported(tmp_path, header):
    columns = len(header.split())
    rows = [["a", "x", "DET"][-columns:], ["b", "x", "NOUN"][-columns:]]
    path = write(tmp_path / "file", "\n".join([header, *map(" ".join, rows)]))
    with pytest.raises(DataError, match=r"line 1: .* is a header; delete it$"):
        read_conll(path, plain=True)


def test_a_word_that_could_be_in_a_header_is_read(tmp_path):
    path = write(tmp_path / "file", "word tag\nof X\n\na tag\n")
    assert read_conll(path, plain=True).tags == [["tag", "X"], ["tag"]]


def test_unlabelled_files_may_have_only_words(tmp_path):
    examples = read_conll(write(tmp_path / "test.txt", "a\n\u00a0\n\nc\n"), labelled=False)
    assert (examples.words, examples.tags) == ([["a", "\u00a0"], ["c"]], None)
    with pytest.raises(DataError, match="line 3: 1 column, but the first line has 2"):
        read_conll(write(tmp_path / "mixed.txt", "a N\n\nb\n"), labelled=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a O\nx O\n\nc O\n", "line 2: the word is 'x', but the gold file has 'b'"),
        ("a O\n", "1 word, but the gold file has 3"),
        ("a O\nb O\n", "2 words, but the gold file has 3"),
        ("a O\nb O\n\nc O\nd O\n", "4 words, but the gold file has 3"),
        ("a O\nb\n\nc O\n", ", line 2: only one column"),
        ("a O\nb X\n\nc O\n", "line 2: 'X' is not the tag"),
    ],
)
def test_predictions_for_other_words_are_rejected(tmp_path, text, message):
    examples = sentences([["a", "b"], ["c"]], [["O", "O"], ["O"]], [0, 2])
    with pytest.raises(DataError, match=message):
        read_tags(examples, write(tmp_path / "file", text), plain=False)


def test_a_lone_surrogate_is_written_as_its_escape(tmp_path):
    examples = TaggedSentences([["\ud83d", "a"]], [["O", "O"]], np.array([0, 1]))
    write_tags(examples, [["O", "B-X"]], tmp_path / "predictions")
    assert (tmp_path / "predictions").read_text() == "\\ud83d\tO\tO\na\tO\tB-X\n\n"
    assert read_tags(examples, tmp_path / "predictions", plain=False) == [["O", "B-X"]]


def test_predictions_may_be_appended_to_the_gold_columns(tmp_path):
    gold = read_conll(write(tmp_path / "gold", CONLL_2003))
    columns = "\n".join(f"{line} O" if line else "" for line in CONLL_2003.splitlines())
    predictions = read_tags(gold, write(tmp_path / "predictions", columns), plain=False)
    assert predictions == [["O"] * 3, ["O"] * 2, ["O"] * 2]
