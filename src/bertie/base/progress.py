"""Show the progress of long work on stderr.

A terminal shows a bar, a notebook one line that changes, and everything else separate lines.
"""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self, TextIO

from bertie.base.errors import DataError
from bertie.base.texts import count_noun

if TYPE_CHECKING:
    import rich.progress

Value = str | int | float

BAR_INTERVAL = 0.1  # seconds; the eye follows no faster
NOTEBOOK_INTERVAL = 1.0  # seconds; each update is a message to the browser
LINE_INTERVAL = 10.0  # seconds; at most 360 lines in the log of an hour


class Progress:
    """Show how much work is done, the rate, the time left and named values.

        with Progress("pre-training", total=4000, unit="steps") as progress:
            for batch in batches:
                progress.advance(1, loss=4.11)

    Args:
        title: the beginning of the line.
        total: the number of units to do; None if it is unknown, and then no time left is shown.
        unit: the name of a unit of work, in the plural.
        done: the number of units that an earlier run has done. They do not count towards the rate.
        silent: show nothing.
    """

    def __init__(
        self, title: str, total: int | None = None, unit: str = "", done: int = 0, silent: bool = False
    ) -> None:
        self.title, self.total, self.unit, self.silent = title, total, unit, silent
        self.initial = self.done = done
        self.values: Mapping[str, Value] = {}

    def __enter__(self) -> Self:
        is_closed = getattr(sys.stderr, "closed", False)
        is_tty = not is_closed and getattr(sys.stderr, "isatty", bool)()  # it may be None or replaced
        terminal = not self.silent and is_tty and os.environ.get("TERM") != "dumb"
        self._bar = _start_bar(self.title, self.total) if terminal else None
        self._in_notebook = not self.silent and _is_notebook_stream(sys.stderr)
        self._interval = LINE_INTERVAL
        if self._bar is not None:
            self._interval = BAR_INTERVAL
        elif self._in_notebook:
            self._interval = NOTEBOOK_INTERVAL
        self._width = 0  # of the line that a notebook shows
        self._started = self._drawn = time.monotonic()
        self._first: tuple[float, int] | None = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self.done > self.initial:  # an error before any work is shown without progress
            self._draw(time.monotonic(), finished=True)
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int = 1, **values: Value) -> None:
        """Add `count` finished units.

        The named values, if any, replace the ones shown before.
        """
        self.update(self.done + count, values)

    def update(self, done: int, values: Mapping[str, Value] | None = None) -> None:
        """Set the number of finished units.

        Unlike in `advance`, names of values may contain spaces.
        """
        self.done = done
        self.values = values or self.values
        now = time.monotonic()
        self._first = self._first or (now, done)
        if now - self._drawn >= self._interval:
            self._draw(now)

    def print(self, line: str) -> None:
        """Print a separate line on stderr, above the bar or a notebook's line."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        elif self._in_notebook:
            self._replace_line(line, end="\n")
        elif not self.silent:
            _print(line)

    def _draw(self, now: float, finished: bool = False) -> None:
        self._drawn = now
        if self.silent:
            return
        line = self._line(now, finished)
        if self._in_notebook:
            self._replace_line(f"{self.title}: {line}", end="\n" if finished else "")
        elif self._bar is None:
            _print(f"{self.title}: {line}")
        else:
            # Without a total, the bar pulses while the work runs; at the end it is full.
            total = self.done if finished and self.total is None else None
            self._bar.update(self._bar.task_ids[0], completed=self.done, total=total, line=line)
            self._bar.refresh()

    def _replace_line(self, line: str, end: str) -> None:
        """Overwrite the line that a notebook shows, and blank the rest of a longer one."""
        _print(f"\r{line:<{self._width}}", end)
        self._width = 0 if end else len(line)

    def _line(self, now: float, finished: bool) -> str:
        """Return the line without its title: `1,200/4,000 steps  loss 4.11  14:35 left`.

        Until the work is finished, its rate is measured from the first update on, since the first units may
        include the compilation of kernels.
        """
        started, initial = self._started, self.initial
        if self._first and not finished:
            started, initial = self._first
        seconds = now - started
        total = "" if self.total is None else f"/{self.total:,}"
        unit = self.unit.removesuffix("s") if (self.total or self.done) == 1 else self.unit
        parts = [f"{self.done:,}{total} {unit}".rstrip()]
        parts += [f"{name} {format_number(value)}" for name, value in self.values.items()]
        rate = (self.done - initial) / seconds if seconds > 0 else 0.0
        if rate > 0:
            parts.append(f"{format_number(rate)} {self.unit}/s" if self.unit else f"{format_number(rate)}/s")
        if finished:
            parts.append(f"in {format_duration(seconds)}")
        elif rate > 0 and self.total is not None:
            parts.append(f"{format_duration((self.total - self.done) / rate)} left")
        return "  ".join(parts)


def _print(line: str, end: str = "\n") -> None:
    """Print on stderr, whatever a script has put there.

    It may be closed, or an object without `flush`.
    """
    with suppress(AttributeError, ValueError):
        print(line, end=end, file=sys.stderr, flush=True)


def format_number(value: Value) -> str:
    """Format a number in few characters, as `24,310`, `4.11` or `9.87e-05`.

    Strings are returned unchanged.
    """
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value


def format_duration(seconds: float) -> str:
    """Format seconds as `1:32` or `26:05:09`."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def spell_duration(seconds: float) -> str:
    """Format seconds as `45 seconds` or `12 minutes`."""
    if seconds < 120:
        return count_noun(round(seconds), "second")
    return count_noun(round(seconds / 60), "minute")


def byte_unit(total: int) -> tuple[int, str]:
    """Return the size and the name of the unit in which to show this many bytes."""
    return (10**6, "MB") if total >= 10**7 else (10**3, "kB")


def _is_notebook_stream(stream: TextIO) -> bool:
    """Return whether a stream belongs to Jupyter's Python kernel."""
    return type(stream).__module__.partition(".")[0] == "ipykernel"


def _start_bar(title: str, total: int | None) -> "rich.progress.Progress":
    """Start a bar with text beside it, which wraps if the terminal is narrow."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    # Without a refresh thread, because workers may be forked; without stdout, which is for results.
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[line]}", markup=False, table_column=Column(ratio=1)),
        console=Console(stderr=True),
        auto_refresh=False,
        redirect_stdout=False,
        expand=True,
    )
    bar.add_task(title, total=total, line="")
    bar.start()
    return bar


def open_stdin() -> BinaryIO:
    """Return standard input; if it is a terminal, say on stderr that it is read.

    Raises:
        DataError: it is closed.
    """
    if sys.stdin is None:
        raise DataError("standard input is closed; give a file")
    if sys.stdin.isatty():
        print("reading standard input; end with Ctrl-D", file=sys.stderr)
    return sys.stdin.buffer
