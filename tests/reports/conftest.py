"""Draw the pictures in the tests of reports."""

import pytest


@pytest.fixture(autouse=True)
def drawing(drawing: None) -> None:
    """Draw in every test of this folder."""
