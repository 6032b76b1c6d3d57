"""What ``explain`` says of stages, without a Spark."""

from __future__ import annotations

import pytest

from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver.pipeline import Plan, Stage


def test_a_new_chain_has_no_partitions_of_its_own() -> None:
    """It moves no rows between partitions: it said that there were none."""
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    plan = Plan(session(), ShuffleConf(), 1, False)
    plan.stages += [
        Stage(["read"], 2),
        Stage(["first"], None, "a new chain, through the JVM", "Spark's own", "as asked for"),
        Stage(["last"], 1, "shuffle by k", "blocking"),
    ]
    assert plan.text().splitlines()[:5] == [
        "stage 1  2 tasks: read",
        "    == a new chain, through the JVM: Spark's own (as asked for)",
        "stage 2  first",
        "    == shuffle by k -> 1 partition: blocking",
        "stage 3  1 task: last",
    ]


@pytest.mark.parametrize(
    ("slots", "exchanges", "shared", "partitions"),
    [
        (8, 1, False, 4),
        (8, 1, True, 3),  # with half of the slots no result of to_df() was ever pipelined: 2 * 4 + 1 are too many
        (100, 1, True, 49),
        (5, 1, True, 2),
        (4, 1, True, 2),  # one partition would be no shuffle
        (3, 1, True, 1),
        (9, 2, False, 4),
        (9, 2, True, 2),
        (8, 2, True, 3),
        (1, 1, True, 1),
    ],
)
def test_partitions_that_nobody_gave_leave_slots(slots: int, exchanges: int, shared: bool, partitions: int) -> None:
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", "conf": {}})()
    plan = Plan(session, ShuffleConf(), exchanges, shared)
    plan.slots = slots
    assert plan.count(None) == partitions


@pytest.mark.parametrize("shared", [False, True])
def test_slots_of_blocking_exchanges_do_not_read_as_one_task_after_the_other(shared: bool) -> None:
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    plan = Plan(session(), ShuffleConf(), 1, shared)
    plan.slots = 4
    assert "slots   as many of 4 as a stage has tasks; no exchange holds some from beginning to end" in plan.text()
    plan.held = 1
    assert f"slots   {3 if shared else 2} at the same time" in plan.text()
