"""Prose in Markdown files is wrapped at 100 columns, so that its changes can be read; its lists are lists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GENERATED = ("docs/api.md", "docs/settings.md", "docs/reproduced/")  # by scripts, and by `bertie reproduce`
PATHS = [path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]]
FILES = sorted(path for path in PATHS if not path.startswith(GENERATED))
COLUMNS = 100
COMMENT = re.compile(r"<!--.*?-->")  # where a figure is from (tests/test_results.py)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
TABLE_OR_CODE = re.compile(r"^(\s*\||    )")
ITEM = re.compile(r" *([-*]|\d+\.) ")


@pytest.mark.parametrize("name", FILES)
def test_prose_is_wrapped(name):
    text = COMMENT.sub("", FENCED.sub("", (ROOT / name).read_text(encoding="utf-8")))
    lines = [line for line in text.splitlines() if not TABLE_OR_CODE.match(line)]
    too_long = [line for line in lines if len(line) > COLUMNS and " " in line[:COLUMNS].strip()]
    assert too_long == []


@pytest.mark.parametrize("name", FILES)
def test_lists_are_lists_on_the_site(name):
    """MkDocs, unlike GitHub, needs a blank line before a list, and indents inner lists by four spaces."""
    text = FENCED.sub("", (ROOT / name).read_text(encoding="utf-8"))
    for block in re.split(r"\n\s*\n|^#.*\n", text, flags=re.MULTILINE):
        lines = block.strip("\n").splitlines()
        items = [line for line in lines if ITEM.match(line)]
        assert [line for line in items if re.match(" {1,3}[^ ]", line)] == []
        assert not items or ITEM.match(lines[0]) or TABLE_OR_CODE.match(lines[0])
