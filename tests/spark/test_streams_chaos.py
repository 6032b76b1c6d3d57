"""Streams of which processes are killed at random: no row is lost or doubled, and nothing is left over.

What dies: any worker of Python (of a source, of a stage with state, of a sink), an executor with all its workers, the
server of the sink (a broker stands still: it keeps its records in memory).  A worker's or an executor's death counts if
the stream has started again for it.  Each stream is started with other numbers of tasks now and then.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import in_the_end
from killings import of_role, workers
from nights import nightly
from numbered import check, nothing_waits, numbered
from real_parts import Broker
from stream_sinks import SINKS
from test_streams_ends import until

import fastbuf_spark as fbs

KILLS = int(os.environ.get("FASTBUF_KILLS", "50"))  #: for each sink
ROWS, RATE = 20_000, 2000.0
CONF = fbs.ShuffleConf(memory_bytes=1 << 20, segment_size=4 << 10)


def kill_worker(spark: Any, postgres: Any, dice: random.Random) -> bool:
    alive = workers(spark)
    if alive:
        dice.choice(alive).kill()
    return bool(alive)


def kill_executor(spark: Any, postgres: Any, dice: random.Random) -> bool:
    alive = of_role(spark, "executor", Path())
    if alive:
        dice.choice(alive).kill()
    return bool(alive)


def kill_server(spark: Any, server: Any, dice: random.Random) -> bool:
    stop, start = (server.pause, server.go_on) if isinstance(server, Broker) else (server.stop, server.start)
    stop()
    try:
        if dice.random() < 0.5:
            kill_worker(spark, server, dice)
        time.sleep(dice.uniform(0, 1))  # so long it is away
    finally:
        start()
    return True


def nothing_is_open(sink: str, server: Any, folder: Path) -> None:
    """No transaction of the sink's is open, no file of rows waits in front of its directory."""
    if sink == "postgres":
        waiting = "application_name LIKE 'fastbuf %' AND state LIKE 'idle in%'"
        find = lambda: server.query(f"SELECT count(*) FROM pg_stat_activity WHERE {waiting}")  # noqa: E731
        assert in_the_end(find, lambda rows: rows == [(0,)]) == [(0,)]
        assert server.query("SELECT count(*) FROM pg_prepared_xacts") == [(0,)]
    assert list((folder / "out" / "_fastbuf").rglob("*.parquet")) == []


@nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sink", SINKS)
def test_kills_at_random(cluster: Any, server: Any, tmp_path: Path, sink: str) -> None:
    dice = random.Random(f"{sink} {KILLS}")
    ways: list[Any] = [kill_worker] * 6 + [kill_executor] + [kill_server] * 3 * (server is not None)
    kills, number, starts = Counter[str](), 0, 0
    while kills.total() < KILLS:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        target = SINKS[sink](folder, server)
        while True:  # one start after the other, until all rows have come
            starts += 1
            spark = cluster.ready()
            tasks, partitions = dice.choice([(1, 1), (1, 2), (2, 1)])
            stream = numbered(spark, ROWS, RATE, partitions, splits=2, conf=CONF, tasks=tasks)
            query = stream.write_stream(target.sink, folder / "chk", every=0.1)
            stops = dice.random() < 0.2
            hurt(spark, server, query, dice, ways, kills, 2 if stops else 1000)
            if stops:
                query.stop()
            assert query.await_termination(120), query.progress()
            assert query.exception() is None
            if query.status["state"] == "finished":
                break
        check(target.table(), ROWS, splits=2, ordered=target.ordered)
        nothing_waits(folder / "chk")
        nothing_is_open(sink, server, folder)
    print(f"{sink}: {dict(kills)} in {number} streams, {starts} starts")


def hurt(
    spark: Any, server: Any, query: Any, dice: random.Random, ways: list[Any], kills: Counter[str], most: int
) -> None:
    """Kill something at some moment, mostly when all tasks are at work again, until the stream ends or it is enough."""

    def at_work() -> bool:
        stages = query.progress()["stages"]
        states = [task["state"] for stage in stages for task in stage["subtasks"]]
        return query.status["state"] == "running" and "starting" not in states

    for _ in range(most):
        if dice.random() < 0.8:
            until(lambda: at_work() or not query.is_active)
        if kills.total() >= KILLS or query.await_termination(dice.uniform(0, 1)):
            return
        way, restarts = dice.choice(ways), query.status["restarts"]
        with suppress(psutil.Error):  # it has gone by itself
            if way(spark, server, dice):
                counts = lambda: way is kill_server or query.status["restarts"] > restarts  # noqa: E731, B023
                kills[way.__name__] += in_the_end(lambda: counts() or not query.is_active, bool) and counts()  # noqa: B023
