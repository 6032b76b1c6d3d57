"""Wires under watermarks over TCP: the same contract as other transports', their bounds, and their weakness."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from typing import Any

import pytest
from left_behind import nothing_left

import fastbuf as fb
from fastbuf.errors import (
    AuthenticationError,
    ConfigError,
    ExchangeAborted,
    ExchangeClosed,
    ExchangeError,
    PeerLost,
    SchemaMismatch,
    SequenceError,
)
from fastbuf.transports import handshake as hs
from fastbuf.transports import watermark
from fastbuf.transports.watermark_end import WatermarkEnd

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
SECRET = b"watermarks"
SEGMENT = 2048
CHANNELS = 8


class Rig:
    """Gates in one environment, writers in another, one wire between them."""

    def __init__(self) -> None:
        self.near = fb.ShuffleEnvironment(segments=200, segment_size=SEGMENT)
        self.far = fb.ShuffleEnvironment(segments=200, segment_size=SEGMENT)
        self.address = self.far.listen_wire()
        self.wire = self.near.create_wire("watermark", self.address)

    def gate(self, channels: int | None = 1, **more: Any) -> fb.InputGate:
        config = fb.ExchangeConfig(**more.pop("config", {}))
        return self.far.create_input_gate(ROWS, channels=channels, config=config, **{"secret": SECRET, **more})

    def writer(self, gate: Any, channel: int = 0, **more: Any) -> fb.RecordWriter:
        config = fb.ExchangeConfig(**more.pop("config", {}))
        more = {"secret": SECRET, "serializer": ROWS, **more}
        target = self.wire.to(gate if isinstance(gate, int) else gate.gate_id)
        return self.near.create_result_partition(targets=[target], channel=channel, config=config, **more)

    def received(self) -> dict[str, Any]:
        return self.far._watermarks().received()[0]

    def close(self) -> None:
        for env in (self.near, self.far):
            env.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    resource_tracker.ensure_running()  # else it starts, with a descriptor of its own, in the middle of a test
    with nothing_left():
        rig = Rig()
        yield rig
        rig.close()
    assert rig.near.pool.stats().in_use == rig.far.pool.stats().in_use == 0


def run(func: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=func)
    thread.start()
    return thread


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)  # polling a state that has no event
    return condition()


def emit_on(writer: fb.RecordWriter) -> None:
    """Till it raises."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        writer.emit((1, "x" * 100))


@pytest.mark.parametrize("checksum", [False, True])
def test_order_and_nothing_lost(rig: Rig, checksum: bool) -> None:
    gates = [rig.gate(channels=2) for _ in range(2)]
    records = [(k, "x" * (k * 37 % 5000)) for k in range(2000)]

    def write(gate: fb.InputGate, channel: int) -> None:
        with rig.writer(gate, channel, config={"checksum": checksum}) as writer:
            writer.emit_many((n, f"{channel}" + text) for n, text in records)
            writer.emit_event(fb.UserEvent(b"half"))
            writer.emit_many((n, f"{channel}" + text) for n, text in records)

    threads = [run(lambda g=g, c=c: write(g, c)) for g in gates for c in range(2)]
    got: list[list[Any]] = [[], []]
    threads += [run(lambda i=i: got[i].extend(gates[i])) for i in range(2)]
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    for mine in got:
        events = [event for event in mine if isinstance(event, fb.UserEvent)]
        assert sorted(event.channel for event in events) == [0, 1]
        rows = [record for record in mine if not isinstance(record, fb.UserEvent)]
        for channel in range(2):
            assert [(n, t[1:]) for n, t in rows if t[0] == f"{channel}"] == records * 2


def test_a_partly_filled_buffer_leaves_in_time(rig: Rig) -> None:
    gate = rig.gate(config={"buffer_timeout_s": 0.01})
    writer = rig.writer(gate, config={"buffer_timeout_s": 0.01})
    for k in range(3):
        writer.emit((k, "alone"))
        assert gate.poll(20) == [(k, "alone")]
    writer.abort()


