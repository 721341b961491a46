"""The documentation that comes with Python: the language reference and the library's docstrings."""

import ast
import builtins
import importlib
import inspect
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Folders without documentation: the library's tests and tools, and installed packages.
EXCLUDED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "lib2to3", "__pycache__"}


class Docstring(NamedTuple):
    """A docstring and the dotted name of its module."""

    module: str
    text: str

    @property
    def package(self) -> str:
        """The top-level package or module."""
        return self.module.split(".")[0]


def topics() -> dict[str, str]:
    """Return the language reference by topic, as `help("TOPIC")` shows it."""
    from pydoc_data.topics import topics

    return dict(topics)


def docstrings() -> list[Docstring]:
    """Return every docstring of the standard library once, ordered by module."""
    seen: set[str] = set()
    unique = []
    for docstring in [*_source_docstrings(), *_builtin_docstrings()]:
        if docstring.text not in seen:
            seen.add(docstring.text)
            unique.append(docstring)
    return unique


def _source_docstrings() -> Iterator[Docstring]:
    """Parse the source files; importing them could have side effects."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if EXCLUDED.intersection(parts) or any("-" in part for part in parts):
            continue
        module = ".".join(parts).removesuffix(".__init__")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some sources have outdated escapes
            try:
                tree = ast.parse(path.read_text(encoding="utf-8"))
            except (SyntaxError, UnicodeDecodeError, OSError):
                continue  # a few files are malformed on purpose, as test cases
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield Docstring(module, text)


def _builtin_docstrings() -> Iterator[Docstring]:
    """Import the modules of the interpreter, which have no source files."""
    for name in sorted({builtins.__name__, *sys.builtin_module_names}):
        module = importlib.import_module(name)
        for member in [module, *(value for _, value in sorted(vars(module).items()))]:
            owned = [member]
            if inspect.isclass(member):
                owned += [value for _, value in sorted(vars(member).items())]
            for item in owned:
                text = getattr(item, "__doc__", None)
                if isinstance(text, str) and text.strip():
                    yield Docstring(name.lstrip("_"), inspect.cleandoc(text))
