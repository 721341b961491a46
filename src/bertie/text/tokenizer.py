"""The tokenizer: texts or pairs of texts -> ids, segments, character offsets; tokenizer files in and out."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertie.base.errors import ModelError, SettingsError
from bertie.base.files import read_json_object, write_json
from bertie.base.kernels import kernel
from bertie.text.added_tokens import encode_around, extended, read_added_tokens
from bertie.text.trie import SUFFIX, Trie, make_trie
from bertie.text.unicode import UNICODE_VERSION, code_points, unicode_tables
from bertie.text.vocabulary import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK, Vocabulary
from bertie.text.wordpiece import encode_kernel

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

VOCABULARY_FILE, TOKENIZER_FILE, CONFIG_FILE = "vocab.txt", "tokenizer.json", "tokenizer_config.json"
NO_LIMIT = 2**31 - 1
CHUNK_CHARACTERS = 1 << 17  # encoded at a time: what that takes beside the result stays in a core's cache


@dataclass(frozen=True)
class Encoding:
    """Encoded texts (or pairs of texts), one after the other.

    input_ids       int32 (T,)
    token_type_ids  int32 (T,)    0 in the first text of a pair, 1 in the second
    offsets         int32 (T, 2)  first character and end in the token's own text; (0, 0) for special tokens
    word_ids        int32 (T,)    which word of its own text; -1 for special tokens
    bounds          int64 (n+1,)  tokens of text i: bounds[i] to bounds[i + 1]
    """

    input_ids: Int32s
    token_type_ids: Int32s
    offsets: Int32s
    word_ids: Int32s
    bounds: Int64s

    def __len__(self) -> int:
        return len(self.bounds) - 1


class Tokenizer:
    """The tokenizer of BERT: google-research/bert's FullTokenizer, with offsets.

    Special tokens in a text are plain text, but for `added_tokens`, which are part of the vocabulary.
    A stripped accent belongs to the piece of the character before it in its word (the `tokenizers` package
    leaves one that ends a word out); a word that has no pieces, or more than `max_word_characters` characters
    once normalised, is one [UNK] with the offsets of the word. google's limit is 200; 100 is what
    `transformers` applies, whatever its files say.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        lowercase: bool = True,
        max_word_characters: int = 100,
        added_tokens: tuple[str, ...] = (),
    ) -> None:
        self.vocabulary = vocabulary
        self.lowercase = lowercase
        self.max_word_characters = max_word_characters
        self.added_tokens = tuple(sorted(added_tokens, key=vocabulary.ids.__getitem__))

    @classmethod
    def load(cls, path: str | Path, lowercase: bool | None = None) -> "Tokenizer":
        """Read a directory that holds vocab.txt or tokenizer.json, or a vocab.txt alone.

        `lowercase` overrules the directory; where nothing says, a text is lower-cased unless the vocabulary
        has upper-case letters. `transformers` takes any such vocabulary for an uncased one.

        Raises:
            ModelError: the path is missing or holds no vocabulary, or it asks for another normalisation.
            DataError: a file in it is not JSON.
        """
        path = Path(path)
        if not path.is_dir():
            vocabulary = Vocabulary.load(path)
            return cls(vocabulary, not vocabulary.is_cased if lowercase is None else lowercase)
        config = read_json_object(path / CONFIG_FILE)
        fast = read_json_object(path / TOKENIZER_FILE)
        model, normalizer = fast.get("model") or {}, fast.get("normalizer") or {}
        _check_kind(path, config, fast)
        added = read_added_tokens(path, config, fast)
        if (path / VOCABULARY_FILE).exists() or not model:
            vocabulary = Vocabulary.load(path / VOCABULARY_FILE)
        else:
            ids = model["vocab"] | added.ids
            if sorted(ids.values()) != list(range(len(ids))):
                raise ModelError(f"{path / TOKENIZER_FILE}: the ids have gaps; fill them with [unused1], …")
            vocabulary = Vocabulary(sorted(ids, key=ids.__getitem__), str(path / TOKENIZER_FILE))
        vocabulary = extended(vocabulary, added, str(path))
        if lowercase is None:
            said = config.get("do_lower_case", normalizer.get("lowercase"))
            lowercase = not vocabulary.is_cased if said is None else bool(said)
        for settings, file in ((config, CONFIG_FILE), (normalizer, TOKENIZER_FILE)):
            if settings.get("strip_accents") not in (None, lowercase):
                raise ModelError(
                    f"{path / file}: strip_accents differs from lower-casing, which BERT's does not"
                )
        limit = model.get("max_input_chars_per_word", 100)
        return cls(vocabulary, lowercase, limit, added.special)

    def save(self, directory: str | Path, model_max_length: int = 512) -> None:
        """Write vocab.txt, tokenizer.json and tokenizer_config.json, which Hugging Face's libraries load.

        `model_max_length` is the most tokens the model has positions for; 512 is every released model's.
        They give the same ids, but for special tokens in a text, which they protect, for private-use and
        newer characters, and for the final sigma.
        """
        directory = Path(directory)
        self.vocabulary.save(directory / VOCABULARY_FILE)
        write_json(directory / TOKENIZER_FILE, _tokenizer_json(self))
        config: dict[str, Any] = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.lowercase,
            "model_max_length": model_max_length,
            "pad_token": PAD,
            "unk_token": UNK,
            "cls_token": CLS,
            "sep_token": SEP,
            "mask_token": MASK,
        }
        # Under the name of transformers 4, which 5 reads too; 4 fails at a list under that of 5 (#45376).
        if self.added_tokens:
            config["additional_special_tokens"] = list(self.added_tokens)
        write_json(directory / CONFIG_FILE, config)

    @classmethod
    def may_replace(cls, directory: Path) -> bool:
        """Whether a directory holds nothing but what `save` wrote, or is not there.

        Raises:
            ModelError, DataError: it holds a tokenizer that cannot be read.
        """
        files = directory.iterdir() if directory.exists() else ()
        names = {file.name for file in files}
        if TOKENIZER_FILE not in names:
            return not names
        others = names - {VOCABULARY_FILE, TOKENIZER_FILE, CONFIG_FILE}
        return not others and read_json_object(directory / TOKENIZER_FILE) == _tokenizer_json(
            cls.load(directory)
        )

    def encode(self, text: str, pair: str | None = None, max_length: int | None = None) -> Encoding:
        """Encode one text or one pair: [CLS] text [SEP] pair [SEP]. See `encode_batch`."""
        return self.encode_batch([text], None if pair is None else [pair], max_length=max_length)

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        add_special_tokens: bool = True,
        max_length: int | None = None,
    ) -> Encoding:
        """Encode texts, or pairs of texts of which `pairs` holds the second ones.

        More than `max_length` tokens are cut at the end, of a pair from the longer text, from the second
        when both are equal (google-research/bert run_classifier.py, _truncate_seq_pair).

        Raises:
            SettingsError: `max_length` leaves no room for the special tokens.
        """
        parts = 1 if pairs is None else 2
        assert pairs is None or len(pairs) == len(texts)
        special = (parts + 1) * add_special_tokens
        room = NO_LIMIT if max_length is None else max_length - special
        if room < 0:
            raise SettingsError(f"max_length={max_length}: at least {special}, for the special tokens")
        cls_id, sep_id = (self.vocabulary.cls_id, self.vocabulary.sep_id) if add_special_tokens else (-1, -1)
        columns = [np.empty((0, *shape), dtype=np.int32) for shape in ((), (), (2,), ())]
        bounds = np.zeros(len(texts) + 1, dtype=np.int64)
        cuts = _cut_into_chunks(texts)
        for chunk, (first, last) in enumerate(pairwise(cuts), start=1):
            pair = pairs[first:last] if pairs is not None else ()
            pieces, piece_bounds = self._pieces([*texts[first:last], *pair])
            used, more = int(bounds[first]), len(pieces) + special * (last - first)
            if used + more > len(columns[0]):  # the chunks to come are likely to be as long
                columns = _longer(columns, used, used + more + more * (len(cuts) - 1 - chunk) * 9 // 8)
            assemble(pieces, piece_bounds, room, cls_id, sep_id, bounds[first : last + 1], *columns)
        input_ids, token_type_ids, offsets, word_ids = (column[: bounds[-1]] for column in columns)
        return Encoding(input_ids, token_type_ids, offsets, word_ids, bounds)

    def _pieces(self, texts: Sequence[str]) -> tuple[Int32s, Int64s]:
        """What `encode_kernel` gives."""
        if self.added_tokens:
            special = {token: self.vocabulary.ids[token] for token in self.added_tokens}
            return encode_around(texts, special, self._word_pieces)
        return self._word_pieces(texts)

    def _word_pieces(self, texts: Sequence[str]) -> tuple[Int32s, Int64s]:
        pieces, bounds = encode_kernel(
            *code_points(texts),
            unicode_tables(),
            self.lowercase,
            self._trie,
            self.vocabulary.unk_id,
            self.max_word_characters,
        )
        return pieces, bounds

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The tokens of `ids`."""
        return [self.vocabulary.tokens[token_id] for token_id in ids]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """A readable text: pieces joined, no space before . ? ! and the comma, as `tokenizers` does it."""
        words: list[str] = []
        for token in self.tokens(ids):
            if skip_special_tokens and token in (*SPECIAL_TOKENS, *self.added_tokens):
                continue
            if words and token.startswith(SUFFIX):
                words.append(token.removeprefix(SUFFIX))
            elif not words or token in (".", "?", "!", ","):
                words.append(token)
            else:
                words.append(f" {token}")
        return "".join(words)

    @cached_property
    def _trie(self) -> Trie:  # much of what a tokenizer takes to load, and many are never asked for pieces
        return make_trie(self.vocabulary.tokens, self.max_word_characters)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that the ids of a text depend on: 64 hexadecimal digits."""
        parts = [self.vocabulary.tokens, self.lowercase, self.max_word_characters, UNICODE_VERSION]
        parts += self.added_tokens
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _cut_into_chunks(texts: Sequence[str]) -> list[int]:
    """Where to cut a list of texts, its ends included, for chunks of about `CHUNK_CHARACTERS`."""
    chunk_of = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts))) // CHUNK_CHARACTERS
    cuts = np.flatnonzero(chunk_of[1:] != chunk_of[:-1]) + 1
    return [0, *cuts.tolist(), len(texts)]


