"""Every interleaving of a memfd channel: a writer, a reader in another process and its death (``shared_block.pxd``).

One shared access a step; the eventcount on which both sleep (``fb_event.h``), and what a writer is woken for, have
models of their own (``test_event_model.py``).
"""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from explorer import Process, Violation, explore


class SharedBlockWorld:
    """Buffers 1 .. n over a few segments; `ends`: how the writer ends, `has_enough`: when the reader cancels."""

    def __init__(
        self, segments: int, bound: int, buffers: int, ends: str, dies: bool, has_enough: int = 99, without: str = ""
    ) -> None:
        self.rings = 0  # of the writer's doorbell
        self.bound, self.buffers, self.ends, self.without, self.has_enough = bound, buffers, ends, without, has_enough
        # shared
        self.slots = [(0, 0)] * bound  # (segment, number of the buffer that is in it)
        self.tail = self.head = 0
        self.ended = self.reader_ended = ""
        self.revoked = self.reading = 0
        # the writer's own
        self.queue: tuple[int, ...] = ()  # segments between its head and its tail
        self.mine = 0  # its head
        self.closed = False
        # ghosts
        self.home = [True] * segments
        self.content = [0] * segments
        self.using = -1
        self.had: tuple[int, ...] = ()
        self.dead = self.done = False
        self.fault = ""
        self.processes: list[Process] = [self.writer(), self.reader()]
        if dies:
            self.processes.append(self.death())

    # --- the writer's process -----------------------------------------------------------------------------------------

    def writer(self) -> Process:
        number = 0
        while number < self.buffers and not self.closed:
            while not self.closed and (len(self.queue) >= self.bound or True not in self.home):
                yield from self.collect_or_sleep()
            if self.closed:
                break
            number += 1
            segment = self.home.index(True)
            yield
            self.home[segment], self.content[segment] = False, number
            self.slots[(number - 1) % self.bound] = (segment, number)
            self.queue = (*self.queue, segment)
            yield
            self.tail = number
        yield
        self.ended = self.ends
        if self.ends == "aborted" and not self.closed:
            yield
            self.revoked = 1
            if self.without != "wait for the reader":
                yield lambda: not self.reading or self.dead
            yield from self.take_back()
        while not self.closed:
            yield from self.collect_or_sleep()
        self.done = True

    def collect_or_sleep(self) -> Process:
        yield
        rings, mine = self.rings, self.mine
        yield from self.collect()
        if self.mine == mine and not self.closed:
            yield lambda: self.rings != rings or self.dead

    def collect(self) -> Process:
        if self.without == "the reader's end before its head":
            yield
            head = self.head
            yield
            how = self.reader_ended
        else:
            yield
            how = self.reader_ended
            yield
            head = self.head
        while self.mine != head:
            self.to_home()
        if how or self.dead:  # the control line has ended, or will
            if how == "done" and self.queue:
                self.fault = "the reader has had everything, and something is still lent"
            yield from self.take_back()

    def take_back(self) -> Process:
        yield
        while self.queue:
            self.to_home()
        self.closed = True

    def to_home(self) -> None:
        segment, self.queue = self.queue[0], self.queue[1:]
        if self.home[segment]:
            self.fault = f"segment {segment} went home twice"
        if segment == self.using and not self.dead:
            self.fault = f"segment {segment} went home while it was read"
        self.home[segment] = True
        self.mine += 1

    # --- the reader's process; each step needs it to live -------------------------------------------------------------

    def reader(self) -> Process:
        alive = lambda: not self.dead  # noqa: E731
        head = told = 0
        looked = -1  # at this head it has looked once though nothing was there; then it sleeps
        while True:
            yield lambda head=head, looked=looked: not self.dead and (self.tail != head or self.ended or looked != head)
            looked = head
            ended = self.ended
            entered = False
            if self.without == "the end before the tail":
                yield alive
                tail = self.tail
                yield alive
                ended = self.ended
            else:
                yield alive
                tail = self.tail
            if ended == "aborted" or (ended and tail == head) or head >= self.has_enough:
                yield alive
                self.reader_ended = "cancelled" if ended == "aborted" or head >= self.has_enough else "done"
                self.rings += 1
                if self.reader_ended == "done" and head != self.buffers:
                    self.fault = "the end was seen before the last buffer"
                return
            if tail == head:
                continue
            while head != tail and head < self.has_enough:
                segment, number = self.slots[head % self.bound]
                if not entered:  # once for all that is there
                    yield alive
                    self.reading = 1
                    entered = True
                yield alive
                if self.revoked:
                    break
                if self.home[segment] or self.content[segment] != number:
                    self.fault = f"buffer {number} is read in segment {segment}, which is not lent for it"
                self.using = segment
                yield alive
                if self.without != "the return after the last look":
                    self.using = -1
                self.had = (*self.had, number)
                head += 1
                self.head = head
                if self.using >= 0:
                    yield alive
                    self.using = -1
                if head - told == TELL_EVERY:
                    yield alive
                    self.rings += 1
                    told = head
            if entered:
                yield alive
                self.reading = 0
            if head != told and self.without != "what was not told yet is told at the end":
                yield alive
                self.rings += 1
                told = head

    def death(self) -> Process:
        yield
        self.dead = True

    # --- what must hold -----------------------------------------------------------------------------------------------

    def key(self) -> Hashable:
        return (
            (*self.slots, *self.home, *self.content, self.queue, self.had, self.using, self.fault, self.closed),
            (self.tail, self.head, self.mine, self.ended, self.reader_ended, self.revoked, self.reading, self.dead),
            self.rings,
        )

    def check(self) -> None:
        assert not self.fault, self.fault
        assert len(self.queue) <= self.bound
        assert self.had == tuple(range(1, len(self.had) + 1)), f"buffers were read as {self.had}"

    def check_end(self, asleep: list[int]) -> None:
        assert 0 not in asleep, "the writer's process waits for ever"
        assert self.dead or not asleep, "the reader waits for ever"
        assert all(self.home), "a segment did not come home"
        if self.ends == "done" and not self.dead and self.has_enough > self.buffers:
            assert len(self.had) == self.buffers


