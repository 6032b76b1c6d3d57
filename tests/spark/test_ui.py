"""The page of a real Spark's shuffles: two in a row, one subtask slow, and what its REST interface tells of them."""

from __future__ import annotations

import json
import logging
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from conftest import Sessions, in_the_end
from nights import nightly
from pyspark import InheritableThread

import fastbuf_spark as fbs
from fastbuf_spark.driver import page

pytest.importorskip("uvicorn", reason="pip install 'fastbuf[monitor]'")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]
SOON_S = 60.0
SETTINGS = {"ui": "true", "memoryBytes": "1m", "batchRows": "10000", "batchBytes": "256k"}


@pytest.fixture
def spark(sessions: Sessions) -> Iterator[Any]:
    """With the page on, by Spark's own settings; it is closed at the end."""
    session = sessions.get("local[6]")
    for name, value in SETTINGS.items():
        session.conf.set(f"spark.fastbuf.{name}", value)
    page._open = None
    yield session
    for name in SETTINGS:
        session.conf.unset(f"spark.fastbuf.{name}")
    if page._open is not None:
        page._open[1].close()
    page._open = None


def ask(path: str) -> Any:
    server = fbs.ui()
    request = urllib.request.Request(server.address + path, headers={"Authorization": f"Bearer {server.token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


class Normalize:
    """Takes its time for batches that have this key."""

    def __init__(self, key: int, seconds: float) -> None:
        self.key, self.seconds = key, seconds

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if self.key in batch.column("k").to_pylist():
                time.sleep(self.seconds)
            yield batch


def clean(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


@nightly
def test_two_exchanges_in_a_row_and_their_root(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "fastbuf_spark"):
        keys = [row.id for row in spark.range(0, 20, 1, 1).where("pmod(hash(id), 2) = 1").collect()]
        df = spark.range(0, 150_000, 1, 2).selectExpr("id % 20 as k", "repeat('x', 100) as text")
        first = fbs.map_in_arrow(df, clean, df.schema, keys="k", num_partitions=2, mode="pipelined")
        both = fbs.map_in_arrow(first, Normalize(keys[0], 0.4), df.schema, keys="k", num_partitions=2, mode="pipelined")
    (said,) = [record.getMessage() for record in caplog.records if "page" in record.getMessage()]
    assert said == f"fastbuf's page: {fbs.ui().url}", "logged once, with all that a browser needs"
    counted: list[int] = []
    worker = InheritableThread(target=lambda: counted.append(both.count()))
    worker.start()
    seen: dict[str, Any] = {}
    said_so_far: list[str] = []
    end = time.monotonic() + SOON_S
    while worker.is_alive() and time.monotonic() < end and not seen:
        for job in ask("/snapshot")["jobs"]:
            roots = (job["diagnosis"] or {"roots": []})["roots"]
            said_so_far += [root["sentence"] for root in roots if root["sentence"] not in said_so_far]
            if len(job["exchanges"]) == 2 and [(r["subtask"], r["cause"]) for r in roots] == [(1, "user_function")]:
                seen = job
        time.sleep(0.2)  # between two looks
    assert seen, said_so_far
    live = ask(f"/jobs/{seen['id']}")
    ends = {vertex["name"]: vertex["id"] for vertex in seen["vertices"]}
    pressed = ask(f"/jobs/{seen['id']}/vertices/{ends['producers of Normalize']}/backpressure")
    said_of_it = ask(f"/jobs/{seen['id']}/diagnosis")["diagnosis"]
    flames = ask(f"/jobs/{seen['id']}/vertices/{ends['Normalize']}/flamegraph?subtaskindex=1")["data"]
    worker.join(SOON_S)
    assert counted == [150_000]

    assert list(ends) == ["producers of clean", "clean", "producers of Normalize", "Normalize"]
    ways = {(edge["from"], edge["to"]): edge["kind"] for edge in seen["edges"]}
    assert ways[ends["clean"], ends["producers of Normalize"]] == "forward"
    (root,) = seen["diagnosis"]["roots"]
    assert root["vertex"] == ends["Normalize"]
    assert root["frame"].startswith("test_ui.py:")
    assert "Subtask 1 of `Normalize`" in said_of_it["sentence"]
    assert pressed["backpressure-level"] in ("low", "high")
    assert max(task["ratio"] for task in pressed["subtasks"]) > 0.2
    assert flames["children"][0]["name"].endswith("__call__")
    assert live["state"] == "RUNNING"
    assert [vertex["parallelism"] for vertex in live["vertices"]] == [2, 2, 2, 2]
    # And when it is over
    over = in_the_end(lambda: ask(f"/jobs/{seen['id']}"), lambda job: job["state"] == "FINISHED")  # may be a second old
    assert over["state"] == "FINISHED"
    assert over["vertices"][3]["metrics"]["read-records"] == 150_000
    assert len(ask(f"/jobs/{seen['id']}/history")["at"]) >= 3


def test_a_blocking_exchange_is_shown_with_what_its_tasks_told(spark: Any) -> None:
    df = spark.range(0, 1_000, 1, 3).selectExpr("id as k")
    assert fbs.repartition(df, 2, "k", mode="blocking").count() == 1_000

    def told(job: Any) -> list[int]:
        return [vertex["records"] for vertex in job["vertices"]]

    # The last words come after the rows, and an answer may be a second old
    job = in_the_end(lambda: ask("/snapshot")["jobs"][-1], lambda job: told(job) == [1_000, 1_000])
    assert told(job) == [1_000, 1_000]
    assert (job["state"], job["diagnosis"]) == ("FINISHED", None)


def test_it_is_off_unless_it_is_asked_for(sessions: Sessions) -> None:
    spark = sessions.get("local[6]")
    df = spark.range(0, 100, 1, 2).selectExpr("id as k")
    assert fbs.repartition(df, 2, "k").count() == 100
    assert page._open is None
