"""`bertie embed`: the model's own vector for each row, in the order of the input."""

import gzip
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tests.inference.small_models import save_small

import bertie
from bertie.base.errors import DataError
from bertie.commands.main import main
from bertie.inference import embedding_files
from bertie.inference.predictor import Predictor
from bertie.model.formats.directory import LongTexts

TEXTS = ["the cat sat on mats", "", "Paris, rings!", "a cat. " * 60, " ", "mat"]
FILLED = [0, 2, 3, 5]


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    """Run `bertie embed ARGUMENTS` in this process; return its exit status, stdout and stderr."""
    sys.argv = ["bertie", "embed", *map(str, arguments)]
    with pytest.raises(SystemExit) as exit_status:
        main()
    captured = capsys.readouterr()
    return exit_status.value.code or 0, captured.out, captured.err


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return save_small(tmp_path_factory.mktemp("models"), "encoder")


def write_inputs(folder: Path) -> dict[str, list[object]]:
    """Write the same texts in every format; return the names of the files, and the options they need."""
    rows = list(enumerate(TEXTS))
    (folder / "in.txt").write_text("\n".join(TEXTS))
    (folder / "in.jsonl").write_text("".join(json.dumps({"id": i, "body": text}) + "\n" for i, text in rows))
    (folder / "in.csv").write_text("id,body\n" + "".join(f'{i},"{text}"\n' for i, text in rows))
    ids = pyarrow.array(range(len(TEXTS)), pyarrow.int16())
    pyarrow.parquet.write_table(pyarrow.table({"id": ids, "body": TEXTS}), folder / "in.parquet")
    column = ["--column", "text=body"]
    return {"in.txt": [], "in.jsonl": column, "in.csv": column, "in.parquet": column}


def read_vectors(file: Path) -> list[list[float] | None]:
    """Return the vectors in a file of any format; None for a row without one."""
    if file.suffix == ".npy":
        return [None if np.isnan(row).all() else row.tolist() for row in np.load(file)]
    if file.suffix == ".jsonl":
        return [json.loads(line)["embedding"] for line in file.read_text().splitlines()]
    return pyarrow.parquet.read_table(file)["embedding"].to_pylist()


@pytest.mark.parametrize("method", ["head-tail", "windows"])
def test_embed_truncates_the_ends_whatever_the_classifier_reads(capsys, tmp_path, method):
    path = save_small(tmp_path, "classifier", long_texts=LongTexts(method=method))
    assert run(capsys, path, "--text", "a cat. " * 60)[2].endswith("whose ends are ignored: 1\n")


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".jsonl"])
@pytest.mark.parametrize("chunk_rows", [1, 4, 2048])
def test_every_row_has_the_models_vector(directory, capsys, tmp_path, monkeypatch, suffix, chunk_rows):
    monkeypatch.setattr(embedding_files, "CHUNK_ROWS", chunk_rows)
    expected = bertie.load(directory).embed([TEXTS[i] for i in FILLED])
    for name, options in write_inputs(tmp_path).items():
        output = tmp_path / f"{name}-out{suffix}"
        status, out, err = run(capsys, directory, "--input", tmp_path / name, *options, "--out", output)
        assert (status, out) == (0, ""), err
        assert err.splitlines()[-1] == "embedding: blank texts, which have no vector: 2"
        vectors = read_vectors(output)
        assert [i for i, vector in enumerate(vectors) if vector is not None] == FILLED
        np.testing.assert_allclose(np.array([vectors[i] for i in FILLED]), expected, atol=1e-5)


def test_other_columns_are_kept(directory, capsys, tmp_path):
    for name, options in write_inputs(tmp_path).items():
        for suffix in (".parquet", ".jsonl"):
            output = tmp_path / f"{name}-out{suffix}"
            assert run(capsys, directory, "--input", tmp_path / name, *options, "--out", output)[0] == 0
            if suffix == ".parquet":
                table = pyarrow.parquet.read_table(output)
                rows = table.to_pylist()
                assert name != "in.parquet" or table.schema.field("id").type == pyarrow.int16()
                assert table.schema.field("embedding").type == pyarrow.list_(pyarrow.float32(), 16)
            else:
                rows = [json.loads(line) for line in output.read_text().splitlines()]
            assert [row["text" if name == "in.txt" else "body"] for row in rows] == TEXTS
            if name != "in.txt":
                assert [int(row["id"]) for row in rows] == [*range(len(TEXTS))]
            assert list(rows[0])[-1] == "embedding"


