"""Combines what functions give for groups into batches for Spark: a batch costs Spark more than its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from fastbuf.errors import SchemaError
from fastbuf_spark.worker.runs import together

if TYPE_CHECKING:
    import pyarrow as pa

    from fastbuf_spark.worker.groups import Limits

SMALL_BYTES = 256 << 10  #: a table of no more bytes is copied together with others


def gathered(tables: Iterable[pa.Table], limits: Limits) -> Iterator[pa.RecordBatch]:
    """Combine many small tables into few batches.

    A small table is copied at once: the function may go on writing to its memory, and a slice would keep all rows of
    the table that it was cut from.
    """
    coalescer: Coalescer | None = None
    for table in tables:
        for batch in table.to_batches(max_chunksize=limits.batch_rows):
            rows = batch.num_rows
            if not rows:
                continue
            if coalescer is None:
                coalescer = _coalescer(table.schema, min(SMALL_BYTES, limits.batch_bytes))
            is_small = rows < limits.batch_rows and coalescer.add(batch)
            if coalescer.rows and (
                not is_small or coalescer.rows >= limits.batch_rows or coalescer.nbytes >= limits.batch_bytes
            ):
                yield from _cut(coalescer.batch(), table.schema, limits.batch_rows)
            if not is_small:
                yield batch
    if coalescer is not None and coalescer.rows:
        yield from _cut(coalescer.batch(), table.schema, limits.batch_rows)


def _cut(batch: pa.RecordBatch, schema: pa.Schema, most_rows: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    whole = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    return (whole.slice(start, most_rows) for start in range(0, whole.num_rows, most_rows))


class Coalescer(Protocol):
    """Copies of small batches."""

    @property
    def rows(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def add(self, batch: pa.RecordBatch) -> bool:
        """Copy a batch, and tell whether it was copied: a large one is not."""

    def batch(self) -> pa.RecordBatch:
        """All of them as one batch; starts anew."""


def _coalescer(schema: pa.Schema, most_bytes: int) -> Coalescer:
    import pyarrow as pa

    from fastbuf.serializers.coalesce import BatchCoalescer

    try:
        # Nulls in a column declared to have none are for Spark to refuse, as in batches that are not copied
        return BatchCoalescer(pa.schema([field.with_nullable(True) for field in schema]), most_bytes)
    except SchemaError:  # such as lists of nulls
        return _AsIPC(schema, most_bytes)


class _AsIPC:
    """Copies by Arrow's own writer: of all types, at three times the cost."""

    def __init__(self, schema: pa.Schema, most_bytes: int) -> None:
        self._schema = schema
        self._most_bytes = most_bytes
        self._start()

    def _start(self) -> None:
        import pyarrow as pa

        self.rows = self.nbytes = 0
        self._sink = pa.BufferOutputStream()
        self._writer = pa.ipc.new_stream(self._sink, self._schema)

    def add(self, batch: pa.RecordBatch) -> bool:
        if batch.nbytes > self._most_bytes:
            return False
        self._writer.write_batch(batch)
        self.rows += batch.num_rows
        self.nbytes = self._sink.tell()
        return True

    def batch(self) -> pa.RecordBatch:
        import pyarrow as pa

        self._writer.close()
        result = together(list(pa.ipc.open_stream(self._sink.getvalue())))
        self._start()
        return result
