"""Rows that wait, found by key and time: some runs of them, each with an index in the order of both.

Runs of about one size become one, so that a batch is looked up in few of them (O'Neil and others, "The log-structured
merge-tree", 1996); a run of many rows is left alone, so that no merge takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbuf.event_time.arrow_rows import key_numbers, key_values
from fastbuf.event_time.frozen import RowsOfState
from fastbuf.event_time.spill import MappedFile, Spill, Tiers, alike, parts_of

if TYPE_CHECKING:
    import pyarrow as pa

    Places = NDArray[np.intp]
    Int64s = NDArray[np.int64]
    RowsOfKeys = tuple[pa.Table, Int64s]  # and of which of the keys each row is
    Bools = NDArray[np.bool_]

YOUNG_ROWS = 1 << 10  #: below, a run takes the next rows
MOST_ROWS = 1 << 20  #: a run of so many rows is merged no more
MERGED = 4  #: runs of about one size that become one
MOST_PAIRS = 1 << 18  #: at once: of a key with many rows there may be more than fit into memory
TIME_BITS = 33  #: of a code, below a hash of 30 bits


class SortedRun:
    """Rows as they came, and where those of a hash and a time are; some of them may be gone.

    Parameters
    ----------
    table, hashes, times
        The rows, the hashes of their keys, from 0 to 2^30, and their times.
    matched
        Whether each has had a partner; changed in place.
    order
        Their places, some of which after another are in order already; None: as they come.

    Attributes
    ----------
    file
        What the table is mapped from; None: it is in memory.
    """

    file: MappedFile | None = None

    def __init__(
        self, table: pa.Table, hashes: Int64s, times: Int64s, matched: Bools, order: Places | None = None
    ) -> None:
        self.table = table.combine_chunks()  # of many pieces a row is found slowly
        self.hashes, self.times, self.matched = hashes.astype(np.int32), times, matched
        self._least, self._most = int(times.min()), int(times.max())
        # As many bits of a time as there is room for
        self._shift = max(0, (self._most - self._least).bit_length() - TIME_BITS)
        codes = hashes.astype(np.int64) << TIME_BITS | (times - self._least) >> self._shift
        # NumPy's stable sort merges what is in order, and its other one is the faster for what is not
        order = np.argsort(codes) if order is None else order[np.argsort(codes[order], kind="stable")]
        self._order = order.astype(np.int32)
        self._codes = codes[order]
        self._gone: Bools | None = None
        self._passed = 0  # of the rows by time, which are gone
        self._left = len(times)

    @classmethod
    def of(cls, runs: Sequence[SortedRun]) -> SortedRun | None:
        """One of several, without what is gone; None: nothing is left."""
        import pyarrow as pa

        tables: list[pa.Table] = []
        columns: list[list[Any]] = []
        rows = 0
        for run in runs:
            own: list[Any] = [run.hashes, run.times, run.matched]
            table, order = run.table, run._order
            if run._gone is not None:
                alive = ~run._gone
                table, own = table.filter(pa.array(alive)), [each[alive] for each in own]
                order = (np.cumsum(alive) - 1)[order[alive[order]]]
            tables.append(table)
            columns.append([*own, order + np.int64(rows)])
            rows += table.num_rows
        if not rows:
            return None
        return cls(pa.concat_tables(tables), *map(np.concatenate, zip(*columns, strict=True)))

    def __len__(self) -> int:
        """Rows that are not gone."""
        return self._left

    @property
    def nbytes(self) -> int:
        """Of the rows and their index."""
        own = self.hashes, self.times, self.matched, self._order, self._codes
        return int(self.table.nbytes) + sum(each.nbytes for each in own)

    def write(self, spill: Spill) -> None:
        """Put the rows into a file; the index stays in memory."""
        self.table, self.file = spill.mapped([self.table])

    @cached_property
    def _by_time(self) -> Places:
        return np.argsort(self.times, kind="stable")

    def candidates(self, hashes: Int64s, low: Int64s, high: Int64s) -> Iterator[tuple[Places, Places]]:
        """Pairs of a given row and a place here, some at a time: of the same hash, the time from `low` to `high`.

        Many given rows are found faster in the order of their hashes.
        """
        if low.min() > self._most or high.max() < self._least:
            return
        base = hashes << TIME_BITS

        def coded(times: Int64s) -> Int64s:
            return np.asarray(base + ((np.clip(times, self._least, self._most) - self._least) >> self._shift))

        first = np.searchsorted(self._codes, coded(low), "left")
        for own, at in spread(first, np.searchsorted(self._codes, coded(high), "right")):
            places = self._order[at].astype(np.intp)
            times = self.times[places]
            near = (times >= low[own]) & (times <= high[own])
            yield (own, places) if near.all() else (own[near], places[near])

    def of_keys(self, keys: pa.Table, hashes: Int64s, low: Int64s, high: Int64s) -> tuple[Places, Places]:
        """Pairs of a given key and a place here, in the order in which the rows came; see :meth:`SortedRows.groups`."""
        pairs: list[tuple[Places, Places]] = [(np.empty(0, np.intp),) * 2]
        for own, there in self.candidates(hashes, low, high):
            here = self.is_here(there)
            own, there = own[here], there[here]
            if keys.num_columns:  # else all rows have one key
                same = equal_keys(keys.take(own), self.table.select(keys.column_names).take(there))
                own, there = own[same], there[same]
            pairs.append((own, there))
        own, there = map(np.concatenate, zip(*pairs, strict=True))
        order = np.argsort(there)
        return own[order], there[order]

    def counts(self, hashes: Int64s, low: Int64s, high: Int64s) -> Places:
        """How many candidates each given row has, or more; some of them may be gone."""
        base = hashes << TIME_BITS
        ends = [base + ((np.clip(t, self._least, self._most) - self._least) >> self._shift) for t in (low, high)]
        return np.searchsorted(self._codes, ends[1], "right") - np.searchsorted(self._codes, ends[0], "left")

    def take_out(self, places: Places) -> None:
        """Rows that are here are gone from now on."""
        if self._gone is None:
            self._gone = np.zeros(len(self.times), bool)
        self._gone[places] = True
        self._left -= len(places)

    def expire(self, through: int) -> Places:
        """Take out the rows with times up to this one; their places."""
        if through < self._least:
            return np.empty(0, np.intp)
        before = self._passed
        self._passed = max(before, int(np.searchsorted(self.times, through, "right", sorter=self._by_time)))
        places = self._by_time[before : self._passed]
        if self._gone is not None:
            places = places[~self._gone[places]]
        if len(places):
            self.take_out(places)
        return places

    def least(self) -> int:
        """The least time of the rows that are not gone; there must be some."""
        if self._gone is None:
            return self._least
        while True:
            here = np.flatnonzero(~self._gone[self._by_time[self._passed : self._passed + YOUNG_ROWS]])
            self._passed += int(here[0]) if len(here) else YOUNG_ROWS
            if len(here):
                return int(self.times[self._by_time[self._passed]])

    def is_here(self, places: Places) -> Bools:
        """Which of some places have rows that are not gone."""
        return np.ones(len(places), bool) if self._gone is None else ~self._gone[places]

    def rows(self) -> pa.Table:
        """The rows that are not gone."""
        return self.frozen().rows().chosen(None)

    def frozen(self) -> FrozenRun:
        """The rows of now, to be read by any thread."""
        gone = None if self._gone is None else self._gone.copy()
        return FrozenRun(self.table, self.times, self.matched.copy(), gone)

    @property
    def is_mostly_gone(self) -> bool:
        """Whether a copy of the rows that are left is worth it."""
        return 2 * self._left < len(self.times)


@dataclass(frozen=True)
class FrozenRun:
    """A run at one moment: its rows, their times, whether each had a partner, and which are gone."""

    table: pa.Table
    times: Int64s
    matched: Bools
    gone: Bools | None

    def rows(self, **columns: Any) -> RowsOfState:
        """The rows that are there, with further columns."""
        table = self.table
        for name, values in columns.items():
            table = table.append_column(name, values)
        return RowsOfState(table, None, None if self.gone is None else np.flatnonzero(~self.gone))


class SortedRows(Tiers[SortedRun]):
    """Rows of one side of a join, or sessions.

    Parameters
    ----------
    spill
        What writes rows that do not fit into memory; None: all do.
    """

    def __init__(self, spill: Spill | None = None) -> None:
        super().__init__()
        self._spill = spill

    def add(self, table: pa.Table, hashes: Int64s, times: Int64s, matched: Bools) -> None:
        """Rows, as :class:`SortedRun` has them."""
        self.runs.append(SortedRun(table, hashes, times, matched))
        if len(self.runs) > 1 and len(self.runs[-2]) < YOUNG_ROWS:
            self._merge(2)
        while (last := alike([len(run) for run in self.runs], MOST_ROWS)) >= MERGED and self._merge(last):
            pass
        self._write()

    def _write(self) -> None:
        """Rows beyond the memory go to files."""
        if self._spill is not None:
            inside = [run for run in self.runs if run.file is None]
            if sum(run.table.nbytes for run in inside) > self._spill.limit:
                for run in inside:
                    run.write(self._spill)

    def _merge(self, last: int) -> bool:
        """Merge the last runs, if so much may be in memory at once."""
        if self._spill is not None:
            nbytes = sum(run.table.nbytes for run in self.runs[-last:])
            if nbytes > self._spill.part_bytes and any(run.file is not None for run in self.runs[-last:]):
                return False
        merged = SortedRun.of(self.runs[-last:])
        self.runs[-last:] = [] if merged is None else [merged]
        return True

    def expire(self, through: int, columns: Sequence[str] | None = None) -> Iterator[tuple[pa.Table, Bools]]:
        """Take out the rows with times up to this one; with them, which have had a partner.

        So many at once as may be in memory: by their times, and of one time by their hashes.  Those of a key and time
        are together, in the order in which they came.
        """
        import pyarrow as pa

        expired = [(run, places) for run in self.runs if len(places := run.expire(through))]
        for numbers in self._parts(expired):
            tables = [
                (
                    (run.table if columns is None else run.table.select(columns)).take(places[some]),
                    run.matched[places[some]],
                )
                for (run, places), some in zip(expired, numbers, strict=True)
            ]
            self.release()
            yield pa.concat_tables(table for table, _ in tables), np.concatenate([matched for _, matched in tables])
        if expired:
            self._tidy()

    def _parts(self, chosen: list[tuple[SortedRun, Places]]) -> Iterator[list[Any]]:
        """Which of the places of each run are in each part."""
        sizes = [run.table.nbytes / run.table.num_rows for run, _ in chosen]
        nbytes = sum(int(size) * len(places) for size, (_, places) in zip(sizes, chosen, strict=True))
        parts = 1 if self._spill is None else parts_of(0, nbytes, self._spill.part_bytes)
        if parts == 1 or not chosen:
            if chosen:
                yield [slice(None)] * len(chosen)
            return
        times = np.concatenate([run.times[places] for run, places in chosen])
        hashes = np.concatenate([run.hashes[places] for run, places in chosen])
        weights = np.repeat(sizes, [len(places) for _, places in chosen])
        order = np.lexsort((hashes, times))
        new = np.append(True, (np.diff(times[order]) != 0) | (np.diff(hashes[order]) != 0))
        firsts = np.flatnonzero(new)
        part_of_first = (np.cumsum(weights[order])[firsts] * parts / (weights.sum() + 1)).astype(np.int64)
        part = np.empty(len(order), np.int64)
        part[order] = np.repeat(part_of_first, np.diff(firsts, append=len(order)))
        of_run = np.split(part, np.cumsum([len(places) for _, places in chosen])[:-1])
        for number in np.unique(part_of_first).tolist():
            yield [each == number for each in of_run]

    def take_out(self, choose: Callable[[SortedRun], Places]) -> list[pa.Table]:
        """Take out rows of each run; these."""
        tables = []
        for run in self.runs:
            places = choose(run)
            places = places[run.is_here(places)]
            if len(places):
                tables.append(run.table.take(places))
                run.take_out(places)
        if tables:
            self._tidy()
        return tables

    def groups(self, keys: pa.Table, hashes: Int64s, low: Int64s, high: Int64s, take: bool) -> Iterator[RowsOfKeys]:
        """The rows of some keys from a time to a time each; so many keys at once as may be in memory.

        Parameters
        ----------
        keys
            The first columns of the rows, for each that is looked for; null is a key like others.
        take
            Whether they are taken out.
        """
        import pyarrow as pa

        counts, nbytes = np.zeros(len(hashes), np.int64), 0
        for run in self.runs:
            here = run.counts(hashes, low, high)
            counts += here
            nbytes += run.table.nbytes * int(here.sum()) // run.table.num_rows
        parts = 1 if self._spill is None else parts_of(0, nbytes, self._spill.part_bytes)
        turn = np.cumsum(counts) * parts // max(1, int(counts.sum()) + 1)
        for some in np.split(np.arange(len(hashes)), np.flatnonzero(np.diff(turn)) + 1):
            tables, numbers = [], []
            for run in self.runs:
                own, there = run.of_keys(keys.take(some), hashes[some], low[some], high[some])
                if len(own):
                    tables.append(run.table.take(there))
                    numbers.append(some[own])
                    if take:
                        run.take_out(there)
            self.release()
            if tables:
                of = np.concatenate(numbers)
                order = np.argsort(of, kind="stable")
                yield pa.concat_tables(tables).take(order), of[order]
        if take:
            self._tidy()

    def drop(self, keys: pa.Table, hashes: Int64s, low: Int64s, high: Int64s) -> None:
        """Take out the rows that :meth:`groups` gives, and read no more of them than their keys."""
        for run in self.runs:
            _, places = run.of_keys(keys, hashes, low, high)
            if len(places):
                run.take_out(places)
        self.release()
        self._tidy()

    def least(self) -> int | None:
        """The least time of all; None: there are no rows."""
        return min((run.least() for run in self.runs), default=None)

    def _tidy(self) -> None:
        tidy = (SortedRun.of([run]) if run.is_mostly_gone else run for run in self.runs)
        self.runs = [run for run in tidy if run is not None]
        self._write()

    def __len__(self) -> int:
        return sum(len(run) for run in self.runs)

    @property
    def nbytes(self) -> int:
        """Of the rows and their indexes."""
        return sum(run.nbytes for run in self.runs)


def spread(first: Places, end: Places) -> Iterator[tuple[Places, Places]]:
    """All pairs of a row and a place from its `first` on and below its `end`, not too many at once."""
    lengths = np.maximum(end - first, 0)
    ends = np.cumsum(lengths)
    starts = first - (ends - lengths)
    pairs = int(ends[-1]) if len(ends) else 0
    for begin in range(0, pairs, MOST_PAIRS):
        numbers = np.arange(begin, min(begin + MOST_PAIRS, pairs))
        if pairs <= MOST_PAIRS:
            rows = np.repeat(np.arange(len(first)), lengths)
        else:
            rows = np.searchsorted(ends, numbers, "right")
        yield rows, starts[rows] + numbers


def numbered(left: pa.Table, right: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A number for the key of each row, the same on both sides; one with a null has another on each side."""
    import pyarrow as pa
    import pyarrow.compute as pc

    both = pa.concat_tables([left, right])
    numbers = key_numbers(both.columns, both.num_rows) + 2
    for column in both.columns:
        if column.null_count:
            null = pc.is_null(column).to_numpy()
            numbers[null] = np.where(np.arange(both.num_rows)[null] < left.num_rows, 0, 1)
    return numbers[: left.num_rows], numbers[left.num_rows :]


def equal_keys(left: pa.Table, right: pa.Table) -> Bools:
    """Whether the keys of two rows at a time are equal; null equals null."""
    import pyarrow as pa

    both = pa.concat_tables([left, right])
    numbers = key_values(both.columns, both.num_rows)
    return np.asarray(numbers[: left.num_rows] == numbers[left.num_rows :])


def same_keys(left: pa.Table, right: pa.Table) -> Bools:
    """Whether the keys of two rows at a time are equal; null equals nothing."""
    import pyarrow as pa

    columns: list[Any] = [left.column(0), right.column(0)]
    if left.num_columns == 1 and columns[0].type == pa.int64() and not any(each.null_count for each in columns):
        return np.asarray(columns[0].to_numpy() == columns[1].to_numpy())
    mine, theirs = numbered(left, right)
    return np.asarray(mine == theirs)
