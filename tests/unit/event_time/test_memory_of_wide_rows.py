"""State of wide rows stays within its memory: while rows come, while it is saved, and when all ends at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fastbuf.event_time.interval_join import IntervalJoin
from fastbuf.event_time.joins import Side
from fastbuf.event_time.operator import WindowOperator
from fastbuf.event_time.watermarks import MAX
from fastbuf.event_time.window_join import WindowJoin
from fastbuf.event_time.windows import Session, Tumbling
from fastbuf.event_time.work import apply_in_arrow

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), ("v", pa.string())])
SIDES = (
    Side(SCHEMA.set(1, pa.field("lt", pa.timestamp("us"))), ["k"], "lt"),
    Side(pa.schema([("key", pa.int64()), ("rt", pa.timestamp("us")), ("b", pa.int64())]), ["key"], "rt"),
)
BATCHES, ROWS, WIDTH = 80, 1000, 1000


def windowed(assigner: Any) -> Callable[..., Any]:
    empty = apply_in_arrow(lambda key, window, table: table.slice(0, 0), SCHEMA)
    return lambda **more: WindowOperator(["k"], "t", SCHEMA, assigner, empty, **more)


KINDS: dict[str, Callable[..., Any]] = {
    "interval join": lambda **more: IntervalJoin(*SIDES, 0, 10**9, **more),
    "left interval join": lambda **more: IntervalJoin(*SIDES, 0, 10**9, how="left", **more),
    "window join": lambda **more: WindowJoin(*SIDES, Tumbling(20), how="left", **more),
    "windows": windowed(Tumbling(20)),
    "one window": windowed(Tumbling(10**6)),
    "sessions": windowed(Session(1000)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_state_of_wide_rows_stays_within_its_memory(kind: str, tmp_path: Path) -> None:
    """Of 80 MB, 4 MiB may stay in memory; parts of it were as large as the number of their rows allowed: all of it."""
    one = KINDS[kind](memory_bytes=4 << 20, spill_directory=str(tmp_path))
    before, most = pa.total_allocated_bytes(), 0

    def read(results: Iterable[Any]) -> None:
        nonlocal most
        for _ in results:
            most = max(most, pa.total_allocated_bytes() - before)
        most = max(most, pa.total_allocated_bytes() - before)

    dice = np.random.default_rng(1)
    for number in range(BATCHES):
        times = np.full(ROWS, number) + dice.integers(0, 10, ROWS)
        columns = [pa.array(dice.integers(0, 1 << 40, ROWS)), pa.array(times).cast(pa.timestamp("us"))]
        columns.append(pa.array(["x" * WIDTH] * ROWS))
        if "join" in kind:
            read(one.rows(0, pa.RecordBatch.from_arrays(columns, schema=SIDES[0].schema)))
        else:
            read(one.rows(pa.RecordBatch.from_arrays(columns, schema=SCHEMA)))
    frozen = one.freeze()
    rows = sum(len(frozen.group(group)) for group in range(128) if read(()) is None)
    del frozen
    assert rows > BATCHES * ROWS * WIDTH
    assert one.figures()["file_bytes"] > 60 << 20
    read(one.watermark(MAX))
    assert one.figures()["rows"] == one.figures()["file_bytes"] == 0
    assert most < 28 << 20, f"{most >> 20} MiB"
