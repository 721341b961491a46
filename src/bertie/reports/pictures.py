"""Draw the pictures of reports, as SVG."""

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
from matplotlib.ticker import FuncFormatter, MaxNLocator

from bertie.base.arrays import Float64s
from bertie.reports.drawing import (
    BLUE,
    INK,
    ORANGE,
    PANEL,
    RED,
    add_legend,
    label_steps,
    new_panel,
    shorten,
    style,
    to_svg,
    widen,
)
from bertie.tasks.calibration import Calibration

Row = Mapping[str, Any]

MAX_STRETCHES = 300  # of a curve; a panel has fewer pixels
MAX_SCATTER_POINTS = 2000
# Areas, in square points, of a reliability diagram's bins with no and, added to that, with all predictions.
SMALLEST_BIN, LARGEST_BIN = 8, 200
# An axis shows at least this range, so that a flat curve looks flat.
MIN_ACCURACY_RANGE = 0.1
MIN_LOSS_RANGE = 0.2  # of the largest loss
SMOOTHING = 0.02  # the training curve is averaged over this fraction of the run
DASHED: Any = {"color": INK, "alpha": 0.6, "linewidth": 1, "linestyle": (0, (4, 3))}


def training_curves(rows: Sequence[Row], phases: Sequence[int] = ()) -> str:
    """Draw the curves of a pre-training run, one SVG element for each panel.

    The panels are loss and accuracy of masked or next tokens, and next-sentence accuracy. Each
    shows training (raw and smoothed), held out and, for tokens, the unigram baseline. Panels
    without measurements are omitted; without any measurement, the first panel is drawn empty.
    Non-finite values are crosses at the top.

    Args:
        rows: the rows of metrics.jsonl.
        phases: the number of steps of each phase; a dotted line marks where each but the first begins.
    """
    train = [row for row in rows if row["kind"] == "train"]
    held_out = [row for row in rows if row["kind"] == "evaluation"]
    measured = [panel for panel in _PANELS if any(row.get(panel[1]) is not None for row in rows)]
    with style():
        return "".join(
            _curve_panel(title, key, unigram, train, held_out, phases)
            for title, key, unigram in measured or _PANELS[:1]
        )


def finetuning_curves(rows: Sequence[Row], metric: str, baseline: float | None = None) -> str:
    """Draw the curves of a fine-tuning run: the loss, and a metric on the dev sets.

    Without a dev set there is no second panel.

    Args:
        rows: the rows of metrics.jsonl.
        metric: name of the metric.
        baseline: the majority baseline on the first dev set, in percent.
    """
    train = [row for row in rows if row["kind"] == "train"]
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    parts = [
        key.removesuffix(f"/{metric}") for row in evaluations[:1] for key in row if key.endswith(f"/{metric}")
    ]
    with style():
        loss = _curve_panel("Loss", "loss", None, train)
        if not parts:
            return loss
        figure, axes = new_panel(metric)
        for part, colour in zip(parts, itertools.cycle((ORANGE, BLUE, RED))):
            steps, values = _series(evaluations, f"{part}/{metric}", axes)
            axes.plot(
                steps, values, color=colour, marker="o", markersize=3, linewidth=1.2, label=shorten(part)
            )
        if baseline is not None:
            axes.axhline(baseline, label="majority", **DASHED)
        axes.set_ylabel("%")
        label_steps(axes)
        widen(axes, 100 * MIN_ACCURACY_RANGE, (None, 100))
        add_legend(axes)
        return loss + to_svg(figure)


_PANELS = (
    ("Masked-LM loss", "masked_lm_loss", "unigram_loss"),
    ("Masked-token accuracy", "masked_lm_accuracy", "unigram_accuracy"),
    ("Causal LM loss", "language_model_loss", "unigram_loss"),
    ("Next-token accuracy", "language_model_accuracy", "unigram_accuracy"),
    ("Next-sentence accuracy", "next_sentence_accuracy", None),
)


