"""A task of a stream: one thread that reads rows and barriers, calls functions, and takes snapshots.

A task works in *epochs*, from one barrier to the next.  In each the functions of its chain are called once: their input
ends at the barrier, and their output is drained before the barrier goes on, so no row is hidden in a generator.  At the
barrier, in this order: the sink prepares, the barrier goes out, the state is frozen, channels are read again; state is
written and acknowledged by a second thread (Flink's ``SubtaskCheckpointCoordinatorImpl``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fastbuf.checkpoint.alignment import Alignment, Step
from fastbuf.errors import ExchangeAborted, ExchangeError, StallTimeout
from fastbuf.exchange.events import Barrier, CancelCheckpoint, EndOfData, Event, Watermark, WatermarkStatus
from fastbuf.monitor.figures import MOST_BYTES, bounded
from fastbuf_spark.protocol import Abort, FromDriver, RunFailed, Stop
from fastbuf_spark.spec import not_reached, plain
from fastbuf_spark.streams import messages
from fastbuf_spark.streams.commits import Commits
from fastbuf_spark.streams.event_times import DRAIN_S, GateTime, source_time
from fastbuf_spark.streams.fail_points import ask, reach
from fastbuf_spark.streams.operators import ByKeyGroup
from fastbuf_spark.streams.outage import is_outage
from fastbuf_spark.streams.snapshots import Snapshots
from fastbuf_spark.streams.source import Polled, Split
from fastbuf_spark.wire import data_secret
from fastbuf_spark.worker.control import REASON_WAIT_S, words
from fastbuf_spark.worker.memory import environment
from fastbuf_spark.worker.regularly import Regularly
from fastbuf_spark.worker.task_input import InputLost, TaskInput
from fastbuf_spark.worker.watch import EVERY_S

if TYPE_CHECKING:
    import pyarrow as pa

    from fastbuf_spark.streams.spec import Output, StreamSpec
    from fastbuf_spark.worker.control import Control

RESULTS, LATE = "results", "late"  #: names of outputs
IDLE_S = 0.02  #: a task without rows looks at its control connection this often
TICK_S = 0.1  #: an operator is asked this often what is due by the clock
MOST_READ = 64 << 20  #: bytes that a source reads on while its sink is behind, for the next checkpoint
START_S = 120.0  #: tasks of a run join within this time, or the run is given up


def run_task(spec: StreamSpec, number: int) -> None:
    """The whole of a task, in a Spark worker."""
    ask(spec.fail_point, roles_of(spec, spec.place(number)[0]))
    task_input = TaskInput.of_task()
    with spec.connect() as control:
        control.watch = task_input.look
        try:
            with environment(spec.conf) as env:
                StreamTask(spec, number, control, task_input, env).run()
        except InputLost:
            raise  # Spark ends it, and the driver knows why
        except BaseException as error:
            if isinstance(error, ExchangeError | StallTimeout):
                verdict = control.verdict(REASON_WAIT_S)  # a broken channel is rarely the cause
                if isinstance(verdict, Stop):
                    return
                if isinstance(verdict, Abort):
                    raise ExchangeAborted(verdict.reason) from None
            control.abort(words(error), messages.Outage if is_outage(error) else RunFailed)
            raise


def roles_of(spec: StreamSpec, place: int) -> list[str]:
    """What the tasks of a stage are: any of "source", "state", "sink"."""
    stage = spec.stages[place]
    roles = {
        "source": stage.source is not None,
        "state": stage.operator is not None,
        "sink": any(output.stage == place for output in spec.outputs),
    }
    return [role for role, is_one in roles.items() if is_one]


class _Over(Exception):
    """The run has ended: nobody needs more of this task."""


def _open(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows for a function; when it stops reading, and lets go of this, they are not closed in mid-batch."""
    for batch in rows:  # noqa: UP028
        yield batch


