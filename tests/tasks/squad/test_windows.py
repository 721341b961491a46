"""Windows of SQuAD match run_squad.py's definition; labels and offsets."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bertie.base.texts import TextError
from bertie.tasks.squad.questions import Questions
from bertie.tasks.squad.windows import encode_windows
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

LETTERS = "abcdefgh"
TOKENIZER = Tokenizer(Vocabulary([*SPECIAL_TOKENS, ",", *LETTERS, *(f"##{letter}" for letter in LETTERS)]))
WORDS = st.text(alphabet=LETTERS + "  ,éÀ😀好", max_size=40)
LONG_WORDS = st.text(alphabet=LETTERS + "  ", min_size=40, max_size=60)


@st.composite
def random_questions(draw):
    contexts = draw(st.lists(WORDS | LONG_WORDS, min_size=1, max_size=3))
    context_indices = draw(st.lists(st.integers(0, len(contexts) - 1), min_size=1, max_size=4))
    answers = []
    for context in context_indices:
        start = draw(st.integers(0, len(contexts[context])))
        end = draw(st.integers(start, min(start + 12, len(contexts[context]))))
        answers.append([(contexts[context][start:end], start)] if draw(st.booleans()) else [])
    texts = draw(st.lists(WORDS, min_size=len(context_indices), max_size=len(context_indices)))
    ids = [str(index) for index in range(len(context_indices))]
    return Questions(ids, texts, contexts, np.array(context_indices), answers)


def one_question(context, question="ab", answers=((),)):
    return Questions(["q"], [question], [context], np.array([0]), answers)


def widest(spans, token):
    """Return the first span with the best score (run_squad.py:542)."""
    scores = [
        min(token - first, first + size - 1 - token) + 0.01 * size if first <= token < first + size else -1
        for first, size in spans
    ]
    return scores.index(max(scores))


def windows_by_definition(questions, max_seq_length, doc_stride, max_query_length):
    """Compute the tokens, segments, offsets and max_context of each window."""
    rows = []
    for text, context in zip(questions.questions, questions.context_indices, strict=True):
        question = TOKENIZER.encode_batch([text], add_special_tokens=False).input_ids[:max_query_length]
        encoding = TOKENIZER.encode_batch([questions.contexts[context]], add_special_tokens=False)
        ids, offsets = encoding.input_ids.tolist(), encoding.offsets.tolist()
        capacity, first, spans = max_seq_length - len(question) - 3, 0, []
        while True:
            spans.append((first, min(capacity, len(ids) - first)))
            if first + capacity >= len(ids):
                break
            first += min(capacity, doc_stride)
        for window, (first, size) in enumerate(spans):
            prefix, cls, sep = len(question) + 2, TOKENIZER.vocabulary.cls_id, TOKENIZER.vocabulary.sep_id
            rows.append(
                (
                    [cls, *question.tolist(), sep, *ids[first : first + size], sep],
                    [0] * prefix + [1] * (size + 1),
                    [[0, 0]] * prefix + offsets[first : first + size] + [[0, 0]],
                    [False] * prefix
                    + [widest(spans, token) == window for token in range(first, first + size)]
                    + [False],
                )
            )
    return rows


@given(random_questions(), st.integers(10, 40), st.integers(1, 30), st.integers(1, 40))
def test_windows_match_the_definition(questions, max_seq_length, doc_stride, max_query_length):
    sizes = np.diff(TOKENIZER.encode_batch(questions.questions, add_special_tokens=False).bounds)
    assume(min(max(sizes), max_query_length) + 3 < max_seq_length)
    windows = encode_windows(questions, TOKENIZER, max_seq_length, doc_stride, max_query_length)
    columns = (windows.input_ids, windows.token_type_ids, windows.offsets, windows.max_context)
    rows = [
        tuple(column[begin:end].tolist() for column in columns)
        for begin, end in zip(windows.bounds, windows.bounds[1:], strict=False)
    ]
    assert rows == windows_by_definition(questions, max_seq_length, doc_stride, max_query_length)
    assert max(np.diff(windows.bounds)) <= max_seq_length
    assert len(windows.window_bounds) == len(questions) + 1
    assert windows.window_bounds[-1] == len(windows)


def test_length_outweighs_one_more_token_of_context():
    """The first window scores 0 + 1.40 for its last token, the second one 1 + 0.13."""
    questions = one_question(" ".join("a" * 141), question="a")
    windows = encode_windows(questions, TOKENIZER, 144, 128, 6)
    assert np.diff(windows.bounds).tolist() == [144, 17]
    first, second = windows_by_definition(questions, 144, 128, 6)
    assert windows.max_context.tolist() == first[3] + second[3]
    assert windows.max_context[142]


@given(random_questions(), st.integers(10, 40), st.integers(1, 30))
def test_every_token_has_most_context_once(questions, max_seq_length, doc_stride):
    windows = encode_windows(questions, TOKENIZER, max_seq_length, doc_stride, max_query_length=6)
    contexts = TOKENIZER.encode_batch(questions.contexts, add_special_tokens=False)
    for question, context in enumerate(questions.context_indices):
        first, last = windows.bounds[windows.window_bounds[question : question + 2]]
        of_question = windows.offsets[first:last][windows.max_context[first:last]].tolist()
        expected = contexts.offsets[contexts.bounds[context] : contexts.bounds[context + 1]].tolist()
        assert sorted(of_question) == sorted(expected)


@given(random_questions(), st.integers(10, 20), st.integers(1, 12))
def test_labels_are_the_narrowest_tokens_that_cover_the_answer(questions, max_seq_length, doc_stride):
    windows = encode_windows(questions, TOKENIZER, max_seq_length, doc_stride, max_query_length=6)
    contexts = TOKENIZER.encode_batch(questions.contexts, add_special_tokens=False)
    question_of = np.repeat(np.arange(len(questions)), np.diff(windows.window_bounds))
    for window, question in enumerate(question_of):
        label = windows.labels[window].tolist()
        if not questions.answers[question]:
            assert label == [0, 0]
            continue
        text, start = questions.answers[question][0]
        context = questions.context_indices[question]
        offsets = contexts.offsets[contexts.bounds[context] : contexts.bounds[context + 1]]
        covering = [pair for pair in offsets.tolist() if pair[1] > start and pair[0] < start + len(text)]
        here = windows.offsets[windows.bounds[window] : windows.bounds[window + 1]].tolist()
        if not text.strip() or not covering:
            assert label == [-100, -100]
        elif label == [0, 0]:
            assert any(pair not in here for pair in covering)
        else:
            assert here[label[0] : label[1] + 1] == covering


def test_an_answer_inside_a_token_is_widened_to_it():
    questions = one_question("abc xyz d", answers=[[("y", 5)]])  # "xyz" is one [UNK]
    windows = encode_windows(questions, TOKENIZER, 20, 128, 6)
    first, last = windows.labels[0]
    assert questions.contexts[0][windows.offsets[first][0] : windows.offsets[last][1]] == "xyz"


def test_offsets_count_code_points_not_utf16_units():
    questions = one_question("😀😀 cafe\u0301 au lait", answers=[[("cafe\u0301", 3)]])
    windows = encode_windows(questions, TOKENIZER, 30, 128, 6)
    first, last = windows.labels[0]
    assert questions.contexts[0][windows.offsets[first][0] : windows.offsets[last][1]] == "cafe\u0301"


def test_a_long_question_is_truncated():
    windows = encode_windows(one_question("a b", question="c " * 100), TOKENIZER, 80, 128, 64)
    assert len(windows) == 1
    assert (windows.token_type_ids == 0).sum() == 64 + 2
    assert len(windows.input_ids) == 64 + 3 + 2


def test_a_context_without_tokens_is_one_window():
    windows = encode_windows(one_question(" \n"), TOKENIZER, 20, 128, 6)
    assert len(windows) == 1
    assert not windows.max_context.any()


@pytest.mark.parametrize("answer", [("x", 0), ("a b", 1), ("c", -1), ("  ", 3), ("", 0), ("a b", 10**6)])
def test_misplaced_answers_are_ignored_by_the_loss(answer):
    questions = one_question("a b  c", answers=[[answer]])
    assert questions.is_misplaced.all()
    assert (encode_windows(questions, TOKENIZER, 20, 128, 6).labels == -100).all()


def test_an_answer_that_has_no_tokens_is_ignored_by_the_loss():
    questions = one_question("a \u200b c", answers=[[("\u200b", 2)]])  # the tokenizer drops it
    assert not questions.is_misplaced.any()
    assert (encode_windows(questions, TOKENIZER, 20, 128, 6).labels == -100).all()


def test_questions_without_gold_answers_have_no_labels():
    questions = replace(one_question("a b"), answers=None)
    assert encode_windows(questions, TOKENIZER, 20, 128, 6).labels is None


def test_a_question_needs_room_for_one_token_of_its_context():
    questions = Questions(["1", "2", "3"], ["a b", "a " * 9, "b " * 9], ["a b c"], np.array([0, 0, 0]))
    windows = encode_windows(questions, TOKENIZER, 13, 128, 64)
    assert np.diff(windows.bounds).tolist() == [2 + 3 + 3, *[13] * 6]
    with pytest.raises(TextError, match=r"^questions\[1\]: the question 'a a .*', with 9 .*=12; short"):
        encode_windows(questions, TOKENIZER, 12, 128, 64)
    with pytest.raises(TextError, match=r"with 4 .* leaves no room for its context in max_seq_length=7;"):
        encode_windows(questions, TOKENIZER, 7, 128, max_query_length=4)
