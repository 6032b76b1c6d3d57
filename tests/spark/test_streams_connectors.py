"""Streams to PostgreSQL and Kafka, and from Kafka, with real servers: exactly once, whatever dies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from nights import nightly
from numbered import check, nothing_waits, numbered
from real_parts import Broker, Postgres, committed_records

import fastbuf_spark as fbs
from fastbuf_spark.streams import fail_points
from fastbuf_spark.streams.kafka import to_kafka
from fastbuf_spark.streams.postgres import to_postgres

ROWS, RATE = 3000, 3000.0


@pytest.fixture
def fail_at(tmp_path: Path) -> Iterator[Any]:
    """Has the first process that comes to a point of the protocol killed."""
    folder = tmp_path / "killed"
    folder.mkdir()

    def ask(point: str) -> Path:
        fail_points.ask(f"{point};{folder}")
        return folder / point.replace(" ", "-")

    yield ask
    fail_points.ask("")


@nightly(but_one="point")
@pytest.mark.parametrize("sink", ["postgres", "kafka"])
@pytest.mark.parametrize("point", ["after prepare", "before commit", "in commit", "after commit"])
def test_a_process_that_is_killed_at_a_point(
    spark: Any, tmp_path: Path, fail_at: Any, request: pytest.FixtureRequest, point: str, sink: str
) -> None:
    server = request.getfixturevalue("broker" if sink == "kafka" else "postgres")
    killed = fail_at(point)
    if sink == "kafka":
        topic = server.topic()
        query = numbered(spark, ROWS, RATE).write_stream(to_kafka(server.servers, topic), tmp_path / "chk", every=0.1)
    else:
        table = server.table("k bigint, v bigint, n bigint, total bigint, rising boolean, place bigserial")
        query = numbered(spark, ROWS, RATE).write_stream(to_postgres(server.dsn(), table), tmp_path / "chk", every=0.1)
    assert query.await_termination(120)
    assert query.status["state"] == "finished"
    assert killed.exists(), "nothing was killed"
    if sink == "kafka":
        rows = [json.loads(record.value()) for record in committed_records(server, topic)]
    else:
        found = server.query(f"SELECT k, v, n, total, rising FROM {table} ORDER BY place")
        rows = [dict(zip(("k", "v", "n", "total", "rising"), row, strict=True)) for row in found]
    check(pa.Table.from_pylist(rows), ROWS)
    nothing_waits(tmp_path / "chk")


def test_from_kafka_to_a_table(spark: Any, tmp_path: Path, broker: Broker, postgres: Postgres) -> None:
    """Partitions by two tasks, and what comes to the topic while the stream is not there."""
    topic = broker.topic(3)
    table = postgres.table("n bigint PRIMARY KEY, twice bigint")

    def write(begin: int) -> None:
        for partition in range(3):
            values = range(begin + partition, begin + 300, 3)
            broker.write(topic, [json.dumps({"n": n}).encode() for n in values], partition)

    def doubled(batches: Any) -> Any:
        for batch in batches:
            twice = pa.array([2 * n for n in batch.column("n").to_pylist()], pa.int64())
            yield pa.RecordBatch.from_arrays([batch.column("n"), twice], names=["n", "twice"])

    for run in range(2):
        write(300 * run)
        stream = fbs.stream_kafka(spark, broker.servers, topic, "n long", tasks=2)
        sink = to_postgres(postgres.dsn(), table)
        query = stream.map_in_arrow(doubled, "n long, twice long").write_stream(sink, tmp_path / "chk", every=0.1)
        wanted = [(n, 2 * n) for n in range(300 * (run + 1))]
        while query.status["state"] in ("starting", "running", "restarting"):
            if postgres.query(f"SELECT count(*) FROM {table}") == [(len(wanted),)]:
                break
            query.await_termination(0.1)
        query.stop()
        assert postgres.query(f"SELECT n, twice FROM {table} ORDER BY n") == wanted
    assert query.exception() is None
    nothing_waits(tmp_path / "chk")
