"""The source of Kafka topics, with a real broker and without Spark."""

from __future__ import annotations

import datetime
import json
import pickle
import re
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from real_parts import Broker, MockBroker

from fastbuf.errors import ConfigError, RecordError
from fastbuf_spark.schema import arrow_schema
from fastbuf_spark.streams.source import Polled, Split, SplitReader

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: pip install 'fastbuf[kafka]'")
from fastbuf_spark.streams.kafka import KafkaSource, kafka_source
from fastbuf_spark.streams.kafka_client import BrokerError
from fastbuf_spark.streams.kafka_reader import OffsetsLost

UTC = datetime.UTC
OFFSET = T.StructType([T.StructField("offset", T.LongType())])
N = T.StructType([T.StructField("n", T.LongType())])


def records(begin: int, end: int) -> list[bytes | None]:
    return [json.dumps({"n": n}).encode() for n in range(begin, end)]


def a_reader(source: KafkaSource) -> SplitReader:
    shipped = pickle.loads(pickle.dumps(source))  # as tasks have it
    return shipped.reader(arrow_schema(shipped.schema, "UTC"))


def polls(reader: SplitReader, count: int) -> Iterator[Polled]:
    """What comes, until there are so many rows; not one more may have come."""
    rows, end = 0, time.monotonic() + 30
    while rows < count and time.monotonic() < end:
        polled = reader.poll(0.5)
        if polled is not None:
            rows += polled.batch.num_rows if polled.batch is not None else 0
            yield polled
    assert rows == count


