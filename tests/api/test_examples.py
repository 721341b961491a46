"""docs/api.md is current, and the examples in the public docstrings run."""

import doctest
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bertie

ROOT = Path(__file__).parents[2]
TEXT = "The cat sat on the mat. The dog sat on the log. A bird flew over the old house.\n"
RECIPE = """
warmup_steps = 1
batch_size = 4
log_every = 2
held_out_examples = 8
[[phases]]
steps = 6
max_seq_length = 32
[model]
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 32
max_position_embeddings = 128
"""


def load_generator() -> ModuleType:
    specification = importlib.util.spec_from_file_location("make_api_page", ROOT / "scripts/make_api_page.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


GENERATOR = load_generator()
OBJECTS = GENERATOR.public_objects()


def test_api_page_is_current():
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == GENERATOR.make_page(), "run make docs"


def test_api_page_lists_attributes_as_items():
    page = GENERATOR.make_page()
    assert "\nAttributes:" not in page
    assert "\n**Attributes**\n\n- `input_ids`: int32 (T,)" in page


def test_api_page_lists_every_public_name():
    listed = {name for names in GENERATOR.SECTIONS.values() for name in names}
    assert listed == OBJECTS.keys()


def test_public_functions_and_methods_have_examples():
    without = []
    for name, value in OBJECTS.items():
        if isinstance(value, type) and issubclass(value, Exception):
            continue
        members = {name: value}
        if isinstance(value, type):
            methods = GENERATOR.public_methods(value).items()
            members |= {f"{name}.{method}": body for method, body in methods if callable(body)}
        without += [member for member, body in members.items() if ">>>" not in (body.__doc__ or "")]
    assert [name for name in without if name not in RESULTS] == []


# Classes whose instances are created by functions, and shown in their examples.
RETURNED = {*GENERATOR.SECTIONS["Results"], *GENERATOR.SECTIONS["Predictions"], "Predictor", "Encoding"}
RETURNED |= {"Manifest", "SplitCounts"}
RESULTS = {*RETURNED, "RunResult.load"} - {"Metrics"}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text, a recipe and a small SWAG, where the examples run in the order of the page."""
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "text").mkdir()
    for number in range(40):
        (folder / "text" / f"{number}.txt").write_text(f"Document {number}. {TEXT * 12}", encoding="utf-8")
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    (folder / "data" / "swag").mkdir(parents=True)
    for part, count in (("train", 16), ("val", 4)):
        rows = [f"{i},The cat,sat on,the mat,the dog,a bird,a house,{i % 4}" for i in range(count)]
        lines = [",sent1,sent2,ending0,ending1,ending2,ending3,label", *rows]
        (folder / "data" / "swag" / f"{part}.csv").write_text("\n".join(lines), encoding="utf-8")
    (folder / "blimp").mkdir()
    pair = {"sentence_good": "The cat sat.", "sentence_bad": "The sat cat.", "linguistics_term": "order"}
    (folder / "blimp" / "word_order.jsonl").write_text(json.dumps(pair), encoding="utf-8")
    return folder


def run_examples(value: Any, name: str, variables: dict[str, Any]) -> int:
    """Run the examples of a function or class and its methods; return how many there were."""
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    count = 0
    for test in finder.find(value, name, globs={"bertie": bertie, **vars(bertie), **variables}):
        failed, attempted = runner.run(test)
        assert not failed, test.name
        count += attempted
    return count


def test_examples_of_functions_run_one_after_the_other(workspace, monkeypatch, capsys):
    monkeypatch.chdir(workspace)
    names = [name for names in GENERATOR.SECTIONS.values() for name in names if name != "Predictor"]
    counts = {name: run_examples(OBJECTS[name], name, OBJECTS) for name in names}
    assert {name for name, count in counts.items() if count} >= {
        *("learn_vocabulary", "extend_tokenizer", "prepare", "pretrain", "finetune", "evaluate", "load"),
        *("reproduce", "Tokenizer"),
        *("Metrics", "Vocabulary", "BertConfig"),
    }


def test_import_needs_neither_torch_nor_numba():
    check = (
        "import sys, bertie; heavy = {'torch', 'numba', 'numpy'} & set(sys.modules); "
        "dir(bertie); bertie.SettingsError; print(heavy)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_every_public_name_can_be_imported():
    namespace: dict[str, Any] = {}
    exec("from bertie import *", namespace)
    assert set(bertie.__all__) <= namespace.keys()
    assert set(bertie.__all__) <= set(dir(bertie))


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        bertie.train  # noqa: B018
