"""Producers read batches bounded by rows where rows are known to be short, and by bytes where they are not."""

from __future__ import annotations

from typing import Any

import pytest
import stages

import fastbuf_spark as fbs
from fastbuf_spark.driver import input_batches
from fastbuf_spark.driver.input_batches import MAX_BYTES, MAX_RECORDS, NO_LIMIT

pytestmark = pytest.mark.spark
LIFTED = {MAX_BYTES: NO_LIMIT}


def test_rows_of_fixed_length_are_not_measured(spark: Any) -> None:
    fixed = (
        "id",
        "id * 0.5D as x",
        "true as b",
        "current_date() as d",
        "cast(id as decimal(20, 2)) as m",
        "struct(id)",
    )
    assert input_batches.properties(spark.range(10).selectExpr(*fixed), 0) == LIFTED
    for long in ("'x' as t", "array(id) as a", "map(id, id) as m", "struct('x' as t) as s", "binary('x') as y"):
        assert input_batches.properties(spark.range(10).selectExpr("id", long), 0) == {}, long


def test_cached_rows_are_known_by_their_average(spark: Any) -> None:
    short = spark.range(0, 1000, 1, 2).selectExpr("id", "'name' as t").cache()
    long = spark.range(0, 1000, 1, 2).selectExpr("id", "repeat('x', 5000) as t").cache()
    try:
        assert input_batches.properties(short, 0) == {}, "nothing is known before it has been computed"
        assert short.count() == long.count() == 1000
        assert input_batches.properties(short.select("*"), 0) == LIFTED
        assert input_batches.properties(long.select("*"), 0) == {}
        assert input_batches.properties(short.selectExpr("id", "repeat(t, 100000) as t"), 0) == {}
    finally:
        short.unpersist(blocking=True)
        long.unpersist(blocking=True)


def test_what_the_user_says_of_the_longest_row(spark: Any) -> None:
    df = spark.range(10).selectExpr("id", "'x' as t")
    assert input_batches.properties(df, 1000) == LIFTED
    assert input_batches.properties(df, 64 << 10) == {MAX_BYTES: NO_LIMIT, MAX_RECORDS: "1024"}
    assert input_batches.properties(df, 1 << 30) == {}


def test_producers_get_whole_batches_and_the_session_stays_as_it_is(spark: Any) -> None:
    df = spark.range(0, 30_000, 1, 2).selectExpr("id", "repeat('x', 500) as t")
    before = spark.conf.get(MAX_BYTES)
    sizes = {}
    for said in (0, 600):
        made = fbs.map_in_arrow(
            df,
            stages.largest,
            "rows long",
            keys="id",
            num_partitions=1,
            before=stages.with_batch_rows,
            before_schema="rows long, id long",
            mode="pipelined",
            conf=fbs.ShuffleConf(max_row_bytes=said),
        )
        spark.conf.set(MAX_BYTES, "1m") if not said else spark.conf.unset(MAX_BYTES)
        sizes[said] = made.collect()[0].rows
    assert sizes[0] < 5000, "what the session says of bytes holds"
    assert sizes[600] == 10_000
    assert spark.conf.get(MAX_BYTES) == before
    assert spark.sparkContext.getLocalProperty(MAX_BYTES) is None


def test_settings_of_the_session_go_over_the_jobs(spark: Any) -> None:
    df = spark.range(0, 20_000, 1, 1).selectExpr("id", "id as k")
    spark.conf.set(MAX_RECORDS, "100")
    try:
        made = fbs.map_in_arrow(
            df,
            stages.largest,
            "rows long",
            keys="id",
            num_partitions=1,
            before=stages.with_batch_rows,
            before_schema="rows long, id long",
            mode="pipelined",
        )
        assert made.collect()[0].rows == 100
        for mode in ("pipelined", "blocking"):
            behind = fbs.map_in_arrow(
                df, stages.with_batch_rows, "rows long, id long", keys="k", num_partitions=1, mode=mode
            )
            assert behind.agg({"rows": "max"}).collect()[0][0] == 100
    finally:
        spark.conf.unset(MAX_RECORDS)