def _curve_panel(
    title: str,
    key: str,
    unigram: str | None,
    train: Sequence[Row],
    held_out: Sequence[Row] = (),
    phases: Sequence[int] = (),
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
        axes.axhline(baseline, label="unigram", **DASHED)
    _mark_phases(axes, phases)
    label_steps(axes)
    if "accuracy" in key:
        widen(axes, MIN_ACCURACY_RANGE, (0, 1))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g}%"))
    else:
        widen(axes, MIN_LOSS_RANGE * max(map(abs, axes.get_ylim())), (0, None))
    add_legend(axes)
    return to_svg(figure)


def _series(rows: Sequence[Row], key: str, axes: Axes) -> tuple[Float64s, Float64s]:
    """Return the steps and finite values of `key`; draw other values as crosses."""
    measured = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
    steps, values = np.array(measured, dtype=np.float64).reshape(-1, 2).T
    finite = np.isfinite(values)
    non_finite = steps[~finite]
    axes.plot(
        non_finite,
        np.full(len(non_finite), 0.97),
        "x",
        color=RED,
        markersize=4,
        transform=axes.get_xaxis_transform(),
    )
    return steps[finite], values[finite]


def _smoothed(values: Float64s) -> Float64s:
    """Return the moving average of `values`, with fewer neighbours at both ends."""
    reach = int(len(values) * SMOOTHING / 2)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    centre = np.arange(len(values))
    first, last = np.maximum(centre - reach, 0), np.minimum(centre + reach + 1, len(values))
    return np.asarray((sums[last] - sums[first]) / (last - first), dtype=np.float64)


def _extremes(steps: Float64s, values: Float64s) -> tuple[Float64s, Float64s]:
    """Reduce a long curve to the extremes of short stretches, which keeps all peaks."""
    if len(steps) <= 2 * MAX_STRETCHES:
        return steps, values
    stretches = np.array_split(np.arange(len(steps)), MAX_STRETCHES)
    kept = [s[np.sort([values[s].argmin(), values[s].argmax()])] for s in stretches]
    return steps[np.concatenate(kept)], values[np.concatenate(kept)]


def _mark_phases(axes: Axes, phases: Sequence[int]) -> None:
    """Draw a dotted line, with a label, where each phase but the first begins.

    The label is on the side with more room. Each label is one line of text lower than the label before, so
    that labels of short phases do not overlap.
    """
    left, right = axes.get_xlim()
    for index, step in enumerate(itertools.accumulate(phases[:-1])):
        if step >= right:
            break
        in_left_half = step < (left + right) / 2
        axes.axvline(step, color=INK, alpha=0.6, linewidth=0.8, linestyle=":")
        axes.annotate(
            f"phase {index + 2}" + ("" if in_left_half else " →"),
            (step, 1),
            xycoords=axes.get_xaxis_transform(),
            xytext=(3 if in_left_half else -3, -2 - 9 * index),
            textcoords="offset points",
            ha="left" if in_left_half else "right",
            va="top",
            fontsize=7,
        )


def confusion_matrix(matrix: npt.ArrayLike, labels: Sequence[str], title: str = "") -> str:
    """Draw a confusion matrix: counts, and their percentage of the row.

    Args:
        matrix: counts (C, C), indexed by true and predicted label.
        labels: names of the C labels.
        title: the title of the picture.
    """
    counts = np.asarray(matrix)
    fractions = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = len(labels)
    cell = 0.66 if size <= 6 else 0.4  # inches, so that 20 labels fit the page
    names = [*map(shorten, labels)]
    with style():
        # The axes fill the figure; the labels are outside, and the saved picture grows around them.
        figure = Figure(figsize=(cell * size, cell * size))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, size), ylim=(size, 0))
        for truth, predicted in np.argwhere(counts):  # zero counts stay blank
            fraction = fractions[truth, predicted]
            # Light enough for dark text in light mode, dark enough for light text in dark mode.
            axes.add_patch(
                Rectangle((predicted, truth), 1, 1, facecolor=BLUE, alpha=0.65 * fraction, linewidth=0)
            )
            centred: Any = {"ha": "center", "va": "center"}
            axes.text(
                predicted + 0.5,
                truth + 0.4,
                _format_count(counts[truth, predicted]),
                fontsize=6.5 + 2 * cell,
                **centred,
            )
            axes.text(predicted + 0.5, truth + 0.72, f"{fraction:.0%}", fontsize=6.5, alpha=0.75, **centred)
        axes.hlines(range(size + 1), 0, size, color=INK, alpha=0.15, linewidth=0.6)
        axes.vlines(range(size + 1), 0, size, color=INK, alpha=0.15, linewidth=0.6)
        axes.spines[:].set_visible(False)
        upright = max(map(len, names)) * 0.07 > cell  # a character is about 0.07 inches wide
        axes.set_xticks(np.arange(size) + 0.5, names, rotation=90 if upright else 0)
        axes.set_yticks(np.arange(size) + 0.5, names)
        axes.tick_params(length=0)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        axes.set_title(title)
        return to_svg(figure, bbox_inches="tight")


