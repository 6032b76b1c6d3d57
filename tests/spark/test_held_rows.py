"""Rows that lie in files of map tasks: what becomes of them when files, executors and runs go."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from clusters import drive
from conftest import Sessions, in_the_end
from nights import nightly
from test_clusters import MOST_S, TWO, right, shuffle

import fastbuf_spark as fbs
from fastbuf_spark.driver import held as driver_held
from fastbuf_spark.worker.held import FOLDER

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
ROWS = 200_000  #: enough for a file of each map task
PLAIN = "id long, s string"


def files(spark: Any) -> list[Path]:
    """Files of held rows of this driver's tasks."""
    return list(Path(spark.sparkContext._temp_dir).glob(f"{FOLDER}/*/*/*"))


def wide(spark: Any) -> Any:
    return spark.range(0, ROWS, 1, 3).selectExpr("id", "concat('name ', id) as s")


def test_files_go_when_nothing_needs_them(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a run whose result is kept stay, and are read; in the end nothing is left."""
    monkeypatch.setattr(driver_held, "SWEEP_S", 0.0)
    collect_garbage(spark)
    before = set(files(spark))
    moved = fbs.repartition(wide(spark), 5, "id").cache()
    assert moved.count() == ROWS
    assert len(set(files(spark)) - before) == 3, "a file for each map task"
    moved.unpersist()
    assert moved.count() == ROWS
    del moved

    def left() -> set[Path]:
        collect_garbage(spark)
        # The rendezvous looks when a map task reports
        fbs.repartition(spark.range(9).where("id > 9"), 1, "id").collect()
        return set(files(spark)) - before

    assert not in_the_end(left, lambda paths: not paths)


def collect_garbage(spark: Any) -> None:
    gc.collect()
    spark._jvm.java.lang.System.gc()


def test_lost_files_are_told_in_local_mode(spark: Any) -> None:
    """Where a task may fail once only; the next action makes the rows anew."""

    def without_files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for path in Path(folder).glob("fastbuf-held/*/*/*"):
            path.unlink()
        yield from batches

    folder = spark.sparkContext._temp_dir
    failing = fbs.map_in_arrow(wide(spark), without_files, PLAIN, keys="id", num_partitions=1)
    words = r"the rows of map task \d are lost: .* cannot be opened: No such file or directory"
    with pytest.raises(Exception, match=words):
        failing.collect()
    assert fbs.repartition(wide(spark), 1, "id").count() == ROWS


def test_a_large_result_is_not_broadcast(sessions: Sessions) -> None:
    """Spark sees the bytes of descriptions, which are few; so the size is hidden from it."""
    spark = sessions.get("local[4]")
    small = spark.range(0, 500_000, 1, 2).selectExpr("id", "id % 7 as v")
    joined = fbs.repartition(wide(spark), 4, "id").join(fbs.repartition(small, 4, "id"), "id")
    assert joined.count() == ROWS
    plan = joined._jdf.queryExecution().executedPlan().toString()
    assert "Broadcast" not in plan, plan
    tiny = spark.range(10)
    assert fbs.repartition(wide(spark), 4, "id").join(tiny, "id").count() == 10


def test_encrypted_shuffles_have_no_files(spark: Any) -> None:
    """All goes through Spark, which encrypts it."""
    spark.sparkContext._conf.set("spark.io.encryption.enabled", "true")
    try:
        before = set(files(spark))
        assert fbs.repartition(wide(spark), 3, "id").count() == ROWS
        assert fbs.pipeline(wide(spark)).shuffle("id", partitions=100).count() == ROWS
        pairs = spark.sparkContext.range(0, 1000, 1, 3).map(lambda n: (n % 7, n))
        assert len(fbs.group_by_key(pairs, 2).collect()) == 7
        assert not set(files(spark)) - before
    finally:
        spark.sparkContext._conf.set("spark.io.encryption.enabled", "false")


@nightly
def test_lost_files_and_executors_are_made_anew(tmp_path: Path) -> None:
    """Executors killed on both sides, files that somebody deletes; and keys that differ each time are told by name."""

    def kill(partition: int, number: int) -> dict[str, Any]:
        return {"kind": "kill", "mark": str(tmp_path / str(number)), "partition": partition}

    more = {"rows": 90_000}
    cases = [
        {"case": "warm", "tasks": 2, "executors": 2},
        shuffle("auto", 3, before=kill(1, 1), **more),
        shuffle("auto", 3, after=kill(2, 2), **more),
        shuffle("auto", 2, after={"kind": "delete", "mark": str(tmp_path / "3")}, **more),
        shuffle("auto", 3, before={"kind": "salt"}, after=kill(2, 4), **more),
    ]
    _, *kills, deleted, salted = drive(TWO, cases, {"spark.task.maxFailures": "4"}, seconds=MOST_S)
    for answer in (*kills, deleted):
        right(answer, "blocking", 90_000)
    for number in range(1, 5):
        assert (tmp_path / str(number)).exists(), "nothing was killed or deleted"
    # Spark 4.2 and later see it too, and may be first
    assert re.search("ran again and placed its rows otherwise|indeterminate output", salted["error"])


@nightly
def test_many_threads_with_actions(sessions: Sessions) -> None:
    """No action holds slots that another waits for."""
    import threading

    spark = sessions.get("local[4]")
    wrong: list[str] = []

    def work(number: int) -> None:
        df = wide(spark).selectExpr(f"id * {number + 1} as id", "s")
        try:
            if fbs.repartition(df, 8, "id").join(fbs.repartition(df, 3, "id"), "id").count() != ROWS:
                wrong.append("rows")
        except Exception as error:
            wrong.append(str(error)[:300])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(MOST_S)
    assert not wrong
    assert time.monotonic() - begin < MOST_S