def test_one_slow_channel_holds_up_all_and_nothing_grows(rig: Rig) -> None:
    """The weakness that credit was made for; the bounds hold all the same."""
    small = {"exclusive": 1, "floating": 1, "max_buffers_per_channel": 2}
    gates = [rig.gate(config=small) for _ in range(CHANNELS)]
    writers = [rig.writer(gate, config=small, maximum=4) for gate in gates]
    emitted, got = [0] * CHANNELS, [0] * CHANNELS
    records = 3000
    enough = threading.Event()

    def write(i: int) -> None:
        while emitted[i] < records or (i and not enough.is_set()):  # the seven go on, however late the first one begins
            writers[i].emit((emitted[i], "x" * 500))
            emitted[i] += 1
        writers[i].close()

    def read(i: int) -> None:
        for _ in gates[i]:
            got[i] += 1

    def stands() -> bool:
        """Nothing comes, and what the kernel's buffers take has gone."""
        stood = list(got)
        time.sleep(0.5)  # time to go on, if anything could
        stats = rig.wire.stats()
        return got == stood and rig.received()["stopped_s"] > 0 and stats["peak_bytes"] >= stats["high"]

    threads = [run(lambda i=i: write(i)) for i in range(CHANNELS)]
    threads += [run(lambda i=i: read(i)) for i in range(1, CHANNELS)]
    assert until(stands)
    sent = rig.wire.stats()
    assert sent["high"] == 2 * SEGMENT
    assert sent["low"] == SEGMENT + 1
    assert sent["high"] <= sent["peak_bytes"] < sent["high"] + SEGMENT + 24  # the mark and one frame
    assert gates[0].pool.in_use <= 2
    enough.set()
    threads.append(run(lambda: read(0)))
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert got == emitted
    for gate in gates:
        assert gate.audit()
        assert gate.stats()["peak_segments"] <= 2
    assert rig.wire.stats()["peak_bytes"] < sent["high"] + SEGMENT + 24


def test_more_channels_than_segments_go_on(rig: Rig) -> None:
    gate = rig.gate(channels=None, maximum=3, config={"buffer_timeout_s": 0})
    writers = [rig.writer(gate, i, config={"buffer_timeout_s": 0}) for i in range(7)]
    for turn in range(3):
        for i in (*range(7), *reversed(range(7))):
            writers[i].emit((turn, f"{i}"))
            assert gate.poll(20) == [(turn, f"{i}")], gate.describe_stall()
    assert gate.stats()["peak_segments"] <= 3
    for writer in writers:
        writer.abort()


def test_strangers_are_refused(rig: Rig) -> None:
    gate = rig.gate(epoch=3)
    with pytest.raises(AuthenticationError):
        rig.writer(gate, secret=b"guessed")
    with pytest.raises(SequenceError):
        rig.writer(gate, epoch=4)
    with pytest.raises(SchemaMismatch):
        rig.writer(gate, epoch=3, serializer=fb.RowSerializer(fb.Schema.of(other="int64")))
    with pytest.raises(PeerLost):
        rig.writer(99)
    with rig.writer(gate, epoch=3) as writer:
        writer.emit((1, "one of us"))
        reader = run(lambda: list(gate))
    reader.join(10)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("listen", ["listen", "listen_wire"])
def test_it_listens_on_the_address_asked_for_and_no_other(listen: str, host: str) -> None:
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT) as far,
        fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT) as near,
    ):
        with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
            first = min(taken.getsockname()[1], 65000)
            address = getattr(far, listen)(host, (first, first + 50))
        assert address[0] == host
        assert first < address[1] <= first + 50
        for elsewhere in {"127.0.0.1", "127.0.0.2", "::1"} - {host}:
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((elsewhere, address[1]), timeout=5)
        gate = far.create_input_gate(ROWS, channels=1)
        target = (*address, gate.gate_id)
        if listen == "listen_wire":
            target = near.create_wire("watermark", address).to(gate.gate_id)
        writer = near.create_result_partition(ROWS, [target], secret=gate.secret)
        reader = run(lambda: writer.emit((1, "here")))
        reader.join(10)
        writer.flush()
        assert gate.poll(20) == [(1, "here")]
        writer.abort()


