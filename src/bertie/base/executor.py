"""Run tasks in worker processes, and repeat the tasks of a worker that dies.

The processes are on this machine, or on a Dask cluster (`cluster.py`).
"""

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from types import ModuleType
from typing import Protocol, TypeVar

from bertie.base.errors import BertieError, SettingsError

A = TypeVar("A")
R = TypeVar("R")

# Dask's default for the workers a task may lose (`distributed.scheduler.allowed-failures`).
MAX_DEATHS = 3
# The server is a process with one thread, which imports bertie once and forks the workers.
FORK_SERVER = multiprocessing.get_context("forkserver")
FORK = multiprocessing.get_context("fork")


class Executor(Protocol):
    """Runs tasks, but not in local processes."""

    def run_tasks(self, function: Callable[[A], R], arguments: Iterable[A]) -> Iterator[tuple[int, R]]:
        """Call a function on each argument, as `run_tasks` does."""
        ...


def run_tasks(
    function: Callable[[A], R], arguments: Iterable[A], workers: int | Executor
) -> Iterator[tuple[int, R]]:
    """Call a function on each argument in worker processes.

    With one worker, or one argument, the calls happen in this process. When a worker dies (killed,
    or out of memory), the unfinished tasks run again on new workers. An exception in a task is raised
    to the caller and stops the run. Ctrl-C, or a caller that wants no more results, stops the running
    tasks at once.

    Args:
        function: importable by name, because workers do not share this process's memory; safe to repeat.
        arguments: one for each task.
        workers: the number of processes, or an `Executor` that runs the tasks instead.

    Yields:
        The index of the argument, and the result, in the order in which the tasks finish.

    Raises:
        BertieError: more than `MAX_DEATHS` times, a worker died while the same task was unfinished.
    """
    if isinstance(workers, int) and workers < 1:
        raise SettingsError(f"workers = {workers}: expected 1 or more")
    if not isinstance(workers, int):
        yield from workers.run_tasks(function, arguments)
        return
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
    """Run tasks on one pool until all are done or a worker dies.

    Moves tasks from `waiting` to `unfinished` when they are submitted, and removes them when they
    are done. After a death, `unfinished` holds the tasks to run again.
    """
    module = _module_of(function)
    FORK_SERVER.set_forkserver_preload([] if module == "__main__" else [module])
    pool = ProcessPoolExecutor(
        min(workers, len(waiting)),
        mp_context=FORK if _has_one_thread() else FORK_SERVER,
        initializer=_start_worker,
        initargs=(dict(os.environ),),
    )
    # Start all workers before the first task: the pool would wait forever for a worker that it starts after
    # another one has died.
    pool._safe_to_dynamically_spawn_children = False  # type: ignore[attr-defined]
    watcher = threading.Thread(target=_kill_all_with_one, args=(pool,), daemon=True)
    running: dict[Future[R], int] = {}
    try:
        while waiting or running:
            # Submitting few tasks at a time leaves few suspects when a worker dies.
            while waiting and len(running) < 2 * workers:
                index, argument = waiting.popleft()
                unfinished[index] = argument
                with _hidden_script(function), _interrupt_delayed():  # the first call starts the workers
                    running[pool.submit(function, argument)] = index
                    if watcher.ident is None:
                        watcher.start()
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                index = running.pop(future)
                result = future.result()
                del unfinished[index]
                yield index, result
    except BrokenProcessPool:
        return
    except (KeyboardInterrupt, GeneratorExit):  # do not wait for the running tasks
        for process in pool._processes.values():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        if watcher.ident is not None:
            watcher.join()


def _kill_all_with_one(pool: ProcessPoolExecutor) -> None:
    """Kill all workers of a pool when one of them has died.

    A worker may die while it writes a result. Then the pool waits for the rest of it, and the other workers
    wait to write theirs. Once nothing can write, the pool reads the end of the pipe and reports the death.
    """
    workers = list(pool._processes.values())
    pool._result_queue._writer.close()  # type: ignore[attr-defined]
    ended = connection.wait([worker.sentinel for worker in workers])
    first = next(worker for worker in workers if worker.sentinel in ended)
    first.join()  # its files are closed a moment before it has an exit status
    if first.exitcode:
        for worker in workers:
            worker.kill()


def _has_one_thread() -> bool:
    """Return whether this process has only one thread, so that it can be forked.

    With more threads, a worker could inherit a lock that another thread holds. The threads of libraries
    count too.
    """
    return len(os.listdir("/proc/self/task")) == 1


def _module_of(function: Callable[[A], R]) -> str:
    return getattr(function, "func", function).__module__  # a `partial` has a `func`


_script_lock = threading.Lock()


@contextmanager
def _hidden_script(function: Callable[[A], R]) -> Iterator[None]:
    """Hide the caller's script from workers, which would run it again from the top.

    Workers need the script only if it defines the function. So scripts and notebooks that call
    bertie need no `if __name__ == "__main__":`.
    """
    with _script_lock:  # another thread may start workers too
        script = sys.modules["__main__"]
        if _module_of(function) != "__main__":
            sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = script


@contextmanager
def _interrupt_delayed() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block.

    In new processes, delay it until `_start_worker`. Otherwise a new process would print a traceback if
    Ctrl-C came while it imports bertie, or if this process had ended by then.
    """
    received: list[int] = []
    is_main_thread = threading.current_thread() is threading.main_thread()
    if is_main_thread:  # another thread of this process may receive the signal
        handler = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if is_main_thread:
            signal.signal(signal.SIGINT, handler)
            if received:
                signal.raise_signal(signal.SIGINT)


def _start_worker(environment: dict[str, str]) -> None:
    os.environ.clear()  # it may have changed since the server started
    os.environ.update(environment)
    # Ctrl-C reaches all processes of a terminal. The default handler stops workers without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    gc.freeze()  # or the garbage collector would search the parent's objects, and so copy their pages
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    # If the parent is killed, ProcessPoolExecutor's workers would wait for work forever.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
