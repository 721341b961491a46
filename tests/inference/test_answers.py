"""Answers are widened to whole words, but not in scripts that write no spaces."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inference.small_models import save_small

import bertie
from bertie.inference.answers import snap_to_words
from bertie.inference.words import word_spans
from bertie.model.engines.torch_engine import TorchEngine
from bertie.tasks.squad.questions import read_questions
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

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
