"""Find text on this machine: documentation and comments of Python.

The packages of Python are included.
"""

import ast
import builtins
import importlib.util
import inspect
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from bertie.base.executor import run_tasks

# Packages that the extra `train` installs, by themselves or for torch.
PACKAGES = ("jinja2", "matplotlib", "networkx", "numpy", "pydantic", "rich", "torch")
# Folders of tests, of other people's packages, and of torch's compiler: a third of torch's text, in a jargon
# that few readers know.
EXCLUDED = {
    "__pycache__", "_decomp", "_dynamo", "_export", "_functorch", "_higher_order_ops", "_inductor",
    "_native", "_prims", "_refs", "_subclasses", "_testing", "_vendor", "dist-packages", "idle_test",
    "lib2to3", "site-packages", "test", "testing", "tests",
}  # fmt: skip
TEST_FILE = re.compile(r"test_|conftest$|.*_test$")
# Three words in a row: a comment in prose, not one of code, settings for tools or a ruler.
PROSE = re.compile(r"[A-Za-z][a-z]+ [a-z]+ [a-z]{2,}")
FILES_PER_TASK = 100
WRAPPED_LENGTH = 50  # a line at least as long as this continues on the next line


class Passage(NamedTuple):
    """A docstring or a block of comments, and the dotted name of its module."""

    module: str
    text: str
    is_docstring: bool = True

    @property
    def package(self) -> str:
        """The top-level package or module."""
        return self.module.split(".")[0]


class SourceFile(NamedTuple):
    """A Python file and the dotted name of its module."""

    path: Path
    module: str


def topics() -> dict[str, str]:
    """Return the language reference by topic, as `help("TOPIC")` shows it."""
    from pydoc_data.topics import topics

    return {name: join_wrapped_lines(text) for name, text in topics.items()}


def passages(workers: int) -> list[Passage]:
    """Return the docstrings and comments of Python and of `PACKAGES`.

    They are ordered by package and line. Packages that are not installed are skipped.
    """
    files = [*find_sources(Path(sysconfig.get_path("stdlib")), ())]
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)  # of a top-level package, this imports nothing
        for folder in (spec and spec.submodule_search_locations) or ():
            files += find_sources(Path(folder), (name,))
    tasks = [files[start : start + FILES_PER_TASK] for start in range(0, len(files), FILES_PER_TASK)]
    found = sorted(run_tasks(read_files, tasks, workers))
    return [*(passage for _, passages in found for passage in passages), *_builtin_docstrings()]


def join_wrapped_lines(text: str) -> str:
    """Join the lines of wrapped paragraphs.

    `prepare` ends a sentence at each line break.
    """
    lines = text.splitlines()
    joined = lines[:1]
    for before, line in pairwise(lines):
        words = line.lstrip()
        indent = len(line) - len(words)
        is_wrapped = len(before) >= WRAPPED_LENGTH and len(before) - len(before.lstrip()) == indent
        if words and is_wrapped and (words[0].isalnum() or words[0] in "`'\"(*"):
            joined[-1] += f" {words}"
        else:
            joined.append(line)
    return "\n".join(joined)


def find_sources(root: Path, prefix: Sequence[str]) -> Iterator[SourceFile]:
    """Yield the Python files below a folder, without tests.

    `prefix` begins the names of their modules.
    """
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        is_module = EXCLUDED.isdisjoint(parts) and not any("-" in part for part in parts)
        if is_module and not TEST_FILE.match(path.stem):
            yield SourceFile(path, ".".join((*prefix, *parts)).removesuffix(".__init__"))


def read_files(files: Sequence[SourceFile]) -> list[Passage]:
    """Return the passages of source files; files that cannot be parsed have none."""
    return [passage for file in files for passage in _read_file(file)]


def _read_file(file: SourceFile) -> list[Passage]:
    """Parse a source file; importing it could have side effects."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some sources have outdated escapes
        try:
            source = file.path.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (SyntaxError, ValueError, OSError):
            return []  # a few files are malformed on purpose, as test cases
    found: list[tuple[int, Passage]] = []
    documented_lines: set[int] = set()
    for node in [tree, *_definitions(tree.body)]:
        text = ast.get_docstring(node)
        if text:
            line, end = node.body[0].lineno, node.body[0].end_lineno or 0
            documented_lines.update(range(line, end + 1))
            found.append((line, Passage(file.module, join_wrapped_lines(text))))
    for line, text in _comments(source, documented_lines):
        found.append((line, Passage(file.module, join_wrapped_lines(text), is_docstring=False)))
    return [passage for _, passage in sorted(found)]


def _definitions(body: Sequence[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the classes and functions in statements, also nested ones.

    This is faster than `ast.walk`, because it skips expressions.
    """
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
        for field in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(statement, field, None)
            if isinstance(inner, list):
                yield from _definitions(inner)


def _comments(source: str, documented_lines: set[int]) -> Iterator[tuple[int, str]]:
    """Yield blocks of comment lines in prose, each with the number of its first line."""
    block: list[str] = []
    for number, line in enumerate([*source.splitlines(), ""], 1):
        text = line.strip()
        if text.startswith("#") and number not in documented_lines:
            block.append(text.lstrip("#").removeprefix(":").removeprefix(" "))
        elif block:
            if PROSE.search("\n".join(block)):
                yield number - len(block), "\n".join(block)
            block = []


def _builtin_docstrings() -> Iterator[Passage]:
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
                    yield Passage(name.lstrip("_"), join_wrapped_lines(inspect.cleandoc(text)))
