"""The trainer against a slow reference, and against the trainer of `tokenizers`."""

import math
import random
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertie.base.errors import SettingsError
from bertie.text.tokenizer import Tokenizer
from bertie.text.unicode import unicode_tables
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.text.wordpiece import split_words
from bertie.text.wordpiece_trainer import Merges, learn_vocabulary

TABLES = st.dictionaries(st.text("aabcd", min_size=1, max_size=8), st.integers(1, 5), min_size=1, max_size=12)


def learn_slowly(table: dict[str, int], size: int, merges: Merges) -> list[str]:
    """Learn by the definition: before each merge, count all pairs and tokens again."""
    words = [([word[0], *(f"##{c}" for c in word[1:])], count) for word, count in table.items()]
    vocabulary = [*SPECIAL_TOKENS, *sorted({token for tokens, _ in words for token in tokens})]
    while len(vocabulary) < size:
        pair_counts: Counter[tuple[str, str]] = Counter()
        token_counts: Counter[str] = Counter()
        for tokens, count in words:
            for token in tokens:
                token_counts[token] += count
            for pair in pairwise(tokens):
                pair_counts[pair] += count
        if not pair_counts:
            break
        gains: dict[tuple[str, str], float] = dict(pair_counts)
        if merges == "likelihood":
            for (left, right), count in pair_counts.items():
                ratio = count * token_counts.total() / (token_counts[left] * token_counts[right])
                gains[left, right] = count * math.log(ratio)
        left, right = min(gains, key=lambda pair: (-gains[pair], pair))
        merged = left + right.removeprefix("##")
        for tokens, _ in words:
            index = 0
            while index + 1 < len(tokens):
                if (tokens[index], tokens[index + 1]) == (left, right):
                    tokens[index : index + 2] = [merged]
                index += 1
        if merged not in vocabulary:
            vocabulary.append(merged)
    return vocabulary


@pytest.mark.parametrize("merges", ["frequency", "likelihood"])
@settings(max_examples=75)
@given(TABLES, st.integers(25, 60))
@example({"aaaaa": 4, "aaab": 3, "baaaa": 2}, 40)  # overlapping occurrences of a pair
@example({"abc": 1, "abd": 3, "bcd": 2, "abcd": 2}, 40)  # two pairs spell the same token
@example({"ab": 2**40, "ba": 2**40 - 1, "cab": 2**40 + 1}, 40)  # products beyond 64 bits
def test_trainer_equals_the_reference(merges: Merges, table: dict[str, int], size: int) -> None:
    assert learn_vocabulary(list(table), table.values(), size, merges) == learn_slowly(table, size, merges)


@pytest.mark.parametrize("merges", ["frequency", "likelihood"])
def test_trainer_equals_the_reference_on_real_words(merges: Merges) -> None:
    words = re.findall(r"[a-z]+", (learn_vocabulary.__doc__ + __doc__).lower())
    table = dict(Counter(words))
    assert learn_vocabulary(list(table), table.values(), 600, merges) == learn_slowly(table, 600, merges)


@pytest.mark.parametrize("merges", ["frequency", "likelihood"])
@given(TABLES, st.randoms(use_true_random=False))
def test_order_of_the_words_does_not_matter(
    merges: Merges, table: dict[str, int], shuffler: random.Random
) -> None:
    items = list(table.items())
    learnt = learn_vocabulary([word for word, _ in items], [count for _, count in items], 60, merges)
    shuffler.shuffle(items)
    again = learn_vocabulary([word for word, _ in items], [count for _, count in items], 60, merges)
    assert again == learnt


def test_tokens_are_in_the_order_of_the_merges() -> None:
    tokens = learn_vocabulary(["low", "lower", "wow"], [5, 2, 1], 60)
    assert tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokens[5:11] == ["##e", "##o", "##r", "##w", "l", "w"]
    assert tokens[11:] == ["##ow", "low", "##er", "lower", "wow"]  # 8, 7, 2, 2 and 1 times


