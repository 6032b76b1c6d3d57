"""What the kernel and the interpreter know of a task: CPU time, pauses, and the lines of code that it runs."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import random
import re
import sys
import sysconfig
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

LATE_S = 0.15  #: a sample this late means that the process may have been stopped
STACK_S = 1.0  #: interval between two samples of the whole stack
MOST_FRAMES = 5
LATE_FRAMES, LATE_SAMPLES = 2, 32  #: so many of them are the most frequent ones of the last samples
MOST_MISSED = 5  #: a late sample counts for at most so many, as the thread may have had no work between
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


_SPARKS = re.compile(r"/(pyspark|py4j-[^/]*)\.zip/")


@functools.lru_cache(4096)
def _is_users(filename: str) -> bool:
    # Spark ships itself as archives; the user's may be archives as well
    return not filename.startswith((*_not_the_users(), "<frozen")) and not _SPARKS.search(filename)


@functools.lru_cache(4096)
def _starts_tasks(filename: str) -> bool:
    """Whether it is Spark's daemon, behind which there is no code of a task, whatever module has started it."""
    return filename.endswith(os.path.join("pyspark", "daemon.py"))


def _named(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"


def line_of(frame: FrameType | None) -> str | None:
    """The innermost line of user code: ``"etl.py:41 normalize"``."""
    while frame is not None and not _starts_tasks(frame.f_code.co_filename):
        if _is_users(frame.f_code.co_filename):
            return _named(frame)
        frame = frame.f_back
    return None


def stack_of(frame: FrameType | None) -> str:
    """The stack from the outermost line of user code on, in flame graph format: outermost first, with semicolons."""
    names: list[str] = []
    users = 0
    while frame is not None and len(names) < DEEPEST and not _starts_tasks(frame.f_code.co_filename):
        names.append(_named(frame).replace(";", ","))
        users = len(names) if _is_users(frame.f_code.co_filename) else users
        frame = frame.f_back
    return ";".join(reversed(names[: users or len(names)]))


class _File:
    """A file in /proc or /sys that is read many times, and so stays open: opening takes longer than reading."""

    def __init__(self, path: str) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY)
        except OSError:
            self._fd = -1

    def read(self) -> bytes:
        """Its first 1,024 bytes; none if the kernel has no such file, or its thread has ended."""
        try:
            return os.pread(self._fd, 1024, 0)
        except OSError:
            return b""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _schedule(file: _File) -> tuple[float, float] | None:
    """Seconds on a CPU, and seconds ready to run but without one; None: the kernel does not report them."""
    words = file.read().split()
    return (int(words[0]) / 1e9, int(words[1]) / 1e9) if len(words) > 1 else None


def _major_faults(file: _File) -> int:
    words = file.read().rpartition(b")")[2].split()
    return int(words[9]) if len(words) > 9 else 0


def _machine_s(file: _File) -> float | None:
    """Seconds that all CPUs of this machine were busy; None: not known."""
    words = file.read().split(maxsplit=8)[1:8]
    if len(words) < 7:
        return None
    user, nice, system, _, _, irq, soft = map(int, words)
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


@functools.cache
def _throttle_file() -> str:
    """The file in which this process's control group reports how long it was throttled; empty: there is none."""
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return f"/sys/fs/cgroup{line[3:]}/cpu.stat"
    except OSError:
        pass
    return ""


def _throttled_s(file: _File) -> float | None:
    """Seconds that a limit of the control group kept it from running; None: there is no such limit."""
    words = file.read().partition(b"throttled_usec")[2].split()
    return int(words[0]) / 1e6 if words else None


def _comm(process: Path) -> str:
    """The name of a process or thread, with its end of line; empty: it has ended."""
    try:
        return (process / "comm").read_text()
    except OSError:
        return ""


@functools.cache
def _collectors(proc: str = "/proc") -> tuple[str, ...]:
    """CPU time files of the garbage collector threads of the JVM that started this process; empty: there is no JVM.

    One thread is enough: the first thread of G1 and of the parallel collector takes part in every collection, and the
    serial collector runs in the VM thread.
    """
    pid = os.getpid()
    try:
        for _ in range(4):  # the worker, Spark's daemon, the JVM
            if _comm(Path(f"{proc}/{pid}")) == "java\n":
                tasks = Path(f"{proc}/{pid}/task")
                # The kernel lists threads as they were started, collectors among the first.  Numbers may begin anew
                threads = map(tasks.joinpath, os.listdir(tasks))
                files = (thread / "schedstat" for thread in threads if _comm(thread) in COLLECTORS)
                return tuple(map(str, itertools.islice(files, len(COLLECTORS))))
            pid = int(Path(f"{proc}/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return ()


def _jvm_gc_s(files: list[_File]) -> float | None:
    """Seconds in which the JVM's collector ran or waited for a CPU, and other threads were stopped; None: no JVM."""
    schedules = [_schedule(file) for file in files]
    return sum(sum(each) for each in schedules if each is not None) if any(schedules) else None


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


def _grown(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """What has been added to figures; entries of tables that have not grown are left out."""
    grown: dict[str, Any] = {}
    for name, value in now.items():
        if isinstance(value, Mapping):
            grown[name] = {key: more for key, more in _grown(value, before.get(name, {})).items() if more}
        else:
            grown[name] = value - before.get(name, 0)
    return grown


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
        self._times, self._stat = _File(f"{folder}/schedstat"), _File(f"{folder}/stat")
        self._cpus, self._limit = _File("/proc/stat"), _File(_throttle_file())
        self._collectors = [_File(path) for path in _collectors()]
        self._looker: tuple[int, _File] | None = None  # the thread that looked last, and its times
        self._begin = self._last = _schedule(self._times)
        self._faults = _major_faults(self._stat)
        self._throttled = _throttled_s(self._limit)
        self._machine = _machine_s(self._cpus)
        self._jvm = _jvm_gc_s(self._collectors)
        self._frames: Counter[str] = Counter()
        self._lately: deque[str] = deque(maxlen=LATE_SAMPLES)
        self._stacks: dict[str, Counter[str]] = {"on": Counter(), "off": Counter()}
        self._stacked: tuple[float, float] | None = None  # when the last whole stack was taken, and its CPU time then
        self._looked, self._ran = time.monotonic(), sum(self._begin or ())
        self._moved = float("-inf")  # until the first sample, since another thread takes it
        self._stopped_s = self._gc_s = 0.0
        self._collecting: float | None = None
        self._final: dict[str, Any] | None = None
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

    def _movement(self, task: tuple[float, float] | None) -> float:
        """Seconds that grow unless the process is stopped: CPU time, and time that task and sampler wait for a CPU."""
        me = threading.get_ident()
        if self._looker is None or self._looker[0] != me:
            if self._looker is not None:
                self._looker[1].close()
            self._looker = me, _File("/proc/thread-self/schedstat")
        waits = (task, _schedule(self._looker[1]))
        return time.process_time() + sum(schedule[1] for schedule in waits if schedule is not None)

    def look(self, due: float, busy: bool) -> None:
        """Take a sample, which was due at ``due`` (monotonic); busy: the task's state is "runs"."""
        task = _schedule(self._times)
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
            self._lately.append(line)
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
                missed = round((now - since) / STACK_S)  # a late sample also counts for those missed
                kind[stack] += max(1, min(MOST_MISSED, missed))
            self._stacked = now, used[0]

    def figures(self, since: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Figures since it was made, until it was closed.

        Parameters
        ----------
        since
            An earlier :meth:`mark`: only what came after it.

        Returns
        -------
        dict
            ``gc_s``, ``stopped_s``, ``major_faults``; if the kernel reports them: ``cpu_s``, ``queued_s``,
            ``throttled_s``, ``machine_s`` (all CPUs of the machine, which has ``cores``), ``jvm_gc_s`` (Spark's JVM);
            samples by line: ``frames``, and by whole stack: ``stacks``, "on" and "off" a CPU.
        """
        figures = self.mark()
        if since is not None:
            figures = _grown(figures, since)
        stacks = {
            name: dict(Counter(kind).most_common(MOST_FRAMES)) for name, kind in figures.pop("stacks").items() if kind
        }
        # The most frequent lines, and of late: in a long run a new line takes long to be among the former
        late = [line for line, _ in Counter(self._lately).most_common(LATE_FRAMES) if line in figures["frames"]]
        often = [line for line, _ in Counter(figures["frames"]).most_common()]
        lines = list(dict.fromkeys((*often[: MOST_FRAMES - LATE_FRAMES], *late, *often)))
        return {
            **figures,
            **({"cores": os.cpu_count() or 1} if "machine_s" in figures else {}),
            "frames": {line: figures["frames"][line] for line in lines[:MOST_FRAMES]},
            **({"stacks": stacks} if stacks else {}),
        }

    def mark(self) -> dict[str, Any]:
        """The figures now, with all lines and stacks: :meth:`figures` takes them as the start of another use."""
        if self._final is not None:
            return dict(self._final)
        figures: dict[str, Any] = {"gc_s": self._gc_s, "stopped_s": self._stopped_s}
        now = self._last = _schedule(self._times) or self._last  # the last value, if the thread has ended
        if now is not None and self._begin is not None:
            figures["cpu_s"], figures["queued_s"] = now[0] - self._begin[0], now[1] - self._begin[1]
        figures["major_faults"] = max(0, _major_faults(self._stat) - self._faults)
        throttled, machine = _throttled_s(self._limit), _machine_s(self._cpus)
        if throttled is not None and self._throttled is not None:
            figures["throttled_s"] = throttled - self._throttled
        if machine is not None and self._machine is not None:
            figures["machine_s"] = machine - self._machine
        jvm = _jvm_gc_s(self._collectors)
        if jvm is not None and self._jvm is not None:
            figures["jvm_gc_s"] = jvm - self._jvm
        return {
            **figures,
            "frames": dict(self._frames),
            "stacks": {name: dict(kind) for name, kind in self._stacks.items()},
        }

    def close(self) -> None:
        """Stop observing, and close the files."""
        if self._final is not None:
            return
        self._final = self.mark()
        gc.callbacks.remove(self._collects)
        for file in (self._times, self._stat, self._cpus, self._limit, *self._collectors):
            file.close()
        if self._looker is not None:
            self._looker[1].close()
