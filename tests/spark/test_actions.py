"""What people do with a result: look at a few rows, cache it, join it, shuffle it again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import stages
from conftest import in_time
from nights import nightly
from pyspark import accumulators
from pyspark.accumulators import AccumulatorParam
from pyspark.errors import PythonException
from pyspark.sql import Observation
from pyspark.sql import functions as F

import fastbuf_spark as fbs
from fastbuf_spark.driver.jobs import ProducersJob

pytestmark = pytest.mark.spark
MODES = ["pipelined", "blocking"]
SOON_S = 60.0  # half of the time after which what waits in vain gives up (stall_timeout)


def numbers(spark: Any, rows: int = 50_000, parts: int = 2) -> Any:
    return spark.range(0, rows, 1, parts).selectExpr("id % 17 as k", "id")


# Spark ends a worker whose rows it does not all want, and the next action waits for a new one to import everything: so
# `head` and `first`, which are `take`, are left out.
@nightly(mode="pipelined")
@pytest.mark.parametrize("mode", MODES)
def test_a_few_rows(spark: Any, mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = fbs.repartition(numbers(spark, 1_000), 2, "k", mode=mode)

    def look() -> None:
        made.show(3)
        assert "only showing top 3 rows" in capsys.readouterr().out
        assert made.limit(7).count() == 7
        assert len(made.limit(9).collect()) == 9
        assert not made.isEmpty()

    in_time(2 * SOON_S, look)
    assert made.count() == 1_000


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_a_few_rows_of_many(spark: Any, mode: str) -> None:
    made = fbs.repartition(numbers(spark, 1_000_000), 2, "k", mode=mode)
    assert len(in_time(SOON_S, lambda: made.take(5))) == 5
    assert made.count() == 1_000_000


def test_an_input_without_partitions_needs_no_producers(spark: Any) -> None:
    """Spark would plan a job for a tenth of a second, to run nothing."""
    sc = spark.sparkContext
    jobs = []
    for rows in (0, 10):
        group = f"rows {rows}"
        sc.setJobGroup(group, group)
        try:
            assert fbs.repartition(numbers(spark, rows), 2, "k", mode="pipelined").count() == rows
        finally:
            sc.setLocalProperty("spark.jobGroup.id", None)
        jobs.append(len(sc.statusTracker().getJobIdsForGroup(group)))
    assert jobs[0] == jobs[1] - 1


@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("rows", "parts"), [(1_000, 2), (1_000, 40), (0, 2)], ids=["plain", "folded", "none"])
def test_an_observation_of_the_input_is_told(spark: Any, mode: str, rows: int, parts: int) -> None:
    """Of an input without partitions no job was run, and who asked for its figures waited for ever."""
    seen, given = Observation(), Observation()
    counted = F.count("*").alias("rows")
    source = numbers(spark, rows, parts).observe(seen, counted)
    assert fbs.repartition(source, 2, "k", mode=mode).observe(given, counted).count() == rows
    assert in_time(SOON_S, lambda: given.get) == {"rows": rows}
    if rows or mode == "pipelined":  # else Spark leaves the empty input out of its plan, as with its own repartition
        assert in_time(SOON_S, lambda: seen.get) == {"rows": rows}


def test_an_action_while_the_workers_of_the_one_before_are_about_to_go(spark: Any) -> None:
    """Spark has given their slots on; the next run waits until they are not counted twice."""
    made = fbs.map_in_arrow(
        numbers(spark, 1_000_000), stages.lingering, "k long, id long", keys="k", num_partitions=2, mode="pipelined"
    )
    assert len(in_time(SOON_S, lambda: made.take(5))) == 5
    whole = fbs.repartition(numbers(spark, 50_000), 2, "k", mode="pipelined")
    assert in_time(SOON_S, whole.count) == 50_000


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_other_actions(spark: Any, mode: str) -> None:
    made = fbs.repartition(numbers(spark, 5_000), 2, "k", mode=mode)
    assert made.toArrow().num_rows == 5_000
    assert made.orderBy("id").limit(3).collect()[2].id == 2
    assert made.groupBy("k").count().count() == 17
    cached = made.cache()
    try:
        assert cached.count() == 5_000
        assert len(cached.take(3)) == 3
    finally:
        cached.unpersist()


@pytest.mark.parametrize("mode", MODES)
def test_a_function_after_that_stops_early(spark: Any, mode: str) -> None:
    df = numbers(spark, 200_000)
    made = fbs.map_in_arrow(df, stages.first_batch_only, df.schema, keys="k", num_partitions=2, mode=mode)
    assert in_time(SOON_S, made.count) == 2


def test_a_reader_that_stops_early_ends_a_pipelined_run(spark: Any) -> None:
    made = fbs.repartition(numbers(spark, 2_000_000), 2, "k", mode="pipelined")
    first = made.mapInArrow(stages.first_batch_only, "k long, id long")
    assert in_time(SOON_S, first.count) == 2


def test_a_reader_that_stops_early_in_one_partition_leaves_the_other_whole(spark: Any) -> None:
    def stops_in_one(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        for batch in batches:
            yield batch
            if context.partitionId() == 0:
                return

    from pyspark.sql import functions as F

    df = numbers(spark, 1_000_000)
    made = fbs.repartition(df, 2, "k", mode="pipelined").mapInArrow(stops_in_one, "k long, id long")
    want = df.repartition(2, "k").groupBy(F.spark_partition_id().alias("p")).count().where("p = 1").collect()
    got = in_time(SOON_S, made.groupBy(F.spark_partition_id().alias("p")).count().where("p = 1").collect)
    assert got == want, "the partition that was read to its end lacks nothing"


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_few_elements_of_an_rdd(spark: Any, mode: str) -> None:
    rdd = spark.sparkContext.parallelize([(i, i) for i in range(20_000)], 2)
    made = fbs.partition_by(rdd, 2, mode=mode)
    assert len(made.take(5)) == 5
    assert made.first() is not None
    assert not made.isEmpty()
    assert len(made.map(lambda pair: pair[1]).filter(lambda value: value % 2).take(3)) == 3
    assert made.take(0) == []
    assert made.count() == 20_000


@pytest.mark.parametrize("mode", MODES)
def test_a_result_is_not_taken_for_a_small_one_and_broadcast(spark: Any, mode: str) -> None:
    """Spark estimates it by what stands below; a broadcast collects it in the driver."""
    large = spark.range(0, 20_000_000, 1, 2).selectExpr("id % 17 as k", "id")
    made = fbs.repartition(large, 2, "k", mode=mode)
    joined = made.join(large.withColumnRenamed("id", "other"), "k")
    plan = joined._jdf.queryExecution().executedPlan().toString()
    assert "SortMergeJoin" in plan
    assert "Broadcast" not in plan
    few = made.join(spark.range(3).withColumnRenamed("id", "k"), "k")
    assert "BuildRight" in few._jdf.queryExecution().executedPlan().toString(), "the small side is broadcast as ever"


def test_shuffles_in_a_row(spark: Any, placed: Any) -> None:
    df = numbers(spark, 20_000)
    first = fbs.repartition(df, 1, "k", mode="pipelined")
    both = fbs.repartition(first, 2, "id", mode="pipelined")
    assert placed(both).equals(placed(df.repartition(2, "id")))


@nightly
def test_shuffles_in_a_row_with_too_few_slots_end_with_the_figures(spark: Any) -> None:
    first = fbs.repartition(numbers(spark), 2, "k", mode="pipelined")
    both = fbs.repartition(first, 2, "id", mode="pipelined")
    with pytest.raises(PythonException) as caught:  # Spark's own class for what a Python task raises
        in_time(SOON_S, both.count)
    for words in ("5 > 4 slots", "local[5]", "blocking"):
        assert words in str(caught.value)
    assert fbs.repartition(first, 2, "id").count() == 50_000, "auto leaves the first its slots"


def test_an_input_that_spark_calls_nondeterministic_is_read_once_and_whole(spark: Any) -> None:
    from pyspark.sql import functions as F

    df = numbers(spark, 5_000).withColumn("x", F.rand())
    made = fbs.repartition(df, 2, "k", mode="pipelined")
    assert made.count() == 5_000
    with pytest.raises(PythonException, match="not deterministic") as caught:
        in_time(SOON_S, lambda: made.take(3))
    assert "cache()" in str(caught.value)
    assert len(fbs.repartition(df, 2, "k").take(3)) == 3, "auto takes blocking"
    assert len(fbs.repartition(df.cache(), 1, "k").union(df).take(3)) == 3
    df.unpersist()


def test_two_actions_at_once_are_two_runs(spark: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    made = fbs.repartition(numbers(spark, 20_000), 1, "k", mode="pipelined")
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: made.count(), range(2))) == [20_000, 20_000]


def test_producers_have_the_properties_of_the_action(spark: Any) -> None:
    """Not those of the moment when the shuffle was planned."""
    names = ("spark.jobGroup.id", "spark.scheduler.pool", "mine")

    def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        list(batches)
        context: Any = TaskContext.get()
        tags = [tag for tag in context.getLocalProperty("spark.job.tags").split(",") if tag in ("early", "late")]
        yield pa.record_batch({"seen": [str([*map(context.getLocalProperty, names), *tags])]})

    sc = spark.sparkContext
    try:
        for moment in ("early", "late"):
            sc.setJobGroup(moment, "a test")
            sc.setLocalProperty("spark.scheduler.pool", moment)
            sc.setLocalProperty("mine", moment)
            sc.clearJobTags()
            sc.addJobTag(moment)
            if moment == "early":
                made = fbs.map_in_arrow(
                    numbers(spark, 10),
                    stages.identity,
                    "seen string",
                    keys="seen",
                    num_partitions=1,
                    before=seen,
                    before_schema="seen string",
                    mode="pipelined",
                )
        assert {row.seen for row in made.collect()} == {str(["late"] * 4)}
    finally:
        for name in (*names, "spark.job.description"):
            sc.setLocalProperty(name, None)
        sc.clearJobTags()


def test_accumulators_have_counted_all_when_the_action_ends(spark: Any) -> None:
    """As in Spark, though the producers are a job of their own."""
    seen = spark.sparkContext.accumulator(0)

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            seen.add(batch.num_rows)
            yield batch

    df = numbers(spark, 5_000)
    made = fbs.map_in_arrow(
        df, stages.identity, df.schema, keys="k", num_partitions=1, before=counted, before_schema=df.schema
    )
    for times in range(1, 6):
        assert made.count() == 5_000
        assert seen.value == times * 5_000


def test_accumulators_of_pyspark_itself_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It registers one for profiles with the first function of Python: each action would wait for its producers."""
    job = ProducersJob.__new__(ProducersJob)
    monkeypatch.setattr(accumulators, "_accumulatorRegistry", {-2: None})
    assert not job.accumulates()
    monkeypatch.setattr(accumulators, "_accumulatorRegistry", {-2: None, 0: None})
    assert job.accumulates()


