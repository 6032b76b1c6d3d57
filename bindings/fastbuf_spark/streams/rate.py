"""Numbered rows at a given rate: row n is computed from n, so the source can be read again from anywhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf_spark.schema import struct_type
from fastbuf_spark.streams.source import Polled, Split, SplitReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

MOST_ROWS = 10_000  #: of a batch
SCHEMA = "timestamp timestamp, value long"


@dataclass(frozen=True)
class RateSource:
    """See :func:`fastbuf_spark.stream_rate`.

    An offset is the next row's number in its split, row 0's time in us, and the rate by which this is its time.

    Row k of split i of s has the value ``k * s + i``.
    """

    rows_per_second: float
    parts: int
    rows: int | None
    replayable: bool = True

    @property
    def name(self) -> str:
        """For the plan."""
        return f"{self.rows_per_second:g} rows in a second" if self.rows_per_second else "rows as fast as they go"

    @property
    def schema(self) -> StructType:
        """Of its rows."""
        return struct_type(SCHEMA)

    @property
    def bounded(self) -> bool:
        """Whether it ends."""
        return self.rows is not None

    def splits(self, state: Any) -> tuple[list[Split], Any]:
        """All of them at once."""
        if state:
            return [], state
        return [Split(f"part-{i}", [0, 0]) for i in range(self.parts)], self.parts

    def reader(self, schema: pa.Schema) -> SplitReader:
        """All splits of a task in turn."""
        return _RateReader(self, schema)


class _RateReader:
    def __init__(self, source: RateSource, schema: pa.Schema) -> None:
        self._source = source
        self._schema = schema
        self._at: dict[str, list[int]] = {}
        self._rate = source.rows_per_second / source.parts  # of a split

    def assign(self, splits: Sequence[Split]) -> None:
        for split in splits:
            first, begin, *rate = split.offset  # a version before wrote no rate
            before = rate[0] if rate else self._rate
            if begin and before != self._rate:  # the next row has the time that it would have had
                due = begin + first / before * 1e6 if before else time.time_ns() // 1000
                begin = int(due - (first / self._rate * 1e6 if self._rate else 0))
            self._at[split.name] = [first, begin]

    def poll(self, timeout_s: float) -> Polled | None:
        end = time.monotonic() + timeout_s
        while True:
            for name in list(self._at):
                polled = self._next(name, self._at.pop(name))
                if polled is not None:
                    return polled
            if not self._at or time.monotonic() >= end:
                return None
            time.sleep(min(timeout_s, 0.001))

    def _next(self, name: str, at: list[int]) -> Polled | None:
        import numpy as np
        import pyarrow as pa

        source, (first, begin) = self._source, at
        begin = begin or time.time_ns() // 1000  # until rows have left, nobody knows of it
        part, parts = int(name.rpartition("-")[2]), source.parts
        end = first + MOST_ROWS
        if source.rows is not None:
            end = min(end, -(-(source.rows - part) // parts))
            if first >= end:
                return Polled(name, None, at, ended=True)
        if self._rate:
            end = min(end, int((time.time_ns() // 1000 - begin) * self._rate / 1e6))
        self._at[name] = [first, begin]
        if end <= first:
            return None
        numbers = np.arange(first, end, dtype=np.int64)
        values = numbers * parts + part
        times = begin + (numbers / self._rate * 1e6).astype(np.int64) if self._rate else np.full(len(values), begin)
        columns = [pa.array(times, pa.int64()).view(self._schema.field(0).type), pa.array(values)]
        self._at[name] = [int(end), begin]
        return Polled(name, pa.RecordBatch.from_arrays(columns, schema=self._schema), [int(end), begin, self._rate])

    def pause(self, splits: Sequence[str]) -> None:
        pass  # their times are those of the clock

    def checkpointed(self, offsets: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass
