"""Numbers of keys by their hashes: open addressing with linear probing (Knuth, 6.4), of many keys at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]
LEAST_SLOTS = 4096
MOST_HASH = 1 << 30  #: hashes are below this


class HashIndex:
    """Places by hash."""

    def __init__(self) -> None:
        self._slots = np.zeros(LEAST_SLOTS, np.int32)  # a place + 1; 0: never used; -1: removed
        self._taken = 0  # slots that are not 0

    def find(self, hashes: Places, of_places: Places, equal: Callable[[Places, Places], NDArray[np.bool_]]) -> Places:
        """The place of each key, -1 if there is none.

        Parameters
        ----------
        of_places
            The hash of the key at each place.
        equal
            Compares keys at places with those of some rows; few calls, each for many.
        """
        key_places = self._probe(hashes, lambda places, rows: of_places[places] == hashes[rows])
        hits = np.flatnonzero(key_places >= 0)
        other = hits[~equal(key_places[hits], hits)]  # another key with the same hash
        if len(other):
            key_places[other] = self._probe(hashes[other], lambda places, rows: equal(places, other[rows]))
        return key_places

    def _probe(self, hashes: Places, fits: Callable[[Places, Places], NDArray[np.bool_]]) -> Places:
        mask = len(self._slots) - 1
        places = np.full(len(hashes), -1, np.int64)
        left = np.arange(len(hashes))
        at = hashes & mask
        while len(left):
            there = self._slots[at].astype(np.int64) - 1
            right = there >= 0
            right[right] = fits(there[right], left[right])
            places[left[right]] = there[right]
            goes_on = ~right & (there != -1)
            left, at = left[goes_on], (at[goes_on] + 1) & mask
        return places

    def add(self, hashes: Places, places: Places) -> None:
        """Places of keys that are not there, and differ from each other."""
        mask = len(self._slots) - 1
        at, left = hashes & mask, places
        while len(left):
            free = self._slots[at] <= 0
            tried, wanted = at[free], left[free] + 1
            self._taken += int((self._slots[tried] == 0).sum())
            self._slots[tried] = wanted  # of several that want one slot, the last gets it
            lost = np.ones(len(left), bool)
            lost[np.flatnonzero(free)[self._slots[tried] == wanted]] = False
            at, left = (at[lost] + 1) & mask, left[lost]

    def remove(self, hashes: Places, places: Places) -> None:
        """Places that are there."""
        mask = len(self._slots) - 1
        at, left = hashes & mask, places
        while len(left):
            here = self._slots[at] == left + 1
            self._slots[at[here]] = -1
            at, left = (at[~here] + 1) & mask, left[~here]

    def full_with(self, more: int) -> bool:
        """Whether it should be made anew before so many are added."""
        return 2 * (self._taken + more) > len(self._slots)

    def rebuild(self, hashes: Places, places: Places, more: int) -> None:
        """Make it anew, with room for more."""
        self._slots = np.zeros(1 << int(4 * (len(places) + more)).bit_length(), np.int32)
        self._taken = 0
        self.add(hashes, places)
