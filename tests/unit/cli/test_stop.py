"""What ends a command from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from fastbuf.cli.demo import _asked_to_stop

WAITS = """
import sys, threading
from fastbuf.cli import doctor, main

def run(console):
    try:
        console.print("waits")
        threading.Event().wait()
    finally:
        {finally_}

doctor.run = run
sys.argv = ["fastbuf", "doctor"]
main()
"""


def waiting(finally_: str, **options: object) -> subprocess.Popen[str]:
    # Under nohup a hangup is ignored, which programs inherit
    heard = "" if options else "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    command = [sys.executable, "-c", heard + WAITS.format(finally_=finally_)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]
    assert running.stdout is not None
    assert running.stdout.readline() == "waits\n"
    return running


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_stopped_cleans_up_and_says_by_what(number: signal.Signals) -> None:
    with waiting('print("cleaned")') as running:
        running.send_signal(number)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out, err.strip()) == (128 + number, "cleaned\n", "Aborted!")


def test_errors_after_the_signal_are_its_work() -> None:
    """The JVM has got it too, and is gone."""
    with waiting('raise RuntimeError("the JVM has gone")') as running:
        running.send_signal(signal.SIGHUP)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out, err.strip()) == (129, "", "Aborted!")


def test_under_nohup_the_end_of_the_terminal_is_none() -> None:
    with waiting("pass", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as running:
        running.send_signal(signal.SIGHUP)
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=30)
    assert running.returncode == 128 + signal.SIGTERM


def test_of_ctrl_c_ignored_sigterm_ends_it_all_the_same() -> None:
    """As for a command that a script starts with &."""
    with waiting("pass", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) as running:
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=30)
    assert running.returncode == 128 + signal.SIGTERM


def test_ctrl_c_after_the_last_run_of_the_demo_counts() -> None:
    with pytest.raises(KeyboardInterrupt), _asked_to_stop():
        os.kill(os.getpid(), signal.SIGINT)
