"""Tasks on worker processes: a worker that dies costs time, never the run."""

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from bertie.base.errors import BertieError

A = TypeVar("A")
R = TypeVar("R")

# As often as Dask lets a task lose its worker (`distributed.scheduler.allowed-failures`).
MAX_DEATHS = 3
# A forked worker would inherit locks that threads of the parent hold.
SPAWN = multiprocessing.get_context("spawn")


def run_tasks(function: Callable[[A], R], arguments: Iterable[A], workers: int) -> Iterator[tuple[int, R]]:
    """Call `function` on each argument and give (index of the argument, result) in order of completion.

    One worker, or one task, means this process. Else workers are processes of their own, started fresh, so
    `function` is importable by name. It is safe to repeat: when a worker dies (killed, or out of memory),
    the unfinished tasks run again on new ones. An exception in a task ends the run.

    Raises:
        BertieError: a task was unfinished at the death of a worker for more than `MAX_DEATHS` times.
    """
    waiting = deque(enumerate(arguments))
    if min(workers, len(waiting)) == 1:
        for index, argument in waiting:
            yield index, function(argument)
        return
    deaths: Counter[int] = Counter()
    while waiting:
        unfinished: dict[int, A] = {}
        yield from _run_until_death(function, waiting, unfinished, workers)
        deaths.update(unfinished.keys())
        if deaths and max(deaths.values()) > MAX_DEATHS:
            raise BertieError(
                f"worker processes died {MAX_DEATHS + 1} times on the same task (killed, or out of memory); "
                f"run again with fewer than {workers} workers"
            )
        waiting.extendleft(reversed(unfinished.items()))


def _run_until_death(
    function: Callable[[A], R], waiting: deque[tuple[int, A]], unfinished: dict[int, A], workers: int
) -> Iterator[tuple[int, R]]:
    """Run the tasks of `waiting` on one pool until they are done or a worker dies.

    The tasks in hand stand in `unfinished`: after a death, these are the ones to run again.
    """
    pool = ProcessPoolExecutor(workers, mp_context=SPAWN, initializer=_start_worker)
    running: dict[Future[R], int] = {}
    try:
        while waiting or running:
            # Few are handed out at a time, so that a death makes few suspects.
            while waiting and len(running) < 2 * workers:
                index, argument = waiting.popleft()
                unfinished[index] = argument
                running[pool.submit(function, argument)] = index
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                index = running.pop(future)
                result = future.result()
                del unfinished[index]
                yield index, result
    except BrokenProcessPool:
        return
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    # Ctrl-C reaches every process of the terminal; a worker then goes without a traceback of its own.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    # The pool's own workers would wait for ever for work from a parent that was killed.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
