"""Running text is extracted from wikitext, well-formed or vandalised."""

import re
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bertie.corpus.readers import read_documents
from bertie.corpus.wikipedia import extract_text

ARTICLE = """\
{{Short description|x {{nested|a}} }}
{{Infobox person
| name = A
| image = [[File:x.jpg]]
}}
[[File:Foo.jpg|thumb|A caption with [[link|words]] and ''italics''.]]
'''Anarchism''' is a [[political philosophy]] ({{IPA|x}}) and [[Political movement|movement]]<ref name="a">\
{{cite|title=x}}</ref> that is<ref name="b" /> sceptical\
&nbsp;of H<sub>2</sub>O &ndash; [http://x.org all words]\
.<!-- a <ref> -->

== History ==
It began.<br />Then [[:Category:Foo|foo]] went on.
* list
** item [[x]]
# number
{| class="wikitable"
! a
|-
| b || c {{x}}
{| nested
|}
|}
After<math>x</math> the table.  Two  spaces. AT&amp;T
----
[[Category:Foo|bar]]
__NOTOC__
"""
TEXT = """\
Anarchism is a political philosophy and movement that is sceptical of H2O – all words.
It began. Then foo went on.
After the table. Two spaces. AT&T"""


def test_text_of_an_article_is_extracted() -> None:
    assert extract_text(ARTICLE) == TEXT


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("[[a|b [[c|d]] e]]", "b d e"),
        ("[[File:a.jpg|b [[c|d]] e]] f", "f"),
        ("[[a#b|]] c", "c"),
        ("a [[b]]s", "a bs"),
        ("x]] [[y", "x]] [[y"),
        ("{{a {{b}} c", "{{a c"),
        ("a<ref>b", "ab"),
        ("a<REF>b</Ref >c", "ac"),
        ("a<ref group=x/>b</ref>", "ab"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("a '''''b''''' c's", "a b c's"),
        ("f(x, y) ( ; )", "f(x, y)"),
    ],
)
def test_markup_is_resolved_or_dropped(wikitext: str, text: str) -> None:
    assert extract_text(wikitext) == text


@given(st.text("ab {}[]|<>/='*\n!-()refTF:&;", max_size=60))
@example("'()'")
def test_only_paragraphs_are_left(wikitext: str) -> None:
    text = extract_text(wikitext)
    assert not re.search(r"^\s|\s$|\n\n|''", text)
    assert not re.search(r"\{\{[^{}]*\}\}|\[\[[^\[\]{}<>]*\]\]", text)


@given(st.lists(st.text("ab,. \u00e9\u4e2d", min_size=1).filter(str.strip), min_size=1))
def test_paragraphs_without_markup_are_kept(paragraphs: list[str]) -> None:
    expected = [" ".join(paragraph.split()) for paragraph in paragraphs]
    assert extract_text("\n\n".join(paragraphs)) == "\n".join(expected)


MARKS = [
    "[[",
    "]]",
    "[[a|",
    "{{",
    "{|",
    "<ref>",
    "<!--",
    "[//a",
    "[//a ",
    "( ",
    "= ",
    "''",
    "__A",
    "a<ref",
    "&",
]


@pytest.mark.parametrize("mark", MARKS)
def test_time_is_linear(mark: str) -> None:
    """With a pass of quadratic time this test would take more than an hour."""
    assert len(extract_text(mark * 200_000)) <= len(mark) * 200_000


def test_articles_of_a_dump_are_read(tmp_path: Path) -> None:
    """Of a page with its history, as in pages-meta-history, the last revision is read."""

    def page(namespace: int, title: str, texts: str | list[str], more: str = "") -> str:
        revisions = "".join(
            f"""    <revision>
      <id>2</id>
      <text bytes="9" xml:space="preserve">{escape(text)}</text>
      <sha1>x</sha1>
    </revision>
"""
            for text in ([texts] if isinstance(texts, str) else texts)
        )
        return f"""  <page>
    <title>{title}</title>
    <ns>{namespace}</ns>
    <id>1</id>{more}
{revisions}  </page>
"""

    dump = f"""<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="de">
  <siteinfo>
    <namespaces>
      <namespace key="6" case="first-letter">Datei</namespace>
      <namespace key="14" case="first-letter">Kategorie</namespace>
    </namespaces>
  </siteinfo>
{page(0, "A", ARTICLE)}{page(1, "Talk:A", "No.")}{page(0, "R", "#REDIRECT [[A]]", '<redirect title="A" />')}\
{page(0, "B", "Ein [[Wort]]. [[Datei:b.jpg|Bild]] [[kategorie:B]]")}{page(0, "C", ["Alt.", "Neu."])}\
</mediawiki>
"""
    (tmp_path / "pages-articles.xml").write_text(dump)
    documents = [document.text for document in read_documents(tmp_path / "pages-articles.xml")]
    assert documents == [TEXT, "Ein Wort.", "Neu."]
