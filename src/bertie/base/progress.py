"""The progress of long work, on stderr: a bar on a terminal, a plain line now and then elsewhere."""

import os
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import rich.progress

Figure = str | int | float

BAR_SECONDS = 0.1  # as often as an eye can follow
LINE_SECONDS = 10.0  # a log of an hour stays under 400 lines


class Progress:
    """Shows how far a piece of work is, how fast it goes, the time left and a few named figures.

        with Progress("pre-training", total=4000, unit="steps") as progress:
            for batch in batches:
                progress.advance(1, loss=4.11)

    Work of unknown length has `total=None`: no time left is shown. Work that goes on from an earlier run
    begins at `done`, which does not count towards the rate. A `silent` one shows nothing.
    """

    def __init__(
        self, title: str, total: int | None = None, unit: str = "", done: int = 0, silent: bool = False
    ) -> None:
        self.title, self.total, self.unit, self.silent = title, total, unit, silent
        self.begun_at = self.done = done
        self.figures: Mapping[str, Figure] = {}

    def __enter__(self) -> Self:
        terminal = not self.silent and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._bar = _bar(self.title, self.total) if terminal else None
        self._started = self._drawn = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self.done > self.begun_at:  # an error at the start is told alone
            self._draw(time.monotonic(), ended=True)
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int = 1, **figures: Figure) -> None:
        """`count` more units are done; named figures replace the earlier ones, where any are given."""
        self.update(self.done + count, figures)

    def update(self, done: int, figures: Mapping[str, Figure] | None = None) -> None:
        """`done` units are done in all; figures as in `advance`, under any name ("masked words")."""
        self.done = done
        self.figures = figures or self.figures
        now = time.monotonic()
        if now - self._drawn >= (LINE_SECONDS if self._bar is None else BAR_SECONDS):
            self._draw(now)

    def say(self, line: str) -> None:
        """Print a line of its own, above the bar where there is one."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        elif not self.silent:
            print(line, file=sys.stderr, flush=True)

    def _draw(self, now: float, ended: bool = False) -> None:
        self._drawn = now
        if self.silent:
            return
        line = self._line(now - self._started, ended)
        if self._bar is None:
            print(f"{self.title}: {line}", file=sys.stderr, flush=True)
        else:
            # Work of unknown length has a bar that wanders, and is full at the end.
            total = self.done if ended and self.total is None else None
            self._bar.update(self._bar.task_ids[0], completed=self.done, total=total, line=line)
            self._bar.refresh()

    def _line(self, seconds: float, ended: bool) -> str:
        """Everything but the title: `1,200/4,000 steps  loss 4.11  3.2 steps/s  14:35 left`."""
        total = "" if self.total is None else f"/{self.total:,}"
        parts = [f"{self.done:,}{total} {self.unit}".rstrip()]
        parts += [f"{name} {number(value)}" for name, value in self.figures.items()]
        rate = (self.done - self.begun_at) / seconds if seconds > 0 else 0.0
        if rate > 0:
            parts.append(f"{number(rate)} {self.unit}/s" if self.unit else f"{number(rate)}/s")
        if ended:
            parts.append(f"in {duration(seconds)}")
        elif rate > 0 and self.total is not None:
            parts.append(f"{duration((self.total - self.done) / rate)} left")
        return "  ".join(parts)


def number(value: Figure) -> str:
    """A figure in few characters: `24,310`, `4.11`, `9.87e-05`; a string stays as it is."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value


def duration(seconds: float) -> str:
    """`1:32` or `26:05:09`."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _bar(title: str, total: int | None) -> "rich.progress.Progress":
    """A started bar with a text beside it, which wraps where the terminal is narrow."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    # No thread of its own draws it, since workers may be forked; and stdout is for results.
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
