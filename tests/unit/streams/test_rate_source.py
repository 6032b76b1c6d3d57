"""Rows at a rate, which another start may change."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: install fastbuf[spark]")

from fastbuf_spark.streams.rate import RateSource
from fastbuf_spark.streams.source import Split

SCHEMA = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())])


def polled(rate: float, offset: Any) -> Any:
    """Rows that are due, and the reader's next offset; None: there are none."""
    reader = RateSource(rate, 1, None).reader(SCHEMA)
    reader.assign([Split("part-0", offset)])
    return reader.poll(0.0)


def times(rows: pa.RecordBatch) -> list[int]:
    return rows.column(0).view(pa.int64()).to_pylist()


@pytest.mark.parametrize("rate", [10.0, 1000.0, 100_000.0])
def test_another_rate_goes_on_at_the_time_of_the_next_row(rate: float) -> None:
    """A smaller one waited until it had caught up from the beginning; a greater one gave times that went back."""
    first = polled(1000.0, [0, time.time_ns() // 1000 - 5_000_000])
    last, number = times(first.batch)[-1], first.offset[0]
    time.sleep(0.21)  # two rows of the slowest
    second = polled(rate, first.offset)
    assert second.batch.column(1)[0].as_py() == number
    ahead = times(second.batch)
    assert ahead[0] - last == pytest.approx(1000, abs=2)
    assert np.diff(ahead) == pytest.approx(1e6 / rate, abs=2)
    time.sleep(0.11)  # one row of it
    again = polled(rate, second.offset)
    assert times(again.batch)[0] - ahead[-1] == pytest.approx(1e6 / rate, abs=2)


def test_from_no_rate_and_to_none() -> None:
    now = time.time_ns() // 1000
    fast = polled(0.0, [0, 0])
    assert polled(10.0, fast.offset) is None, "the next one is due in a tenth of a second"
    slow = polled(1000.0, [0, now - 100_000])
    assert times(polled(0.0, slow.offset).batch)[0] >= times(slow.batch)[-1]


def test_an_offset_of_a_version_that_wrote_no_rate() -> None:
    now = time.time_ns() // 1000
    rows = polled(1000.0, [40, now - 50_000]).batch
    assert times(rows)[0] == now - 10_000
