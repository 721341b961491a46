"""A report as one HTML file that needs no network, no script and no other file."""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from bertie.base.files import write_text
from bertie.reports.stylesheet import STYLESHEET

Cell = str | int | float
Guess = tuple[str, float]

MASK = "[MASK]"
TICK = ' <span title="the true word">✓</span>'


class Page:
    """A report, written from top to bottom: each method adds one piece. All text is escaped.

    page = Page("A small BERT", "256 hidden units, 4 layers")
    page.section("Pre-training")
    page.picture(training_curves(rows), "The loss falls.", "Three curves over training steps")
    page.save(Path("report.html"))
    """

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title, self.subtitle = title, subtitle
        self._pieces: list[str] = []
        self._pictures = 0

    def section(self, title: str) -> None:
        """A heading."""
        self._pieces.append(f"<h2>{escape(title)}</h2>")

    def paragraph(self, text: str) -> None:
        """A paragraph of plain text."""
        self._pieces.append(f"<p>{escape(text)}</p>")

    def code(self, text: str) -> None:
        """Lines as they are, such as a command or a settings file."""
        self._pieces.append(f"<pre><code>{escape(text)}</code></pre>")

    def figures(self, figures: Sequence[tuple[str, Cell, str]]) -> None:
        """A row of key numbers, each (name, value, note); the note may be empty."""
        items = "\n".join(
            f"<div><dt>{escape(name)}</dt>"
            f'<dd class="value">{escape(_cell(value))}</dd><dd class="note">{escape(note)}</dd></div>'
            for name, value, note in figures
        )
        self._pieces.append(f'<dl class="figures">\n{items}\n</dl>')

    def picture(self, svg: str, caption: str, alternative_text: str) -> None:
        """One or more SVG elements from `bertie.reports.pictures`, side by side where there is room.

        `alternative_text` says to those who cannot see the picture what it shows.
        """
        self._pictures += 1
        self._pieces.append(
            '<figure class="pictorial"><div class="picture" role="img" '
            f'aria-label="{escape(alternative_text)}">\n'
            f"{_with_own_ids(svg, f'picture-{self._pictures}-')}</div>\n"
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str = "") -> None:
        """A table; columns of numbers are set flush right."""
        cells = [[_cell(cell) for cell in row] for row in rows]
        numeric = [bool(column) and all(map(_is_numeric, column)) for column in zip(*cells, strict=True)]
        kinds = ([' class="number"' if n else "" for n in numeric]) or [""] * len(header)
        head = "".join(
            f'<th scope="col"{kind}>{escape(c)}</th>' for c, kind in zip(header, kinds, strict=True)
        )
        body = "\n".join(
            "<tr>"
            + "".join(f"<td{kind}>{escape(c)}</td>" for c, kind in zip(row, kinds, strict=True))
            + "</tr>"
            for row in cells
        )
        title = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        self._pieces.append(
            f'<figure class="tabular">{title}<div class="wide"><table>\n'
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div></figure>"
        )

    def masked_words(self, rows: Sequence[tuple[str, str | None, Sequence[Guess]]]) -> None:
        """Sentences with one `[MASK]` each and what the model puts there.

        A row is (sentence, the true word or None, [(guess, probability), …]), the likeliest guess first.
        """
        items = "\n".join(_masked_sentence(*row) for row in rows)
        self._pieces.append(f'<ul class="masked">\n{items}\n</ul>')

    def mistakes(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """Texts answered wrongly, each (text, gold, predicted), in whatever direction they are read."""
        items = "\n".join(
            f'<li><p dir="auto">{escape(text)}</p>\n<dl><dt>gold</dt><dd dir="auto">{escape(gold)}</dd>'
            f'<dt>predicted</dt><dd dir="auto">{escape(predicted)}</dd></dl></li>'
            for text, gold, predicted in rows
        )
        self._pieces.append(f'<ul class="mistakes">\n{items}\n</ul>')

    def html(self) -> str:
        """The whole page. It depends on nothing but what was added: no date, no version."""
        subtitle = f'\n<p class="subtitle">{escape(self.subtitle)}</p>' if self.subtitle else ""
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            # The browser itself holds the promise of the first line of this file.
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
            f"<title>{escape(self.title)}</title>\n<style>\n{STYLESHEET}</style>\n</head>\n<body>\n<main>\n"
            f"<header>\n<h1>{escape(self.title)}</h1>{subtitle}\n</header>\n"
            + "\n".join(self._pieces)
            + "\n</main>\n</body>\n</html>\n"
        )

    def save(self, path: Path) -> None:
        """Write the page, atomically."""
        write_text(path, self.html())


def _cell(value: Cell) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else value


def _is_numeric(cell: str) -> bool:
    """Whether a cell starts as a number does, or stands for a missing one: `84.3 ± 0.4`, `−2`, `–`, ``."""
    return re.match(r"([-+−]?\.?\d|[-–—]?$|nan|[-−]?inf)", cell) is not None


def _with_own_ids(svg: str, prefix: str) -> str:
    """`svg` with `prefix` on its ids and the references to them: two pictures use the same ones."""
    return re.sub(r"<[^>]*>", lambda tag: re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}", tag[0]), svg)


def _masked_sentence(sentence: str, truth: str | None, guesses: Sequence[Guess]) -> str:
    before, mask, after = sentence.partition(MASK)
    blank = f"<mark>{escape(mask if truth is None else truth)}</mark>" if mask else ""
    lines = "\n".join(
        f"<li{' class=true' if token == truth else ''}>"
        f'<span class="token">{escape(token)}{TICK if token == truth else ""}</span>'
        f'<span class="track"><span style="width:{100 * probability:.1f}%"></span></span>'
        f'<span class="share">{escape(_percent(probability))}</span></li>'
        for token, probability in guesses
    )
    return f"<li><p>{escape(before)}{blank}{escape(after)}</p>\n<ol>\n{lines}\n</ol></li>"


def _percent(probability: float) -> str:
    return "<1%" if 0 < probability < 0.005 else f"{100 * probability:.0f}%"
