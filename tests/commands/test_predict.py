"""`bertie predict`: every head, every kind of input and output; n rows in, n answers out."""

import csv
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Timer

import pytest
from tests.inference.small_models import MODELS, save_small

import bertie
from bertie.commands import predict as command
from bertie.commands.main import main
from bertie.tasks.ner import NER, read_conll


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `bertie predict ARGUMENTS`, in this process."""
    sys.argv = ["bertie", "predict", *map(str, arguments)]
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    return ended.value.code or 0, captured.out, captured.err


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    for kind in MODELS:
        save_small(directory, kind)
    return directory


def named(answers):
    """Answers as the command's JSON has them."""
    return json.loads(json.dumps([answer._asdict() for answer in answers]))


GIVEN = {
    "masked LM": (["--text", "the [MASK] sat"], {"text": "the [MASK] sat"}),
    "pre-training": (["--text", "the [MASK] sat"], {"text": "the [MASK] sat"}),
    "next sentence": (["--text", "cat", "--pair", "mat"], {"text": "cat", "pair": "mat"}),
    "classifier": (["--text", "cat", "--pair", "mat"], {"text": "cat", "pair": "mat"}),
    "several labels": (["--text", "cat"], {"text": "cat"}),
    "regression": (["--text", "cat"], {"text": "cat"}),
    "tagger": (["--text", "in Paris"], {"text": "in Paris"}),
    "squad-v1": (["--text", "who?", "--pair", "a cat"], {"question": "who?", "context": "a cat"}),
    "squad-v2": (["--text", "who?", "--pair", "a cat"], {"question": "who?", "context": "a cat"}),
    "choices": (["--text", "a", "--pair", "b", "--pair", "c"], {"context": "a", "endings": ["b", "c"]}),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_the_head_decides(models, capsys, tmp_path, kind):
    arguments, asked = GIVEN[kind]
    status, out, err = run(capsys, models / kind, *arguments, "--json", "--top-k", 2)
    assert (status, err) == (0, "")
    row = json.loads(out)
    prediction = row.pop("prediction")
    assert row == asked
    model = bertie.load(models / kind)
    match model.method:
        case "fill_mask":
            assert prediction == [named(guesses) for guesses in model.fill_mask("the [MASK] sat", 2)]
        case "next_sentence":
            assert prediction == model.next_sentence(["cat"], ["mat"])[0]
        case "rate":
            assert prediction == model.rate(["cat"])[0]
        case "classify" if kind == "classifier":
            assert prediction == named(model.classify(["cat"], ["mat"])[0][:2])
        case "classify":
            assert prediction == named(model.classify(["cat"])[0][:2])
        case "tag":
            assert prediction == named(model.tag(["in Paris"])[0])
        case "answer":
            assert prediction == named(model.answer(["who?"], ["a cat"], 2)[0])
        case "choose":
            assert prediction == named(model.choose(["a"], [["b", "c"]])[0])

    # The same from a table, with columns of other names.
    renamed = {f"my {name}": value for name, value in asked.items()}
    (tmp_path / "in.jsonl").write_text(json.dumps({"id": 7, **renamed}) + "\n")
    columns = [option for name in asked for option in ("--column", f"{name}=my {name}")]
    status, out, _ = run(
        capsys, models / kind, "--input", tmp_path / "in.jsonl", *columns, "--json", "--top-k", 2
    )
    assert status == 0
    assert json.loads(out) == {"id": 7, **renamed, "prediction": prediction}

    status, out, _ = run(capsys, models / kind, *arguments, "--top-k", 2)
    assert out.startswith(arguments[1])


def test_a_table_has_all_labels_that_are_likelier_than_not(models, capsys, tmp_path):
    status, _, err = run(
        capsys, models / "several labels", "--text", "Paris", "--top-k", 1, "--output", tmp_path / "a.csv"
    )
    assert status == 0, err
    with (tmp_path / "a.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    (labels,) = bertie.load(models / "several labels").classify(["Paris"])
    likely = [label.label for label in labels if label.score > 0.5]
    assert len(likely) > 1
    assert json.loads(row["prediction"]) == likely


def test_every_line_has_its_answer(models, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "CHUNK", 3)
    lines = ["cat", "", "the cat sat on the mat", "mat", " ", "", "a"]
    (tmp_path / "in.txt").write_text("\n".join(lines))
    expected = bertie.load(models / "classifier").classify(lines)
    status, out, _ = run(capsys, models / "classifier", "--input", tmp_path / "in.txt", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["text"] for row in rows] == lines
    for row, text, labels in zip(rows, lines, expected, strict=True):
        found = [(label["label"], pytest.approx(label["score"], abs=1e-5)) for label in row["prediction"]]
        assert found == ([tuple(label) for label in labels] if text.strip() else [])
    assert status == 0

    output = tmp_path / "folder" / "out.csv"
    status, out, _ = run(capsys, models / "classifier", "--input", tmp_path / "in.txt", "--output", output)
    assert (status, out) == (0, "")
    with output.open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["text"] for row in table] == lines
    assert [row["prediction"] for row in table] == [
        labels[0].label if text.strip() else "" for text, labels in zip(lines, expected, strict=True)
    ]


def test_conll_files_are_tagged_in_their_documents(models, capsys, tmp_path):
    file, output = tmp_path / "in.conll", tmp_path / "out.conll"
    file.write_text("the O\ncat O\n\nin O\nParis B-LOC\n\n-DOCSTART- O\n\nU.S. B-LOC\n\n")
    status, out, _ = run(capsys, models / "tagger", "--input", file, "--output", output)
    assert (status, out) == (0, "")
    gold = read_conll(file)
    tags = NER.read_predictions(gold, output)  # the words are those of the file
    tagged = bertie.load(models / "tagger").tag_words(gold.words, [0, 2, 3])
    assert [list(sentence) for sentence in tags] == [[word.tag for word in words] for words in tagged]
    status, out, _ = run(capsys, models / "tagger", "--input", file)
    assert out == output.read_text()
    status, out, _ = run(capsys, models / "tagger", "--input", file, "--json")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"words": list(words), "prediction": named(answers)}
        for words, answers in zip(gold.words, tagged, strict=True)
    ]


