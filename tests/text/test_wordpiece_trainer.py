"""The learner against a slow one written from the definition, and against the trainer of `tokenizers`."""

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
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.text.wordpiece import split_words
from bertie.text.wordpiece_trainer import Merges, learn_vocabulary

TABLES = st.dictionaries(st.text("aabcd", min_size=1, max_size=8), st.integers(1, 5), min_size=1, max_size=12)


def learn_slowly(table: dict[str, int], size: int, merges: Merges) -> list[str]:
    """By its definition: count all pairs and pieces anew, merge the pair that gains most everywhere."""
    words = [([word[0], *(f"##{c}" for c in word[1:])], count) for word, count in table.items()]
    tokens = [*SPECIAL_TOKENS, *sorted({piece for pieces, _ in words for piece in pieces})]
    while len(tokens) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        parts: Counter[str] = Counter()
        for pieces, count in words:
            for piece in pieces:
                parts[piece] += count
            for pair in pairwise(pieces):
                pairs[pair] += count
        if not pairs:
            break
        gains: dict[tuple[str, str], float] = dict(pairs)
        if merges == "likelihood":
            for (left, right), count in pairs.items():
                ratio = count * parts.total() / (parts[left] * parts[right])
                gains[left, right] = count * math.log(ratio)
        left, right = min(gains, key=lambda pair: (-gains[pair], pair))
        merged = left + right.removeprefix("##")
        for pieces, _ in words:
            index = 0
            while index + 1 < len(pieces):
                if (pieces[index], pieces[index + 1]) == (left, right):
                    pieces[index : index + 2] = [merged]
                index += 1
        if merged not in tokens:
            tokens.append(merged)
    return tokens


@pytest.mark.parametrize("merges", ["frequency", "likelihood"])
@settings(max_examples=300)
@given(TABLES, st.integers(25, 60))
@example({"aaaaa": 4, "aaab": 3, "baaaa": 2}, 40)  # overlapping places of one pair
@example({"abc": 1, "abd": 3, "bcd": 2, "abcd": 2}, 40)  # one piece spelt by two pairs
@example({"ab": 2**40, "ba": 2**40 - 1, "cab": 2**40 + 1}, 40)  # products beyond 64 bits
def test_equals_the_definition(merges: Merges, table: dict[str, int], size: int) -> None:
    assert learn_vocabulary(list(table), table.values(), size, merges) == learn_slowly(table, size, merges)


@pytest.mark.parametrize("merges", ["frequency", "likelihood"])
def test_equals_the_definition_on_real_words(merges: Merges) -> None:
    words = re.findall(r"[a-z]+", (learn_vocabulary.__doc__ + __doc__).lower())
    table = dict(Counter(words))
    assert learn_vocabulary(list(table), table.values(), 600, merges) == learn_slowly(table, 600, merges)


@pytest.mark.parametrize("merges", ["frequency", "likelihood"])
@given(TABLES, st.randoms(use_true_random=False))
def test_order_of_the_words_is_of_no_account(
    merges: Merges, table: dict[str, int], shuffler: random.Random
) -> None:
    items = list(table.items())
    learnt = learn_vocabulary([word for word, _ in items], [count for _, count in items], 60, merges)
    shuffler.shuffle(items)
    again = learn_vocabulary([word for word, _ in items], [count for _, count in items], 60, merges)
    assert again == learnt


def test_order_of_the_entries() -> None:
    tokens = learn_vocabulary(["low", "lower", "wow"], [5, 2, 1], 60)
    assert tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokens[5:11] == ["##e", "##o", "##r", "##w", "l", "w"]
    assert tokens[11:] == ["##ow", "low", "##er", "lower", "wow"]  # 8, 7, 2, 2 and 1 times


def test_counts_beyond_32_bits_are_exact() -> None:
    table = {"ab": 2**40, "cd": 2**40 + 1, "ef": 2**40 - 1}
    assert learn_vocabulary(list(table), table.values(), 60)[-3:] == ["cd", "ab", "ef"]


def test_rare_characters_leave_the_alphabet_and_take_their_words_along() -> None:
    common = {chr(0x4E00 + index) * 2: 10 for index in range(1000)}
    tokens = learn_vocabulary([*common, "xy"], [*common.values(), 9], 6000)
    assert len(tokens) == 5 + 2000 + 1000
    assert not {"x", "##y", "xy"} & set(tokens)


def test_the_alphabet_may_be_another() -> None:
    words = [chr(0x4E00 + index) for index in range(1500)]
    assert len(learn_vocabulary(words, [1] * 1500, 30522)) == 5 + 1000
    assert len(learn_vocabulary(words, [1] * 1500, 30522, alphabet=1400)) == 5 + 1400


def test_a_small_vocabulary_is_at_most_half_alphabet() -> None:
    words = [chr(0x4E00 + index) * 3 for index in range(500)]
    tokens = learn_vocabulary(words, range(1, 501), 205)
    assert sum(len(token.removeprefix("##")) == 1 for token in tokens[5:]) == 100
    assert len(tokens) == 205


def test_words_too_long_for_the_tokenizer_are_left_out() -> None:
    assert learn_vocabulary(["a" * 101, "bc"], [10, 1], 60)[5:] == ["##c", "b", "bc"]


def test_too_small_a_size_is_refused() -> None:
    with pytest.raises(SettingsError, match="size = 8: too small"):
        learn_vocabulary(["a"], [1], 8)


def test_tokens_a_word_against_the_trainer_of_tokenizers(shared_data: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    with (shared_data / "text/wikipedia-small/wiki_00").open(encoding="utf-8") as file:
        text = [line for line in file.read(2_500_000).splitlines() if not line.startswith(("<doc", "</doc"))]
    held_out, train = text[::5], [line for index, line in enumerate(text) if index % 5]
    size = 2000

    theirs = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    theirs.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=list(SPECIAL_TOKENS), limit_alphabet=1000, show_progress=False
    )
    theirs.train_from_iterator(train, trainer)
    their_ids = theirs.get_vocab(with_added_tokens=True)

    codes, bounds = split_words(train, True)
    characters = codes.tobytes().decode("utf-32-le", "surrogatepass")
    counts = Counter(characters[a:b] for a, b in pairwise(bounds))
    our_tokens = learn_vocabulary(list(counts), counts.values(), size)
    assert len(our_tokens) == size

    def tokens_a_word(tokens: list[str]) -> float:
        encoding = Tokenizer(Vocabulary(tokens)).encode_batch(held_out, add_special_tokens=False)
        return len(encoding.input_ids) / np.count_nonzero(
            np.diff(encoding.word_ids, prepend=-1) != 0
        )  # a word begins where the word's number changes

    ours, peer = tokens_a_word(our_tokens), tokens_a_word(sorted(their_ids, key=their_ids.__getitem__))
    assert ours < 1.01 * peer
