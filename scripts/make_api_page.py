"""Write docs/api.md from the docstrings of the public API; tests/api/test_examples.py keeps it current.

python scripts/make_api_page.py
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import bertie

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
SECTIONS = {
    "From text to a trained model": [
        "learn_vocabulary",
        "extend_tokenizer",
        "prepare",
        "prepare_part",
        "join_parts",
        "Corpus",
        "Manifest",
        "SplitCounts",
        "pretrain",
    ],
    "Fine-tuning and evaluation": ["finetune", "search", "evaluate", "evaluate_blimp", "reproduce"],
    "Results": [
        "RunResult",
        "PretrainingResult",
        "FinetuningResult",
        "SearchResult",
        "Trial",
        "EvaluationResult",
        "BlimpScores",
        "Metrics",
    ],
    "Using a model": ["load", "convert", "export", "Predictor"],
    "Predictions": [
        "Label",
        "Entity",
        "TaggedWord",
        "Answer",
        "Choice",
        "MaskPrediction",
        "TextFeatures",
        "Features",
        "Attention",
    ],
    "Building blocks": ["Tokenizer", "Encoding", "Vocabulary", "BertConfig"],
    "Errors": ["BertieError", "SettingsError", "DataError", "ModelError", "Stopped"],
}
# Classes that public functions return or take, beside those in bertie.__all__.
RETURNED = {
    "RunResult": "bertie.api.results",
    "PretrainingResult": "bertie.api.results",
    "FinetuningResult": "bertie.api.results",
    "SearchResult": "bertie.api.results",
    "Trial": "bertie.training.search",
    "EvaluationResult": "bertie.api.results",
    "BlimpScores": "bertie.tasks.blimp",
    "Metrics": "bertie.api.results",
    "Label": "bertie.inference.results",
    "Entity": "bertie.inference.results",
    "TaggedWord": "bertie.inference.results",
    "Answer": "bertie.inference.results",
    "Choice": "bertie.inference.results",
    "MaskPrediction": "bertie.inference.results",
    "TextFeatures": "bertie.inference.features",
    "Features": "bertie.inference.features",
    "Attention": "bertie.inference.results",
    "Manifest": "bertie.corpus.manifest",
    "SplitCounts": "bertie.corpus.manifest",
    "Encoding": "bertie.text.encoding",
    "Vocabulary": "bertie.text.vocabulary",
}
PROPERTIES = (property, cached_property)
INTRODUCTION = """# Python API

`import bertie` exposes the functions, `Corpus`, `Predictor`, `Tokenizer`, `BertConfig` and the
errors on this page. The other classes are in the modules named below, for type hints. torch and
numba are imported when they are first needed. The functions take the same words as the command
line; each example below is run by the tests. This page is generated from the docstrings by
`make docs`.

