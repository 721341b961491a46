"""The kernels against the reference: all characters, random vocabularies."""

import unicodedata

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertie.text.encoding import Encoding
from bertie.text.tokenizer import Tokenizer
from bertie.text.trie import build_trie
from bertie.text.unicode import UNICODE_VERSION, unicode_tables
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.text.wordpiece import split_words

from . import oracle

same_unicode = pytest.mark.skipif(
    unicodedata.unidata_version != UNICODE_VERSION, reason="the running Python has another Unicode version"
)

# Characters that need context or are replaced: final sigma, marks that are reordered or stripped, NFD
# that creates punctuation, Hangul, ideographs, dropped characters, separators, surrogates.
CHARACTERS = (
    "aBzΑΣς.'’-中\uf900한국각ÅéİßǅﬁＡ1²ªʰ"
    "\u0301\u0308\u034f\u0315\u0327\u0c46\u302e\u302f\u1b44\U00016ff0\U0001d15e\U0001d165\U0001d16d\U0001d1c0"
    "\u1fef\u037e\u0387≠≮\u0344\u0f76"
    "\x00\ufffd\u00ad\u200d\x1c\x85\ufeff"
    " \t\n\r\u00a0\u2028\u2029\u3000\u2000"
    "\ud800\udfff\ue000\U0010ffff"
)
# Marks, stripped marks, and U+034F, across which marks are not reordered.
MARKS = "a\u0301\u0f71\u034f\u302e\u1b44\U00016ff0\U0001d165\U0001d16d"
texts = st.one_of(
    st.text(alphabet=CHARACTERS),
    st.text(alphabet=MARKS),
    st.text(alphabet=st.characters()),
    st.text(alphabet=st.one_of(st.sampled_from(CHARACTERS), st.characters())),
)


def words_of(batch: list[str], lowercase: bool) -> list[str]:
    codes, bounds, _ = split_words(batch, unicode_tables(lowercase, lowercase))
    text = codes.tobytes().decode("utf-32-le", "surrogatepass")
    return [text[bounds[i] : bounds[i + 1]] for i in range(len(bounds) - 1)]


@same_unicode
@pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
def test_every_character_between_letters_splits_as_expected(lowercase: bool) -> None:
    for first in range(0, 0x110000, 0x1000):
        if 0x40000 <= first < 0xE0000 and first % 0x10000:
            continue  # planes 4 to 13 have no characters; their first 4,096 codes suffice
        text = " ".join(f"a{chr(code)}b" for code in range(first, first + 0x1000))
        actual, expected = words_of([text], lowercase), oracle.split(text, lowercase)
        if actual != expected:  # an assert on the lists would take pytest long
            different = [pair for pair in zip(actual, expected, strict=False) if pair[0] != pair[1]]
            pytest.fail(f"in U+{first:04X}…: {different[:5]}")


@same_unicode
@settings(max_examples=250, deadline=None)
@given(st.lists(texts, max_size=4), st.booleans())
def test_words_equal_those_of_the_reference(batch: list[str], lowercase: bool) -> None:
    expected = [word for text in batch for word in oracle.split(text, lowercase)]
    assert words_of(batch, lowercase) == expected


# Tokens of CHARACTERS, so that some words of `texts` are tokens and some begin with one.
TOKENS = ("a", "##a", "b", "az", "##zσ", "##ς", "中", ".", "##e", "ßa", "ª")
plain_vocabulary = Vocabulary([*SPECIAL_TOKENS, *TOKENS])


def encode_both_ways(vocabulary: Vocabulary, lowercase: bool, limit: int, batch: list[str]) -> Encoding:
    # A tokenizer that never splits some word splits all words before it matches them.
    usual, other = (
        Tokenizer(vocabulary, lowercase, limit, never_split=words).encode_batch(batch)
        for words in ((), ("\ue000never",))
    )
    for name in ("input_ids", "token_type_ids", "offsets", "word_ids", "bounds"):
        assert np.array_equal(getattr(usual, name), getattr(other, name)), name
    return usual


@settings(max_examples=75, deadline=None)  # each makes two tokenizers
@given(st.lists(texts, max_size=4), st.booleans(), st.integers(1, 4), st.sampled_from([1, 2000]))
@example(["aΣ"], True, 4, 1)  # the sigma is final
def test_both_ways_to_match_words_agree(batch: list[str], lowercase: bool, limit: int, repeats: int) -> None:
    batch = [*batch, "".join(batch) * repeats]
    usual = encode_both_ways(plain_vocabulary, lowercase, limit, batch)
    for i, text in enumerate(batch[:-1]):
        expected = [
            token_id
            for word in oracle.split(text, lowercase)
            for token_id in oracle.match(word, plain_vocabulary.ids, plain_vocabulary.unk_id, limit)
        ]
        assert usual.input_ids[usual.bounds[i] + 1 : usual.bounds[i + 1] - 1].tolist() == expected


def test_texts_without_words_give_empty_arrays() -> None:
    for batch in ([], [""], ["", " \x00\u0301 "]):
        codes, bounds, _ = split_words(batch, unicode_tables())
        assert codes.dtype == np.uint32
        assert bounds.dtype == np.int64
        assert len(codes) == 0
        assert bounds.tolist() == [0]