def read(reader: SplitReader, count: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows, in the order of their partitions, and the offsets behind them."""
    rows: dict[str, list[dict[str, Any]]] = {}
    offsets: dict[str, Any] = {}
    for polled in polls(reader, count):
        if polled.batch is not None:
            polled.batch.validate(full=True)
            rows.setdefault(polled.split, []).extend(polled.batch.to_pylist())
        offsets[polled.split] = polled.offset
    return [row for split in sorted(rows) for row in rows[split]], offsets


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [row["n"] for row in rows]


def test_reads_from_offsets_in_order_and_goes_on_from_where_it_was(broker: Broker) -> None:
    topic = broker.topic(3)
    for partition in range(3):
        broker.write(topic, records(partition * 100, partition * 100 + 50), partition)
    source = kafka_source(broker.servers, topic, N)
    splits, state = source.splits(None)
    assert splits == [Split(f"{topic}-{partition}", 0) for partition in range(3)]
    assert state == {topic: 3}
    assert source.splits(json.loads(json.dumps(state))) == ([], state)
    reader = a_reader(source)
    reader.assign(splits[:1])
    reader.assign(splits[1:])
    rows, offsets = read(reader, 150)
    assert numbers(rows) == [*range(50), *range(100, 150), *range(200, 250)]
    assert offsets == {split.name: 50 for split in splits}
    broker.write(topic, records(50, 60), 0)
    assert numbers(read(reader, 10)[0]) == list(range(50, 60))
    reader.close()
    again = a_reader(source)  # another task, from a checkpoint
    again.assign([Split(f"{topic}-0", 55), Split(f"{topic}-2", 49)])
    rows, offsets = read(again, 6)
    assert numbers(rows) == [*range(55, 60), 249]
    assert offsets == {f"{topic}-0": 60, f"{topic}-2": 50}
    again.close()


def test_latest_is_a_number_and_what_is_found_later_begins_at_the_earliest(broker: Broker) -> None:
    one, other = broker.topic(2), broker.topic(1)
    broker.write(one, records(0, 7))
    source = kafka_source(broker.servers, re.compile(one + "|" + other), N, start="latest")
    wide = dict(source.splits(None)[1])
    splits, _ = source.splits(None)
    assert splits == sorted([Split(f"{one}-0", 7), Split(f"{one}-1", 0), Split(f"{other}-0", 0)], key=lambda s: s.name)
    # A topic that was not there, and a topic that had fewer partitions
    broker.write(one, records(0, 3), 1)
    assert source.splits({one: 1}) == (
        sorted([Split(f"{one}-1", 0), Split(f"{other}-0", 0)], key=lambda split: split.name),
        wide,
    )


def test_a_partition_that_is_paused_gives_nothing_and_goes_on_where_it_was(broker: Broker) -> None:
    topic = broker.topic(2)
    reader = a_reader(source := kafka_source(broker.servers, topic, N))
    reader.assign(source.splits(None)[0])
    reader.pause([f"{topic}-0"])
    for partition in range(2):
        broker.write(topic, records(partition * 100, partition * 100 + 50), partition)
    assert numbers(read(reader, 50)[0]) == list(range(100, 150))
    reader.pause([f"{topic}-1"])
    broker.write(topic, records(150, 160), 1)
    assert numbers(read(reader, 50)[0]) == list(range(50))
    reader.pause([])
    assert numbers(read(reader, 10)[0]) == list(range(150, 160))
    reader.close()


def test_starts_at_given_offsets(broker: Broker) -> None:
    topic = broker.topic(3)
    for partition in range(3):
        broker.write(topic, records(0, 10), partition)
    source = kafka_source(broker.servers, [topic], N, start={topic: {0: 4, 1: "latest"}})
    assert [split.offset for split in source.splits(None)[0]] == [4, 10, 0]


def test_a_bounded_source_ends_at_what_was_there(broker: Broker) -> None:
    topic = broker.topic(3)
    broker.write(topic, records(0, 20), 0)
    broker.write(topic, records(20, 25), 1)
    source = kafka_source(broker.servers, topic, N, bounded=True)
    splits, state = source.splits(None)
    assert [split.offset for split in splits] == [[0, 20], [0, 5], [0, 0]]
    broker.write(topic, records(100, 150), 0)
    assert source.splits(state) == ([], state)
    reader = a_reader(source)
    reader.assign(splits)
    seen = list(polls(reader, 25))
    while len([polled for polled in seen if polled.ended]) < 3:
        polled = reader.poll(0.5)
        seen += [polled] if polled else []
    ended = [polled.split for polled in seen if polled.ended]
    assert sorted(ended) == [split.name for split in splits]
    assert {polled.split: polled.offset for polled in seen} == {
        f"{topic}-0": [20, 20],
        f"{topic}-1": [5, 5],
        f"{topic}-2": [0, 0],
    }
    rows = [row["n"] for polled in seen if polled.batch is not None for row in polled.batch.to_pylist()]
    assert sorted(rows) == list(range(25))
    # Restored in the middle
    again = a_reader(source)
    again.assign([Split(f"{topic}-0", [15, 20])])
    rows, offsets = read(again, 5)
    assert (numbers(rows), offsets) == (list(range(15, 20)), {f"{topic}-0": [20, 20]})
    assert again.poll(0.1) is None
    reader.close()
    again.close()


def test_raw_records_with_all_that_is_known_of_them(broker: Broker) -> None:
    topic = broker.topic()
    broker.write(topic, [b"\xff", None], key=b"k", headers=[("a", b"1"), ("a", None)])
    broker.write(topic, [b""])
    source = kafka_source(broker.servers, topic, format="raw")
    reader = a_reader(source)
    reader.assign(source.splits(None)[0])
    rows, _ = read(reader, 3)
    assert [(row["key"], row["value"], row["topic"], row["partition"], row["offset"]) for row in rows] == [
        (b"k", b"\xff", topic, 0, 0),
        (b"k", None, topic, 0, 1),
        (None, b"", topic, 0, 2),
    ]
    assert rows[0]["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert rows[2]["headers"] is None
    age = datetime.datetime.now(UTC) - rows[0]["timestamp"]
    assert datetime.timedelta(0) <= age < datetime.timedelta(minutes=5)
    reader.close()


def test_json_with_metadata_and_missing_fields(broker: Broker) -> None:
    topic = broker.topic()
    broker.write(
        topic, [b'{"user": "a", "ts": "2024-02-29T12:00:00+01:00", "x": 1}', b'{"amount": 1.5}', None], key=b"k"
    )
    source = kafka_source(
        broker.servers,
        topic,
        T.StructType(
            [
                T.StructField("user", T.StringType()),
                T.StructField("ts", T.TimestampType()),
                T.StructField("amount", T.DoubleType()),
            ]
        ),
        metadata={"offset": "kafka_offset", "key": "k"},
    )
    assert source.schema.names == ["user", "ts", "amount", "kafka_offset", "k"]
    reader = a_reader(source)
    reader.assign(source.splits(None)[0])
    assert read(reader, 3)[0] == [
        {
            "user": "a",
            "ts": datetime.datetime(2024, 2, 29, 11, tzinfo=UTC),
            "amount": None,
            "kafka_offset": 0,
            "k": b"k",
        },
        {"user": None, "ts": None, "amount": 1.5, "kafka_offset": 1, "k": b"k"},
        {"user": None, "ts": None, "amount": None, "kafka_offset": 2, "k": b"k"},
    ]
    reader.close()


def test_a_bad_record_is_told_or_left_out(broker: Broker) -> None:
    topic = broker.topic()
    bad = b'{"n": "seven", "password": "' + b"x" * 200
    broker.write(topic, [*records(0, 5), bad, *records(5, 9), b"", *records(9, 10)])
    strict = kafka_source(broker.servers, topic, N)
    reader = a_reader(strict)
    reader.assign(strict.splits(None)[0])
    with pytest.raises(RecordError, match=rf"record 5 of {topic}-0 is not what the schema says") as met:
        list(polls(reader, 10))
    assert 'on_bad="skip"' in str(met.value)
    assert "x" * 100 not in str(met.value)
    reader.close()
    lenient = kafka_source(broker.servers, topic, N, on_bad="skip", metadata=["offset"])
    reader = a_reader(lenient)
    reader.assign(lenient.splits(None)[0])
    rows, offsets = read(reader, 10)
    assert [(row["n"], row["offset"]) for row in rows] == [(n, n + (n >= 5) + (n >= 9)) for n in range(10)]
    assert offsets == {f"{topic}-0": 12}
    assert reader.skipped == 2
    reader.close()


@pytest.fixture
def mock_broker() -> MockBroker:
    """The broker of the other tests takes any offset."""
    return MockBroker()


def test_offsets_that_are_gone_are_never_skipped_in_silence(mock_broker: MockBroker) -> None:
    topic = mock_broker.topic()
    mock_broker.write(topic, records(0, 10))
    source = kafka_source(mock_broker.servers, topic, N)
    reader = a_reader(source)
    reader.assign([Split(f"{topic}-0", 17)])
    with pytest.raises(OffsetsLost, match=rf"record 17 of {topic}-0 comes next, and the brokers have 0 to 10"):
        read(reader, 1)
    reader.close()
    source = kafka_source(mock_broker.servers, topic, N, on_lost_offsets="earliest")
    reader = a_reader(source)
    reader.assign([Split(f"{topic}-0", 17)])
    assert numbers(read(reader, 10)[0]) == list(range(10))
    reader.close()


def test_retention_that_passes_the_reader(mock_broker: MockBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker here lets records go: what it says of its first offset is replaced."""
    from fastbuf_spark.streams import kafka_reader

    topic = mock_broker.topic()
    mock_broker.write(topic, records(0, 10))
    monkeypatch.setattr(kafka_reader, "ends_of", lambda *_: (4, 10))
    reader = a_reader(kafka_source(mock_broker.servers, topic, N))
    reader._next[topic, 0] = 1
    with pytest.raises(OffsetsLost, match=f"records 1 to 3 of {topic}-0 are lost: the brokers keep those from 4 on"):
        reader._go_on((topic, 0))
    reader.close()
    reader = a_reader(kafka_source(mock_broker.servers, topic, N, on_lost_offsets="earliest"))
    reader.assign([Split(f"{topic}-0", 1)])
    reader._go_on((topic, 0))
    assert numbers(read(reader, 6)[0]) == list(range(4, 10))
    assert reader.lost == 3
    reader.close()


def test_rows_of_a_transaction_come_when_it_is_committed(broker: Broker) -> None:
    from confluent_kafka import Producer

    topic = broker.topic()
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in records(0, 5):
        producer.produce(topic, value)
    producer.flush(30)
    source = kafka_source(broker.servers, topic, N)
    reader = a_reader(source)
    reader.assign(source.splits(None)[0])
    assert reader.poll(0.3) is None
    producer.commit_transaction(30)
    rows, offset = [], 0
    while offset < 6:  # behind the transaction's own mark
        if (polled := reader.poll(0.5)) is not None:
            offset = polled.offset
            rows += polled.batch.to_pylist() if polled.batch is not None else []
    assert numbers(rows) == list(range(5))
    reader.close()


def test_offsets_of_checkpoints_are_committed_for_others_to_see(broker: Broker) -> None:
    from confluent_kafka import Consumer, TopicPartition

    topic = broker.topic()
    broker.write(topic, records(0, 10))
    source = kafka_source(broker.servers, topic, N, group=f"g-{topic}")
    reader = a_reader(source)
    reader.assign(source.splits(None)[0])
    read(reader, 10)
    reader.checkpointed({f"{topic}-0": 8})
    reader.close()  # which waits for what is under way
    seen = Consumer({"bootstrap.servers": broker.servers, "group.id": f"g-{topic}"})
    assert [each.offset for each in seen.committed([TopicPartition(topic, 0)], timeout=30)] == [8]
    seen.close()


def test_a_broker_that_stands_still_for_a_while(broker: Broker) -> None:
    if broker.process is None:
        pytest.skip("the broker is the reader's own (FASTBUF_KAFKA): it is not stopped")
    topic = broker.topic()
    broker.write(topic, records(0, 10))
    source = kafka_source(broker.servers, topic, N)
    reader = a_reader(source)
    reader.assign(source.splits(None)[0])
    assert numbers(read(reader, 10)[0]) == list(range(10))
    broker.pause()
    try:
        assert reader.poll(0.2) is None
    finally:
        broker.go_on()
    broker.write(topic, records(10, 20))
    assert numbers(read(reader, 10)[0]) == list(range(10, 20))
    reader.close()


def test_what_cannot_be_is_said_before_the_stream_starts(broker: Broker) -> None:
    servers = broker.servers
    secret = {"sasl.password": "hunter2", "sasl.username": "me"}
    source = kafka_source(servers, "t", N, options=secret)
    assert "hunter2" not in repr(source.cluster) + source.name
    with pytest.raises(ConfigError, match="has no topic missing-one"):
        kafka_source(servers, "missing-one", N).splits(None)
    with pytest.raises(ConfigError, match="refuses its options") as met:
        kafka_source(servers, "t", N, options={**secret, "no.such.thing": 1}).splits(None)
    assert "hunter2" not in str(met.value)
    for words, arguments in {
        "format is 'avro'": {"format": "avro"},
        "needs a schema": {"schema": None},
        "takes no schema": {"format": "raw"},
        "on_bad is 'ignore'": {"on_bad": "ignore"},
        "on_lost_offsets is 'latest'": {"on_lost_offsets": "latest"},
        "start is 'now'": {"start": "now"},
        "start has -3": {"start": {"t": {0: -3}}},
        "start is 5": {"start": 5},
        "metadata has colour": {"metadata": ["colour"]},
        "columns offset are in the schema and in metadata": {"schema": OFFSET, "metadata": ["offset"]},
    }.items():
        with pytest.raises(ConfigError, match=re.escape(words)):
            kafka_source(servers, "t", **{"schema": N, **arguments})


def test_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    from real_parts import free_port

    from fastbuf_spark.streams import kafka

    monkeypatch.setattr(kafka, "PATIENCE_S", 0.3)
    servers = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerError, match=f"topics are asked of {servers}"):
        kafka_source(servers, "t", N).splits(None)


def test_a_column_that_is_not_read_from_json() -> None:
    kind = T.StructType([T.StructField("m", T.MapType(T.StringType(), T.IntegerType()))])
    source = kafka_source("nowhere:1", "t", kind)
    with pytest.raises(ValueError, match=r"column 'm' has the type map<string, int32>, which is not read from JSON"):
        source.reader(pa.schema([("m", pa.map_(pa.string(), pa.int32()))]))
