"""Joins of two streams by windows: pairs of rows in the same window, when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbuf.checks import instance
from fastbuf.event_time.frozen import RowsOfState
from fastbuf.event_time.joins import LEFT, RIGHT, Join, Side
from fastbuf.event_time.runs import LABEL, Runs, of_groups
from fastbuf.event_time.sorted_rows import numbered, spread
from fastbuf.event_time.spill import parts_of, weight
from fastbuf.event_time.windows import Aligned

if TYPE_CHECKING:
    import pyarrow as pa


class WindowJoin(Join):
    """Pairs of rows with equal keys in the same tumbling or sliding window; they go out when it ends.

    The result has ``window_start`` and ``window_end`` first.  A row is late for the windows that have ended.

    Parameters
    ----------
    assigner
        :class:`~fastbuf.event_time.windows.Tumbling` or ``Sliding``.
    left, right, how, groups, keep_late
        As of :class:`~fastbuf.event_time.interval_join.IntervalJoin`.
    memory_bytes, spill_directory
        As of :class:`~fastbuf.event_time.operator.WindowOperator`: of the rows of both sides.
    """

    def __init__(
        self,
        left: Side,
        right: Side,
        assigner: Aligned,
        *,
        how: str = "inner",
        groups: int = 128,
        keep_late: bool = False,
        memory_bytes: int | None = None,
        spill_directory: str = "",
    ) -> None:
        import pyarrow as pa

        self.assigner = instance("assigner", assigner, Aligned)
        self._kind = pa.timestamp("us", getattr(left.schema.field(left.time).type, "tz", None))
        names = ("window_start", "window_end")
        super().__init__(left, right, how, groups, keep_late, [pa.field(name, self._kind) for name in names])
        spill = self._spill(memory_bytes, spill_directory, 2)
        self._state = Runs(as_they_are, spill), Runs(as_they_are, spill)  # by the pane of each row

    def _rows(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Nothing goes out before the watermark rises."""
        import pyarrow as pa

        assigner = self.assigner

        def late(times: NDArray[np.int64]) -> NDArray[np.bool_]:
            last = assigner.last_windows(assigner.panes(times))
            return np.asarray(assigner.ends(last) - 1 <= self.current) & (times <= self.current)

        taken = self._taken(side, batch, late)
        if taken is not None:
            table, times = taken
            panes = assigner.panes(times)
            inside = assigner.last_windows(panes) + assigner.size > panes
            if not inside.all():
                table, panes = table.filter(pa.array(inside)), panes[inside]
            self._keep(side, table.set_column(0, LABEL, pa.array(panes)))
        yield from ()

    def _advance(self, before: int) -> Iterator[pa.RecordBatch]:
        """The pairs of the windows that end with the watermark, in the order of windows."""
        assigner = self.assigner
        panes = np.union1d(*(rows.labels()[0] for rows in self._state))
        for window in assigner.ended(panes, before, self.current).tolist():
            for left, right in self._parts(window, window + assigner.size):
                yield from self._joined(window, left, right)
                self._release()
        over = panes[assigner.ends(assigner.last_windows(panes)) - 1 <= self.current]
        if len(over):
            for rows in self._state:
                for table, groups in rows.drop(int(over[0]), int(over[-1]) + 1):
                    self._dirty[self._hashes.groups(table) if groups is None else groups] = True

    def _parts(self, low: int, high: int) -> Iterator[tuple[pa.Table | None, pa.Table | None]]:
        """The rows of both sides with panes from `low` on and below `high`; of many rows those of some key groups."""
        import pyarrow as pa

        pieces = [rows.between(low, high) for rows in self._state]
        groups = len(self._dirty)
        parts = min(groups, parts_of(*weight(table for side in pieces for table in side), self._part_bytes))
        if parts == 1:
            yield tuple(pa.concat_tables(side) if side else None for side in pieces)  # type: ignore[misc]
            return
        grouped = [rows.in_groups(low, high, self._hashes.groups) for rows in self._state]
        for part in range(parts):
            ends = part * groups // parts, (part + 1) * groups // parts
            yield of_groups(grouped[LEFT], *ends), of_groups(grouped[RIGHT], *ends)

    def _keep(self, side: int, table: pa.Table) -> None:
        self._state[side].add(table)

    def _frozen(self, side: int) -> Callable[[], Iterable[RowsOfState]]:
        runs = list(self._state[side].runs)
        return lambda: [RowsOfState(run.table, None if run.groups is None else run.groups.to_numpy()) for run in runs]

    def _release(self) -> None:
        for rows in self._state:
            rows.release()

    def _size(self) -> tuple[int, int]:
        tables = [table for rows in self._state for table in rows.tables()]
        return sum(table.num_rows for table in tables), sum(table.nbytes for table in tables)

    def _file_bytes(self) -> int:
        return sum(rows.file_bytes() for rows in self._state)

    def _joined(self, window: int, left: pa.Table | None, right: pa.Table | None) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        label = np.array([window])
        bounds = [int(self.assigner.starts(label)[0]), int(self.assigner.ends(label)[0])]

        def times(rows: int) -> list[Any]:
            return [pa.array(np.full(rows, bound)).cast(self._kind) for bound in bounds]

        alone = [None if t is None else np.ones(t.num_rows, bool) for t in (left, right)]
        if left is not None and right is not None:
            mine, theirs = numbered(left.select(self._keys), right.select(self._keys))
            order = np.argsort(theirs, kind="stable")
            first = np.searchsorted(theirs[order], mine, "left")
            end = np.searchsorted(theirs[order], mine, "right")
            for own, at in spread(first, end):
                yield from self._result(left.take(own), right.take(order[at]), times(len(own)))
                alone[LEFT][own], alone[RIGHT][order[at]] = False, False  # type: ignore[index]
        for side, table in enumerate((left, right)):
            if table is not None and self._outer[side]:
                rows = table.filter(pa.array(alone[side]))
                only = [rows if side == which else None for which in (LEFT, RIGHT)]
                yield from self._result(only[LEFT], only[RIGHT], times(rows.num_rows))


def as_they_are(rows: pa.Table) -> pa.Table:
    """Rows of a join are not merged with each other."""
    return rows
