"""The common style of all pictures in reports, and their output as SVG.

Pictures are embedded in HTML, so lines and text take the page's colour. The page never scales them:
one inch here is 96 pixels on the page, and the smallest panel fits a phone.
"""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

# From Okabe and Ito's colours, distinguishable for the colour-blind: three that work in light and dark mode.
BLUE, ORANGE, RED = "#3b8fc7", "#e08a00", "#d55e00"
INK = "#010203"  # used nowhere else, so that `to_svg` can replace it by the colour of the page's text

PANEL = (3.1, 2.3)  # inches: 298 pixels wide, for a screen of 320
MAX_LABEL_CHARACTERS = 24

_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: searchable, and set in the page's font
    "svg.hashsalt": "bertie",
    "text.parse_math": False,  # labels come from the user: a dollar sign is a dollar sign
    "font.size": 8,
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so sizes are the same on every machine
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


@contextmanager
def style() -> Iterator[None]:
    """Draw in the style of the report, without changing matplotlib's global style."""
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # The browser has glyphs that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        yield


def new_panel(title: str = "") -> tuple[Figure, Axes]:
    """Return a figure and empty axes with room for a legend under the title."""
    figure = Figure(figsize=PANEL, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, pad=18)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
    return figure, axes


def label_steps(axes: Axes) -> None:
    """Label the x axis as training steps."""
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))


def widen(
    axes: Axes, minimum: float, bounds: tuple[float | None, float | None], axis: Literal["x", "y"] = "y"
) -> None:
    """Extend the range of an axis to a minimum, so that small differences look small.

    The range grows on both sides by the same amount, except beyond values that cannot occur.

    Args:
        axes: with all their curves.
        minimum: the smallest range.
        bounds: the lowest and the highest possible value; None for no bound.
        axis: the axis to extend.
    """
    low, high = axes.get_xlim() if axis == "x" else axes.get_ylim()
    if high - low >= minimum:
        return
    lowest, highest = bounds
    low -= (minimum - (high - low)) / 2
    if highest is not None and low + minimum > highest:
        low = highest - minimum
    if lowest is not None and low < lowest:
        low = lowest
    margin = 0.03 * minimum  # so that a curve at a bound is not cut
    axes.set(**{f"{axis}lim": (low - margin, low + minimum + margin)})


def add_legend(axes: Axes) -> None:
    """Add a legend in one line above the axes."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.02, 0.99),
        ncols=3,
        borderpad=0,
        handlelength=1.4,
        handletextpad=0.5,
        columnspacing=1.1,
    )


def shorten(label: str) -> str:
    """Truncate a label so that it leaves room for the picture."""
    return label if len(label) <= MAX_LABEL_CHARACTERS else label[: MAX_LABEL_CHARACTERS - 1] + "…"


def to_svg(figure: Figure, **options: Any) -> str:
    """Return a figure as an SVG element; equal figures give equal text.

    The element has no prologue, background or date.
    """
    drawing = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(drawing, format="svg", transparent=True, metadata=nothing, **options)
    text = drawing.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")
