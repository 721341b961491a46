"""Run tasks on the workers of a Dask scheduler, on this machine or on others.

Every worker is checked before its first task: it has the versions of this process, and it sees the same
files. Workers that join later are checked too. Tasks are safe to repeat, because Dask repeats the tasks of
a worker that it has lost, and the lost worker may still be running them.
"""

import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bertie.base.errors import BertieError, SettingsError
from bertie.base.files import TEMPORARY_SUFFIX, remove_directory
from bertie.base.locks import lock_directory

if TYPE_CHECKING:
    from distributed import Client, Future

A = TypeVar("A")
R = TypeVar("R")

CONNECT_TIMEOUT = 10  # seconds, for the scheduler; also to connect again after it was lost
WORKER_TIMEOUT = 30  # seconds, for the first worker
NOTICE_INTERVAL = 10  # seconds without a result before looking whether there are workers
VISIBILITY_TIMEOUT = 10  # seconds; a network file system may show a new file late
PACKAGES = ("bertie", "distributed", "numpy")  # must have the same version everywhere
# Dask's loggers would also print the errors that are reported here in one line.
_LOGGERS = ("distributed", "distributed.client", "distributed.core")


@dataclass(frozen=True)
class _Requirements:
    """Requirements that a worker must meet.

    Attributes:
        versions: the names and versions of Python and the packages.
        reads: files or folders that it must see, with the sizes of the files, -1 for a folder.
        probe: a folder in which it must see the file `token`, and write.
        token: the contents of that file.
    """

    versions: tuple[tuple[str, str | None], ...]
    reads: tuple[tuple[Path, int], ...]
    probe: Path | None
    token: str


class DaskCluster:
    """The workers of a Dask scheduler, as an `Executor`. Create one with `connect`."""

    def __init__(self, client: "Client", address: str, requirements: _Requirements) -> None:
        self._client = client
        self._address = address
        self._requirements = requirements
        self._confirmed: set[Path] = set()  # replies of workers whose files are seen here
        self._limit, self._limit_time = 0, -1.0
        with self._one_line_errors():
            self._check_workers()

    def run_tasks(self, function: Callable[[A], R], arguments: Iterable[A]) -> Iterator[tuple[int, R]]:
        """Call a function on each argument on the workers; see `executor.run_tasks`."""
        waiting = enumerate(arguments)
        running: dict[Future[Any], int] = {}
        try:
            with self._one_line_errors():
                while True:
                    for index, argument in islice(waiting, max(0, self._max_running() - len(running))):
                        running[self._submit(function, argument)] = index
                    if not running:
                        return
                    for future in self._wait(running):
                        yield running.pop(future), self._result(future)
        finally:
            self._cancel(running)

    def map(self, function: Callable[[A], R], arguments: Iterable[A]) -> Iterator[R]:
        """Yield the results of a function in the order of its arguments.

        The arguments are read as needed. Results wait on the workers until it is their turn.
        """
        waiting = iter(arguments)
        running: deque[Future[Any]] = deque()
        try:
            with self._one_line_errors():
                while True:
                    for argument in islice(waiting, max(0, self._max_running() - len(running))):
                        running.append(self._submit(function, argument))
                    if not running:
                        return
                    if self._wait([running[0]]):
                        yield self._result(running.popleft())
        finally:
            self._cancel(running)

    def _submit(self, function: Callable[[A], R], argument: A) -> "Future[Any]":
        name = getattr(function, "func", function).__name__.strip("_")  # a `partial` has a `func`
        return self._client.submit(
            _run_task, self._requirements, function, argument, key=f"{name}-{uuid.uuid4()}", pure=False
        )

    def _max_running(self) -> int:
        """Return how many tasks to give to the scheduler, so that no thread is idle."""
        if time.monotonic() > self._limit_time + 1:  # once a second, because workers join and leave
            self._limit = 2 * max(1, sum(self._client.nthreads().values()))
            self._limit_time = time.monotonic()
        return self._limit

    def _result(self, future: "Future[Any]") -> Any:
        try:
            reply, result = future.result()
        except (BertieError, OSError):
            raise
        except Exception:
            # A worker with other versions may fail to read the task before it can check itself.
            self._check_versions()
            raise
        self._confirm(*reply)
        return result

    def _cancel(self, futures: Iterable["Future[Any]"]) -> None:
        with suppress(Exception):  # the scheduler may be gone
            self._client.cancel(list(futures))

    def _wait(self, futures: "Iterable[Future[Any]]") -> "list[Future[Any]]":
        """Wait until some futures are done, and return these.

        Report missing workers after NOTICE_INTERVAL.
        """
        from distributed import TimeoutError, wait

        try:
            with self._client.as_current():
                return list(wait(list(futures), timeout=NOTICE_INTERVAL, return_when="FIRST_COMPLETED").done)
        except TimeoutError:
            if not self._client.nthreads():
                print(f"{self._address}: no workers left; waiting for one", file=sys.stderr, flush=True)
            return []

    @contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        """Raise Dask's errors as BertieErrors."""
        from distributed import CancelledError
        from distributed.client import ClosedClientError
        from distributed.comm import CommClosedError
        from distributed.scheduler import KilledWorker

        try:
            yield
        except KilledWorker as error:
            raise BertieError(
                f"worker {error.last_worker.address}: workers died {error.allowed_failures + 1} times on the "
                f"same task (killed, or out of memory); give each more memory (dask worker --memory-limit)"
            ) from None
        except (CancelledError, ClosedClientError, CommClosedError):
            raise BertieError(
                f"{self._address}: lost the connection to the scheduler; see that it runs, and run the same "
                f"command again"
            ) from None

    def _check_workers(self) -> None:
        self._check_versions()
        for answer in self._client.run(_answer, self._requirements, on_error="return").values():
            if isinstance(answer, BertieError):
                raise answer
            if isinstance(answer, tuple):  # other errors: the worker has left
                self._confirm(*answer)

    def _check_versions(self) -> None:
        for address, found in self._client.get_versions(packages=PACKAGES)["workers"].items():
            _compare_versions(address, self._requirements.versions, found["packages"])

    def _confirm(self, address: str, reply: Path | None) -> None:
        """Raise BertieError unless the file that a worker wrote is seen here."""
        if reply is None or reply in self._confirmed:
            return
        deadline = time.monotonic() + VISIBILITY_TIMEOUT
        while not reply.exists():
            if time.monotonic() > deadline:
                raise _not_shared(address, reply.parent.parent)
            time.sleep(0.2)
        self._confirmed.add(reply)


