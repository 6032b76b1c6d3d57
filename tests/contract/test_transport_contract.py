"""What every transport promises: order within a channel, nothing lost, nothing twice, memory bounded, ends heard.

``local`` reads the producer's segments in place; ``tcp`` goes through a socket between two environments, with the
native thread, credits and frames that other processes get; ``memfd`` through the shared memory that other processes of
the host get.
"""

from __future__ import annotations

import array
import contextlib
import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.errors import (
    ConfigError,
    ExchangeAborted,
    ExchangeClosed,
    PeerLost,
    RecordTooLong,
    SchemaMismatch,
    SequenceError,
    StallTimeout,
)

SECRET = secrets.token_bytes(32)
SEGMENT = 4096
ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string?"))


class Rig:
    """One exchange: M writers, R gates, over one transport."""

    credit = True  # no channel of a connection is held up by another

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.stack = contextlib.ExitStack()
        self.near = self.stack.enter_context(self.environment())
        self.far = self.near if kind == "local" else self.stack.enter_context(self.environment())
        self.environments = {self.near, self.far}
        self.address = None if kind == "local" else self.far.listen()
        self.transport = "auto" if kind == "local" else kind

    def environment(self) -> fb.ShuffleEnvironment:
        return fb.ShuffleEnvironment(segments=512, segment_size=SEGMENT, shared=self.kind == "memfd")

    def settings(self, **config: Any) -> fb.ExchangeConfig:
        return fb.ExchangeConfig(transport=self.transport, **config)

    def make(
        self, producers: int = 1, consumers: int = 1, serializer: Any = ROWS, selector: Any = None, **config: Any
    ) -> tuple[list[fb.RecordWriter], list[fb.InputGate]]:
        settings = self.settings(**config)
        gates = [
            self.far.create_input_gate(serializer, channels=producers, epoch=5, secret=SECRET, config=settings)
            for _ in range(consumers)
        ]
        targets = gates if self.address is None else [(*self.address, gate.gate_id) for gate in gates]
        writers = [
            self.near.create_result_partition(
                serializer, targets, channel=i, epoch=5, secret=SECRET, selector=selector, config=settings
            )
            for i in range(producers)
        ]
        return writers, gates

    def close(self) -> None:
        self.stack.close()
        for env in self.environments:
            env.pool.audit()
            assert env.pool.available == env.pool.total


