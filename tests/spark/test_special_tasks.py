"""Barrier stages and resource profiles, as the arguments of Spark's ``mapInArrow`` and ``mapInPandas`` ask for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from conftest import failure
from nights import nightly

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, PreflightError

pytestmark = pytest.mark.spark
SEEN = "id long, kind string, cpus long, pid long"


def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The context and the process that a function runs in."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    for batch in batches:
        rows = batch.num_rows
        said = {"kind": [type(context).__name__] * rows, "cpus": [context.cpus()] * rows, "pid": [os.getpid()] * rows}
        yield pa.record_batch({"id": batch["id"], **said})


def framed(frames: Iterator[Any]) -> Iterator[Any]:
    from pyspark import TaskContext

    for frame in frames:
        yield frame.assign(kind=type(TaskContext.get()).__name__, cpus=0, pid=os.getpid())


def tagged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows as they come, with the process of a later function."""
    for batch in batches:
        yield batch.set_column(2, "cpus", pa.array([os.getpid()] * batch.num_rows))


def kinds(rows: list[Any]) -> set[str]:
    assert sorted(row.id for row in rows) == list(range(20))
    return {row.kind for row in rows}


@pytest.mark.parametrize("barrier", [False, True])
def test_a_barrier_stage(spark: Any, barrier: bool) -> None:
    df, kind = spark.range(0, 20, 1, 2), {"BarrierTaskContext" if barrier else "TaskContext"}
    made = fbs.map_in_arrow(df, seen, SEEN, keys="id", num_partitions=2, barrier=barrier)
    assert kinds(made.collect()) == kind
    line = fbs.pipeline(df).shuffle("id", partitions=2).map_in_arrow(seen, SEEN, barrier=barrier)
    assert kinds(line.collect()) == kind
    after = line.map_in_arrow(tagged, SEEN).shuffle("id", partitions=1)
    rows = after.collect()
    assert kinds(rows) == kind
    assert {row.cpus == row.pid for row in rows} == {not barrier}, "its stage's worker ends with it"
    framed_line = fbs.pipeline(df).shuffle("id", partitions=2).map_in_pandas(framed, SEEN, barrier=barrier)
    assert kinds(framed_line.collect()) == kind


def test_what_cannot_be_special(spark: Any) -> None:
    df = spark.range(20)
    given: dict[str, Any] = {"keys": "id", "num_partitions": 2}
    with pytest.raises(PreflightError, match="mode='pipelined' cannot run: its tasks are a barrier stage"):
        fbs.map_in_arrow(df, seen, SEEN, barrier=True, mode="pipelined", **given)
    with pytest.raises(PreflightError, match="mode='pipelined' cannot run: its tasks are a barrier stage"):
        fbs.pipeline(df).shuffle("id", partitions=1, mode="pipelined").map_in_arrow(seen, SEEN, barrier=True).collect()
    with pytest.raises(PreflightError, match=r"barrier=True cannot run: 5 .* 5 > 4 slots"):
        fbs.map_in_arrow(df, seen, SEEN, keys="id", num_partitions=5, barrier=True)
    with pytest.raises(PreflightError, match=r"barrier=True cannot run: 5 .* 5 > 4 slots"):
        fbs.pipeline(df).shuffle("id", partitions=5).map_in_arrow(seen, SEEN, barrier=True).collect()
    for call in (fbs.pipeline(df).map_in_arrow, fbs.pipeline(df).map_in_pandas):
        with pytest.raises(ConfigError, match="barrier is 1: give True or False"):
            call(seen, SEEN, barrier=1)  # type: ignore[operator]
        with pytest.raises(ConfigError, match="profile is 'gpu': give a pyspark"):
            call(seen, SEEN, profile="gpu")  # type: ignore[operator]


@nightly
def test_a_resource_profile(sessions: Any) -> None:
    """A cluster has them, and local masters do not."""
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    spark = sessions.get("local-cluster[1,4,1024]")
    profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(3)).build
    df = spark.range(0, 20, 1, 2)
    made = fbs.map_in_arrow(df, seen, SEEN, keys="id", num_partitions=2, profile=profile)
    line = fbs.pipeline(df).shuffle("id", partitions=2).map_in_arrow(seen, SEEN, profile=profile)
    for rows in (made.collect(), line.collect()):
        assert {row.cpus for row in rows} == {3}
        assert kinds(rows) == {"TaskContext"}
    plain = fbs.map_in_arrow(df, seen, SEEN, keys="id", num_partitions=2, mode="blocking")
    assert {row.cpus for row in plain.collect()} == {1}
    assert "resource profile" in failure(
        lambda: fbs.map_in_arrow(df, seen, SEEN, keys="id", num_partitions=2, profile=profile, mode="pipelined")
    )
