"""Entities and their scores agree with seqeval and conlleval."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import classification_report
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB2, IOBES, Entities

from bertie.tasks.entities import (
    EntityCounts,
    EntitySpan,
    count_entities,
    detect_scheme,
    entity_scores,
    find_entities,
    find_invalid_tag,
    is_plain,
    to_iob2,
)

TYPES = ("PER", "LOC", "creative-work")
LETTERS = {  # first, inside, last, single word; IOB1 depends on the entity before
    "IOB2": "BIIB",
    "IOBES": "BIES",
    "BILOU": "BILU",
}


@st.composite
def entity_sentences(draw: st.DrawFn) -> tuple[list[EntitySpan], int]:
    """Draw the entities of a sentence, some adjacent, and its number of words."""
    entities, end = [], 0
    for name, gap, length in draw(
        st.lists(st.tuples(st.sampled_from(TYPES), st.integers(0, 2), st.integers(1, 4)), max_size=5)
    ):
        entities.append(EntitySpan(name, end + gap, end + gap + length))
        end += gap + length
    return entities, end + draw(st.integers(0, 2))


def write_tags(entities: list[EntitySpan], words: int, scheme: str) -> list[str]:
    """Tag entities by the definition of a scheme."""
    tags = ["O"] * words
    previous = EntitySpan("", -1, -1)
    for name, first, end in entities:
        if scheme == "IOB1":
            adjacent = previous.end == first and previous.type == name
            letters = "B" * adjacent + "I" * (end - first - adjacent)
        else:
            initial, inside, last, single = LETTERS[scheme]
            length = end - first
            letters = single if length == 1 else initial + inside * (length - 2) + last
        tags[first:end] = [f"{letter}-{name}" for letter in letters]
        previous = EntitySpan(name, first, end)
    return tags


def random_tags(letters: str, types: tuple[str, ...] = TYPES[:2]) -> st.SearchStrategy[str]:
    return st.sampled_from(["O", *(f"{letter}-{name}" for letter in letters for name in types)])


@pytest.mark.parametrize("scheme", ["IOB1", *LETTERS])
@given(sentence=entity_sentences())
def test_entities_are_found_in_every_scheme(scheme, sentence):
    entities, words = sentence
    tags = write_tags(entities, words, scheme)
    assert find_entities(tags) == entities
    assert to_iob2(tags) == write_tags(entities, words, "IOB2")
    assert find_invalid_tag(tags) is None


@pytest.mark.parametrize("scheme", ["IOB1", *LETTERS])
@given(sentences=st.lists(entity_sentences(), min_size=1, max_size=4))
def test_the_scheme_of_tagged_entities_is_detected(scheme, sentences):
    tags = [write_tags(*sentence, scheme) for sentence in sentences]
    assert detect_scheme(tags) == (scheme if any(entities for entities, _ in sentences) else "IOB2")


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("I-PER O B-PER", "IOB2"),  # ill-formed, but not IOB1, where B needs an adjacent entity
        ("I-PER B-LOC", "IOB2"),
        ("I-PER B-PER I-PER", "IOB1"),
        ("I-PER O", "IOB1"),
        ("O O", "IOB2"),
    ],
)
def test_iob1_and_iob2_differ_in_the_positions_of_b(tags, scheme):
    assert detect_scheme([tags.split()]) == scheme


@pytest.mark.parametrize("tag", ["B-PER ", "B- PER", "I-\t"])
def test_a_type_does_not_begin_or_end_with_white_space(tag):
    assert find_invalid_tag(["B-PER", tag])[0] == 1
    assert find_invalid_tag(["B-PER", "I-work of art"]) is None


@pytest.mark.parametrize("tags", ["NOUN VERB", "B I", "NN -LRB- ES L", "B- -PER"])
def test_tags_without_entities_are_plain(tags):
    tags = tags.split()
    assert is_plain(tags)
    assert find_invalid_tag(tags, plain=True) is None is find_invalid_tag(tags, plain=None)
    assert find_invalid_tag(tags)[0] == 0
    assert detect_scheme([tags]) == "plain"


@given(st.lists(st.sampled_from(["NOUN", "O", "B-PER", "S-X", ""]), min_size=1))
def test_plain_tags_and_entity_tags_do_not_mix(tags):
    marks_entity = [tag in ("O", "B-PER", "S-X") for tag in tags]
    assert is_plain(tags) == (not any(marks_entity))
    if all(marks_entity) or all(tag == "NOUN" for tag in tags):
        assert find_invalid_tag(tags, plain=None) is None
    elif any(marks_entity):
        assert find_invalid_tag(tags, plain=None)[0] == marks_entity.index(False)
    else:
        assert find_invalid_tag(tags, plain=None) == (
            tags.index(""),
            "'' is not a plain tag, such as NOUN",
        )


@given(st.lists(random_tags("BIES"), max_size=12))
def test_ill_formed_tags_are_read_as_by_seqeval(tags):
    # In its default mode, seqeval follows conlleval, extended by S; its ends are inclusive.
    assert find_entities(tags) == [
        EntitySpan(name, first, last + 1) for name, first, last in get_entities(tags)
    ]


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        ("O I-PER I-PER O", [("PER", 1, 3)]),  # I after O begins an entity
        ("B-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),  # another type begins an entity
        ("I-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-PER E-PER E-PER", [("PER", 0, 2), ("PER", 2, 3)]),  # E ends an entity
        ("S-PER I-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("U-PER I-PER L-PER I-PER", [("PER", 0, 1), ("PER", 1, 3), ("PER", 3, 4)]),  # the same in BILOU
        ("B-a-b I-a-b I-a", [("a-b", 0, 2), ("a", 2, 3)]),  # the type is what follows the first hyphen
        ("", []),
    ],
)
def test_entities_of_cases_worked_by_hand(tags, entities):
    assert find_entities(tags.split()) == [EntitySpan(*entity) for entity in entities]


def test_the_first_invalid_tag_is_found():
    assert find_invalid_tag(["O", "B-PER", "PER", "O", "PER"])[0] == 2
    for tag in ("B", "B-", "o", "X-PER", "", "B_PER", "O-PER"):
        index, reason = find_invalid_tag(["O", tag])
        assert index == 1
        assert repr(tag) in reason
    index, reason = find_invalid_tag(["B-PER", "E-PER", "O", "U-LOC", "S-LOC"])
    assert (index, "U-LOC here, but E-PER before" in reason) == (3, True)
    index, reason = find_invalid_tag(["L-PER", "O", "S-LOC"])
    assert (index, "S-LOC here, but L-PER before" in reason) == (2, True)


# --- scores


def conlleval_by_words(gold: list[list[str]], predicted: list[list[str]]) -> tuple[dict, float]:
    """Count as conlleval does, word by word; return counts by type, and the accuracy.

    An entity is correct if the gold one and the predicted one start and end together.
    """

    def ends(before: tuple[str, str], now: tuple[str, str]) -> bool:
        pair = before[0] + now[0]
        return pair in {"BB", "BO", "IB", "IO"} or (before[0] != "O" and before[1] != now[1])

    def starts(before: tuple[str, str], now: tuple[str, str]) -> bool:
        pair = before[0] + now[0]
        return pair in {"BB", "IB", "OB", "OI"} or (now[0] != "O" and before[1] != now[1])

    counters: dict[str, Counter] = {name: Counter() for name in ("gold", "predicted", "correct")}
    outside = ("O", "")
    equal_tags = words = 0
    last_gold = last_predicted = outside
    both_inside = False
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        # After each sentence comes a boundary.
        for tags in [*zip(gold_tags, predicted_tags, strict=True), ("O", "O")]:
            now_gold, now_predicted = ((tag[0], tag[2:]) for tag in tags)
            gold_ends, predicted_ends = ends(last_gold, now_gold), ends(last_predicted, now_predicted)
            if both_inside and gold_ends and predicted_ends:
                counters["correct"][last_gold[1]] += 1
            if gold_ends or predicted_ends:
                both_inside = False
            gold_starts, predicted_starts = starts(last_gold, now_gold), starts(last_predicted, now_predicted)
            counters["gold"][now_gold[1]] += gold_starts
            counters["predicted"][now_predicted[1]] += predicted_starts
            if gold_starts and predicted_starts and now_gold[1] == now_predicted[1]:
                both_inside = True
            elif gold_starts or predicted_starts:
                both_inside = False
            equal_tags += tags[0] == tags[1]
            words += 1
            last_gold, last_predicted = now_gold, now_predicted
        equal_tags, words = equal_tags - 1, words - 1
    types = {name for counter in counters.values() for name in counter if counter[name]}
    counts = {name: EntityCounts(*(counter[name] for counter in counters.values())) for name in types}
    return counts, 100 * equal_tags / words if words else 0.0


@st.composite
def gold_and_predicted(draw: st.DrawFn) -> tuple[list[list[str]], list[list[str]]]:
    """Draw ill-formed tags, and predictions that partly equal them."""
    tags = st.lists(st.tuples(random_tags("BI"), random_tags("BI"), st.booleans()), max_size=12)
    drawn = draw(st.lists(tags, min_size=1, max_size=3))
    gold = [[gold_tag for gold_tag, _, _ in sentence] for sentence in drawn]
    return gold, [[tag if differs else gold_tag for gold_tag, tag, differs in sentence] for sentence in drawn]


@given(gold_and_predicted())
def test_ill_formed_tags_are_scored_as_by_conlleval(pair):
    gold, predicted = pair
    counts, accuracy = conlleval_by_words(gold, predicted)
    assert count_entities(gold, predicted) == counts
    assert entity_scores(gold, predicted)["accuracy"] == pytest.approx(accuracy)


@pytest.mark.parametrize(("name", "scheme"), [("IOB2", IOB2), ("IOBES", IOBES)])
@given(sentences=st.lists(st.tuples(entity_sentences(), entity_sentences()), min_size=1, max_size=4))
def test_well_formed_tags_are_scored_as_by_strict_seqeval(name, scheme, sentences):
    gold, predicted = [], []
    for pair in sentences:
        words = max(length for _, length in pair)
        for sentence_list, (entities, _) in zip((gold, predicted), pair, strict=True):
            sentence_list.append(write_tags(entities, words, name))
    scores, by_type = entity_scores(gold, predicted), count_entities(gold, predicted)
    if not by_type:  # seqeval fails without entities
        assert scores["f1"] == scores["precision"] == scores["recall"] == 0
        return
    report = classification_report(
        gold, predicted, mode="strict", scheme=scheme, output_dict=True, zero_division=0
    )
    average = report.pop("micro avg")
    assert scores["precision"] == pytest.approx(100 * average["precision"])
    assert scores["recall"] == pytest.approx(100 * average["recall"])
    assert scores["f1"] == pytest.approx(100 * average["f1-score"])
    for name, counts in by_type.items():
        theirs = report[name]
        assert counts.gold == theirs["support"]
        assert counts.precision == pytest.approx(100 * theirs["precision"])
        assert counts.recall == pytest.approx(100 * theirs["recall"])
        assert counts.f1 == scores[f"f1 {name}"] == pytest.approx(100 * theirs["f1-score"])


def test_scores_of_a_case_worked_by_hand():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "O"]]
    predicted = [["B-PER", "I-PER", "O", "I-LOC"], ["B-LOC", "I-LOC"]]
    # Correct: PER 0-2, and LOC 3-4, although it begins with I. 3 predicted, 3 gold. 3 of 6 tags equal.
    assert entity_scores(gold, predicted) == pytest.approx(
        {
            "precision": 200 / 3,
            "recall": 200 / 3,
            "FB1": 200 / 3,
            "f1": 200 / 3,
            "accuracy": 50,
            "f1 LOC": 200 / 3,  # 1 of 2 predicted, 1 of 1 gold
            "f1 PER": 200 / 3,
        }
    )


def test_scores_without_entities_are_0():
    assert entity_scores([["O", "O"]], [["O", "O"]]) == {
        "precision": 0,
        "recall": 0,
        "FB1": 0,
        "f1": 0,
        "accuracy": 100,
    }
    assert entity_scores([["O"]], [["B-PER"]])["precision"] == 0


def test_initial_i_is_an_entity_for_conlleval_not_strict_seqeval():
    assert len(Entities([["O", "I-PER"]], IOB2).entities[0]) == 0
    assert find_entities(["O", "I-PER"]) == [EntitySpan("PER", 1, 2)]
