"""``agg_arrow``: pyarrow's hash aggregation, before the shuffle and after it.

Before the shuffle, a producer keeps one row for each key that it has seen recently; after it, these rows arrive in the
order of their keys, and the rows of a key are merged into one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf.event_time.aggregates import IN_FLOATS, PARTS, narrow, normal, wide
from fastbuf_spark.worker.groups import Limits
from fastbuf_spark.worker.runs import in_order

if TYPE_CHECKING:
    import pyarrow as pa

    from fastbuf_spark.schema import BatchFunction

KEPT_ROWS = 64 << 10  #: rows that a producer holds before it merges the rows of each key


@dataclass(frozen=True)
class Aggregation:
    """The keys and aggregations.

    Attributes
    ----------
    keys
        Number of key columns, which come first.
    functions
        The aggregations: one of each of the other columns, and among them those of no column (``count_all``).
    """

    keys: int
    functions: tuple[str, ...]

    def names(self) -> list[str]:
        """Names of the columns that are sent."""
        parts = sum(len(PARTS[function]) for function in self.functions)
        return [f"k{i}" for i in range(self.keys)] + [f"v{i}" for i in range(parts)]

    def first(self, batch: pa.RecordBatch) -> pa.Table:
        """One row for each key of the input."""
        import numpy as np
        import pyarrow as pa

        columns = [normal(column) for column in batch.columns[: self.keys]]
        calls = []
        rest = iter(batch.columns[self.keys :])
        for function in self.functions:
            if function == "count_all":
                columns.append(pa.array(np.ones(batch.num_rows, np.int64)))
                calls.append("sum")
                continue
            column = next(rest)
            for call, _ in PARTS[function]:
                # In floats, like the result: whole numbers and decimals would wrap around
                columns.append(column.cast(pa.float64()) if (function, call) in IN_FLOATS else column)
                calls.append(call)
        return self._grouped(pa.table(columns, names=self.names()), calls)

    def again(self, table: pa.Table) -> pa.Table:
        """One row for each key, from rows that are partial results already."""
        return self._grouped(table, [call for function in self.functions for _, call in PARTS[function]])

    def final(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """The columns of the result."""
        import pyarrow as pa
        import pyarrow.compute as pc

        columns, at = table.columns[: self.keys], self.keys
        for function in self.functions:
            if function == "mean":
                total, count = table.column(at), table.column(at + 1)
                columns.append(pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.float64()), pc.divide(total, count)))
            else:
                columns.append(table.column(at))
            at += len(PARTS[function])
        typed = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
        return pa.Table.from_arrays(typed, schema=schema)

    def _grouped(self, table: pa.Table, calls: list[str]) -> pa.Table:
        import pyarrow as pa

        names = table.schema.names
        keys, values = names[: self.keys], names[self.keys :]
        for at, call in enumerate(calls, self.keys):
            if call == "sum":
                table = table.set_column(at, names[at], wide(table.column(at)))
        # A task must not start threads; without them keys come in the order of their first row
        groups = table.group_by(keys, use_threads=False).aggregate(list(zip(values, calls, strict=True)))
        groups = groups.select([*keys, *(f"{value}_{call}" for value, call in zip(values, calls, strict=True))])
        return pa.table([narrow(column) for column in groups.columns], names=names)


@dataclass(frozen=True)
class FirstStage:
    """Before the shuffle: the output of ``before``, or the input, as partial results."""

    plan: Aggregation
    before: BatchFunction | None
    columns: tuple[int, ...] | None
    limits: Limits

    def __call__(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        partials: list[pa.Table] = []
        rows = used = 0
        for batch in source if self.before is None else self.before(source):
            if not batch.num_rows:
                continue
            if self.columns is not None:
                chosen = [batch.column(i) for i in self.columns]
                batch = pa.RecordBatch.from_arrays(chosen, [f"c{i}" for i in range(len(chosen))])
            partials.append(self.plan.first(batch))
            rows += partials[-1].num_rows
            used += partials[-1].nbytes
            if rows < KEPT_ROWS and 2 * used < self.limits.memory_bytes:
                continue
            partials = [self.plan.again(pa.concat_tables(partials))]
            rows, used = partials[0].num_rows, partials[0].nbytes
            if 2 * rows > KEPT_ROWS or 4 * used > self.limits.memory_bytes:
                # Few keys come again: keeping the rows longer would cost more than it saves
                yield from partials.pop().to_batches(max_chunksize=self.limits.batch_rows)
                rows = used = 0
        if partials:
            yield from self.plan.again(pa.concat_tables(partials)).to_batches(max_chunksize=self.limits.batch_rows)


class LastStage:
    """After the shuffle: one row for each key, in the order of the keys."""

    def __init__(self, plan: Aggregation, schema: pa.Schema, limits: Limits) -> None:
        self.plan = plan
        self.schema = schema
        self.limits = limits
        self.__name__ = "agg_arrow"

    def __call__(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        keys = tuple(range(self.plan.keys))
        carried: Any = None
        for piece in in_order(source, keys, self.limits.memory_bytes, self.limits.directory):
            table = pa.Table.from_batches([piece.rename_columns(self.plan.names())])
            table = self.plan.again(table if carried is None else pa.concat_tables([carried, table]))
            # The last key may continue in the next batch
            carried = table.slice(table.num_rows - 1)
            yield from self._out(table.slice(0, table.num_rows - 1))
        if carried is not None:
            yield from self._out(carried)

    def _out(self, table: pa.Table) -> list[pa.RecordBatch]:
        if not table.num_rows:
            return []
        result = self.plan.final(table, self.schema).combine_chunks()
        return list(result.to_batches(max_chunksize=self.limits.batch_rows))
