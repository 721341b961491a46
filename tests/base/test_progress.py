"""Progress lines and bars: their content, how often they appear, and where."""

import io
import os
import pty
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbclient import NotebookClient

from bertie.base.progress import Progress, byte_unit, format_duration, format_number, spell_duration


class Clock:
    """A clock that changes only when a test sets it."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("bertie.base.progress.time", SimpleNamespace(monotonic=clock))
    return clock


def test_line_has_count_values_rate_and_time_left(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with Progress("pre-training", total=4000, unit="steps") as progress:
        clock.now += 30  # kernels are compiled, which does not count towards the rate
        progress.advance()
        clock.now += 10
        progress.update(1001, {"loss": 4.1123, "masked tokens": 0.3349, "tokens/s": 24310.4, "phase": "one"})
    first, second, last = capsys.readouterr().err.splitlines()
    values = "loss 4.11  masked tokens 0.335  tokens/s 24,310  phase one"
    assert first == "pre-training: 1/4,000 steps"
    assert second == f"pre-training: 1,001/4,000 steps  {values}  100 steps/s  0:30 left"
    assert last == f"pre-training: 1,001/4,000 steps  {values}  25 steps/s  in 0:40"


def test_at_most_one_line_every_ten_seconds(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with Progress("work", total=1000) as progress:
        for _ in range(1000):
            clock.now += 0.035
            progress.advance()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line.split()[1] for line in captured.err.splitlines()] == [
        "286/1,000",
        "572/1,000",
        "858/1,000",
        "1,000/1,000",
    ]


@pytest.mark.parametrize(("total", "shown"), [(1, "1/1 text"), (None, "1 text"), (2, "1/2 texts")])
def test_one_unit_is_singular(capsys: pytest.CaptureFixture[str], total: int | None, shown: str) -> None:
    with Progress("work", total, unit="texts") as progress:
        progress.advance()
    assert capsys.readouterr().err.startswith(f"work: {shown}  ")


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.2, "1 second"), (45, "45 seconds"), (120, "2 minutes"), (7200, "120 minutes")]
)
def test_spelled_duration(seconds: float, text: str) -> None:
    assert spell_duration(seconds) == text


def test_unknown_total_shows_no_time_left(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with Progress("reading", unit="documents") as progress:
        progress.advance(0)
        clock.now += 20
        progress.advance(30)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "reading: 30 documents  1.5 documents/s",
        "reading: 30 documents  1.5 documents/s  in 0:20",
    ]


def test_rate_ignores_the_work_of_an_earlier_run(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with Progress("work", total=100, unit="steps", done=80) as progress:
        progress.advance(0)
        clock.now += 10
        progress.advance(10)
    assert "90/100 steps  1 steps/s  0:10 left" in capsys.readouterr().err


def test_values_stay_until_replaced(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with Progress("work") as progress:
        progress.advance(1, loss=2.5)
        progress.advance(1)
        progress.update(3)
    assert "loss 2.5" in capsys.readouterr().err


def test_error_shows_the_progress_so_far_and_propagates(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        with Progress("work", total=9) as progress:
            progress.advance(4)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert capsys.readouterr().err.startswith("work: 4/9")


def test_error_before_any_work_shows_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no"), Progress("work", total=9, done=4):
        raise ValueError("no")
    assert capsys.readouterr().err == ""


def test_silent_progress_shows_nothing(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with Progress("work", total=9, silent=True) as progress:
        clock.now += 100
        progress.advance()
        progress.print("a line")
    assert capsys.readouterr().err == ""


def test_bytes_are_shown_in_kb_up_to_10_mb() -> None:
    assert byte_unit(10**7 - 1) == (1000, "kB")
    assert byte_unit(10**7) == (10**6, "MB")


def test_zero_units_in_zero_seconds(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with Progress("work", total=0, unit="steps"):
        pass
    assert capsys.readouterr().err == "work: 0/0 steps  in 0:00\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(24310.4, "24,310"), (4.1123, "4.11"), (9.871e-5, "9.87e-05"), (12345, "12,345"), ("0:31", "0:31"),
     (float("nan"), "nan"), (0.0, "0"), (-1234.5, "-1,234")],
)  # fmt: skip
def test_format_number(value: str | int | float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (59.4, "0:59"),
        (59.6, "1:00"),
        (92, "1:32"),
        (3599.7, "1:00:00"),
        (93909, "26:05:09"),
        (-1, "0:00"),
    ],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


WORK = """
import sys
from bertie.base.progress import Progress
for total in (3, None):
    with Progress("work [bold]", total, "steps") as progress:
        progress.advance(3, loss=4.5)
        print("result")