@pytest.mark.parametrize("folder", [b"x:y", b"caf\xe9"])
def test_any_path_is_read_and_written(directory, capsys, tmp_path, monkeypatch, folder):
    """Even one that looks like a URL, or is not UTF-8."""
    monkeypatch.chdir(tmp_path)
    path = Path(os.fsdecode(folder))
    path.mkdir()
    (path / "in.jsonl").write_text('{"text": "mat"}\n')
    for source, output in (("in.jsonl", "middle.parquet"), ("middle.parquet", "out.npy")):
        arguments = ["--input", path / source, "--out", path / output]
        assert run(capsys, directory, *arguments)[0] == 0
    assert len(np.load(path / "out.npy")) == 1


def test_json_lines_hold_the_exact_vectors(directory, capsys):
    status, out, _ = run(capsys, directory, "--text", "the cat", "--text", "mat")
    assert status == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["text"] for row in rows] == ["the cat", "mat"]
    vectors = np.array([row["embedding"] for row in rows], np.float32)
    np.testing.assert_array_equal(vectors, bertie.load(directory).embed(["the cat", "mat"]))


@pytest.mark.parametrize("options", [["--normalize"], ["--no-normalize"], ["--pooling", "cls"]])
def test_options_override_the_models_choice(directory, capsys, options):
    _, out, _ = run(capsys, directory, "--text", "the cat", *options)
    pooling = "cls" if "cls" in options else None
    expected = bertie.load(directory).embed("the cat", pooling, "--normalize" in options)
    np.testing.assert_allclose(json.loads(out)["embedding"], expected, atol=1e-6)


@pytest.mark.parametrize("source", ["in.jsonl", "in.parquet"])
def test_a_column_embedding_is_not_replaced(directory, capsys, tmp_path, source):
    (tmp_path / "in.jsonl").write_text('{"text": "cat"}\n{"text": "cat", "embedding": [1]}\n')
    pyarrow.parquet.write_table(pyarrow.table({"text": ["cat"], "embedding": [7]}), tmp_path / "in.parquet")
    for output in (tmp_path / "out.parquet", tmp_path / "out.jsonl"):
        status, _, err = run(capsys, directory, "--input", tmp_path / source, "--out", output)
        assert (status, err.count("\n")) == (2, 1)
        assert "column 'embedding' would be replaced by the column of the results; rename or remove it" in err
        assert not output.exists()
    # A .npy file has no columns.
    options = ["--input", tmp_path / source, "--out", tmp_path / "out.npy"]
    assert run(capsys, directory, *options)[0] == 0


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".jsonl"])
def test_an_empty_file_has_no_vectors(directory, capsys, tmp_path, suffix):
    (tmp_path / "in.txt").touch()
    output = tmp_path / f"out{suffix}"
    assert run(capsys, directory, "--input", tmp_path / "in.txt", "--out", output)[0] == 0
    assert read_vectors(output) == []


@pytest.mark.parametrize("name", ["in.csv", "in.tsv.gz"])
def test_a_header_without_rows_keeps_its_columns(directory, capsys, tmp_path, name):
    content = "id\ttext\n".replace("\t", "," if name == "in.csv" else "\t").encode()
    (tmp_path / name).write_bytes(content if name == "in.csv" else gzip.compress(content))
    options = ["--input", tmp_path / name, "--out", tmp_path / "out.parquet"]
    assert run(capsys, directory, *options)[0] == 0
    schema = pyarrow.parquet.read_schema(tmp_path / "out.parquet")
    assert (schema.names, schema.field("id").type) == (["id", "text", "embedding"], pyarrow.string())


