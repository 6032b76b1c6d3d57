"""Every interleaving of those who poke a wire's thread and of that thread (``watermark_wire.pxd``, the pairing).

The thread sleeps in ``poll``, on an eventfd that is written to only by who raises ``poked``.  Its slices are left out,
so nothing here may rely on them.  Forbidden: something was asked for, nobody is on his way to say so, and the thread
sleeps.
"""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from explorer import Process, Violation, explore


class PokeWorld:
    """Each poker has asked for one thing more before it pokes."""

    def __init__(self, pokers: tuple[int, ...], without: str = "") -> None:
        self.without = without
        self.poked = self.readable = False
        self.asked = self.seen = 0
        self.processes: list[Process] = [self.poker(times) for times in pokers]
        self.processes.append(self.thread())

    def poker(self, times: int) -> Process:
        while times:
            times -= 1
            if self.without == "ask first":
                yield from self.poke()
            yield
            self.asked += 1
            if self.without != "ask first":
                yield from self.poke()

    def poke(self) -> Process:
        yield
        was, self.poked = self.poked, True
        if not was:
            yield
            self.readable = True

    def lower(self) -> Process:
        if self.without == "read before it is lowered":
            yield
            self.poked = False
            yield
            self.readable = False
        else:
            yield
            self.readable = False
            yield
            self.poked = False

    def thread(self) -> Process:
        while True:
            yield
            poked = self.poked
            if self.without == "lower before the pass":
                yield
                self.seen = self.asked
                if poked:
                    yield from self.lower()
            else:
                if poked:
                    yield from self.lower()
                yield
                self.seen = self.asked
            yield lambda: self.readable

    def key(self) -> Hashable:
        return self.poked, self.readable, self.asked, self.seen

    def check(self) -> None:
        """On the way nothing is forbidden: what counts is what is left unseen at the end (`check_end`)."""

    def check_end(self, asleep: list[int]) -> None:
        assert self.seen == self.asked, f"{self.asked} things were asked for, and the thread sleeps after {self.seen}"


@pytest.mark.parametrize("pokers", [(1, 1), (2, 1), (1, 1, 1), (3, 2)])
def test_whatever_is_asked_for_is_seen(pokers: tuple[int, ...]) -> None:
    assert explore(lambda: PokeWorld(pokers)) > 50


@pytest.mark.parametrize("without", ["ask first", "read before it is lowered", "lower before the pass"])
def test_the_model_finds_what_each_step_is_for(without: str) -> None:
    with pytest.raises(Violation):
        explore(lambda: PokeWorld((2, 1), without))
