"""Delta tables that the workers read and write: beside deltalake, DuckDB and Spark's reader of their files."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

deltalake = pytest.importorskip("deltalake", reason="pip install 'fastbuf[delta]'")

from delta_tables import by_hand  # noqa: E402
from test_sources import same  # noqa: E402

import fastbuf_spark as fbs  # noqa: E402
from fastbuf.errors import ConfigError, ResourceError  # noqa: E402

pytestmark = pytest.mark.spark
NOON = dt.datetime(2020, 7, 1, 12, 30, 1, 123456)
UTC = dt.UTC
TYPES = {
    "i8": pa.array([1, None], pa.int8()),
    "i16": pa.array([1, None], pa.int16()),
    "i32": pa.array([1, None], pa.int32()),
    "i64": pa.array([2**60, None]),
    "f": pa.array([1.5, None], pa.float32()),
    "d": pa.array([float("nan"), None]),
    "b": pa.array([True, None]),
    "s": pa.array(["a", None]),
    "bin": pa.array([b"\0\xff", None]),
    "day": pa.array([dt.date(1500, 1, 1), None]),
    "t": pa.array([NOON.replace(tzinfo=UTC), None], pa.timestamp("us", "UTC")),
    "ntz": pa.array([NOON, None], pa.timestamp("us")),
    "dec": pa.array([Decimal("-1.23"), None], pa.decimal128(38, 2)),
    "l": pa.array([[1, None], None], pa.list_(pa.int32())),
    "m": pa.array([[("a", NOON)], None], pa.map_(pa.string(), pa.timestamp("us"))),
    "st": pa.array([{"a": 1, "t": [NOON]}, None], pa.struct([("a", pa.int16()), ("t", pa.list_(pa.timestamp("us")))])),
}


def files(read: Any) -> set[str]:
    return {piece.fragment.path for split in read._start.read.splits for piece in split}


def test_types(new_york: Any, tmp_path: Path) -> None:
    """As Spark reads the table's files, which have the types of its columns."""
    deltalake.write_deltalake(tmp_path, pa.table(TYPES))
    (file,) = tmp_path.glob("*.parquet")
    assert same(fbs.read_delta(new_york, tmp_path).to_df(), new_york.read.parquet(str(file))) == 2


def test_columns_of_partitions(new_york: Any, tmp_path: Path) -> None:
    """In their place among the others, by the log's values."""
    values = {name: TYPES[name] for name in ("i64", "d", "b", "s", "day", "t", "ntz", "dec")} | {
        "d": pa.array([1e7, None])
    }
    values["s"] = pa.array(["a b/%=:", None])
    values["dec"] = pa.array([Decimal("1.23"), None], pa.decimal128(38, 2))  # deltalake spoils negative ones
    table = pa.table({**values, "id": [1, 2]}).select(["s", "id", "day", "t", "ntz", "dec", "b", "d", "i64"])
    deltalake.write_deltalake(tmp_path, table, partition_by=list(values))
    made = fbs.read_delta(new_york, tmp_path).to_df()
    assert dict(made.dtypes)["ntz"] == "timestamp_ntz"
    assert same(made, new_york.createDataFrame(table, made.schema)) == 2
    read = fbs.read_delta(new_york, tmp_path, columns=["id"], filter=pc.field("s") == "a b/%=:")
    assert len(files(read)) == 1
    assert read.collect() == [(1,)]


def test_files_that_are_skipped(spark: Any, tmp_path: Path) -> None:
    """By the log's bounds, and never a file that has a row: nulls, NaNs, and times cut to milliseconds."""
    for i in range(4):
        step = [i * 10.0, i * 10 + 9.0, None, float("nan") if i == 3 else None]
        at = dt.datetime(2020, 1, 1 + i, 0, 0, 0, 123456, UTC)
        table = pa.table({
            "x": step,
            "k": [i, i, i, None] if i else pa.array([None] * 4, pa.int64()),
            "t": pa.array([at] * 4, pa.timestamp("us", "UTC")),
            "s": [f"{i}a", f"{i}z", None, ""],
            "dec": pa.array([Decimal(f"12345678901234567890.{i}1")] * 4, pa.decimal128(22, 2)),
        })  # fmt: skip
        deltalake.write_deltalake(tmp_path, table, mode="append")
    everything = deltalake.DeltaTable(tmp_path).to_pyarrow_table()
    x, k, t = pc.field("x"), pc.field("k"), pc.field("t")
    for filter, most in [
        (x > 25, 2),
        (x == 15, 1),
        (~(x <= 39), 4),
        (x.is_null(), 4),
        (x.is_nan(), 4),
        (k.is_null(), 4),
        (k == 2, 1),
        (k.is_valid(), 3),
        (t > pa.scalar(dt.datetime(2020, 1, 4, 0, 0, 0, 123000, UTC), pa.timestamp("us", "UTC")), 1),
        ((k == 1) | (pc.field("s") == "3z"), 4),
        (pc.field("dec") == Decimal("12345678901234567890.21"), 4),
        (x > 100, 1),
    ]:
        read = fbs.read_delta(spark, tmp_path, filter=filter)
        assert len(files(read)) <= most, filter
        assert sorted(map(str, read.to_arrow().to_pylist())) == sorted(map(str, everything.filter(filter).to_pylist()))


