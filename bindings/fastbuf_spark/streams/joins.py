"""Joins of two streams: rows of both come through one gate, with a column that says which side each is of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fastbuf.event_time.arrow_rows import words_of
from fastbuf.event_time.interval_join import IntervalJoin
from fastbuf.event_time.joins import Side
from fastbuf.event_time.window_join import WindowJoin
from fastbuf.event_time.windows import Aligned
from fastbuf_spark.streams.event_time_rows import EventTimeRows
from fastbuf_spark.worker.nameless import local_directory

if TYPE_CHECKING:
    import pyarrow as pa

SIDE = "__side"


def both_schema(left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """The schema of rows of both sides: the side, then the columns of each, null in rows of the other."""
    import pyarrow as pa

    columns = [
        pa.field(f"{name}{i}", field.type) for name, of in (("l", left), ("r", right)) for i, field in enumerate(of)
    ]
    return pa.schema([pa.field(SIDE, pa.int8()), *columns])


@dataclass(frozen=True)
class OfSide:
    """Gives rows of one side the schema of both."""

    side: int
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        prefix = "lr"[self.side]
        for batch in batches:
            rows = batch.num_rows
            own = iter(batch.columns)
            columns = [pa.array(np.full(rows, self.side, np.int8))]
            for field in list(self.schema)[1:]:
                columns.append(next(own) if field.name[0] == prefix else pa.nulls(rows, field.type))
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True)
class JoinSpec:
    """What the operator of a join is made of.

    Attributes
    ----------
    sides
        Schema, key columns and time of each input.
    make
        Makes the join of :mod:`fastbuf.event_time.joins`, from the sides, the number of key groups, and its memory.
    memory_bytes, spill_directory
        Of state, before files have the rest; and where these are.
    """

    sides: tuple[Side, Side]
    make: partial[Any]
    memory_bytes: int | None = None
    spill_directory: str = ""

    def __call__(self) -> JoinedRows:
        return JoinedRows(self)

    def description(self) -> dict[str, Any]:
        """What its state is of; bounds of intervals may change, which rows are kept from now on goes by them."""
        own = {
            f"side {number}": {"columns": words_of(side.schema), "keys": list(side.keys), "time": side.time}
            for number, side in enumerate(self.sides, 1)
        }
        windows = [str(each) for each in self.make.keywords.values() if isinstance(each, Aligned)]
        return {"verb": "join", "windows": windows, "how": self.make.keywords["how"], **own}

    def schema(self) -> pa.Schema:
        """Of the results."""
        schema: pa.Schema = self.make(*self.sides, groups=1).schema
        return schema


class JoinedRows(EventTimeRows):
    """See :class:`~fastbuf_spark.streams.operators.KeyedOperator`."""

    def __init__(self, spec: JoinSpec) -> None:
        self._spec = spec

    def open(self, key_groups: int) -> None:
        spec = self._spec
        directory = spec.spill_directory or local_directory()
        self._operator = spec.make(
            *spec.sides, groups=key_groups, memory_bytes=spec.memory_bytes, spill_directory=directory
        )

    def rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        first = 1
        for number, side in enumerate(self._spec.sides):
            mine = pc.equal(batch.column(0), number)
            rows = batch if pc.all(mine).as_py() else batch.filter(mine)
            if rows.num_rows:
                columns = rows.columns[first : first + len(side.schema)]
                yield from self._operator.rows(number, pa.RecordBatch.from_arrays(columns, schema=side.schema))
            first += len(side.schema)


def interval_join(lower_us: int, upper_us: int, how: str) -> partial[Any]:
    """Makes an :class:`IntervalJoin` of sides."""
    return partial(IntervalJoin, lower_us=lower_us, upper_us=upper_us, how=how)


def window_join(assigner: Any, how: str) -> partial[Any]:
    """Makes a :class:`WindowJoin` of sides."""
    return partial(WindowJoin, assigner=assigner, how=how)


def key_places(schema: pa.Schema, keys: Sequence[str], side: int) -> tuple[str, ...]:
    """Names of a side's key columns in the schema of both."""
    return tuple(f"{'lr'[side]}{schema.get_field_index(key)}" for key in keys)
