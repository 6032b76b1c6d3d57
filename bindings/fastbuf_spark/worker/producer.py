"""The producer of a pipelined exchange, in a worker: one task of an ordinary job over the input."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ExchangeAborted, ExchangeError, PeerLost, StallTimeout, text_of
from fastbuf.monitor.figures import Lately, ended, hottest, longest
from fastbuf.monitor.links import Links
from fastbuf.monitor.ticker import Ticker
from fastbuf.monitor.vitals import Vitals
from fastbuf_spark.folding import Fold
from fastbuf_spark.protocol import Abort, Begin, Go, Lease, ProducerDone, ProducerFailed, Seen, Target
from fastbuf_spark.spec import ExchangeSpec, not_reached, plain
from fastbuf_spark.wire import data_secret
from fastbuf_spark.worker.consumer import explained
from fastbuf_spark.worker.control import Control, words
from fastbuf_spark.worker.memory import environment
from fastbuf_spark.worker.task_input import InputGuard, InputLost, TaskInput, task_context
from fastbuf_spark.worker.watch import TaskClock, Watch, state_of, times

if TYPE_CHECKING:
    import pyarrow as pa

    from fastbuf import RecordWriter, ShuffleEnvironment
    from fastbuf_spark.conf import ShuffleConf

RESULT = "partition int, records long"  #: schema of the rows that a producer's task returns to Spark


@dataclass(frozen=True)
class Producer:
    """Sends one input partition to all consumers of an epoch, unless another attempt has sent it.

    Attributes
    ----------
    targets
        Host, port, gate and partition of each consumer, ordered by partition.
    fold
        Used if a task reads several input partitions but the user's function must see them separately.
    """

    spec: ExchangeSpec
    epoch: int
    targets: list[Target]
    fold: Fold | None = None

    def batches(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function of ``mapInArrow``."""
        import pyarrow as pa

        types = pa.schema([("partition", pa.int32()), ("records", pa.int64())])
        for partition, sent in self.records(source):
            yield pa.RecordBatch.from_pydict({"partition": [partition], "records": [sent]}, schema=types)

    def records(self, source: Iterator[Any]) -> Iterator[tuple[int, int]]:
        """The function of ``mapPartitions``."""
        task_input = TaskInput.of_task()
        return task_input.wanted(self._run(source, task_input) for _ in range(1))

    def _run(self, source: Iterable[Any], task_input: TaskInput) -> tuple[int, int]:
        context = task_context()
        partition, attempt = context.partitionId(), context.taskAttemptId()
        with self.spec.connect() as control:
            control.watch = task_input.look
            control.send(Lease(self.epoch, partition, attempt, context.stageId()))
            answer = None
            # another attempt may be running: Spark, or the end of the run, decides how long this waits
            while answer is None:
                answer = control.poll(1.0)
            if isinstance(answer, Abort):
                raise ExchangeAborted(answer.reason)
            if not isinstance(answer, Go):
                return partition, 0
            guard = InputGuard()
            try:
                totals, stats, unreached = self._send(control, partition, source, task_input, guard)
            except InputLost:
                raise  # Spark knows why, and the driver asks it when it sees this connection close
            except BaseException as error:  # SystemExit and the like too
                better = explained(control, error, error is not guard.error, ProducerFailed)
                if better is None:
                    return partition, 0
                if better is not error:
                    raise better from error
                raise
            # Wait for the answer: when Spark sees this task finished, the rendezvous must know it too
            control.ask(ProducerDone(tuple(totals), plain(stats), unreached), self.spec.conf.stall_timeout)
            return partition, int(stats.get("records", 0))

    def _send(
        self, control: Control, partition: int, source: Iterable[Any], task_input: TaskInput, guard: InputGuard
    ) -> tuple[list[int], dict[str, Any], dict[int, str]]:
        """Returns the buffers sent to each consumer, this producer's figures, and why some consumers could not be
        reached: usually they ended before this producer began.
        """
        spec = self.spec
        partitions = [target[3] for target in self.targets]
        clock = TaskClock()
        serializer = spec.codec.serializer(spec.conf.checksum)
        whole = task_input.whole(source)
        if serializer.kind == "columnar":
            whole = clock.reading(whole)  # for single records this would cost as much as what it measures
        sender = spec.codec.sender(spec.partitions, partitions, partition, self._empty(control))
        items = guard.items(sender.items(whole))
        with task_input.reading():
            first = next(items, None)
        if first is None:
            # Records may have been read, but none that is requested
            return [], self._figures({"records": 0, "bytes": 0}, sender.digest(None)), {}
        # Until here the user's function may fail and Spark may retry; from here on consumers have data of this attempt
        control.send(Begin())
        with environment(spec.conf) as env:
            writer = self._connect(env, control, serializer, sender.selector, partition)
            figures = WriterFigures(writer, env, clock, partitions)
            emit = writer.emit_batch if serializer.kind == "columnar" else writer.emit
            try:
                with figures.watching(control, spec.conf):
                    emit(first)
                    del first
                    with task_input.reading():
                        for item in items:
                            if writer.cancelled:
                                break
                            emit(item)
                    writer.close()
            except BaseException as error:
                # Tell the driver first: it reports the cause to all participants before they see a broken channel
                own = error is guard.error and control.verdict(0.0) is None
                of_a_channel = isinstance(error, ExchangeError | StallTimeout) and not own
                if not (of_a_channel or isinstance(error, InputLost)):
                    control.abort(words(error), ProducerFailed)
                writer.abort(f"producer {partition} failed: {text_of(type(error), error)}")
                raise
            unreached = {
                index: not_reached(text, control.local_host, spec.conf)
                for index, text in writer.partition.unreached.items()
            }
            return (
                list(writer.totals()),
                self._figures(ended(figures.all()), sender.digest(writer), cut=writer.cancelled),
                unreached,
            )

    def _empty(self, control: Control) -> Callable[[list[int]], list[int]] | None:
        """What asks the driver which input partitions nobody has seen rows of; None: inputs are not folded."""
        fold, timeout = self.fold, self.spec.conf.stall_timeout
        if fold is None:
            return None

        def ask(seen: list[int]) -> list[int]:
            return list(control.ask(Seen(tuple(seen), fold.partitions, fold.tasks), timeout).partitions)

        return ask

    def _connect(
        self, env: ShuffleEnvironment, control: Control, serializer: Any, selector: Any, partition: int
    ) -> RecordWriter:
        """The writer to all consumers; the driver is told if one of them cannot be reached."""
        spec = self.spec
        try:
            return env.create_result_partition(
                serializer,
                [target[:3] for target in self.targets],
                channel=partition,
                epoch=self.epoch,
                secret=data_secret(spec.secret, self.epoch),
                selector=selector,
                config=spec.conf.exchange(),
                on_peer_loss="cancel",
            )
        except PeerLost as error:
            if getattr(error, "greeted", False):
                raise  # the consumer answered, so the network is fine
            text = not_reached(str(error), control.local_host, spec.conf)
            # Report at once: there is no better cause to wait for, and all other participants wait
            control.abort(f"{type(error).__name__}: {text}", ProducerFailed)
            raise PeerLost(text) from error

    @staticmethod
    def _figures(stats: dict[str, Any], read: tuple[int, int], cut: bool = False) -> dict[str, Any]:
        """Figures for the driver: ``rows`` and ``digest`` of the input read, ``cut`` if no consumer needed the rest."""
        rows, digest = read
        return {**stats, "records": rows, "rows": rows, "digest": digest, "cut": cut}


