"""What a DataFrame says of its columns: kept in results, and shown to functions byte for byte as Spark shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

import fastbuf_spark as fbs

pytestmark = pytest.mark.spark
SAID = {
    "comment": 'é "q" \\u001f \x1f\n/ 😀',
    "whole": 9007199254740993,
    "reals": [1.0, 1e-10, -1.5e300, 0.001, 123456789.0],
    "nested": {"a": True, "b": None, "c": []},
    "ml_attr": {"type": "nominal", "vals": ["a", "b"]},
}


def said_of(df: Any) -> Any:
    fields = [T.StructField("x", T.IntegerType(), True, {"in": "s"})]
    return df.select(
        F.col("id").alias("k", metadata=SAID),
        F.struct(F.lit(1).alias("x", metadata=fields[0].metadata)).alias("s", metadata={"o": 1}),
        F.array(F.lit("a")).alias("a"),
    )


def shown(schema: pa.Schema) -> str:
    inner = schema.field("s").type.field("x")
    return str([(field.name, field.metadata) for field in (*schema, inner)])


def of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"o": [shown(batch.schema)]})


def of_table(table: pa.Table) -> pa.Table:
    return pa.table({"o": [shown(table.schema)]})


def of_tables(left: pa.Table, right: pa.Table) -> pa.Table:
    return pa.table({"o": [shown(left.schema) + shown(right.schema)]})


def test_functions_are_shown_what_sparks_are(spark: Any, tmp_path: Path) -> None:
    """Behind a shuffle, behind files, and in groups, where Spark shows none."""
    df = said_of(spark.range(1))
    df.write.parquet(str(tmp_path / "files"))
    files = fbs.read_parquet(spark, tmp_path / "files")
    theirs = df.mapInArrow(of_batches, "o string").collect()
    assert "SPARK::metadata::json" in theirs[0].o
    pipeline = fbs.pipeline(df)
    for stage in (pipeline, pipeline.shuffle("k", partitions=1), files, files.shuffle("k", partitions=1)):
        assert stage.map_in_arrow(of_batches, "o string").collect() == theirs
    groups = fbs.group_by(df, "k", num_partitions=1)
    assert groups.apply_in_arrow(of_table, "o string").collect() == (
        df.groupBy("k").applyInArrow(of_table, "o string").collect()
    )
    assert groups.cogroup(groups).apply_in_arrow(of_tables, "o string").collect() == (
        df.groupBy("k").cogroup(df.groupBy("k")).applyInArrow(of_tables, "o string").collect()
    )


def test_results_keep_it(spark: Any) -> None:
    """As ``repartition`` does, and the keys of aggregates."""
    df = said_of(spark.range(4))
    fields = df.schema.fields
    assert [field.metadata for field in fields] == [field.metadata for field in df.repartition(2, "k").schema.fields]
    shuffled = fbs.pipeline(df).shuffle("k", partitions=2)
    assert shuffled.to_df().schema.json() == shuffled.schema.json() == df.schema.json()
    for mode in ("blocking", "pipelined"):
        assert fbs.repartition(df, 2, "k", mode=mode).schema.json() == df.schema.json()
    made = fbs.group_by(df, "k", num_partitions=2).agg_arrow([("k", "count")])
    assert made.schema.fields[0].metadata == df.groupBy("k").count().schema.fields[0].metadata == fields[0].metadata
