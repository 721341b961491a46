"""The files of a tokenizer directory, as Hugging Face's libraries read and write them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertie.base.errors import ModelError
from bertie.text.trie import CONTINUATION_PREFIX
from bertie.text.vocabulary import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK

if TYPE_CHECKING:
    from bertie.text.tokenizer import Tokenizer

VOCABULARY_FILE, TOKENIZER_FILE, CONFIG_FILE = "vocab.txt", "tokenizer.json", "tokenizer_config.json"


def check_tokenizer_type(path: Path, config: dict[str, Any], fast: dict[str, Any]) -> None:
    """Check that a directory contains a tokenizer of BERT's kind.

    Args:
        path: the directory.
        config: the content of tokenizer_config.json.
        fast: the content of tokenizer.json.

    Raises:
        ModelError: the directory contains another kind of tokenizer.
    """
    model, normalizer = fast.get("model") or {}, fast.get("normalizer") or {}
    prefix = "continuing_subword_prefix"
    for file, key, value, expected in (
        (TOKENIZER_FILE, "model", model.get("type"), "WordPiece"),
        (TOKENIZER_FILE, prefix, model.get(prefix), CONTINUATION_PREFIX),
        (TOKENIZER_FILE, "pre_tokenizer", (fast.get("pre_tokenizer") or {}).get("type"), "BertPreTokenizer"),
        (TOKENIZER_FILE, "normalizer", normalizer.get("type"), "BertNormalizer"),
        (TOKENIZER_FILE, "clean_text", normalizer.get("clean_text"), True),
        (CONFIG_FILE, "do_basic_tokenize", config.get("do_basic_tokenize"), True),
        # Of BertJapaneseTokenizer, which usually splits words with MeCab.
        (CONFIG_FILE, "word_tokenizer_type", config.get("word_tokenizer_type"), "basic"),
        (CONFIG_FILE, "subword_tokenizer_type", config.get("subword_tokenizer_type"), "wordpiece"),
    ):
        if value not in (None, expected):
            raise ModelError(
                f"{path / file}: {key} is {value!r}, not {expected!r}; only BERT's tokenizer can be loaded"
            )
    name = config.get("tokenizer_class")
    if not fast and name not in (None, "BertTokenizer", "BertTokenizerFast"):
        raise ModelError(
            f"{path / CONFIG_FILE}: tokenizer_class is {name!r}; only BertTokenizer can be loaded"
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
