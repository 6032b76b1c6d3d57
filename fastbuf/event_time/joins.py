"""Joins of two streams: of rows within an interval of each other, and of rows in the same window.

Record batches and watermarks in, pairs out; as :class:`~fastbuf.event_time.operator.WindowOperator`, without a thread,
a clock or a connection.  A null in a key equals nothing, as in SQL.  The watermark is that of both inputs together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbuf.checks import instance, one_of, whole
from fastbuf.errors import ConfigError, SchemaError
from fastbuf.event_time.aggregates import normal
from fastbuf.event_time.arrow_rows import Hashes, in_zones_of, int64s, microseconds
from fastbuf.event_time.results import RESULT_ROWS
from fastbuf.event_time.runs import LABEL, TIER
from fastbuf.event_time.sorted_rows import SortedRows, numbered, same_keys, spread
from fastbuf.event_time.watermarks import MIN
from fastbuf.event_time.windows import MOST_US, Aligned

if TYPE_CHECKING:
    import pyarrow as pa

HOW = ("inner", "left", "right", "full")
MATCHED = "m"  #: the column that says whether a row has had a partner
LEFT, RIGHT = 0, 1


@dataclass(frozen=True)
class Side:
    """One input of a join.

    Attributes
    ----------
    schema
        Schema of its rows.
    keys
        Names of its key columns, of the same types and in the same order as the other's.
    time
        Name of its event time, a timestamp.
    """

    schema: pa.Schema
    keys: Sequence[str]
    time: str


class _Join:
    """What both joins share: sides with their rows, late rows, key groups, and the columns of the result."""

    def __init__(self, left: Side, right: Side, how: str, groups: int, keep_late: bool, extra: list[pa.Field]) -> None:
        import pyarrow as pa

        one_of("how", how, HOW)
        whole("groups", groups, 1, 1 << 15)
        self._sides = (left, right)
        if len(left.keys) != len(right.keys) or not left.keys:
            raise ConfigError(f"a join needs keys, as many on each side: {list(left.keys)} and {list(right.keys)}")
        for side in self._sides:
            for name in (*side.keys, side.time):
                if side.schema.names.count(name) != 1:
                    raise SchemaError(f"a side of the join has no column {name!r}, or two; it has {side.schema.names}")
            if not pa.types.is_timestamp(side.schema.field(side.time).type):
                kind = side.schema.field(side.time).type
                raise SchemaError(f"the time {side.time!r} is a {kind}: it must be a timestamp; cast it before")
        for one, other in zip(left.keys, right.keys, strict=True):
            kinds = left.schema.field(one).type, right.schema.field(other).type
            if kinds[0] != kinds[1]:
                raise SchemaError(
                    f"the keys {one!r} and {other!r} are of types {kinds[0]} and {kinds[1]}: cast one before"
                )
        self._outer = (how in ("left", "full"), how in ("right", "full"))
        fields = [*left.schema, *(field for field in right.schema if field.name not in right.keys)]
        self.schema = pa.schema([*extra, *fields])
        twice = sorted({name for name in self.schema.names if self.schema.names.count(name) > 1})
        if twice:
            raise SchemaError(f"both sides of the join have {', '.join(map(repr, twice))}: rename one before")
        self._keys = [f"k{i}" for i in range(len(left.keys))]
        self._hashes = Hashes(self._keys, groups)
        self._dirty = np.zeros(groups, bool)
        self.late: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
        self._keep_late = keep_late
        self.late_rows = self.null_times = 0
        self.current = MIN

    def _taken(self, side: int, batch: pa.RecordBatch, late: Callable[[Any], Any]) -> tuple[Any, Any] | None:
        """The rows that are not late, as a table of the state, and their times."""
        import pyarrow as pa

        source = self._sides[side]
        times, valid = microseconds(batch.column(batch.schema.get_field_index(source.time)), source.time)
        if valid is not None:
            self.null_times += int((~valid).sum())
            batch, times = batch.filter(pa.array(valid)), times[valid]
        too_late = late(times)
        if too_late.any():
            self.late_rows += int(too_late.sum())
            if self._keep_late:
                self.late[side].append(batch.filter(pa.array(too_late)))
            batch, times = batch.filter(pa.array(~too_late)), times[~too_late]
        if not batch.num_rows:
            return None
        keys = [normal(batch.column(batch.schema.get_field_index(name))) for name in source.keys]
        names = [LABEL, *self._keys, MATCHED, *(f"r{name}" for name in batch.schema.names)]
        none = np.zeros(batch.num_rows, bool)
        table = pa.table([pa.array(times), *keys, pa.array(none), *batch.columns], names=names)
        self._dirty[self._hashes.groups(table)] = True
        return table, times

    def _result(self, left: pa.Table | None, right: pa.Table | None, extra: list[Any]) -> Iterator[pa.RecordBatch]:
        """Rows beside each other; None: a side that has none."""
        import pyarrow as pa

        rows = (left if left is not None else right).num_rows  # type: ignore[union-attr]
        if not rows:
            return
        columns = list(extra)
        for side, table in enumerate((left, right)):
            source = self._sides[side]
            for field in source.schema:
                if side == RIGHT and field.name in source.keys:
                    continue
                if table is not None:
                    columns.append(table.column(f"r{field.name}"))
                elif field.name in source.keys:  # of the right one alone
                    assert right is not None
                    columns.append(right.column(f"r{self._sides[RIGHT].keys[list(source.keys).index(field.name)]}"))
                else:
                    columns.append(pa.nulls(rows, field.type))
        yield from (
            pa.Table.from_arrays(columns, names=self.schema.names)
            .cast(self.schema)
            .combine_chunks()
            .to_batches(RESULT_ROWS)
        )

    # ---- checkpoints

    @property
    def dirty(self) -> list[int]:
        """The groups that have changed since :meth:`freeze`."""
        return [int(group) for group in np.flatnonzero(self._dirty)]

    def freeze(self) -> FrozenJoin:
        """The state as it is now, to be written in another thread; groups are no longer dirty."""
        frozen = FrozenJoin((self._tables(LEFT), self._tables(RIGHT)), self._hashes, len(self._dirty), self.dirty)
        self._dirty[:] = False
        return frozen

    def restore(self, group: int, data: bytes) -> None:
        """Take the state of a key group, in a join that has had no rows."""
        import pyarrow as pa

        reader = pa.BufferReader(data)
        for side, source in enumerate(self._sides):
            keys = [source.schema.field(key).with_name(f"k{i}") for i, key in enumerate(source.keys)]
            fields = [*keys, *(field.with_name(f"r{field.name}") for field in source.schema)]
            self._keep(side, in_zones_of(fields, pa.ipc.open_stream(reader).read_all()))

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps besides the groups: JSON values."""
        return {"watermark": self.current}

    def restore_state(self, states: Sequence[Any]) -> None:
        """Go on from the states of all joins whose groups are restored here."""
        self.current = min((int(state["watermark"]) for state in states), default=MIN)

    def figures(self) -> dict[str, int]:
        """Rows and bytes held, and what was late or had no time."""
        rows, nbytes = self._size()
        return {"rows": rows, "bytes": nbytes, "late_rows": self.late_rows, "null_times": self.null_times}

    def _keep(self, side: int, table: pa.Table) -> None:
        """Rows of a side, as a checkpoint has them, are state."""
        raise NotImplementedError

    def _tables(self, side: int) -> list[Callable[[], pa.Table]]:
        """Gives all rows of a side, as they are now, from any thread."""
        raise NotImplementedError

    def _size(self) -> tuple[int, int]:
        """Rows and bytes of the state."""
        raise NotImplementedError


