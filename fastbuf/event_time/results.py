"""Results of windows as record batches: the rows of state that fire, in order, through the work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbuf.errors import SchemaError
from fastbuf.event_time.arrow_rows import in_order, int64s
from fastbuf.event_time.watermarks import MAX, MIN
from fastbuf.event_time.work import Application

if TYPE_CHECKING:
    import pyarrow as pa

RESULT_ROWS = 1 << 16  #: of a batch


class Results:
    """The columns of the output: keys, window_start, window_end, and what the work makes; of ``apply_in_arrow`` the
    function's alone."""

    def __init__(
        self, work: Any, keys: list[pa.Field], columns: Sequence[str], kind: pa.DataType, result: pa.Schema
    ) -> None:
        import pyarrow as pa

        self.work = work
        self.columns = list(columns)  # of the keys, in tables of the state
        self._kind = kind
        if isinstance(work, Application):
            self.schema = result
        else:
            self.schema = pa.schema([*keys, pa.field("window_start", kind), pa.field("window_end", kind), *result])
        twice = sorted({name for name in self.schema.names if self.schema.names.count(name) > 1})
        if twice:
            raise SchemaError(
                f"the result has two columns {', '.join(map(repr, twice))}: rename the key, or the column"
            )

    def batches(
        self, table: pa.Table, label: Sequence[str], bounds: Any, ordered: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Fire.

        Parameters
        ----------
        table
            Rows of state, one for each window and key if the work merges.
        label
            Names of its int64 columns that name the window, by which windows are in order.
        bounds
            Takes these columns; returns starts and ends.
        ordered
            Whether the rows are in their order.
        """
        import pyarrow as pa

        if not table.num_rows:
            return
        if not ordered:
            table = in_order(table, [*label, *self.columns], stable=not self.work.merges)
        starts, ends = bounds(*(int64s(table.column(name)) for name in label))
        if isinstance(self.work, Application):
            yield from gathered(self.work.calls(table, self.columns, starts, ends))
            return
        columns = [table.column(name) for name in self.columns]
        columns += [self._times(starts), self._times(ends), *self.work.results(table)]
        typed = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, self.schema, strict=True)]
        yield from pa.Table.from_arrays(typed, schema=self.schema).combine_chunks().to_batches(RESULT_ROWS)

    def _times(self, times: NDArray[np.int64]) -> pa.Array:
        import pyarrow as pa

        without = (times == MIN) | (times == MAX)
        return pa.array(times, pa.int64(), mask=without if without.any() else None).cast(self._kind)


def gathered(tables: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Join small tables into batches of at least `RESULT_ROWS` rows, or of 4096 tables; the last one has the rest."""
    import pyarrow as pa

    buffer: list[pa.Table] = []
    rows = 0
    for table in tables:
        buffer.append(table)
        rows += table.num_rows
        if rows >= RESULT_ROWS or len(buffer) >= 4096:
            yield from pa.concat_tables(buffer).combine_chunks().to_batches(RESULT_ROWS)
            buffer, rows = [], 0
    if rows:
        yield from pa.concat_tables(buffer).combine_chunks().to_batches(RESULT_ROWS)
