from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import SettingsError
from bertie.tasks.squad.questions import Questions
from bertie.tasks.squad.windows import encode_windows
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

LETTERS = "abcdefgh"
TOKENIZER = Tokenizer(Vocabulary([*SPECIAL_TOKENS, ",", *LETTERS, *(f"##{letter}" for letter in LETTERS)]))
WORDS = st.text(alphabet=LETTERS + "  ,éÀ😀好", max_size=40)
LONG_WORDS = st.text(alphabet=LETTERS + "  ", min_size=40, max_size=60)


@st.composite
def questions(draw):
    contexts = draw(st.lists(WORDS | LONG_WORDS, min_size=1, max_size=3))
    about = draw(st.lists(st.integers(0, len(contexts) - 1), min_size=1, max_size=4))
    answers = []
    for context in about:
        start = draw(st.integers(0, len(contexts[context])))
        end = draw(st.integers(start, min(start + 12, len(contexts[context]))))
        answers.append([(contexts[context][start:end], start)] if draw(st.booleans()) else [])
    texts = draw(st.lists(WORDS, min_size=len(about), max_size=len(about)))
    ids = [str(number) for number in range(len(about))]
    return Questions(ids, texts, contexts, np.array(about), answers)


def one(context, question="ab", answers=((),)):
    return Questions(["q"], [question], [context], np.array([0]), answers)


def widest(spans, piece):
    """Which span has the best min(left, right) + 0.01 · length, the first of equals; run_squad.py:542."""
    scores = [
        min(piece - first, first + size - 1 - piece) + 0.01 * size if first <= piece < first + size else -1
        for first, size in spans
    ]
    return scores.index(max(scores))


def windows_by_definition(given_questions, max_seq_length, doc_stride, max_query_length):
    """run_squad.py's windows, one after the other: tokens, segments, offsets, whether widest."""
    rows = []
    for text, context in zip(given_questions.questions, given_questions.context_of_question, strict=True):
        question = TOKENIZER.encode_batch([text], add_special_tokens=False).input_ids[:max_query_length]
        pieces = TOKENIZER.encode_batch([given_questions.contexts[context]], add_special_tokens=False)
        ids, offsets = pieces.input_ids.tolist(), pieces.offsets.tolist()
        room, first, spans = max_seq_length - len(question) - 3, 0, []
        while True:
            spans.append((first, min(room, len(ids) - first)))
            if first + room >= len(ids):
                break
            first += min(room, doc_stride)
        for number, (first, size) in enumerate(spans):
            before, cls, sep = len(question) + 2, TOKENIZER.vocabulary.cls_id, TOKENIZER.vocabulary.sep_id
            rows.append(
                (
                    [cls, *question.tolist(), sep, *ids[first : first + size], sep],
                    [0] * before + [1] * (size + 1),
                    [[0, 0]] * before + offsets[first : first + size] + [[0, 0]],
                    [False] * before
                    + [widest(spans, piece) == number for piece in range(first, first + size)]
                    + [False],
                )
            )
    return rows


@given(questions(), st.integers(10, 40), st.integers(1, 30), st.integers(1, 6))
def test_windows_are_those_of_the_definition(asked, max_seq_length, doc_stride, max_query_length):
    windows = encode_windows(asked, TOKENIZER, max_seq_length, doc_stride, max_query_length)
    columns = (windows.input_ids, windows.token_type_ids, windows.offsets, windows.max_context)
    rows = [
        tuple(column[begin:end].tolist() for column in columns)
        for begin, end in zip(windows.bounds, windows.bounds[1:], strict=False)
    ]
    assert rows == windows_by_definition(asked, max_seq_length, doc_stride, max_query_length)
    assert max(np.diff(windows.bounds)) <= max_seq_length
    assert len(windows.window_bounds) == len(asked) + 1
    assert windows.window_bounds[-1] == len(windows)


def test_a_long_window_is_wider_than_one_that_is_shorter_by_a_hundred():
    """The first window's last piece has a right neighbour in the second only: 0 + 1.40 against 1 + 0.13."""
    asked = one(" ".join("a" * 141), question="a")
    windows = encode_windows(asked, TOKENIZER, 144, 128, 6)
    assert np.diff(windows.bounds).tolist() == [144, 17]
    first, second = windows_by_definition(asked, 144, 128, 6)
    assert windows.max_context.tolist() == first[3] + second[3]
    assert windows.max_context[142]


