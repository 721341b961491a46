import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
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
    """benchmarks/squad.py, which has the loops of the question-answering example of `transformers`."""
    path = Path(__file__).parents[3] / "benchmarks" / "squad.py"
    specification = importlib.util.spec_from_file_location("benchmark_squad", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def one(context, question="h"):
    return Questions(["q"], [question], [context], np.array([0]))


def decode(asked, logits, threshold=None, n_best=20, max_answer_length=30, max_seq_length=64, doc_stride=128):
    """The predictions and, for each question, the entries of the n-best."""
    windows = encode_windows(asked, TOKENIZER, max_seq_length, doc_stride, 5)
    logits = np.asarray(logits(windows) if callable(logits) else logits, dtype=np.float32)
    predictions = decode_spans(asked, windows, logits, n_best, max_answer_length, threshold)
    return predictions, n_best_entries(asked, predictions.n_best)


def peaks(windows, *places):
    """Logits that are 0 but for (token, start logit, end logit)."""
    logits = np.zeros((len(windows.input_ids), 2))
    for token, start, end in places:
        logits[token] = start, end
    return logits


@pytest.mark.parametrize("max_seq_length", [384, 110])
def test_real_questions_as_the_loops_of_run_qa(shared_data, benchmark, max_seq_length):
    asked = read_questions(shared_data / "squad" / "dev-v2.0.json", labelled=False)
    tokenizer = Tokenizer.load(shared_data / "vocab" / "uncased_en" / "vocab.txt")
    windows = encode_windows(asked, tokenizer, max_seq_length, 32, 64)
    asked, windows = benchmark.first_windows(asked, windows, 400)
    logits = np.random.default_rng(0).normal(0, 3, (len(windows.input_ids), 2)).astype(np.float32)
    predictions = decode_spans(asked, windows, logits, 20, 30, null_threshold=0.0)
    answers, null_odds, n_best = benchmark.decode_by_loops(asked, benchmark.features_of(windows), logits)
    assert predictions.texts == answers
    assert predictions.null_odds.tolist() == null_odds
    entries = n_best_entries(asked, predictions.n_best)
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
def test_the_best_span_is_the_best_of_all(pieces, max_answer_length, room, doc_stride, seed):
    """When as many starts and ends are paired as there are tokens."""
    asked = one(" ".join(LETTERS[i % 8] for i in range(pieces)))
    windows = encode_windows(asked, TOKENIZER, room + 6, doc_stride, 6)
    logits = np.random.default_rng(seed).integers(-3, 4, (len(windows.input_ids), 2)).astype(np.float32)
    predictions = decode_spans(asked, windows, logits, 12 * 5, max_answer_length, 0.0)
    spans = {}
    for begin, end in zip(windows.bounds, windows.bounds[1:], strict=False):
        for start in range(begin, end):
            for last in range(start, min(start + max_answer_length, end - 1)):
                if windows.max_context[start]:
                    place = (windows.offsets[start][0], windows.offsets[last][1])
                    spans[place] = float(logits[start, 0] + logits[last, 1])
    null = min(logits[windows.bounds[:-1]].sum(1))
    assert predictions.null_odds[0] == null - max(spans.values())
    entries = n_best_entries(asked, predictions.n_best)[0]
    scores = [entry["start_logit"] + entry["end_logit"] for entry in entries]
    assert scores == sorted(scores, reverse=True)
    listed = {tuple(place) for place in predictions.n_best.offsets[0][: len(entries)].tolist()}
    assert len(listed) == len(entries) == len(spans) + 1


def test_an_answer_is_what_the_context_has():
    asked = one("a b  Àé\u0301 c")
    predictions, _ = decode(asked, lambda windows: peaks(windows, (4, 9, 0), (6, 0, 9)))
    assert predictions.texts == ["b  Àé\u0301"]


def test_no_answer_where_its_odds_exceed_the_threshold():
    asked = one("a b")
    for threshold, text in ((0.9, ""), (1.0, "a")):
        predictions, _ = decode(asked, lambda windows: peaks(windows, (0, 3, 2), (3, 2, 2)), threshold)
        assert predictions.null_odds.tolist() == [1.0]
        assert predictions.texts == [text]
        assert predictions.answers == ["a"]


# [CLS] h [SEP] a b c d e [SEP], [CLS] h [SEP] c d e f [SEP]; e and f have most context in the second window.
TWO_WINDOWS = {"max_seq_length": 9, "doc_stride": 2}


def test_no_answer_scores_as_the_window_that_doubts_it_most():
    asked = one("a b c d e f")
    predictions, (entries,) = decode(
        asked, lambda windows: peaks(windows, (0, 5, 4), (9, 3, 5), (4, 6, 6)), 0.0, **TWO_WINDOWS
    )
    assert predictions.null_odds.tolist() == [8.0 - 12.0]
    assert [(entry["start_logit"], entry["end_logit"]) for entry in entries if not entry["text"]] == [(3, 5)]


def test_the_start_alone_must_have_most_context():
    asked = one("a b c d e f")
    start_elsewhere, _ = decode(asked, lambda w: peaks(w, (7, 9, 0), (15, 1, 1)), **TWO_WINDOWS)
    assert start_elsewhere.texts == ["f"]
    end_elsewhere, _ = decode(asked, lambda w: peaks(w, (6, 9, 0), (7, 0, 9)), **TWO_WINDOWS)
    assert end_elsewhere.texts == ["d e"]


def test_spans_of_all_windows_are_ranked_together():
    asked = one("a b c d e f")
    _, (entries,) = decode(
        asked, lambda w: peaks(w, (3, 4, 4), (14, 4, 0), (15, 0, 3)), n_best=2, **TWO_WINDOWS
    )
    assert [entry["text"] for entry in entries] == ["a", "e f"]
    assert entries[0]["probability"] == pytest.approx(1 / (1 + np.exp(7 - 8)))


def test_question_and_separators_are_never_the_answer():
    asked = one("a", question="h h")
    logits = [[9, 9], [9, 9], [9, 9], [9, 9], [0, 0], [9, 9]]
    predictions, (entries,) = decode(asked, logits)
    assert predictions.texts == ["a"]
    assert entries == [{"text": "a", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}]


def test_of_equals_the_earliest_are_kept():
    logits = np.zeros((9, 2))
    logits[:3] = -1
    _, (entries,) = decode(one("a b c d e"), logits, n_best=3)
    assert [entry["text"] for entry in entries] == ["a", "a b", "a b c"]


def test_an_answer_has_a_greatest_length():
    logits = np.zeros((8, 2))
    logits[3, 0], logits[6, 1] = 9, 9
    assert decode(one("a b c d"), logits, max_answer_length=4)[0].texts == ["a b c d"]
    assert decode(one("a b c d"), logits, max_answer_length=3)[0].texts != ["a b c d"]


@pytest.mark.parametrize("threshold", [None, 0.0])
@pytest.mark.parametrize("case", ["no pieces", "all chances taken", "backwards"])
def test_where_no_span_is_possible_there_is_no_answer(threshold, case):
    asked = one(" " if case == "no pieces" else "a b")
    logits = np.zeros((4 if case == "no pieces" else 6, 2))
    logits[0], logits[3, 1], logits[-2, 0] = 5, 1, 1  # with n_best = 2, the start is b and the end a
    n_best = 1 if case == "all chances taken" else 2
    predictions, (entries,) = decode(asked, logits, threshold, n_best=n_best)
    assert predictions.texts == [""]
    assert [(entry["text"], entry["probability"]) for entry in entries] == [("", 1.0)]
    json.dumps(entries, allow_nan=False)
    assert threshold is None or predictions.null_odds.tolist() == [1e6]  # above any threshold


def test_predictions_without_odds_are_given_as_they_are():
    asked = one("a b")
    predictions, _ = decode(asked, np.zeros((6, 2)))
    assert predictions.null_odds is None
    assert replace(predictions, answers=["x", None]).texts == ["x", None]
