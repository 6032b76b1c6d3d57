"""Exactly once: no row is lost or doubled, whatever dies at whatever point of the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numbered
import pyarrow.parquet as pq
import pytest
from nights import nightly
from numbered import check, nothing_waits

import fastbuf_spark as fbs
from fastbuf_spark.streams import fail_points

ROWS, RATE = 6000, 3000.0
BY_DAY = ("barrier out", "after fsync", "notified", "in commit")
OF_TASKS = tuple(point for point in fail_points.POINTS if "metadata" not in point)


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


@pytest.mark.parametrize("sink", ["parquet", "memory"])
@pytest.mark.parametrize("point", OF_TASKS)
@nightly(sink="memory")
@nightly(point=[point for point in OF_TASKS if point not in BY_DAY])
def test_a_process_that_is_killed_at_a_point(spark: Any, tmp_path: Path, fail_at: Any, point: str, sink: str) -> None:
    if sink == "memory" and point == "in commit":
        pytest.skip("rows in the driver's memory have no such point: a commit is one message")
    killed = fail_at(point)
    target: Any = fbs.to_memory() if sink == "memory" else fbs.to_parquet(tmp_path / "out")
    query = numbered.numbered(spark, ROWS, RATE).write_stream(target, tmp_path / "chk", every=0.2)
    assert query.await_termination(120)
    assert query.status["state"] == "finished"
    assert killed.exists(), "nothing was killed"
    assert query.status["restarts"] == 1
    table = target.table() if sink == "memory" else pq.read_table(tmp_path / "out", partitioning=None)
    check(table, ROWS)
    nothing_waits(tmp_path / "chk")


def test_a_task_that_is_killed_while_it_commits_to_delta(spark: Any, tmp_path: Path, fail_at: Any) -> None:
    """The version is in the table's log, and nobody was told: it is not committed again."""
    deltalake = pytest.importorskip("deltalake", reason="pip install 'fastbuf[delta]'")
    killed = fail_at("in commit")
    query = numbered.numbered(spark, ROWS, RATE).write_stream(
        fbs.to_delta(tmp_path / "out", "k"), tmp_path / "chk", every=0.2
    )
    assert query.await_termination(120)
    assert query.status["state"] == "finished"
    assert killed.exists(), "nothing was killed"
    assert query.status["restarts"] == 1
    check(deltalake.DeltaTable(tmp_path / "out").to_pyarrow_table(), ROWS)
    nothing_waits(tmp_path / "chk")
