"""Every interleaving of writers that take the I/O loop's turn, and the I/O thread (``tcp_loop.pxd``).

Writers push streams and, if the turn is free, do what is to do; a thread that holds a lock only pushes and wakes.
Forbidden: a stream is on the stack when nobody has the turn and the I/O thread sleeps; two have the turn; a stream is
not looked at after it was marked last; a connection is freed while an event of it is still to be looked at, or never.
"""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from explorer import Process, Violation, explore


class TurnWorld:
    """Streams 0 .. n - 1; `work` counts what was asked for, `seen` what the holder of the turn found."""

    def __init__(self, marks: tuple[tuple[int, ...], ...], wakers: int = 0, dies: int = -1, without: str = "") -> None:
        self.without = without
        streams = 1 + max(s for marked in marks for s in marked)
        self.dirty = [False] * streams
        self.stack: tuple[int, ...] = ()
        self.turn = ""  # who has it
        self.sleeping = False
        self.eventfd = False
        self.left = False  # a guest found something that is the I/O thread's business
        self.work, self.seen = [0] * streams, [0] * streams
        self.dies = dies  # the stream whose connection turns out to be lost when it is written to
        self.dead = self.freed = self.running = self.event = False
        self.fault = ""
        self.processes: list[Process] = [
            self.writer(f"writer {k}", marked, k >= len(marks) - wakers) for k, marked in enumerate(marks)
        ]
        self.processes.append(self.io())
        if dies >= 0:
            self.processes.append(self.peer())

    # --- what any thread does

    def push(self, stream: int) -> Process:
        yield
        self.work[stream] += 1
        yield  # the exchange of the stream's own flag
        if self.dirty[stream]:
            return False
        self.dirty[stream] = True
        yield  # the CAS
        self.stack = (stream, *self.stack)
        return True

    def wake(self) -> Process:
        yield  # an exchange
        was, self.sleeping = self.sleeping, False
        if was:
            yield
            self.eventfd = True

    def run_dirty(self, who: str) -> Process:
        yield
        taken, self.stack = self.stack, ()
        while taken:
            yield
            if self.without != "flag after the look":
                self.dirty[taken[0]] = False
                yield
            if self.turn != who:
                self.fault = f"{who} works without the turn, {self.turn or 'nobody'} has it"
            self.seen[taken[0]] = self.work[taken[0]]
            if taken[0] == self.dies and not self.freed:
                self.dead = self.running = True  # the write failed: to be buried
                self.event = False  # off epoll; what it has told already is the I/O thread's `told`
            if self.without == "flag after the look":
                yield
                self.dirty[taken[0]] = False
            taken = taken[1:]

    def bury(self) -> None:
        if self.running and self.dead:
            self.running, self.freed = False, True

    # --- threads

    def writer(self, who: str, marked: tuple[int, ...], holds_a_lock: bool) -> Process:
        at = 0
        while at < len(marked):
            pushed = yield from self.push(marked[at])
            at += 1
            if holds_a_lock:
                if pushed:
                    yield from self.wake()
                continue
            while pushed:
                yield  # T2: the fence, and the look at the stack
                if not self.stack:
                    break
                yield  # the turn is tried
                if self.turn:
                    break
                self.turn = who
                yield from self.run_dirty(who)
                if self.without == "only the I/O thread buries":
                    self.bury()
                ending = self.dead and not self.freed
                yield
                self.turn = ""
                if ending:
                    if self.without != "say what is left":
                        yield
                        self.left = True
                    yield from self.wake()
                if self.without == "look again":
                    break

    def io(self) -> Process:
        while True:
            yield
            self.sleeping = True
            if self.without != "look before sleep":
                yield  # T4
                if not self.stack:
                    yield
                    left, self.left = self.left, False
                    if not left:
                        yield lambda: self.eventfd or self.event
            else:
                yield lambda: self.eventfd or self.event
            self.eventfd = False
            told, self.event = self.event, False
            yield
            self.sleeping = False
            yield lambda: not self.turn
            self.turn = "io"
            if told and self.freed:
                self.fault = "an event of a connection that was freed"
            yield from self.run_dirty("io")
            self.bury()
            yield
            self.turn = ""

    def peer(self) -> Process:
        yield lambda: not self.freed
        if not self.dead:
            self.event = True  # epoll tells of the connection once more

    # --- what must hold

    def key(self) -> Hashable:
        return (
            tuple(self.dirty),
            self.stack,
            self.turn,
            self.sleeping,
            self.eventfd,
            self.left,
            tuple(self.work),
            tuple(self.seen),
            (self.dead, self.freed, self.running, self.event),
        )

    def check(self) -> None:
        assert not self.fault, self.fault

    def check_end(self, asleep: list[int]) -> None:
        assert not self.turn, f"{self.turn} keeps the turn"
        assert not self.stack, f"streams {self.stack} are marked, and everybody sleeps"
        assert self.seen == self.work, f"asked {self.work} times, looked at after {self.seen}"
        assert self.freed or not self.dead, "a lost connection is not buried"


@pytest.mark.parametrize(
    ("marks", "wakers", "dies"),
    [
        (((0,), (1,)), 0, -1),
        (((0, 0), (0,)), 0, -1),
        (((0, 1), (1,)), 1, -1),
        (((0,), (1,), (0,)), 1, -1),
        (((0,), (1,)), 0, 0),
        (((0, 0), (0,)), 1, 0),
    ],
)
def test_whatever_is_marked_is_looked_at(marks: tuple[tuple[int, ...], ...], wakers: int, dies: int) -> None:
    assert explore(lambda: TurnWorld(marks, wakers, dies)) > 100


@pytest.mark.parametrize(
    ("without", "marks", "wakers", "dies"),
    [
        ("look again", ((0,), (1,)), 0, -1),
        ("look before sleep", ((0,), (1,)), 1, -1),
        ("flag after the look", ((0, 0), (0,)), 0, -1),
        ("say what is left", ((0,), (1,)), 0, 0),
        ("only the I/O thread buries", ((0,), (1,)), 0, 0),
    ],
)
def test_the_model_finds_what_each_step_is_for(
    without: str, marks: tuple[tuple[int, ...], ...], wakers: int, dies: int
) -> None:
    with pytest.raises(Violation):
        explore(lambda: TurnWorld(marks, wakers, dies, without))
