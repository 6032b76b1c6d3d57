"""The least time of a file, as its footer tells it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from fastbuf_spark.formats.ipc import Ipc
from fastbuf_spark.formats.parquet import Parquet

AT = pa.field("at", pa.timestamp("us", "UTC"))
LOCAL = pa.field("at", pa.timestamp("us"))


def least(folder: Path, columns: dict[str, Any], field: pa.Field = AT, **options: Any) -> int | None:
    path = folder / "a.parquet"
    pq.write_table(pa.table(columns), path, **options)
    return Parquet().least_time(Parquet().fragment(str(path), fs.LocalFileSystem()), field)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("first", [1_700_000_000, -86_400])
def test_units_and_row_groups(tmp_path: Path, unit: str, first: int) -> None:
    per_s = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[unit]
    times = pa.array([(first + n) * per_s for n in (7, 3, 9, 0, 5)], pa.timestamp(unit, "UTC"))
    assert least(tmp_path, {"k": [1] * 5, "at": times}, row_group_size=2) == first * 1000


def test_times_between_milliseconds(tmp_path: Path) -> None:
    """Downwards, before 1970 too."""
    assert least(tmp_path, {"at": pa.array([1_999, 5_000], AT.type)}) == 1
    assert least(tmp_path, {"at": pa.array([-1, 5_000], AT.type)}) == -1


def test_nulls(tmp_path: Path) -> None:
    """Row groups of nulls alone have no times; nor has such a file."""
    times = pa.array([None, None, dt.datetime(1970, 1, 2, tzinfo=dt.UTC), None], AT.type)
    assert least(tmp_path, {"at": times}, row_group_size=2) == 86_400_000
    assert least(tmp_path, {"at": pa.nulls(4, AT.type)}) is None


def test_what_a_footer_does_not_tell(tmp_path: Path) -> None:
    """No bounds, instants of 96 bits, another kind of time, no such column, another format."""
    times = pa.array([1_000_000], AT.type)
    assert least(tmp_path, {"at": times}, write_statistics=False) is None
    assert least(tmp_path, {"at": times}, use_deprecated_int96_timestamps=True) is None
    assert least(tmp_path, {"at": times}, LOCAL) is None
    assert least(tmp_path, {"at": times.cast(LOCAL.type)}) is None
    assert least(tmp_path, {"at": times.cast(LOCAL.type)}, LOCAL) == 1000
    assert least(tmp_path, {"at": pa.array(["1970-01-01"])}) is None
    assert least(tmp_path, {"when": times}) is None
    assert least(tmp_path, {"at": pa.array([{"at": 1}])}) is None
    assert Ipc().least_time(None, AT) is None
