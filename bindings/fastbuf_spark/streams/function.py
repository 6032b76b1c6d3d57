"""Gives rows to a function of the user's: see :func:`to_function`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastbuf.checkpoint.store import sync_directory
from fastbuf_spark.errors import ArgumentTypeError
from fastbuf_spark.streams.fail_points import reach
from fastbuf_spark.streams.sink import Committable, SinkContext, SinkWriter, StagedRows
from fastbuf_spark.streams.staged import MARKERS_KEPT, StagingWriter, staged_batches

if TYPE_CHECKING:
    import pyarrow as pa

    RowsFunction = Callable[[pa.Table, int], None]

#: Tasks that a batch's number tells apart
TASKS = 1 << 16
DONE = ".done"
#: ``batch_id`` of every batch where rows come at least once: such batches are not counted
NO_BATCH = -1


def to_function(func: RowsFunction) -> FunctionSink:
    """A sink that calls ``func(table, batch_id)`` with the rows of each task and checkpoint.

    With exactly-once it is called when the checkpoint is complete, by one task.  After a failure it may be called again
    with the same rows and the same `batch_id`, by another task perhaps: write so that the second time changes nothing,
    as by keeping `batch_id` in the transaction that writes the rows, and a name for the directory of checkpoints beside
    it: in another one the numbers begin anew.  With at-least-once it is called at once with each batch, with a
    `batch_id` of -1: after a failure rows come again, in other batches.

    An exception of the function's is tried again some times; then the stream starts again from its last checkpoint.
    """
    if not callable(func):
        raise ArgumentTypeError.of(
            f"to_function takes a function, not a {type(func).__name__}", "func", "function", func
        )
    return FunctionSink(func)


class FunctionSink:
    """See :func:`to_function`."""

    output_modes = ("append", "update", "complete")

    def __init__(self, func: RowsFunction) -> None:
        self.func = func
        self.name = f"function({getattr(func, '__name__', type(func).__name__)})"

    def check(self, schema: pa.Schema, exactly_once: bool) -> None:
        pass

    def restore(self, context: SinkContext, committables: Sequence[Committable]) -> None:
        StagedRows.keep_only(context, committables)
        markers = {_marker(context, each) for each in committables}
        for marker in Path(context.folder).glob(f"*{DONE}"):
            if marker not in markers:
                marker.unlink(missing_ok=True)

    def writer(self, context: SinkContext) -> SinkWriter:
        return StagingWriter(context, Calls(self.func, context)) if context.exactly_once else DirectCalls(self.func)


def _marker(context: SinkContext, committable: Committable) -> Path:
    """A file that is there when the function has been called, and need not be again."""
    return Path(context.folder, committable["file"] + DONE)


class Calls:
    """Calls with staged rows."""

    def __init__(self, func: RowsFunction, context: SinkContext) -> None:
        self._func, self._context = func, context
        self._markers: deque[Path] = deque()

    def commit(self, committables: Sequence[Committable]) -> None:
        import pyarrow as pa

        for each in committables:
            marker = _marker(self._context, each)
            if marker.exists():
                continue
            table = pa.Table.from_batches(staged_batches(self._context, each))  # an earlier program's have its columns
            self._func(table, each["checkpoint"] * TASKS + each["task"])
            reach("in commit", each["checkpoint"])
            marker.touch()
            sync_directory(marker.parent)  # before the rows are removed
            self._markers.append(marker)
        while len(self._markers) > MARKERS_KEPT:
            self._markers.popleft().unlink(missing_ok=True)

    def close(self) -> None:
        pass


class DirectCalls:
    """At least once: a call for each batch."""

    def __init__(self, func: RowsFunction) -> None:
        self._func = func

    def write(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        self._func(pa.Table.from_batches([batch]), NO_BATCH)

    def prepare(self, checkpoint: int) -> list[Committable]:
        return []

    def commit(self, checkpoint: int, committables: Sequence[Committable]) -> None:
        pass

    def close(self) -> None:
        pass
