"""Prose in Markdown files is wrapped at 100 columns, so that its changes can be read."""

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


@pytest.mark.parametrize("name", FILES)
def test_prose_is_wrapped(name):
    text = COMMENT.sub("", FENCED.sub("", (ROOT / name).read_text(encoding="utf-8")))
    lines = [line for line in text.splitlines() if not TABLE_OR_CODE.match(line)]
    too_long = [line for line in lines if len(line) > COLUMNS and " " in line[:COLUMNS].strip()]
    assert too_long == []
