"""A run of a barrier stage whose tasks are producers and consumers at once (:class:`fastbuf_spark.ShuffleStage`).

Spark starts all tasks of such a stage together, ends all when one fails, and may restart all.  So all partitions join
before any work begins, a newer attempt of a partition replaces the older one, and a lost task ends the run.
"""

from __future__ import annotations

from fastbuf_spark.driver.run import ConsumerView, Peer, Run, Vanished, abort_message
from fastbuf_spark.protocol import Target, Targets

GAP_S = 1.0  #: if task ids have gaps, the tasks may be of two attempts of the stage: wait this long for newer tasks


class BarrierRun(Run):
    """See the module's docstring."""

    def newest_attempt(self) -> int:
        """Largest task id in the run."""
        return max((c.attempt for c in self._consumers.values()), default=-1)

    def wants(self, partition: int) -> bool:
        """Newer attempts replace older ones."""
        return self.state == "joining"

    def join(self, peer: Peer, partition: int, attempt: int, now: float) -> None:
        """A task asks to join."""
        old = self._consumers.get(partition)
        if old is not None:
            if attempt <= old.attempt:
                peer.send(abort_message(f"attempt {attempt} of task {partition} came after attempt {old.attempt}"))
                return
            old.peer.send(abort_message(f"attempt {attempt} of task {partition} takes the place of {old.attempt}"))
            self._leaves(old, "gone")
            del self._consumers[partition]
        super().join(peer, partition, attempt, now)

    def _try_to_form(self, now: float) -> None:
        ids = [c.attempt for c in self._consumers.values()]
        # Spark gives the tasks of a barrier stage consecutive ids; a gap means that a task of a dead attempt may be
        # present
        gap = max(ids, default=0) - min(ids, default=0) != len(ids) - 1
        if len(ids) == self.plan.partitions and (not gap or now - self._since >= GAP_S):
            self._form(now)

    def _start(self, targets: list[Target], now: float) -> None:
        self._since = now
        self.summary.tasks = self.plan.partitions
        self.state = "draining"
        for task in self._consumers.values():
            task.peer.send(Targets(tuple(target[:3] for target in targets)))

    def _consumer_lost(self, consumer: ConsumerView, now: float) -> None:
        if consumer.state != "live" or self.state == "joining":
            super()._consumer_lost(consumer, now)
            return
        self._leaves(consumer, "gone")
        if self.state == "gating":
            self.abort(f"task {consumer.partition} vanished before the stage began", now)
        elif self.state == "draining":
            words = (
                f"task {consumer.partition} of the barrier stage '{self.plan.name}' vanished before it had sent all "
                "its rows: its Python worker died, Spark killed it, or what reads the stage stopped before its end"
            )
            self._ask_why(Vanished(self.stage, consumer.attempt, words, now))
        else:
            self._consumer_left(now)

    def _joining_tick(self, now: float) -> None:
        super()._joining_tick(now)
        if self.state == "joining" and now - self._since > self.plan.stall_timeout:
            self.abort(
                f"{len(self._consumers)} of {self.plan.partitions} tasks of the barrier stage '{self.plan.name}' "
                f"registered, no other within {self.plan.stall_timeout:g} s (stall_timeout)",
                now,
            )
