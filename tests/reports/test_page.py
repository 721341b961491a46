"""Pages of reports: blocks, escaping, and no access to a network."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.reports.page import MaskedSentence, Page

HOSTILE = "<script>alert(1)</script> & \"double\" 'single' </style><!-- ]]>"
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Document(HTMLParser):
    """Parse a page and record its tags and texts; mismatched tags are an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data))

    def names(self) -> set[str]:
        return {tag for tag, _ in self.tags}

    def text_of(self, tag: str) -> list[str]:
        return [text for owner, text in self.texts if owner == tag]

    def attributes(self, name: str) -> list[str]:
        return [attributes[name] or "" for _, attributes in self.tags if name in attributes]


SVG = (
    '<svg><defs><path id="m1"/></defs><use xlink:href="#m1"/>'
    '<g clip-path="url(#m1)"/><text>"# id="x</text></svg>'
)


def full_page(text: str) -> Page:
    """Return a page with every kind of block, made of `text`."""
    page = Page(text, text)
    page.section(text)
    page.paragraph(text)
    page.code(text)
    page.figures([(text, text, text), ("count", 12345, ""), ("fraction", 0.5, "")])
    page.picture(SVG, text, text)
    page.table([text, "n"], [[text, 1], [text, 2.5]], text)
    page.masked_tokens(
        [MaskedSentence(f"{text} [MASK] {text}", text, [(text, 0.75)]), MaskedSentence(text, None, [])]
    )
    page.mistakes([(text, text, text, None)])
    return page


def test_page_is_well_formed_with_title_and_language() -> None:
    html = full_page("plain").html()
    document = Document(html)
    assert html.startswith("<!DOCTYPE html>\n")
    assert document.text_of("title") == document.text_of("h1") == ["plain"]
    assert document.text_of("h2") == ["plain"]
    assert document.attributes("lang") == ["en"]
    assert {"header", "main", "figure", "figcaption", "table", "thead", "dl", "mark"} <= document.names()


def test_markup_in_any_text_is_escaped() -> None:
    harmless, hostile = Document(full_page("plain").html()), Document(full_page(HOSTILE).html())
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in harmless.tags]
    assert [set(attributes) for _, attributes in hostile.tags] == [
        set(attributes) for _, attributes in harmless.tags
    ]
    for tag in ("title", "h1", "h2", "code", "dt", "dd", "figcaption", "th", "td", "mark"):
        assert HOSTILE in hostile.text_of(tag), tag
    assert HOSTILE in hostile.attributes("aria-label")


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_any_text_survives_the_page(text: str) -> None:
    page = Page("title")
    page.paragraph(f"|{text}|")
    assert f"|{text}|" in "".join(Document(page.html()).text_of("p"))


def test_page_loads_and_runs_nothing() -> None:
    html = full_page("plain").html()
    document = Document(html)
    assert not {"script", "link", "img", "iframe", "base", "object"} & document.names()
    assert not document.attributes("src")
    assert all(
        reference.startswith("#")
        for reference in document.attributes("xlink:href") + document.attributes("href")
    )
    assert not [name for _, attributes in document.tags for name in attributes if name.startswith("on")]
    assert "@import" not in html
    assert re.findall(r"url\(([^)]*)\)", html) == ["#picture-1-m1"]
    assert "default-src 'none'; style-src 'unsafe-inline'" in document.attributes("content")


def test_picture_ids_are_unique() -> None:
    page = Page("title")
    page.picture(SVG, "one", "first")
    page.picture(SVG, "two", "second")
    document = Document(page.html())
    assert document.attributes("id") == ["picture-1-m1", "picture-2-m1"]
    assert document.attributes("xlink:href") == ["#picture-1-m1", "#picture-2-m1"]
    assert document.attributes("clip-path") == ["url(#picture-1-m1)", "url(#picture-2-m1)"]
    assert document.text_of("text") == ['"# id="x'] * 2


def test_numeric_columns_are_right_aligned() -> None:
    page = Page("title")
    rows: list[list[str | int | float]] = [
        ["MNLI", "84.3 ± 0.2", 12345, "1st"],
        ["6 tasks", "–", 0.00012346, "none"],
        ["WNLI", "−2", 123456.7, ".5"],
    ]
    page.table(["Task", "Score", "Count", "Mixed"], rows)
    document = Document(page.html())
    assert [a.get("class") for t, a in document.tags if t == "th"] == [None, "number", "number", None]
    cells = document.text_of("td")
    assert [cells[i] for i in (2, 6, 10)] == ["12,345", "0.0001235", "123,457"]


def test_table_may_be_empty_but_not_ragged() -> None:
    page = Page("title")
    page.table(["a", "b"], [])
    assert Document(page.html()).text_of("th") == ["a", "b"]
    with pytest.raises(ValueError, match="zip"):
        page.table(["a", "b"], [["only one"]])


def masked(sentence: str, truth: str | None, predictions: list[tuple[str, float]]) -> Document:
    page = Page("title")
    page.masked_tokens([MaskedSentence(sentence, truth, predictions)])
    return Document(page.html())


def test_masked_sentence_shows_truth_and_probabilities() -> None:
    document = masked("The [MASK] sat.", "cat", [("cat", 0.8731), ("dog", 0.1), ("owl", 0.001), ("ant", 0.0)])
    assert document.text_of("mark") == ["cat"]
    assert [text for text in document.text_of("p") if "The" in text or "sat" in text] == ["The ", " sat."]
    assert document.attributes("style") == [
        "width:87.3%",
        "width:10.0%",
        "width:0.1%",
        "width:0.0%",
    ]
    percentages = [text for text in document.text_of("span") if "%" in text]
    assert percentages == ["87%", "10%", "<1%", "0%"]
    assert document.text_of("span").count("✓") == 1
    assert document.attributes("class").count("true") == 1


def test_mask_without_truth_stays_a_mask() -> None:
    document = masked("A [MASK] b [MASK].", None, [("x", 0.5)])
    assert document.text_of("mark") == ["[MASK]"]
    assert "✓" not in document.text_of("span")


def test_mistakes_follow_the_direction_of_their_text() -> None:
    page = Page("title")
    page.mistakes([("שלום", "a", "b", None), ("text", "c", "d", 0.5)])
    document = Document(page.html())
    assert document.text_of("p") == ["שלום", "text"]
    assert document.text_of("dd") == ["a", "b", "c", "d", "50%"]
    assert document.attributes("dir") == ["auto"] * 6


def test_equal_content_gives_equal_files(tmp_path: Path) -> None:
    for name in "ab":
        full_page("Würde 権利").save(tmp_path / f"{name}.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert "Würde 権利" in (tmp_path / "a.html").read_text(encoding="utf-8")
