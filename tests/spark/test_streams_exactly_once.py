"""Exactly once: no row is lost or doubled, whatever dies at whatever point of the protocol, whatever takes the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nights import nightly
from numbered import check, nothing_waits, numbered
from stream_sinks import SINKS

import fastbuf_spark as fbs

ROWS, RATE = 6000, 3000.0
CONF = fbs.ShuffleConf(memory_bytes=1 << 20, segment_size=4 << 10)
#: Who comes to each point of the protocol, but those of the driver (test_streams_driver.py)
ROLES = {
    "before prepare": ("source", "state", "sink"),
    "after prepare": ("source", "state", "sink"),
    "barrier out": ("source", "state", "sink"),
    "file written": ("state",),
    "after fsync": ("state",),
    "acknowledged": ("source", "state", "sink"),
    "notified": ("source", "state", "sink"),
    "before commit": ("sink",),
    "in commit": ("sink",),
    "after commit": ("sink",),
}
POINTS = [f"{point}@{role}" for point, roles in ROLES.items() for role in roles]


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("point", POINTS)
@nightly(but_one="point")
def test_a_process_that_is_killed_at_a_point(
    spark: Any, tmp_path: Path, fail_at: Any, server: Any, point: str, sink: str
) -> None:
    if sink == "memory" and point.startswith("in commit"):
        pytest.skip("rows in the driver's memory have no such point: a commit is one message")
    target = SINKS[sink](tmp_path, server)
    killed = fail_at(point)
    query = numbered(spark, ROWS, RATE, conf=CONF).write_stream(target.sink, tmp_path / "chk", every=0.1)
    assert query.await_termination(120), query.progress()
    assert query.status["state"] == "finished"
    assert killed.exists(), "nothing was killed"
    assert query.status["restarts"] == 1
    check(target.table(), ROWS, ordered=target.ordered)
    nothing_waits(tmp_path / "chk")


@pytest.mark.parametrize("point", ["barrier out@source", "after prepare@state", "acknowledged@sink"])
@nightly(but_one="point")
def test_barriers_of_two_sources(spark: Any, tmp_path: Path, fail_at: Any, point: str) -> None:
    """Four splits in two tasks: the stage with state waits for the barriers of both."""
    target = SINKS["memory"](tmp_path, None)
    killed = fail_at(point)
    stream = numbered(spark, ROWS, RATE, splits=4, tasks=2, conf=CONF)
    query = stream.write_stream(target.sink, tmp_path / "chk", every=0.1)
    assert query.await_termination(120), query.progress()
    assert killed.exists(), "nothing was killed"
    assert query.status["restarts"] == 1
    check(target.table(), ROWS, splits=4, ordered=True)
    nothing_waits(tmp_path / "chk")


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("point", ["notified@state", "barrier out@source", "acknowledged@sink"])
@nightly(but_one="point")
@nightly(sink=["delta", "delta_upsert", "postgres", "kafka"])
def test_at_least_once_loses_nothing(
    spark: Any, tmp_path: Path, fail_at: Any, server: Any, point: str, sink: str
) -> None:
    target = SINKS[sink](tmp_path, server)
    killed = fail_at(point)
    stream = numbered(spark, ROWS, RATE, splits=2, tasks=2, conf=CONF)
    query = stream.write_stream(target.sink, tmp_path / "chk", every=0.1, guarantee="at_least_once")
    assert query.await_termination(120), query.progress()
    assert query.status["state"] == "finished"
    assert killed.exists(), "nothing was killed"
    assert query.status["restarts"] == 1
    assert set(target.table().column("v").to_pylist()) == set(range(ROWS))
