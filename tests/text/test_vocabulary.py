"""Reading and writing vocab.txt, and errors in it."""

from pathlib import Path

import pytest

from bertie.base.errors import ModelError
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary


def test_ids_are_indices() -> None:
    vocabulary = Vocabulary(["[unused]", *SPECIAL_TOKENS, "a"])
    assert len(vocabulary) == 7
    assert [vocabulary.tokens[vocabulary.ids[token]] for token in vocabulary.tokens] == list(
        vocabulary.tokens
    )
    special = (vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id)
    assert special == (1, 2, 3, 4, 5)


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
        (b"[PAD]\n\n[UNK]\n", "line 2: empty"),
        (b"[PAD]\na\nb\na\n", "line 4: 'a' is already on line 2"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n", r"\[MASK\] is missing"),
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
