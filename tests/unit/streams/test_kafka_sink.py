"""The sink of a Kafka topic, with a real broker and without Spark."""

from __future__ import annotations

import json
import pickle
import secrets
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from real_parts import Broker, committed_records, free_port

from fastbuf.errors import ConfigError
from fastbuf_spark.streams import staged
from fastbuf_spark.streams.sink import CommitFailed, SinkContext

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: pip install 'fastbuf[kafka]'")
from fastbuf_spark.streams import kafka_commits
from fastbuf_spark.streams.kafka import KafkaSink, to_kafka
from fastbuf_spark.streams.kafka_client import BrokerError

N = pa.schema([("n", pa.int64())])


@pytest.fixture
def context(tmp_path: Path) -> SinkContext:
    return SinkContext(secrets.token_hex(16), 0, 0, N, str(tmp_path), True)


def changed(context: SinkContext, **more: Any) -> SinkContext:
    return SinkContext(**{**vars(context), **more})


def numbers(begin: int, end: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(begin, end), pa.int64())})


def a_sink(broker: Broker, topic: str, schema: pa.Schema = N, **more: Any) -> KafkaSink:
    sink = to_kafka(broker.servers, topic, **more)
    sink.check(schema, exactly_once=True)
    return pickle.loads(pickle.dumps(sink))  # as tasks have it


def numbers_in(broker: Broker, topic: str) -> list[int]:
    return [json.loads(record.value())["n"] for record in committed_records(broker, topic)]


def test_rows_are_seen_when_they_are_committed_and_once(broker: Broker, context: SinkContext) -> None:
    topic = broker.topic()
    sink = a_sink(broker, topic)
    sink.restore(context, [])
    writer = sink.writer(context)
    writer.write(numbers(0, 3))
    writer.write(numbers(3, 5))
    made = json.loads(json.dumps(writer.prepare(1)))  # as the checkpoint keeps it
    writer.write(numbers(5, 8))
    assert numbers_in(broker, topic) == []
    writer.commit(1, made)
    writer.commit(1, made)
    assert numbers_in(broker, topic) == list(range(5))
    second = writer.prepare(2)
    writer.commit(2, second)
    assert writer.prepare(3) == []
    writer.commit(3, [])
    writer.close()
    # Another task, in another generation, which does not know what was done
    other = changed(context, task=7, generation=1)
    sink.restore(other, made + second)
    again = sink.writer(other)
    again.commit(2, second + made)
    again.write(numbers(8, 9))
    third = again.prepare(3)
    again.commit(3, third)
    again.forget(made + second + third)
    again.close()
    assert numbers_in(broker, topic) == list(range(9))
    assert list(Path(context.folder).iterdir()) == []


def test_records_say_which_attempt_they_are_of(broker: Broker, context: SinkContext) -> None:
    topic = broker.topic()
    writer = a_sink(broker, topic).writer(changed(context, task=3))
    writer.write(numbers(0, 1))
    writer.commit(12, writer.prepare(12))
    writer.close()
    headers = dict(broker.records(topic)[0].headers())
    assert headers["fastbuf-task"] == b"3"
    assert headers["fastbuf-checkpoint"] == b"12"
    assert len(headers["fastbuf-attempt"]) == 16


def test_two_outputs_of_a_stream_do_not_meet(broker: Broker, context: SinkContext, tmp_path: Path) -> None:
    """Rows and late rows, each in a folder of its own: the same task, the same checkpoint."""
    written = []
    for output in ("rows", "late"):
        (tmp_path / output).mkdir()
        topic = broker.topic()
        sink = a_sink(broker, topic)
        of_output = changed(context, folder=str(tmp_path / output))
        sink.restore(of_output, [])
        writer = sink.writer(of_output)
        writer.write(numbers(0, 3))
        writer.commit(1, writer.prepare(1))
        written.append((sink, of_output, writer, topic))
    for sink, of_output, writer, topic in written:  # neither was fenced, nor is a marker replaced
        writer.write(numbers(3, 5))
        writer.commit(2, writer.prepare(2))
        found = kafka_commits.read_markers(sink, of_output)
        assert sorted(each["checkpoint"] for each in found if "file" in each) == [1, 2]
        assert numbers_in(broker, topic) == list(range(5))
    for _, _, writer, _ in written:
        writer._commits._open()  # each opens its own id
        writer.close()


