"""State of windows as a few tables, each in the order of its labels: windows that end are the first rows of each.

Tables that do not fit into memory are merged to one in a file (:mod:`fastbuf.event_time.spill`); of these, too, several
of about one size become one.  The scheme: O'Neil and others, "The log-structured merge-tree" (1996).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbuf.event_time.arrow_rows import int64s, sorted_by
from fastbuf.event_time.spill import (
    LABEL,
    PART_BYTES,
    GroupsOf,
    Labels,
    MappedFile,
    Spill,
    Tiers,
    alike,
    parts_of,
    weight,
)

if TYPE_CHECKING:
    import pyarrow as pa

TableOfGroups = tuple[Any, NDArray[Any] | None]  #: a table, and the key group of each row if it is known
TIER = 8  #: tables of about one size that are merged into one
SMALL_ROWS = 1 << 12  #: of pieces, on average, that are worth a copy


class Run:
    """A table by label, and where each label starts.

    Attributes
    ----------
    groups
        Of a table in a file, whose rows are by label and key group: the group of each.  None: it is in memory.
    file
        That file.
    """

    groups: pa.ChunkedArray | None = None
    file: MappedFile | None = None

    def __init__(self, table: pa.Table, labels: Labels | None = None, offsets: Labels | None = None) -> None:
        if labels is not None and offsets is not None:
            self.table, self.labels, self.offsets = table, labels, offsets
            return
        self.table, values = sorted_by(table, int64s(table.column(LABEL)))
        firsts = np.flatnonzero(np.diff(values, prepend=values[:1] - 1))
        self.labels = values[firsts]
        self.offsets = np.append(firsts, len(values))

    def between(self, low: int, high: int) -> tuple[int, int]:
        """The rows with labels from `low` on and below `high`."""
        first, end = np.searchsorted(self.labels, (low, high))
        return int(self.offsets[first]), int(self.offsets[end])

    def without(self, low: int, high: int) -> Run | None:
        """The other rows; None: there are none."""
        import pyarrow as pa

        first, end = self.between(low, high)
        others = (self.labels < low) | (self.labels >= high)
        if not others.any():
            return None
        table = pa.concat_tables([self.table.slice(0, first), self.table.slice(end)])
        run = Run(table, self.labels[others], np.append(0, np.cumsum(np.diff(self.offsets)[others])))
        if self.groups is not None:
            run.groups = pa.chunked_array([*self.groups.slice(0, first).chunks, *self.groups.slice(end).chunks])
            run.file = self.file
        # A slice keeps all memory: copy it, once half is gone; of several pieces whole ones go
        elif 2 * table.num_rows <= self.table.num_rows and table.column(LABEL).num_chunks < 3:
            run.table = table.take(np.arange(table.num_rows))
        return run

    def of_label(self, at: int, groups_of: GroupsOf) -> tuple[pa.Table, NDArray[Any]]:
        """The rows of one label in the order of key groups, and these."""
        first, rows = int(self.offsets[at]), int(self.offsets[at + 1] - self.offsets[at])
        table = self.table.slice(first, rows)
        if self.groups is not None:
            return table, self.groups.slice(first, rows).to_numpy()
        groups = groups_of(table)
        order = np.argsort(groups, kind="stable")
        return table.take(order), groups[order]


class Runs(Tiers[Run]):
    """All rows of state; the later ones of a key and label stand in later tables.

    Parameters
    ----------
    merge
        Makes one row of those of the same key and label.
    spill
        What writes tables that do not fit into memory; None: all do.
    """

    def __init__(self, merge: Callable[[pa.Table], pa.Table], spill: Spill | None = None) -> None:
        super().__init__()  # those in files first
        self._merge, self._spill = merge, spill

    @property
    def in_files(self) -> int:
        """How many tables are in files."""
        return sum(run.groups is not None for run in self.runs)

    def add(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        self.runs.append(Run(table))
        last = alike([run.table.num_rows for run in self.runs[self.in_files :]])
        if last >= TIER:
            self.compact(last)
        if self._spill is not None:
            written = self.in_files
            if sum(run.table.nbytes for run in self.runs[written:]) > self._spill.limit:
                self._write(written, len(self.runs))
                last = alike([run.table.num_rows for run in self.runs])
                if last >= TIER:
                    self._write(len(self.runs) - last, len(self.runs))

    def compact(self, last: int) -> None:
        """Merge the last tables."""
        import pyarrow as pa

        runs = self.runs[-last:]
        merged = pa.concat_tables([run.table for run in runs])
        labels = np.concatenate([run.labels for run in runs])
        if len(np.unique(labels)) < len(labels):
            merged = self._merge(merged).combine_chunks()
        elif merged.num_rows < SMALL_ROWS * last:
            merged = merged.combine_chunks()
        # Else no row is of the key and label of another: pieces stay as they are, and large ones are not copied
        self.runs[-last:] = [Run(merged)]

    def _write(self, first: int, end: int) -> None:
        """Merge tables to one in a file."""
        assert self._spill is not None
        some = Runs(self._merge, self._spill)
        some.runs = self.runs[first:end]
        table, labels, offsets, groups, mapped = self._spill.write(some._merged_parts())
        run = Run(table, labels, offsets)
        run.groups, run.file = groups, mapped
        self.runs[first:end] = [run]

    def _merged_parts(self) -> Iterator[pa.Table]:
        for part in self._parts():
            yield self._merge(part)
            self.release()

    def _parts(self) -> Iterator[pa.Table]:
        """All rows by label, in parts of not too many rows.

        All rows of a key and label are in one part: a label of many rows is cut by key groups.
        """
        import pyarrow as pa

        labels, rows = self.labels()
        sums = np.append(0, np.cumsum(rows))
        most = self.part_rows()
        first = 0
        while first < len(labels):
            end = max(first + 1, int(np.searchsorted(sums, sums[first] + most, "right")) - 1)
            count = int(sums[end] - sums[first])
            if count <= 2 * most:
                yield pa.concat_tables(self.between(int(labels[first]), int(labels[end - 1]) + 1))
            else:
                yield from self.by_group(int(labels[first]), int(labels[first]) + 1)
            first = end

    def part_rows(self) -> int:
        """About how many rows are put together at a time; all, if they are in memory."""
        rows = sum(table.num_rows for table in self.tables())
        return max(1, rows if self._spill is None else -(-rows // self._parts_of(self.tables())))

    def _parts_of(self, tables: Iterable[pa.Table]) -> int:
        return parts_of(*weight(tables), PART_BYTES if self._spill is None else self._spill.part_bytes)

    def by_group(self, low: int, high: int) -> Iterator[pa.Table]:
        """The rows with labels from `low` on and below `high`, in parts: all rows of a key are in one."""
        assert self._spill is not None
        groups = self._spill.groups
        parts = min(groups, self._parts_of(self.between(low, high)))
        pieces = self.in_groups(low, high, self._spill.groups_of)
        for part in range(parts):
            rows = of_groups(pieces, part * groups // parts, (part + 1) * groups // parts)
            if rows is not None:
                yield rows

    def in_groups(self, low: int, high: int, groups_of: GroupsOf) -> list[tuple[pa.Table, NDArray[Any]]]:
        """The rows with labels from `low` on and below `high`, in pieces by key group; with the group of each row."""
        return [
            run.of_label(at, groups_of) for run in self.runs for at in range(*np.searchsorted(run.labels, (low, high)))
        ]

    def labels(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The labels in order, and the rows of each."""
        if len(self.runs) == 1:
            return self.runs[0].labels, np.diff(self.runs[0].offsets)
        if not self.runs:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        each = np.concatenate([run.labels for run in self.runs])
        labels, at = np.unique(each, return_inverse=True)
        rows = np.bincount(at, np.concatenate([np.diff(run.offsets) for run in self.runs]), len(labels))
        return labels, rows.astype(np.int64)

    def between(self, low: int, high: int) -> list[pa.Table]:
        """The rows with labels from `low` on and below `high`: a slice of each table that has some."""
        out = []
        for run in self.runs:
            first, end = run.between(low, high)
            if end > first:
                out.append(run.table.slice(first, end - first))
        return out

    def labels_in(self, low: int, high: int) -> int:
        """How many labels there are from `low` on and below `high`, in the table that has most of them."""
        return max((int(np.diff(np.searchsorted(run.labels, (low, high)))[0]) for run in self.runs), default=0)

    def drop(self, low: int, high: int) -> list[TableOfGroups]:
        """Take these rows out."""
        dropped: list[TableOfGroups] = []
        runs = []
        for run in self.runs:
            first, end = run.between(low, high)
            if end == first:
                runs.append(run)
                continue
            groups = None if run.groups is None else run.groups.slice(first, end - first).to_numpy()
            dropped.append((run.table.slice(first, end - first), groups))
            rest = run.without(low, high)
            if rest is not None:
                runs.append(rest)
        self.runs = runs
        return dropped

    def extract(self, low: int, high: int, chosen: Callable[[pa.Table], NDArray[np.bool_]]) -> list[pa.Table]:
        """Take out the rows with labels from `low` on and below `high` that are chosen; all are in memory."""
        import pyarrow as pa

        pieces, runs = [], []
        for run in self.runs:
            first, end = run.between(low, high)
            piece = run.table.slice(first, end - first)
            mask = chosen(piece) if end > first else np.zeros(0, bool)
            if not mask.any():
                runs.append(run)
                continue
            pieces.append(piece.filter(pa.array(mask)))
            rest = pa.concat_tables([run.table.slice(0, first), piece.filter(pa.array(~mask)), run.table.slice(end)])
            if rest.num_rows:
                runs.append(Run(rest.combine_chunks()))
        self.runs = runs
        return pieces

    def tables(self) -> Iterator[pa.Table]:
        for run in self.runs:
            yield run.table


def of_groups(pieces: list[tuple[pa.Table, NDArray[Any]]], first: int, end: int) -> pa.Table | None:
    """The rows of the key groups from `first` on and below `end`, of pieces by group; None: there are none."""
    import pyarrow as pa

    some = []
    for table, numbers in pieces:
        begin, stop = np.searchsorted(numbers, (first, end))
        if stop > begin:
            some.append(table.slice(begin, stop - begin))
    return pa.concat_tables(some) if some else None
