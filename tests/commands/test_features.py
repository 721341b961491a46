"""`bertie features`: every kind of input, every layer; n rows in, n rows out."""

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
    """Runs the command in this process: its exit status and stderr; it prints nothing."""

    def run(*arguments: object) -> tuple[int, str]:
        sys.argv = ["bertie", "features", str(directory), *map(str, arguments)]
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert captured.out == ""
        return ended.value.code or 0, captured.err

    return run


def write_inputs(folder: Path) -> dict[str, list[object]]:
    """The same texts in every format: the file's name, and what else the command is told."""
    (folder / "in.txt").write_text("\n".join(TEXTS))
    (folder / "in.jsonl").write_text("".join(json.dumps({"id": 1, "body": text}) + "\n" for text in TEXTS))
    (folder / "in.csv").write_text("body,id\n" + "".join(f'"{text}",1\n' for text in TEXTS))
    pyarrow.parquet.write_table(pyarrow.table({"body": TEXTS}), folder / "in.parquet")
    column = ["--column", "text=body"]
    return {"in.txt": [], "in.jsonl": column, "in.csv": column, "in.parquet": column}


def test_every_format_of_input_has_the_same_rows(run, directory, tmp_path):
    expected = bertie.load(directory).features(TEXTS, [0, -1])
    for name, options in write_inputs(tmp_path).items():
        output = tmp_path / f"{name}.parquet"
        done = run("--input", tmp_path / name, *options, "--layers", "0,-1", "--output", output)
        assert done[0] == 0
        assert re.fullmatch(rf"features: {len(TEXTS)} texts  .* in 0:\d\d\n", done[1])
        table = pyarrow.parquet.read_table(output)
        assert table.column_names == ["tokens", "layer_0", "layer_2"]
        assert table.num_rows == len(TEXTS)
        for i, row in enumerate(table.to_pylist()):
            first, end = expected.bounds[i : i + 2]
            assert row["tokens"] == expected.names[first:end]
            for column, vectors in zip(("layer_0", "layer_2"), expected[i], strict=True):
                np.testing.assert_allclose(np.array(row[column]).reshape(vectors.shape), vectors, atol=1e-5)


def test_chunks_change_nothing(run, tmp_path, monkeypatch):
    write_inputs(tmp_path)
    options = ["--input", tmp_path / "in.txt", "--words", "--combine", "sum", "--layers=-2,-1"]
    options += ["--weights", "0.5,2"]
    assert run(*options, "--output", tmp_path / "whole.parquet")[0] == 0
    monkeypatch.setattr(command, "CHUNK_BYTES", 16 * 4 * 20)  # 20 vectors, so 20 characters
    assert run(*options, "--output", tmp_path / "chunks.parquet")[0] == 0
    whole, chunks = (
        pyarrow.parquet.ParquetFile(tmp_path / f"{name}.parquet") for name in ("whole", "chunks")
    )
    assert (whole.num_row_groups, chunks.num_row_groups) == (1, 2)
    assert whole.schema_arrow == chunks.schema_arrow
    for row, other in zip(whole.read().to_pylist(), chunks.read().to_pylist(), strict=True):
        assert row["words"] == other["words"]
        np.testing.assert_allclose(row["combined"], other["combined"], atol=1e-5)


def test_words_of_conll_are_seen_with_their_document(run, directory, tmp_path, monkeypatch):
    (tmp_path / "in.conll").write_text("the O\ncats O\n\nin O\nParis B-LOC\n\n-DOCSTART- O\n\nsat O\n\n")
    monkeypatch.setattr(command, "CHUNK_BYTES", 1)
    output = tmp_path / "out.arrow"
    done = run("--input", tmp_path / "in.conll", "--output", output, "--float16")
    assert done[0] == 0
    table = pyarrow.ipc.open_stream(output.read_bytes()).read_all()
    assert table["words"].to_pylist() == [["the", "cats"], ["in", "Paris"], ["sat"]]
    document, alone = bertie.load(directory).features(["the cats in paris", "sat"], words=True)
    expected = [document[0, :2], document[0, 2:], alone[0]]
    for vectors, found in zip(expected, table["layer_2"].to_pylist(), strict=True):
        np.testing.assert_allclose(np.array(found), vectors, atol=2e-3)


def test_one_vector_for_each_text(run, directory, tmp_path):
    write_inputs(tmp_path)
    output = tmp_path / "out.parquet"
    assert run("--input", tmp_path / "in.txt", "--pool", "mean", "--output", output)[0] == 0
    found = pyarrow.parquet.read_table(output)["layer_2"].to_pylist()
    expected = bertie.load(directory).features(TEXTS)
    assert found[1] is None
    for i in (0, 2, 3):
        np.testing.assert_allclose(found[i], expected[i][0].mean(0), atol=1e-5)


def test_other_columns_are_not_read(run, tmp_path):
    damaged = pyarrow.array([b"\xff", b"\xff"]).view("string")  # no UTF-8
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"], "name": damaged}), tmp_path / "in.parquet")
    output = tmp_path / "out.parquet"
    assert run("--input", tmp_path / "in.parquet", "--output", output)[0] == 0
    assert pyarrow.parquet.read_table(output).num_rows == 2


def test_an_empty_file_has_the_columns_and_no_rows(run, tmp_path):
    (tmp_path / "in.jsonl").write_text("")
    output = tmp_path / "out.parquet"
    options = ["--layers=-2,-1", "--combine", "concat"]
    assert run("--input", tmp_path / "in.jsonl", "--output", output, *options)[0] == 0
    table = pyarrow.parquet.read_table(output)
    assert (table.column_names, table.num_rows) == (["tokens", "combined"], 0)
    assert table.schema.field("combined").type.value_type.list_size == 32


BAD = {
    "output": (["--output", "out.csv"], "--output out.csv: name it .parquet or .arrow"),
    "layers": (["--layers", "0;1"], "--layers 0;1: give numbers with commas between"),
    "a layer": (["--layers", "3"], "layer 3: the model has 0, its embeddings, to 2"),
    "weights": (["--weights", "1"], "weights are for a sum"),
    "column": (["--column", "txt=a"], "--column txt=a: give NAME=COLUMN with text"),
    "standard input": (["--input", "-", "--format", "conll"], "standard input cannot be that"),
    "no file": (["--input", "nowhere.txt"], "nowhere.txt: no such file"),
    "a damaged row": (["--input", "in.jsonl"], "in.jsonl: line 2: 1 in the column"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_done_is_one_line_and_leaves_nothing(run, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("a")
    Path("in.jsonl").write_text('{"text": "a"}\n{"text": 1}\n')
    before = set(tmp_path.iterdir())
    options, message = BAD[case]
    status, err = run("--input", "in.txt", "--output", "out.parquet", *options)
    assert (status, err.count("\n")) == (2, 1)
    assert message in err
    assert set(tmp_path.iterdir()) == before
