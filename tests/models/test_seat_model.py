"""Every interleaving of guests that drive the I/O loop, the I/O thread that is parked meanwhile, and their wakers.

The protocol is in ``tcp_loop.pxd``, the seat.

A guest waits for news of its own: it takes the seat if it is free, asks for it otherwise, and sleeps in epoll while it
has it; without the seat it says that it sleeps, and sleeps on its event.  The peer sends news, a marker pushes streams,
a third thread gives a command.  The I/O thread's look once a millisecond is left out, so nothing here may rely on it:
only what nobody waits for would.  Forbidden: everybody sleeps though there is news for one who sleeps, a stream on the
stack, or a command; two look at what epoll has told; a connection is freed while another has its event in hand.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from typing import Any

import pytest
from explorer import Process, Violation, explore

LONG = os.environ.get("FASTBUF_LONG") == "1"

FREE, IO, GUEST = 0, 1, 2


class SeatWorld:
    """Guests 0 .. n - 1, each waiting for `rounds` news; `marks` streams pushed by a thread that holds a lock.

    writes: the one stream is pushed by a thread that holds none.
    """

    def __init__(
        self,
        guests: int = 1,
        rounds: int = 1,
        marks: int = 0,
        command: bool = False,
        dies: bool = False,
        credit: bool = False,
        glances: bool = False,
        writes: bool = False,
        without: str = "",
    ) -> None:
        self.without, self.glances = without, glances
        self.seat, self.turn = FREE, ""
        self.driven = self.left = self.sleeping = self.eventfd = False
        self.parked = False  # the I/O thread has announced itself at its event,
        self.notified = False  # and was notified since
        self.asleep = 0
        self.stack = 0
        self.sent = [0] * guests  # by the peer; in the socket
        self.came = [0] * guests  # taken from the socket: the event's epoch
        self.commands = 0
        self.alive = [True] * guests  # still wants news
        self.dead = self.freed = self.unburied = False
        self.marked = 0
        self.fault = ""
        self.rounds, self.marks, self.credit = rounds, marks, credit
        self.processes: list[Process] = [self.guest(g, rounds) for g in range(guests)]
        self.processes += [self.peer(g, rounds) for g in range(guests)]
        if marks:
            self.processes.append(self.mark_now() if writes else self.marker(marks))
        if command:
            self.processes.append(self.commander())
        if dies:
            self.processes.append(self.writer())
        self.processes.append(self.io())

    # --- what several do

    def readable(self) -> bool:
        return self.eventfd or (not self.dead and any(s > c for s, c in zip(self.sent, self.came, strict=True)))

    def told(self) -> tuple[int, ...]:
        """What epoll tells: nothing of a connection that is off it."""
        return () if self.dead else tuple(self.sent)

    def wake_parked(self) -> None:  # one read-modify-write, and a futex call if somebody is there
        if self.parked:
            self.notified = True

    def take_turn(self, who: str, blocking: bool) -> Process:
        """Of the mutex only: whoever has it is within one step of work."""
        yield (lambda: not self.turn) if blocking else None
        if self.turn:
            return False
        self.turn = who
        return True

    def work(self, who: str, told: bool, seated: bool, had: tuple[int, ...]) -> Process:
        """With the turn: events, streams, burial."""
        if told and self.freed and any(had):
            self.fault = f"{who} has an event of a connection that was freed"
        if told:
            self.eventfd = False
            for g in range(len(had)):
                self.came[g] = max(self.came[g], had[g])
        self.stack = 0
        if self.dead and (seated or self.without == "only the seat buries"):
            self.freed = True
        yield
        self.turn = ""

    def glance(self, who: str) -> Process:
        """A guest reads the one connection itself; what is pushed while it has the turn is left to its next look."""
        got = yield from self.take_turn(who, False)
        if got:
            if not self.dead:
                self.came = [max(c, s) for c, s in zip(self.came, self.sent, strict=True)]
            yield from self.work(who, False, True, ())

    def combine(self, who: str) -> Process:
        while True:
            yield  # the fence, and the look
            if not self.stack:
                return
            got = yield from self.take_turn(who, False)
            if not got:
                return
            yield from self.work(who, False, False, ())

    # --- threads

    def guest(self, g: int, rounds: int) -> Process:
        who = f"guest {g}"
        seen = 0
        while seen < rounds:
            yield
            if self.came[g] > seen:  # epoch, then look: as a poll does
                seen = self.came[g]
                continue
            mine = False
            if not self.asleep:
                self.driven = True
                yield  # the CAS
                if self.seat == FREE:
                    self.seat, mine = GUEST, True
                elif self.seat == IO:
                    yield  # an exchange
                    if self.sleeping:
                        self.sleeping = False
                        self.eventfd = True
                    yield  # once more, and then it gives up
                    if self.seat == FREE:
                        self.seat, mine = GUEST, True
            if mine:
                while self.came[g] <= seen:
                    if self.glances:
                        yield from self.glance(who)
                        if self.came[g] > seen:
                            break
                    yield
                    self.sleeping = True
                    if self.without != "guest looks before it sleeps":
                        yield
                        if self.stack or self.came[g] > seen:
                            self.sleeping = False
                            yield from self.take_turn(who, True)
                            yield from self.work(who, False, True, ())
                            continue
                    # Another thread's notice moves the epoch and wakes nobody in epoll: a guest sleeps there for 5 ms.
                    yield lambda: self.readable() or self.dead
                    had = self.told()
                    yield
                    self.sleeping = False
                    yield from self.take_turn(who, True)
                    yield from self.work(who, True, True, had)
                yield
                self.seat = FREE
                if self.without != "look again":
                    yield from self.combine(who)
                if self.without != "wake for those asleep":
                    yield
                    if self.asleep:
                        self.wake_parked()
            else:
                yield
                self.asleep += 1
                if self.without != "say that it sleeps":
                    yield
                    self.wake_parked()
                yield lambda seen=seen: self.came[g] > seen
                yield
                self.asleep -= 1
        self.alive[g] = False

    def peer(self, g: int, rounds: int) -> Process:
        n = 0
        while n < rounds:
            yield lambda: (self.came[g] == self.sent[g] and self.answered()) or self.dead
            n += 1
            self.sent[g] = n

    def answered(self) -> bool:
        """Whether the peer has what it waits for: credit, which is what the streams have to say."""
        return not self.credit or (self.marked == self.marks and not self.stack)

    def marker(self, marks: int) -> Process:
        n = 0
        while n < marks:
            n += 1
            yield
            pushed = self.stack == 0
            self.stack, self.marked = 1, n
            if not pushed:
                continue  # one look serves both
            yield
            was, self.sleeping = self.sleeping, False
            if was:
                yield
                self.eventfd = True
                continue
            if self.without != "marker wakes who is parked":
                yield
                if self.seat != GUEST:
                    yield
                    self.wake_parked()

    def mark_now(self) -> Process:
        """A writer that holds no lock: it takes the turn, or leaves its stream to who has it."""
        yield
        self.stack, self.marked = 1, 1
        yield from self.combine("writer")

    def commander(self) -> Process:
        yield
        self.commands = 1
        yield
        was, self.sleeping = self.sleeping, False
        if was:
            yield
            self.eventfd = True
        if self.without != "command wakes who is parked":
            yield
            self.wake_parked()

    def writer(self) -> Process:
        """Its write fails: the connection is lost, and to be buried by who may."""
        got = yield from self.take_turn("writer", True)
        assert got
        self.dead = True
        for g in range(len(self.came)):  # whoever waits hears of it
            self.came[g] = self.rounds
        yield
        if self.without == "only the seat buries":
            self.freed = True
        self.turn = ""
        yield
        self.left = True
        yield
        was, self.sleeping = self.sleeping, False
        if was:
            yield
            self.eventfd = True
        yield
        self.wake_parked()

    def io(self) -> Process:
        while True:
            yield
            recently, self.driven = self.driven, False
            seated = False
            if not recently or self.asleep:
                yield
                if self.seat == FREE:
                    self.seat, seated = IO, True
            had: tuple[int, ...] = ()
            told = False
            if seated:
                yield
                self.sleeping = True
                yield
                now = bool(self.stack or self.commands or self.driven or self.left or self.unburied)
                self.left = False
                if not now:
                    yield self.readable
                told, had = True, self.told()
                yield
                self.sleeping = False
            else:
                yield
                self.parked, self.notified = True, False
                asked = False
                if self.without != "look before it is parked":
                    yield
                    left, self.left = self.left, False
                    asked = bool(left or self.commands)
                    if not asked:
                        yield
                        asked = self.seat != GUEST and bool(self.stack or self.asleep)
                    if not asked and self.without != "look after the turn":
                        yield  # T4: who pushed while it had the turn has woken nobody
                        asked = bool(self.stack)
                if not asked:
                    # Who has left a guest's work undone is not waited for; one that computes is.
                    yield lambda: self.notified or (self.seat != GUEST and not self.driven)
                self.parked = self.notified = False
                yield
                if self.seat == FREE:
                    self.seat, seated = IO, True
                    told, had = True, self.told()
            yield from self.take_turn("io", True)
            self.commands = 0
            self.unburied = self.dead and not self.freed and not seated and self.without != "remember who is dead"
            yield from self.work("io", told, seated, had)
            if seated:
                yield
                self.seat = FREE
            if not any(self.alive) and not (self.stack or self.commands or self.left or (self.dead and not self.freed)):
                yield lambda: bool(self.stack or self.commands or self.left)

    # --- what must hold

    def key(self) -> Hashable:
        return (
            (self.seat, self.turn, self.driven, self.left, self.sleeping, self.eventfd, self.parked, self.notified),
            (self.asleep, self.stack, self.commands, self.dead, self.freed, self.unburied, self.marked),
            tuple(self.sent),
            tuple(self.came),
            tuple(self.alive),
        )

    def check(self) -> None:
        assert not self.fault, self.fault

    def check_end(self, asleep: list[int]) -> None:
        assert not self.turn, f"{self.turn} keeps the turn"
        assert not self.stack, "a stream is marked, and everybody sleeps"
        assert not any(self.alive), f"a guest sleeps, sent {self.sent}, came {self.came}"
        assert not self.commands, "a command is not carried out"
        assert self.freed or not self.dead, "a lost connection is not buried"


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"rounds": 2},
        {"marks": 1, "credit": True},
        {"marks": 1, "credit": True, "glances": True},
        {"marks": 1, "credit": True, "writes": True},
        *([{"marks": 1}, {"command": True}, {"dies": True}, {"guests": 2}] if LONG else []),
    ],
)
def test_nobody_sleeps_for_ever(shape: dict[str, Any]) -> None:
    assert explore(lambda: SeatWorld(**shape)) > 100


@pytest.mark.parametrize(
    ("without", "shape"),
    [
        ("guest looks before it sleeps", {"marks": 1, "credit": True}),
        ("guest looks before it sleeps", {"marks": 1, "credit": True, "glances": True}),
        ("look again", {"marks": 1}),
        ("look again", {"marks": 1, "glances": True}),
        ("wake for those asleep", {"guests": 2}),
        ("say that it sleeps", {"guests": 2}),
        ("marker wakes who is parked", {"marks": 1}),
        ("command wakes who is parked", {"command": True}),
        ("look before it is parked", {"marks": 1}),
        ("look after the turn", {"marks": 1, "credit": True, "writes": True}),
        ("only the seat buries", {"dies": True}),
        ("remember who is dead", {"dies": True}),
    ],
)
def test_the_model_finds_what_each_step_is_for(without: str, shape: dict[str, Any]) -> None:
    with pytest.raises(Violation):
        explore(lambda: SeatWorld(**shape, without=without))
