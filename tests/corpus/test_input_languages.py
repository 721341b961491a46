"""Corpora of several languages: their files, shards, vocabulary and sampling."""

import collections
import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.corpus.shards_for_tests import FIRST_WORD, make_vocabulary, numbered_shard, original_tokens

import bertie
from bertie.base.errors import DataError, SettingsError
from bertie.commands.options import parse_languages
from bertie.corpus.examples import ExampleSettings
from bertie.corpus.input_languages import group_by_language
from bertie.corpus.sampling import BLOCK_TOKENS, ExampleStream, draw_held_out_examples
from bertie.corpus.shards import Corpus
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
    assert Path("corpus/train-00000").is_dir()


def test_a_single_held_out_document_of_a_language_stays_in_training(texts):
    file = texts / "de" / "a.jsonl"
    file.write_text("".join(f"{line}\n" for line in file.read_text().splitlines()[:5]))
    bertie.learn_vocabulary(texts, "tokenizer", size=150, workers=1)
    options = {"tokenizer": "tokenizer", "workers": 1, "language": LANGUAGE}
    for held_out in (0.1, 0.2, 0.3):  # so that one, two or none of the five are below it
        corpus = bertie.prepare(texts, out=f"corpus-{held_out}", held_out=held_out, **options)
        assert all(len(shard.document_ends) >= 2 for shard in corpus.held_out)


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
    assert parse_languages(["de=a", "en=b=c"]) == {"de": "a", "en": "b=c"}
    for wrong in (["de", "en"], ["de=a", "de=b"], ["de="]):
        with pytest.raises(SettingsError, match="expected CODE=PATH once for each language"):
            parse_languages(wrong)


def test_word_counts_are_raised_by_the_power_of_the_fraction():
    counted = {"de": (["das", "in"], np.array([6, 4])), "en": (["in", "the"], np.array([400, 600]))}
    words, counts = smooth_counts(counted, 0.5)
    assert dict(zip(words, counts.tolist(), strict=True)) == {"das": 60, "in": 440, "the": 600}
    words, counts = smooth_counts(counted, 1)
    assert dict(zip(words, counts.tolist(), strict=True)) == {"das": 6, "in": 404, "the": 600}


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
    resumed.restore(json.loads(json.dumps(stream.state())))
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
