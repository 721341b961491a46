"""Special tokens, pairs, truncation, offsets and files of the tokenizer."""

import json
import os
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import bertie
from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.text.encoding import Encoding
from bertie.text.tokenizer import Tokenizer
from bertie.text.unicode import UNICODE_VERSION
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

from . import oracle

LETTERS = "abcdeαβσς中한"
TOKENS = [
    *SPECIAL_TOKENS,
    *(unicodedata.normalize("NFD", LETTERS) + ".,!?'[]$"),
    *(f"##{c}" for c in unicodedata.normalize("NFD", LETTERS)),
    *("ab", "abc", "##bc", "##cd", "cls", "mask"),
]
VOCABULARY = Vocabulary(TOKENS)
TOKENIZER = Tokenizer(VOCABULARY)


def tokens_of(encoding: Encoding, i: int = 0) -> list[str]:
    return TOKENIZER.convert_ids_to_tokens(encoding.input_ids[encoding.bounds[i] : encoding.bounds[i + 1]])


def test_encode_adds_special_tokens_to_one_text() -> None:
    encoding = TOKENIZER.encode(" Abcd, é\u00adx!\u4e2d")
    assert tokens_of(encoding) == ["[CLS]", "abc", "##d", ",", "[UNK]", "!", "中", "[SEP]"]
    assert encoding.offsets.tolist() == [[0, 0], [1, 4], [4, 5], [5, 6], [7, 10], [10, 11], [11, 12], [0, 0]]
    assert encoding.word_ids.tolist() == [-1, 0, 0, 1, 2, 3, 4, -1]
    assert encoding.token_type_ids.tolist() == [0] * 8
    assert encoding.bounds.tolist() == [0, 8]
    assert len(encoding) == 1
    arrays = (encoding.input_ids, encoding.token_type_ids, encoding.offsets, encoding.word_ids)
    assert [array.dtype for array in arrays] == [np.int32] * 4
    assert encoding.bounds.dtype == np.int64


def test_encode_joins_a_pair_with_segments_0_and_1() -> None:
    encoding = TOKENIZER.encode("a b", "cd.")
    assert tokens_of(encoding) == ["[CLS]", "a", "b", "[SEP]", "c", "##d", ".", "[SEP]"]
    assert encoding.token_type_ids.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert encoding.word_ids.tolist() == [-1, 0, 1, -1, 0, 0, 1, -1]
    assert encoding.offsets[4:7].tolist() == [[0, 1], [1, 2], [2, 3]]


def test_special_tokens_in_a_text_are_plain_text() -> None:
    assert tokens_of(TOKENIZER.encode("[MASK]"))[1:-1] == ["[", "mask", "]"]


def test_batch_equals_separate_encodings() -> None:
    texts, pairs = ["a b", "", "abcd \u0301", "e" * 7], ["", "c", "d d", "a"]
    batch = TOKENIZER.encode_batch(texts, pairs)
    assert len(batch) == 4
    for i, (text, pair) in enumerate(zip(texts, pairs, strict=True)):
        separate = TOKENIZER.encode(text, pair)
        cut = slice(batch.bounds[i], batch.bounds[i + 1])
        for name in ("input_ids", "token_type_ids", "offsets", "word_ids"):
            assert np.array_equal(getattr(batch, name)[cut], getattr(separate, name)), name


