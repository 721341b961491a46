"""Tokens that Hugging Face's files add to a vocabulary, such as [E1] or @USER.

An added token is always one token, and found anywhere in a text, by the rules of the package `tokenizers`
(`token_search`).
"""

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertie.base.errors import ModelError
from bertie.text.token_search import LSTRIP, RSTRIP, SINGLE_WORD, Patterns, normalize_text
from bertie.text.trie import CONTINUATION_PREFIX, build_trie
from bertie.text.unicode import UnicodeTables
from bertie.text.vocabulary import Vocabulary


class AddedToken(NamedTuple):
    """An added token and the flags that it has in the package `tokenizers`.

    content      the token
    single_word  it is only found where no letter, digit or underscore is next to it
    lstrip       it swallows the white space before it
    rstrip       it swallows the white space behind it
    normalized   it is normalised and then found in the normalised text; otherwise in the text itself
    special      decoding leaves it out
    only_added   the vocabulary of WordPiece lacks it, so that a word is not split into it

    Example:
        >>> AddedToken("@USER").normalized, AddedToken.make_special("[E1]").normalized
        (True, False)
    """

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False
    only_added: bool = False

    @classmethod
    def make_special(cls, content: str) -> "AddedToken":
        """Return a special token, which is found in the text itself."""
        return cls(content, normalized=False, special=True)

    @property
    def may_span_words(self) -> bool:
        """Whether the token may contain or swallow white space."""
        return self.lstrip or self.rstrip or any(map(str.isspace, self.content))


class AddedTokens(NamedTuple):
    """The tokens that a tokenizer directory adds to its vocabulary.

    ids     the ids of all added tokens
    tokens  the added tokens, without the five special tokens of BERT
    """

    ids: dict[str, int]
    tokens: tuple[AddedToken, ...]


def mark_only_added(tokens: Sequence[AddedToken], wordpiece: Container[str]) -> tuple[AddedToken, ...]:
    """Mark the added tokens that the vocabulary of WordPiece lacks."""
    return tuple(token._replace(only_added=token.content not in wordpiece) for token in tokens)


def extend_vocabulary(vocabulary: Vocabulary, added: AddedTokens, source: str) -> Vocabulary:
    """Append added tokens to a vocabulary, unless it already contains them.

    Ids between the vocabulary and an added token stay unused.

    Args:
        vocabulary: the vocabulary.
        added: the added tokens.
        source: the origin of the tokens in messages, such as the path of the directory.

    Raises:
        ModelError: an added token has the id of another token.
    """
    tokens = list(vocabulary.tokens)
    for token, token_id in sorted(added.ids.items(), key=lambda item: item[1]):
        if token not in vocabulary.ids and len(tokens) <= token_id < 2 * len(tokens):
            tokens += [""] * (token_id + 1 - len(tokens))
        if token not in vocabulary.ids and token_id < len(tokens):
            tokens[token_id] = tokens[token_id] or token
        if token_id >= len(tokens) or tokens[token_id] != token:
            found = f"is {tokens[token_id]!r}" if token_id < len(tokens) else "does not exist"
            raise ModelError(
                f"{source}: the added token {token!r} has the id {token_id}, which {found} in the "
                "vocabulary; the files are of different models, so copy all of them again from one model"
            )
    for content, *_ in added.tokens:
        if content not in vocabulary.ids and content not in added.ids:
            tokens.append(content)  # as `transformers` does
    return Vocabulary(tokens, source)


def check_normalized_tokens(tokens: Sequence[AddedToken], tables: UnicodeTables, source: str) -> None:
    """Check that something is left of each added token when it is normalised.

    Raises:
        ModelError: nothing is left of a token. The message begins with `source`.
    """
    for token in tokens:
        if token.normalized and not normalize_text(token.content, tables):
            raise ModelError(
                f"{source}: nothing is left of the added token {token.content!r} when it is normalised, so "
                "`transformers` splits every text into characters; remove the token, or set its flag "
                "'normalized' to false"
            )


def make_patterns(
    tokens: Sequence[AddedToken], ids: Mapping[str, int], tables: UnicodeTables
) -> tuple[Patterns, Patterns]:
    """Return the tokens to find in a text, and in a normalised text.

    If the normalised forms of two tokens are equal, the first one counts. (`tokenizers` 0.23 chooses one at
    random.)

    Args:
        tokens: the added tokens.
        ids: their ids.
        tables: the Unicode tables, which decide how texts are normalised.
    """
    plain: dict[str, AddedToken] = {}
    normalized: dict[str, AddedToken] = {}
    for token in tokens:
        if token.normalized:
            normalized.setdefault(normalize_text(token.content, tables), token)
        else:
            plain.setdefault(token.content, token)
    return _make_patterns(plain, ids), _make_patterns(normalized, ids)


def _make_patterns(tokens: Mapping[str, AddedToken], ids: Mapping[str, int]) -> Patterns:
    """Return tokens, by the characters to search for, for the kernels."""
    # As continuations, so that ## at the beginning of an added token has no special meaning.
    keys = [CONTINUATION_PREFIX + content for content in tokens]
    flags = [
        SINGLE_WORD * token.single_word | LSTRIP * token.lstrip | RSTRIP * token.rstrip
        for token in tokens.values()
    ]
    return Patterns(
        build_trie(keys, max(map(len, keys), default=0)),
        np.array([ids[token.content] for token in tokens.values()], dtype=np.int32),
        np.array(flags, dtype=np.int32),
    )
