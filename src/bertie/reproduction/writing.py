"""A table beside the paper's, as markdown and as a picture."""

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from bertie.base.files import write_text
from bertie.reports.drawing import BLUE, INK, ORANGE, PANEL, style, to_svg
from bertie.reproduction.runner import Cell, Outcomes
from bertie.reproduction.tables import Scale, Table
from bertie.reproduction.verdicts import Interval, Verdict, interval, judge, values_of


def write_table(
    path: Path, table: Table, scale: Scale, cells: Sequence[Cell], commonest: Outcomes
) -> list[Verdict]:
    """Write what there is of a table to `path` in markdown, and the picture beside it with .svg for .md.

    Args:
        path: of the markdown.
        table, scale: what was run.
        cells: done or not.
        commonest: what is scored without a model, by always giving the commonest label.

    Returns:
        What was found of every ordering.
    """
    verdicts = judge(table, cells)
    picture = path.with_suffix(".svg")
    write_text(picture, draw(table, cells, commonest))
    restarts = "each pre-trained anew" if scale.pretrain_each_seed else "restarts of fine-tuning alone"
    done = sum(cell.outcomes is not None for cell in cells)
    lines = [
        f"# {table.title}",
        "",
        f"Scale {scale.name}; {scale.seeds} seeds, {restarts}; {done} of {len(cells)} cells done. Each "
        "field: the paper's number, where it has one, then ours, the mean over the seeds ± their standard "
        "deviation.",
        "",
        *_rows(table, scale, cells, commonest),
        "",
        f"![Each dot is a seed, the diamond the mean with its 95 % interval]({picture.name})",
        "",
    ]
    if verdicts:
        lines += _orderings(verdicts)
    if failed := [cell for cell in cells if cell.failure]:
        lines += ["## Cells that failed", ""]
        lines += [f"- {cell.row.name}, seed {cell.seed}: {cell.failure}" for cell in failed]
        lines.append("")
    write_text(path, "\n".join(lines))
    return verdicts


def _rows(table: Table, scale: Scale, cells: Sequence[Cell], commonest: Outcomes) -> list[str]:
    """The table itself."""
    lines = [_line("", *(column.name for column in table.kept_columns))]
    lines.append("|---" * (len(table.kept_columns) + 1) + "|")
    for row in table.rows:
        fields = []
        for column in table.kept_columns:
            values = list(values_of(cells, row, column).values())
            ours = _of_seeds(values) if values else "–"
            if 0 < len(values) < scale.seeds:
                ours += f" ({len(values)} of {scale.seeds} seeds)"
            fields.append(f"{row.paper[column.name]} / {ours}" if column.name in row.paper else ours)
        lines.append(_line(row.name, *fields))
    outcomes = [column.outcome for column in table.kept_columns]
    if commonest.keys() & outcomes:
        fields = [f"{commonest[outcome]:.2f}" if outcome in commonest else "" for outcome in outcomes]
        lines.append(_line("*the commonest label* (dotted)", *fields))
    return lines


def _orderings(verdicts: Sequence[Verdict]) -> list[str]:
    """The verdicts, counted and one by one."""
    counts = Counter(verdict.word for verdict in verdicts)
    told = ", ".join(f"{counts[word]} {word}" for word in ("held", "reversed", "unresolved"))
    lines = [
        "## The orderings",
        "",
        f"Of {len(verdicts)}: {told}. Held and reversed are those whose 95 % t interval of the difference, "
        "between cells of the same seed, leaves out 0. Were there no difference at all, one in twenty would. "
        "The interval is of other seeds, not of other dev examples: all seeds are judged by the same, but "
        "for held-out words, which each pre-training draws anew.",
        "",
        _line("better", "worse", "in", "by, in the paper", "by, here ± half of the interval", ""),
        "|---|---|---|---|---|---|",
    ]
    for better, worse, column, paper, difference, word in verdicts:
        by = f"{paper:.2f}" if paper is not None else "–"
        here = _of_difference(difference) if difference is not None else "–"
        lines.append(_line(better.name, worse.name, column.name, by, here, word))
    return [*lines, ""]


def _of_seeds(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def _of_difference(of: Interval) -> str:
    return f"{of.mean:.2f} ± {of.half_width:.2f}" if of.n > 1 else f"{of.mean:.2f}"


def _line(*fields: str) -> str:
    return f"| {' | '.join(fields)} |"


def draw(table: Table, cells: Sequence[Cell], commonest: Outcomes) -> str:
    """A panel for each column, a line for each row: SVG."""
    with style():
        count = len(table.kept_columns)
        size = (1.6 + 0.8 * PANEL[0] * count, 0.6 + 0.28 * len(table.rows))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
        for axes, column in zip(panels, table.kept_columns, strict=True):
            for place, row in enumerate(table.rows):
                values = list(values_of(cells, row, column).values())
                if not values:
                    continue
                axes.plot(values, [place] * len(values), "o", color=BLUE, alpha=0.55, markersize=4)
                mean, half_width, n = interval(values)
                error = half_width if n > 1 else None
                axes.errorbar(mean, place + 0.25, xerr=error, fmt="D", color=ORANGE, markersize=4, capsize=2)
            if column.outcome in commonest:
                axes.axvline(commonest[column.outcome], color=INK, linewidth=0.8, linestyle=":")
            axes.set_title(column.name)
            axes.grid(axis="x", color=INK, alpha=0.12, linewidth=0.6)
        panels[0].set_yticks(range(len(table.rows)), [row.name for row in table.rows])
        panels[0].set_ylim(len(table.rows) - 0.4, -0.6)
        return to_svg(figure)
