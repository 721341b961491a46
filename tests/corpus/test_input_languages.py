"""Corpora of several languages: their files, shards, vocabulary and sampling."""

import collections
import json
import lzma
import re
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tests.corpus.shards_for_tests import FIRST_WORD, make_vocabulary, numbered_shard, original_tokens

import bertie
from bertie.base.errors import DataError, SettingsError
from bertie.commands.options import parse_languages
from bertie.corpus import input_splits, preparation
from bertie.corpus.assembly import (
    HELD_OUT,
    TRAIN,
    Parts,
    assign_documents,
    part_directory,
)
from bertie.corpus.documents import InputErrors
from bertie.corpus.examples import ExampleSettings
from bertie.corpus.formats import ROW_FORMATS, Format
from bertie.corpus.input_languages import group_by_language
from bertie.corpus.part_writer import write_hashes
from bertie.corpus.prepared import Corpus
from bertie.corpus.readers import read_documents
from bertie.corpus.sampling import ExampleStream, draw_held_out_examples
from bertie.corpus.shards import BLOCK_TOKENS
from bertie.corpus.sources import LanguageColumn
from bertie.corpus.word_counts import smooth_counts

ENGLISH = ["the cat sat on the mat", "a dog saw the old house", "no bird flew over the sea"]
GERMAN = ["die Katze saß auf der Matte", "ein Hund sah das alte Haus", "kein Vogel flog über das Meer"]


