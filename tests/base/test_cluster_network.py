"""A Dask cluster on a network: scheduler, workers and client have addresses of their own, and fail.

Each machine is a network namespace, and a bridge connects them. They share one file system.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import bertie

pytest.importorskip("distributed")
pytestmark = pytest.mark.slow

TTL = 5  # seconds; the least that Dask allows, ten heartbeats
SCHEDULER, CLIENT, FIRST_WORKER, SECOND_WORKER, NEW_WORKER = (
    1,
    2,
    3,
    4,
    5,
)  # of addresses
TASKS = 30
# Makes each task of the workers last, and records the worker that starts it.
SLOW_TASKS = """
import time
from distributed import get_worker
from bertie.corpus import part_writer, word_counts
for module in (part_writer, word_counts):
    def read_splits(*arguments, read=module.read_splits):
        with open("started", "a") as file:
            file.write(get_worker().address + "\\n")
        time.sleep(0.4)
        return read(*arguments)
    module.read_splits = read_splits
"""
COMMAND = """
from bertie.commands import main
from bertie.corpus import input_splits
input_splits.TASK_BYTES = 2000
main.main()
"""
PREPARE = ("prepare", "text", "--tokenizer", "words", "--held-out", "0.1")
VOCAB = ("vocab", "text", "--size", "200")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Network:
    """Machines 10.77.0.N on a bridge, and the processes that run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = f"bertie-dask-{os.getpid()}"
        self.machines: list[int] = []
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Network":
        ip("netns", "add", self.name)
        ip("-n", self.name, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.name, "link", "set", "bridge", "up")
        return self

    def __exit__(self, *error: object) -> None:
        self.kill_all()
        for machine in self.machines:
            ip("netns", "del", f"{self.name}-{machine}")
        ip("netns", "del", self.name)

    def add(self, machine: int) -> None:
        space = f"{self.name}-{machine}"
        ip("netns", "add", space)
        self.machines.append(machine)
        ip("-n", self.name, "link", "add", f"to{machine}", "type", "veth", "peer", "eth0", "netns", space)
        ip("-n", self.name, "link", "set", f"to{machine}", "master", "bridge", "up")
        ip("-n", space, "address", "add", f"10.77.0.{machine}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", space, "link", "set", device, "up")

    def set_link(self, machine: int, state: str) -> None:
        ip("-n", self.name, "link", "set", f"to{machine}", state)

    def start(self, machine: int, *command: str) -> subprocess.Popen[bytes]:
        """Start Python on a machine, which is added if it is new; its log is `MACHINE.log`."""
        if machine not in self.machines:
            self.add(machine)
        root = Path(__file__).parents[2]
        environment = os.environ | {
            "PYTHONPATH": f"{Path(bertie.__file__).parents[1]}:{root}",
            "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{TTL}s",
        }
        with (self.folder / f"{machine}.log").open("wb") as log:
            self.processes[machine] = subprocess.Popen(
                ["ip", "netns", "exec", f"{self.name}-{machine}", sys.executable, *command],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment,
                start_new_session=True,
            )
        return self.processes[machine]

    def signal(self, machine: int, number: int) -> None:
        """Send a signal to the process of a machine and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.processes[machine].pid, number)

    def kill(self, machine: int) -> None:
        self.signal(machine, signal.SIGKILL)
        self.processes.pop(machine).wait()

    def kill_all(self) -> None:
        for machine in list(self.processes):
            self.kill(machine)

    def start_scheduler(self) -> None:
        self.start(SCHEDULER, "-m", "dask", "scheduler", "--no-dashboard")

    def start_worker(self, machine: int) -> None:
        address = f"tcp://10.77.0.{SCHEDULER}:8786"
        options = ["--nthreads", "1", "--no-dashboard", "--preload", "slow_tasks.py"]
        self.start(machine, "-m", "dask", "worker", address, *options)

    def start_command(self, *arguments: str) -> subprocess.Popen[bytes]:
        scheduler = ("--scheduler", f"tcp://10.77.0.{SCHEDULER}:8786")
        return self.start(CLIENT, "-c", COMMAND, *arguments, *scheduler)

    def log(self, machine: int) -> str:
        return (self.folder / f"{machine}.log").read_text()


def lose_worker(network: Network) -> None:
    network.kill(FIRST_WORKER)


def add_worker(network: Network) -> None:
    network.start_worker(NEW_WORKER)


def pause_worker(network: Network) -> None:
    network.signal(FIRST_WORKER, signal.SIGSTOP)
    time.sleep(2 * TTL + 2)  # the scheduler looks every TTL seconds
    network.signal(FIRST_WORKER, signal.SIGCONT)


def cut_worker_briefly(network: Network) -> None:
    cut(network, FIRST_WORKER, TTL / 2)


def cut_worker(network: Network) -> None:
    cut(network, FIRST_WORKER, 2 * TTL + 2)


def cut_client(network: Network) -> None:
    cut(network, CLIENT, TTL)


def cut(network: Network, machine: int, seconds: float) -> None:
    network.set_link(machine, "down")
    time.sleep(seconds)
    network.set_link(machine, "up")


def interrupt(network: Network) -> None:
    """Press Ctrl-C: the command says how to resume, and the same command then resumes."""
    arguments = network.processes[CLIENT].args[7:-2]  # type: ignore[index]
    network.signal(CLIENT, signal.SIGINT)
    assert network.processes[CLIENT].wait(60) == 130
    assert "run the" in network.log(CLIENT).splitlines()[-1]
    assert "Traceback" not in network.log(CLIENT)
    network.start_command(*arguments)


def restart_scheduler(network: Network) -> None:
    """Kill the scheduler: the command fails with one line, and the same command then resumes."""
    arguments = network.processes[CLIENT].args[7:-2]  # type: ignore[index]
    network.kill(SCHEDULER)
    assert network.processes[CLIENT].wait(60) == 2
    assert "lost the connection to the scheduler" in network.log(CLIENT).splitlines()[-1]
    assert "Traceback" not in network.log(CLIENT)
    network.start_scheduler()
    for machine in (FIRST_WORKER, SECOND_WORKER):
        network.kill(machine)
        network.start_worker(machine)
    network.start_command(*arguments)


def read_tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def read_started(folder: Path) -> list[str]:
    """Return the address of the worker of each task that was started."""
    file = folder / "started"
    return file.read_text().splitlines() if file.exists() else []


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """A scheduler and a client, and in `words` and `corpus` the outputs of local commands."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root and iproute2, for network namespaces")
    folder = tmp_path_factory.mktemp("network")
    (folder / "slow_tasks.py").write_text(SLOW_TASKS)
    (folder / "text").mkdir()
    for n in range(TASKS):
        (folder / f"text/{n:02}.txt").write_text(
            "".join(f"The cat {n} sat on {m % 17}. A dog {'ran' * (m % 5)}.\n\n" for m in range(60))
        )
    with Network(folder) as network:
        for out, arguments in (("words", VOCAB), ("corpus", PREPARE)):
            command = ("-c", COMMAND, *arguments, "--out", out, "--workers", "1")
            assert not network.start(CLIENT, *command).wait(), network.log(CLIENT)
        yield network


