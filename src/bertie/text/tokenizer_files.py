"""The files of a tokenizer directory, as Hugging Face's libraries read and write them."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertie.base.errors import ModelError
from bertie.text.trie import CONTINUATION_PREFIX
from bertie.text.vocabulary import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK, Vocabulary

if TYPE_CHECKING:
    from bertie.text.tokenizer import Tokenizer

VOCABULARY_FILE, TOKENIZER_FILE, CONFIG_FILE = "vocab.txt", "tokenizer.json", "tokenizer_config.json"


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
