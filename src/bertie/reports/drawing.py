"""What all pictures of a report have in common: colours, letters, a panel, and the way out as SVG.

Pictures stand inside HTML: their lines and letters take the page's colour. They are never scaled on the page:
an inch here is 96 pixels there, so the smallest panel fits a phone.
"""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

# Okabe and Ito's colours, which the colour-blind can tell apart: those dark and light paper both carry.
BLUE, ORANGE, RED = "#3b8fc7", "#e08a00", "#d55e00"
INK = "#010203"  # drawn nowhere else, so that it can be replaced by the colour of the page's text

PANEL = (3.1, 2.3)  # inches: 298 pixels wide, for a screen of 320
LETTERS = 24  # of a label

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


@contextmanager
def style() -> Iterator[None]:
    """Draw in the style of the report; other users of matplotlib keep theirs."""
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # The browser has letters that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        yield


def new_panel(title: str = "") -> tuple[Figure, Axes]:
    """Empty axes with room for a legend under the title."""
    figure = Figure(figsize=PANEL, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, pad=18)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
    return figure, axes


def name_steps(axes: Axes) -> None:
    """Make x count the steps of training."""
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))


def add_legend(axes: Axes) -> None:
    """A legend in one line above the axes."""
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
    """A label that leaves room for the picture."""
    return label if len(label) <= LETTERS else label[: LETTERS - 1] + "…"


def to_svg(figure: Figure, **options: Any) -> str:
    """The SVG element alone, without prologue, background or date; equal figures give equal text."""
    drawing = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(drawing, format="svg", transparent=True, metadata=nothing, **options)
    text = drawing.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")
