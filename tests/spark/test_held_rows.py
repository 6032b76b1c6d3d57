"""Rows that lie in files of map tasks: what becomes of them when files, executors and runs go."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from clusters import drive
from conftest import Sessions, in_the_end
from nights import nightly
from test_clusters import MOST_S, SPECULATION, TWO, right, shuffle

import fastbuf_spark as fbs
from fastbuf_spark.driver import checks
from fastbuf_spark.driver import held as driver_held
from fastbuf_spark.worker.file_server import NAME
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


def servers(spark: Any) -> list[psutil.Process]:
    """The file servers of this Spark's driver: they hold a lock on a file in its directories."""
    own = spark.sparkContext.range(0, 1, 1, 1).map(lambda _: os.environ["SPARK_LOCAL_DIRS"].split(",")).first()
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if NAME in process.cmdline() and any(own[0] in file.path for file in process.open_files()):
                found.append(process)
    return found


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each executor were on a host of its own."""
    monkeypatch.setenv(checks.APART, "1")


def test_rows_from_file_servers(spark: Any, apart: None, placed: Callable[[Any], pa.Table]) -> None:
    """Spark's own rows in Spark's own places, for every verb; one server for all, and its loss is told."""
    df = wide(spark).selectExpr("id % 1009 as k", "id", "s")
    assert placed(fbs.repartition(df, 5, "k")).equals(placed(df.repartition(5, "k")))
    (server,) = servers(spark)
    assert placed(fbs.repartition(df, 3)).num_rows == ROWS
    grouped = fbs.group_by(df, "k", num_partitions=3).apply_in_pandas(lambda pdf: pdf.head(1)[["k"]], "k long")
    assert sorted(row.k for row in grouped.collect()) == list(range(1009))
    assert fbs.pipeline(df).shuffle("k", partitions=100).count() == ROWS, "tasks of many partitions"
    pairs = spark.sparkContext.range(0, 20_000, 1, 3).map(lambda n: (n % 7, n))
    assert sorted((k, sum(v)) for k, v in fbs.group_by_key(pairs, 2).collect()) == sorted(
        pairs.reduceByKey(lambda a, b: a + b).collect()
    )
    assert servers(spark) == [server]
    path = next(Path(file.path).parent for file in server.open_files())
    assert path.name == FOLDER
    assert list(path.glob("*/*/*")), "files of what was not collected yet"

    def without_server(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
        yield from batches

    number = server.pid
    failing = fbs.map_in_arrow(wide(spark), without_server, PLAIN, keys="id", num_partitions=1)
    words = r"the rows of map task \d are lost: the file server at .* cannot be reached: .*; executors must reach each"
    with pytest.raises(Exception, match=words):
        failing.collect()
    assert fbs.repartition(wide(spark), 1, "id").count() == ROWS
    assert servers(spark) != [server]


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


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Settings of clusters whose executors are as if each were on a host of its own; in the end nothing is left."""
    monkeypatch.setenv(checks.APART, str(tmp_path))
    local = tmp_path / "local"
    local.mkdir()
    yield {"spark.task.maxFailures": "4", "spark.local.dir": str(local)}
    assert not in_the_end(lambda: marked(str(tmp_path)), lambda found: not found), "processes that are left"
    assert not list(local.rglob(FOLDER)), "files that are left"


def marked(value: str) -> list[str]:
    """Processes that were started with this in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(checks.APART) == value:
                found.append(" ".join(process.cmdline())[:200])
    return found


@nightly
def test_servers_rows_and_executors_that_go(tmp_path: Path, far: dict[str, str]) -> None:
    """Each is made anew, between executors that read each other's rows from file servers alone."""
    more = {"rows": 90_000, "tasks": 4}

    def mark(number: int) -> str:
        return str(tmp_path / str(number))

    cases = [
        {"case": "warm", "tasks": 2, "executors": 2},
        shuffle("auto", 3, **more),
        {"case": "pairs", "mode": "blocking", "partitions": 3},
        shuffle("auto", 3, after={"kind": "server", "mark": mark(1)}, **more),
        shuffle("auto", 3, after={"kind": "spoil", "mark": mark(2)}, **more),
        shuffle("auto", 3, before={"kind": "kill", "mark": mark(3), "partition": 1}, **more),
        shuffle("auto", 3, after={"kind": "kill", "mark": mark(4), "partition": 2}, **more),
        shuffle("auto", 3, **more),
    ]
    _, first, pairs, *lost, last = drive(TWO, cases, far, seconds=MOST_S)
    right(first, "blocking", 90_000)
    assert pairs == {"as_spark": True, "rows": 5_000}
    for number, answer in enumerate(lost, 1):
        right(answer, "blocking", 90_000)
        assert Path(mark(number)).exists(), "nothing was killed or changed"
    right(last, "blocking", 90_000)


@nightly
def test_speculation_between_file_servers(far: dict[str, str]) -> None:
    """Both attempts of a map task have a file; whichever is read has the same rows."""
    slow, more = {"kind": "slow", "seconds": 4}, {"tasks": 4, "rows": 200_000}
    cases = [
        {"case": "warm", "tasks": 4, "executors": 2},
        shuffle("blocking", 3, before=slow, **more),
        shuffle("blocking", 3, after=slow, **more),
    ]
    _, before, after = drive("local-cluster[2,2,1024]", cases, {**far, **SPECULATION}, seconds=MOST_S)
    right(before, "blocking", 200_000)
    right(after, "blocking", 200_000)


@nightly
def test_executors_that_go_while_their_rows_are_needed(far: dict[str, str]) -> None:
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "2s",
        "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    }
    cases = [{"case": "again", "rows": 90_000, "seconds": 12}, shuffle("auto", 3, rows=90_000)]
    gone, after = drive(TWO, cases, {**far, **conf}, seconds=MOST_S)
    assert gone == {"right": True, "executors": 0}
    right(after, "blocking", 90_000)


@nightly
def test_a_disk_that_fills(spark: Any, tmp_path: Path) -> None:
    """The action fails, and says what to do; its files go, and the next one has the room."""
    if os.geteuid() or shutil.which("mount") is None:
        pytest.skip("mounting a tmpfs of 64 MiB needs root, and mount (apt-get install mount)")
    small = tmp_path / "small"
    small.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64m", "fastbuf-test", str(small)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("this sandbox mounts no tmpfs: run the test where root may")
    try:
        conf = fbs.ShuffleConf(held_directory=str(small))
        many = spark.range(0, 6_000_000, 1, 3).selectExpr("id", "concat('name ', id) as s")
        words = r"cannot write its rows to .*No space left on device; .*spark.fastbuf.heldDirectory"
        with pytest.raises(Exception, match=words):
            fbs.repartition(many, 5, "id", conf=conf).collect()
        # Of the map tasks that were done the files stay until Spark has forgotten the shuffle, no others
        assert in_the_end(lambda: list(small.rglob("*.part")), lambda found: not found) == []
        collect_garbage(spark)
        in_the_end(lambda: swept(spark, small), lambda used: used < 16 << 20)
        assert fbs.repartition(wide(spark), 5, "id", conf=conf).count() == ROWS
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def swept(spark: Any, folder: Path) -> int:
    """Bytes of a directory's files, once the rendezvous has looked which are needed still."""
    collect_garbage(spark)
    fbs.repartition(spark.range(9).where("id > 9"), 1, "id").collect()
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


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
