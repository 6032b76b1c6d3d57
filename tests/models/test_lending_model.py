"""Every interleaving of a lender, a borrower and the borrower's death, one shared access a step (``lending.pyx``)."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from explorer import Process, Violation, explore


class LendingWorld:
    """Segments 0 .. n - 1; an entry is (loan number, segment), as in the shipped rings."""

    def __init__(self, segments: int, capacity: int, loans: int, dies: bool, without: str = "") -> None:
        self.capacity, self.without = capacity, without
        self.lent_ring: list[tuple[int, int]] = [(0, 0)] * capacity
        self.back_ring: list[tuple[int, int]] = [(0, 0)] * capacity
        self.lent_put = self.lent_got = self.back_put = self.back_got = 0
        self.table = [0] * segments  # the lender's own: loan numbers
        self.home = [True] * segments  # ghost
        self.using: tuple[int, ...] = ()  # ghost: what the borrower may be reading
        self.dead = self.done = False
        self.fault = ""
        self.processes: list[Process] = [self.lender(loans), self.borrower()]
        if dies:
            self.processes.append(self.death())

    # --- the lender -------------------------------------------------------------------------------------------------

    def lender(self, loans: int) -> Process:
        number, segment = 0, 0
        while number < loans:
            while True:  # until there is room, and the segment is home
                if sum(1 for loan in self.table if loan) < self.capacity and not self.table[segment]:
                    break
                yield lambda: self.back_put != self.back_got or self.dead
                if self.dead:
                    break
                yield from self.collect()
            if self.dead:
                break
            number += 1
            yield
            self.home[segment], self.table[segment] = False, number  # the lender's own: no step for others to see
            if self.without == "entry before counter":
                yield
                self.lent_put += 1
                yield
                self.lent_ring[(self.lent_put - 1) % self.capacity] = (number, segment)
            else:
                yield
                self.lent_ring[self.lent_put % self.capacity] = (number, segment)
                yield
                self.lent_put += 1
            segment = (segment + 1) % len(self.table)
        while any(self.table):
            yield lambda: self.back_put != self.back_got or self.dead
            if self.dead or self.without == "wait for the death":
                yield from self.take_back()
            else:
                yield from self.collect()
        if self.without == "the table alone decides":  # the rings are looked at again after taking back
            yield from self.collect()
        self.done = True

    def collect(self) -> Process:
        yield
        put = self.back_put
        while self.back_got != put:
            yield
            number, segment = self.back_ring[self.back_got % self.capacity]
            if (number and self.table[segment] == number) or self.without == "the table alone decides":
                self.end(segment)
            yield
            self.back_got += 1

    def take_back(self) -> Process:
        segment = 0
        while segment < len(self.table):
            yield
            if self.table[segment]:
                self.end(segment)
            segment += 1

    def end(self, segment: int) -> None:
        if self.home[segment]:
            self.fault = f"the loan of segment {segment} ended twice"
        if segment in self.using and not self.dead:
            self.fault = f"segment {segment} went home while it was read"
        self.table[segment] = 0
        self.home[segment] = True

    # --- the borrower -----------------------------------------------------------------------------------------------

    def borrower(self) -> Process:
        """Holds up to two loans, and gives the older back first; each step needs it to live."""
        held: tuple[tuple[int, int], ...] = ()
        while True:
            some = bool(held)
            yield lambda some=some: not self.dead and (self.lent_put != self.lent_got or some or self.done)
            if self.done and not held:
                return
            if self.lent_put != self.lent_got and len(held) < 2:
                yield lambda: not self.dead
                entry = self.lent_ring[self.lent_got % self.capacity]
                held = (*held, entry)
                self.using = (*self.using, entry[1])
                if self.table[entry[1]] != entry[0]:
                    self.fault = f"segment {entry[1]} is read, and was not lent"
                yield lambda: not self.dead
                self.lent_got += 1
                continue
            entry, held = held[0], held[1:]
            yield lambda: not self.dead
            self.using = self.using[1:]
            if self.without == "write before counting":
                self.back_put += 1
                yield lambda: not self.dead
                self.back_ring[(self.back_put - 1) % self.capacity] = entry
            else:
                self.back_ring[self.back_put % self.capacity] = entry
                yield lambda: not self.dead
                self.back_put += 1

    def death(self) -> Process:
        yield
        self.dead = True

    # --- what must hold ---------------------------------------------------------------------------------------------

    def key(self) -> Hashable:
        return (
            (*self.lent_ring, *self.back_ring, *self.table, *self.home, self.using, self.dead, self.done, self.fault),
            (self.lent_put, self.lent_got, self.back_put, self.back_got),
        )

    def check(self) -> None:
        assert not self.fault, self.fault
        lent = sum(1 for loan in self.table if loan)
        assert lent <= self.capacity
        for segment, at_home in enumerate(self.home):
            assert not at_home or self.table[segment] == 0, f"segment {segment} is home, and lent"

    def check_end(self, asleep: list[int]) -> None:
        assert self.done, "the lender waits for ever"
        assert all(self.home), f"home {self.home}: a loan never ended"
        assert not asleep or self.dead, f"asleep for ever: processes {asleep}"


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize(("segments", "capacity", "loans"), [(1, 1, 3), (2, 2, 4), (3, 2, 4), (2, 1, 4)])
def test_lending(segments: int, capacity: int, loans: int, dies: bool) -> None:
    assert explore(lambda: LendingWorld(segments, capacity, loans, dies)) > 40


@pytest.mark.parametrize(
    ("without", "dies"),
    [
        ("entry before counter", True),
        ("write before counting", False),  # the table heals it when the borrower dies, and only then
        ("wait for the death", True),
        ("the table alone decides", True),
    ],
)
def test_the_model_finds_what_is_left_out(without: str, dies: bool) -> None:
    with pytest.raises(Violation):
        explore(lambda: LendingWorld(2, 2, 4, dies, without))
