"""Write the results of a table next to the paper's, as Markdown with a picture."""

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from bertie.base.files import write_text
from bertie.reports.drawing import BLUE, INK, ORANGE, PANEL, style, to_svg
from bertie.reproduction.cells import Cell, Outcomes
from bertie.reproduction.tables import Scale, Table
from bertie.reproduction.verdicts import (
    ConfidenceInterval,
    Verdict,
    confidence_interval,
    judge_orderings,
    values_by_seed,
)


def write_report(
    path: Path, table: Table, scale: Scale, cells: Sequence[Cell], majority_baseline: Outcomes
) -> list[Verdict]:
    """Write the current results of a table, and a picture of them.

    Args:
        path: the Markdown file; the picture has the same name with the suffix .svg.
        table: the table.
        scale: the scale of the runs.
        cells: the cells of the table, done or not.
        majority_baseline: the scores of always predicting the majority class.

    Returns:
        The verdicts on all orderings.
    """
    verdicts = judge_orderings(table, cells)
    picture = path.with_suffix(".svg")
    write_text(picture, draw_results(table, cells, majority_baseline))
    restarts = "each with its own" if scale.pretrain_each_seed else "which share one"
    num_done = sum(cell.outcomes is not None for cell in cells)
    lines = [
        f"# {table.title}",
        "",
        f"Scale {scale.name}; {scale.seeds} seeds, {restarts} pre-training run; "
        f"{num_done} of {len(cells)} cells done.",
        "Each entry is the paper's number, if there is one, then ours: the mean over the seeds ± the",
        "standard deviation.",
        "",
        *_result_lines(table, scale, cells, majority_baseline),
        "",
        "![Each dot is a seed; each diamond is the mean over the seeds with its 95 % confidence interval]"
        f"({picture.name})",
        "",
    ]
    if verdicts:
        lines += _verdict_lines(verdicts)
    if failed := [cell for cell in cells if cell.failure]:
        lines += ["## Failed cells", ""]
        lines += [f"- {cell.row.name}, seed {cell.seed}: {cell.failure}" for cell in failed]
        lines.append("")
    write_text(path, "\n".join(lines))
    return verdicts


def _result_lines(
    table: Table, scale: Scale, cells: Sequence[Cell], majority_baseline: Outcomes
) -> list[str]:
    """Return the Markdown table of results."""
    lines = [_table_line("", *(column.name for column in table.included_columns))]
    lines.append("|---" * (len(table.included_columns) + 1) + "|")
    for row in table.rows:
        fields = []
        for column in table.included_columns:
            values = list(values_by_seed(cells, row, column).values())
            ours = _format_values(values) if values else "–"
            if 0 < len(values) < scale.seeds:
                ours += f" ({len(values)} of {scale.seeds} seeds)"
            fields.append(f"{row.paper[column.name]} / {ours}" if column.name in row.paper else ours)
        lines.append(_table_line(row.name, *fields))
    outcomes = [column.outcome for column in table.included_columns]
    if majority_baseline.keys() & outcomes:
        fields = [f"{majority_baseline[name]:.2f}" if name in majority_baseline else "" for name in outcomes]
        lines.append(_table_line("*majority baseline* (dotted line)", *fields))
    return lines


def _verdict_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the section with the number of verdicts of each kind, and all verdicts."""
    counts = Counter(verdict.decision for verdict in verdicts)
    summary = ", ".join(f"{counts[decision]} {decision}" for decision in ("held", "reversed", "unresolved"))
    lines = [
        "## Orderings",
        "",
        f"{len(verdicts)} orderings: {summary}.",
        "An ordering is held or reversed if the 95 % confidence interval of the mean difference between",
        "cells of the same seed (Student's t) excludes 0. Without any real difference, this would be so for",
        "one ordering in twenty. The interval covers the variation between seeds, not between dev examples:",
        "all seeds are evaluated on the same dev examples. Only the held-out examples of pre-training differ",
        "between seeds.",
        "",
        _table_line(
            "better",
            "worse",
            "column",
            "difference in the paper",
            "difference here (95 % interval)",
            "verdict",
        ),
        "|---|---|---|---|---|---|",
    ]
    for better, worse, column, paper_difference, difference, decision in verdicts:
        paper = f"{paper_difference:.2f}" if paper_difference is not None else "–"
        ours = _format_interval(difference) if difference is not None else "–"
        lines.append(_table_line(better.name, worse.name, column.name, paper, ours, decision))
    return [*lines, ""]


def _format_values(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def _format_interval(interval: ConfidenceInterval) -> str:
    return f"{interval.mean:.2f} ± {interval.half_width:.2f}" if interval.n > 1 else f"{interval.mean:.2f}"


def _table_line(*fields: str) -> str:
    return f"| {' | '.join(fields)} |"


def draw_results(table: Table, cells: Sequence[Cell], majority_baseline: Outcomes) -> str:
    """Return an SVG with a panel for each column and a line for each row."""
    with style():
        count = len(table.included_columns)
        size = (1.6 + 0.8 * PANEL[0] * count, 0.6 + 0.28 * len(table.rows))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
        for axes, column in zip(panels, table.included_columns, strict=True):
            for i, row in enumerate(table.rows):
                values = list(values_by_seed(cells, row, column).values())
                if not values:
                    continue
                axes.plot(values, [i] * len(values), "o", color=BLUE, alpha=0.55, markersize=4)
                mean, half_width, n = confidence_interval(values)
                error = half_width if n > 1 else None
                axes.errorbar(mean, i + 0.25, xerr=error, fmt="D", color=ORANGE, markersize=4, capsize=2)
            if column.outcome in majority_baseline:
                axes.axvline(majority_baseline[column.outcome], color=INK, linewidth=0.8, linestyle=":")
            axes.set_title(column.name)
            axes.grid(axis="x", color=INK, alpha=0.12, linewidth=0.6)
        panels[0].set_yticks(range(len(table.rows)), [row.name for row in table.rows])
        panels[0].set_ylim(len(table.rows) - 0.4, -0.6)
        return to_svg(figure)
