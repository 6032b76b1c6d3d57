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
                yield lambda: self.head != self.mine or self.reader_ended or self.dead
                yield from self.collect()
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
            yield lambda: self.head != self.mine or self.reader_ended or self.dead
            yield from self.collect()
        self.done = True

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
        head = 0
        looked = -1  # at this head it has looked once though nothing was there; then it sleeps
        while True:
            yield lambda head=head, looked=looked: not self.dead and (self.tail != head or self.ended or looked != head)
            looked = head
            ended = self.ended
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
                if self.reader_ended == "done" and head != self.buffers:
                    self.fault = "the end was seen before the last buffer"
                return
            if tail == head:
                continue
            segment, number = self.slots[head % self.bound]
            yield alive
            self.reading = 1
            yield alive
            if self.revoked:
                yield alive
                self.reading = 0
                continue
            if self.home[segment] or self.content[segment] != number:
                self.fault = f"buffer {number} is read in segment {segment}, which is not lent for it"
            self.using = segment
            yield alive
            self.using = -1
            self.had = (*self.had, number)
            if self.without != "the return after the last look":
                self.reading = 0
                yield alive
                head += 1
                self.head = head
            else:
                self.using = segment
                head += 1
                self.head = head
                yield alive
                self.using, self.reading = -1, 0

    def death(self) -> Process:
        yield
        self.dead = True

    # --- what must hold -----------------------------------------------------------------------------------------------

    def key(self) -> Hashable:
        return (
            (*self.slots, *self.home, *self.content, self.queue, self.had, self.using, self.fault, self.closed),
            (self.tail, self.head, self.mine, self.ended, self.reader_ended, self.revoked, self.reading, self.dead),
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


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("ends", ["done", "aborted"])
@pytest.mark.parametrize(("segments", "bound", "buffers", "enough"), [(1, 1, 3, 99), (2, 2, 4, 99), (3, 2, 4, 2)])
def test_a_shared_block(segments: int, bound: int, buffers: int, enough: int, ends: str, dies: bool) -> None:
    assert explore(lambda: SharedBlockWorld(segments, bound, buffers, ends, dies, enough)) > 40


@pytest.mark.parametrize(
    ("without", "ends"),
    [
        ("wait for the reader", "aborted"),
        ("the return after the last look", "done"),
        ("the reader's end before its head", "done"),
        ("the end before the tail", "done"),
    ],
)
def test_the_model_finds_what_is_left_out(without: str, ends: str) -> None:
    with pytest.raises(Violation):
        explore(lambda: SharedBlockWorld(2, 2, 4, ends, False, 99, without))
