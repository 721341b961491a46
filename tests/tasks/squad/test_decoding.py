"""Decoding of spans: by run_qa's loops, by definition, and in special cases."""

import importlib
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.tasks.squad.decoding import decode_spans, n_best_entries
from bertie.tasks.squad.questions import Questions, read_questions
from bertie.tasks.squad.windows import encode_windows
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

LETTERS = "abcdefgh"
TOKENIZER = Tokenizer(Vocabulary([*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]))


@pytest.fixture(scope="module")
def benchmark():
    """Load benchmarks/squad.py, which has the loops of run_qa.py of `transformers`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
        return importlib.import_module("squad")


def one_question(context, question="h"):
    return Questions(["q"], [question], [context], np.array([0]))


def decode(
    questions, logits, threshold=None, n_best=20, max_answer_length=30, max_seq_length=64, doc_stride=128
):
    """Return the predictions, and the entries of each question's n-best list."""
    windows = encode_windows(questions, TOKENIZER, max_seq_length, doc_stride, 5)
    logits = np.asarray(logits(windows) if callable(logits) else logits, dtype=np.float32)
    predictions = decode_spans(questions, windows, logits, n_best, max_answer_length, threshold)
    return predictions, n_best_entries(questions, predictions.n_best)


def peaks(windows, *tokens):
    """Return logits that are 0 except those of (token, start logit, end logit)."""
    logits = np.zeros((len(windows.input_ids), 2))
    for token, start, end in tokens:
        logits[token] = start, end
    return logits


@pytest.mark.parametrize("max_seq_length", [384, 110])
def test_real_questions_are_decoded_as_by_run_qas_loops(shared_data, benchmark, max_seq_length):
    questions = read_questions(shared_data / "squad" / "dev-v2.0.json", labelled=False)
    tokenizer = Tokenizer.load(shared_data / "vocab" / "uncased_en" / "vocab.txt")
    windows = encode_windows(questions, tokenizer, max_seq_length, 32, 64)
    questions, windows = benchmark.first_windows(questions, windows, 400)
    logits = np.random.default_rng(0).normal(0, 3, (len(windows.input_ids), 2)).astype(np.float32)
    predictions = decode_spans(questions, windows, logits, 20, 30, null_threshold=0.0)
    answers, null_odds, n_best = benchmark.decode_by_loops(questions, benchmark.features_of(windows), logits)
    assert predictions.texts == answers
    assert predictions.null_odds.tolist() == null_odds
    entries = n_best_entries(questions, predictions.n_best)
    for ours, theirs in zip(entries, n_best, strict=True):
        assert [entry["text"] for entry in ours] == [entry["text"] for entry in theirs]
        for name in ("start_logit", "end_logit", "probability"):
            assert [entry[name] for entry in ours] == pytest.approx([entry[name] for entry in theirs])


@given(
    st.integers(1, 12),
    st.integers(1, 5),
    st.integers(4, 12),
    st.integers(1, 8),
    st.integers(0, 2**32 - 1),
)
def test_best_spans_are_found_by_exhaustive_search(
    context_tokens, max_answer_length, context_size, doc_stride, seed
):
    """All starts and ends are paired, since n_best exceeds the number of tokens."""
    questions = one_question(" ".join(LETTERS[i % 8] for i in range(context_tokens)))
    windows = encode_windows(questions, TOKENIZER, context_size + 6, doc_stride, 6)
    logits = np.random.default_rng(seed).integers(-3, 4, (len(windows.input_ids), 2)).astype(np.float32)
    predictions = decode_spans(questions, windows, logits, 12 * 5, max_answer_length, 0.0)
    spans = {}
    for begin, end in zip(windows.bounds, windows.bounds[1:], strict=False):
        for start in range(begin, end):
            for last in range(start, min(start + max_answer_length, end - 1)):
                if windows.max_context[start]:
                    offsets = (windows.offsets[start][0], windows.offsets[last][1])
                    spans[offsets] = float(logits[start, 0] + logits[last, 1])
    null = min(logits[windows.bounds[:-1]].sum(1))
    assert predictions.null_odds[0] == null - max(spans.values())
    entries = n_best_entries(questions, predictions.n_best)[0]
    scores = [entry["start_logit"] + entry["end_logit"] for entry in entries]
    assert scores == sorted(scores, reverse=True)
    listed = {tuple(offsets) for offsets in predictions.n_best.offsets[0][: len(entries)].tolist()}
    assert len(listed) == len(entries) == len(spans) + 1


