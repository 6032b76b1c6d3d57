"""Functions of users that are shipped behind the check of the version: PySpark itself pickles what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
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


@pytest.mark.parametrize("mode", ["pipelined", "blocking"])
def test_a_function_is_what_it_was_when_the_verb_was_called(spark: Any, mode: str) -> None:
    """As in Spark: an action comes later, when a variable of the function may have another value."""
    df, rdd = spark.range(10, numPartitions=2), spark.sparkContext.parallelize([(1, 1)] * 10, 2)
    told = spark.sparkContext.broadcast(7)
    frames, mapped, combined = [], [], []
    for i in range(2):

        def before(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield pa.record_batch({"id": pa.array([told.value + i] * batch.num_rows)})  # noqa: B023

        frames.append(
            fbs.map_in_arrow(
                df, iter, df.schema, keys="id", num_partitions=2, before=before, before_schema=df.schema, mode=mode
            )
        )
        mapped.append(fbs.reduce_by_key(rdd.mapValues(lambda v: told.value + i), max, 2, mode=mode))  # noqa: B023
        combined.append(fbs.combine_by_key(rdd, lambda v: told.value + i, max, max, 2, mode=mode))  # noqa: B023
    i = 100
    assert [{row.id for row in frame.collect()} for frame in frames] == [{7}, {8}]
    assert [rdd.collect() for rdd in mapped] == [[(1, 7)], [(1, 8)]]
    assert [rdd.collect() for rdd in combined] == [[(1, 7)], [(1, 8)]]


def test_a_function_of_a_pipeline_is_what_it_was_when_the_verb_was_called(spark: Any) -> None:
    """A pipeline is built later, when its result is asked for."""
    df, told = spark.range(10, numPartitions=2), spark.sparkContext.broadcast(7)
    made: list[list[fbs.Pipeline]] = []
    for i in range(2):

        def mapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield pa.record_batch({"id": pa.array([told.value + i] * batch.num_rows)})  # noqa: B023

        def framed(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            for frame in frames:
                yield frame.assign(id=told.value + i)  # noqa: B023

        def grouped(table: pa.Table) -> pa.Table:
            return pa.table({"id": [told.value + i]})  # noqa: B023

        def paired(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
            return pd.DataFrame({"id": [told.value + i]})  # noqa: B023

        p = fbs.pipeline(df)
        groups = p.group_by("id", partitions=1)
        made.append(
            [
                p.map_in_arrow(mapped, "id long"),
                p.map_in_pandas(framed, "id long"),
                groups.apply_in_arrow(grouped, "id long"),
                groups.cogroup(groups).apply_in_pandas(paired, "id long"),
            ]
        )
    i = 100
    assert [[{row.id for row in p.collect()} for p in some] for some in made] == [[{7}] * 4, [{8}] * 4]