def test_a_broken_attempt_is_made_again(broker: Broker, context: SinkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a transaction that ends with an error are left out by whoever reads what is committed."""
    monkeypatch.setattr(staged, "WAITS_S", (0.0, 0.0))
    topic = broker.topic()
    writer = a_sink(broker, topic).writer(context)
    writer.write(numbers(0, 5))
    made = writer.prepare(1)
    produce, calls = KafkaSink.produce, []

    def broken(*arguments: Any) -> None:
        produce(*arguments)
        arguments[1].flush(30)
        calls.append(1)
        if len(calls) < 3:
            raise BrokerError("planted")

    monkeypatch.setattr(KafkaSink, "produce", broken)
    writer.commit(1, made)
    assert len(broker.records(topic)) >= 5  # a broker that hides what is aborted shows 5
    assert numbers_in(broker, topic) == list(range(5))
    writer.forget(made)
    writer.write(numbers(5, 6))
    made = writer.prepare(2)
    calls[:] = [1] * -3
    monkeypatch.setattr(KafkaSink, "produce", lambda *_: (_ for _ in ()).throw(BrokerError("planted")))
    with pytest.raises(CommitFailed, match=rf"1 rows of checkpoint 2 .* for topic {topic} .* in 3 attempts: planted"):
        writer.commit(2, made)
    assert [path.name for path in Path(context.folder).iterdir()] == [made[0]["file"]]
    writer.close()


def test_kafka_itself_hides_rows_of_broken_attempts(
    broker: Broker, context: SinkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broker.process is not None:
        pytest.skip("the broker that the tests start hides nothing: give one of your own, FASTBUF_KAFKA=host:port")
    monkeypatch.setattr(staged, "WAITS_S", (0.0, 0.0))
    topic = broker.topic()
    writer = a_sink(broker, topic).writer(context)
    writer.write(numbers(0, 5))
    produce, calls = KafkaSink.produce, []

    def broken(*arguments: Any) -> None:
        produce(*arguments)
        arguments[1].flush(30)
        calls.append(1)
        if len(calls) < 3:
            raise BrokerError("planted")

    monkeypatch.setattr(KafkaSink, "produce", broken)
    writer.commit(1, writer.prepare(1))
    writer.close()
    assert [json.loads(record.value())["n"] for record in broker.records(topic)] == list(range(5))


def test_a_commit_of_which_it_is_not_known_whether_it_was_made(
    broker: Broker, context: SinkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "WAITS_S", (0.0, 0.0))
    topic = broker.topic()
    writer = a_sink(broker, topic).writer(context)
    writer.write(numbers(0, 5))
    made = writer.prepare(1)
    write, calls = kafka_commits.Transactions._write, []

    def answer_is_lost(self: Any, committables: Any) -> None:
        write(self, committables)
        calls.append([each["file"] for each in committables])
        if len(calls) == 1:
            raise BrokerError("planted")

    monkeypatch.setattr(kafka_commits.Transactions, "_write", answer_is_lost)
    writer.commit(1, made)
    writer.close()
    assert calls == [[made[0]["file"]], []]
    assert numbers_in(broker, topic) == list(range(5))


def test_a_zombie_is_fenced_in_its_transaction(
    broker: Broker, context: SinkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has sent its rows when the driver restores the stream: they are aborted, and another task commits them."""
    monkeypatch.setattr(staged, "WAITS_S", (0.0,))
    topic = broker.topic()
    sink = a_sink(broker, topic)
    zombie = sink.writer(context)
    zombie.write(numbers(0, 5))
    made = zombie.prepare(1)
    produce = KafkaSink.produce
    later = changed(context, task=1, generation=1)

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(KafkaSink, "produce", produce)
        produce(*arguments)
        arguments[1].flush(30)
        sink.restore(later, made)
        again = sink.writer(later)
        again.commit(1, made)
        again.close()

    monkeypatch.setattr(KafkaSink, "produce", overtaken)
    with pytest.raises(CommitFailed, match=r"generation 0 may not commit .* generation 1 of the stream has begun"):
        zombie.commit(1, made)
    zombie.close()
    assert numbers_in(broker, topic) == list(range(5))


def test_a_zombie_that_has_not_begun_reads_the_fence(broker: Broker, context: SinkContext) -> None:
    topic = broker.topic()
    sink = a_sink(broker, topic)
    zombie = sink.writer(context)
    zombie.write(numbers(0, 5))
    made = zombie.prepare(1)
    sink.restore(changed(context, generation=1), made)
    with pytest.raises(CommitFailed, match="generation 1 of the stream has begun"):
        zombie.commit(1, made)
    zombie.close()
    again = sink.writer(changed(context, generation=1))
    again.commit(1, made)
    again.close()
    assert numbers_in(broker, topic) == list(range(5))


def test_markers_behind_a_transaction_of_another_stream_are_waited_for(broker: Broker, context: SinkContext) -> None:
    topic = broker.topic()
    sink = a_sink(broker, topic, markers=f"m-{topic}")
    other = sink.cluster.producer(transactional_id=f"other-{topic}")
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(sink.markers, b"{}", b"another stream's")
    other.flush(30)
    writer = sink.writer(context)
    writer.write(numbers(0, 3))
    made = writer.prepare(1)
    ending = threading.Timer(0.5, other.commit_transaction, (30,))
    ending.start()
    writer.commit(1, made)  # its own greeting stands behind
    ending.join()
    writer.close()
    assert {each["task"] for each in kafka_commits.read_markers(sink, context)} == {0}
    assert numbers_in_with(broker, topic, sink.markers) == [0, 1, 2]


def numbers_in_with(broker: Broker, topic: str, markers: str) -> list[int]:
    return [json.loads(record.value())["n"] for record in committed_records(broker, topic, markers)]


def test_markers_that_cannot_be_read_to_the_end(
    broker: Broker, context: SinkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_commits, "PATIENCE_S", 1.0)
    topic = broker.topic()
    sink = a_sink(broker, topic, markers=f"m-{topic}")
    other = sink.cluster.producer(transactional_id=f"other-{topic}")
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(sink.markers, b"{}", b"another stream's")
    other.flush(30)
    with pytest.raises(BrokerError, match="is a transaction of another stream open"):
        kafka_commits.read_markers(sink, context)
    other.abort_transaction(30)


def test_keys_of_markers_come_again(broker: Broker, context: SinkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compacted topic keeps one record of each key: what is kept of a stream does not grow."""
    monkeypatch.setattr(kafka_commits, "MARKERS_KEPT", 4)
    topic = broker.topic()
    sink = a_sink(broker, topic, markers=f"m-{topic}")
    writer = sink.writer(context)
    for checkpoint in range(12):
        writer.write(numbers(checkpoint, checkpoint + 1))
        writer.commit(checkpoint, writer.prepare(checkpoint))
    writer.close()
    assert len({record.key() for record in broker.records(sink.markers)}) == 4 + 1
    found = kafka_commits.read_markers(sink, context)
    assert sorted(each["checkpoint"] for each in found if "file" in each) == [8, 9, 10, 11]


def test_a_broken_file_is_told(broker: Broker, context: SinkContext) -> None:
    topic = broker.topic()
    writer = a_sink(broker, topic).writer(context)
    for count in (5, 2):
        writer.write(numbers(0, count))
        made = writer.prepare(1)
        if count == 5:
            path = Path(context.folder, made[0]["file"])
            path.write_bytes(b"x" * path.stat().st_size)
            with pytest.raises(CommitFailed, match=r"5 rows of checkpoint 1 .*the file is broken"):
                writer.commit(1, made)
        else:
            writer.commit(1, made)
    writer.close()
    assert numbers_in(broker, topic) == [0, 1]


def test_a_broker_that_stands_still_for_a_while(broker: Broker, context: SinkContext) -> None:
    if broker.process is None:
        pytest.skip("the broker is the reader's own (FASTBUF_KAFKA): it is not stopped")
    topic = broker.topic()
    writer = a_sink(broker, topic).writer(context)
    writer.write(numbers(0, 5))
    made = writer.prepare(1)
    broker.pause()
    going_on = threading.Timer(0.5, broker.go_on)
    going_on.start()
    writer.commit(1, made)
    going_on.join()
    writer.close()
    assert numbers_in(broker, topic) == list(range(5))


def test_at_least_once_sends_at_once(broker: Broker, context: SinkContext) -> None:
    topic = broker.topic()
    sink = to_kafka(broker.servers, topic, key="n")
    sink.check(N, exactly_once=False)
    context = changed(context, exactly_once=False)
    sink.restore(context, [])
    writer = sink.writer(context)
    writer.write(numbers(0, 5000))
    assert writer.prepare(1) == []
    writer.commit(1, [])
    found = broker.records(topic)
    assert [(int(each.key()), json.loads(each.value())["n"]) for each in found] == [(n, n) for n in range(5000)]
    writer.close()


def test_at_least_once_tells_what_could_not_be_delivered(context: SinkContext) -> None:
    sink = to_kafka(f"127.0.0.1:{free_port()}", "t", options={"message.timeout.ms": 300})
    writer = sink.writer(changed(context, exactly_once=False))
    writer.write(numbers(0, 5))
    with pytest.raises(BrokerError, match=r"kafka\(t\): rows could not be delivered"):
        writer.prepare(1)
    writer.close()


def test_no_broker(context: SinkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "WAITS_S", (0.0,))
    monkeypatch.setattr(kafka_commits, "PATIENCE_S", 0.2)
    sink = to_kafka(f"127.0.0.1:{free_port()}", "t", options={"sasl.password": "hunter2"})
    assert "hunter2" not in repr(sink.cluster) + sink.name + repr(vars(sink))
    writer = sink.writer(context)
    writer.write(numbers(0, 5))
    with pytest.raises(CommitFailed, match=r"5 rows of checkpoint 1 .* for topic t .* 2 attempts"):
        writer.commit(1, writer.prepare(1))
    writer.close()


def test_records_as_they_are(broker: Broker, context: SinkContext) -> None:
    topic = broker.topic()
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    schema = pa.schema([("key", pa.string()), ("value", pa.binary()), ("headers", pa.list_(header))])
    rows = [
        {"key": "k", "value": b"\xff", "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]},
        {"key": None, "value": None, "headers": None},
    ]
    context = changed(context, schema=schema)
    writer = a_sink(broker, topic, schema, format="raw").writer(context)
    writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
    writer.commit(1, writer.prepare(1))
    writer.close()
    first, second = committed_records(broker, topic)
    assert (first.key(), first.value(), first.headers()[:2]) == (b"k", b"\xff", [("a", b"1"), ("a", None)])
    assert (second.key(), second.value()) == (None, None)


def test_what_cannot_be_is_said_before_the_stream_starts(broker: Broker) -> None:
    topic = broker.topic()

    def refused(schema: pa.Schema, says: str, name: str = topic, **more: Any) -> None:
        with pytest.raises(ValueError, match=says) as met:
            to_kafka(broker.servers, name, **more).check(schema, exactly_once=True)
        assert isinstance(met.value, ConfigError) or "column" in says

    refused(N, "has no topic missing-one", "missing-one")
    refused(N, "key is 'k': the columns are n", key="k")
    refused(pa.schema([("k", pa.float64())]), "key column 'k' has the type double", key="k")
    refused(pa.schema([("v", pa.duration("us"))]), "column 'v' has the type duration")
    refused(N, 'format="raw" needs a column "value"', format="raw")
    refused(pa.schema([("value", pa.int64())]), 'needs a column "value" of text or bytes', format="raw")
    refused(pa.schema([("value", pa.string()), ("x", pa.int64())]), "writes a key, .*; not x", format="raw")
    with pytest.raises(ConfigError, match="format is 'avro'"):
        to_kafka(broker.servers, topic, format="avro")
    wide = broker.topic(2)
    refused(N, f"topic {wide} has 2 partitions: a topic of markers has one", markers=wide)


def test_a_topic_of_markers_that_may_not_be_made() -> None:
    """The broker of the tests allows all."""
    from confluent_kafka import KafkaError, KafkaException

    made: Future[None] = Future()
    made.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    admin = SimpleNamespace(create_topics=lambda topics, **_: {topics[0].topic: made})
    with pytest.raises(
        ConfigError, match=r"TOPIC_AUTHORIZATION_FAILED.*Create it: kafka-topics.sh --create --topic m "
    ):
        kafka_commits.make_markers(admin, {}, "m")
