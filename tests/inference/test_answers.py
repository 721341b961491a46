"""Answers are widened to whole words, but not in scripts that write no spaces."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inference.small_models import save_small

import bertie
from bertie.inference.answers import rank_answers, snap_to_words
from bertie.inference.results import Answer
from bertie.model.engines.torch_engine import TorchEngine
from bertie.tasks.squad.decoding import NBest, SpanPredictions
from bertie.tasks.squad.questions import read_questions
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.text.words import word_spans

TOKENIZER = Tokenizer(Vocabulary([*SPECIAL_TOKENS, "a"]))


def snap(text: str, part: str) -> str:
    """Snap the first occurrence of `part`."""
    start = text.index(part)
    (words,) = word_spans([text], TOKENIZER)
    start, end = snap_to_words(text, (start, start + len(part)), words)
    return text[start:end]


@pytest.mark.parametrize(
    ("text", "part", "expected"),
    [
        ("The Eiffel Tower is in Paris.", "iffel Tow", "Eiffel Tower"),
        ("The Eiffel Tower is in Paris.", "Eiffel Tower", "Eiffel Tower"),
        ("It is in Paris.", "ari", "Paris"),
        ("It's John-Paul's.", "au", "Paul"),
        ("Das Café Zürich", "rich", "Zürich"),
        ("in 1815, then", "815", "1815"),
        ("дом Пушкина здесь", "ушкин", "Пушкина"),
        ("한국어를 합니다", "한국", "한국어를"),  # Korean writes spaces; a particle belongs to its word
        ("埃菲尔铁塔位于巴黎市中心。", "巴黎", "巴黎"),
        ("エッフェル塔はパリにあります。", "パリ", "パリ"),
        ("エッフェル塔はパリにあります。", "フェル塔", "フェル塔"),
        ("東京タワーの高さは333メートルです", "33", "333"),
        ("หอไอเฟลอยู่ในปารีส", "ปารีส", "ปารีส"),
        ("新宿Station東口", "tatio", "Station"),
        ("すこ\u3099い", "すこ", "すこ\u3099"),  # ご in two code points
        ("すこ\u3099い", "\u3099い", "こ\u3099い"),
        ("ที่นี่", "ที", "ที่"),
    ],
)
def test_answers_snap_to_words(text, part, expected):
    assert snap(text, part) == expected


@given(st.text(max_size=30), st.data())
def test_a_snapped_span_contains_the_span(text, data):
    (words,) = word_spans([text], TOKENIZER)
    if not words:
        return
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    start = data.draw(st.integers(words[first][0], words[first][1] - 1))
    end = data.draw(st.integers(max(start, words[last][0]) + 1, words[last][1]))
    snapped = snap_to_words(text, (start, end), words)
    assert words[first][0] <= snapped[0] <= start
    assert end <= snapped[1] <= words[last][1]
    assert snap_to_words(text, snapped, words) == snapped


def ranked(spans, probabilities, **predictions):
    """Return the answers to a question about "Eiffel Tower" that has an n-best list."""
    context = "Eiffel Tower"
    logits = np.zeros((1, len(spans), 2), np.float32)
    n_best = NBest(np.array([len(spans)]), np.array([spans]), logits, np.array([probabilities]))
    answer = next(context[start:end] for start, end in spans if end)
    (answers,) = rank_answers([context], SpanPredictions([answer], n_best=n_best, **predictions), TOKENIZER)
    return answers


def test_answers_that_become_equal_keep_the_best_score():
    answers = ranked([(1, 6), (7, 12), (0, 6), (0, 12)], [0.4, 0.3, 0.2, 0.1])
    assert answers == [
        Answer("Eiffel", 0, 6, 0.4),
        Answer("Tower", 7, 12, 0.3),
        Answer("Eiffel Tower", 0, 12, 0.1),
    ]


@pytest.mark.parametrize(("threshold", "is_empty"), [(0.5, True), (1.0, False)])
def test_no_answer_comes_first_or_is_left_out(threshold, is_empty):
    odds = {"null_odds": np.array([1.0]), "null_threshold": threshold}
    answers = ranked([(7, 12), (0, 0), (0, 6)], [0.5, 0.3, 0.2], **odds)
    others = [Answer("Tower", 7, 12, 0.5), Answer("Eiffel", 0, 6, 0.2)]
    assert answers == [Answer("", 0, 0, 0.3)] * is_empty + others


def test_cut_answers_of_squad_become_whole_again(shared_data):
    """The gold answers consist of whole words, but for a few that cut one."""
    questions = read_questions(shared_data / "squad" / "dev-v1.1.json", labelled=True)
    words = word_spans(questions.contexts, TOKENIZER)
    unchanged = restored = count = 0
    for context_index, answers in zip(questions.context_indices, questions.answers, strict=True):
        context, (text, start) = questions.contexts[context_index], answers[0]
        if not re.fullmatch(r"[A-Za-z]{3}.*[A-Za-z]{3}", text):
            continue
        count += 1
        span = (start, start + len(text))
        unchanged += snap_to_words(context, span, words[context_index]) == span
        restored += snap_to_words(context, (start + 1, span[1] - 1), words[context_index]) == span
    assert count > 200
    assert restored == unchanged >= 0.98 * count


def test_answers_in_japanese_are_not_widened(tmp_path, monkeypatch):
    """The model answers the tokens フェル and 塔, which lie inside a run of characters without spaces."""
    text = "エッフェル塔はパリにあります。"
    tokenizer = Tokenizer(
        Vocabulary([*SPECIAL_TOKENS, *"aエ塔", "##ッ", "##フェル", "はパリにあります", "。"])
    )
    path = save_small(tmp_path, "squad-v1", tokenizer=tokenizer)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("a", text).input_ids)
    first, last = tokens.index("##フェル"), tokens.index("塔")

    def logits(engine: TorchEngine, batch):
        values = original(engine, batch)
        values[:] = 0
        values[first, 0] = values[last, 1] = 9
        return values

    original = TorchEngine.logits
    monkeypatch.setattr(TorchEngine, "logits", logits)
    assert bertie.load(path).answer("a", text)[0].text == "フェル塔"
