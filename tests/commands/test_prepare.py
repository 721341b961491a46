"""`bertie prepare`: the tokenizer and the corpus may be inside the folder of the text."""

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import bertie
from bertie.base.errors import DataError, SettingsError
from bertie.commands.main import app
from bertie.corpus import preparation
from bertie.corpus.prepared import Corpus
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary


def test_tokenizer_and_corpus_in_the_text_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("All is well.")
    Tokenizer(Vocabulary([*SPECIAL_TOKENS, "all", "is", "well", "."])).save(tmp_path / "tokenizer")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/.lock").touch()  # left by a run that was killed
    arguments = ["prepare", tmp_path, "--tokenizer", tmp_path / "tokenizer", "--out", tmp_path / "corpus"]
    result = CliRunner().invoke(app, [*map(str, arguments), "--workers", "1"])
    assert result.exit_code == 0, result.output
    assert Corpus.open(tmp_path / "corpus").manifest.train.documents == 1
    assert "preparing documents: 1/1 kB  " in result.stderr


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """The arguments of a run that reads `text`, for a corpus `corpus`."""
    Tokenizer(Vocabulary([*SPECIAL_TOKENS, "all", "is", "well", "."])).save(tmp_path / "tokenizer")
    names = [
        "prepare",
        tmp_path / "text",
        "--tokenizer",
        tmp_path / "tokenizer",
        "--out",
        tmp_path / "corpus",
    ]
    (tmp_path / "text").mkdir()
    return [*map(str, names), "--workers", "1"]


def test_language_must_be_a_code(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "text" / "a.txt").write_text("All is well.")
    result = CliRunner().invoke(app, [*arguments, "--language", "german"])
    assert isinstance(result.exception, SettingsError)
    assert "language german: not an ISO 639-1 code; did you mean de? " in str(result.exception)
    assert CliRunner().invoke(app, [*arguments, "--language", "de"]).exit_code == 0


@pytest.mark.parametrize("name", ["a.csv", "b.tsv.gz"])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_rows_of_tables_are_documents(tmp_path: Path, arguments: list[str], name: str, workers: str) -> None:
    rows = ["1,All is well.", '2,"All is.\nWell."', "3,", "4,All is well."]
    text = "\n".join(["label,body", *rows])
    data = text.encode() if name == "a.csv" else gzip.compress(text.replace(",", "\t").encode())
    (tmp_path / "text" / name).write_bytes(data)
    (tmp_path / "text" / "c.txt").write_text("Is all well.")
    command = [*arguments[:-1], workers, "--column", "body", "--held-out", "0"]
    assert CliRunner().invoke(app, command).exit_code == 0
    manifest = Corpus.open(tmp_path / "corpus").manifest
    assert (manifest.train.documents, manifest.train.sentences) == (3, 4)
    assert (manifest.duplicates_dropped, manifest.empty_documents_dropped) == (1, 1)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_advice_about_a_missing_column_works(tmp_path: Path, arguments: list[str], name: str) -> None:
    if name == "a.csv":
        (tmp_path / "text" / name).write_text("label,body\n1,All is well.\n")
    else:
        table = pyarrow.table({"label": [1], "body": ["All is well."]})
        pyarrow.parquet.write_table(table, tmp_path / "text" / name)
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, SettingsError)
    assert str(result.exception).endswith(
        "the columns are label, body; choose one with --column NAME (column='NAME')"
    )
    assert CliRunner().invoke(app, [*arguments, "--column", "body"]).exit_code == 0


def test_missing_held_out_documents_are_reported_with_advice_that_works(
    tmp_path: Path, arguments: list[str]
) -> None:
    for i in range(40):
        (tmp_path / "text" / f"{i}.txt").write_text("All is well. " * (i + 1))
    result = CliRunner().invoke(app, [*arguments, "--held-out", "0"])
    assert "warning: no held-out documents, which pretrain needs" in result.stderr
    shutil.rmtree(tmp_path / "corpus")
    result = CliRunner().invoke(app, [*arguments, "--held-out", "0.2"])
    assert "no held-out documents" not in result.stderr
    assert Corpus.open(tmp_path / "corpus").manifest.held_out.documents > 0


def test_advice_about_a_single_document_works(tmp_path: Path, arguments: list[str]) -> None:
    lines = "".join("All is well. " * (i % 40 + i // 40) + "\n" for i in range(400))
    (tmp_path / "text" / "book.txt").write_text(lines)
    result = CliRunner().invoke(app, arguments)
    advice = re.search("`(split .*) FILE`", result.stderr)
    assert advice
    subprocess.run([*advice[1].split(), "book.txt"], cwd=tmp_path / "text", check=True)
    (tmp_path / "text" / "book.txt").unlink()
    result = CliRunner().invoke(app, [*arguments, "--force"])
    assert "no held-out documents" not in result.stderr
    assert Corpus.open(tmp_path / "corpus").manifest.held_out.documents > 0


def test_empty_inputs_are_one_line(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "text" / "a.txt").touch()
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, DataError)
    assert "a.txt: the file holds no text" in str(result.exception)
    assert not (tmp_path / "corpus").exists()
    with pytest.raises(DataError, match="no inputs"):
        bertie.prepare([], tokenizer=tmp_path / "tokenizer", out=tmp_path / "corpus")


def test_interrupted_run_resumes(
    tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text" / "a.txt").write_text("All is well.")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "assign_documents", interrupt)
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 130
    kept = f"bertie: stopped; finished parts are kept in {tmp_path / 'corpus'}; run the same command again to"
    assert result.stderr.splitlines()[-1].startswith(kept)
    assert CliRunner().invoke(app, arguments).exit_code == 0
