"""Sliding windows that fire one after the other: two stacks of panes, as arrays with an entry for each key.

The panes of a window are cut at a moment.  *Newer* has those behind the cut, and grows with each window; *older* those
before it, and each that leaves the window is undone: what was there before it came is kept.  So each row of a pane is
touched three times, however many windows it is in, and nothing is subtracted, which floats would not bear.  A window
is both together, by one pass over the keys.  The algorithm: Tangwongsan, Hirzel, Schneider, "Low-latency sliding-window
aggregation in worst-case constant time" (2017), there "two-stacks".
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbuf.event_time.arrow_rows import order_by
from fastbuf.event_time.hash_index import MOST_HASH, HashIndex
from fastbuf.event_time.runs import LABEL, Runs
from fastbuf.event_time.vectors import Bools, Totals, one_array
from fastbuf.event_time.watermarks import MIN
from fastbuf.serializers.partition import HashPartitioner

if TYPE_CHECKING:
    import pyarrow as pa

Rows = list[tuple[NDArray[Any], Bools]]
LEAST_OVERLAP = 4  #: windows that a row is in, for stacks to be worth their while


class NumberedKeys:
    """Keys, numbered from 0 on.

    Attributes
    ----------
    columns
        The keys, by their numbers.
    order
        Numbers in the order of keys; None: they are in order.
    """

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._hasher = HashPartitioner(names, MOST_HASH)
        self._clear()

    def _clear(self) -> None:
        self._index = HashIndex()
        self._hashes = np.empty(0, np.int64)
        self.columns: list[pa.Array] = []
        self.order: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self._hashes)

    def of(self, table: pa.Table) -> NDArray[np.int64]:
        """The number of each row, whose keys differ; new keys get one."""
        import pyarrow as pa

        columns = [one_array(table.column(name)) for name in self._names]
        hashes = self._hasher.partition(pa.RecordBatch.from_arrays(columns, self._names)).astype(np.int64)

        def equal(numbers: NDArray[np.int64], rows: NDArray[np.int64]) -> Bools:
            mask = np.ones(len(rows), bool)
            for mine, theirs in zip(self.columns, columns, strict=True):
                theirs = theirs if len(rows) == len(hashes) else theirs.take(pa.array(rows))
                mask &= same(mine.take(pa.array(numbers)), theirs)
            return mask

        numbers = self._index.find(hashes, equal) if len(self) else np.full(len(hashes), -1, np.int64)
        new = np.flatnonzero(numbers < 0)
        if len(new):
            numbers[new] = np.arange(len(self), len(self) + len(new))
            fresh = [column.take(pa.array(new)) for column in columns]
            both = zip(self.columns, fresh, strict=True)
            self.columns = [pa.concat_arrays(pair) for pair in both] if len(self) else fresh
            self._hashes = np.append(self._hashes, hashes[new])
            self._index.add(hashes[new], numbers[new])
            self.order = order_by(pa.table(self.columns, self._names), self._names)
        return numbers

    def renumber(self, wanted: Bools) -> NDArray[np.int64] | None:
        """Number these in their order, and forget the others; the new numbers, None: they are the old ones."""
        import pyarrow as pa

        if self.order is None and 2 * np.count_nonzero(wanted) >= len(wanted):
            return None
        order = np.flatnonzero(wanted) if self.order is None else self.order[wanted[self.order]]
        columns, hashes = [column.take(pa.array(order)) for column in self.columns], self._hashes[order]
        numbers = np.full(len(self), -1, np.int64)
        numbers[order] = np.arange(len(order))
        self._clear()
        self.columns, self._hashes = columns, hashes
        self._index.add(hashes, np.arange(len(order)))
        return numbers


def same(some: pa.Array, others: pa.Array) -> Bools:
    """Which are equal; null is a value like others, and so is NaN, of which there is one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(some.type):
        bits = f"int{some.type.bit_width}"
        some, others = some.view(bits), others.view(bits)
    mask = pc.equal(some, others)
    if mask.null_count:
        mask = pc.if_else(mask.is_valid(), mask, pc.and_(some.is_null(), others.is_null()))
    equal: Bools = mask.to_numpy(zero_copy_only=False)
    return equal


@dataclass
class _Step:
    """Rows of panes between two moments at which windows start or end."""

    start: int
    at: NDArray[np.int64]  # numbers of keys
    rows: Rows

    @property
    def nbytes(self) -> int:
        return self.at.nbytes + sum(values.nbytes + valid.nbytes for values, valid in self.rows)