print("rich" in sys.modules)
"""


def test_rich_is_not_imported_without_a_terminal() -> None:
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=True)
    assert done.stdout == "result\nresult\nFalse\n"
    assert [line.split("  ")[0] for line in done.stderr.splitlines()] == [
        "work [bold]: 3/3 steps",
        "work [bold]: 3 steps",
    ]


@pytest.mark.parametrize(("term", "bar"), [("xterm", True), ("dumb", False)])
def test_terminal_shows_a_bar_on_stderr(term: str, bar: bool) -> None:
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": term, "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-c", WORK],
        stdout=subprocess.PIPE,
        stderr=terminal,
        env=environment,
        text=True,
        check=True,
    )
    os.close(terminal)
    shown = os.read(controller, 100_000).decode()
    os.close(controller)
    assert done.stdout == f"result\nresult\n{bar}\n"
    assert ("━" in shown) is bar
    assert "work [bold]" in shown
    assert "3/3 steps  loss 4.5" in shown


class OutStream(io.StringIO):
    """A stand-in for the stderr of Jupyter's kernel."""

    __module__ = "ipykernel.iostream"


def show_in_notebook(text: str) -> list[str]:
    """Return the lines that a notebook shows: text after a carriage return replaces the text before it."""
    lines = []
    for line in text.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


def test_notebook_line_is_updated_in_place(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    stream = OutStream()
    monkeypatch.setattr("sys.stderr", stream)
    with Progress("work", total=100, unit="steps") as progress:
        for _ in range(4):
            clock.now += 0.5
            progress.advance(10, loss=1.2345)
        assert stream.getvalue().count("\r") == 2  # once a second
        assert show_in_notebook(stream.getvalue()) == ["work: 40/100 steps  loss 1.23  20 steps/s  0:03 left"]
        progress.print("step 40: dev accuracy 50")
        clock.now += 1
        progress.advance(60)
    lines = show_in_notebook(stream.getvalue())
    assert lines == ["step 40: dev accuracy 50", "work: 100/100 steps  loss 1.23  33.3 steps/s  in 0:03", ""]


@pytest.mark.parametrize("is_closed", [True, False])
def test_stderr_may_be_closed_or_replaced(monkeypatch: pytest.MonkeyPatch, is_closed: bool) -> None:
    written: list[str] = []
    stream = SimpleNamespace(write=written.append, flush=lambda: None)
    monkeypatch.setattr(sys, "stderr", None if is_closed else stream)
    with Progress("training", total=2, unit="steps") as progress:
        progress.advance(2)
        progress.print("done")
    assert ("done" in "".join(written)) is not is_closed
    assert progress.done == 2


def test_stderr_may_be_a_closed_file_or_lack_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    closed = io.StringIO()
    closed.close()
    for stream in (SimpleNamespace(write=written.append), closed):
        monkeypatch.setattr(sys, "stderr", stream)
        with Progress("training", total=2, unit="steps") as progress:
            progress.advance(2)
            progress.print("done")
        assert progress.done == 2
    assert "done" in "".join(written)


def test_silent_progress_in_a_notebook_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = OutStream()
    monkeypatch.setattr("sys.stderr", stream)
    with Progress("work", silent=True) as progress:
        progress.print("a line")
        progress.advance()
    assert stream.getvalue() == ""


def test_progress_in_a_jupyter_kernel(tmp_path: Path) -> None:
    cell = """
    import time
    from bertie.base.progress import Progress

    with Progress("work", total=3, unit="steps") as progress:
        for step in range(3):
            time.sleep(0.6)
            progress.advance(loss=4.5)
            progress.print(f"step {step}: saved")
    """
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(cell))])
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = notebook.cells[0].outputs
    assert {output.name for output in outputs} == {"stderr"}
    lines = show_in_notebook("".join(output.text for output in outputs))
    assert lines[:3] == ["step 0: saved", "step 1: saved", "step 2: saved"]
    assert re.fullmatch(r"work: 3/3 steps  loss 4\.5  .* steps/s  in 0:02", lines[3])
