"""docs/settings.md is current, and what it lists can be set."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from bertie.base.settings import parse_assignments, resolve
from bertie.training.finetuning_settings import FinetuningSettings
from bertie.training.pretraining_settings import PretrainingSettings
from bertie.training.search import SearchSettings

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")


def load_generator() -> ModuleType:
    file = ROOT / "scripts" / "make_settings_page.py"
    specification = importlib.util.spec_from_file_location("make_settings_page", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_settings_page_is_current():
    assert load_generator().make_page() == PAGE, "run make docs"


@pytest.mark.parametrize(
    ("title", "section", "count"),
    [
        ("Pre-training", PretrainingSettings, 51),
        ("Fine-tuning", FinetuningSettings, 34),
        ("Search", SearchSettings, 4),
    ],
)
def test_listed_defaults_are_those_of_an_empty_command(title, section, count):
    (chapter,) = re.findall(rf"^## {title}$(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    rows = re.findall(
        r"^\| `([\w.]+)` \| .*? \| (not set|`.*?`)(?:, then `.*?`)? \| .+ \|$", chapter, re.MULTILINE
    )
    assert len(rows) == chapter.count("\n| `") == count
    typed = [f"{key}={default.strip('`')}" for key, default in rows if default != "not set"]
    assert resolve(section, parse_assignments(typed)) == section()


def test_a_setting_without_a_sentence_is_an_error():
    class Undocumented(FinetuningSettings):
        speed: int = 1

    with pytest.raises(KeyError, match="speed"):
        load_generator()._table(Undocumented, [Undocumented()])
