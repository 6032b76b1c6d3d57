"""Tasks that Spark tries again: nothing is lost, and nothing is sent twice."""

from __future__ import annotations

from typing import Any

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
    with pytest.raises(Exception, match="producer of partition 0 failed") as caught:
        in_time(SOON_S, shuffled(retrying, stages.FailingOnce(WORDS, 2)).collect)
    assert WORDS in str(caught.value)
    assert "FailingOnce" in str(caught.value) or "stages.py" in str(caught.value)


def test_blocking_retries_whatever_failed(retrying: Any) -> None:
    rows = in_time(SOON_S, shuffled(retrying, stages.FailingOnce(WORDS, 2), "blocking").collect)
    assert sum(r.n for r in rows) == 60_000


def test_a_barrier_stage_that_is_run_again_is_a_new_epoch(retrying: Any) -> None:
    df = retrying.range(0, 60_000, 1, 2).selectExpr("id % 17 as k", "id")
    made = fbs.map_in_arrow(df, FailsFirstStage(), df.schema, keys="k", num_partitions=2, mode="pipelined")
    # Spark's shuffle behind it makes it a stage that can be run again
    assert in_time(2 * SOON_S, made.repartition(3).count) == 60_000
    told(lambda run: run.outcome, "ok")
    assert [run.outcome for run in list_runs()][-2:] == ["aborted", "ok"]


def list_runs() -> list[fbs.RunSummary]:
    from fastbuf_spark import rendezvous

    return [summary for server in rendezvous.servers() for summary in server.summaries]


class FailsFirstStage:
    """Fails once in all, remembered in a file that the driver names: a rerun stage counts its attempts from 0 again."""

    def __init__(self) -> None:
        import tempfile

        self.mark = tempfile.mktemp(prefix="fastbuf-test-")

    def __call__(self, batches: Any) -> Any:
        import os

        from pyspark import TaskContext

        context: Any = TaskContext.get()
        if context.partitionId() == 0 and not os.path.exists(self.mark):
            with open(self.mark, "w"):
                pass
            raise ValueError(WORDS)
        yield from batches
