"""`bertie vocab`: its options, its report of missing characters, and what it refuses to overwrite."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

import bertie
from bertie.base.errors import DataError, SettingsError
from bertie.commands.main import app
from bertie.corpus.word_counts import count_words
from bertie.text.vocabulary import SPECIAL_TOKENS
from bertie.text.wordpiece_trainer import MIN_SIZE, Merges, learn_vocabulary

TEXT = "the thin thief thought that this was the other thing " * 3 + "banana bandana band"


@pytest.mark.parametrize("merges", ["frequency", "likelihood"])
def test_merges_option_selects_the_criterion(tmp_path: Path, merges: Merges) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    arguments = ["vocab", tmp_path / "text.txt", "--out", tmp_path / "out", "--size", 100, "--workers", 1]
    result = CliRunner().invoke(app, [*map(str, arguments), "--merges", merges])
    assert result.exit_code == 0, result.output
    counts = Counter(TEXT.split())
    expected = learn_vocabulary(sorted(counts), [counts[word] for word in sorted(counts)], 100, merges)
    assert (tmp_path / "out" / "vocab.txt").read_text().split() == expected
    other: Merges = "likelihood" if merges == "frequency" else "frequency"
    assert expected != learn_vocabulary(list(counts), counts.values(), 100, other)


def learn(folder: Path, text: str, *options: object) -> Result:
    """Run `bertie vocab --force` on a folder and write the tokenizer into the same folder."""
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text(text)
    arguments = ["vocab", folder, "--out", folder / "out", "--workers", 1, "--force", *options]
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_too_small_a_size_fails_before_words_are_counted(tmp_path: Path, monkeypatch) -> None:
    assert learn(tmp_path, TEXT, "--size", MIN_SIZE).exit_code == 0
    monkeypatch.setattr("bertie.api.vocabulary.count_words", None)
    error = learn(tmp_path, TEXT, "--size", MIN_SIZE - 1).exception
    assert str(error) == "size = 8: too small for a vocabulary; use 9 or more (BERT has 30,522)"


def test_output_inside_the_input_folder_is_not_read(tmp_path: Path) -> None:
    first, second = (learn(tmp_path, TEXT, "--size", 100) for _ in range(2))
    assert first.exit_code == 0
    assert "33 words, 12 unique" in first.stderr
    assert "counting words: 1/1 kB  " in first.stderr
    assert "33 words, 12 unique" in second.stderr


def test_missing_characters_and_unknown_words_are_reported(tmp_path: Path) -> None:
    text = "".join(chr(0x4E00 + index) * (2 if index < 90 else 1) for index in range(120))
    stderr = learn(tmp_path, text, "--size", 500, "--alphabet", 90).stderr
    expected = "the vocabulary lacks 30 rare characters, so 14.29% of the words become [UNK]; to "
    assert f"{expected}include all, pass --alphabet 120 --size 500 (alphabet=120, size=500)" in stderr
    assert "fewer than 500 entries: there are no more pairs to merge" in stderr
    assert "rare characters" not in learn(tmp_path, text, "--size", 500).stderr
    one = learn(tmp_path, text, "--size", 500, "--alphabet", 119).stderr
    assert "the vocabulary lacks 1 rare character, so 0.48% of" in one
    limited_by_size = learn(tmp_path, text, "--size", 400, "--alphabet", 120).stderr
    assert "--size 485 (alphabet=120, size=485)\n" in limited_by_size
    assert "rare characters" not in learn(tmp_path, text, "--size", 485, "--alphabet", 120).stderr


def test_words_that_are_too_long_for_the_tokenizer_are_reported(tmp_path: Path) -> None:
    text = f"{TEXT} {'ประเทศไทยเป็นรัฐ' * 10}\n"  # Thai, which has no spaces between words
    stderr = learn(tmp_path, text, "--size", 100).stderr
    expected = "2.94% of the words have more than 100 characters and become [UNK]; if the text has no spaces "
    assert f"{expected}between words, insert them\n" in stderr
    assert "rare characters" not in stderr
    assert "more than 100 characters" not in learn(tmp_path, TEXT, "--size", 100).stderr


def test_a_model_directory_is_not_overwritten(tmp_path: Path) -> None:
    assert learn(tmp_path, TEXT, "--size", 100).exit_code == 0
    (tmp_path / "out/config.json").write_text("{}")
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    result = learn(tmp_path, TEXT, "--size", 120)
    assert isinstance(result.exception, DataError)
    assert "holds other files than a tokenizer" in str(result.exception)
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before


GERMAN = "Alle Menschen sind frei und gleich an Würde geboren. Über Übung. "


def config(folder: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((folder / "tokenizer_config.json").read_text())
    return content


def test_text_decides_whether_the_vocabulary_is_cased(tmp_path: Path) -> None:
    stderr = learn(tmp_path, GERMAN, "--size", 150).stderr
    assert "learning a cased vocabulary: in an uncased one, 27.27% of the words lose accents (" in stderr
    assert "'würde' becomes 'wurde'" in stderr
    assert config(tmp_path / "out")["do_lower_case"] is False
    stderr = learn(tmp_path / "korean", "모든 인간은 자유로우며 " * 3, "--size", 150).stderr
    assert "learning a cased vocabulary: 100% of the words have no upper and lower case; --cased or" in stderr
    stderr = learn(tmp_path / "english", TEXT, "--size", 100).stderr
    assert "learning an uncased vocabulary: text is lower-cased, and no word has accents to lose" in stderr
    assert config(tmp_path / "english" / "out")["do_lower_case"] is True


def test_uncased_is_obeyed_with_a_warning_about_accents(tmp_path: Path) -> None:
    result = learn(tmp_path, GERMAN, "--size", 150, "--uncased")
    assert "warning: in an uncased vocabulary, 27.27% of the words lose accents ('würde'" in result.stderr
    assert config(tmp_path / "out")["do_lower_case"] is True
    assert "learning" not in learn(tmp_path / "c", GERMAN, "--size", 150, "--cased").stderr
    result = learn(tmp_path / "english", TEXT, "--size", 100, "--uncased")
    assert "warning" not in result.stderr


def test_english_gives_the_uncased_vocabulary_without_options(shared_data: Path, tmp_path: Path) -> None:
    with (shared_data / "text" / "wikipedia-small" / "wiki_00").open(encoding="utf-8") as file:
        text = file.read(300_000)
    text = text[: text.rindex("</doc>")] + "</doc>\n"
    assert "uncased vocabulary: text is lower-cased, and 0." in learn(tmp_path, text, "--size", 2000).stderr
    words, counts = count_words([tmp_path / "text.txt"], lowercase=True, workers=1)
    expected = learn_vocabulary(words, counts, 2000)
    assert (tmp_path / "out" / "vocab.txt").read_text().splitlines() == expected


def test_advice_about_the_column_of_a_csv_works(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"label,review\n1,{TEXT}\n")
    arguments = ["vocab", tmp_path / "a.csv", "--out", tmp_path / "out", "--size", 100, "--workers", 1]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert isinstance(result.exception, SettingsError)
    assert str(result.exception).endswith(
        "the columns are label, review; choose one with --column NAME (column='NAME')"
    )
    result = CliRunner().invoke(app, [*map(str, arguments), "--column", "review"])
    assert result.exit_code == 0
    assert "33 words, 12 unique" in result.stderr


@pytest.mark.parametrize("content", [b"", b" \n\n"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_empty_input_is_one_line(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    arguments = ["vocab", path, "--out", tmp_path / "out", "--workers", 1]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert isinstance(result.exception, DataError)
    assert str(result.exception).startswith(f"the inputs contain no words ({path}: the file holds no text;")
    with pytest.raises(DataError, match="no inputs"):
        bertie.learn_vocabulary([])
    assert not (tmp_path / "out").exists()


def test_interrupt_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bertie.api.vocabulary.count_words", interrupt)
    result = learn(tmp_path, TEXT)
    assert result.exit_code == 130
    assert result.stderr == f"bertie: stopped; nothing is in {tmp_path / 'out'} yet; run the command again\n"


def extend(*options: object) -> Result:
    arguments = ["vocab", "text.txt", "--workers", 1, *options]
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_extend_adds_entries_and_reports_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)
    letters = sorted({*TEXT} - {" "})
    Path("old").mkdir()
    old = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]
    Path("old/vocab.txt").write_text("\n".join(old))
    result = extend("--extend", "old", "--add", 2, "--out", "new")
    assert result.exit_code == 0, result.output
    assert result.stdout == "new\n"
    assert "33 words, 12 unique; 2 new entries lower the tokens per word from 4." in result.stderr
    tokens = Path("new/vocab.txt").read_text().split()
    assert tokens[:-2] == old
    result = extend("--extend", "old", "--add", 1000, "--out", "all")
    found = len(Path("all/vocab.txt").read_text().split()) - len(old)
    assert f"; {found} new entries lower the tokens per word from 4." in result.stderr
    assert result.stderr.endswith("fewer than 1,000 entries: no others save tokens in this text\n")
    again = extend("--extend", "old", "--add", 2, "--out", "new")
    advice = "choose another name, or replace it with --force (force=True)"
    assert str(again.exception) == f"new: exists already; {advice}"
    assert extend("--extend", "old", "--add", 2, "--out", "new", "--force").exit_code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--extend", "old"], "--extend needs the number of entries to learn; pass --add N"),
        (["--add", 5], "--add and --fill-unused need a tokenizer to extend; pass --extend DIR"),
        (["--fill-unused"], "--add and --fill-unused need a tokenizer to extend; pass --extend DIR"),
        (
            ["--extend", "old", "--add", 5, "--cased"],
            "--cased: for a new vocabulary only; leave it out with --extend",
        ),
        (
            ["--extend", "nowhere", "--add", 5],
            "nowhere: cannot be read (no such file or directory); choose a",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: list[object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)
    result = extend("--out", "new", *options)
    assert str(result.exception).casefold().startswith(message.casefold())
    assert not Path("new").exists()
