"""Streams to PostgreSQL and Kafka, and from Kafka, with real servers: exactly once, whatever dies."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from conftest import ROOT
from killings import workers
from nights import nightly
from numbered import check, nothing_waits, numbered
from real_parts import Broker, Postgres
from test_streams_ends import until

import fastbuf_spark as fbs
from fastbuf_spark.streams.postgres import to_postgres

ROWS, RATE = 3000, 3000.0


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


def test_a_topic_that_is_made_while_a_stream_runs(spark: Any, tmp_path: Path, broker: Broker) -> None:
    """Its partition is found: one of a topic that is there is the same to a source (``test_kafka_source.py``)."""
    topics, sink = [broker.topic(1)], fbs.to_memory()
    name = topics[0] + "-more"
    stream = fbs.stream_kafka(spark, broker.servers, re.compile(f"{topics[0]}.*"), "n long")
    query = stream.write_stream(sink, tmp_path / "chk", every=0.1, discover_every=0.1)

    def numbers() -> list[int]:
        return sorted(sink.table()["n"].to_pylist())

    broker.write(topics[0], [json.dumps({"n": n}).encode() for n in range(100)])
    until(lambda: numbers() == list(range(100)))
    broker.topic(1, name)
    broker.write(name, [json.dumps({"n": n}).encode() for n in range(100, 200)])
    until(lambda: numbers() == list(range(200)))
    query.stop()
    assert query.exception() is None
    assert query.status["restarts"] == 0


@nightly
def test_postgres_is_away_when_a_stream_starts_again(spark: Any, tmp_path: Path, postgres: Postgres) -> None:
    """It tries again, and goes on when the server is back."""
    table = postgres.table("k bigint, v bigint, n bigint, total bigint, rising boolean, place bigserial")
    query = numbered(spark, ROWS, 300.0).write_stream(to_postgres(postgres.dsn(), table), tmp_path / "chk", every=0.1)
    until(lambda: postgres.query(f"SELECT count(*) > 0 FROM {table}") == [(True,)])
    postgres.stop()
    try:
        for worker in workers(spark):
            worker.kill()
        until(lambda: "the run could not begin: ConnectionError: postgres" in query.status["message"])
    finally:
        postgres.start()
    assert query.await_termination(120)
    found = postgres.query(f"SELECT k, v, n, total, rising FROM {table} ORDER BY place")
    check(
        pa.Table.from_pylist([dict(zip(("k", "v", "n", "total", "rising"), row, strict=True)) for row in found]), ROWS
    )


@pytest.fixture
def orders(spark: Any, tmp_path: Path, broker: Broker, postgres: Postgres) -> Iterator[tuple[str, str]]:
    """The program of the page about Kafka and PostgreSQL, for the servers of the tests; its topic."""
    page = (ROOT / "docs" / "howto" / "kafka-to-postgres.md").read_text()
    (program,) = re.findall(r'^```python title="orders.py"\n(.*?)^```', page, re.DOTALL | re.MULTILINE)
    (table,) = re.findall(r"^```sql\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    topic = broker.topic()
    for told, here in {
        '"broker:9092"': repr(broker.servers),
        '"orders",\n': f"{topic!r},\n",
        '"host=db dbname=sales user=writer"': repr(postgres.dsn()),
        '"/shared/orders"': repr(str(tmp_path / "chk")),
        '"5 seconds"': '"0.2 seconds"',
    }.items():
        assert program.count(told) == 1, told
        program = program.replace(told, here)
    postgres.query(table)
    yield program, topic
    postgres.query("DROP TABLE minutes")


def test_the_page_from_kafka_to_postgres(
    tmp_path: Path, broker: Broker, postgres: Postgres, fail_at: Any, orders: tuple[str, str]
) -> None:
    """Its program as it stands there, while a task is killed; sums of minutes as pandas has them."""
    program, topic = orders
    random = np.random.default_rng(11)
    times = pd.Timestamp("2024-05-01", tz="UTC") + pd.to_timedelta(np.arange(600), unit="s")
    rows = pd.DataFrame(
        {"user": random.choice(["ada", "bob", "cid"], 600), "ts": times, "amount": random.integers(0, 50, 600) / 4}
    )
    rows = rows.iloc[np.argsort(np.arange(600) + random.integers(0, 10, 600), kind="stable")]
    lines = rows.to_json(orient="records", lines=True, date_format="iso").splitlines()
    killed = fail_at("in commit")
    space: dict[str, Any] = {"__name__": "__main__"}
    running = threading.Thread(target=exec, args=(compile(program, "orders.py", "exec"), space), daemon=True)
    running.start()
    try:
        for begin in range(0, 600, 10):
            broker.write(topic, [line.encode() for line in lines[begin : begin + 10]])
            if "query" in space and not killed.exists():
                space["query"].await_termination(0.1)
        until(lambda: "query" in space and postgres.query("SELECT sum(count_all) > 500 FROM minutes") == [(True,)])
    finally:
        until(lambda: "query" in space)
        space["query"].stop(drain=True)  # its last windows have not ended by the rows' times
    running.join(60)
    assert not running.is_alive()
    assert killed.exists(), "nothing was killed"
    minutes = rows.groupby(["user", rows["ts"].dt.floor("1min")])["amount"].agg(["sum", "size"])
    wanted = [
        (user, start, start + pd.Timedelta("1min"), total, count)
        for (user, start), total, count in minutes.itertuples()
    ]
    found = postgres.query('SELECT * FROM minutes ORDER BY "user", window_start')
    assert found == wanted
    nothing_waits(tmp_path / "chk")