# Two letters, so that tokens overlap. With all single letters, most words can be matched.
token_texts = st.text(alphabet="ab", min_size=1, max_size=6)
vocabularies = st.builds(
    lambda tokens, letters: Vocabulary([*SPECIAL_TOKENS, *sorted({*tokens, *letters})]),
    st.lists(st.one_of(token_texts, token_texts.map(lambda text: f"##{text}")), max_size=25),
    st.sampled_from([(), ("a", "b", "##a", "##b")]),
)


@settings(max_examples=100, deadline=None)  # each makes a tokenizer
@given(vocabularies, st.lists(st.text(alphabet="ab", min_size=1, max_size=14), min_size=1, max_size=8))
def test_tokens_are_the_longest_matches(vocabulary: Vocabulary, words: list[str]) -> None:
    limit = 12
    encoding = Tokenizer(vocabulary, max_word_characters=limit).encode_batch(words, add_special_tokens=False)
    for i, word in enumerate(words):
        ids = encoding.input_ids[encoding.bounds[i] : encoding.bounds[i + 1]].tolist()
        assert ids == oracle.match(word, vocabulary.ids, vocabulary.unk_id, limit)


@settings(max_examples=100, deadline=None)
@given(vocabularies, st.integers(1, 12), st.text(alphabet="ab\u0301 ."))
def test_an_accent_belongs_to_the_token_before_it(vocabulary: Vocabulary, limit: int, text: str) -> None:
    encoding = encode_both_ways(vocabulary, True, limit, [text])
    for end in encoding.offsets[1:-1, 1]:
        assert text[end : end + 1] != "\u0301" or text[end - 1] == "."


def test_an_accent_inside_a_word_of_several_tokens() -> None:
    # The match of "abc" fails at "f": its tokens are "ab", and "c" as the beginning of the next match.
    vocabulary = Vocabulary([*SPECIAL_TOKENS, "ab", "abcde", "##c", "##f"])
    encoding = encode_both_ways(
        vocabulary, True, 100, ["a\u0301bcf", "ab\u0301cf", "abc\u0301\u0301f\u0301."]
    )
    offsets = [
        encoding.offsets[encoding.bounds[i] + 1 : encoding.bounds[i + 1] - 1].tolist() for i in range(3)
    ]
    assert offsets == [
        [[0, 3], [3, 4], [4, 5]],
        [[0, 3], [3, 4], [4, 5]],
        [[0, 2], [2, 5], [5, 7], [7, 8]],
    ]


@pytest.mark.parametrize("last", ["", "b"])
def test_long_words_with_near_matches_are_matched(last: str) -> None:
    # Every match stops one character short of a longer token, so restarting takes quadratic time.
    run = ["a" * n for n in range(1, 60)]
    tokens = [*run, *(f"##{text}" for text in run), *(f"##{text}c" for text in run)]
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *tokens])
    word = "a" * 5000 + last
    encoding = Tokenizer(vocabulary, max_word_characters=10**6).encode(word)
    expected = oracle.match(word, vocabulary.ids, vocabulary.unk_id, 10**6)
    assert encoding.input_ids[1:-1].tolist() == expected


def test_text_may_have_more_tokens_than_characters() -> None:
    text = "한국." * 300
    jamo = ["ᄒ", "##ᅡ", "##ᆫ", "##ᄀ", "##ᅮ", "##ᆨ", "."]
    encoding = Tokenizer(Vocabulary([*SPECIAL_TOKENS, *jamo])).encode(text)
    assert encoding.input_ids[1:-1].tolist() == list(range(5, 12)) * 300
    assert words_of([text], lowercase=True) == ["\u1112\u1161\u11ab\u1100\u116e\u11a8", "."] * 300


@settings(deadline=None)
@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"), min_size=1, max_size=3), max_size=300))
def test_vocabulary_may_have_any_alphabet(words: list[str]) -> None:
    # Cased, so that characters match themselves; without words that normalisation splits or drops.
    whole = sorted({word for word in words if oracle.split(word, lowercase=False) == [word]})
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *whole])
    encoding = Tokenizer(vocabulary, lowercase=False).encode(" ".join(whole))
    assert [vocabulary.tokens[i] for i in encoding.input_ids[1:-1]] == whole


def test_vocabulary_may_have_special_tokens_only() -> None:
    encoding = Tokenizer(Vocabulary(SPECIAL_TOKENS), max_word_characters=3).encode("ab.")
    assert encoding.input_ids[1:-1].tolist() == [1, 1]


def test_nodes_of_frequent_tokens_are_close_together() -> None:
    frequent = [f"{a}{b}{c}" for a in "aeiou" for b in "lmnr" for c in "stz"]
    rare = [f"{a}{b}{c}" for a in "bcdfghjk" for b in "pqvwxy" for c in "aeiou"]
    trie = build_trie([*frequent, *rare], max_word_characters=200)
    slots = np.array([int(np.flatnonzero(trie.tokens == token)[0]) for token in range(len(trie.lengths))])
    assert slots[: len(frequent)].max() < slots[len(frequent) :].min()
