"""What fails says so at once, with the cause; nothing hangs, and the next job works."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import probes
import pyarrow as pa
import pytest
import stages
from conftest import driver, driver_since, failure, frames_in_a_row, in_the_end, in_time, no_run_left, told
from nights import nightly
from pyspark import InheritableThread

import fastbuf_spark as fbs
from fastbuf.errors import PeerLost, StallTimeout
from fastbuf_spark.driver import slots
from fastbuf_spark.worker.control import REASON_WAIT_S

pytestmark = pytest.mark.spark
MODES = ["pipelined", "blocking"]
SOON_S = 60.0  # half of the time after which what waits in vain gives up (stall_timeout)
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
    text = in_time(SOON_S, lambda: failure(action))
    assert text, "it did not fail"
    for word in words:
        assert word in text
    assert frames_in_a_row(text) <= 1


def still_works(spark: Any, mode: str) -> None:
    assert in_time(1.5 * SOON_S, shuffled(numbers(spark, 1_000), mode).count) == 1_000  # new workers import everything


@pytest.fixture(autouse=True)
def warm(spark: Any) -> None:
    """The first Python job of a session starts the workers; what is timed here is how soon an error arrives."""
    spark.range(0, 4, 1, 4).mapInArrow(stages.identity, "id long").count()


@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("after", [0, 2])
def test_a_function_before_that_fails(spark: Any, mode: str, after: int) -> None:
    failing = stages.Failing(WORDS, after)
    fails_soon(shuffled(numbers(spark), mode, before=failing).count, WORDS, "Traceback", "stages.py")
    still_works(spark, mode)


@nightly(but_one="mode")
def interrupted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What Spark is told to do with the tasks of a job of which one has failed."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        told = context.getLocalProperty("spark.job.interruptOnCancel")
        yield pa.record_batch({"k": [0] * batch.num_rows, "told": [told] * batch.num_rows})


def test_producers_of_which_one_fails_do_not_end_the_consumers_workers(spark: Any) -> None:
    """Spark takes an interrupt that meets it as it makes a Python worker for a lost daemon, and ends all workers: one
    of eleven runs failed by "Python worker exited unexpectedly" instead of the function's own error.
    """
    schema = "k long, told string"
    assert {row.told for row in numbers(spark, 100).mapInArrow(interrupted, schema).collect()} == {"true"}
    made = fbs.pipeline(numbers(spark, 100)).map_in_arrow(interrupted, schema)
    made = made.shuffle("k", partitions=2, mode="pipelined")
    assert {row.told for row in made.collect()} == {"false"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("partition", [None, 1])
def test_a_function_after_that_fails(spark: Any, mode: str, partition: int | None) -> None:
    failing = stages.Failing(WORDS, 1, partition)
    fails_soon(shuffled(numbers(spark), mode, func=failing).count, WORDS, "Traceback", "stages.py")
    still_works(spark, mode)


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_a_function_of_an_rdd_that_fails(spark: Any, mode: str) -> None:
    def place(key: int) -> int:
        if key == 900:
            raise ValueError(WORDS)
        return key

    rdd = spark.sparkContext.parallelize([(i, i) for i in range(1_000)], 2)
    fails_soon(fbs.partition_by(rdd, 2, place, mode=mode).count, WORDS)
    still_works(spark, mode)


def test_a_batch_of_another_schema_names_the_columns(spark: Any) -> None:
    def other(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.append_column("identity", batch["id"])

    fails_soon(shuffled(numbers(spark), "pipelined", before=other).count, "['k', 'id', 'identity']", "['k', 'id']")


@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("side", ["before", "func"])
def test_a_function_that_gives_nothing_is_named(spark: Any, mode: str, side: str) -> None:
    def forgot(batches: Iterator[pa.RecordBatch]) -> Any:
        return None

    said = "must give an iterator of pyarrow.RecordBatch"
    job = shuffled(numbers(spark), mode, **{side: forgot})
    fails_soon(job.count, "the function 'forgot' (", "test_failures.py:", f") gave None: it {said}")


@nightly(but_one="error")
@pytest.mark.parametrize("side", ["before", "func", "between"])
@pytest.mark.parametrize("error", [StallTimeout, PeerLost])
def test_a_function_that_raises_an_error_of_fastbuf_fails_as_soon_as_with_any_other(
    spark: Any, side: str, error: type[Exception]
) -> None:
    def uses_an_exchange(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        raise error(WORDS)

    df = numbers(spark)
    if side == "between":
        steps = fbs.pipeline(df).shuffle("k", partitions=1, mode="pipelined").map_in_arrow(uses_an_exchange, df.schema)
        job = steps.shuffle("k", partitions=1, mode="pipelined").to_df()
    else:
        job = shuffled(df, "pipelined", **{side: uses_an_exchange})
    text = in_time(REASON_WAIT_S / 2, lambda: failure(job.count))
    assert f"{error.__name__}: {WORDS}" in text
    assert "in uses_an_exchange" in text


def test_a_function_that_exits_says_so(spark: Any) -> None:
    def exits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        sys.exit(WORDS)

    text = in_time(SOON_S, lambda: failure(shuffled(numbers(spark), "pipelined", before=exits).count))
    assert f"SystemExit: {WORDS}" in text
    assert "vanished" not in text
    still_works(spark, "pipelined")


@pytest.mark.parametrize("side", ["before", "func"])
def test_a_worker_that_is_killed(spark: Any, side: str) -> None:
    def dies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    fails_soon(shuffled(numbers(spark), "pipelined", **{side: dies}).count)
    still_works(spark, "pipelined")


@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["python", "jvm"])
def test_an_input_that_fails_is_no_end_of_it(spark: Any, mode: str, where: str) -> None:
    """Spark hangs up then: what the user sees is the cause, and never the rows that came before."""
    df = numbers(spark, 400_000)
    if where == "python":
        df = df.mapInArrow(stages.Failing(WORDS, 15, 1), df.schema)
    else:
        df = df.selectExpr("k", f"if(id = 390000, raise_error('{WORDS}'), id) as id")
    fails_soon(shuffled(df, mode).count, WORDS)
    still_works(spark, mode)


def test_a_function_that_catches_what_its_input_raises_does_not_make_a_result_of_it(spark: Any) -> None:
    def forgiving(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with contextlib.suppress(Exception):
            yield from batches

    failing = stages.Failing(WORDS, 15, 1)
    fails_soon(shuffled(numbers(spark, 400_000), "pipelined", before=failing, func=forgiving).count, WORDS)
    still_works(spark, "pipelined")


def test_a_task_finds_the_stream_that_it_is_fed_by(spark: Any) -> None:
    """PySpark has no name for it: if this fails, a new version keeps it elsewhere, and the next test cannot hold."""

    def found(_: Any) -> Iterator[bool]:
        from fastbuf_spark.worker.task_input import TaskInput

        yield TaskInput.of_task().has_stream

    def as_batch(source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"found": pa.array(list(found(source)))})

    assert spark.range(0, 2, 1, 2).mapInArrow(as_batch, "found boolean").distinct().collect() == [(True,)]
    assert spark.sparkContext.parallelize(range(2), 2).mapPartitions(found).collect() == [True, True]


@nightly(after=[3, 30])
@pytest.mark.parametrize("after", [3, 10, 30])
def test_a_task_that_spark_kills_is_not_taken_for_one_that_has_sent_all(spark: Any, after: int, tmp_path: Path) -> None:
    """Spark hangs up, mostly between two batches, and that reads like the end of the input."""

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        for number, batch in enumerate(batches):
            if number == after and context.partitionId() == 1:
                (tmp_path / str(context.taskAttemptId())).touch()
            time.sleep(0.01)  # so that there is an input to cut off
            yield batch

    def kill() -> None:
        while not (found := list(tmp_path.iterdir())):
            time.sleep(0.01)  # until a task has come so far
        spark.sparkContext._jsc.sc().killTaskAttempt(int(found[0].name), True, "a test")

    rows = 1_000_000
    df = numbers(spark, rows)
    found: list[int] = []
    killer = InheritableThread(target=kill)
    killer.start()
    text = in_time(
        SOON_S, lambda: failure(lambda: found.append(shuffled(df.mapInArrow(slow, df.schema), "pipelined").count()))
    )
    killer.join(SOON_S)
    # the last of these is what Spark says where it has ended the worker before it reads that the task is killed
    named = any(word in text for word in ("killed", "vanished", "Python worker exited unexpectedly"))
    assert found == [rows] or named, text
    still_works(spark, "pipelined")


def test_two_pipelined_frames_joined_with_too_few_slots(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "LINGER_S", 2.0)  # test_in_a_row waits for it as it is
    left, right = shuffled(numbers(spark), "pipelined"), shuffled(numbers(spark), "pipelined")
    joined = left.join(right.withColumnRenamed("id", "other").hint("merge"), "k")
    for _ in range(5):
        if text := in_time(SOON_S, lambda: failure(joined.count)):
            break
        no_run_left()  # Spark read one after the other, which is as well
    for word in ("5 > 4 slots", "local[5]", "blocking"):
        assert word in text
    monkeypatch.undo()
    still_works(spark, "pipelined")


def test_two_pipelined_frames_joined_with_enough_slots(spark: Any) -> None:
    left = fbs.repartition(numbers(spark, 1_000), 1, "k", mode="pipelined")
    right = fbs.repartition(numbers(spark, 1_000), 1, "k", mode="pipelined").groupBy("k").count()
    assert in_time(SOON_S, left.join(right, "k").count) == 1_000


def test_a_cancelled_action_ends_the_producers_too(spark: Any) -> None:
    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(0.2)  # stands for work: there must be something to cancel
            yield batch

    # For longer than anything below waits
    made = shuffled(numbers(spark, 20_000_000), "pipelined", before=slow)
    errors: list[BaseException] = []

    def work() -> None:
        spark.sparkContext.setJobGroup("to cancel", "a test", interruptOnCancel=True)
        try:
            made.count()
        except Exception as error:
            errors.append(error)

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
        rows = 0
        for batch in batches:
            if rows < 200_000:
                time.sleep(batch.num_rows * 1e-5)  # slow on purpose: the producers must wait for it
            rows += batch.num_rows
            yield batch

    conf = fbs.ShuffleConf(memory_bytes=1 << 20, segment_size=8 << 10)
    made = shuffled(numbers(spark, 1_000_000), "pipelined", func=slow, conf=conf)
    assert made.count() == 1_000_000
    run = told(lambda run: (run.outcome, run.records_received), ("ok", 1_000_000))
    assert 0 < run.peak_segments <= conf.segments
    assert run.credit_wait_s > 0.2


def test_many_runs_leave_nothing_behind(spark: Any) -> None:
    made = shuffled(numbers(spark, 2_000), "pipelined")

    def workers(most: dict[int, tuple[int, int]]) -> list[tuple[int, int, int]]:
        def look(_: Any) -> Iterator[tuple[int, int, int]]:
            end = time.monotonic() + 20
            while True:
                threads, files = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
                allowed = most.get(os.getpid(), (threads, files))
                if (threads <= allowed[0] and files <= allowed[1]) or time.monotonic() > end:
                    break
                time.sleep(0.01)  # the kernel lists a thread for a moment after it was joined
            yield os.getpid(), threads, files

        return spark.sparkContext.parallelize(range(4), 4).mapPartitions(look).collect()

    for _ in range(3):
        made.count()
    no_run_left()
    before, shm = driver(), probes.shared_files()
    most = {pid: (threads + 1, files + 1) for pid, threads, files in workers({})}
    for _ in range(12):
        made.count()
    driver_since(before, files=4, threads=2)
    assert in_the_end(probes.shared_files, lambda found: found <= shm) <= shm
    for pid, threads, files in workers(most):
        if pid in most:
            assert threads <= most[pid][0], f"threads of worker {pid}: at most {most[pid][0]}, then {threads}"
            assert files <= most[pid][1], f"files of worker {pid}: at most {most[pid][1]}, then {files}"
