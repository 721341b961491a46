"""Stopping between two steps: which signals are recorded, and what a second one does."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bertie.training.signals import Stopped, stop_on_signal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_is_recorded_and_handlers_are_restored(number):
    before = signal.getsignal(number)
    with stop_on_signal() as request:
        assert request.number == 0
        os.kill(os.getpid(), number)
        assert request.number == number
    assert signal.getsignal(number) is before


def test_other_threads_run_without_handlers():
    numbers = []

    def work():
        with stop_on_signal() as request:
            numbers.append(request.number)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert numbers == [0]
    assert signal.getsignal(signal.SIGINT) is before


TWICE = """
import os, signal, sys
from bertie.training.signals import stop_on_signal
{prompt}
try:
    with stop_on_signal():
        os.kill(os.getpid(), signal.{name})
        os.kill(os.getpid(), signal.{name})
except KeyboardInterrupt:
    print("still running")
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_second_signal_ends_the_process(name):
    script = TWICE.format(prompt="", name=name)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.Signals[name], "")


def test_second_interrupt_in_a_notebook_raises_keyboard_interrupt():
    script = TWICE.format(prompt="sys.ps1 = 'In : '", name="SIGINT")  # as IPython sets it
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "still running\n"


def test_message_says_how_to_resume():
    stopped = Stopped(signal.SIGINT, Path("runs/one"))
    advice = "repeat the call with out='runs/one' and resume=True to continue"
    assert str(stopped) == f"SIGINT stopped the run, saved in runs/one; {advice}"
    assert (stopped.number, stopped.directory) == (2, Path("runs/one"))


@pytest.mark.parametrize("advice", ["", "repeat the command"])
def test_stopped_can_be_sent_between_processes(advice):
    stopped = Stopped(signal.SIGTERM, Path("run"), advice)
    copy = pickle.loads(pickle.dumps(stopped))
    assert (copy.number, copy.directory, str(copy)) == (signal.SIGTERM, Path("run"), str(stopped))