@pytest.mark.parametrize("arguments", [PREPARE, VOCAB], ids=["prepare", "vocab"])
@pytest.mark.parametrize(
    "fault",
    [
        lose_worker,
        add_worker,
        pause_worker,
        cut_worker_briefly,
        cut_worker,
        cut_client,
        interrupt,
        restart_scheduler,
    ],
)
def test_faults_of_a_network_change_no_byte(
    network: Network, fault: Callable[[Network], None], arguments: tuple[str, ...]
) -> None:
    folder, out = network.folder, "out"
    shutil.rmtree(folder / out, ignore_errors=True)
    (folder / "started").unlink(missing_ok=True)
    network.kill_all()
    network.start_scheduler()
    for machine in (FIRST_WORKER, SECOND_WORKER):
        network.start_worker(machine)
    network.start_command(*arguments, "--out", out)
    while len(read_started(folder)) < 4:
        assert network.processes[CLIENT].poll() is None, network.log(CLIENT)
        time.sleep(0.05)
    fault(network)
    assert network.processes[CLIENT].wait(120) == 0, network.log(CLIENT)
    assert read_tree(folder / out) == read_tree(folder / {PREPARE: "corpus", VOCAB: "words"}[arguments])
    if fault in (lose_worker, pause_worker, cut_worker):
        assert len(read_started(folder)) > TASKS, "no task was repeated"
    if fault in (pause_worker, cut_worker):
        assert "failed to heartbeat" in network.log(SCHEDULER)
    if fault is add_worker:
        assert any(f"10.77.0.{NEW_WORKER}:" in address for address in read_started(folder))
