"""Joins of two streams: of rows within an interval of each other, and of rows in the same window.

Record batches and watermarks in, pairs out; as :class:`~fastbuf.event_time.operator.WindowOperator`, without a thread,
a clock or a connection.  A null in a key equals nothing, as in SQL.  The watermark is that of both inputs together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastbuf.checks import one_of
from fastbuf.errors import ConfigError, SchemaError
from fastbuf.event_time.aggregates import normal
from fastbuf.event_time.arrow_rows import in_zones_of
from fastbuf.event_time.frozen import FrozenRows, RowsOfState, encoded
from fastbuf.event_time.keyed import Keyed, check_columns
from fastbuf.event_time.results import RESULT_ROWS
from fastbuf.event_time.runs import LABEL
from fastbuf.event_time.watermarks import MIN

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


class Join(Keyed, ABC):
    """What both joins share: sides with their rows, late rows, key groups, and the columns of the result."""

    def __init__(self, left: Side, right: Side, how: str, groups: int, keep_late: bool, extra: list[pa.Field]) -> None:
        import pyarrow as pa

        one_of("how", how, HOW)
        self._sides = (left, right)
        if len(left.keys) != len(right.keys) or not left.keys:
            raise ConfigError(f"a join needs keys, as many on each side: {list(left.keys)} and {list(right.keys)}")
        for side in self._sides:
            check_columns("a side of the join", side.schema, side.keys, side.time)
        kinds = [[side.schema.field(key).type for key in side.keys] for side in self._sides]
        for one, other, kind, others in zip(left.keys, right.keys, *kinds, strict=True):
            if kind != others:
                raise SchemaError(f"the keys {one!r} and {other!r} are of types {kind} and {others}: cast one before")
        self._keys = [f"k{i}" for i in range(len(left.keys))]
        super().__init__(list(zip(self._keys, kinds[LEFT], strict=True)), groups, keep_late)
        self._outer = (how in ("left", "full"), how in ("right", "full"))
        fields = [*left.schema, *(field for field in right.schema if field.name not in right.keys)]
        self.schema = pa.schema([*extra, *fields])
        twice = sorted({name for name in self.schema.names if self.schema.names.count(name) > 1})
        if twice:
            raise SchemaError(
                f"both sides of the join have {', '.join(map(repr, twice))}: rename one before, in a stream as "
                f"select(..., {twice[0]}2=pc.field({twice[0]!r})), for a time in front of with_watermark"
            )
        self.late: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
        self.current = MIN

    def _taken(self, side: int, batch: pa.RecordBatch, late: Callable[[Any], Any]) -> tuple[Any, Any] | None:
        """The rows that are not late, as a table of the state, and their times."""
        import pyarrow as pa

        source = self._sides[side]
        batch, times = self._timed(batch, source.time)
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

    def rows(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows of the left (0) or right (1) input; the pairs that they make at once, to be read to their end."""
        self._check_read()
        return self._read(self._rows(side, batch))

    def watermark(self, us: int) -> Iterator[pa.RecordBatch]:
        """A watermark: the pairs that it makes, and rows that can have no partner any more."""
        self._check_read()
        if us <= self.current:
            return iter(())
        before, self.current = self.current, us
        return self._read(self._advance(before))

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

    def freeze(self) -> FrozenJoin:
        """The state as it is now, to be written in another thread; groups are no longer dirty."""
        self._check_read()
        sides = [
            FrozenRows(self._frozen(side), self._hashes, len(self._dirty), self._part_bytes, self._together)
            for side in (LEFT, RIGHT)
        ]
        frozen = FrozenJoin(sides, self.dirty)
        self._dirty[:] = False
        return frozen

    def _together(self, tables: list[pa.Table]) -> pa.Table:
        import pyarrow as pa

        table = pa.concat_tables(tables)
        self._release()
        return table

    def restore(self, group: int, data: bytes) -> None:
        """Take the state of a key group, in a join that has had no rows."""
        import pyarrow as pa

        if not data:
            return
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
        """Rows and bytes held, of them in files, and what was late or had no time."""
        rows, nbytes = self._size()
        counts = {"rows": rows, "bytes": nbytes, "file_bytes": self._file_bytes()}
        return {**counts, "late_rows": self.late_rows, "null_times": self.null_times}

    @abstractmethod
    def _rows(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """See :meth:`rows`."""

    @abstractmethod
    def _advance(self, before: int) -> Iterator[pa.RecordBatch]:
        """See :meth:`watermark`: it was ``before``, and is ``current``."""

    @abstractmethod
    def _keep(self, side: int, table: pa.Table) -> None:
        """Rows of a side, as a checkpoint has them, are state."""

    @abstractmethod
    def _frozen(self, side: int) -> Callable[[], Iterable[RowsOfState]]:
        """Gives all rows of a side, as they are now, from any thread."""

    @abstractmethod
    def _release(self) -> None:
        """Give back the memory of what was read of files."""

    @abstractmethod
    def _size(self) -> tuple[int, int]:
        """Rows and bytes of the state."""

    def _file_bytes(self) -> int:
        """Bytes of it in files."""
        return 0


class FrozenJoin:
    """The state of a join at one moment, to be read by one thread."""

    def __init__(self, sides: list[FrozenRows], dirty: list[int]) -> None:
        self._sides, self.dirty = sides, dirty

    def group(self, group: int) -> bytes:
        """The state of a key group: two Arrow streams, of the left side and of the right; nothing if both are empty."""
        tables = [side.of(group) for side in self._sides]
        return encoded(*tables) if any(table.num_rows for table in tables) else b""
