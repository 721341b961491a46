"""Pieces of documents, and problems that stop or are counted."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import DataError
from bertie.corpus import documents
from bertie.corpus.documents import InputError, Problems, cut_at_lines, cut_text, make_documents


@given(st.lists(st.text("a \n", min_size=1), min_size=1))
def test_pieces_joined_are_the_text(parts: list[str]) -> None:
    pieces = list(cut_at_lines(parts))
    assert "".join(pieces) == "".join(parts)
    assert len(pieces) == len(parts)
    for piece in pieces[:-1]:
        assert piece.endswith("\n") or "\n" not in piece
        assert piece.endswith(("\n", " ")) or " " not in piece


def test_only_long_texts_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE_CHARACTERS", 6)
    assert list(cut_text("")) == [""]
    assert list(cut_text("ab\ncd\n")) == ["ab\ncd\n"]
    assert list(cut_text("ab\ncd\nef")) == ["ab\ncd\n", "ef"]
    assert list(cut_text("ab cd ef")) == ["ab cd ", "ef"]
    assert list(cut_text("abcdefgh")) == ["abcdef", "gh"]


def test_all_pieces_but_the_last_are_unfinished() -> None:
    made = list(make_documents(["a", "b", "c"]))
    assert [(d.text, d.unfinished) for d in made] == [("a", True), ("b", True), ("c", False)]
    assert [(d.text, d.unfinished) for d in make_documents([])] == [("", False)]


def test_problems_of_tasks_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_MESSAGES", 3)
    total = Problems("skip")
    for task in range(3):
        problems = Problems("skip")
        problems.add(InputError(f"{task}: binary", "binary_files"))
        problems.add(DataError(f"{task}: cut off"))
        total.merge(pickle.loads(pickle.dumps(problems)))
    assert total.counts == {"binary_files": 3, "unreadable_files": 3}
    assert total.messages == ["0: binary", "0: cut off", "1: binary"]


def test_the_first_problem_stops_unless_a_file_is_just_empty() -> None:
    problems = Problems()
    problems.add(InputError("a: empty", "empty_files"))
    with pytest.raises(InputError, match="b: binary") as raised:
        problems.add(InputError("b: binary", "binary_files"))
    assert problems.counts == {"empty_files": 1}
    assert pickle.loads(pickle.dumps(raised.value)).reason == "binary_files"
