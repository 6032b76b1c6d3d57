"""``select`` of pipelines and of streams, beside Spark's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, SchemaError

ROWS = 10_000
X, S = pc.field("x"), pc.field("s")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("select")
    x = pa.array([None if i % 7 == 0 else i - 5000 for i in range(ROWS)], pa.int64())
    table = pa.table(
        {
            "x": x,
            "s": pa.array([None if i % 5 == 0 else f"Text {i % 13}" for i in range(ROWS)]),
            "t": pa.array(np.arange(ROWS) * 1_000_003, pa.timestamp("us", "UTC")),
            "l": [[i, i + 1] for i in range(ROWS)],
        }
    )
    pq.write_table(table, folder / "a.parquet", row_group_size=1000)
    return folder


def test_as_sparks(spark: Any, files: Path) -> None:
    """Values, nulls, types and names, before a shuffle and behind it."""
    ours = (
        fbs.read_parquet(spark, files)
        .select(
            "t", "s", twice=X * 2, half=X / pc.scalar(2.0).cast("double"), upper=pc.utf8_upper(S), known=pc.is_valid(X)
        )
        .shuffle("s", partitions=3)
        .select("upper", "twice", "known", "t", rest=pc.field("half") - pc.field("twice"))
        .to_df()
    )
    x, s = F.col("x"), F.col("s")
    theirs = spark.read.parquet(str(files)).select(
        F.upper(s).alias("upper"),
        (x * 2).alias("twice"),
        x.isNotNull().alias("known"),
        "t",
        (x / 2.0 - x * 2).alias("rest"),
    )
    assert ours.schema.simpleString() == theirs.schema.simpleString()
    assert sorted(map(str, ours.collect())) == sorted(map(str, theirs.collect()))


def test_columns_alone_behind_files(spark: Any, files: Path) -> None:
    ours = fbs.read_parquet(spark, files).filter(X > 0).select("l", "s").to_df()
    theirs = spark.read.parquet(str(files)).where("x > 0").select("l", "s")
    assert ours.schema == theirs.schema
    assert sorted(map(str, ours.collect())) == sorted(map(str, theirs.collect()))


@pytest.mark.parametrize(
    ("columns", "expressions", "error", "text"),
    [
        ((), {}, ConfigError, "no columns"),
        (("x", "x"), {}, ConfigError, "'x' twice"),
        (("x",), {"x": X + 1}, ConfigError, "'x' twice"),
        ((X,), {}, ConfigError, "give names of columns"),
        ((), {"y": "x * 2"}, ConfigError, "an expression of pyarrow"),
        (("y",), {}, SchemaError, r"finds 0 columns 'y'; there are \['x', 's', 't', 'l'\]"),
        ((), {"y": pc.field("z") + 1}, SchemaError, "z"),
        ((), {"y": S + 1}, SchemaError, "y="),
        ((), {"y": X / 2.0}, ConfigError, "float of 32 bits"),
        ((), {"y": (X - 1) * 2.5}, ConfigError, "float of 32 bits"),
        ((), {"y": pc.field("l") + 1}, SchemaError, "y="),
    ],
    ids=str,
)
def test_what_is_refused(spark: Any, files: Path, columns: Any, expressions: Any, error: Any, text: str) -> None:
    """Before a job, by a pipeline and by a stream."""
    with pytest.raises(error, match=text):
        _ = fbs.read_parquet(spark, files).select(*columns, **expressions).schema
    stream = fbs.stream_files(spark, str(files), schema="x long, s string, t timestamp, l array<long>")
    with pytest.raises(error, match=text):
        stream.select(*columns, **expressions)


def test_in_a_stream(spark: Any, files: Path, tmp_path: Path) -> None:
    """Computed keys and times serve what follows."""
    stream = fbs.stream_files(
        spark, str(files), schema="x long, s string, t timestamp, l array<long>", bounded=True, tasks=1
    )
    sink = fbs.to_memory()
    sums = (
        stream.with_watermark("t", "1 second")
        .select("t", k=pc.is_valid(S), x=pc.coalesce(X, pc.scalar(0)))
        .group_by("k", partitions=2)
        .window("1000 seconds")
        .agg_arrow([("x", "sum")])
    )
    query = sums.select("k", "window_start", twice=pc.field("x_sum") * 2).write_stream(sink, tmp_path / "c", every=0.2)
    assert query.await_termination(60)
    ours = sorted((row["k"], row["window_start"].timestamp(), row["twice"]) for row in sink.table().to_pylist())
    theirs = (
        spark.read.parquet(str(files))
        .groupBy(F.col("s").isNotNull().alias("k"), F.window("t", "1000 seconds").alias("w"))
        .agg((2 * F.sum(F.coalesce("x", F.lit(0)))).alias("twice"))
        .select("k", F.unix_seconds("w.start").cast("double"), "twice")
    )
    assert ours == sorted(tuple(row) for row in theirs.collect())
