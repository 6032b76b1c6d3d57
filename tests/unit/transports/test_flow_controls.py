"""What the flow controls do to a TCP connection: who is held up by a slow channel, what is refused, who is lost."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from left_behind import nothing_left

import fastbuf as fb
from fastbuf.config import FLOW_CONTROLS
from fastbuf.errors import ExchangeAborted, ExchangeError, PeerLost, ProtocolError
from fastbuf.transports import handshake as hs

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
SECRET = b"of these tests"
SEGMENT = 2048
CHANNELS = 8
WITHOUT_CREDIT = FLOW_CONTROLS[1:]
PATIENCE_S = 60


class Rig:
    """Gates in one environment, writers in another, a connection between them."""

    def __init__(self) -> None:
        self.near = fb.ShuffleEnvironment(segments=200, segment_size=SEGMENT)
        self.far = fb.ShuffleEnvironment(segments=200, segment_size=SEGMENT)
        self.address = self.far.listen()

    def gate(self, flow_control: str, channels: int | None = 1, maximum: int | None = None, **config: Any) -> Any:
        settings = fb.ExchangeConfig(flow_control=flow_control, **config)
        return self.far.create_input_gate(ROWS, channels=channels, secret=SECRET, config=settings, maximum=maximum)

    def writer(self, flow_control: str, gate: Any, channel: int = 0, maximum: int | None = None, **config: Any) -> Any:
        settings = fb.ExchangeConfig(flow_control=flow_control, **config)
        return self.near.create_result_partition(ROWS, [gate.address], channel, config=settings, maximum=maximum)

    def stops(self) -> int:
        return self.far.stats()["connections_stopped"]


@pytest.fixture
def rig() -> Iterator[Rig]:
    with nothing_left():
        rig = Rig()
        yield rig
        rig.near.close()
        rig.far.close()
    for env in (rig.near, rig.far):
        env.pool.audit()
        assert env.pool.stats().in_use == 0


def run(func: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=func)
    thread.start()
    return thread


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)  # polling a state that has no event
    return condition()


def emit_on(writer: fb.RecordWriter) -> None:
    """Till it raises."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        writer.emit((1, "x" * 100))


class Eight:
    """Eight channels of one connection, each to a gate of its own; the first one's is not read until the end.

    Each writes until it is told that it is `enough`.
    """

    def __init__(self, rig: Rig, flow_control: str) -> None:
        small = {"exclusive": 1, "floating": 1, "max_buffers_per_channel": 2}
        self.gates = [rig.gate(flow_control, **small) for _ in range(CHANNELS)]
        self.writers = [rig.writer(flow_control, gate, maximum=4, **small) for gate in self.gates]
        self.enough = threading.Event()
        self.sent, self.got = [0] * CHANNELS, [0] * CHANNELS
        self.threads = [run(lambda i=i: self.write(i)) for i in range(CHANNELS)]
        self.threads += [run(lambda i=i: self.read(i)) for i in range(1, CHANNELS)]

    def write(self, i: int) -> None:
        while not self.enough.is_set():
            self.writers[i].emit((self.sent[i], "x" * 500))
            self.sent[i] += 1
        self.writers[i].close()

    def read(self, i: int) -> None:
        for record in self.gates[i]:
            assert record[0] == self.got[i]
            self.got[i] += 1

    def stands(self) -> bool:
        stood = list(self.got)
        time.sleep(0.5)  # time to go on, if anything could
        return self.got == stood

    def finish(self) -> None:
        self.enough.set()
        self.threads.append(run(lambda: self.read(0)))
        for thread in self.threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert self.got == self.sent
        for gate in self.gates:
            assert gate.audit()
            assert gate.stats()["peak_segments"] <= 2


def test_by_credit_one_slow_channel_among_eight_holds_up_no_other(rig: Rig) -> None:
    eight = Eight(rig, "credit")
    assert until(lambda: min(eight.got[1:]) >= 3000)
    assert eight.gates[0].pool.in_use <= 2
    assert rig.stops() == 0
    eight.finish()


@pytest.mark.parametrize("flow_control", WITHOUT_CREDIT)
def test_by_any_other_it_holds_up_all(rig: Rig, flow_control: str) -> None:
    """The weakness that credit was made for: a channel whose consumer waits stops the connection, or the source."""
    eight = Eight(rig, flow_control)
    assert until(eight.stands)
    assert all(thread.is_alive() for thread in eight.threads)
    assert eight.gates[0].pool.in_use <= 2
    # On, then off: the source was told before the gate was full.  The others find out when there is no segment.
    assert rig.stops() > 0 or flow_control == "on_off"
    eight.finish()