@given(
    st.lists(st.text("abΑΣ \u0301中\t", max_size=30), max_size=12),
    st.integers(1, 12),
    st.sampled_from(["single", "pairs", "plain", "added", "never split"]),
    st.sampled_from([None, 3, 8]),
)
def test_chunk_size_does_not_matter(
    texts: list[str], characters: int, kind: str, max_length: int | None
) -> None:
    """Texts longer than a chunk are cut before spaces, unless they are pairs or a token has a space."""
    tokenizer, pairs = TOKENIZER, None
    if kind == "pairs":
        pairs = [text[::-1] for text in texts]
    if kind == "added":
        vocabulary = Vocabulary([*TOKENIZER.vocabulary.tokens, "a b"])
        tokenizer = Tokenizer(vocabulary, added_tokens=["a b"])
    if kind == "never split":
        tokenizer = Tokenizer(TOKENIZER.vocabulary, never_split=["abΑ"])
    whole = tokenizer.encode_batch(texts, pairs, kind != "plain", max_length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertie.text.encoding.CHUNK_CHARACTERS", characters)
        cut = tokenizer.encode_batch(texts, pairs, kind != "plain", max_length)
    for name in ("input_ids", "token_type_ids", "offsets", "word_ids", "bounds"):
        assert np.array_equal(getattr(cut, name), getattr(whole, name)), name
    assert cut.num_truncated == whole.num_truncated


def test_a_string_is_one_text() -> None:
    assert tokens_of(TOKENIZER.encode_batch("ab abc")) == ["[CLS]", "ab", "abc", "[SEP]"]
    assert len(TOKENIZER.encode_batch("ab abc", "ab")) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.encode(["he"]), "text: expected a string, got a list; encode_batch takes lists"),
        (lambda t: t.encode("he", 7), "pair: expected a string, got int 7"),
        (lambda t: t.encode_batch(["he", None]), r"texts\[1\]: expected a string, got None"),
        (lambda t: t.encode_batch(["he"], ["a", "b"]), "texts and pairs: got lists of 1 and 2 items"),
        (lambda t: t.encode_batch(["he"], "a"), "texts and pairs: got a list and a string"),
    ],
)
def test_other_texts_are_rejected_by_name(call: Callable[[Tokenizer], object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        call(TOKENIZER)


def test_ids_outside_the_vocabulary_have_no_token() -> None:
    last = len(TOKENIZER.vocabulary) - 1
    for token_id in (-100, last + 1):
        with pytest.raises(IndexError, match=f"token id {token_id}: the vocabulary has the ids 0 to {last}"):
            TOKENIZER.decode([5, token_id])


def test_encode_batch_accepts_no_texts() -> None:
    encoding = TOKENIZER.encode_batch([])
    assert len(encoding) == 0
    assert encoding.offsets.shape == (0, 2)


@settings(deadline=None)
@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 20))
def test_pair_is_truncated_as_in_the_original(a: int, b: int, room: int) -> None:
    first, second = ["a"] * a, ["b"] * b
    while len(first) + len(second) > room:  # run_classifier.py, _truncate_seq_pair
        (first if len(first) > len(second) else second).pop()
    encoding = TOKENIZER.encode("a " * a, "b " * b, max_length=room + 3)
    assert tokens_of(encoding) == ["[CLS]", *first, "[SEP]", *second, "[SEP]"]


def test_truncated_texts_and_pairs_are_counted() -> None:
    texts = ["a", "a a", "a a a", "a a a a"]
    assert TOKENIZER.encode_batch(texts, max_length=4).num_truncated == 2
    assert TOKENIZER.encode_batch(texts, texts[::-1], max_length=8).num_truncated == 0
    assert TOKENIZER.encode_batch(texts, texts[::-1], max_length=7).num_truncated == 4
    assert TOKENIZER.encode_batch(texts, texts, max_length=7).num_truncated == 2
    assert TOKENIZER.encode_batch(texts).num_truncated == 0
    assert TOKENIZER.encode_batch([], max_length=4).num_truncated == 0


def test_text_is_truncated_at_its_end() -> None:
    encoding = TOKENIZER.encode_batch(["a b c", "d"], max_length=4)
    assert tokens_of(encoding, 0) == ["[CLS]", "a", "b", "[SEP]"]
    assert tokens_of(encoding, 1) == ["[CLS]", "d", "[SEP]"]
    bare = TOKENIZER.encode_batch(["a b c"], ["d"], add_special_tokens=False, max_length=3)
    assert tokens_of(bare) == ["a", "b", "d"]
    assert bare.token_type_ids.tolist() == [0, 0, 1]


def test_encoding_has_the_encoding_of_each_text() -> None:
    texts, pairs = ["a", "", "ab b c"], ["c", "b", ""]
    encoding = TOKENIZER.encode_batch(texts, pairs)
    for i, one in enumerate(encoding):
        expected = TOKENIZER.encode(texts[i], pairs[i])
        assert vars(one).keys() == vars(expected).keys()
        assert all(np.array_equal(vars(one)[name], vars(expected)[name]) for name in vars(one))
    assert encoding[-1].input_ids.tolist() == encoding[2].input_ids.tolist()
    with pytest.raises(IndexError, match="text 3: the encoding has 3 texts"):
        encoding[3]


