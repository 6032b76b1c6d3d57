"""State at one moment, given by key group: some groups at a time, so that no more than these are in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastbuf.event_time.arrow_rows import Hashes
from fastbuf.event_time.spill import parts_of

if TYPE_CHECKING:
    import pyarrow as pa


class RowsOfState(NamedTuple):
    """Some rows of a table.

    Attributes
    ----------
    groups
        The key group of each row of the table, if it is known.
    places
        Which rows; None: all.
    """

    table: pa.Table
    groups: NDArray[Any] | None = None
    places: NDArray[np.intp] | None = None

    def chosen(self, mask: NDArray[np.bool_] | None) -> pa.Table:
        """Those of the rows for which the mask is true; None: all."""
        import pyarrow as pa

        if self.places is None:  # of several chunks take() would make one before
            return self.table if mask is None else self.table.filter(pa.array(mask))
        return self.table.take(self.places if mask is None else self.places[mask])


class FrozenRows:
    """State that does not change, and may be read by other threads.

    Parameters
    ----------
    rows
        Gives all of them; called once, by the first thread that reads.
    hashes, groups
        Of the keys, and the number of key groups.
    part_bytes
        About so many bytes are made at a time.
    together
        Makes one table of those of some groups.
    """

    def __init__(
        self,
        rows: Callable[[], Iterable[RowsOfState]],
        hashes: Hashes,
        groups: int,
        part_bytes: int,
        together: Callable[[list[pa.Table]], pa.Table],
    ) -> None:
        self._give: Callable[[], Iterable[RowsOfState]] | None = rows
        self._hashes, self._groups, self._part_bytes, self._together = hashes, groups, part_bytes, together
        self._rows: list[RowsOfState] = []
        self._numbers: list[NDArray[np.int16]] = []  # the part of each row of these, if there are several
        self._parts = 1
        self._part = -1  # which one the table is
        self._table: pa.Table | None = None
        self._offsets = np.zeros(0, np.int64)
        self._lock = Lock()

    def of(self, group: int) -> pa.Table:
        """The rows of a key group.  They are made for many groups at a time: ask for them in their order."""
        with self._lock:
            if self._give is not None:
                self._begin(self._give)
                self._give = None
            if group * self._parts // self._groups != self._part:
                self._take(group * self._parts // self._groups)
            assert self._table is not None
            start, end = self._offsets[group], self._offsets[group + 1]
            return self._table.slice(start, end - start)

    def _begin(self, give: Callable[[], Iterable[RowsOfState]]) -> None:
        self._rows = list(give())
        counts = [len(rows.table if rows.places is None else rows.places) for rows in self._rows]
        # Of a table of which few rows are left not all bytes count
        weights = zip(self._rows, counts, strict=True)
        nbytes = sum(rows.table.nbytes * count // max(1, rows.table.num_rows) for rows, count in weights)
        self._parts = min(self._groups, parts_of(sum(counts), nbytes, self._part_bytes))
        for rows in self._rows if self._parts > 1 else ():
            groups = self._hashes.groups(rows.table) if rows.groups is None else rows.groups
            of_group = (np.arange(self._groups) * self._parts // self._groups).astype(np.int16)
            self._numbers.append(of_group[groups if rows.places is None else groups[rows.places]])

    def _take(self, part: int) -> None:
        """Merge the state of the groups of one part."""
        import pyarrow as pa

        self._table = None
        masks = [each == part for each in self._numbers] if self._parts > 1 else [None] * len(self._rows)
        tables = [rows.chosen(mask) for rows, mask in zip(self._rows, masks, strict=True)]
        table = self._together(tables) if tables else pa.table({})
        groups = self._hashes.groups(table) if table.num_rows else np.zeros(0, np.int32)
        self._offsets = np.append(0, np.cumsum(np.bincount(groups, minlength=self._groups)))
        self._table, self._part = table.take(np.argsort(groups, kind="stable")), part


def encoded(*tables: pa.Table) -> bytes:
    """Arrow streams behind one another."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    for table in tables:
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    return bytes(sink.getvalue())
