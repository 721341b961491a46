"""`bertie features`: every format of input, every layer, one row for each text."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tests.inference.small_models import save_small

import bertie
from bertie.commands import features as command
from bertie.commands.main import main

TEXTS = ["the cat sat on mats", "", "Paris, rings!", "a cat. " * 60]


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return save_small(tmp_path_factory.mktemp("models"), "pre-training")


@pytest.fixture
def run(directory, capsys):
    """Return a function that runs the command in this process, and returns its exit status and stderr."""

    def run(*arguments: object) -> tuple[int, str]:
        sys.argv = ["bertie", "features", str(directory), *map(str, arguments)]
        with pytest.raises(SystemExit) as exit_status:
            main()
        captured = capsys.readouterr()
        assert captured.out == ""
        return exit_status.value.code or 0, captured.err

    return run


def write_inputs(folder: Path) -> dict[str, list[object]]:
    """Write the same texts in every format; return the names of the files, and the options they need."""
    (folder / "in.txt").write_text("\n".join(TEXTS))
    (folder / "in.jsonl").write_text("".join(json.dumps({"id": 1, "body": text}) + "\n" for text in TEXTS))
    (folder / "in.csv").write_text("body,id\n" + "".join(f'"{text}",1\n' for text in TEXTS))
    pyarrow.parquet.write_table(pyarrow.table({"body": TEXTS}), folder / "in.parquet")
    column = ["--column", "text=body"]
    return {"in.txt": [], "in.jsonl": column, "in.csv": column, "in.parquet": column}


def test_every_input_format_gives_the_same_rows(run, directory, tmp_path):
    expected = bertie.load(directory).features(TEXTS, [0, -1])
    for name, options in write_inputs(tmp_path).items():
        output = tmp_path / f"{name}.parquet"
        done = run("--input", tmp_path / name, *options, "--layers", "0,-1", "--out", output)
        assert done[0] == 0
        assert re.fullmatch(rf"features: {len(TEXTS)} texts  .* in 0:\d\d\n", done[1])
        table = pyarrow.parquet.read_table(output)
        assert table.column_names == ["tokens", "layer_0", "layer_2"]
        assert table.num_rows == len(TEXTS)
        for i, row in enumerate(table.to_pylist()):
            first, end = expected.bounds[i : i + 2]
            assert row["tokens"] == expected.tokens[first:end]
            for column, vectors in zip(("layer_0", "layer_2"), expected[i].vectors, strict=True):
                np.testing.assert_allclose(np.array(row[column]).reshape(vectors.shape), vectors, atol=1e-5)


def test_chunk_size_does_not_change_the_vectors(run, directory, tmp_path, monkeypatch):
    write_inputs(tmp_path)
    options = ["--input", tmp_path / "in.txt", "--words", "--combine", "sum", "--layers=-2,-1"]
    options += ["--weights", "0.5,2"]
    assert run(*options, "--out", tmp_path / "whole.parquet")[0] == 0
    monkeypatch.setattr(command, "CHUNK_BYTES", 16 * 4 * 20)  # 20 vectors, so 20 characters
    assert run(*options, "--out", tmp_path / "chunks.parquet")[0] == 0
    whole, chunks = (
        pyarrow.parquet.ParquetFile(tmp_path / f"{name}.parquet") for name in ("whole", "chunks")
    )
    assert (whole.num_row_groups, chunks.num_row_groups) == (1, 2)
    assert whole.schema_arrow == chunks.schema_arrow
    for row, other in zip(whole.read().to_pylist(), chunks.read().to_pylist(), strict=True):
        assert row["words"] == other["words"]
        np.testing.assert_allclose(row["combined"], other["combined"], atol=1e-5)
    features = bertie.load(directory).features(TEXTS, [-2, -1], words=True)
    for row, (first, second) in zip(whole.read().to_pylist(), (f.vectors for f in features), strict=True):
        weighted = 0.5 * first + 2 * second
        np.testing.assert_allclose(np.array(row["combined"]).reshape(weighted.shape), weighted, atol=1e-5)


def test_conll_words_are_read_in_their_document(run, directory, tmp_path, monkeypatch):
    (tmp_path / "in.conll").write_text("the O\ncats O\n\nin O\nParis B-LOC\n\n-DOCSTART- O\n\nsat O\n\n")
    monkeypatch.setattr(command, "CHUNK_BYTES", 1)
    output = tmp_path / "out.arrow"
    done = run("--input", tmp_path / "in.conll", "--out", output, "--float16")
    assert done[0] == 0
    table = pyarrow.ipc.open_stream(output.read_bytes()).read_all()
    assert table["words"].to_pylist() == [["the", "cats"], ["in", "Paris"], ["sat"]]
    assert "halffloat" in str(table.schema.field("layer_2").type)
    document, separate = bertie.load(directory).features(["the cats in paris", "sat"], words=True)
    expected = [document.vectors[0, :2], document.vectors[0, 2:], separate.vectors[0]]
    for vectors, row in zip(expected, table["layer_2"].to_pylist(), strict=True):
        np.testing.assert_allclose(np.array(row), vectors, atol=2e-3)


def test_pooling_gives_one_vector_for_each_text(run, directory, tmp_path):
    write_inputs(tmp_path)
    output = tmp_path / "out.parquet"
    assert run("--input", tmp_path / "in.txt", "--pool", "mean", "--out", output)[0] == 0
    rows = pyarrow.parquet.read_table(output)["layer_2"].to_pylist()
    expected = bertie.load(directory).features(TEXTS)
    assert rows[1] is None
    for i in (0, 2, 3):
        np.testing.assert_allclose(rows[i], expected[i].vectors[0].mean(0), atol=1e-5)


def test_other_columns_are_not_read(run, tmp_path):
    damaged = pyarrow.array([b"\xff", b"\xff"]).view("string")  # not UTF-8
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"], "name": damaged}), tmp_path / "in.parquet")
    output = tmp_path / "out.parquet"
    assert run("--input", tmp_path / "in.parquet", "--out", output)[0] == 0
    assert pyarrow.parquet.read_table(output).num_rows == 2


def test_empty_input_gives_columns_without_rows(run, tmp_path):
    (tmp_path / "in.jsonl").write_text("")
    output = tmp_path / "out.parquet"
    options = ["--layers=-2,-1", "--combine", "concat"]
    assert run("--input", tmp_path / "in.jsonl", "--out", output, *options)[0] == 0
    table = pyarrow.parquet.read_table(output)
    assert (table.column_names, table.num_rows) == (["tokens", "combined"], 0)
    assert table.schema.field("combined").type.value_type.list_size == 32


BAD = {
    "output": (["--out", "out.csv"], "--out out.csv: unknown format; name it .parquet or .arrow"),
    "layers": (["--layers", "0;1"], "--layers 0;1: give numbers separated by commas"),
    "a layer": (["--layers", "3"], "layer 3: not in this model; choose from 0, the embeddings, to 2"),
    "weights": (
        ["--weights", "1"],
        "weighted sum of layers; pass --combine sum (combine='sum') or omit",
    ),
    "empty weights": (
        ["--layers", "0,1", "--combine", "sum", "--weights", ""],
        "--weights : give numbers separated by commas",
    ),
    "two columns": (
        ["--column", "text=a", "--column", "text=b"],
        "--column text=b: text has the column 'a' already; omit one",
    ),
    "column": (["--column", "txt=a"], "--column txt=a: expected NAME=COLUMN with NAME one of text"),
    "standard input": (["--input", "-", "--format", "conll"], "cannot be read from standard input"),
    "no file": (["--input", "nowhere.txt"], "nowhere.txt: no such file"),
    "a damaged row": (["--input", "in.jsonl"], "in.jsonl, line 2: 1 in column"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_no_output(run, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("a")
    Path("in.jsonl").write_text('{"text": "a"}\n{"text": 1}\n')
    before = set(tmp_path.iterdir())
    options, message = BAD[case]
    status, err = run("--input", "in.txt", "--out", "out.parquet", *options)
    assert (status, err.count("\n")) == (2, 1)
    assert message in err
    assert set(tmp_path.iterdir()) == before