@pytest.mark.parametrize("suffix", [".NPY", ".Parquet", ".JSONL"])
def test_suffixes_may_have_capital_letters(directory, capsys, tmp_path, suffix):
    for output in (tmp_path / f"out{suffix}", tmp_path / f"out{suffix.lower()}"):
        assert run(capsys, directory, *TEXT, "--out", output)[0] == 0
    assert (tmp_path / f"out{suffix}").read_bytes() == (tmp_path / f"out{suffix.lower()}").read_bytes()


TEXT = ["--text", "the cat"]
BAD = {
    "neither": ([], "give either --text or --input"),
    "both": ([*TEXT, "--input", "in.csv"], "give either --text or --input"),
    "suffix": ([*TEXT, "--out", "out.csv"], "--out out.csv: unknown format; name it .npy, .parquet"),
    "existing": ([*TEXT, "--out", "old.npy"], "old.npy: exists already; choose another name, or"),
    "input": (["--input", "in.jsonl", "--out", "in.jsonl", "--force"], "would replace the input"),
    "no column": (
        ["--input", "in.csv"],
        "in.csv, line 2: no column 'text'; the columns are id, a body; choose one of them, such as --column "
        "'text=a body'",
    ),
    "no column of Parquet": (
        ["--input", "in.parquet", "--out", "out.parquet"],
        "in.parquet: no column 'text'; the columns are id, body; choose one of them",
    ),
    "no text": (["--input", "null.jsonl"], "null.jsonl, line 2: column 'text' is empty; fill it in, or"),
    "words": (["--input", "in.conll"], "in.conll: .conll files have words; bertie features writes their"),
    "types": (
        ["--input", "in.jsonl", "--out", "out.parquet"],
        "in.jsonl, line 1 and below: column 'id' holds values of several types",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_with_status_2(directory, capsys, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    Path("old.npy").touch()
    Path("in.csv").write_text("id,a body\n1,the cat\n")
    Path("in.jsonl").write_text('{"id": 1, "text": "a"}\n{"id": "x", "text": "b"}\n')
    Path("null.jsonl").write_text('{"text": "a"}\n{"text": null}\n')
    Path("in.conll").write_text("a O\n")
    pyarrow.parquet.write_table(pyarrow.table({"id": [1], "body": ["cat"]}), "in.parquet")
    before = set(tmp_path.iterdir())
    arguments, message = BAD[case]
    status, out, err = run(capsys, directory, *arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
    assert set(tmp_path.iterdir()) == before


def test_an_error_in_writing_ends_the_progress(directory, capsys, tmp_path, monkeypatch):
    written = []

    def write_one(chunks, path, vector_size, schema):
        written.append(chunks)
        next(chunks)
        raise DataError("the disk is full")

    monkeypatch.setattr(embedding_files, "write_embeddings", write_one)
    write_inputs(tmp_path)
    status, _, err = run(capsys, directory, "--input", tmp_path / "in.txt", "--out", tmp_path / "out.npy")
    assert (status, err) == (2, "bertie: the disk is full\n")
    assert written[0].gi_frame is None  # the generator, which shows the progress, is closed


def test_a_file_that_is_cut_while_it_is_read_has_no_output(directory, capsys, tmp_path, monkeypatch):
    (tmp_path / "in.txt").write_text("cat\n" + "\n" * 100_000)
    embed = Predictor.embed

    def cut_and_embed(*arguments, **options):
        os.truncate(tmp_path / "in.txt", 1000)
        return embed(*arguments, **options)

    monkeypatch.setattr(Predictor, "embed", cut_and_embed)
    status, _, err = run(capsys, directory, "--input", tmp_path / "in.txt", "--out", tmp_path / "out.npy")
    assert (status, list(tmp_path.iterdir())) == (2, [tmp_path / "in.txt"])
    assert err.endswith(
        f"bertie: {tmp_path}/in.txt: changed while it was read; wait until it is complete, then run the "
        f"command again\n"
    )


def test_the_suggested_column_works(directory, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("id,a body\n1,the cat\n")
    _, _, err = run(capsys, directory, "--input", "in.csv")
    option = err.strip().rpartition("--column ")[2].strip("'")
    status, out, _ = run(capsys, directory, "--input", "in.csv", "--column", option)
    assert status == 0
    assert json.loads(out)["a body"] == "the cat"


def test_rows_without_a_text_are_skipped(directory, capsys, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "cat"}\n{"text": null}\nno\n{"text": "mat"}\n')
    pyarrow.parquet.write_table(pyarrow.table({"text": ["cat", None, "mat"]}), tmp_path / "in.parquet")
    for name, count in (("in.jsonl", 2), ("in.parquet", 1)):
        arguments = [directory, "--input", tmp_path / name, "--out", tmp_path / f"{name}.parquet"]
        assert run(capsys, *arguments)[0] == 2
        status, _, err = run(capsys, *arguments, "--on-error", "skip")
        assert status == 0, err
        assert err.splitlines()[-1] == f"rows that were skipped and have no vector: {count}"
        vectors = read_vectors(tmp_path / f"{name}.parquet")
        assert [vector is None for vector in vectors] == [False, True, False]


def test_columns_may_be_null_or_missing_in_the_first_rows(directory, capsys, tmp_path, monkeypatch):
    """The file is read for its columns first; a pipe cannot be read twice."""
    monkeypatch.setattr(embedding_files, "CHUNK_ROWS", 1)
    rows = [
        {"text": None, "label": None, "of": {"a": None}, "score": 1},
        {"text": "cat", "label": "x", "of": {"a": [1]}, "score": 0.5},
        {"text": "mat", "late": True},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "in.jsonl").write_text(lines)
    output = tmp_path / "out.parquet"
    status, _, err = run(
        capsys, directory, "--input", tmp_path / "in.jsonl", "--out", output, "--on-error", "skip"
    )
    assert status == 0, err
    assert err.count("skipped: ") == 1
    names = ["text", "label", "of", "score", "late"]
    assert pyarrow.parquet.read_table(output, columns=names).to_pylist() == [
        {name: row.get(name) for name in names} for row in rows
    ]
    for text, message in (
        (lines, "line 2 and below: column 'text' has values, but the rows before are null there; write a"),
        ('{"text": "a"}\n{"text": "b", "late": 1}\n', "column 'late' is not in the first rows; write a"),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        arguments = ["--input", "-", "--format", "jsonl", "--out", tmp_path / "piped.parquet"]
        status, _, err = run(capsys, directory, *arguments, "--on-error", "skip")
        assert status == 2
        assert message in err
        assert err.endswith("or read a file instead of standard input\n")


def test_columns_of_several_types_are_found_before_the_computation(directory, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(embedding_files, "CHUNK_ROWS", 1)
    (tmp_path / "in.jsonl").write_text('{"id": 1, "text": "a"}\n{"id": "x", "text": "b"}\n')
    monkeypatch.setattr(Predictor, "embed", None)
    arguments = ["--input", tmp_path / "in.jsonl", "--out", tmp_path / "out.parquet"]
    status, _, err = run(capsys, directory, *arguments)
    assert status == 2
    assert "line 2 and below: a column holds values of several types (Unable to merge: Field id has" in err


def test_a_spreadsheet_is_refused(directory, capsys, tmp_path):
    for name in ("a.xlsx", "b.XLS", "c.ods"):
        (tmp_path / name).write_bytes(b"PK")
        status, _, err = run(capsys, directory, "--input", tmp_path / name)
        assert (status, err) == (
            2,
            f"bertie: {tmp_path / name}: a spreadsheet; save it as .csv, in UTF-8, and give that file\n",
        )


def test_skipped_values_of_other_types_are_json_in_parquet(directory, capsys, tmp_path):
    texts = ["cat", 3, None, {"a": ["b"]}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    output = tmp_path / "out.parquet"
    arguments = [directory, "--input", tmp_path / "in.jsonl", "--out", output, "--on-error", "skip"]
    status, _, err = run(capsys, *arguments)
    assert status == 0, err
    assert pyarrow.parquet.read_table(output)["text"].to_pylist() == ["cat", "3", None, '{"a": ["b"]}']
    assert [vector is None for vector in read_vectors(output)] == [False, True, True, True]
