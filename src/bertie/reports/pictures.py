"""The pictures of a report, as SVG to stand inside HTML: their lines and letters take the page's colour.

Pictures are never scaled on the page: an inch here is 96 pixels there, so the smallest panel fits a phone.
"""

import io
import itertools
import math
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

Floats = npt.NDArray[np.float64]
Row = Mapping[str, Any]

# Okabe and Ito's colours, which the colour-blind can tell apart: those dark and light paper both carry.
BLUE, ORANGE, RED = "#3b8fc7", "#e08a00", "#d55e00"
INK = "#010203"  # drawn nowhere else, so that it can be replaced by the colour of the page's text

PANEL = (3.1, 2.3)  # inches: 298 pixels wide, for a screen of 320
POINTS = 300  # more than a panel has pixels
SMOOTHING = 0.02  # the train curve is averaged over this share of the run

_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and is set in the page's letters
    "svg.hashsalt": "bertie",
    "text.parse_math": False,  # labels are the user's: a dollar is a dollar
    "font.size": 8,
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so sizes are the same everywhere
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "lines.linewidth": 1.5,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


def training_curves(rows: Sequence[Row]) -> str:
    """The course of a run, from the rows of `metrics.jsonl`: three SVG elements, one per panel.

    Masked-LM loss, masked-word accuracy and next-sentence accuracy: in training (raw and smoothed), held
    out, and for the first two what guessing by word frequency gives. A panel without any measurement is
    left out, except the first. Steps whose value is not finite are crosses at the top.
    """
    train = [row for row in rows if row["kind"] == "train"]
    held_out = [row for row in rows if row["kind"] == "evaluation"]
    with _style():
        return "".join(
            _curve_panel(title, key, unigram, train, held_out)
            for title, key, unigram in _PANELS
            if key == "masked_lm_loss" or any(row.get(key) is not None for row in rows)
        )


_PANELS = (
    ("Masked-LM loss", "masked_lm_loss", "unigram_loss"),
    ("Masked words found", "masked_lm_accuracy", "unigram_accuracy"),
    ("Next sentence told", "next_sentence_accuracy", None),
)


def _curve_panel(
    title: str, key: str, unigram: str | None, train: Sequence[Row], held_out: Sequence[Row]
) -> str:
    figure = Figure(figsize=PANEL, layout="constrained")
    axes = figure.add_subplot()
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
        axes.axhline(
            baseline, color=INK, alpha=0.6, linewidth=1, linestyle=(0, (4, 3)), label="word frequency"
        )
    _mark_phases(axes, train)
    axes.set_title(title, pad=18)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if "accuracy" in key:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.3g}%"))
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.02, 0.99),
        ncols=3,
        borderpad=0,
        handlelength=1.4,
        handletextpad=0.5,
        columnspacing=1.1,
    )
    return _svg(figure)


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
    names = [label if len(label) <= 24 else label[:23] + "…" for label in labels]
    with _style():
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
        return _svg(figure, bbox_inches="tight")


def comparison(groups: Mapping[str, Sequence[float]], ylabel: str, baseline: float | None = None) -> str:
    """The scores of each group: a point per seed, the mean, and ± 2 standard errors of the mean.

    A group of one seed has no error bar. Scores that are not finite are left out. `baseline` is a dashed
    line to compare with.
    """
    with _style():
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
            axes.axhline(baseline, color=INK, alpha=0.6, linewidth=1, linestyle=(0, (4, 3)))
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
        return _svg(figure)


def _short(count: float) -> str:
    """A count in at most five characters or so."""
    return f"{count:,.0f}" if count < 100_000 else f"{count / 1000:,.0f}k"


@contextmanager
def _style() -> Iterator[None]:
    """Draw in the style of the report; other users of matplotlib keep theirs."""
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # The browser has letters that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        yield


def _svg(figure: Figure, **options: Any) -> str:
    """The SVG element alone, without prologue, background or date; equal figures give equal text."""
    drawing = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(drawing, format="svg", transparent=True, metadata=nothing, **options)
    text = drawing.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")
