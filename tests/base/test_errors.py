"""The tree of exceptions, and its drawing in the docstring."""

import pickle

import pytest

from bertie.base import errors


@pytest.mark.parametrize("name", ["SettingsError", "DataError", "ModelError"])
def test_every_error_is_a_bertie_error(name: str) -> None:
    assert issubclass(getattr(errors, name), errors.BertieError)


def test_a_message_is_one_line() -> None:
    error = errors.DataError("a\nb\r\té.txt: empty")
    assert str(error) == "a\\nb\\r\té.txt: empty"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_message_has_no_control_characters() -> None:
    """Otherwise the name of a file could clear the screen of a terminal, or hide the error."""
    assert str(errors.DataError("\x1b[2J\x9b2J\x7f.txt: empty")) == "\\x1b[2J\\x9b2J\\x7f.txt: empty"


def test_docstring_lists_every_error() -> None:
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert classes >= {"BertieError", "SettingsError", "DataError", "ModelError"}
    assert all(name in (errors.__doc__ or "") for name in classes)