def mutate(rng: random.Random, data: bytes) -> bytes:
    """A few bytes changed, cut, put in, or said twice."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(changed) + 1)
        kind = rng.randrange(4)
        if kind == 0 and place < len(changed):
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[place:place] = rng.randbytes(rng.randint(1, 30))
        elif kind == 2:
            del changed[place : place + rng.randint(1, 30)]
        else:
            changed[place:place] = changed[place : place + rng.randint(1, 60)]
    return bytes(changed)


def frames(gate: fb.InputGate) -> bytes:
    """What an honest producer would send: two buffers, an event, a channel that joins, ends."""

    def frame(kind: int, stream: int, payload: bytes, sequence: int = 0) -> bytes:
        return struct.pack("<IBBHIIII", len(payload), kind, 0, 0, stream, sequence, 0, 0) + payload

    hello = hs.Hello(gate.gate_id, 1, 0, ROWS.fingerprint, SEGMENT, bytes(32), 1).pack()
    return (
        frame(1, 0, bytes(100)) + frame(3, 0, b"x" * 20, 1) + frame(8, 1, hello) + frame(1, 1, bytes(200))
        + frame(1, 0, bytes(2048), 1) + frame(4, 1, b"", 1) + frame(6, 0, b"enough")
    )  # fmt: skip


def test_whoever_has_the_secret_and_breaks_the_protocol_harms_itself_alone(rig: Rig) -> None:
    """Mutated frames and noise after the handshake: dropped, no crash, no growth, other wires unharmed."""
    rng = random.Random(3)
    honest_gate = rig.gate()
    honest = rig.writer(honest_gate)
    before = 0
    for k in range(int(os.environ.get("FASTBUF_LONG", "0")) * 2000 + 150):
        gate = rig.gate(channels=2)
        with socket.create_connection(rig.address, timeout=5) as sock:
            hello = hs.Hello(gate.gate_id, 0, 0, ROWS.fingerprint, SEGMENT, hs.fresh_nonce())
            hs.greet(sock, hello, SECRET, "here")
            said = frames(gate)
            with contextlib.suppress(OSError):  # thrown out while it spoke
                sock.sendall(mutate(rng, said) if rng.random() < 0.8 else rng.randbytes(500))
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(4096):
                    pass
        with contextlib.suppress(fb.FastbufError):
            while gate.poll(20):
                pass
        gate.close()
        honest.emit((k, "still here"))
        honest.flush()
        assert honest_gate.poll(20) == [(k, "still here")]
        if k == 50:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 << 10, "the process grew"  # KiB
    assert rig.far.pool.stats().in_use <= 10
    honest.abort()


def test_who_joins_is_looked_at_too(rig: Rig) -> None:
    gate, other = rig.gate(channels=2), rig.gate(secret=b"another")
    first = rig.writer(gate)
    with pytest.raises(ConfigError, match="another secret"):
        rig.writer(other, secret=b"another")
    for writer in (rig.writer(other), rig.writer(99), rig.writer(gate), rig.writer(gate, 1, epoch=1)):
        with pytest.raises(ExchangeAborted):
            emit_on(writer)
        writer.abort()
    with rig.writer(gate, 1) as second, first:
        second.emit((2, "b"))
        first.emit((1, "a"))
        got: list[Any] = []
        reader = run(lambda: got.extend(gate))
    reader.join(10)
    assert sorted(got) == [(1, "a"), (2, "b")]


def test_a_consumer_that_has_enough_stops_its_own_channel_alone(rig: Rig) -> None:
    gates = [rig.gate(), rig.gate()]
    writers = [rig.writer(gate) for gate in gates]
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            writers[0].emit((0, "x" * 300))

    thread = run(write)
    assert gates[0].poll(5)
    gates[0].close()
    assert until(lambda: writers[0].cancelled)
    stop.set()
    thread.join(10)
    writers[0].close()
    got: list[Any] = []
    reader = run(lambda: got.extend(gates[1]))
    with writers[1] as writer:
        writer.emit((1, "still here"))
    reader.join(10)
    assert got == [(1, "still here")]


def test_an_abort_reaches_the_other_end(rig: Rig) -> None:
    gate, other = rig.gate(), rig.gate()
    writer, victim = rig.writer(gate), rig.writer(other)
    writer.emit((1, "a"))
    writer.abort("the producer is ill")
    with pytest.raises(ExchangeAborted, match="the producer is ill"):
        list(gate)
    other.abort("the consumer is ill")
    other.close()
    with pytest.raises(ExchangeAborted, match="the consumer is ill"):
        emit_on(victim)
    victim.abort()


def test_the_end_of_the_consumers_environment_is_heard(rig: Rig) -> None:
    gate = rig.gate()
    writer = rig.writer(gate)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            emit_on(writer)
        except ExchangeError as error:
            errors.append(error)

    thread = run(write)
    assert gate.poll(20)
    assert until(lambda: rig.received()["stopped_s"] > 0.1)
    rig.far.close()
    assert until(lambda: writer.cancelled or bool(errors))
    writer.abort()
    thread.join(10)
    assert not thread.is_alive()


def produce_for_ever(address: tuple[str, int], gate_id: int) -> None:
    with fb.ShuffleEnvironment(segments=50, segment_size=SEGMENT) as env:
        wire = env.create_wire("watermark", address)
        emit_on(env.create_result_partition(ROWS, [wire.to(gate_id)], secret=SECRET))


def test_a_killed_producer_is_a_loss_to_all_its_consumers(rig: Rig) -> None:
    gate = rig.gate()
    process = multiprocessing.get_context("spawn").Process(target=produce_for_ever, args=(rig.address, gate.gate_id))
    process.start()
    assert gate.poll(60)
    process.kill()
    process.join()
    with pytest.raises(PeerLost, match="was lost without its end of partition"):
        list(gate)


def test_a_producer_that_goes_is_a_loss(rig: Rig) -> None:
    gate = rig.gate()
    writer = rig.writer(gate)
    writer.emit((1, "a"))
    assert gate.poll(20) == [(1, "a")]
    rig.near.close()
    with pytest.raises((PeerLost, ExchangeAborted)):
        list(gate)
    with contextlib.suppress(ExchangeError):
        writer.abort()


def test_what_a_wire_cannot_be(rig: Rig) -> None:
    with pytest.raises(ConfigError, match="'watermark'"):
        rig.near.create_wire("credit", rig.address)
    with pytest.raises(ConfigError, match="listens for wires"):
        rig.far.listen_wire()
    nobody = rig.near.create_wire("watermark", ("127.0.0.1", 1))
    with pytest.raises(PeerLost, match="cannot be reached"):
        rig.near.create_result_partition(ROWS, [nobody.to(1)])
    rig.near.close()
    with pytest.raises(ExchangeClosed):
        rig.near.create_wire("watermark", rig.address)
    with (
        fb.ShuffleEnvironment(segments=16, tls=fb.TlsConfig("cert", "key", "authority")) as safe,
        pytest.raises(ConfigError, match="speaks no TLS"),
    ):
        safe.listen_wire()


def test_a_channel_that_joins_finds_its_gate_freed(rig: Rig) -> None:
    """A gate is on the environment's list a moment longer than it is there."""
    first, second = rig.gate(), rig.gate()
    with rig.writer(first) as writer:
        with rig.far._lock:  # whoever closes the gate waits for it, to take the gate off the list
            closer = run(second.close)
            assert until(lambda: second.freed)
            joins = rig.writer(second)
            with pytest.raises(ExchangeAborted, match="is there already, or the gate has ended"):
                emit_on(joins)
        closer.join()
        joins.abort("as it should be")
        writer.emit((1, "the others go on"))
        writer.flush()
        assert first.poll() == [(1, "the others go on")]
        first.close()


