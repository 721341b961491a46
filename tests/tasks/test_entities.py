"""Tags and entities against seqeval, and against conlleval's own way of counting, which knows no spans."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import classification_report
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB2, IOBES, Entities

from bertie.tasks.entities import (
    Counts,
    EntitySpan,
    count_entities,
    entity_scores,
    find_entities,
    find_fault,
    is_plain,
    scheme_of,
    to_iob2,
)

TYPES = ("PER", "LOC", "creative-work")
LETTERS = {  # first of several words, between, last, alone; IOB1 needs a look at what stands before
    "IOB2": "BIIB",
    "IOBES": "BIES",
    "BILOU": "BILU",
}


@st.composite
def sentences_of_entities(draw: st.DrawFn) -> tuple[list[EntitySpan], int]:
    """Entities of a sentence, some touching, and the number of its words."""
    entities, end = [], 0
    for kind, gap, length in draw(
        st.lists(st.tuples(st.sampled_from(TYPES), st.integers(0, 2), st.integers(1, 4)), max_size=5)
    ):
        entities.append(EntitySpan(kind, end + gap, end + gap + length))
        end += gap + length
    return entities, end + draw(st.integers(0, 2))


def written(entities: list[EntitySpan], words: int, scheme: str) -> list[str]:
    """Entities as tags, straight from the definition of the scheme."""
    tags = ["O"] * words
    before = EntitySpan("", -1, -1)
    for kind, first, end in entities:
        if scheme == "IOB1":
            touching = before.end == first and before.type == kind
            letters = "B" * touching + "I" * (end - first - touching)
        else:
            head, inside, last, alone = LETTERS[scheme]
            length = end - first
            letters = alone if length == 1 else head + inside * (length - 2) + last
        tags[first:end] = [f"{letter}-{kind}" for letter in letters]
        before = EntitySpan(kind, first, end)
    return tags


def random_tags(letters: str, types: tuple[str, ...] = TYPES[:2]) -> st.SearchStrategy[str]:
    return st.sampled_from(["O", *(f"{letter}-{kind}" for letter in letters for kind in types)])


@pytest.mark.parametrize("scheme", ["IOB1", *LETTERS])
@given(sentence=sentences_of_entities())
def test_every_scheme_gives_its_entities_back(scheme, sentence):
    entities, words = sentence
    tags = written(entities, words, scheme)
    assert find_entities(tags) == entities
    assert to_iob2(tags) == written(entities, words, "IOB2")
    assert find_fault(tags) is None


@pytest.mark.parametrize("scheme", ["IOB1", *LETTERS])
@given(sentences=st.lists(sentences_of_entities(), min_size=1, max_size=4))
def test_the_scheme_is_found_where_it_shows(scheme, sentences):
    tags = [written(*sentence, scheme) for sentence in sentences]
    assert scheme_of(tags) == (scheme if any(entities for entities, _ in sentences) else "IOB2")


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("I-PER O B-PER", "IOB2"),  # ill-formed, but B would not stand there in IOB1
        ("I-PER B-LOC", "IOB2"),
        ("I-PER B-PER I-PER", "IOB1"),
        ("I-PER O", "IOB1"),
        ("O O", "IOB2"),
    ],
)
def test_iob1_and_iob2_are_told_apart_by_where_b_stands(tags, scheme):
    assert scheme_of([tags.split()]) == scheme


@pytest.mark.parametrize("tags", ["NOUN VERB", "B I", "NN -LRB- ES L", "B- -PER"])
def test_tags_of_no_entities_are_plain(tags):
    tags = tags.split()
    assert is_plain(tags)
    assert find_fault(tags, plain=True) is None is find_fault(tags, plain=None)
    assert find_fault(tags)[0] == 0
    assert scheme_of([tags]) == "plain"


@given(st.lists(st.sampled_from(["NOUN", "O", "B-PER", "S-X", ""]), min_size=1))
def test_plain_tags_and_those_of_entities_do_not_mix(tags):
    of_entities = [tag in ("O", "B-PER", "S-X") for tag in tags]
    assert is_plain(tags) == (not any(of_entities))
    if all(of_entities) or all(tag == "NOUN" for tag in tags):
        assert find_fault(tags, plain=None) is None
    elif any(of_entities):
        assert find_fault(tags, plain=None)[0] == of_entities.index(False)
    else:
        assert find_fault(tags, plain=None) == (tags.index(""), "'' is no plain tag; write one like NOUN")


@given(st.lists(random_tags("BIES"), max_size=12))
def test_ill_formed_tags_are_read_as_seqeval_reads_them(tags):
    # Without a mode seqeval follows conlleval, extended by S; its ends are the last words.
    assert find_entities(tags) == [
        EntitySpan(kind, first, last + 1) for kind, first, last in get_entities(tags)
    ]


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        ("O I-PER I-PER O", [("PER", 1, 3)]),  # I after O begins
        ("B-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),  # another type begins
        ("I-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-PER E-PER E-PER", [("PER", 0, 2), ("PER", 2, 3)]),  # nothing goes on after E
        ("S-PER I-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("U-PER I-PER L-PER I-PER", [("PER", 0, 1), ("PER", 1, 3), ("PER", 3, 4)]),  # BILOU likewise
        ("B-a-b I-a-b I-a", [("a-b", 0, 2), ("a", 2, 3)]),  # the type begins after the first hyphen
        ("", []),
    ],
)
def test_hand_worked_cases(tags, entities):
    assert find_entities(tags.split()) == [EntitySpan(*entity) for entity in entities]


def test_faults_are_found_where_they_stand():
    assert find_fault(["O", "B-PER", "PER", "O", "PER"])[0] == 2
    for tag in ("B", "B-", "o", "X-PER", "", "B_PER", "O-PER"):
        place, reason = find_fault(["O", tag])
        assert place == 1
        assert repr(tag) in reason
    place, reason = find_fault(["B-PER", "E-PER", "O", "U-LOC", "S-LOC"])
    assert (place, "U-LOC here and E-PER before" in reason) == (3, True)
    place, reason = find_fault(["L-PER", "O", "S-LOC"])
    assert (place, "S-LOC here and L-PER before" in reason) == (2, True)


# --- scores


def transcribed_conlleval(gold: list[list[str]], predicted: list[list[str]]) -> tuple[dict, float]:
    """conlleval's way, word by word: an entity is right if both sides start, go on and end together."""

    def ends(before: tuple[str, str], now: tuple[str, str]) -> bool:
        pair = before[0] + now[0]
        return pair in {"BB", "BO", "IB", "IO"} or (before[0] != "O" and before[1] != now[1])

    def starts(before: tuple[str, str], now: tuple[str, str]) -> bool:
        pair = before[0] + now[0]
        return pair in {"BB", "IB", "OB", "OI"} or (now[0] != "O" and before[1] != now[1])

    found: dict[str, Counter] = {name: Counter() for name in ("gold", "predicted", "correct")}
    nothing = ("O", "")
    right = words = 0
    last_gold = last_predicted = nothing
    together = False
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        for tags in [*zip(gold_tags, predicted_tags, strict=True), ("O", "O")]:  # a boundary after each
            now_gold, now_predicted = ((tag[0], tag[2:]) for tag in tags)
            gold_ends, predicted_ends = ends(last_gold, now_gold), ends(last_predicted, now_predicted)
            if together and gold_ends and predicted_ends:
                found["correct"][last_gold[1]] += 1
            if gold_ends or predicted_ends:
                together = False
            gold_starts, predicted_starts = starts(last_gold, now_gold), starts(last_predicted, now_predicted)
            found["gold"][now_gold[1]] += gold_starts
            found["predicted"][now_predicted[1]] += predicted_starts
            if gold_starts and predicted_starts and now_gold[1] == now_predicted[1]:
                together = True
            elif gold_starts or predicted_starts:
                together = False
            right += tags[0] == tags[1]
            words += 1
            last_gold, last_predicted = now_gold, now_predicted
        right, words = right - 1, words - 1
    types = {kind for counter in found.values() for kind in counter if counter[kind]}
    counts = {kind: Counts(*(counter[kind] for counter in found.values())) for kind in types}
    return counts, 100 * right / words if words else 0.0


