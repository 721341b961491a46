"""MkDocs hook: use README.md and the other Markdown files of the root as pages of the site."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, with links changed from the repository's layout to the site's."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        for old, new in PAGES.items():
            text = text.replace(f"]({old})", f"]({new})")
        text = text.replace("](docs/decisions)", "](decisions/tokenizer.md)").replace("](docs/", "](")
        text = re.sub(r"\[([^\]]+)\]\(LICENSE\)", r"\1", text)
        files.append(File.generated(config, page, content=text))
    return files
