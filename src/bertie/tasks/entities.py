"""Tags of words <-> entities, and their scores, as conlleval has them (CoNLL-2000 to 2003, Tjong Kim Sang).

A tag is O, or a letter and a type: B-PER. The schemes say when which letter stands:
    IOB1   I everywhere, but B where an entity follows on another of its type (CoNLL-2003's files)
    IOB2   B first, then I
    IOBES  B first, E last, I between; S alone
    BILOU  the same with L for E and U for S
    plain  no tag is of an entity: parts of speech, and whatever else is said of words one by one
conlleval's rules read all but the last alike, and whatever a model makes of them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Literal, NamedTuple

Scheme = Literal["IOB1", "IOB2", "IOBES", "BILOU", "plain"]

_TAG = re.compile(r"O|[BIESLU]-.+")


class EntitySpan(NamedTuple):
    """The words `first` to before `end` of a sentence."""

    type: str
    first: int
    end: int


def find_entities(tags: Sequence[str]) -> list[EntitySpan]:
    """The entities of a sentence, in order.

    An entity ends before O, B, S, U and another type, and after E, S, L, U; what then follows without being O
    begins one, whatever its letter. These are startOfChunk and endOfChunk of conlleval, which knows neither S
    nor the letters of BILOU.
    """
    found = []
    first, previous, previous_type = 0, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        letter, _, kind = tag.partition("-")
        if letter in "OBSU" or previous in "OESLU" or kind != previous_type:
            if previous != "O":
                found.append(EntitySpan(previous_type, first, place))
            first = place
        previous, previous_type = letter, kind
    return found


def to_iob2(tags: Sequence[str]) -> list[str]:
    """The same entities in IOB2."""
    converted = ["O"] * len(tags)
    for kind, first, end in find_entities(tags):
        converted[first:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - first - 1)]
    return converted


def is_plain(tags: Iterable[str]) -> bool:
    """Whether none of some tags has the form of an entity's."""
    return not any(map(_TAG.fullmatch, set(tags)))


def find_fault(tags: Sequence[str], plain: bool | None = False) -> tuple[int, str] | None:
    """The first tag of a file that is no tag, or of another scheme than those before: (its place, why).

    `plain` is whether they are to be; None is whatever they are.
    """
    if plain is None:
        plain = is_plain(tags)
    distinct = list(dict.fromkeys(tags))  # in the order of their first places
    kind = "plain tag; write one like NOUN" if plain else "tag of an entity; write O, or B-TYPE and I-TYPE"
    for tag in distinct:
        if not tag or plain == bool(_TAG.fullmatch(tag)):
            return tags.index(tag), f"{tag!r} is no {kind}"
    iobes, bilou = ([tag for tag in distinct if tag[0] in letters] for letters in ("ES", "LU"))
    if iobes and bilou and not plain:
        place = max(tags.index(iobes[0]), tags.index(bilou[0]))
        others = bilou[0] if tags[place] == iobes[0] else iobes[0]
        return place, f"{tags[place]} here and {others} before: IOBES or BILOU, not both"
    return None


def scheme_of(sentences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme of tags without a fault, by the letters and by where B stands.

    Entities may begin with B and with I: IOB1 where each such B follows on an entity of its type, else IOB2.
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
    begun_by_inside = False
    for tags in sentences:
        before = EntitySpan("", 0, 0)
        for entity in find_entities(tags):
            if tags[entity.first][0] == "I":
                begun_by_inside = True
            elif (entity.type, entity.first) != (before.type, before.end):
                return "IOB2"
            before = entity
    return "IOB1" if begun_by_inside else "IOB2"


class Counts(NamedTuple):
    """How many entities are gold, how many predicted, and how many both, of one type or of all."""

    gold: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """In percent, as the others; 0 where nothing was predicted."""
        return _percent(self.correct, self.predicted)

    @property
    def recall(self) -> float:
        return _percent(self.correct, self.gold)

    @property
    def f1(self) -> float:
        return _percent(2 * self.correct, self.gold + self.predicted)


def count_entities(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, Counts]:
    """The counts of each type, by its name; an entity is correct if its type, first and last word are."""
    counters: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_entities, predicted_entities = find_entities(gold_tags), find_entities(predicted_tags)
        both = set(gold_entities) & set(predicted_entities)
        for counter, entities in zip(counters, (gold_entities, predicted_entities, both), strict=True):
            counter.update(entity.type for entity in entities)
    types = sorted(counters[0] | counters[1])
    return {kind: Counts(*(counter[kind] for counter in counters)) for kind in types}


def entity_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """What conlleval prints, in percent: accuracy, precision, recall, FB1, which is also f1, and each type's.

    Accuracy is the share of words whose tags are the same string. What is 0 / 0 is 0.
    """
    by_type = count_entities(gold, predicted)
    together = Counts(*(sum(column) for column in zip(Counts(0, 0, 0), *by_type.values(), strict=True)))
    pairs = zip(chain.from_iterable(gold), chain.from_iterable(predicted), strict=True)
    equal = [gold_tag == predicted_tag for gold_tag, predicted_tag in pairs]
    return {
        "accuracy": _percent(sum(equal), len(equal)),
        "precision": together.precision,
        "recall": together.recall,
        "FB1": together.f1,
        "f1": together.f1,
        **{f"f1 {kind}": counts.f1 for kind, counts in by_type.items()},
    }


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