class Stacks:
    """Merged panes of the windows that fire next.

    Parameters
    ----------
    runs
        The state, by pane.
    work, keys
        What merges rows of the same key.
    size, slide
        Of the windows.
    """

    def __init__(self, runs: Runs, work: Any, keys: list[str], size: int, slide: int) -> None:
        self._runs, self._work, self._names = runs, work, keys
        self._size, self._slide = size, slide
        self.overlap = -(-size // slide)
        self._vectors = work.vectors()
        self.clear()

    def clear(self) -> None:
        """Forget all: no pane is left."""
        self._keys = NumberedKeys(self._names)
        self._steps: deque[_Step] = deque()  # of all panes that are put together
        self._undo: list[tuple[int, NDArray[np.int64], list[NDArray[Any]]]] = []  # start, keys, what was there before
        self._older = self._newer = Totals(self._vectors, 0)
        self._cut = self._end = MIN  # where newer panes begin, and where what is put together ends
        self._stale: int | None = None  # the first pane that has had rows since it was put together with others

    @property
    def nbytes(self) -> int:
        """Bytes that it takes besides the state."""
        arrays = [array for _, at, before in self._undo for array in (at, *before)]
        parts = [*arrays, *self._steps, *self._keys.columns, self._older, self._newer]
        return sum(part.nbytes for part in parts)

    def rows_at(self, label: int) -> None:
        """Rows have come to panes from this one on: what is put together of them is not all."""
        if label < self._end:
            self._stale = label if self._stale is None else min(self._stale, label)

    def window(self, window: int) -> pa.Table | None:
        """The merged rows of a window in the order of keys, without a label; windows are asked for in their order."""
        end = window + self._size
        if self._end <= window or end < self._end:
            self._steps.clear()
            self._end = window
        while self._steps and self._steps[0].start < window:
            self._steps.popleft()
        fresh = self._forget_stale(window)
        start = fresh
        while start < end:  # each step ends where a window starts, or this one ends
            stop = min(start + self._slide - (start - window) % self._slide, end)
            self._read(start, stop)
            start = stop
        self._end = end
        if window >= self._cut or fresh < self._cut:
            self._flip(end)
        else:
            while self._undo and self._undo[-1][0] < window:
                self._older.put_back(*self._undo.pop()[1:])
            self._older.grow(len(self._keys))
            self._newer.grow(len(self._keys))
            self._add_newer(fresh)
        return self._both()

    def _forget_stale(self, window: int) -> int:
        """Forget the panes to which rows have come, and all behind them; from where on panes are to be read."""
        if self._stale is None:
            return self._end
        fresh = max(window, self._stale - (self._stale - window) % self._slide)
        self._stale = None
        while self._steps and self._steps[-1].start >= fresh:
            self._steps.pop()
        self._newer = Totals(self._vectors, len(self._keys))
        self._add_newer(self._cut)
        return min(self._end, fresh)

    def _add_newer(self, since: int) -> None:
        for step in self._steps:
            if step.start >= since:
                self._newer.add(step.at, step.rows)

    def _read(self, start: int, end: int) -> None:
        pieces = self._runs.between(start, end)
        if not pieces:
            return
        table = pieces[0]
        if len(pieces) > 1 or self._runs.labels_in(start, end) > 1:
            import pyarrow as pa

            table = self._work.again(pa.concat_tables(pieces).drop_columns([LABEL]), self._names)
        at = self._keys.of(table)
        self._steps.append(_Step(start, at, [each.read(table) for each in self._vectors]))

    def _flip(self, cut: int) -> None:
        """All panes are older ones from here on."""
        wanted = np.zeros(len(self._keys), bool)
        for step in self._steps:
            wanted[step.at] = True
        numbers = self._keys.renumber(wanted)
        self._older, self._newer = (Totals(self._vectors, len(self._keys)) for _ in range(2))
        self._undo, self._cut = [], cut
        for step in reversed(self._steps):
            if numbers is not None:
                step.at = numbers[step.at]
            self._undo.append((step.start, step.at, self._older.copies(step.at)))
            self._older.add(step.at, step.rows, before=True)

    def _both(self) -> pa.Table | None:
        import pyarrow as pa

        size = len(self._keys)
        there = self._older.there[:size] | self._newer.there[:size]
        order = self._keys.order
        if not there.any():
            return None
        if order is None and there.all():
            keys = self._keys.columns
            columns = self._older.with_newer(self._newer, slice(0, size))
        else:
            at = np.flatnonzero(there) if order is None else order[there[order]]
            keys = [column.take(pa.array(at)) for column in self._keys.columns]
            columns = self._older.with_newer(self._newer, at)
        names = [name for each in self._vectors for name in each.names]
        return pa.table([*keys, *columns], names=[*self._names, *names])
