"""The consumer of a pipelined exchange, in a worker: an ordinary task that requests partitions from the driver."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ExchangeAborted, ExchangeError, StallTimeout
from fastbuf.exchange.clock import monotonic
from fastbuf.monitor.figures import ended
from fastbuf.monitor.vitals import Vitals
from fastbuf_spark.codec import Codec
from fastbuf_spark.protocol import Abort, ConsumerDone, ConsumerFailed, FromWorker, Join, Ready, RunFailed, Seal
from fastbuf_spark.pyspark_private import properties_of
from fastbuf_spark.spec import ExchangeSpec, plain
from fastbuf_spark.wire import cause_of, data_secret
from fastbuf_spark.worker.chains import Chain
from fastbuf_spark.worker.control import REASON_WAIT_S, Control, StageFailed, words
from fastbuf_spark.worker.held import EXECUTION
from fastbuf_spark.worker.memory import environment
from fastbuf_spark.worker.task_input import InputGuard, InputLost, TaskInput, task_context
from fastbuf_spark.worker.watch import Outlet, TaskClock, Watch, state_of, times

if TYPE_CHECKING:
    import pyarrow as pa

EPOCH = "fastbuf.epoch"  #: a local property of the producers' job: the epoch of its run
#: Local properties of Spark's that the producers' job takes over, beside the user's own; and the others
OF_JOBS = ("spark.jobGroup.id", "spark.job.interruptOnCancel", "spark.job.tags", "spark.scheduler.pool")
INTERNAL = ("spark.", "callSite.", "__", "fastbuf.")
POLL_S = 0.02  #: interval to check the control connection while nothing arrives: bounds the delay at the end of a run


@dataclass
class Received:
    """Counts the user's records: a gate counts its own records, which may be groups of them."""

    records: int = 0

    def opened(self, codec: Codec, polled: Any, most_rows: int | None = None) -> Iterable[Any]:
        """The user's records in ``polled``; ``most_rows``: of each batch."""
        for item in polled if isinstance(polled, list) else (polled,):
            self.records += codec.count(item)
        return codec.opened(polled, most_rows)


