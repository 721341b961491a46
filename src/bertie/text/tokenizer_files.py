"""Read and write the files of a tokenizer directory.

Hugging Face's libraries read and write the same files.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertie.base.errors import ModelError
from bertie.text.added_tokens import AddedToken
from bertie.text.trie import CONTINUATION_PREFIX
from bertie.text.vocabulary import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK, Vocabulary

if TYPE_CHECKING:
    from bertie.text.tokenizer import Tokenizer

FLAGS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")  # of an added token
VOCABULARY_FILE, TOKENIZER_FILE, CONFIG_FILE = "vocab.txt", "tokenizer.json", "tokenizer_config.json"


def read_vocabulary(path: Path, fast_ids: Mapping[str, int], added_ids: Mapping[str, int]) -> Vocabulary:
    """Read vocab.txt of a tokenizer directory.

    If there is none, make the vocabulary of tokenizer.json.

    Args:
        path: the directory.
        fast_ids: the vocabulary of tokenizer.json; empty if there is none.
        added_ids: the ids of the added tokens, which are not appended to vocab.txt here.

    Raises:
        ModelError: there is no vocabulary, or the two files differ.
    """
    if fast_ids and not (path / VOCABULARY_FILE).exists():
        return Vocabulary.from_ids({**fast_ids, **added_ids}, str(path / TOKENIZER_FILE))
    vocabulary = Vocabulary.load(path / VOCABULARY_FILE)
    _check_same_vocabulary(path, vocabulary, fast_ids, added_ids)
    return vocabulary


def _check_same_vocabulary(
    path: Path, vocabulary: Vocabulary, fast_ids: Mapping[str, int], added_ids: Mapping[str, int]
) -> None:
    """Check that vocab.txt and tokenizer.json have the same vocabulary.

    Nothing is checked if one of them lacks it. Added tokens may be in only one of them.

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
    tokens = [*map(AddedToken.make_special, SPECIAL_TOKENS), *tokenizer.added_tokens]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": vocabulary.ids[token.content], **{flag: getattr(token, flag) for flag in FLAGS}}
            for token in sorted(tokens, key=lambda token: vocabulary.ids[token.content])
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
            "vocab": _wordpiece_ids(tokenizer),
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
    if special := [token.content for token in tokenizer.added_tokens if token.special]:
        config["additional_special_tokens"] = special
    return config


def _wordpiece_ids(tokenizer: "Tokenizer") -> dict[str, int]:
    """Return the vocabulary without the tokens that are only added.

    Hugging Face's libraries number these from the end of the vocabulary. If that would change an id, they
    stay in it.
    """
    ids = tokenizer.vocabulary.ids
    only_added = [token.content for token in tokenizer.added_tokens if token.only_added]
    kept = {token: token_id for token, token_id in ids.items() if token not in {*only_added}}
    follow = [ids[token] for token in only_added] == [*range(len(kept), len(ids))]
    return kept if follow else ids


def _strip_accents(tokenizer: "Tokenizer") -> bool | None:
    """Return the setting `strip_accents`.

    None, the usual value, does the same as lower-casing.
    """
    return None if tokenizer.strip_accents == tokenizer.lowercase else tokenizer.strip_accents