@given(questions(), st.integers(10, 40), st.integers(1, 30))
def test_every_piece_has_most_context_once(asked, max_seq_length, doc_stride):
    windows = encode_windows(asked, TOKENIZER, max_seq_length, doc_stride, max_query_length=6)
    pieces = TOKENIZER.encode_batch(asked.contexts, add_special_tokens=False)
    for question, context in enumerate(asked.context_of_question):
        first, last = windows.bounds[windows.window_bounds[question : question + 2]]
        of_question = windows.offsets[first:last][windows.max_context[first:last]].tolist()
        wanted = pieces.offsets[pieces.bounds[context] : pieces.bounds[context + 1]].tolist()
        assert sorted(of_question) == sorted(wanted)


@given(questions(), st.integers(10, 20), st.integers(1, 12))
def test_labels_are_the_narrowest_pieces_that_cover_the_answer(asked, max_seq_length, doc_stride):
    windows = encode_windows(asked, TOKENIZER, max_seq_length, doc_stride, max_query_length=6)
    pieces = TOKENIZER.encode_batch(asked.contexts, add_special_tokens=False)
    question_of = np.repeat(np.arange(len(asked)), np.diff(windows.window_bounds))
    for window, question in enumerate(question_of):
        label = windows.labels[window].tolist()
        if not asked.answers[question]:
            assert label == [0, 0]
            continue
        text, start = asked.answers[question][0]
        context = asked.context_of_question[question]
        offsets = pieces.offsets[pieces.bounds[context] : pieces.bounds[context + 1]]
        covering = [pair for pair in offsets.tolist() if pair[1] > start and pair[0] < start + len(text)]
        here = windows.offsets[windows.bounds[window] : windows.bounds[window + 1]].tolist()
        if not text.strip() or not covering:
            assert label == [-100, -100]
        elif label == [0, 0]:
            assert any(pair not in here for pair in covering)
        else:
            assert here[label[0] : label[1] + 1] == covering


def test_an_answer_inside_a_piece_is_widened_to_it():
    asked = one("abc xyz d", answers=[[("y", 5)]])  # a word without pieces is one [UNK]
    windows = encode_windows(asked, TOKENIZER, 20, 128, 6)
    first, last = windows.labels[0]
    assert asked.contexts[0][windows.offsets[first][0] : windows.offsets[last][1]] == "xyz"


def test_offsets_count_characters_beyond_the_basic_plane():
    asked = one("😀😀 cafe\u0301 au lait", answers=[[("cafe\u0301", 3)]])
    windows = encode_windows(asked, TOKENIZER, 30, 128, 6)
    first, last = windows.labels[0]
    assert asked.contexts[0][windows.offsets[first][0] : windows.offsets[last][1]] == "cafe\u0301"


def test_a_question_is_cut_and_a_short_context_is_one_window():
    windows = encode_windows(one("a b", question="c " * 100), TOKENIZER, 80, 128, 64)
    assert len(windows) == 1
    assert (windows.token_type_ids == 0).sum() == 64 + 2
    assert len(windows.input_ids) == 64 + 3 + 2


def test_a_context_without_pieces_is_one_window():
    windows = encode_windows(one(" \n"), TOKENIZER, 20, 128, 6)
    assert len(windows) == 1
    assert not windows.max_context.any()


@pytest.mark.parametrize("answer", [("x", 0), ("a b", 1), ("c", -1), ("  ", 3), ("", 0), ("a b", 10**6)])
def test_nothing_is_learnt_of_an_answer_that_is_not_at_its_place(answer):
    asked = one("a b  c", answers=[[answer]])
    assert asked.unlocated.all()
    assert (encode_windows(asked, TOKENIZER, 20, 128, 6).labels == -100).all()


def test_unknown_answers_give_no_labels():
    asked = replace(one("a b"), answers=None)
    assert encode_windows(asked, TOKENIZER, 20, 128, 6).labels is None


def test_a_limit_without_room_for_a_context_is_refused():
    with pytest.raises(SettingsError, match="max_seq_length=67: more than 67"):
        encode_windows(one("a b"), TOKENIZER, 67, 128, 64)
