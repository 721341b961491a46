"""`bertie.learn_vocabulary` and `bertie.prepare`: results in Python, and what they refuse."""

import os
from functools import partial
from pathlib import Path

import datasets
import pandas as pd
import pytest

import bertie
from bertie.api import vocabulary
from bertie.base.files import read_json
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

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


def test_inputs_may_be_an_iterator(text):
    learned = bertie.learn_vocabulary(text, size=60, workers=1)
    written = bertie.learn_vocabulary(iter([text]), "tokenizer", size=60, workers=1)
    assert written.fingerprint == learned.fingerprint
    Path("more.txt").write_text("thing there the thinner " * 9)
    words = Path().glob("more*")
    extended = bertie.extend_tokenizer("tokenizer", words, "extended", add=1, workers=1)
    assert len(extended.vocabulary) == len(learned.vocabulary) + 1


def test_vocabulary_keeps_case_if_asked(text):
    text.write_text(TEXT.title())
    assert bertie.learn_vocabulary(text, size=60, cased=True, workers=1).vocabulary.tokens.count("T") == 1


def test_prepare_returns_the_corpus(text, capsys):
    bertie.learn_vocabulary(text, "tokenizer", size=60, workers=1)
    corpus = bertie.prepare(str(text), tokenizer="tokenizer", out="corpus", held_out=0, workers=1)
    assert corpus.manifest.train.documents == 1
    assert "training: 1 document, " in capsys.readouterr().err


def test_missing_input_is_a_data_error():
    with pytest.raises(bertie.DataError, match=r"nowhere\.txt"):
        bertie.learn_vocabulary("nowhere.txt", workers=1)


@pytest.mark.parametrize("extends", [False, True])
def test_a_text_that_changes_while_it_is_read_is_a_data_error(text, monkeypatch, extends):
    tokenizer = bertie.learn_vocabulary(text, "tokenizer", size=60, workers=1)
    name = "count_tokenized_words" if extends else "count_words"
    count = getattr(vocabulary, name)

    def cut_and_count(*arguments):
        os.truncate(text, 20)
        return count(*arguments)

    monkeypatch.setattr(vocabulary, name, cut_and_count)
    learn = partial(bertie.learn_vocabulary, text, "tokenizer", size=60, force=True)
    extend = partial(bertie.extend_tokenizer, "tokenizer", text, "extended", add=1)
    with pytest.raises(bertie.DataError, match=r"text\.txt: changed while it was read; wait until"):
        (extend if extends else learn)(workers=1)
    assert not Path("extended").exists()
    assert bertie.Tokenizer.load("tokenizer").fingerprint == tokenizer.fingerprint


def test_a_text_in_place_of_a_path_is_a_data_error():
    for out in (None, "tokenizer"):
        with pytest.raises(bertie.DataError, match=r"^'The cat sat.*: too long for a path; write the text"):
            bertie.learn_vocabulary("The cat sat. " * 99, out, workers=1)


def test_a_table_in_place_of_a_path_is_to_be_written_to_a_file():
    table = {"text": ["The cat sat."], "path": ["a.txt"]}
    frame = pd.DataFrame(table)
    advice = r"got \w+; write the table to a \.csv, \.jsonl or \.parquet file, and pass the file$"
    for inputs in (table, frame, frame.to_dict("records"), datasets.Dataset.from_dict(table)):
        for learn in (bertie.learn_vocabulary, partial(bertie.prepare, tokenizer="x", out="y")):
            with pytest.raises(bertie.DataError, match=advice):
                learn(inputs, workers=1)


def test_empty_string_is_not_the_current_folder(text):
    for inputs in ("", [text, ""]):
        with pytest.raises(bertie.DataError, match=r"inputs\[\d\]: expected a path, got an empty string"):
            bertie.learn_vocabulary(inputs, size=60, workers=1)


def test_model_directory_is_not_overwritten(text, model):
    with pytest.raises(bertie.DataError, match="holds other files than a tokenizer that bertie wrote"):
        bertie.learn_vocabulary(text, model, workers=1, force=True)


def test_tokenizer_is_overwritten_only_with_force(text):
    bertie.learn_vocabulary(text, "tokenizer", size=60, workers=1)
    with pytest.raises(bertie.SettingsError, match="tokenizer: exists already; choose another name"):
        bertie.learn_vocabulary(text, "tokenizer", size=50, workers=1)
    smaller = bertie.learn_vocabulary(text, "tokenizer", size=50, workers=1, force=True)
    assert bertie.Tokenizer.load("tokenizer").fingerprint == smaller.fingerprint


