"""Cogroups: groups of two inputs by the same keys, which arrive as the rows of a single input.

A column says to which side each row belongs, and columns of both sides with suitable types share one column.  Within a
group the left side's rows come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf_spark.worker.groups import Group
from fastbuf_spark.worker.order import flags

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


#: Advice for functions that have no form with iterators
REMEDY = "Both sides of a key are held at once: group by more keys, or make rows fewer by group_by's before="


@dataclass(frozen=True)
class Place:
    """The positions of one side's columns among those that are sent."""

    schema: pa.Schema
    columns: tuple[int, ...]

    def of(self, rows: pa.RecordBatch | pa.Table) -> pa.Table:
        """This side's columns of rows of this side."""
        import pyarrow as pa

        return pa.Table.from_arrays([rows.column(i) for i in self.columns], schema=self.schema)


class SideGroup(Group):
    """One side of a group, without its key."""

    def __init__(self, shown: pa.Table, start: int, stop: int) -> None:
        self.batch = self.shown = shown
        self.start = start
        self.stop = stop
        self.is_open = False

    def key_columns_of_piece(self) -> list[pa.Array]:
        return []

    def table(self, remedy: str = REMEDY) -> pa.Table:
        return self.shown.slice(self.start, self.stop - self.start)


class Sides:
    """Splits groups into their two sides.

    Parameters
    ----------
    side
        Position of the column that says to which side a row belongs: False is left.
    """

    def __init__(self, side: int, places: tuple[Place, Place]) -> None:
        self._side = side
        self._places = places
        self._piece: Any = None
        self._shown: list[pa.Table] = []
        self._counts: list[Any] = []

    def tables(self, group: Group) -> list[pa.Table]:
        """The left and the right side of a group, as tables."""
        if group.is_open:
            whole = group.table(remedy=REMEDY)
            at = len(whole) - int(whole.column(self._side).to_numpy().sum())
            parts = whole.slice(0, at), whole.slice(at)
            return [place.of(part) for place, part in zip(self._places, parts, strict=True)]
        if self._piece is not group.batch:
            self._piece = group.batch
            self._shown = [place.of(group.batch) for place in self._places]
            self._counts = [_before(flags(group.batch.column(self._side)))]
        start, stop, before = group.start, group.stop, self._counts[0]
        at = stop - int(before[stop] - before[start])
        left, right = self._shown
        return [left.slice(start, at - start), right.slice(at, stop - at)]

    def of(self, group: Group) -> list[SideGroup]:
        """The left and the right side of a group, for conversions that work on the whole piece."""
        if group.is_open:
            return [SideGroup(part, 0, part.num_rows) for part in self.tables(group)]
        if self._piece is not group.batch:
            self._split(group)
        start, stop = group.start, group.stop
        return [
            SideGroup(shown, int(counts[start]), int(counts[stop]))
            for shown, counts in zip(self._shown, self._counts, strict=True)
        ]

    def _split(self, group: Group) -> None:
        """Split all rows of a piece by side, so that a group's sides are slices of the two tables."""
        import pyarrow as pa

        batch = self._piece = group.batch
        is_right = flags(batch.column(self._side)).view(bool)
        self._shown, self._counts = [], []
        for place, chosen in zip(self._places, (~is_right, is_right), strict=True):
            self._shown.append(place.of(batch).filter(pa.array(chosen)).combine_chunks())
            self._counts.append(_before(chosen))


def _before(chosen: np.ndarray) -> np.ndarray:
    """For each row, and for the end, the number of chosen rows before it."""
    import numpy as np

    counts: np.ndarray = np.zeros(len(chosen) + 1, np.int32)
    np.cumsum(chosen, dtype=np.int32, out=counts[1:])
    return counts
