"""Who waits at a listener without having proved a secret: how many, for how long, and who goes when there is no place.

A place is never refused to who comes; it is taken from another. So a flood of callers who say nothing costs each of
them its place, and whoever knows a secret needs one for the time of two messages only. Callers of addresses that have
proved a secret before have places of their own, and nobody loses his to an address that has more of them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

PLACES = 64  #: for callers of addresses that have proved a secret, and as many for those of all others
PROOF_TIME_S = 10.0
TAKEN_IN = 16  #: at once, before those who are here are heard again
KNOWN_ADDRESSES = 1024  #: that are remembered
WARN_EVERY_S = 60.0

log = logging.getLogger("fastbuf")


class Stranger:
    """A caller.

    Parameters
    ----------
    address
        Where from: what one who calls often has in common with himself.
    """

    def __init__(self, address: Hashable) -> None:
        self.address = address
        self.deadline = time.monotonic() + PROOF_TIME_S
        self.heard = False  #: it has said what a producer says first
        self.proved = False  #: it knows a secret, and takes up no place though it may not be connected yet
        self.round = 0  #: when it came


S = TypeVar("S", bound=Stranger)


class Strangers(Generic[S]):
    """Those of one listener, which calls this from its thread alone; the figures may be read from any.

    Parameters
    ----------
    where
        The listener, for the log.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._here: dict[S, None] = {}  # in the order in which they came
        self._known: dict[Hashable, None] = {}  # in the order in which they last proved a secret
        self._round = 0
        self._warned = -WARN_EVERY_S
        self._told = (0, 0)
        self.proved = 0  #: that knew a secret
        self.refused = 0  #: sent away for what they said
        self.idle = 0  #: dropped because their time was over, or their place needed

    def __contains__(self, stranger: object) -> bool:
        return stranger in self._here

    def __iter__(self) -> Iterator[S]:
        return iter(list(self._here))

    def soonest(self) -> float | None:
        """When the next one's time is over (monotonic)."""
        return min((s.deadline for s in self._here), default=None)

    def overdue(self) -> list[S]:
        """Those whose time is over."""
        now = time.monotonic()
        return [s for s in self._here if s.deadline <= now]

    # ---- coming and going

    def next_round(self) -> None:
        """All that are here have been heard."""
        self._round += 1

    def enter(self, stranger: S) -> S | None:
        """One more; -> whose place it gets, and who is to be sent away."""
        known = stranger.address in self._known
        rivals = [s for s in self._unproved() if (s.address in self._known) == known]
        victim = self._victim(rivals, stranger.address) if len(rivals) >= PLACES else None
        stranger.round = self._round
        self._here[stranger] = None
        return victim

    def _unproved(self) -> list[S]:
        return [s for s in list(self._here) if not s.proved]

    def _victim(self, rivals: list[S], newcomer: Hashable) -> S:
        held = Counter(s.address for s in rivals)
        most = max(held.values())
        if held[newcomer] == most:
            rivals = [s for s in rivals if s.address == newcomer]
        else:
            rivals = [s for s in rivals if held[s.address] == most]
        for s in rivals:  # the oldest that had the time to say something, and has not
            if not s.heard and s.round < self._round:
                return s
        return next((s for s in rivals if s.heard), rivals[0])

    def leave(self, stranger: S) -> None:
        """It has gone, or what follows has seen to it."""
        self._here.pop(stranger, None)

    def believe(self, stranger: S) -> None:
        """It has proved a secret: its address is known from now on."""
        stranger.proved = True
        self.proved += 1
        self._known.pop(stranger.address, None)
        self._known[stranger.address] = None
        if len(self._known) > KNOWN_ADDRESSES:
            del self._known[next(iter(self._known))]

    def refuse(self, stranger: S, why: str) -> None:
        """It is sent away for what it said; no text: nothing strange, its gate may have ended."""
        self.leave(stranger)
        self.refused += 1
        if why:
            self._warn(stranger, why)

    def drop(self, stranger: S, why: str) -> None:
        """It is sent away for what it did not say."""
        self.leave(stranger)
        self.idle += 1
        self._warn(stranger, why)

    def _warn(self, last: S, why: str) -> None:
        now = time.monotonic()
        if now < self._warned + WARN_EVERY_S:
            return
        refused, idle = self.refused - self._told[0], self.idle - self._told[1]
        self._warned, self._told = now, (self.refused, self.idle)
        log.warning(
            "%s: since the last warning %d callers were refused, and %d dropped that proved no secret in time or whose "
            "place was needed; the last, from %s: %s. %d of %d places are taken. At most one warning in %g s; "
            "env.stats() counts them all",
            self._where,
            refused,
            idle,
            last.address,
            why,
            len(self._unproved()),
            2 * PLACES,
            WARN_EVERY_S,
        )

    def stats(self) -> dict[str, int]:
        """What :meth:`ShuffleEnvironment.stats` says of strangers."""
        return {
            "places": 2 * PLACES,
            "places_taken": len(self._unproved()),
            "producers_proved": self.proved,
            "strangers_refused": self.refused,
            "strangers_dropped": self.idle,
        }