TELL_EVERY = 2  # 4 in shared_reader.pxd; either side of it is looked at here


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("ends", ["done", "aborted"])
@pytest.mark.parametrize(
    ("segments", "bound", "buffers", "enough"), [(1, 1, 3, 99), (2, 2, 4, 99), (3, 2, 4, 2), (3, 3, 4, 99)]
)
def test_a_shared_block(segments: int, bound: int, buffers: int, enough: int, ends: str, dies: bool) -> None:
    assert explore(lambda: SharedBlockWorld(segments, bound, buffers, ends, dies, enough)) > 40


@pytest.mark.parametrize(
    ("without", "ends", "bound"),
    [
        ("wait for the reader", "aborted", 2),
        ("the return after the last look", "done", 2),
        ("the reader's end before its head", "done", 2),
        ("the end before the tail", "done", 2),
        ("what was not told yet is told at the end", "done", 1),
    ],
)
def test_the_model_finds_what_is_left_out(without: str, ends: str, bound: int) -> None:
    with pytest.raises(Violation):
        explore(lambda: SharedBlockWorld(bound, bound, 4, ends, False, 99, without))


class ArmWorld:
    """``bell_arm`` and ``bell_ring``: an event loop sleeps on its eventfd, once it is armed and nothing was there."""

    def __init__(self, notices: int, without: str = "") -> None:
        self.without = without
        self.notices = notices
        self.condition = self.word = self.armed = self.signals = 0
        self.processes: list[Process] = [self.loop(), *(self.notifier() for _ in range(notices))]

    def loop(self) -> Process:
        while True:
            yield
            self.signals = 0
            yield
            if self.without != "a look after it is armed":
                self.armed = 1
                yield
                self.word += 1
            yield
            if self.condition == self.notices:
                return
            if self.without == "a look after it is armed":
                yield
                self.armed = 1
            yield lambda: self.signals > 0

    def notifier(self) -> Process:
        yield
        self.condition += 1
        yield
        self.word += 1
        yield
        armed = self.armed
        if armed:
            yield
            armed, self.armed = self.armed, 0
            if armed:
                yield
                self.signals += 1

    def key(self) -> Hashable:
        return self.condition, self.word, self.armed, self.signals

    def check(self) -> None:
        pass

    def check_end(self, asleep: list[int]) -> None:
        assert not asleep, "something came, and the event loop sleeps"


def test_an_armed_doorbell_wakes_its_loop() -> None:
    assert explore(lambda: ArmWorld(2)) > 50


def test_the_model_finds_a_bell_that_is_armed_too_late() -> None:
    with pytest.raises(Violation):
        explore(lambda: ArmWorld(2, "a look after it is armed"))
