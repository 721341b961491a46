"""The documentation that every Python carries: its topics, and the docstrings of its standard library."""

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

# Not documentation: the library's own tests and tools, and what is installed beside it.
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "lib2to3", "__pycache__"}


class Docstring(NamedTuple):
    """One docstring and the dotted name of the module it stands in."""

    module: str
    text: str

    @property
    def package(self) -> str:
        """The top-level package or module."""
        return self.module.split(".")[0]


def topics() -> dict[str, str]:
    """Python's language reference, as `help("NAME")` shows it."""
    from pydoc_data.topics import topics

    return dict(topics)


def docstrings() -> list[Docstring]:
    """Every docstring of the standard library once, in the order of the modules' names."""
    seen: set[str] = set()
    found = []
    for docstring in [*_of_sources(), *_of_builtin_modules()]:
        if docstring.text not in seen:
            seen.add(docstring.text)
            found.append(docstring)
    return found


def _of_sources() -> Iterator[Docstring]:
    """Read from the source files, since importing some modules has effects."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if LEFT_OUT.intersection(parts) or any("-" in part for part in parts):
            continue
        module = ".".join(parts).removesuffix(".__init__")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some sources have outdated escapes
            try:
                tree = ast.parse(path.read_text(encoding="utf-8"))
            except (SyntaxError, UnicodeDecodeError, OSError):
                continue  # a few files are broken on purpose, for tests
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield Docstring(module, text)


def _of_builtin_modules() -> Iterator[Docstring]:
    """The docstrings of what is written in C and always there."""
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
