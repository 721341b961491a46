"""Kernels on several threads."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise


def run_in_threads(work: Callable[[int, int], object], items: int, threads: int) -> None:
    """Call work(first, last) for ranges of `items`, in threads, and wait for all.

    Args:
        work: a function that releases the interpreter lock, such as a kernel.
        items: the number of items; ranges are equally long, or differ by 1.
        threads: the number of threads, one of which is the caller's. Fewer are used if there are fewer items.

    Example:
        >>> ranges = []
        >>> run_in_threads(lambda first, last: ranges.append((first, last)), items=10, threads=2)
        >>> sorted(ranges)
        [(0, 5), (5, 10)]
    """
    threads = min(threads, items)
    if threads <= 1:
        work(0, items)
        return
    own, *others = pairwise(items * thread // threads for thread in range(threads + 1))
    running = [_thread_pool().submit(work, *bounds) for bounds in others]
    work(*own)
    for result in running:
        result.result()


@cache
def _thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="kernels")


os.register_at_fork(after_in_child=_thread_pool.cache_clear)  # a forked process does not have the threads
