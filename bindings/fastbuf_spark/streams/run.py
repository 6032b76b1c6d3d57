"""One run of a stream on the driver: its Spark job, its tasks' connections, its checkpoints.

Each run is a *generation*.  Spark starts all tasks in one barrier stage and retries nothing: what is lost ends the run,
and :mod:`fastbuf_spark.streams.query` begins the next one from the last checkpoint.  All that is said comes through one
queue, which the query's thread reads; :class:`~fastbuf.checkpoint.coordinator.CheckpointCoordinator` decides.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastbuf.checkpoint import coordinator as decisions
from fastbuf.checkpoint.coordinator import CheckpointCoordinator
from fastbuf.checkpoint.key_groups import owner
from fastbuf.checkpoint.store import CheckpointInUse, CheckpointStore
from fastbuf.event_time.watermarks import MAX, MIN
from fastbuf_spark import protocol
from fastbuf_spark.driver.jobs import TAG
from fastbuf_spark.driver.rendezvous import Rendezvous
from fastbuf_spark.pyspark_private import forget_properties
from fastbuf_spark.streams import messages
from fastbuf_spark.streams.committed_rows import CommittedRows
from fastbuf_spark.streams.compatible import operators_of, sink_of, source_of, waiting_rows_of
from fastbuf_spark.streams.fail_points import reach
from fastbuf_spark.streams.outage import is_outage
from fastbuf_spark.streams.spec import StreamSpec
from fastbuf_spark.streams.splits import SplitShares
from fastbuf_spark.streams.task import run_task
from fastbuf_spark.tracebacks import error_of_worker

log = logging.getLogger("fastbuf_spark")

CAUSE_S = 1.0  #: so long is waited for what Spark says of a task that vanishes; its own words would have come before
GRACE_S = 0.2  #: and so long once Spark has ended the tasks: what they said is about to come
JOIN_S = 120.0  #: tasks join within this time after the first: Spark starts all at once, as soon as there are slots
HEARD_S = 10.0  #: what tasks sent before they ended is read within this time
END_S = 60.0  #: how long the job of an ended run may take to go


@dataclass
class Outcome:
    """How a run ended.

    Attributes
    ----------
    kind
        "finished" (a bounded input), "stopped" (asked for), "failed".
    reason
        Why it failed.
    by_task
        Whether a task said so itself; else something was lost.
    outage
        Whether it failed because a server, the network or room on a disk was away.
    """

    kind: str
    reason: str = ""
    by_task: bool = False
    outage: bool = False


@dataclass
class TaskView:
    """What the driver knows of a task."""

    stage: int
    subtask: int
    connection: Any = None
    join: messages.TaskJoin | None = None
    running: bool = False
    data_ended: bool = False
    stats: dict[str, Any] = field(default_factory=dict)
    least_of_others: int = MAX  #: the watermark that it was told, if sources are aligned


@dataclass(frozen=True)
class Command:
    """Something that a run is to do, in the query's thread."""

    call: Callable[[StreamRun], None]


@dataclass(frozen=True)
class _JobEnded:
    error: str


@dataclass(frozen=True)
class _Lost:
    pass


@dataclass(frozen=True)
class _Discovered:
    stage: int
    splits: list[Any]
    state: Any
    error: str = ""
    outage: bool = False


