"""What fails says so at once, with the cause; nothing hangs, and the next job works."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import probes
import pyarrow as pa
import pytest
import stages
from conftest import in_time

import fastbuf_spark as fbs

pytestmark = pytest.mark.spark
MODES = ["pipelined", "fused", "blocking"]
SOON_S = 15.0
WORDS = "the plane has no wings"


def numbers(spark: Any, rows: int = 60_000, parts: int = 2) -> Any:
    return spark.range(0, rows, 1, parts).selectExpr("id % 17 as k", "id")


def shuffled(df: Any, mode: str, func: Any = stages.identity, before: Any = None, **more: Any) -> Any:
    schema = df.schema
    return fbs.map_in_arrow(
        df,
        func,
        schema,
        keys="k",
        num_partitions=2,
        before=before,
        before_schema=schema if before else None,
        mode=mode,
        **more,
    )


def fails_soon(action: Callable[[], Any], *words: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own classes differ by version
        in_time(SOON_S, action)
    for word in words:
        assert word in str(caught.value)


def still_works(spark: Any, mode: str) -> None:
    assert in_time(SOON_S, shuffled(numbers(spark, 1_000), mode).count) == 1_000


@pytest.fixture(autouse=True)
def warm(spark: Any) -> None:
    """The first Python job of a session starts the workers; what is timed here is how soon an error arrives."""
    spark.range(0, 4, 1, 4).mapInArrow(stages.identity, "id long").count()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("after", [0, 2])
def test_a_function_before_that_fails(spark: Any, mode: str, after: int) -> None:
    failing = stages.Failing(WORDS, after)
    fails_soon(shuffled(numbers(spark), mode, before=failing).count, WORDS, "Traceback", "stages.py")
    still_works(spark, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("partition", [None, 1])
def test_a_function_after_that_fails(spark: Any, mode: str, partition: int | None) -> None:
    failing = stages.Failing(WORDS, 1, partition)
    fails_soon(shuffled(numbers(spark), mode, func=failing).count, WORDS, "Traceback", "stages.py")
    still_works(spark, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_function_of_an_rdd_that_fails(spark: Any, mode: str) -> None:
    def place(key: int) -> int:
        if key == 900:
            raise ValueError(WORDS)
        return key

    rdd = spark.sparkContext.parallelize([(i, i) for i in range(1_000)], 2)
    fails_soon(fbs.partition_by(rdd, 2, place, mode=mode).count, WORDS)
    still_works(spark, mode)


@pytest.mark.parametrize("mode", ["pipelined", "fused"])
def test_a_batch_of_another_schema_names_the_columns(spark: Any, mode: str) -> None:
    def other(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.rename_columns(["k", "identity"])

    fails_soon(shuffled(numbers(spark), mode, before=other).count, "['k', 'identity']", "['k', 'id']")


@pytest.mark.parametrize("mode", ["pipelined", "fused"])
@pytest.mark.parametrize("side", ["before", "func"])
def test_a_worker_that_is_killed(spark: Any, mode: str, side: str) -> None:
    def dies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    fails_soon(shuffled(numbers(spark), mode, **{side: dies}).count)  # type: ignore[arg-type]
    still_works(spark, mode)


def test_two_pipelined_frames_joined_with_too_few_slots(spark: Any) -> None:
    left, right = shuffled(numbers(spark), "pipelined"), shuffled(numbers(spark), "pipelined")
    joined = left.join(right.withColumnRenamed("id", "other").hint("merge"), "k")
    fails_soon(joined.count, "5 > 4 slots", "local[5]", "blocking")
    still_works(spark, "pipelined")


def test_two_pipelined_frames_joined_with_enough_slots(spark: Any) -> None:
    left = fbs.repartition(numbers(spark, 1_000), 1, "k", mode="pipelined")
    right = fbs.repartition(numbers(spark, 1_000), 1, "k", mode="pipelined").groupBy("k").count()
    assert in_time(40, left.join(right, "k").count) == 1_000


def test_a_cancelled_action_ends_the_producers_too(spark: Any) -> None:
    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(0.2)  # stands for work: there must be something to cancel
            yield batch

    made = shuffled(numbers(spark, 2_000_000), "pipelined", before=slow)
    errors: list[BaseException] = []

    def work() -> None:
        spark.sparkContext.setJobGroup("to cancel", "a test", interruptOnCancel=True)
        try:
            made.count()
        except Exception as error:
            errors.append(error)

    from pyspark import InheritableThread

    thread = InheritableThread(target=work)
    thread.start()
    deadline = time.monotonic() + SOON_S
    while not any(run.tasks for run in fbs.progress()):
        assert time.monotonic() < deadline, "the producers did not start"
        time.sleep(0.05)  # Spark tells nobody that a task has started
    spark.sparkContext.cancelJobGroup("to cancel")
    thread.join(SOON_S)
    assert not thread.is_alive()
    assert errors
    still_works(spark, "pipelined")


def test_a_slow_consumer_holds_no_more_than_the_cap(spark: Any) -> None:
    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number < 10:
                time.sleep(0.1)  # slow on purpose: the producers must wait for it
            yield batch

    conf = fbs.ShuffleConf(memory_bytes=1 << 20, segment_size=8 << 10)
    made = shuffled(numbers(spark, 1_000_000), "pipelined", func=slow, conf=conf)
    assert made.count() == 1_000_000
    run = fbs.last_run()
    assert run is not None
    assert 0 < run.peak_segments <= conf.segments
    assert run.credit_wait_s > 0.2


def test_many_runs_leave_nothing_behind(spark: Any) -> None:
    made = shuffled(numbers(spark, 2_000), "pipelined")

    def driver() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    def workers() -> list[tuple[int, int, int]]:
        def look(_: Any) -> Iterator[tuple[int, int, int]]:
            threads, files = os.listdir("/proc/self/task"), os.listdir("/proc/self/fd")
            yield os.getpid(), len(threads), len(files)

        return spark.sparkContext.parallelize(range(4), 4).mapPartitions(look).collect()

    for _ in range(3):
        made.count()
    before, shm = driver(), probes.shared_files()
    first = {pid: (threads, files) for pid, threads, files in workers()}
    for _ in range(12):
        made.count()
    after = driver()
    assert after[0] <= before[0] + 4, f"files of the driver: {before[0]}, then {after[0]}"
    assert after[1] <= before[1] + 2, f"threads of the driver: {before[1]}, then {after[1]}"
    assert probes.shared_files() <= shm
    for pid, threads, files in workers():
        if pid in first:
            assert threads <= first[pid][0] + 1, f"threads of worker {pid}: {first[pid][0]}, then {threads}"
            assert files <= first[pid][1] + 1, f"files of worker {pid}: {first[pid][1]}, then {files}"
