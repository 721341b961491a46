"""Tokenizer directories whose files are damaged, or of different models."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from bertie.base.errors import BertieError, ModelError
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

TOKENS = [*SPECIAL_TOKENS, "[unused1]", "he", "play", "##s", "."]
FLAGS = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
# Each file as a version of `transformers` writes it.
FILES: dict[str, Any] = {
    "tokenizer_config.json": {
        "do_lower_case": True,
        "strip_accents": None,
        "tokenizer_class": "BertTokenizer",
        "never_split": ["x"],
        "model_max_length": 512,
        "added_tokens_decoder": {"5": {"content": "[unused1]", **FLAGS}},
        "additional_special_tokens": ["[unused1]", {"content": "[E]", **FLAGS}],
        "extra_special_tokens": {"image_token": "[E]"},
    },
    "special_tokens_map.json": {"additional_special_tokens": ["[unused1]"], "unk_token": "[UNK]"},
    "added_tokens.json": {"[E]": len(TOKENS)},
}
WRONG: list[Any] = [
    None,
    True,
    -1,
    10**30,
    0.5,
    float("nan"),
    "",
    "x\ny",
    "\ud800",
    [],
    {},
    [[]],
    [{}],
    {"a": 1},
]


def save(path: Path) -> None:
    Tokenizer(Vocabulary(TOKENS), added_tokens=("[unused1]",)).save(path)
    for name, content in FILES.items():
        (path / name).write_text(json.dumps(content))


def locations(value: Any) -> list[tuple[Any, ...]]:
    """List the paths of all values in a JSON value, the whole first."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *((key, *rest) for key, inner in items for rest in locations(inner))]


def with_change(value: Any, location: tuple[Any, ...], new: Any) -> Any:
    if not location:
        return new
    changed = value.copy()
    changed[location[0]] = with_change(value[location[0]], location[1:], new)
    return changed


def test_files_with_any_wrong_value_load_or_give_one_line(tmp_path: Path) -> None:
    """Every value of every file is replaced, in a random order that covers all files."""
    save(tmp_path)
    contents = {file: json.loads(file.read_text()) for file in tmp_path.glob("*.json")}
    cases = [
        (file, location, wrong)
        for file, content in contents.items()
        for location in locations(content)
        for wrong in WRONG
    ]
    messages = []
    for file, location, wrong in random.Random(1).sample(cases, 400):
        file.write_text(json.dumps(with_change(contents[file], location, wrong)))
        try:
            Tokenizer.load(tmp_path).encode("he plays [unused1]")
        except BertieError as error:
            messages.append(str(error))
        file.write_text(json.dumps(contents[file]))
    assert len(messages) > 100
    assert all(message.startswith(str(tmp_path)) and message.isprintable() for message in messages)


@pytest.mark.parametrize("change", ["swapped", "shorter", "another"])
def test_vocabulary_files_that_disagree_are_refused(tmp_path: Path, change: str) -> None:
    """The advice of the error works: without the wrong file, the tokenizer loads."""
    save(tmp_path)
    expected = Tokenizer.load(tmp_path).encode("he plays").input_ids.tolist()
    tokens = {
        "swapped": [*TOKENS[:-2], TOKENS[-1], TOKENS[-2]],
        "shorter": TOKENS[:-1],
        "another": [*TOKENS[:-1], "?"],
    }[change]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n")
    with pytest.raises(ModelError, match=r"vocab\.txt: .* but in tokenizer\.json it .*; delete"):
        Tokenizer.load(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    assert Tokenizer.load(tmp_path).encode("he plays").input_ids.tolist() == expected
