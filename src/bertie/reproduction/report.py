"""Write the results of a table next to the paper's, as Markdown with a picture."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from matplotlib.figure import Figure

from bertie.base.files import write_text
from bertie.base.locks import lock_file
from bertie.base.texts import count_noun
from bertie.reports.drawing import BLUE, INK, ORANGE, PANEL, style, to_svg
from bertie.reproduction.cells import Cell, Outcomes
from bertie.reproduction.intervals import ConfidenceInterval
from bertie.reproduction.tables import Column, Row, Scale, Table
from bertie.reproduction.verdicts import (
    Decision,
    Verdict,
    column_baseline,
    is_perplexity,
    judge_orderings,
    row_interval,
    values_by_seed,
)

MEANINGS: dict[Decision, str] = {
    "held": "the row in the column *better* is better here too; the difference is too large to be chance.",
    "reversed": "the other row is better here; the difference is too large to be chance.",
    "unresolved": "these runs do not decide; the true difference may be 0 or have either sign.",
    "at chance": "the better row here is not above the baseline: the models have not learned the task, so "
    "their order means nothing.",
}


def write_report(
    path: Path,
    table: Table,
    scale: Scale,
    cells: Sequence[Cell],
    majority_baseline: Outcomes,
    notes: Sequence[str] = (),
) -> list[Verdict]:
    """Write the current results of a table, and a picture of them.

    Args:
        path: the Markdown file; the picture has the same name with the suffix .svg.
        table: the table.
        scale: the scale of the runs.
        cells: the cells of the table, done or not.
        majority_baseline: the scores of always predicting the majority class.
        notes: how these runs differ from the paper's.

    Returns:
        The verdicts on all orderings.
    """
    verdicts = judge_orderings(table, cells, majority_baseline)
    picture = path.with_suffix(".svg")
    restarts = "each with its own" if scale.pretrain_each_seed else "which share one"
    num_done = sum(cell.outcomes is not None for cell in cells)
    lines = [
        f"# {table.title}",
        "",
        f"Scale {scale.name}; {count_noun(scale.seeds, 'seed')}, {restarts} pre-training run; "
        f"{num_done} of {len(cells)} cells done.",
        "Each entry is the paper's number, if there is one, then ours: the mean over the seeds ± the",
        "standard deviation.",
        *notes,
        "",
        *_result_lines(table, scale, cells, majority_baseline),
        "",
        "![Each dot is a seed; each diamond is the mean with its 95 % confidence interval; the dotted line "
        f"is the baseline]({picture.name})",
        "",
    ]
    if verdicts:
        lines += _verdict_lines(verdicts)
    if failed := [cell for cell in cells if cell.failure]:
        lines += ["## Failed cells", ""]
        lines += [f"- {cell.row.name}, seed {cell.seed}: {cell.failure}" for cell in failed]
        lines.append("")
    with lock_file(path, wait=True), lock_file(picture, wait=True):
        write_text(picture, draw_results(table, cells, majority_baseline))
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
                ours += f" ({len(values)} of {count_noun(scale.seeds, 'seed')})"
            fields.append(f"{row.paper[column.name]} / {ours}" if column.name in row.paper else ours)
        lines.append(_table_line(row.name, *fields))
    baselines = [
        column_baseline(table, cells, column, majority_baseline) for column in table.included_columns
    ]
    if any(baseline is not None for baseline in baselines):
        fields = ["" if baseline is None else f"{baseline:.2f}" for baseline in baselines]
        lines.append(_table_line("*baseline* (dotted line)", *fields))
    return lines


def _verdict_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the section with the number of verdicts of each kind, and all verdicts."""
    counts = Counter(verdict.decision for verdict in verdicts)
    summary = ", ".join(f"{counts[decision]} {decision}" for decision in get_args(Decision))
    lines = [
        "## What the table says",
        "",
        f"{len(verdicts)} statements of the form *this row is better than that one in this column*: "
        f"{summary}.",
        "Each compares two rows that are neighbours in the paper's order of a column, or repeats a claim",
        "that the paper or this table makes in words.",
        "",
        *(f"- **{decision}**: {meaning}" for decision, meaning in MEANINGS.items()),
        "",
        "The baseline is the score of always giving the most frequent answer. For losses and perplexities,",
        "it is the loss of a model that knows only how frequent each token is. The intervals cover the",
        "variation between seeds and between dev examples; for outcomes without a score of each example,",
        "such as losses, only between seeds. As there are few seeds, their variation is estimated from all",
        "statements of the table. The p-value is the probability of a difference at least this large if",
        "both rows were equally good. It is adjusted for the number of statements (Holm), so a statement",
        "can be unresolved although its interval excludes 0.",
        *_logarithm_lines(verdicts),
        "",
        _table_line(
            "better",
            "worse",
            "column",
            "difference in the paper",
            "difference here (95 % interval)",
            "p (Holm)",
            "verdict",
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for better, worse, column, paper_difference, difference, p_value, decision in verdicts:
        paper = f"{paper_difference:.2f}" if paper_difference is not None else "–"
        ours = _format_interval(difference) if difference is not None else "–"
        p = format_p_value(p_value) if difference is not None and difference.n > 1 else "–"
        lines.append(_table_line(better.name, worse.name, column.name, paper, ours, p, decision))
    return [*lines, ""]


def _logarithm_lines(verdicts: Sequence[Verdict]) -> list[str]:
    if any(is_perplexity(verdict.better.outcome(verdict.column)) for verdict in verdicts):
        return ["Differences of perplexities are differences of their natural logarithms, which are losses."]
    return []


def _format_values(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def format_p_value(p_value: float) -> str:
    """Return a p-value with three decimals; one that would be 0.000 as "< 0.001"."""
    return "< 0.001" if p_value < 0.0005 else f"{p_value:.3f}"


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
                mean, low, high = _bounds(cells, row, column)
                error = [[mean - low], [high - mean]] if len(values) > 1 else None
                axes.errorbar(mean, i + 0.25, xerr=error, fmt="D", color=ORANGE, markersize=4, capsize=2)
            baseline = column_baseline(table, cells, column, majority_baseline)
            if baseline is not None:
                axes.axvline(baseline, color=INK, linewidth=0.8, linestyle=":")
            axes.set_title(column.name)
            axes.grid(axis="x", color=INK, alpha=0.12, linewidth=0.6)
        panels[0].set_yticks(range(len(table.rows)), [row.name for row in table.rows])
        panels[0].set_ylim(len(table.rows) - 0.4, -0.6)
        return to_svg(figure)


def _bounds(cells: Sequence[Cell], row: Row, column: Column) -> tuple[float, float, float]:
    """Return the mean of a row with values, and the ends of its interval."""
    interval = row_interval(cells, row, column)
    assert interval is not None
    bounds = (interval.mean, interval.mean - interval.half_width, interval.mean + interval.half_width)
    if is_perplexity(row.outcome(column)):
        return math.exp(bounds[0]), math.exp(bounds[1]), math.exp(min(bounds[2], 100.0))
    return bounds
