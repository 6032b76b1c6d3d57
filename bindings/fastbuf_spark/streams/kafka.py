"""Kafka: a source of its topics' records, and :func:`to_kafka`.

The driver finds partitions and says where each begins, as a number, so that a stream that is started again reads the
same rows.  Tasks assign partitions to their consumers, and belong to no group: what the stream has read stands in its
checkpoints, and is committed to the brokers for others to see alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.schema import struct_type
from fastbuf_spark.streams.kafka_client import (
    PATIENCE_S,
    BrokerError,
    Cluster,
    check_installed,
    ends_of,
    telling,
    text_of,
)
from fastbuf_spark.streams.kafka_sink import KafkaSink, to_kafka
from fastbuf_spark.streams.source import Split, SplitReader

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer
    from pyspark.sql.types import StructType

__all__ = ["KafkaSink", "KafkaSource", "kafka_source", "to_kafka"]

#: What is known of a record; the names are those of Spark's own source
METADATA = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
PLACES = ("earliest", "latest")


def kafka_source(
    servers: str,
    topics: str | Sequence[str] | re.Pattern[str],
    schema: StructType | str | None = None,
    *,
    format: str = "json",
    metadata: Sequence[str] | Mapping[str, str] = (),
    start: str | Mapping[str, Mapping[int, int | str]] = "earliest",
    bounded: bool = False,
    group: str | None = None,
    on_bad: str = "error",
    on_lost_offsets: str = "error",
    options: Mapping[str, Any] | None = None,
) -> KafkaSource:
    """A source of the records of Kafka topics.

    Parameters
    ----------
    servers
        ``host:port``, several by commas.
    topics
        A topic, some, or a compiled pattern that whole names match; topics and partitions that come later are found.
    schema
        With ``format="json"``, the columns that are read from values; fields that a record has not are null.
    format
        "json": each value is a JSON object; or "raw": the columns are those of `metadata`.
    metadata
        Further columns: "key", "value", "topic", "partition", "offset", "timestamp", "headers"; or a mapping of these
        to names of columns.  With ``format="raw"``, all of them unless some are given.
    start
        "earliest", "latest", or offsets by topic and partition, which may be these words too; partitions that are not
        named, and those that are found later, begin at the earliest.
    bounded
        End at the records that were there when the stream was first started.
    group
        The consumer group for which offsets of complete checkpoints are committed, for others to see; none if None.
    on_bad
        "error", or "skip" what is no JSON of these types: it is counted, and logged.
    on_lost_offsets
        When the brokers no longer have what comes next: "error", or go on at the "earliest" that they have.
    options
        Further settings of librdkafka's, such as ``{"security.protocol": "SASL_SSL", ...}``.

    Raises
    ------
    ConfigError
        An argument is not possible, or confluent-kafka is not installed.
    """
    check_installed()
    for name, value, choices in (
        ("format", format, ("json", "raw")),
        ("on_bad", on_bad, ("error", "skip")),
        ("on_lost_offsets", on_lost_offsets, ("error", "earliest")),
    ):
        if value not in choices:
            raise ConfigError(f"{name} is {value!r}: it can be {' or '.join(map(repr, choices))}")
    cluster = Cluster(servers, dict(options or {}))
    columns = _metadata(metadata or (METADATA if format == "raw" else ()))
    return KafkaSource(
        cluster, topics, _schema(schema, format, columns), columns, start, bounded, group, on_bad, on_lost_offsets
    )


def _metadata(names: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    columns = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
    if unknown := set(columns) - set(METADATA):
        raise ConfigError(f"metadata has {', '.join(sorted(unknown))}: what a record has is {', '.join(METADATA)}")
    return columns


def _schema(schema: StructType | str | None, format: str, columns: Mapping[str, str]) -> StructType:
    from pyspark.sql import types as T

    if (schema is None) != (format == "raw"):
        words = {"json": "needs a schema, that of the values", "raw": "takes no schema: it gives records as they are"}
        raise ConfigError(f'format="{format}" {words[format]}')
    fields = list(struct_type(schema)) if schema is not None else []
    if both := {field.name for field in fields} & set(columns.values()):
        raise ConfigError(
            f"columns {', '.join(sorted(both))} are in the schema and in metadata: "
            'give them other names, as in metadata={"offset": "kafka_offset"}'
        )
    header = T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])
    kinds = {
        "topic": T.StringType(),
        "partition": T.IntegerType(),
        "offset": T.LongType(),
        "timestamp": T.TimestampType(),
        "headers": T.ArrayType(header),
    }
    fields += [T.StructField(column, kinds.get(name, T.BinaryType())) for name, column in columns.items()]
    return T.StructType(fields)


class KafkaSource:
    """See :func:`kafka_source`.  The state is the number of each topic's partitions."""

    replayable = True

    def __init__(
        self,
        cluster: Cluster,
        topics: str | Sequence[str] | re.Pattern[str],
        schema: StructType,
        metadata: Mapping[str, str],
        start: str | Mapping[str, Mapping[int, int | str]],
        bounded: bool,
        group: str | None,
        on_bad: str,
        on_lost_offsets: str,
    ) -> None:
        self.cluster, self.schema, self.metadata = cluster, schema, dict(metadata)
        self.topics = (
            [topics] if isinstance(topics, str) else topics if isinstance(topics, re.Pattern) else list(topics)
        )
        self.start, self.bounded, self.group = _start(start), bounded, group
        self.on_bad, self.on_lost_offsets = on_bad, on_lost_offsets
        named = self.topics.pattern if isinstance(self.topics, re.Pattern) else ", ".join(self.topics)
        self.name = f"kafka({named})"
        self._client: Consumer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_client": None}

    def splits(self, state: Any) -> tuple[list[Split], Any]:
        if self.bounded and state is not None:
            return [], state
        counts = dict(state or {})
        splits = []
        for topic, count in sorted(self._partitions().items()):
            for partition in range(counts.get(topic, 0), count):
                place = self._begin(topic, partition, first=state is None)
                splits.append(Split(f"{topic}-{partition}", place))
            counts[topic] = max(count, counts.get(topic, 0))
        return splits, counts

    def reader(self, schema: pa.Schema) -> SplitReader:
        from fastbuf_spark.streams.kafka_reader import KafkaReader

        return KafkaReader(self, schema)

    def _asked(self) -> Consumer:
        if self._client is None:
            self._client = self.cluster.asker()
        return self._client

    def _partitions(self) -> dict[str, int]:
        """Number of partitions of each topic."""
        with telling(f"{self.name}: topics are asked of {self.cluster.servers}"):
            there = self._asked().list_topics(timeout=PATIENCE_S).topics
        if isinstance(self.topics, re.Pattern):
            wanted = [topic for topic in there if self.topics.fullmatch(topic)]
        else:
            wanted = self.topics
            if missing := [topic for topic in wanted if topic not in there]:
                raise ConfigError(f"{self.cluster.servers} has no topic {', '.join(missing)}: create it first")
        for topic in wanted:
            if there[topic].error is not None:
                raise BrokerError(f"{self.name}: topic {topic}: {text_of(there[topic].error)}")
        return {topic: len(there[topic].partitions) for topic in wanted}

    def _begin(self, topic: str, partition: int, first: bool) -> Any:
        """Where a partition begins; of a bounded source with where it ends."""
        low, high = ends_of(self._asked(), topic, partition)
        start: Any = "earliest"
        if first:
            start = self.start if isinstance(self.start, str) else self.start.get(topic, {}).get(partition, start)
        begin = {"earliest": low, "latest": high}.get(start, start)
        return [begin, high] if self.bounded else begin


def _start(start: Any) -> Any:
    """Checked; offsets by topic and number of partition."""
    if isinstance(start, str):
        if start not in PLACES:
            raise ConfigError(f'start is {start!r}: it can be "earliest", "latest", or offsets by topic and partition')
        return start
    by_topic: dict[str, dict[int, int | str]] = {}
    try:
        for topic, offsets in start.items():
            by_topic[topic] = {int(partition): offset for partition, offset in offsets.items()}
            for partition, offset in by_topic[topic].items():
                if offset not in PLACES and not (type(offset) is int and offset >= 0):
                    raise ConfigError(f"start has {offset!r} for {topic}-{partition}: an offset is a number from 0")
    except (AttributeError, TypeError) as error:
        raise ConfigError(f'start is {start!r}: offsets are given as {{"topic": {{0: 17, 1: "latest"}}}}') from error
    return by_topic
