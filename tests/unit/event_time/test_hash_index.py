"""Places of keys by hash, beside a dict: with equal hashes, removed keys, and tables that are being moved."""

from __future__ import annotations

import numpy as np
import pytest
from nights import LONG, nightly

from fastbuf.event_time.hash_index import LEAST_MOVED, MOVED, HashIndex


class Beside:
    """An index, and a dict of the same keys."""

    def __init__(self, hashes: int) -> None:
        self.index, self.hashes = HashIndex(), hashes
        self.keys = np.zeros(0, np.int64)  # by place
        self.places: dict[int, int] = {}

    def hash_of(self, keys: np.ndarray) -> np.ndarray:
        return keys * 2654435761 % self.hashes

    def find(self, asked: np.ndarray) -> np.ndarray:
        found = self.index.find(self.hash_of(asked), lambda at, rows: self.keys[at] == asked[rows])
        assert found.tolist() == [self.places.get(key, -1) for key in asked.tolist()]
        return found

    def add(self, keys: np.ndarray) -> None:
        places = np.arange(len(self.keys), len(self.keys) + len(keys))
        self.keys = np.append(self.keys, keys)
        self.index.add(self.hash_of(keys), places)
        self.places.update(zip(keys.tolist(), places.tolist(), strict=True))

    def remove(self, keys: np.ndarray) -> None:
        self.index.remove(self.hash_of(keys), np.array([self.places.pop(key) for key in keys.tolist()]))


@nightly(seed=[1, 2, 3])
@pytest.mark.parametrize("hashes", [1 << 30, 5_000])
@pytest.mark.parametrize("seed", range(4))
def test_random_keys(hashes: int, seed: int) -> None:
    rng, both, moving = np.random.default_rng(seed), Beside(hashes), 0
    for _ in range(150 if LONG else 60):
        asked = np.unique(rng.integers(0, 40_000, rng.integers(1, 1500)))
        rng.shuffle(asked)
        missing = asked[both.find(asked) < 0]
        if len(missing) and rng.random() < 0.8:
            both.add(missing)
        here = np.array(list(both.places))
        if len(here) and rng.random() < 0.3:
            both.remove(rng.choice(here, rng.integers(1, len(here) + 1), replace=False))
        moving += both.index._before is not None
        assert len(both.index) == len(both.places)
    assert moving > (5 if LONG else 2)


@pytest.mark.parametrize("at_once", [10, 3_000])
def test_no_call_moves_all(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many keys there are: else a stream would stand still for as long as that takes."""
    both, moved = Beside(1 << 30), [0]
    real = HashIndex._move

    def counts(self: HashIndex, slots: int) -> None:
        before = self._before
        moved.append(0 if before is None else min(slots, len(before.slots) - self._moved))
        real(self, slots)

    monkeypatch.setattr(HashIndex, "_move", counts)
    for begin in range(0, 60_000, at_once):
        both.add(np.arange(begin, begin + at_once))
    assert sum(moved) > 60_000
    assert max(moved) <= max(LEAST_MOVED, MOVED * at_once)
    both.find(np.arange(-100, 60_100))
