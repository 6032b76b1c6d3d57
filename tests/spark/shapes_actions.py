"""Shapes: looking at a frame, keeping it, writing it, handing it to Python, and shuffling it again."""

from __future__ import annotations

import contextlib
import io
import itertools
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from shapes_base import ROWS, SIX, Shuffle, Table, numbers, placed, rows, some, told

TABLE = Table()
shape = TABLE.shape


@shape(cheap=True, chooses=True)
def collect(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return placed(made(numbers(spark)))


@shape(cheap=True)
def count_and_sum(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    frame = made(numbers(spark))
    return frame.count(), rows(frame.selectExpr("count(*)", "sum(id)"))


@shape(cheap=True, chooses=True)
def take_head_first_empty(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    frame = made(numbers(spark))
    return some(frame.take(5)), some(frame.head(3)), some([frame.first()]), frame.isEmpty()


@shape(cheap=True)
def take_all(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return told(made(numbers(spark)).take(ROWS + 1))


@shape(cheap=True)
def limit_count(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return made(numbers(spark)).limit(7).count()


@shape(cheap=True)
def limit_collect(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return some(made(numbers(spark)).limit(9).collect())


@shape(cheap=True)
def limit_above_filter(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    frame = made(numbers(spark)).where("id >= 1990")  # fewer than the limit: every partition has to be read
    return told(frame.limit(50).collect()), some(made(numbers(spark)).where("id % 2 = 0").limit(5).collect())


@shape(cheap=True)
def tail(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return some(made(numbers(spark)).tail(4))


@shape(cheap=True)
def show(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        made(numbers(spark)).show(3)
    lines = out.getvalue().splitlines()
    # How wide a column is depends on the rows that Spark chose
    return len(lines), "only showing top 3 rows" in lines, [column.strip() for column in lines[1].split("|")]


@shape(cheap=True)
def sample(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    """Rows in a known order are sampled alike; of others, as many of each partition."""
    ordered = made(numbers(spark)).sortWithinPartitions("id").sample(fraction=0.3, seed=7)
    return placed(ordered), made(numbers(spark)).sample(fraction=0.3, seed=7).count()


@shape(cheap=True)
def local_iterator(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return told(made(numbers(spark)).toLocalIterator())


@shape(cheap=True)
def local_iterator_ahead(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return told(made(numbers(spark)).toLocalIterator(prefetchPartitions=True))


@shape(cheap=True)
def local_iterator_broken_off(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    frame = made(numbers(spark))
    found = some(itertools.islice(frame.toLocalIterator(), 3))
    return found, frame.count()


@shape(cheap=True)
def coalesce_one(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return placed(made(numbers(spark)).coalesce(1))


@shape()
def zip_of_itself(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    """The same partition is computed twice in one task; the order of rows within it is nobody's promise."""
    left = made(numbers(spark)).rdd
    both = left.zip(left.map(lambda row: row.id)).collect()
    return told(row for row, _ in both), sorted(number for _, number in both)


@shape(cheap=True)
def zip_with_index(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    """It counts the rows of all partitions but the last first."""
    found = made(numbers(spark)).rdd.zipWithIndex().collect()
    return told(row for row, _ in found), [index for _, index in found]


@shape()
def uncached_twice(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    frame = made(numbers(spark))
    return placed(frame), placed(frame)


def cached(level: str) -> Any:
    def run(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
        from pyspark import StorageLevel

        frame = made(numbers(spark)).persist(getattr(StorageLevel, level))
        try:
            return (
                some(frame.take(3)),
                frame.count(),
                placed(frame),
                rows(frame.union(frame)),
                told(frame.coalesce(1).collect()),
            )
        finally:
            frame.unpersist(blocking=True)

    return run


for level in ("MEMORY_ONLY", "DISK_ONLY"):
    TABLE.add(cached(level), f"cached_{level.lower()}")


@shape()
def unpersist_in_the_middle(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    frame = made(numbers(spark)).cache()
    frame.count()
    reader = frame.toLocalIterator()
    found = list(itertools.islice(reader, 3))
    frame.unpersist(blocking=True)
    return told([*found, *reader]), frame.count()


@shape()
def checkpoint(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    spark.sparkContext.setCheckpointDir(str(tmp / "checkpoints"))
    frame = made(numbers(spark)).checkpoint()
    return placed(frame), some(frame.take(3)), rows(frame.union(frame))


@shape()
def local_checkpoint(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    frame = made(numbers(spark)).localCheckpoint()
    lazy = made(numbers(spark)).localCheckpoint(eager=False)
    return placed(frame), rows(lazy), some(lazy.take(3))


@shape(chooses=True)
def shuffle_of_a_cached_frame(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    frame = made(numbers(spark)).cache()
    try:
        return frame.count(), placed(made(frame, "id"))
    finally:
        frame.unpersist(blocking=True)


@shape(master=SIX)
def shuffle_of_a_frame_about_to_be_cached(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    frame = made(numbers(spark)).cache()
    try:
        return placed(made(frame, "id"))
    finally:
        frame.unpersist(blocking=True)


@shape()
def shuffled_again_by_spark(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return placed(made(numbers(spark)).repartition(3, "id"))


@shape(chooses=True)
def shuffled_again(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return placed(made(made(numbers(spark), parts=1), "id", parts=2))


@shape(parts=1, chooses=True)
def three_deep(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return placed(made(made(made(numbers(spark)), "id"), "u"))


@shape(cheap=True)
def to_arrow(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    table = made(numbers(spark)).toArrow()
    return table.schema, table.sort_by("id").to_pylist()


@shape(cheap=True)
def to_pandas(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return made(numbers(spark)).toPandas().sort_values("id").to_dict("list")


@shape()
def written(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    folder = tempfile.mkdtemp(dir=tmp)
    made(numbers(spark)).write.mode("overwrite").parquet(folder)
    return len(list(Path(folder).glob("*.parquet"))), rows(spark.read.parquet(folder))


@shape()
def written_in_partitions(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    folder = tempfile.mkdtemp(dir=tmp)
    made(numbers(spark)).write.mode("overwrite").partitionBy("u").parquet(folder)
    return sorted(p.parent.name for p in Path(folder).rglob("*.parquet")), rows(spark.read.parquet(folder))


@shape(cheap=True)
def for_each_partition(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    seen = spark.sparkContext.accumulator(0)
    called = spark.sparkContext.accumulator(0)

    def look(part: Any) -> None:
        called.add(1)
        seen.add(sum(row.id for row in part))

    made(numbers(spark)).foreachPartition(look)
    return seen.value, called.value


def halves(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"id": batch["id"], "x": pc.multiply(batch["x"], 0.5)})


def halves_of_frames(frames: Iterator[Any]) -> Iterator[Any]:
    for frame in frames:
        yield frame[["id", "x"]].assign(x=frame.x / 2)


def largest(frame: Any) -> Any:
    return frame[["k", "id"]].groupby("k", as_index=False).max()


@shape(cheap=True)
def map_in_arrow(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return placed(made(numbers(spark)).mapInArrow(halves, "id long, x double"))


@shape()
def map_in_pandas(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return placed(made(numbers(spark)).mapInPandas(halves_of_frames, "id long, x double"))


@shape()
def apply_in_pandas(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return rows(made(numbers(spark)).groupBy("k").applyInPandas(largest, "k long, id long"))


@shape(cheap=True)
def python_udf(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    from pyspark.sql import functions as F

    twice = F.udf(lambda number: number * 2, "long")
    return placed(made(numbers(spark)).select("id", twice("id").alias("twice")))


@shape(cheap=True)
def columns(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    from pyspark.sql import functions as F

    frame = made(numbers(spark)).withColumn("y", F.length("u"))
    return placed(frame.selectExpr("id", "x + y as z", "u").where("id % 3 = 1").drop("u"))


@shape(cheap=True)
def exploded(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return placed(made(numbers(spark)).selectExpr("id", "explode(array(k, id)) as e").where("e % 2 = 0"))


def at_once(spark: Any, first: Any, second: Any) -> list[Any]:
    """Two actions in two threads; both in the job group of this one."""
    from pyspark import inheritable_thread_target

    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(inheritable_thread_target(spark)(action)) for action in (first, second)]
        return [each.result() for each in done]


@shape(master=SIX)
def two_threads_at_once(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    one, other = made(numbers(spark)), made(numbers(spark), "id")
    return at_once(spark, lambda: placed(one), lambda: placed(other))


@shape(master=SIX)
def one_frame_in_two_actions_at_once(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    frame = made(numbers(spark))
    return at_once(spark, lambda: placed(frame), lambda: rows(frame.groupBy("u").count()))


@shape(conf={"spark.sql.adaptive.enabled": "false"})
def all_without_aqe(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    frame = made(numbers(spark))
    return placed(frame), rows(frame.groupBy("u").count()), some(frame.take(3)), told(frame.coalesce(1).collect())


@shape()
def forty_small_inputs(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return placed(made(numbers(spark, parts=40)))


@shape(chooses=True, master=SIX)
def empty(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    frame = made(numbers(spark).where("id < 0"))
    return (
        placed(frame),
        frame.count(),
        frame.take(2),
        frame.isEmpty(),
        rows(frame.union(frame)),
        list(frame.toLocalIterator()),
    )


@shape(parts=1, cheap=True)
def one_partition(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return placed(made(numbers(spark)))


@shape(
    parts=100, modes=("blocking", "auto"), chooses=True
)  # a hundred consumers at once need more slots than there are
def a_hundred_partitions(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return placed(made(numbers(spark)))
