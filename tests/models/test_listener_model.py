"""Every interleaving of wakers and of who takes a pool's listener off and frees it (``pool_waking.pyx``).

The setter's store may stay in its processor's buffer until the fence; the wakers' steps are sequentially consistent.
Forbidden: a listener that is notified after it was freed; a setter that waits though nobody is at the old listener,
also in a fork of the process, where a waker that had a pin is not there.
"""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from explorer import Process, Violation, explore


class ListenerWorld:
    """The listener is 1, and 0 once it is off; forks: the wakers end at any moment, as they do for a forked child."""

    def __init__(self, wakers: int, forks: bool = False, without: str = "") -> None:
        self.without = without
        self.listener, self.delayed = 1, False
        self.pins = 0
        self.freed = self.forked = False
        self.fault = ""
        self.processes: list[Process] = [self.waker() for _ in range(wakers)]
        self.processes += [self.setter(), self.buffer()]
        if forks:
            self.processes.append(self.fork())

    def alive(self) -> bool:
        return not self.forked

    def waker(self) -> Process:
        if self.without == "pin before the load":
            yield self.alive
            listener = self.listener
            yield self.alive
            self.pins += 1
        else:
            yield self.alive
            self.pins += 1
            yield self.alive
            listener = self.listener
        if listener:
            yield self.alive
            if self.freed:
                self.fault = "a listener was notified after it was freed"
        yield self.alive
        self.pins -= 1

    def setter(self) -> Process:
        yield
        self.delayed = True
        if self.without != "fence":
            yield
            self.drain()
        if self.without != "wait for the pins":
            yield lambda: not self.pins or (self.forked and self.without != "nobody is waited for in a fork")
        self.freed = True

    def drain(self) -> None:
        if self.delayed:
            self.listener, self.delayed = 0, False

    def buffer(self) -> Process:
        yield lambda: self.delayed or not self.listener
        self.drain()

    def fork(self) -> Process:
        yield
        self.forked = True

    def key(self) -> Hashable:
        return self.listener, self.delayed, self.pins, self.freed, self.forked, self.fault

    def check(self) -> None:
        assert not self.fault, self.fault

    def check_end(self, asleep: list[int]) -> None:
        assert self.freed, "the setter waits for ever"


@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("wakers", [1, 2, 3])
def test_a_listener_that_is_off_is_left_alone(wakers: int, forks: bool) -> None:
    assert explore(lambda: ListenerWorld(wakers, forks)) > 10


@pytest.mark.parametrize(
    ("without", "forks"),
    [
        ("pin before the load", False),
        ("fence", False),
        ("wait for the pins", False),
        ("nobody is waited for in a fork", True),
    ],
)
def test_the_model_finds_what_each_step_is_for(without: str, forks: bool) -> None:
    with pytest.raises(Violation):
        explore(lambda: ListenerWorld(1, forks, without))
