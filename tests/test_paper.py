"""docs/paper.md is correct: its symbols, commands and tests exist."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from bertie.base.settings import resolve
from bertie.commands.main import app
from bertie.recipes import FOLDER
from bertie.tasks import glue
from bertie.tasks.squad.task import SQUAD_TASKS
from bertie.tasks.swag import SWAG
from bertie.training.finetuning_settings import FinetuningSettings

ROOT = Path(__file__).parents[1]


def rows_of(text: str) -> list[list[str]]:
    """The cells of a table, below its header."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


ROWS, DETAILS = map(
    rows_of, (ROOT / "docs" / "paper.md").read_text().split("## Where re-implementations differ")
)
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


def assert_symbols(cell: str, folder: Path) -> None:
    """Each `file:symbol` of a cell, one at least, is there."""
    symbols = re.findall(r"`(\S+?):(\S+?)`", cell)
    assert symbols
    for file, symbol in symbols:
        assert symbol in names_in(folder / file), f"{file}:{symbol}"


@pytest.mark.parametrize("row", ROWS + DETAILS, ids=lambda row: row[0])
def test_the_code_is_where_it_says(row):
    assert_symbols(row[2], ROOT / "src" / "bertie")


@pytest.mark.parametrize("row", DETAILS, ids=lambda row: row[0])
def test_the_test_is_where_it_says(row):
    assert_symbols(row[3], ROOT / "tests")


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


SECTION_4 = {  # epochs, batch size, rate; of GLUE's four rates the first
    "squad-v1": (3, 32, 5e-5),
    "squad-v2": (2, 48, 5e-5),
    "swag": (3, 16, 2e-5),
    **{task.name: (3, 32, 5e-5) for task in glue.TASKS},
}


@pytest.mark.parametrize("task", [*SQUAD_TASKS, SWAG, *glue.TASKS], ids=lambda task: task.name)
def test_tasks_are_fine_tuned_as_in_section_4(task):
    settings = resolve(FinetuningSettings, task.defaults)
    assert (settings.epochs, settings.batch_size, settings.optimizer.learning_rate) == SECTION_4[task.name]
    assert settings.warmup_ratio == 0.1
    assert settings.optimizer.bias_correction


@pytest.mark.parametrize("task", SQUAD_TASKS, ids=lambda task: task.name)
def test_answers_are_sought_as_in_run_squad(task):
    assert (task.doc_stride, task.max_query_length) == (128, 64)
    assert (task.n_best, task.max_answer_length) == (20, 30)


def test_glue_is_scored_as_in_table_1():
    metrics = {task.name: task.main_metric for task in glue.TASKS if task.name != "ax"}
    others = {"mrpc": "f1", "qqp": "f1", "sts-b": "spearmanr", "cola": "matthews_correlation"}
    assert metrics == dict.fromkeys(metrics, "accuracy") | others