@contextmanager
def connect(address: str, reads: Sequence[Path] = (), writes: Path | None = None) -> Iterator[DaskCluster]:
    """Connect to a Dask scheduler and check its workers.

    Args:
        address: `tcp://HOST:PORT`.
        reads: files or folders that every worker must see. Pass some if there are many.
        writes: the folder in which tasks write. It is locked (see `lock_directory`).

    Raises:
        SettingsError: there is no scheduler at this address.
        BertieError: there is no worker, or a worker differs from this process or does not see the files.
        ModuleNotFoundError: Dask is not installed.
    """
    with ExitStack() as stack:
        client = stack.enter_context(_open_client(address))
        if client.dashboard_link:
            print(f"dashboard: {client.dashboard_link}", file=sys.stderr, flush=True)
        versions = tuple(_versions().items())
        sizes = tuple((path.absolute(), _size(path)) for path in reads)
        token, probe = uuid.uuid4().hex, None
        if writes is not None:
            stack.enter_context(lock_directory(writes))
            probe = stack.enter_context(_probe_folder(writes.absolute(), token))
        yield DaskCluster(client, address, _Requirements(versions, sizes, probe, token))


@contextmanager
def _open_client(address: str) -> Iterator["Client"]:
    """Connect to a scheduler, and wait until it has a worker."""
    import dask

    dask.config.set({"logging": dict.fromkeys(_LOGGERS, "critical")})
    # A task holds the texts of a block, and Dask warns at 10 MB.
    dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 GB"})
    from distributed import Client, TimeoutError
    from distributed.utils import LoopRunner

    try:
        # An error in the constructor of `Client` can leave threads that fail when Python exits, and it waits
        # forever for other servers, such as the scheduler's dashboard. So the address is tried first.
        LoopRunner().run_sync(_greet_scheduler, address, callback_timeout=CONNECT_TIMEOUT)
        client = Client(address, timeout=CONNECT_TIMEOUT, set_as_default=False)
    # TimeoutError is an OSError; the others are malformed addresses, and replies of other servers.
    except (OSError, ValueError, TypeError, MemoryError):
        raise SettingsError(
            f"--scheduler {address}: no Dask scheduler answers at this address; start one (`dask scheduler`) "
            f"and pass the address that it prints, such as tcp://10.0.0.1:8786"
        ) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=WORKER_TIMEOUT)
        except TimeoutError:
            raise BertieError(
                f"{address}: no worker in {WORKER_TIMEOUT} seconds; start one on each machine: "
                f"dask worker {address} --nthreads 1"
            ) from None
        yield client


