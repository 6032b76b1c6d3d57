"""Runs of a blocking exchange: the driver knows of them what their tasks tell.  Pure state, as :mod:`.run` is.

A task that takes longer than a second tells its figures once a second, and every task at its end.  A task that fails
tells its error instead.  Of one that vanishes, Spark knows whether it has failed or was killed; what it told before is
taken back.  A run has failed while a task's last attempt has.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, MutableSequence
from dataclasses import dataclass
from typing import Any

from fastbuf_spark.driver.run import CAUSE_S, StageTasks, Vanished
from fastbuf_spark.driver.summary import RunSummary
from fastbuf_spark.wire import clip

RECENT_S = 1.0  #: tasks that are short tell at their ends alone: so long after the last one a run counts as under way

Figures = dict[str, Any]
Place = tuple[int, str, int]  #: run, side and partition of a task


@dataclass(frozen=True)
class _Running:
    """A task that goes on, and its figures so far."""

    summary: RunSummary
    place: Place
    stage: int
    attempt: int
    stats: Figures


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
    fate
        Spark's reason for the end of a task, by stage and attempt; None: not known yet.
    done
        Called with each summary in which another consumer is done.
    refuse
        Ends the jobs of a stage, with a reason; not called for a stage that Spark runs again as a whole.
    """

    def __init__(
        self,
        exchange: str,
        name: str,
        mode: str,
        summaries: MutableSequence[RunSummary],
        tasks: Callable[[int], StageTasks | None],
        fate: Callable[[int, int], str | None] = lambda stage, attempt: "",
        done: Callable[[RunSummary], None] = lambda summary: None,
        refuse: Callable[[int, str], None] = lambda stage, reason: None,
    ) -> None:
        self._done = done
        self._refuse = refuse
        self._digests: dict[tuple[int, int], tuple[str, RunSummary]] = {}  # of map tasks, by action and partition
        self._split: dict[int, tuple[float, str]] = {}  # runs of which attempts differ: when that was seen, and why
        self._about = exchange, name, mode
        self._summaries = summaries
        self._tasks = tasks
        self._fate = fate
        self._stages: dict[int, RunSummary] = {}
        self._running: dict[object, _Running] = {}  # by connection
        self._active: Counter[int] = Counter()  # of these, by run
        self._failed: dict[int, dict[Place, str]] = {}  # the last attempt's error, by run
        self._vanished: dict[Place, Vanished] = {}  # tasks of which Spark has not said yet how they ended
        self._heard = 0.0  # when a task last told something

    def tells(
        self, peer: object, side: str, partition: int, stage: int, attempt: int, stats: Figures, now: float
    ) -> None:
        """Figures of a task; with ``state`` it goes on, with ``failed`` alone it ends by this error.

        ``side``: ``"producer"`` or ``"consumer"``.
        """
        summary = self._run_of(side, partition, stage)
        self._heard = now
        if side == "producer" and summary.tasks is None:
            tasks = self._tasks(stage)
            summary.tasks = tasks.total if tasks is not None else None
        figures = _side(summary, side)
        place = summary.number, side, partition
        self._vanished.pop(place, None)
        if "failed" in stats:
            self._failed.setdefault(summary.number, {})[place] = str(stats["failed"])
            self._taken_back(self._left(peer))
            self._brought_up(summary)
            return
        self._failed.get(summary.number, {}).pop(place, None)
        self._left(peer)
        if "state" in stats:
            self._running[peer] = _Running(summary, place, stage, attempt, stats)
            self._active[summary.number] += 1
        if "state" not in stats or "state" in figures.get(partition, stats):  # else another attempt of it is done
            figures[partition] = stats
        if "state" not in stats:
            self._agree(summary, side, stage, partition, stats, now)
        self._brought_up(summary)
        if side == "consumer" and "state" not in stats:
            self._done(summary)

    def _agree(self, summary: RunSummary, side: str, stage: int, partition: int, stats: Figures, now: float) -> None:
        """Refuses a run if one of its consumers may have read another attempt of a map task than the others do.

        Spark takes attempts for equal where it does not know better: rows would be lost, and others doubled.
        """
        if side == "producer":
            place, digest = (int(stats.get("run", -1 - stage)), partition), str(stats.get("digest", ""))
            earlier, before = self._digests.setdefault(place, (digest, summary))
            self._digests[place] = digest, summary
            if digest == earlier:
                return
            name = self._about[1]
            reason = (
                f"exchange '{name}': map task {partition} ran again and placed its rows otherwise than before, so rows "
                "would be lost or doubled. Its input or the function before the shuffle gives other keys each time "
                "(random numbers, the time, a set's order): make it deterministic, or cache the input before"
            )
            # An adaptive plan runs again what is lost as another stage, which looks like another run
            self._split[before.number] = self._split[summary.number] = now, reason
            if any("state" not in figures for figures in (*before.consumers.values(), *summary.consumers.values())):
                self._refuse(stage, reason)
        elif summary.number in self._split:
            since, reason = self._split[summary.number]
            if now - float(stats.get("elapsed", 0.0)) < since:
                self._refuse(stage, reason)

    def _run_of(self, side: str, partition: int, stage: int) -> RunSummary:
        """A stage is of one run, and a run has a task once: whoever comes again, in another stage, begins the next."""
        summary = self._stages.get(stage)
        if summary is None or not any(each is summary for each in self._summaries):
            self._forget()
            summary = max(self._stages.values(), key=lambda each: each.number, default=None)
            if summary is None or partition in _side(summary, side):
                exchange, name, mode = self._about
                summary = RunSummary(exchange, name, mode, outcome="ok")
                self._summaries.append(summary)
            self._stages[stage] = summary
        return summary

    def _forget(self) -> None:
        """Drops what is known of runs that are no longer kept.  Not for every report: this looks at all tasks."""
        ids = {id(each) for each in self._summaries}
        self._stages = {k: each for k, each in self._stages.items() if id(each) in ids}
        self._digests = {k: digest for k, digest in self._digests.items() if id(digest[1]) in ids}
        numbers = {each.number for each in self._stages.values()}
        self._split = {number: why for number, why in self._split.items() if number in numbers}
        self._failed = {number: reasons for number, reasons in self._failed.items() if number in numbers}
        self._vanished = {k: gone for k, gone in self._vanished.items() if k[0] in numbers}

    def _left(self, peer: object) -> _Running | None:
        """A task does not go on, as far as it is known here."""
        running = self._running.pop(peer, None)
        if running is not None:
            self._active[running.summary.number] -= 1
        return running

    def lost(self, peer: object, now: float) -> None:
        """A task's connection has closed, after its last figures or without them."""
        running = self._left(peer)
        if self._taken_back(running) and running is not None:
            _, side, partition = running.place
            words = f"{side} of partition {partition} (attempt {running.attempt}) vanished"
            self._vanished[running.place] = Vanished(running.stage, running.attempt, words, now)
            self.tick(now)
            self._brought_up(running.summary)

    @staticmethod
    def _taken_back(running: _Running | None) -> bool:
        """Forgets the figures of a task; False: there are none, or they are another attempt's."""
        if running is None:
            return False
        _, side, partition = running.place
        figures = _side(running.summary, side)
        if figures.get(partition) is not running.stats:
            return False
        del figures[partition]
        return True

    @property
    def waiting(self) -> bool:
        """Whether Spark is still to say how a task has ended."""
        return bool(self._vanished)

    def tick(self, now: float) -> None:
        """Asks Spark how tasks ended that have vanished; to be called now and then."""
        for place, gone in list(self._vanished.items()):
            cause = self._fate(gone.stage, gone.attempt)
            if cause is None and now - gone.since < CAUSE_S:
                continue
            del self._vanished[place]
            if cause is not None and cause.startswith("failed"):
                reason = clip(f"{gone.words}; Spark says:\n{cause}")
                self._failed.setdefault(place[0], {})[place] = reason
            for summary in [each for each in self._stages.values() if each.number == place[0]][:1]:
                self._brought_up(summary)

    def _brought_up(self, summary: RunSummary) -> None:
        reason = next(iter(self._failed.get(summary.number, {}).values()), None)
        running = self._active[summary.number] > 0 or any(number == summary.number for number, _, _ in self._vanished)
        summary.outcome = "running" if running else "ok" if reason is None else "aborted"
        summary.reason = "" if running or reason is None else reason
        summary.seconds = time.time() - summary.began

    def progress(self, now: float) -> list[RunSummary]:
        """Runs that are under way, with the figures so far."""
        runs = {each.number: each for each in list(self._stages.values()) if each.outcome == "running"}
        if not runs and now - self._heard < RECENT_S:
            runs = {each.number: each for each in list(self._stages.values())[-1:]}
        for summary in runs.values():
            if summary.outcome == "running":
                summary.seconds = time.time() - summary.began
        return list(runs.values())


def _side(summary: RunSummary, side: str) -> dict[int, Figures]:
    return summary.producers if side == "producer" else summary.consumers
