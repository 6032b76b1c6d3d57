"""What the kernel and the interpreter know of a task: CPU time, pauses, and the lines of code that it runs."""

from __future__ import annotations

import functools
import gc
import os
import random
import sys
import sysconfig
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

LATE_S = 0.15  #: a sample this late means that the process may have been stopped
STACK_S = 1.0  #: interval between two samples of the whole stack
MOST_FRAMES = 5
MOST_STACKS = 200  #: most stacks stored; the most frequent ones are reported
DEEPEST = 40  #: most frames of a stack, the innermost ones
COLLECTORS = ("GC Thread#0\n", "VM Thread\n")
QUICK_S = 1e-4  #: the interpreter's switch interval while a computing thread is sampled


@functools.cache
def _not_the_users() -> tuple[str, ...]:
    """Directories without user code: Python's library, installed packages, fastbuf and its Spark binding."""
    here = os.path.dirname(os.path.dirname(__file__))
    ours = (here, os.path.join(os.path.dirname(here), "bindings", "fastbuf_spark"))
    paths = sysconfig.get_paths()
    return *{paths[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}, *(
        p + os.sep for p in ours
    )


def _is_users(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return not name.startswith((*_not_the_users(), "<frozen")) and ".zip" + os.sep not in name


def _named(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"


def line_of(frame: FrameType | None) -> str | None:
    """The innermost line of user code: ``"etl.py:41 normalize"``."""
    while frame is not None:
        if _is_users(frame):
            return _named(frame)
        frame = frame.f_back
    return None


def stack_of(frame: FrameType | None) -> str:
    """The stack from the outermost line of user code on, in flame graph format: outermost first, with semicolons."""
    names: list[str] = []
    users = 0
    while frame is not None and len(names) < DEEPEST:
        names.append(_named(frame).replace(";", ","))
        users = len(names) if _is_users(frame) else users
        frame = frame.f_back
    return ";".join(reversed(names[: users or len(names)]))


def _schedule(path: str) -> tuple[float, float] | None:
    """Seconds on a CPU, and seconds ready to run but without one; None: the kernel does not report them."""
    try:
        with open(path) as file:
            on, waiting, _ = file.read().split()
        return int(on) / 1e9, int(waiting) / 1e9
    except (OSError, ValueError):
        return None


def _major_faults(path: str) -> int:
    try:
        with open(path) as file:
            return int(file.read().rpartition(")")[2].split()[9])
    except (OSError, ValueError, IndexError):
        return 0


def machine_s() -> float | None:
    """Seconds that all CPUs of this machine were busy; None: not known."""
    try:
        with open("/proc/stat") as file:
            user, nice, system, _, _, irq, soft = (int(word) for word in file.readline().split()[1:8])
        return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


def _throttle_file() -> Path | None:
    """The file in which this process's control group reports how long it was throttled."""
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return Path("/sys/fs/cgroup" + line[3:]) / "cpu.stat"
    except OSError:
        pass
    return None


def throttled_s(path: Path | None) -> float | None:
    """Seconds that a limit of the control group kept it from running; None: there is no such limit."""
    try:
        words = path.read_text().split() if path is not None else []
        return int(words[words.index("throttled_usec") + 1]) / 1e6
    except (OSError, ValueError, IndexError):
        return None


@functools.cache
def _collectors() -> tuple[str, ...]:
    """CPU time files of the garbage collector threads of the JVM that started this process; empty: there is no JVM.

    One thread is enough: the first thread of G1 and of the parallel collector takes part in every collection, and the
    serial collector runs in the VM thread.
    """
    pid = os.getpid()
    try:
        for _ in range(4):  # the worker, Spark's daemon, the JVM
            if Path(f"/proc/{pid}/comm").read_text() == "java\n":
                found = []
                for thread in sorted(os.listdir(f"/proc/{pid}/task"), key=int):  # they were started first
                    with open(f"/proc/{pid}/task/{thread}/comm") as file:
                        if file.read() in COLLECTORS:
                            found.append(f"/proc/{pid}/task/{thread}/schedstat")
                    if len(found) == len(COLLECTORS):
                        break
                return tuple(found)
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return ()


def jvm_gc_s() -> float | None:
    """Seconds in which the JVM's garbage collector ran, and its other threads were stopped; None: there is no JVM."""
    found = [_schedule(path) for path in _collectors()]
    return sum(each[0] for each in found if each is not None) if any(found) else None


def _some_moment() -> None:
    """Sleep for a short random time, so that the sample does not depend on when the other thread releases the GIL.

    A waiting thread gets the GIL when another one releases it, or after the switch interval of five milliseconds.  If
    the other thread computes for less than that and then sleeps, every sample would find it asleep.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, QUICK_S))
    try:
        time.sleep(random.uniform(1.0, 6.0) / 1000)
    finally:
        sys.setswitchinterval(before)


class Vitals:
    """Figures of a thread; sampled from another thread, several times a second.

    Parameters
    ----------
    ident, native_id
        Python's and the kernel's id of the thread; default: the thread that makes this.
    """

    def __init__(self, ident: int | None = None, native_id: int | None = None) -> None:
        self._ident = ident or threading.get_ident()
        folder = f"/proc/self/task/{native_id or threading.get_native_id()}"
        self._path, self._stat = f"{folder}/schedstat", f"{folder}/stat"
        self._begin = self._last = _schedule(self._path)
        self._faults = _major_faults(self._stat)
        self._cgroup = _throttle_file()
        self._throttled = throttled_s(self._cgroup)
        self._machine = machine_s()
        self._jvm = jvm_gc_s()
        self._frames: Counter[str] = Counter()
        self._stacks: dict[str, Counter[str]] = {"on": Counter(), "off": Counter()}
        self._stacked: tuple[float, float] | None = None  # when the last whole stack was taken, and its CPU time then
        self._looked, self._ran = time.monotonic(), sum(self._begin or ())
        self._moved = float("-inf")  # until the first sample, since another thread takes it
        self._stopped_s = self._gc_s = 0.0
        self._collecting: float | None = None
        gc.callbacks.append(self._collects)

    def _collects(self, phase: str, info: dict[str, Any]) -> None:
        if threading.get_ident() != self._ident:
            return  # another thread collects, in its own time
        now = time.monotonic()
        if phase == "start":
            self._collecting = now
        elif self._collecting is not None:
            self._gc_s += now - self._collecting
            self._collecting = None

    @staticmethod
    def _movement(task: tuple[float, float] | None) -> float:
        """Seconds that grow unless the process is stopped: CPU time, and time that task and sampler wait for a CPU."""
        waits = (task, _schedule("/proc/thread-self/schedstat"))
        return time.process_time() + sum(found[1] for found in waits if found is not None)

    def look(self, due: float, busy: bool) -> None:
        """Take a sample, which was due at ``due`` (monotonic); busy: the task's state is "runs"."""
        task = _schedule(self._path)
        now, moved = time.monotonic(), self._movement(task)
        late = now - max(due, self._looked)
        # Late, and no CPU was used or waited for: the process was stopped.  Code that keeps the GIL would use one
        if late > LATE_S and moved - self._moved < 0.2 * late:
            self._stopped_s += late
        ran = sum(task or ())
        if busy and ran - self._ran >= 0.5 * (now - self._looked):
            _some_moment()
        self._looked, self._moved, self._ran = now, moved, ran
        frame = sys._current_frames().get(self._ident)
        line = line_of(frame) if busy else None
        if line is not None:
            self._frames[line] += 1
        self._stack(now, frame, task)

    def _stack(self, now: float, frame: FrameType | None, used: tuple[float, float] | None) -> None:
        if frame is None or used is None:
            return
        if self._stacked is None:
            self._stacked = now, used[0]
        elif now - self._stacked[0] >= STACK_S:
            since, before = self._stacked
            kind = self._stacks["on" if used[0] - before >= 0.5 * (now - since) else "off"]
            stack = stack_of(frame)
            if stack in kind or len(kind) < MOST_STACKS:
                kind[stack] += max(1, round((now - since) / STACK_S))  # a late sample also counts for those missed
            self._stacked = now, used[0]

    def figures(self) -> dict[str, Any]:
        """Figures since it was made.

        Returns
        -------
        dict
            ``gc_s``, ``stopped_s``, ``major_faults``; if the kernel reports them: ``cpu_s``, ``queued_s``,
            ``throttled_s``, ``machine_s`` (all CPUs of the machine, which has ``cores``), ``jvm_gc_s`` (Spark's JVM);
            samples by line: ``frames``, and by whole stack: ``stacks``, "on" and "off" a CPU.
        """
        found: dict[str, Any] = {"gc_s": self._gc_s, "stopped_s": self._stopped_s}
        now = self._last = _schedule(self._path) or self._last  # the last value, if the thread has ended
        if now is not None and self._begin is not None:
            found["cpu_s"], found["queued_s"] = now[0] - self._begin[0], now[1] - self._begin[1]
        found["major_faults"] = max(0, _major_faults(self._stat) - self._faults)
        throttled, machine = throttled_s(self._cgroup), machine_s()
        if throttled is not None and self._throttled is not None:
            found["throttled_s"] = throttled - self._throttled
        if machine is not None and self._machine is not None:
            found["machine_s"], found["cores"] = machine - self._machine, os.cpu_count() or 1
        jvm = jvm_gc_s()
        if jvm is not None and self._jvm is not None:
            found["jvm_gc_s"] = jvm - self._jvm
        stacks = {name: dict(kind.most_common(MOST_FRAMES)) for name, kind in self._stacks.items() if kind}
        return {
            **found,
            "frames": dict(self._frames.most_common(MOST_FRAMES)),
            **({"stacks": stacks} if stacks else {}),
        }

    def close(self) -> None:
        """Stop observing garbage collections."""
        gc.callbacks.remove(self._collects)
