"""Settings and fixtures for all tests."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The networks of the tests are too small for two threads, which would wait for each other on a busy
# machine (docs/decisions/threads.md). torch and numpy read this when they are first imported.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell's job in the background ignores Ctrl-C, and so would every command that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline, as the first call of a kernel compiles it. CI uses the same examples in every run. Other runs
# have new ones, so 50 suffice; after a change of a parser or a kernel use --hypothesis-profile thorough.
settings.register_profile("bertie", deadline=None, max_examples=50, derandomize="CI" in os.environ)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("bertie")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Let the garbage collector never search the objects of imported packages and of pytest.

    There are a million of them, none of them garbage. Searching them took a tenth of the tests' time. The
    search for young garbage took as much, until it came after 20,000 new objects instead of 700.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)
        gc.enable()


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load directories although the test has changed their files."""
    monkeypatch.setenv("BERTIE_NO_VERIFY", "1")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of real data sets: `BERTIE_DATA`, or ../shared/data."""
    path = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not path.is_dir():
        pytest.skip("real data not found: set BERTIE_DATA to their directory")
    return path


@pytest.fixture(scope="session", autouse=True)
def no_compilation_notice() -> None:
    """Never announce that kernels are compiled, because tests compare stderr."""
    from numba.core import event

    from bertie.base import kernels

    event.unregister("numba:compile", kernels.notice)  # type: ignore[no-untyped-call]


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks() -> Iterator[None]:
    """Leave out `fsync`, which matters only when a machine crashes: the tests call it thousands of times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_command_line() -> Iterator[None]:
    """Parse the signatures of all commands once, and not at every call of `main`."""
    import typer.main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def short_measurements() -> Iterator[None]:
    """Measure a network's speed on one sequence before it is pre-trained, not on a second's worth of them."""
    with pytest.MonkeyPatch.context() as patch:
        if "bertie.training.planning" in sys.modules:  # it imports torch, which some tests do not need
            patch.setattr("bertie.training.planning.MIN_BATCH_SECONDS", 0)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_drawing() -> Iterator[list[tuple[object, str, Any]]]:
    """Make empty pictures instead of drawing, which takes ten times as long as the tests' training.

    The axes of curves, which each run has, take a twentieth of it. Returns the attributes that draw.
    """
    from matplotlib.figure import Figure  # here, because it imports numpy

    from bertie.reports import pictures

    def save_nothing(figure: Figure, file: Any, **options: Any) -> None:
        file.write("<svg></svg>")

    drawing = [
        (owner, name, getattr(owner, name))
        for owner, name in ((Figure, "savefig"), (pictures, "_curve_panel"))
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", save_nothing)
        patch.setattr(pictures, "_curve_panel", lambda *_: "<svg></svg>")
        yield drawing


@pytest.fixture
def drawing(no_drawing: list[tuple[object, str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw pictures in this test."""
    for attribute in no_drawing:
        monkeypatch.setattr(*attribute)