class StreamRun:
    """See the module's docstring.

    Parameters
    ----------
    restored
        Metadata of the checkpoint to begin from; None: from the beginning.
    """

    def __init__(
        self,
        sc: Any,
        server: Rendezvous,
        spec: StreamSpec,
        store: CheckpointStore,
        coordinator: CheckpointCoordinator,
        restored: dict[str, Any] | None,
        discover_s: float,
        progress: Callable[[bool], None],
    ) -> None:
        self.spec = spec
        self.coordinator = coordinator
        self.tasks = [TaskView(*spec.place(number)) for number in range(spec.tasks)]
        self.inbox: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self.running = False
        self._sc = sc
        self._server = server
        self._store = store
        self._restored = restored or {}
        self._discover_s = discover_s
        self._completed = progress
        self._tag = f"{TAG}{secrets.token_hex(8)}"
        self._greatest: dict[str, int] = {}
        self._note_times(self._restored.get("times", {}).values())
        self._splits = {
            number: SplitShares(stage.source, spec.numbers(number), self._restored.get("sources", {}).get(stage.name))
            for number, stage in enumerate(spec.stages)
            if stage.source is not None
        }
        self._operators = operators_of(spec.stages)
        self._begun_at = _places(self._restored)
        self._has_read = False  # more than that, in a checkpoint that is complete
        self._draining = False
        self._final_asked = self._final_done = False
        self._outcome: Outcome | None = None
        self._first_join = math.inf
        self._given_up_at = math.inf  # a task or the job was lost, and a cause is waited for until then
        self._ends_at = math.inf  # the job has ended well; what its tasks sent is read until then
        self._suspicion = ""
        self._job_ended = threading.Event()
        self._over = threading.Event()
        self._savepoints: list[tuple[int, str, Callable[[str], None]]] = []
        self._rows = CommittedRows(store)
        self._unheard: list[Callable[[StreamRun], None]] = []

    # ---- the rendezvous' side: any message goes to the query's thread

    def heard(self, connection: Any, message: Any) -> None:
        """A message of a task."""
        self.inbox.put((connection, message))

    def lost(self, connection: Any) -> None:
        """A task's connection has ended."""
        self.inbox.put((connection, _Lost()))

    # ---- the query's thread

    def execute(self) -> Outcome:
        """Run until it is over; Spark's job is gone when this returns."""
        self._server.register_stream(self.spec.exchange, self.spec.secret, self)
        threads = [self._start(self._job, "fastbuf-stream-job")]
        try:
            for number in self._splits:
                threads.append(self._start(partial(self._discover, number), "fastbuf-stream-discovery"))
            while self._outcome is None:
                now = time.monotonic()
                wait = min(0.25, self._given_up_at - now, self.coordinator.next_due(now) if self.running else 0.25)
                with contextlib.suppress(queue.Empty):
                    while True:  # all that is there, so that what is due is looked at with it
                        connection, message = self.inbox.get(timeout=max(0.0, wait))
                        self._handle(connection, message, time.monotonic())
                        wait = 0.0
                now = time.monotonic()
                if self.running:
                    self._do(self.coordinator.tick(now, _wall_ms()))
                elif now - self._first_join > JOIN_S and (missing := self._missing()):
                    self._fail(f"{len(missing)} of {len(self.tasks)} tasks did not start within {JOIN_S:g} s", False)
                if now >= self._ends_at or (self._ends_at < math.inf and not self._connected()):
                    self._outcome = self._outcome or Outcome("finished")
                if now >= self._given_up_at:
                    self._fail(self._suspicion, False)
        except CheckpointInUse as error:
            self._outcome = Outcome("failed", str(error))
            raise
        finally:
            self._finish(threads)
        return self._outcome

    def _suspect(self, suspicion: str, until: float) -> None:
        """Something was lost: unless a task says by then why, that is the cause."""
        self._suspicion = self._suspicion or suspicion
        self._given_up_at = min(self._given_up_at, until)

    def _connected(self) -> list[TaskView]:
        return [view for view in self.tasks if view.connection is not None]

    def _missing(self) -> list[TaskView]:
        return [view for view in self.tasks if view.join is None]

    def what_it_awaits(self) -> str:
        """What a run waits for that has not begun."""
        missing = self._missing()
        if not missing:
            return "tasks restore their state"
        return (
            f"waits for {len(missing)} of {len(self.tasks)} tasks: Spark starts all of them at once, and other jobs "
            "may hold its slots"
        )

    def _start(self, target: Callable[[], None], name: str) -> Any:
        from pyspark import InheritableThread

        thread = InheritableThread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def _job(self) -> None:
        spec, sc = self.spec, self._sc
        error = ""

        def work(number: int, _: Any) -> Any:
            run_task(spec, number)
            return iter(())

        try:
            forget_properties(sc)
            sc.setLocalProperty("spark.job.description", f"fastbuf: stream '{spec.name}', run {spec.generation}")
            sc.setLocalProperty("spark.scheduler.pool", None)
            sc.addJobTag(self._tag)
            sc.parallelize(range(spec.tasks), spec.tasks).barrier().mapPartitionsWithIndex(work).collect()
        except BaseException as problem:
            error = str(problem) or type(problem).__name__
        finally:
            self._job_ended.set()
            self.inbox.put((None, _JobEnded(error)))

    def _discover(self, stage: int) -> None:
        """Look for splits, again and again, in a thread of its own: a source may take its time."""
        source, state = self._splits[stage].source, self._splits[stage].state
        while not self._over.is_set():
            try:
                splits, state = source.splits(state)
            except Exception as error:
                words = f"{type(error).__name__}: {error}"
                self.inbox.put((None, _Discovered(stage, [], state, words, is_outage(error))))
                return
            self.inbox.put((None, _Discovered(stage, splits, state)))
            if source.bounded or self._over.wait(self._discover_s):
                return

    def _handle(self, connection: Any, message: Any, now: float) -> None:
        view = next((view for view in self.tasks if view.connection is connection), None) if connection else None
        match message:
            case Command(call):
                call(self)
            case messages.TaskJoin():
                self._joined(connection, message, now)
            case _Discovered(stage, splits, state, error, outage):
                shares = self._splits[stage]
                if error:
                    self._fail(f"the source {shares.source.name} cannot list its splits: {error}", True, outage)
                    return
                for task, some in shares.add([(split.name, split.offset) for split in splits], state).items():
                    self._send(self.tasks[task].connection, messages.AddSplits(tuple(some), any_yet=shares.any_yet))
                self._tell_last(shares)
            case _JobEnded(error):
                if self._is_done() and not error:  # else rows of the last checkpoint may not be committed
                    self._ends_at = now + HEARD_S  # the last rows for a sink of the driver may not be read yet
                elif self._missing() and (own := error_of_worker(error)):
                    self._fail(own, True)  # as of a function whose module no worker can import
                else:
                    self._suspect(f"Spark's job has ended: {error or 'no reason is known'}", now + GRACE_S)
            case _ if view is None:
                pass
            case _Lost():
                view.connection = None
                if not self._is_done():
                    self._suspect(f"task {view.subtask} of stage {self._name(view)} was lost", now + CAUSE_S)
            case messages.TaskRunning():
                view.running = True
                if all(each.running for each in self.tasks):
                    self.running = True
                    if self._savepoints:  # asked for before anybody could take it
                        self._do(self.coordinator.trigger(time.monotonic(), _wall_ms()))
            case messages.Acknowledge(checkpoint, state, figures):
                number = self.tasks.index(view)
                self._do(self.coordinator.acknowledge(number, checkpoint, {"state": state, "figures": figures}, now))
            case messages.Decline(checkpoint, reason):
                self._do(self.coordinator.decline(self.tasks.index(view), checkpoint, reason, now))
            case messages.DataEnd():
                view.data_ended = True
                if all(each.data_ended for each in self.tasks) and not self._final_asked:
                    self._final_asked = True
                    self._do(self.coordinator.trigger(now, _wall_ms(), final=True))
            case messages.Committed(output, checkpoint):
                self._rows.committed(self.tasks.index(view), output, checkpoint)
            case messages.Collected(output, name, rows):
                sink: Any = next(each.sink for each in self.spec.outputs if each.name == output)
                sink.collected(name, rows)
            case messages.TaskFigures(stats):
                view.stats = stats
                self._align()
            case protocol.RunFailed(reason):
                self._fail(reason, True)
            case messages.Outage(reason):
                self._fail(reason, True, outage=True)
            case _:
                pass

    def _name(self, view: TaskView) -> str:
        return self.spec.stages[view.stage].name

    def _is_done(self) -> bool:
        return self._final_done

    def _joined(self, connection: Any, join: messages.TaskJoin, now: float) -> None:
        view = self.tasks[join.task] if 0 <= join.task < len(self.tasks) else None
        if view is not None and view.join is not None:
            self._suspect(f"task {view.subtask} of stage {self._name(view)} was lost", now + GRACE_S)
        # Spark starts a barrier stage again, but the next generation is the query's to begin
        if view is None or join.generation != self.spec.generation or view.join is not None:
            self._send(connection, protocol.Abort(f"task {join.task} of run {join.generation} is not wanted here"))
            return
        view.connection, view.join = connection, join
        self._first_join = min(self._first_join, now)
        if all(each.join is not None for each in self.tasks):
            self._begin()

    def _begin(self) -> None:
        spec, restored = self.spec, self._restored
        splits = {task: share for shares in self._splits.values() for task, share in shares.begin().items()}
        for number, view in enumerate(self.tasks):
            stage = spec.stages[view.stage]
            reader = spec.reader(view.stage)
            behind = [] if reader is None else [self.tasks[n].join for n in spec.numbers(reader)]
            pieces = restored.get("operators", {}).get(stage.name, {}).get("pieces", {})
            mine = {
                group: entry
                for group, entry in pieces.items()
                if owner(int(group), stage.tasks, spec.key_groups) == view.subtask
            }
            outputs = [output for output in spec.outputs if output.stage == view.stage and restored]
            committed_rows = restored.get("committed_rows", {})
            waiting = {output.name: waiting_rows_of(output, restored) for output in outputs}
            start = messages.TaskStart(
                tuple((join.host, join.port, join.gate) for join in behind if join is not None),
                tuple(splits.get(number, ())),
                {stage.name: mine} if mine else {},
                {name: _share(rows, view.subtask, stage.tasks) for name, rows in waiting.items()},
                restored.get("times", {}),
                {
                    output.name: [[n, some[view.subtask :: stage.tasks]] for n, some in committed_rows[output.name]]
                    for output in outputs
                },
            )
            self._send(view.connection, start)
        for shares in self._splits.values():
            for number in shares.tasks if shares.is_listed else ():
                self._send(self.tasks[number].connection, messages.AddSplits((), any_yet=shares.any_yet))
            self._tell_last(shares)
        if self._draining:
            self.drain()

    def _tell_last(self, shares: SplitShares) -> None:
        if shares.is_last and not self._missing():
            for number in shares.tasks:
                self._send(self.tasks[number].connection, messages.AddSplits((), last=True, any_yet=shares.any_yet))

    def _sources(self) -> list[int]:
        """The tasks that read splits."""
        return [number for shares in self._splits.values() for number in shares.tasks]

    def _align(self) -> None:
        """Tell each source that is aligned how far the slowest of the others is."""
        stages = [self.spec.stages[number] for number in self._splits]
        wanted = {stage.name for stage in stages if getattr(stage.time, "align_ms", None) is not None}
        group = [view for view in self.tasks if self._name(view) in wanted and not view.data_ended]
        marks = {id(view): view.stats.get("watermark_ms", MIN) for view in group if not view.stats.get("idle")}
        least_two = [*sorted(marks.values())[:2], MAX, MAX]
        for view in group:
            least = least_two[1] if marks.get(id(view)) == least_two[0] else least_two[0]  # that of the others
            if least != view.least_of_others:
                view.least_of_others = least
                self._send(view.connection, messages.AlignTime(least))

    def _do(self, decided: list[Any]) -> None:
        """Carry out what the coordinator has decided."""
        for each in decided:
            match each:
                case decisions.Trigger(checkpoint, timestamp_ms, final):
                    for number in self._sources():
                        trigger = messages.TriggerCheckpoint(checkpoint, timestamp_ms, final, dict(self._greatest))
                        self._send(self.tasks[number].connection, trigger)
                case decisions.Store(checkpoint, acks, final):
                    self._store_checkpoint(checkpoint, acks, final)
                case decisions.Complete(checkpoint, final):
                    reach("after metadata", checkpoint)
                    self._final_done = final
                    for view in self.tasks:
                        self._send(view.connection, messages.CheckpointComplete(checkpoint, final))
                    self._completed(self._has_read)
                    try:
                        self._store.prune()
                    except OSError as error:  # the next one tries again
                        log.warning("old checkpoints of stream '%s' are not removed: %s", self.spec.name, error)
                case decisions.Abort(checkpoint, reason):
                    log.warning("checkpoint %d of stream '%s' failed: %s", checkpoint, self.spec.name, reason)
                    for view in self.tasks:
                        self._send(view.connection, messages.CheckpointAbort(checkpoint, reason))
                case decisions.Fail(reason):
                    self._fail(reason, False)

    def _store_checkpoint(self, checkpoint: int, acks: dict[int, dict[str, Any]], final: bool) -> None:
        reach("before metadata", checkpoint)
        metadata = self._metadata(acks, final)
        try:
            self._store.write(checkpoint, metadata)
        except CheckpointInUse:
            raise
        except OSError as error:
            self._do(self.coordinator.store_failed(checkpoint, f"{type(error).__name__}: {error}", time.monotonic()))
            return
        except (TypeError, ValueError) as error:
            names = ", ".join(shares.source.name for shares in self._splits.values())
            self._fail(f"the state that the source {names} gives with its splits is no JSON value: {error}", True)
            return
        self._has_read = self._has_read or _places(metadata) != self._begun_at
        for shares in self._splits.values():
            shares.end(name for task in shares.tasks for name in acks[task]["state"].get("ended", ()))
        self._note_times(ack["state"].get("times", {}) for ack in acks.values())
        self._do(self.coordinator.stored(checkpoint, time.monotonic()))
        self._rows.stored(checkpoint, acks)
        due, self._savepoints = self._savepoints, []
        for least, path, answer in due:
            if checkpoint >= least:
                self._rows.export(path, answer)
            else:
                self._savepoints.append((least, path, answer))

    def _note_times(self, times: Iterable[dict[str, Any]]) -> None:
        """How far the rows of sources have come, for Spark's watermark."""
        for each in times:
            if "greatest" in each:
                stage = each["stage"]
                self._greatest[stage] = max(each["greatest"], self._greatest.get(stage, each["greatest"]))

    def _metadata(self, acks: dict[int, dict[str, Any]], final: bool) -> dict[str, Any]:
        operators: dict[str, dict[str, Any]] = {name: {"pieces": {}, **each} for name, each in self._operators.items()}
        rows: dict[str, dict[int, list[Any]]] = {}
        times: dict[str, Any] = {}
        for number, ack in acks.items():
            state = ack["state"]
            for name, operator in state.get("operators", {}).items():
                operators[name]["pieces"].update(operator["pieces"])
            for output, waiting in state.get("rows", {}).items():
                for checkpoint, committables in waiting:
                    rows.setdefault(output, {}).setdefault(checkpoint, []).extend(committables)
            if state.get("times"):
                times[str(number)] = state["times"]
        sources = {}
        for stage, shares in self._splits.items():
            states = [acks[task]["state"] for task in shares.tasks]
            offsets = {name: offset for state in states for name, offset in state.get("splits", {}).items()}
            ended = [name for state in states for name in state.get("ended", ())]
            snapshot = shares.snapshot(offsets, ended)
            sources[self.spec.stages[stage].name] = {**snapshot, "of": source_of(shares.source)}
        return {
            "sources": sources,
            "operators": operators,
            "sinks": {output.name: sink_of(output.sink) for output in self.spec.outputs},
            "rows": {output: sorted(waiting.items()) for output, waiting in rows.items()},
            "times": times,
            "stages": [[stage.name, stage.tasks] for stage in self.spec.stages],
            "final": final,
            "wall_ms": _wall_ms(),
        }

    def savepoint(self, path: str, answer: Callable[[str], None]) -> None:
        """Have the next checkpoint copied; called by the query's thread."""
        newest = self.coordinator.in_progress or self.coordinator.completed  # one in progress began before
        self._savepoints.append((newest + 1, path, answer))
        if self.running:
            self._do(self.coordinator.trigger(time.monotonic(), _wall_ms()))

    def drain(self) -> None:
        """Have the sources end; those that have not begun are told when they have."""
        self._draining = True
        if not all(view.join is not None for view in self.tasks):
            return
        for number in self._sources():
            self._send(self.tasks[number].connection, messages.Drain())

    def unheard(self) -> list[Callable[[StreamRun], None]]:
        """The commands that came when it was over."""
        calls, self._unheard = self._unheard, []
        return calls + [message.call for _, message in _taken(self.inbox) if isinstance(message, Command)]

    def stop(self) -> None:
        """End the run as it is."""
        if self._outcome is None:
            self._outcome = Outcome("stopped")

    def _fail(self, reason: str, by_task: bool, outage: bool = False) -> None:
        if self._outcome is None:
            self._outcome = Outcome("failed", reason, by_task, outage)

    def _send(self, connection: Any, message: Any) -> None:
        if connection is not None:
            self._server.post(lambda: connection.send(message))

    def _finish(self, threads: list[Any]) -> None:
        self._over.set()
        outcome = self._outcome or Outcome("failed", "the driver has ended it")
        if outcome.kind != "finished":
            message: Any = protocol.Stop() if outcome.kind == "stopped" else protocol.Abort(outcome.reason)
            for view in self.tasks:
                self._send(view.connection, message)
            if not self._job_ended.wait(1.0):
                with contextlib.suppress(Exception):
                    self._sc.cancelJobsWithTag(self._tag)
        if not self._job_ended.wait(END_S):
            log.error("the job of run %d of stream '%s' does not end", self.spec.generation, self.spec.name)
        self._server.post(lambda: self._server.forget([self.spec.exchange]))
        for connection, message in _taken(self.inbox):
            if isinstance(message, messages.Collected | messages.Committed):  # of a task that had its turn at the end
                self._handle(connection, message, time.monotonic())
            elif isinstance(message, Command):
                self._unheard.append(message.call)
        self._rows.end()
        for _, _, answer in self._savepoints:
            answer("the run has ended before")
        for thread in threads:
            thread.join(5)


def _taken(inbox: queue.SimpleQueue[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """All that is in it."""
    taken = []
    with contextlib.suppress(queue.Empty):
        while True:
            taken.append(inbox.get_nowait())
    return taken


def _places(metadata: dict[str, Any]) -> str:
    """Where the sources are, as a text: a checkpoint that was read from its file has lists in place of tuples."""
    return json.dumps([[name, source["open"], source["state"]] for name, source in metadata.get("sources", {}).items()])


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _share(rows: Iterable[Sequence[Any]], subtask: int, tasks: int) -> list[list[Any]]:
    """A task's part of what is in front of a sink, by checkpoint."""
    return [[checkpoint, some] for checkpoint, each in rows if (some := each[subtask::tasks])]
