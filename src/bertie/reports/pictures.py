"""The pictures of a report, as SVG."""

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from bertie.reports.drawing import (
    BLUE,
    INK,
    ORANGE,
    PANEL,
    RED,
    add_legend,
    name_steps,
    new_panel,
    shorten,
    style,
    to_svg,
)

Floats = npt.NDArray[np.float64]
Row = Mapping[str, Any]

POINTS = 300  # more than a panel has pixels
SCATTERED = 2000  # points
SMOOTHING = 0.02  # the train curve is averaged over this share of the run
DASHED: Any = {"color": INK, "alpha": 0.6, "linewidth": 1, "linestyle": (0, (4, 3))}


def training_curves(rows: Sequence[Row]) -> str:
    """The course of a run, from the rows of `metrics.jsonl`: an SVG element for each panel.

    Loss and accuracy of masked or of next words, and next-sentence accuracy: in training (raw and smoothed),
    held out, and of words what guessing by their frequency gives. A panel without any measurement is left
    out; without any at all the first one is empty. Steps whose value is not finite are crosses at the top.
    """
    train = [row for row in rows if row["kind"] == "train"]
    held_out = [row for row in rows if row["kind"] == "evaluation"]
    measured = [panel for panel in _PANELS if any(row.get(panel[1]) is not None for row in rows)]
    with style():
        return "".join(
            _curve_panel(title, key, unigram, train, held_out)
            for title, key, unigram in measured or _PANELS[:1]
        )


def finetuning_curves(rows: Sequence[Row], metric: str) -> str:
    """The course of a fine-tuning, from the rows of `metrics.jsonl`: the loss, and `metric` on each dev part.

    The second panel is left out where there is no dev part.
    """
    train = [row for row in rows if row["kind"] == "train"]
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    parts = [
        key.removesuffix(f"/{metric}") for row in evaluations[:1] for key in row if key.endswith(f"/{metric}")
    ]
    with style():
        loss = _curve_panel("Loss", "loss", None, train, [])
        if not parts:
            return loss
        figure, axes = new_panel(metric)
        for part, colour in zip(parts, itertools.cycle((ORANGE, BLUE, RED))):
            steps, values = _series(evaluations, f"{part}/{metric}", axes)
            axes.plot(
                steps, values, color=colour, marker="o", markersize=3, linewidth=1.2, label=shorten(part)
            )
        axes.set_ylabel("%")
        name_steps(axes)
        add_legend(axes)
        return loss + to_svg(figure)


_PANELS = (
    ("Masked-LM loss", "masked_lm_loss", "unigram_loss"),
    ("Masked words found", "masked_lm_accuracy", "unigram_accuracy"),
    ("Language-model loss", "language_model_loss", "unigram_loss"),
    ("Next words found", "language_model_accuracy", "unigram_accuracy"),
    ("Next sentence told", "next_sentence_accuracy", None),
)


def _curve_panel(
    title: str, key: str, unigram: str | None, train: Sequence[Row], held_out: Sequence[Row]
) -> str:
    figure, axes = new_panel(title)
    steps, values = _series(train, key, axes)
    if len(steps) > 1:
        axes.plot(*_extremes(steps, values), color=BLUE, alpha=0.3, linewidth=0.7)
    marker = "o" if len(steps) == 1 else ""
    axes.plot(
        *_extremes(steps, _smoothed(values)), color=BLUE, marker=marker, markersize=3.5, label="training"
    )
    steps, values = _series(held_out, key, axes)
    if len(steps):
        axes.plot(steps, values, color=ORANGE, marker="o", markersize=3, linewidth=1.2, label="held out")
    baseline = held_out[-1].get(unigram) if unigram and held_out else None
    if baseline is not None:
        axes.axhline(baseline, label="word frequency", **DASHED)
    _mark_phases(axes, train)
    name_steps(axes)
    if "accuracy" in key:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.3g}%"))
    add_legend(axes)
    return to_svg(figure)


def _series(rows: Sequence[Row], key: str, axes: Axes) -> tuple[Floats, Floats]:
    """The steps and finite values of `key`; the others are crosses at the top of `axes`."""
    measured = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
    steps, values = np.array(measured, dtype=np.float64).reshape(-1, 2).T
    finite = np.isfinite(values)
    lost = steps[~finite]
    axes.plot(
        lost, np.full(len(lost), 0.97), "x", color=RED, markersize=4, transform=axes.get_xaxis_transform()
    )
    return steps[finite], values[finite]


