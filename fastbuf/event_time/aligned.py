"""Tumbling, sliding and global windows: state by label, which is a pane's, or a window's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbuf.event_time import sliding
from fastbuf.event_time.aggregates import COUNT
from fastbuf.event_time.arrow_rows import Hashes, int64s, key_numbers
from fastbuf.event_time.frozen import RowsOfState
from fastbuf.event_time.results import Results
from fastbuf.event_time.rules import Rules
from fastbuf.event_time.runs import LABEL, Run, Runs
from fastbuf.event_time.sliding import Stacks
from fastbuf.event_time.spill import Spill
from fastbuf.event_time.watermarks import MAX, MIN
from fastbuf.event_time.windows import MOST_US, Aligned, Global

if TYPE_CHECKING:
    import pyarrow as pa

PENDING_ROWS = 1 << 19  #: rows that are not yet aggregated
PENDING_BYTES = 64 << 20
FIRED_ROWS = 1 << 18  #: rows of state that fire together, if one window has not more
NEVER = MAX + 1


class AlignedWindows:
    """State and firing of windows that are the same for all keys.

    Sliding windows share panes where a row's window need not be told from another: each fires as a whole.  Where they
    fire by the count of their rows, or drop what has fired, the state has a row for each window.
    """

    def __init__(
        self,
        assigner: Aligned | Global,
        rules: Rules,
        work: Any,
        results: Results,
        hashes: Hashes,
        dirty: NDArray[np.bool_],
        spill: Spill | None = None,
    ) -> None:
        import pyarrow as pa

        self.assigner, self.rules, self.work, self.results = assigner, rules, work, results
        self.keys = results.columns
        self.watermark = MIN
        self._hashes, self._dirty = hashes, dirty
        overlaps = isinstance(assigner, Aligned) and (assigner.size, assigner.slide) != (assigner.pane, assigner.pane)
        each = rules.purges or rules.trigger.rows is not None
        self._panes = overlaps and not each  # state by panes
        self._copies = overlaps and each  # a row for each window
        trigger = rules.trigger
        # Whether it is noted which keys of which windows have new rows; where rows are counted, that is in the state
        self._notes = bool(trigger.every_ms or trigger.every_us) and not (each or rules.complete)
        # Rows that are counted are taken out of the state and put back all the time: they stay in memory
        self._runs = Runs(self._merged, spill if trigger.rows is None else None)
        self._most_pending = PENDING_BYTES if spill is None else min(PENDING_BYTES, spill.limit)
        self._stacks: Stacks | None = None
        plain = not any(pa.types.is_dictionary(field.type) for field in list(results.schema)[: len(self.keys)])
        if self._panes and work.merges and self.keys and plain and isinstance(assigner, Aligned):
            stacks = Stacks(self._runs, work, self.keys, assigner.size, assigner.slide)
            self._stacks = stacks if stacks.overlap >= sliding.LEAST_OVERLAP else None
        self._pending: list[pa.Table] = []
        self._rows = self._bytes = 0  # of what is pending
        self._next = NEVER  # nothing happens to windows below this watermark
        self._behind: list[pa.Table] = []  # label and keys of a batch that may fire at once
        self._touched: list[pa.Table] = []  # the same since the last early results
        self._since = 0  # rows since the last complete result
        self.waits = False  # of these, one for a window that has ended

    # ---- labels

    def _windows(self, labels: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        if self._panes:
            assert isinstance(self.assigner, Aligned)
            return self.assigner.windows(labels)
        return np.arange(len(labels)), labels

    def _last(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """The last window of each label."""
        return self.assigner.last_windows(labels) if self._panes and isinstance(self.assigner, Aligned) else labels

    def _ended(self, windows: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.asarray(self.assigner.ends(windows) - 1 <= self.watermark)

    def _merged(self, table: pa.Table) -> pa.Table:
        return self.work.again(table, [LABEL, *self.keys])

    # ---- rows

    def add(self, times: NDArray[np.int64], table: pa.Table) -> NDArray[np.bool_] | None:
        """Rows with their keys and the columns that the work needs; which are late, None: none.

        What fires at once fires by :meth:`fire`.
        """
        import pyarrow as pa

        assigner, rules = self.assigner, self.rules
        labels = assigner.panes(times)
        mask = None
        if isinstance(assigner, Global):
            if self.watermark == MAX and not rules.keeps_all:
                mask = np.zeros(len(times), bool)
        elif self._copies:
            rows, labels = assigner.windows(labels)
            gone = rules.cleaned_at(assigner.ends(labels)) <= self.watermark
            if not rules.keeps_all and gone.any():
                rows, labels = rows[~gone], labels[~gone]
            table = table.take(rows)
            mask = np.zeros(len(times), bool)
            mask[rows] = True
        else:
            last = assigner.last_windows(labels)
            mask = np.ones(len(times), bool)
            if not rules.keeps_all:
                mask = rules.cleaned_at(assigner.ends(last)) > self.watermark
            if assigner.slide > assigner.size:
                mask &= last + assigner.size > labels
        late = None
        if mask is not None and not mask.all():
            if not self._copies:
                table, labels = table.filter(pa.array(mask)), labels[mask]
            late = ~mask & (times <= rules.dropped_through(self.watermark)) if not rules.keeps_all else None
        if len(labels):
            self._take(table.add_column(0, LABEL, pa.array(labels)), labels)
        return late

    def _take(self, table: pa.Table, labels: NDArray[np.int64]) -> None:
        rules = self.rules
        self._keep(table)
        first = self._windows(labels.min(keepdims=True))[1]
        if self._stacks is not None:
            self._stacks.rows_at(int(labels.min()))
        self._next = min(self._next, int(rules.fires_at(self.assigner.ends(first))[0]))
        behind = not rules.once and bool(self._ended(first)[0])
        if rules.complete:
            self._since += table.num_rows
            self.waits |= behind
        elif behind or rules.trigger.rows is not None:
            self._behind.append(table.select([LABEL, *self.keys]))
        if self._notes:
            self._touched.append(table.select([LABEL, *self.keys]))
            if sum(piece.num_rows for piece in self._touched) > PENDING_ROWS and len(self._touched) > 1:
                self._touched = [self._distinct(self._touched)]
        if self._rows >= PENDING_ROWS or self._bytes >= self._most_pending:
            self.flush()

    def flush(self, most: int = MAX) -> None:
        """Aggregate what is pending of labels up to the greatest one; the others, which do not fire yet, stay."""
        import pyarrow as pa

        pending, self._pending = self._pending, []
        self._rows = self._bytes = 0
        due = []
        for table in pending:
            labels = int64s(table.column(LABEL)) if most < MAX else None
            if labels is not None and int(labels.max()) > most:
                self._keep(table.filter(pa.array(labels > most)))
                table = table.filter(pa.array(labels <= most))
            due.append(table)
        if sum(table.num_rows for table in due):
            self._runs.add(self._first(pa.concat_tables(due)))

    def _keep(self, table: pa.Table) -> None:
        self._pending.append(table)
        self._rows += table.num_rows
        self._bytes += table.nbytes

    def _first(self, table: pa.Table) -> pa.Table:
        """State of rows.  Those of one label are grouped by their keys alone: that is faster."""
        labels = int64s(table.column(LABEL))
        if not self.keys or not self.work.merges or int(labels.min()) < int(labels.max()):
            return self.work.first(table, [LABEL, *self.keys])
        state = self.work.first(table, self.keys)
        return state.add_column(0, LABEL, table.column(LABEL).slice(0, state.num_rows))

    def _distinct(self, tables: Sequence[pa.Table]) -> pa.Table:
        import pyarrow as pa

        return pa.concat_tables(tables).group_by([LABEL, *self.keys], use_threads=False).aggregate([])

    # ---- what fires

    def fire(self) -> Iterator[pa.RecordBatch]:
        """What fires behind a batch: windows that have ended before, and those that have rows enough."""
        rules = self.rules
        if rules.complete:
            if rules.trigger.rows is not None and self._since >= rules.trigger.rows:
                yield from self._all()
            return
        if not self._behind:
            return
        behind, self._behind = self._distinct(self._behind), []
        self.flush()
        if rules.purges:
            yield from self._purge_ended()
        else:
            yield from self._again(behind, ended=True)
        if rules.trigger.rows is not None:
            yield from self._count(behind, rules.trigger.rows)

    def advance(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """A greater watermark: windows that end with it, then early results, then windows that are over are dropped."""
        before, self.watermark = self.watermark, watermark
        rules = self.rules
        if watermark >= self._next or self.waits:
            self.flush(self._due(watermark))
            windows = np.unique(self._windows(self._runs.labels()[0])[1])
            at = rules.fires_at(self.assigner.ends(windows))
            due = windows[(at > before) & (at <= watermark)]
            if rules.complete:
                if len(due) or self.waits:
                    yield from self._all()
            else:
                yield from self._emit_due(due)
                self._clean()
            self._plan()
        if rules.trigger.ticks(before, watermark):
            yield from self.tick()

    def _due(self, watermark: int) -> int:
        """The greatest label of windows that have ended; all, where that is not known at once."""
        assigner = self.assigner
        if self.rules.complete or not isinstance(assigner, Aligned) or assigner.zone is not None or watermark == MAX:
            return MAX
        window = assigner.last_windows(np.array([max(watermark, -MOST_US) + 1 - assigner.size]))
        return int(window[0]) + assigner.size - 1

    def _plan(self) -> None:
        pending = [int64s(table.column(LABEL)).min(keepdims=True) for table in self._pending]
        windows = self._windows(np.concatenate([self._runs.labels()[0], *pending]))[1]
        ends = self.assigner.ends(windows)
        moments = np.concatenate([self.rules.fires_at(ends), self.rules.cleaned_at(ends)])
        moments = moments[moments > self.watermark]
        self._next = int(moments.min()) if len(moments) else NEVER

    def tick(self) -> Iterator[pa.RecordBatch]:
        """Early results of the windows that have new rows, and have not ended."""
        import pyarrow.compute as pc

        self.flush()
        if self.rules.complete:
            if self._since:
                yield from self._all()
        elif self.rules.purges:
            labels = self._runs.labels()[0]
            open_ = labels[~self._ended(labels)]
            if len(open_):
                yield from self._emit(open_)
                self._drop(int(open_[0]), int(open_[-1]) + 1)
        elif self.rules.trigger.rows is not None:
            new = [table.filter(pc.greater(table.column(COUNT), 0)) for table in self._runs.tables()]
            if new:
                yield from self._count(self._distinct(new), 1)
        elif self._touched:
            touched, self._touched = self._distinct(self._touched), []
            yield from self._again(touched, ended=False)

    @property
    def layout(self) -> str:
        """What rows of the state are of, where windows overlap: each has its own if what has fired is dropped."""
        return "of each window" if self._copies else "of panes" if self._panes else ""

    def touch_all(self) -> None:
        """All windows may have rows that early results have not shown."""
        if self._notes:
            self._touched = [table.select([LABEL, *self.keys]) for table in self._runs.tables()]
        self._since = MAX if self._runs.runs else 0
        self.waits = self.rules.complete and bool(self._runs.runs)
        self._plan()
        self._next = min(self._next, self.watermark)

    def _all(self) -> Iterator[pa.RecordBatch]:
        self.flush()
        self._since, self.waits, self._touched = 0, False, []
        windows = np.unique(self._windows(self._runs.labels()[0])[1])
        # A window that another output mode has dropped may still have panes: those that later windows share
        windows = windows[self.assigner.ends(windows) - 1 > self.rules.dropped_us]
        yield from self._emit(windows if self.rules.trigger.early else windows[self._ended(windows)])

    def _purge_ended(self) -> Iterator[pa.RecordBatch]:
        labels = self._runs.labels()[0]
        ended = labels[self._ended(labels)]
        if len(ended):
            yield from self._emit(ended)
            self._drop(int(ended[0]), int(ended[-1]) + 1)

    def _again(self, touched: pa.Table, ended: bool) -> Iterator[pa.RecordBatch]:
        """Results of these keys in all windows that have their labels: those that have ended, or the others."""
        import pyarrow as pa

        rows, windows = self._windows(int64s(touched.column(LABEL)))
        wanted = self._ended(windows) == ended
        if ended:
            wanted &= self.rules.cleaned_at(self.assigner.ends(windows)) > self.watermark
        rows, windows = rows[wanted], windows[wanted]
        if not len(rows):
            return
        touched = touched.select(self.keys).take(rows) if self.keys else touched.take(rows).select([])
        touched = pa.table([pa.array(windows), *touched.columns], names=[LABEL, *self.keys])
        for chunk in self._chunks(np.unique(windows)):
            for state in self._states(chunk):
                state = state.filter(pa.array(self._hashes.among(state, touched, LABEL)))
                yield from self._results(self._merged(state))

    def _count(self, touched: pa.Table, most: int) -> Iterator[pa.RecordBatch]:
        """Results of these keys and windows that have so many rows since they fired."""
        import pyarrow as pa

        labels = int64s(touched.column(LABEL))
        touched = touched.filter(pa.array(~self._ended(labels)))
        if not touched.num_rows:
            return
        low, high = int(labels.min()), int(labels.max()) + 1
        pieces = self._runs.extract(low, high, lambda piece: self._hashes.among(piece, touched, LABEL))
        if not pieces:
            return
        rows = self._merged(pa.concat_tables(pieces))
        counts = int64s(rows.column(COUNT))
        numbers = key_numbers([rows.column(name) for name in (LABEL, *self.keys)], rows.num_rows)
        fires = np.bincount(numbers, counts)[numbers] >= most
        yield from self._results(rows.filter(pa.array(fires)))
        at = rows.schema.get_field_index(COUNT)
        rows = rows.set_column(at, COUNT, pa.array(np.where(fires, 0, counts)))
        self._runs.add(rows.filter(pa.array(~fires)) if self.rules.purges else rows)

    # ---- state

    def _chunks(self, windows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Windows in order, so many that their rows are enough for one turn."""
        labels, rows = self._runs.labels()
        sums = np.append(0, np.cumsum(rows))
        width = self.assigner.size if self._panes and isinstance(self.assigner, Aligned) else 1
        of_each = sums[np.searchsorted(labels, windows + width)] - sums[np.searchsorted(labels, windows)]
        turn = np.cumsum(of_each) // min(FIRED_ROWS, self._runs.part_rows())
        for piece in np.split(windows, np.flatnonzero(np.diff(turn)) + 1):
            if len(piece):
                yield piece

    def _state(self, windows: NDArray[np.int64]) -> pa.Table:
        """The rows of these windows, of which none between is left out, or more."""
        import pyarrow as pa

        if not self._panes:
            pieces = self._runs.between(int(windows[0]), int(windows[-1]) + 1)
        else:
            assert isinstance(self.assigner, Aligned)
            pieces = []
            for window in windows.tolist():
                for piece in self._runs.between(window, window + self.assigner.size):
                    pieces.append(piece.set_column(0, LABEL, pa.array(np.full(piece.num_rows, window, np.int64))))
        return pa.concat_tables(pieces)

    def _states(self, windows: NDArray[np.int64]) -> Iterator[pa.Table]:
        """The rows of these windows.  If some are in files, a window comes in parts: all rows of a key are in one."""
        import pyarrow as pa

        if len(windows) > 1 or not self._runs.in_files:
            yield self._state(windows)
            return
        window = int(windows[0])
        width = self.assigner.size if self._panes and isinstance(self.assigner, Aligned) else 1
        for part in self._runs.by_group(window, window + width):
            label = pa.array(np.full(part.num_rows, window, np.int64))
            yield part.set_column(0, LABEL, label) if width > 1 else part
            self._runs.release()

    def _emit_due(self, windows: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Results of windows that end one after the other."""
        if self._stacks is not None and self._runs.in_files:
            self._stacks.clear()  # it has all keys in memory
        if self._stacks is None or self._runs.in_files:
            yield from self._emit(windows)
            return
        import pyarrow as pa

        for window in windows.tolist():
            rows = self._stacks.window(window)
            if rows is not None:
                label = pa.array(np.full(rows.num_rows, window, np.int64))
                yield from self._results(rows.add_column(0, LABEL, label), ordered=True)

    def _emit(self, windows: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        for chunk in self._chunks(windows):
            for state in self._states(chunk):
                yield from self._results(self._merged(state))

    def _results(self, rows: pa.Table, ordered: bool = False) -> Iterator[pa.RecordBatch]:
        yield from self.results.batches(
            rows, [LABEL], lambda labels: (self.assigner.starts(labels), self.assigner.ends(labels)), ordered
        )

    def _clean(self) -> None:
        labels = self._runs.labels()[0]
        ends = self.assigner.ends(self._last(labels))
        over = labels[(ends - 1 if self.rules.purges else self.rules.cleaned_at(ends)) <= self.watermark]
        if len(over):
            self._drop(int(over[0]), int(over[-1]) + 1)
        if self._stacks is not None and not self._runs.runs:
            self._stacks.clear()

    def _drop(self, low: int, high: int) -> None:
        import pyarrow.compute as pc

        for piece, groups in self._runs.drop(low, high):
            self._dirty[self._hashes.groups(piece) if groups is None else groups] = True
        self._runs.release()
        touched = [table.filter(pc.greater_equal(table.column(LABEL), high)) for table in self._touched]
        self._touched = [table for table in touched if table.num_rows]

    def restored(self, table: pa.Table) -> None:
        self._runs.add(table)

    def freeze(self) -> tuple[list[pa.Table], list[Run]]:
        """Tables of rows, and of state, as they are now."""
        return list(self._pending), list(self._runs.runs)

    def thawed(self, pending: list[pa.Table], state: list[Run]) -> Iterator[RowsOfState]:
        """Tables of state of what :meth:`freeze` gave, and their groups; from any thread, as :meth:`together`."""
        import pyarrow as pa

        for run in state:
            yield RowsOfState(run.table, None if run.groups is None else run.groups.to_numpy())
        if pending:
            yield RowsOfState(self._first(pa.concat_tables(pending)))

    def together(self, tables: list[pa.Table]) -> pa.Table:
        """One table of state, of all rows of some keys."""
        import pyarrow as pa

        merged = self._merged(pa.concat_tables(tables))
        self._runs.release()
        return merged

    def size(self) -> tuple[int, int]:
        """Rows and bytes of the state."""
        tables = [*self._pending, *self._touched, *self._runs.tables()]
        return sum(t.num_rows for t in tables), sum(t.nbytes for t in tables) + self.stacked_bytes()

    def stacked_bytes(self) -> int:
        """What is held besides tables."""
        return 0 if self._stacks is None else self._stacks.nbytes

    def file_bytes(self) -> int:
        """Bytes of the files of tables that are not in memory."""
        return self._runs.file_bytes()

    def windows(self) -> int:
        """How many windows are open; of those that have pending rows alone, not all."""
        return len(np.unique(self._windows(self._runs.labels()[0])[1])) or int(bool(self._pending))
