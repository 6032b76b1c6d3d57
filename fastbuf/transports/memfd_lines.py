"""The control lines of an environment's memfd channels.

An environment may have thousands: whatever happens to one must not look at the others. So they stand by their gate or
partition, by descriptor, and in the order in which they are due to be checked.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import Any

from fastbuf.exchange.clock import monotonic
from fastbuf.exchange.shared_lender import SharedWriter
from fastbuf.exchange.shared_reader import SharedReader

PING_ASKS, PING_ANSWERS = b"?", b"!"
SILENT = 2  #: checks in a row without a sign of life; the second comes one interval after the PING
_CPU_CLOCK = 2  # CPUCLOCK_SCHED of <linux/posix-timers.h>


def pid_of(sock: socket.socket) -> int:
    """The pid of the process at the other end; 0: not visible from here."""
    with contextlib.suppress(OSError):  # a sandbox denies it
        return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
    return 0


def _pidfd(pid: int) -> int:
    """A pidfd for that process; -1: it is not visible.

    EOF of the socket is not enough: a forked child of the peer has a duplicate of it.
    """
    if pid > 0 and pid != os.getpid() and hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return -1


class Line:
    """The control line of one connected channel."""

    def __init__(
        self, sock: socket.socket, end: SharedWriter | SharedReader, owner: Any, channel: int, ping_s: float
    ) -> None:
        self.sock = sock
        self.end = end
        self.owner = owner  # the gate or partition
        self.channel = channel
        self.pid = pid_of(sock)
        self.pidfd = _pidfd(self.pid)
        self.open = True
        self.ping_s = ping_s
        self.due = monotonic() + ping_s  # time of the next check
        self._heard = False  # bytes arrived since the last check
        self._cpu_ns = self._used()
        self._silent = 0  # checks in a row without a sign of life

    @property
    def lends(self) -> bool:
        """Whether this is the writer's end."""
        return isinstance(self.end, SharedWriter)

    def descriptors(self) -> list[int]:
        """Those to watch; empty: it is closed."""
        return [fd for fd in (self.sock.fileno(), self.pidfd) if fd >= 0] if self.open else []

    def close(self) -> None:
        if self.open:
            self.open = False
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)  # close is not enough: a forked child may hold a duplicate
            self.sock.close()
            if self.pidfd >= 0:
                os.close(self.pidfd)

    def hear(self) -> bool:
        """Read and answer the peer's messages; False: the line has ended."""
        try:
            messages = self.sock.recv(4096)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._heard = self._heard or bool(messages)
        if PING_ASKS in messages:
            self._say(PING_ANSWERS)
        return bool(messages)

    def _say(self, word: bytes) -> None:
        with contextlib.suppress(OSError):  # if it is gone, or does not read its messages, a later check finds out
            self.sock.send(word)

    def _used(self) -> int:
        """CPU time of the peer's process; 0: not visible."""
        if self.pidfd >= 0:
            with contextlib.suppress(OSError):
                return time.clock_gettime_ns(~self.pid << 3 | _CPU_CLOCK)
        return 0

    def look(self, now: float) -> None:
        """Send PING to a peer without a sign of life since the last check; if it stays silent, it is lost.

        CPU time counts as a sign of life: a thread that holds the peer's GIL may delay its answers for long.
        """
        self.due = now + self.ping_s
        used = self._used()
        self._silent = 0 if self._heard or used != self._cpu_ns else self._silent + 1
        self._heard, self._cpu_ns = False, used
        if self._silent >= SILENT:
            self.due = math.inf
            self.silent(
                f"it gave no sign of life, and no answer to a PING, for {SILENT * self.ping_s:.4g} s "
                f"(ping_interval_s {self.ping_s:.4g})"
            )
        elif self._silent:
            self._say(PING_ASKS)

    def silent(self, why: str) -> None:
        """The peer is stopped: fail its writer or gate.  The line stays open, so that a peer that continues is told."""
        if isinstance(self.end, SharedWriter):
            self.end.silent(why)
        else:
            self._lose(why)

    def lost(self, why: str) -> None:
        """The peer is dead, or has closed the line."""
        if isinstance(self.end, SharedWriter):
            self.end.lost(why)
        else:
            self._lose(why)

    def _lose(self, why: str) -> None:
        assert isinstance(self.end, SharedReader)
        if not self.end.has_ended():
            self.owner.lose(
                self.end,
                f"producer {self.end.peer} (channel {self.channel}) was lost without its end of partition, after "
                f"{self.end.received_so_far()} buffers: {why}",
            )


class Lines:
    """All lines of an environment, and which of them are watched; the caller holds the transport's lock.

    The watcher's thread has the selector even after its environment was forgotten. So the selector must not know lines,
    only their descriptors.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._all: dict[Line, None] = {}
        self._of: dict[Any, dict[Line, None]] = {}
        self._new: dict[Line, None] = {}  # not watched yet
        self._watched: dict[int, Line] = {}
        # By ping interval. Those of one are due in the order in which they were last checked.
        self._due: dict[float, OrderedDict[Line, None]] = {}
        self.lenders: dict[Line, None] = {}  #: those of writers

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Line]:
        return iter(list(self._all))

    def of(self, owner: Any) -> Collection[Line]:
        """Those of that gate or partition."""
        return list(self._of.get(owner, ()))

    def add(self, line: Line) -> None:
        """Add it: it is watched from the next :meth:`watch_new` on."""
        self._all[line] = None
        self._of.setdefault(line.owner, {})[line] = None
        self._new[line] = None
        self._due.setdefault(line.ping_s, OrderedDict())[line] = None
        if line.lends:
            self.lenders[line] = None

    def watch_new(self) -> None:
        """Watch those that were added; called by the thread that waits for the selector.

        So what the selector has told this thread is never of a later line whose descriptor has the same number.
        """
        for line in self._new:
            for fd in line.descriptors():
                self._watched[fd] = line
                self._selector.register(fd, selectors.EVENT_READ)
        self._new.clear()

    def watched(self, fd: int) -> Line | None:
        """The one with that descriptor."""
        return self._watched.get(fd)

    def hang_up(self, line: Line) -> None:
        """Close it, and watch it no more."""
        for fd in line.descriptors():
            if self._watched.pop(fd, None) is not None:
                self._selector.unregister(fd)
        self._forget_check(line)
        line.close()

    def remove(self, line: Line) -> None:
        """Close and forget it."""
        self.hang_up(line)
        if line in self._all:
            del self._all[line]
            self._new.pop(line, None)
            self.lenders.pop(line, None)
            siblings = self._of[line.owner]
            del siblings[line]
            if not siblings:
                del self._of[line.owner]
        line.owner = None

    def next_check(self) -> float:
        """When the next one is due to be checked (monotonic)."""
        return min((next(iter(lines)).due for lines in self._due.values()), default=math.inf)

    def check(self, now: float) -> None:
        """Check those that are due."""
        for lines in list(self._due.values()):
            while lines and (line := next(iter(lines))).due <= now:
                line.look(now)
                if line.due < math.inf:
                    lines.move_to_end(line)
                else:
                    self._forget_check(line)

    def _forget_check(self, line: Line) -> None:
        lines = self._due.get(line.ping_s)
        if lines is not None:
            lines.pop(line, None)
            if not lines:
                del self._due[line.ping_s]
