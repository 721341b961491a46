"""Long documents are cut into pieces; errors stop a run or are counted."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import DataError
from bertie.corpus import documents
from bertie.corpus.documents import (
    InputError,
    InputErrors,
    make_documents,
    split_at_lines,
    split_long_text,
)


@given(st.lists(st.text("a \n", min_size=1), min_size=1))
def test_pieces_end_at_lines_and_join_to_the_text(blocks: list[str]) -> None:
    pieces = list(split_at_lines(blocks))
    assert "".join(pieces) == "".join(blocks)
    assert len(pieces) == len(blocks)
    for piece in pieces[:-1]:
        assert piece.endswith("\n") or "\n" not in piece
        assert piece.endswith(("\n", " ")) or " " not in piece


def test_only_long_texts_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE_CHARACTERS", 6)
    assert list(split_long_text("")) == [""]
    assert list(split_long_text("ab\ncd\n")) == ["ab\ncd\n"]
    assert list(split_long_text("ab\ncd\nef")) == ["ab\ncd\n", "ef"]
    assert list(split_long_text("ab cd ef")) == ["ab cd ", "ef"]
    assert list(split_long_text("abcdefgh")) == ["abcdef", "gh"]


def test_every_piece_but_the_last_is_continued() -> None:
    pieces = list(make_documents(["a", "b", "c"]))
    assert [(piece.text, piece.is_continued) for piece in pieces] == [("a", True), ("b", True), ("c", False)]
    assert [(piece.text, piece.is_continued) for piece in make_documents([])] == [("", False)]


def test_errors_of_several_tasks_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_MESSAGES", 3)
    merged = InputErrors("skip")
    for task in range(3):
        errors = InputErrors("skip")
        errors.handle(InputError(f"{task}: binary", "binary_files"))
        errors.handle(DataError(f"{task}: cut off"))
        merged.merge(pickle.loads(pickle.dumps(errors)))
    assert merged.counts == {"binary_files": 3, "unreadable_files": 3}
    assert merged.messages == ["0: binary", "0: cut off", "1: binary"]


def test_first_error_stops_but_empty_files_do_not() -> None:
    errors = InputErrors()
    errors.handle(InputError("a: empty", "empty_files"))
    with pytest.raises(InputError, match="b: binary") as raised:
        errors.handle(InputError("b: binary", "binary_files"))
    assert errors.counts == {"empty_files": 1}
    assert pickle.loads(pickle.dumps(raised.value)).reason == "binary_files"
