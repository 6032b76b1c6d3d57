"""Many small input partitions, read by few tasks: the function before the shuffle does not notice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import stages
from conftest import told
from nights import nightly

import fastbuf_spark as fbs

pytestmark = pytest.mark.spark


def summed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row for each call, also for one without rows."""
    rows = total = 0
    for batch in batches:
        rows += batch.num_rows
        total += sum(batch["id"].to_pylist())
    yield pa.record_batch({"k": pa.array([rows], pa.int64()), "id": pa.array([total], pa.int64())})


def first_row(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Leaves the rest of its input unread."""
    for batch in batches:
        yield batch.slice(0, 1)
        return


@nightly(before=[summed, first_row])
@pytest.mark.parametrize("before", [None, stages.doubled, summed, first_row])
def test_folded_inputs_give_what_spark_gives(spark: Any, placed: Any, before: Any) -> None:
    # A third of the partitions is empty
    df = spark.range(0, 6_000, 1, 60).selectExpr("id % 17 as k", "id").where("(id div 100) % 3 != 1")
    own = df if before is None else df.mapInArrow(before, df.schema)
    made = fbs.map_in_arrow(
        df,
        stages.identity,
        df.schema,
        keys="k",
        num_partitions=2,
        before=before,
        before_schema=df.schema if before else None,
        mode="pipelined",
    )
    assert placed(made).equals(placed(own.repartition(2, "k")))
    run = told(lambda run: run.outcome, "ok")
    assert run.tasks == 8, "four for each of the slots that consumers leave"


def test_folded_pairs_of_an_rdd(spark: Any) -> None:
    rdd = spark.sparkContext.parallelize([(i % 31, i) for i in range(6_000)], 60)
    made = fbs.partition_by(rdd, 2, mode="pipelined")
    want = rdd.partitionBy(2)
    assert [sorted(p) for p in made.glom().collect()] == [sorted(p) for p in want.glom().collect()]
    assert told(lambda run: run.outcome, "ok").tasks == 8


def test_a_column_may_be_named_like_the_one_that_is_added(spark: Any, placed: Any) -> None:
    df = spark.range(0, 600, 1, 60).selectExpr("id as __fastbuf_partition")
    made = fbs.map_in_arrow(
        df,
        stages.identity,
        df.schema,
        keys="__fastbuf_partition",
        num_partitions=2,
        before=stages.identity,
        before_schema=df.schema,
        mode="pipelined",
    )
    assert placed(made).equals(placed(df.repartition(2, "__fastbuf_partition")))


def test_few_inputs_are_left_as_they_are(spark: Any) -> None:
    df = spark.range(0, 6_000, 1, 16).selectExpr("id % 17 as k", "id")
    assert fbs.repartition(df, 2, "k", mode="pipelined").count() == 6_000
    assert told(lambda run: run.outcome, "ok").tasks == 16


def test_in_turn_each_run_of_an_action_deals_alike(spark: Any) -> None:
    """``take`` asks for one partition first, and then for the others: fewer consumers leave more slots to producers."""
    made = fbs.repartition(spark.range(0, 6_000, 1, 60), 3, mode="pipelined")
    assert len({row.id for row in made.take(6_000)}) == 6_000


def test_in_turn_too(spark: Any) -> None:
    df = spark.range(0, 6_000, 1, 60).selectExpr("id % 17 as k", "id")
    sizes = fbs.repartition(df, 2, mode="pipelined").rdd.glom().map(len).collect()
    assert sum(sizes) == 6_000
    assert abs(sizes[0] - sizes[1]) < 30