class IntervalJoin(_Join):
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
    ) -> None:
        whole("lower_us", lower_us, -MOST_US, MOST_US)
        whole("upper_us", upper_us, -MOST_US, MOST_US)
        if lower_us > upper_us:
            raise ConfigError(f"lower_us is {lower_us}, and upper_us {upper_us}: the lower bound is the greater")
        super().__init__(left, right, how, groups, keep_late, [])
        self._state = SortedRows(), SortedRows()
        # Of other time - own time, by side
        self._bounds = ((lower_us, upper_us), (-upper_us, -lower_us))

    def rows(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows of the left (0) or right (1) input; the pairs that they make with those that are there."""
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
        self._state[side].add(table.drop_columns([LABEL, MATCHED]), hashes, times, matched)

    def watermark(self, us: int) -> Iterator[pa.RecordBatch]:
        """A watermark: rows that can have no partner any more are dropped; of an outer join, they go out before."""
        import pyarrow as pa

        if us <= self.current:
            return
        self.current = us
        for side in (LEFT, RIGHT):
            for table, matched in self._state[side].expire(us - self._bounds[side][1]):
                self._dirty[self._hashes.groups(table)] = True
                if self._outer[side]:
                    rows = table.filter(pa.array(~matched))
                    yield from self._result(rows if side == LEFT else None, rows if side == RIGHT else None, [])

    def _keep(self, side: int, table: pa.Table) -> None:
        if table.num_rows:
            times, matched = int64s(table.column(LABEL)), table.column(MATCHED).to_numpy()
            rows = table.drop_columns([LABEL, MATCHED])
            self._state[side].add(rows, self._hashes.wide(rows), times, matched)

    def _tables(self, side: int) -> list[Callable[[], pa.Table]]:
        import pyarrow as pa

        def whole(frozen: Callable[[], Any]) -> pa.Table:
            table, times, matched = frozen()
            table = table.add_column(len(self._keys), MATCHED, pa.array(matched))
            return table.add_column(0, LABEL, pa.array(times))

        return [partial(whole, run.frozen()) for run in self._state[side].runs]

    def _size(self) -> tuple[int, int]:
        runs = [run for side in self._state for run in side.runs]
        return sum(len(run) for run in runs), sum(run.nbytes for run in runs)


class WindowJoin(_Join):
    """Pairs of rows with equal keys in the same tumbling or sliding window; they go out when it ends.

    The result has ``window_start`` and ``window_end`` first.  A row is late for the windows that have ended.

    Parameters
    ----------
    assigner
        :class:`~fastbuf.event_time.windows.Tumbling` or ``Sliding``.
    left, right, how, groups, keep_late
        As of :class:`IntervalJoin`.
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
    ) -> None:
        import pyarrow as pa

        self.assigner = instance("assigner", assigner, Aligned)
        self._state: tuple[list[pa.Table], list[pa.Table]] = ([], [])
        self._kind = pa.timestamp("us", getattr(left.schema.field(left.time).type, "tz", None))
        names = ("window_start", "window_end")
        super().__init__(left, right, how, groups, keep_late, [pa.field(name, self._kind) for name in names])

    def rows(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows of the left (0) or right (1) input; nothing goes out."""
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
        return iter(())

    def watermark(self, us: int) -> Iterator[pa.RecordBatch]:
        """A watermark: the pairs of the windows that end with it, in the order of windows."""
        import pyarrow as pa

        if us <= self.current:
            return
        before, self.current = self.current, us
        assigner = self.assigner
        panes = [int64s(table.column(LABEL)) for pieces in self._state for table in pieces]
        windows = np.unique(assigner.windows(np.unique(np.concatenate(panes)))[1]) if panes else np.empty(0, np.int64)
        ends = assigner.ends(windows)
        for window in windows[(ends - 1 > before) & (ends - 1 <= us)].tolist():
            sides = []
            for pieces in self._state:
                labels = [int64s(table.column(LABEL)) for table in pieces]
                masks = [(label >= window) & (label < window + assigner.size) for label in labels]
                sides.append([table.filter(pa.array(mask)) for table, mask in zip(pieces, masks, strict=True)])
            yield from self._joined(window, *(pa.concat_tables(side) if side else None for side in sides))
        for side in (LEFT, RIGHT):
            self._expired(side, lambda labels: assigner.ends(assigner.last_windows(labels)) - 1 <= us)

    def _keep(self, side: int, table: pa.Table) -> None:
        import pyarrow as pa

        pieces = self._state[side]
        if table.num_rows:
            pieces.append(table)
            if len(pieces) > TIER:
                pieces[:] = [pa.concat_tables(pieces).combine_chunks()]

    def _expired(self, side: int, over: Callable[[NDArray[np.int64]], NDArray[np.bool_]]) -> list[pa.Table]:
        """Take out the rows whose labels are over."""
        import pyarrow as pa

        rest, taken = [], []
        for table in self._state[side]:
            mask = over(int64s(table.column(LABEL)))
            if mask.any():
                taken.append(table.filter(pa.array(mask)))
                self._dirty[self._hashes.groups(taken[-1])] = True
                table = table.filter(pa.array(~mask))
            if table.num_rows:
                rest.append(table)
        self._state[side][:] = rest
        return taken

    def _tables(self, side: int) -> list[Callable[[], pa.Table]]:
        import pyarrow as pa

        return [partial(pa.concat_tables, [table]) for table in self._state[side]]

    def _size(self) -> tuple[int, int]:
        tables = [*self._state[LEFT], *self._state[RIGHT]]
        return sum(table.num_rows for table in tables), sum(table.nbytes for table in tables)

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


class FrozenJoin:
    """The state of a join at one moment, to be read by one thread."""

    def __init__(
        self, tables: tuple[list[Callable[[], pa.Table]], ...], hashes: Hashes, groups: int, dirty: list[int]
    ) -> None:
        self._waiting, self._hashes, self._groups, self.dirty = tables, hashes, groups, dirty

    @cached_property
    def _sides(self) -> list[list[tuple[pa.Table, NDArray[np.intp], NDArray[np.intp]]]]:
        """The tables of each side; for each the order of its rows by groups, and where each group begins."""
        sides = []
        for waiting in self._waiting:
            tables = []
            for table in (each() for each in waiting):
                groups = self._hashes.groups(table)
                order = np.argsort(groups, kind="stable")
                tables.append((table, order, np.append(0, np.cumsum(np.bincount(groups, minlength=self._groups)))))
            sides.append(tables)
        return sides

    def group(self, group: int) -> bytes:
        """The state of a key group: two Arrow streams, of the left side and of the right."""
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        for tables in self._sides:
            rows = [table.take(order[starts[group] : starts[group + 1]]) for table, order, starts in tables]
            table = pa.concat_tables(rows) if rows else pa.table({})
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
        return bytes(sink.getvalue())
