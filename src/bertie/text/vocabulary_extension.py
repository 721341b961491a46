"""Learn more entries for a vocabulary, and find which entries are new.

A tokenizer that was learnt on other text splits the words of a domain into many tokens. The entries
that are learnt here are those with which it needs the fewest tokens for a given text. Each candidate
is a run of adjacent tokens of a word, joined. The candidate that saves the most tokens is added, the
words are split again, and so on (docs/decisions/vocabulary_learning.md).

The savings are exact: they are counted by splitting words as the tokenizer will, by the longest match
from the left, so a new entry that changes the split of the rest of a word counts with its effect.
"""

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from bertie.text.tokenizer import Tokenizer
from bertie.text.trie import CONTINUATION_PREFIX
from bertie.text.vocabulary import Vocabulary

MIN_OCCURRENCES = 2  # of a new entry in the text; a model learns little from a single one
UNUSED_ENTRY = re.compile(r"\[unused\d+\]")  # reserved in the vocabularies of google-research/bert


def learn_entries(
    vocabulary: Collection[str], words: Sequence[Sequence[str]], counts: Sequence[int], number: int
) -> tuple[list[str], int]:
    """Learn the entries that save the most tokens on counted words.

    Args:
        vocabulary: the tokens of the existing vocabulary.
        words: the words as the vocabulary splits them; the order does not matter.
        counts: how often each word occurs.
        number: the number of entries to learn.

    Returns:
        The new entries in the order in which they were learnt: words, or continuations that begin
        with ##. With them, the tokenizer uses each at least `MIN_OCCURRENCES` times on these words.
        There are fewer than `number` if no others save tokens. Also the number of tokens saved.
    """
    table = _WordTable(vocabulary, words, counts)
    before = table.total_length()
    # A saving is only an estimate, until its entry is at the top of the heap and it is counted.
    heap = [(-saving, entry) for entry, saving in table.estimate_savings().items()]
    heapq.heapify(heap)
    entries: list[str] = []
    while True:
        while heap and len(entries) < number:
            _, entry = heapq.heappop(heap)
            saving, splits = table.split_with(entry)
            if saving <= 0 or table.count(entry, splits) < MIN_OCCURRENCES:
                continue
            if heap and (-saving, entry) > heap[0]:
                heapq.heappush(heap, (-saving, entry))
                continue
            table.add(entry, splits)
            entries.append(entry)
        # Later entries can make earlier ones rare.
        rare = {entry for entry in entries if table.count(entry) < MIN_OCCURRENCES}
        if not rare:
            return entries, before - table.total_length()
        table.remove(rare)
        entries = [entry for entry in entries if entry not in rare]


def extend_vocabulary(
    vocabulary: Vocabulary, entries: Sequence[str], slots: Sequence[int] = ()
) -> Vocabulary:
    """Return a vocabulary with more entries, in which all tokens keep their ids.

    Args:
        vocabulary: the vocabulary.
        entries: the new entries.
        slots: ids of unused entries, which the first new entries replace; the others are appended.
    """
    tokens = list(vocabulary.tokens)
    for slot, entry in zip(slots, entries, strict=False):
        tokens[slot] = entry
    return Vocabulary([*tokens, *entries[len(slots) :]])