def _longer(columns: list[Int32s], used: int, room: int) -> list[Int32s]:
    """Columns for `room` tokens that begin with the first `used` of these."""
    longer = [np.empty((room, *column.shape[1:]), dtype=np.int32) for column in columns]
    for old, new in zip(columns, longer, strict=True):
        new[:used] = old[:used]
    return longer


@kernel
def assemble(
    pieces: Int32s,
    piece_bounds: Int64s,
    room: int,
    cls_id: int,
    sep_id: int,
    bounds: Int64s,
    input_ids: Int32s,
    token_type_ids: Int32s,
    offsets: Int32s,
    word_ids: Int32s,
) -> None:
    """Truncate, pair and frame encoded texts, into the arrays of `Encoding`, from bounds[0] on.

    `pieces` holds all first texts, then all second ones where there are pairs; a cls_id of -1 frames nothing.
    """
    n = len(bounds) - 1
    parts = (len(piece_bounds) - 1) // max(n, 1)
    kept = np.zeros(2, dtype=np.int64)
    at = bounds[0]
    for i in range(n):
        for part in range(parts):
            text = part * n + i
            kept[part] = piece_bounds[text + 1] - piece_bounds[text]
        while kept[0] + kept[1] > room:
            kept[0 if kept[0] > kept[1] else 1] -= 1
        if cls_id >= 0:
            input_ids[at], token_type_ids[at], word_ids[at] = cls_id, 0, -1
            offsets[at, 0], offsets[at, 1] = 0, 0
            at += 1
        for part in range(parts):
            begin = piece_bounds[part * n + i]
            for row in range(begin, begin + kept[part]):
                input_ids[at] = pieces[row, 0]
                offsets[at, 0] = pieces[row, 1]
                offsets[at, 1] = pieces[row, 2]
                word_ids[at] = pieces[row, 3]
                token_type_ids[at] = part
                at += 1
            if cls_id >= 0:
                input_ids[at], token_type_ids[at], word_ids[at] = sep_id, part, -1
                offsets[at, 0], offsets[at, 1] = 0, 0
                at += 1
        bounds[i + 1] = at