async def _greet_scheduler(address: str) -> None:
    """Connect to a scheduler, exchange greetings, and disconnect."""
    from distributed import Security
    from distributed.comm import connect

    comm = await connect(address, **Security().get_connection_args("client"))
    comm.abort()


@contextmanager
def _probe_folder(path: Path, token: str) -> Iterator[Path]:
    """Make a folder by which workers see that they share the file system of `path`."""
    folder = path.with_name(f".{path.name}.probe{TEMPORARY_SUFFIX}")
    remove_directory(folder)  # of a killed process; the lock of `path` leaves one at a time
    folder.mkdir()
    try:
        (folder / "token").write_text(token)
        yield folder
    finally:
        remove_directory(folder)


def _size(path: Path) -> int:
    """Return the size of a file, or -1 for a folder."""
    return -1 if path.is_dir() else path.stat().st_size


def _versions() -> dict[str, str | None]:
    from distributed.versions import get_package_info

    found = get_package_info(PACKAGES)
    return {name: found[name] for name in ("python", *PACKAGES)}


def _compare_versions(
    address: str, expected: Iterable[tuple[str, str | None]], found: dict[str, str | None]
) -> None:
    """Raise BertieError if a worker has another version of Python or of a package.

    Patch versions of Python may differ.
    """
    for name, version in expected:
        other = found.get(name)
        if name == "python":
            version, other = (".".join((text or "").split(".")[:2]) for text in (version, other))
        if other != version:
            lacks = f"has {name} {other}" if other else f"lacks {name}"
            raise BertieError(
                f"worker {address}: {lacks}, and this process has {version}; install the same versions on "
                f"every machine"
            )


def _not_shared(address: str, path: Path) -> BertieError:
    return BertieError(
        f"worker {address}: does not see {path} as this machine does; mount the same file system at the same "
        f"path on every machine"
    )


def _answer(requirements: _Requirements, dask_worker: Any) -> tuple[str, Path | None]:
    """Check a worker on the worker; `Client.run` passes it as `dask_worker`."""
    return _check_worker(requirements, dask_worker.address)


@lru_cache(maxsize=8)  # once in each worker process; exceptions are not kept
def _check_worker(requirements: _Requirements, address: str) -> tuple[str, Path | None]:
    """Raise BertieError unless this worker meets the requirements.

    Returns:
        The address of the worker, and the file that it wrote into the probe folder, if there is one.
    """
    _compare_versions(address, requirements.versions, _versions())
    for path, size in requirements.reads:
        if not path.exists() or _size(path) != size:
            raise _not_shared(address, path)
    if requirements.probe is None:
        return address, None
    folder, reply = requirements.probe, requirements.probe / uuid.uuid4().hex
    try:
        is_same = (folder / "token").read_text() == requirements.token
        reply.touch()
    except OSError:
        is_same = False
    if not is_same:
        raise _not_shared(address, folder.parent)
    return address, reply


def _run_task(
    requirements: _Requirements, function: Callable[[A], R], argument: A
) -> tuple[tuple[str, Path | None], R]:
    """Run a task on a worker; errors of the operating system get its address."""
    from distributed import get_worker

    address = get_worker().address
    reply = _check_worker(requirements, address)
    try:
        return reply, function(argument)
    except OSError as error:
        error.filename = f"{error.filename or 'file'} on worker {address}"
        raise
