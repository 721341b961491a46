"""docs/paper.md is true: what it names is there."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from bertie.commands.main import app
from bertie.recipes import FOLDER

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs" / "paper.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| Paper")
]
# In the order of the paper; Section 1 and 2, Conclusion and A.4 (other models compared) have nothing to run.
PARTS = [
    *("Section 3", "Section 3.1", "Section 3.2", "Section 4.1", "Section 4.2", "Section 4.3", "Section 4.4"),
    *("Section 5.1", "Section 5.2", "Section 5.3", "Appendix A.1", "Appendix A.2", "Appendix A.3"),
    *("Appendix A.5", "Appendix B.1", "Appendix C.1", "Appendix C.2"),
    *(f"Table {number}" for number in range(1, 9)),
    *(f"Figure {number}" for number in (1, 2, 4, 5)),  # Figure 3 compares other architectures
]


def names_in(file: Path) -> set[str]:
    """What a module defines at its top, and `Class.method`."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_every_part_of_the_paper_has_a_row():
    named = " ".join(row[0] for row in ROWS) + " "
    assert [part for part in PARTS if not re.search(rf"\b{re.escape(part)}\b(?!\.\d)", named)] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_code_is_where_it_says(row):
    symbols = re.findall(r"`(\S+?):(\S+?)`", row[2])
    assert symbols
    for file, symbol in symbols:
        assert symbol in names_in(ROOT / "src" / "bertie" / file), f"{file}:{symbol}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_command_has_these_options(row):
    program, verb, *words = shlex.split(row[3].strip("`"))
    assert program == "bertie"
    command = typer.main.get_command(app).commands[verb]
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options
    if verb in ("pretrain", "reproduce", "search"):
        recipe = words[0] if verb != "search" else words[words.index("--recipe") + 1]
        assert (FOLDER / f"{recipe}.toml").exists()