def test_padded_texts_equal_those_of_transformers(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path)
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts, pairs = ["a b", "abc", ""], ["ab", "a b c a", "c"]
    expected = peer(texts, pairs, padding=True, return_tensors="np")
    padded = TOKENIZER.pad(TOKENIZER.encode_batch(texts, pairs))
    assert padded.keys() == expected.keys()
    for name, array in padded.items():
        assert array.dtype == np.int64
        assert array.tolist() == expected[name].tolist()


def test_texts_are_padded_to_a_length() -> None:
    encoding = TOKENIZER.encode_batch(["a", "b c"])
    assert TOKENIZER.pad(encoding, 6)["attention_mask"].tolist() == [[1] * 3 + [0] * 3, [1] * 4 + [0] * 2]
    assert TOKENIZER.pad(TOKENIZER.encode_batch([]))["input_ids"].shape == (0, 0)
    with pytest.raises(SettingsError, match=r"length=3: .* at least 4 \(the longest text\)"):
        TOKENIZER.pad(encoding, 3)


def test_max_length_needs_room_for_special_tokens() -> None:
    with pytest.raises(SettingsError, match="max_length=2: no room for the special tokens; use at least 3"):
        TOKENIZER.encode("a", "b", max_length=2)


@pytest.mark.parametrize("max_length", ["5", 5.5, float("nan")])
def test_max_length_is_an_integer(max_length: Any) -> None:
    with pytest.raises(SettingsError, match=f"max_length={max_length!r}: expected an integer"):
        TOKENIZER.encode("a", max_length=max_length)


def test_max_length_may_be_any_large_or_small_integer() -> None:
    assert TOKENIZER.encode("a b", max_length=2**70).input_ids.size == 4
    with pytest.raises(SettingsError, match="no room for the special tokens"):
        TOKENIZER.encode("a b", max_length=np.uint8(1))  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [-1, 0, "3", 3.5, True, None, 2**31])
def test_word_limit_is_a_positive_integer(limit: Any) -> None:
    with pytest.raises(
        SettingsError, match=f"max_word_characters={limit!r}: expected an integer of at least 1"
    ):
        Tokenizer(VOCABULARY, max_word_characters=limit)
    assert type(Tokenizer(VOCABULARY, max_word_characters=np.uint8(3)).max_word_characters) is int  # type: ignore[arg-type]


def test_word_limit_counts_normalised_characters() -> None:
    tokenizer = Tokenizer(VOCABULARY, max_word_characters=3)
    fits, longer = tokenizer.encode("a\u0301b\u0301c\u0301"), tokenizer.encode("한a")
    assert tokens_of(fits)[1:-1] == ["abc"]
    assert tokens_of(longer)[1:-1] == ["[UNK]"]
    assert longer.offsets[1].tolist() == [0, 2]


@pytest.mark.skipif(unicodedata.unidata_version != UNICODE_VERSION, reason="another Unicode version")
@settings(deadline=None)
@given(
    st.text(alphabet="aBcdÁe\u0301\u0308\u034f\u00ad.ΑΣΒ中한 \t\ud800", max_size=30),
    st.text(alphabet="abx\u0301", max_size=5),
)
def test_offsets_contain_the_token(text: str, pair: str) -> None:
    encoding = TOKENIZER.encode(text, pair)
    words = [oracle.split(part, lowercase=True) for part in (text, pair)]
    previous = (0, -1, 0)
    for token, part, (start, end), word in zip(
        tokens_of(encoding),
        encoding.token_type_ids.tolist(),
        encoding.offsets.tolist(),
        encoding.word_ids.tolist(),
        strict=True,
    ):
        if word < 0:
            continue
        source = (text, pair)[part][start:end]
        (normalised,) = oracle.split(source, lowercase=True)
        # A final sigma needs its word as context; a Hangul letter has the offsets of its syllable.
        normalised = normalised.replace("ς", "σ")
        characters = token.removeprefix("##").replace("ς", "σ")
        if token == "[UNK]":
            assert normalised == words[part][word].replace("ς", "σ")
        else:
            assert characters in normalised
            assert characters == normalised or "한" in source
        assert previous[:2] <= (part, word)
        assert start >= previous[2] or part != previous[0] or "한" in source
        previous = (part, word, end)


