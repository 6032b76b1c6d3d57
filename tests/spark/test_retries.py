"""Tasks that Spark tries again: nothing is lost, and nothing is sent twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import stages
from conftest import in_time, told

import fastbuf_spark as fbs

pytestmark = pytest.mark.spark
WORDS = "the first attempt of this task fails"
SOON_S = 60.0  # half of the time after which what waits in vain gives up (stall_timeout)


@pytest.fixture
def retrying(sessions: Any) -> Any:
    """A Spark that tries each task twice."""
    made = sessions.get("local[4,2]")
    made.range(0, 4, 1, 4).mapInArrow(stages.identity, "id long").count()
    return made


def shuffled(spark: Any, before: Any, mode: str = "pipelined") -> Any:
    df = spark.range(0, 60_000, 1, 2).selectExpr("id % 17 as k", "id")
    return fbs.map_in_arrow(
        df,
        stages.counts,
        stages.COUNTS,
        keys="k",
        num_partitions=2,
        before=before,
        before_schema=df.schema,
        mode=mode,
    )


def test_a_producer_that_fails_before_it_sent_anything_is_tried_again(retrying: Any) -> None:
    rows = in_time(SOON_S, shuffled(retrying, stages.FailingOnce(WORDS, 0)).collect)
    assert sum(r.n for r in rows) == 60_000
    assert sum(r.total for r in rows) == sum(range(60_000))
    told(lambda run: (run.outcome, run.records_received), ("ok", 60_000))


def test_a_producer_that_fails_after_it_sent_something_ends_the_run_with_its_text(retrying: Any) -> None:
    with pytest.raises(Exception, match=r"the producer of partition 0 of .* failed") as caught:
        in_time(SOON_S, shuffled(retrying, stages.FailingOnce(WORDS, 2)).collect)
    assert WORDS in str(caught.value)
    assert "FailingOnce" in str(caught.value) or "stages.py" in str(caught.value)


def test_blocking_retries_whatever_failed(retrying: Any) -> None:
    rows = in_time(SOON_S, shuffled(retrying, stages.FailingOnce(WORDS, 2), "blocking").collect)
    assert sum(r.n for r in rows) == 60_000


@pytest.mark.parametrize("above", [False, True])
def test_a_consumer_that_fails_costs_its_own_partition(retrying: Any, above: bool) -> None:
    df = retrying.range(0, 60_000, 1, 2).selectExpr("id % 17 as k", "id")
    made = fbs.map_in_arrow(df, FailsFirst(), df.schema, keys="k", num_partitions=2, mode="pipelined")
    # With Spark's shuffle behind it the consumers' stage is not the action's last
    assert in_time(2 * SOON_S, (made.repartition(3) if above else made).count) == 60_000
    told(lambda run: run.outcome, "ok")
    first, second = list_runs()[-2:]
    assert WORDS in first.reason
    assert (first.partitions, list(first.consumers)) == ([0, 1], [1]), "the other one's rows stay"
    assert second.partitions == [0]


def test_an_input_that_is_not_the_same_again_is_no_result(retrying: Any) -> None:
    """No plan tells that a function salts keys at random: the second run finds other keys, and says so."""

    def salted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import random

        for batch in batches:
            keys = pa.array([random.getrandbits(40) for _ in range(batch.num_rows)], pa.int64())
            yield pa.RecordBatch.from_arrays([keys, batch["id"]], names=["k", "id"])

    df = retrying.range(0, 60_000, 1, 2).selectExpr("id % 17 as k", "id")
    made = fbs.map_in_arrow(
        df,
        FailsFirst(),
        df.schema,
        keys="k",
        num_partitions=2,
        before=salted,
        before_schema=df.schema,
        mode="pipelined",
    )
    with pytest.raises(Exception, match="not deterministic") as caught:
        in_time(SOON_S, made.count)
    assert "mode='blocking'" in str(caught.value)
    once = fbs.map_in_arrow(
        df, stages.identity, df.schema, keys="k", num_partitions=2, before=salted, before_schema=df.schema
    )
    assert once.count() == 60_000, "one run needs no other to agree with"


def list_runs() -> list[fbs.RunSummary]:
    from fastbuf_spark.driver import rendezvous

    return [summary for server in rendezvous.servers() for summary in server.summaries]


class FailsFirst:
    """Fails once in all, in partition 0 after some rows, remembered in a file that the driver names."""

    def __init__(self) -> None:
        import tempfile

        self.mark = tempfile.mktemp(prefix="fastbuf-test-")

    def __call__(self, batches: Any) -> Any:
        import os

        from pyspark import TaskContext

        context: Any = TaskContext.get()
        for batch in batches:
            yield batch
            if context.partitionId() == 0 and not os.path.exists(self.mark):
                with open(self.mark, "w"):
                    pass
                raise ValueError(WORDS)