def test_an_answer_is_a_slice_of_the_context():
    questions = one_question("a b  Àé\u0301 c")
    predictions, _ = decode(questions, lambda windows: peaks(windows, (4, 9, 0), (6, 0, 9)))
    assert predictions.texts == ["b  Àé\u0301"]


def test_more_spans_than_exist_need_no_memory():
    predictions, (entries,) = decode(one_question("a b"), lambda windows: peaks(windows), n_best=10**12)
    assert len(entries) == 3  # a, a b, b
    assert predictions.n_best.offsets.nbytes < 10_000


def test_answer_is_empty_if_null_odds_exceed_the_threshold():
    questions = one_question("a b")
    for threshold, text in ((0.9, ""), (1.0, "a")):
        predictions, _ = decode(questions, lambda windows: peaks(windows, (0, 3, 2), (3, 2, 2)), threshold)
        assert predictions.null_odds.tolist() == [1.0]
        assert predictions.texts == [text]
        assert predictions.answers == ["a"]


# [CLS] h [SEP] a b c d e [SEP], [CLS] h [SEP] c d e f [SEP]; e and f have the most context in the
# second window.
TWO_WINDOWS = {"max_seq_length": 9, "doc_stride": 2}


@pytest.mark.parametrize("nulls", [((0, 5, 4), (9, 3, 5)), ((0, 3, 5), (9, 5, 4)), ((0, 3, 5), (9, 5, 3))])
def test_null_score_is_the_first_of_the_lowest_of_all_windows(nulls):
    questions = one_question("a b c d e f")
    predictions, (entries,) = decode(
        questions, lambda windows: peaks(windows, *nulls, (4, 6, 6)), 0.0, **TWO_WINDOWS
    )
    assert predictions.null_odds.tolist() == [8.0 - 12.0]
    assert [(entry["start_logit"], entry["end_logit"]) for entry in entries if not entry["text"]] == [(3, 5)]


def test_only_the_start_needs_the_most_context():
    questions = one_question("a b c d e f")
    other_start, _ = decode(questions, lambda w: peaks(w, (7, 9, 0), (15, 1, 1)), **TWO_WINDOWS)
    assert other_start.texts == ["f"]
    other_end, _ = decode(questions, lambda w: peaks(w, (6, 9, 0), (7, 0, 9)), **TWO_WINDOWS)
    assert other_end.texts == ["d e"]


def test_spans_of_all_windows_are_ranked_together():
    questions = one_question("a b c d e f")
    _, (entries,) = decode(
        questions, lambda w: peaks(w, (3, 4, 4), (14, 4, 0), (15, 0, 3)), n_best=2, **TWO_WINDOWS
    )
    assert [entry["text"] for entry in entries] == ["a", "e f"]
    assert entries[0]["probability"] == pytest.approx(1 / (1 + np.exp(7 - 8)))


def test_probabilities_of_large_logits_do_not_overflow():
    _, (entries,) = decode(one_question("a b"), lambda windows: peaks(windows, (3, 1e4, 1e4), (4, 0, 1e4)))
    assert [(entry["text"], entry["probability"]) for entry in entries[:2]] == [("a", 0.5), ("a b", 0.5)]


@settings(max_examples=30)  # each has three questions
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.booleans())
def test_the_best_pairs_are_listed_for_each_question(seed, n_best, with_null):
    """A pair is of a window's n best starts and ends; "no answer" is always listed, if allowed."""
    contexts = ["a b c d e f", "g h", "c d e f g h a b"]
    questions = Questions(list("123"), ["h"] * 3, contexts, np.arange(3))
    windows = encode_windows(questions, TOKENIZER, 9, 2, 5)
    logits = np.random.default_rng(seed).integers(-1, 2, (len(windows.input_ids), 2))
    threshold = 0.0 if with_null else None
    predictions, entries = decode(questions, logits, threshold, n_best, **TWO_WINDOWS)
    bounds = windows.bounds.tolist()
    for question, (first, last) in enumerate(pairwise(windows.window_bounds.tolist())):
        pairs = []
        for begin, end in pairwise(bounds[first : last + 1]):
            starts, ends = (
                begin + np.argsort(-column, kind="stable")[:n_best] for column in logits[begin:end].T
            )
            pairs += [(s, e) for s in starts for e in ends if windows.max_context[s] and s <= e < end - 1]

        def score(pair):
            return -logits[pair[0], 0] - logits[pair[1], 1]

        null = max(((begin, begin) for begin in bounds[first:last]), key=score)
        expected = sorted(pairs, key=score)[:n_best]
        if with_null:
            null_odds = score(expected[0]) - score(null) if pairs else 1e6
            assert predictions.null_odds[question] == null_odds
        if with_null or not pairs:
            listed = sorted([*expected, null], key=score)
            expected = listed[:n_best] if null in listed[:n_best] else listed
        assert [(entry["text"], entry["start_logit"], entry["end_logit"]) for entry in entries[question]] == [
            (contexts[question][windows.offsets[s, 0] : windows.offsets[e, 1]], *logits[[s, e], [0, 1]])
            for s, e in expected
        ]


