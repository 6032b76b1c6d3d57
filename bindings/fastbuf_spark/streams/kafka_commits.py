"""Commits of staged rows to Kafka, each once: transactions, markers, and fences.

The topic of markers has four kinds of records of a stream, all by its name and output:

- a **fence**, written by the driver when a generation begins: older ones are to stop;
- a task's **greeting**, written before it opens its transactional id, so that the driver knows which ids there are;
- a **marker**, in the transaction of the rows that it is about.

A task greets, opens its id, then reads the topic; the driver writes the fence, reads the topic, then opens each id that
it read of.  So of an older task, either the driver opens its id, which ends what it has begun and makes its producer
fail, or the task reads the fence.  A marker is read when no transaction is open that could have written one.
Keys are used again by later checkpoints: what a topic (``cleanup.policy=compact``) keeps of a stream is bounded.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.streams.fail_points import reach
from fastbuf_spark.streams.kafka_client import PATIENCE_S, BrokerError, ends_of, telling, text_of
from fastbuf_spark.streams.sink import CommitFailed, Committable, SinkContext
from fastbuf_spark.streams.staged import MARKERS_KEPT, attempts, rows_of, staged_batches

if TYPE_CHECKING:
    from confluent_kafka import Producer

    from fastbuf_spark.streams.kafka_sink import KafkaSink

DRIVER = "driver"


class Transactions:
    """Commits of one task; used by one thread."""

    def __init__(self, sink: KafkaSink, context: SinkContext) -> None:
        self._sink, self._context = sink, context
        self._producer: Producer | None = None
        self._done: set[str] = set()

    def commit(self, committables: Sequence[Committable]) -> None:
        """Make the rows visible, in one transaction, but for those that have been before."""
        for again in attempts(f"{rows_of(committables)} for topic {self._sink.topic}"):
            try:
                with telling(f"rows are committed to topic {self._sink.topic}"):
                    if self._producer is None:
                        self._open()
                    self._write([each for each in committables if each["file"] not in self._done])
                return
            except BrokerError as error:
                # It may have been committed all the same: the next attempt reads the markers
                self.close()
                again(error)

    def close(self) -> None:
        """Let go of the producer; a transaction that is open is aborted when its id is opened again."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(0)

    def _open(self) -> None:
        context = self._context
        _tell(self._sink, context, f"task {context.task}", {"task": context.task})
        producer = open_id(self._sink, context, context.task)
        markers = read_markers(self._sink, context)
        newest = max(each["generation"] for each in markers)
        if newest > context.generation:
            raise CommitFailed(
                f"task {context.task} of generation {context.generation} may not commit to topic {self._sink.topic}: "
                f"generation {newest} of the stream has begun, and commits these rows if its checkpoint has them"
            )
        self._done = {each["file"] for each in markers if "file" in each}
        self._producer = producer

    def _write(self, committables: Sequence[Committable]) -> None:
        sink, context, producer = self._sink, self._context, self._producer
        if not committables or producer is None:
            return
        attempt = secrets.token_hex(8)
        producer.begin_transaction()
        for each in committables:
            headers = [
                ("fastbuf-task", str(each["task"]).encode()),
                ("fastbuf-checkpoint", str(each["checkpoint"]).encode()),
                ("fastbuf-attempt", attempt.encode()),
            ]
            for batch in staged_batches(context, each):
                sink.produce(producer, batch, headers)
        if left := producer.flush(PATIENCE_S):  # rows before their markers: who sees a marker sees all rows
            raise BrokerError(f"{left:,} rows were not taken in {PATIENCE_S:g} s")
        for each in committables:
            whose = {name: each[name] for name in ("file", "task", "checkpoint", "rows")}
            value = {**whose, "generation": context.generation, "attempt": attempt}
            producer.produce(
                sink.markers, json.dumps(value), _key(context, each["task"], each["checkpoint"] % MARKERS_KEPT)
            )
        reach("in commit", committables[-1]["checkpoint"])
        producer.commit_transaction(PATIENCE_S)
        self._done.update(each["file"] for each in committables)