class Words(AccumulatorParam[dict[str, int]]):
    """How often each word was seen: megabytes, which take Spark longer than the end of the last consumer."""

    def zero(self, value: dict[str, int]) -> dict[str, int]:
        return {}

    def addInPlace(self, value1: dict[str, int], value2: dict[str, int]) -> dict[str, int]:
        for word, times in value2.items():
            value1[word] = value1.get(word, 0) + times
        return value1


@pytest.mark.parametrize("where", ["one shuffle", "the first of two", "a stage of Spark's"])
def test_large_accumulators_have_counted_all_when_the_action_ends(spark: Any, where: str) -> None:
    seen = spark.sparkContext.accumulator({}, Words())

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            seen.add({f"word {n}": 1 for n in batch["id"].to_pylist()})
            yield batch

    for _ in range(2):
        df = numbers(spark, 400_000)
        if where == "a stage of Spark's":
            p = fbs.pipeline(df.mapInArrow(counted, df.schema))
        else:
            p = fbs.pipeline(df).map_in_arrow(counted, df.schema)
        for key in ("k", "id")[: 2 if where == "the first of two" else 1]:
            p = p.shuffle(key, partitions=1, mode="pipelined")
        before = sum(seen.value.values())
        assert p.count() == 400_000
        assert sum(seen.value.values()) - before == 400_000