def test_counts_beyond_32_bits_are_exact() -> None:
    table = {"ab": 2**40, "cd": 2**40 + 1, "ef": 2**40 - 1}
    assert learn_vocabulary(list(table), table.values(), 60)[-3:] == ["cd", "ab", "ef"]


def test_words_with_rare_characters_are_ignored() -> None:
    common = {chr(0x4E00 + index) * 2: 10 for index in range(1000)}
    tokens = learn_vocabulary([*common, "xy"], [*common.values(), 9], 6000)
    assert len(tokens) == 5 + 2000 + 1000
    assert not {"x", "##y", "xy"} & set(tokens)


def test_size_of_the_alphabet_can_be_set() -> None:
    words = [chr(0x4E00 + index) for index in range(1500)]
    assert len(learn_vocabulary(words, [1] * 1500, 30522)) == 5 + 1000
    assert len(learn_vocabulary(words, [1] * 1500, 30522, alphabet=1400)) == 5 + 1400


@pytest.mark.parametrize("words", [["a", "b"], ["b", "a"]])
def test_first_of_equally_frequent_characters_are_the_alphabet(words: list[str]) -> None:
    assert learn_vocabulary(words, [1, 1], 60, alphabet=1)[5:] == ["a"]


def test_alphabet_is_at_most_half_of_the_vocabulary() -> None:
    words = [chr(0x4E00 + index) * 3 for index in range(500)]
    tokens = learn_vocabulary(words, range(1, 501), 205)
    assert sum(len(token.removeprefix("##")) == 1 for token in tokens[5:]) == 100
    assert len(tokens) == 205


def test_words_too_long_for_the_tokenizer_are_ignored() -> None:
    assert learn_vocabulary(["a" * 101, "bc"], [10, 1], 60)[5:] == ["##c", "b", "bc"]
    assert "a" * 100 in learn_vocabulary(["a" * 100, "bc"], [10, 1], 200)


def test_size_without_room_for_an_alphabet_is_rejected() -> None:
    with pytest.raises(SettingsError, match="size = 8: too small"):
        learn_vocabulary(["a"], [1], 8)
    assert learn_vocabulary(["a"], [1], 9) == [*SPECIAL_TOKENS, "a"]
    with pytest.raises(SettingsError, match="alphabet = 0: expected the number of characters, 1 or more"):
        learn_vocabulary(["a"], [1], 60, alphabet=0)


def test_size_may_be_larger_than_memory() -> None:
    words, counts = ["abab", "aab"], [3, 2]
    assert learn_vocabulary(words, counts, 10**30) == learn_vocabulary(words, counts, 100)


def test_tokens_per_word_are_as_few_as_those_of_tokenizers(shared_data: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    with (shared_data / "text/wikipedia-small/wiki_00").open(encoding="utf-8") as file:
        text = [line for line in file.read(2_500_000).splitlines() if not line.startswith(("<doc", "</doc"))]
    held_out, train = text[::5], [line for index, line in enumerate(text) if index % 5]
    size = 2000

    peer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    peer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    peer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=list(SPECIAL_TOKENS), limit_alphabet=1000, show_progress=False
    )
    peer.train_from_iterator(train, trainer)
    peer_ids = peer.get_vocab(with_added_tokens=True)

    codes, bounds, _ = split_words(train, unicode_tables())
    characters = codes.tobytes().decode("utf-32-le", "surrogatepass")
    counts = Counter(characters[a:b] for a, b in pairwise(bounds))
    our_tokens = learn_vocabulary(list(counts), counts.values(), size)
    assert len(our_tokens) == size

    def tokens_per_word(tokens: list[str]) -> float:
        encoding = Tokenizer(Vocabulary(tokens)).encode_batch(held_out, add_special_tokens=False)
        words = np.count_nonzero(np.diff(encoding.word_ids, prepend=-1))  # a new word changes the index
        return len(encoding.input_ids) / words

    assert tokens_per_word(our_tokens) < 1.01 * tokens_per_word(sorted(peer_ids, key=peer_ids.__getitem__))
