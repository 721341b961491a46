"""`bertie prepare`: the tokenizer and the corpus may be inside the folder of the text."""

from pathlib import Path

from typer.testing import CliRunner

from bertie.commands.main import app
from bertie.corpus.shards import Corpus
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary


def test_tokenizer_and_corpus_in_the_text_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("All is well.")
    Tokenizer(Vocabulary([*SPECIAL_TOKENS, "all", "is", "well", "."])).save(tmp_path / "tokenizer")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/.lock").write_text("Left by a run that was killed.")
    arguments = ["prepare", tmp_path, "--tokenizer", tmp_path / "tokenizer", "--out", tmp_path / "corpus"]
    result = CliRunner().invoke(app, [*map(str, arguments), "--workers", "1"])
    assert result.exit_code == 0, result.output
    assert Corpus.open(tmp_path / "corpus").manifest.train.documents == 1
