"""Every interleaving of those who find a failure, of one who tells of it, and of who reads it (``failure.pxd``).

And of who is attached to a blocking partition just then, and is to be told (``BlockingPartition.failed``).

A text is two words, so that it can be seen half written.  Forbidden: a text that is half written, or not the first
setter's; a code and a text of different setters; a setter that returns though there is no failure to be read.
"""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from explorer import Process, Violation, explore

NONE, CLAIMED = 0, 255


class FailureWorld:
    """Setters 1 .. n, of whom the last one raises `asked` then, as ``ResultPartition.fail``; one reads by each way."""

    def __init__(self, setters: int, without: str = "") -> None:
        self.without = without
        self.code = NONE
        self.text = [0, 0]
        self.asked = False
        self.first = 0  # ghost
        self.fault = ""
        self.processes: list[Process] = [self.setter(k + 1, k + 1 == setters) for k in range(setters)]
        self.processes += [self.reader(), self.told()]

    def setter(self, mine: int, tells: bool) -> Process:
        yield
        won = self.code == NONE
        if won or self.without == "claim":
            self.first = self.first or mine
            self.code = mine if self.without == "text before code" else CLAIMED
            yield
            self.text[0] = mine
            yield
            self.text[1] = mine
            if self.without != "text before code":
                yield
                self.code = mine
        elif self.without != "wait for the first":
            yield lambda: self.code != CLAIMED
        if tells:
            yield
            self.asked = True

    def look(self) -> Process:
        yield
        one = self.text[0]
        yield
        two = self.text[1]
        if not one == two == self.first:
            self.fault = f"the text reads {one}, {two}; the first failure is {self.first}'s"

    def reader(self) -> Process:
        """``failure_raise``."""
        yield lambda: self.code not in (NONE, CLAIMED)
        code = self.code
        yield from self.look()
        if code != self.first:
            self.fault = f"the code is {code}'s, the first failure {self.first}'s"

    def told(self) -> Process:
        """Who echoes a failure because it was asked to, and does not look at the code."""
        yield lambda: self.asked
        yield from self.look()

    def key(self) -> Hashable:
        return self.code, tuple(self.text), self.asked, self.first, self.fault

    def check(self) -> None:
        assert not self.fault, self.fault

    def check_end(self, asleep: list[int]) -> None:
        assert not asleep, f"{asleep} wait for ever"


@pytest.mark.parametrize("setters", [1, 2, 3])
def test_the_first_failure_is_read_whole(setters: int) -> None:
    assert explore(lambda: FailureWorld(setters)) > 10


@pytest.mark.parametrize("without", ["claim", "text before code", "wait for the first"])
def test_the_model_finds_what_each_step_is_for(without: str) -> None:
    with pytest.raises(Violation):
        explore(lambda: FailureWorld(2, without))


class AttachedWorld:
    """Whom to tell is two words, set by who is attached; the one who has failed reads them at any moment."""

    def __init__(self, order: tuple[str, ...], without: str = "") -> None:
        self.without = without
        self.words = {"notify": 0, "context": 0, "attached": 0}
        self.abort_asked = self.heard = 0
        self.fault = ""
        self.processes: list[Process] = [self.attaches(order), self.fails()]

    def attaches(self, order: tuple[str, ...]) -> Process:
        while order:
            yield
            self.words[order[0]] = 1
            order = order[1:]
        if self.without != "look once attached":
            yield
            self.heard |= self.abort_asked

    def fails(self) -> Process:
        yield
        self.abort_asked = 1
        if self.without != "told if attached":
            yield
            if not self.words["attached"]:
                return
        yield
        notify = self.words["notify"]
        yield
        context = self.words["context"]
        if notify and not context:
            self.fault = "a drainer is told, and it is not said which"
        self.heard |= notify

    def key(self) -> Hashable:
        return tuple(self.words.values()), self.abort_asked, self.heard, self.fault

    def check(self) -> None:
        assert not self.fault, self.fault

    def check_end(self, asleep: list[int]) -> None:
        assert self.heard, "the drainer never hears of it"


@pytest.mark.parametrize("order", [("notify", "context", "attached"), ("context", "notify", "attached")])
def test_who_is_attached_is_told_or_finds_out(order: tuple[str, ...]) -> None:
    assert explore(lambda: AttachedWorld(order)) > 10


@pytest.mark.parametrize("without", ["told if attached", "look once attached"])
def test_the_model_finds_who_is_told_too_early_or_never(without: str) -> None:
    with pytest.raises(Violation):
        explore(lambda: AttachedWorld(("notify", "context", "attached"), without))


def test_the_model_finds_one_that_is_said_to_be_attached_too_early() -> None:
    with pytest.raises(Violation):
        explore(lambda: AttachedWorld(("attached", "notify", "context")))