def _check_kind(path: Path, config: dict[str, Any], fast: dict[str, Any]) -> None:
    """Refuse tokenizers that are not BERT's own, whatever class they are read by.

    Raises:
        ModelError: it is another.
    """
    model, normalizer = fast.get("model") or {}, fast.get("normalizer") or {}
    prefix = "continuing_subword_prefix"
    for file, key, found, expected in (
        (TOKENIZER_FILE, "model", model.get("type"), "WordPiece"),
        (TOKENIZER_FILE, prefix, model.get(prefix), SUFFIX),
        (TOKENIZER_FILE, "pre_tokenizer", (fast.get("pre_tokenizer") or {}).get("type"), "BertPreTokenizer"),
        (TOKENIZER_FILE, "normalizer", normalizer.get("type"), "BertNormalizer"),
        (TOKENIZER_FILE, "clean_text", normalizer.get("clean_text"), True),
        (TOKENIZER_FILE, "handle_chinese_chars", normalizer.get("handle_chinese_chars"), True),
        (CONFIG_FILE, "tokenize_chinese_chars", config.get("tokenize_chinese_chars"), True),
    ):
        if found not in (None, expected):
            raise ModelError(f"{path / file}: {key} is {found!r}, but of BERT's own tokenizer {expected!r}")
    name = config.get("tokenizer_class")
    if not fast and name not in (None, "BertTokenizer", "BertTokenizerFast"):
        raise ModelError(
            f"{path / CONFIG_FILE}: tokenizer_class is {name!r}; only BertTokenizer can be loaded"
        )


def _tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """The content of tokenizer.json, version 1.0 of the format of `tokenizers`."""
    vocabulary = tokenizer.vocabulary
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": token_id, "content": token, **flags}
            for token_id, token in sorted(
                (vocabulary.ids[token], token) for token in (*SPECIAL_TOKENS, *tokenizer.added_tokens)
            )
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,  # as lowercase
            "lowercase": tokenizer.lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "BertProcessing",
            "sep": [SEP, vocabulary.sep_id],
            "cls": [CLS, vocabulary.cls_id],
        },
        "decoder": {"type": "WordPiece", "prefix": SUFFIX, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": UNK,
            "continuing_subword_prefix": SUFFIX,
            "max_input_chars_per_word": tokenizer.max_word_characters,
            "vocab": vocabulary.ids,
        },
    }
