"""`bertie predict`: every head, every format of input and output, one result for each row."""

import csv
import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Timer

import numpy as np
import pyarrow.parquet
import pytest
from tests.inference import small_models
from tests.inference.small_models import CONFIG, MODELS, TOKENIZER, save_small

import bertie
from bertie.commands import predict as command
from bertie.commands.main import main
from bertie.inference.writers import as_json
from bertie.model.formats.directory import LongTexts, ModelMetadata
from bertie.model.formats.weights import save_model
from bertie.model.heads import LanguageModel
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.conll import read_conll
from bertie.tasks.custom.classification import CustomClassification
from bertie.tasks.evaluation import compute_logits
from bertie.tasks.ner import NER


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    """Run `bertie predict ARGUMENTS` in this process; return its exit status, stdout and stderr."""
    sys.argv = ["bertie", "predict", *map(str, arguments)]
    with pytest.raises(SystemExit) as exit_status:
        main()
    captured = capsys.readouterr()
    return exit_status.value.code or 0, captured.out, captured.err


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    for kind in MODELS:
        save_small(directory, kind)
    return directory


def as_printed(results):
    """Return results as in the command's JSON output."""
    return json.loads(json.dumps(as_json(results)))


INPUTS = {
    "masked LM": (["--text", "the [MASK] sat"], {"text": "the [MASK] sat"}),
    "pre-training": (["--text", "the [MASK] sat"], {"text": "the [MASK] sat"}),
    "next sentence": (["--text", "cat", "--pair", "mat"], {"text": "cat", "pair": "mat"}),
    "classifier": (["--text", "cat", "--pair", "mat"], {"text": "cat", "pair": "mat"}),
    "multi-label": (["--text", "cat"], {"text": "cat"}),
    "regression": (["--text", "cat"], {"text": "cat"}),
    "tagger": (["--text", "in Paris"], {"text": "in Paris"}),
    "squad-v1": (["--text", "who?", "--pair", "a cat"], {"question": "who?", "context": "a cat"}),
    "squad-v2": (["--text", "who?", "--pair", "a cat"], {"question": "who?", "context": "a cat"}),
    "choices": (["--text", "a", "--pair", "b", "--pair", "c"], {"context": "a", "endings": ["b", "c"]}),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_every_head_predicts_from_options_and_tables(models, capsys, tmp_path, kind):
    arguments, row = INPUTS[kind]
    status, out, err = run(capsys, models / kind, *arguments, "--json", "--top-k", 2)
    assert (status, err) == (0, "")
    printed = json.loads(out)
    prediction = printed.pop("prediction")
    assert printed == row
    model = bertie.load(models / kind)
    match model.method:
        case "fill_mask":
            assert prediction == as_printed(model.fill_mask("the [MASK] sat", 2))
        case "next_sentence":
            assert prediction == model.next_sentence("cat", "mat")
        case "regress":
            assert prediction == model.regress("cat")
        case "classify" if kind == "classifier":
            assert prediction == as_printed(model.classify("cat", "mat", top_k=2))
        case "classify":
            assert prediction == as_printed(model.classify("cat", top_k=2))
        case "tag":
            assert prediction == as_printed(model.tag("in Paris"))
        case "answer":
            assert prediction == as_printed(model.answer("who?", "a cat", 2))
        case "choose":
            assert prediction == as_printed(model.choose("a", ["b", "c"]))

    # A table whose columns have other names gives the same results.
    renamed = {f"my {name}": value for name, value in row.items()}
    (tmp_path / "in.jsonl").write_text(json.dumps({"id": 7, **renamed}) + "\n")
    columns = [option for name in row for option in ("--column", f"{name}=my {name}")]
    status, out, _ = run(
        capsys, models / kind, "--input", tmp_path / "in.jsonl", *columns, "--json", "--top-k", 2
    )
    assert status == 0
    assert json.loads(out) == {"id": 7, **renamed, "prediction": prediction}

    status, out, _ = run(capsys, models / kind, *arguments, "--top-k", 2)
    assert out.startswith(arguments[1])


def test_table_has_every_label_above_one_half(models, capsys, tmp_path):
    status, _, err = run(
        capsys, models / "multi-label", "--text", "Paris", "--top-k", 1, "--out", tmp_path / "a.csv"
    )
    assert status == 0, err
    with (tmp_path / "a.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    labels = bertie.load(models / "multi-label").classify("Paris")
    likely = [label.label for label in labels if label.score > 0.5]
    assert len(likely) > 1
    assert json.loads(row["prediction"]) == likely


def test_every_line_has_a_result(models, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "CHUNK", 3)
    lines = ["cat", "", "the cat sat on the mat", "mat", " ", "", "a"]
    (tmp_path / "in.txt").write_text("\n".join(lines))
    expected = bertie.load(models / "classifier").classify(lines)
    status, out, _ = run(capsys, models / "classifier", "--input", tmp_path / "in.txt", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["text"] for row in rows] == lines
    for row, text, labels in zip(rows, lines, expected, strict=True):
        labels_with_scores = [
            (label["label"], pytest.approx(label["score"], abs=1e-5)) for label in row["prediction"]
        ]
        assert labels_with_scores == (
            [(label.label, label.score) for label in labels] if text.strip() else []
        )
    assert status == 0

    output = tmp_path / "folder" / "out.csv"
    status, out, _ = run(capsys, models / "classifier", "--input", tmp_path / "in.txt", "--out", output)
    assert (status, out) == (0, "")
    with output.open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["text"] for row in table] == lines
    assert [row["prediction"] for row in table] == [
        labels[0].label if text.strip() else "" for text, labels in zip(lines, expected, strict=True)
    ]


def test_conll_sentences_are_tagged_in_their_documents(models, capsys, tmp_path):
    file, output = tmp_path / "in.conll", tmp_path / "out.conll"
    file.write_text("the O\ncat O\n\nin O\nParis B-LOC\n\n-DOCSTART- O\n\nU.S. B-LOC\n\n")
    status, out, _ = run(capsys, models / "tagger", "--input", file, "--out", output)
    assert (status, out) == (0, "")
    gold = read_conll(file)
    tags = NER.read_predictions(gold, output)  # raises if the words differ
    tagged = bertie.load(models / "tagger").tag_words(gold.words, [0, 2, 3])
    assert [list(sentence) for sentence in tags] == [[word.tag for word in words] for words in tagged]
    status, out, _ = run(capsys, models / "tagger", "--input", file)
    assert out == output.read_text()
    status, out, _ = run(capsys, models / "tagger", "--input", file, "--json")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"words": list(words), "prediction": as_printed(results)}
        for words, results in zip(gold.words, tagged, strict=True)
    ]


