"""Every interleaving of senders that take, receivers that announce and one who audits (``flow/credit_ledger.pyx``).

Forbidden: an audit that finds all changes done, and sees an account that is uneven, more announced than segments were
set aside for, or more floating segments than there are; a credit taken twice; a floating segment lost when all is done;
a moment at which nothing is under way and one of these does not hold.
"""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from explorer import Process, Violation, explore

AVAILABLE, FLOATING, ANNOUNCED, USED, BEGUN, ENDED = range(6)


class LedgerWorld:
    """One row a channel; a sender's work is a number of takes, a receiver's the figures that it asks for."""

    def __init__(
        self,
        channels: list[tuple[tuple[int, ...], tuple[int, ...]]],
        exclusive: int,
        floating: int,
        audits: int = 0,
        without: str = "",
    ) -> None:
        self.exclusive, self.floating, self.without = exclusive, floating, without
        self.rows = [[exclusive, 0, exclusive, 0, 0, 0] for _ in channels]
        self.floating_out = 0
        self.taken = [0] * len(channels)  # by the senders' own count; ghost
        self.granted = [exclusive] * len(channels)  # by the receivers'; ghost
        self.fault = ""
        self.processes: list[Process] = []
        for c, (takes, asks) in enumerate(channels):
            self.processes += [self.sender(c, times) for times in takes]
            self.processes.append(self.receiver(c, asks))
        self.processes += [self.auditor() for _ in range(audits)]

    def add(self, c: int, counter: int, n: int) -> None:
        self.rows[c][counter] += n

    # --- the operations, one step an atomic

    def share(self, wanted: int) -> Process:
        yield
        out = self.floating_out
        while True:
            n = min(wanted, self.floating - out)
            if n <= 0:
                return 0
            yield
            if self.floating_out == out:
                self.floating_out = out + n
                return n
            out = self.floating_out

    def grant(self, c: int, n: int) -> Process:
        if self.without != "begun":
            yield
            self.add(c, BEGUN, 1)
        yield
        available = self.rows[c][AVAILABLE]
        own = min(max(0, self.exclusive - available), n)
        shared = yield from self.share(n - own)
        if self.without != "floating first":
            yield
            self.add(c, FLOATING, shared)
        while True:
            yield
            if self.without == "compare" or self.rows[c][AVAILABLE] == available:
                self.add(c, AVAILABLE, own + shared)
                break
            available = self.rows[c][AVAILABLE]
            own = min(max(0, self.exclusive - available), n)
            back = max(0, shared - (n - own))
            if back and self.without != "give back":
                yield
                self.add(c, FLOATING, -back)
                yield
                self.floating_out -= back
            shared -= back
        if self.without == "floating first":
            yield
            self.add(c, FLOATING, shared)
        yield
        self.add(c, ANNOUNCED, own + shared)
        self.granted[c] += own + shared
        yield
        self.add(c, ENDED, 1)

    def use(self, c: int) -> Process:
        yield
        n = self.rows[c][AVAILABLE]
        took = 0
        if n <= 0:
            return 0
        yield
        self.add(c, BEGUN, 1)
        while n > 0 and not took:
            yield
            if self.rows[c][AVAILABLE] == n:
                self.add(c, AVAILABLE, -1)
                took = 1
            else:
                n = self.rows[c][AVAILABLE]
        if self.without == "ended last":
            yield
            self.add(c, ENDED, 1)
        if took:
            self.taken[c] += 1
            yield
            self.add(c, USED, 1)
            if self.without == "what was taken":
                yield from self.drop_if_any(c)
            elif n > self.exclusive:
                yield
                self.add(c, FLOATING, -1)
                if self.rows[c][FLOATING] < 0:
                    self.fault = f"channel {c} gives back a floating segment that it does not hold"
                yield
                self.floating_out -= 1
        if self.without != "ended last":
            yield
            self.add(c, ENDED, 1)
        return took

    def drop_if_any(self, c: int) -> Process:
        # As it was once: what was taken is called floating if there is any at a later look.
        yield
        if self.rows[c][FLOATING] > 0:
            yield
            self.add(c, FLOATING, -1)
            yield
            self.floating_out -= 1

    # --- threads

    def sender(self, c: int, times: int) -> Process:
        while times:
            yield from self.use(c)
            times -= 1

    def receiver(self, c: int, asks: tuple[int, ...]) -> Process:
        while asks:
            yield from self.grant(c, asks[0])
            asks = asks[1:]

    def auditor(self) -> Process:
        ended = 0
        seen: tuple[int, ...] = ()
        begun = 0
        at = 0
        while at < len(self.rows):
            yield
            ended += self.rows[at][ENDED]
            at += 1
        at = 0
        while at < 4 * len(self.rows):
            yield
            seen = (*seen, self.rows[at // 4][at % 4])
            at += 1
        at = 0
        while at < len(self.rows):
            yield
            begun += self.rows[at][BEGUN]
            at += 1
        if begun == ended:
            self.fault = self.fault or self.broken(seen, "an audit")

    # --- what must hold

    def broken(self, seen: tuple[int, ...], who: str) -> str:
        shared = 0
        for c in range(len(self.rows)):
            available, floating, announced, used = seen[4 * c : 4 * c + 4]
            shared += floating
            if announced != used + available:
                return f"{who} sees announced {announced}, used {used}, available {available} of channel {c}"
            if floating != max(0, available - self.exclusive):
                return f"{who} sees {available} available and {floating} floating of channel {c}"
        return f"{who} sees {shared} floating segments of {self.floating}" if shared > self.floating else ""

    def key(self) -> Hashable:
        return (tuple(map(tuple, self.rows)), self.floating_out, tuple(self.taken), tuple(self.granted), self.fault)

    def check(self) -> None:
        assert not self.fault, self.fault
        assert 0 <= self.floating_out <= self.floating, f"{self.floating_out} floating segments are out"
        if sum(row[BEGUN] for row in self.rows) == sum(row[ENDED] for row in self.rows):
            fault = self.broken(tuple(x for row in self.rows for x in row[:4]), "a moment with nothing under way")
            assert not fault, fault

    def check_end(self, asleep: list[int]) -> None:
        assert not asleep, f"{asleep} wait"
        for c, row in enumerate(self.rows):
            assert row[USED] == self.taken[c], f"channel {c}: {self.taken[c]} taken, {row[USED]} counted"
            assert row[ANNOUNCED] == self.granted[c], f"channel {c}: {self.granted[c]} granted, {row[ANNOUNCED]} told"
        held = sum(row[FLOATING] for row in self.rows)
        assert held == self.floating_out, f"channels hold {held} floating segments, {self.floating_out} are out"


@pytest.mark.parametrize(
    ("channels", "exclusive", "floating", "audits"),
    [
        ([((2,), (2, 2))], 1, 2, 1),
        ([((1, 1), (3,))], 1, 2, 1),
        ([((2, 1), (2, 2))], 1, 2, 0),
        ([((2, 1), (3, 2))], 2, 2, 0),
        ([((1,), (2,)), ((1,), (2,))], 1, 1, 0),
        ([((1,), (2,)), ((1,), ())], 1, 1, 1),
    ],
)
def test_the_account_is_even_whenever_nothing_is_under_way(
    channels: list[tuple[tuple[int, ...], tuple[int, ...]]], exclusive: int, floating: int, audits: int
) -> None:
    assert explore(lambda: LedgerWorld(channels, exclusive, floating, audits)) > 100


@pytest.mark.parametrize(
    ("without", "audits"),
    [("what was taken", 0), ("compare", 0), ("give back", 0), ("floating first", 0), ("begun", 1), ("ended last", 0)],
)
def test_the_model_finds_what_each_step_is_for(without: str, audits: int) -> None:
    with pytest.raises(Violation):
        explore(lambda: LedgerWorld([((2,), (2, 2))], 1, 2, audits, without))
