"""Articles of a Wikipedia XML dump -> their running text (A.2: text passages, no lists, tables or headers).

What is left of wikitext (https://www.mediawiki.org/wiki/Help:Formatting): the words of paragraphs and of
links. Templates are dropped with all they hold, for only MediaWiki itself can expand them. No pass takes
more than linear time (and a sort), whatever vandals wrote.
"""

import html
import re
from pathlib import Path
from xml.etree import ElementTree

from bertie.base.compression import open_binary

# Tags that are dropped with all they hold: no running text, or no text that is one without its layout.
_DROPPED = (
    "ref|references|gallery|imagemap|table|timeline|math|chem|ce|score|graph|mapframe|hiero"
    "|syntaxhighlight|source|code|pre|templatedata|ul|ol|dl|div"
)
# What nests, in the order in which it is dropped: a regular expression for each end of it.
_NESTED = (
    ("<!--", "-->"),
    (rf"<(?:{_DROPPED})\b[^<>]*(?<!/)>", rf"</(?:{_DROPPED})\s*>"),
    (r"\{\{", r"\}\}"),
    (r"\{\|", r"\|\}"),
)
_NESTED_PATTERNS = [re.compile(f"({start})|{end}", re.IGNORECASE) for start, end in _NESTED]

_LINK_MARKS = re.compile(r"\[\[|\]\]|\|")
_EXTERNAL_LINK = re.compile(r"\[(?:https?:|ftp:)?//[^\s\[\]]*+[ \t]*+([^\[\]\n]*+)\]")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_BREAK = re.compile(r"<br\b[^<>]*>", re.IGNORECASE)
_SWITCH = re.compile(r"__[A-Z]+__")  # such as __NOTOC__
_QUOTES = re.compile(r"'{2,}")  # italic and bold
# A heading, list, indented or table line, a rule, or what is left of a table or a template.
_LAYOUT_LINE = re.compile(r"^(?:=.*=[ \t]*|[*#:;|!].*|-{4,}.*|[{}| \t]+)$", re.MULTILINE)
_EMPTY_BRACKETS = re.compile(r"[ \t]?\([\s,;:]*\)")  # a template stood in them
_SPACES = re.compile(r"[ \t]+")

_NAMESPACE = re.compile(rb'<namespace key="(6|14)"[^>]*>([^<]+)</namespace>')
_HEAD_BYTES = 1 << 16  # siteinfo is a few kB
_MAX_NAMESPACE = 64  # characters, to look for a colon in: enough for any language's name of these two
# Names that every Wikipedia knows beside those in its own language.
_ENGLISH_NAMESPACES = frozenset({"file", "image", "category"})


def read_hidden_namespaces(path: Path) -> frozenset[str]:
    """The names, in lower case, of the namespaces of files and categories: links to these are no text."""
    with open_binary(path) as file:
        found = _NAMESPACE.findall(file.read(_HEAD_BYTES))
    names = (name.decode("utf-8", errors="replace").lower() for _, name in found)
    return _ENGLISH_NAMESPACES | frozenset(names)


def parse_page(xml: bytes) -> str | None:
    """The wikitext of a `<page>`, or None if it is no article (namespace 0) but a redirect, a talk page, …

    Raises:
        ElementTree.ParseError: it is not well-formed.
    """
    page = ElementTree.fromstring(xml)
    if page.findtext("ns") != "0" or page.find("redirect") is not None:
        return None
    return page.findtext("revision/text") or ""


def plain_text(wikitext: str, hidden_namespaces: frozenset[str] = _ENGLISH_NAMESPACES) -> str:
    """The running text, one paragraph a line."""
    text = wikitext
    for pattern in _NESTED_PATTERNS:
        text = _drop_nested(text, pattern)
    text = _resolve_links(text, hidden_namespaces)
    text = _EXTERNAL_LINK.sub(r"\1", text)
    text = _TAG.sub("", _BREAK.sub(" ", text))
    text = _QUOTES.sub("", _SWITCH.sub("", text))
    text = _LAYOUT_LINE.sub("", text)
    text = html.unescape(text).replace("\N{NO-BREAK SPACE}", " ")
    text = _QUOTES.sub("", _EMPTY_BRACKETS.sub("", text))  # what stood around them may be two marks now
    text = _SPACES.sub(" ", text)
    return "\n".join(line for line in map(str.strip, text.split("\n")) if line)


def _drop_nested(text: str, pattern: re.Pattern[str]) -> str:
    """`text` without what stands between matching ends; group 1 of `pattern` is the opening one.

    An end without its other one stays, to go as a tag or with its line, or to be seen.
    """
    opened: list[int] = []
    spans: list[tuple[int, int]] = []
    for match in pattern.finditer(text):
        if match[1]:
            opened.append(match.start())
        elif opened:
            spans.append((opened.pop(), match.end()))
    return _without(text, spans)


def _resolve_links(text: str, hidden_namespaces: frozenset[str]) -> str:
    """Each `[[target|words]]`, which may nest, as its words; files and categories as nothing."""
    opened: list[list[int]] = []  # where the link starts, and its words
    spans: list[tuple[int, int]] = []
    for match in _LINK_MARKS.finditer(text):
        if match[0] == "[[":
            opened.append([match.start(), match.end()])
        elif not opened:
            continue
        elif match[0] == "|":
            opened[-1][1] = match.end()
        else:
            start, words = opened.pop()
            namespace = text[start + 2 : start + 2 + _MAX_NAMESPACE].partition(":")[0].strip().lower()
            if namespace in hidden_namespaces:
                spans.append((start, match.end()))
            else:
                spans += [(start, words), match.span()]
    return _without(text, spans)


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    """`text` less all `spans`, which may overlap."""
    parts, end = [], 0
    for start, stop in sorted(spans):
        parts.append(text[end:start])
        end = max(end, stop)
    return "".join([*parts, text[end:]])