| command | in Python |
|---|---|
| `vocab`, `vocab --extend` | `bertie.learn_vocabulary`, `bertie.extend_tokenizer` |
| `tokenize` | `bertie.Tokenizer.load(DIR).encode(text)` |
| `prepare` | `bertie.prepare`; `bertie.Corpus.open(DIR)` opens the corpus |
| `prepare --part`, `prepare --join` | `bertie.prepare_part`, `bertie.join_parts` |
| `pretrain`, `finetune`, `search`, `evaluate`, `convert`, `export` | the functions with these names |
| `evaluate --task blimp` | `bertie.evaluate_blimp` |
| `predict` | `bertie.load(DIR)`, and the [method for its head](#predictor), such as `classify` |
| `embed`, `features` | `bertie.load(DIR).embed(texts)`, `bertie.load(DIR).features(texts)` |
| `reproduce --model` | `bertie.reproduce` |

The other commands (`serve`, `inspect`, `submission`, `demo`, `doctor`) have no function.
"""


def public_objects() -> dict[str, Any]:
    """Return every object of the page by its name."""
    return {
        **{name: getattr(bertie, name) for name in bertie.__all__},
        **{name: getattr(__import__(module, fromlist=[name]), name) for name, module in RETURNED.items()},
    }


def public_methods(owner: type) -> dict[str, Any]:
    """Return the methods and properties that a class defines itself, in order of definition."""
    return {
        name: member
        for name, member in vars(owner).items()
        if not name.startswith("_") and (callable(member) or isinstance(member, (classmethod, *PROPERTIES)))
    }


def make_page() -> str:
    """Return the text of docs/api.md."""
    objects = public_objects()
    parts = [INTRODUCTION]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [part for name in names for part in _entry(name, objects[name])]
    return "\n".join(parts)


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if name in RETURNED:
        yield f"Defined in `{RETURNED[name]}`.\n"
    if not inspect.isclass(value):
        yield _signature(name, value)
    elif "__init__" in vars(value) and not is_dataclass(value):
        yield _signature(name, value.__init__)
    yield _markdown(value)
    if inspect.isclass(value):
        for method_name, method in public_methods(value).items():
            yield f"#### {name}.{method_name}\n"
            if not isinstance(method, PROPERTIES):
                yield _signature(f"{name}.{method_name}", getattr(value, method_name))
            yield _markdown(method)


def _signature(name: str, function: Any) -> str:
    """Return a code block with the signature as in the source, one parameter a line if it is long."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    arguments = definition.args
    keep = [argument for argument in arguments.args if argument.arg not in ("self", "cls")]
    defaults = dict(zip(keep[::-1], arguments.defaults[::-1], strict=False))
    parameters = [_parameter(argument, defaults.get(argument)) for argument in keep]
    if arguments.kwonlyargs:
        parameters.append("*")
        parameters += map(_parameter, arguments.kwonlyargs, arguments.kw_defaults)
    if arguments.kwarg:
        parameters.append(f"**{_parameter(arguments.kwarg, None)}")
    result = ast.unparse(definition.returns).strip("'") if definition.returns else ""
    arrow = "" if definition.name == "__init__" else f" -> {result}"
    line = f"{name}({', '.join(parameters)}){arrow}"
    if len(line) > 88:
        line = f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){arrow}"
    return f"```python\n{line}\n```\n"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    return f"{argument.arg}{annotation}" + (f" = {ast.unparse(default)}" if default else "")


def _markdown(value: Any) -> str:
    """Convert a docstring to Markdown: sections, lists of fields and examples."""
    lines: list[str] = []
    section, in_list = "", False
    for line in (inspect.getdoc(value) or "").splitlines():
        if heading := re.fullmatch(r"(Args|Attributes|Returns|Raises|Examples?):", line):
            section = "Arguments" if heading[1] == "Args" else heading[1]
            lines.append(f"**{section}**\n")
            continue
        # Arguments, attributes and errors are indented; the fields of a class are aligned in columns.
        item = re.match(r" {4}(\*{0,2}\w[\w, ]*?): +(\S.*)" if section else r"(\w[\w, ]*?) {2,}(\S.*)", line)
        if section.startswith("Example"):
            lines.append(line.removeprefix("    "))
        elif item and section != "Returns":
            lines.append(f"- `{item[1]}`: {item[2]}")
            in_list = True
        elif not line.strip():
            lines.append("")
            in_list = False
        else:
            lines.append(f"  {line.strip()}" if in_list else line.strip())
    return _fence_examples(lines) + "\n"


def _fence_examples(lines: list[str]) -> str:
    """Put each run of lines that starts with a >>> prompt into a code block."""
    fenced: list[str] = []
    inside = False
    for line in [*lines, ""]:
        if not inside and line.startswith(">>> "):
            fenced.append("```pycon")
            inside = True
        elif inside and not line.strip():
            fenced.append("```")
            inside = False
        fenced.append(line)
    return "\n".join(fenced)


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
