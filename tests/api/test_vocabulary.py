"""`bertie.learn_vocabulary` and `bertie.prepare`: results in Python, and what they refuse."""

from pathlib import Path

import pytest

import bertie

TEXT = "the thin thief thought that this was the other thing " * 3


@pytest.fixture
def text() -> Path:
    path = Path("text.txt")
    path.write_text(TEXT)
    return path


def test_vocabulary_without_out_writes_nothing(text):
    tokenizer = bertie.learn_vocabulary(text, size=60, workers=1)
    assert list(Path().iterdir()) == [text]
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("the thing").input_ids)
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")
    written = bertie.learn_vocabulary([text], "tokenizer", size=60, workers=1)
    assert written.fingerprint == tokenizer.fingerprint
    assert bertie.Tokenizer.load("tokenizer").fingerprint == tokenizer.fingerprint


def test_vocabulary_keeps_case_if_asked(text):
    text.write_text(TEXT.title())
    assert bertie.learn_vocabulary(text, size=60, cased=True, workers=1).vocabulary.tokens.count("T") == 1


def test_prepare_returns_the_corpus(text, capsys):
    bertie.learn_vocabulary(text, "tokenizer", size=60, workers=1)
    corpus = bertie.prepare(str(text), tokenizer="tokenizer", out="corpus", held_out=0, workers=1)
    assert corpus.manifest.train.documents == 1
    assert "training: 1 documents" in capsys.readouterr().err


def test_missing_input_is_a_data_error():
    with pytest.raises(bertie.DataError, match=r"nowhere\.txt"):
        bertie.learn_vocabulary("nowhere.txt", workers=1)


def test_model_directory_is_not_overwritten(text, model):
    with pytest.raises(bertie.DataError, match="holds other files than a tokenizer that bertie wrote"):
        bertie.learn_vocabulary(text, model, workers=1, force=True)


def test_tokenizer_is_overwritten_only_with_force(text):
    bertie.learn_vocabulary(text, "tokenizer", size=60, workers=1)
    with pytest.raises(bertie.SettingsError, match="tokenizer: exists already; choose another name"):
        bertie.learn_vocabulary(text, "tokenizer", size=50, workers=1)
    smaller = bertie.learn_vocabulary(text, "tokenizer", size=50, workers=1, force=True)
    assert bertie.Tokenizer.load("tokenizer").fingerprint == smaller.fingerprint
