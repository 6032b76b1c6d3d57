"""What a run tells of itself while it runs."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from nights import nightly
from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread
from pyspark.errors import PythonException

import fastbuf_spark as fbs
from fastbuf.monitor.figures import MOST_BYTES
from fastbuf_spark.protocol import Watch
from fastbuf_spark.spec import plain

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]
SOON_S = 30.0


class Slow:
    """Takes its time for each batch of the partition that has this key, and none for the others."""

    def __init__(self, key: int, seconds: float) -> None:
        self.key = key
        self.seconds = seconds

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if self.key in batch.column("k").to_pylist():
                time.sleep(self.seconds)
            yield batch


def while_it_runs(action: Callable[[], Any], look: Callable[[fbs.RunSummary], bool]) -> bool:
    """Whether a look at the run was satisfied before the action ended."""
    worker = InheritableThread(target=action)
    worker.start()
    found, end = False, time.monotonic() + SOON_S
    while worker.is_alive() and not found and time.monotonic() < end:
        found = any(look(run) for run in fbs.progress())
        time.sleep(0.05)
    worker.join(SOON_S)
    assert not worker.is_alive()
    return found


def shuffled(spark: Any, conf: fbs.ShuffleConf, seconds: float = 0.3) -> Any:
    """Two partitions: keys 0 and 1 are in one each; whoever has key 1 takes its time."""
    keys = [row.id for row in spark.range(0, 20, 1, 1).where("pmod(hash(id), 2) = 1").collect()]
    df = spark.range(0, 100_000, 1, 2).selectExpr("id % 20 as k", "repeat('x', 100) as text")
    slow = Slow(keys[0], seconds)
    return fbs.map_in_arrow(df, slow, df.schema, keys="k", num_partitions=2, mode="pipelined", conf=conf)


class InHalves:
    """Passes half of a task's rows, then the rest, and goes on each time when the driver has seen other figures.

    Parameters
    ----------
    folder
        Where the driver makes a file of the name of how many figures it has seen.
    batches
        Half of what a task has: of batches, or of records.
    """

    def __init__(self, folder: Path, half: int) -> None:
        self.folder = folder
        self.half = half

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        for number, item in enumerate(items):
            if number == self.half:
                self.wait(1)
            yield item
        self.wait(2)

    def wait(self, figures: int) -> None:
        end = time.monotonic() + SOON_S
        while not (self.folder / str(figures)).exists() and time.monotonic() < end:
            time.sleep(0.01)  # between two looks


def records_while_it_runs(action: Callable[[], Any], side: str, folder: Path) -> list[int]:
    """What the run's tasks of one side had moved in all, each time that it was another figure; runs under way alone."""
    seen: list[int] = []
    live: list[str] = []

    def look(run: fbs.RunSummary) -> bool:
        told = list(dict(getattr(run, side)).values())
        if any("state" in figures and figures["records"] and figures["bytes"] for figures in told):
            records = sum(figures["records"] for figures in told)
            seen.extend([records] if records not in seen else [])
            live.append(run.outcome)
            (folder / str(len(seen))).touch()
        return False

    while_it_runs(action, look)
    assert "running" in live
    return seen


def at_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


@pytest.mark.parametrize("side", ["producers", "consumers"])
def test_figures_of_a_blocking_exchange_grow_while_it_runs(spark: Any, side: str, tmp_path: Path) -> None:
    """Live with what it has: each side of it, while that side runs; and at the end all is told."""
    in_halves = InHalves(tmp_path, 5 if side == "producers" else 25)  # Spark gives batches of 10,000 rows
    map_side, reduce_side = (in_halves, at_once) if side == "producers" else (at_once, in_halves)
    df = spark.range(0, 200_000, 1, 2).selectExpr("id % 20 as k", "repeat('x', 100) as text")
    conf = fbs.ShuffleConf(batch_rows=2_000)
    made = fbs.map_in_arrow(
        df, reduce_side, df.schema, keys="k", num_partitions=2, before=map_side, before_schema=df.schema,
        mode="blocking", conf=conf,
    )  # fmt: skip
    seen = records_while_it_runs(made.count, side, tmp_path)
    assert len(seen) >= 2, seen
    assert seen == sorted(seen)
    run = fbs.last_run()
    assert run is not None
    assert (run.mode, run.outcome, run.tasks) == ("blocking", "ok", 2)
    assert (run.records_sent, run.records_received) == (200_000, 200_000)
    assert run.seconds > 0
    assert run.producers_done == 2