def comparison(groups: Mapping[str, Sequence[float]], ylabel: str, baseline: float | None = None) -> str:
    """Draw the scores of groups of seeds, with means and ± 2 standard errors.

    A group of one seed has no error bar. Non-finite scores are omitted.

    Args:
        groups: the scores of the seeds of each group.
        ylabel: the label of the axis of scores.
        baseline: a score to draw as a dashed line.
    """
    with style():
        figure = Figure(figsize=(max(PANEL[0], 0.7 + 0.95 * len(groups)), 2.6), layout="constrained")
        axes = figure.add_subplot()
        for position, group in enumerate(groups.values()):
            scores = np.array([score for score in group if math.isfinite(score)])
            if not len(scores):
                continue
            spread = np.linspace(-0.12, 0.12, len(scores)) if len(scores) > 1 else np.zeros(1)
            axes.plot(position + spread, scores, "o", color=BLUE, alpha=0.55, markersize=4, markeredgewidth=0)
            mean = float(scores.mean())
            error = 2 * float(scores.std(ddof=1)) / math.sqrt(len(scores)) if len(scores) > 1 else None
            axes.errorbar(
                position + 0.27, mean, error, fmt="D", color=ORANGE, markersize=4.5, capsize=3, linewidth=1.2
            )
            text = f"{mean:.4g}" if error is None else f"{mean:.4g}\n± {error:.2g}"
            axes.annotate(
                text, (position + 0.27, mean), (6, 0), textcoords="offset points", va="center", fontsize=7
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
    baseline: float | None = None,
) -> str:
    """Draw one line for each name, with the values of two series as dots.

    The first name is at the top.

    Args:
        names: the names of the R lines.
        series: the R lists of values of each of the two series; a list may be empty.
        xlabel: the label of the axis of values.
        chosen: the index of the line to highlight.
        baseline: a value to mark by a dashed line.
    """
    with style():
        # The axes fill the figure; the names are outside, and the saved picture grows around them.
        figure = Figure(figsize=(PANEL[0], 0.21 * max(len(names), 2)))
        axes = figure.add_axes((0, 0, 1, 1), ylim=(len(names) - 0.4, -0.6))
        for (name, rows), marker, colour in zip(series.items(), "oD", (BLUE, ORANGE), strict=True):
            points = [(value, line) for line, values in enumerate(rows) for value in values]
            x, y = np.array(points, dtype=np.float64).reshape(-1, 2).T
            axes.plot(x, y, marker, color=colour, alpha=0.8, markersize=4, markeredgewidth=0, label=name)
        if chosen is not None:
            axes.axhspan(chosen - 0.5, chosen + 0.5, color=BLUE, alpha=0.2, linewidth=0)
        if baseline is not None:
            axes.axvline(baseline, **DASHED)
        widen(axes, 100 * MIN_ACCURACY_RANGE, (None, 100), "x")
        axes.set_yticks(range(len(names)), [*map(shorten, names)])
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(xlabel)
        axes.grid(color=INK, alpha=0.12, linewidth=0.6)
        add_legend(axes)
        return to_svg(figure, bbox_inches="tight")


