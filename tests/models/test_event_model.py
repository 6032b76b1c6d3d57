"""Every interleaving of the eventcount (``fb_event.h``), of a burst, and of a writer that is not to be woken often."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from explorer import Process, Violation, explore


class EventWorld:
    """Waiters that look before they announce themselves, and notifiers; the futex compares and sleeps in one step."""

    def __init__(self, waiters: int, notices: int, without: str = "") -> None:
        self.without = without
        self.epoch = self.asleep_bit = self.condition = 0
        self.sleeping = [False] * waiters
        self.notices = notices
        self.system_calls = 0  # how many notifiers woke somebody, or tried to
        self.processes: list[Process] = [
            *(self.waiter(i) for i in range(waiters)),
            *(self.notifier() for _ in range(notices)),
        ]

    def waiter(self, i: int) -> Process:
        while True:
            yield
            key = self.epoch  # W0
            yield
            if self.condition == self.notices:  # W2
                return
            yield
            self.asleep_bit = 1  # W1: one word, one step
            if self.epoch != key:
                if self.without != "the epoch of before":
                    continue
                key = self.epoch
            yield  # W3: the kernel compares and sleeps under its lock
            if self.epoch == key:
                self.sleeping[i] = True
                yield lambda: not self.sleeping[i]

    def notifier(self) -> Process:
        yield
        self.condition += 1  # N1
        yield
        asleep = self.asleep_bit  # N2: one word, one step
        self.epoch += 1
        if self.without == "one step":
            if asleep:
                yield
                asleep = self.asleep_bit
                self.asleep_bit = 0
        else:
            self.asleep_bit = 0
        if asleep:
            yield
            self.system_calls += 1
            self.sleeping = [False] * len(self.sleeping)

    def key(self) -> Hashable:
        return self.epoch, self.asleep_bit, self.condition, tuple(self.sleeping), self.system_calls

    def check(self) -> None:
        assert self.system_calls <= self.notices

    def check_end(self, asleep: list[int]) -> None:
        assert not asleep, "the condition holds, and a waiter sleeps"


@pytest.mark.parametrize(("waiters", "notices"), [(1, 3), (2, 2)])
def test_the_eventcount_loses_no_wake_up(waiters: int, notices: int) -> None:
    assert explore(lambda: EventWorld(waiters, notices)) > 100


@pytest.mark.parametrize(("waiters", "notices", "without"), [(1, 2, "the epoch of before"), (2, 2, "one step")])
def test_the_model_finds_a_lost_wake_up(waiters: int, notices: int, without: str) -> None:
    with pytest.raises(Violation):
        explore(lambda: EventWorld(waiters, notices, without))


class BurstWorld:
    """A notifier of `buffers` in a row that only looks who sleeps (``fb_event_asleep``), and notifies after the last.

    What it stores is seen later than it goes on (`on_the_way`, in order); a read-modify-write of its waits for that.
    The waiter takes what is there, and looks once more between its announcement and its sleep, or does not.
    """

    def __init__(self, buffers: int, looks_again: bool, without: str = "") -> None:
        self.buffers, self.looks_again, self.without = buffers, looks_again, without
        self.on_the_way = self.seen = self.taken = 0
        self.epoch = self.asleep_bit = 0
        self.sleeping = self.stopped = False
        self.processes: list[Process] = [self.waiter(), self.notifier(), self.store_buffer()]

    def waiter(self) -> Process:
        while True:
            yield
            key = self.epoch
            yield
            self.taken = self.seen
            if self.taken == self.buffers:
                return
            yield
            self.asleep_bit = 1
            if self.epoch != key:
                continue
            if self.looks_again:
                yield
                if self.seen > self.taken:
                    continue
            yield
            if self.epoch == key:
                self.sleeping = True
                yield lambda: not self.sleeping

    def notify(self) -> Process:
        yield lambda: not self.on_the_way  # the read-modify-write
        asleep, self.asleep_bit = self.asleep_bit, 0
        self.epoch += 1
        if asleep:
            yield
            self.sleeping = False

    def notifier(self) -> Process:
        for _ in range(self.buffers):
            yield
            self.on_the_way += 1
            yield
            if self.asleep_bit:
                yield from self.notify()
        if self.without != "the last notice":
            yield from self.notify()
        self.stopped = True

    def store_buffer(self) -> Process:
        for _ in range(self.buffers):
            yield lambda: self.on_the_way > 0
            self.on_the_way -= 1
            self.seen += 1

    def key(self) -> Hashable:
        return self.on_the_way, self.seen, self.taken, self.epoch, self.asleep_bit, self.sleeping, self.stopped

    def check(self) -> None:
        assert self.taken <= self.seen

    def check_end(self, asleep: list[int]) -> None:
        assert not asleep, "something is there, the notifier has stopped, and the waiter sleeps"


@pytest.mark.parametrize("looks_again", [False, True])
@pytest.mark.parametrize("buffers", [1, 2, 4])
def test_a_burst_loses_no_wake_up(buffers: int, looks_again: bool) -> None:
    assert explore(lambda: BurstWorld(buffers, looks_again)) > 20


@pytest.mark.parametrize("looks_again", [False, True])
def test_the_model_finds_a_burst_that_ends_without_a_notice(looks_again: bool) -> None:
    with pytest.raises(Violation):
        explore(lambda: BurstWorld(3, looks_again, "the last notice"))


class PatienceWorld:
    """A writer of `buffers`, which then waits for the last of them to leave, over a queue of `bound`; and its drainer.

    The queue is as ``result_subpartition.pxd`` has it.  The event is taken for right: a notice that finds the writer
    announced is not lost.  The drainer of a memfd channel tells of a lot of buffers at once (``shared_block.pxd``), and
    of what is left when it finds no other.
    """

    def __init__(self, bound: int, buffers: int, without: str = "", lot: int = 1) -> None:
        self.bound, self.buffers, self.without, self.lot = bound, buffers, without, lot
        self.told = 0
        self.tail = self.head = self.patience = 0
        self.epoch = 0
        self.notices = 0
        self.processes: list[Process] = [self.writer(), self.drainer()]

    def writer(self) -> Process:
        full = 0
        while self.tail < self.buffers:
            yield
            key = self.epoch
            yield
            queued = self.tail - self.head
            if queued <= self.bound // 2:
                if full:
                    full = 0
                    if self.without != "patience lowered":
                        yield
                        self.patience = 0
            elif full or queued == self.bound:
                if not full:
                    full = 1
                    yield
                    self.patience = self.bound // 2
                    continue
                yield lambda: self.epoch != key  # noqa: B023  one key, one sleep
                continue
            yield
            self.tail += 1
        # Now something else, that any buffer which leaves may bring.
        while True:
            if full and self.without != "patience lowered":
                full = 0
                yield
                self.patience = 0
            yield
            key = self.epoch
            yield
            if self.tail - self.head < self.bound:
                return
            yield lambda: self.epoch != key  # noqa: B023  one key, one sleep

    def drainer(self) -> Process:
        patience = 0
        while self.head < 1 or self.head < self.buffers - self.bound + 1:
            yield
            if self.head == self.tail:
                if self.told != self.head and self.without != "what is left is told":
                    yield from self.tell(None)
                yield lambda: self.head < self.tail
            if self.without == "head before patience":
                patience = self.patience
                yield
            self.head += 1
            if self.head - self.told >= self.lot:
                yield from self.tell(patience if self.without == "head before patience" else None)
        if self.told != self.head and self.without != "what is left is told":
            yield from self.tell(None)

    def tell(self, patience: int | None) -> Process:
        self.told = self.head
        if patience is None:
            yield
            patience = self.patience
        yield
        if patience == 0 or self.tail - self.head <= patience:
            self.epoch += 1
            self.notices += 1

    def key(self) -> Hashable:
        return self.tail, self.head, self.told, self.patience, self.epoch

    def check(self) -> None:
        assert self.tail - self.head <= self.bound, "more queued than may be"

    def check_end(self, asleep: list[int]) -> None:
        assert 0 not in asleep, "what the writer waits for is there, and it sleeps"


@pytest.mark.parametrize("lot", [1, 2, 4])
@pytest.mark.parametrize(("bound", "buffers"), [(1, 3), (2, 4), (3, 7), (4, 9)])
def test_a_patient_writer_is_woken(bound: int, buffers: int, lot: int) -> None:
    assert explore(lambda: PatienceWorld(bound, buffers, lot=lot)) > 30


@pytest.mark.parametrize(
    ("without", "lot"), [("patience lowered", 1), ("head before patience", 1), ("what is left is told", 4)]
)
def test_the_model_finds_a_writer_that_is_forgotten(without: str, lot: int) -> None:
    with pytest.raises(Violation):
        explore(lambda: PatienceWorld(4, 9, without, lot))