def find_unused_slots(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the entries `[unusedN]` that a text cannot produce."""
    used = {*tokenizer.never_split, *(token.content for token in tokenizer.added_tokens)}
    tokens = tokenizer.vocabulary.tokens
    return [i for i, token in enumerate(tokens) if UNUSED_ENTRY.fullmatch(token) and token not in used]


def find_new_ids(old: Tokenizer, new: Tokenizer) -> list[int] | None:
    """Return the ids that are new in an extended tokenizer.

    Return None if it is not an extension. In an extension the tokens keep their ids, except that entries
    `[unusedN]` may be replaced, and all options are the same.
    """
    tokens = new.vocabulary.tokens
    slots = {*find_unused_slots(old)}
    changed = [i for i, token in enumerate(old.vocabulary.tokens) if tokens[i : i + 1] != (token,)]
    if len(tokens) < len(old.vocabulary) or not slots.issuperset(changed):
        return None
    if any(token.content not in old.vocabulary.ids for token in new.added_tokens):
        return None
    if new.replace(vocabulary=old.vocabulary).fingerprint != old.fingerprint:
        return None
    return [*changed, *range(len(old.vocabulary), len(tokens))]


def split_entry(entry: str, vocabulary: Vocabulary) -> list[int]:
    """Return the ids of an entry's tokens in another vocabulary.

    A continuation `##x` is split into continuations. An entry that the tokens cannot spell is [UNK].
    """
    is_inside = entry.startswith(CONTINUATION_PREFIX)
    text = entry.removeprefix(CONTINUATION_PREFIX)
    tokens = match_longest(text, vocabulary.ids, len(text), is_inside)
    return [vocabulary.ids[token] for token in tokens] or [vocabulary.unk_id]


def match_longest(
    word: str, tokens: Collection[str], longest: int, is_inside: bool = False
) -> tuple[str, ...]:
    """Split a word by the longest match from the left, as the tokenizer does.

    Args:
        word: the normalised word, or the rest of one.
        tokens: the vocabulary.
        longest: the maximum length of a token.
        is_inside: whether the first token continues a word.

    Returns:
        The tokens; empty if the vocabulary cannot spell the word.
    """
    split = []
    start = 0
    while start < len(word):
        prefix = CONTINUATION_PREFIX if start or is_inside else ""
        for stop in range(min(len(word), start + longest), start, -1):
            token = prefix + word[start:stop]
            if token in tokens:
                split.append(token)
                start = stop
                break
        else:
            return ()
    return tuple(split)


def _join(tokens: Sequence[str]) -> str:
    """Join adjacent tokens of a word into one."""
    return tokens[0] + "".join(token.removeprefix(CONTINUATION_PREFIX) for token in tokens[1:])


class _WordTable:
    """The words of several tokens, as the vocabulary so far splits them.

    It contains the entries that were learnt so far.
    """

    def __init__(
        self, vocabulary: Collection[str], words: Sequence[Sequence[str]], counts: Sequence[int]
    ) -> None:
        self.tokens = {*vocabulary}
        self.longest = max(map(len, self.tokens))
        self.splits = [tuple(word) for word in words]
        self.texts = [_join(word) for word in words]
        self.counts = [int(count) for count in counts]
        self.words_with: dict[str, set[int]] = defaultdict(set)  # the words with each token
        for index, split in enumerate(self.splits):
            for token in split:
                self.words_with[token].add(index)

    def estimate_savings(self) -> Counter[str]:
        """Return an estimate of the number of tokens that each candidate saves."""
        savings: Counter[str] = Counter()
        for split, count in zip(self.splits, self.counts, strict=True):
            for start in range(len(split)):
                for stop in range(start + 2, len(split) + 1):
                    savings[_join(split[start:stop])] += count * (stop - start - 1)
        return savings

    def total_length(self) -> int:
        """Return the number of tokens of all occurrences of the words."""
        return sum(len(split) * count for split, count in zip(self.splits, self.counts, strict=True))

    def split_with(self, entry: str) -> tuple[int, dict[int, tuple[str, ...]]]:
        """Split the words again with one more entry.

        Returns:
            The number of tokens saved, and the new splits of the words that change. Nothing is saved
            by an entry that makes a word [UNK], because no tokens spell the rest of the word.
        """
        is_inside = entry.startswith(CONTINUATION_PREFIX)
        text = entry.removeprefix(CONTINUATION_PREFIX)
        # Wherever the entry will match, its longest prefix that is a token matches now.
        first = match_longest(text, self.tokens, self.longest, is_inside)
        longest, saving, splits = max(self.longest, len(entry)), 0, {}
        self.tokens.add(entry)
        for index in self.words_with[first[0]] if first else ():
            word, old = self.texts[index], self.splits[index]
            if text in word and (new := match_longest(word, self.tokens, longest)) != old:
                splits[index] = new
                saving += self.counts[index] * (len(old) - len(new))
        self.tokens.remove(entry)
        return (saving, splits) if all(splits.values()) else (0, {})

    def count(self, entry: str, splits: Mapping[int, tuple[str, ...]] | None = None) -> int:
        """Return how often an entry occurs in `splits`, by default in the current ones."""
        if splits is None:
            splits = {index: self.splits[index] for index in self.words_with[entry]}
        return sum(self.counts[index] * split.count(entry) for index, split in splits.items())

    def add(self, entry: str, splits: Mapping[int, tuple[str, ...]]) -> None:
        """Add an entry, with the new splits that `split_with` returned."""
        self.tokens.add(entry)
        self.longest = max(self.longest, len(entry))
        self._replace_splits(splits)

    def remove(self, entries: set[str]) -> None:
        """Remove entries, and split the words with them again."""
        indices = set[int]().union(*(self.words_with[entry] for entry in entries))
        self.tokens -= entries
        self._replace_splits({i: match_longest(self.texts[i], self.tokens, self.longest) for i in indices})

    def _replace_splits(self, splits: Mapping[int, tuple[str, ...]]) -> None:
        for index, split in splits.items():
            for token in self.splits[index]:
                self.words_with[token].discard(index)
            for token in split:
                self.words_with[token].add(index)
            self.splits[index] = split
