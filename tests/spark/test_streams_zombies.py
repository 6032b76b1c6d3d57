"""An executor stands still in the middle of a commit, is given up, and goes on when others do its work."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numbered
import psutil
import pytest
from conftest import in_the_end
from killings import Cluster, of_role
from nights import nightly
from numbered import check, nothing_waits
from stream_sinks import SINKS
from test_streams_ends import seen, until

import fastbuf_spark as fbs

ROWS, RATE = 80_000, 4000.0
CONF = fbs.ShuffleConf(memory_bytes=1 << 20, segment_size=4 << 10)
#: Spark gives up an executor of which it hears nothing after ten seconds, not after two minutes
SOON = {"spark.network.timeout": "10s", "spark.network.timeoutInterval": "2s", "spark.executor.heartbeatInterval": "1s"}


@pytest.fixture(scope="module")
def watchful(sessions: Any) -> Iterator[Cluster]:
    """A cluster with these settings, which Spark looks at before a session's are known."""
    from pyspark import SparkContext

    sessions.get("local[4]")
    sessions.stop()
    system = SparkContext._jvm.System
    for name, value in SOON.items():
        system.setProperty(name, value)
    cluster = Cluster(sessions, "local-cluster[2,2,1024]")
    yield cluster
    cluster.close()
    for name in SOON:
        system.clearProperty(name)


def executor_of(spark: Any, worker: int, folder: Path) -> list[psutil.Process]:
    """Processes of the executor that a worker belongs to: its Java, and the daemon that starts its workers."""
    above = psutil.Process(worker).parents()
    executor = next(each for each in of_role(spark, "executor", folder) if each in above)
    return [executor, *(each for each in above if each.ppid() == executor.pid)]


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("point", ["in commit@sink", "before commit@sink", "after prepare@sink"])
@nightly
def test_a_task_that_goes_on_when_another_has_its_place(
    watchful: Cluster, tmp_path: Path, fail_at: Any, server: Any, point: str, sink: str
) -> None:
    if sink == "memory" and point.startswith("in commit"):
        pytest.skip("rows in the driver's memory have no such point: a commit is one message")
    spark = watchful.ready()
    target = SINKS[sink](tmp_path, server)
    stopped = fail_at(point, how="stop")
    query = numbered.keyed_sums(spark, ROWS, RATE, conf=CONF).write_stream(
        target.sink, tmp_path / "chk", every=0.2, timeout="2 seconds", tolerated_failures=0
    )
    until(lambda: stopped.exists() and stopped.read_text())
    zombie = psutil.Process(int(stopped.read_text()))
    executor = executor_of(spark, zombie.pid, tmp_path)
    for process in executor:
        process.suspend()
    try:
        # Spark may place the first restart on the stopped executor, which has a free slot
        until(lambda: query.status["restarts"] and seen(query) > 1, 120)
        zombie.resume()
        time.sleep(1)  # for its commit; the daemon that would end it is stopped, too
    finally:
        for process in [zombie, *executor]:
            with contextlib.suppress(psutil.NoSuchProcess):  # Spark ends an executor that it has given up
                process.resume()
    assert query.await_termination(120), query.progress()
    check(target.table(), ROWS, ordered=target.ordered)
    nothing_waits(tmp_path / "chk")
    assert in_the_end(lambda: len(of_role(spark, "executor", tmp_path)), lambda n: n == 2) == 2
