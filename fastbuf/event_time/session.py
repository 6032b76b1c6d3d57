"""Session windows: each row is a window of its own, and windows of a key that touch are one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbuf.event_time.aggregates import COUNT
from fastbuf.event_time.arrow_rows import Hashes, int64s, key_numbers, key_values
from fastbuf.event_time.results import Results
from fastbuf.event_time.rules import Rules
from fastbuf.event_time.runs import LABEL, TIER, TableOfGroups
from fastbuf.event_time.watermarks import MAX, MIN
from fastbuf.event_time.windows import Session, sessions

if TYPE_CHECKING:
    import pyarrow as pa

    Mask = NDArray[np.bool_]

END = "e"  #: the column of a session's end; that of its start is the label
SHELL = "x"  #: in a snapshot: whether the row is a session whose rows have fired, and were dropped
PENDING_ROWS = 1 << 18
NEVER = MAX + 1


class SessionWindows:
    """State and firing of sessions: one row for each, or one for each of its rows where the work keeps them.

    Rows of a batch come together: which of them is first makes no difference.
    """

    def __init__(
        self, assigner: Session, rules: Rules, work: Any, results: Results, hashes: Hashes, dirty: NDArray[np.bool_]
    ) -> None:
        self.gap, self.rules, self.work, self.results = assigner.gap, rules, work, results
        self.keys = results.columns
        self.watermark = MIN
        self._hashes, self._dirty = hashes, dirty
        self._state: list[pa.Table] = []
        self._shells: list[pa.Table] = []  # sessions whose rows have fired and were dropped: start, end, keys
        self._pending: list[pa.Table] = []
        self._rows = 0
        self._next = NEVER  # nothing happens to sessions below this watermark
        self._fires: list[pa.Table] = []  # what fires behind this batch
        self._since = 0
        self._late_in = False

    # ---- rows

    def add(self, times: NDArray[np.int64], table: pa.Table) -> Mask | None:
        """Rows with their keys and the columns that the work needs; which are late, None: none."""
        import pyarrow as pa

        ends = times + self.gap
        table = table.add_column(0, END, pa.array(ends)).add_column(0, LABEL, pa.array(times))
        self._since += table.num_rows
        if not self.rules.complete and (self.rules.trigger.rows is not None or int(ends.min()) - 1 <= self.watermark):
            self.flush()
            return self._merge(table)
        self._late_in |= int(ends.min()) - 1 <= self.watermark
        self._pending.append(table)
        self._rows += table.num_rows
        self._next = min(self._next, int(ends.min()) - 1)
        if self._rows >= PENDING_ROWS:
            self.flush()
        return None

    def flush(self) -> None:
        """Merge what is pending into sessions."""
        import pyarrow as pa

        if self._pending:
            pending, self._pending, self._rows = pa.concat_tables(self._pending), [], 0
            self._merge(pending)

    def _joined(
        self, table: pa.Table, make: Callable[..., pa.Table], shells: pa.Table | None = None
    ) -> tuple[pa.Table, NDArray[np.intp]]:
        """Rows merged to sessions; and which row of the result each one is in.

        Shells join sessions, and are part of them; those that do not are put back.
        """
        import pyarrow as pa

        windows = table.select([LABEL, END, *self.keys])
        if shells is not None:
            windows = pa.concat_tables([windows, shells])
        starts, ends = int64s(windows.column(LABEL)), int64s(windows.column(END))
        numbers = key_values([windows.column(name) for name in self.keys], windows.num_rows)
        order, firsts, reach = sessions(numbers, starts, ends)
        starts = starts[order[firsts]]
        session = np.empty(len(order), np.int64)  # of each row
        session[order] = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(order)))
        rows = session[: table.num_rows]
        if shells is not None:
            alone = np.ones(len(firsts), bool)
            alone[rows] = False
            alone = np.flatnonzero(alone)
            keys = windows.select(self.keys).take(order[firsts][alone]).columns
            columns = [pa.array(starts[alone]), pa.array(reach[alone]), *keys]
            self._shells.append(pa.table(columns, names=[LABEL, END, *self.keys]))
        if not self.work.merges:
            states = make(table, [LABEL, END, *self.keys])
            states = states.set_column(0, LABEL, pa.array(starts[rows])).set_column(1, END, pa.array(reach[rows]))
            return states, np.arange(len(rows))
        states = make(table.append_column("s", pa.array(rows)), ["s"])
        at = int64s(states.column("s"))
        keys = windows.select(self.keys).take(order[firsts][at]).columns
        columns = [pa.array(starts[at]), pa.array(reach[at]), *keys, *states.columns[1:]]
        place = np.empty(len(firsts), np.int64)
        place[at] = np.arange(len(at))
        return pa.table(columns, names=[LABEL, END, *self.keys, *states.schema.names[1:]]), place[rows]

    def _merge(self, rows: pa.Table) -> Mask | None:
        """Merge rows with the sessions that are there, and note what fires.  Which rows are late."""
        import pyarrow as pa

        rules = self.rules
        states, place = self._joined(rows, self.work.first)
        new = np.ones(states.num_rows, bool)
        before = self._extract(lambda table: self._hashes.maybe(table, states))
        shells = self._extract_shells(lambda table: self._hashes.maybe(table, states))
        if before is not None or shells is not None:
            old = before.num_rows if before is not None else 0
            both = states if before is None else pa.concat_tables([before, states])
            states, into = self._joined(both, self.work.again, shells)
            place = into[old:][place]
            new = np.zeros(states.num_rows, bool)
            new[into[old:]] = True
        if not self.work.merges:
            new = self._sums(states, new) > 0
        ends = int64s(states.column(END))
        late = np.zeros(len(ends), bool) if rules.complete else rules.cleaned_at(ends) <= self.watermark
        ended = ends - 1 <= self.watermark
        fires = np.zeros(len(ends), bool)
        if not rules.once and not rules.complete:
            fires = new & ended & ~late
            if rules.trigger.rows is not None:
                fires |= new & ~ended & (self._sums(states, int64s(states.column(COUNT))) >= rules.trigger.rows)
        self._put(states.filter(pa.array(~late & ~fires)))
        if fires.any():
            self._fires.append(states.filter(pa.array(fires)))
            self._put_fired(self._fires[-1])
        return late[place] if late.any() else None

    def _sums(self, table: pa.Table, values: NDArray[Any]) -> NDArray[Any]:
        """For each row, the sum over the rows of its session."""
        if self.work.merges:
            return values
        numbers = key_numbers([table.column(name) for name in (LABEL, END, *self.keys)], table.num_rows)
        return np.bincount(numbers, values)[numbers]

    # ---- what fires

    def fire(self) -> Iterator[pa.RecordBatch]:
        """What fires behind a batch: sessions that have ended before, and those that have rows enough."""
        if self.rules.complete:
            if self.rules.trigger.rows is not None and self._since >= self.rules.trigger.rows:
                yield from self._all()
            return
        fires, self._fires = self._fires, []
        yield from self._results(fires)

    def advance(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """A greater watermark: sessions that end with it, then early results; sessions that are over are dropped."""
        rules = self.rules
        before = self.watermark
        if watermark >= self._next or self._late_in:
            self.flush()
            self.watermark = watermark
            if rules.complete:
                due = any(self._between(table, before).any() for table in self._state)
                if due or self._late_in:
                    yield from self._all()
            else:
                fires = self._extract(lambda table: self._between(table, before))
                if fires is not None:
                    self._put_fired(fires)
                    yield from self._results([fires])
                self._clean()
            ends = [int64s(table.column(END)) for table in (*self._state, *self._shells)]
            moments = [at(end) for end in ends for at in (rules.fires_at, rules.cleaned_at)]
            self._next = min((int(at[at > watermark].min(initial=MAX)) for at in moments), default=NEVER)
        self.watermark = watermark
        if rules.trigger.ticks(before, watermark):
            yield from self.tick()

    def _between(self, table: pa.Table, before: int) -> Mask:
        at = self.rules.fires_at(int64s(table.column(END)))
        return np.asarray((at > before) & (at <= self.watermark))

    def tick(self) -> Iterator[pa.RecordBatch]:
        """Early results of the sessions that have new rows, and have not ended."""
        self.flush()
        if self.rules.complete:
            if self._since:
                yield from self._all()
            return

        def changed(table: pa.Table) -> Mask:
            ended = int64s(table.column(END)) - 1 <= self.watermark
            return np.asarray((self._sums(table, int64s(table.column(COUNT))) > 0) & ~ended)

        fires = self._extract(changed)
        if fires is not None:
            self._put_fired(fires)
            yield from self._results([fires])

    def touch_all(self) -> None:
        """After a restore: anything may be due."""
        self._since = MAX if self._state else 0
        self._late_in = self.rules.complete and bool(self._state)
        self._next = MIN

    def _all(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        self.flush()
        self._since, self._late_in = 0, False
        tables = self._state
        if not self.rules.trigger.early:
            ended = [int64s(table.column(END)) - 1 <= self.watermark for table in tables]
            tables = [table.filter(pa.array(mask)) for table, mask in zip(tables, ended, strict=True)]
        yield from self._results(tables)

    def _results(self, tables: list[pa.Table]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        if tables:
            yield from self.results.batches(pa.concat_tables(tables), [END, LABEL], lambda ends, starts: (starts, ends))

    # ---- state

    def _extract(self, chosen: Callable[[pa.Table], Mask]) -> pa.Table | None:
        """Take out the rows that are chosen."""
        self._state, rows = split(self._state, chosen)
        return rows

    def _extract_shells(self, chosen: Callable[[pa.Table], Mask]) -> pa.Table | None:
        self._shells, rows = split(self._shells, chosen)
        return rows

    def _put(self, table: pa.Table) -> None:
        if table.num_rows:
            self._state.append(table)
            if len(self._state) > TIER:
                self._compact()
            self._next = min(self._next, int(self.rules.fires_at(int64s(table.column(END))).min()))

    def _compact(self) -> None:
        import pyarrow as pa

        self._state = [pa.concat_tables(self._state).combine_chunks()]

    def _put_fired(self, table: pa.Table) -> None:
        """What stays of sessions that have fired: all rows, or none."""
        import pyarrow as pa

        self._dirty[self._hashes.groups(table)] = True
        ends = int64s(table.column(END))
        table = table.filter(pa.array(self.rules.cleaned_at(ends) > self.watermark))
        if not table.num_rows:
            return
        if not self.rules.accumulate:
            shells = table.select([LABEL, END, *self.keys])
            self._shells.append(shells.group_by(shells.schema.names, use_threads=False).aggregate([]))
            self._next = min(self._next, int(self.rules.cleaned_at(int64s(table.column(END))).min()))
        elif COUNT in table.schema.names:
            at = table.schema.get_field_index(COUNT)
            self._put(table.set_column(at, COUNT, pa.array(np.zeros(table.num_rows, np.int64))))
        else:
            self._put(table)

    def _clean(self) -> None:
        def over(table: pa.Table) -> Mask:
            return np.asarray(self.rules.cleaned_at(int64s(table.column(END))) <= self.watermark)

        for dropped in (self._extract(over), self._extract_shells(over)):
            if dropped is not None:
                self._dirty[self._hashes.groups(dropped)] = True

    def restored(self, table: pa.Table) -> None:
        import pyarrow.compute as pc

        if SHELL in table.schema.names:
            shell = table.column(SHELL)
            self._shells.append(table.filter(shell).select([LABEL, END, *self.keys]))
            table = table.filter(pc.invert(shell)).drop_columns([SHELL])
        self._put(table)

    def freeze(self) -> tuple[list[pa.Table], list[pa.Table]]:
        """Tables of shells, and of state, as they are now."""
        self.flush()
        return list(self._shells), list(self._state)

    def thawed(self, shells: list[pa.Table], state: list[pa.Table]) -> Iterator[TableOfGroups]:
        """Tables of state of what :meth:`freeze` gave; from any thread, as :meth:`together`."""
        import pyarrow as pa

        for is_shell, tables in ((False, state), (True, shells)):
            for table in tables:
                mark = pa.array(np.full(table.num_rows, is_shell))
                yield table.append_column(SHELL, mark) if self.rules.purges else table, None

    def together(self, tables: list[pa.Table]) -> pa.Table:
        """One table of state."""
        import pyarrow as pa

        return pa.concat_tables(tables, promote_options="default")

    def tables(self) -> list[list[pa.Table]]:
        """All tables."""
        return [self._pending, self._shells, self._state]

    def stacked_bytes(self) -> int:
        return 0

    def file_bytes(self) -> int:
        return 0

    def windows(self) -> int:
        """How many sessions are open, but for those that have pending rows alone."""
        if self.work.merges:
            return sum(table.num_rows for table in self._state)
        columns = [LABEL, END, *self.keys]
        return sum(t.group_by(columns, use_threads=False).aggregate([]).num_rows for t in self._state)


def split(tables: list[pa.Table], chosen: Callable[[pa.Table], Mask]) -> tuple[list[pa.Table], pa.Table | None]:
    """What is left of the tables, and the rows that are chosen."""
    import pyarrow as pa

    rest, pieces = [], []
    for table in tables:
        mask = chosen(table)
        if not mask.any():
            rest.append(table)
            continue
        pieces.append(table.filter(pa.array(mask)))
        if not mask.all():
            rest.append(table.filter(pa.array(~mask)))
    return [table for table in rest if table.num_rows], pa.concat_tables(pieces).combine_chunks() if pieces else None
