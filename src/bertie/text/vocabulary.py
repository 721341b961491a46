"""The vocabulary: word pieces and their ids, as vocab.txt holds them, one a line."""

from collections.abc import Sequence
from pathlib import Path

from bertie.base.errors import ModelError
from bertie.base.files import write_text

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)


class Vocabulary:
    """Tokens and their ids: `tokens[id]` and `ids[token]`.

    Raises:
        ModelError: a token is empty or stands twice, or one of `SPECIAL_TOKENS` is missing. `source` names
            the file in the message; a token's line is its id plus one.
    """

    def __init__(self, tokens: Sequence[str], source: str = "vocabulary") -> None:
        self.tokens = tuple(tokens)
        self.ids: dict[str, int] = {}
        for token_id, token in enumerate(self.tokens):
            line = token_id + 1
            if not token:
                raise ModelError(
                    f"{source}, line {line}: empty; give every id a token, for example [unused1]"
                )
            if token in self.ids:
                first = self.ids[token] + 1
                raise ModelError(
                    f"{source}, line {line}: {token!r} already stands on line {first}; rename one"
                )
            self.ids[token] = token_id
        for token in SPECIAL_TOKENS:
            if token not in self.ids:
                raise ModelError(f"{source}: the token {token} is missing; add it as a line of its own")
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self.ids[token] for token in SPECIAL_TOKENS
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_cased(self) -> bool:
        """Whether it has upper-case letters, [PAD] and the like aside: what says so where no file does."""
        return any(token != token.lower() for token in self.tokens if not token.startswith("["))

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read a vocab.txt. Tokens are kept whole, spaces too: google strips every line, which loses U+3000.

        Raises:
            ModelError: the file is missing, is not UTF-8, or is no vocabulary.
        """
        try:
            data = path.read_bytes()
            text = data.decode("utf-8-sig")  # some editors put a byte order mark before the first token
        except OSError as error:
            raise ModelError(f"{path}: cannot be read ({error.strerror}); name a vocab.txt") from None
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise ModelError(f"{path}, line {line}: not UTF-8; save the file as UTF-8") from None
        # Not splitlines, which also splits at characters that may be tokens, such as U+2028.
        return cls(text.replace("\r\n", "\n").removesuffix("\n").split("\n"), str(path))

    def save(self, path: Path) -> None:
        """Write a vocab.txt, atomically."""
        write_text(path, "".join(f"{token}\n" for token in self.tokens))