class WriterFigures:
    """What is told of a task that writes: its writer's figures, its waits for each consumer, and its process."""

    def __init__(self, writer: RecordWriter, env: ShuffleEnvironment, clock: TaskClock, partitions: list[int]) -> None:
        self._writer, self._env, self._clock, self._partitions = writer, env, clock, partitions
        self._vitals: Vitals | None = None
        self._ticker, self._links = Ticker(writer), Links()
        self._lately = {"blocked": Lately(), "linked": Lately()}

    @contextlib.contextmanager
    def watching(self, control: Control, conf: ShuffleConf) -> Iterator[None]:
        """Tell the driver now and then, if the monitor is on."""
        if not conf.monitor:
            yield
            return
        self._vitals = Vitals()
        self._writer.watch_keys(conf.monitor_key_values)
        with self._ticker, Watch(control, self.all, self._look, self._vitals):
            yield

    def all(self) -> dict[str, Any]:
        """Every figure, as the driver takes them."""
        writer = self._writer
        process = self._vitals.figures() if self._vitals is not None else {}
        waits = {}
        for name, grown in self._lately.items():
            took = writer.blocked_s(name == "linked")
            waits[name] = longest(took, self._partitions, grown.of(took))
        samples = {} if self._ticker.samples is None else {"samples": self._ticker.samples}
        return {
            **writer.stats(),
            **writer.gauges(),
            **times(self._clock, writer.activity()),
            **waits,
            **process,
            **hottest(writer),
            **self._links.figures(self._partitions),
            **samples,
        }

    def _look(self) -> str:
        self._ticker.start()
        self._links.look(self._writer, self._env.links())
        return state_of(self._clock, self._writer.activity())
