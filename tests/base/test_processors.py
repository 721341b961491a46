"""The processors of a process: by its affinity, the hyperthreads of a core, and the quotas of containers."""

import os
import sys
from pathlib import Path

import pytest

from bertie.base import processors
from bertie.base.environment import set_torch_environment
from bertie.base.processors import available_cores, available_cpus, processor_vendor


@pytest.mark.parametrize(
    ("text", "vendor"),
    [
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\n", "AuthenticAMD"),
        ("CPU part\t: 0xd40\n", ""),
    ],
)
def test_the_vendor_of_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, vendor: str
) -> None:
    monkeypatch.setattr(processors, "CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(text)
    assert processor_vendor.__wrapped__() == vendor


@pytest.mark.parametrize(("allowed", "cores"), [({0}, 1), ({0, 1}, 1), ({0, 2}, 2), ({0, 1, 2, 3, 9}, 3)])
def test_two_hyperthreads_are_one_core(
    monkeypatch: pytest.MonkeyPatch, allowed: set[int], cores: int
) -> None:
    """Of 4 processors on 2 cores, and of one that the system does not describe."""
    siblings = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}
    files = {
        f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": siblings[cpu] for cpu in siblings
    }
    monkeypatch.setattr("os.sched_getaffinity", lambda _: allowed)
    monkeypatch.setattr(Path, "exists", lambda path: str(path) in files)
    monkeypatch.setattr(Path, "read_text", lambda path: files[str(path)])
    assert available_cores() == cores
    assert available_cpus() == len(allowed)


UNLIMITED = {"self": "0::/\n", "cpu.max": "max 100000\n"}
CONTAINER = {"self": "0::/\n", "cpu.max": "200000 100000\n"}
SERVICE = {
    "self": "0::/system.slice/bertie.service\n",
    "system.slice/bertie.service/cpu.max": "150000 100000\n",
    "system.slice/cpu.max": "max 100000\n",
}
SLICE = {**SERVICE, "system.slice/cpu.max": "100000 100000\n"}
OLD_CONTAINER = {  # of version 1, which sees its group as the root
    "self": "5:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n0::/\n",
    "cpu/cpu.cfs_quota_us": "50000\n",
    "cpu/cpu.cfs_period_us": "100000\n",
}
OLD_UNLIMITED = {**OLD_CONTAINER, "cpu/cpu.cfs_quota_us": "-1\n"}


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 4),
        (UNLIMITED, 4),
        (CONTAINER, 2),
        (SERVICE, 2),
        (SLICE, 1),
        (OLD_CONTAINER, 1),
        (OLD_UNLIMITED, 4),
    ],
)
def test_a_container_uses_no_more_processors_than_its_quota(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], cpus: int
) -> None:
    """On a machine of four processors; a part of one counts as one."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("bertie.base.processors.CGROUPS", tmp_path)
    monkeypatch.setattr("bertie.base.processors.OWN_CGROUPS", tmp_path / "self")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr("os.environ", {})
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert available_cpus() == cpus
    set_torch_environment()
    assert os.environ.get("OMP_NUM_THREADS") == (None if cpus == 4 else str(cpus))
