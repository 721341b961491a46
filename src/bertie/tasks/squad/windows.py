"""Windows of SQuAD: [CLS] question [SEP] part of the context [SEP].

The windows follow convert_examples_to_features of google-research/bert run_squad.py: a context
that is too long for one sequence is split into overlapping windows, and each of its tokens has one
window in which it has the most context. Every text is tokenized once.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from bertie.base.arrays import Bools, Int32s, Int64s
from bertie.base.kernels import kernel
from bertie.base.texts import TextError
from bertie.model.objectives import IGNORE_INDEX
from bertie.model.sequences import cumulative_bounds
from bertie.tasks.error_analysis import shorten
from bertie.tasks.squad.questions import Questions
from bertie.tasks.task import Inputs
from bertie.text.encoding import Encoding
from bertie.text.tokenizer import Tokenizer

SPECIAL_TOKENS = 3  # in a window: [CLS] and two [SEP]
_SHOWN_CHARACTERS = 60  # of a question, in an error message


@dataclass(frozen=True, kw_only=True)
class ContextWindows(Inputs):
    """The windows of n questions, question by question, in the order of the context.

    window_bounds  int64 (n+1,)  question i has the windows from window_bounds[i] to before
                                 window_bounds[i + 1], at least one
    offsets        int32 (T, 2)  start and end of each token's characters in the context; (0, 0) for
                                 tokens of the question and special tokens
    max_context    bool (T,)     whether the token is in the context and has the most context in
                                 this window (token_is_max_context in run_squad.py)
    """

    window_bounds: Int64s
    offsets: Int32s
    max_context: Bools
    unit: ClassVar[str] = "questions"

    @property
    def unit_bounds(self) -> Int64s:
        """The bounds of all windows of each question."""
        return self.bounds[self.window_bounds]


class WindowLayout(NamedTuple):
    """The question and the part of the context in each of N windows, int64 (N,) each.

    question       index of the question
    question_size  number of its tokens in the window
    first          first token of the part, as an index into the context
    size           number of tokens of the part
    """

    question: Int64s
    question_size: Int64s
    first: Int64s
    size: Int64s


def encode_windows(
    questions: Questions, tokenizer: Tokenizer, max_seq_length: int, doc_stride: int, max_query_length: int
) -> ContextWindows:
    """Encode questions and contexts as windows of at most `max_seq_length` tokens.

    The labels, int64 (N, 2), are the first and the last token of the first answer, which include
    tokens that the answer covers in part. They are (0, 0), which is [CLS], in a window without the
    complete answer and for a question without an answer; IGNORE_INDEX where the answer is
    misplaced. run_squad.py finds the tokens by splitting at white space and then tightening the
    span (_improve_answer_span); character offsets need neither.

    Args:
        questions: with or without answers; without them there are no labels.
        tokenizer: of the model.
        max_seq_length: of a window, with question and special tokens.
        doc_stride: tokens from the start of a window's context to the start of the next one's.
        max_query_length: tokens of a question; longer ones are truncated.

    Raises:
        TextError: a question leaves no room for its context.
    """
    texts = tokenizer.encode_batch(questions.questions, add_special_tokens=False)
    question_sizes = np.minimum(np.diff(texts.bounds), max_query_length)
    _check_room(questions, question_sizes, max_seq_length)
    contexts = tokenizer.encode_batch(questions.contexts, add_special_tokens=False)
    context_sizes = np.diff(contexts.bounds)[questions.context_indices]
    layout, window_bounds = _lay_out_windows(question_sizes, context_sizes, max_seq_length, doc_stride)
    bounds = cumulative_bounds(layout.question_size + layout.size + SPECIAL_TOKENS)
    input_ids, token_type_ids, offsets, max_context = assemble_windows(
        layout,
        bounds,
        window_bounds,
        texts.input_ids,
        texts.bounds,
        contexts.input_ids,
        contexts.offsets,
        contexts.bounds[questions.context_indices],
        tokenizer.vocabulary.cls_id,
        tokenizer.vocabulary.sep_id,
    )
    return ContextWindows(
        input_ids,
        token_type_ids,
        bounds,
        None if questions.answers is None else _answer_labels(questions, contexts, layout),
        window_bounds=window_bounds,
        offsets=offsets,
        max_context=max_context,
    )


def _check_room(questions: Questions, question_sizes: Int64s, max_seq_length: int) -> None:
    """Raise TextError if a question leaves no room for a token of its context.

    validate_flags_or_throw of run_squad.py requires room beside the longest possible question, which
    short models never have.
    """
    too_long = np.flatnonzero(question_sizes + SPECIAL_TOKENS >= max_seq_length)
    if too_long.size:
        i = int(too_long[0])
        raise TextError(
            i,
            f"the question {shorten(questions.questions[i], _SHOWN_CHARACTERS)!r}, with {question_sizes[i]} "
            f"tokens and {SPECIAL_TOKENS} special tokens, leaves no room for its context in max_seq_length="
            f"{max_seq_length}; shorten it, or use a larger max_seq_length",
            "questions",
        )


def _lay_out_windows(
    question_sizes: Int64s, context_sizes: Int64s, max_seq_length: int, doc_stride: int
) -> tuple[WindowLayout, Int64s]:
    """Return the layout of all windows, and the `window_bounds` of `ContextWindows`."""
    capacities = max_seq_length - SPECIAL_TOKENS - question_sizes
    strides = np.minimum(capacities, doc_stride)
    counts = 1 + np.maximum(0, -(-(context_sizes - capacities) // strides))
    window_bounds = cumulative_bounds(counts)
    question = np.repeat(np.arange(len(counts)), counts)
    first = (np.arange(len(question)) - window_bounds[question]) * strides[question]
    size = np.minimum(context_sizes[question] - first, capacities[question])
    return WindowLayout(question, question_sizes[question], first, size), window_bounds


@kernel
def assemble_windows(
    layout: WindowLayout,
    bounds: Int64s,
    window_bounds: Int64s,
    question_ids: Int32s,
    question_bounds: Int64s,
    context_ids: Int32s,
    context_offsets: Int32s,
    context_starts: Int64s,
    cls_id: int,
    sep_id: int,
) -> tuple[Int32s, Int32s, Int32s, Bools]:
    """Fill in the arrays of `ContextWindows`.

    `context_starts` (n,) is where the context of each question starts in `context_ids`.
    """
    total = bounds[-1]
    input_ids, token_type_ids = np.empty(total, np.int32), np.zeros(total, np.int32)
    offsets, max_context = np.zeros((total, 2), np.int32), np.zeros(total, np.bool_)
    for window in range(len(bounds) - 1):
        question, first = layout.question[window], layout.first[window]
        position = bounds[window]
        input_ids[position] = cls_id
        position += 1
        for token in range(layout.question_size[window]):
            input_ids[position] = question_ids[question_bounds[question] + token]
            position += 1
        input_ids[position] = sep_id
        position += 1
        token_type_ids[position : bounds[window + 1]] = 1
        for token in range(first, first + layout.size[window]):
            row = context_starts[question] + token
            input_ids[position] = context_ids[row]
            offsets[position] = context_offsets[row]
            windows_of_question = window_bounds[question], window_bounds[question + 1]
            max_context[position] = window == widest_window(layout, windows_of_question, token)
            position += 1
        input_ids[position] = sep_id
    return input_ids, token_type_ids, offsets, max_context


@kernel
def widest_window(layout: WindowLayout, windows: tuple[int, int], token: int) -> int:
    """Find the window where a token has the most context on its scarcer side.

    This is _check_is_max_context of run_squad.py. `token` is an index into the context, `windows`
    the bounds of the question's windows.
    """
    best, best_score = -1, -1.0
    stride = layout.first[windows[0] + 1] if windows[1] - windows[0] > 1 else 1
    earliest = max(windows[0], windows[0] + (token - layout.size[windows[0]]) // stride)
    for window in range(earliest, windows[1]):
        left = token - layout.first[window]
        right = layout.size[window] - 1 - left
        if left < 0:
            break
        score = min(left, right) + 0.01 * layout.size[window]  # the longer window where the sides are equal
        if right >= 0 and score > best_score:
            best, best_score = window, score
    return best


def _answer_labels(questions: Questions, contexts: Encoding, layout: WindowLayout) -> Int64s:
    """Return the labels of every window; see `encode_windows`."""
    assert questions.answers is not None
    lengths = np.fromiter(map(len, questions.contexts), np.int64, len(questions.contexts))
    # Characters are counted over all contexts end to end, so that one search finds all answers.
    first_characters = np.cumsum(lengths) - lengths
    shifts = np.repeat(first_characters, np.diff(contexts.bounds))
    first_answers = [answers[0] if answers else ("", 0) for answers in questions.answers]
    starts = first_characters[questions.context_indices] + [start for _, start in first_answers]
    ends = starts + [len(text) for text, _ in first_answers]
    context_starts = contexts.bounds[questions.context_indices]
    first = np.searchsorted(contexts.offsets[:, 1] + shifts, starts, side="right") - context_starts
    last = np.searchsorted(contexts.offsets[:, 0] + shifts, ends, side="left") - 1 - context_starts
    is_unusable = questions.is_misplaced | (~questions.is_impossible & (first > last))

    answer_tokens = np.stack([first, last], axis=1)[layout.question]
    is_inside = (answer_tokens[:, 0] >= layout.first) & (answer_tokens[:, 1] < layout.first + layout.size)
    is_inside &= ~questions.is_impossible[layout.question]
    context_position = (layout.question_size + 2 - layout.first)[:, None]
    labels = np.where(is_inside[:, None], answer_tokens + context_position, 0)
    labels[is_unusable[layout.question]] = IGNORE_INDEX
    return labels
