"""Scores of entities equal the output of conlleval.pl, the official scorer (version of 2004-01-26).

The script and its example of CoNLL-2000 are read from `../shared/suites/seqeval` if it exists. The Python
tests of seqeval are left out, because they test its classes and its strict mode, which follow other rules
than the script.
"""

import re
import shutil
import subprocess
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.tasks.entities import count_entities, entity_scores

SUITE = Path(__file__).parents[3] / "shared" / "suites" / "seqeval"
SCRIPT, EXAMPLE = SUITE / "tests_conlleval.pl", SUITE / "tests_data_ground_truth.txt"

pytestmark = pytest.mark.skipif(
    not SCRIPT.exists() or shutil.which("perl") is None, reason="needs perl and ../shared/suites/seqeval"
)

Sentences = list[list[tuple[str, str]]]  # the gold tag and the predicted tag of each word


def run_conlleval(sentences: Sentences) -> dict[str, float]:
    """Return the numbers that conlleval.pl prints, by their names."""
    lines = chain.from_iterable([*(f"word {gold} {tag}" for gold, tag in words), ""] for words in sentences)
    output = subprocess.run(
        ["perl", SCRIPT], input="\n".join(lines), text=True, capture_output=True, check=True
    ).stdout
    counts, total, *types = output.splitlines()
    numbers = dict(zip(("words", "gold", "predicted", "correct"), re.findall(r"\d+", counts), strict=True))
    numbers |= dict(re.findall(r"(\w+): +([\d.]+)", total))
    for line in types:
        name, predicted = line.split(":")[0].strip(), line.split()[-1]
        scores = re.findall(r"(precision|recall|FB1): +([\d.]+)", line)
        numbers |= {f"{score} {name}": value for score, value in scores} | {f"predicted {name}": predicted}
    return {name: float(number) for name, number in numbers.items()}


def assert_equals_conlleval(sentences: Sentences) -> None:
    """Compare every number that conlleval.pl prints, scores with two decimals."""
    gold, predicted = ([[pair[part] for pair in words] for words in sentences] for part in (0, 1))
    by_type, scores = count_entities(gold, predicted), entity_scores(gold, predicted)
    numbers: dict[str, float] = {"words": sum(map(len, sentences))}
    for name in ("gold", "predicted", "correct"):
        numbers[name] = sum(getattr(counts, name) for counts in by_type.values())
    numbers |= {name: scores[name] for name in ("accuracy", "precision", "recall", "FB1")}
    for name, counts in by_type.items():
        numbers[f"predicted {name}"] = counts.predicted
        for score, value in (("precision", counts.precision), ("recall", counts.recall), ("FB1", counts.f1)):
            numbers[f"{score} {name}"] = value
    assert numbers == pytest.approx(run_conlleval(sentences), rel=0, abs=0.00501)


def test_the_example_of_conll_2000_is_scored_as_by_conlleval():
    blocks = EXAMPLE.read_text().strip().split("\n\n")
    rows = [[line.split() for line in block.strip().splitlines()] for block in blocks]
    assert_equals_conlleval([[(row[-2], row[-1]) for row in block] for block in rows])


@pytest.mark.parametrize("letters", ["BI", "EI"])  # it cannot separate E from B of the same type
@settings(max_examples=40)
@given(data=st.data())
def test_ill_formed_tags_are_scored_as_by_the_script(letters, data):
    tags = st.sampled_from(["O", *(f"{letter}-{name}" for letter in letters for name in ("PER", "LOC"))])
    words = st.tuples(tags, tags, st.booleans()).map(lambda drawn: drawn[:2] if drawn[2] else drawn[:1] * 2)
    assert_equals_conlleval(data.draw(st.lists(st.lists(words, min_size=1, max_size=12), min_size=1)))
