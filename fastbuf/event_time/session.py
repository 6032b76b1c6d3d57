"""Session windows: each row is a window of its own, and windows of a key that touch are one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbuf.event_time.aggregates import COUNT
from fastbuf.event_time.arrow_rows import Hashes, int64s, key_values
from fastbuf.event_time.frozen import RowsOfState
from fastbuf.event_time.results import Results
from fastbuf.event_time.rules import Rules
from fastbuf.event_time.runs import LABEL
from fastbuf.event_time.sorted_rows import FrozenRun, SortedRows, SortedRun
from fastbuf.event_time.spill import Spill
from fastbuf.event_time.watermarks import MAX, MIN
from fastbuf.event_time.windows import Session, sessions

if TYPE_CHECKING:
    import pyarrow as pa

    Mask = NDArray[np.bool_]

END = "e"  #: the column of a session's end; that of its start is the label
SHELL = "x"  #: in a snapshot: whether the row is a session whose rows have fired, and were dropped
PENDING_ROWS, PENDING_BYTES = 1 << 18, 64 << 20  #: that are not yet among the sessions
NEVER = MAX + 1


class Counting:
    """The state of sessions whose rows are kept: how many came since it fired, if that is asked for."""

    def __init__(self, counts: bool) -> None:
        self._counts: list[tuple[str, str]] = [(COUNT, "sum")] if counts else []

    def first(self, table: pa.Table, by: list[str]) -> pa.Table:
        counts = table.group_by(by, use_threads=False).aggregate(self._counts)
        return counts.rename_columns([*by, *(name for name, _ in self._counts)])

    again = first


class SessionWindows:
    """State and firing of sessions: a row for each.

    Where the work keeps the rows themselves, these stand beside the sessions by key and time, and are left where they
    are while their session grows.  Rows of a batch come together: which of them is first makes no difference.
    """

    def __init__(
        self,
        assigner: Session,
        rules: Rules,
        work: Any,
        results: Results,
        hashes: Hashes,
        dirty: NDArray[np.bool_],
        spill: Spill | None = None,
    ) -> None:
        self.gap, self.rules, self.work, self.results = assigner.gap, rules, work, results
        self.keys = results.columns
        self.watermark = MIN
        self._hashes, self._dirty = hashes, dirty
        # By their ends: those that are to fire, those that have fired, and shells: sessions (start, end, keys) whose
        # rows have fired and were dropped
        self._open, self._ended, self._shells = SortedRows(spill), SortedRows(spill), SortedRows(spill)
        self._rows_by_time = SortedRows(spill)  # rows, if the work keeps them: each by the end of its own window
        self._state: Any = work if work.merges else Counting(work.counts)
        self._pending: list[pa.Table] = []
        self._rows = self._bytes = 0  # of these
        self._most_pending = PENDING_BYTES if spill is None else min(PENDING_BYTES, spill.limit)
        self._next = NEVER  # nothing happens to sessions below this watermark
        self._fires: list[pa.Table] = []  # what fires behind this batch
        self._since = 0  # rows since the last results, in output mode "complete"
        self.waits = False  # whether some of them are of sessions that had ended before

    # ---- rows

    def add(self, times: NDArray[np.int64], table: pa.Table) -> Mask | None:
        """Rows with their keys and the columns that the work needs; which are late, None: none."""
        import pyarrow as pa

        ends = times + self.gap
        table = table.add_column(0, END, pa.array(ends)).add_column(0, LABEL, pa.array(times))
        self._since += table.num_rows
        rules, first = self.rules, int(ends.min()) - 1
        self.waits |= rules.complete and first <= self.watermark
        behind = rules.dropped_us if rules.complete else max(self.watermark, rules.dropped_us)
        if first <= behind or (rules.trigger.rows is not None and not rules.complete):
            self.flush()
            return self._merge(table)
        self._pending.append(table)
        self._rows += table.num_rows
        self._bytes += table.nbytes
        self._next = min(self._next, first)
        if self._rows >= PENDING_ROWS or self._bytes >= self._most_pending:
            self.flush()
        return None

    def flush(self) -> None:
        """Merge what is pending into sessions."""
        import pyarrow as pa

        if self._pending:
            pending, self._pending, self._rows, self._bytes = pa.concat_tables(self._pending), [], 0, 0
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
        session, first, starts, reach = self._sessions_of(windows)
        rows = session[: table.num_rows]
        if shells is not None:
            alone = np.ones(len(first), bool)
            alone[rows] = False
            alone = np.flatnonzero(alone)
            keys = windows.select(self.keys).take(first[alone]).columns
            columns = [pa.array(starts[alone]), pa.array(reach[alone]), *keys]
            self._add(self._shells, pa.table(columns, names=[LABEL, END, *self.keys]))
        states = make(table.append_column("s", pa.array(rows)), ["s"])
        at = int64s(states.column("s"))
        keys = windows.select(self.keys).take(first[at]).columns
        columns = [pa.array(starts[at]), pa.array(reach[at]), *keys, *states.columns[1:]]
        place = np.empty(len(first), np.int64)
        place[at] = np.arange(len(at))
        return pa.table(columns, names=[LABEL, END, *self.keys, *states.schema.names[1:]]), place[rows]

    def _sessions_of(self, windows: pa.Table) -> tuple[NDArray[np.intp], ...]:
        """The session of each row; and of each session its first row, start and end."""
        starts, ends = int64s(windows.column(LABEL)), int64s(windows.column(END))
        numbers = key_values([windows.column(name) for name in self.keys], windows.num_rows)
        order, firsts, reach = sessions(numbers, starts, ends)
        session = np.empty(len(order), np.int64)
        session[order] = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(order)))
        return session, order[firsts], starts[order[firsts]], reach

    def _merge(self, rows: pa.Table) -> Mask | None:
        """Merge rows with the sessions that are there, and note what fires.  Which rows are late."""
        import pyarrow as pa

        rules = self.rules
        if not self.work.merges:
            rows = self.work.first(rows, [LABEL, END, *self.keys])
        states, place = self._joined(rows, self._state.first)
        new = np.ones(states.num_rows, bool)
        before, shells = self._touched(states, self._open, self._ended), self._touched(states, self._shells)
        if before is not None or shells is not None:
            old = before.num_rows if before is not None else 0
            both = states if before is None else pa.concat_tables([before, states])
            states, into = self._joined(both, self._state.again, shells)
            place = into[old:][place]
            new = np.zeros(states.num_rows, bool)
            new[into[old:]] = True
        ends = int64s(states.column(END))
        late = np.zeros(len(ends), bool) if rules.keeps_all else rules.cleaned_at(ends) <= self.watermark
        ended = ends - 1 <= self.watermark
        fires = np.zeros(len(ends), bool)
        if not rules.once and not rules.complete:
            fires = new & ended & ~late
            if rules.trigger.rows is not None:
                fires |= new & ~ended & (int64s(states.column(COUNT)) >= rules.trigger.rows)
        self._put(states.filter(pa.array(~late & ~fires)))
        if not self.work.merges:
            self._add(self._rows_by_time, rows.filter(pa.array(~late[place])) if late.any() else rows)
        if fires.any():
            self._fires += self._fired(states.filter(pa.array(fires)))
        return late[place] if late.any() else None

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
        if watermark >= self._next or self.waits:
            self.flush()
            self.watermark = watermark
            if rules.complete:
                due = any(self._between(run.rows(), before).any() for run in self._open.runs)
                if due or self.waits:
                    yield from self._all()
            else:
                for fires in self._due(before):
                    for rows in self._fired(fires):
                        yield from self._results([rows])
                self._clean()
            self._next = self._next_moment()
        self.watermark = watermark
        if rules.trigger.ticks(before, watermark):
            yield from self.tick()

    def _due(self, before: int) -> Iterator[pa.Table]:
        """Take out the sessions that end with the watermark; those that had ended before are restored ones.

        What does not fit into memory comes in parts: all rows of a session are in one.
        """
        import pyarrow as pa

        lateness = self.rules.lateness_us if self.rules.once else 0
        for table, _ in self._open.expire(self._through(lateness)):
            fires = self._between(table, before)
            if not fires.all():
                self._put(table.filter(pa.array(~fires)))
            if fires.any():
                yield table.combine_chunks() if fires.all() else table.filter(pa.array(fires)).combine_chunks()

    def _through(self, lateness: int) -> int:
        """The greatest end of sessions that end so long before the watermark."""
        return NEVER - 1 if self.watermark == MAX else self.watermark + 1 - lateness

    def _next_moment(self) -> int:
        """The next watermark at which something happens."""
        rules = self.rules
        if rules.complete:
            ends = [int64s(run.rows().column(END)) for run in self._open.runs]
            at = [rules.fires_at(each) for each in ends] + [rules.cleaned_at(each) for each in ends]
            return min((int(each[each > self.watermark].min(initial=MAX)) for each in at), default=NEVER)
        moments = [NEVER]
        for rows in (self._open, self._ended, self._shells):
            at_end, least = rules.fires_at if rows is self._open else rules.cleaned_at, rows.least()
            if least is not None:
                moments.append(int(at_end(np.array([least]))[0]))
        return min(moments)

    def _between(self, table: pa.Table, before: int) -> Mask:
        at = self.rules.fires_at(int64s(table.column(END)))
        return np.asarray((at > before) & (at <= self.watermark))

    def tick(self) -> Iterator[pa.RecordBatch]:
        """Early results of the sessions that have new rows, and have not ended."""
        import pyarrow as pa

        self.flush()
        if self.rules.complete:
            if self._since:
                yield from self._all()
            return

        def changed(table: pa.Table) -> Mask:
            ended = int64s(table.column(END)) - 1 <= self.watermark
            return np.asarray((int64s(table.column(COUNT)) > 0) & ~ended)

        tables = self._open.take_out(lambda run: np.flatnonzero(changed(run.table)))
        if tables:
            for rows in self._fired(pa.concat_tables(tables).combine_chunks()):
                yield from self._results([rows])

    layout = ""  #: see :class:`AlignedWindows`

    def touch_all(self) -> None:
        """After a restore: anything may be due."""
        has_rows = len(self._open) + len(self._ended) > 0
        self._since = MAX if has_rows else 0
        self.waits = self.rules.complete and has_rows
        self._next = MIN

    def _all(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        self.flush()
        self._since, self.waits = 0, False
        tables = self._tables()
        if not self.rules.trigger.early:
            ended = [int64s(table.column(END)) - 1 <= self.watermark for table in tables]
            tables = [table.filter(pa.array(mask)) for table, mask in zip(tables, ended, strict=True)]
        if self.work.merges:
            yield from self._results(tables)
        elif tables:
            for rows in self._rows_of(pa.concat_tables(tables).combine_chunks(), take=False):
                yield from self._results([rows])

    def _results(self, tables: list[pa.Table]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        if tables:
            yield from self.results.batches(pa.concat_tables(tables), [END, LABEL], lambda ends, starts: (starts, ends))

    # ---- state

    def _tables(self) -> list[pa.Table]:
        return [run.rows() for rows in (self._open, self._ended) for run in rows.runs]

    def _touched(self, states: pa.Table, *among: SortedRows) -> pa.Table | None:
        """Take out the sessions that those of a batch may touch: of the same keys, or of others with their hashes.

        Of each hash the least start and the greatest end are looked for: of each session all later ones of its key
        would be as many pairs as there are sessions, squared.
        """
        import pyarrow as pa

        if not any(rows.runs for rows in among):
            return None
        hashes = self._hashes.wide(states)
        order = np.argsort(hashes, kind="stable")
        firsts = np.flatnonzero(np.diff(hashes[order], prepend=-1))
        starts, ends = int64s(states.column(LABEL))[order], int64s(states.column(END))[order]
        hashes = hashes[order][firsts]
        least, most = np.minimum.reduceat(starts, firsts), np.maximum.reduceat(ends, firsts)

        def touched(run: SortedRun) -> NDArray[np.intp]:
            begins = int64s(run.table.column(LABEL))
            pairs = run.candidates(hashes, least, np.full(len(least), MAX))
            places = [there[begins[there] <= most[own]] for own, there in pairs]
            return np.sort(np.concatenate(places)) if places else np.empty(0, np.intp)  # in the order they came

        tables = [table for rows in among for table in rows.take_out(touched)]
        self._release()
        return pa.concat_tables(tables).combine_chunks() if tables else None

    def _add(self, rows: SortedRows, table: pa.Table) -> None:
        if table.num_rows:
            rows.add(table, self._hashes.wide(table), int64s(table.column(END)), np.zeros(table.num_rows, bool))

    def _put(self, table: pa.Table) -> None:
        import pyarrow as pa

        if not table.num_rows:
            return
        ends = int64s(table.column(END))
        ended = self.rules.fires_at(ends) <= self.watermark
        self._next = min(self._next, int(self.rules.fires_at(ends).min()))
        for rows, mask in ((self._open, ~ended), (self._ended, ended)):
            if mask.any():
                self._add(rows, table if mask.all() else table.filter(pa.array(mask)))

    def _fired(self, sessions: pa.Table) -> Iterator[pa.Table]:
        """These have fired, and what stays of them is put back; gives what goes into their results, to be read now."""
        import pyarrow as pa

        self._dirty[self._hashes.groups(sessions)] = True
        ends = int64s(sessions.column(END))
        stays = self.rules.cleaned_at(ends) > self.watermark
        goes = sessions.filter(pa.array(~stays)) if self.rules.accumulate else sessions
        rest = sessions.filter(pa.array(stays))
        if rest.num_rows and not self.rules.accumulate:
            self._add(self._shells, rest.select([LABEL, END, *self.keys]))
            self._next = min(self._next, int(self.rules.cleaned_at(int64s(rest.column(END))).min()))
        elif COUNT in rest.schema.names:
            at = rest.schema.get_field_index(COUNT)
            self._put(rest.set_column(at, COUNT, pa.array(np.zeros(rest.num_rows, np.int64))))
        else:
            self._put(rest)
        if self.work.merges:
            return iter((sessions,))
        rows = self._rows_of(goes, take=True)
        return chain(rows, self._rows_of(rest, take=False, resets=True)) if self.rules.accumulate else rows

    def _rows_of(self, sessions: pa.Table, take: bool, resets: bool = False) -> Iterator[pa.Table]:
        """The rows of sessions, each with the start and the end of its session; some sessions at a time.

        Parameters
        ----------
        take
            Whether they are taken out.
        resets
            Whether they do not count as new any more.
        """
        import pyarrow as pa

        if not sessions.num_rows:
            return
        sessions = sessions.take(np.argsort(int64s(sessions.column(END)), kind="stable"))
        starts, ends = int64s(sessions.column(LABEL)), int64s(sessions.column(END))
        counts = resets and COUNT in sessions.schema.names
        keys = sessions.select(self.keys)
        again = []
        for rows, of in self._rows_by_time.groups(keys, self._hashes.wide(sessions), starts, ends, take or counts):
            if counts:
                at = rows.schema.get_field_index(COUNT)
                again.append(rows.set_column(at, COUNT, pa.array(np.zeros(rows.num_rows, np.int64))))
            yield rows.set_column(0, LABEL, pa.array(starts[of])).set_column(1, END, pa.array(ends[of]))
        for rows in again:
            self._add(self._rows_by_time, rows)

    def _clean(self) -> None:
        for rows in (self._ended, self._shells):
            for table, _ in rows.expire(self._through(self.rules.lateness_us)):
                self._dirty[self._hashes.groups(table)] = True
                if rows is self._ended and not self.work.merges:
                    starts, ends = int64s(table.column(LABEL)), int64s(table.column(END))
                    self._rows_by_time.drop(table.select(self.keys), self._hashes.wide(table), starts, ends)

    def restored(self, table: pa.Table) -> None:
        import pyarrow.compute as pc

        shells = None
        if SHELL in table.schema.names:
            shell = table.column(SHELL)
            shells = table.filter(shell).select([LABEL, END, *self.keys])
            table = table.filter(pc.invert(shell)).drop_columns([SHELL])
        if self.work.merges or not table.num_rows:
            if shells is not None:
                self._add(self._shells, shells)
            self._put(table)
            return
        self._add(self._rows_by_time, table)
        self._put(self._joined(table, self._state.first, shells)[0])

    def freeze(self) -> tuple[list[FrozenRun], list[FrozenRun]]:
        """Shells, and state, as they are now."""
        self.flush()
        shells, state = [self._shells], [self._open, self._ended]
        if not self.work.merges:
            # Rows give their sessions again, but for what these have taken up of others that had fired
            shells, state = [*shells, *state] if self.rules.purges or len(self._shells) else [], [self._rows_by_time]
        frozen = [[run.frozen() for rows in some for run in rows.runs] for some in (shells, state)]
        return frozen[0], frozen[1]

    def thawed(self, shells: list[FrozenRun], state: list[FrozenRun]) -> Iterator[RowsOfState]:
        """The state of what :meth:`freeze` gave; from any thread, as :meth:`together`."""
        import pyarrow as pa

        marks = self.rules.purges or bool(shells)  # those of a checkpoint may be there where no rule makes any
        for is_shell, runs in ((False, state), (True, shells)):
            for run in runs:
                rows = run.rows(**({SHELL: pa.array(np.full(run.table.num_rows, is_shell))} if marks else {}))
                yield rows._replace(table=rows.table.select([LABEL, END, *self.keys, SHELL])) if is_shell else rows

    def together(self, tables: list[pa.Table]) -> pa.Table:
        """One table of state, of all rows of some keys."""
        import pyarrow as pa

        table = pa.concat_tables(tables, promote_options="default")
        self._release()
        return table if self.work.merges or not table.num_rows else self._with_sessions(table)

    def _with_sessions(self, table: pa.Table) -> pa.Table:
        """Rows with the bounds of their sessions, and the shells that are no part of these."""
        import pyarrow as pa

        session, first, starts, reach = self._sessions_of(table)
        table = table.set_column(0, LABEL, pa.array(starts[session])).set_column(1, END, pa.array(reach[session]))
        if SHELL not in table.schema.names:
            return table
        shell = table.column(SHELL).to_numpy()
        has_rows = np.bincount(session, ~shell, len(first)) > 0
        return table.filter(pa.array(~(shell & has_rows[session])))

    @property
    def _all_rows(self) -> tuple[SortedRows, ...]:
        return self._open, self._ended, self._shells, self._rows_by_time

    def size(self) -> tuple[int, int]:
        """Rows and bytes of the state."""
        state = (self._open, self._ended) if self.work.merges else (self._rows_by_time,)
        rows = sum(table.num_rows for table in self._pending) + sum(map(len, (*state, self._shells)))
        return rows, sum(each.nbytes for each in (*self._pending, *self._all_rows))

    def _release(self) -> None:
        for rows in self._all_rows:
            rows.release()

    def file_bytes(self) -> int:
        return sum(rows.file_bytes() for rows in self._all_rows)

    def windows(self) -> int:
        """How many sessions are open, but for those that have pending rows alone."""
        return len(self._open) + len(self._ended)