def test_plain_tags_are_of_each_word(capsys, tmp_path):
    directory = save_small(tmp_path, "tagger", labels=("NOUN", "VERB", "ADJ", "ADV", "DET"))
    (words,) = bertie.load(directory).tag_words(["the cat"])
    status, out, _ = run(capsys, directory, "--text", "the cat", "--json")
    assert (status, json.loads(out)["prediction"]) == (0, named(words))
    status, out, _ = run(capsys, directory, "--text", "the cat")
    assert [line.split()[1:] for line in out.splitlines()[1:]] == [[word.tag, word.word] for word in words]


def test_the_words_of_texts_in_columns(models, capsys, tmp_path):
    (tmp_path / "in.txt").write_text("cats, cats\n\nin Paris\n")
    output = tmp_path / "out.conll"
    status, _, _ = run(capsys, models / "tagger", "--input", tmp_path / "in.txt", "--output", output)
    assert status == 0
    words = [line.split("\t")[0] for line in output.read_text().split("\n")]
    assert words == ["cats", ",", "cats", "", "", "in", "Paris", "", ""]


def test_half_a_surrogate_pair_comes_out_as_it_came_in(models, capsys, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "a \\ud800 cat"}\n')
    for output in (None, tmp_path / "out.jsonl"):
        arguments = ["--input", tmp_path / "in.jsonl", *(["--output", output] if output else ["--json"])]
        status, out, _ = run(capsys, models / "classifier", *arguments)
        assert status == 0
        assert json.loads(output.read_text() if output else out)["text"] == "a \ud800 cat"


def test_standard_input_streams_and_a_closed_pipe_ends_quietly(models):
    """The first answers come while standard input is still open."""
    arguments = ["predict", models / "classifier", "--input", "-", "--format", "jsonl", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "bertie.commands.main", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        alarm = Timer(60, process.kill)  # waiting for what never comes would last for ever
        alarm.start()
        for number in range(command.CHUNK):
            process.stdin.write(b'{"text": "cat", "number": %d}\n' % number)
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["number"] == 0
        process.stdout.close()
        with suppress(BrokenPipeError):
            process.stdin.write(b'{"text": "cat"}\n' * command.CHUNK)
            process.stdin.close()
        assert process.stderr.read() == b""
        alarm.cancel()


TEXT = ["--text", "the cat"]
BAD = {
    "nothing": ("classifier", [], "give either --text or --input"),
    "too much": ("classifier", [*TEXT, "--input", "in.txt"], "give either --text or --input"),
    "pair without text": ("classifier", ["--input", "in.txt", "--pair", "a"], "--column pair=COLUMN"),
    "pair for a tagger": ("tagger", [*TEXT, "--pair", "a"], "reads one text at a time"),
    "two pairs": ("classifier", [*TEXT * 3, "--pair", "a", "--pair", "b"], "2 --pair for 3 --text"),
    "no context": ("squad-v1", TEXT, "--text is the question; give the context with --pair"),
    "no endings": ("choices", TEXT, "--text is the context; give the endings with --pair"),
    "no head": ("encoder", TEXT, "an encoder without a head"),
    "no mask": ("masked LM", TEXT, "--text 1: no [MASK] in it"),
    "no mask in a line": ("masked LM", ["--input", "in.txt"], "in.txt: line 3: no [MASK] in it"),
    "output": ("classifier", [*TEXT, "--output", "out.doc"], "--output out.doc: name it .jsonl"),
    "tags of a classifier": ("classifier", [*TEXT, "--output", "out.conll"], "this model can classify"),
    "conll for a classifier": ("classifier", ["--input", "in.conll"], "this model can classify"),
    "conll from standard input": ("tagger", ["--input", "-", "--format", "conll"], "give a file"),
    "unknown column": (
        "classifier",
        ["--input", "in.csv", "--column", "txt=a"],
        "NAME=COLUMN with text, pair",
    ),
    "missing column": ("classifier", ["--input", "in.csv"], "in.csv: line 2: no column 'text'; name another"),
    "no number": ("classifier", ["--input", "in.jsonl"], "in.jsonl: line 2: 1 in the column 'text'"),
    "no file": ("classifier", ["--input", "nowhere.csv"], "nowhere.csv: no such file"),
    "questions in a text": ("squad-v1", ["--input", "in.txt"], "plain text has no columns for question"),
    "one column of conll": ("tagger", ["--input", "in.txt", "--format", "conll"], "line 3"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_answered_is_one_line_and_status_2(models, capsys, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("[MASK]\n\nthe cat\n")
    Path("in.csv").write_text("id,body\n1,a\n")
    Path("in.jsonl").write_text('{"text": "a"}\n{"text": 1}\n')
    Path("in.conll").write_text("a O\n")
    before = set(tmp_path.iterdir())
    kind, arguments, message = BAD[case]
    if "--output" not in arguments:
        arguments = [*arguments, "--output", "out.jsonl"]
    status, out, err = run(capsys, models / kind, *arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
    assert set(tmp_path.iterdir()) == before
