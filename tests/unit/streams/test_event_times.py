"""Watermarks that rows say themselves."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fastbuf.errors import RecordError
from fastbuf.event_time.watermarks import in_microseconds
from fastbuf_spark.streams.event_times import Marks

BATCH = pa.record_batch([pa.array([1, 2, 3])], names=["v"])
NO_TIMES = np.empty(0, np.int64)


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
