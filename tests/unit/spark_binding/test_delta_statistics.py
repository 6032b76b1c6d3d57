"""What the log of a Delta table has of a file: bounds that hold for every value, or none."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastbuf_spark.worker.delta import statistics

LONG = "é" * 40
AT = dt.datetime(2020, 1, 1, 0, 0, 0, 123456)


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        (pa.array([3, None, -1]), (-1, 3)),
        (pa.array([1.5, float("nan"), -0.0]), (-0.0, 1.5)),
        (pa.array([1.5, float("inf")]), None),
        (pa.array([float("nan")] * 2), None),
        (pa.array([None, None], pa.int32()), None),
        (pa.array(["b", None, "a"]), ("a", "b")),
        (pa.array([LONG, LONG]), (LONG[:32], LONG[:32] + "\U0010ffff")),
        (pa.array(["x" * 32 + "\U0010ffff"]), None),
        (pa.array(["x" * 9000, "a"]), None),  # Parquet has no bounds of such values
        (pa.array([dt.date(2020, 1, 2), dt.date(1, 1, 1)]), ("0001-01-01", "2020-01-02")),
        (pa.array([AT], pa.timestamp("us", "UTC")), ("2020-01-01T00:00:00.123Z", "2020-01-01T00:00:00.124Z")),
        (pa.array([AT], pa.timestamp("us")), ("2020-01-01T00:00:00.123", "2020-01-01T00:00:00.124")),
        (pa.array([2**62], pa.timestamp("us")), None),
        (pa.array([Decimal("-1.23"), Decimal("9.00")], pa.decimal128(9, 2)), (-1.23, 9.0)),
        (pa.array([Decimal("1.23")], pa.decimal128(20, 2)), None),
        (pa.array([b"a"]), None),
        (pa.array([True]), None),
        (pa.array([[1]]), None),
    ],
)
def test_bounds(tmp_path: Path, values: Any, bounds: Any) -> None:
    table = pa.table({"x": values})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    made = json.loads(json.dumps(statistics(pq.read_metadata(tmp_path / "a.parquet"), table.schema), allow_nan=False))
    assert made["numRecords"] == len(values)
    assert made["nullCount"] == ({} if pa.types.is_nested(values.type) else {"x": values.null_count})
    assert (made["minValues"], made["maxValues"]) == (
        ({}, {}) if bounds is None else ({"x": bounds[0]}, {"x": bounds[1]})
    )