TERMS = "the thin cytokine and the cytokines of the other chemokines " * 3


def test_extended_tokenizer_keeps_ids_and_options(text):
    bertie.learn_vocabulary(text, "small", size=60, cased=True, workers=1)
    words = bertie.Tokenizer.load("small").vocabulary
    letters = {f"{prefix}{letter}" for letter in TERMS if letter != " " for prefix in ("", "##")}
    words = Vocabulary([*words.tokens, *sorted(letters - {*words.tokens}), "[E1]", "IL-2"])
    old = bertie.Tokenizer(
        words, lowercase=False, strip_accents=True, added_tokens=("[E1]",), never_split=("IL-2",)
    )
    old.save("old", model_max_length=77)
    text.write_text(TERMS + "[E1] IL-2 " * 3)
    new = bertie.extend_tokenizer("old", text, "new", add=3, workers=1)
    assert new.vocabulary.tokens[: len(old.vocabulary)] == old.vocabulary.tokens
    assert len(new.vocabulary) == len(old.vocabulary) + 3
    assert bertie.Tokenizer.load("new").fingerprint == new.fingerprint
    assert new.replace(vocabulary=old.vocabulary).fingerprint == old.fingerprint
    assert read_json(Path("new/tokenizer_config.json"))["model_max_length"] == 77
    assert (
        bertie.extend_tokenizer("old/vocab.txt", text, add=3, workers=1).vocabulary.tokens[-3] == "cytokine"
    )


@pytest.fixture
def letters() -> list[str]:
    """The tokens of old.txt: the letters of `TERMS`."""
    letters = sorted({*TERMS} - {" "})
    tokens = ["[PAD]", "[unused0]", "[unused1]", *SPECIAL_TOKENS[1:], *letters, *(f"##{x}" for x in letters)]
    Path("old.txt").write_text("\n".join(tokens))
    return tokens


def test_unused_entries_are_filled_or_the_error_says_how_many(text, letters):
    text.write_text(TERMS)
    with pytest.raises(bertie.SettingsError) as refused:
        bertie.extend_tokenizer("old.txt", text, add=3, fill_unused=True, workers=1)
    assert str(refused.value) == (
        "old.txt: has 2 entries [unusedN], fewer than 3; add at most 2, or append the new entries, without "
        "fill_unused (--fill-unused)"
    )
    filled = bertie.extend_tokenizer("old.txt", text, add=2, fill_unused=True, workers=1).vocabulary
    appended = bertie.extend_tokenizer("old.txt", text, add=3, workers=1).vocabulary
    assert filled.tokens == (letters[0], *appended.tokens[-3:-1], *letters[3:])


def test_too_many_entries_are_fewer_and_counted(text, letters, capsys):
    text.write_text("cytokine chemokines chin Ω " * 2)
    new = bertie.extend_tokenizer("old.txt", text, add=500, workers=1)
    assert new.vocabulary.tokens[len(letters) :] == ("chemokines", "cytokine", "chin")
    assert capsys.readouterr().err.splitlines()[1:] == [
        "8 words, 4 unique; 3 new entries lower the tokens per word from 5.750 to 1.000",
        "25.00% of the words remain [UNK]; no characters are added",
        "fewer than 500 entries: no others save tokens in this text",
    ]
    text.write_text("the chin")
    with pytest.raises(
        bertie.DataError, match="no entry would save tokens: no two adjacent tokens of a word"
    ):
        bertie.extend_tokenizer("old.txt", text, add=500, workers=1)


def test_extending_never_replaces_an_input(text, model):
    bertie.learn_vocabulary(text, "old", size=60, workers=1)
    with pytest.raises(bertie.SettingsError, match="old: would replace the input old; choose another name"):
        bertie.extend_tokenizer("old", text, "old", add=1, workers=1, force=True)
    with pytest.raises(bertie.SettingsError, match="add = 0: nothing to learn; use 1 or more"):
        bertie.extend_tokenizer("old", text, add=0, workers=1)
    with pytest.raises(bertie.ModelError, match=r"vocab\.txt"):
        bertie.extend_tokenizer(".", text, add=1)
    with pytest.raises(bertie.DataError, match="holds other files than a tokenizer that bertie wrote"):
        bertie.extend_tokenizer("old", text, model, add=1, workers=1, force=True)
