"""State by key group: a map whose snapshot is taken at once, and written while rows go on.

A snapshot freezes the groups that changed: what is written after it goes into a second map for each of them, which is
merged when the snapshot is let go of (copy on write, as Flink's ``CopyOnWriteStateMap``, by group and not by entry).
A value may be changed in place only if it was put since the last snapshot: see ``GroupedMap.version``.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

FEW = 256
_GONE: Any = object()  # in the second map: the key was removed


class _Group(Generic[K, V]):
    """The entries of one key group."""

    __slots__ = ("newer", "older")

    def __init__(self) -> None:
        self.older: dict[K, V] = {}
        self.newer: dict[K, V] | None = None  # while ``older`` is frozen

    def merge(self) -> None:
        if self.newer is None:
            return
        newer, self.newer = self.newer, None
        if any(value is _GONE for value in newer.values()):
            for key, value in newer.items():
                if value is _GONE:
                    self.older.pop(key, None)
                else:
                    self.older[key] = value
        else:
            self.older.update(newer)


class GroupedMap(Generic[K, V]):
    """A map of keys to values in key groups.  One thread uses it; frozen groups may be read by another.

    Attributes
    ----------
    version
        How many snapshots were taken: no snapshot has a value that was put in the version of now.
    """

    def __init__(self) -> None:
        self.version = 0
        self._groups: dict[int, _Group[K, V]] = {}
        self._changed: set[int] = set()
        self._frozen: set[int] = set()
        self._thawing: set[int] = set()  # not frozen any more, and not merged yet

    def __len__(self) -> int:
        for number in tuple(self._thawing):
            self._merge(number)
        return sum(
            len(group.older)
            + sum((value is not _GONE) - (key in group.older) for key, value in (group.newer or {}).items())
            for group in self._groups.values()
        )

    def _merge(self, number: int) -> None:
        self._thawing.discard(number)
        self._groups[number].merge()

    def get(self, group: int, key: K, default: Any = None) -> Any:
        """The value of a key, or the default."""
        there = self._groups.get(group)
        if there is None:
            return default
        if there.newer is not None:
            if group in self._thawing:
                self._merge(group)
            else:
                value = there.newer.get(key, None)
                if value is not None:
                    return default if value is _GONE else value
        return there.older.get(key, default)

    def put(self, group: int, key: K, value: V) -> None:
        """Set the value of a key; it is not None."""
        there = self._groups.get(group)
        if there is None:
            there = self._groups[group] = _Group()
        if group in self._thawing:
            self._merge(group)
        self._changed.add(group)
        (there.older if there.newer is None else there.newer)[key] = value

    def remove(self, group: int, key: K) -> None:
        """Remove a key; that it is not there is no error."""
        if self.get(group, key) is None:
            return
        there = self._groups[group]
        self._changed.add(group)
        if there.newer is None:
            del there.older[key]
        else:
            there.newer[key] = _GONE

    def items(self, group: int) -> Iterator[tuple[K, V]]:
        """The entries of a group; it must not be changed meanwhile."""
        there = self._groups.get(group)
        if there is None:
            return
        if group in self._thawing:
            self._merge(group)
        newer = there.newer or {}
        for key, value in there.older.items():
            if key not in newer:
                yield key, value
        for key, value in newer.items():
            if value is not _GONE:
                yield key, value

    @property
    def groups(self) -> list[int]:
        """The groups that ever had an entry."""
        return list(self._groups)

    @property
    def changed(self) -> frozenset[int]:
        """The groups that changed since they were last frozen."""
        return frozenset(self._changed)

    def freeze(self, more: frozenset[int] = frozenset()) -> Mapping[int, Mapping[K, V]]:
        """The entries of the groups that changed since the last call, and of ``more``, as they are now.

        They stay so until :meth:`thaw`; another thread may read them.
        """
        if self._frozen:
            raise RuntimeError("the state is frozen already")
        for number in tuple(self._thawing):
            self._merge(number)
        taken = {number for number in self._changed | more if number in self._groups}
        self._changed.clear()
        self.version += 1
        self._frozen = taken
        entries = {}
        for number in taken:
            group = self._groups[number]
            group.newer = {}
            entries[number] = group.older
        return entries

    def thaw(self) -> None:
        """The frozen entries are not needed any more; they are merged when their group is next used."""
        self._thawing |= self._frozen
        self._frozen = set()

    def restore(self, group: int, entries: Mapping[K, V]) -> None:
        """The entries of a group, as a snapshot had them."""
        there = self._groups.setdefault(group, _Group())
        there.older.update(entries)


class Timers:
    """Timers by key group: each key at a time once; those that are due come in the order of their times.

    Backed by a :class:`GroupedMap` with the times of each key in order, so that they are in snapshots.  Due ones are
    found by a heap of times.
    """

    def __init__(self) -> None:
        self.state: GroupedMap[Any, tuple[int, ...]] = GroupedMap()
        self._heap: list[tuple[int, int, int, Any]] = []
        self._count = 0
        self._most = FEW  # entries of the heap before it is looked through for those that are gone

    def _place(self, group: int, key: Any, time_ms: int) -> tuple[tuple[int, ...], int, bool]:
        """The times of a key, where this one belongs, and whether it is there."""
        times = self.state.get(group, key, ())
        at = bisect_left(times, time_ms)
        return times, at, at < len(times) and times[at] == time_ms

    def _push(self, group: int, key: Any, time_ms: int) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time_ms, self._count, group, key))

    def add(self, group: int, key: Any, time_ms: int) -> None:
        """Set a timer; one that is set already stays one."""
        times, at, is_there = self._place(group, key, time_ms)
        if not is_there:
            self.state.put(group, key, (*times[:at], time_ms, *times[at:]))
            self._push(group, key, time_ms)
            if len(self._heap) > self._most:  # most may have been taken back
                live = {(at, where, whose): (at, n, where, whose) for at, n, where, whose in self._heap}
                self._heap = [each for (at, where, whose), each in live.items() if self._place(where, whose, at)[2]]
                heapq.heapify(self._heap)
                self._most = 2 * len(self._heap) + FEW

    def remove(self, group: int, key: Any, time_ms: int) -> None:
        """Take a timer back."""
        times, at, is_there = self._place(group, key, time_ms)
        if is_there and len(times) > 1:
            self.state.put(group, key, times[:at] + times[at + 1 :])
        elif is_there:
            self.state.remove(group, key)

    def of(self, group: int, key: Any) -> list[int]:
        """The times of a key's timers."""
        return list(self.state.get(group, key, ()))

    def due(self, now_ms: int) -> Iterator[tuple[int, Any, int]]:
        """Group, key and time of each timer up to ``now_ms``, which is removed; not of those that are set meanwhile."""
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            due.append(heapq.heappop(self._heap))
        for time_ms, _, group, key in due:
            if self._place(group, key, time_ms)[2]:
                self.remove(group, key, time_ms)
                yield group, key, time_ms

    def restore(self, group: int, entries: Mapping[Any, tuple[int, ...]]) -> None:
        """The timers of a group, as a snapshot had them."""
        self.state.restore(group, entries)
        for key, times in entries.items():
            for time_ms in times:
                self._push(group, key, time_ms)


