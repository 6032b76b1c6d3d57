"""Joins of two streams by an interval: pairs of rows whose times are not too far from each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from fastbuf.checks import whole
from fastbuf.errors import ConfigError
from fastbuf.event_time.arrow_rows import int64s
from fastbuf.event_time.frozen import RowsOfState
from fastbuf.event_time.joins import LEFT, MATCHED, RIGHT, Join, Side
from fastbuf.event_time.runs import LABEL
from fastbuf.event_time.sorted_rows import FrozenRun, SortedRows, same_keys
from fastbuf.event_time.watermarks import MIN
from fastbuf.event_time.windows import MOST_US

if TYPE_CHECKING:
    import pyarrow as pa


class IntervalJoin(Join):
    """Pairs of rows with equal keys, the right one from `lower_us` to `upper_us` behind the left one, both included.

    A pair goes out when its second row comes.  A row is late if the watermark has reached it.  It is kept for as long
    as a row that is not late may be its partner.

    Parameters
    ----------
    left, right
        The inputs.
    lower_us, upper_us
        Bounds of right time - left time, in microseconds; they may be negative.  ``MOST_US`` and its negative are none:
        the rows that wait for them are kept for ever, and where both are, no row is late.
    how
        ``"inner"``, or ``"left"``, ``"right"``, ``"full"``: rows without a partner go out when none can come any more.
    groups, keep_late
        As of :class:`~fastbuf.event_time.operator.WindowOperator`; `late` has a list for each side.
    memory_bytes, spill_directory
        As there, of the rows of both sides; some 40 bytes for each stay in memory, by which it is found.
    """

    def __init__(
        self,
        left: Side,
        right: Side,
        lower_us: int,
        upper_us: int,
        *,
        how: str = "inner",
        groups: int = 128,
        keep_late: bool = False,
        memory_bytes: int | None = None,
        spill_directory: str = "",
    ) -> None:
        whole("lower_us", lower_us, -MOST_US, MOST_US)
        whole("upper_us", upper_us, -MOST_US, MOST_US)
        if lower_us > upper_us:
            raise ConfigError(f"lower_us is {lower_us}, and upper_us {upper_us}: the lower bound is the greater")
        super().__init__(left, right, how, groups, keep_late, [])
        spill = self._spill(memory_bytes, spill_directory, 2)
        self._state = SortedRows(spill), SortedRows(spill)
        # Of other time - own time, by side
        self._bounds = ((lower_us, upper_us), (-upper_us, -lower_us))

    def _rows(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        reached = MIN if self._bounds[side] == (-MOST_US, MOST_US) else self.current
        taken = self._taken(side, batch, lambda times: times <= reached)
        if taken is None:
            return
        table, times = taken
        hashes = self._hashes.wide(table)
        order = np.argsort(hashes, kind="stable")  # neighbours are found faster
        lower, upper = self._bounds[side]
        keys = table.select(self._keys)
        matched = np.zeros(table.num_rows, bool)
        for run in self._state[1 - side].runs:
            for own, theirs in run.candidates(hashes[order], times[order] + lower, times[order] + upper):
                own = order[own]
                same = np.flatnonzero(same_keys(keys.take(own), run.table.select(self._keys).take(theirs)))
                same = same[np.argsort(own[same], kind="stable")]  # as the rows came
                own, theirs = own[same], theirs[same]
                mine, partners = table.take(own), run.table.take(theirs)
                yield from self._result(*((mine, partners) if side == LEFT else (partners, mine)), [])
                matched[own] = True
                if self._outer[1 - side]:
                    run.matched[theirs] = True
                    self._dirty[self._hashes.groups(partners)] = True
        self._release()
        self._state[side].add(table.drop_columns([LABEL, MATCHED]), hashes, times, matched)

    def _advance(self, before: int) -> Iterator[pa.RecordBatch]:
        """Rows that can have no partner any more are dropped; of an outer join, they go out before."""
        import pyarrow as pa

        for side in (LEFT, RIGHT):
            columns = None if self._outer[side] else self._keys  # enough to know the groups
            for table, matched in self._state[side].expire(self.current - self._bounds[side][1], columns):
                self._dirty[self._hashes.groups(table)] = True
                if self._outer[side]:
                    rows = table.filter(pa.array(~matched))
                    yield from self._result(rows if side == LEFT else None, rows if side == RIGHT else None, [])

    def _keep(self, side: int, table: pa.Table) -> None:
        if table.num_rows:
            times, matched = int64s(table.column(LABEL)), table.column(MATCHED).to_numpy()
            rows = table.drop_columns([LABEL, MATCHED])
            self._state[side].add(rows, self._hashes.wide(rows), times, matched)

    def _frozen(self, side: int) -> Callable[[], Iterable[RowsOfState]]:
        import pyarrow as pa

        runs = [run.frozen() for run in self._state[side].runs]
        columns = [LABEL, *self._keys, MATCHED, *(f"r{name}" for name in self._sides[side].schema.names)]

        def rows(run: FrozenRun) -> RowsOfState:
            given = run.rows(**{LABEL: pa.array(run.times), MATCHED: pa.array(run.matched)})
            return given._replace(table=given.table.select(columns))

        return lambda: map(rows, runs)

    def _release(self) -> None:
        for rows in self._state:
            rows.release()

    def _size(self) -> tuple[int, int]:
        return sum(map(len, self._state)), sum(rows.nbytes for rows in self._state)

    def _file_bytes(self) -> int:
        return sum(side.file_bytes() for side in self._state)
