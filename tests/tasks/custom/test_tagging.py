"""Custom sentences with tags: tables and files in CoNLL format, plain tags, and errors in rows."""

import itertools

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tasks.custom.tables import write

from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.tasks.conll import TaggedSentences
from bertie.tasks.custom.tagging import CustomTagging

SENTENCES = {"words": [["Ada", "Lovelace", "wrote"], ["London"]], "tags": [["B-P", "I-P", "O"], ["B-L"]]}


def test_tags_are_read_from_tables_and_conll_files(tmp_path):
    for suffix in (".jsonl", ".parquet"):
        path = write(tmp_path / f"a{suffix}", SENTENCES)
        task = CustomTagging()
        examples = task.read(path, labelled=True)
        assert (examples.words, examples.tags) == (SENTENCES["words"], SENTENCES["tags"])
        assert examples.document_bounds.tolist() == [0, 1, 2]
        task = task.fitted(examples)
        assert (task.labels, task.main_metric) == (("O", "B-L", "B-P", "I-P"), "f1")
        assert task.read(path, labelled=False).tags is None
    for name in ("a.txt", "a.tsv"):
        (tmp_path / name).write_text("Ada\tB-P\nwrote\tO\n")
        assert CustomTagging().read(tmp_path / name, labelled=True).tags == [["B-P", "O"]]


def test_tags_of_tables_can_be_written_to_files(tmp_path):
    (tmp_path / "a.jsonl").write_text(r'{"words": ["a", "b", "c"], "tags": ["B-x\ty", "B-\ud800", "O"]}')
    examples = CustomTagging().read(tmp_path / "a.jsonl", labelled=True)
    assert examples.tags == [["B-x y", r"B-\ud800", "O"]]
    CustomTagging().write_predictions(examples, examples.tags, tmp_path / "predictions.conll")
    assert CustomTagging().read_predictions(examples, tmp_path / "predictions.conll") == examples.tags


PARTS_OF_SPEECH = [["PROPN", "PROPN", "VERB"], ["PROPN"]]


def write_tags(tmp_path, name, tags, words=SENTENCES["words"]):
    if name.endswith(".jsonl"):
        return write(tmp_path / name, {"words": words, "tags": tags})
    lines = [zip(*sentence, strict=True) for sentence in zip(words, tags, strict=True)]
    (tmp_path / name).write_text("\n\n".join("\n".join(map("\t".join, rows)) for rows in lines))
    return tmp_path / name


@pytest.mark.parametrize("suffix", [".jsonl", ".txt"])
def test_plain_tags_do_not_mix_with_tags_of_entities(tmp_path, suffix):
    path = write_tags(tmp_path, f"train{suffix}", PARTS_OF_SPEECH)
    examples = CustomTagging().read(path, labelled=True)
    assert (examples.tags, examples.scheme) == (PARTS_OF_SPEECH, "plain")
    task = CustomTagging().fitted(examples)
    assert (task.labels, task.main_metric) == (("PROPN", "VERB"), "accuracy")
    assert CustomTagging().with_labels(["VERB", "PROPN"]).main_metric == "accuracy"

    dev = task.read(write_tags(tmp_path, f"dev{suffix}", [["NOUN", "VERB", "VERB"], ["VERB"]]), labelled=True)
    task.write_predictions(dev, PARTS_OF_SPEECH, tmp_path / "predictions.conll")
    predictions = task.read_predictions(dev, tmp_path / "predictions.conll")
    assert predictions == PARTS_OF_SPEECH
    assert task.main_metric in task.score(dev, predictions)

    mixed = write_tags(tmp_path, f"mixed{suffix}", [["VERB", "VERB", "VERB"], ["B-PER"]])
    line = 2 if suffix == ".jsonl" else 5
    with pytest.raises(DataError, match=f"line {line}: 'B-PER' is not a plain tag"):
        task.read(mixed, labelled=True)
    with pytest.raises(DataError, match="line 1: 'VERB' is not the tag of an entity"):
        CustomTagging().read(mixed, labelled=True)
    with pytest.raises(DataError, match="line 1: 'PROPN' is not the tag of an entity"):
        CustomTagging().with_labels(["O", "B-PER"]).read(path, labelled=True)
    with pytest.raises(ModelError, match="label 0 does not suit tagging: 'O' is not a plain tag"):
        task.with_labels(["O", "B-PER"])


@pytest.mark.parametrize("suffix", [".jsonl", ".txt"])
def test_tags_unknown_to_training_are_reported_and_scored(tmp_path, capsys, suffix):
    task = CustomTagging().with_labels(["O", "B-L"])
    path = write_tags(tmp_path, f"dev{suffix}", SENTENCES["tags"][::-1], SENTENCES["words"][::-1])
    examples = task.read(path, labelled=True)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"{path}, sentence 2: tags that are not in the training data")
    assert err.endswith(": B-P, I-P\n")
    assert task.score(examples, [["B-L"], ["O", "O", "O"]])["recall"] == 50
    CustomTagging().read(path, labelled=True)  # without labels, no tag is unknown
    assert capsys.readouterr() == ("", "")


def test_training_rejects_tags_that_are_all_the_same(tmp_path):
    for tag in ("O", "NOUN"):
        path = write_tags(tmp_path, "train.txt", [[tag] * 3, [tag]])
        examples = CustomTagging().read(path, labelled=True)
        with pytest.raises(DataError, match=rf"train\.txt: all words have the tag '{tag}'; add"):
            CustomTagging().fitted(examples).check_training(examples, path)