def test_plain_tags_are_shown_for_each_word(capsys, tmp_path):
    directory = save_small(tmp_path, "tagger", labels=("NOUN", "VERB", "ADJ", "ADV", "DET"))
    words = bertie.load(directory).tag_words("the cat")
    status, out, _ = run(capsys, directory, "--text", "the cat", "--json")
    assert (status, json.loads(out)["prediction"]) == (0, as_printed(words))
    status, out, _ = run(capsys, directory, "--text", "the cat")
    assert [line.split()[1:] for line in out.splitlines()[1:]] == [[word.tag, word.word] for word in words]


def test_conll_output_of_plain_text(models, capsys, tmp_path):
    (tmp_path / "in.txt").write_text("cats, cats\n\nin Paris\n")
    output = tmp_path / "out.conll"
    status, _, _ = run(capsys, models / "tagger", "--input", tmp_path / "in.txt", "--out", output)
    assert status == 0
    words = [line.split("\t")[0] for line in output.read_text().split("\n")]
    assert words == ["cats", ",", "cats", "", "", "in", "Paris", "", ""]


def test_unpaired_surrogate_is_preserved(models, capsys, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "a \\ud800 cat"}\n')
    for output in (None, tmp_path / "out.jsonl"):
        arguments = ["--input", tmp_path / "in.jsonl", *(["--out", output] if output else ["--json"])]
        status, out, _ = run(capsys, models / "classifier", *arguments)
        assert status == 0
        assert json.loads(output.read_text() if output else out)["text"] == "a \ud800 cat"


@pytest.mark.parametrize(
    ("name", "content", "header"),
    [
        ("in.csv", "id,text\n", "id,text,prediction,score"),
        ("in.tsv", "score\ttext\n", "score,text,prediction,prediction_score"),
        ("in.jsonl", "", "text,prediction,score"),
        ("in.txt", "", "text,prediction,score"),
        ("in.parquet", None, "id,text,prediction,score"),
    ],
)
def test_a_table_without_rows_has_a_header(models, capsys, tmp_path, name, content, header):
    if content is None:
        table = pyarrow.table({"id": pyarrow.array([], "int64"), "text": pyarrow.array([], "string")})
        pyarrow.parquet.write_table(table, tmp_path / name)
    else:
        (tmp_path / name).write_text(content)
    for suffix, lines in ((".csv", [header]), (".tsv", [header.replace(",", "\t")]), (".jsonl", [])):
        out = tmp_path / f"out{suffix}"
        assert run(capsys, models / "classifier", "--input", tmp_path / name, "--output", out)[0] == 0
        assert out.read_text().splitlines() == lines


