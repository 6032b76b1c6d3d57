"""The consumer of a pipelined exchange, in a worker: an ordinary task that asks the driver for partitions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ExchangeAborted, ExchangeError, StallTimeout
from fastbuf.monitor.figures import ended
from fastbuf.monitor.vitals import Vitals
from fastbuf_spark.codec import Codec
from fastbuf_spark.spec import ExchangeSpec, plain
from fastbuf_spark.wire import data_secret, producers_failed
from fastbuf_spark.worker.chains import Chain
from fastbuf_spark.worker.control import Control, StageFailed, words
from fastbuf_spark.worker.memory import environment
from fastbuf_spark.worker.task_input import Given, InputLost, TaskInput
from fastbuf_spark.worker.watch import TaskClock, Watch, state_of, times

if TYPE_CHECKING:
    import pyarrow as pa

EXECUTION = "spark.sql.execution.id"  #: Spark's name of the action that a task of a DataFrame serves
EPOCH = "fastbuf.epoch"  #: a local property of the producers' job: the run that it is for
POLL_S = 0.02  #: between looks at the control connection while nothing arrives: what the end of a run waits at most


@dataclass
class Received:
    """Counts the user's records as they come out: a gate counts what it carries, which may be groups of them."""

    records: int = 0

    def opened(self, codec: Codec, polled: Any) -> Iterable[Any]:
        """What the user sees of ``polled``."""
        for item in polled if isinstance(polled, list) else (polled,):
            self.records += codec.count(item)
        return codec.opened(polled)


