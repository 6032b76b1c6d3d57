"""What the kernel and the interpreter know of a task: its time on a CPU, its pauses, and the line that it is at."""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
import threading
import time
from collections import Counter
from types import FrameType
from typing import Any

import fastbuf

LATE_S = 0.15  #: a look that comes so late was held up
MOST_FRAMES = 5
#: Where code is nobody's own: Python's library, installed packages, fastbuf wherever it lies.
_NOT_THE_USERS = tuple(
    {sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {os.path.dirname(path) + os.sep for path in (str(fastbuf.__file__), os.path.dirname(__file__))}
)


def line_of(frame: FrameType | None) -> str | None:
    """The innermost line of the user's own code: ``"etl.py:41 normalize"``."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((*_NOT_THE_USERS, "<frozen")) and ".zip" + os.sep not in name:
            return f"{os.path.basename(name)}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return None


def _schedule(path: str) -> tuple[float, float] | None:
    """Seconds on a CPU, and ready but without one; None: this kernel does not tell."""
    try:
        with open(path) as file:
            on, waiting, _ = file.read().split()
        return int(on) / 1e9, int(waiting) / 1e9
    except (OSError, ValueError):
        return None


class Vitals:
    """Of the thread that makes this; looked at from another one, several times in a second."""

    def __init__(self) -> None:
        self._ident = threading.get_ident()
        self._path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._begin = _schedule(self._path)
        self._frames: Counter[str] = Counter()
        self._looked = time.monotonic()
        self._moved = float("-inf")  # until the first look, whose thread is another one
        self._stopped_s = self._gc_s = 0.0
        self._collecting: float | None = None
        gc.callbacks.append(self._collects)

    def _collects(self, phase: str, info: dict[str, Any]) -> None:
        now = time.monotonic()
        if phase == "start":
            self._collecting = now
        elif self._collecting is not None:
            self._gc_s += now - self._collecting
            self._collecting = None

    def _movement(self) -> float:
        """Seconds that grow unless the process stands still: on a CPU, or, of task and observer, ready without one."""
        waits = [_schedule(path) for path in (self._path, "/proc/thread-self/schedstat")]
        return time.process_time() + sum(found[1] for found in waits if found is not None)

    def look(self, due: float, busy: bool) -> None:
        """One sample, which should have been taken at ``due`` (monotonic); busy: the user's code runs, as it seems."""
        now, moved = time.monotonic(), self._movement()
        late = now - max(due, self._looked)
        # Late, and no CPU was used or waited for: the process stood still.  Other code that holds it up uses one
        if late > LATE_S and moved - self._moved < 0.2 * late:
            self._stopped_s += late
        self._looked, self._moved = now, moved
        line = line_of(sys._current_frames().get(self._ident)) if busy else None
        if line is not None:
            self._frames[line] += 1

    def figures(self) -> dict[str, Any]:
        """``cpu_s``, ``queued_s`` (where the kernel tells), ``gc_s``, ``stopped_s``; ``frames``: samples by line."""
        found: dict[str, Any] = {"gc_s": self._gc_s, "stopped_s": self._stopped_s}
        now = _schedule(self._path)
        if now is not None and self._begin is not None:
            found["cpu_s"], found["queued_s"] = now[0] - self._begin[0], now[1] - self._begin[1]
        return {**found, "frames": dict(self._frames.most_common(MOST_FRAMES))}

    def close(self) -> None:
        """Take no more notice."""
        gc.callbacks.remove(self._collects)