def test_accent_belongs_to_the_token_before_it() -> None:
    encoding = TOKENIZER.encode("d\u0301e\u00ad\u0301 \u0301a .\u0301")
    assert tokens_of(encoding)[1:-1] == ["d", "##e", "a", "."]
    assert encoding.offsets[1:-1].tolist() == [[0, 2], [2, 5], [7, 8], [9, 10]]


def test_decode_joins_words_and_punctuation() -> None:
    ids = TOKENIZER.encode("Abcd, a! zz", "d").input_ids
    assert TOKENIZER.decode(ids) == "abcd, a! d"
    assert TOKENIZER.decode(TOKENIZER.encode("a? b. c'").input_ids) == "a? b. c '"
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == "[CLS] abcd, a! [UNK] [SEP] d [SEP]"


def test_threads_can_share_a_tokenizer() -> None:
    texts = ["abcd é. " * 50, "ΑΣ 한 " * 50] * 20
    expected = TOKENIZER.encode_batch(texts)
    with ThreadPoolExecutor(4) as pool:
        for encoding in pool.map(TOKENIZER.encode_batch, [texts] * 16):
            assert np.array_equal(encoding.input_ids, expected.input_ids)


@pytest.mark.parametrize("flag", [1, np.True_])
def test_flags_may_be_numbers(flag: Any, tmp_path: Path) -> None:
    vocabulary = Vocabulary([*SPECIAL_TOKENS, "a"])
    tokenizer, same = Tokenizer(vocabulary, lowercase=True), Tokenizer(vocabulary, lowercase=flag)
    assert same.fingerprint == tokenizer.fingerprint
    same.save(tmp_path / "words")
    assert Tokenizer.load(tmp_path / "words").fingerprint == tokenizer.fingerprint


def test_fingerprints_differ_between_tokenizers() -> None:
    fingerprints = {
        Tokenizer(VOCABULARY).fingerprint,
        Tokenizer(VOCABULARY, lowercase=False).fingerprint,
        Tokenizer(VOCABULARY, max_word_characters=200).fingerprint,
        Tokenizer(Vocabulary([*TOKENS, "new"])).fingerprint,
    }
    assert len(fingerprints) == 4
    assert Tokenizer(Vocabulary(TOKENS)).fingerprint == TOKENIZER.fingerprint


