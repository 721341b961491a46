"""The schemas of the files of a tokenizer directory, and how they are read.

Only directories need this module, which imports pydantic, so `Tokenizer.load` imports it when it loads one.
"""

from pathlib import Path
from typing import Annotated, Literal

import pydantic

from bertie.base.errors import ModelError
from bertie.base.schemas import Foreign, read_foreign
from bertie.text.added_tokens import AddedToken, AddedTokens
from bertie.text.tokenizer_files import CONFIG_FILE, TOKENIZER_FILE
from bertie.text.vocabulary import SPECIAL_TOKENS

# The message about a value that is none of a schema's literals.
ONLY_BERT = "only BERT's tokenizer can be loaded"


class TokenEntry(Foreign):
    """A token that a file adds to the vocabulary, with its flags."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool = False

    @property
    def token(self) -> AddedToken:
        """The token; as in `tokenizers`, a special token is not normalised by default."""
        normalized = not self.special if self.normalized is None else self.normalized
        return AddedToken(self.content, self.single_word, self.lstrip, self.rstrip, normalized, self.special)


class NumberedEntry(TokenEntry):
    """An added token of tokenizer.json, which contains its id."""

    id: int = pydantic.Field(ge=0)


class FastModel(Foreign):
    """The section `model` of tokenizer.json."""

    type: Literal["WordPiece"] | None = None
    continuing_subword_prefix: Literal["##"] | None = None
    max_input_chars_per_word: int = pydantic.Field(100, gt=0, lt=2**31)
    vocab: dict[str, Annotated[int, pydantic.Field(ge=0)]] = pydantic.Field(default_factory=dict)


class Normalizer(Foreign):
    """The section `normalizer` of tokenizer.json."""

    type: Literal["BertNormalizer"] | None = None
    clean_text: Literal[True] | None = None
    lowercase: bool | None = None
    strip_accents: bool | None = None
    handle_chinese_chars: bool | None = None


class PreTokenizer(Foreign):
    """The section `pre_tokenizer` of tokenizer.json."""

    type: Literal["BertPreTokenizer"] | None = None


class FastTokenizer(Foreign):
    """The content of tokenizer.json."""

    model: FastModel | None = None
    pre_tokenizer: PreTokenizer | None = None
    normalizer: Normalizer | None = None
    added_tokens: tuple[NumberedEntry, ...] | None = None


SpecialTokens = tuple[str | TokenEntry, ...] | dict[str, str | TokenEntry] | None


class SpecialTokensMap(Foreign):
    """The content of special_tokens_map.json; transformers 5 writes the second key."""

    additional_special_tokens: SpecialTokens = None
    extra_special_tokens: SpecialTokens = None

    @property
    def tokens(self) -> dict[str, AddedToken]:
        """All of these tokens by their contents."""
        entries: list[str | TokenEntry] = []
        for group in (self.additional_special_tokens, self.extra_special_tokens):
            entries += group.values() if isinstance(group, dict) else group or ()
        tokens = [
            AddedToken.make_special(entry)
            if isinstance(entry, str)
            else entry.model_copy(update={"special": True}).token
            for entry in entries
        ]
        return {token.content: token for token in tokens}


class TokenizerConfig(SpecialTokensMap):
    """The content of tokenizer_config.json."""

    do_basic_tokenize: Literal[True] | None = None
    # Of BertJapaneseTokenizer, which usually splits words with MeCab.
    word_tokenizer_type: Literal["basic"] | None = None
    subword_tokenizer_type: Literal["wordpiece"] | None = None
    tokenizer_class: str | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    never_split: tuple[str, ...] | None = None
    added_tokens_decoder: dict[Annotated[int, pydantic.Field(ge=0)], TokenEntry] | None = None
    # "No limit" is 10^30, which no integer type of a machine holds.
    model_max_length: float | None = pydantic.Field(None, allow_inf_nan=False)


def read_tokenizer_files(path: Path) -> tuple[TokenizerConfig, FastTokenizer]:
    """Read the settings of a tokenizer directory, which must be of BERT's kind.

    Args:
        path: may contain tokenizer_config.json and tokenizer.json.

    Raises:
        DataError: a file is not JSON.
        ModelError: a value is wrong, or the directory contains another kind of tokenizer.
    """
    fast = read_foreign(FastTokenizer, path / TOKENIZER_FILE, ONLY_BERT)
    config = read_foreign(TokenizerConfig, path / CONFIG_FILE, ONLY_BERT)
    name = config.tokenizer_class
    if not fast.model_fields_set and name not in (None, "BertTokenizer", "BertTokenizerFast"):
        raise ModelError(
            f"{path / CONFIG_FILE}: tokenizer_class is {name!r}; only BertTokenizer can be loaded"
        )
    return config, fast


def read_added_tokens(directory: Path, config: TokenizerConfig, fast: FastTokenizer) -> AddedTokens:
    """Collect the added tokens of a tokenizer directory.

    Different versions of `transformers` have kept them in different files; all are read. If the flags of
    a token differ, tokenizer_config.json takes precedence, then tokenizer.json. As in
    `transformers`, a token of added_tokens.json has no flags except that it may be special.

    Args:
        directory: may contain added_tokens.json and special_tokens_map.json.
        config: the content of tokenizer_config.json.
        fast: the content of tokenizer.json.

    Raises:
        DataError: a file is not JSON.
        ModelError: a value in a file is wrong.
    """
    entries: list[tuple[int, TokenEntry]] = [(entry.id, entry) for entry in fast.added_tokens or ()]
    entries += (config.added_tokens_decoder or {}).items()
    ids = read_foreign(dict[str, Annotated[int, pydantic.Field(ge=0)]], directory / "added_tokens.json")
    tokens = read_foreign(SpecialTokensMap, directory / "special_tokens_map.json").tokens | config.tokens
    tokens |= {
        content: AddedToken.make_special(content) if content in tokens else AddedToken(content)
        for content in ids
    }
    tokens |= {entry.content: entry.token for _, entry in entries}
    ids = {entry.content: token_id for token_id, entry in entries} | ids
    return AddedTokens(
        ids,
        tuple(token for content, token in tokens.items() if content and content not in SPECIAL_TOKENS),
    )
