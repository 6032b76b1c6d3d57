"""The driver of a stream is killed, and another goes on from its checkpoints; of two at a time one is refused."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numbered
import psutil
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from nights import nightly
from numbered import check, nothing_waits

import fastbuf_spark as fbs
from fastbuf.checkpoint.store import CheckpointInUse
from fastbuf_spark.streams import messages
from fastbuf_spark.streams.run import StreamRun

ROWS, RATE = 4000, 2000.0


class Driver:
    """One in a process of its own."""

    def __init__(self, folder: Path, point: str) -> None:
        path = [str(ROOT), str(ROOT / "bindings"), str(ROOT / "tests" / "spark"), str(ROOT / "tests")]
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "spark" / "streams_program.py"), folder, point, str(ROWS), str(RATE)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYSPARK_PYTHON": sys.executable},
        )
        self.below: set[psutil.Process] = set()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def look(self) -> None:
        """Remember what it has started: once it is dead nobody knows."""
        self.below |= set(psutil.Process(self.process.pid).children(recursive=True))

    def gone(self) -> None:
        """It is dead, and with it all that it started."""
        self.process.wait(60)
        _, alive = psutil.wait_procs(self.below, timeout=30)
        assert alive == []


@pytest.mark.parametrize("point", ["before metadata", "after metadata", "at random"])
@nightly(point=["before metadata", "at random"])
def test_a_driver_that_is_killed(spark: Any, tmp_path: Path, point: str) -> None:
    driver = Driver(tmp_path, "" if point == "at random" else point)
    try:
        assert driver.line() == "started"
        driver.look()
        stream = numbered.numbered(spark, ROWS, 0)
        with pytest.raises(CheckpointInUse, match=f"in use by process {driver.process.pid} on "):
            stream.write_stream(fbs.to_parquet(tmp_path / "out"), tmp_path / "chk", every=0.2)
        if point == "at random":
            while not list((tmp_path / "chk" / "checkpoints").glob("*.json")):
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.8))
            driver.process.kill()
        driver.gone()
    finally:
        driver.process.kill()
        driver.process.communicate()
    assert driver.process.returncode == -9
    assert list((tmp_path / "chk" / "checkpoints").glob("*.json"))
    query = stream.write_stream(fbs.to_parquet(tmp_path / "out"), tmp_path / "chk", every=0.2)
    assert query.await_termination(60)
    check(pq.read_table(tmp_path / "out", partitioning=None), ROWS)
    nothing_waits(tmp_path / "chk")


def test_rows_that_are_told_last_are_there_at_the_end(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may say that its job has ended before all is read that tasks sent."""
    heard, overtaken = StreamRun.heard, []

    def behind_the_job(run: StreamRun, connection: Any, message: Any) -> None:
        if isinstance(message, messages.Collected) and run._final_done:
            overtaken.append(run._job_ended.wait(30))
            deadline = time.monotonic() + 0.5
            while run._outcome is None and time.monotonic() < deadline:
                time.sleep(0.01)  # that the query has seen the end of the job
        heard(run, connection, message)

    monkeypatch.setattr(StreamRun, "heard", behind_the_job)
    sink = fbs.to_memory()
    stream = fbs.stream_rate(spark, 0, rows=100, tasks=1).shuffle("value", partitions=1)
    assert stream.write_stream(sink, tmp_path, every=60).await_termination(60)
    assert overtaken == [True]
    assert sorted(sink.table()["value"].to_pylist()) == list(range(100))


@nightly
@pytest.mark.timeout(1800)
def test_drivers_that_are_killed_at_random(spark: Any, tmp_path: Path) -> None:
    """One after the other, each begins where the one before was killed; then all rows come."""
    dice = random.Random(5)
    for _ in range(20):
        driver = Driver(tmp_path, "")
        try:
            assert driver.line() == "started"
            driver.look()
            time.sleep(dice.uniform(0, 1.5))  # somewhere in a checkpoint, or between two
        finally:
            driver.process.kill()
            driver.process.communicate()
        driver.gone()
    stream = numbered.numbered(spark, ROWS, 0)
    query = stream.write_stream(fbs.to_parquet(tmp_path / "out"), tmp_path / "chk", every=0.2)
    assert query.await_termination(60)
    check(pq.read_table(tmp_path / "out", partitioning=None), ROWS)
    nothing_waits(tmp_path / "chk")
