"""The functions of ``buffer_manager.pyx``, transcribed by name: exclusive and floating segments of a gate.

What a state of ``credit_model`` is made of stands here too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OPEN, ENDED, FINISHED, CANCELLED = range(4)


class Forbidden(AssertionError):
    """A forbidden outcome."""


@dataclass
class Channel:
    """From one producer to one consumer; the sender's half first, then the wires, then the receiver's."""

    queued: int = 0
    credit: int = 0
    sent: int = 0
    said_end: bool = False
    sub_closed: bool = False
    cancelled: bool = False
    asked_back: bool = False  # a RECALL was heard and not yet answered
    says: bool = False  # one was heard ever: so it says when it has something and no credit
    has_said: bool = False  # it did, since its last credit
    there: tuple[Any, ...] = ()  # to the receiver: (sequence, backlog), (RETURN, credits, backlog), DONE, ABORT, EOF
    back: tuple[Any, ...] = ()  # to the sender: credits, RECALL, DONE, CANCEL, ABORT, EOF
    state: int = OPEN
    ready: int = 0
    with_reader: int = 0
    floating: int = 0
    missing: int = 0
    backlog: int = 0
    unannounced: int = 0
    available: int = 0  # announced - used
    waiting: bool = False
    lacks_segment: bool = True
    closed: bool = False
    blocked: bool = False
    was_blocked: bool = False
    recall: bool = False
    recalled: bool = False
    reports_backlog: bool = False
    received: int = 0
    delivered: int = 0


@dataclass
class Gate:
    limit: int  # of its pool
    in_use: int = 0
    floating_out: int = 0
    missing: int = 0
    lacking: int = 0
    unopened: int = 0  # channels that have not come yet
    waiters: tuple[int, ...] = ()
    queue: tuple[tuple[int, bool], ...] = ()  # (producer, is the end of partition): of each in order of arrival
    hand: int = -1  # whose buffer the reader decodes
    phase: str = "reading"  # then failed -> raised; done; cancelled; dead


@dataclass(frozen=True)
class Setting:
    """`plans[p]`: to whom producer p writes, buffer by buffer.  What else may happen, once each, at any moment."""

    plans: tuple[tuple[int, ...], ...]
    consumers: int = 2
    exclusive: int = 1
    floating: int = 1
    bound: int = 2
    segments: int = 3  # of a writer's pool
    limits: tuple[int, ...] = (3, 3)  # of the gates' pools
    open: bool = False  # the gates do not know how many channels will come: they may be more than the segments
    waits: tuple[tuple[int, int, int, int], ...] = ()  # (p, n, q, m): p is idle after n buffers till m of q's are read
    moves: tuple[tuple[int, int], ...] = ()  # (gate, new limit), one after the other
    cancels: tuple[int, ...] = ()
    blocks: tuple[tuple[int, int], ...] = ()  # (gate, producer): that channel is blocked at any moment, then unblocked
    dies: tuple[tuple[str, int], ...] = ()  # ("producer", p) or ("consumer", g)
    loss_is_cancel: bool = False
    fused: bool = False  # process i is producer i and consumer i, in one thread
    eager: bool = False  # see `eager_step`: fewer orders, the same outcomes
    without: str = ""


@dataclass
class Buffers:
    """The channels and gates of a state, and what their buffer managers do."""

    setting: Setting
    channels: list[list[Channel]] = field(default_factory=list)  # by gate, then producer
    gates: list[Gate] = field(default_factory=list)

    def _grant(self, g: int, p: int) -> None:
        c = self.channels[g][p]
        if c.blocked:
            raise Forbidden(f"F8: gate {g} gives producer {p} credit while its channel is blocked")
        c.ready += 1
        c.available += 1
        c.unannounced += 1
        if self.setting.without != "a channel is asked again after its next credit":
            c.recalled = False
        if c.lacks_segment:
            c.lacks_segment = False
            self.gates[g].lacking -= 1

    def _try_acquire(self, g: int) -> bool:
        gate = self.gates[g]
        if gate.in_use >= gate.limit:
            return False
        gate.in_use += 1
        return True

    def _acquire(self, g: int, c: Channel) -> bool:
        gate = self.gates[g]
        behind = gate.lacking + gate.unopened
        kept = behind if self.setting.without != "leave one for who has none" else 0
        if not c.lacks_segment and kept and gate.limit - gate.in_use <= kept:
            return False
        return self._try_acquire(g)

    def _wanted(self, c: Channel) -> int:
        return self.setting.exclusive + c.backlog

    def _feed(self, g: int, p: int) -> str:
        c, gate = self.channels[g][p], self.gates[g]
        while c.missing > 0:
            if not self._acquire(g, c):
                return "dry"
            c.missing -= 1
            gate.missing -= 1
            self._grant(g, p)
        while c.ready < self._wanted(c):
            if gate.floating_out >= self.setting.floating:
                return "floating out"
            if not self._acquire(g, c):
                return "dry"
            gate.floating_out += 1
            c.floating += 1
            self._grant(g, p)
        return "fed"

    def _enqueue(self, g: int, p: int) -> None:
        c = self.channels[g][p]
        if not c.waiting and not c.closed and not c.blocked:
            c.waiting = True
            self.gates[g].waiters += (p,)

    def bm_open(self, g: int, p: int) -> None:
        c, gate = self.channels[g][p], self.gates[g]
        gate.unopened = max(0, gate.unopened - 1)
        c.missing = self.setting.exclusive
        gate.missing += self.setting.exclusive
        gate.lacking += 1
        if self._feed(g, p) != "fed":
            self._enqueue(g, p)

    def bm_take(self, g: int, p: int, backlog: int) -> None:
        c = self.channels[g][p]
        if c.ready == 0 or c.available == 0:
            raise Forbidden(f"F1: gate {g} has no segment for a buffer of producer {p}")
        c.available -= 1
        c.ready -= 1
        c.with_reader += 1
        c.backlog = backlog
        if not self._satisfied(c) and self._feed(g, p) != "fed":
            self._enqueue(g, p)

    def _satisfied(self, c: Channel) -> bool:
        if c.blocked and self.setting.without != "a blocked channel is given nothing":
            return True
        return not c.missing and c.ready >= self._wanted(c)

    def _recycle(self, g: int) -> None:
        self.gates[g].in_use -= 1

    def _float_home(self, g: int, c: Channel) -> None:
        c.floating -= 1
        self.gates[g].floating_out -= 1

    def bm_release(self, g: int, p: int) -> None:
        c, gate = self.channels[g][p], self.gates[g]
        c.with_reader -= 1
        if c.closed:
            if c.floating > 0:
                self._float_home(g, c)
            self._recycle(g)
        elif c.floating > 0:
            if self.setting.without != "a floating segment goes back to the gate":
                self._float_home(g, c)
                self._recycle(g)
                if c.ready < self._wanted(c):
                    self._enqueue(g, p)
            else:
                self._recycle(g)
        elif c.blocked or (gate.lacking and (c.ready + c.with_reader > 0 or c.reports_backlog)):
            c.missing += 1
            gate.missing += 1
            self._recycle(g)
            self._enqueue(g, p)
            if c.ready + c.with_reader == 0 and c.backlog > 0:
                self._mark_lacking(g, c)
        elif self.setting.without != "what is released is credit again":
            self._grant(g, p)
        else:
            self._recycle(g)
        if self.setting.without != "who waits is served by a release":
            self.bm_serve(g)

    def _mark_lacking(self, g: int, c: Channel) -> None:
        if not c.lacks_segment and not c.blocked:
            c.lacks_segment = True
            self.gates[g].lacking += 1

    def _wait_for_nothing(self, g: int, p: int) -> None:
        c, gate = self.channels[g][p], self.gates[g]
        if c.lacks_segment:
            c.lacks_segment = False
            gate.lacking -= 1
        if c.waiting:
            gate.waiters = tuple(w for w in gate.waiters if w != p)
            c.waiting = False

    def _take_one_back(self, g: int, c: Channel) -> None:
        c.ready -= 1
        c.available -= 1
        if c.floating > 0:
            self._float_home(g, c)
        else:
            c.missing += 1
            self.gates[g].missing += 1
        self._recycle(g)

    def bm_take_back(self, g: int, p: int, n: int, backlog: int) -> None:
        c = self.channels[g][p]
        for _ in range(n):
            self._take_one_back(g, c)
        c.backlog = backlog
        if backlog and c.ready + c.with_reader == 0:
            self._mark_lacking(g, c)
        if not self._satisfied(c):
            self._enqueue(g, p)
        if self.setting.without != "who waits is served by what is given back":
            self.bm_serve(g)

    def bm_block(self, g: int, p: int) -> None:
        c = self.channels[g][p]
        c.blocked = True
        if self.setting.without != "a blocked channel waits for nothing":
            self._wait_for_nothing(g, p)
        while c.unannounced and c.floating > 0:
            if self.setting.without != "what is taken back is not told":
                c.unannounced -= 1
            self._take_one_back(g, c)
        self.bm_serve(g)

    def bm_unblock(self, g: int, p: int) -> None:
        c = self.channels[g][p]
        c.blocked = False
        if c.closed:
            return
        if c.ready + c.with_reader == 0 and (not c.reports_backlog or c.backlog > 0):
            self._mark_lacking(g, c)
        if self.setting.without == "who is unblocked is given what it waits for":
            return
        if not self._satisfied(c) and self._feed(g, p) != "fed":
            self._enqueue(g, p)

    def bm_close(self, g: int, p: int) -> None:
        c, gate = self.channels[g][p], self.gates[g]
        c.closed = True
        gate.missing -= c.missing
        c.missing = 0
        self._wait_for_nothing(g, p)
        while c.ready:
            c.ready -= 1
            if c.floating > 0:
                self._float_home(g, c)
            if self.setting.without != "a closed channel gives its segments back":
                self._recycle(g)
        c.available = 0
        c.unannounced = 0
        self.bm_serve(g)

    def bm_serve(self, g: int) -> None:
        gate = self.gates[g]
        for p in gate.waiters:
            c = self.channels[g][p]
            if gate.lacking and c.lacks_segment:
                if not self._try_acquire(g):
                    return
                c.missing -= 1
                gate.missing -= 1
                self._grant(g, p)
        for p in gate.waiters:
            fed = self._feed(g, p)
            if fed == "dry" or (fed == "floating out" and gate.missing == 0):
                return
            if fed == "fed":
                gate.waiters = tuple(w for w in gate.waiters if w != p)
                self.channels[g][p].waiting = False

    def could_serve(self, g: int) -> bool:
        """Whether somebody waits for a segment that the gate could give: what bm_serve would find."""
        gate = self.gates[g]
        room = gate.limit - gate.in_use
        if room <= 0:
            return False
        for p in gate.waiters:
            c = self.channels[g][p]
            floats = c.ready < self._wanted(c) and gate.floating_out < self.setting.floating
            if c.lacks_segment or (room > gate.lacking and (c.missing or floats)):
                return True
        return False
