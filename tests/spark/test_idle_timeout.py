"""Spark may end workers that write nothing to it for long: tasks that are at work give a sign of life meanwhile."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from nights import nightly

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError

SETTINGS = {
    "spark.sql.execution.pyspark.udf.idleTimeoutSeconds": "7",  # signs come every five
    "spark.sql.execution.pyspark.udf.killOnIdleTimeout": "true",
}


@pytest.fixture
def impatient(spark: Any) -> Iterator[Any]:
    before = {name: spark.conf.get(name, None) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def steady(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Ten rows every six tenths of a second."""
    for batch in batches:
        for at in range(0, batch.num_rows, 10):
            time.sleep(0.6)  # stands for work
            yield batch.slice(at, 10)


@nightly(task="map")
@pytest.mark.parametrize("task", ["map", "files"])
def test_a_task_that_is_at_work_is_not_idle(impatient: Any, tmp_path: Path, task: str) -> None:
    """Both were killed after seven seconds, each time they were tried."""
    df = impatient.range(0, 300, 1, 2).selectExpr("id", "id % 7 as k")
    if task == "map":
        moved = fbs.map_in_arrow(
            df, lambda b: b, df.schema, keys="k", num_partitions=2, before=steady, before_schema=df.schema
        )
        assert sorted(row.id for row in moved.collect()) == list(range(300))
    else:
        df.write.parquet(str(tmp_path / "in"))
        rows = fbs.read_parquet(impatient, str(tmp_path / "in"))
        rows.map_in_arrow(steady, df.schema).write_parquet(str(tmp_path / "out"))
        assert sorted(row.id for row in impatient.read.parquet(str(tmp_path / "out")).collect()) == list(range(300))


def test_a_child_that_leaves_a_task_by_its_end_says_so(spark: Any) -> None:
    """The child unwound the task's blocks, and died of our own error, without a line of the user's."""

    def forks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            child = os.fork()
            if child == 0:
                sys.exit(0)
            os.waitpid(child, 0)
            yield batch

    df = spark.range(0, 10, 1, 1)
    with pytest.raises(Exception, match=r"sys[.]exit\(0\)|SystemExit") as raised:
        fbs.map_in_arrow(df, forks, df.schema, keys="id", num_partitions=1).collect()
    assert "list.remove" not in str(raised.value)


def test_a_stream_is_refused(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks were ended each so many seconds, and started again, for ever."""
    settings = {"spark.python.worker.killOnIdleTimeout": "true", "spark.python.worker.idleTimeoutSeconds": "300"}
    monkeypatch.setattr("fastbuf_spark.streams.query.setting", lambda sc, name, default: settings.get(name, default))
    stream = fbs.stream_rate(spark, 1.0, rows=1)
    with pytest.raises(
        ConfigError, match="killOnIdleTimeout is set, with idleTimeoutSeconds=300: the tasks of a stream"
    ):
        stream.write_stream(fbs.to_memory(), tmp_path / "chk")
    settings["spark.python.worker.idleTimeoutSeconds"] = "0"
    assert stream.write_stream(fbs.to_memory(), tmp_path / "chk", every=0.1).await_termination("1 minute")
