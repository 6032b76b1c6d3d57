"""Promises of time: how long something took, less what the machine itself was late by.

A thread that is ready to run and is not run is late by no fault of its code: the kernel counts that for each thread
(``schedstat``), and `own_time` leaves it out.  Where the machine tells nobody of its delays (a virtual processor that
stands still), repetitions do: most of them keep the promise, and none takes for ever.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

PATIENCE_S = 60.0  # for what is promised no time, and is no hang yet

_lock = threading.Lock()
_waits: dict[str, int] = {}  # of threads that have ended too
_waited_ns = 0


def waited_for_cpu() -> float:
    """Seconds that threads of this process were ready to run and were not run, of all that there were at any call."""
    global _waited_ns
    with _lock:
        for tid in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # it has ended, or the kernel keeps no such account
                waited = int(Path(f"/proc/self/task/{tid}/schedstat").read_text().split()[1])
                before = _waits.get(tid, 0)
                _waited_ns += waited - before if waited >= before else waited  # a number that was given out again
                _waits[tid] = waited
        return _waited_ns / 1e9


def own_time() -> float:
    """A clock for differences, that stands still (at the least) while a thread of this process waits to be run."""
    return time.monotonic() - waited_for_cpu()


class Death:
    """kill -9 of a process, and when that was done: its connections have ended by then."""

    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None
        self.clock = self._own = 0.0
        self._process = os.pidfd_open(process.pid)
        self._thread = threading.Thread(target=self._watch, name="death")
        self._thread.start()
        signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def _watch(self) -> None:
        ended = select.poll()
        ended.register(self._process, select.POLLIN)
        if ended.poll(1000 * PATIENCE_S):
            self._own, self.clock = own_time(), time.monotonic()
        os.close(self._process)

    def done(self) -> float:
        """The `own_time` when it was dead; `clock` is the same by the monotonic clock."""
        self._thread.join()
        assert self.clock, "a killed process lives"
        return self._own


class Reactions:
    """What repetitions of one promise took."""

    def __init__(self, promised_s: float) -> None:
        self.promised_s = promised_s
        self.took: list[float] = []

    def add(self, seconds: float) -> None:
        assert seconds < PATIENCE_S / 3, f"{seconds:.1f} s for what is promised within {self.promised_s} s"
        self.took.append(seconds)

    def check(self) -> None:
        """All but one, or one in eight, were in time."""
        late = [f"{seconds:.2f}" for seconds in self.took if seconds >= self.promised_s]
        assert len(self.took) > 2, "too few to tell"
        assert len(late) <= max(1, len(self.took) // 8), (
            f"{len(late)} of {len(self.took)} took more than {self.promised_s} s: {late}"
        )
