"""Windows of a stream: the keyed operator of :mod:`fastbuf.event_time`, for a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastbuf.event_time.arrow_rows import words_of
from fastbuf.event_time.operator import WindowOperator
from fastbuf.event_time.rules import Trigger
from fastbuf_spark.streams.event_time_rows import EventTimeRows
from fastbuf_spark.streams.window_functions import NO_TIME, Applied
from fastbuf_spark.worker.nameless import local_directory

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class WindowSpec:
    """What the operator of a stage is made of; see :class:`fastbuf.event_time.operator.WindowOperator`.

    Attributes
    ----------
    time
        Column of event times; empty: the window goes by no time.
    work
        Makes what is done with the rows of a window.
    """

    keys: tuple[str, ...]
    time: str
    input_schema: pa.Schema
    assigner: Any
    work: Callable[[], Any]
    lateness_us: int
    trigger: Trigger
    accumulate: bool
    output_mode: str = "append"
    late: Any = None  #: a sink for late rows
    memory_bytes: int | None = None  #: of state, before files have the rest
    spill_directory: str = ""

    def __call__(self) -> WindowedRows:
        return WindowedRows(self)

    @property
    def hides_bounds(self) -> bool:
        """Whether results have columns for a start and an end that no window has; a function gives its own columns."""
        return not self.time and not isinstance(self.work, Applied)

    def description(self) -> dict[str, Any]:
        """What its state is of."""
        keys = words_of(self.input_schema.field(key) for key in self.keys)
        state = {"windows": str(self.assigner), "accumulate": self.accumulate, **self.operator(1).description()}
        return {"verb": "windows", "keys": keys, "time": self.time, **state}

    def operator(self, key_groups: int) -> WindowOperator:
        """A new operator."""
        return WindowOperator(
            self.keys,
            self.time or NO_TIME,
            self.input_schema if self.time else _with_time(self.input_schema),
            self.assigner,
            self.work(),
            lateness_us=self.lateness_us,
            trigger=self.trigger,
            accumulate=self.accumulate,
            output_mode=self.output_mode,
            groups=key_groups,
            keep_late=self.late is not None,
            memory_bytes=self.memory_bytes,
            spill_directory=self.spill_directory or local_directory(),
        )


class WindowedRows(EventTimeRows):
    """See :class:`~fastbuf_spark.streams.operators.KeyedOperator`."""

    def __init__(self, spec: WindowSpec) -> None:
        self._spec = spec

    def open(self, key_groups: int) -> None:
        self._operator = self._spec.operator(key_groups)

    def rows(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        if not self._spec.time:
            import pyarrow as pa

            times = pa.array(np.zeros(batch.num_rows, np.int64)).view(pa.timestamp("us"))
            batch = pa.RecordBatch.from_arrays([*batch.columns, times], schema=_with_time(self._spec.input_schema))
        return self._shown(self._operator.rows(batch))

    def watermark(self, time_ms: int) -> Iterable[pa.RecordBatch]:
        return self._shown(super().watermark(time_ms))

    def processing_time(self, now_ms: int) -> Iterable[pa.RecordBatch]:
        return self._shown(self._operator.processing_time(now_ms))

    def _shown(self, results: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        if not self._spec.hides_bounds:
            return results
        return (batch.drop_columns(["window_start", "window_end"]) for batch in results)

    def take_late(self) -> list[pa.RecordBatch]:
        """The rows that were too late since the last call."""
        late, self._operator.late = self._operator.late, []
        return list(late)


def _with_time(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return schema.append(pa.field(NO_TIME, pa.timestamp("us")))
