"""Extract the running text of articles from a Wikipedia XML dump.

Following Appendix A.2 of the paper, only text passages are kept: no lists, tables or headers. Of
wikitext (https://www.mediawiki.org/wiki/Help:Formatting), the words of paragraphs and links remain.
Templates are dropped with their contents, since only MediaWiki can expand them. Every pass takes
linear time, plus a sort, on any input, so vandalised pages cannot slow it down.
"""

import html
import re
from pathlib import Path
from xml.etree import ElementTree

from bertie.base.compression import open_binary

# Tags that are dropped with their contents: not running text, or unreadable without their layout.
_DROPPED_TAGS = (
    "ref|references|gallery|imagemap|table|timeline|math|chem|ce|score|graph|mapframe|hiero"
    "|syntaxhighlight|source|code|pre|templatedata|ul|ol|dl|div"
)
# Constructs that nest, in the order in which they are dropped: regular expressions for the opening
# and the closing mark.
_NESTED_MARKS = (
    ("<!--", "-->"),
    (rf"<(?:{_DROPPED_TAGS})\b[^<>]*(?<!/)>", rf"</(?:{_DROPPED_TAGS})\s*>"),
    (r"\{\{", r"\}\}"),
    (r"\{\|", r"\|\}"),
)
_NESTED_PATTERNS = [re.compile(f"({opening})|{closing}", re.IGNORECASE) for opening, closing in _NESTED_MARKS]

_LINK_MARKS = re.compile(r"\[\[|\]\]|\|")
_EXTERNAL_LINK = re.compile(r"\[(?:https?:|ftp:)?//[^\s\[\]]*+[ \t]*+([^\[\]\n]*+)\]")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_LINE_BREAK = re.compile(r"<br\b[^<>]*>", re.IGNORECASE)
_BEHAVIOR_SWITCH = re.compile(r"__[A-Z]+__")  # such as __NOTOC__
_QUOTES = re.compile(r"'{2,}")  # italic and bold
# A heading, list, indented or table line, a horizontal rule, or the rest of a table or a template.
_LAYOUT_LINE = re.compile(r"^(?:=.*=[ \t]*|[*#:;|!].*|-{4,}.*|[{}| \t]+)$", re.MULTILINE)
_EMPTY_PARENTHESES = re.compile(r"[ \t]?\([\s,;:]*\)")  # left where a template was dropped
_SPACES = re.compile(r"[ \t]+")

_NAMESPACE = re.compile(rb'<namespace key="(6|14)"[^>]*>([^<]+)</namespace>')  # 6: files, 14: categories
_HEAD_BYTES = 1 << 16  # the <siteinfo> at the start of a dump takes a few kB
# A namespace is looked for in this many characters, enough for the two names in any language.
_MAX_NAMESPACE_CHARACTERS = 64
# Every Wikipedia understands these names beside those in its own language.
_ENGLISH_NAMESPACES = frozenset({"file", "image", "category"})


def read_hidden_namespaces(path: Path) -> frozenset[str]:
    """Read the lower-cased names of the file and category namespaces of a dump.

    Links to these namespaces show no text.
    """
    with open_binary(path) as file:
        matches = _NAMESPACE.findall(file.read(_HEAD_BYTES))
    names = (name.decode("utf-8", errors="replace").lower() for _, name in matches)
    return _ENGLISH_NAMESPACES | frozenset(names)


def parse_page(xml: bytes) -> str | None:
    """Return the last wikitext of a `<page>`, or None if the page is not an article.

    Articles are the pages of namespace 0, except redirects.

    Raises:
        ElementTree.ParseError: the XML is not well-formed.
    """
    page = ElementTree.fromstring(xml)
    if page.findtext("ns") != "0" or page.find("redirect") is not None:
        return None
    # A dump with the history of its pages has many revisions, the oldest first.
    revisions = page.findall("revision/text")
    return (revisions[-1].text if revisions else None) or ""


def extract_text(wikitext: str, hidden_namespaces: frozenset[str] = _ENGLISH_NAMESPACES) -> str:
    """Return the running text of an article, one paragraph per line."""
    text = wikitext
    for pattern in _NESTED_PATTERNS:
        text = _drop_nested(text, pattern)
    text = _replace_links(text, hidden_namespaces)
    text = _EXTERNAL_LINK.sub(r"\1", text)
    text = _TAG.sub("", _LINE_BREAK.sub(" ", text))
    text = _QUOTES.sub("", _BEHAVIOR_SWITCH.sub("", text))
    text = _LAYOUT_LINE.sub("", text)
    text = html.unescape(text).replace("\N{NO-BREAK SPACE}", " ")
    # Dropping parentheses may join the apostrophes around them into another quotation mark.
    text = _QUOTES.sub("", _EMPTY_PARENTHESES.sub("", text))
    text = _SPACES.sub(" ", text)
    return "\n".join(line for line in map(str.strip, text.split("\n")) if line)


def _drop_nested(text: str, pattern: re.Pattern[str]) -> str:
    """Drop everything between matching marks.

    Group 1 of `pattern` matches the opening mark. A mark without its counterpart stays in the text.
    A later pass may drop it as a tag or with its line.
    """
    open_starts: list[int] = []
    spans: list[tuple[int, int]] = []
    for match in pattern.finditer(text):
        if match[1]:
            open_starts.append(match.start())
        elif open_starts:
            spans.append((open_starts.pop(), match.end()))
    return _remove_spans(text, spans)


def _replace_links(text: str, hidden_namespaces: frozenset[str]) -> str:
    """Replace each `[[target|label]]` by its label; links may nest.

    Links to hidden namespaces are removed with their labels.
    """
    open_links: list[list[int]] = []  # the start of each open link, and the start of its label
    spans: list[tuple[int, int]] = []
    for match in _LINK_MARKS.finditer(text):
        if match[0] == "[[":
            open_links.append([match.start(), match.end()])
        elif not open_links:
            continue
        elif match[0] == "|":
            open_links[-1][1] = match.end()
        else:
            start, label_start = open_links.pop()
            target = text[start + 2 : start + 2 + _MAX_NAMESPACE_CHARACTERS]
            namespace = target.partition(":")[0].strip().lower()
            if namespace in hidden_namespaces:
                spans.append((start, match.end()))
            else:
                spans += [(start, label_start), match.span()]
    return _remove_spans(text, spans)


def _remove_spans(text: str, spans: list[tuple[int, int]]) -> str:
    """Return `text` without `spans`, which may overlap."""
    kept, position = [], 0
    for start, end in sorted(spans):
        kept.append(text[position:start])
        position = max(position, end)
    return "".join([*kept, text[position:]])
