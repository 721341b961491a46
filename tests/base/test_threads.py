"""Kernels on several threads."""

import multiprocessing
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.threads import run_in_threads


@given(st.integers(0, 50), st.integers(0, 8))
def test_every_item_is_in_one_range(items, threads):
    ranges = []
    run_in_threads(lambda first, last: ranges.append((first, last)), items, threads)
    assert len(ranges) == max(1, min(items, threads))  # no thread starts for an empty range
    assert sorted(item for first, last in ranges for item in range(first, last)) == list(range(items))


def test_ranges_are_computed_at_the_same_time():
    barrier = threading.Barrier(3, timeout=60)  # raises BrokenBarrierError unless three threads wait
    arrivals = []
    run_in_threads(lambda first, last: arrivals.append(barrier.wait()), items=6, threads=3)
    assert sorted(arrivals) == [0, 1, 2]


def test_an_error_of_another_thread_reaches_the_caller():
    def work(first, last):
        if first:
            raise ValueError(f"items {first} to {last}")

    with pytest.raises(ValueError, match="items 2 to 4"):
        run_in_threads(work, items=4, threads=2)


def test_forked_process_starts_its_own_threads():
    run_in_threads(lambda first, last: None, items=2, threads=2)
    process = multiprocessing.get_context("fork").Process(target=run_in_threads, args=(lambda *_: None, 2, 2))
    process.start()
    process.join(60)
    process.kill()  # if it waits for threads that it does not have
    assert process.exitcode == 0
