"""An exchange is kept by what is made of its result, whatever that is, and by nothing else."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from conftest import in_the_end
from nights import nightly

import fastbuf_spark as fbs
from fastbuf_spark.driver import exchanges, rendezvous

pytestmark = pytest.mark.spark
ROWS = 1_000


def numbers(spark: Any) -> Any:
    return spark.range(0, ROWS, 1, 2).selectExpr("id % 17 as k", "id")


def made(spark: Any) -> Any:
    return fbs.repartition(numbers(spark), 2, "k", mode="pipelined")


def reduced(spark: Any) -> Any:
    pairs = spark.sparkContext.range(0, ROWS, numSlices=2).map(lambda n: (n % 17, n))
    return fbs.reduce_by_key(pairs, lambda a, b: a + b, 2, mode="pipelined")


def known() -> set[str]:
    return {exchange for server in rendezvous.servers() for exchange in server._exchanges}


def swept(spark: Any) -> set[str]:
    """The exchanges that are left once the JVM has collected its garbage."""
    gc.collect()
    for _ in range(2):
        spark._jvm.System.gc()
        for _ in range(1 + len(exchanges._results) // exchanges.LOOKS):
            exchanges._forget_unused(str(spark.sparkContext.applicationId))
        gc.collect()
    return known()


def seen_in_a_view(spark: Any) -> Callable[[], int]:
    made(spark).createOrReplaceTempView("kept_by_its_name")
    return lambda: spark.sql("select count(*) as n from kept_by_its_name").collect()[0].n


def kept_by_a_cache(spark: Any) -> Callable[[], int]:
    df = made(spark).cache()
    df.where("k = 3").count()
    derived = df.selectExpr("k + 1 as k")
    return lambda: derived.count()


def kept_by_an_rdd(spark: Any) -> Callable[[], int]:
    rdd = made(spark).rdd.map(lambda row: row.k)
    return rdd.count


def kept_by_a_second_shuffle(spark: Any) -> Callable[[], int]:
    df = fbs.repartition(made(spark), 1, "id", mode="pipelined")
    return df.count


def kept_by_a_pipeline(spark: Any) -> Callable[[], int]:
    p = fbs.pipeline(numbers(spark)).shuffle("k", partitions=1, mode="pipelined").shuffle("id", partitions=1)
    df = p.to_df().selectExpr("id")
    return df.count


def kept_by_a_join(spark: Any) -> Callable[[], int]:
    df = made(spark).hint("merge").join(spark.range(ROWS), "id").selectExpr("k")
    return df.count


def kept_by_pairs(spark: Any) -> Callable[[], int]:
    rdd = reduced(spark).map(lambda pair: (pair[1], pair[0])).filter(lambda pair: pair[0] >= 0)
    return lambda: rdd.map(lambda pair: ROWS // 17 + (pair[1] < ROWS % 17)).sum()


def kept_by_a_frame_of_pairs(spark: Any) -> Callable[[], int]:
    df = reduced(spark).toDF("k long, total long").selectExpr(f"{ROWS // 17} + if(k < {ROWS % 17}, 1, 0) as n")
    return lambda: int(df.selectExpr("sum(n) as n").collect()[0].n)


WAYS = [
    seen_in_a_view,
    kept_by_a_cache,
    kept_by_an_rdd,
    kept_by_a_second_shuffle,
    kept_by_a_pipeline,
    kept_by_a_join,
    kept_by_pairs,
    kept_by_a_frame_of_pairs,
]


def test_what_is_made_of_a_result_keeps_its_exchange(spark: Any) -> None:
    before = swept(spark)
    kept = [way(spark) for way in WAYS]
    left = swept(spark) - before
    assert len(left) >= len(WAYS)
    for way, count in zip(WAYS, kept, strict=True):
        assert count() == ROWS, way.__name__
    spark.catalog.dropTempView("kept_by_its_name")
    spark.catalog.clearCache()


@nightly
def test_results_that_are_gone_keep_neither_inputs_nor_functions(spark: Any) -> None:
    """So a session may go on for days: a table of this driver's, and a model in a function, were kept for good."""
    before, memory = swept(spark), spark._jvm.Runtime.getRuntime()
    size = 4 << 20

    def used() -> int:
        return int(memory.totalMemory() - memory.freeMemory())

    def act(number: int) -> None:
        table = pa.table({"k": [1], "text": [chr(97 + number) * size]})
        assert fbs.repartition(spark.createDataFrame(table), 1, "k", mode="pipelined").count() == 1
        assert reduced(spark).count() == 17

    act(0)
    swept(spark)
    first = used()
    for number in range(1, 13):
        act(number)
    assert len(in_the_end(lambda: swept(spark) - before, lambda found: len(found) <= 2)) <= 2

    def grown() -> int:
        swept(spark)
        return used() - first

    # What goes, goes in threads of Spark's, after the collector has been there: so not at the first look
    assert in_the_end(grown, lambda size_now: size_now < 6 * size) < 6 * size
