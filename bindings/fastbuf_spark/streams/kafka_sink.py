"""Writes rows to a Kafka topic: see :func:`to_kafka`.

Kafka's client aborts a transaction that another process has begun, so one cannot be prepared by a task and committed
after its death.  Rows are staged in files of the checkpoint's; a commit is one transaction, of the rows and of a marker
in a topic of markers, which names the file.  Whoever opens a transactional id reads the markers first, and leaves out
what has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.streams.json_rows import check_writable, json_rows
from fastbuf_spark.streams.kafka_client import PATIENCE_S, BrokerError, Cluster, check_installed, telling
from fastbuf_spark.streams.sink import Committable, SinkContext, SinkWriter, StagedRows
from fastbuf_spark.streams.staged import StagingWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Producer

    Headers = list[tuple[str, bytes]]

MARKERS = "fastbuf-commits"


def to_kafka(
    servers: str,
    topic: str,
    *,
    key: str | None = None,
    format: str = "json",
    markers: str = MARKERS,
    options: Mapping[str, Any] | None = None,
) -> KafkaSink:
    """A sink that writes each row as a record of a Kafka topic.

    Parameters
    ----------
    servers
        ``host:port``, several by commas.
    topic
        It must exist.
    key
        The column that is the record's key, of text, bytes, or whole numbers.
    format
        "json": a record's value is a JSON object of all columns; or "raw": it is the column "value", of text or bytes,
        the key is the column "key", if there is one, and the headers are "headers", as in Spark's own sink.
    markers
        The topic of markers, of one partition: many streams may share it.  It is created where it is missing.
    options
        Further settings of librdkafka's, such as ``{"security.protocol": "SASL_SSL", ...}``.

    Raises
    ------
    ConfigError
        An argument is not possible, or confluent-kafka is not installed.
    """
    check_installed()
    if format not in ("json", "raw"):
        raise ConfigError(f"format is {format!r}: it can be 'json' or 'raw'")
    return KafkaSink(Cluster(servers, dict(options or {})), topic, key, format, markers)


class KafkaSink:
    """See :func:`to_kafka`."""

    output_modes = ("append", "update")

    def __init__(self, cluster: Cluster, topic: str, key: str | None, format: str, markers: str) -> None:
        self.cluster, self.topic, self.format, self.markers = cluster, topic, format, markers
        self.key = key or ("key" if format == "raw" else None)
        self.asked_key = key
        self.name = f"kafka({topic})"

    def check(self, schema: pa.Schema, exactly_once: bool) -> None:
        from fastbuf_spark.streams.kafka_commits import make_markers

        self.check_columns(schema)
        with telling(f"{self.name}: topics are asked of {self.cluster.servers}"):
            admin = self.cluster.admin()
            there = admin.list_topics(timeout=PATIENCE_S).topics
        if self.topic not in there:
            raise ConfigError(f"{self.cluster.servers} has no topic {self.topic}: create it first")
        if exactly_once:
            make_markers(admin, there, self.markers)

    def check_columns(self, schema: pa.Schema) -> None:
        """Raise ConfigError for columns of which no records can be made."""
        from pyarrow import types

        def is_bytes(kind: pa.DataType) -> bool:
            return bool(
                types.is_string(kind)
                or types.is_large_string(kind)
                or types.is_binary(kind)
                or types.is_large_binary(kind)
            )

        if self.asked_key is not None and self.asked_key not in schema.names:
            raise ConfigError(f"key is {self.asked_key!r}: the columns are {', '.join(schema.names)}")
        if self.key in schema.names:
            kind = schema.field(self.key).type
            if not (is_bytes(kind) or types.is_integer(kind)):
                raise ConfigError(
                    f"key column {self.key!r} has the type {kind}: a key is text, bytes or a whole number"
                )
        if self.format == "json":
            check_writable(schema)
            return
        if "value" not in schema.names or not is_bytes(schema.field("value").type):
            raise ConfigError(f'format="raw" needs a column "value" of text or bytes; the columns are {schema.names}')
        if unknown := set(schema.names) - {"value", "headers", self.key}:
            raise ConfigError(f'format="raw" writes a key, "value" and "headers"; not {", ".join(sorted(unknown))}')

    def restore(self, context: SinkContext, committables: Sequence[Committable]) -> None:
        from fastbuf_spark.streams.kafka_commits import fence

        StagedRows.keep_only(context, committables)
        if context.exactly_once:
            fence(self, context)

    def writer(self, context: SinkContext) -> SinkWriter:
        from fastbuf_spark.streams.kafka_commits import Transactions

        return StagingWriter(context, Transactions(self, context)) if context.exactly_once else DirectWriter(self)

    def records(self, batch: pa.RecordBatch) -> tuple[list[Any], list[Any], list[Headers] | None]:
        """Keys, values and headers of the rows."""
        names = batch.schema.names
        keys: list[Any] = [None] * batch.num_rows
        if self.key in names:
            column = batch.column(self.key)
            keys = column.to_pylist() if not _is_integer(column.type) else column.cast("string").to_pylist()
        if self.format == "json":
            return keys, json_rows(batch), None
        headers = batch.column("headers").to_pylist() if "headers" in names else None
        pairs = None
        if headers is not None:
            pairs = [[(one["key"], one["value"]) for one in each or ()] for each in headers]
        return keys, batch.column("value").to_pylist(), pairs

    def produce(
        self,
        producer: Producer,
        batch: pa.RecordBatch,
        headers: Headers,
        on_delivery: Callable[..., None] | None = None,
    ) -> None:
        """Give the rows to a producer, which sends them by and by."""
        keys, values, own = self.records(batch)
        for number, (key, value) in enumerate(zip(keys, values, strict=True)):
            all_headers = headers if own is None else own[number] + headers
            while True:
                try:
                    producer.produce(self.topic, value, key, headers=all_headers, on_delivery=on_delivery)
                    break
                except BufferError:  # it is full; what cannot be sent leaves it with an error after a time
                    producer.poll(0.1)


def _is_integer(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind))


class DirectWriter:
    """At least once: records are sent as they come."""

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink
        self._producer = sink.cluster.producer()
        self._failed: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        self._sink.produce(self._producer, batch, [], self._delivered)
        self._producer.poll(0)
        self._check()

    def prepare(self, checkpoint: int) -> list[Committable]:
        # Ends: what is not delivered within message.timeout.ms is told as failed
        while self._producer.flush(PATIENCE_S) and self._failed is None:
            pass
        self._check()
        return []

    def commit(self, checkpoint: int, committables: Sequence[Committable]) -> None:
        pass

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(1)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed = error

    def _check(self) -> None:
        if self._failed is not None:
            raise BrokerError(f"{self._sink.name}: rows could not be delivered: {self._failed}")
