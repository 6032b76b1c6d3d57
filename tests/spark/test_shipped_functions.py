"""Functions of users that are shipped behind the check of the version: PySpark itself pickles what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import fastbuf_spark as fbs

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("mode", ["pipelined", "blocking"])
def test_a_broadcast_variable_arrives(spark: Any, mode: str) -> None:
    factors = spark.sparkContext.broadcast({"before": 2, "after": 3})

    def before(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"k": batch["k"], "id": pc.multiply(batch["id"], factors.value["before"])})

    def after(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"k": batch["k"], "id": pc.multiply(batch["id"], factors.value["after"])})

    df = spark.range(0, 1_000, 1, 2).selectExpr("id % 17 as k", "id")
    made = fbs.map_in_arrow(
        df, after, df.schema, keys="k", num_partitions=2, before=before, before_schema=df.schema, mode=mode
    )
    assert made.agg({"id": "sum"}).first()[0] == 6 * sum(range(1_000))


@pytest.mark.parametrize("mode", ["pipelined", "blocking"])
def test_a_broadcast_variable_arrives_with_a_partition_function(spark: Any, mode: str) -> None:
    places = spark.sparkContext.broadcast([1, 0])
    rdd = spark.sparkContext.parallelize([(i, i) for i in range(100)], 2)
    made = fbs.partition_by(rdd, 2, lambda key: places.value[key % 2], mode=mode)
    assert [sorted(k for k, _ in part) for part in made.glom().collect()] == [
        list(range(1, 100, 2)),
        list(range(0, 100, 2)),
    ]