@pytest.fixture
def texts(tmp_path, monkeypatch) -> Path:
    """A folder with 400 English and 100 German documents of five lines."""
    monkeypatch.chdir(tmp_path)
    for code, sentences, count in (("en", ENGLISH, 400), ("de", GERMAN, 100)):
        Path("texts", code).mkdir(parents=True)
        rows = [
            {"text": "\n".join(f"{sentences[(number + line) % 3]} {number}" for line in range(5))}
            for number in range(count)
        ]
        Path("texts", code, "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Path("texts")


LANGUAGE = {"de": "texts/de", "en": "texts/en"}


def test_each_shard_has_one_language(texts):
    bertie.learn_vocabulary(texts, "tokenizer", size=150, language=LANGUAGE, workers=1)
    options = {"tokenizer": "tokenizer", "out": "corpus", "held_out": 0.1, "workers": 1}
    corpus = bertie.prepare(texts, language=LANGUAGE, **options)
    assert corpus.train_languages == ["de", "en"]
    german, english = (len(shard.document_ends) for shard in corpus.train)
    assert sorted(path.name for path in Path("corpus").glob("*-*")) == [
        *("held_out-de-00000", "held_out-en-00000", "train-de-00000", "train-en-00000"),
    ]
    assert german + len(corpus.held_out[0].document_ends) == 100
    assert english + len(corpus.held_out[1].document_ends) == 400
    assert corpus.manifest.train.documents == german + english
    tokenizer = bertie.Tokenizer.load("tokenizer")
    first = tokenizer.convert_ids_to_tokens(corpus.train[0].tokens[:40].tolist())
    assert "the" not in first
    corpus.verify()
    fingerprint = corpus.fingerprint
    with pytest.raises(DataError, match="already contains a prepared corpus"):
        bertie.prepare(texts, language=LANGUAGE, **options)
    assert bertie.prepare(texts, language=LANGUAGE, **options, force=True).fingerprint == fingerprint


def test_corpus_of_one_language_has_the_names_it_had(texts):
    bertie.learn_vocabulary(texts, "tokenizer", size=150, workers=1)
    corpus = bertie.prepare(texts / "de", tokenizer="tokenizer", out="corpus", language="de", workers=1)
    assert corpus.train_languages == [""]
    assert corpus.manifest.settings["language"] == "de"
    assert "language_column" not in corpus.manifest.settings
    assert Path("corpus/train-00000").is_dir()


def test_a_single_held_out_document_of_a_language_stays_in_training(texts):
    file = texts / "de" / "a.jsonl"
    file.write_text("".join(f"{line}\n" for line in file.read_text().splitlines()[:5]))
    bertie.learn_vocabulary(texts, "tokenizer", size=150, workers=1)
    options = {"tokenizer": "tokenizer", "workers": 1, "language": LANGUAGE}
    for held_out in (0.1, 0.2, 0.3):  # so that one, two or none of the five are below it
        corpus = bertie.prepare(texts, out=f"corpus-{held_out}", held_out=held_out, **options)
        assert all(len(shard.document_ends) >= 2 for shard in corpus.held_out)


@pytest.mark.parametrize("seed", range(10))
def test_two_documents_of_the_largest_language_are_held_out(seed, tmp_path):
    """Not the two with the lowest hashes: they may be of two languages."""
    random = np.random.default_rng(seed)
    for index, count in enumerate((40, 60)):
        part = part_directory(tmp_path, index)
        part.mkdir(parents=True)
        write_hashes(part, random.integers(0, 2**64, (count, 2), dtype=np.uint64))
    parts = Parts(tmp_path, np.array([0, 40, 100]), vocabulary_size=100, languages=("de", "en"))
    assign_documents(parts, held_out=1e-6)
    assert np.flatnonzero(parts.read_assignments() == HELD_OUT).size == 2
    assert (parts.read_assignments()[:40] == TRAIN).all()


def assign(directory, documents, held_out):
    """Assign documents of several languages, given by their hashes; return their assignments by language."""
    for index, hashes in enumerate(documents.values()):
        part = part_directory(directory, index)
        part.mkdir(parents=True)
        write_hashes(part, np.array([[value, value] for value in hashes], dtype=np.uint64))
    offsets = np.cumsum([0, *map(len, documents.values())])
    assign_documents(Parts(directory, offsets, 100, tuple(documents)), held_out)
    assignments = Parts(directory, offsets, 100, tuple(documents)).read_assignments()
    return dict(zip(documents, np.split(assignments, offsets[1:-1]), strict=True))


def test_no_language_is_held_out_entirely(tmp_path):
    documents = {"de": [0, 1, 2], "en": range(2**63, 2**63 + 30)}
    assigned = assign(tmp_path, documents, held_out=0.3)  # the hashes of the first three are below it
    assert (assigned["de"] == TRAIN).all()
    assert (assigned["en"] == HELD_OUT).sum() == 2


def test_duplicates_do_not_make_a_language_the_largest(tmp_path):
    assigned = assign(tmp_path, {"de": [7] * 100, "en": range(2**63, 2**63 + 90)}, held_out=1e-6)
    assert (assigned["de"] == TRAIN).sum() == 1
    assert np.bincount(assigned["en"]).tolist() == [88, 2]


def test_languages_of_two_documents_keep_both(tmp_path):
    documents = {code: [value, value + 2**40] for value, code in enumerate("abcdefghij", 2**63)}
    assigned = assign(tmp_path, documents, held_out=1e-6)
    assert all((of_language == TRAIN).all() for of_language in assigned.values())


BY_COLUMN = {"language": ["en", "de"], "language_column": "lang"}


@pytest.fixture
def mixed(texts) -> Path:
    """A file of the documents of `texts`, every fifth of them German."""
    documents = {code: (texts / code / "a.jsonl").read_text().splitlines() for code in ("de", "en")}
    rows = [json.loads(documents["de" if i % 5 == 2 else "en"].pop(0)) for i in range(500)]
    for i, row in enumerate(rows):
        row["lang"] = "de" if i % 5 == 2 else "en"
    Path("mixed.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Path("mixed.jsonl")


def read_shards(corpus: str) -> dict[str, bytes]:
    return {str(file.relative_to(corpus)): file.read_bytes() for file in Path(corpus).glob("*-*/*")}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_languages_by_column_equal_languages_by_folder(texts, mixed, workers, monkeypatch):
    monkeypatch.setattr(input_splits, "TASK_BYTES", 20_000)
    options = {"size": 150, "smoothing": 0.7, "workers": 1}
    by_folder = bertie.learn_vocabulary(texts, "tokenizer", language=LANGUAGE, **options)
    assert bertie.learn_vocabulary(mixed, **BY_COLUMN, **options).fingerprint == by_folder.fingerprint
    options = {"tokenizer": "tokenizer", "held_out": 0.1}
    by_folder = bertie.prepare(texts, out="by-folder", language=LANGUAGE, workers=1, **options)
    by_column = bertie.prepare(mixed, out="by-column", **BY_COLUMN, workers=workers, **options)
    assert len(read_shards("by-column")) == 16
    assert read_shards("by-column") == read_shards("by-folder")
    column = {"language_column": "lang"}
    assert by_column.manifest.settings == by_folder.manifest.settings | column
    assert (
        by_column.manifest.model_copy(update={"settings": by_folder.manifest.settings}) == by_folder.manifest
    )


def test_articles_and_poems_by_column_equal_those_by_folder(shared_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (shared_data / "text/wikipedia-small/wiki_00").read_text(encoding="utf-8")[:200_000]
    articles = [part.partition(">")[2] for part in text.split("<doc ")[1:-1]]
    (book,) = (shared_data / "text/gutenberg").glob("Hugo-Victor-La-L-gende-des-Si-cles.txt.xz")
    parts = lzma.decompress(book.read_bytes()).decode().split("\n\n\n")
    poems = [part for part in parts if part.count(" les ") > 3 * part.count(" the ")][:50]
    assert len(articles) > 30
    assert len(poems) == 50
    rows = [{"lang": code, "text": t} for code, ts in (("fr", poems), ("en", articles)) for t in ts]
    rows.sort(key=lambda row: len(row["text"]))
    for name, chosen in (("mixed", ("en", "fr")), ("en", ("en",)), ("fr", ("fr",))):
        lines = (json.dumps(row) for row in rows if row["lang"] in chosen)
        Path(f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    options = {"tokenizer": next((shared_data / "vocab").glob("*uncased*")), "workers": 1, "held_out": 0.1}
    paths = {"en": "en.jsonl", "fr": "fr.jsonl"}
    bertie.prepare(list(paths.values()), out="by-file", language=paths, **options)
    bertie.prepare("mixed.jsonl", out="by-column", language=list(paths), language_column="lang", **options)
    assert {name.split("/")[0] for name in read_shards("by-column")} == {
        *("train-en-00000", "train-fr-00000", "held_out-en-00000", "held_out-fr-00000")
    }
    assert read_shards("by-column") == read_shards("by-file")


ROWS = [("en", "One."), ("de", "Zwei."), ("fr", "Trois."), ("de", "Vier."), (None, "Five."), ("En", "Six.")]


def write_rows(format: Format) -> Path:
    """Write `ROWS` as a file of a format."""
    path = Path(f"rows.{format}")
    columns = {"lang": [code for code, _ in ROWS], "text": [text for _, text in ROWS]}
    table = pyarrow.table(columns)
    if format == "jsonl":
        path.write_text("".join(json.dumps({"lang": code, "text": text}) + "\n" for code, text in ROWS))
    elif format == "parquet":
        codes = table["lang"].dictionary_encode()
        pyarrow.parquet.write_table(table.set_column(0, "lang", codes), path)
    elif format == "arrow":
        with pyarrow.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    else:
        separator = "," if format == "csv" else "\t"
        lines = [("lang", "text"), *((code or "", text) for code, text in ROWS)]
        path.write_text("".join(f"{separator.join(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize("format", sorted(ROW_FORMATS))
def test_rows_are_read_by_language_and_errors_once(format, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, errors = write_rows(format), InputErrors("skip")
    texts = {
        code: [
            d.text for d in read_documents(path, errors=errors, language=LanguageColumn("lang", code, codes))
        ]
        for codes in [("de", "en")]
        for code in codes
    }
    assert texts == {"de": ["Zwei.", "Vier."], "en": ["One."]}
    unit, first = ("row", 1) if format in ("parquet", "arrow") else ("line", 1 if format == "jsonl" else 2)
    missing = "no language under 'lang'; fill in one of de, en, or choose another key or column with"
    assert errors.messages == [
        f"{path}, {unit} {first + 2}: lang is 'fr', which is none of de, en; add --language fr",
        f"{path}, {unit} {first + 4}: {missing} --language-column NAME",
        f"{path}, {unit} {first + 5}: lang is 'En', which is none of de, en; correct it",
    ]
    assert errors.counts == {"malformed_documents": 3}
    if format != "jsonl":
        wrong = LanguageColumn("long", "de", ("de", "en"))
        advice = "no column 'long'; did you mean 'lang'.*; choose one with --language-column NAME"
        with pytest.raises(SettingsError, match=advice):
            list(read_documents(path, language=wrong))


def test_inputs_without_columns_are_reported_once(mixed, monkeypatch):
    monkeypatch.setattr(input_splits, "TASK_BYTES", 10_000)
    folder = Path("inputs")
    folder.mkdir()
    (folder / "mixed.jsonl").write_bytes(mixed.read_bytes() + b"no JSON\n")
    (folder / "large.txt").write_text("The cat sat.\nThe dog saw.\n\n" * 500)
    (folder / "small.txt").write_text("The cat sat.")
    (folder / "empty.txt").touch()
    Path("tokenizer").mkdir()
    Path("tokenizer/vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the"]))
    options = {"tokenizer": "tokenizer", "workers": 1, **BY_COLUMN}
    message = r"inputs/large\.txt: sentences text, without a column 'lang'; remove it from the inputs"
    with pytest.raises(DataError, match=message):
        bertie.prepare(folder, out="corpus", **options)
    corpus = bertie.prepare(folder, out="corpus", on_error="skip", **options)
    counts = {"empty_files": 1, "malformed_documents": 1, "unreadable_files": 2}
    assert corpus.manifest.skipped == counts
    assert len(list(preparation.read_skipped(Path("corpus")))) == 4
    with pytest.raises(
        DataError, match=r"mixed\.jsonl, line 501: not valid JSON .*; or skip such inputs with"
    ):
        bertie.learn_vocabulary(folder / "mixed.jsonl", size=100, workers=1, **BY_COLUMN)
    assert corpus.train_languages == ["de", "en"]


def test_every_language_of_a_column_needs_a_document(mixed, capsys):
    options = {"language": ["de", "en", "nl"], "language_column": "lang", "workers": 1}
    message = "no document of language nl has text; add such documents, or leave this language out"
    with pytest.raises(DataError, match=message):
        bertie.learn_vocabulary(mixed, size=150, **options)
    bertie.learn_vocabulary(mixed, "tokenizer", size=150, **BY_COLUMN, workers=1)
    with pytest.raises(DataError, match=message):
        bertie.prepare(mixed, tokenizer="tokenizer", out="corpus", **options)
    assert not Path("corpus").exists()
    assert bertie.prepare(mixed, tokenizer="tokenizer", out="corpus", **options | BY_COLUMN)


def test_run_with_another_language_column_does_not_resume(mixed, monkeypatch):
    rows = [json.loads(line) for line in mixed.read_text().splitlines()]
    mixed.write_text("".join(json.dumps(row | {"l": row["lang"]}) + "\n" for row in rows))
    bertie.learn_vocabulary(mixed, "tokenizer", size=150, **BY_COLUMN, workers=1)
    options = {"tokenizer": "tokenizer", "out": "corpus", "workers": 1}

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "assign_documents", interrupt)
        with pytest.raises(KeyboardInterrupt):
            bertie.prepare(mixed, **options, **BY_COLUMN)
    with pytest.raises(DataError, match="an unfinished corpus of other inputs or settings"):
        bertie.prepare(mixed, **options, **BY_COLUMN | {"language_column": "l"})
    assert bertie.prepare(mixed, **options, **BY_COLUMN).train_languages == ["de", "en"]


@pytest.mark.parametrize("language", ["en", ["de"], ["de", "de"], LANGUAGE])
def test_column_of_languages_needs_their_codes(language):
    with pytest.raises(SettingsError, match="language_column = lang: pass the code of each of its languages"):
        group_by_language([Path("a")], language, "lang")


def test_codes_need_a_column_or_paths():
    advice = "pass --language CODE=PATH with the file or folder of each, or --language-column NAME"
    with pytest.raises(
        SettingsError, match=f"language = de, en: the language of each document is unknown; {advice}"
    ):
        group_by_language([Path("a")], ["en", "de"])
    files = [Path("a"), Path("b")]
    assert group_by_language(files, ["en", "de"], "lang") == {"de": files, "en": files}


def test_innermost_path_decides(tmp_path):
    files = [tmp_path / name for name in ("a.txt", "de/b.txt", "de/at/c.txt")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    paths = {"en": tmp_path, "de": tmp_path / "de", "nl": files[2]}
    assert group_by_language(files, paths) == {"de": [files[1]], "en": [files[0]], "nl": [files[2]]}
    assert list(group_by_language(files, paths)) == ["de", "en", "nl"]
    with pytest.raises(DataError, match=re.escape(f"{files[0]}: no language; add --language CODE=PATH")):
        group_by_language(files, {"de": tmp_path / "de"})
    with pytest.raises(DataError, match="no input is in this path of language fr"):
        group_by_language(files, {"en": tmp_path, "fr": tmp_path / "fr"})
    with pytest.raises(SettingsError, match="two languages have the same path"):
        group_by_language(files, {"en": tmp_path, "fr": tmp_path})
    with pytest.raises(SettingsError, match="did you mean de"):
        group_by_language(files, {"german": tmp_path})


def test_options_of_the_command_line():
    assert parse_languages(None) == "en"
    assert parse_languages(["de"]) == "de"
    assert parse_languages(["de", "en"]) == ["de", "en"]
    assert parse_languages(["de=a", "en=b=c"]) == {"de": "a", "en": "b=c"}
    for wrong in (["de", "en=a"], ["de=a", "de=b"], ["de="]):
        with pytest.raises(SettingsError, match="expected CODE=PATH once for each language"):
            parse_languages(wrong)


def test_word_counts_are_raised_by_the_power_of_the_fraction():
    counted = {"de": (["das", "in"], np.array([6, 4])), "en": (["in", "the"], np.array([400, 600]))}
    words, counts = smooth_counts(counted, 0.5)
    assert dict(zip(words, counts.tolist(), strict=True)) == {"das": 60, "in": 440, "the": 600}
    words, counts = smooth_counts(counted, 1)
    assert dict(zip(words, counts.tolist(), strict=True)) == {"das": 6, "in": 404, "the": 600}


def test_smoothed_words_are_called_so(texts, capsys):
    for smoothing, counted in ((1, "words"), (0.5, "words after smoothing")):
        bertie.learn_vocabulary(texts, size=150, smoothing=smoothing, language=LANGUAGE, workers=1)
        assert re.search(rf"^[\d,]+ {counted}, ", capsys.readouterr().err, re.MULTILINE)


def test_smoothing_needs_several_languages(texts):
    with pytest.raises(SettingsError, match="the inputs have one language; pass --language CODE=PATH for"):
        bertie.learn_vocabulary(texts, size=150, smoothing=0.7, workers=1)
    assert bertie.learn_vocabulary(texts, size=150, smoothing=0.7, language=LANGUAGE, workers=1)
    with pytest.raises(SettingsError, match="expected a number above 0, up to 1"):
        bertie.learn_vocabulary(texts, size=150, smoothing=0, language=LANGUAGE, workers=1)


def make_stream(smoothing: float, languages: list[str] | None) -> ExampleStream:
    """A stream of two shards, of which the first has a fifth as many blocks as the second."""
    shards = [numbered_shard([[20] * 10] * 500), numbered_shard([[20] * 10] * 2500, FIRST_WORD + 100_000)]
    settings = ExampleSettings(max_seq_length=64, language_smoothing=smoothing)
    return ExampleStream(shards, settings, make_vocabulary(600_100), seed=1, languages=languages)


def test_smoothing_repeats_blocks_of_the_smaller_language():
    plain, smooth = make_stream(1, ["de", "en"]), make_stream(0.5, ["de", "en"])
    small, large = (len(blocks) for blocks in plain._block_ends)
    repeated = round((500_000 / 100_000) ** 0.5 * small)
    assert (plain.block_count, smooth.block_count) == (small + large, repeated + large)
    epochs = 3
    blocks = [smooth.block(number) for number in range(epochs * smooth.block_count)]
    of_small = [block for block in blocks if block.shard is smooth.shards[0]]
    assert len(of_small) == epochs * repeated
    assert len({block.masking_key for block in blocks}) == len(blocks), "repeated blocks have other masks"
    taken = collections.Counter(int(block.pairs["a_start"].min()) // BLOCK_TOKENS for block in of_small)
    assert max(taken.values()) - min(taken.values()) <= 1, "no block before all others"


def test_stream_without_smoothing_ignores_the_languages():
    with_languages, without = make_stream(1, ["de", "en"]), make_stream(1, None)
    for _ in range(3):
        first, second = with_languages.next(500), without.next(500)
        assert original_tokens(first) == original_tokens(second)
        assert np.array_equal(first.masked_positions, second.masked_positions)


def test_smoothed_stream_resumes(texts):
    stream, resumed = make_stream(0.5, ["de", "en"]), make_stream(0.5, ["de", "en"])
    stream.next(5000)
    resumed.restore(json.loads(json.dumps(stream.position().to_json())))
    first, second = stream.next(5000), resumed.next(5000)
    assert np.array_equal(first.input_ids, second.input_ids)


def test_held_out_examples_are_not_smoothed():
    shards = make_stream(1, None).shards
    examples = [
        draw_held_out_examples(
            shards, ExampleSettings(max_seq_length=64, language_smoothing=s), make_vocabulary(600_100), 1, 500
        )
        for s in (1, 0.5)
    ]
    assert np.array_equal(examples[0].input_ids, examples[1].input_ids)


def test_pretraining_smooths_only_corpora_of_several_languages(texts):
    bertie.learn_vocabulary(texts, "tokenizer", size=150, workers=1)
    options = {"tokenizer": "tokenizer", "held_out": 0.1, "workers": 1}
    bertie.prepare(texts, out="one", **options)
    bertie.prepare(texts, out="two", language=LANGUAGE, **options)
    recipe = {
        **{"warmup_steps": 1, "batch_size": 4, "held_out_examples": 8, "device": "cpu"},
        "phases": [{"steps": 1, "max_seq_length": 32}],
        "model": {
            **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
            **{"intermediate_size": 32, "max_position_embeddings": 32},
        },
        "examples": {"language_smoothing": 0.7},
    }
    with pytest.raises(SettingsError, match="one has one language; prepare it with --language CODE=PATH for"):
        bertie.pretrain(recipe, corpus="one", out="run")
    assert len(Corpus.open("two").train) == 2
    assert bertie.pretrain(recipe, corpus="two", out="run").metrics.select("kind", "train")


@pytest.mark.parametrize("language", [None, 3, ["en", 3], {"de": 3}, {1: "texts"}])
def test_languages_of_another_type_are_refused(tmp_path, language):
    with pytest.raises(SettingsError, match=r"^language = .*: give a code such as 'en', a list of codes, or"):
        group_by_language([tmp_path / "a.txt"], language)
