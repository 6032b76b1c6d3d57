"""Whatever happens to Spark's tasks and workers while rows are on their way: all the rows, or an error; and soon."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pyarrow as pa
import pytest
from conftest import failure, in_time
from nights import nightly

import fastbuf_spark as fbs

pytestmark = pytest.mark.spark
RUNS = 20 if os.environ.get("FASTBUF_LONG") else 1  # of each kind in each mode
ROWS = 300_000
SECONDS = 1.6  # that the input takes
SOON_S = 60.0
NAMED = ("killed", "vanished", "crashed", "Broken pipe", "Connection reset")


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(SECONDS * batch.num_rows / (ROWS // 2))  # rows must be on their way when something happens
        yield batch


def running_tasks(spark: Any) -> list[int]:
    sc = spark.sparkContext
    store, found = sc._jsc.sc().statusStore(), []
    for stage in sc.statusTracker().getActiveStageIds():
        tasks = store.taskList(stage, 0, 100)
        found += [task.taskId() for task in map(tasks.apply, range(tasks.size())) if task.status() == "RUNNING"]
    return found


def workers(spark: Any) -> list[psutil.Process]:
    """Spark's Python workers: what its daemon forked."""
    below = psutil.Process(spark.sparkContext._gateway.proc.pid).children(recursive=True)
    return [process for process in below if any(process.ppid() == other.pid for other in below)]


def kill_a_task(spark: Any, dice: random.Random, most: int = 1) -> None:
    for task in dice.sample(found := running_tasks(spark), min(len(found), most)):
        spark.sparkContext._jsc.sc().killTaskAttempt(task, True, "a test")


def kill_two_tasks(spark: Any, dice: random.Random) -> None:
    kill_a_task(spark, dice, 2)


def kill_a_worker(spark: Any, dice: random.Random) -> None:
    for worker in dice.sample(found := workers(spark), min(len(found), 1)):
        worker.kill()


def stop_a_worker_for_a_second(spark: Any, dice: random.Random) -> None:
    for worker in dice.sample(found := workers(spark), min(len(found), 1)):
        worker.suspend()
        time.sleep(1)  # the time that it is stopped for is what is tried here
        worker.resume()


@nightly(but_one="mode")
@nightly(hurt=kill_a_task)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["pipelined", "blocking"])
@pytest.mark.parametrize("hurt", [kill_a_task, kill_two_tasks, kill_a_worker, stop_a_worker_for_a_second])
def test_all_the_rows_or_an_error(spark: Any, mode: str, hurt: Callable[[Any, random.Random], None]) -> None:
    for seed in range(RUNS):
        dice = random.Random(f"{mode} {hurt.__name__} {seed}")
        run(spark, mode, hurt, dice)


def run(spark: Any, mode: str, hurt: Callable[[Any, random.Random], None], dice: random.Random) -> None:
    when, over = dice.uniform(0, SECONDS + 0.5), threading.Event()

    def later() -> None:
        if not over.wait(when):
            with contextlib.suppress(psutil.Error):  # it has gone by itself
                hurt(spark, dice)

    df = spark.range(0, ROWS, 1, 2).selectExpr("id % 17 as k", "id")
    made = fbs.repartition(df.mapInArrow(slow, df.schema), 2, "k", mode=mode)
    thread = threading.Thread(target=later)
    thread.start()
    found: list[Any] = []
    try:
        text = failure(lambda: found.extend(in_time(SOON_S, made.selectExpr("count(*)", "sum(id)").collect)))
    finally:
        over.set()
        thread.join()
    if found:
        assert tuple(found[0]) == (ROWS, ROWS * (ROWS - 1) // 2), f"after {when:.2f} s"
    else:
        assert any(words in text for words in NAMED), f"after {when:.2f} s: {text}"
