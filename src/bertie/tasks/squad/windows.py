"""What the model reads of a question: [CLS] question [SEP] a window of its context [SEP].

The windows are those of google-research/bert run_squad.py, convert_examples_to_features: a context too long
for one sequence is cut into windows that overlap, and of each piece the window is known where it has most
context. Every text is tokenized once.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.base.errors import SettingsError
from bertie.base.kernels import kernel
from bertie.model.objectives import IGNORE_INDEX
from bertie.tasks.squad.questions import Questions
from bertie.tasks.task import Inputs
from bertie.text.tokenizer import Encoding, Tokenizer

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Windows(Inputs):
    """The windows of n questions; those of a question stand together, in the context's order.

    window_bounds  int64 (n+1,)  windows of question i: window_bounds[i] to window_bounds[i + 1], at least one
    offsets        int32 (T, 2)  first character and end in the context; (0, 0) outside the context
    max_context    bool (T,)     whether a piece of the context has its most context in this window
    """

    window_bounds: Int64s
    offsets: Int32s
    max_context: npt.NDArray[np.bool_]


class Layout(NamedTuple):
    """Where each of N windows lies, int64 (N,) each.

    question       whose window it is
    question_size  how many pieces of the question it has
    first          its first piece, counted in the context
    size           how many pieces of the context it has
    """

    question: Int64s
    question_size: Int64s
    first: Int64s
    size: Int64s


def encode_windows(
    questions: Questions, tokenizer: Tokenizer, max_seq_length: int, doc_stride: int, max_query_length: int
) -> Windows:
    """Cut questions and contexts into windows of at most `max_seq_length` tokens.

    Labels int64 (N, 2) where the answers are known: the first and the last token of the first answer, widened
    to whole pieces; [CLS], which is (0, 0), where the window does not hold all of it or there is none; -100
    where the answer does not stand at its place in the context. run_squad.py finds the pieces by splitting at
    white space and then tightening (_improve_answer_span); character offsets need neither.

    Raises:
        SettingsError: `max_seq_length` leaves no room for a context.
    """
    if max_seq_length <= max_query_length + 3:  # validate_flags_or_throw
        raise SettingsError(
            f"max_seq_length={max_seq_length}: more than {max_query_length + 3}, for a question of "
            f"max_query_length={max_query_length} pieces, three special tokens and a context"
        )
    texts = tokenizer.encode_batch(questions.questions, add_special_tokens=False)
    contexts = tokenizer.encode_batch(questions.contexts, add_special_tokens=False)
    context_sizes = np.diff(contexts.bounds)[questions.context_of_question]
    question_sizes = np.minimum(np.diff(texts.bounds), max_query_length)
    rooms = max_seq_length - 3 - question_sizes
    steps = np.minimum(rooms, doc_stride)
    counts = 1 + np.maximum(0, -(-(context_sizes - rooms) // steps))

    window_bounds = np.concatenate([[0], np.cumsum(counts)])
    question = np.repeat(np.arange(len(questions)), counts)
    first = (np.arange(len(question)) - window_bounds[question]) * steps[question]
    size = np.minimum(context_sizes[question] - first, rooms[question])
    layout = Layout(question, question_sizes[question], first, size)
    bounds = np.concatenate([[0], np.cumsum(layout.question_size + size + 3)])
    input_ids, token_type_ids, offsets, max_context = assemble_windows(
        layout,
        bounds,
        window_bounds,
        texts.input_ids,
        texts.bounds,
        contexts.input_ids,
        contexts.offsets,
        contexts.bounds[questions.context_of_question],
        tokenizer.vocabulary.cls_id,
        tokenizer.vocabulary.sep_id,
    )
    return Windows(
        input_ids,
        token_type_ids,
        bounds,
        None if questions.answers is None else _labels(questions, contexts, layout),
        window_bounds=window_bounds,
        offsets=offsets,
        max_context=max_context,
    )


@kernel
def assemble_windows(
    layout: Layout,
    bounds: Int64s,
    window_bounds: Int64s,
    question_ids: Int32s,
    question_bounds: Int64s,
    context_ids: Int32s,
    context_offsets: Int32s,
    context_begins: Int64s,
    cls_id: int,
    sep_id: int,
) -> tuple[Int32s, Int32s, Int32s, npt.NDArray[np.bool_]]:
    """The arrays of `Windows`; `context_begins` (n,) is where the context of a question begins."""
    total = bounds[-1]
    input_ids, token_type_ids = np.empty(total, np.int32), np.zeros(total, np.int32)
    offsets, max_context = np.zeros((total, 2), np.int32), np.zeros(total, np.bool_)
    for window in range(len(bounds) - 1):
        question, first = layout.question[window], layout.first[window]
        at = bounds[window]
        input_ids[at] = cls_id
        at += 1
        for piece in range(layout.question_size[window]):
            input_ids[at] = question_ids[question_bounds[question] + piece]
            at += 1
        input_ids[at] = sep_id
        at += 1
        token_type_ids[at : bounds[window + 1]] = 1
        for piece in range(first, first + layout.size[window]):
            row = context_begins[question] + piece
            input_ids[at] = context_ids[row]
            offsets[at] = context_offsets[row]
            others = window_bounds[question], window_bounds[question + 1]
            max_context[at] = window == widest_window(layout, others, piece)
            at += 1
        input_ids[at] = sep_id
    return input_ids, token_type_ids, offsets, max_context


@kernel
def widest_window(layout: Layout, windows: tuple[int, int], piece: int) -> int:
    """Which window has most context on the scarcer side of a piece (_check_is_max_context)."""
    best, best_score = -1, -1.0
    step = layout.first[windows[0] + 1] if windows[1] - windows[0] > 1 else 1
    for window in range(max(windows[0], windows[0] + (piece - layout.size[windows[0]]) // step), windows[1]):
        left = piece - layout.first[window]
        right = layout.size[window] - 1 - left
        if left < 0:
            break
        score = min(left, right) + 0.01 * layout.size[window]  # the longer window where the sides are equal
        if right >= 0 and score > best_score:
            best, best_score = window, score
    return best


def _labels(questions: Questions, contexts: Encoding, layout: Layout) -> Int64s:
    """The labels of every window."""
    assert questions.answers is not None
    characters = np.fromiter(map(len, questions.contexts), np.int64, len(questions.contexts))
    # In characters of all contexts end to end, so that all answers are looked up at once.
    begins = np.cumsum(characters) - characters
    shifts = np.repeat(begins, np.diff(contexts.bounds))
    first_answers = [answers[0] if answers else ("", 0) for answers in questions.answers]
    starts = begins[questions.context_of_question] + [start for _, start in first_answers]
    ends = starts + [len(text) for text, _ in first_answers]
    context_begins = contexts.bounds[questions.context_of_question]
    first = np.searchsorted(contexts.offsets[:, 1] + shifts, starts, side="right") - context_begins
    last = np.searchsorted(contexts.offsets[:, 0] + shifts, ends, side="left") - 1 - context_begins
    unlearnable = questions.unlocated | (~questions.impossible & (first > last))

    pieces = np.stack([first, last], axis=1)[layout.question]
    inside = (pieces[:, 0] >= layout.first) & (pieces[:, 1] < layout.first + layout.size)
    inside &= ~questions.impossible[layout.question]
    context_begin = (layout.question_size + 2 - layout.first)[:, None]
    labels = np.where(inside[:, None], pieces + context_begin, 0)
    labels[unlearnable[layout.question]] = IGNORE_INDEX
    return labels
