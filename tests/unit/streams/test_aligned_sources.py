"""A split that runs ahead of the others is not read, so that windows stay few."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fastbuf.event_time.operator import WindowOperator
from fastbuf.event_time.watermarks import MAX, MIN, BoundedOutOfOrderness, in_microseconds
from fastbuf.event_time.windows import Tumbling
from fastbuf.event_time.work import agg_arrow
from fastbuf.exchange.events import Watermark
from fastbuf_spark.streams.event_times import SourceTime, TimeSpec
from fastbuf_spark.streams.source import Split
from fastbuf_spark.streams.user_source import UserReader

SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("k", pa.int64())])
STEP_MS = {"slow": 10, "fast": 1000}  #: between rows


def read(split: str, offset: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """A hundred seconds in batches of ten rows."""
    count = 100_000 // STEP_MS[split]
    for first in range(offset, count, 10):
        times = np.arange(first, first + 10) * STEP_MS[split] * 1000
        yield pa.record_batch([pa.array(times).view(SCHEMA.field(0).type), pa.array(times * 0)], schema=SCHEMA), first


def most_windows(align_ms: int | None) -> tuple[int, int]:
    """The most windows of a second that were open; and how many results came."""
    spec = TimeSpec("at", BoundedOutOfOrderness(0), None, align_ms=align_ms)
    source, reader = SourceTime(spec, {}, "source"), UserReader(read, SCHEMA)
    reader.assign([Split(name, 0) for name in STEP_MS])
    source.assign(list(STEP_MS))
    windows = WindowOperator(["k"], "at", SCHEMA, Tumbling(1_000_000), agg_arrow([("", "count_all")]))
    most, results, left = 0, 0, set(STEP_MS)
    while left:
        reader.pause(source.paused())
        polled = reader.poll(60.0)
        assert polled is not None, "a split is always read"
        if polled.ended:
            left.remove(polled.split)
            source.remove(polled.split)
            continue
        assert polled.batch is not None
        source.rows(polled.split, polled.batch)
        results += sum(made.num_rows for made in windows.rows(polled.batch))
        if source.look(at_once=True):
            for event in source.news():
                assert isinstance(event, Watermark)
                results += sum(made.num_rows for made in windows.watermark(in_microseconds(event.time_ms)))
        windows.rows(pa.record_batch([[], []], schema=SCHEMA))
        labels = windows._windows
        labels.flush()
        most = max(most, labels.windows())
    reader.close()
    results += sum(made.num_rows for made in windows.watermark(MAX))
    assert windows.late_rows == 0
    return most, results


def test_windows_stay_few_where_sources_are_aligned() -> None:
    most, results = most_windows(None)
    assert most > 30  # a hundred, if both threads that read get a processor
    assert results == 100
    # The window that is open, five seconds of drift, and the batch of ten seconds that goes beyond
    most, results = most_windows(5000)
    assert most <= 1 + 5 + 10
    assert results == 100


def test_the_slowest_of_all_tasks_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TimeSpec("at", BoundedOutOfOrderness(0), None, align_ms=5000)
    source: Any = SourceTime(spec, {}, "source")
    source.assign(["fast"])
    source.rows("fast", next(iter(read("fast", 0)))[0])  # up to 9 s
    assert source.paused() == []  # nothing is known of others
    source.others = 3000
    assert source.paused() == ["fast"]
    assert source.figures()["paused_splits"] == 1
    source.others = 4000
    assert source.paused() == []
    source.others = MIN
    assert source.paused() == ["fast"]
