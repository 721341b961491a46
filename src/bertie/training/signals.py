"""Ctrl-C and SIGTERM end a run between two steps, with its work saved; a second one ends it at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(Exception):  # noqa: N818 (it is no error)
    """A signal asked the run to stop, and it has saved its work. `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class StopRequest:
    """Which signal has asked to stop: 0 while none has."""

    number = 0

    def receive(self, number: int, _: FrameType | None) -> None:
        """Note the signal; from now on the next one has its usual effect."""
        self.number = number
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """While the block runs, the first SIGINT or SIGTERM is noted instead of ending the process."""
    request = StopRequest()
    previous = {number: signal.signal(number, request.receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
