"""What ``explain`` says of stages, without a Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from fastbuf.errors import PreflightError
from fastbuf_spark.conf import MODES, ShuffleConf
from fastbuf_spark.driver.mode import choose
from fastbuf_spark.driver.pipeline import Plan, Stage
from fastbuf_spark.driver.staged import Staged


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


GIB = 1 << 30


@pytest.mark.parametrize(
    ("mode", "slots", "exchanges", "nbytes", "partitions"),
    [
        ("auto", 8, 1, 0, 8),
        ("auto", 8, 3, GIB, 16),  # of 64 MiB each
        ("blocking", 1, 1, 0, 1),
        ("auto", None, 1, GIB, 200),  # as Spark's own
        ("pipelined", 8, 1, GIB, 4),  # all run at the same time, and a producer too
        ("pipelined", 9, 2, 0, 4),
        ("pipelined", 8, 3, 0, 2),
        ("pipelined", 1, 1, 0, 1),
    ],
)
def test_partitions_that_nobody_gave(
    mode: str, slots: int | None, exchanges: int, nbytes: int, partitions: int
) -> None:
    kind = "pyspark.sql.connect.session"
    session = type("SparkSession", (), {"__module__": kind, "conf": {"spark.sql.shuffle.partitions": "200"}})()
    for conf, asked in ((ShuffleConf(), mode), (ShuffleConf(mode=mode), "auto")):
        plan = Plan(session, conf, exchanges, False)
        plan.slots, plan.nbytes = slots, nbytes
        assert plan.count(None, asked) == partitions
        assert plan.count(None, asked) == partitions, "as many as the exchange before"


def test_tasks_of_partitions_that_nobody_counts() -> None:
    """Four for each slot serve them all; the partitions of a DataFrame have a task each."""
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    at = Staged(None, None)  # type: ignore[arg-type]
    for shared, want in ((False, [16, 16]), (True, [16, 200])):
        plan = Plan(session, ShuffleConf(), 2, shared)
        plan.slots = 4
        assert [made.reduce_tasks for made in _made_in_turn(plan, at)] == want
    plan = Plan(session, ShuffleConf(), 1, False)
    plan.slots = 4
    assert plan.shuffle(at, (), 3, "auto").reduce_tasks == 3


def _made_in_turn(plan: Plan, at: Staged) -> Iterator[Any]:
    for _ in range(2):
        yield plan.shuffle(at, (), 200, "auto")
        plan.entered(at, "shuffle", 200)


@pytest.mark.parametrize(
    ("asked", "session", "can", "want"),
    [
        ("auto", "auto", False, "blocking"),
        ("auto", "blocking", False, "blocking"),
        ("auto", "pipelined", True, "pipelined"),
        ("auto", "pipelined", False, "spark.fastbuf.mode=pipelined cannot run: no slots; no driver"),
        ("blocking", "pipelined", False, "blocking"),
        ("pipelined", "auto", True, "pipelined"),
        ("pipelined", "blocking", False, "mode='pipelined' cannot run: no slots; no driver"),
    ],
)
def test_the_mode_is_what_is_asked_for(asked: str, session: str, can: bool, want: str) -> None:
    def obstacles() -> list[str]:
        assert "pipelined" in (asked, session), "nobody asks what a blocking exchange does not need"
        return [] if can else ["no slots", "no driver"]

    if want in MODES:
        assert choose(asked, session, obstacles) == want
    else:
        with pytest.raises(PreflightError, match=re.escape(want)):
            choose(asked, session, obstacles)


@pytest.mark.parametrize("shared", [False, True])
def test_slots_of_blocking_exchanges_do_not_read_as_one_task_after_the_other(shared: bool) -> None:
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    plan = Plan(session(), ShuffleConf(), 1, shared)
    plan.slots = 4
    assert "slots   as many of 4 as a stage has tasks; no exchange holds some from beginning to end" in plan.text()
    plan.held_slots = 1
    assert f"slots   {3 if shared else 2} at the same time" in plan.text()