def _smoothed(values: Floats) -> Floats:
    """The mean of the neighbours of each value, with fewer of them at both ends."""
    reach = int(len(values) * SMOOTHING / 2)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    centre = np.arange(len(values))
    first, last = np.maximum(centre - reach, 0), np.minimum(centre + reach + 1, len(values))
    return np.asarray((sums[last] - sums[first]) / (last - first), dtype=np.float64)


def _extremes(steps: Floats, values: Floats) -> tuple[Floats, Floats]:
    """The lowest and highest point of each of many short stretches: all peaks, in fewer points."""
    if len(steps) <= 2 * POINTS:
        return steps, values
    stretches = np.array_split(np.arange(len(steps)), POINTS)
    kept = [s[np.sort([values[s].argmin(), values[s].argmax()])] for s in stretches]
    return steps[np.concatenate(kept)], values[np.concatenate(kept)]


def _mark_phases(axes: Axes, train: Sequence[Row]) -> None:
    """A dotted line where the phase changes."""
    for before, row in itertools.pairwise(train):
        if row["phase"] != before["phase"]:
            axes.axvline(row["step"], color=INK, alpha=0.6, linewidth=0.8, linestyle=":")
            axes.annotate(
                f"phase {row['phase'] + 1} →",
                (row["step"], 1),
                xycoords=axes.get_xaxis_transform(),
                xytext=(-3, -2),
                textcoords="offset points",
                ha="right",
                va="top",
                fontsize=7,
            )


def confusion_matrix(matrix: npt.ArrayLike, labels: Sequence[str], title: str = "") -> str:
    """Counts and their share of the row, one row per true label: (C, C), `matrix[truth, prediction]`."""
    counts = np.asarray(matrix)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = len(labels)
    cell = 0.66 if size <= 6 else 0.4  # inches: 20 labels fit the page
    names = [*map(shorten, labels)]
    with style():
        # The axes fill the figure; the labels stand outside, and the saved picture grows around them.
        figure = Figure(figsize=(cell * size, cell * size))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, size), ylim=(size, 0))
        for truth, guess in np.argwhere(counts):  # what never happened is left blank
            share = shares[truth, guess]
            # Light enough for dark letters on light paper, dark enough for light ones on dark paper.
            axes.add_patch(Rectangle((guess, truth), 1, 1, facecolor=BLUE, alpha=0.65 * share, linewidth=0))
            centred: Any = {"ha": "center", "va": "center"}
            axes.text(
                guess + 0.5, truth + 0.4, _short(counts[truth, guess]), fontsize=6.5 + 2 * cell, **centred
            )
            axes.text(guess + 0.5, truth + 0.72, f"{share:.0%}", fontsize=6.5, alpha=0.75, **centred)
        axes.hlines(range(size + 1), 0, size, color=INK, alpha=0.15, linewidth=0.6)
        axes.vlines(range(size + 1), 0, size, color=INK, alpha=0.15, linewidth=0.6)
        axes.spines[:].set_visible(False)
        upright = max(map(len, names)) * 0.07 > cell  # a letter is about 0.07 inches wide
        axes.set_xticks(np.arange(size) + 0.5, names, rotation=90 if upright else 0)
        axes.set_yticks(np.arange(size) + 0.5, names)
        axes.tick_params(length=0)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        axes.set_title(title)
        return to_svg(figure, bbox_inches="tight")


def comparison(groups: Mapping[str, Sequence[float]], ylabel: str, baseline: float | None = None) -> str:
    """The scores of each group: a point per seed, the mean, and ± 2 standard errors of the mean.

    A group of one seed has no error bar. Scores that are not finite are left out. `baseline` is a dashed
    line to compare with.
    """
    with style():
        figure = Figure(figsize=(max(PANEL[0], 0.7 + 0.95 * len(groups)), 2.6), layout="constrained")
        axes = figure.add_subplot()
        for place, group in enumerate(groups.values()):
            scores = np.array([score for score in group if math.isfinite(score)])
            if not len(scores):
                continue
            spread = np.linspace(-0.12, 0.12, len(scores)) if len(scores) > 1 else np.zeros(1)
            axes.plot(place + spread, scores, "o", color=BLUE, alpha=0.55, markersize=4, markeredgewidth=0)
            mean = float(scores.mean())
            error = 2 * float(scores.std(ddof=1)) / math.sqrt(len(scores)) if len(scores) > 1 else None
            axes.errorbar(
                place + 0.27, mean, error, fmt="D", color=ORANGE, markersize=4.5, capsize=3, linewidth=1.2
            )
            text = f"{mean:.4g}" if error is None else f"{mean:.4g}\n± {error:.2g}"
            axes.annotate(
                text, (place + 0.27, mean), (6, 0), textcoords="offset points", va="center", fontsize=7
            )
        if baseline is not None:
            axes.axhline(baseline, **DASHED)
            axes.annotate(
                f"baseline {baseline:.4g}",
                (0, baseline),
                (2, 2),
                xycoords=axes.get_yaxis_transform(),
                textcoords="offset points",
                fontsize=7,
            )
        axes.set_xlim(-0.5, max(len(groups), 1) - 0.2)
        axes.set_xticks(range(len(groups)), [textwrap.fill(name, 14) for name in groups])
        axes.tick_params(axis="x", length=0)
        axes.set_ylabel(ylabel)
        axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
        axes.margins(y=0.15)
        return to_svg(figure)