def raises(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        raise ValueError("not this row")
    yield from ()


def test_a_blocking_run_that_failed_says_so(spark: Any) -> None:
    df = spark.range(0, 1_000, 1, 2).selectExpr("id % 20 as k")
    made = fbs.map_in_arrow(df, raises, df.schema, keys="k", num_partitions=2, mode="blocking")
    with pytest.raises(PythonException, match="not this row"):
        made.count()
    run = fbs.last_run()
    assert run is not None
    assert (run.mode, run.outcome, run.records_sent) == ("blocking", "aborted", 1_000)
    assert run.reason.startswith("ValueError: not this row\nTraceback")
    assert fbs.repartition(df, 2, "k", mode="blocking").count() == 1_000
    assert fbs.last_run().outcome == "ok"  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ["pipelined", "blocking"])
def test_a_run_whose_worker_died_says_so(spark: Any, mode: str) -> None:
    """As one that had too little memory: no error of Python's is told, only Spark knows."""

    def dies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(1.5)  # a blocking run hears of tasks that take longer than a second
            os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    df = spark.range(0, 1_000, 1, 2).selectExpr("id % 20 as k")
    with pytest.raises(Py4JJavaError, match="crashed"):
        fbs.map_in_arrow(df, dies, df.schema, keys="k", num_partitions=2, mode=mode).count()
    run = fbs.last_run()
    assert run is not None
    assert (run.mode, run.outcome) == (mode, "aborted")
    assert "vanished; Spark says:" in run.reason
    assert "crashed" in run.reason


@nightly(but_one="fused")
@pytest.mark.parametrize("fused", [False, True])
def test_figures_of_records_grow_while_they_are_shuffled(spark: Any, fused: bool, tmp_path: Path) -> None:
    """An RDD's blocking exchange, and a stage whose tasks send and receive at once."""
    sc = spark.sparkContext
    pairs = sc.parallelize(range(4_000), 2).mapPartitions(InHalves(tmp_path, 1_000)).map(lambda i: (i % 7, "x" * 2_000))
    stage = pairs.barrier().mapPartitions(fbs.ShuffleStage(2)) if fused else fbs.partition_by(pairs, 2, mode="blocking")
    seen = records_while_it_runs(stage.count, "producers", tmp_path)
    assert len(seen) >= 2, seen
    run = fbs.last_run()
    assert run is not None
    assert (run.outcome, run.records_sent, run.records_received) == ("ok", 4_000, 4_000)
    assert all("state" not in figures for figures in [*run.producers.values(), *run.consumers.values()])