@pytest.mark.parametrize("lowercase", [True, False])
def test_save_and_load_round_trip(tmp_path: Path, lowercase: bool) -> None:
    saved = Tokenizer(VOCABULARY, lowercase, max_word_characters=200)
    saved.save(tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint == saved.fingerprint
    (tmp_path / "vocab.txt").unlink()  # transformers 5 writes only tokenizer.json
    assert Tokenizer.load(tmp_path).fingerprint == saved.fingerprint
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.load(tmp_path).lowercase == lowercase
    assert Tokenizer.load(tmp_path, lowercase=not lowercase).lowercase != lowercase


def test_save_writes_model_max_length(tmp_path: Path) -> None:
    for expected, arguments in ((512, ()), (128, (128,))):
        TOKENIZER.save(tmp_path, *arguments)
        assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_max_length"] == expected


@pytest.mark.parametrize("length", [0, "long", 1.5])
def test_a_wrong_model_max_length_writes_nothing(tmp_path: Path, length: Any) -> None:
    with pytest.raises(SettingsError, match="model_max_length"):
        TOKENIZER.save(tmp_path / "tokenizer", length)
    assert not (tmp_path / "tokenizer").exists()
    TOKENIZER.save(tmp_path / "tokenizer", np.int64(128))  # type: ignore[arg-type]
    assert Tokenizer.can_overwrite(str(tmp_path / "tokenizer"))


def test_can_overwrite_only_files_that_save_wrote(tmp_path: Path) -> None:
    assert Tokenizer.can_overwrite(tmp_path / "new")
    TOKENIZER.save(tmp_path)
    assert Tokenizer.can_overwrite(tmp_path)
    fast = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**fast, "truncation": {"max_length": 512}}))
    assert not Tokenizer.can_overwrite(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert not Tokenizer.can_overwrite(tmp_path)
    TOKENIZER.save(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert not Tokenizer.can_overwrite(tmp_path)


def test_load_from_a_vocabulary_file(tmp_path: Path) -> None:
    VOCABULARY.save(tmp_path / "vocab.txt")
    for path in (tmp_path, tmp_path / "vocab.txt"):
        assert Tokenizer.load(path).fingerprint == TOKENIZER.fingerprint
        assert not Tokenizer.load(str(path), lowercase=False).lowercase


def test_load_names_the_unusable_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="absent: cannot be read"):
        Tokenizer.load(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"vocab\.txt: cannot be read"):
        Tokenizer.load(tmp_path)
    VOCABULARY.save(tmp_path / "vocab.txt")
    config = tmp_path / "tokenizer_config.json"
    for content, error in (("[]", ModelError), ("{", DataError)):
        config.write_text(content)
        with pytest.raises(error, match=r"tokenizer_config\.json: not"):
            Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        (
            "tokenizer_config.json",
            {"tokenizer_class": "BertJapaneseTokenizer"},
            "is 'BertJapaneseTokenizer'; only",
        ),
        (
            "tokenizer_config.json",
            {"tokenizer_class": "BertTokenizer", "word_tokenizer_type": "mecab"},
            "word_tokenizer_type is 'mecab', not 'basic'",
        ),
        (
            "tokenizer_config.json",
            {"subword_tokenizer_type": "character"},
            "subword_tokenizer_type is 'character', not 'wordpiece'",
        ),
        ("tokenizer_config.json", {"do_basic_tokenize": False}, "do_basic_tokenize is False, not True"),
        (
            "tokenizer.json",
            {"model": {"type": "Unigram"}},
            "model.type is 'Unigram', not 'WordPiece'; only BERT's tokenizer",
        ),
        (
            "tokenizer.json",
            {"pre_tokenizer": {"type": "Metaspace"}},
            "pre_tokenizer.type is 'Metaspace'",
        ),
        ("tokenizer.json", {"normalizer": {"type": "NFC"}}, "normalizer.type is 'NFC', not"),
        ("tokenizer.json", {"normalizer": {"clean_text": False}}, "clean_text is False, not True"),
        (
            "tokenizer.json",
            {"model": {"continuing_subword_prefix": "@@"}},
            "continuing_subword_prefix is '@@', not",
        ),
    ],
)
def test_load_rejects_other_tokenizers(
    tmp_path: Path, file: str, settings: dict[str, object], message: str
) -> None:
    VOCABULARY.save(tmp_path / "vocab.txt")
    (tmp_path / file).write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=f"{file}: .*{message}"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("files", "lowercase"),
    [
        ({}, False),  # the vocabulary has upper-case letters
        ({"tokenizer_config.json": {"do_lower_case": True}}, True),
        ({"tokenizer.json": {"normalizer": {"lowercase": True}}}, True),
        (
            {
                "tokenizer.json": {"normalizer": {"lowercase": True}},
                "tokenizer_config.json": {"do_lower_case": False},
            },
            False,
        ),
    ],
)
def test_files_decide_whether_to_lowercase(tmp_path: Path, files: dict[str, object], lowercase: bool) -> None:
    """The files decide, not the directory's name; else the vocabulary does."""
    path = tmp_path / "bert-base-uncased"
    Vocabulary([*TOKENS, "Abc"]).save(path / "vocab.txt")
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    assert Tokenizer.load(path).lowercase == lowercase
    assert Tokenizer.load(path / "vocab.txt").lowercase is False
    assert Tokenizer.load(path / "vocab.txt", lowercase=True).lowercase


