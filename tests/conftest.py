"""Fixtures that every room's tests share."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The tests' networks are too small for two threads, which would wait for each other on a busy machine
# (docs/decisions/threads.md). Read by torch when it is first imported.
os.environ["OMP_NUM_THREADS"] = "1"

# The first call of a kernel compiles it, which is no slowness of the test. CI repeats the same examples.
settings.register_profile("bertie", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("bertie")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real data sets, not part of the project: `BERTIE_DATA`, or shared/data beside the checkout."""
    path = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not path.is_dir():
        pytest.skip("real data not found: set BERTIE_DATA to its folder")
    return path