class Meanwhile(WatermarkEnd):
    """An end that has something happen just before, or after, it points to a gate or a partition."""

    before: Callable[[Any], None] | None = None
    after: Callable[[Any], None] | None = None

    def add_gate(self, gate: fb.InputGate, hello: hs.Hello, stream: int) -> None:
        super().add_gate(gate, hello, stream)
        if Meanwhile.after is not None:
            Meanwhile.after(gate)

    def add_partition(self, partition: Any, *more: Any) -> None:
        if Meanwhile.before is not None:
            Meanwhile.before(partition)
        super().add_partition(partition, *more)
        if Meanwhile.after is not None:
            Meanwhile.after(partition)

    def let_go_gate(self, gate: fb.InputGate) -> None:
        super().let_go_gate(gate)
        LET_GO.append(gate)

    def let_go_partition(self, partition: Any) -> None:
        super().let_go_partition(partition)
        LET_GO.append(partition)


LET_GO: list[Any] = []


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Meanwhile]]:
    monkeypatch.setattr(watermark, "WatermarkEnd", Meanwhile)
    LET_GO.clear()
    yield Meanwhile
    Meanwhile.before = Meanwhile.after = None
    LET_GO.clear()


def test_a_gate_that_is_closed_as_its_wire_is_admitted_is_let_go_of(rig: Rig, meanwhile: type[Meanwhile]) -> None:
    gate = rig.gate()
    meanwhile.after = lambda it: it.close() if it is gate else None
    writer = rig.writer(gate, on_peer_loss="cancel")
    assert until(lambda: gate.freed)
    assert [gate] == LET_GO
    assert until(lambda: writer.cancelled)
    writer.abort("as it should be")


def test_a_partition_that_is_closed_as_its_wire_connects_is_let_go_of(rig: Rig, meanwhile: type[Meanwhile]) -> None:
    gate = rig.gate()
    meanwhile.after = lambda it: rig.near.release_partition(it) if it is not gate else None
    writer = rig.writer(gate)
    assert len(LET_GO) == 1
    with pytest.raises(ExchangeClosed):
        writer.emit((1, "one"))
    with pytest.raises(ExchangeAborted, match="let go without its end of partition"):
        gate.poll()


@pytest.mark.parametrize("joins", [False, True])
def test_a_partition_that_was_closed_is_not_taken(rig: Rig, meanwhile: type[Meanwhile], joins: bool) -> None:
    gates = [rig.gate(), rig.gate()]
    with contextlib.ExitStack() as stack:
        if joins:
            stack.enter_context(rig.writer(gates[0]))
        meanwhile.before = rig.near.release_partition
        with pytest.raises(ExchangeClosed, match="was closed while it connected"):
            rig.writer(gates[1])
        gates[0].close()
