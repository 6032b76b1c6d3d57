"""Unauthenticated connections at a listener: how many there may be, how long they may take, and which one is dropped.

A new connection is never refused a place; another one loses its place. So in a flood of silent connections each of them
soon loses its place, and a caller that knows a secret needs its place only for the time of two messages. Callers from
addresses that have proved a secret before have places of their own, and a caller loses its place only to an address
that has fewer places.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

from fastbuf.errors import strerror
from fastbuf.exchange.clock import monotonic
from fastbuf.fork_safe import child_closes

PLACES = 64  #: for callers from addresses that proved a secret, and as many for all others
PROOF_TIME_S = 10.0
TAKEN_IN = 16  #: accepted at once before existing connections are handled again
_PAUSE_S = 0.05
KNOWN_ADDRESSES = 1024  #: addresses remembered
WARN_EVERY_S = 60.0

log = logging.getLogger("fastbuf")


class Stranger:
    """An unauthenticated connection.

    Parameters
    ----------
    address
        Its origin: equal for all connections of the same caller.
    """

    def __init__(self, address: Hashable) -> None:
        self.address = address
        self.deadline = monotonic() + PROOF_TIME_S
        self.heard = False  #: it has sent a producer's first message
        self.proved = False  #: it has proved a secret, and needs no place any more though it may not be connected yet
        self.round = 0  #: when it came


S = TypeVar("S", bound=Stranger)


class Strangers(Generic[S]):
    """The unauthenticated connections of one listener; only its thread calls this, but any thread may read the figures.

    Parameters
    ----------
    where
        The listener's name, for the log.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._here: dict[S, None] = {}  # in order of arrival
        self._proofs: dict[Hashable, None] = {}  # in the order of their last proof
        self._round = 0
        self._warned = self._lacked = -WARN_EVERY_S
        self._last_counts = (0, 0)
        self.proved = 0  #: callers that proved a secret
        self.refused = 0  #: callers refused because of a message
        self.idle = 0  #: callers dropped by timeout, or because their place was needed

    def __contains__(self, stranger: object) -> bool:
        return stranger in self._here

    def __iter__(self) -> Iterator[S]:
        return iter(list(self._here))

    def soonest(self) -> float | None:
        """When the next timeout is due (monotonic)."""
        return min((s.deadline for s in self._here), default=None)

    def overdue(self) -> list[S]:
        """Those whose time is over."""
        now = monotonic()
        return [s for s in self._here if s.deadline <= now]

    # ---- arrival and departure

    def newcomers(self, listening: socket.socket) -> Iterator[tuple[socket.socket, Any]]:
        """Accept connections that wait, `TAKEN_IN` at the most; yields each, which does not block, and its address."""
        for _ in range(TAKEN_IN):
            try:
                sock, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._cannot_accept(error)
                # The peer stays in the backlog, so select would return again at once.
                time.sleep(_PAUSE_S)
                return
            sock.setblocking(False)
            yield child_closes(sock), address

    def _cannot_accept(self, error: OSError) -> None:
        now = monotonic()
        if now >= self._lacked + WARN_EVERY_S:
            self._lacked = now
            log.warning(
                "%s cannot accept callers, which wait: %s. At most one warning in %g s",
                self._where,
                strerror(error.errno or 0),
                WARN_EVERY_S,
            )

    def next_round(self) -> None:
        """All present callers have been handled."""
        self._round += 1

    def enter(self, stranger: S) -> S | None:
        """Add a caller; returns the one that loses its place and must be dropped, if any."""
        proved = stranger.address in self._proofs
        rivals = [s for s in self._unproved() if (s.address in self._proofs) == proved]
        victim = self._victim(rivals, stranger.address) if len(rivals) >= PLACES else None
        stranger.round = self._round
        self._here[stranger] = None
        return victim

    def _unproved(self) -> list[S]:
        return [s for s in list(self._here) if not s.proved]

    def _victim(self, rivals: list[S], newcomer: Hashable) -> S:
        places = Counter(s.address for s in rivals)
        most = max(places.values())
        if places[newcomer] == most:
            rivals = [s for s in rivals if s.address == newcomer]
        else:
            rivals = [s for s in rivals if places[s.address] == most]
        for s in rivals:  # the oldest one that had time to send a message and sent none
            if not s.heard and s.round < self._round:
                return s
        return next((s for s in rivals if s.heard), rivals[0])

    def leave(self, stranger: S) -> None:
        """It was closed, or is handled elsewhere now."""
        self._here.pop(stranger, None)

    def believe(self, stranger: S) -> None:
        """It has proved a secret: its address is known from now on."""
        stranger.proved = True
        self.proved += 1
        self._proofs.pop(stranger.address, None)
        self._proofs[stranger.address] = None
        if len(self._proofs) > KNOWN_ADDRESSES:
            del self._proofs[next(iter(self._proofs))]

    def refuse(self, stranger: S, why: str) -> None:
        """It is refused because of a message; no text: nothing suspicious, for example its gate has ended."""
        self.leave(stranger)
        self.refused += 1
        if why:
            self._warn(stranger, why)

    def drop(self, stranger: S, why: str) -> None:
        """It is dropped because it sent no message in time."""
        self.leave(stranger)
        self.idle += 1
        self._warn(stranger, why)

    def _warn(self, last: S, why: str) -> None:
        now = monotonic()
        if now < self._warned + WARN_EVERY_S:
            return
        refused, idle = self.refused - self._last_counts[0], self.idle - self._last_counts[1]
        self._warned, self._last_counts = now, (self.refused, self.idle)
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
        """The figures of unauthenticated connections for :meth:`ShuffleEnvironment.stats`."""
        return {
            "places": 2 * PLACES,
            "places_taken": len(self._unproved()),
            "producers_proved": self.proved,
            "strangers_refused": self.refused,
            "strangers_dropped": self.idle,
        }
