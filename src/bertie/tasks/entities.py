"""Entities in tagged words, and their scores as conlleval computes them.

A tag is O, or a letter and an entity type, such as B-PER. The schemes differ in the letters:

    IOB1   I for all words; B only where an entity directly follows one of the same type
           (the files of CoNLL-2003)
    IOB2   B for the first word, I for the others
    IOBES  B first, I between, E last; S for an entity of one word
    BILOU  the same with L for E and U for S
    plain  no entities: parts of speech, or other tags of single words

The rules of conlleval, the scorer of CoNLL-2000 to 2003 by Tjong Kim Sang, read all of these alike,
except plain tags. They also read ill-formed sequences, which a model may predict.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Literal, NamedTuple

Scheme = Literal["IOB1", "IOB2", "IOBES", "BILOU", "plain"]

_ENTITY_TAG = re.compile(r"O|[BIESLU]-(?!\s).+(?<!\s)")


class EntitySpan(NamedTuple):
    """An entity of a sentence; its words are `first` to `end`, exclusive."""

    type: str
    first: int
    end: int


def find_entities(tags: Sequence[str]) -> list[EntitySpan]:
    """Return the entities of a sentence, in order.

    An entity ends before O, B, S, U and before another type, and after E, S, L, U. Any tag but O
    that follows begins a new entity, whatever its letter. These are the rules of startOfChunk and
    endOfChunk in conlleval, which knows neither S nor the letters of BILOU, and overlooks a B after E.
    """
    entities = []
    first, previous, previous_type = 0, "O", ""
    for index, tag in enumerate([*tags, "O"]):
        letter, _, entity_type = tag.partition("-")
        if letter in "OBSU" or previous in "OESLU" or entity_type != previous_type:
            if previous != "O":
                entities.append(EntitySpan(previous_type, first, index))
            first = index
        previous, previous_type = letter, entity_type
    return entities


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Return the tags of the same entities in the scheme IOB2."""
    converted = ["O"] * len(tags)
    for entity_type, first, end in find_entities(tags):
        converted[first:end] = [f"B-{entity_type}", *[f"I-{entity_type}"] * (end - first - 1)]
    return converted


def is_plain(tags: Iterable[str]) -> bool:
    """Return whether none of the tags marks an entity."""
    return not any(map(_ENTITY_TAG.fullmatch, set(tags)))


def find_invalid_tag(tags: Sequence[str], plain: bool | None = False) -> tuple[int, str] | None:
    """Find the first tag of a file that is malformed or mixes schemes.

    Args:
        tags: all tags of the file, in order.
        plain: whether the tags must be plain or mark entities; None allows either, but no mixture.

    Returns:
        The index of the tag and its problem; None if all tags are valid.
    """
    if plain is None:
        plain = is_plain(tags)
    distinct = list(dict.fromkeys(tags))  # in the order of their first occurrence
    expected = "a plain tag, such as NOUN" if plain else "the tag of an entity; write O, or B-TYPE and I-TYPE"
    for tag in distinct:
        if not tag.strip() or plain == bool(_ENTITY_TAG.fullmatch(tag)):
            return tags.index(tag), f"{tag!r} is not {expected}"
    iobes, bilou = ([tag for tag in distinct if tag[0] in letters] for letters in ("ES", "LU"))
    if iobes and bilou and not plain:
        index = max(tags.index(iobes[0]), tags.index(bilou[0]))
        earlier = bilou[0] if tags[index] == iobes[0] else iobes[0]
        return index, f"{tags[index]} here, but {earlier} before; use either IOBES or BILOU"
    return None


def detect_scheme(sentences: Iterable[Sequence[str]]) -> Scheme:
    """Detect the scheme of valid tags by their letters and the positions of B.

    If some entities begin with B and others with I, the scheme is IOB1 if each B directly
    follows an entity of the same type, otherwise IOB2.
    """
    sentences = list(sentences)
    distinct = set(chain.from_iterable(sentences))
    if distinct and is_plain(distinct):
        return "plain"
    letters = {tag[0] for tag in distinct}
    if letters & {"L", "U"}:
        return "BILOU"
    if letters & {"E", "S"}:
        return "IOBES"
    has_initial_inside = False
    for tags in sentences:
        previous = EntitySpan("", 0, 0)
        for entity in find_entities(tags):
            if tags[entity.first][0] == "I":
                has_initial_inside = True
            elif (entity.type, entity.first) != (previous.type, previous.end):
                return "IOB2"
            previous = entity
    return "IOB1" if has_initial_inside else "IOB2"


class EntityCounts(NamedTuple):
    """Counts of gold, predicted and correct entities, with scores in percent."""

    gold: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """The percentage of predicted entities that are correct; 0 if there are none."""
        return _percent(self.correct, self.predicted)

    @property
    def recall(self) -> float:
        """The percentage of gold entities that were predicted; 0 if there are none."""
        return _percent(self.correct, self.gold)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall; 0 if there are no entities."""
        return _percent(2 * self.correct, self.gold + self.predicted)


def count_entities(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> dict[str, EntityCounts]:
    """Count the entities of each type, in alphabetical order.

    An entity is correct if a gold entity has the same type and the same words.
    """
    counters: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_entities, predicted_entities = find_entities(gold_tags), find_entities(predicted_tags)
        correct = set(gold_entities) & set(predicted_entities)
        for counter, entities in zip(counters, (gold_entities, predicted_entities, correct), strict=True):
            counter.update(entity.type for entity in entities)
    types = sorted(counters[0] | counters[1])
    return {name: EntityCounts(*(counter[name] for counter in counters)) for name in types}


def entity_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the scores that conlleval prints, in percent.

    Args:
        gold: the tags of each sentence.
        predicted: likewise.

    Returns:
        `accuracy`, the percentage of words whose tags are the same string; `precision`, `recall`
        and `FB1` of all entities; `f1`, which equals FB1; `f1 TYPE` of each type. 0 / 0 is 0.
    """
    by_type = count_entities(gold, predicted)
    total = EntityCounts(
        *(sum(column) for column in zip(EntityCounts(0, 0, 0), *by_type.values(), strict=True))
    )
    pairs = zip(chain.from_iterable(gold), chain.from_iterable(predicted), strict=True)
    is_equal = [gold_tag == predicted_tag for gold_tag, predicted_tag in pairs]
    return {
        "accuracy": _percent(sum(is_equal), len(is_equal)),
        "precision": total.precision,
        "recall": total.recall,
        "FB1": total.f1,
        "f1": total.f1,
        **{f"f1 {name}": counts.f1 for name, counts in by_type.items()},
    }


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
