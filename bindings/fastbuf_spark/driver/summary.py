"""What a run of an exchange did, in figures."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastbuf.monitor import Diagnosis, diagnose
from fastbuf.monitor.verdict import Reports, Sides, verdicts, whole

JUDGE_S = 0.5  #: between two verdicts on a run under way, however often one is asked for: of 1,000 tasks it takes that

_numbers = itertools.count(1)


@dataclass
class RunSummary:
    """One run of one exchange, as the driver saw it.

    Attributes
    ----------
    exchange, name, mode
        Which exchange, what its plan calls it, and how it ran.
    outcome
        ``"running"``, ``"ok"``, ``"cancelled"`` (all consumers had seen enough) or ``"aborted"``.
    reason
        Why it was aborted, with the traceback of whoever failed.
    seconds
        From the first consumer's registration to the end.
    began
        When that was, in seconds since 1970.
    epoch, parent
        Of this run, once it has formed; and of the run whose producers read this one's result, 0: none does.
    number
        Of this run in this process, from 1.
    tasks
        Producers in all, once Spark knows; else None.
    partitions
        Those that this run served, of a pipelined exchange: an action may ask for some of them first.
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
        # No fields: whoever turns a summary into plain data wants the figures
        self._told: dict[tuple[str, int], Reports] = {}
        self._judged: tuple[float, Diagnosis] | None = None

    def tells(self, side: str, partition: int, stats: dict[str, Any]) -> None:
        """A participant's figures up to now; side: ``"producers"`` or ``"consumers"``."""
        getattr(self, side)[partition] = stats
        if "seconds" in stats:
            self._told.setdefault((side, partition), Reports()).add(stats, time.monotonic())

    @property
    def records_sent(self) -> int:
        """Records that producers have sent so far."""
        return int(total(self.producers.values(), "records"))

    @property
    def records_received(self) -> int:
        """Records that consumers have read so far."""
        return int(total(self.consumers.values(), "records"))

    @property
    def bytes_sent(self) -> int:
        """Bytes that producers have sent so far."""
        return int(total(self.producers.values(), "bytes"))

    @property
    def producers_done(self) -> int:
        """Producers that have ended well."""
        return sum("state" not in s for s in list(self.producers.values()))

    @property
    def left_s(self) -> float | None:
        """Seconds until all producers have ended, as those took that have; None: too little is known, or none is left.

        Producers that all run at once end at once: then nothing is known until the first of them has.
        """
        tasks, done = self.tasks or 0, self.producers_done
        return self.seconds * (tasks - done) / done if self.outcome == "running" and tasks > done > 0 else None

    @property
    def back_pressured(self) -> float | None:
        """Share of the last seconds that the producers which run were held back, on average; None: none runs."""
        shares = [s["backPressured"] for s in list(self.producers.values()) if "backPressured" in s]
        return sum(shares) / len(shares) if shares else None

    @property
    def diagnosis(self) -> Diagnosis:
        """Which subtask holds up this run, and why: over its last seconds while it runs, then over all of its time."""
        if self.outcome == "running":
            now = time.monotonic()
            if self._judged is not None and now - self._judged[0] < JUDGE_S:
                return self._judged[1]
            told = dict(self._told)

            def side(name: str) -> dict[int, Reports]:
                return {partition: reports for (where, partition), reports in told.items() if where == name}

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
        """Most segments that one participant held at once."""
        return max((int(s.get("peak_segments", 0)) for s in self._all()), default=0)

    @property
    def segments(self) -> int:
        """Segments that one participant was allowed."""
        return max((int(s.get("segments", 0)) for s in self._all()), default=0)

    @property
    def credit_wait_s(self) -> float:
        """Seconds that producers waited for credit or a segment, added up."""
        return total(self.producers.values(), "wait_s")

    def _all(self) -> list[dict[str, Any]]:
        return [*self.producers.values(), *self.consumers.values()]


def total(stats: Iterable[Mapping[str, Any]], name: str) -> float:
    """Add up one figure of many participants."""
    # A copy: to a run under way another thread adds participants.
    return sum(float(s.get(name, 0) or 0) for s in list(stats))