def test_standard_input_streams_and_closed_output_is_silent(models):
    """The first results are printed while standard input is still open; the status is 141."""
    arguments = ["predict", models / "classifier", "--input", "-", "--format", "jsonl", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "bertie.commands.main", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        alarm = Timer(60, process.kill)  # if a line never comes
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
    assert process.returncode == 128 + signal.SIGPIPE


def test_tables_are_read_by_the_columns_of_fine_tuning(capsys, tmp_path):
    """An option overrides them."""
    kind = save_small(tmp_path, "classifier", input_columns={"text": "review", "pair": "reply"})
    model = bertie.load(kind)
    (tmp_path / "in.csv").write_text("id,review,reply,title\n1,the cat,sat,Paris\n")
    for arguments, expected in (
        (["in.csv"], model.classify("the cat", "sat")),
        (["in.csv", "--column", "text=title"], model.classify("Paris", "sat")),
    ):
        name, *options = arguments
        status, out, err = run(capsys, kind, "--input", tmp_path / name, *options, "--json")
        assert status == 0, err
        assert json.loads(out)["prediction"] == as_printed(expected)


def test_plain_text_has_no_columns(capsys, tmp_path):
    kind = save_small(tmp_path, "classifier", input_columns={"text": "review"})
    (tmp_path / "in.txt").write_text("the cat\n")
    status, out, err = run(capsys, kind, "--input", tmp_path / "in.txt", "--json")
    assert status == 0, err
    assert json.loads(out)["prediction"] == as_printed(bertie.load(kind).classify("the cat"))


def test_the_suggestion_for_a_missing_column_works(capsys, tmp_path):
    kind = save_small(tmp_path, "classifier", input_columns={"text": "review"})
    (tmp_path / "in.csv").write_text("id,text\n1,the cat\n")
    status, _, err = run(capsys, kind, "--input", tmp_path / "in.csv")
    assert status == 2
    assert "no column 'review'; the columns are id, text; choose one of them" in err
    options = err.strip().rpartition("such as ")[2].split()
    assert run(capsys, kind, "--input", tmp_path / "in.csv", *options)[0] == 0


def test_rows_that_cannot_be_answered_are_skipped(models, capsys, tmp_path):
    lines = ["the [MASK] sat", None, "no mask", "[MASK] " * 200, 7, "", "a [MASK]"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    arguments = [models / "masked LM", "--input", tmp_path / "in.jsonl", "--json"]
    status, out, err = run(capsys, *arguments, "--on-error", "skip")
    assert status == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["text"] for row in rows] == lines
    assert [bool(row["prediction"]) for row in rows] == [True, *[False] * 5, True]
    assert err.splitlines()[-1] == "rows that were skipped and have no answer: 4"
    assert [f"in.jsonl, line {number}: " in err for number in (1, 2, 3, 4, 5, 6)] == [0, 1, 1, 1, 1, 0]
    assert run(capsys, *arguments)[0] == 2


def test_a_short_model_answers_all_but_too_long_questions(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(small_models, "CONFIG", CONFIG.model_copy(update={"max_position_embeddings": 64}))
    rows = [{"question": question, "context": "paris is here"} for question in ("who?", "who? " * 50, "who?")]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [save_small(tmp_path, "squad-v1"), "--input", tmp_path / "in.jsonl", "--json"]
    status, out, err = run(capsys, *arguments, "--on-error", "skip")
    assert status == 0
    assert [bool(json.loads(line)["prediction"]) for line in out.splitlines()] == [True, False, True]
    assert "in.jsonl, line 2: the question 'who? who? " in err
    assert "with 64 tokens and 3 special tokens, leaves no room for its context in max_seq_length=64" in err
    assert run(capsys, *arguments)[0] == 2


def test_questions_are_read_from_squads_json(models, capsys, tmp_path):
    pairs = [("q1", "who?"), ("q2", "who sat?")]
    paragraph = {"context": "a cat sat", "qas": [{"id": name, "question": text} for name, text in pairs]}
    path = tmp_path / "dev.json"
    path.write_text(json.dumps({"data": [{"title": "Cats", "paragraphs": [paragraph]}]}))
    status, out, _ = run(capsys, models / "squad-v1", "--input", path, "--json")
    model = bertie.load(models / "squad-v1")
    assert status == 0
    assert [json.loads(line) for line in out.splitlines()] == [
        {
            "id": name,
            "question": question,
            "context": "a cat sat",
            "prediction": as_printed(model.answer(question, "a cat sat", 5)),
        }
        for name, question in pairs
    ]
    (tmp_path / "rows.json").write_text(json.dumps([{"question": "who?", "context": "a cat sat"}]))
    status, _, err = run(capsys, models / "squad-v1", "--input", tmp_path / "rows.json")
    assert (status, err.count("\n")) == (2, 1)
    assert "rows of a table; write each on a line of a .jsonl file" in err


TEXT = ["--text", "the cat"]
NOT_A_TAGGER = "classifier: .conll needs a model that tags words, but this model's method is classify"
BAD = {
    "neither": ("classifier", [], "give either --text or --input"),
    "both": ("classifier", [*TEXT, "--input", "in.txt"], "give either --text or --input"),
    "pair without text": ("classifier", ["--input", "in.txt", "--pair", "a"], "--column pair=COLUMN"),
    "pair for a tagger": ("tagger", [*TEXT, "--pair", "a"], "reads one text at a time"),
    "two pairs": ("classifier", [*TEXT * 3, "--pair", "a", "--pair", "b"], "2 --pair for 3 --text"),
    "no context": ("squad-v1", TEXT, "--text is the question; give the context with --pair"),
    "no endings": ("choices", TEXT, "--text is the context; give the endings with --pair"),
    "no head": (
        "encoder",
        TEXT,
        "encoder: an encoder without a head, which fine-tuning adds; to get its vectors, run bertie embed ",
    ),
    "no mask": ("masked LM", TEXT, "--text 1: no [MASK] in 'the cat'"),
    "no mask in a line": ("masked LM", ["--input", "in.txt"], "in.txt, line 3: no [MASK] in 'the cat'"),
    "output": (
        "classifier",
        [*TEXT, "--out", "out.doc"],
        "out.doc: unknown format; name it .jsonl",
    ),
    "tags of a classifier": ("classifier", [*TEXT, "--out", "out.conll"], NOT_A_TAGGER),
    "conll for a classifier": ("classifier", ["--input", "in.conll"], NOT_A_TAGGER),
    "conll from standard input": ("tagger", ["--input", "-", "--format", "conll"], "give a file"),
    "unknown column": (
        "classifier",
        ["--input", "in.csv", "--column", "txt=a"],
        "expected NAME=COLUMN with NAME one of text, pair",
    ),
    "missing column": (
        "classifier",
        ["--input", "in.csv"],
        "in.csv, line 2: no column 'text'; the columns are id, body",
    ),
    "questions for a classifier": ("classifier", ["--input", "in.json"], ".json file is not a table"),
    "no number": ("classifier", ["--input", "in.jsonl"], "in.jsonl, line 2: 1 in column 'text'"),
    "no file": ("classifier", ["--input", "nowhere.csv"], "nowhere.csv: no such file"),
    "questions in a text": ("squad-v1", ["--input", "in.txt"], "plain text cannot have the columns question"),
    "one column of conll": ("tagger", ["--input", "in.txt", "--format", "conll"], "line 3"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_with_status_2(models, capsys, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("[MASK]\n\nthe cat\n")
    Path("in.csv").write_text("id,body\n1,a\n")
    Path("in.jsonl").write_text('{"text": "a"}\n{"text": 1}\n')
    Path("in.conll").write_text("a O\n")
    before = set(tmp_path.iterdir())
    kind, arguments, message = BAD[case]
    if "--out" not in arguments:
        arguments = [*arguments, "--out", "out.jsonl"]
    status, out, err = run(capsys, models / kind, *arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
    assert set(tmp_path.iterdir()) == before


def test_advice_quotes_a_folder_with_a_space(models, capsys, tmp_path):
    (tmp_path / "an encoder").symlink_to(models / "encoder")
    _, _, err = run(capsys, tmp_path / "an encoder", *TEXT)
    assert err.endswith(f"run bertie embed '{tmp_path}/an encoder'\n")


def test_the_first_five_skipped_rows_are_shown(models, capsys, tmp_path):
    for count, shown in ((5, 5), (6, 5)):
        lines = ['{"text": "a cat"}', *["no JSON"] * count]
        (tmp_path / "in.jsonl").write_text("\n".join(lines))
        status, _, err = run(
            capsys, models / "classifier", "--input", tmp_path / "in.jsonl", "--on-error", "skip"
        )
        assert (status, err.count("skipped: ")) == (0, shown)
        assert f"rows that were skipped and have no answer: {count}\n" in err


def test_malformed_rows_are_left_out(models, capsys, tmp_path):
    (tmp_path / "in.csv").write_text("id,text\n1,the cat\n2\n3,\n4,mat,mat\n5,a cat\n")
    (tmp_path / "in.jsonl").write_text('{"text": "the cat"}\nmat\n{"text": ""}\n[]\n{"text": "a cat"}\n')
    for name in ("in.csv", "in.jsonl"):
        arguments = [models / "classifier", "--input", tmp_path / name, "--json"]
        status, out, err = run(capsys, *arguments, "--on-error", "skip")
        assert status == 0, err
        rows = [json.loads(line) for line in out.splitlines()]
        assert [row["text"] for row in rows] == ["the cat", "", "a cat"]
        assert [bool(row["prediction"]) for row in rows] == [True, False, True]
        assert err.splitlines()[-1] == "rows that were skipped and have no answer: 2"
        assert run(capsys, *arguments)[0] == 2


def test_conll_sentences_cannot_be_skipped(models, capsys, tmp_path):
    (tmp_path / "in.conll").write_text("the O\ncat O\n")
    arguments = [models / "tagger", "--input", tmp_path / "in.conll"]
    status, _, err = run(capsys, *arguments, "--on-error", "skip")
    assert (status, err.startswith("bertie: --on-error skip: ")) == (2, True)
    assert run(capsys, *arguments)[0] == 0


def test_tagger_without_recorded_columns_reads_words(models, capsys, tmp_path):
    (tmp_path / "words.jsonl").write_text('{"words": ["in", "Paris,"], "text": "a cat"}\n')
    status, out, err = run(capsys, models / "tagger", "--input", tmp_path / "words.jsonl", "--json")
    assert status == 0, err
    (tagged,) = bertie.load(models / "tagger").tag_words([["in", "Paris,"]])
    assert json.loads(out)["prediction"] == as_printed(tagged)


def test_left_to_right_language_model_is_named(capsys, tmp_path):
    config = CONFIG.model_copy(update={"is_decoder": True})
    metadata = ModelMetadata(config, "BertLMHeadModel", (), TOKENIZER)
    save_model(tmp_path / "lm", LanguageModel(config), metadata, "card")
    status, _, err = run(capsys, tmp_path / "lm", "--text", "the cat")
    assert status == 2
    assert err.startswith(f"bertie: {tmp_path / 'lm'}: a left-to-right language model, with which bertie")


def test_tagger_reads_the_words_of_fine_tuning(capsys, tmp_path):
    """A file without the column has texts; an option overrides both."""
    kind = save_small(tmp_path, "tagger", input_columns={"words": "tokens"})
    model = bertie.load(kind)
    words = ["in", "Paris,", "U.S."]
    rows = [{"tokens": words, "text": "a cat"}, {"tokens": [], "text": "the"}]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "in Paris"}) + "\n")
    (tmp_path / "counts.jsonl").write_text("tokens,text\n2,in Paris\n")  # csv has no lists
    for name, options, expected in (
        ("words", [], [*model.tag_words([words]), []]),
        ("words", ["--column", "words=tokens"], [*model.tag_words([words]), []]),
        ("words", ["--column", "text=text"], model.tag(["a cat", "the"])),
        ("texts", [], model.tag(["in Paris"])),
        ("counts", ["--format", "csv"], model.tag(["in Paris"])),
    ):
        status, out, err = run(capsys, kind, "--input", tmp_path / f"{name}.jsonl", *options, "--json")
        assert status == 0, err
        predictions = [json.loads(line)["prediction"] for line in out.splitlines()]
        assert predictions == [as_printed(results) for results in expected]
    assert run(capsys, kind, "--input", tmp_path / "words.jsonl")[1].startswith("in Paris, U.S.\n")
    status, _, err = run(capsys, kind, "--input", tmp_path / "texts.jsonl", "--column", "words=text")
    assert status == 2
    assert "'in Paris' in column 'text' is not a list of words" in err


def test_truncated_texts_are_counted(models, capsys):
    long = "word " * 1000
    texts = ("--text", long, "--text", "word")
    note = "texts longer than 128 tokens, whose ends are ignored: 1"
    code, _, err = run(capsys, models / "classifier", *texts)
    assert code == 0
    assert err.endswith(
        f"{note}; to read them whole, fine-tune with --set long_texts=windows (long_texts='windows')\n"
    )
    # Contrastive training cannot train on windows.
    assert run(capsys, models / "mean classifier", *texts)[2].endswith(f"{note}\n")
    for kind, *options in (("classifier", "--pair", "a"), ("next sentence", "--pair", "a")):
        assert run(capsys, models / kind, *texts, *options)[2].endswith(f"{note}\n")


def test_a_model_of_windows_truncates_nothing(capsys, tmp_path):
    how = LongTexts(method="windows", stride=60)
    path = save_small(tmp_path, "classifier", long_texts=how)
    words = ["cat", "sat", "mat"] * 60
    code, out, err = run(capsys, path, "--text", " ".join(words), "--json")
    assert (code, err) == (0, "")
    windows = [" ".join(words[start : start + 126]) for start in (0, 54)]
    model = bertie.load(save_small(tmp_path / "truncating", "classifier"))
    inputs = CustomClassification().encode(LabelledTexts(windows), model.tokenizer, 128)
    logits = compute_logits(model.engine, inputs).mean(axis=0)
    probabilities = np.exp(logits) / np.exp(logits).sum()
    scores = {label["label"]: label["score"] for label in json.loads(out)["prediction"]}
    assert scores == pytest.approx(dict(zip(model.labels, probabilities.tolist(), strict=True)), abs=1e-5)
    assert run(capsys, path, "--text", "cat", "--pair", "mat")[2].endswith("or give no second texts\n")


@pytest.mark.parametrize("name", ["prediction", "prediction_score"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_a_column_of_the_user_is_not_replaced(models, capsys, tmp_path, name, suffix):
    (tmp_path / "in.csv").write_text(f"text,score,{name}\nthe cat,7,mine\n")
    output = tmp_path / f"out{suffix}"
    arguments = [models / "classifier", "--input", tmp_path / "in.csv", "--out", output]
    status, _, err = run(capsys, *arguments)
    if name == "prediction_score" and suffix == ".jsonl":  # the scores are inside `prediction`
        assert json.loads(output.read_text())[name] == "mine"
        return
    assert (status, err.count("\n")) == (2, 1)
    assert f"in.csv, line 2: column {name!r} would be replaced by the column of the results; rename" in err
    assert not output.exists()


def test_a_column_of_a_later_row_is_not_replaced(models, capsys, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "the cat"}\n{"text": "mat", "score": 7}\n')
    arguments = [models / "classifier", "--input", tmp_path / "in.jsonl"]
    status, _, err = run(capsys, *arguments, "--out", tmp_path / "out.csv")
    assert status == 2
    assert "in.jsonl, line 2: column 'score' would be replaced" in err
    assert run(capsys, *arguments, "--json")[0] == 0


@pytest.mark.parametrize("kind", ["classifier", "regression"])
def test_a_model_of_pairs_refuses_single_texts(capsys, tmp_path, kind):
    directory = save_small(tmp_path, kind, input_columns={"text": "a", "pair": "b"})
    (tmp_path / "in.txt").write_text("the cat\n")
    for arguments in (["--text", "the cat"], ["--input", tmp_path / "in.txt", "--on-error", "skip"]):
        expected = (
            "bertie: the model was fine-tuned on pairs of texts; give the second text too (--pair, or "
            "--column pair=NAME for a table; pair=… or pairs=… in Python)\n"
        )
        assert run(capsys, directory, *arguments) == (2, "", expected)
    assert run(capsys, directory, "--text", "the cat", "--pair", "sat")[0] == 0


@pytest.mark.parametrize("kind", ["classifier", "regression"])
def test_a_model_of_single_texts_refuses_pairs(capsys, tmp_path, kind):
    directory = save_small(tmp_path, kind, input_columns={"text": "a"})
    advice = "leave out the second text (--pair, pair=…, pairs=…)"
    expected = f"bertie: the model was fine-tuned on single texts; {advice}\n"
    assert run(capsys, directory, "--text", "the cat", "--pair", "sat") == (2, "", expected)
    assert run(capsys, directory, "--text", "the cat")[0] == 0
