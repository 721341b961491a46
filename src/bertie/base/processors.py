"""The processors that this process may use."""

import functools
import math
import os
import sys
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def available_cpus() -> int:
    """Return the number of processors that this process may use at a time.

    A hyperthread counts as one.
    """
    return min(len(os.sched_getaffinity(0)), cpu_quota())


def available_cores() -> int:
    """Return the number of cores that this process may use at a time.

    Two hyperthreads are one core.
    """
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text() if siblings.exists() else str(cpu))
    return min(len(cores), cpu_quota())


@functools.cache
def processor_vendor() -> str:
    """Return the maker of the processor, such as GenuineIntel; "" if unknown."""
    for line in CPUINFO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "vendor_id":
            return value.strip()
    return ""


def cpu_quota() -> int:
    """Return how many processors the control groups of this process allow.

    The number is rounded up. Containers (`docker run --cpus 2`) and services (`CPUQuota=200%`) are limited by
    control groups. Linux describes the files in admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst.
    """
    quotas = [sys.maxsize]
    for line in OWN_CGROUPS.read_text().splitlines() if OWN_CGROUPS.exists() else ():
        hierarchy, controllers, path = line.split(":", 2)
        root, files = CGROUPS, ["cpu.max"]  # the quota and its period, in microseconds
        if hierarchy != "0":  # version 1
            if "cpu" not in controllers.split(","):
                continue
            root, files = CGROUPS / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        group = root / path.lstrip("/")
        for parent in (group, *group.parents):
            if parent.is_relative_to(root) and (parent / files[0]).exists():
                quota, period = " ".join((parent / file).read_text() for file in files).split()
                if quota.isdecimal():  # otherwise it is "max" or -1
                    quotas.append(math.ceil(int(quota) / int(period)))
    return min(quotas)
