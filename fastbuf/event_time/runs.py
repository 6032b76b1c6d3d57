"""State of windows as a few tables, each in the order of its labels: windows that end are the first rows of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastbuf.event_time.arrow_rows import int64s, sorted_by

if TYPE_CHECKING:
    import pyarrow as pa

LABEL = "w"  #: the column of the label
TIER = 8  #: tables of about one size that are merged into one
SMALL_ROWS = 1 << 12  #: of pieces, on average, that are worth a copy


class Run:
    """A table by label, and where each label starts."""

    def __init__(self, table: pa.Table) -> None:
        self.table, values = sorted_by(table, int64s(table.column(LABEL)))
        firsts = np.flatnonzero(np.diff(values, prepend=values[:1] - 1))
        self.labels = values[firsts]
        self.offsets = np.append(firsts, len(values))

    def between(self, low: int, high: int) -> tuple[int, int]:
        """The rows with labels from `low` on and below `high`."""
        first, end = np.searchsorted(self.labels, (low, high))
        return int(self.offsets[first]), int(self.offsets[end])


class Runs:
    """All rows of state; the later ones of a key and label stand in later tables.

    Parameters
    ----------
    merge
        Makes one row of those of the same key and label.
    """

    def __init__(self, merge: Callable[[pa.Table], pa.Table]) -> None:
        self._merge = merge
        self.runs: list[Run] = []

    def add(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        self.runs.append(Run(table))
        alike, rows = 1, table.num_rows
        while alike < len(self.runs) and self.runs[-alike - 1].table.num_rows <= rows:
            rows += self.runs[-alike - 1].table.num_rows
            alike += 1
        if alike >= TIER:
            self.compact(alike)

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

    def drop(self, low: int, high: int) -> list[pa.Table]:
        """Take these rows out."""
        import pyarrow as pa

        dropped, runs = [], []
        for run in self.runs:
            first, end = run.between(low, high)
            if end == first:
                runs.append(run)
                continue
            dropped.append(run.table.slice(first, end - first))
            rest = [piece for piece in (run.table.slice(0, first), run.table.slice(end)) if piece.num_rows]
            if rest:
                table = pa.concat_tables(rest)
                # A slice keeps all memory: copy it, once half is gone; of several pieces whole ones go
                pieces = table.column(LABEL).num_chunks
                small = 2 * table.num_rows <= run.table.num_rows and pieces < 3
                runs.append(Run(table.take(np.arange(table.num_rows)) if small else table))
        self.runs = runs
        return dropped

    def extract(self, low: int, high: int, chosen: Callable[[pa.Table], NDArray[np.bool_]]) -> list[pa.Table]:
        """Take out the rows with labels from `low` on and below `high` that are chosen."""
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
