"""Clients of a Kafka cluster, made from servers and options; confluent-kafka is imported when the first is made."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, FastbufError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient

log = logging.getLogger("fastbuf_spark")
AHEAD_KIB = 16 << 10  #: that a consumer fetches ahead
PATIENCE_S = 30.0  #: what a request to the brokers may take, of which librdkafka tries again what can be


class BrokerError(FastbufError, ConnectionError):
    """Kafka's brokers do not answer, or refuse; the message has what they say."""


@dataclass(frozen=True)
class Cluster:
    """A Kafka cluster.

    Attributes
    ----------
    servers
        ``host:port``, several by commas.
    options
        Further settings of librdkafka's, credentials among them: they are in no text that is made of this.
    """

    servers: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def consumer(self, **settings: Any) -> Consumer:
        """A consumer that commits nothing by itself, and does not go elsewhere when its offset is gone.

        Parameters
        ----------
        settings
            librdkafka's, with underscores for dots.
        """
        from confluent_kafka import Consumer

        usual = {"group.id": "fastbuf", "queued.max.messages.kbytes": AHEAD_KIB}
        fixed = {
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "allow.auto.create.topics": False,
        }
        return self._client(Consumer, usual, {**fixed, **settings})

    def asker(self) -> Consumer:
        """A consumer that is asked for topics and offsets alone: what an open transaction has written counts."""
        return self.consumer(isolation_level="read_uncommitted")

    def producer(self, **settings: Any) -> Producer:
        """A producer that keeps order, and writes nothing twice as long as it lives."""
        from confluent_kafka import Producer

        # Keys go where Java's producers place them
        usual = {"partitioner": "murmur2_random", "linger.ms": 20, "transaction.timeout.ms": 300_000}
        return self._client(Producer, usual, {"enable.idempotence": True, **settings})

    def admin(self) -> AdminClient:
        """A client that asks and creates."""
        from confluent_kafka.admin import AdminClient

        return self._client(AdminClient, {}, {})

    def _client(self, kind: Any, usual: Mapping[str, Any], fixed: Mapping[str, Any]) -> Any:
        """A client: the options stand above what is usual, and below what is fixed."""
        from confluent_kafka import KafkaException

        named = {name if name == "on_commit" else name.replace("_", "."): value for name, value in fixed.items()}
        try:
            return kind({**usual, **self.options, **named, "bootstrap.servers": self.servers}, logger=log)
        except (KafkaException, TypeError, ValueError) as error:
            raise ConfigError(f"Kafka's client refuses its options ({', '.join(self.options)}): {error}") from None


def check_installed() -> None:
    """Raise ConfigError, with what installs it, if there is no client."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise ConfigError("streams from and to Kafka need confluent-kafka: pip install 'fastbuf[kafka]'") from error


@contextlib.contextmanager
def telling(what: str) -> Iterator[None]:
    """Within it, an error of the client's becomes a BrokerError that says what was being done."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise BrokerError(f"{what}: {text_of(error)}") from error


def text_of(error: Any) -> str:
    """The words of a KafkaException, or of a KafkaError, with the name by which to look for it."""
    inner = error.args[0] if getattr(error, "args", None) else error
    return f"{inner.str()} ({inner.name()})" if hasattr(inner, "name") else str(inner)


def ends_of(client: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """The first offset that the brokers have, and the next that will be written."""
    from confluent_kafka import TopicPartition

    with telling(f"offsets of {topic}-{partition} are asked"):
        low, high = client.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE_S)
    return low, high