class Confirmed:
    """Which pieces hold the state of each group, by what was told of complete checkpoints.

    A group that a checkpoint wrote is written again by the next one unless the first is known to be complete: the file
    of one that failed may be removed at any time.
    """

    def __init__(self) -> None:
        self.pieces: dict[int, list[Any] | None] = {}  # None: the group is empty
        self._written: dict[int, dict[int, list[Any] | None]] = {}  # by checkpoint
        self._taken: dict[int, frozenset[int]] = {}

    @property
    def unconfirmed(self) -> frozenset[int]:
        """Groups whose newest piece may be of no use."""
        return frozenset().union(*self._taken.values())

    def taken(self, checkpoint: int, groups: frozenset[int]) -> None:
        """A snapshot of these groups was taken."""
        self._taken[checkpoint] = groups

    def written(self, checkpoint: int, pieces: dict[int, list[Any] | None]) -> dict[int, list[Any]]:
        """They were written; returns all pieces of this checkpoint, of groups that are not empty."""
        self._written[checkpoint] = pieces
        return {group: piece for group, piece in {**self.pieces, **pieces}.items() if piece is not None}

    def complete(self, checkpoint: int) -> None:
        """The checkpoint is complete, and older ones are over."""
        self.pieces.update(self._written.get(checkpoint, {}))
        self._written = {number: pieces for number, pieces in self._written.items() if number > checkpoint}
        self._taken = {number: groups for number, groups in self._taken.items() if number > checkpoint}
