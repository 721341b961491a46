"""The report on a table."""

import pytest

from bertie.reproduction.cells import Cell
from bertie.reproduction.report import write_report
from bertie.reproduction.tables import Table, read_scale


@pytest.mark.parametrize(("seeds", "words"), [(1, "1 seed,"), (3, "3 seeds,")])
def test_the_number_of_seeds_agrees_with_its_noun(tmp_path, seeds, words):
    scale = read_scale("laptop").model_copy(update={"seeds": seeds})
    table = Table(
        title="A toy", columns=({"name": "BLiMP", "outcome": "blimp/accuracy"},), rows=({"name": "row"},)
    )
    (row,) = table.rows
    cells = [Cell(row, 0, tmp_path, {"blimp/accuracy": 60.0})]
    write_report(tmp_path / "toy.md", table, scale, cells, {"blimp/accuracy": 50.0})
    text = (tmp_path / "toy.md").read_text()
    assert f"Scale laptop; {words}" in text
    assert ("(1 of 3 seeds)" in text) == (seeds == 3)