def bars(names: Sequence[str], values: Sequence[float], xlabel: str, baseline: float) -> str:
    """Draw one horizontal bar for each name, the first at the top, from 0 to 100.

    Args:
        names: the names of the bars.
        values: their lengths, in percent.
        xlabel: the label of the axis of values.
        baseline: a value to mark by a dashed line.
    """
    with style():
        # The axes fill the figure; the names are outside, and the saved picture grows around them.
        figure = Figure(figsize=(PANEL[0], 0.21 * max(len(names), 2)))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 100), ylim=(len(names) - 0.4, -0.6))
        axes.barh(range(len(names)), values, height=0.7, color=BLUE, alpha=0.65)
        for line, value in enumerate(values):
            axes.text(1.5, line, f"{value:.1f}", va="center", fontsize=7)
        axes.axvline(baseline, **DASHED)
        axes.set_yticks(range(len(names)), [*map(shorten, names)])
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(xlabel)
        return to_svg(figure, bbox_inches="tight")


def scatter(gold: Float64s, predicted: Float64s) -> str:
    """Draw predicted against gold numbers, (n,) each; a dashed line marks equality."""
    every = -(-len(gold) // MAX_SCATTER_POINTS)
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


def reliability_diagram(calibration: Calibration) -> str:
    """Draw the accuracy of predictions against their confidence.

    The picture shows them before and after temperature scaling. Each point is a bin of predictions, the
    larger, the more there are. On the dashed line, confidence and accuracy are equal.
    """
    series = {"as trained": calibration.raw, f"temperature {calibration.temperature:.3g}": calibration.scaled}
    with style():
        figure = Figure(figsize=(PANEL[0], PANEL[0]), layout="constrained")
        axes = figure.add_subplot(aspect="equal", xlim=(0, 100), ylim=(0, 100))
        axes.plot([0, 100], [0, 100], **DASHED)
        for (name, bins), colour in zip(series.items(), (BLUE, ORANGE), strict=True):
            confidences, accuracies = 100 * bins.confidences, 100 * bins.accuracies
            sizes = SMALLEST_BIN + LARGEST_BIN * bins.counts / bins.counts.sum()
            axes.plot(confidences, accuracies, color=colour, alpha=0.3, linewidth=0.7)
            axes.scatter(
                confidences,
                accuracies,
                sizes,
                color=colour,
                alpha=0.7,
                linewidth=0,
                clip_on=False,
                label=name,
            )
        axes.set_xlabel("confidence, %")
        axes.set_ylabel("accuracy, %")
        axes.grid(color=INK, alpha=0.12, linewidth=0.6)
        add_legend(axes)
        return to_svg(figure)


def threshold_curves(thresholds: Float64s, curves: Mapping[str, Float64s], chosen: float) -> str:
    """Draw scores in percent against the null threshold.

    A question gets no answer if its null odds are above the threshold. Outliers are clipped to the
    ends of the axis: without a possible span, run_squad.py's null odds are a million.

    Args:
        thresholds: the thresholds (n,), in ascending order.
        curves: the scores (n,) of each metric.
        chosen: the threshold of the model.
    """
    lower, upper = np.quantile(thresholds, [0.25, 0.75])
    reach = 1.5 * (upper - lower)  # Tukey's fences, as in a box plot
    ends = lower - reach, upper + reach
    with style():
        figure, axes = new_panel()
        for (name, values), colour in zip(curves.items(), (BLUE, ORANGE), strict=True):
            x, y = _extremes(thresholds.clip(*ends), values)
            axes.plot(x, y, color=colour, drawstyle="steps-post", label=name)
        axes.axvline(float(np.clip(chosen, *ends)), label=f"chosen: {chosen:.4g}", **DASHED)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel("null threshold")
        axes.set_ylabel("%")
        add_legend(axes)
        return to_svg(figure)


def _format_count(count: float) -> str:
    """Format a count in about five characters."""
    return f"{count:,.0f}" if count < 100_000 else f"{count / 1000:,.0f}k"
