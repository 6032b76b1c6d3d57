"""Files of other formats than Parquet: what is written is read back equal, by fastbuf and by their own library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from conftest import failure
from test_sinks import hidden
from test_sources import SPARKS

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, ResourceError, SchemaError

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("zone", ["America/New_York", "UTC"])
def test_every_type_comes_back(spark: Any, tmp_path: Path, zone: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        df = spark.range(0, 100, 1, 3).selectExpr(*SPARKS)
        wrote = fbs.write_ipc(df, tmp_path / "out", compression="zstd")
        assert (wrote.files, wrote.rows) == (3, 100)
        read = fbs.read_ipc(spark, tmp_path / "out").to_df()
        assert read.schema.simpleString() == df.schema.simpleString()
        assert sorted(map(repr, read.collect())) == sorted(map(repr, df.collect()))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_files_that_other_libraries_read(spark: Any, tmp_path: Path) -> None:
    """By directories, in batches of a size, without rows; by pyarrow, pandas and polars."""
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    out = tmp_path / "out"
    df = spark.range(0, 1000, 1, 2).selectExpr("id", "id % 3 as k", "concat('n', id) as s")
    fbs.pipeline(df).shuffle("k", partitions=2).write_ipc(out, "k", compression="none", batch_size=100)
    made = ds.dataset(out, format="ipc", partitioning=ds.partitioning(flavor="hive")).to_table().sort_by("id")
    assert made.select(["id", "k", "s"]).to_pylist() == df.toArrow().sort_by("id").to_pylist()
    file = next((out / "k=0").glob("*.none.arrow"))
    with pa.memory_map(str(file)) as source:
        reader = pa.ipc.open_file(source)
        assert [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)] == [100, 100, 100, 34]
    assert len(pandas.read_feather(file)) == polars.read_ipc(file).height == 334
    fbs.write_ipc(df.where("id < 0"), tmp_path / "none")
    assert fbs.read_ipc(spark, tmp_path / "none").to_arrow().schema.names == ["id", "k", "s"]
    assert (out / "_SUCCESS").exists()


def breaks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        raise ValueError("no more")


def test_a_failed_run_leaves_what_was_there(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fbs.write_ipc(spark.range(5), out)
    assert "no more" in failure(
        lambda: fbs.pipeline(spark.range(9)).map_in_arrow(breaks, "id long").write_ipc(out, mode="append")
    )
    with pytest.raises(ResourceError, match="is there already"):
        fbs.write_ipc(spark.range(5), out)
    assert fbs.read_ipc(spark, out).count() == 5
    fbs.write_ipc(spark.range(3), out, mode="overwrite")
    fbs.write_ipc(spark.range(3), out, mode="append")
    assert fbs.read_ipc(spark, out).count() == 6
    assert hidden(out) == []


def test_what_cannot_be_is_said_at_once(spark: Any, tmp_path: Path) -> None:
    df = spark.range(2)
    with pytest.raises(ConfigError, match="compression is 'snappy': it must be one of lz4, zstd, none"):
        fbs.write_ipc(df, tmp_path / "x", compression="snappy")
    for size in (0, True, "9"):
        with pytest.raises(ConfigError, match="give the most rows of a record batch"):
            fbs.write_ipc(df, tmp_path / "x", batch_size=size)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="void, which write_ipc does not write"):
        fbs.write_ipc(df.selectExpr("id", "null as n"), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_parquet_is_written_as_ever(spark: Any, tmp_path: Path) -> None:
    """Spark's schema in the footer, and its version."""
    fbs.write_parquet(spark.range(3).selectExpr("cast(id as byte) b"), tmp_path / "out", compression="gzip")
    metadata = pq.read_metadata(next((tmp_path / "out").glob("*.gzip.parquet"))).metadata
    assert b'"type":"byte"' in metadata[b"org.apache.spark.sql.parquet.row.metadata"].replace(b" ", b"")
    assert metadata[b"org.apache.spark.version"].decode() == spark.version