@st.composite
def gold_and_predicted(draw: st.DrawFn) -> tuple[list[list[str]], list[list[str]]]:
    """Ill-formed tags, the predictions like the gold ones here and there."""
    tags = st.lists(st.tuples(random_tags("BI"), random_tags("BI"), st.booleans()), max_size=12)
    drawn = draw(st.lists(tags, min_size=1, max_size=3))
    gold = [[gold_tag for gold_tag, _, _ in sentence] for sentence in drawn]
    return gold, [[tag if differs else gold_tag for gold_tag, tag, differs in sentence] for sentence in drawn]


@given(gold_and_predicted())
def test_ill_formed_tags_are_scored_as_conlleval_does(pair):
    gold, predicted = pair
    counts, accuracy = transcribed_conlleval(gold, predicted)
    assert count_entities(gold, predicted) == counts
    assert entity_scores(gold, predicted)["accuracy"] == pytest.approx(accuracy)


@pytest.mark.parametrize(("name", "scheme"), [("IOB2", IOB2), ("IOBES", IOBES)])
@given(
    sentences=st.lists(st.tuples(sentences_of_entities(), sentences_of_entities()), min_size=1, max_size=4)
)
def test_well_formed_tags_are_scored_as_by_seqeval_in_strict_mode(name, scheme, sentences):
    gold, predicted = [], []
    for pair in sentences:
        words = max(length for _, length in pair)
        for sentence_list, (entities, _) in zip((gold, predicted), pair, strict=True):
            sentence_list.append(written(entities, words, name))
    scores, by_type = entity_scores(gold, predicted), count_entities(gold, predicted)
    if not by_type:  # seqeval cannot say anything of no entities
        assert scores["f1"] == scores["precision"] == scores["recall"] == 0
        return
    report = classification_report(
        gold, predicted, mode="strict", scheme=scheme, output_dict=True, zero_division=0
    )
    average = report.pop("micro avg")
    assert scores["precision"] == pytest.approx(100 * average["precision"])
    assert scores["recall"] == pytest.approx(100 * average["recall"])
    assert scores["f1"] == pytest.approx(100 * average["f1-score"])
    for kind, counts in by_type.items():
        theirs = report[kind]
        assert counts.gold == theirs["support"]
        assert counts.precision == pytest.approx(100 * theirs["precision"])
        assert counts.recall == pytest.approx(100 * theirs["recall"])
        assert counts.f1 == scores[f"f1 {kind}"] == pytest.approx(100 * theirs["f1-score"])


def test_a_case_worked_by_hand():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "O"]]
    predicted = [["B-PER", "I-PER", "O", "I-LOC"], ["B-LOC", "I-LOC"]]
    # Right: PER 0-2, and LOC 3-4, though I begins it. Found: 3; gold: 3. Tags: 3 of 6.
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


def test_nothing_to_find_is_no_failure():
    assert entity_scores([["O", "O"]], [["O", "O"]]) == {
        "precision": 0,
        "recall": 0,
        "FB1": 0,
        "f1": 0,
        "accuracy": 100,
    }
    assert entity_scores([["O"]], [["B-PER"]])["precision"] == 0


def test_seqeval_is_strict_where_conlleval_is_not():
    assert len(Entities([["O", "I-PER"]], IOB2).entities[0]) == 0
    assert find_entities(["O", "I-PER"]) == [EntitySpan("PER", 1, 2)]
