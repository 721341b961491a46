"""New entries of a vocabulary: against a slow reference, and as the tokenizer uses them."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.text.vocabulary_extension import (
    MIN_OCCURRENCES,
    extend_vocabulary,
    find_new_ids,
    find_unused_slots,
    learn_entries,
    split_entry,
)

LETTERS = [*"abc", "##a", "##b", "##c"]
VOCABULARIES = st.lists(
    st.tuples(st.booleans(), st.text("abc", min_size=2, max_size=4)).map(lambda t: "##" * t[0] + t[1]),
    max_size=6,
    unique=True,
).map(lambda tokens: Vocabulary([*SPECIAL_TOKENS, *LETTERS, *tokens]))
TABLES = st.dictionaries(st.text("aabc", min_size=1, max_size=8), st.integers(1, 5), min_size=1, max_size=12)


def split_words(vocabulary: Vocabulary, words: list[str]) -> list[list[str]]:
    tokenizer = Tokenizer(vocabulary)
    encoding = tokenizer.encode_batch(words, add_special_tokens=False)
    tokens = tokenizer.convert_ids_to_tokens(encoding.input_ids)
    return [tokens[start:stop] for start, stop in pairwise(encoding.bounds.tolist())]


def count_tokens(vocabulary: Vocabulary, table: dict[str, int]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for split, count in zip(split_words(vocabulary, [*table]), table.values(), strict=True):
        for token in split:
            counts[token] += count
    return counts


def learn(vocabulary: Vocabulary, table: dict[str, int], number: int) -> tuple[list[str], int]:
    splits = split_words(vocabulary, [*table])
    return learn_entries(vocabulary.ids, splits, [*table.values()], number)


@given(VOCABULARIES, TABLES, st.integers(1, 6))
@example(Vocabulary([*SPECIAL_TOKENS, *LETTERS, "##bca"]), {"abcab": 3, "ab": 2, "abc": 1}, 3)
@example(
    Vocabulary([*SPECIAL_TOKENS, *LETTERS]), {"abbba": 2, "abbbba": 2}, 4
)  # the first entry becomes rare
def test_tokenizer_uses_every_entry_and_saves_the_tokens(vocabulary, table, number):
    entries, saving = learn(vocabulary, table, number)
    assert len({*entries, *vocabulary.tokens}) == len(entries) + len(vocabulary)
    assert len(entries) <= number
    before = count_tokens(vocabulary, table)
    after = count_tokens(extend_vocabulary(vocabulary, entries), table)
    assert saving == before.total() - after.total()
    assert all(after[entry] >= MIN_OCCURRENCES for entry in entries)


@settings(max_examples=30)  # each makes a tokenizer for every possible entry
@given(TABLES)
def test_first_entry_saves_the_most(table):
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *LETTERS])
    splits = split_words(vocabulary, [*table])
    runs = {
        split[start] + "".join(token.removeprefix("##") for token in split[start + 1 : stop])
        for split in splits
        for start in range(len(split))
        for stop in range(start + 2, len(split) + 1)
    }
    before = count_tokens(vocabulary, table).total()
    savings = {}
    for run in runs:
        after = count_tokens(extend_vocabulary(vocabulary, [run]), table)
        if after[run] >= MIN_OCCURRENCES:
            savings[run] = before - after.total()
    entries, saving = learn(vocabulary, table, 1)
    assert saving == max([0, *savings.values()])
    assert [savings[entry] for entry in entries] == [saving] * len(entries)


@given(VOCABULARIES, TABLES)
def test_order_of_the_words_does_not_matter(vocabulary, table):
    reverse = dict(reversed(table.items()))
    assert learn(vocabulary, table, 4) == learn(vocabulary, reverse, 4)


def test_entries_are_words_and_continuations():
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *LETTERS])
    table = {"abcc": 9, "bbcc": 2, "cbcc": 2, "aacc": 1}
    entries, _ = learn(vocabulary, table, 2)
    assert entries == ["abcc", "##bcc"]
    entries, _ = learn(vocabulary, table, 100)
    assert "aacc" not in entries  # occurs once


def test_entry_that_makes_a_word_unknown_is_not_learnt():
    """With `ab`, the tokens could not spell the rest of `abc`."""
    vocabulary = Vocabulary([*SPECIAL_TOKENS, "a", "##b", "##bc"])
    assert learn(vocabulary, {"ab": 5}, 9) == (["ab"], 5)
    assert learn(vocabulary, {"ab": 5, "abc": 1}, 9) == ([], 0)
    assert learn(vocabulary, {"ab": 5, "abc": 2}, 9) == (["abc"], 2)


SLOTTED = Vocabulary(["[PAD]", "[unused0]", "[unused1]", *SPECIAL_TOKENS[1:], "[unused2]", "a", "##a", "b"])


def test_unused_entries_that_texts_can_produce_are_no_slots():
    assert find_unused_slots(Tokenizer(SLOTTED, never_split=("[unused0]",))) == [2, 7]
    assert find_unused_slots(Tokenizer(SLOTTED, added_tokens=("[unused2]",))) == [1, 2]


def test_slots_are_filled_before_entries_are_appended():
    tokenizer = Tokenizer(SLOTTED, added_tokens=("[unused1]",))
    slots = find_unused_slots(tokenizer)
    assert slots == [1, 7]  # texts can produce an added token
    extended = extend_vocabulary(SLOTTED, ["aa", "ba", "##ab"], slots)
    assert extended.tokens[1] == "aa"
    assert extended.tokens[7] == "ba"
    assert extended.tokens[-1] == "##ab"
    assert find_new_ids(tokenizer, tokenizer.replace(vocabulary=extended)) == [1, 7, len(SLOTTED)]


@pytest.mark.parametrize(
    "other",
    [
        Tokenizer(Vocabulary(SLOTTED.tokens[:-1])),
        Tokenizer(Vocabulary([*SLOTTED.tokens[:-1], "c"])),
        Tokenizer(Vocabulary([*SLOTTED.tokens, "c"]), lowercase=False),
        Tokenizer(Vocabulary([*SLOTTED.tokens, "c"]), never_split=("c",)),
        Tokenizer(Vocabulary([*SLOTTED.tokens, "[E1]"]), added_tokens=("[E1]",)),
        Tokenizer(Vocabulary([*SLOTTED.tokens, "[E1]"]), added_tokens=("[unused0]",)),
    ],
)
def test_another_tokenizer_is_not_an_extension(other):
    assert find_new_ids(Tokenizer(SLOTTED), other) is None


def test_entry_is_split_as_a_word_or_a_continuation():
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *LETTERS, "ab", "##bc"])
    tokens = vocabulary.tokens
    assert [tokens[i] for i in split_entry("abcbc", vocabulary)] == ["ab", "##c", "##bc"]
    assert [tokens[i] for i in split_entry("##abc", vocabulary)] == ["##a", "##bc"]
    assert split_entry("xyz", vocabulary) == [vocabulary.unk_id]
