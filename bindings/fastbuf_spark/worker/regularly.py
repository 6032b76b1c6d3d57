"""Calls that tasks have made again and again while they run, all from one thread of the process."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable

from fastbuf.exchange.named_thread import start_thread

log = logging.getLogger("fastbuf_spark")

#: Seconds that the thread waits for a next task before it ends.  A thread for each task took a third of a short one
IDLE_S = 1.0


class Regularly:
    """Calls a function again and again until the block ends.  A call that waits holds up those of other blocks.

    Parameters
    ----------
    call
        Gets the moment at which it was due; an error of it ends neither this nor the task.
    first_s, every_s
        Seconds until the first call, and from the end of each to the next.
    """

    def __init__(self, call: Callable[[float], None], first_s: float, every_s: float) -> None:
        self._call = call
        self._first_s, self._every_s = first_s, every_s
        self._due = math.inf
        self._ended = False
        self._calling = threading.Lock()

    def __enter__(self) -> Regularly:
        self._due = time.monotonic() + self._first_s
        _caller.add(self)
        return self

    def __exit__(self, *error: object) -> None:
        _caller.remove(self)
        with self._calling:  # once a call in progress has ended
            self._ended = True

    @property
    def due(self) -> float:
        """When the next call is due."""
        return self._due

    def make(self) -> None:
        """Make the call that is due, unless the block has ended."""
        with self._calling:
            if self._ended:
                return
            try:
                self._call(self._due)
            except Exception as error:
                log.debug("no report of this task: %s", error)
            self._due = time.monotonic() + self._every_s


class _Caller:
    """The thread.  It runs while there is something to call, and ``IDLE_S`` longer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._blocks: list[Regularly] = []
        self._thread: threading.Thread | None = None
        self._wakes = math.inf

    def add(self, block: Regularly) -> None:
        with self._changed:
            self._blocks.append(block)
            if self._thread is None:
                self._thread = start_thread(self._run, "fastbuf-watch")
            elif block.due < self._wakes:
                self._changed.notify()

    def remove(self, block: Regularly) -> None:
        with self._changed:
            if block in self._blocks:  # a child that the user's function has forked has none, and leaves the block too
                self._blocks.remove(block)

    def _run(self) -> None:
        idle_since = math.inf
        while True:
            with self._changed:
                now = time.monotonic()
                idle_since = math.inf if self._blocks else min(idle_since, now)
                if now - idle_since >= IDLE_S:
                    self._thread = None
                    return
                first = min(self._blocks, key=lambda block: block.due, default=None)
                self._wakes = idle_since + IDLE_S if first is None else first.due
                if self._wakes > now:
                    self._changed.wait(self._wakes - now)
                    continue
            if first is not None:
                first.make()


_caller = _Caller()
# A process that was forked has no threads
os.register_at_fork(after_in_child=_caller.__init__)  # type: ignore[misc]