def test_a_flow_control_has_a_connection_of_its_own(rig: Rig) -> None:
    """One that stops its connection holds up no channel of another's."""
    never_read, read = rig.gate("watermark"), rig.gate("credit")
    stuck, going = rig.writer("watermark", never_read), rig.writer("credit", read)
    assert until(lambda: rig.far.stats()["connections"] == 2)  # its loop takes them up when it comes round
    thread = run(lambda: until_cancelled(stuck))
    assert until(lambda: rig.stops() > 0)
    for k in range(100):
        going.emit((k, "on"))
        going.flush()
        assert read.poll(20) == [(k, "on")]
    never_read.close()
    thread.join(PATIENCE_S)
    going.abort()


def until_cancelled(writer: fb.RecordWriter) -> None:
    while not writer.cancelled:
        writer.emit((0, "x" * 300))
    writer.close()


@pytest.mark.parametrize("flow_control", WITHOUT_CREDIT)
def test_more_channels_than_segments_go_on(rig: Rig, flow_control: str) -> None:
    gate = rig.gate(flow_control, channels=None, maximum=3, buffer_timeout_s=0)
    writers = [rig.writer(flow_control, gate, i, buffer_timeout_s=0) for i in range(7)]
    for turn in range(3):
        for i in (*range(7), *reversed(range(7))):
            writers[i].emit((turn, f"{i}"))
            assert gate.poll(20) == [(turn, f"{i}")], gate.describe_stall()
            assert gate.audit()
    assert gate.stats()["peak_segments"] <= 3
    for writer in writers:
        writer.abort()


@pytest.mark.parametrize("flow_control", WITHOUT_CREDIT)
def test_both_ends_say_the_same(rig: Rig, flow_control: str) -> None:
    gate = rig.gate("credit")
    with pytest.raises(ProtocolError, match=f"flow_control is '{flow_control}'; the consumer's is 'credit'"):
        rig.writer(flow_control, gate)
    gate.close()


@pytest.mark.parametrize("flow_control", WITHOUT_CREDIT)
def test_a_consumer_that_has_enough_lets_a_connection_go_on(rig: Rig, flow_control: str) -> None:
    """It has stopped the connection, or the source; when it goes, the others are held up no longer."""
    stuck, other = rig.gate(flow_control), rig.gate(flow_control)
    writers = [rig.writer(flow_control, gate) for gate in (stuck, other)]
    thread = run(lambda: until_cancelled(writers[0]))
    assert until(lambda: writers[0].stats()["wait_s"] > 0.2)
    writers[1].emit((1, "behind it"))
    writers[1].flush()
    assert other.poll(0.2) is None
    stuck.close()
    assert other.poll(20) == [(1, "behind it")]
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    writers[1].abort()


@pytest.mark.parametrize("flow_control", WITHOUT_CREDIT)
def test_the_end_of_the_consumers_environment_is_heard(rig: Rig, flow_control: str) -> None:
    gate = rig.gate(flow_control)
    writer = rig.writer(flow_control, gate)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            emit_on(writer)
        except ExchangeError as error:
            errors.append(error)

    thread = run(write)
    assert gate.poll(20)
    assert until(lambda: writer.stats()["wait_s"] > 0.2)
    rig.far.close()
    thread.join(PATIENCE_S)
    assert errors
    writer.abort()


def produce_for_ever(address: Any, flow_control: str) -> None:
    with fb.ShuffleEnvironment(segments=50, segment_size=SEGMENT) as env:
        config = fb.ExchangeConfig(flow_control=flow_control)
        emit_on(env.create_result_partition(ROWS, [address], config=config))


@pytest.mark.parametrize("flow_control", ["watermark", "on_off"])
@pytest.mark.parametrize("stopped", [True, False])
def test_a_killed_producer_is_a_loss(flow_control: str, stopped: bool) -> None:
    with fb.ShuffleEnvironment(segments=200, segment_size=SEGMENT) as env:
        env.listen()
        config = fb.ExchangeConfig(flow_control=flow_control)
        gate = env.create_input_gate(ROWS, channels=1, config=config)
        process = multiprocessing.get_context("spawn").Process(
            target=produce_for_ever, args=(gate.address, flow_control)
        )
        process.start()
        assert gate.poll(60)
        if stopped and flow_control == "watermark":
            assert until(lambda: env.stats()["connections_stopped"] > 0)
        process.kill()
        process.join()
        with pytest.raises(PeerLost, match="was lost without its end of partition"):
            list(gate)
        gate.close()


# ---- frames that nobody should send


def frame(kind: int, sequence: int = 0, value: int = 0) -> bytes:
    return struct.pack("<IBBHIIII", 0, kind, 0, 0, 0, sequence, value, 0)


CREDIT, CANCEL, RETURN, FLOW = 2, 5, 10, 11