def test_ids_may_have_gaps_but_not_collide(tmp_path: Path) -> None:
    def load(factor: int, remainder: int) -> Tokenizer:
        ids = {token: factor * i % remainder for i, token in enumerate(TOKENS)}
        (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece", "vocab": ids}}))
        return Tokenizer.load(tmp_path)

    expected = [2 * i for i in TOKENIZER.encode("abcd, é").input_ids.tolist()]
    assert load(2, 10**6).encode("abcd, é").input_ids.tolist() == expected
    for factor, remainder in ((1000, 10**6), (1, 20)):
        with pytest.raises(ModelError, match=r"tokenizer\.json: damaged, with .*; copy it again"):
            load(factor, remainder)


OPTIONS: list[dict[str, Any]] = [
    {"strip_accents": False},
    {"lowercase": False, "strip_accents": True},
    {"tokenize_chinese_chars": False},
    {"never_split": ("[e1]", "c++")},
    {"lowercase": False, "strip_accents": True, "tokenize_chinese_chars": False, "never_split": ("b",)},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_options_survive_saving(tmp_path: Path, options: dict[str, Any]) -> None:
    tokenizer = Tokenizer(VOCABULARY, **options)
    assert tokenizer.fingerprint != Tokenizer(VOCABULARY, options.get("lowercase", True)).fingerprint
    tokenizer.save(tmp_path)
    assert Tokenizer.can_overwrite(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.replace(VOCABULARY).fingerprint == tokenizer.fingerprint
    (tmp_path / "vocab.txt").unlink()
    assert Tokenizer.load(tmp_path).fingerprint == tokenizer.fingerprint
    if "never_split" not in options:  # which tokenizer.json does not have, as in transformers
        (tmp_path / "tokenizer_config.json").unlink()
        assert Tokenizer.load(tmp_path).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("options", OPTIONS[:3])
def test_options_are_read_as_transformers_writes_them(tmp_path: Path, options: dict[str, Any]) -> None:
    tokenizer = Tokenizer(VOCABULARY, **options)
    tokenizer.save(tmp_path / "ours")
    text = "Ábc 中한 ÉE"
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert peer(text)["input_ids"] == tokenizer.encode(text).input_ids.tolist()
    assert peer(text)["input_ids"] != Tokenizer(VOCABULARY).encode(text).input_ids.tolist()
    peer.save_pretrained(tmp_path / "theirs")
    assert Tokenizer.load(tmp_path / "theirs").fingerprint == tokenizer.fingerprint


def test_replacing_the_casing_keeps_all_other_settings() -> None:
    settings: dict[str, Any] = {
        "max_word_characters": 7,
        "added_tokens": ("ab",),
        "tokenize_chinese_chars": False,
        "never_split": ("abc",),
    }
    replaced = Tokenizer(VOCABULARY, **settings).replace(lowercase=False)
    assert replaced.fingerprint == Tokenizer(VOCABULARY, False, **settings).fingerprint
    assert replaced.fingerprint != Tokenizer(VOCABULARY, False).fingerprint


def test_replacing_the_casing_keeps_an_explicit_choice_about_accents() -> None:
    assert not TOKENIZER.replace(lowercase=False).strip_accents
    assert not Tokenizer(VOCABULARY, strip_accents=False).replace(lowercase=False).strip_accents
    assert Tokenizer(VOCABULARY, lowercase=False, strip_accents=True).replace(lowercase=True).strip_accents


def test_words_that_are_never_split_have_offsets() -> None:
    tokenizer = Tokenizer(Vocabulary([*TOKENS, "[e1]"]), never_split=("[e1]", "a.b"))
    encoding = tokenizer.encode("ab [e\x001] a.b 中[e1].")
    tokens = tokenizer.convert_ids_to_tokens(encoding.input_ids)
    assert tokens[1:-1] == ["ab", "[e1]", "[UNK]", "中", "[", "[UNK]", "]", "."]
    assert encoding.offsets[1:5].tolist() == [[0, 2], [3, 8], [9, 12], [13, 14]]
    assert encoding.word_ids[1:5].tolist() == [0, 1, 2, 3]


ENCODE = "from bertie.text.tokenizer import Tokenizer; print(*Tokenizer.load('{}').encode('Abc d').input_ids)"


def test_a_vocabulary_file_needs_no_schemas(tmp_path: Path) -> None:
    VOCABULARY.save(tmp_path / "vocab.txt")
    code = f"{ENCODE.format(tmp_path / 'vocab.txt')}; import sys; print('pydantic' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split()[-1] == "False"


@pytest.mark.slow  # compiles all kernels, without a cache
def test_read_only_install_without_a_home_encodes(tmp_path: Path) -> None:
    package = tmp_path / "site" / "bertie"
    shutil.copytree(Path(bertie.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    VOCABULARY.save(tmp_path / "vocab.txt")
    files = sorted(package.rglob("*"))
    for path in (package, *files):
        path.chmod(path.stat().st_mode & ~0o222)
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "HOME": "/dev/null/home"}
    for name in ("BERTIE_CACHE", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    command = [sys.executable, "-B", "-c", ENCODE.format(tmp_path / "vocab.txt")]
    try:
        output = subprocess.check_output(command, env=environment, text=True)
        assert sorted(package.rglob("*")) == files  # root can write there anyway
    finally:
        for path in (package, *files):
            path.chmod(path.stat().st_mode | 0o200)
    assert output.split() == list(map(str, TOKENIZER.encode("Abc d").input_ids))
