"""Foreign JSON files: a wrong value is one line with the file and the key."""

from pathlib import Path
from typing import Annotated

import pydantic
import pytest

from bertie.base.errors import DataError, ModelError
from bertie.base.files import read_json
from bertie.base.schemas import Foreign, describe_problem, read_foreign


class Token(Foreign):
    content: str


class Schema(Foreign):
    size: int = 3
    tokens: tuple[str | Token, ...] | dict[str, Token] | None = None
    ids: dict[int, Annotated[int, pydantic.Field(ge=0)]] = pydantic.Field(default_factory=dict)


def test_missing_file_has_the_defaults(tmp_path: Path) -> None:
    assert read_foreign(Schema, tmp_path / "absent.json") == Schema()


def test_other_keys_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"size": 4, "model_x": 1}')
    assert read_foreign(Schema, tmp_path / "a.json").size == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"size": "x"}', "size is 'x': expected an integer"),
        ('{"size": NaN}', "size is nan: expected a finite number"),
        ('{"tokens": [7]}', "tokens.0 is 7: expected a string"),
        ('{"tokens": [{"content": 1}]}', "tokens.0"),
        ('{"tokens": [{}]}', "tokens.0"),
        ('{"ids": {"5": -1}}', "ids.5 is -1: expected a number greater than or equal to 0"),
        ('{"ids": {"a": 1}}', "ids.a is 'a': expected an integer"),
        ('{"tokens": "\\ud800"}', "tokens is "),
    ],
)
def test_wrong_value_is_one_line_with_its_key(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(content)
    with pytest.raises(ModelError) as error:
        read_foreign(Schema, file)
    assert str(error.value).startswith(f"{file}: {message}")
    assert str(error.value).isprintable()


@pytest.mark.parametrize("content", ["[" * 100_000, "1" * 5000, "\xff", '{"a": 1', ""])
def test_unusable_json_is_a_data_error(tmp_path: Path, content: str) -> None:
    """Deep nesting and numbers of thousands of digits are JSON that Python does not read."""
    file = tmp_path / "a.json"
    file.write_text(content, encoding="latin-1")
    with pytest.raises(DataError, match=r"a\.json: not"):
        read_json(file)


def test_file_in_the_place_of_a_folder_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("")
    with pytest.raises(DataError, match="its folder is a file"):
        read_json(tmp_path / "folder" / "a.json")


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("Input should be a valid boolean, unable to interpret input", "expected true or false"),
        (
            "Input should be a valid integer, got a number with a fractional part",
            "expected an integer, got a number with a fractional part",
        ),
        ("Input should be less than or equal to 1", "expected a number less than or equal to 1"),
        ("Input should be 'mean' or 'max'", "expected 'mean' or 'max'"),
        ("Value error, Use a smaller seed", "use a smaller seed"),
    ],
)
def test_problems_are_described_in_bertie_s_words(message, problem):
    assert describe_problem(message) == problem
