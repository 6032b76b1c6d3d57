"""What the plan of an input says: whether its rows come again, and in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fastbuf_spark as fbs
from fastbuf_spark.driver.determinism import is_deterministic, order_is_fixed

pytestmark = pytest.mark.spark
Frame = Callable[[Any], Any]


def same(batches: Any) -> Any:
    """A stage that hands its batches on."""
    return batches


def pairs(df: Any) -> Any:
    return df.rdd.map(lambda row: (row.id % 5, row.id))


def functions() -> Any:
    from pyspark.sql import functions as F

    return F


#: what is made of ``spark.range(20)`` in 2 partitions; whether it is deterministic, and in a fixed order
FRAMES: dict[str, tuple[Frame, bool, bool]] = {
    "range": (lambda df: df, True, True),
    "projected and filtered": (lambda df: df.where("id > 3").selectExpr("id + 1 as id"), True, True),
    "exploded": (lambda df: df.selectExpr("explode(array(id, 1))"), True, True),
    "union": (lambda df: df.union(df), True, True),
    "coalesced": (lambda df: df.coalesce(1), True, True),
    "a python stage": (lambda df: df.mapInArrow(same, "id long"), True, True),
    "a python function": (lambda df: df.select(functions().udf(lambda x: x, "long")("id")), True, True),
    "sorted within partitions": (
        lambda df: df.where("id > 1").sortWithinPartitions(functions().desc("id")),
        True,
        True,
    ),
    "cached": (lambda df: df.selectExpr("id * 2 as id").cache(), True, True),
    "an rdd": (lambda df: pairs(df).toDF(["k", "v"]), True, True),
    "rand": (lambda df: df.selectExpr("rand()"), False, True),
    "filtered by rand": (lambda df: df.where("rand() > 0.5"), False, True),
    "uuid under a projection": (lambda df: df.selectExpr("uuid() u").selectExpr("u || 'x'", "u"), False, True),
    "rand that nobody reads": (lambda df: df.selectExpr("id", "rand()").selectExpr("id + 1"), True, True),
    "a nondeterministic function": (
        lambda df: df.select(functions().udf(lambda x: x, "long").asNondeterministic()("id")),
        False,
        True,
    ),
    "a cache of rand": (lambda df: df.selectExpr("rand() as r").cache(), False, True),
    "a subquery with rand": (lambda df: df.selectExpr("(select rand() from range(1)) as r"), False, True),
    "sampled": (lambda df: df.sample(0.5), False, True),
    "limited": (lambda df: df.limit(3), False, False),
    "limited under a projection": (lambda df: df.limit(3).selectExpr("id + 1"), False, False),
    "offset": (lambda df: df.offset(3), False, False),
    "a limit under a sort": (lambda df: df.limit(3).sort("id"), False, False),
    "a limit of sorted rows": (lambda df: df.sort("id").limit(3), True, False),
    "a limit of sorted and projected rows": (lambda df: df.sort("id").selectExpr("id + 1").limit(3), True, False),
    "sorted": (lambda df: df.sort("id"), True, False),
    "repartitioned": (lambda df: df.repartition(3), True, False),
    "repartitioned by key": (lambda df: df.repartition(3, "id").selectExpr("id + 1"), True, False),
    "aggregated": (lambda df: df.groupBy("id").count(), True, False),
    "distinct": (lambda df: df.selectExpr("id % 3").distinct(), True, False),
    "joined": (lambda df: df.join(df.toDF("id"), "id"), True, False),
    "a window": (lambda df: df.selectExpr("row_number() over (partition by id % 3 order by id)"), True, False),
    "a cache of a shuffle": (lambda df: df.repartition(3).cache(), True, False),
    "an rdd of a shuffle": (lambda df: pairs(df).groupByKey(2).map(lambda kv: (kv[0],)).toDF(["k"]), True, False),
    "a pipelined shuffle": (lambda df: fbs.repartition(df, 2, "id", mode="pipelined"), True, False),
    "what is made of one": (
        lambda df: fbs.repartition(df, 2, "id", mode="pipelined").where("id > 3").mapInArrow(same, "id long"),
        True,
        False,
    ),
    "an rdd of one": (
        lambda df: fbs.partition_by(pairs(df), 2, mode="pipelined").toDF(["k", "v"]),
        True,
        False,
    ),
    "groups in python": (lambda df: df.groupBy("id").applyInArrow(same, "id long"), True, False),
}


@pytest.mark.parametrize("name", FRAMES)
def test_what_a_plan_says(spark: Any, name: str) -> None:
    make, steady, ordered = FRAMES[name]
    df = make(spark.range(0, 20, 1, 2))
    try:
        assert is_deterministic(df) is steady
        assert order_is_fixed(df) is ordered
    finally:
        df.unpersist()


@pytest.mark.parametrize("sources", ["parquet", ""], ids=["v1", "v2"])
def test_files(spark: Any, sources: str, tmp_path: Any) -> None:
    spark.range(0, 20, 1, 2).write.parquet(f"{tmp_path}/p")
    spark.conf.set("spark.sql.sources.useV1SourceList", sources)
    try:
        df = spark.read.parquet(f"{tmp_path}/p").where("id > 3")
        assert is_deterministic(df)
        assert order_is_fixed(df)
    finally:
        spark.conf.unset("spark.sql.sources.useV1SourceList")


def test_what_cannot_be_known(spark: Any) -> None:
    stream = spark.readStream.format("rate").load()
    assert not is_deterministic(stream)
    assert not order_is_fixed(stream)

    class Connects:
        """Stands for a DataFrame of Spark Connect, which has no plan to look at."""

        __module__ = "pyspark.sql.connect.dataframe"

    assert not is_deterministic(Connects())
    assert not order_is_fixed(Connects())
