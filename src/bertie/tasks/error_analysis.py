"""What a score does not say: which labels are told badly, at which threshold, and the mistakes themselves."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.tasks.classification import LabelledTexts, TextClassification, Values
from bertie.tasks.entities import EntitySpan, count_entities, find_entities
from bertie.tasks.metrics import confusion_matrix, label_scores
from bertie.tasks.ner import TaggedSentences, Tagging, Tags
from bertie.tasks.squad.decoding import SpanPredictions
from bertie.tasks.squad.questions import Questions
from bertie.tasks.squad.scores import score_v1, score_v2
from bertie.tasks.squad.task import QuestionAnswering
from bertie.tasks.swag import Choices, MultipleChoice
from bertie.tasks.task import Task

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

MOST_CLASSES = 20  # a confusion matrix of more does not fit a page
CONFUSED_PAIRS = 20
MISTAKES = 10
CHARACTERS = 200  # of a mistake's text


class LabelFigures(NamedTuple):
    """Of one label or type of entity: percent, and how many are gold."""

    precision: float
    recall: float
    f1: float
    support: int


class Mistake(NamedTuple):
    """Something that was answered wrongly, as text to be read."""

    text: str
    gold: str
    predicted: str


class ThresholdCurve(NamedTuple):
    """SQuAD v2.0: what each threshold of the null odds would score, in percent; float64 (n + 1,) each.

    thresholds   the null odds of all questions in order; before the first of them no answer is given, and
                 from each on, one more. Those of equal odds one by one, as evaluate-v2.0.py counts them.
    exact_match  of them
    f1           of them
    chosen       the threshold of the predictions
    """

    thresholds: Float64s
    exact_match: Float64s
    f1: Float64s
    chosen: float


@dataclass(frozen=True)
class ErrorAnalysis:
    """What can be shown of predictions; empty is what their family does not have.

    by_label    labels, types of entities, or numbers of choices
    confusion   int64 (L, L)  how often the label of a row was predicted as that of a column, where there is
                one label each and few of them
    confused    (gold, predicted, how often), the most frequent first, where there are too many for a matrix
    numbers     gold and predicted ones of a regression, float64 (n,) each
    thresholds  where a question may have no answer
    mistakes    a few, the surest or gravest first; of classes, each confusion in turn
    """

    by_label: dict[str, LabelFigures] = field(default_factory=dict)
    confusion: Int64s | None = None
    confused: Sequence[tuple[str, str, int]] = ()
    numbers: tuple[Float64s, Float64s] | None = None
    thresholds: ThresholdCurve | None = None
    mistakes: Sequence[Mistake] = ()

    def as_json(self) -> dict[str, Any]:
        """The figures by label, and the confusion matrix, where there are any."""
        found: dict[str, Any] = {}
        if self.by_label:
            found["by_label"] = {label: figures._asdict() for label, figures in self.by_label.items()}
        if self.confusion is not None:
            found["confusion_matrix"] = self.confusion.tolist()
        return found


def analyze_errors(task: Task[Any, Any], examples: Any, predictions: Any) -> ErrorAnalysis:
    """Details of a task's predictions against the examples' labels."""
    match task:
        case TextClassification(problem_type="regression"):
            return _of_numbers(task, examples, predictions)
        case TextClassification(problem_type="multi_label_classification"):
            return _of_label_sets(task, examples, predictions)
        case TextClassification():
            return _of_texts(task, examples, predictions)
        case MultipleChoice():
            return _of_choices(examples, predictions)
        case Tagging() if examples.scheme == "plain":
            return _of_words(examples, predictions)
        case Tagging():
            return _of_entities(examples, predictions)
        case QuestionAnswering():
            return _of_spans(task, examples, predictions)
    raise AssertionError(f"{task.name} is of no family")


def _of_numbers(task: TextClassification, examples: LabelledTexts, predicted: Values) -> ErrorAnalysis:
    gold = task.gold(examples)
    mistakes = [
        Mistake(_text(examples, i), f"{gold[i]:.4g}", f"{predicted[i]:.4g}")
        for i in _gravest(np.abs(gold - predicted))
    ]
    return ErrorAnalysis(numbers=(gold, predicted), mistakes=mistakes)


def _of_label_sets(task: TextClassification, examples: LabelledTexts, predicted: Values) -> ErrorAnalysis:
    gold = task.gold(examples)
    names = np.array(task.labels, dtype=object)
    mistakes = [
        Mistake(_text(examples, i), _listed(names[gold[i]]), _listed(names[predicted[i]]))
        for i in _gravest((gold != predicted).sum(axis=1))
    ]
    return ErrorAnalysis(_by_label(task.labels, gold, predicted), mistakes=mistakes)


def _of_texts(task: TextClassification, examples: LabelledTexts, predicted: Int64s) -> ErrorAnalysis:
    gold = task.gold(examples)
    mistakes = [
        Mistake(_text(examples, i), task.labels[gold[i]], task.labels[predicted[i]])
        for i in _each_confusion_in_turn(gold, predicted)
    ]
    return _of_classes(task.labels, gold, predicted, mistakes)


def _of_choices(examples: Choices, predicted: Int64s) -> ErrorAnalysis:
    assert examples.labels is not None
    mistakes = [
        Mistake(
            _cut(f"{examples.contexts[i]} {examples.starts[i]}"),
            _cut(examples.endings[i][examples.labels[i]]),
            _cut(examples.endings[i][predicted[i]]),
        )
        for i in _each_confusion_in_turn(examples.labels, predicted)
    ]
    return _of_classes([str(i) for i in range(examples.choices)], examples.labels, predicted, mistakes)


def _of_classes(
    labels: Sequence[str], gold: Int64s, predicted: Int64s, mistakes: Sequence[Mistake]
) -> ErrorAnalysis:
    by_label = _by_label(labels, gold, predicted)
    if len(labels) <= MOST_CLASSES:
        matrix = confusion_matrix(gold, predicted, len(labels))
        return ErrorAnalysis(by_label, confusion=matrix, mistakes=mistakes)
    pairs = Counter((truth, guess) for truth, guess in _pairs(gold, predicted) if truth != guess)
    confused = [
        (labels[truth], labels[guess], count) for (truth, guess), count in pairs.most_common(CONFUSED_PAIRS)
    ]
    return ErrorAnalysis(by_label, confused=confused, mistakes=mistakes)


def _by_label(labels: Sequence[str], gold: Values, predicted: Values) -> dict[str, LabelFigures]:
    scores = label_scores(gold, predicted, len(labels))
    columns = (100 * scores.precision, 100 * scores.recall, 100 * scores.f1, scores.support)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {label: LabelFigures(*row) for label, row in zip(labels, rows, strict=True)}


def _each_confusion_in_turn(gold: Int64s, predicted: Int64s) -> list[int]:
    """A few of the wrong ones: the first of each confused pair, the commonest pair first, then the second."""
    wrong = np.flatnonzero(gold != predicted)
    pairs = _pairs(gold[wrong], predicted[wrong])
    counts, seen = Counter(pairs), Counter[tuple[int, int]]()
    turns = []
    for pair in pairs:
        turns.append((seen[pair], -counts[pair]))
        seen[pair] += 1
    return [int(wrong[i]) for i in sorted(range(len(pairs)), key=turns.__getitem__)[:MISTAKES]]


def _pairs(gold: Int64s, predicted: Int64s) -> list[tuple[int, int]]:
    return list(zip(gold.tolist(), predicted.tolist(), strict=True))


def _of_words(examples: TaggedSentences, predicted: Tags) -> ErrorAnalysis:
    """Of plain tags: each word has one, as each text has a label."""
    assert examples.tags is not None
    tags = [*chain.from_iterable(examples.tags), *chain.from_iterable(predicted)]
    labels, numbers = np.unique(tags, return_inverse=True)
    names: list[str] = labels.tolist()
    gold, answers = np.split(numbers, 2)
    words = list(chain.from_iterable(examples.words))
    sentences = np.repeat(np.arange(len(examples)), np.diff(examples.bounds))
    mistakes = [
        Mistake(
            _cut(f"{words[i]} ‖ {' '.join(examples.words[sentences[i]])}"), names[gold[i]], names[answers[i]]
        )
        for i in _each_confusion_in_turn(gold, answers)
    ]
    return _of_classes(names, gold, answers, mistakes)


def _of_entities(examples: TaggedSentences, predicted: Tags) -> ErrorAnalysis:
    """Entities are the same in every scheme of tags, so nothing has to be converted."""
    assert examples.tags is not None
    by_label = {
        kind: LabelFigures(counts.precision, counts.recall, counts.f1, counts.gold)
        for kind, counts in count_entities(examples.tags, predicted).items()
    }
    entities = [
        (set(find_entities(gold)), set(find_entities(tags)))
        for gold, tags in zip(examples.tags, predicted, strict=True)
    ]

    def shown(words: Sequence[str], found: set[EntitySpan]) -> str:
        spans = sorted(found, key=lambda entity: entity.first)
        return _listed(f"{' '.join(words[first:end])} ({kind})" for kind, first, end in spans)

    mistakes = [
        Mistake(
            _cut(" ".join(examples.words[i])), *(shown(examples.words[i], found) for found in entities[i])
        )
        for i in _gravest(np.array([len(gold ^ found) for gold, found in entities]))
    ]
    return ErrorAnalysis(by_label, mistakes=mistakes)


def _of_spans(task: QuestionAnswering, examples: Questions, predictions: SpanPredictions) -> ErrorAnalysis:
    assert examples.answers is not None
    golds = [[text for text, _ in answers] for answers in examples.answers]
    given = predictions.texts
    exact_match, f1 = _score_each(task, golds, given)
    wrong = np.flatnonzero(exact_match + f1 == 0)
    surest = wrong[np.argsort(-_sureness(predictions)[wrong], kind="stable")][:MISTAKES]
    mistakes = [
        Mistake(_cut(examples.questions[i]), _listed(dict.fromkeys(golds[i]), " | "), _listed([given[i]]))
        for i in surest.tolist()
    ]
    return ErrorAnalysis(thresholds=_threshold_curve(task, golds, predictions), mistakes=mistakes)


def _score_each(
    task: QuestionAnswering, golds: Sequence[Sequence[str]], answers: Sequence[str | None]
) -> tuple[Float64s, Float64s]:
    """Exact match and F1 of each question, by the official scorer."""
    score = score_v2 if task.allow_no_answer else score_v1
    scores = [score([texts], [answer or ""]) for texts, answer in zip(golds, answers, strict=True)]
    return np.array([found["exact_match"] for found in scores]), np.array([found["f1"] for found in scores])


def _sureness(predictions: SpanPredictions) -> Float64s:
    """How far the odds are from the threshold; without odds, how likely the answer; equal where unknown."""
    if predictions.null_odds is not None:
        return np.abs(predictions.null_odds - predictions.null_threshold)
    if predictions.n_best is not None:
        return predictions.n_best.probabilities[:, 0]
    return np.zeros(len(predictions.answers))


def _threshold_curve(
    task: QuestionAnswering, golds: Sequence[Sequence[str]], predictions: SpanPredictions
) -> ThresholdCurve | None:
    if predictions.null_odds is None:
        return None
    order = np.argsort(predictions.null_odds, kind="stable")
    has_answer = np.array([bool(texts) for texts in golds])
    lost = np.array([bool(answer) for answer in predictions.answers])  # where there is none
    none_given = float(np.count_nonzero(~has_answer))
    curves = []
    for scores in _score_each(task, golds, predictions.answers):
        gains = np.where(has_answer, scores / 100, -lost.astype(np.float64))[order]
        curves.append(100 * np.cumsum([none_given, *gains]) / len(golds))
    odds = predictions.null_odds[order]
    exact_match, f1 = curves
    return ThresholdCurve(np.concatenate([odds[:1], odds]), exact_match, f1, predictions.null_threshold)


def _gravest(badness: npt.NDArray[Any]) -> list[int]:
    """The places of a few of the highest, none of which is 0."""
    order = np.argsort(-badness, kind="stable")
    return [int(i) for i in order[: min(MISTAKES, np.count_nonzero(badness))]]


def _text(examples: LabelledTexts, i: int) -> str:
    if examples.pairs is None:
        return _cut(examples.texts[i])
    return " ‖ ".join(_cut(text, CHARACTERS // 2) for text in (examples.texts[i], examples.pairs[i]))


def _listed(names: Iterable[str | None], separator: str = ", ") -> str:
    return _cut(separator.join(filter(None, names))) or "nothing"


def _cut(text: str, characters: int = CHARACTERS) -> str:
    """In one line, with an ellipsis where the rest is left out."""
    line = " ".join(text.split())
    return line if len(line) <= characters else line[: characters - 1] + "…"