@pytest.mark.parametrize(
    ("flow_control", "said", "why"),
    [
        ("credit", frame(FLOW, value=1), "an announcement that its flow control does not use"),
        ("watermark", frame(FLOW, value=1), "an announcement that its flow control does not use"),
        ("on_off", frame(FLOW, value=9), "an announcement that its flow control does not use"),
        ("pid_rate", frame(FLOW), "an announcement that its flow control does not use"),
        ("stepwise", frame(FLOW, sequence=17, value=1), "an announcement that its flow control does not use"),
        ("on_off", frame(CREDIT, value=1), "more credit than can be counted"),
    ],
)
def test_a_consumer_that_says_what_its_flow_control_has_not(flow_control: str, said: bytes, why: str) -> None:
    """Written from the description alone: a consumer that believes the producer, and then says that."""
    with socket.create_server(("127.0.0.1", 0)) as server, fb.ShuffleEnvironment(segments=16) as env:
        server.settimeout(PATIENCE_S)

        def consume() -> None:
            sock, _ = server.accept()
            with sock:
                hello = sock.recv(hs.HELLO_BYTES, socket.MSG_WAITALL)
                sock.sendall(hs.pack_challenge(b"n" * hs.NONCE_BYTES))
                sock.recv(hs.PROOF_BYTES, socket.MSG_WAITALL)
                sock.sendall(hs.pack_welcome(SECRET, hello, b"n" * hs.NONCE_BYTES) + said)
                with contextlib.suppress(OSError):
                    while sock.recv(4096):
                        pass

        thread = run(consume)
        config = fb.ExchangeConfig(flow_control=flow_control)
        target = (*server.getsockname()[:2], 1)
        writer = env.create_result_partition(ROWS, [target], secret=SECRET, config=config)
        with pytest.raises(ProtocolError, match=why):
            emit_on(writer)
        writer.abort()
        thread.join(PATIENCE_S)


@pytest.mark.parametrize("flow_control", WITHOUT_CREDIT)
def test_a_producer_that_gives_credit_back_where_there_is_none(rig: Rig, flow_control: str) -> None:
    gate = rig.gate(flow_control)
    with socket.create_connection(rig.address, timeout=PATIENCE_S) as sock:
        nonce = hs.fresh_nonce()
        hello = hs.Hello(gate.gate_id, 0, 0, ROWS.fingerprint, SEGMENT, nonce, flow_control=flow_control)
        hs.greet(sock, hello, SECRET, "here")
        sock.sendall(frame(RETURN, value=1))
        with pytest.raises(ProtocolError, match="credit where there is none"):
            list(gate)
    gate.close()


def test_a_flow_control_that_there_is_not(rig: Rig) -> None:
    hello = hs.Hello(1, 0, 0, 0, SEGMENT, bytes(32)).pack()
    said = bytearray(hello)
    said[-33] = len(FLOW_CONTROLS)
    with pytest.raises(ProtocolError, match="an unknown flow control: 5"):
        hs.Hello.unpack(bytes(said))


@pytest.mark.parametrize("flow_control", WITHOUT_CREDIT)
def test_an_abort_passes_a_source_that_is_stopped(rig: Rig, flow_control: str) -> None:
    """Whoever is stopped or slowed down still hears and says ends."""
    gate = rig.gate(flow_control)
    writer = rig.writer(flow_control, gate)
    outcome: list[BaseException] = []

    def write() -> None:
        try:
            emit_on(writer)
        except ExchangeError as error:
            outcome.append(error)

    thread = run(write)
    assert until(lambda: writer.stats()["wait_s"] > 0.2)
    gate.abort("the disk is full")
    thread.join(PATIENCE_S)
    assert isinstance(outcome[0], ExchangeAborted)
    assert "the disk is full" in str(outcome[0])
    gate.close()
    writer.abort()


@pytest.mark.parametrize("flow_control", FLOW_CONTROLS)
def test_between_processes_that_share_memory_all_but_credit_mean_tcp(flow_control: str) -> None:
    """What is read in place needs none: there would be nothing to compare."""
    config = fb.ExchangeConfig(flow_control=flow_control)
    with (
        fb.ShuffleEnvironment(segments=32, segment_size=SEGMENT, shared=True) as far,
        fb.ShuffleEnvironment(segments=32, segment_size=SEGMENT, shared=True) as near,
    ):
        far.listen()
        gate = far.create_input_gate(ROWS, channels=1, config=config)
        writer = near.create_result_partition(ROWS, [gate.address], config=config)
        assert near.stats()["connections"] == (flow_control != "credit")
        assert near.stats()["shared_channels"] == (flow_control == "credit")
        writer.emit((1, "a"))
        writer.flush()
        assert gate.poll(20) == [(1, "a")]
        writer.abort()
        gate.close()


@pytest.mark.parametrize("flow_control", WITHOUT_CREDIT)
def test_a_local_gate_has_none(flow_control: str) -> None:
    with fb.ShuffleEnvironment(segments=32, segment_size=SEGMENT) as env:
        writer, (gate,) = env.exchange(ROWS, config=fb.ExchangeConfig(flow_control=flow_control))
        writer.emit((1, "a"))
        writer.close()
        assert list(gate) == [(1, "a")]
