"""Long texts in classification: windows with a stride, and the head and tail of a text."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.test_classification import MULTILABEL, REGRESSION, SINGLE

from bertie.base.errors import SettingsError
from bertie.model.formats.directory import LongTexts, ModelMetadata
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.long_texts import TextWindows
from bertie.tasks.registry import find_task
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

LETTERS = "abcdefgh"
TOKENIZER = Tokenizer(Vocabulary([*SPECIAL_TOKENS, *LETTERS]))
# Numbers of words, which are one token each.
LENGTHS = st.lists(st.integers(0, 60), max_size=5)


def make_texts(lengths: list[int]) -> list[str]:
    return [" ".join(LETTERS[i % 8] for i in range(length)) for length in lengths]


def encode(lengths, max_seq_length, task=SINGLE, labels=None, **how):
    examples = LabelledTexts(make_texts(lengths), labels=labels)
    return task.with_long_texts(LongTexts(**how)).encode(examples, TOKENIZER, max_seq_length)


def decoded(inputs) -> list[str]:
    """Return the tokens of each sequence without [CLS] and [SEP], which must be there."""
    sequences = []
    for start, stop in zip(inputs.bounds, inputs.bounds[1:], strict=False):
        first, *tokens, last = TOKENIZER.convert_ids_to_tokens(inputs.input_ids[start:stop])
        assert (first, last) == ("[CLS]", "[SEP]")
        sequences.append(" ".join(tokens))
    return sequences


@given(LENGTHS, st.integers(1, 20), st.data())
def test_windows_are_those_of_a_plain_loop(lengths, size, data):
    stride = data.draw(st.integers(0, size))
    expected, counts = [], []
    for text in make_texts(lengths):
        words, start, windows = text.split(), 0, []
        while start + size < len(words):
            windows.append(" ".join(words[start : start + size]))
            start += stride or size
        windows.append(" ".join(words[max(len(words) - size, 0) :]))  # the last one is full
        expected += windows
        counts.append(len(windows))
    inputs = encode(lengths, size + 2, method="windows", stride=stride)
    assert isinstance(inputs, TextWindows)
    assert decoded(inputs) == expected
    assert np.diff(inputs.text_bounds).tolist() == counts
    assert (inputs.num_examples, inputs.num_batch_units) == (len(lengths), len(lengths))
    assert (len(inputs), inputs.num_truncated) == (len(expected), 0)
    assert not inputs.token_type_ids.any()


@given(LENGTHS, st.integers(1, 20))
def test_head_and_tail_are_those_of_the_formula(lengths, size):
    head = round(size * 128 / 510)
    expected = []
    for text in make_texts(lengths):
        words = text.split()
        if len(words) > size:
            words = words[:head] + words[len(words) - (size - head) :]
        expected.append(" ".join(words))
    inputs = encode(lengths, size + 2, method="head-tail")
    assert decoded(inputs) == expected
    assert inputs.num_truncated == sum(length > size for length in lengths)
    assert not inputs.token_type_ids.any()


def test_head_and_tail_of_512_tokens_are_those_of_the_paper():
    (sequence,) = decoded(encode([600], 512, method="head-tail"))
    words = make_texts([600])[0].split()
    assert sequence.split() == words[:128] + words[-382:]


@given(LENGTHS, st.integers(1, 20), st.sampled_from(["head-tail", "windows"]))
def test_short_texts_are_encoded_as_ever(lengths, surplus, method):
    max_seq_length = max([1, *lengths]) + 1 + surplus
    inputs, plain = (encode(lengths, max_seq_length, method=how) for how in (method, "truncate"))
    assert inputs.input_ids.tolist() == plain.input_ids.tolist()
    assert inputs.bounds.tolist() == plain.bounds.tolist()


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_the_logits_of_windows_are_pooled(pooling):
    inputs = encode([3, 0, 12], 7, method="windows", stride=4, pooling=pooling)
    logits = np.random.default_rng(0).normal(size=(len(inputs), 3)).astype(np.float32)
    pooled = inputs.pool(logits)
    assert inputs.text_bounds.tolist() == [0, 1, 2, 5]
    assert pooled[:2].tolist() == logits[:2].tolist()
    assert pooled[2] == pytest.approx(getattr(logits[2:], pooling)(axis=0))


@pytest.mark.parametrize(
    ("task", "labels", "expected"),
    [
        (SINGLE, ["good", "bad"], [1, 0]),
        (MULTILABEL, [("a", "c, d"), ()], [[1, 0, 1], [0, 0, 0]]),
        (REGRESSION, [2.5, -1], [2.5, -1]),
    ],
)
def test_labels_are_those_of_the_texts(task, labels, expected):
    for method, sequences in (("windows", 4), ("head-tail", 2)):
        inputs = encode([3, 12], 7, task, labels, method=method)
        assert len(inputs) == sequences
        assert inputs.labels.tolist() == expected


def test_a_task_takes_the_long_texts_of_its_model():
    how = LongTexts(method="windows", stride=3, pooling="max")
    metadata = ModelMetadata(None, "", SINGLE.labels, None, long_texts=how)
    assert SINGLE.fitted_to_model(metadata).long_texts == how
    assert SINGLE.fitted_to_model(replace(metadata, long_texts=LongTexts())) == SINGLE


def test_a_stride_longer_than_a_window_is_refused():
    message = r"window_stride 6 exceeds the 5 tokens of a window .*; use 5 or less"
    with pytest.raises(SettingsError, match=message):
        encode([3], 7, method="windows", stride=6)
    assert len(encode([3], 7, method="windows", stride=5)) == 1


@pytest.mark.parametrize("method", ["head-tail", "windows"])
def test_pairs_are_refused(method):
    task = SINGLE.with_long_texts(LongTexts(method=method))
    with pytest.raises(SettingsError, match=f"long_texts={method} reads single texts, not pairs"):
        task.encode(LabelledTexts(["a"], ["b"]), TOKENIZER, 7)


@pytest.mark.parametrize("name", ["squad-v1", "ner", "swag", "sts-b-embeddings"])
def test_other_tasks_refuse_the_setting(name):
    message = (
        f"long_texts, window_stride and window_pooling are for classifiers .* leave them out with {name}"
    )
    with pytest.raises(SettingsError, match=message):
        find_task(name).with_long_texts(LongTexts(method="windows"))
