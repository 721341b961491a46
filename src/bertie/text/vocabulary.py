"""The vocabulary: WordPiece tokens and their ids."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bertie.base.arguments import checked
from bertie.base.errors import DataError, ModelError
from bertie.base.files import check_creatable, suggest_download, write_text
from bertie.base.texts import list_texts

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)


def has_upper_case(tokens: Iterable[str]) -> bool:
    """Return whether any token that is not in brackets has an upper-case letter."""
    return any(token != token.lower() for token in tokens if not token.startswith("["))


class Vocabulary:
    """An ordered set of tokens, in which the id of a token is its index.

    As in `transformers`, a token that occurs twice has its last id, and an empty token is the gap of
    an unused id; no text can produce the other ids.

    Args:
        tokens: all tokens, including the five special ones, which may have any ids. A token that
            continues a word begins with `##`.
        source: the origin of the tokens in messages, such as the path of a file.

    Attributes:
        tokens: the tokens in the order of their ids.
        ids: the id of each token.
        pad_id, unk_id, cls_id, sep_id, mask_id: the ids of the special tokens.

    Raises:
        ModelError: a special token is missing.
        DataError: a token is not a string.

    Example:
        >>> from bertie.text.vocabulary import Vocabulary
        >>> vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing"])
        >>> vocabulary.ids["##ing"]
        6
        >>> vocabulary.tokens[5]
        'play'
        >>> vocabulary.mask_id
        4
        >>> len(vocabulary), "play" in vocabulary
        (7, True)
    """

    def __init__(self, tokens: Sequence[str], source: str = "vocabulary") -> None:
        self.tokens = tuple(list_texts(tokens, source))
        self.ids = {token: token_id for token_id, token in enumerate(self.tokens) if token}
        if missing := [token for token in SPECIAL_TOKENS if token not in self.ids]:
            raise ModelError(
                f"{source}: {', '.join(missing)} missing; BERT needs {', '.join(SPECIAL_TOKENS)}: write each "
                f"in place of an unused token such as [unused1], or as a new line at the end"
            )
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self.ids[token] for token in SPECIAL_TOKENS
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, token: object) -> bool:
        return token in self.ids

    def __repr__(self) -> str:
        return f"Vocabulary({len(self):,} tokens)"

    @property
    def is_cased(self) -> bool:
        """Whether any token has an upper-case letter.

        Tokens in brackets, such as [MASK] and [unused1], do not count. This property decides
        whether a model is cased if its files have no such setting.

        Example:
            >>> Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "paris"]).is_cased
            False
            >>> Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Paris"]).is_cased
            True
        """
        return has_upper_case(self.tokens)

    @classmethod
    @checked
    def from_ids(cls, ids: Mapping[str, int], source: str = "vocabulary") -> "Vocabulary":
        """Make a vocabulary from the id of each token.

        Args:
            ids: the ids, which may have gaps.
            source: the origin of the tokens in messages.

        Returns:
            The vocabulary, with an empty token for each unused id.

        Raises:
            ModelError: two tokens have the same id, most ids are unused, or a special token is missing.
            DataError: an id is not an integer, or negative.
            SettingsError: `ids` is not a dict.

        Example:
            >>> special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
            >>> ids = {token: token_id for token_id, token in enumerate(special_tokens)}
            >>> Vocabulary.from_ids({**ids, "play": 6}).tokens[4:]
            ('[MASK]', '', 'play')
        """
        for token, token_id in ids.items():
            if not isinstance(token_id, int | np.integer) or token_id < 0:
                raise DataError(
                    f"{source}: {token!r} has the id {token_id!r}; expected an integer of at least 0"
                )
        highest = int(max(ids.values(), default=-1))
        if len(set(ids.values())) < len(ids) or highest > 2 * len(ids):
            raise ModelError(
                f"{source}: damaged, with {len(ids):,} tokens and {len(set(ids.values())):,} ids up to "
                f"{highest:,}; copy it again"
            )
        tokens = [""] * (highest + 1)
        for token, token_id in ids.items():
            tokens[token_id] = token
        return cls(tokens, source)

    @classmethod
    @checked
    def load(cls, path: str | Path) -> "Vocabulary":
        """Read a vocab.txt file, which has one token per line.

        Tokens are kept whole, including white space. (google-research/bert strips every line, which
        makes a token such as U+3000 empty.)

        Args:
            path: the file.

        Returns:
            The vocabulary.

        Raises:
            ModelError: the file is missing, not UTF-8, or not a vocabulary.
            SettingsError: `path` is not a path.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play"])
            >>> with tempfile.TemporaryDirectory() as directory:
            ...     vocabulary.save(Path(directory) / "vocab.txt")
            ...     Vocabulary.load(Path(directory) / "vocab.txt").tokens[-1]
            'play'
        """
        path = Path(path)
        try:
            data = path.read_bytes()
            text = data.decode("utf-8-sig")  # some editors put a byte order mark before the first token
        except OSError as error:
            is_name = isinstance(error, FileNotFoundError) and path.suffix != ".txt"
            raise ModelError(
                f"{path}: cannot be read ({error.strerror}); choose a tokenizer directory or a vocab.txt file"
                f"{suggest_download(path) if is_name else ''}"
            ) from None
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise ModelError(f"{path}, line {line}: not UTF-8; save the file as UTF-8") from None
        # Not splitlines, which also splits at characters that may be tokens, such as U+2028.
        return cls(text.replace("\r\n", "\n").removesuffix("\n").split("\n"), str(path))

    @checked
    def save(self, path: str | Path) -> None:
        """Write a vocab.txt file, atomically.

        Args:
            path: the file, which is replaced if it exists.

        Raises:
            ModelError: a token contains a line break.
            SettingsError: `path` is a URL or not a path, or cannot be created.
            OSError: writing failed.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play"])
            >>> with tempfile.TemporaryDirectory() as directory:
            ...     vocabulary.save(Path(directory) / "vocab.txt")
            ...     (Path(directory) / "vocab.txt").read_text().splitlines()
            ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'play']
        """
        path = Path(path)
        check_creatable(path)
        for token_id, token in enumerate(self.tokens):
            if "\n" in token or token.endswith("\r"):
                raise ModelError(
                    f"{path}: the token {token!r}, with the id {token_id}, contains a line break, "
                    f"which this file cannot hold; replace it with another token"
                )
        write_text(path, "".join(f"{token}\n" for token in self.tokens))
