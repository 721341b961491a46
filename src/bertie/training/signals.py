"""Stop a run between two steps on a signal, so that it can be saved."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class Stopped(Exception):  # noqa: N818 (not an error)
    """SIGINT (Ctrl-C), SIGTERM or SIGHUP stopped a run, which is saved and can be resumed.

    The message says how.

    number     the number of the signal
    directory  the directory of the run
    """

    def __init__(self, number: int, directory: Path, advice: str = "") -> None:
        advice = advice or f"repeat the call with out={str(directory)!r} and resume=True to continue"
        super().__init__(f"{signal.Signals(number).name} stopped the run, saved in {directory}; {advice}")
        self.number = number
        self.directory = directory
        self._advice = advice

    def __reduce__(self) -> tuple[type["Stopped"], tuple[int, Path, str]]:  # for pools of processes
        return Stopped, (self.number, self.directory, self._advice)


class StopRequest:
    """A request to stop: the number of the signal that was received, or 0."""

    number = 0

    def receive(self, number: int, _: FrameType | None) -> None:
        """Record the signal, so that the run stops after this step.

        A second signal of the same kind has its default action, which stops the process even inside
        compiled code. In an interactive session, which must survive, it raises KeyboardInterrupt. A second
        SIGHUP changes nothing, because the shell of a closed terminal sends it again.
        """
        self.number = number
        if number == signal.SIGHUP:
            return
        is_interactive = hasattr(sys, "ps1")  # a notebook, IPython or a Python prompt
        default = signal.default_int_handler if number == signal.SIGINT and is_interactive else signal.SIG_DFL
        signal.signal(number, default)


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Record the first SIGINT, SIGTERM or SIGHUP in the block; keep the process running.

    SIGHUP means that the terminal was closed; a process that `nohup` started ignores it, here too.
    Outside the main thread, where Python allows no signal handlers, no signal is recorded.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, request.receive) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
