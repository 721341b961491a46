"""The drawn dev set is seeded and stratified, and keeps texts that belong together."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import DataError, SettingsError
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.conll import TaggedSentences
from bertie.tasks.custom.classification import CustomClassification
from bertie.tasks.dev_split import draw_dev_examples
from bertie.tasks.ner import NER
from bertie.tasks.squad.questions import Questions
from bertie.tasks.squad.task import SQUAD_TASKS
from bertie.tasks.swag import SWAG, Choices


def labelled(labels):
    examples = LabelledTexts([f"text {i}" for i in range(len(labels))], labels=labels)
    return CustomClassification().fitted(examples), examples


@given(st.lists(st.sampled_from("abc"), min_size=20, max_size=200), st.sampled_from([0.1, 0.25, 0.5]))
def test_fraction_of_each_label_is_kept(labels, fraction):
    task, examples = labelled(labels)
    drawn = draw_dev_examples(task, examples, fraction, "train.csv")
    assert drawn == sorted(set(drawn)) == draw_dev_examples(task, examples, fraction, "train.csv")
    counts, total = Counter(labels[i] for i in drawn), Counter(labels)
    for label in total:
        assert abs(counts[label] - fraction * total[label]) <= 1
        assert counts[label] < total[label] or total[label] == 1
    rest = task.select(examples, drawn)
    assert rest.texts == [f"text {i}" for i in drawn]


@pytest.mark.parametrize("fraction", [0, 0.51, 1, -0.1, float("nan")])
def test_impossible_fractions_are_refused(fraction):
    with pytest.raises(SettingsError, match=r"above 0 and at most 0\.5"):
        draw_dev_examples(*labelled(list("ab" * 9)), fraction, "train.csv")


@pytest.mark.parametrize(("fraction", "count"), [(0.1, 1), (0.25, 2), (0.5, 4)])
def test_fraction_is_rounded(fraction, count):
    assert len(draw_dev_examples(*labelled(list("abababa")), fraction, "train.csv")) == count


def test_only_example_is_not_drawn():
    with pytest.raises(DataError, match=r"train.csv: too few examples for a dev set of 0.5: 1"):
        draw_dev_examples(*labelled(["a"]), 0.5, "train.csv")


def test_too_few_examples_are_refused():
    with pytest.raises(DataError, match=r"train.csv: too few examples for a dev set of 0.1: 4"):
        draw_dev_examples(*labelled(list("abab")), 0.1, "train.csv")


def test_questions_on_a_single_context_need_a_dev_file():
    examples = Questions(["1", "2"], ["Who?", "Where?"], ["Ada slept."], np.zeros(2, np.int64), [[], []])
    message = (
        r"squad.json: too few examples for a dev set of 0.5: 2, which share 1 context or document; give a dev"
    )
    with pytest.raises(DataError, match=message):
        draw_dev_examples(SQUAD_TASKS[1], examples, 0.5, "squad.json")


def test_documents_are_not_divided():
    bounds = np.arange(0, 41, 4)
    examples = TaggedSentences([[f"w{i}"] for i in range(40)], [["O"]] * 39 + [["B-X"]], bounds)
    task = NER.fitted(examples)
    drawn = draw_dev_examples(task, examples, 0.2, "train.conll")
    assert len(drawn) == 8
    dev = task.select(examples, drawn)
    assert dev.document_bounds.tolist() == [0, 4, 8]
    assert dev.words == [[f"w{i}"] for i in drawn]
    single = TaggedSentences(examples.words, examples.tags, np.array([0, 40]))
    drawn = draw_dev_examples(task, single, 0.2, "train.conll")
    assert (len(drawn), task.select(single, drawn).document_bounds.tolist()) == (8, [0, 8])


def test_questions_of_a_context_stay_together():
    contexts = [f"context {i}" for i in range(10)]
    indices = np.repeat(np.arange(10), 3)
    ids = [str(i) for i in range(30)]
    examples = Questions(ids, ids, contexts, indices, [[("context", 0)]] * 30)
    task = SQUAD_TASKS[0]
    drawn = draw_dev_examples(task, examples, 0.2, "train.json")
    assert len(drawn) == 6
    dev = task.select(examples, drawn)
    assert len(dev.contexts) == 2
    assert [dev.contexts[i] for i in dev.context_indices] == [contexts[indices[i]] for i in drawn]


def test_choices_are_selected():
    ids = [str(i) for i in range(20)]
    examples = Choices(ids, ids, [["a", "b"]] * 20, np.arange(20) % 2, ids)
    drawn = draw_dev_examples(SWAG, examples, 0.25, "train.csv")
    assert SWAG.select(examples, drawn).labels.tolist() == [i % 2 for i in drawn]


def test_labels_of_a_large_file_are_compared_once(monkeypatch):
    """Once for each example takes minutes for SST-2's 67,349."""
    calls, strata = [], CustomClassification.strata

    def count_calls(task, examples):
        calls.append(examples)
        return strata(task, examples)

    monkeypatch.setattr(CustomClassification, "strata", count_calls)
    draw_dev_examples(*labelled(list("ab" * 50)), 0.1, "train.csv")
    assert len(calls) == 1