def test_a_slow_consumer_is_seen_while_its_producers_wait_for_it(spark: Any) -> None:
    conf = fbs.ShuffleConf(memory_bytes="1m", batch_rows=20_000, batch_bytes="256k")
    seen: dict[str, Any] = {}

    def look(run: fbs.RunSummary) -> bool:
        producers, consumers = dict(run.producers), dict(run.consumers)
        blocked = [p for p in producers.values() if p.get("backPressured", 0) > 0.5]
        if not blocked or consumers.get(1, {}).get("busy", 0) < 0.5 or (run.back_pressured or 0) <= 0.3:
            return False
        if consumers[1]["seconds"]["user"] <= 0.1 or not blocked[0]["records"]:
            return False
        seen.update(producer=blocked[0], slow=consumers[1], quick=consumers.get(0, {}))
        return True

    made = shuffled(spark, conf)
    assert while_it_runs(made.count, look), fbs.last_run()
    producer = seen["producer"]
    assert producer["state"] in ("credit", "link", "segment", "user")
    assert max(producer["blocked"], key=producer["blocked"].get) == "1"
    if seen["quick"]:
        assert seen["quick"]["idle"] > seen["slow"]["idle"]
    # At the end each has said its last word, and nobody is doing anything
    run = fbs.last_run()
    assert run is not None
    assert run.records_received == 100_000
    assert run.back_pressured is None
    assert all("state" not in stats for stats in [*run.producers.values(), *run.consumers.values()])
    assert sum(stats["seconds"]["credit"] for stats in run.producers.values()) > 1
    assert all(stats["cpu_s"] > 0 for stats in [*run.producers.values(), *run.consumers.values()])
    found = run.diagnosis
    assert found.level in ("LOW", "HIGH")
    (root,) = found.roots
    assert (root.subtask, root.cause) == (1, "user_function"), found
    assert root.frame is not None
    assert root.frame.startswith("test_progress.py:")
    assert root.frame.endswith(" __call__")
    assert "Subtask 1 of `Slow`" in found.sentence


def test_a_slow_consumer_is_named_while_it_runs(spark: Any) -> None:
    keys = [row.id for row in spark.range(0, 20, 1, 1).where("pmod(hash(id), 2) = 1").collect()]
    df = spark.range(0, 200_000, 1, 2).selectExpr("id % 20 as k", "repeat('x', 100) as text")
    conf = fbs.ShuffleConf(memory_bytes="1m", batch_rows=5_000, batch_bytes="256k")
    made = fbs.map_in_arrow(df, Slow(keys[0], 0.25), df.schema, keys="k", num_partitions=2, mode="pipelined", conf=conf)
    seen: dict[str, Any] = {}

    def look(run: fbs.RunSummary) -> bool:
        roots = run.diagnosis.roots
        producers = dict(run.producers).values()
        if not roots or not all("samples" in figures for figures in producers):
            return False
        seen.update(roots=roots, producers=list(producers), consumers=list(dict(run.consumers).values()))
        return True

    assert while_it_runs(made.count, look), fbs.last_run()
    (root,) = seen["roots"]
    assert (root.stage, root.subtask, root.cause) == ("Slow", 1, "user_function")
    assert root.frame.startswith("test_progress.py:")
    for figures in seen["producers"]:
        assert figures["outPoolUsage"] > 0.5
        assert figures["samples"]["taken"] == 100
        assert figures["samples"]["level"] == "HIGH"
        assert figures["linked"] == {}
    sizes = [len(Watch(plain(one)).encode()) for side in ("producers", "consumers") for one in seen[side]]
    print(f"{sum(sizes) / len(sizes):.0f} bytes a task and second on the control connection, {max(sizes)} at the most")
    assert max(sizes) <= MOST_BYTES + 64
    slow = max(seen["consumers"], key=lambda figures: figures["busy"])
    assert slow["inputQueueLength"] >= 0
    assert "off" in slow["stacks"]  # it sleeps


