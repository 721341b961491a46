"""BERT's tokenizer: texts to token ids, and back."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import index
from pathlib import Path

import numpy as np

from bertie.base.arguments import check_flag, check_integer, checked
from bertie.base.arrays import Int64s, UInt32s
from bertie.base.checksums import SUMS_FILE, verify
from bertie.base.errors import DataError, SettingsError
from bertie.base.files import check_creatable, read_json_object, write_json
from bertie.base.texts import check_text, list_items, list_pairs, list_texts
from bertie.text.added_tokens import (
    AddedToken,
    check_normalized_tokens,
    extend_vocabulary,
    make_patterns,
    mark_only_added,
)
from bertie.text.encoding import NO_LIMIT, Encoding, encode_in_chunks
from bertie.text.matching import character_table, encode_texts
from bertie.text.token_rows import TokenRows
from bertie.text.token_search import NO_TOKEN, Patterns, cut_texts, join_parts
from bertie.text.tokenizer_files import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    VOCABULARY_FILE,
    read_vocabulary,
    tokenizer_config_json,
    tokenizer_json,
)
from bertie.text.trie import CONTINUATION_PREFIX, Trie, build_trie
from bertie.text.unicode import UNICODE_VERSION, UnicodeTables, code_points, unicode_tables
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.text.wordpiece import NeverSplit, make_never_split

MAX_WORD_CHARACTERS = 2**31 - 1  # of `tokenizers`, which has to load the files


class Tokenizer:
    """BERT's tokenizer, which splits text into WordPiece tokens.

    It gives the same ids as FullTokenizer of google-research/bert. Special tokens such as [MASK] in
    a text are plain text, except `added_tokens`. A word that the tokens of the vocabulary cannot
    spell becomes one [UNK] with the offsets of the word. A stripped accent belongs to the token of
    the character before it in its word. (The package `tokenizers` excludes an accent at the end of
    a word from the offsets.) Threads may share a tokenizer; encoding releases the interpreter lock.

    Args:
        vocabulary: the tokens and their ids.
        lowercase: lower-case texts and strip accents, as uncased models need.
        max_word_characters: a word with more characters than this, after normalisation, is [UNK].
            `transformers` always uses 100, whatever its files say; google-research/bert uses 200.
        added_tokens: tokens of the vocabulary that are found anywhere in a text, by the rules of the
            package `tokenizers`. A string is a special token; an `AddedToken` has flags.
        strip_accents: strip accents, or keep them; None does the same as `lowercase`.
        tokenize_chinese_chars: make each ideograph a word, as BERT does; otherwise ideographs are
            ordinary letters.
        never_split: words that are neither normalised nor split. Each is one token, or [UNK] if the
            vocabulary does not contain it. As in the slow BertTokenizer of `transformers` 4, such a
            word is surrounded by white space or ideographs; its normalised form counts, too.

    Attributes:
        vocabulary, lowercase, max_word_characters, tokenize_chinese_chars, never_split: the arguments.
        added_tokens: a tuple of `AddedToken`, sorted by id.
        strip_accents: True or False.

    Raises:
        SettingsError: an added token is not in the vocabulary, an argument has another type, or
            `max_word_characters` is less than 1.
        DataError: `never_split` is not a list of strings.

    Example:
        >>> from bertie.text.tokenizer import Tokenizer
        >>> from bertie.text.vocabulary import Vocabulary
        >>> special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        >>> vocabulary = Vocabulary([*special_tokens, "he", "play", "##ing"])
        >>> tokenizer = Tokenizer(vocabulary)
        >>> encoding = tokenizer.encode("He playing")
        >>> encoding.input_ids.tolist()
        [2, 5, 6, 7, 3]
        >>> tokenizer.convert_ids_to_tokens(encoding.input_ids)
        ['[CLS]', 'he', 'play', '##ing', '[SEP]']
        >>> tokenizer.decode(encoding.input_ids)
        'he playing'
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        lowercase: bool = True,
        max_word_characters: int = 100,
        added_tokens: Sequence[str | AddedToken] = (),
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool = True,
        never_split: tuple[str, ...] = (),
    ) -> None:
        if not isinstance(vocabulary, Vocabulary):
            is_path = isinstance(vocabulary, str | Path)
            advice = "load it with Tokenizer.load" if is_path else "write Vocabulary(tokens)"
            kind = type(vocabulary).__name__
            raise SettingsError(f"vocabulary: expected a Vocabulary, got {kind}; {advice}")
        self.vocabulary = vocabulary
        self.lowercase = lowercase
        self.max_word_characters = check_integer(
            "max_word_characters", max_word_characters, maximum=MAX_WORD_CHARACTERS
        )
        self.strip_accents = lowercase if strip_accents is None else strip_accents
        self.tokenize_chinese_chars = tokenize_chinese_chars
        for name in ("lowercase", "strip_accents", "tokenize_chinese_chars"):
            check_flag(name, getattr(self, name))
            setattr(self, name, bool(getattr(self, name)))  # a flag of numpy cannot be saved
        self.never_split = tuple(sorted({*list_texts(never_split, "never_split")} - {""}))
        added_tokens = [added_tokens] if isinstance(added_tokens, str) else added_tokens
        tokens = [
            AddedToken.make_special(token) if isinstance(token, str) else token for token in added_tokens
        ]
        if missing := [token.content for token in tokens if token.content not in vocabulary.ids]:
            raise SettingsError(f"added_tokens: add these to the vocabulary first: {', '.join(missing)}")
        self.added_tokens = tuple(sorted(tokens, key=lambda token: vocabulary.ids[token.content]))

    def __repr__(self) -> str:
        return f"Tokenizer({len(self.vocabulary):,} tokens, {'uncased' if self.lowercase else 'cased'})"

    def replace(self, vocabulary: Vocabulary | None = None, lowercase: bool | None = None) -> "Tokenizer":
        """Return a copy with another vocabulary or another casing.

        Args:
            vocabulary: the new vocabulary, which contains the added tokens.
            lowercase: whether to lower-case texts, and to strip accents unless the tokenizer does only
                one of both.

        Returns:
            The new tokenizer.

        Raises:
            SettingsError: an added token is not in the new vocabulary.

        Example:
            >>> tokenizer = Tokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "he"]))
            >>> tokenizer.replace(lowercase=False).strip_accents
            False
        """
        return Tokenizer(
            self.vocabulary if vocabulary is None else vocabulary,
            self.lowercase if lowercase is None else lowercase,
            self.max_word_characters,
            self.added_tokens,
            None if self.strip_accents == self.lowercase else self.strip_accents,
            self.tokenize_chinese_chars,
            self.never_split,
        )

    @classmethod
    @checked
    def load(cls, path: str | Path, lowercase: bool | None = None) -> "Tokenizer":
        """Load a tokenizer directory or a vocab.txt file.

        Args:
            path: a directory that contains vocab.txt or tokenizer.json, or a vocab.txt file.
            lowercase: overrides the setting of the directory. If neither is set, texts are
                lower-cased, unless the vocabulary has upper-case letters. (`transformers`
                lower-cases even then.)

        Returns:
            The tokenizer.

        Raises:
            SettingsError: `path` is not a path, or `lowercase` is not a flag.
            ModelError: the path does not exist, has no vocabulary, or contains a tokenizer of
                another kind than BERT's; its files differ from SHA256SUMS or from one another; or
                nothing is left of an added token when it is normalised.
            DataError: a file of the directory is not JSON.

        Example:
            >>> import tempfile
            >>> special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
            >>> vocabulary = Vocabulary([*special_tokens, "he", "play"])
            >>> with tempfile.TemporaryDirectory() as directory:
            ...     Tokenizer(vocabulary, lowercase=False).save(directory)
            ...     Tokenizer.load(directory).lowercase
            False
        """
        path = Path(path)
        if not path.is_dir():
            vocabulary = Vocabulary.load(path)
            return cls(vocabulary, not vocabulary.is_cased if lowercase is None else lowercase)
        from bertie.text import tokenizer_schemas as schemas  # imports pydantic, which takes 0.1 s

        verify(path)
        config, fast = schemas.read_tokenizer_files(path)
        model, normalizer = fast.model or schemas.FastModel(), fast.normalizer or schemas.Normalizer()
        added = schemas.read_added_tokens(path, config, fast)
        vocabulary = read_vocabulary(path, model.vocab, added.ids)
        if lowercase is None:
            setting = normalizer.lowercase if config.do_lower_case is None else config.do_lower_case
            lowercase = not vocabulary.is_cased if setting is None else setting
        added_tokens = mark_only_added(added.tokens, model.vocab or vocabulary.ids)
        vocabulary = extend_vocabulary(vocabulary, added, str(path))
        # Here null has a meaning: the same as lower-casing.
        has_setting = "strip_accents" in config.model_fields_set
        chinese = config.tokenize_chinese_chars
        tokenizer = cls(
            vocabulary,
            lowercase,
            model.max_input_chars_per_word,
            added_tokens,
            config.strip_accents if has_setting else normalizer.strip_accents,
            (normalizer.handle_chinese_chars if chinese is None else chinese) is not False,
            config.never_split or (),
        )
        check_normalized_tokens(tokenizer.added_tokens, tokenizer.unicode_tables, str(path))
        return tokenizer

    @checked
    def save(self, directory: str | Path, model_max_length: int = 512) -> None:
        """Write a tokenizer directory that Hugging Face's libraries can load.

        Writes vocab.txt, tokenizer.json and tokenizer_config.json. Hugging Face's libraries return
        the same ids, with four exceptions: special tokens in a text, which they recognise;
        private-use and newer characters; the final sigma; and truncated pairs. If there is room for an
        odd number of tokens, and each text has more than half of it, bertie keeps one token more of the
        first text, as the paper's code does, and they keep one more of the longer text, or of the second
        if both are equally long. They also ignore `never_split`, which only the slow tokenizers of
        `transformers` 4 apply.

        Args:
            directory: where to write; existing files are replaced.
            model_max_length: the number of positions that the model has. All models that were
                released with the paper have 512.

        Raises:
            SettingsError: `directory` is a URL or not a path, or cannot be created; or `model_max_length` is
                not a positive integer.
            ModelError: a token contains a line break.
            OSError: writing failed.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> tokenizer = Tokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "he"]))
            >>> with tempfile.TemporaryDirectory() as directory:
            ...     tokenizer.save(directory)
            ...     sorted(file.name for file in Path(directory).iterdir())
            ['tokenizer.json', 'tokenizer_config.json', 'vocab.txt']
        """
        check_integer("model_max_length", model_max_length)
        directory = Path(directory)
        check_creatable(directory)
        self.vocabulary.save(directory / VOCABULARY_FILE)
        write_json(directory / TOKENIZER_FILE, tokenizer_json(self))
        write_json(directory / CONFIG_FILE, tokenizer_config_json(self, model_max_length))

    @classmethod
    @checked
    def can_overwrite(cls, directory: str | Path) -> bool:
        """Check whether a directory is safe to replace with a tokenizer.

        Args:
            directory: the directory to check.

        Returns:
            True if the directory does not exist, is empty, or contains only files that `save`
            wrote.

        Raises:
            SettingsError: `directory` is not a path.
            ModelError, DataError: the directory contains a tokenizer that cannot be loaded.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> tokenizer = Tokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "he"]))
            >>> with tempfile.TemporaryDirectory() as directory:
            ...     tokenizer.save(directory)
            ...     before = Tokenizer.can_overwrite(Path(directory))
            ...     _ = (Path(directory) / "model.safetensors").write_bytes(b"")
            ...     before, Tokenizer.can_overwrite(Path(directory))
            (True, False)
        """
        directory = Path(directory)
        files = directory.iterdir() if directory.exists() else ()
        names = {file.name for file in files}
        if TOKENIZER_FILE not in names:
            return not names
        others = names - {VOCABULARY_FILE, TOKENIZER_FILE, CONFIG_FILE, SUMS_FILE}
        return not others and read_json_object(directory / TOKENIZER_FILE) == tokenizer_json(
            cls.load(directory)
        )

    def encode(self, text: str, pair: str | None = None, max_length: int | None = None) -> Encoding:
        """Encode one text, or one pair of texts, with [CLS] and [SEP].

        Args:
            text: the text, or the first text of a pair.
            pair: the second text of a pair.
            max_length: the maximum number of tokens, special tokens included; see `encode_batch`.

        Returns:
            An encoding with one text.

        Raises:
            DataError: an argument is not a string.
            SettingsError: `max_length` is not an integer, or leaves no room for the special tokens.

        Example:
            >>> special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
            >>> vocabulary = Vocabulary([*special_tokens, "he", "play", "##s"])
            >>> tokenizer = Tokenizer(vocabulary)
            >>> encoding = tokenizer.encode("he plays", "he")
            >>> tokenizer.convert_ids_to_tokens(encoding.input_ids)
            ['[CLS]', 'he', 'play', '##s', '[SEP]', 'he', '[SEP]']
            >>> encoding.token_type_ids.tolist()
            [0, 0, 0, 0, 0, 1, 1]
        """
        remedy = "encode_batch takes lists"
        texts = [check_text(text, "text", remedy)]
        pairs = None if pair is None else [check_text(pair, "pair", remedy)]
        return self.encode_batch(texts, pairs, max_length=max_length)

    def encode_batch(
        self,
        texts: str | Iterable[str],
        pairs: str | Iterable[str] | None = None,
        add_special_tokens: bool = True,
        max_length: int | None = None,
    ) -> Encoding:
        """Encode texts, or pairs of texts.

        Args:
            texts: a list of texts, or of the first texts of pairs; a string is one text.
            pairs: the second texts, in the same form and as many as `texts`.
            add_special_tokens: encode as [CLS] text [SEP], or as [CLS] text [SEP] pair [SEP].
            max_length: the maximum number of tokens, special tokens included. A longer text loses
                tokens at its end. A pair loses tokens one by one at the end of the longer text, or of
                the second if both are equally long (run_classifier.py, _truncate_seq_pair).

        Returns:
            The encoding of all texts or pairs.

        Raises:
            DataError: a text is not a string, or `texts` and `pairs` differ in length.
            SettingsError: `max_length` is not an integer, or leaves no room for the special tokens; or
                `add_special_tokens` is not a flag.

        Example:
            >>> special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
            >>> vocabulary = Vocabulary([*special_tokens, "he", "play", "##s"])
            >>> tokenizer = Tokenizer(vocabulary)
            >>> encoding = tokenizer.encode_batch(["he", "he plays he"], max_length=4)
            >>> for one in encoding:
            ...     tokenizer.convert_ids_to_tokens(one.input_ids)
            ['[CLS]', 'he', '[SEP]']
            ['[CLS]', 'he', 'play', '[SEP]']
            >>> tokenizer.encode_batch(["he plays"], add_special_tokens=False).input_ids.tolist()
            [5, 6, 7]
        """
        if pairs is None:
            texts = list_texts(texts)
        else:
            texts, pairs = list_pairs(texts, pairs)
        check_flag("add_special_tokens", add_special_tokens)
        special = (1 if pairs is None else 2) + 1 if add_special_tokens else 0
        limit = None if max_length is None else check_integer("max_length", max_length, 0)
        room = NO_LIMIT if limit is None else min(limit, NO_LIMIT) - special
        if room < 0:
            raise SettingsError(
                f"max_length={max_length}: no room for the special tokens; use at least {special}"
            )
        cls_id, sep_id = (self.vocabulary.cls_id, self.vocabulary.sep_id) if add_special_tokens else (-1, -1)
        may_cut = not any(token.may_span_words for token in self.added_tokens)
        return encode_in_chunks(texts, pairs, self._encode_rows, room, cls_id, sep_id, may_cut=may_cut)

    def pad(self, encoding: Encoding, length: int | None = None) -> dict[str, Int64s]:
        """Pad encoded texts to one length, as networks of other libraries read them.

        `transformers` models and exported models take these arrays under the same names, `transformers`
        as tensors: `{name: torch.from_numpy(array) for name, array in padded.items()}`.

        Args:
            encoding: the encoding of texts, or pairs of texts.
            length: the number of tokens of each row. Default: the longest text.

        Returns:
            int64 (n, length) each: `input_ids`, filled up with [PAD]; `token_type_ids`, filled up with
            0; and `attention_mask`, 1 for the tokens of the text and 0 for [PAD].

        Raises:
            SettingsError: `length` is not an integer, or less than the longest text.

        Example:
            >>> special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
            >>> tokenizer = Tokenizer(Vocabulary([*special_tokens, "he", "play", "##s"]))
            >>> encoding = tokenizer.encode_batch(["he", "he plays"], ["he", "he he"], max_length=6)
            >>> padded = tokenizer.pad(encoding)
            >>> padded["input_ids"].tolist()
            [[2, 5, 3, 5, 3, 0], [2, 5, 6, 3, 5, 3]]
            >>> padded["token_type_ids"].tolist()
            [[0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1]]
            >>> padded["attention_mask"].tolist()
            [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]
        """
        lengths = np.diff(encoding.bounds)
        longest = int(lengths.max(initial=0))
        advice = " (the longest text); to truncate texts, encode them with max_length"
        width = longest if length is None else check_integer("length", length, longest, alternative=advice)
        is_token = np.arange(width) < lengths[:, None]
        padded = {"input_ids": np.full(is_token.shape, self.vocabulary.pad_id, dtype=np.int64)}
        padded["input_ids"][is_token] = encoding.input_ids
        padded["token_type_ids"] = np.zeros(is_token.shape, dtype=np.int64)
        padded["token_type_ids"][is_token] = encoding.token_type_ids
        padded["attention_mask"] = is_token.astype(np.int64)
        return padded

    def _encode_rows(
        self, texts: Sequence[str], lengths: Int64s | None, rows: TokenRows
    ) -> tuple[TokenRows, Int64s]:
        """Return token rows and bounds, as `encode_texts` does, recognising added tokens."""
        codes, bounds = code_points(texts, lengths)
        if not self.added_tokens:
            return self._encode_codes(codes, bounds, rows)
        parts, first_parts = cut_texts(codes, bounds, self.unicode_tables, *self._patterns)
        ends = parts.ends[: parts.used[1]]
        if (ends[:, 1] == NO_TOKEN).all():
            return self._encode_codes(codes, bounds, rows)
        codes = parts.characters[: parts.used[0], 0].astype(np.uint32)
        codes.flags.writeable = False  # like the arrays of `code_points`, for which the kernels are compiled
        rows, bounds = self._encode_codes(codes, np.append(0, ends[:, 0]), rows)
        return rows, join_parts(rows, bounds, parts, first_parts)

    def _encode_codes(self, codes: UInt32s, bounds: Int64s, rows: TokenRows) -> tuple[TokenRows, Int64s]:
        return encode_texts(
            codes,
            bounds,
            self.unicode_tables,
            self._characters,
            self._trie,
            self.vocabulary.unk_id,
            self.max_word_characters,
            self._never_split,
            rows,
        )

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Look up the tokens of ids.

        Args:
            ids: token ids, for example the `input_ids` of an encoding.

        Returns:
            One token for each id.

        Raises:
            IndexError: an id is negative, or too large for the vocabulary.
            DataError: `ids` is not a list of integers.

        Example:
            >>> tokenizer = Tokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "he"]))
            >>> tokenizer.convert_ids_to_tokens([2, 5, 3])
            ['[CLS]', 'he', '[SEP]']
        """
        try:
            listed = [index(token_id) for token_id in list_items(ids, "ids", "a list of integers")]
        except TypeError as error:
            raise DataError(f"ids: expected a list of integers ({error})") from None
        for token_id in (min(listed), max(listed)) if listed else ():
            if not 0 <= token_id < len(self.vocabulary):  # Python would count negative ids from the end
                last = len(self.vocabulary) - 1
                raise IndexError(f"token id {token_id}: the vocabulary has the ids 0 to {last}")
        return [self.vocabulary.tokens[token_id] for token_id in listed]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Turn ids back into a readable text.

        There is a space between words, but none before a full stop, question mark, exclamation mark
        or comma, as in the package `tokenizers`.

        Args:
            ids: token ids.
            skip_special_tokens: leave out the five special tokens of BERT, and special added tokens.

        Returns:
            The text. It may differ from the encoded one in case, accents, white space and unknown
            words.

        Raises:
            IndexError, DataError: as in `convert_ids_to_tokens`.
            SettingsError: `skip_special_tokens` is not a flag.

        Example:
            >>> special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
            >>> vocabulary = Vocabulary([*special_tokens, "he", "play", "##s", "."])
            >>> tokenizer = Tokenizer(vocabulary)
            >>> tokenizer.decode([2, 5, 6, 7, 8, 3])
            'he plays.'
            >>> tokenizer.decode([2, 5, 6, 7, 8, 3], skip_special_tokens=False)
            '[CLS] he plays. [SEP]'
        """
        check_flag("skip_special_tokens", skip_special_tokens)
        words: list[str] = []
        special = (token.content for token in self.added_tokens if token.special)
        skipped = {*SPECIAL_TOKENS, *special} if skip_special_tokens else ()
        for token in self.convert_ids_to_tokens(ids):
            if token in skipped:
                continue
            if words and token.startswith(CONTINUATION_PREFIX):
                words.append(token.removeprefix(CONTINUATION_PREFIX))
            elif not words or token in (".", "?", "!", ","):
                words.append(token)
            else:
                words.append(f" {token}")
        return "".join(words)

    @property
    def unicode_tables(self) -> UnicodeTables:
        """The Unicode tables, which decide how texts are normalised."""
        return unicode_tables(self.lowercase, self.strip_accents, self.tokenize_chinese_chars)

    @cached_property
    def _patterns(self) -> tuple[Patterns, Patterns]:
        return make_patterns(self.added_tokens, self.vocabulary.ids, self.unicode_tables)

    @cached_property
    def _never_split(self) -> NeverSplit | None:
        return make_never_split(self.never_split, self.vocabulary.ids, self.vocabulary.unk_id)

    @cached_property
    def _trie(self) -> Trie:  # built at the first encoding, because many tokenizers are only loaded
        hidden = {token.content for token in self.added_tokens if token.only_added}
        tokens = ["" if token in hidden else token for token in self.vocabulary.tokens]
        return build_trie(tokens, self.max_word_characters)

    @cached_property
    def _characters(self) -> UInt32s:
        return character_table(self.unicode_tables, self._trie, self.vocabulary.unk_id)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of everything that the ids of a text depend on.

        Two tokenizers with the same fingerprint encode every text alike.

        Example:
            >>> vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "he"])
            >>> Tokenizer(vocabulary).fingerprint == Tokenizer(vocabulary).fingerprint
            True
            >>> Tokenizer(vocabulary).fingerprint == Tokenizer(vocabulary, lowercase=False).fingerprint
            False
        """
        parts = [self.vocabulary.tokens, self.lowercase, self.max_word_characters, UNICODE_VERSION]
        usual = [token for token in self.added_tokens if token == AddedToken.make_special(token.content)]
        parts += [token.content for token in usual]
        options = {
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": self.tokenize_chinese_chars,
            "never_split": self.never_split,
        }
        if options != {"strip_accents": self.lowercase, "tokenize_chinese_chars": True, "never_split": ()}:
            parts.append(options)  # not always, because fingerprints are older than these options
        if len(usual) < len(self.added_tokens):  # and than these
            parts.append([token for token in self.added_tokens if token not in usual])
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
