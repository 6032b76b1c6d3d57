"""Streams of which processes are killed at random: no row is lost or doubled, and nothing is left over.

What dies: any worker of Python (of a source, of a stage with state, of a sink), an executor with all its workers, the
server of the sink.  Each stream is started with another number of partitions now and then.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from killings import of_role, workers
from nights import nightly
from numbered import check, nothing_waits, numbered
from real_parts import Postgres
from test_streams_ends import until

import fastbuf_spark as fbs

KILLS = int(os.environ.get("FASTBUF_KILLS", "100"))  #: for each sink
ROWS, RATE = 20_000, 2000.0
CONF = fbs.ShuffleConf(memory_bytes=1 << 20, segment_size=4 << 10)

Table = Callable[[], pa.Table]


def parquet(folder: Path, postgres: Any) -> tuple[Any, Table]:
    return fbs.to_parquet(folder / "out"), lambda: pq.read_table(folder / "out", partitioning=None)


def delta(folder: Path, postgres: Any) -> tuple[Any, Table]:
    deltalake = pytest.importorskip("deltalake", reason="pip install 'fastbuf[delta]'")
    return fbs.to_delta(folder / "out"), lambda: deltalake.DeltaTable(folder / "out").to_pyarrow_table()


def table_of_postgres(folder: Path, postgres: Any) -> tuple[Any, Table]:
    name = postgres.table("k bigint, v bigint, n bigint, total bigint, rising boolean")

    def rows() -> pa.Table:
        columns = ("k", "v", "n", "total", "rising")
        found = postgres.query(f"SELECT {', '.join(columns)} FROM {name}")
        return pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in found])

    return fbs.to_postgres(postgres.dsn(), name), rows


SINKS = {"parquet": parquet, "delta": delta, "postgres": table_of_postgres}


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


def kill_server(spark: Any, postgres: Any, dice: random.Random) -> bool:
    postgres.stop()
    try:
        if dice.random() < 0.5:
            kill_worker(spark, postgres, dice)
    finally:
        postgres.start()
    return True


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Postgres | None]:
    return request.getfixturevalue("postgres") if "postgres" in request.node.callspec.id else None


@nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sink", SINKS)
def test_kills_at_random(cluster: Any, server: Postgres | None, tmp_path: Path, sink: str) -> None:
    dice = random.Random(f"{sink} {KILLS}")
    ways: list[Any] = [kill_worker] * 6 + [kill_executor] + [kill_server] * 3 * (server is not None)
    kills, number, starts = Counter[str](), 0, 0
    while kills.total() < KILLS:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        target, table = SINKS[sink](folder, server)
        while True:  # one start after the other, until all rows have come
            starts += 1
            spark = cluster.ready()
            stream = numbered(spark, ROWS, RATE, partitions=dice.choice([1, 2]), conf=CONF)
            query = stream.write_stream(target, folder / "chk", every=0.1)
            stops = dice.random() < 0.2
            hurt(spark, server, query, dice, ways, kills, 2 if stops else 1000)
            if stops:
                query.stop()
            assert query.await_termination(120), query.progress()
            assert query.exception() is None
            if query.status["state"] == "finished":
                break
        check(table(), ROWS)
        nothing_waits(folder / "chk")
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
        way = dice.choice(ways)
        with suppress(psutil.Error):  # it has gone by itself
            kills[way.__name__] += way(spark, server, dice)