@nightly(asked=False)
@pytest.mark.parametrize("asked", [False, True])
def test_a_partition_with_most_of_the_rows_is_skew(spark: Any, asked: bool) -> None:
    def even(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(batch.num_rows * 40e-6)  # the same for every row, whatever its key
            yield batch

    conf = fbs.ShuffleConf(memory_bytes="1m", batch_rows=5_000, batch_bytes="256k", monitor_key_values=asked)
    df = spark.range(0, 100_000, 1, 1).selectExpr("if(id % 10 = 0, string(id), 'LAX') as k", "repeat('x', 100) as text")
    made = fbs.map_in_arrow(df, even, df.schema, keys="k", num_partitions=2, mode="pipelined", conf=conf)
    assert made.count() == 100_000
    run = fbs.last_run()
    assert run is not None
    rows = {partition: figures["records"] for partition, figures in run.consumers.items()}
    (root,) = run.diagnosis.roots
    assert (root.subtask, root.cause) == (max(rows, key=rows.__getitem__), "skew"), run.diagnosis
    # What a key is, is nobody's business unless somebody asks
    told = re.search(r"; key 'LAX' has (\d\d)% of the rows", run.diagnosis.sentence)
    assert (told is not None) == asked, run.diagnosis.sentence
    assert ("LAX" in repr(run.producers)) == asked
    if told is not None:
        assert 70 <= int(told[1]) <= 100
    else:
        assert "the key with hash" in run.diagnosis.sentence


@nightly(asked=False)
@pytest.mark.parametrize("asked", [False, True])
def test_a_hot_key_of_pairs_is_skew(spark: Any, asked: bool) -> None:
    """Values that are grouped, read at the same speed for each key: packed pairs and others."""

    def read(pairs: Iterator[tuple[str, Any]]) -> Iterator[int]:
        for _, values in pairs:
            seen = 0
            for _ in values:
                seen += 1
                if seen % 100 == 0:
                    time.sleep(0.004)
            yield seen

    value = "x" * 100 if asked else ("x" * 100, 1.0)
    pairs = spark.sparkContext.parallelize(range(100_000), 1).map(lambda i: ("LAX" if i % 10 else str(i), value))
    conf = fbs.ShuffleConf(memory_bytes="1m", monitor_key_values=asked)
    shuffled = fbs.partition_by(pairs, 2, mode="pipelined", conf=conf)
    made = shuffled.mapPartitions(lambda rows: read(iter([("all", rows)])))
    assert sum(made.collect()) == 100_000
    run = fbs.last_run()
    assert run is not None
    rows = {partition: figures["records"] for partition, figures in run.consumers.items()}
    (root,) = run.diagnosis.roots
    assert (root.subtask, root.cause) == (max(rows, key=rows.__getitem__), "skew"), run.diagnosis
    assert ("LAX" in repr(run.producers)) == asked
    share = re.search(r"key 'LAX' has (\d\d)%" if asked else r"key with hash \d+ has (\d\d)%", run.diagnosis.sentence)
    assert share is not None, run.diagnosis.sentence
    assert 60 <= int(share[1]) <= 100, "nine of ten, by some dozens of samples"


def test_the_jvms_collector_is_seen_second_by_second(spark: Any) -> None:
    conf = fbs.ShuffleConf(memory_bytes="1m", batch_rows=20_000, batch_bytes="256k")
    jvm = spark.sparkContext._jvm

    def look(run: fbs.RunSummary) -> bool:
        jvm.java.lang.System.gc()
        sides = [list(dict(side).values()) for side in (run.producers, run.consumers)]
        # Some task of each side runs to the end; another one may have had a collection or none
        return all(
            len(side) == 2 and max(figures.get("jvm_gc_s", -1.0) for figures in side) > 0.05 for side in sides
        ) and all("jvm_gc_s" in figures for side in sides for figures in side)

    assert while_it_runs(shuffled(spark, conf).count, look), fbs.last_run()


def test_nothing_is_told_where_nobody_wants_to_know(spark: Any) -> None:
    conf = fbs.ShuffleConf(memory_bytes="1m", batch_rows=20_000, batch_bytes="256k", monitor=False)
    made = shuffled(spark, conf, 0.12)  # two seconds and more: by then a task would have told something
    assert not while_it_runs(made.count, lambda run: any("state" in s for s in dict(run.producers).values()))


def test_watching_leaves_no_thread(spark: Any) -> None:
    def threads(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        end = time.monotonic() + 10.0
        names = ["fastbuf-watch"]
        while "fastbuf-watch" in names and time.monotonic() < end:  # it ends when no task has come for a second
            time.sleep(0.05)  # between two looks
            names = [thread.name for thread in threading.enumerate()]
        yield pa.record_batch({"name": names})

    df = spark.range(0, 1_000, 1, 2).selectExpr("id as k")
    for _ in range(3):
        assert fbs.repartition(df, 2, "k", mode="pipelined").count() == 1_000
    names = [row.name for row in df.mapInArrow(threads, "name string").collect()]
    assert "fastbuf-watch" not in names