@dataclass(frozen=True)
class Consumer:
    """Gives the user's function one output partition for each row of its input, which says which.

    It is never the task's own number that says so: under a union, a coalesce or a cartesian product that is another,
    and one task may be asked for several partitions, or two tasks for the same.  The task's own thread does it all,
    driven by whoever asks for the next output: it polls the gate, and looks at the control connection before each
    batch.
    """

    spec: ExchangeSpec
    func: Callable[[Iterator[Any]], Iterable[Any]]

    def batches(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function of ``mapInArrow``: the first column of ``source`` has partitions."""
        task_input = TaskInput.of_task()
        partitions = (partition for batch in source for partition in batch.column(0).to_pylist())
        return task_input.wanted(self._all(task_input, partitions))

    def chained(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same inside of a producer of the next exchange, which looks itself whether Spark still wants it.

        Were it to end early here, the producer would take that for the end of its input.
        """
        partitions = (partition for batch in source for partition in batch.column(0).to_pylist())
        return self._inside(self._all(TaskInput.of_task(), partitions))

    def then(self, link: Callable[[Any], Iterable[Any]]) -> Consumer:
        """The same, and ``link`` called with what the function gives."""
        return replace(self, func=(self.func if isinstance(self.func, Chain) else Chain((self.func,))).then(link))

    def records(self, source: Iterable[int]) -> Iterator[Any]:
        """The function of ``mapPartitions``; gives what the codec opens, which may be lists of records."""
        from pyspark import TaskContext

        task_input, context = TaskInput.of_task(), TaskContext.get()
        made = self._all(task_input, source)
        # Records of an RDD go on to the next exchange's producer in the same process
        inside = context is not None and context.getLocalProperty(EPOCH)
        return task_input.wanted(self._inside(made) if inside else made)

    def _inside(self, made: Iterator[Any]) -> Iterator[Any]:
        """For a producer of the next exchange: it is told of an error that is not of its own exchange.

        It would ask its driver for the cause of one that is, and wait for the answer.
        """
        try:
            yield from made
        except (ExchangeError, StallTimeout) as error:
            raise StageFailed(str(error).removeprefix(f"{producers_failed(self.spec.name)}\n")) from error

    def _all(self, task_input: TaskInput, partitions: Iterable[int]) -> Iterator[Any]:
        task_input.hurry()
        # To its end, and first: a reader left behind could take the next task's input
        for partition in list(partitions):
            yield from self._one(task_input, partition)

    def _one(self, task_input: TaskInput, partition: int) -> Iterator[Any]:
        from pyspark import TaskContext

        spec, conf = self.spec, self.spec.conf
        context = TaskContext.get()
        assert context is not None, "runs in a Spark task"
        with spec.connect() as control:
            control.watch = task_input.look
            control.send(
                {
                    "op": "join",
                    "stage": context.stageId(),
                    "partition": partition,
                    "attempt": context.taskAttemptId(),
                    "scope": context.getLocalProperty(EXECUTION) or "",
                    "parent": int(context.getLocalProperty(EPOCH) or 0),
                }
            )
            epoch = int(control.expect("epoch", timeout=conf.stall_timeout + 5)["epoch"])
            with environment(spec.conf) as env:
                host, port = env.listen(host=control.local_host, ports=(conf.port_min, conf.port_max))
                gate = env.create_input_gate(
                    spec.codec.serializer(conf.checksum),
                    channels=None,
                    epoch=epoch,
                    secret=data_secret(spec.secret, epoch),
                    config=conf.exchange(),
                )
                # Closed however this ends, by a limit that has enough or an error: the driver tells producers of errors
                with contextlib.closing(gate):
                    control.send({"op": "ready", "host": host, "port": port, "gate": gate.gate_id})
                    received, given, clock = Received(), Given(), TaskClock()

                    vitals = Vitals() if conf.monitor else None

                    def figures() -> dict[str, Any]:
                        known = vitals.figures() if vitals is not None else {}
                        figures = {**gate.stats(), **gate.gauges(), **times(clock, gate.activity())}
                        return {**figures, "records": received.records, **known}

                    def look() -> str:
                        return state_of(clock, gate.activity())

                    try:
                        with Watch(control, figures, look, vitals) if vitals is not None else contextlib.nullcontext():
                            made = self.func(given.items(self._received(control, task_input, gate, received, clock)))
                            yield from clock.giving(made) if gate.serializer.kind == "columnar" else made
                        given.check()
                    except InputLost:
                        raise  # as one whose rows nobody reads any more: the driver sees this connection end
                    except Exception as error:
                        better = explained(control, error, op="consumer failed") or error
                        if better is not error:
                            raise better from error
                        raise
                    stats = plain(ended(figures()))
            control.send({"op": "done", "stats": stats})

    def _received(
        self, control: Control, task_input: TaskInput, gate: Any, received: Received, clock: TaskClock
    ) -> Iterator[Any]:
        """What the producers send, until all of them have said how much it was and all of it is here."""
        sealed_at = 0.0
        while True:
            message = control.poll()
            if message is not None:
                if message["op"] == "abort":
                    raise ExchangeAborted(str(message["reason"]))
                if message["op"] == "seal":
                    for partition, words in message.get("unreached", {}).items():
                        # Taken for a consumer that had enough, but this one still reads: its rows are lost
                        reason = f"producer of partition {partition} failed: {words}"
                        control.abort(reason)
                        raise ExchangeAborted(reason)
                    gate.seal({int(channel): int(buffers) for channel, buffers in message["totals"].items()})
                    sealed_at = time.monotonic()
            task_input.look()
            polled = gate.poll(POLL_S)
            if polled is not None:
                if not received.records:
                    clock.starting = gate.activity()["seconds"]["input"]
                yield from received.opened(self.spec.codec, polled)
                sealed_at = time.monotonic() if sealed_at else 0.0
            elif gate.finished:
                return
            elif sealed_at and time.monotonic() - sealed_at > self.spec.conf.stall_timeout:
                # All producers have ended, so what was announced and is not here will never come
                raise StallTimeout(
                    f"nothing came for {self.spec.conf.stall_timeout:g} s (stall_timeout) though all has been sent: "
                    f"{gate.describe_stall()}"
                )


def explained(control: Control, error: Exception, op: str = "abort") -> Exception | None:
    """Tell the driver of a participant's failure; what to raise, which is a better cause if the driver knows one.

    A broken channel is seldom the cause of itself: whoever broke it has told the driver why, or the driver has seen it
    vanish.  None: the run is over, and nobody wants more of it.
    """
    if isinstance(error, ExchangeError | StallTimeout):
        verdict = control.verdict()
        if verdict is not None:
            return ExchangeAborted(str(verdict["reason"])) if verdict["op"] == "abort" else None
    control.abort(words(error), op)
    return error
