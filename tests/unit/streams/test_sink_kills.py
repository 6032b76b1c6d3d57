"""Sinks whose process is killed: no row is lost, none is there twice, and their order is kept."""

from __future__ import annotations

import json
import multiprocessing
import random
import secrets
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sink_generations
from nights import LONG, nightly
from real_parts import committed_records

FORKS = multiprocessing.get_context("forkserver")  # from a process that has imported all, and has no threads
PRELOADED = ("function", "kafka", "kafka_commits", "postgres")
FORKS.set_forkserver_preload(
    ["pandas", "psycopg", "confluent_kafka", *(f"fastbuf_spark.streams.{name}" for name in PRELOADED)]
)
POINTS = (
    "restored",
    "before prepare",
    "prepared",
    "complete",
    "within the transaction",
    "before the transaction's end",
    "committed",
    "files removed",
)
KILLS = 100 if LONG else 5
MOST_KILLS = KILLS + 60

Target = tuple[str, list[str], Callable[[], list[int]]]


@pytest.fixture(params=["function", "postgres", "kafka"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """A sink, where it writes, and what is there."""
    kind = request.param
    if kind == "function":
        path = str(tmp_path / "rows.sqlite")
        with closing(sqlite3.connect(path)) as database, database:
            database.executescript("CREATE TABLE rows (n int); CREATE TABLE batches (id int PRIMARY KEY)")

        def inserted() -> list[int]:
            with closing(sqlite3.connect(path)) as database:
                return [n for (n,) in database.execute("SELECT n FROM rows ORDER BY rowid")]

        return kind, [path], inserted
    server = request.getfixturevalue("broker" if kind == "kafka" else "postgres")
    if kind == "kafka":
        topic = server.topic()
        sink_generations.a_sink(kind, [server.servers, topic]).check(sink_generations.SCHEMA, True)
        return (
            kind,
            [server.servers, topic],
            lambda: [json.loads(record.value())["n"] for record in committed_records(server, topic)],
        )
    table = server.table("n bigint, place bigserial")
    sink_generations.a_sink(kind, [server.dsn(), table]).check(sink_generations.SCHEMA, True)
    return kind, [server.dsn(), table], lambda: [n for (n,) in server.query(f"SELECT n FROM {table} ORDER BY place")]


def generation(*arguments: Any) -> Any:
    process = FORKS.Process(target=sink_generations.run, args=arguments)
    process.start()
    return process


def ended(process: Any) -> int:
    process.join(120)
    assert process.exitcode is not None
    return process.exitcode


def check(target: Target, folder: Path, checkpoints: int) -> None:
    assert target[2]() == list(range(checkpoints * sink_generations.ROWS))
    named = {each["file"] for each in sink_generations.Stream(folder).committables}  # and may be committed again
    assert {path.name for path in (folder / "rows").glob("*.arrow")} == named


@nightly(but_one="target")
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_each_point(target: Target, tmp_path: Path, point: str) -> None:
    kind, where, _ = target
    job = secrets.token_hex(16)
    for number, times in enumerate((1 if point == "restored" else 2, 1)):  # also while what was left is committed
        assert ended(generation(kind, where, str(tmp_path), job, number, 4, point, times)) == -signal.SIGKILL
    assert ended(generation(kind, where, str(tmp_path), job, 3, 4)) == 0
    check(target, tmp_path, 4)


def test_killed_at_random(target: Target, tmp_path: Path) -> None:
    kind, where, _ = target
    job = secrets.token_hex(16)
    rng = random.Random(f"{kind} 1")
    checkpoints = 100_000
    path = tmp_path / "checkpoint.json"
    done = 0
    for number in range(MOST_KILLS):
        begun, begins = FORKS.Pipe(duplex=False)
        process = generation(kind, where, str(tmp_path), job, number, checkpoints, "", 1, begins)
        assert begun.poll(60)
        # On a busy machine later each time, until one has come to a checkpoint
        longest = 0.5 if done else min(4.0, 0.5 * (number + 1))
        time.sleep(rng.uniform(0.0, longest))  # where it is killed is to be random
        process.kill()
        ended(process)
        done = json.loads(path.read_text())[0] if path.exists() else 0
        if number + 1 >= KILLS and done:
            break
    assert done > 0
    assert ended(generation(kind, where, str(tmp_path), job, MOST_KILLS, done + 3)) == 0
    check(target, tmp_path, done + 3)
