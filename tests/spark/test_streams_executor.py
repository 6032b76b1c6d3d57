"""An executor of a stream is killed: how long until there are new rows, and whether each is there once."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import numbered
import psutil
import pyarrow.parquet as pq
import pytest
from conftest import in_the_end
from killings import of_role
from nights import nightly
from numbered import check, nothing_waits
from test_streams_ends import until

import fastbuf_spark as fbs

KILLS = int(os.environ.get("FASTBUF_KILLS", 50))


def rows_of(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))


@nightly
def test_an_executor_that_is_killed(cluster: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Its tasks go to the other executor, which has slots for them: Spark's start of another is not waited for."""
    spark = cluster.ready()
    rows, rate = 20_000, 2000.0
    stream = numbered.keyed_sums(spark, rows, rate)
    query = stream.write_stream(fbs.to_parquet(tmp_path / "out"), tmp_path / "chk", 0.2)
    until(lambda: rows_of(tmp_path / "out") > 500)
    busy = [each for each in of_role(spark, "executor", tmp_path) if each.children()]
    killed = time.monotonic()
    busy[0].kill()
    until(lambda: query.status["restarts"] == 1)
    noticed, before = time.monotonic(), rows_of(tmp_path / "out")
    until(lambda: query.progress()["generation"] == 2 and query.progress()["stages"][0]["running"])
    began = time.monotonic()
    until(lambda: rows_of(tmp_path / "out") > before)
    first = time.monotonic()
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(
            f"\nexecutor killed: {noticed - killed:.1f} s until the run was given up, {began - killed:.1f} s until "
            f"the tasks of the next one ran, {first - killed:.1f} s until there were new rows"
        )
    assert query.await_termination(120)
    check(pq.read_table(tmp_path / "out", partitioning=None), rows)
    nothing_waits(tmp_path / "chk")
    assert in_the_end(lambda: len(of_role(spark, "executor", tmp_path)), lambda n: n == 2) == 2


@nightly
@pytest.mark.parametrize("seed", range(6))
def test_many_kills(cluster: Any, tmp_path: Path, seed: int) -> None:
    """Fifty processes of a stream are killed at random, 300 in all: workers mostly, executors sometimes."""
    spark = cluster.ready()
    dice, rows = random.Random(seed), 10_000_000
    query = numbered.numbered(spark, rows, 1500.0).write_stream(fbs.to_parquet(tmp_path / "out"), tmp_path / "chk", 0.1)
    kills = 0
    while kills < KILLS and query.is_active:
        seen = rows_of(tmp_path / "out")
        until(lambda: rows_of(tmp_path / "out") > seen or not query.is_active, 120)  # noqa: B023
        time.sleep(dice.uniform(0, 0.4))
        executors = of_role(spark, "executor", tmp_path)
        workers = [
            child
            for executor in executors
            for child in executor.children(recursive=True)
            if child.ppid() not in (executor.pid, 1) and "java" not in child.name()
        ]
        victims = executors if dice.random() < 0.1 else workers
        if not victims:
            continue
        try:
            dice.choice(victims).kill()
        except psutil.Error:
            continue
        kills += 1
    query.stop(drain=True, timeout=300)
    assert query.exception() is None
    assert kills == KILLS
    table = pq.read_table(tmp_path / "out", partitioning=None)
    check(table, table.num_rows)
    nothing_waits(tmp_path / "chk")
    assert not list((tmp_path / "out" / "_fastbuf").rglob("*.parquet"))
    assert not [name for name in os.listdir("/dev/shm") if "fastbuf" in name]
