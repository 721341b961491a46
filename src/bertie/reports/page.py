"""Build a report as one HTML file without scripts, network access or other files.

`page.html` is the jinja2 template and `page.css` the stylesheet.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bertie.base.files import write_text

Cell = str | int | float
MASK = "[MASK]"


class MaskedSentence(NamedTuple):
    """A sentence with one [MASK], and a model's predictions for it.

    Attributes:
        sentence: the text with the mask.
        truth: the original token, or None if it is unknown.
        predictions: (token, probability) pairs, most probable first.
    """

    sentence: str
    truth: str | None
    predictions: Sequence[tuple[str, float]]


class Page:
    """A report, built from top to bottom: each method appends one block.

    All text is escaped.

    Example:
        >>> page = Page("A small BERT", "256 hidden units, 4 layers")
        >>> page.section("Pre-training")
        >>> page.paragraph("The loss falls.")
        >>> page.html().startswith("<!DOCTYPE html>")
        True
    """

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title, self.subtitle = title, subtitle
        self._blocks: list[dict[str, Any]] = []

    def facts(self, facts: Mapping[str, str]) -> None:
        """Append a list of names and texts, such as the origin of the data."""
        self._append("facts", facts=facts)

    def section(self, title: str) -> None:
        """Append a heading."""
        self._append("section", title=title)

    def paragraph(self, text: str) -> None:
        """Append a paragraph of plain text."""
        self._append("paragraph", text=text)

    def warning(self, text: str) -> None:
        """Append a highlighted paragraph."""
        self._append("warning", text=text)

    def code(self, text: str) -> None:
        """Append preformatted lines, such as a command or a settings file."""
        self._append("code", text=text)

    def figures(self, figures: Sequence[tuple[str, Cell, str]]) -> None:
        """Append a row of key figures, each (name, value, note); the note may be empty."""
        self._append("figures", figures=figures)

    def picture(self, svg: str, caption: str, alternative_text: str) -> None:
        """Append SVG elements, side by side if there is room.

        Args:
            svg: elements from `bertie.reports.pictures`.
            caption: the visible caption.
            alternative_text: a description for readers who cannot see the picture.
        """
        number = 1 + sum(block["kind"] == "picture" for block in self._blocks)
        unique = Markup(_prefix_ids(svg, f"picture-{number}-"))
        self._append("picture", svg=unique, caption=caption, alternative_text=alternative_text)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str = "") -> None:
        """Append a table; columns of numbers are right-aligned.

        Raises:
            ValueError: the rows differ in length.
        """
        cells = [[_format_cell(cell) for cell in row] for row in rows]
        columns = list(zip(header, *cells, strict=True))
        numeric = [len(column) > 1 and all(map(_is_numeric, column[1:])) for column in columns]
        self._append("table", header=header, rows=cells, numeric=numeric, caption=caption)

    def masked_tokens(self, sentences: Sequence[MaskedSentence]) -> None:
        """Append masked sentences with the model's predictions."""
        rows = []
        for sentence, truth, predictions in sentences:
            before, mask, after = sentence.partition(MASK)
            blank = truth if mask and truth is not None else mask
            rows.append(
                {"before": before, "blank": blank, "after": after, "truth": truth, "predictions": predictions}
            )
        self._append("masked_tokens", rows=rows)

    def mistakes(self, mistakes: Sequence[tuple[str, str, str, float | None]]) -> None:
        """Append wrong predictions, each (text, gold, predicted, probability).

        The probability of the prediction may be None. Each text keeps its writing direction.
        """
        names = ("text", "gold", "predicted", "probability")
        self._append("mistakes", mistakes=[dict(zip(names, mistake, strict=True)) for mistake in mistakes])

    def html(self) -> str:
        """Return the whole page; it has only the dates and versions that were put into it."""
        return str(_TEMPLATE.render(title=self.title, subtitle=self.subtitle, blocks=self._blocks))

    def save(self, path: Path) -> None:
        """Write the page to a file, atomically."""
        write_text(path, self.html())

    def _append(self, kind: str, **values: Any) -> None:
        self._blocks.append({"kind": kind, **values})


def _format_cell(value: Cell) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else value


def _is_numeric(cell: str) -> bool:
    """Return whether a cell starts like a number or marks a missing one.

    Examples are `84.3 ± 0.4`, `−2`, `–` and the empty cell.
    """
    return re.match(r"([-+−]?\.?\d|[-–—]?$|nan|[-−]?inf)", cell) is not None


def _prefix_ids(svg: str, prefix: str) -> str:
    """Prefix all ids in `svg` and their references; two pictures have the same ids."""
    return re.sub(r"<[^>]*>", lambda tag: re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}", tag[0]), svg)


def _format_percent(probability: float) -> str:
    return "<1%" if 0 < probability < 0.005 else f"{100 * probability:.0f}%"


def _load_template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {"cell": _format_cell, "percent": _format_percent}
    return environment.get_template("page.html")


_TEMPLATE = _load_template()
