"""Watermarks that rows say themselves, and the time of arrival, as a source's task keeps them."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fastbuf.errors import RecordError
from fastbuf.event_time.watermarks import MAX, Monotonous, in_microseconds
from fastbuf.exchange.events import Watermark
from fastbuf_spark.streams.event_times import ArrivalTime, Marks, TimeSpec, source_time

BATCH = pa.record_batch([pa.array([1, 2, 3])], names=["v"])
NO_TIMES = np.empty(0, np.int64)
SPEC = TimeSpec("came", Monotonous(), None, arrives=pa.field("came", pa.timestamp("us", "UTC")))


@pytest.mark.parametrize(
    ("mark", "last_us"),
    [
        (None, None),
        (pa.scalar(None, pa.timestamp("us")), None),
        (dt.datetime(1970, 1, 1, 0, 0, 1), 999_999),  # the whole millisecond of it is not over yet
        (dt.datetime(1970, 1, 1, 1, 0, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), 999_999),
        (dt.datetime(1970, 1, 1, 0, 0, 0, 999_999), 999_999),
        (pa.scalar(1_000_999, pa.timestamp("us", "Europe/Berlin")), 1_000_999),
        (pa.scalar(1_000_999_999, pa.timestamp("ns")), 1_000_999),
        (pa.scalar(-1, pa.timestamp("us")), -1),
    ],
)
def test_what_a_function_may_say(mark: Any, last_us: int | None) -> None:
    """Never more than it says: a row a microsecond later may still come."""
    said = Marks(lambda batch: mark)(NO_TIMES, BATCH)
    assert (None if said is None else in_microseconds(said)) == last_us


def test_what_a_function_may_not_say() -> None:
    def wrong(batch: Any) -> int:
        return batch.num_rows  # type: ignore[no-any-return]

    with pytest.raises(
        RecordError, match=r"function 'wrong' \(.*\) must return a watermark, which .* returned 3 \(int"
    ):
        Marks(wrong)(NO_TIMES, BATCH)


def clock(monkeypatch: pytest.MonkeyPatch, us: int) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: us * 1000)


def came(batch: pa.RecordBatch) -> set[int]:
    return set(batch.column("came").cast(pa.int64()).to_pylist())


def test_times_of_arrival_never_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where a clock is put back, nor in another task, on another machine, after a restart."""
    source = source_time(SPEC, {}, "source")
    assert isinstance(source, ArrivalTime)
    clock(monkeypatch, 5_000_000)
    assert came(source.rows("a", BATCH)) == {5_000_000}
    assert source.look(at_once=True)
    assert source.news() == [Watermark(4999)]
    clock(monkeypatch, 4_000_000)
    assert came(source.rows("a", BATCH)) == {5_000_000}
    assert not source.look(at_once=True)
    clock(monkeypatch, 7_000_400)
    assert source.look(at_once=True), "time goes on without rows"
    assert source.figures() == {"watermark_ms": 6999}
    kept = {"0": source.snapshot(), "1": source_time(SPEC, {}, "source").snapshot(), "2": {"stage": "b", "mark": 1}}
    clock(monkeypatch, 3_000_000)
    restored = source_time(SPEC, kept, "source")
    assert came(restored.rows("b", BATCH)) == {7_000_400}
    assert restored.look(at_once=True)
    restored.finish()
    assert restored.news() == [Watermark(MAX)]
    assert came(source_time(SPEC, kept, "another source").rows("a", BATCH)) == {3_000_000}


def test_times_of_arrival_where_rows_had_times_of_their_own() -> None:
    """The program before had ``with_watermark``: the next one failed with a KeyError."""
    field = pa.field("at", pa.timestamp("us", "UTC"))
    before = {"0": {"stage": "source", "splits": {"splits": {}, "emitted": 5, "passed": 5, "complete": False}}}
    source = ArrivalTime(TimeSpec("at", Monotonous(), None, arrives=field), before, "source")
    rows = source.rows("s", pa.record_batch({"v": [1]}))
    assert rows.column(1)[0].value > 0
