"""Reads a task's partitions with one consumer, in batches for each partition."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastbuf.errors import FastbufError, RecordError
from fastbuf_spark.streams.json_rows import JsonReader
from fastbuf_spark.streams.kafka_client import BrokerError, ends_of, telling, text_of
from fastbuf_spark.streams.source import Polled, Split

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Message

    from fastbuf_spark.streams.kafka import KafkaSource

    Place = tuple[str, int]

log = logging.getLogger("fastbuf_spark")
RECORDS = 10_000  #: of a batch, at most
SHOWN = 80  #: bytes of a record in an error


class OffsetsLost(FastbufError):
    """The brokers do not have the records that come next."""


class KafkaReader:
    """A :class:`fastbuf_spark.streams.source.SplitReader`; see :func:`fastbuf_spark.streams.kafka.kafka_source`.

    Attributes
    ----------
    skipped
        Records that were no JSON of the schema's types.
    lost
        Offsets that were skipped since the brokers had them no more.
    failed_commits
        Offsets that could not be committed for others to see.
    """

    def __init__(self, source: KafkaSource, schema: pa.Schema) -> None:
        import pyarrow as pa

        self.skipped = self.lost = self.failed_commits = 0
        self._source = source
        self._schema = schema
        values = len(schema) - len(source.metadata)
        self._json = JsonReader(pa.schema([schema.field(place) for place in range(values)])) if values else None
        self._asker = source.cluster.asker()
        self._consumer = source.cluster.consumer(
            isolation_level="read_committed",
            on_commit=self._committed,
            **({"group_id": source.group} if source.group else {}),
        )
        self._next: dict[Place, int] = {}
        self._stop: dict[Place, int] = {}
        self._read: deque[Polled] = deque()

    def assign(self, splits: Sequence[Split]) -> None:
        from confluent_kafka import TopicPartition

        places = []
        for split in splits:
            place = _place(split.name)
            begin, stop = split.offset if isinstance(split.offset, list) else (split.offset, None)
            if stop is not None:
                self._stop[place] = stop
                if begin >= stop:
                    self._read.append(Polled(split.name, None, split.offset, ended=True))
                    continue
            self._next[place] = begin
            places.append(TopicPartition(*place, begin))
        if places:
            with telling(f"{self._source.name}: partitions are assigned"):
                self._consumer.incremental_assign(places)

    def poll(self, timeout_s: float) -> Polled | None:
        if not self._read:
            with telling(f"{self._source.name}: records are read"):
                messages = self._consumer.consume(RECORDS, 0)
                if not messages and (message := self._consumer.poll(timeout_s)) is not None:
                    messages = [message, *self._consumer.consume(RECORDS - 1, 0)]
            self._take(messages)
        return self._read.popleft() if self._read else None

    def pause(self, splits: Sequence[str]) -> None:
        from confluent_kafka import TopicPartition

        places = {f"{topic}-{number}": TopicPartition(topic, number) for topic, number in self._next}
        with telling(f"{self._source.name}: partitions are paused"):
            self._consumer.resume([place for name, place in places.items() if name not in splits])
            self._consumer.pause([place for name, place in places.items() if name in splits])

    def checkpointed(self, offsets: Mapping[str, Any]) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        if self._source.group is None:
            return
        partitions = []
        for name, offset in offsets.items():
            partitions.append(TopicPartition(*_place(name), offset[0] if isinstance(offset, list) else offset))
        try:
            self._consumer.commit(offsets=partitions, asynchronous=True)
        except KafkaException as error:
            self._committed(error.args[0], partitions)

    def close(self) -> None:
        self._consumer.close()
        self._asker.close()

    def _committed(self, error: Any, partitions: Sequence[Any]) -> None:
        if error is not None or any(each.error is not None for each in partitions):
            self.failed_commits += 1
            log.warning("offsets for group %s could not be committed: %s", self._source.group, error or partitions)

    def _take(self, messages: Sequence[Message]) -> None:
        """Sort records by partition; make a batch of each."""
        from confluent_kafka import KafkaError

        by_place: dict[Place, list[Message]] = {}
        reached: dict[Place, int] = {}
        for message in messages:
            place = (message.topic(), message.partition())
            error = message.error()
            if error is None:
                by_place.setdefault(place, []).append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                # Behind the last record may be those of aborted transactions, and marks of Kafka's own
                reached[place] = message.offset()
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                self._go_on(place)
            elif error.fatal() or not error.retriable():
                raise BrokerError(f"{self._source.name}: {text_of(error)}")
        for place in by_place.keys() | reached.keys():
            self._give(place, by_place.get(place, []), reached.get(place))

    def _go_on(self, place: Place) -> None:
        """The brokers do not have what comes next."""
        from confluent_kafka import TopicPartition

        if place not in self._next:
            return
        name, offset = f"{place[0]}-{place[1]}", self._next[place]
        low, high = ends_of(self._asker, *place)
        if offset < low:
            words = f"records {offset} to {low - 1} of {name} are lost: the brokers keep those from {low} on"
        else:
            words = (
                f"record {offset} of {name} comes next, and the brokers have {low} to {high}: was the topic made anew?"
            )
        if self._source.on_lost_offsets == "error":
            raise OffsetsLost(f'{words}.  To go on with what is there: on_lost_offsets="earliest"')
        self.lost += max(0, low - offset)
        log.warning("%s; going on at %d", words, low)
        self._next[place] = low
        self._consumer.incremental_unassign([TopicPartition(*place)])
        self._consumer.incremental_assign([TopicPartition(*place, low)])

    def _give(self, place: Place, messages: list[Message], reached: int | None) -> None:
        from confluent_kafka import TopicPartition

        before = self._next.get(place)
        if before is None:
            return  # it has ended: these were fetched ahead
        stop = self._stop.get(place)
        behind = max(before, messages[-1].offset() + 1 if messages else 0, reached or 0)
        if stop is not None and behind >= stop:
            messages = [message for message in messages if message.offset() < stop]
            behind = stop
        ended = behind == stop
        if behind == before and not ended:
            return
        if ended:
            del self._next[place]
            self._consumer.incremental_unassign([TopicPartition(*place)])
        else:
            self._next[place] = behind
        batch = self._batch(place, messages) if messages else None
        offset = behind if stop is None else [behind, stop]
        self._read.append(Polled(f"{place[0]}-{place[1]}", batch, offset, ended))

    def _batch(self, place: Place, messages: list[Message]) -> pa.RecordBatch | None:
        import pyarrow as pa

        columns: list[pa.Array] = []
        if self._json is not None:
            rows, wrong = self._json.read([message.value() for message in messages])
            if wrong:
                self._refuse(place, messages, wrong)
                messages = [message for number, message in enumerate(messages) if number not in wrong]
            columns = list(rows.columns)
        if not messages:
            return None
        for name in self._source.metadata:
            kind = self._schema.field(len(columns)).type
            columns.append(_METADATA[name](messages, kind))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _refuse(self, place: Place, messages: list[Message], wrong: Mapping[int, str]) -> None:
        """Records that have no row."""
        number, why = next(iter(wrong.items()))
        words = (
            f"record {messages[number].offset()} of {place[0]}-{place[1]} is not what the schema says: {why}; "
            f"it begins with {(messages[number].value() or b'')[:SHOWN]!r}"
        )
        if self._source.on_bad == "error":
            raise RecordError(f'{words}.  To leave such records out: on_bad="skip"')
        self.skipped += len(wrong)
        log.warning("%s; it and %d others were left out, %d so far", words, len(wrong) - 1, self.skipped)


def _place(split: str) -> Place:
    """Topic and partition of a split, from its name."""
    topic, _, number = split.rpartition("-")
    return topic, int(number)


def _timestamps(messages: list[Message], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    times = (message.timestamp() for message in messages)
    return pa.array([at if has_time else None for has_time, at in times], pa.timestamp("ms", kind.tz)).cast(kind)


def _headers(messages: list[Message], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    headers = (message.headers() for message in messages)
    return pa.array([None if each is None else [{"key": k, "value": v} for k, v in each] for each in headers], kind)


def _plain(method: str) -> Any:
    def column(messages: list[Message], kind: pa.DataType) -> pa.Array:
        import pyarrow as pa

        return pa.array([getattr(message, method)() for message in messages], kind)

    return column


_METADATA = {
    **{name: _plain(name) for name in ("key", "value", "topic", "partition", "offset")},
    "timestamp": _timestamps,
    "headers": _headers,
}
