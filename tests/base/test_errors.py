import pytest

from bertie.base import errors


@pytest.mark.parametrize("name", ["SettingsError", "DataError", "ModelError"])
def test_every_error_is_one_the_command_line_catches_and_is_drawn_in_the_docstring(name: str) -> None:
    assert issubclass(getattr(errors, name), errors.BertieError)
    assert name in (errors.__doc__ or "")


def test_no_error_is_missing_from_the_docstring() -> None:
    family = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert all(name in (errors.__doc__ or "") for name in family)
