"""A shuffle within one stage, in a worker: one barrier stage whose tasks are producers and consumers at once (M = R).

A task has one thread, driven by requests for its next output.  It first returns data that has arrived; if there is
none, it reads and sends more of its input, and never blocks in a send: a task that waited for credit without receiving
could wait for ever.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any

from fastbuf.errors import ConfigError, ExchangeAborted, PreflightError
from fastbuf_spark.codec import RecordCodec, own_partition_func
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.protocol import Abort, ConsumerDone, Join, Stop, Targets, Watch
from fastbuf_spark.pyspark_private import active_context
from fastbuf_spark.shipping import Shipped
from fastbuf_spark.spec import ExchangeSpec, plain
from fastbuf_spark.wire import data_secret
from fastbuf_spark.worker.consumer import POLL_S, Received, explained, listening
from fastbuf_spark.worker.control import Control
from fastbuf_spark.worker.regularly import Regularly
from fastbuf_spark.worker.task_input import InputGuard, InputLost, TaskInput
from fastbuf_spark.worker.watch import EVERY_S

BLOCKED_S = 0.002  #: how long a blocked sender waits for arrivals before it checks its credit again


class _Stopped(Exception):
    """The run is over, and no more output is needed."""


@dataclass(frozen=True)
class FusedTask:
    """Sends its input partition to all tasks of the stage, and passes the data it receives to the user's function."""

    spec: ExchangeSpec
    func: Callable[[Iterator[Any]], Iterable[Any]]

    def __call__(self, source: Iterable[Any]) -> Iterator[Any]:
        """The function of ``mapInArrow`` and ``mapPartitions``."""
        from pyspark import BarrierTaskContext

        spec, conf = self.spec, self.spec.conf
        context = BarrierTaskContext.get()
        partition = context.partitionId()
        tasks = len(context.getTaskInfos())
        if tasks != spec.partitions:
            raise PreflightError(
                f"a ShuffleStage has as many partitions out as in, and its input has {tasks}, not {spec.partitions}: "
                f"use num_partitions={tasks}, or fbs.partition_by, which takes any number"
            )
        task_input, guard = TaskInput.of_task(), InputGuard()
        join = Join(context.stageId(), partition, context.taskAttemptId())
        with spec.connect() as control, listening(spec, control, task_input, join, tasks) as (env, gate, epoch):
            targets = control.expect(Targets, timeout=conf.stall_timeout + 5).targets
            sender = spec.codec.sender(tasks, range(tasks), partition)
            writer = env.create_result_partition(
                spec.codec.serializer(conf.checksum),
                # Data that a task sends to itself is read in place
                [gate if i == partition else target for i, target in enumerate(targets)],
                channel=partition,
                epoch=epoch,
                secret=data_secret(spec.secret, epoch),
                selector=sender.selector,
                config=conf.exchange(),
                on_peer_loss="error",
            )
            pump = _Pump(control, spec, gate, writer, sender.items(task_input.whole(source)), task_input)
            try:
                with Regularly(pump.tell, EVERY_S, EVERY_S) if conf.monitor else contextlib.nullcontext():
                    yield from self.func(guard.items(pump.received()))
                    guard.check()
                    pump.finish()
            except GeneratorExit:
                # Nobody reads this task's output any more; the other tasks still need its rows.  If its input
                # is lost too, the driver sees this connection close, and tells them
                with contextlib.suppress(Exception):
                    pump.finish()
                raise
            except _Stopped:
                return
            except Exception as error:
                if task_input.hung_up:
                    # There was no error here.  The driver knows whether this is fine, as above
                    raise InputLost from error
                better = explained(control, error)
                if better is None:
                    return
                if better is not error:
                    raise better from error
                raise