@pytest.fixture(params=["local", "tcp", "memfd"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    before = {t.name for t in threading.enumerate()}
    rig = Rig(request.param)
    yield rig
    rig.close()
    assert {t.name for t in threading.enumerate()} <= before | {"MainThread"}, "a thread was left behind"


def in_thread(func: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Runs func; its result, or its exception, ends up in the list."""
    out: list[Any] = []

    def run() -> None:
        try:
            out.append(func())
        except BaseException as error:
            out.append(error)

    thread = threading.Thread(target=run, name="MainThread")
    thread.start()
    return thread, out


def test_order_within_a_channel_and_nothing_lost(rig: Rig) -> None:
    writers, gates = rig.make(producers=3, consumers=2, selector=fb.custom(lambda r, n: r[0] % n))
    readers = [in_thread(lambda gate=gate: list(gate)) for gate in gates]
    senders = [
        in_thread(lambda w=w, i=i: ([w.emit((k, f"{i}-{'x' * (k % 50)}")) for k in range(5000)], w.close()))
        for i, w in enumerate(writers)
    ]
    for thread, _ in senders + readers:
        thread.join(30)
    got = [out[0] for _, out in readers]
    assert sum(len(g) for g in got) == 15_000
    for part, records in enumerate(got):
        for i in range(3):
            mine = [n for n, text in records if text.startswith(f"{i}-")]
            assert mine == list(range(part, 5000, 2))
    for gate in gates:
        assert gate.audit()


def test_an_exchange_without_records_ends(rig: Rig) -> None:
    writers, gates = rig.make(producers=2, consumers=3)
    senders = [in_thread(w.close) for w in writers]
    assert [list(g) for g in gates] == [[], [], []]
    for thread, out in senders:
        thread.join(10)
        assert out == [None]


def test_memory_in_flight_is_bounded_while_the_consumer_does_not_read(rig: Rig) -> None:
    writers, gates = rig.make(max_buffers_per_channel=4, exclusive=2, floating=3)
    writer, gate = writers[0], gates[0]
    done = threading.Event()

    def send() -> int:
        sent = 0
        for k in range(20_000):
            writer.emit((k, "y" * 100))
            sent += 1
        writer.close()
        done.set()
        return sent

    thread, out = in_thread(send)
    assert not done.wait(0.5), "the producer was not held back"
    # Writer: its pool's cap. Gate: exclusive + floating.
    assert writer.stats()["peak_segments"] <= writer.partition.pool.maximum
    assert gate.pool.in_use <= 5
    records = list(gate)
    thread.join(20)
    assert out == [20_000]
    assert [n for n, _ in records] == list(range(20_000))
    assert gate.stats()["peak_segments"] <= 5


def test_a_slow_channel_blocks_no_other(rig: Rig) -> None:
    writers, gates = rig.make(consumers=2, selector=fb.custom(lambda r, n: r[0] % 2), max_buffers_per_channel=2)
    writer = writers[0]
    # Fill channel 0 until it takes no more, without waiting.
    k = 0
    deadline = time.monotonic() + 30
    while writer.try_emit((0, "z" * 500)) and time.monotonic() < deadline:
        k += 1
    assert k >= 2
    fast, out = in_thread(lambda: [next(iter(gates[1])) for _ in range(100)])
    # The blocked record belongs to channel 0 and waits; draining that channel lets everything go on.
    slow, slow_out = in_thread(lambda: len(list(gates[0])))
    while not writer.resume():
        time.sleep(0.001)  # polling is the point: the non-blocking interface
    for i in range(100):
        writer.emit((1, str(i)))
    writer.flush()
    fast.join(20)
    assert [n for n, _ in out[0]] == [1] * 100
    closer, _ = in_thread(writer.close)
    gates[1].close()
    slow.join(10)
    closer.join(10)
    assert slow_out == [k + 1]


def test_a_record_longer_than_a_segment_spans_segments(rig: Rig) -> None:
    writers, gates = rig.make()
    texts = ["a" * 10, "b" * (SEGMENT * 7 + 3), "c", "d" * (SEGMENT - 20), "e" * (SEGMENT * 40)]
    thread, out = in_thread(lambda: ([writers[0].emit((i, t)) for i, t in enumerate(texts)], writers[0].close()))
    assert list(gates[0]) == list(enumerate(texts))
    thread.join(10)
    assert not isinstance(out[0], BaseException)


def test_a_record_that_is_too_long_is_refused_and_the_rest_goes_on(rig: Rig) -> None:
    writers, gates = rig.make(max_record_bytes=10_000)
    writers[0].emit((1, "before"))
    with pytest.raises(RecordTooLong, match="10000"):
        writers[0].emit((2, "x" * 20_000))
    writers[0].emit((3, "after"))
    thread, _ = in_thread(writers[0].close)
    assert list(gates[0]) == [(1, "before"), (3, "after")]
    thread.join(10)


def test_a_consumer_that_has_enough_cancels_and_the_producer_carries_on(rig: Rig) -> None:
    writers, gates = rig.make(consumers=2, selector=fb.round_robin())
    writer = writers[0]
    reader, out = in_thread(lambda: len(list(gates[1])))
    sender, sent = in_thread(lambda: ([writer.emit((k, "w" * 50)) for k in range(20_000)], writer.close()))
    first = next(iter(gates[0]))
    assert first[1] == "w" * 50
    gates[0].close()
    sender.join(20)
    reader.join(20)
    assert not isinstance(sent[0], BaseException)
    assert out == [10_000]
    with pytest.raises(ExchangeClosed):
        gates[0].poll(0)


def test_a_broadcast_reaches_all_and_one_that_cancels_harms_none(rig: Rig) -> None:
    writers, gates = rig.make(consumers=3, selector=fb.broadcast())
    records = [(k, "b" * (k % 700)) for k in range(4000)]
    readers = [in_thread(lambda g=g: list(g)) for g in gates[:2]]
    sender, sent = in_thread(lambda: (writers[0].emit_many(records), writers[0].close()))
    assert next(iter(gates[2])) == records[0]
    gates[2].close()
    sender.join(20)
    assert not isinstance(sent[0], BaseException)
    for thread, out in readers:
        thread.join(20)
        assert out == [records]


def test_when_all_consumers_cancel_the_writer_says_so(rig: Rig) -> None:
    writers, gates = rig.make(consumers=2, selector=fb.round_robin())
    for gate in gates:
        gate.close()
    deadline = time.monotonic() + 30
    while not writers[0].cancelled and time.monotonic() < deadline:
        writers[0].emit((1, "nobody wants this"))
    assert writers[0].cancelled
    writers[0].close()


def test_an_abort_of_the_producer_reaches_the_consumer_with_its_reason(rig: Rig) -> None:
    writers, gates = rig.make()
    thread, out = in_thread(lambda: list(gates[0]))
    writers[0].emit((1, "one"))
    writers[0].flush()
    writers[0].abort("disk on fire")
    thread.join(20)
    assert isinstance(out[0], ExchangeAborted)
    assert "disk on fire" in str(out[0])


def test_an_abort_of_the_consumer_reaches_a_blocked_producer(rig: Rig) -> None:
    writers, gates = rig.make(max_buffers_per_channel=2)
    thread, out = in_thread(lambda: [writers[0].emit((k, "v" * 200)) for k in range(100_000)])
    for _ in range(10):
        next(iter(gates[0]))
    gates[0].abort("model exploded")
    thread.join(20)
    assert isinstance(out[0], ExchangeAborted)
    assert "model exploded" in str(out[0])
    assert not writers[0].cancelled, "that would be a consumer which has enough"
    gates[0].close()
    writers[0].abort("over")


def test_a_gate_that_is_aborted_while_it_is_read(rig: Rig) -> None:
    writers, gates = rig.make()
    thread, out = in_thread(lambda: list(gates[0]))
    gates[0].abort("enough of this")
    thread.join(20)
    assert isinstance(out[0], ExchangeAborted)
    writers[0].abort("over")


def test_close_in_the_middle_of_a_blocked_call(rig: Rig) -> None:
    writers, gates = rig.make()
    thread, out = in_thread(lambda: list(gates[0]))
    time.sleep(0.05)  # the reader is to be inside its wait; the outcome is the same if it is not yet
    gates[0].close()
    gates[0].close()
    thread.join(20)
    assert isinstance(out[0], ExchangeClosed)
    writers[0].close()
    writers[0].close()


def test_a_blocked_writer_stalls_with_the_figures(rig: Rig) -> None:
    writers, _ = rig.make(stall_timeout_s=0.6, max_buffers_per_channel=2)
    with pytest.raises(
        StallTimeout,
        match=r"channel 0 \((local|memfd|tcp) to .*gate \d+\) has .* buffers queued.*stall_timeout_s|no other thread",
    ):
        writers[0].emit_many((k, "u" * 300) for k in range(100_000))
    writers[0].abort("stalled")


def test_a_gate_without_producers_stalls_with_the_figures(rig: Rig) -> None:
    gate = rig.far.create_input_gate(ROWS, channels=1, config=rig.settings(stall_timeout_s=0.6))
    with pytest.raises(StallTimeout, match=r"got nothing for 0.6 s: 0 of 1 channels.*stall_timeout_s"):
        list(gate)


def test_a_gate_whose_producer_is_quiet_waits(rig: Rig) -> None:
    writers, gates = rig.make(stall_timeout_s=0.2)
    timer = threading.Timer(0.8, writers[0].close)  # the quiet is what is looked at
    timer.name = "MainThread"
    timer.start()
    assert list(gates[0]) == []
    timer.join()


@pytest.mark.parametrize("timeout", [0, 0.02, 0.1])
def test_the_buffer_timeout_sends_a_partly_filled_buffer(rig: Rig, timeout: float) -> None:
    writers, gates = rig.make(buffer_timeout_s=timeout)
    took = []
    for k in range(5):
        began = time.monotonic()
        writers[0].emit((k, "alone"))
        assert next(iter(gates[0])) == (k, "alone")
        took.append(time.monotonic() - began)
    # Far more than the timeout, far less than never: of most, since a busy machine may be late with any one.
    assert statistics.median(took) < timeout + 2
    writers[0].close()


def test_without_a_buffer_timeout_only_a_flush_sends_it(rig: Rig) -> None:
    writers, gates = rig.make(buffer_timeout_s=-1)
    writers[0].emit((1, "alone"))
    assert gates[0].poll(0.3) is None
    writers[0].flush()
    assert gates[0].poll(20) == [(1, "alone")]
    writers[0].close()


def test_events_come_in_order_with_the_records_of_their_channel(rig: Rig) -> None:
    writers, gates = rig.make(producers=2, consumers=2, selector=fb.custom(lambda r, n: r[0] % n), batch_rows=7)

    others = [fb.UserEvent(b"u" * 4095), fb.CancelCheckpoint(4), fb.WatermarkStatus(idle=True), fb.EndOfData()]

    def send(i: int) -> None:
        for k in range(600):
            writers[i].emit((k, f"{i}" + "e" * (k % 900)))
            if k % 50 == 49:
                writers[i].emit_event(fb.Watermark(k))
        writers[i].emit_event(fb.Barrier(3, timestamp_ms=-5))
        for event in others:
            writers[i].emit_event(event)
        writers[i].close()

    senders = [in_thread(lambda i=i: send(i)) for i in range(2)]
    readers = [in_thread(lambda g=g: list(g)) for g in gates]
    for thread, out in senders + readers:
        thread.join(20)
        assert not isinstance(out[0], BaseException), out
    for part, (_, out) in enumerate(readers):
        events = [item for item in out[0] if isinstance(item, fb.Event)]
        assert sum(not isinstance(item, fb.Event) for item in out[0]) == 600
        for i in range(2):
            mine = [event for event in events if event.channel == i]
            assert mine == [*map(fb.Watermark, range(49, 600, 50)), fb.Barrier(3, -5), *others]
        seen: set[tuple[int, int]] = set()
        for item in out[0]:
            if isinstance(item, fb.Watermark):
                assert all((item.channel, n) in seen for n in range(part, item.time_ms + 1, 2))
                assert (item.channel, item.time_ms + 1 + (part + item.time_ms + 1) % 2) not in seen
            elif not isinstance(item, fb.Event):
                seen.add((int(item[1][0]), item[0]))


def test_an_event_passes_where_data_has_no_credit(rig: Rig) -> None:
    """It takes none; and is bounded all the same."""
    writers, gates = rig.make(exclusive=1, floating=0, max_buffers_per_channel=1, buffer_timeout_s=0)
    writers[0].emit((1, "f" * 100))
    for k in range(4):
        writers[0].emit_event(fb.Watermark(k))
    assert gates[0].poll(20) == [(1, "f" * 100)]
    assert [gates[0].poll(20) for _ in range(4)] == [fb.Watermark(k) for k in range(4)]
    sent = 0
    deadline = time.monotonic() + 30
    # Nobody reads: there are places for so many.
    while (taken := writers[0].try_emit_event(fb.Watermark(sent))) or sent < 8:
        sent += taken
        assert sent < 100
        assert time.monotonic() < deadline
        time.sleep(0.001)  # what the I/O thread can take away, it has
    thread, _ = in_thread(lambda: (writers[0].emit_event(fb.Watermark(-1)), writers[0].close()))
    assert list(gates[0]) == [fb.Watermark(k) for k in (*range(sent), -1)]
    thread.join(10)


def test_a_producer_of_another_schema_or_run_is_refused(rig: Rig) -> None:
    """Also one that reads in place, which nobody would stop from reading other records into wrong ones."""
    gate = rig.far.create_input_gate(ROWS, channels=1, epoch=5, secret=SECRET, config=rig.settings())
    target = gate if rig.address is None else (*rig.address, gate.gate_id)

    def producer(serializer: Any = ROWS, epoch: int = 5, channel: int = 0) -> fb.RecordWriter:
        return rig.near.create_result_partition(
            serializer, [target], channel=channel, epoch=epoch, secret=SECRET, config=rig.settings()
        )

    with pytest.raises(SchemaMismatch, match=r"schema [0-9a-f]{16} is not the consumer's [0-9a-f]{16}"):
        producer(fb.RowSerializer(fb.Schema.of(n="string")))
    with pytest.raises(SchemaMismatch):
        producer(fb.PickledSerializer())
    with pytest.raises((SequenceError, PeerLost), match="epoch 6 is not this run's"):
        producer(epoch=6)
    writer = producer()
    with pytest.raises(SequenceError, match="channel 0 is connected already"):
        producer()
    with pytest.raises(SequenceError, match=r"channel 1 .* its gate has all its channels"):
        producer(channel=1)
    writer.emit((1, "one"))
    thread, _ = in_thread(writer.close)
    assert list(gate) == [(1, "one")]
    thread.join(10)


def test_an_event_of_items_longer_than_a_byte(rig: Rig) -> None:
    """The bytes are counted, not the items, and later changes of the memory are not seen."""
    memory = array.array("q", [1, 2])
    event = fb.UserEvent(memoryview(memory))
    sent = memory.tobytes()
    memory[0] = 3
    (writer,), (gate,) = rig.make()
    with pytest.raises(ValueError, match="of 32000 bytes: at most 4095"):
        fb.UserEvent(memoryview(array.array("q", [0] * 4000)))
    long = fb.UserEvent(b"")
    object.__setattr__(long, "payload", bytes(5000))
    with pytest.raises(ValueError, match="of 5001 bytes: at most 4096"):
        writer.emit_event(long)
    writer.emit_event(event)
    thread, _ = in_thread(writer.close)
    assert list(gate) == [fb.UserEvent(sent)]
    thread.join(10)


def test_events_that_nobody_will_read(rig: Rig) -> None:
    """Cancelled, aborted or forgotten: nothing hangs, and nothing is kept."""
    writers, gates = rig.make(consumers=2)
    for k in range(6):
        writers[0].emit_event(fb.UserEvent(bytes(k)))
    gates[0].close()
    for k in range(40):
        gates[1].poll(0)
        writers[0].try_emit_event(fb.Watermark(k))
    with pytest.raises(TypeError, match="an event is wanted, as Barrier or UserEvent, not"):
        writers[0].emit_event("no event")
    with pytest.raises(ValueError, match="at most 4095"):
        writers[0].emit_event(fb.UserEvent(bytes(5000)))
    writers[0].abort("over")


def test_events_between_batches(rig: Rig) -> None:
    pa = pytest.importorskip("pyarrow")
    batch = pa.record_batch([pa.array(range(100))], names=["n"])
    writers, gates = rig.make(serializer=fb.ColumnarSerializer(batch.schema))
    thread, _ = in_thread(
        lambda: (
            writers[0].emit_batch(batch),
            writers[0].emit_event(fb.Barrier(1)),
            writers[0].emit_batch(batch),
            writers[0].close(),
        )
    )
    got = list(gates[0])
    thread.join(10)
    assert [item if isinstance(item, fb.Event) else item.num_rows for item in got] == [100, fb.Barrier(1), 100]


def test_records_of_any_python_object(rig: Rig) -> None:
    objects = [{"a": 1}, None, [1, 2, {3}], "text", b"bytes" * 5000, 3.5, (1, (2, (3,)))]
    writers, gates = rig.make(serializer=fb.PickledSerializer())
    thread, _ = in_thread(lambda: (writers[0].emit_many(objects), writers[0].close()))
    assert list(gates[0]) == objects
    thread.join(10)


def test_checksums_on_every_buffer(rig: Rig) -> None:
    writers, gates = rig.make(checksum=True)
    thread, _ = in_thread(lambda: ([writers[0].emit((k, "c" * 30)) for k in range(3000)], writers[0].close()))
    assert [n for n, _ in gates[0]] == list(range(3000))
    thread.join(10)


def test_a_gate_may_be_opened_without_knowing_its_producers(rig: Rig) -> None:
    serializer, config = ROWS, rig.settings()
    gate = rig.far.create_input_gate(serializer, channels=None, epoch=5, secret=SECRET, maximum=64, config=config)
    target = gate if rig.address is None else (*rig.address, gate.gate_id)
    totals: dict[int, int] = {}
    received: list[int] = []
    for wave in range(4):
        writer = rig.near.create_result_partition(
            serializer, [target], channel=wave, epoch=5, secret=SECRET, config=rig.settings()
        )
        for k in range(100):
            writer.emit((wave * 100 + k, None))
        if rig.address is None:
            writer.close()
        else:
            thread, _ = in_thread(writer.close)
        while len(received) < (wave + 1) * 100:
            received += [n for n, _ in gate.poll(20)]
        if rig.address is not None:
            thread.join(10)
        gate.poll(0)
        totals[wave] = writer.totals()[0]
    assert not gate.finished
    gate.seal(totals)
    assert gate.poll(20) is None
    assert gate.finished
    assert received == list(range(400))


def test_a_gate_that_was_promised_more_says_which_channel(rig: Rig) -> None:
    gate = rig.far.create_input_gate(ROWS, channels=None, epoch=5, secret=SECRET, maximum=64, config=rig.settings())
    target = gate if rig.address is None else (*rig.address, gate.gate_id)
    writer = rig.near.create_result_partition(ROWS, [target], channel=9, epoch=5, secret=SECRET, config=rig.settings())
    writer.emit((1, None))
    thread, _ = in_thread(writer.close)
    assert gate.poll(20) == [(1, None)]
    thread.join(10)
    gate.seal({9: 2})
    with pytest.raises(fb.ExchangeError, match="channel 9 sent 1 buffers, but 2 were announced"):
        gate.poll(20)


def test_batches_keep_their_rows(rig: Rig) -> None:
    pa = pytest.importorskip("pyarrow")
    schema = pa.schema([("k", pa.int64()), ("s", pa.string()), ("v", pa.list_(pa.float64()))])
    batches = [
        pa.record_batch(
            [
                pa.array(range(i * 1000, i * 1000 + 1000)),
                pa.array([None if j % 7 == 0 else "s" * (j % 90) for j in range(1000)]),
                pa.array([[float(j)] * (j % 4) for j in range(1000)]),
            ],
            schema=schema,
        )
        for i in range(12)
    ]
    giant = pa.record_batch([[99_999], ["g" * (SEGMENT * 20)], [[1.0] * 5000]], schema=schema)
    writers, gates = rig.make(
        consumers=3, serializer=fb.ColumnarSerializer(schema), selector=fb.hash_by("k"), batch_rows=500
    )
    readers = [in_thread(lambda g=g: list(g)) for g in gates]
    for batch in [*batches, giant]:
        writers[0].emit_batch(batch)
    writers[0].close()
    for thread, _ in readers:
        thread.join(20)
    parts = [out[0] for _, out in readers]
    for i, part in enumerate(parts):
        for batch in part:
            assert set(fb.hash_partition(batch, ["k"], 3)) <= {i}
            assert batch.num_rows < 500 + 1000
    everything = pa.Table.from_batches([b for part in parts for b in part]).sort_by("k")
    assert everything.equals(pa.Table.from_batches([*batches, giant]).sort_by("k"))


def test_the_wrong_kind_of_call_is_named(rig: Rig) -> None:
    pa = pytest.importorskip("pyarrow")
    writers, _ = rig.make()
    with pytest.raises(TypeError, match="use emit"):
        writers[0].emit_batch(pa.record_batch([pa.array([1])], names=["n"]))
    writers[0].abort("over")


class Aligned:
    """Reads a gate as a step does that takes snapshots: no record that comes after a barrier overtakes another's.

    Each channel is blocked when its barrier comes, and all are unblocked by the last. ``epochs[k]`` are the records of
    checkpoint ``k``; ``done[k]`` is set when all its barriers have come.
    """

    def __init__(self, gate: fb.InputGate, channels: int, checkpoints: int) -> None:
        self.gate, self.channels = gate, channels
        self.epochs: list[list[Any]] = [[] for _ in range(checkpoints + 1)]
        self.done = [threading.Event() for _ in range(checkpoints)]

    def read(self) -> None:
        arrived: set[int] = set()
        at = 0
        for item in self.gate:
            if not isinstance(item, fb.Barrier):
                self.epochs[at].append(item)
                continue
            assert item.checkpoint == at
            assert item.channel not in arrived, "a barrier of a blocked channel"
            self.gate.block(item.channel)
            arrived.add(item.channel)
            assert self.gate.audit()
            if len(arrived) == self.channels:
                self.done[at].set()
                at += 1
                while arrived:
                    self.gate.unblock(arrived.pop())


def test_barriers_are_aligned_over_several_channels(rig: Rig) -> None:
    """A channel is blocked when its barrier comes, and all go on when the last has come."""
    checkpoints, producers = 6, 4
    writers, gates = rig.make(producers=producers, buffer_timeout_s=-1)
    aligned = Aligned(gates[0], producers, checkpoints)

    def send(i: int) -> None:
        for at in range(checkpoints + 1):
            for k in range(40 + 300 * (i + at) % 900):
                writers[i].emit((at, f"{i} {k} " + "b" * (k % 90)))
                if k == 20 and at and not rig.credit:  # one that has much to send would hold up the others' barriers
                    writers[i].flush()
                    assert aligned.done[at - 1].wait(20)
            if at < checkpoints:
                writers[i].emit_event(fb.Barrier(at))
        writers[i].close()

    threads = [in_thread(aligned.read), *(in_thread(lambda i=i: send(i)) for i in range(producers))]
    for thread, out in threads:
        thread.join(30)
        assert out == [None]
    assert gates[0].finished
    for at, records in enumerate(aligned.epochs):
        assert {n for n, _ in records} == {at}
        for i in range(producers):
            mine = [int(text.split()[1]) for _, text in records if text.startswith(f"{i} ")]
            assert mine == list(range(40 + 300 * (i + at) % 900))
    assert gates[0].audit()


def test_batches_are_aligned_too(rig: Rig) -> None:
    """Rows that wait to be a batch are given out before the barrier behind them is."""
    pa = pytest.importorskip("pyarrow")
    schema = pa.schema([("epoch", pa.int64()), ("n", pa.int64())])
    writers, gates = rig.make(producers=2, serializer=fb.ColumnarSerializer(schema), batch_rows=50)
    aligned = Aligned(gates[0], 2, 3)

    def send(i: int) -> None:
        for at in range(4):
            if at and not rig.credit:  # one that has much to send would hold up the other's barrier
                assert aligned.done[at - 1].wait(20)
            writers[i].emit_batch(pa.record_batch([[at] * 70, range(i * 100, i * 100 + 70)], schema=schema))
            if at < 3:
                writers[i].emit_event(fb.Barrier(at))
        writers[i].close()

    threads = [in_thread(aligned.read), *(in_thread(lambda i=i: send(i)) for i in range(2))]
    for thread, out in threads:
        thread.join(30)
        assert out == [None]
    for at, batches in enumerate(aligned.epochs):
        table = pa.Table.from_batches(batches)
        assert set(table["epoch"].to_pylist()) == {at}
        assert sorted(table["n"].to_pylist()) == [*range(70), *range(100, 170)]


def test_a_blocked_channel_keeps_its_buffers_and_events_in_order(rig: Rig) -> None:
    writers, gates = rig.make(producers=2, buffer_timeout_s=0)
    gate = gates[0]
    for writer in writers:
        writer.emit((0, "first"))
    got: list[Any] = []
    while len(got) < 2:
        got += gate.poll(20)
    gate.block(0)
    gate.block(0)  # once more does nothing
    writers[0].emit((1, "one"))
    writers[0].emit_event(fb.Barrier(7))
    writers[0].emit((2, "two"))
    for k in range(30):
        writers[1].emit((k, "other"))
        assert gate.poll(20) == [(k, "other")]
    closing, _ = in_thread(writers[0].close)
    assert gate.poll(0.1) is None
    assert not gate.finished
    assert gate.audit()
    gate.unblock(0)
    gate.unblock(0)
    assert gate.poll(20) == [(1, "one")]
    assert gate.poll(20) == fb.Barrier(7)
    assert gate.poll(20) == [(2, "two")]
    ending, _ = in_thread(writers[1].close)
    assert gate.poll(20) is None
    assert gate.finished
    for thread in (closing, ending):
        thread.join(10)
        assert not thread.is_alive()


def test_who_waits_is_woken_by_an_unblock_in_another_thread(rig: Rig) -> None:
    writers, gates = rig.make(buffer_timeout_s=0)
    writers[0].emit((0, "first"))
    assert gates[0].poll(20) == [(0, "first")]
    gates[0].block(0)
    writers[0].emit((1, "one"))
    thread, out = in_thread(lambda: gates[0].poll(20))
    time.sleep(0.05)  # the reader is to be inside its wait; the outcome is the same if it is not yet
    assert not out
    gates[0].unblock(0)
    thread.join(20)
    assert out == [[(1, "one")]]
    writers[0].abort("over")


def test_the_producer_of_a_blocked_channel_that_gives_up_is_heard_at_once(rig: Rig) -> None:
    writers, gates = rig.make(producers=2, buffer_timeout_s=0)
    for writer in writers:
        writer.emit((0, "first"))
    got: list[Any] = []
    while len(got) < 2:
        got += gates[0].poll(20)
    gates[0].block(0)
    thread, out = in_thread(lambda: gates[0].poll(20))
    writers[0].emit((1, "never read"))
    writers[0].abort("disk on fire")
    thread.join(20)
    assert isinstance(out[0], ExchangeAborted)
    assert "disk on fire" in str(out[0])
    writers[1].abort("over")


def test_a_gate_is_closed_with_blocked_channels(rig: Rig) -> None:
    """Their producers, which wait, hear of it as of any cancel; what waited comes home (see `rig`)."""
    writers, gates = rig.make(producers=3, max_buffers_per_channel=4)
    senders = [in_thread(lambda w=w: ([w.emit((k, "c" * 200)) for k in range(5000)], w.close())) for w in writers]
    reader = iter(gates[0])
    seen: set[int] = set()
    while len(seen) < 3:
        next(reader)
        for i in range(gates[0].stats()["channels"]):
            with contextlib.suppress(ConfigError):
                gates[0].block(i)
                seen.add(i)
    while gates[0].poll(0.2):
        pass
    assert gates[0].audit()
    gates[0].close()
    for thread, out in senders:
        thread.join(20)
        assert not isinstance(out[0], BaseException), out
    with pytest.raises(ExchangeClosed):
        gates[0].block(0)
    with pytest.raises(ExchangeClosed):
        gates[0].unblock(0)


def test_a_channel_that_has_not_come_cannot_be_blocked(rig: Rig) -> None:
    writers, gates = rig.make()
    writers[0].emit((0, "first"))
    writers[0].flush()
    assert gates[0].poll(20) == [(0, "first")]
    with pytest.raises(ConfigError, match="no channel 5: 1 have connected"):
        gates[0].block(5)
    with pytest.raises(ConfigError, match="no channel 5"):
        gates[0].unblock(5)
    writers[0].abort("over")


def test_a_blocked_slow_channel_blocks_no_other_and_keeps_no_more_than_its_credit(rig: Rig) -> None:
    """Its producer writes until it has no credit; the others go on for as long as they like."""
    writers, gates = rig.make(producers=3, exclusive=2, floating=3, max_buffers_per_channel=4)
    gate = gates[0]
    sent = [0, 0, 0]
    enough = threading.Event()

    def send(i: int) -> None:
        while not enough.is_set():
            writers[i].emit((i, "s" * 300))
            sent[i] += 1
        writers[i].close()

    senders = [in_thread(lambda i=i: send(i)) for i in range(3)]
    got = [0, 0, 0]
    while min(got) < 100:
        for n, _ in gate.poll(20):
            got[n] += 1
    gate.block(0)
    before, stood = got[1] + got[2], got[0]
    while got[1] + got[2] < before + 20_000:
        for n, _ in gate.poll(20):
            got[n] += 1
        assert gate.pool.in_use <= 3 * 2 + 3
        assert gate.audit()
    assert got[0] == stood
    assert sent[0] - stood < 2 * (4 + 2 + 3 + 1) * SEGMENT // 300, "more than both ends may keep"
    enough.set()
    gate.unblock(0)
    for n, _ in gate:
        got[n] += 1
    for thread, out in senders:
        thread.join(20)
        assert out == [None]
    assert got == sent
