"""One run of a pipelined exchange: its consumers, its epoch, one lease per input partition, its end.

Pure state: no socket, no thread, no Spark.  The rendezvous calls it from one thread, tells it the time, and
gives it peers to answer to; so tests can drive it message by message.

::

    joining --all R consumers--> gating --all R gates listen--> running --job and leases done--> draining --> ended
       any state --a participant failed--> ended (aborted);  --no consumer left--> ended (cancelled)

A consumer that vanishes before the producers run takes the run with it (Spark kills all tasks of a barrier stage
together); one that vanishes later has seen enough (Spark kills a Python worker whose ``limit`` is satisfied).  One
producer vanishing before it began to send gives its lease back; later, the epoch is lost: nobody knows what arrived.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastbuf_spark.summary import RunSummary
from fastbuf_spark.wire import Message, clip

SETTLE_S = 1.0  #: a set of consumers whose task ids have gaps may be of two attempts: wait so long for the newer ones
#: Spark gives on the slot of a worker that it reads no more, as after take(), before that worker has left: until then
#: the slot counts twice, so a run that finds too few asks again for so long
LINGER_S = 10.0
RECANCEL_S = 1.0  #: a job that was not submitted yet when it was cancelled is cancelled again
#: A job whose producers are all done will end by itself; killing its last tasks would kill their workers too,
#: and new ones cost most of a second
LEAVE_S = 10.0
#: How long Spark has to say why a task of its own is gone, before its participants are told that it is.  They wait
#: longer: ``control.REASON_WAIT_S``
CAUSE_S = 5.0


class Peer(Protocol):
    """A control connection, as a run sees it."""

    def send(self, message: Message) -> None:
        """Queue a message."""


class Job(Protocol):
    """The producers' job."""

    def cancel(self) -> None:
        """End it; again and again if need be."""

    def active(self) -> bool:
        """Whether Spark runs, or has finished, any task of it since the last call."""

    def tasks(self, stage: int) -> int | None:
        """Producers in all, if Spark knows by now; ``stage`` is theirs."""


@dataclass(frozen=True)
class RunPlan:
    """What every run of one exchange has in common.

    ``submit(run, targets)`` starts the producers' job; None: a fused stage, whose tasks are both.  ``trouble(run)``
    says why the run may not start, or nothing.  ``limited()`` says whether a fused stage's task may end before it has
    sent all, since what reads it needs no more of any task.  ``failed(run, reason, final)`` hears of every failure
    before the participants do; ``final``: to run it again cannot help.  ``fate(stage, attempt)`` says how Spark reports
    the end of a task, None while it does not.
    """

    exchange: str
    name: str
    partitions: int
    stall_timeout: float
    start_timeout: float
    submit: Callable[[Run, list[list[Any]]], Job] | None
    trouble: Callable[[Run], str]
    limited: Callable[[], bool] = lambda: False
    failed: Callable[[Run, str, bool], None] = lambda run, reason, final: None
    fate: Callable[[int, int], str | None] = lambda stage, attempt: ""


@dataclass
class _Consumer:
    partition: int
    attempt: int
    peer: Peer
    address: list[Any] | None = None
    state: str = "live"  # live | done | gone


@dataclass
class _Lease:
    partition: int
    attempt: int
    peer: Peer | None
    state: str = "open"  # open | begun | done
    totals: list[int] = field(default_factory=list)
    waiting: list[tuple[int, Peer]] = field(default_factory=list)


@dataclass(frozen=True)
class _Vanished:
    """A participant that is gone, and took the epoch with it; Spark may know why."""

    stage: int
    attempt: int
    words: str
    since: float