@dataclass(frozen=True)
class Consumer:
    """Calls the user's function with one output partition for each row of its input, which has the partition's number.

    The task's own number cannot be used: under a union, a coalesce or a cartesian product it differs, and one task may
    be asked for several partitions, or two tasks for the same one.  The task's own thread does all the work, driven by
    requests for the next output: it polls the gate, and checks the control connection before each batch.
    """

    spec: ExchangeSpec
    func: Callable[[Iterator[Any]], Iterable[Any]]

    def batches(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function of ``mapInArrow``: the first column of ``source`` contains partitions."""
        task_input = TaskInput.of_task()
        partitions = (partition for batch in source for partition in batch.column(0).to_pylist())
        return task_input.wanted(self._all(task_input, partitions))

    def chained(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same inside a producer of the next exchange, which checks itself whether Spark still needs its output.

        If the output ended early here, the producer would treat that as the end of its input.
        """
        partitions = (partition for batch in source for partition in batch.column(0).to_pylist())
        return self._inside(self._all(TaskInput.of_task(), partitions))

    def then(self, link: Callable[[Any], Iterable[Any]]) -> Consumer:
        """The same, with ``link`` called on the function's output."""
        return replace(self, func=(self.func if isinstance(self.func, Chain) else Chain((self.func,))).then(link))

    def records(self, source: Iterable[int]) -> Iterator[Any]:
        """The function of ``mapPartitions``; yields the codec's records, possibly in lists."""
        from pyspark import TaskContext

        task_input, context = TaskInput.of_task(), TaskContext.get()
        items = self._all(task_input, source)
        # The producer of the next exchange, in the same process, reads these records of an RDD
        inside = context is not None and context.getLocalProperty(EPOCH)
        return task_input.wanted(self._inside(items) if inside else items)

    def _inside(self, items: Iterator[Any]) -> Iterator[Any]:
        """For a producer of the next exchange: wraps errors that are not of that exchange.

        For an error of its own exchange the producer would ask its driver for the cause, and wait for the answer.
        """
        try:
            yield from items
        except ExchangeAborted as error:
            raise StageFailed(cause_of(str(error), self.spec.name)) from error
        except (ExchangeError, StallTimeout) as error:
            raise StageFailed(words(error)) from error

    def _all(self, task_input: TaskInput, partitions: Iterable[int]) -> Iterator[Any]:
        # Read the whole input first: a reader left behind could take the next task's input
        for partition in list(partitions):
            yield from self._one(task_input, partition)

    def _one(self, task_input: TaskInput, partition: int) -> Iterator[Any]:
        spec, conf = self.spec, self.spec.conf
        context = task_context()
        scope, parent = context.getLocalProperty(EXECUTION) or "", int(context.getLocalProperty(EPOCH) or 0)
        join = Join(context.stageId(), partition, context.taskAttemptId(), scope, parent, of_action(context))
        with spec.connect() as control:
            with listening(spec, control, task_input, join) as (_, gate, _):
                received, guard, clock, outlet = Received(), InputGuard(), TaskClock(), Outlet(task_input)

                vitals = Vitals() if conf.monitor else None

                def figures() -> dict[str, Any]:
                    vital_figures = vitals.figures() if vitals is not None else {}
                    figures = {**gate.stats(), **gate.gauges(), **times(clock, gate.activity())}
                    return {**figures, "records": received.records, **outlet.figures(), **vital_figures}

                def look() -> str:
                    outlet.look()
                    return state_of(clock, gate.activity())

                try:
                    with Watch(control, figures, look, vitals) if vitals is not None else contextlib.nullcontext():
                        output = self.func(guard.items(self._received(control, task_input, gate, received, clock)))
                        yield from clock.giving(output) if gate.serializer.kind == "columnar" else output
                    guard.check()
                except InputLost:
                    raise  # treat it like a task whose rows nobody reads: the driver sees this connection close
                except Exception as error:
                    broken = guard.error is not None  # else it is the function's own, whatever its type
                    better = explained(control, error, broken, ConsumerFailed) or error
                    if better is not error:
                        raise better from None if isinstance(error, ExchangeAborted) else error
                    raise
                stats = plain(ended(figures()))
            control.send(ConsumerDone(stats))

    def _received(
        self, control: Control, task_input: TaskInput, gate: Any, received: Received, clock: TaskClock
    ) -> Iterator[Any]:
        """The producers' data, until all have reported their totals and all of it has arrived."""
        sealed_at = 0.0
        while True:
            message = control.poll()
            if isinstance(message, Abort):
                raise ExchangeAborted(message.reason)
            if isinstance(message, Seal):
                for partition, words in message.unreached.items():
                    # The producer took this consumer for ended, but it still reads: rows are lost
                    reason = f"producer of partition {partition} failed: {words}"
                    control.abort(reason)
                    raise ExchangeAborted(reason)
                gate.seal(message.totals)
                sealed_at = monotonic()
            task_input.look()
            polled = gate.poll(POLL_S)
            if polled is not None:
                if not received.records:
                    clock.starting = gate.activity()["seconds"]["input"]
                yield from received.opened(self.spec.codec, polled, self.spec.conf.most_rows)
                sealed_at = monotonic() if sealed_at else 0.0
            elif gate.finished:
                return
            elif sealed_at and monotonic() - sealed_at > self.spec.conf.stall_timeout:
                # All producers have ended, so announced data that is missing will never come
                raise StallTimeout(
                    f"nothing came for {self.spec.conf.stall_timeout:g} s (stall_timeout) though all producers ended: "
                    f"{gate.describe_stall()}"
                )


@contextlib.contextmanager
def listening(
    spec: ExchangeSpec, control: Control, task_input: TaskInput, join: Join, channels: int | None = None
) -> Iterator[tuple[Any, Any, int]]:
    """The environment, gate and epoch of a task that has asked for a partition; its gate listens.

    ``channels``: of the gate, where it is known how many producers there are.
    """
    conf = spec.conf
    control.watch = task_input.look
    epoch = control.ask(join, conf.stall_timeout + 5).epoch
    with environment(conf) as env:
        host, port = env.listen(host=control.local_host, ports=(conf.port_min, conf.port_max))
        gate = env.create_input_gate(
            spec.codec.serializer(conf.checksum),
            channels=channels,
            epoch=epoch,
            secret=data_secret(spec.secret, epoch),
            config=conf.exchange(),
        )
        # Closed in any case, after an error or when a limit is satisfied: the driver tells producers of errors
        with contextlib.closing(gate):
            control.send(Ready(host, port, gate.gate_id))
            yield env, gate, epoch


def of_action(context: Any) -> dict[str, str]:
    """What the thread of the action had set for its jobs: job group, tags, pool, and properties of the user's own."""
    properties = properties_of(context)
    return {name: value for name, value in properties.items() if name in OF_JOBS or not name.startswith(INTERNAL)}


def explained(
    control: Control,
    error: BaseException,
    broken: bool = True,
    kind: Callable[[str], FromWorker[Any]] = RunFailed,
) -> BaseException | None:
    """Report a participant's failure to the driver; returns the error to raise: a better cause if the driver has one.

    A broken channel is rarely the cause: the participant that broke it has told the driver why, or the driver has seen
    it vanish.  None: the run is over, and no more output is needed.

    ``broken``: the error may be of a channel; else it is the function's own, and there is no cause to wait for.
    ``kind``: the message that tells the driver of it.
    """
    if isinstance(error, ExchangeError | StallTimeout):
        verdict = control.verdict(REASON_WAIT_S if broken else 0.0)
        if verdict is not None:
            return ExchangeAborted(verdict.reason) if isinstance(verdict, Abort) else None
    control.abort(words(error), kind)
    return error
