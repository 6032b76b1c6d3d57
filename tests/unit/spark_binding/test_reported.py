"""Runs of blocking exchanges, as their tasks tell them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fastbuf_spark.driver import reported
from fastbuf_spark.driver.reported import Reported
from fastbuf_spark.driver.run import CAUSE_S, StageTasks
from fastbuf_spark.driver.summary import RunSummary, too_many

LIVE = {"state": "runs"}


class Told:
    """A blocking exchange; each task has a connection of its own, which is known by a number."""

    def __init__(self) -> None:
        self.summaries: list[RunSummary] = []
        self.fates: dict[tuple[int, int], str | None] = {}
        tasks = StageTasks(4, 2, 0)
        self.runs = Reported("x", "total", "blocking", self.summaries, lambda stage: tasks, self._fate)

    def _fate(self, stage: int, attempt: int) -> str | None:
        return self.fates.get((stage, attempt), "killed: ")

    def __call__(self, peer: int, side: str, partition: int, stage: int, now: float = 0.0, **stats: Any) -> None:
        """The attempt of a task has the number of its connection."""
        self.runs.tells(peer, side, partition, stage, peer, stats, now)

    def lost(self, peer: int, now: float = 0.0) -> None:
        self.runs.lost(peer, now)


def test_a_run_goes_on_while_one_of_its_tasks_does() -> None:
    told = Told()
    told(1, "producer", 0, 7, records=5, **LIVE)
    told(2, "producer", 1, 7, records=3, **LIVE)
    (run,) = told.runs.progress(0.0)
    assert (run.outcome, run.tasks, run.records_sent, run.producers_done) == ("running", 4, 8, 0)
    told(1, "producer", 0, 7, records=9)
    assert (run.outcome, run.records_sent, run.producers_done) == ("running", 12, 1)
    told.lost(1)  # its connection ends after its last figures
    told(2, "producer", 1, 7, records=6)
    assert (run.outcome, run.records_sent) == ("ok", 15)
    told(3, "consumer", 0, 8, records=4, **LIVE)  # then the other side begins
    assert (run.outcome, run.records_received) == ("running", 4)
    assert told.summaries == [run]


def test_what_a_task_told_that_failed_is_taken_back() -> None:
    told = Told()
    told(1, "producer", 0, 7, records=5, **LIVE)
    told(2, "producer", 0, 7, records=6, **LIVE)  # Spark's second attempt, beside the first
    told.lost(1)
    (run,) = told.summaries
    assert run.producers == {0: {"records": 6, "state": "runs"}}
    told(2, "producer", 0, 7, records=9)
    told(3, "producer", 0, 7, records=1, **LIVE)  # a third that Spark is about to kill
    assert run.producers == {0: {"records": 9}}
    told.lost(3)
    assert run.producers == {0: {"records": 9}}
    told(4, "producer", 1, 7, records=1, **LIVE)
    told.lost(4)
    assert (run.producers, run.outcome) == ({0: {"records": 9}}, "ok")


def test_a_run_has_failed_while_a_tasks_last_attempt_has() -> None:
    told = Told()
    told(1, "producer", 0, 7, records=5)
    told(2, "producer", 1, 7, records=3, **LIVE)
    told(3, "producer", 2, 7, failed="KeyError: 'b'")  # it has told nothing before
    (run,) = told.summaries
    assert (run.outcome, run.reason) == ("running", "")  # another one goes on
    told(2, "producer", 1, 7, failed="ValueError: a")
    assert (run.outcome, run.reason, run.producers) == ("aborted", "KeyError: 'b'", {0: {"records": 5}})
    assert told.runs.progress(10.0) == []
    told(4, "producer", 2, 7, records=4, **LIVE)  # Spark tries them again
    assert (run.outcome, run.reason) == ("running", "")
    told(4, "producer", 2, 7, records=4)
    assert (run.outcome, run.reason) == ("aborted", "ValueError: a")
    told(5, "producer", 1, 7, records=3)
    assert (run.outcome, run.reason, run.records_sent) == ("ok", "", 12)


def test_of_a_task_that_vanished_spark_says_whether_it_has_failed() -> None:
    told = Told()
    told(1, "producer", 0, 7, records=5)
    told(2, "producer", 1, 7, records=3, **LIVE)
    told.fates[(7, 2)] = None
    told.lost(2, 1.0)
    (run,) = told.summaries
    assert (run.outcome, run.producers, told.runs.waiting) == ("running", {0: {"records": 5}}, True)
    told.fates[(7, 2)] = "failed: Python worker exited unexpectedly"
    told.runs.tick(1.2)
    assert (run.outcome, told.runs.waiting) == ("aborted", False)
    assert run.reason == (
        "producer of partition 1 (attempt 2) vanished; Spark says:\nfailed: Python worker exited unexpectedly"
    )
    told(3, "producer", 1, 7, records=4)  # Spark tries it again
    assert (run.outcome, run.reason, run.records_sent) == ("ok", "", 9)


def test_a_task_of_which_spark_knows_nothing_was_none() -> None:
    told = Told()
    told(1, "consumer", 0, 7, records=5, **LIVE)
    told.fates[(7, 1)] = None
    told.lost(1, 1.0)
    told.runs.tick(1.0 + CAUSE_S / 2)
    (run,) = told.summaries
    assert run.outcome == "running"
    told.runs.tick(1.0 + CAUSE_S)
    assert (run.outcome, told.runs.waiting) == ("ok", False)


def test_a_stage_is_of_one_run_though_two_actions_run_at_once() -> None:
    told = Told()
    for second in range(1, 6):
        told(1, "producer", 0, 7, records=second, **LIVE)
        told(2, "producer", 0, 9, records=10 * second, **LIVE)
    assert [run.records_sent for run in told.summaries] == [5, 50]
    assert told.runs.progress(0.0) == told.summaries


def test_a_run_of_short_tasks_is_under_way_for_a_moment_after_the_last() -> None:
    told = Told()
    told(1, "producer", 0, 7, now=100.0, records=5)
    assert told.runs.progress(100.5) == told.summaries
    assert told.runs.progress(100.0 + 2 * reported.RECENT_S) == []


def test_runs_that_are_no_longer_kept_are_forgotten() -> None:
    told = Told()
    told(1, "producer", 0, 7, records=5)
    told.summaries.clear()
    told(2, "consumer", 0, 8, records=5)
    assert [run.records_sent for run in told.summaries] == [0]
    assert told.runs.progress(0.5) == told.summaries


@pytest.mark.parametrize(
    ("partitions", "cores", "mib", "said"),
    [
        (200, 2, 1, "200 partitions of 5.1 KiB, 2 at once: .* about 1.6 s more than to start 2, of 0.5 MiB each"),
        (200, 2, 129, ""),  # two of them would not fit into the memory of a task
        (200, 64, 1, ""),
        (75, 2, 1, ""),  # less than a second
        (2, 2, 0, ""),
        (1, 4, 0, ""),
    ],
)
def test_partitions_that_cost_more_than_they_bring(partitions: int, cores: int, mib: int, said: str) -> None:
    words = too_many("total", partitions, cores, mib << 20, 64 << 20)
    assert re.search(said, words) if said else not words


def test_whoever_advises_hears_of_each_consumer_that_is_done() -> None:
    heard: list[int] = []
    runs = Reported("x", "total", "blocking", [], lambda stage: None, done=lambda run: heard.append(len(run.consumers)))
    runs.tells("a", "producer", 0, 1, 10, {"records": 1}, 0.0)
    runs.tells("b", "consumer", 0, 2, 11, {"records": 0, "state": "reading"}, 0.0)
    runs.tells("b", "consumer", 0, 2, 11, {"records": 1}, 0.0)
    runs.tells("c", "consumer", 1, 2, 12, {"records": 1}, 0.0)
    assert heard == [1, 2]


def refusals() -> tuple[Told, list[tuple[int, str]]]:
    told, refused = Told(), []
    told.runs._refuse = lambda stage, reason: refused.append((stage, reason))
    return told, refused


def test_a_map_task_that_places_its_rows_otherwise_is_refused_if_a_consumer_has_ended() -> None:
    told, refused = refusals()
    told(1, "producer", 0, 7, digest="a")
    told(2, "producer", 1, 7, digest="b")
    told(3, "consumer", 0, 8, elapsed=0.5, now=2.0)
    told(4, "producer", 1, 7, digest="b", now=3.0)  # Spark runs it again: the same rows
    assert not refused
    told(5, "producer", 0, 7, digest="c", now=4.0)
    ((stage, reason),) = refused
    assert stage == 7
    assert "map task 0 ran again and placed its rows otherwise" in reason


def test_one_that_runs_again_before_the_consumers_begin_is_not_refused() -> None:
    told, refused = refusals()
    told(1, "producer", 0, 7, digest="a", now=1.0)
    told(2, "producer", 0, 7, digest="c", now=2.0)  # as of speculation
    told(3, "consumer", 0, 8, elapsed=0.5, now=3.0)
    assert not refused
    told(4, "consumer", 1, 8, elapsed=2.5, now=4.0)  # it may have read the first attempt
    assert [stage for stage, _ in refused] == [8]


def test_a_lost_task_that_an_adaptive_plan_runs_again_as_another_stage() -> None:
    told, refused = refusals()
    told(1, "producer", 0, 7, digest="a", run=5, now=1.0)
    told(2, "consumer", 0, 8, elapsed=0.1, now=2.0)
    told(3, "producer", 0, 9, digest="c", run=5, now=3.0)
    assert [stage for stage, _ in refused] == [9]


def test_each_run_of_an_exchange_has_attempts_of_its_own() -> None:
    told, refused = refusals()
    told(1, "producer", 0, 7, digest="a", now=1.0)
    told(2, "consumer", 0, 8, elapsed=0.1, now=2.0)
    told(3, "producer", 0, 9, digest="c", now=3.0)  # the next action reads its input anew
    told(4, "consumer", 0, 10, elapsed=0.1, now=4.0)
    assert not refused
