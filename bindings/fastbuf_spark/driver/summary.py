"""Figures of a run of an exchange."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastbuf.monitor import Diagnosis, diagnose
from fastbuf.monitor.task import OK
from fastbuf.monitor.verdict import Reports, Sides, verdicts, whole

#: Seconds of a core that a task of fastbuf's takes in Spark, whatever it does: 8.6 s for 1,100 of them on two cores
TASK_S = 0.016
LEAST_COST_S = 1.0  #: what tasks may cost before it is told
JUDGE_S = 0.5  #: least time between two verdicts on a current run: for 1,000 tasks one takes about that long

_numbers = itertools.count(1)


class _Unknown(Diagnosis):
    """Of tasks that do not tell what they wait for."""

    @property
    def sentence(self) -> str:
        """The diagnosis as text."""
        return (
            "Nothing is known of what holds up this exchange: in blocking mode its tasks tell their rows and bytes "
            "alone."
        )


@dataclass
class RunSummary:
    """One run of an exchange, as seen by the driver.

    Attributes
    ----------
    exchange, name, mode
        The exchange's id, its name in the plan, and the mode of the run: ``"pipelined"``, ``"blocking"``, or
        ``"barrier"`` of a :class:`fastbuf_spark.ShuffleStage`.
    outcome
        ``"running"``, ``"ok"``, ``"cancelled"`` (all consumers ended early) or ``"aborted"``.
    reason
        Why it was aborted, with the traceback of the failed participant.
    seconds
        From the first consumer's registration to the end.
    began
        Time of that registration, in seconds since 1970.
    epoch, parent
        Epoch of this run, once it has begun; and of the run whose producers read this one's result, 0: none.
    number
        Number of this run in this process, from 1.
    tasks
        Number of producers, once Spark knows it; else None.
    partitions
        Partitions that this run served, in pipelined mode: an action may request only some of them first.
    producers, consumers
        Each participant's own figures by partition: ``records``, ``bytes``, ``peak_segments``, ``segments``,
        ``wait_s``; ``seconds`` by what it did (``credit``, ``link``, ``segment``: held back by consumers, sockets, the
        pool; ``starting``, ``input``: waiting for producers, for the first rows and for more; ``engine_in``,
        ``engine_out``: for Spark; ``codec``: encoding and decoding batches; ``user``: none of these); of producers
        ``blocked``, seconds by the consumer that they waited for.  While one runs they are of the last second, with
        its ``state`` and the shares ``backPressured``, ``idle`` and ``busy`` of its last five
        (``spark.fastbuf.monitor``).  By Flink's names:
        ``outPoolUsage``, ``inPoolUsage``, ``exclusiveBuffersUsage``, ``floatingBuffersUsage``, ``outputQueueLength``,
        ``inputQueueLength``, and the ``samples`` of 100 looks; ``frames`` and ``stacks`` of the user's code, on and off
        a CPU; ``hot_keys``, shares by consumer and hash, and ``key_values``, what those keys are, where
        ``spark.fastbuf.monitorKeyValues`` asks for it.  Another thread adds to them: copy, then iterate.
    """

    exchange: str
    name: str
    mode: str
    epoch: int = 0
    parent: int = 0
    outcome: str = "running"
    reason: str = ""
    seconds: float = 0.0
    tasks: int | None = None
    partitions: list[int] = field(default_factory=list)
    producers: dict[int, dict[str, Any]] = field(default_factory=dict)
    consumers: dict[int, dict[str, Any]] = field(default_factory=dict)
    began: float = field(default_factory=time.time)
    number: int = field(default_factory=lambda: next(_numbers))

    def __post_init__(self) -> None:
        # Not dataclass fields: code that converts a summary into plain data wants only figures
        self._reports: dict[tuple[str, int], Reports] = {}
        self._judged: tuple[float, Diagnosis] | None = None

    def tells(self, side: str, partition: int, stats: dict[str, Any]) -> None:
        """Stores a participant's figures so far; side: ``"producers"`` or ``"consumers"``."""
        getattr(self, side)[partition] = stats
        if "seconds" in stats:
            self._reports.setdefault((side, partition), Reports()).add(stats, time.monotonic())

    @property
    def records_sent(self) -> int:
        """Records sent by producers so far."""
        return int(total(self.producers.values(), "records"))

    @property
    def records_received(self) -> int:
        """Records read by consumers so far."""
        return int(total(self.consumers.values(), "records"))

    @property
    def bytes_sent(self) -> int:
        """Bytes sent by producers so far."""
        return int(total(self.producers.values(), "bytes"))

    @property
    def producers_done(self) -> int:
        """Producers that have ended successfully."""
        return sum("state" not in s for s in list(self.producers.values()))

    @property
    def left_s(self) -> float | None:
        """Estimated seconds until all producers have ended, from those that have ended; None: unknown, or none is left.

        If all producers run at the same time, it is unknown for most of the run, since they end together.
        """
        tasks, done = self.tasks or 0, self.producers_done
        return self.seconds * (tasks - done) / done if self.outcome == "running" and tasks > done > 0 else None

    @property
    def back_pressured(self) -> float | None:
        """Average share of the last seconds in which running producers were back-pressured; None: none is running."""
        if self.outcome != "running":
            return None
        shares = [s["backPressured"] for s in list(self.producers.values()) if "backPressured" in s]
        return sum(shares) / len(shares) if shares else None

    @property
    def diagnosis(self) -> Diagnosis:
        """Which subtask slows down this run, and why; of a running one over its last seconds, else over all of it."""
        if self.mode == "blocking" and not any("seconds" in s for s in self._all()):
            return _Unknown(OK, 0.0)
        if self.outcome == "running":
            now = time.monotonic()
            if self._judged is not None and now - self._judged[0] < JUDGE_S:
                return self._judged[1]
            so_far = dict(self._reports)

            def side(name: str) -> dict[int, Reports]:
                return {partition: reports for (where, partition), reports in so_far.items() if where == name}

            sides = Sides(side("producers"), side("consumers"), "producers", self.name)
            self._judged = now, verdicts({self.name: sides}, now)[self.name]
            return self._judged[1]
        producers, consumers = dict(self.producers), dict(self.consumers)
        sources = [whole("producers", partition, stats) for partition, stats in producers.items()]
        return diagnose(
            self.name, sources, [whole(self.name, partition, stats) for partition, stats in consumers.items()]
        )

    @property
    def peak_segments(self) -> int:
        """Most segments held at once by one participant."""
        return max((int(s.get("peak_segments", 0)) for s in self._all()), default=0)

    @property
    def segments(self) -> int:
        """Limit of segments of one participant."""
        return max((int(s.get("segments", 0)) for s in self._all()), default=0)

    @property
    def credit_wait_s(self) -> float:
        """Total seconds in which producers waited for credit or a segment."""
        return total(self.producers.values(), "wait_s")

    def _all(self) -> list[dict[str, Any]]:
        return [*self.producers.values(), *self.consumers.values()]


def total(stats: Iterable[Mapping[str, Any]], name: str) -> float:
    """The sum of one figure over many participants."""
    # A copy: another thread adds participants to a current run.
    return sum(float(s.get(name, 0) or 0) for s in list(stats))


def too_many(name: str, partitions: int, cores: int, sent: int, task_bytes: int) -> str:
    """What to say of a shuffle whose partitions cost more than they bring; empty where they do not.

    Parameters
    ----------
    cores
        Tasks that run at once.
    sent
        Bytes that were shuffled.
    task_bytes
        Memory of a task: more in a partition is what many partitions avoid.
    """
    cost = (partitions - cores) * TASK_S / cores
    if cost < LEAST_COST_S or sent > cores * task_bytes:
        return ""
    return (
        f"shuffle '{name}' into {partitions} partitions of {sent / partitions / 1024:,.1f} KiB, {cores} at once: to "
        f"start their tasks takes Spark about {cost:.1f} s more than to start {cores}, of "
        f"{sent / cores / (1 << 20):,.1f} MiB each; give a lower num_partitions"
    )
