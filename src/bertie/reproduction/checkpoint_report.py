"""Write the results of a given model beside the paper's, as Markdown."""

import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from bertie.base.files import write_text
from bertie.base.locks import lock_file
from bertie.base.progress import format_duration
from bertie.base.settings import Tree
from bertie.reproduction.checkpoint_tables import CheckpointRow, CheckpointTable, TaskFiles


class RowResult(NamedTuple):
    """A row of a table, and the results of its finished cells."""

    row: CheckpointRow
    cells: Sequence[Tree]

    @property
    def scores(self) -> list[float]:
        """The score of each restart."""
        return [score for cell in self.cells for score in cell["scores"][self.row.outcome]]

    @property
    def mean(self) -> float:
        """The mean score of the restarts."""
        return statistics.mean(self.scores)


def write_checkpoint_report(
    path: Path,
    table: CheckpointTable,
    model: str,
    tasks: Mapping[str, TaskFiles],
    plan: Tree,
    rows: Sequence[RowResult],
    notes: Sequence[str],
) -> None:
    """Write the current results of a table.

    Args:
        path: the Markdown file.
        table: the table.
        model: the model, in words.
        tasks: the tasks that the data hold.
        plan: the plan with which the table was started (`checkpoint_runner`).
        rows: the results of all rows.
        notes: lines about missing rows, models and data.
    """
    columns = list(dict.fromkeys(name for result in rows for name in result.row.paper))
    head = ["score", "ours, dev", "majority", *columns, "trained on", "official", "settings"]
    lines = [f"# {table.title}", "", f"Fine-tuned from {model}; {datetime.now(UTC):%Y-%m-%d}.", ""]
    lines += [_line(head), "|---" * len(head) + "|"]
    lines += [_row_line(result, columns) for result in rows]
    if table.average:
        lines += _average_lines(rows, columns, len(head))
    lines += ["", *_plan_lines(plan, rows), "", "Data:", ""]
    for name, (folder, examples) in tasks.items():
        parts = "; ".join(examples.describe(shorten=True).values())
        lines.append(f"- {name}, in {folder}: {parts}")
    lines += [f"- {note}" for note in notes]
    with lock_file(path, wait=True):
        write_text(path, "\n".join(lines) + "\n")


def _row_line(result: RowResult, columns: Sequence[str]) -> str:
    row = result.row
    paper = [f"{row.paper[name]:g}" if name in row.paper else "" for name in columns]
    official = f"{row.official_size:,}" if row.official_size else ""
    if not result.cells:
        return _line([row.name, "–", "", *paper, "", official, ""])
    cell, scores = result.cells[0], result.scores
    ours = f"{result.mean:.1f}"
    if len(scores) > 1:
        ours += f" ± {statistics.stdev(scores):.1f} ({len(scores)} runs)"
    baseline = cell["majority_baseline"].get(row.outcome)
    trained_on = f"{cell['trained_on']:,} of {cell['available']:,}"
    majority = "" if baseline is None else f"{baseline:.1f}"
    return _line([row.name, ours, majority, *paper, trained_on, official, cell["settings"]])


def _average_lines(rows: Sequence[RowResult], columns: Sequence[str], width: int) -> list[str]:
    """Return the line with the averages of our scores and of the paper's.

    Both are over the same rows, which have numbers of the paper.
    """
    counted = [result for result in rows if result.row.paper]
    done = [result for result in counted if result.cells]
    if not done:
        return []
    paper = [f"{statistics.mean(result.row.paper[name] for result in done):.1f}" for name in columns]
    ours = f"{statistics.mean(result.mean for result in done):.1f}"
    name = "Average"
    if len(done) < len(counted):
        name += f" of these {len(done)} of the paper's {len(counted)}"
    return [_line([name, ours, "", *paper, *[""] * (width - 3 - len(paper))])]


def _plan_lines(plan: Tree, rows: Sequence[RowResult]) -> list[str]:
    """Return the lines about the time, the cap on examples, and two columns."""
    cells = {id(cell): cell for result in rows for cell in result.cells}
    lines = [f"All runs so far took {format_duration(sum(cell['seconds'] for cell in cells.values()))}."]
    if cap := plan["max_training_examples"]:
        lines.append(
            f"Capped at {cap:,} training examples a task, to fit --budget {plan['budget']:g} (minutes); "
            f"uncapped, the estimate was {format_duration(plan['seconds_uncapped'])}."
        )
    lines.append(
        "`trained on` counts examples, and windows over contexts and documents; `official` is the number of "
        "examples in the official training file."
    )
    return lines


def _line(fields: Sequence[str]) -> str:
    return f"| {' | '.join(fields)} |"