def test_question_and_special_tokens_are_never_the_answer():
    questions = one_question("a", question="h h")
    logits = [[9, 9], [9, 9], [9, 9], [9, 9], [0, 0], [9, 9]]
    predictions, (entries,) = decode(questions, logits)
    assert predictions.texts == ["a"]
    assert entries == [{"text": "a", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}]


def test_the_first_of_equal_spans_is_kept():
    logits = np.zeros((9, 2))
    logits[:3] = -1
    _, (entries,) = decode(one_question("a b c d e"), logits, n_best=3)
    assert [entry["text"] for entry in entries] == ["a", "a b", "a b c"]


def test_no_answer_comes_after_answers_of_the_same_score():
    logits = np.full((6, 2), -1)  # [CLS] h [SEP] a b [SEP]
    logits[[0, 3, 4]] = 0
    _, (entries,) = decode(one_question("a b"), logits, threshold=0.0, n_best=3)
    assert [entry["text"] for entry in entries] == ["a", "a b", "b", ""]


def test_no_questions_have_no_answers():
    questions = Questions([], [], [], np.zeros(0, np.int64))
    predictions, entries = decode(questions, np.zeros((0, 2)), threshold=0.0)
    assert (predictions.texts, entries) == ([], [])


@pytest.mark.parametrize(
    ("null_start", "texts"), [(0, ["", "a b"]), (-3, ["a b", "b", ""]), (-4, ["a b", "b", ""])]
)
def test_no_answer_replaces_the_last_span_if_it_is_better(null_start, texts):
    """[CLS] is one of the two best ends; the spans score 3 and 2, "no answer" 5, 2 or 1."""
    _, (entries,) = decode(
        one_question("a b"), lambda w: peaks(w, (0, null_start, 5), (3, 2, 0), (4, 1, 1)), 0.0, n_best=2
    )
    assert [entry["text"] for entry in entries] == texts


def test_answers_have_a_maximum_length():
    logits = np.zeros((8, 2))
    logits[3, 0], logits[6, 1] = 9, 9
    assert decode(one_question("a b c d"), logits, max_answer_length=4)[0].texts == ["a b c d"]
    assert decode(one_question("a b c d"), logits, max_answer_length=3)[0].texts != ["a b c d"]


@pytest.mark.parametrize("threshold", [None, 0.0])
@pytest.mark.parametrize("case", ["no tokens", "n_best exhausted", "backwards"])
def test_answer_is_empty_if_no_span_is_possible(threshold, case):
    questions = one_question(" " if case == "no tokens" else "a b")
    logits = np.zeros((4 if case == "no tokens" else 6, 2))
    logits[0], logits[3, 1], logits[-2, 0] = 5, 1, 1  # with n_best = 2, the start is b and the end a
    n_best = 1 if case == "n_best exhausted" else 2
    predictions, (entries,) = decode(questions, logits, threshold, n_best=n_best)
    assert predictions.texts == [""]
    assert [(entry["text"], entry["probability"]) for entry in entries] == [("", 1.0)]
    json.dumps(entries, allow_nan=False)
    assert threshold is None or predictions.null_odds.tolist() == [1e6]  # above any threshold


def test_answers_without_null_odds_are_not_changed():
    questions = one_question("a b")
    predictions, _ = decode(questions, np.zeros((6, 2)))
    assert predictions.null_odds is None
    assert replace(predictions, answers=["x", None]).texts == ["x", None]
