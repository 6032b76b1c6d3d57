"""One run of a pipelined exchange: its requests, its epoch, one lease per input partition, its end.

Pure state: no socket, no thread, no Spark.  The rendezvous calls it from one thread and passes it the time and the
peers to answer, so tests can drive it message by message.

::

    joining --requests that come together are here--> gating --their gates listen--> running
       --job and leases done--> draining --consumers done--> ended
       any state --a producer failed--> ended (aborted);  --no consumer left--> ended (cancelled, or aborted
       if Spark says that one has failed)

A run serves at most one request per partition.  Which requests share a run affects only the cost, never the result: a
later request, or one that Spark repeats for a lost task, is served by another run, which reads the input again and must
find the same keys in it (:mod:`fastbuf_spark.driver.agreement`).  So the loss of a consumer ends no other consumer.  A
producer lost before it began to send returns its lease; if it is lost later, the epoch is lost, since nobody knows
which of its data arrived.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Protocol

from fastbuf_spark.driver.agreement import Agreement
from fastbuf_spark.driver.summary import RunSummary
from fastbuf_spark.messages import compact
from fastbuf_spark.protocol import Abort, Empty, Epoch, FromDriver, Go, Ok, Seal, Sent, Stop, Target
from fastbuf_spark.wire import clip, producers_failed

SETTLE_S = 0.5  #: how long a run waits for another request after the last one
#: The same while Spark runs tasks of the stage that have not made a request yet: a new worker takes seconds to import,
#: longer on a busy machine.  If the stage has other tasks than consumers (a union), those never make one
STARTING_S, STARTING_AMONG_OTHERS_S = 60.0, 5.0
#: The same while tasks of the stage seem to wait for a slot: those that hold it may end soon, and Spark may tell late
#: that a task runs.  One that comes later has a run of its own, which reads the input again and needs as many slots as
#: the first.  If other runs wait for slots too, they may wait for this one's
WITHOUT_SLOT_S, WITHOUT_SLOTS_S = 20.0, 5.0
RECANCEL_S = 1.0  #: interval to cancel a job again, which may not have been submitted yet at the first time
#: A job whose producers are all done ends by itself; killing its last tasks would kill their workers too, and starting
#: new ones takes most of a second
LEAVE_S = 10.0
#: How long to wait for Spark's reason for the loss of a task, before the other participants are told.  They wait
#: longer: ``control.REASON_WAIT_S``
CAUSE_S = 5.0


class Peer(Protocol):
    """A worker's control connection, as the run sees it."""

    def send(self, message: FromDriver) -> None:
        """Queue a message."""


class Job(Protocol):
    """The producers' job."""

    def cancel(self) -> None:
        """Cancel it; may be called repeatedly."""

    def active(self) -> bool:
        """Whether Spark runs, or has finished, any of its tasks since the last call."""

    def tasks(self, stage: int) -> int | None:
        """Number of producers, if Spark knows it yet; ``stage`` is their stage."""

    def accumulates(self) -> bool:
        """Whether its tasks may have accumulators, whose values Spark gets when they end."""


@dataclass(frozen=True)
class StageTasks:
    """Tasks of a consumer stage, as Spark counts them: all, running, and successful ones."""

    total: int
    active: int
    done: int


@dataclass(frozen=True)
class RunPlan:
    """The data common to all runs of an exchange.

    ``submit(run, targets)`` starts the producers' job; None: a barrier stage, whose tasks are producers too.
    ``tasks(stage)`` counts the tasks of a stage; None if Spark does not know.  ``failed(run, reason, final)`` is called
    for every failure before the participants are told; ``final``: a retry cannot succeed.  ``fate(stage, attempt)``
    returns Spark's reason for the end of a task; None if unknown.
    """

    exchange: str
    name: str
    partitions: int
    stall_timeout: float
    submit: Callable[[Run, list[Target]], Job] | None
    tasks: Callable[[int], StageTasks | None] = lambda stage: None
    failed: Callable[[Run, str, bool], None] = lambda run, reason, final: None
    fate: Callable[[int, int], str | None] = lambda stage, attempt: ""


