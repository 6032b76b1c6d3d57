"""Numbers of keys by their hashes: open addressing with linear probing (Knuth, 6.4), of many keys at a time.

A table that is half full gets a successor of twice its size, to which each later call moves some slots: no call moves
all, which would hold up a stream for as long as its keys are many (the incremental rehashing of Redis's dict.c).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]
Equal = Callable[[Places, Places], NDArray[np.bool_]]
LEAST_SLOTS = 4096
LEAST_MOVED = 2048  #: slots that a call moves at least,
MOVED = 4  #: and for each key that it adds: a table is moved before its successor is half full
MOST_HASH = 1 << 30  #: hashes are below this


class _Table:
    """Slots, with a place + 1 (0: never used; -1: removed), and the hash of its key."""

    def __init__(self, slots: int) -> None:
        self.slots = np.zeros(slots, np.int32)
        self.hashes = np.zeros(slots, np.int32)
        self.taken = 0  # slots that are not 0

    def probe(self, hashes: Places, rows: Places, equal: Equal | None) -> Places:
        """The place of each of some rows' keys, -1 if there is none.

        ``equal``: compares keys at places with those of rows; None: the first with the same hash.
        """
        mask = len(self.slots) - 1
        places = np.full(len(rows), -1, np.int64)
        left = np.arange(len(rows))
        at = hashes & mask
        while len(left):
            there = self.slots[at]
            right = (there > 0) & (self.hashes[at] == hashes[left])
            if equal is not None and right.any():
                right[right] = equal(there[right].astype(np.int64) - 1, rows[left[right]])
            places[left[right]] = there[right] - 1
            goes_on = ~right & (there != 0)
            left, at = left[goes_on], (at[goes_on] + 1) & mask
        return places

    def add(self, hashes: Places, places: Places) -> None:
        """Places of keys that are not there, and differ from each other."""
        mask = len(self.slots) - 1
        at, left = hashes & mask, np.arange(len(places))
        while len(left):
            free = self.slots[at] <= 0
            tried, rows = at[free], left[free]
            was_new = self.slots[tried] == 0
            self.slots[tried] = places[rows] + 1  # of several that want one slot, the last gets it
            got = self.slots[tried] == places[rows] + 1
            self.taken += int(np.count_nonzero(was_new & got))
            self.hashes[tried[got]] = hashes[rows[got]]
            lost = np.ones(len(left), bool)
            lost[np.flatnonzero(free)[got]] = False
            at, left = (at[lost] + 1) & mask, left[lost]

    def remove(self, hashes: Places, places: Places) -> NDArray[np.bool_]:
        """Remove places; those that are not here."""
        mask = len(self.slots) - 1
        missing = np.ones(len(places), bool)
        at, left = hashes & mask, np.arange(len(places))
        while len(left):
            there = self.slots[at]
            here = there == places[left] + 1
            self.slots[at[here]] = -1
            missing[left[here]] = False
            goes_on = ~here & (there != 0)
            left, at = left[goes_on], (at[goes_on] + 1) & mask
        return missing


class HashIndex:
    """Places by hash."""

    def __init__(self) -> None:
        self._table = _Table(LEAST_SLOTS)
        self._before: _Table | None = None  # the one that is being moved
        self._moved = 0  # slots of it
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, hashes: Places, equal: Equal) -> Places:
        """The place of each key, -1 if there is none.

        Parameters
        ----------
        equal
            Compares keys at places with those of some rows; few calls, each for many.
        """
        self._move(LEAST_MOVED)
        places = self._probed(hashes, np.arange(len(hashes)), None)
        hits = np.flatnonzero(places >= 0)
        other = hits[~equal(places[hits], hits)]  # another key with the same hash
        if len(other):
            places[other] = self._probed(hashes[other], other, equal)
        return places

    def _probed(self, hashes: Places, rows: Places, equal: Equal | None) -> Places:
        places = self._table.probe(hashes, rows, equal)
        if self._before is not None:
            missing = np.flatnonzero(places < 0)
            places[missing] = self._before.probe(hashes[missing], rows[missing], equal)
        return places

    def add(self, hashes: Places, places: Places) -> None:
        """Places of keys that are not there, and differ from each other."""
        self._move(max(LEAST_MOVED, MOVED * len(places)))
        waiting = 0 if self._before is None else self._before.taken
        if 2 * (self._table.taken + waiting + len(places)) > len(self._table.slots):
            if self._before is not None:  # as where most of its successor's keys were removed again
                self._move(len(self._before.slots))
            self._before, self._moved = self._table, 0
            self._table = _Table(max(LEAST_SLOTS, 1 << int(2 * (self._count + len(places))).bit_length()))
        self._table.add(hashes, places)
        self._count += len(places)

    def remove(self, hashes: Places, places: Places) -> None:
        """Places that are there."""
        missing = self._table.remove(hashes, places)
        if self._before is not None:
            self._before.remove(hashes[missing], places[missing])
        self._count -= len(places)

    def _move(self, slots: int) -> None:
        """Move the keys of so many slots to the successor; a removed one is left there, for what lies behind it."""
        before = self._before
        if before is None:
            return
        end = min(self._moved + slots, len(before.slots))
        some = self._moved + np.flatnonzero(before.slots[self._moved : end] > 0)
        self._table.add(before.hashes[some].astype(np.int64), before.slots[some].astype(np.int64) - 1)
        before.slots[some] = -1
        before.taken -= len(some)
        self._moved = end
        if end == len(before.slots):
            self._before = None