def fence(sink: KafkaSink, context: SinkContext) -> None:
    """On the driver, before the tasks of a generation start: end what older ones have begun, and keep them out."""
    with telling(f"{sink.name}: older generations are fenced"):
        _tell(sink, context, DRIVER, {})
        # Greetings are in no transaction: nothing is waited for, above all not what is ended here
        tasks = {each["task"] for each in read_markers(sink, context, "read_uncommitted") if "task" in each}
        with ThreadPoolExecutor(8) as pool:  # each waits for brokers
            list(pool.map(lambda task: open_id(sink, context, task).purge(), tasks))


def open_id(sink: KafkaSink, context: SinkContext, task: int) -> Producer:
    """A producer with a task's transactional id; a transaction of another producer with it is at its end then."""
    producer = sink.cluster.producer(transactional_id=f"fastbuf-{_whose(context)}-{task}")
    producer.init_transactions(PATIENCE_S)
    return producer


def read_markers(sink: KafkaSink, context: SinkContext, isolation: str = "read_committed") -> list[dict[str, Any]]:
    """What the topic has of this stream; waits for open transactions that may hide some of it."""
    from confluent_kafka import KafkaError, TopicPartition

    asker = sink.cluster.asker()
    reader = sink.cluster.consumer(isolation_level=isolation, fetch_wait_max_ms=10)  # its end is told sooner
    markers: dict[bytes, dict[str, Any]] = {}
    mine = _key(context, "").encode()
    try:
        low, high = ends_of(asker, sink.markers, 0)
        reader.assign([TopicPartition(sink.markers, 0, low)])
        end = time.monotonic() + PATIENCE_S
        reached = -1
        while reached < high:
            message = reader.poll(max(0.0, end - time.monotonic()))
            if message is None:
                raise BrokerError(
                    f"markers in topic {sink.markers} can be read up to {reached} of {high} alone: "
                    "is a transaction of another stream open?"
                )
            error = message.error()
            if error is None:
                if message.key() is not None and message.key().startswith(mine):
                    markers[message.key()] = json.loads(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:  # which stands before a transaction that is open
                reached = message.offset()
            elif not error.retriable():
                raise BrokerError(f"markers in topic {sink.markers} cannot be read: {text_of(error)}")
    finally:
        reader.close()
        asker.close()
    return list(markers.values())


def _whose(context: SinkContext) -> str:
    """The stream and its output: late rows may go to a sink of the same kind."""
    return f"{context.job}-{Path(context.folder).name}"


def _key(context: SinkContext, *parts: object) -> str:
    return "/".join(map(str, (_whose(context), *parts)))


def _tell(sink: KafkaSink, context: SinkContext, who: str, more: dict[str, Any]) -> None:
    """Write a record that is no marker, and see it delivered."""
    failed: list[Any] = []
    producer = sink.cluster.producer(linger_ms=0, enable_idempotence=False)  # twice is no harm, and it is sooner
    value = json.dumps({**more, "generation": context.generation})
    producer.produce(sink.markers, value, _key(context, who), on_delivery=lambda error, _: failed.append(error))
    if producer.flush(PATIENCE_S) or failed != [None]:
        raise BrokerError(f"topic {sink.markers} cannot be written to: {(failed or ['no answer'])[0]}")


def make_markers(admin: Any, there: dict[str, Any], markers: str) -> None:
    """See to it that the topic of markers exists."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    if markers in there:
        if (count := len(there[markers].partitions)) != 1:
            raise ConfigError(f"topic {markers} has {count} partitions: a topic of markers has one")
        return
    topic = NewTopic(markers, 1, -1, config={"cleanup.policy": "compact"})
    try:
        admin.create_topics([topic], request_timeout=PATIENCE_S)[markers].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise ConfigError(
                f"topic {markers} is missing, and cannot be created ({text_of(error)}).  Create it: "
                f"kafka-topics.sh --create --topic {markers} --partitions 1 --config cleanup.policy=compact"
            ) from error