@dataclass(eq=False)
class ConsumerView:
    """What the driver knows of a consumer."""

    partition: int
    attempt: int
    peer: Peer
    address: Target | None = None
    state: str = "live"  # live | done | gone


@dataclass
class _Lease:
    partition: int
    attempt: int
    peer: Peer | None
    state: str = "open"  # open | begun | done
    totals: Sequence[int] = ()  # those of all producers are as many as there are channels
    unreached: dict[int, str] = field(default_factory=dict)
    waiting: list[tuple[int, Peer]] = field(default_factory=list)
    seen: set[int] | None = None  # input partitions in which it found rows, once it has read all
    #: Whether it was told to call the function before the shuffle for the input partitions that have no rows
    has_empty: bool = False


@dataclass(frozen=True)
class Vanished:
    """A lost participant; Spark may know the reason."""

    stage: int
    attempt: int
    words: str
    since: float


class Run:
    """See the module's docstring.  ``now`` is always a monotonic clock in seconds.

    Parameters
    ----------
    stage
        Spark's stage that made the requests.
    agreement
        The exchange's agreement: what its other runs found in the input.
    scopes
        Which other runs must agree with this one: those that serve the same action, or fill the same cache.
    parent
        Epoch of the run whose producers read this one's result; 0: none.
    """

    def __init__(
        self,
        plan: RunPlan,
        stage: int,
        now: float,
        agreement: Agreement | None = None,
        scopes: tuple[str, ...] = (),
        parent: int = 0,
    ) -> None:
        self.plan = plan
        self.stage = stage
        self.state = "joining"
        self.epoch = 0
        self.parent = parent
        mode = "pipelined" if plan.submit else "barrier"
        self.summary = RunSummary(plan.exchange, plan.name, mode, parent=parent)
        self.job: Job | None = None
        self.job_ended = True
        self.moved = now  #: time of its last progress, as far as the driver can see
        #: Local properties of the action that it serves
        self.properties: dict[str, str] = {}
        #: Consumers of other runs in the same stage: tasks that will make no request to this run
        self.elsewhere: Callable[[], int] = lambda: 0
        #: Whether other runs, which do not need this one's result, wait for a slot
        self.crowded: Callable[[], bool] = lambda: False
        #: Called with the reason why no attempt of these tasks can succeed, so that Spark's retries fail at once
        self.refuse: Callable[[str], None] = lambda reason: None
        self._agreement = agreement or Agreement()
        self._scopes = scopes
        self._consumers: dict[int, ConsumerView] = {}
        self._consumer_at: dict[Peer, ConsumerView] = {}  # found without a look at all of 10,000
        self._live: set[ConsumerView] = set()
        self._silent = 0  # of these, how many have no gate that listens
        self._leases: dict[int, _Lease] = {}
        self._working: dict[Peer, _Lease] = {}  # those that are not done, and whose peers are connected
        self._waiting: dict[Peer, _Lease] = {}  # those whose other attempts wait
        self._sent = 0  # leases that are done
        self._seen = 0  # leases that have told in which input partitions they found rows
        self._started = self._since = now
        self._cancelled_at = 0.0
        self._last_failure = ""
        self._producers_stage: int | None = None
        self._vanished: Vanished | None = None
        self._gone: Vanished | None = None  # the first consumer that was lost

    # queries

    @property
    def held_slots(self) -> int:
        """Slots held by this run's consumers."""
        return len(self._live)

    @property
    def over(self) -> bool:
        """Whether neither consumers nor a job are left, and it is known how it ended."""
        return self.state == "ended" and self.job_ended and not self.held_slots and self.summary.outcome != "running"

    @property
    def without_producers(self) -> bool:
        """Whether some producers have not run yet, and none is running."""
        return self.state == "running" and not self._all_sent() and not self._working

    def wants(self, partition: int) -> bool:
        """Whether it accepts a request for this partition."""
        return self.state == "joining" and partition not in self._consumers

    def progress(self, now: float) -> RunSummary:
        """The figures so far."""
        if self.state != "ended":
            self.summary.seconds = now - self._started
        return self.summary

    # consumers

    def join(self, peer: Peer, partition: int, attempt: int, now: float) -> None:
        """A consumer requests a partition.  Only if the run ``wants`` it."""
        if not 0 <= partition < self.plan.partitions:
            peer.send(abort_message(f"partition {partition} of an exchange of {self.plan.partitions} partitions"))
            return
        consumer = ConsumerView(partition, attempt, peer)
        self._consumers[partition] = self._consumer_at[peer] = consumer
        self._live.add(consumer)
        self._silent += 1
        self._since = now
        self._try_to_form(now)

    def _try_to_form(self, now: float) -> None:
        """Begin if no further request is expected soon."""
        joined, all_of_them = len(self._consumers), self.plan.partitions
        waited = now - self._since
        if not joined:
            return
        if joined < all_of_them:
            tasks = self.plan.tasks(self.stage)
            if tasks is None and waited < SETTLE_S:
                return
            if tasks is not None:
                elsewhere = self.elsewhere()
                may_ask = tasks.total - tasks.done - elsewhere
                starting = tasks.active - elsewhere - joined
                if tasks.total > all_of_them:
                    longest = STARTING_AMONG_OTHERS_S if starting > 0 else SETTLE_S
                elif starting > 0:
                    longest = STARTING_S
                else:
                    longest = WITHOUT_SLOTS_S if self.crowded() else WITHOUT_SLOT_S
                if joined < min(all_of_them, may_ask) and waited < longest:
                    return
        self._form(now)

    def _form(self, now: float) -> None:
        self.summary.partitions = sorted(self._consumers)
        refused = self._agreement.begins(self._scopes, len(self._consumers) < self.plan.partitions)
        if refused:
            self.abort(f"exchange '{self.plan.name}': {refused}", now, final=True)
            return
        self.epoch = self.summary.epoch = secrets.randbits(63) | 1
        self.state = "gating"
        self._since = self.moved = now
        for consumer in self._consumers.values():
            consumer.peer.send(Epoch(self.epoch))

    def ready(self, peer: Peer, host: str, port: int, gate: int, now: float) -> None:
        """A consumer's gate listens; after the last one the producers start."""
        consumer = self._consumer_of(peer)
        if consumer is not None and self.state == "gating":
            self._silent -= consumer in self._live and consumer.address is None
            consumer.address = host, port, gate, consumer.partition
            self._try_to_start(now)

    def _try_to_start(self, now: float) -> None:
        if self._live and not self._silent:
            self._start(sorted((c.address for c in self._live if c.address), key=lambda target: target[3]), now)

    def _start(self, targets: list[Target], now: float) -> None:
        assert self.plan.submit is not None
        self._targets = [target[3] for target in targets]
        self._since = self.moved = now
        self.state = "running"
        self.job_ended = False
        self.job = self.plan.submit(self, targets)

    def consumer_done(self, peer: Peer, stats: dict[str, Any], now: float, sent: dict[str, Any] | None = None) -> None:
        """A consumer needs no more data; ``stats`` are its figures, ``sent`` those of its output in a barrier stage."""
        consumer = self._consumer_of(peer)
        if consumer is not None and consumer.state == "live":
            self._leaves(consumer, "done")
            self.moved = now
            self.summary.tells("consumers", consumer.partition, stats)
            if sent is not None:
                self.summary.tells("producers", consumer.partition, sent)
            self._consumer_left(now)

    def watched(self, peer: Peer, stats: dict[str, Any], sent: dict[str, Any] | None = None) -> None:
        """A participant's figures so far, and in a barrier stage of what it sent; its final ones replace them."""
        consumer = self._consumer_of(peer)
        if consumer is not None and consumer.state == "live":
            self.summary.tells("consumers", consumer.partition, stats)
            if sent is not None:
                self.summary.tells("producers", consumer.partition, sent)
        lease = self._working.get(peer)
        if lease is not None:
            self.summary.tells("producers", lease.partition, stats)

    def consumer_failed(self, peer: Peer, reason: str, now: float) -> None:
        """A consumer failed for a reason of its own: Spark may retry its task, which makes a new request."""
        consumer = self._consumer_of(peer)
        if consumer is not None and consumer.state == "live":
            self.summary.reason = self.summary.reason or clip(reason)
            self._consumer_lost(consumer, now)

    def _leaves(self, consumer: ConsumerView, state: str) -> None:
        """A consumer is live no more."""
        consumer.state = state
        if consumer in self._live:
            self._live.remove(consumer)
            self._silent -= consumer.address is None

    def _consumer_left(self, now: float) -> None:
        if self.state == "ended" or self._live:
            return
        complete = self.state == "draining" and all(c.state == "done" for c in self._consumers.values())
        if complete or self.summary.reason or self._gone is None:
            outcome = "ok" if complete else "aborted" if self.summary.reason else "cancelled"
            self._end(outcome, self.summary.reason, now)
        else:  # the job need not wait until it is known why
            self._end("running", "", now)
            self._look_how(self._gone, now)

    def _look_how(self, gone: Vanished, now: float) -> None:
        """Whether a run without consumers has failed or was cancelled: Spark knows how the task of a lost one ended."""
        cause = self.plan.fate(gone.stage, gone.attempt)
        if cause is None and now - gone.since < CAUSE_S:
            return
        failed = cause is not None and cause.startswith("failed")
        self.summary.reason = clip(f"{gone.words}; Spark says:\n{cause}") if failed else ""
        self.summary.outcome = "aborted" if failed else "cancelled"

    def _consumer_of(self, peer: Peer) -> ConsumerView | None:
        consumer = self._consumer_at.get(peer)
        # In a barrier stage a newer attempt may have taken its place
        return consumer if consumer is not None and self._consumers.get(consumer.partition) is consumer else None

    # producers

    def lease(self, peer: Peer, partition: int, attempt: int, stage: int) -> None:
        """A producer's attempt asks for permission to send ``partition``; ``stage`` is its task's stage."""
        self._producers_stage = stage
        if self.state == "ended":
            peer.send(Stop() if self.summary.outcome != "aborted" else abort_message(self.summary.reason))
            return
        lease = self._leases.get(partition)
        if lease is None:
            self._leases[partition] = self._working[peer] = _Lease(partition, attempt, peer)
            peer.send(Go())
        elif lease.state == "done":
            peer.send(Sent())
        else:
            # If it were told to fail, Spark would count a failure of the partition; so it waits until the other attempt
            # is done
            lease.waiting.append((attempt, peer))
            self._waiting[peer] = lease

    def begin(self, peer: Peer) -> None:
        """The attempt is about to send its first byte: from now on no other attempt may replace it."""
        lease = self._working.get(peer)
        if lease is not None and lease.state == "open":
            lease.state = "begun"

    def seen(self, peer: Peer, partitions: set[int], of: int, tasks: int) -> None:
        """A producer found rows of these input partitions; the last producer is told which partitions had none."""
        lease = self._working.get(peer)
        if lease is None:
            return
        self._seen += lease.seen is None
        lease.seen = partitions
        lease.has_empty, rest = False, set[int]()
        if self._seen == tasks and not any(other.has_empty for other in self._leases.values()):
            lease.has_empty = True
            rest = set(range(of)).difference(*(each.seen for each in self._leases.values() if each.seen is not None))
        peer.send(Empty(tuple(sorted(rest))))

    def producer_done(
        self,
        peer: Peer,
        totals: Sequence[int],
        stats: dict[str, Any],
        now: float,
        unreached: dict[int, str] | None = None,
    ) -> None:
        """A partition was sent completely: ``totals`` are buffers per consumer, empty if nothing was sent.

        ``unreached``: why a consumer could not be reached.  Usually it had ended early; one that is still running is
        told.
        """
        lease = self._working.get(peer)
        if lease is None:
            return
        if totals and len(totals) != len(self._targets):
            self.abort(f"producer {lease.partition} counted {len(totals)} consumers of {len(self._targets)}", now)
            return
        lease.state, lease.totals, lease.unreached = "done", compact(totals), unreached or {}
        del self._working[peer]
        self._sent += 1
        self.moved = now
        self.summary.tells("producers", lease.partition, stats)
        peer.send(Ok())
        for _, other in lease.waiting:
            other.send(Sent())
            del self._waiting[other]
        lease.waiting.clear()
        self._seal(now)

    def producer_failed(self, peer: Peer, reason: str, now: float) -> None:
        """An attempt failed; if it had not begun to send, another one may try."""
        lease = self._working.get(peer)
        if lease is None:
            return
        self._last_failure = clip(reason)
        if lease.state == "begun":
            self.abort(f"{producers_failed(self.plan.name, lease.partition)}\n{reason}", now)
        else:
            self._hand_on(lease, peer)
            self._seal(now)

    def _hand_on(self, lease: _Lease, peer: Peer) -> None:
        """``peer`` does not send it: another attempt may."""
        self._working.pop(peer, None)
        if lease.waiting:
            lease.attempt, lease.peer = lease.waiting.pop(0)
            del self._waiting[lease.peer]
            self._working[lease.peer] = lease
            lease.peer.send(Go())
        else:
            self._seen -= lease.seen is not None
            del self._leases[lease.partition]

    # end of the run

    def lost(self, peer: Peer, now: float) -> None:
        """A control connection has closed, in order or not."""
        consumer = self._consumer_of(peer)
        if consumer is not None:
            if consumer.state == "live" and self._gone is None:
                words = f"consumer of partition {consumer.partition} (attempt {consumer.attempt}) vanished"
                self._gone = Vanished(self.stage, consumer.attempt, words, now)
            self._consumer_lost(consumer, now)
            return
        if (waiting := self._waiting.pop(peer, None)) is not None:
            waiting.waiting = [(a, p) for a, p in waiting.waiting if p is not peer]
        lease = self._working.pop(peer, None)
        if lease is None:
            return
        lease.peer = None
        if lease.state == "begun" and self.state != "ended" and self._producers_stage is not None:
            last = f"; last failure:\n{self._last_failure}" if self._last_failure else ""
            words = (
                f"producer of partition {lease.partition} (attempt {lease.attempt}) vanished while it was sending{last}"
            )
            self._ask_why(Vanished(self._producers_stage, lease.attempt, words, now))
        elif lease.state == "open":
            self._hand_on(lease, peer)
            self._seal(now)

    def _consumer_lost(self, consumer: ConsumerView, now: float) -> None:
        if consumer.state != "live":
            return
        self._leaves(consumer, "gone")
        if self.state == "joining":
            del self._consumers[consumer.partition]
        self._consumer_left(now)
        if self.state == "gating":
            self._try_to_start(now)

    def _ask_why(self, vanished: Vanished) -> None:
        # Keep the first one: Spark ends all tasks of a barrier stage after one fails, and the later ones have no other
        # reason
        if self._vanished is None:
            self._vanished = vanished
            self._look_why(vanished.since)

    def _look_why(self, now: float) -> None:
        """End the epoch for a lost participant, with Spark's reason, or without one after the time limit."""
        gone = self._vanished
        assert gone is not None
        cause = self.plan.fate(gone.stage, gone.attempt)
        if cause is not None or now - gone.since >= CAUSE_S:
            self.abort(gone.words + (f"; Spark says:\n{cause}" if cause else ""), now)

    def job_finished(self, error: str, now: float) -> None:
        """The producers' job has ended; ``error`` is empty if it succeeded."""
        self.job_ended = True
        if self.state == "ended":
            return
        if error and not self._counted():
            self.abort(f"{producers_failed(self.plan.name)}\n{self._last_failure or error}", now)
        else:
            self._seal(now)

    def _all_sent(self) -> bool:
        # Spark takes up to a second to report a job's end; if the number of producers is known, counting them is enough
        return self._sent == len(self._leases) and (self.job_ended or self._counted())

    def _counted(self) -> bool:
        self._count_tasks()
        return self.summary.tasks is not None and self._sent >= self.summary.tasks

    def _count_tasks(self) -> None:
        if self.summary.tasks is None and self.job is not None and self._producers_stage is not None:
            self.summary.tasks = self.job.tasks(self._producers_stage)

    def _seal(self, now: float) -> None:
        if self.state != "running" or not self._all_sent():
            return
        if not self.job_ended and self.job is not None and self.job.accumulates():
            return  # else the action could end before the accumulators have all values
        served, figures = self.summary.partitions, list(self.summary.producers.values())
        differs = self._agreement.ends(self._scopes, served, figures, len(served) == self.plan.partitions)
        if differs:
            self.abort(f"exchange '{self.plan.name}': {differs}", now, final=True)
            return
        self.state = "draining"
        self._since = self.moved = now
        sent = [lease for lease in self._leases.values() if lease.totals]
        numbers, missing = [each.partition for each in sent], [each for each in sent if each.unreached]
        columns = zip(*(lease.totals for lease in sent), strict=True) if sent else repeat(())
        for index, (partition, column) in enumerate(zip(self._targets, columns, strict=False)):
            consumer = self._consumers[partition]
            if consumer.state == "live":
                missed = {lease.partition: lease.unreached[index] for lease in missing if index in lease.unreached}
                consumer.peer.send(Seal(dict(zip(numbers, column, strict=True)), missed))

    def abort(self, reason: str, now: float, final: bool = False) -> None:
        """A participant failed: end the epoch for all, with the reason."""
        if self.state != "ended":
            self.plan.failed(self, clip(reason), final)
            if final:
                self.refuse(clip(reason))
        self.drop(reason, now)

    def drop(self, reason: str, now: float) -> None:
        """End the epoch for all without a failure."""
        self._end("aborted", clip(reason), now)

    def _end(self, outcome: str, reason: str, now: float) -> None:
        if self.state == "ended":
            return
        self.state = "ended"
        self.moved = now
        self.summary.outcome, self.summary.reason = outcome, reason
        self.summary.seconds = now - self._started
        if outcome == "aborted":
            for consumer in self._consumers.values():
                if consumer.state == "live":
                    consumer.peer.send(abort_message(reason))
        for lease in self._leases.values():
            left = [p for _, p in lease.waiting] + ([lease.peer] if lease.peer and lease.state != "done" else [])
            for peer in left:
                # A producer without consumers reads this at its next check; its writer notices first
                peer.send(abort_message(reason) if outcome == "aborted" else Stop())
        if self._counted():
            self._cancelled_at = now + LEAVE_S
        else:
            self._cancel_job(now)

    def _cancel_job(self, now: float) -> None:
        if self.job is not None and not self.job_ended:
            self._cancelled_at = now
            self.job.cancel()

    def tick(self, now: float) -> None:
        """Check timeouts; call it at least twice a second until the run is ``over``."""
        if self.state == "ended":
            if self.summary.outcome == "running" and self._gone is not None:
                self._look_how(self._gone, now)
            if now - self._cancelled_at >= RECANCEL_S:
                self._cancel_job(now)
        elif self._vanished is not None:
            self._look_why(now)
        elif self.state == "joining":
            self._joining_tick(now)
        elif self.state == "gating":
            if now - self._since > self.plan.stall_timeout:
                late = [c.partition for c in self._consumers.values() if c.address is None]
                self.abort(f"consumers {late} do not listen after {self.plan.stall_timeout:g} s (stall_timeout)", now)
        elif self.state == "running":
            self._count_tasks()

    def _joining_tick(self, now: float) -> None:
        self._try_to_form(now)


def abort_message(reason: str) -> Abort:
    return Abort(clip(reason))
