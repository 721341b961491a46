"""The files of a tokenizer directory, as Hugging Face's libraries read and write them."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic

from bertie.base.errors import ModelError
from bertie.base.schemas import Foreign, read_foreign
from bertie.text.trie import CONTINUATION_PREFIX
from bertie.text.vocabulary import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK, Vocabulary

if TYPE_CHECKING:
    from bertie.text.tokenizer import Tokenizer

VOCABULARY_FILE, TOKENIZER_FILE, CONFIG_FILE = "vocab.txt", "tokenizer.json", "tokenizer_config.json"


# The message about a value that is none of a schema's literals.
ONLY_BERT = "only BERT's tokenizer can be loaded"


class AddedToken(Foreign):
    """A token that a file adds to the vocabulary, with its flags."""

    content: str
    special: bool = False


class NumberedToken(AddedToken):
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
    added_tokens: tuple[NumberedToken, ...] | None = None


SpecialTokens = tuple[str | AddedToken, ...] | dict[str, str | AddedToken] | None


class SpecialTokensMap(Foreign):
    """The content of special_tokens_map.json; transformers 5 writes the second key."""

    additional_special_tokens: SpecialTokens = None
    extra_special_tokens: SpecialTokens = None

    @property
    def names(self) -> list[str]:
        """The contents of all special tokens."""
        tokens: list[str | AddedToken] = []
        for group in (self.additional_special_tokens, self.extra_special_tokens):
            tokens += group.values() if isinstance(group, dict) else group or ()
        return [token if isinstance(token, str) else token.content for token in tokens]


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
    added_tokens_decoder: dict[Annotated[int, pydantic.Field(ge=0)], AddedToken] | None = None
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


def check_same_vocabulary(
    path: Path, vocabulary: Vocabulary, fast_ids: Mapping[str, int], added_ids: Mapping[str, int]
) -> None:
    """Check that vocab.txt and tokenizer.json of a directory have the same vocabulary, if both have one.

    Added tokens may be in only one of them.

    Raises:
        ModelError: a token is in one of them only, or has two ids.
    """
    ids = vocabulary.ids
    if not fast_ids or ids == fast_ids:
        return
    for token in (*ids, *fast_ids):
        first, second = ids.get(token), fast_ids.get(token)
        if first == second or not token or (None in (first, second) and token in added_ids):
            continue
        in_text, in_json = ("is missing" if i is None else f"has the id {i}" for i in (first, second))
        raise ModelError(
            f"{path / VOCABULARY_FILE}: {token!r} {in_text}, but in {TOKENIZER_FILE} it {in_json}; delete "
            f"the wrong one of these files, or copy both again from one model"
        )


def tokenizer_json(tokenizer: "Tokenizer") -> dict[str, Any]:
    """Return the content of tokenizer.json, version 1.0."""
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
            "handle_chinese_chars": tokenizer.tokenize_chinese_chars,
            "strip_accents": _strip_accents(tokenizer),
            "lowercase": tokenizer.lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "BertProcessing",
            "sep": [SEP, vocabulary.sep_id],
            "cls": [CLS, vocabulary.cls_id],
        },
        "decoder": {"type": "WordPiece", "prefix": CONTINUATION_PREFIX, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": UNK,
            "continuing_subword_prefix": CONTINUATION_PREFIX,
            "max_input_chars_per_word": tokenizer.max_word_characters,
            "vocab": vocabulary.ids,
        },
    }


def tokenizer_config_json(tokenizer: "Tokenizer", model_max_length: int) -> dict[str, Any]:
    """Return the content of tokenizer_config.json."""
    config: dict[str, Any] = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": tokenizer.lowercase,
        "model_max_length": model_max_length,
        "pad_token": PAD,
        "unk_token": UNK,
        "cls_token": CLS,
        "sep_token": SEP,
        "mask_token": MASK,
    }
    if (strip_accents := _strip_accents(tokenizer)) is not None:
        config["strip_accents"] = strip_accents
    if not tokenizer.tokenize_chinese_chars:
        config["tokenize_chinese_chars"] = False
    if tokenizer.never_split:
        config["never_split"] = list(tokenizer.never_split)
    # The key of transformers 4, which 5 reads too; 4 fails on a list under the key of 5 (#45376).
    if tokenizer.added_tokens:
        config["additional_special_tokens"] = list(tokenizer.added_tokens)
    return config


def _strip_accents(tokenizer: "Tokenizer") -> bool | None:
    """Return the setting `strip_accents`: None, the usual value, does the same as lower-casing."""
    return None if tokenizer.strip_accents == tokenizer.lowercase else tokenizer.strip_accents