class Run:
    """See the module's text.  ``now`` is a monotonic clock in seconds wherever it appears."""

    def __init__(self, plan: RunPlan, stage: int, now: float) -> None:
        self.plan = plan
        self.stage = stage
        self.state = "joining"
        self.epoch = 0
        self.summary = RunSummary(plan.exchange, plan.name, "pipelined" if plan.submit else "fused")
        self.job: Job | None = None
        self.job_ended = True
        self._consumers: dict[int, _Consumer] = {}
        self._leases: dict[int, _Lease] = {}
        self._started = self._since = now
        self._cancelled_at = 0.0
        self._last_failure = ""
        self._short_of_slots = False
        self._producers_stage: int | None = None
        self._vanished: _Vanished | None = None

    # what others ask

    @property
    def held_slots(self) -> int:
        """Slots that this run's consumers hold."""
        return sum(c.state == "live" for c in self._consumers.values())

    @property
    def over(self) -> bool:
        """Nothing of it is left, neither consumers nor job."""
        return self.state == "ended" and self.job_ended and not self.held_slots

    def newest_attempt(self) -> int:
        """Largest task id among the consumers."""
        return max((c.attempt for c in self._consumers.values()), default=-1)

    def progress(self, now: float) -> RunSummary:
        """The figures up to now."""
        if self.state != "ended":
            self.summary.seconds = now - self._started
        return self.summary

    # consumers

    def join(self, peer: Peer, partition: int, attempt: int, now: float) -> None:
        """A consumer asks for its epoch.  Only while ``joining``."""
        if not 0 <= partition < self.plan.partitions:
            peer.send(_abort(f"consumer {partition} of an exchange of {self.plan.partitions} partitions"))
            return
        old = self._consumers.get(partition)
        if old is not None:
            if attempt <= old.attempt:
                peer.send(_abort(f"attempt {attempt} of consumer {partition} came after attempt {old.attempt}"))
                return
            old.peer.send(_abort(f"attempt {attempt} of consumer {partition} takes the place of {old.attempt}"))
        self._consumers[partition] = _Consumer(partition, attempt, peer)
        self._since = now
        if len(self._consumers) == self.plan.partitions and self._of_one_attempt():
            self._form(now)

    def _of_one_attempt(self) -> bool:
        # Spark numbers the tasks of a barrier stage in one go; a gap means a dead attempt's task may be among them
        ids = [c.attempt for c in self._consumers.values()]
        return max(ids) - min(ids) == len(ids) - 1

    def _form(self, now: float) -> None:
        trouble = self.plan.trouble(self)
        self._short_of_slots = bool(trouble)
        if trouble:
            if now - self._since >= LINGER_S:
                self.abort(trouble, now, final=True)
            return
        self.epoch = self.summary.epoch = secrets.randbits(63) | 1
        self.state = "gating"
        self._since = now
        for consumer in self._consumers.values():
            consumer.peer.send({"op": "epoch", "epoch": self.epoch})

    def ready(self, peer: Peer, host: str, port: int, gate: int, now: float) -> None:
        """A consumer's gate listens; the last one starts the producers."""
        consumer = self._consumer_of(peer)
        if consumer is None or self.state != "gating":
            return
        consumer.address = [host, port, gate]
        if all(c.address is not None for c in self._consumers.values()):
            self._since = now
            targets = [c.address for _, c in sorted(self._consumers.items()) if c.address is not None]
            if self.plan.submit is None:
                self.state = "draining"
                for other in self._consumers.values():
                    other.peer.send({"op": "targets", "targets": targets})
                return
            self.state = "running"
            self.job_ended = False
            self.job = self.plan.submit(self, targets)

    def consumer_done(self, peer: Peer, stats: dict[str, Any], now: float, sent: dict[str, Any] | None = None) -> None:
        """A consumer has all it wants; ``stats`` are its figures, ``sent`` those of what it sent in a fused stage."""
        consumer = self._consumer_of(peer)
        if consumer is not None and consumer.state == "live":
            consumer.state = "done"
            self.summary.consumers[consumer.partition] = stats
            if sent is not None:
                self.summary.producers[consumer.partition] = sent
            self._consumer_left(now)

    def _consumer_left(self, now: float) -> None:
        if self.state == "ended" or any(c.state == "live" for c in self._consumers.values()):
            return
        complete = self.state == "draining" and all(c.state == "done" for c in self._consumers.values())
        self._end("ok" if complete else "cancelled", "", now)

    def _consumer_of(self, peer: Peer) -> _Consumer | None:
        return next((c for c in self._consumers.values() if c.peer is peer), None)

    # producers

    def lease(self, peer: Peer, partition: int, attempt: int, stage: int) -> None:
        """A producer's attempt asks whether it may send partition ``partition``; ``stage`` is its task's."""
        self._producers_stage = stage
        if self.state == "ended":
            peer.send({"op": "stop"} if self.summary.outcome != "aborted" else _abort(self.summary.reason))
            return
        lease = self._leases.get(partition)
        if lease is None:
            self._leases[partition] = _Lease(partition, attempt, peer)
            peer.send({"op": "go"})
        elif lease.state == "done":
            peer.send({"op": "done"})
        else:
            # Were it told to fail, Spark would count a failure of the partition; so it waits till its twin is done
            lease.waiting.append((attempt, peer))

    def begin(self, peer: Peer) -> None:
        """The attempt is about to send its first byte: from here on no other may take its place."""
        lease = self._lease_of(peer)
        if lease is not None and lease.state == "open":
            lease.state = "begun"

    def producer_done(self, peer: Peer, totals: list[int], stats: dict[str, Any], now: float) -> None:
        """All of a partition is sent: ``totals`` are buffers per consumer, empty if there was nothing to send."""
        lease = self._lease_of(peer)
        if lease is None or lease.state == "done":
            return
        if totals and len(totals) != self.plan.partitions:
            self.abort(f"producer {lease.partition} counted {len(totals)} consumers of {self.plan.partitions}", now)
            return
        lease.state, lease.totals = "done", totals
        self.summary.producers[lease.partition] = stats
        peer.send({"op": "ok"})
        for _, other in lease.waiting:
            other.send({"op": "done"})
        lease.waiting.clear()
        self._seal(now)

    def producer_failed(self, peer: Peer, reason: str, now: float) -> None:
        """An attempt gave up; before it began, another may try."""
        lease = self._lease_of(peer)
        if lease is None or lease.state == "done":
            return
        self._last_failure = clip(reason)
        if lease.state == "begun":
            self.abort(f"producer of partition {lease.partition} failed:\n{reason}", now)
        else:
            self._hand_on(lease)
            self._seal(now)

    def _hand_on(self, lease: _Lease) -> None:
        if lease.waiting:
            lease.attempt, lease.peer = lease.waiting.pop(0)
            lease.peer.send({"op": "go"})
        else:
            del self._leases[lease.partition]

    def _lease_of(self, peer: Peer) -> _Lease | None:
        return next((lease for lease in self._leases.values() if lease.peer is peer), None)

    # ends

    def lost(self, peer: Peer, now: float) -> None:
        """A control connection ended, orderly or not."""
        consumer = self._consumer_of(peer)
        if consumer is not None:
            self._consumer_lost(consumer, now)
            return
        for lease in list(self._leases.values()):
            lease.waiting = [(a, p) for a, p in lease.waiting if p is not peer]
            if lease.peer is not peer:
                continue
            lease.peer = None
            if lease.state == "begun" and self.state != "ended" and self._producers_stage is not None:
                words = (
                    f"producer of partition {lease.partition} (attempt {lease.attempt}) vanished while it was sending"
                )
                if self._last_failure:
                    words += f"; last failure:\n{self._last_failure}"
                self._ask_why(_Vanished(self._producers_stage, lease.attempt, words, now))
            elif lease.state == "open":
                self._hand_on(lease)
                self._seal(now)

    def _consumer_lost(self, consumer: _Consumer, now: float) -> None:
        if consumer.state != "live":
            return
        consumer.state = "gone"
        if self.state == "joining":
            del self._consumers[consumer.partition]
            if not self._consumers:
                self._end("cancelled", "", now)
        elif self.state == "gating":
            self.abort(f"consumer {consumer.partition} vanished before the producers ran", now)
        elif self.plan.submit is None and self.state == "draining":
            self._fused_task_lost(consumer, now)
        else:
            self._consumer_left(now)

    def _fused_task_lost(self, consumer: _Consumer, now: float) -> None:
        # Its producer ended with it.  Under a bare limit it was ended since it alone gave all the rows that are wanted:
        # the others may leave the rest, but must not compute anything from a partial input
        if self.plan.limited():
            self._end("cancelled", "", now)
            for other in self._consumers.values():
                if other.state == "live":
                    other.peer.send({"op": "stop"})
        else:
            words = (
                f"task {consumer.partition} of the fused stage '{self.plan.name}' vanished before it had sent all its "
                "rows: its Python worker died, Spark killed it, or what reads the stage stopped before its end, which "
                "mode='pipelined' and 'blocking' allow, and 'fused' does not"
            )
            self._ask_why(_Vanished(self.stage, consumer.attempt, words, now))

    def _ask_why(self, vanished: _Vanished) -> None:
        # The first: Spark ends all tasks of a barrier stage after one, and the last ones for no reason of their own
        if self._vanished is None:
            self._vanished = vanished
            self._look_why(vanished.since)

    def _look_why(self, now: float) -> None:
        """End the epoch for the one that vanished, with Spark's reason, or without one when it has had its time."""
        gone = self._vanished
        assert gone is not None
        cause = self.plan.fate(gone.stage, gone.attempt)
        if cause is not None or now - gone.since >= CAUSE_S:
            self.abort(gone.words + (f"; Spark says:\n{cause}" if cause else ""), now)

    def job_finished(self, error: str, now: float) -> None:
        """The producers' job ended; ``error`` is empty if it succeeded."""
        self.job_ended = True
        if self.state == "ended":
            return
        if error and not self._counted():
            self.abort(f"the producers' job of exchange '{self.plan.name}' failed:\n{self._last_failure or error}", now)
        else:
            self._seal(now)

    def _all_sent(self) -> bool:
        # Spark takes up to a second to tell of a job's end; where the number of producers is known, their count will do
        done = all(lease.state == "done" for lease in self._leases.values())
        return done and (self.job_ended or self._counted())

    def _counted(self) -> bool:
        self._count_tasks()
        done = sum(lease.state == "done" for lease in self._leases.values())
        return self.summary.tasks is not None and done >= self.summary.tasks

    def _count_tasks(self) -> None:
        if self.summary.tasks is None and self.job is not None and self._producers_stage is not None:
            self.summary.tasks = self.job.tasks(self._producers_stage)

    def _seal(self, now: float) -> None:
        if self.state != "running" or not self._all_sent():
            return
        self.state = "draining"
        self._since = now
        sent = [lease for lease in self._leases.values() if lease.totals]
        for consumer in self._consumers.values():
            if consumer.state == "live":
                totals = {str(lease.partition): lease.totals[consumer.partition] for lease in sent}
                consumer.peer.send({"op": "seal", "totals": totals})

    def abort(self, reason: str, now: float, final: bool = False) -> None:
        """A participant failed: end the epoch for everyone, with the reason."""
        if self.state != "ended":
            self.plan.failed(self, clip(reason), final)
        self.drop(reason, now)

    def drop(self, reason: str, now: float) -> None:
        """End the epoch for everyone; nobody failed."""
        self._end("aborted", clip(reason), now)

    def _end(self, outcome: str, reason: str, now: float) -> None:
        if self.state == "ended":
            return
        self.state = "ended"
        self.summary.outcome, self.summary.reason = outcome, reason
        self.summary.seconds = now - self._started
        if outcome == "aborted":
            for consumer in self._consumers.values():
                if consumer.state == "live":
                    consumer.peer.send(_abort(reason))
        for lease in self._leases.values():
            left = [p for _, p in lease.waiting] + ([lease.peer] if lease.peer and lease.state != "done" else [])
            for peer in left:
                # A producer that nobody listens to any more reads it when it next looks; its writer sees it first
                peer.send(_abort(reason) if outcome == "aborted" else {"op": "stop"})
        if self._counted():
            self._cancelled_at = now + LEAVE_S
        else:
            self._cancel_job(now)

    def _cancel_job(self, now: float) -> None:
        if self.job is not None and not self.job_ended:
            self._cancelled_at = now
            self.job.cancel()

    def tick(self, now: float) -> None:
        """Look at the clock; call at least twice a second while the run is not ``over``."""
        waited = now - self._since
        if self.state == "ended":
            if now - self._cancelled_at >= RECANCEL_S:
                self._cancel_job(now)
        elif self._vanished is not None:
            self._look_why(now)
        elif self.state == "joining":
            if len(self._consumers) == self.plan.partitions and (self._short_of_slots or waited >= SETTLE_S):
                self._form(now)
            elif waited > self.plan.stall_timeout:
                self.abort(
                    f"{len(self._consumers)} of {self.plan.partitions} consumers of exchange '{self.plan.name}' "
                    f"registered, no other within {self.plan.stall_timeout:g} s (stall_timeout)",
                    now,
                )
        elif self.state == "gating":
            if waited > self.plan.stall_timeout:
                late = [c.partition for c in self._consumers.values() if c.address is None]
                self.abort(f"consumers {late} do not listen after {self.plan.stall_timeout:g} s (stall_timeout)", now)
        elif self.state == "running" and self.job is not None:
            self._count_tasks()
            if not self._leases and waited > self.plan.start_timeout:
                if self.job.active():
                    self._since = now
                else:
                    self.abort(
                        f"no task of the producers of exchange '{self.plan.name}' was started within "
                        f"{self.plan.start_timeout:g} s: its {self.plan.partitions} consumers and other jobs hold all "
                        "slots. Give Spark more slots (local[n], or executors x cores), use fewer partitions, or "
                        "mode='blocking'",
                        now,
                    )


def _abort(reason: str) -> Message:
    return {"op": "abort", "reason": clip(reason)}