def dots(
    names: Sequence[str],
    series: Mapping[str, Sequence[Sequence[float]]],
    xlabel: str,
    chosen: int | None = None,
) -> str:
    """A line for each name, from the top, with the values of two series on it as dots.

    Args:
        names: (R,) of the lines.
        series: its name, and for each line the values: none, one or several.
        xlabel: what the values are.
        chosen: a line that is marked.
    """
    with style():
        # The axes fill the figure; the names stand outside, and the saved picture grows around them.
        figure = Figure(figsize=(PANEL[0], 0.21 * max(len(names), 2)))
        axes = figure.add_axes((0, 0, 1, 1), ylim=(len(names) - 0.4, -0.6))
        for (name, rows), marker, colour in zip(series.items(), "oD", (BLUE, ORANGE), strict=True):
            points = [(value, place) for place, values in enumerate(rows) for value in values]
            x, y = np.array(points, dtype=np.float64).reshape(-1, 2).T
            axes.plot(x, y, marker, color=colour, alpha=0.8, markersize=4, markeredgewidth=0, label=name)
        if chosen is not None:
            axes.axhspan(chosen - 0.5, chosen + 0.5, color=BLUE, alpha=0.2, linewidth=0)
        axes.set_yticks(range(len(names)), [*map(shorten, names)])
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(xlabel)
        axes.grid(color=INK, alpha=0.12, linewidth=0.6)
        add_legend(axes)
        return to_svg(figure, bbox_inches="tight")


def scatter(gold: Floats, predicted: Floats) -> str:
    """Predicted numbers by gold ones, (n,) each; those on the dashed line are right."""
    every = -(-len(gold) // SCATTERED)
    with style():
        figure = Figure(figsize=(PANEL[0], PANEL[0]), layout="constrained")
        axes = figure.add_subplot(aspect="equal")
        ends = [min(gold.min(), predicted.min()), max(gold.max(), predicted.max())]
        axes.plot(ends, ends, **DASHED)
        axes.plot(
            gold[::every], predicted[::every], "o", color=BLUE, alpha=0.4, markersize=3, markeredgewidth=0
        )
        axes.set_xlabel("gold")
        axes.set_ylabel("predicted")
        axes.grid(color=INK, alpha=0.12, linewidth=0.6)
        return to_svg(figure)


def threshold_curves(thresholds: Floats, curves: Mapping[str, Floats], chosen: float) -> str:
    """Scores in percent by the threshold from which on there is no answer; (n,) each, in order.

    Outliers are drawn at the ends: where no span is possible, run_squad.py's null odds are a million.
    """
    lower, upper = np.quantile(thresholds, [0.25, 0.75])
    reach = 1.5 * (upper - lower)  # Tukey's, of a box plot
    ends = lower - reach, upper + reach
    with style():
        figure, axes = new_panel()
        for (name, values), colour in zip(curves.items(), (BLUE, ORANGE), strict=True):
            x, y = _extremes(thresholds.clip(*ends), values)
            axes.plot(x, y, color=colour, drawstyle="steps-post", label=name)
        axes.axvline(float(np.clip(chosen, *ends)), label=f"chosen: {chosen:.4g}", **DASHED)
        axes.set_xlabel("null threshold")
        axes.set_ylabel("%")
        add_legend(axes)
        return to_svg(figure)


def _short(count: float) -> str:
    """A count in at most five characters or so."""
    return f"{count:,.0f}" if count < 100_000 else f"{count / 1000:,.0f}k"
