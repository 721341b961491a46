"""Environment variables that torch reads: set when bertie is imported, if torch is not yet."""

import ctypes
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from bertie.base.environment import (
    VARIABLES,
    cache_root,
    install_command,
    require_memory,
    set_torch_environment,
    threads_switched_quickly,
)
from bertie.commands.doctor import EXTRAS


def run(script: str, **environment: str) -> str:
    """Run a script in a new process without the variables; return what it prints."""
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    shown = "import os; print(os.environ.get('GOMP_SPINCOUNT'), os.environ.get('THP_MEM_ALLOC_ENABLE'))"
    command = [sys.executable, "-c", f"{script}\n{shown}"]
    done = subprocess.run(command, env={**clean, **environment}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_sets_the_variables() -> None:
    assert run("import bertie") == "1000 1"


def test_values_of_the_user_are_kept() -> None:
    assert run("import bertie", GOMP_SPINCOUNT="7") == "7 1"


def test_nothing_is_set_once_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "torch", sys)
    set_torch_environment()
    assert VARIABLES.keys().isdisjoint(os.environ)


def test_the_install_command_names_the_packages_of_an_extra() -> None:
    """As pyproject.toml does, for every extra that a message names."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for extra in {*EXTRAS.values(), "tensorboard"}:
        requirements = {Requirement(line) for line in project["optional-dependencies"][extra]}
        named = {Requirement(word) for word in shlex.split(install_command(extra))[2:]}
        assert named == requirements


def test_the_collector_is_as_before_after_only_new_objects_were_collected() -> None:
    script = """
import gc
from bertie.base.environment import only_new_collected
before = gc.get_threshold()
with only_new_collected():
    print(gc.get_freeze_count() > 0, gc.get_threshold() == before)
print(gc.get_freeze_count(), gc.get_threshold() == before)
"""
    assert run(script).split()[:4] == ["True", "False", "0", "True"]


def test_the_collector_is_paused_and_as_before_afterwards() -> None:
    script = """
import gc
from bertie.base.environment import collection_paused
for begin in (gc.enable, gc.disable):
    begin()
    with collection_paused():
        print(gc.isenabled(), end=" ")
    print(gc.isenabled(), end=" ")
print()
"""
    assert run(script).split()[:4] == ["False", "True", "False", "False"]


def test_memory_that_no_machine_has_is_an_error() -> None:
    require_memory(1)
    with pytest.raises(OSError, match="allocate memory"):
        require_memory(1 << 30)  # 1 PiB; addresses have 47 bits


def test_folder_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("BERTIE_CACHE", raising=False)
    assert cache_root() == Path("/home/me/.cache/bertie")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/bertie")
    monkeypatch.setenv("BERTIE_CACHE", "~/kernels")
    assert cache_root() == Path("/home/me/kernels")


def timer_slack() -> int:
    """Return by how many nanoseconds Linux may delay this thread."""
    return ctypes.CDLL(None).prctl(30)  # PR_GET_TIMERSLACK


def test_threads_are_switched_as_before_after_they_were_switched_quickly() -> None:
    before = sys.getswitchinterval(), timer_slack()
    with threads_switched_quickly():
        assert sys.getswitchinterval() < 0.001
        assert timer_slack() == 1000
    assert (sys.getswitchinterval(), timer_slack()) == before


def test_threads_share_the_memory_of_freed_arrays() -> None:
    """Small arrays that remain between the freed ones pin the heap, as ragged batches do."""
    script = """
import numpy as np, sys, threading
from bertie.base.environment import limit_free_memory
if sys.argv[1] == "limit": limit_free_memory()
def resident():
    lines = open("/proc/self/status")
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024
remaining, end = [], threading.Event()
def work(done):
    pairs = [(np.ones(2**18), np.ones(2**10)) for _ in range(20)]
    remaining.append([small for _, small in pairs])
    del pairs; done.set(); end.wait()
np.ones(2**21); before = resident()  # glibc then keeps blocks of 2 MiB in the heap
for _ in range(5):
    done = threading.Event()
    threading.Thread(target=work, args=[done]).start(); done.wait()
print(resident() - before); end.set()
"""
    kept, limited = (
        int(subprocess.run([sys.executable, "-c", script, mode], capture_output=True, check=True).stdout)
        for mode in ("keep", "limit")
    )
    assert kept > 150, "MiB"
    assert limited < 80, "MiB"


def test_onednn_keeps_few_primitives() -> None:
    """The 33rd shape takes the place of the first, which is then compiled again."""
    script = """
from bertie.base.environment import limit_free_memory
limit_free_memory()
import torch
for rows in (*range(64, 96), *range(64, 97), 64):
    torch.nn.functional.gelu(torch.ones(rows, 512))
"""
    environment = {**os.environ, "ONEDNN_VERBOSE": "2"}
    environment.pop("ONEDNN_PRIMITIVE_CACHE_CAPACITY", None)
    command = [sys.executable, "-c", script]
    output = subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout
    compiled = output.count("create:cache_miss")
    if not compiled:
        pytest.skip("torch computes GELU without oneDNN here")
    assert compiled == 34