def test_a_version_of_the_table(spark: Any, tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"x": [1]}))
    deltalake.write_deltalake(tmp_path, pa.table({"x": [2]}), mode="append")
    history = deltalake.DeltaTable(tmp_path).history()
    first = dt.datetime.fromtimestamp(history[-1]["timestamp"] / 1000, UTC)
    assert sorted(fbs.read_delta(spark, tmp_path).collect()) == [(1,), (2,)]
    assert fbs.read_delta(spark, tmp_path, 0).collect() == [(1,)]
    assert fbs.read_delta(spark, tmp_path, timestamp=first).collect() == [(1,)]
    assert fbs.read_delta(spark, tmp_path, timestamp=first.isoformat()).collect() == [(1,)]
    for arguments, words in [
        ({"version": 7}, "no version 7: its newest one is 1"),
        ({"version": 0, "timestamp": first}, "give one of them"),
        ({"version": "0"}, "give a whole number"),
        ({"timestamp": "yesterday"}, "give a datetime, or text"),
        ({"timestamp": 3}, "give a datetime, or text"),
    ]:
        with pytest.raises((ConfigError, ResourceError), match=words):
            fbs.read_delta(spark, tmp_path, **arguments)
    with pytest.raises(ResourceError, match="is no Delta table"):
        fbs.read_delta(spark, tmp_path / "other")


def test_rows_that_were_deleted(spark: Any, tmp_path: Path) -> None:
    """A deletion vector names rows that are not the table's; with a filter and without, in several batches."""
    by_hand(
        tmp_path / "t",
        pa.table({"x": range(200_000), "y": range(200_000)}),
        reader_features=["deletionVectors"],
        deleted=[1, 3, 9],
    )
    read = fbs.read_delta(spark, tmp_path / "t")
    got = read.to_arrow()
    assert sorted(set(range(200_000)) - set(got["x"].to_pylist())) == [1, 3, 9]
    filtered = fbs.read_delta(spark, tmp_path / "t", columns=["y"], filter=pc.field("x") < 11)
    assert sorted(filtered.to_arrow()["y"].to_pylist()) == [0, 2, 4, 5, 6, 7, 8, 10]


def test_what_is_refused(spark: Any, tmp_path: Path) -> None:
    mapped = {"delta.columnMapping.mode": "name"}
    told = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "x"}
    by_hand(
        tmp_path / "m", pa.table({"x": [1]}), reader_features=["columnMapping"], configuration=mapped, metadata=told
    )
    with pytest.raises(ConfigError, match=r"columnMapping.*DROP FEATURE"):
        fbs.read_delta(spark, tmp_path / "m")
    by_hand(tmp_path / "n", pa.table({"x": [1]}), reader_features=["columnMapping"])
    assert fbs.read_delta(spark, tmp_path / "n").collect() == [(1,)]  # it may be used there, and is not
    by_hand(tmp_path / "o", pa.table({"x": [1]}), reader_features=["someFeature"])
    with pytest.raises(ConfigError, match="someFeature"):
        fbs.read_delta(spark, tmp_path / "o")


def test_storage_options_are_not_shown(spark: Any, tmp_path: Path, capsys: Any) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"x": [1]}))
    read = fbs.read_delta(spark, tmp_path, storage_options={"AWS_SECRET_ACCESS_KEY": "hidden"})
    read.explain()
    assert read.collect() == [(1,)]
    read.to_df().explain(True)
    assert "hidden" not in repr(read) + repr(read._start) + "".join(capsys.readouterr())
