"""Runs of a blocking exchange: the driver knows of them what their tasks tell.  Pure state, as :mod:`.run` is.

A task that takes longer than a second tells its figures once a second, and every task at its end.  A task that fails
tells its error instead; one that is killed, or whose rows nobody needs any more, tells nothing.  What such a task told
before is taken back.  A run has failed while a task's last attempt has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableSequence
from typing import Any

from fastbuf_spark.driver.run import StageTasks
from fastbuf_spark.driver.summary import RunSummary

RECENT_S = 1.0  #: tasks that are short tell at their ends alone: so long after the last one a run counts as under way

Figures = dict[str, Any]


class Reported:
    """The runs of one exchange.

    Parameters
    ----------
    exchange, name, mode
        Of the exchange, for the summaries.
    summaries
        Of all runs of the driver; a new run's is added.
    tasks
        Spark's count of a stage's tasks.
    """

    def __init__(
        self,
        exchange: str,
        name: str,
        mode: str,
        summaries: MutableSequence[RunSummary],
        tasks: Callable[[int], StageTasks | None],
    ) -> None:
        self._about = exchange, name, mode
        self._summaries = summaries
        self._tasks = tasks
        self._stages: dict[int, RunSummary] = {}
        self._running: dict[object, tuple[RunSummary, dict[int, Figures], int, Figures]] = {}  # by connection
        self._failed: dict[tuple[int, str, int], str] = {}  # by run, side and partition: the last attempt's error
        self._heard = 0.0  # when a task last told something

    def tells(self, peer: object, side: str, partition: int, stage: int, stats: Figures, now: float) -> None:
        """Figures of a task; with ``state`` it goes on, with ``failed`` alone it ends by this error.

        ``side``: ``"producer"`` or ``"consumer"``.
        """
        summary = self._run_of(side, partition, stage)
        self._heard = now
        if side == "producer" and summary.tasks is None:
            found = self._tasks(stage)
            summary.tasks = found.total if found is not None else None
        figures = _side(summary, side)
        if "failed" in stats:
            self._failed[summary.number, side, partition] = str(stats["failed"])
            self.lost(peer)
            self._brought_up(summary)
            return
        self._failed.pop((summary.number, side, partition), None)
        self._running.pop(peer, None)
        if "state" in stats:
            self._running[peer] = summary, figures, partition, stats
        if "state" not in stats or "state" in figures.get(partition, stats):  # else another attempt of it is done
            figures[partition] = stats
        self._brought_up(summary)

    def _run_of(self, side: str, partition: int, stage: int) -> RunSummary:
        """A stage is of one run, and a run has a task once: whoever comes again, in another stage, begins the next."""
        kept = {id(each) for each in self._summaries}
        self._stages = {k: each for k, each in self._stages.items() if id(each) in kept}
        numbers = {each.number for each in self._stages.values()}
        self._failed = {k: reason for k, reason in self._failed.items() if k[0] in numbers}
        summary = self._stages.get(stage)
        if summary is None:
            summary = max(self._stages.values(), key=lambda each: each.number, default=None)
            if summary is None or partition in _side(summary, side):
                exchange, name, mode = self._about
                summary = RunSummary(exchange, name, mode, outcome="ok")
                self._summaries.append(summary)
            self._stages[stage] = summary
        return summary

    def lost(self, peer: object) -> None:
        """A task's connection has closed, after its last figures or without them."""
        known = self._running.pop(peer, None)
        if known is not None:
            summary, figures, partition, stats = known
            if figures.get(partition) is stats:  # not those of another attempt
                del figures[partition]
            self._brought_up(summary)

    def _brought_up(self, summary: RunSummary) -> None:
        reasons = [reason for (number, _, _), reason in self._failed.items() if number == summary.number]
        running = any(each[0] is summary for each in self._running.values())
        summary.outcome = "running" if running else "aborted" if reasons else "ok"
        summary.reason = "" if running or not reasons else reasons[0]
        summary.seconds = time.time() - summary.began

    def progress(self, now: float) -> list[RunSummary]:
        """Runs that are under way, with the figures so far."""
        found = {each.number: each for each in list(self._stages.values()) if each.outcome == "running"}
        if not found and now - self._heard < RECENT_S:
            found = {each.number: each for each in list(self._stages.values())[-1:]}
        for summary in found.values():
            if summary.outcome == "running":
                summary.seconds = time.time() - summary.began
        return list(found.values())


def _side(summary: RunSummary, side: str) -> dict[int, Figures]:
    return summary.producers if side == "producer" else summary.consumers