class _Pump:
    """Receives and sends in turn."""

    def __init__(
        self,
        control: Control,
        spec: ExchangeSpec,
        gate: Any,
        writer: Any,
        items: Iterable[Any],
        task_input: TaskInput,
    ) -> None:
        self._control = control
        self._codec = spec.codec
        self._gate = gate
        self._writer = writer
        self._items = iter(items)
        self._task_input = task_input
        self._received = Received()
        self._sent = 0
        self._emit = writer.try_emit_batch if gate.serializer.kind == "columnar" else writer.try_emit
        self._blocked = False
        self._ending = False
        self._sent_all = False

    def received(self) -> Iterator[Any]:
        """The data that the tasks of the stage send to this one."""
        while True:
            self._look()
            polled = self._gate.poll(0.0)
            if polled is None and not self._sent_all and self._send():
                continue
            if polled is None:
                if self._gate.finished and self._sent_all:
                    return
                if self._gate.finished:
                    # All data has arrived, and the rest of the output waits for credit, which wakes no receiver
                    self._control.wait(BLOCKED_S)
                    continue
                polled = self._gate.poll(POLL_S if self._sent_all else BLOCKED_S)
            if polled is not None:
                yield from self._received.opened(self._codec, polled)

    def finish(self) -> None:
        """Send the rest, discard data that still arrives (so that no task waits for this one), and report the end."""
        for _ in self.received():
            pass
        got, sent = self._figures()
        self._control.send(ConsumerDone(got, sent))
        self._gate.close()

    def tell(self, due: float) -> None:
        """Tell the driver how far this task is."""
        got, sent = self._figures(state="runs")
        self._control.tell(Watch(got, sent))

    def _figures(self, **state: str) -> tuple[dict[str, Any], dict[str, Any]]:
        got = {**self._gate.stats(), "records": self._received.records, **state}
        return plain(got), plain({**self._writer.stats(), "records": self._sent, **state})

    def _send(self) -> bool:
        """One step of sending; False if it is blocked."""
        if self._blocked:
            self._blocked = not self._writer.resume()
        elif not self._ending:
            item = next(self._items, None)
            if item is None:
                self._task_input.check()
                self._ending = True
            else:
                self._blocked = not self._emit(item)
                self._sent += self._codec.count(item)
        if self._ending and not self._blocked:
            self._sent_all = self._writer.try_close()
            return bool(self._sent_all)
        return not self._blocked

    def _look(self) -> None:
        message = self._control.poll()
        if isinstance(message, Abort):
            raise ExchangeAborted(message.reason)
        if isinstance(message, Stop):
            raise _Stopped


class ShuffleStage:
    """The bare barrier stage: ``rdd.barrier().mapPartitions(ShuffleStage(num_partitions=8, key=lambda r: r[0]))``.

    Record ``r`` goes to partition ``partition_func(key(r)) % num_partitions``; records are not changed.

    Parameters
    ----------
    num_partitions
        The RDD's number of partitions: each task of the stage is both producer and consumer.
    key
        Returns a record's key; default: its first item.
    partition_func
        Returns an int for a key; default: Spark's ``portable_hash``.
    conf
        Settings; default: those of the SparkContext (``spark.fastbuf.*``).

    Raises
    ------
    ConfigError
        There is no SparkContext, or num_partitions is not a positive integer.
    PreflightError
        There are more partitions than slots.
    """

    def __init__(
        self,
        num_partitions: int,
        key: Callable[[Any], Any] | None = None,
        partition_func: Callable[[Any], int] | None = None,
        conf: ShuffleConf | None = None,
    ) -> None:
        from fastbuf_spark.driver import exchanges
        from fastbuf_spark.driver.checks import preflight

        sc = active_context()
        if sc is None:
            raise ConfigError("a ShuffleStage must be made on the driver: there is no SparkContext here")
        if isinstance(num_partitions, bool) or not isinstance(num_partitions, int) or num_partitions < 1:
            raise ConfigError(f"num_partitions is {num_partitions!r}: it must be a number from 1 up")
        stopped = preflight(sc, num_partitions, "barrier")
        if stopped:
            raise PreflightError(str(stopped))
        codec = RecordCodec(num_partitions, key or itemgetter(0), own_partition_func(partition_func))
        conf = conf.checked_on(str(sc.master)) if conf else ShuffleConf.from_context(sc)
        spec = ExchangeSpec(secrets.token_hex(16), "ShuffleStage", num_partitions, conf, codec)
        self._task = FusedTask(exchanges.register(sc, spec, None), iter)

    def __call__(self, source: Iterable[Any]) -> Iterator[Any]:
        """Called by Spark, in each task of the barrier stage."""
        return _records(self._task, source)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker with another version fails with a clear error before it unpickles anything of this one
        return Shipped(partial(_records, self._task)).__reduce__()


def _records(task: FusedTask, source: Iterable[Any]) -> Iterator[Any]:
    return chain.from_iterable(task(source))