class StreamTask:
    """See the module's docstring."""

    def __init__(self, spec: StreamSpec, number: int, control: Control, task_input: TaskInput, env: Any) -> None:
        self.spec = spec
        self.number = number
        self.place, self.subtask = spec.place(number)
        self.stage = spec.stages[self.place]
        self._control = control
        self._task_input = task_input
        self._env = env
        self._gate: Any = None
        self._reader: Any = None
        self._writer: Any = None
        self._sinks: dict[str, Any] = {}  # by the name of the output
        self._commits: dict[str, Commits] = {}
        self._operator = None if self.stage.operator is None else self.stage.operator()
        self._snapshots = Snapshots(spec, number, control, self._operator)
        self._time: Any = None
        self._channels = len(spec.writers(self.place))
        self._alignment = Alignment(range(self._channels), spec.exactly_once)
        self._ended_channels: set[int] = set()
        self._offsets: dict[str, Any] = {}
        self._told_offsets: dict[int, dict[str, Any]] = {}  # by checkpoint
        self._ended_splits: list[str] = []
        self._paused: list[str] = []  # splits that are not read, as they are ahead of the others
        self._barrier: Barrier | None = None  # of the checkpoint that is due at the end of this epoch
        self._is_final = False
        self._step = Step()
        self._cancelled: list[int] = []
        self._no_more_splits = self._draining = False
        self._data_ended = self._end_told = False  # all rows are read; and those behind were told
        self._finished = False  # the last checkpoint is complete
        self._ticked = self._drained = 0.0
        self._time_is_due = False
        self._rows = {"in": 0, "out": 0}
        self._read_bytes = 0  # of a source, since the last barrier
        self._figures: dict[str, Any] = {}  # of the operator; another thread sends them
        self._waits: dict[str, float] = {}

    # ---- begin and end

    def run(self) -> None:
        """Join, restore, work until the run is over."""
        with contextlib.ExitStack() as stack:
            start = self._join(stack)
            began = time.monotonic()
            self._restore(start, stack)
            self._connect(start, stack)
            self._control.send(messages.TaskRunning(time.monotonic() - began))
            for function in self.stage.opened:
                if hasattr(function, "open"):
                    function.open()
                if hasattr(function, "close"):
                    stack.callback(function.close)
            with Regularly(lambda due: self._tell(), EVERY_S, EVERY_S), contextlib.suppress(_Over):
                self._work()
            if self._operator is not None:
                self._figures = self._operator.figures()
            if self._gate is not None:
                self._gate.close()  # what its producers write from here on is the end of their partitions alone
            if self._writer is not None:
                self._writer.close()
            self._tell()

    def _join(self, stack: contextlib.ExitStack) -> messages.TaskStart:
        import fastbuf as fb

        spec, host, port, gate = self.spec, "", 0, 0
        if self.stage.source is None:
            config = spec.conf.exchange()
            secret = data_secret(spec.secret, spec.generation)
            host = self._control.local_host
            host, port = self._env.listen(host, (spec.conf.port_min, spec.conf.port_max))
            self._gate = self._env.create_input_gate(
                fb.ColumnarSerializer(self.stage.input_schema, checksum=spec.conf.checksum),
                channels=self._channels,
                epoch=spec.generation,
                secret=secret,
                config=config,
            )
            gate = self._gate.gate_id
        join = messages.TaskJoin(self.number, spec.generation, host, port, gate)
        return self._control.ask(join, START_S)

    def _restore(self, start: messages.TaskStart, stack: contextlib.ExitStack) -> None:
        stage, spec = self.stage, self.spec
        self._snapshots.restore(start.pieces.get(stage.name, {}))
        stack.callback(self._snapshots.close)
        if stage.source is not None:
            self._time = source_time(stage.time, start.times, stage.name, (self.subtask, stage.tasks))
            self._reader = reader = stage.source.reader(stage.input_schema)
            stack.callback(reader.close)
            self._time.waiting = lambda: getattr(reader, "waiting", ())
            if stage.computed is None:
                self._time.least = getattr(reader, "least_times", self._time.least)
            self._assign(start.splits)
        else:
            self._time = GateTime(self._channels, start.times, stage.name)
        if self._operator is not None:
            if hasattr(self._operator, "begin"):
                self._operator.begin(self._time.restored)
            stack.callback(self._operator.close)
        for output in spec.outputs:
            if output.stage == self.place:
                self._open_sink(output, start, stack)

    def _open_sink(self, output: Output, start: messages.TaskStart, stack: contextlib.ExitStack) -> None:
        sink: Any = output.sink.writer(output.context(self.spec, self.subtask))
        if hasattr(sink, "collect"):
            sink.collect = lambda name, part: self._control.send(messages.Collected(output.name, name, part))
        stack.callback(sink.close)
        commits = Commits(sink, self._control, output.name)
        stack.callback(commits.close)
        self._sinks[output.name], self._commits[output.name] = sink, commits
        commits.begin_from(start.committed_rows.get(output.name, ()))
        for checkpoint, committables in start.rows.get(output.name, ()):
            commits.prepared(checkpoint, committables)
            commits.complete(checkpoint)
        commits.wait()  # before any row, as Flink does

    def _connect(self, start: messages.TaskStart, stack: contextlib.ExitStack) -> None:
        import fastbuf as fb

        spec, stage = self.spec, self.stage
        reader = spec.reader(self.place)
        if reader is None:
            return
        selector = fb.round_robin(start=self.subtask)
        if stage.keys:
            selector = fb.custom(ByKeyGroup(stage.keys, spec.key_groups, len(start.targets)))
        try:
            self._writer = self._env.create_result_partition(
                fb.ColumnarSerializer(stage.gives, checksum=spec.conf.checksum),
                list(start.targets),
                channel=spec.writers(reader).index(self.number),
                epoch=spec.generation,
                secret=data_secret(spec.secret, spec.generation),
                selector=selector,
                config=spec.conf.exchange(),
            )
        except ExchangeError as error:
            if getattr(error, "greeted", True):
                raise
            raise type(error)(not_reached(str(error), self._control.local_host, spec.conf)) from error

    def _assign(self, splits: Iterable[tuple[str, Any]]) -> None:
        new = [Split(name, offset) for name, offset in splits]
        self._offsets.update((split.name, split.offset) for split in new)
        self._time.assign([split.name for split in new])
        self._reader.assign(new)

    # ---- epochs

    def _work(self) -> None:
        while not self._finished:
            rows = self._gate_rows() if self._reader is None else self._source_rows()
            for batch in self.stage.chain(_open(rows)):
                self._put(batch)
            for _ in rows:  # a function wants no more of this epoch
                pass
            self._end_epoch()

    def _put(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._rows["out"] += batch.num_rows
        if self._writer is not None:
            self._writer.emit_batch(batch)
        else:
            self._sinks[RESULTS].write(batch)

    def _source_rows(self) -> Iterator[pa.RecordBatch]:
        while not self._is_due():
            self._hear()
            if self._is_due():
                return
            if self._draining and not self._data_ended:
                for polled in getattr(self._reader, "rest", tuple)():
                    yield from self._passed(polled)
                return self._end_source()
            if self._data_ended:
                self._control.wait(IDLE_S)
                continue
            if self._read_bytes >= MOST_READ and self._is_behind():
                self._control.wait(IDLE_S)
                continue
            if (paused := self._time.paused()) != self._paused:
                self._paused = paused
                self._reader.pause(paused)
            polled = self._reader.poll(IDLE_S)
            if polled is None:
                if self._no_more_splits and not self._offsets:
                    return self._end_source()
                self._follow_time()
                self._control.wait(0.001)
                continue
            yield from self._passed(polled)
            self._follow_time()

    def _passed(self, polled: Polled) -> Iterator[pa.RecordBatch]:
        """The rows of a split, if there are some; when they have been taken, its offset is behind them."""
        if polled.batch is not None and polled.batch.num_rows:
            self._rows["in"] += polled.batch.num_rows
            self._read_bytes += polled.batch.nbytes
            computed = self.stage.computed
            for batch in (polled.batch,) if computed is None else computed((polled.batch,)):
                yield self._time.rows(polled.split, batch)
        self._offsets[polled.split] = polled.offset
        if polled.ended:
            del self._offsets[polled.split]
            self._ended_splits.append(polled.split)
            self._time.remove(polled.split)

    def _end_source(self) -> None:
        self._data_ended = True
        self._time.finish()

    def _gate_rows(self) -> Iterator[pa.RecordBatch]:
        operator = self._operator
        while not self._is_due():
            self._hear()
            if self._is_due():
                return
            if self._is_behind():
                self._control.wait(IDLE_S)
                continue
            item = self._gate.poll(IDLE_S)
            if isinstance(item, Event):
                yield from self._event(item)
                continue
            now = time.monotonic()
            if operator is not None and now - self._ticked >= TICK_S:
                self._ticked = now
                self._figures = operator.figures()
                yield from operator.processing_time(time.time_ns() // 1_000_000)
            if item is None:
                self._follow_time()
                if self._gate.finished:  # the tasks before this one have heard that the last checkpoint is complete
                    self._control.wait(IDLE_S)
                continue
            self._rows["in"] += item.num_rows
            if operator is None:
                yield item
            else:
                yield from operator.rows(item)
                if LATE in self._sinks:
                    for batch in operator.take_late():  # type: ignore[attr-defined]
                        self._sinks[LATE].write(batch)

    def _is_due(self) -> bool:
        """Whether the functions' input ends here."""
        return (
            self._is_at_barrier() or bool(self._cancelled) or self._finished or self._time_is_due or self._ends_data()
        )

    def _is_behind(self) -> bool:
        """Whether a sink cannot follow: rows would wait for it in ever more files."""
        return any(commits.is_behind() for commits in self._commits.values())

    def _is_at_barrier(self) -> bool:
        """Whether to take the checkpoint now.  A source puts it off while its sink is behind, and reads on a little."""
        return self._barrier is not None and (self._reader is None or not self._is_behind())

    def _ends_data(self) -> bool:
        return self._data_ended and not self._end_told

    def _event(self, event: Event) -> Iterator[pa.RecordBatch]:
        channel = event.channel
        if isinstance(event, Barrier):
            self._take(self._alignment.barrier(channel, event.checkpoint, time.monotonic()), event)
        elif isinstance(event, CancelCheckpoint):
            self._take(self._alignment.cancel(channel, event.checkpoint), None)
        elif isinstance(event, Watermark):
            yield from self._advance(self._time.watermark(channel, event.time_ms))
        elif isinstance(event, WatermarkStatus):
            yield from self._advance(self._time.status(channel, event.idle))
        elif isinstance(event, EndOfData):
            self._ended_channels.add(channel)
            yield from self._advance(self._time.end(channel))
            if len(self._ended_channels) == self._channels:
                if self._operator is not None:
                    yield from self._operator.end()
                self._data_ended = True

    def _advance(self, time_ms: int | None) -> Iterator[pa.RecordBatch]:
        """The watermark of this task has moved: what that makes due, before it goes on."""
        if time_ms is not None and self._operator is not None:
            yield from self._operator.watermark(time_ms)
        self._follow_time()

    def _follow_time(self) -> None:
        """Send on what is known of event time, or have the functions' input end for it: see ``event_times``."""
        if self._writer is None or not self._time.look():
            return
        if not self.stage.opened:
            self._forward_time()
        elif time.monotonic() - self._drained >= DRAIN_S:
            self._time_is_due = True

    def _forward_time(self) -> None:
        """Send it on, behind the rows that were given out before."""
        self._time_is_due, self._drained = False, time.monotonic()
        if self._writer is not None and self._time.look(at_once=True):
            for event in self._time.news():
                self._writer.emit_event(event)

    def _take(self, step: Step, barrier: Barrier | None) -> None:
        for channel in step.block:
            self._gate.block(channel)
        if step.cancelled is not None:
            self._cancelled.append(step.cancelled)
        if step.snapshot is not None and barrier is not None:
            self._barrier, self._step = barrier, step
        else:
            for channel in step.unblock:
                self._gate.unblock(channel)

    def _end_epoch(self) -> None:
        for checkpoint in self._cancelled:
            self._control.send(
                messages.Decline(checkpoint, "a newer one overtook it, or a task before this declined it")
            )
            if self._writer is not None:
                self._writer.emit_event(CancelCheckpoint(checkpoint))
        self._cancelled.clear()
        if self._time_is_due:
            self._forward_time()
        if self._ends_data():
            self._end_told = True
            self._forward_time()
            if self._writer is not None:
                self._writer.emit_event(EndOfData())
                self._writer.flush()
            self._control.send(messages.DataEnd())
        if self._barrier is not None and self._is_at_barrier():
            self._checkpoint(self._barrier)

    def _checkpoint(self, barrier: Barrier) -> None:
        number, began = barrier.checkpoint, time.monotonic()
        figures = {
            "start_delay_s": max(0.0, time.time() - barrier.timestamp_ms / 1000 - self._alignment.taken_s),
            "alignment_s": self._alignment.taken_s,
        }
        reach("before prepare", number)
        state: dict[str, Any] = {}
        for name, sink in self._sinks.items():
            self._commits[name].prepared(number, sink.prepare(number))
        state["rows"] = {name: commits.snapshot(number) for name, commits in self._commits.items()}
        reach("after prepare", number)
        if self._writer is not None:
            self._forward_time()
        state["times"] = times = self._time.snapshot()  # with the watermark that is in front of the barrier
        rules = getattr(self._operator, "rules", None)
        if times and rules is not None:
            times["rules"] = rules()
        if self._writer is not None:
            self._writer.emit_event(Barrier(number, barrier.timestamp_ms))
            self._writer.flush()
        reach("barrier out", number)
        if self._reader is not None:
            state["splits"] = self._told_offsets[number] = dict(self._offsets)
            state["ended"] = self._snapshots.ended(number, self._ended_splits)
            self._ended_splits = []
        self._snapshots.take(number, state, figures, began)
        for channel in self._step.unblock:
            self._gate.unblock(channel)
        self._barrier, self._step, self._read_bytes = None, Step(), 0

    # ---- what the driver says

    def _hear(self) -> None:
        self._task_input.look()
        self._snapshots.check()
        for commits in self._commits.values():
            commits.check()
        if self._is_final and not any(commits.waiting() for commits in self._commits.values()):
            self._finished = True
        while (message := self._control.poll()) is not None:
            self._handle(message)

    def _handle(self, message: FromDriver) -> None:
        match message:
            case messages.TriggerCheckpoint(checkpoint, timestamp_ms, _, greatest):
                self._time.epoch(greatest.get(self.stage.name))
                self._barrier = Barrier(checkpoint, timestamp_ms)
            case messages.CheckpointComplete(checkpoint, final):
                reach("notified", checkpoint)
                self._snapshots.complete(checkpoint)
                if self._reader is not None:
                    self._reader.checkpointed(self._told_offsets.get(checkpoint, {}))
                    self._told_offsets = {n: offsets for n, offsets in self._told_offsets.items() if n > checkpoint}
                for commits in self._commits.values():
                    commits.complete(checkpoint)
                self._is_final = final
            case messages.CheckpointAbort(checkpoint, _):
                self._take(self._alignment.abort(checkpoint), None) if self._gate is not None else None
            case messages.AddSplits(splits, last, any_yet):
                self._assign(splits)
                self._time.listed(any_yet)
                self._no_more_splits = last
            case messages.AlignTime(least_ms):
                self._time.others = least_ms
            case messages.Drain():
                self._draining = True
            case Abort(reason):
                raise ExchangeAborted(reason)
            case Stop():
                raise _Over
            case _:
                raise ExchangeAborted(f"the driver said {message.op!r}, which is nothing for a task of a stream")

    def _tell(self) -> None:
        """What this task does, for whoever looks."""
        stats: dict[str, Any] = {"rows_in": self._rows["in"], "rows_out": self._rows["out"], **self._time.figures()}
        state = "user"
        if self._gate is not None:
            doing = self._gate.activity()
            state = doing["state"] if doing["state"] == "input" else state
            stats.update(self._gate.gauges(), gate=doing["seconds"], barrier=self._alignment.current)
            stats["waits_for"] = sorted(self._alignment.waiting)[:8]
        if self._writer is not None:
            doing = self._writer.activity()
            state = doing["state"] if doing["state"] in ("credit", "link", "segment") else state
            stats.update(self._writer.gauges(), writer=doing["seconds"])
            stats["bytes_out"] = self._writer.stats()["bytes"]
        stats["state"] = "commit" if self._is_behind() else state
        if self._operator is not None:
            stats.update(self._figures)
        self._control.tell(messages.TaskFigures(bounded(plain(stats), MOST_BYTES)))