gold_and_predicted = st.lists(st.tuples(st.sampled_from("NVAX"), st.sampled_from("NVA")), min_size=1)


@settings(max_examples=30)  # sklearn takes most of the time
@given(gold_and_predicted, st.data())
def test_scores_of_plain_tags_match_sklearn(pairs, data):
    bounds = sorted({0, len(pairs), data.draw(st.integers(0, len(pairs)))})
    sentences = [pairs[first:end] for first, end in itertools.pairwise(bounds)]
    gold, predicted = ([[pair[i] for pair in sentence] for sentence in sentences] for i in (0, 1))
    examples = TaggedSentences.from_tags(gold, gold, np.array([0, len(gold)]))
    scores = CustomTagging().with_labels("NVA").score(examples, predicted)
    columns = list(zip(*pairs, strict=True))
    assert scores == {
        "accuracy": pytest.approx(100 * sklearn.metrics.accuracy_score(*columns)),
        "f1_macro": pytest.approx(100 * sklearn.metrics.f1_score(*columns, average="macro", zero_division=0)),
    }


@pytest.mark.parametrize(
    ("words", "tags", "message"),
    [
        ([["a"], ["b"]], [["O"], ["O", "O"]], "line 2: 2 tags for 1 word; give one for each"),
        ([["a"], []], [["O"], []], "line 2: no words in the column 'words'; add them or delete the row"),
        ([["a"], ["b"]], [["O"], []], "line 2: no tags in the column 'tags'; add them or delete the row"),
        ([["a"], None], [["O"], ["O"]], "line 2: no words in the column 'words'; add them or"),
        (
            [["a"], "b"],
            [["O"], ["O"]],
            r"line 2: 'b' in the column 'words' is not a list of strings; write one such as \["
            r'"a", "b"\], in a \.jsonl or \.parquet file$',
        ),
        (
            [["a"], ["b", 3]],
            [["O"], ["O", "O"]],
            r"""line 2: \['b', 3\] in the column 'words' is not a list of strings; write one .* "b"\]$""",
        ),
        (
            [["a"], ["b", "c"]],
            [[0], [3, 4]],
            r"line 1: \[0\] in the column 'tags' .*; if they are numbers of tags, replace each by its name",
        ),
        (
            [["a"], ["b", None]],
            [["O"], ["O", "O"]],
            r"line 2: \['b', None\] in the column 'words' .*; item 2 is missing \(pandas reads NA as missing",
        ),
        ([["a", "b"], ["c", "d"]], [["O", "O"], ["O", "P"]], "line 2: 'P' is not the tag of an entity"),
        ([["a"], ["c", "d"]], [["P"], ["O", "O"]], "line 1: 'P' is not the tag of an entity"),
        ([["a"], ["c", "d"]], [["P"], ["P", ""]], "line 2: '' is not a plain tag"),
        ([["a"], ["c", "d"]], [["P"], ["P", " "]], "line 2: ' ' is not a plain tag"),
    ],
)
def test_bad_rows_of_tags_are_reported(tmp_path, words, tags, message):
    path = write(tmp_path / "a.jsonl", {"words": words, "tags": tags})
    with pytest.raises(DataError, match=message):
        CustomTagging().read(path, labelled=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.json", "a .json file is not a table"),
        ("a.xlsx", "a spreadsheet"),
        ("a.conllu", r"write a .conll file with its words .*: grep -E '\^\(.*a\.conllu | cut -f 2,4$"),
    ],
)
def test_files_of_other_formats_are_not_read_as_columns(tmp_path, name, message):
    (tmp_path / name).write_text('{"words": ["a"], "tags": ["O"]}\n{"words": ["b"], "tags": ["B-X"]}\n')
    with pytest.raises(DataError, match=message):
        CustomTagging().read(tmp_path / name, labelled=True)


def test_rows_with_invalid_tags_are_skipped(tmp_path, capsys):
    # The first row is skipped, so its S-A does not make the scheme IOBES.
    tags = [["S-A", "?"], ["B-A", "L-A"], ["O"], ["S-A"], ["NOUN"], ["O", ""], ["O", "U-A"]]
    path = write(tmp_path / "a.jsonl", {"words": [["a"] * len(row) for row in tags], "tags": tags})
    examples = CustomTagging(on_error="skip").read(path, labelled=True)
    assert (examples.tags, examples.scheme) == ([["B-A", "I-A"], ["O"], ["O", "B-A"]], "BILOU")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[2] for line in lines] == [
        f" {path}, line 1: '?' is not the tag of an entity; write O, or B-TYPE and I-TYPE",
        f" {path}, line 4: S-A here, but L-A before; use either IOBES or BILOU",
        f" {path}, line 5: 'NOUN' is not the tag of an entity; write O, or B-TYPE and I-TYPE",
        f" {path}, line 6: '' is not the tag of an entity; write O, or B-TYPE and I-TYPE",
        " skipped 4 of 7 rows",
    ]


def test_missing_columns_of_tags_name_their_options(tmp_path):
    path = write(tmp_path / "a.jsonl", {"words": [["a"]]})
    assert CustomTagging().read(path, labelled=False).words == [["a"]]
    for task, advice in (
        (CustomTagging(), "pass --column tags=NAME"),
        (CustomTagging(words="x"), "pass --column words=NAME --column tags=NAME"),
    ):
        with pytest.raises(SettingsError, match=advice):
            task.read(path, labelled=True)
