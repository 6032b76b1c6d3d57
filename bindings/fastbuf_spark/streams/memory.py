"""The driver's memory as a sink, for tests and for looking at a stream."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.streams.sink import Committable, SinkContext, SinkWriter, StagedRows

if TYPE_CHECKING:
    import pyarrow as pa

MESSAGE_BYTES = 4 << 20  #: of rows in one message to the driver


class MemorySink:
    """See :func:`fastbuf_spark.to_memory`."""

    output_modes = ("append", "update", "complete")
    name = "the driver's memory"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[str, Any] = {}
        self._unnamed: list[Any] = []
        self._schema: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return MemorySink, ()  # tasks have no need of the rows

    def check(self, schema: pa.Schema, exactly_once: bool) -> None:
        """Every schema will do."""
        if self._schema is not None and self._schema != schema:
            raise ConfigError("this to_memory() has the rows of another stream: make one for each")
        self._schema = schema

    def collected(self, name: str, rows: str) -> None:
        """Rows have come from a task; those of one name count once."""
        import pyarrow as pa

        with pa.ipc.open_stream(base64.b64decode(rows)) as reader:
            table = reader.read_all()
        with self._lock:
            if name:
                self._parts.setdefault(name, table)
            else:
                self._unnamed.append(table)

    def table(self) -> pa.Table:
        """All rows so far, those of a task in their order."""
        import pyarrow as pa

        with self._lock:
            parts = [*self._parts.values(), *self._unnamed]
        if not parts:
            if self._schema is None:
                raise ConfigError("no stream writes to this to_memory() yet")
            return self._schema.empty_table()
        return pa.concat_tables(parts, promote_options="default")  # an earlier program's rows have its columns

    def restore(self, context: SinkContext, committables: Sequence[Committable]) -> None:
        """Remove the rows that no checkpoint knows."""
        StagedRows.keep_only(context, committables)

    def writer(self, context: SinkContext) -> SinkWriter:
        """Sends rows over the control connection."""
        return _MemoryWriter(context)


class _MemoryWriter:
    def __init__(self, context: SinkContext) -> None:
        self._context = context
        self._staged = StagedRows(context)
        self.collect: Callable[[str, str], None] = lambda name, rows: None  # the task sets it

    def write(self, batch: pa.RecordBatch) -> None:
        if self._context.exactly_once:
            self._staged.write(batch)
        else:
            self._collect("", [batch])

    def prepare(self, checkpoint: int) -> list[Committable]:
        return self._staged.prepare()

    def commit(self, checkpoint: int, committables: Sequence[Committable]) -> None:
        for each in committables:
            self._collect(each["file"], list(StagedRows.batches(self._context, each)))

    def forget(self, committables: Sequence[Committable]) -> None:
        for each in committables:  # what was sent before newer checkpoints were complete has come to the driver
            StagedRows.remove(self._context, each)

    def _collect(self, name: str, batches: list[pa.RecordBatch]) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches(batches)
        step = max(1, table.num_rows * MESSAGE_BYTES // max(1, table.nbytes))
        for begin in range(0, table.num_rows, step):
            self.collect(name and f"{name}:{begin}", _text(table.slice(begin, step)))

    def close(self) -> None:
        self._staged.close()


def _text(table: pa.Table) -> str:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return base64.b64encode(sink.getvalue()).decode()


def to_memory() -> MemorySink:
    """Keep a stream's rows in the driver's memory: ``sink.table()`` has them.  For tests; nothing bounds it.

    All that was given stays: with ``output_mode="complete"`` every version of the results.  After a restart of the
    program a new one begins empty, and may get the rows of the last checkpoint again.
    """
    return MemorySink()
