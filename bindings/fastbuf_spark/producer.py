"""The producer of a pipelined exchange, in a worker: one task of an ordinary job over the input."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ExchangeAborted, ExchangeError, StallTimeout
from fastbuf_spark.consumer import explained
from fastbuf_spark.control import Control
from fastbuf_spark.spec import ExchangeSpec, plain
from fastbuf_spark.task_input import InputLost, TaskInput
from fastbuf_spark.wire import data_secret

if TYPE_CHECKING:
    import pyarrow as pa

RESULT = "partition int, records long"  #: what a producer's task gives back to Spark


@dataclass(frozen=True)
class Producer:
    """Sends one input partition to all consumers of one epoch, or nothing if another attempt has.

    Attributes
    ----------
    targets
        Host, port and gate of every consumer, by partition.
    """

    spec: ExchangeSpec
    epoch: int
    targets: list[tuple[str, int, int]]

    def batches(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function of ``mapInArrow``."""
        import pyarrow as pa

        partition, sent = self._run(source)
        types = pa.schema([("partition", pa.int32()), ("records", pa.int64())])
        yield pa.RecordBatch.from_pydict({"partition": [partition], "records": [sent]}, schema=types)

    def records(self, source: Iterator[Any]) -> Iterator[tuple[int, int]]:
        """The function of ``mapPartitions``."""
        yield self._run(source)

    def _run(self, source: Iterable[Any]) -> tuple[int, int]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "runs in a Spark task"
        partition, attempt = context.partitionId(), context.taskAttemptId()
        task_input = TaskInput.of_task()
        with self.spec.connect() as control:
            control.watch = task_input.look
            control.send(
                {
                    "op": "lease",
                    "epoch": self.epoch,
                    "partition": partition,
                    "attempt": attempt,
                    "stage": context.stageId(),
                }
            )
            answer = None
            while answer is None:  # another attempt may be alive: Spark, or the run's end, decides how long
                answer = control.poll(1.0)
            if answer["op"] == "abort":
                raise ExchangeAborted(str(answer["reason"]))
            if answer["op"] != "go":
                return partition, 0
            try:
                totals, stats = self._send(control, partition, source, task_input)
            except InputLost:
                raise  # Spark knows why, and the driver asks it when it sees this connection end
            except Exception as error:
                better = explained(control, error, op="failed")
                if better is None:
                    return partition, 0
                if better is not error:
                    raise better from error
                raise
            control.send({"op": "done", "totals": totals, "stats": plain(stats)})
            # Waited for: a task that Spark takes for finished must be finished for the rendezvous too
            control.expect("ok", "stop", timeout=self.spec.conf.stall_timeout)
            return partition, int(stats.get("records", 0))

    def _send(
        self, control: Control, partition: int, source: Iterable[Any], task_input: TaskInput
    ) -> tuple[list[int], dict[str, Any]]:
        import fastbuf as fb

        spec = self.spec
        items = iter(spec.codec.items(task_input.whole(source)))
        with task_input.reading():
            first = next(items, None)
        if first is None:
            return [], {"records": 0, "bytes": 0}
        # Up to here the user's function may fail and Spark may try again; from here on consumers have seen this attempt
        control.send({"op": "begin"})
        serializer = spec.codec.serializer(spec.conf.checksum)
        with fb.ShuffleEnvironment(segments=spec.conf.segments, segment_size=spec.conf.segment_size) as env:
            writer = env.create_result_partition(
                serializer,
                list(self.targets),
                channel=partition,
                epoch=self.epoch,
                secret=data_secret(spec.secret, self.epoch),
                selector=spec.codec.selector(),
                config=spec.conf.exchange(),
                on_peer_loss="cancel",
            )
            emit = writer.emit_batch if serializer.kind == "columnar" else writer.emit
            records = spec.codec.count(first)
            try:
                emit(first)
                del first
                with task_input.reading():
                    for item in items:
                        if writer.cancelled:
                            break
                        emit(item)
                        records += spec.codec.count(item)
                writer.close()
            except Exception as error:
                # The driver first: it tells everybody the cause, before anybody sees a channel break
                if not isinstance(error, ExchangeError | StallTimeout | InputLost):
                    control.abort(traceback.format_exc(), op="failed")
                writer.abort(f"producer {partition} failed: {type(error).__name__}: {error}")
                raise
            return list(writer.totals()), {**writer.stats(), "records": records}
