"""Reading and writing vocab.txt, and errors in it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary


def test_a_vocabulary_contains_its_tokens_but_no_unused_id() -> None:
    vocabulary = Vocabulary([*SPECIAL_TOKENS, "film", ""])
    assert [token in vocabulary for token in ("film", "[CLS]", "", "actor", 5)] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_ids_are_indices() -> None:
    vocabulary = Vocabulary(["[unused]", *SPECIAL_TOKENS, "a"])
    assert len(vocabulary) == 7
    assert [vocabulary.tokens[vocabulary.ids[token]] for token in vocabulary.tokens] == list(
        vocabulary.tokens
    )
    special = (vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id)
    assert special == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("token", [3, None, ["a"]])
def test_tokens_are_strings(token: Any) -> None:
    with pytest.raises(DataError, match=r"vocabulary\[5\]: expected a string, got"):
        Vocabulary([*SPECIAL_TOKENS, token])


@pytest.mark.parametrize("token_id", [1.5, "7", [7], -1])
def test_ids_are_integers(token_id: Any) -> None:
    ids: dict[str, Any] = {token: i for i, token in enumerate(SPECIAL_TOKENS)}
    with pytest.raises(DataError, match=r"vocabulary: 'a' has the id .*; expected an integer of at least 0"):
        Vocabulary.from_ids({**ids, "a": token_id})
    assert Vocabulary.from_ids({**ids, "a": np.uint8(5)}).tokens[5] == "a"  # type: ignore[dict-item]
    with pytest.raises(SettingsError, match="ids: expected a dict, got list"):
        Vocabulary.from_ids([*ids])  # type: ignore[arg-type]


@pytest.mark.parametrize("token", ["a\nb", "a\r"])
def test_a_token_with_a_line_break_is_not_saved(tmp_path: Path, token: str) -> None:
    with pytest.raises(ModelError, match="with the id 5, contains a line break"):
        Vocabulary([*SPECIAL_TOKENS, token]).save(tmp_path / "vocab.txt")
    assert not (tmp_path / "vocab.txt").exists()


def test_paths_may_be_strings(tmp_path: Path) -> None:
    path = str(tmp_path / "vocab.txt")
    Vocabulary(SPECIAL_TOKENS).save(path)
    assert Vocabulary.load(path).tokens == SPECIAL_TOKENS
    with pytest.raises(SettingsError, match="path: expected a path, got NoneType"):
        Vocabulary.load(None)  # type: ignore[arg-type]


def test_urls_are_not_written_as_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vocabulary = Vocabulary(SPECIAL_TOKENS)
    for save in (vocabulary.save, Tokenizer(vocabulary).save):
        with pytest.raises(SettingsError, match="s3://bucket/a: this output cannot be a URL"):
            save("s3://bucket/a")
    assert not [*tmp_path.iterdir()]


def test_white_space_in_tokens_is_kept(tmp_path: Path) -> None:
    # U+3000 would be lost by google's strip(), U+2028 by splitlines().
    tokens = (*SPECIAL_TOKENS, "\u3000", "a ", "\u2028", "\x85", "##é")
    Vocabulary(tokens).save(tmp_path / "vocab.txt")
    assert Vocabulary.load(tmp_path / "vocab.txt").tokens == tokens


def test_windows_line_ends_are_removed(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"\r\n".join(token.encode() for token in (*SPECIAL_TOKENS, "a")))
    assert Vocabulary.load(tmp_path / "vocab.txt").tokens == (*SPECIAL_TOKENS, "a")


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL_TOKENS), encoding="utf-8-sig")
    assert Vocabulary.load(tmp_path / "vocab.txt").tokens == SPECIAL_TOKENS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[UNK]\n[CLS]\n[SEP]\n", r"\[PAD\], \[MASK\] missing"),
        (b"[PAD]\n\xff\n", "line 2: not UTF-8"),
        (b"\xef\xbb\xbf[PAD]\n\xff\n", "line 2: not UTF-8"),
    ],
)
def test_malformed_file_is_named_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        Vocabulary.load(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_blank_and_repeated_lines_are_read_as_transformers_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, "a", "", "b", "a", "##c", "", ""]))
    tokenizer, peer = Tokenizer.load(path), BertTokenizerLegacy(str(path))
    assert tokenizer.vocabulary.ids == {token: i for token, i in peer.vocab.items() if token}
    ids = tokenizer.encode("ac b a", "d").input_ids.tolist()
    assert ids == peer("ac b a", "d")["input_ids"] == [2, 8, 9, 7, 8, 3, 1, 3]
    assert tokenizer.decode(ids) == "ac b a"
    tokenizer.save(tmp_path / "saved")
    for name in ("vocab.txt", "tokenizer.json"):  # the second without the first
        loaded = Tokenizer.load(tmp_path / "saved")
        assert loaded.vocabulary.ids == tokenizer.vocabulary.ids, name
        (tmp_path / "saved" / "vocab.txt").unlink(missing_ok=True)
    fast = tokenizers.Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    assert fast.encode("ac b a", "d").ids == ids


@pytest.mark.parametrize("place", ["unused", "end"])
def test_advice_about_missing_special_tokens_works(tmp_path: Path, place: str) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[unused1]\n[UNK]\n[CLS]\n[SEP]\na\n")
    with pytest.raises(
        ModelError, match=r"\[MASK\] missing; .* in place of an unused token such as \[unused1\]"
    ):
        Vocabulary.load(path)
    text = path.read_text()
    path.write_text(text.replace("[unused1]", "[MASK]") if place == "unused" else f"{text}[MASK]\n")
    assert Vocabulary.load(path).ids["a"] == 5


def test_hub_name_error_suggests_a_download() -> None:
    with pytest.raises(
        ModelError, match=r"or a vocab\.txt file; .* run: hf download a/b-c --local-dir a/b-c$"
    ):
        Vocabulary.load("a/b-c")
    with pytest.raises(ModelError, match=r"or a vocab\.txt file$"):
        Vocabulary.load("absent.txt")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent\.txt: cannot be read \(No such file"):
        Vocabulary.load(tmp_path / "absent.txt")


@pytest.mark.parametrize(("name", "size"), [("uncased_en", 30522), ("cased_en", 28996)])
def test_original_vocabularies_round_trip(shared_data: Path, tmp_path: Path, name: str, size: int) -> None:
    path = shared_data / "vocab" / name / "vocab.txt"
    vocabulary = Vocabulary.load(path)
    assert len(vocabulary) == size
    vocabulary.save(tmp_path / "vocab.txt")
    assert (tmp_path / "vocab.txt").read_bytes() == path.read_bytes()
