"""The handshake: who may connect, and that strangers cost nothing."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

import fastbuf as fb
from fastbuf.errors import (
    AuthenticationError,
    PeerLost,
    ProtocolError,
    ResourceError,
    SchemaMismatch,
    SequenceError,
    StallTimeout,
)
from fastbuf.transports import handshake as hs
from fastbuf.transports import memfd

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))


@pytest.fixture
def ends() -> Iterator[tuple[fb.ShuffleEnvironment, fb.ShuffleEnvironment, fb.InputGate, tuple[str, int]]]:
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as far,
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as near,
    ):
        gate = far.create_input_gate(ROWS, channels=1, epoch=11, secret=b"right")
        yield far, near, gate, far.listen()


def connect(near: fb.ShuffleEnvironment, target: tuple[str, int, int], **other: object) -> fb.RecordWriter:
    how: dict = {"channel": 0, "epoch": 11, "secret": b"right", "serializer": ROWS} | other
    serializer = how.pop("serializer")
    return near.create_result_partition(serializer, [target], **how)


def exchange_one(writer: fb.RecordWriter, gate: fb.InputGate) -> None:
    writer.emit((42,))
    closer = threading.Thread(target=writer.close)
    closer.start()
    assert list(gate) == [(42,)]
    closer.join(20)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"secret": b"wrong"}, AuthenticationError, "secret was not proved; give the gate's address"),
        ({"epoch": 10}, SequenceError, "epoch 10"),
        ({"serializer": fb.RowSerializer(fb.Schema.of(m="string"))}, SchemaMismatch, "schema"),
    ],
)
def test_who_does_not_belong_is_refused_by_reason(ends: tuple, change: dict, error: type, text: str) -> None:
    _, near, gate, address = ends
    with pytest.raises(error, match=text):
        connect(near, (*address, gate.gate_id), **change)
    exchange_one(connect(near, (*address, gate.gate_id)), gate)


def test_an_unknown_gate_is_named(ends: tuple) -> None:
    _, near, gate, address = ends
    with pytest.raises(PeerLost, match="no gate 777"):
        connect(near, (*address, 777))
    exchange_one(connect(near, (*address, gate.gate_id)), gate)


def test_a_channel_connects_once(ends: tuple) -> None:
    _, near, gate, address = ends
    writer = connect(near, (*address, gate.gate_id))
    with pytest.raises(SequenceError, match="channel 0 is connected already"):
        connect(near, (*address, gate.gate_id))
    exchange_one(writer, gate)


def test_larger_segments_than_the_consumers_are_refused(ends: tuple) -> None:
    _, _, gate, address = ends
    with (
        fb.ShuffleEnvironment(segments=16, segment_size=8192) as big,
        pytest.raises(fb.ExchangeError, match=r"its segments have 8192 bytes, the consumer's 4096: make both"),
    ):
        connect(big, (*address, gate.gate_id))


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[tuple[fb.ShuffleEnvironment, tuple[str, int]]]:
    """An environment, and the address of a server that reads a HELLO and goes on in a way of its own."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        fb.ShuffleEnvironment(segments=16, segment_size=4096) as near,
    ):

        def serve() -> None:
            sock, _ = server.accept()
            with sock:
                sock.recv(hs.HELLO_BYTES)
                answer(sock)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield near, server.getsockname()[:2]
        finally:
            thread.join(20)


def test_another_service_is_no_gate() -> None:
    """A web server, say: the port is wrong, not the gate."""
    page = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
    said = r"is no gate of fastbuf: it answered b'HTTP/1.1 400"
    with answering(lambda sock: sock.sendall(page)) as (near, address), pytest.raises(ProtocolError, match=said):
        connect(near, (*address, 1))


def test_nobody_listens_there() -> None:
    with (
        socket.socket() as kept,  # the port is nobody's meanwhile
        fb.ShuffleEnvironment(segments=16, segment_size=4096) as near,
    ):
        kept.bind(("127.0.0.1", 0))
        with pytest.raises(PeerLost, match="cannot be reached"):
            connect(near, (*kept.getsockname(), 1), config=fb.ExchangeConfig(connect_timeout_s=0.2))


def test_a_server_that_does_not_know_the_secret_is_not_believed() -> None:
    def impostor(sock: socket.socket) -> None:
        sock.sendall(hs.pack_challenge(b"n" * hs.NONCE_BYTES))
        assert len(sock.recv(hs.PROOF_BYTES, socket.MSG_WAITALL)) == hs.PROOF_BYTES
        sock.sendall(bytes([hs.WELCOME, hs.PROOF_BYTES, 0]) + b"p" * hs.PROOF_BYTES)
        assert sock.recv(1) == b"", "it was told more"

    with answering(impostor) as (near, address), pytest.raises(AuthenticationError, match="could not prove"):
        connect(near, (*address, 1))


@pytest.mark.parametrize("door", ["tcp", "memfd"])
def test_a_stranger_gets_nothing_to_try_secrets_on(door: str) -> None:
    """It must not get material for guessing off line before it has proved anything."""
    with fb.ShuffleEnvironment(segments=16, segment_size=4096, shared=True) as env:
        gate = env.create_input_gate(ROWS, channels=1, secret=b"guess me")
        address: object = env.listen()
        if door == "memfd":
            address = memfd.name_of(*address)  # type: ignore[misc]
        hello = hs.Hello(gate.gate_id, 0, 0, ROWS.fingerprint, 4096, b"c" * 32).pack()
        with socket.socket(socket.AF_UNIX if door == "memfd" else socket.AF_INET) as sock:
            sock.settimeout(20)
            sock.connect(address)
            sock.sendall(hello)
            heard = sock.recv(4096)
            nonce = heard[1 : 1 + hs.NONCE_BYTES]
            assert len(nonce) == hs.NONCE_BYTES
            sock.sendall(b"p" * hs.PROOF_BYTES)
            while part := sock.recv(4096):
                heard += part
        for proof in (hs.server_proof, hs.client_proof):
            assert proof(b"guess me", hello, nonce) not in heard


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10,
        b"\x00" * 500,
        hs.MAGIC + b"\xff" * 200,
        hs.MAGIC,
        struct.pack("<8sI", hs.MAGIC, 1),
    ],
)
def test_strangers_leave_honest_peers_alone(ends: tuple, noise: bytes) -> None:
    _, near, gate, address = ends
    for _ in range(5):
        with socket.create_connection(address, timeout=20) as sock:
            sock.sendall(noise)
    exchange_one(connect(near, (*address, gate.gate_id)), gate)


def test_a_replayed_proof_proves_nothing(ends: tuple) -> None:
    _, near, gate, address = ends
    hello = hs.Hello(gate.gate_id, 0, 11, ROWS.fingerprint, 4096, b"c" * 32).pack()
    with socket.create_connection(address, timeout=20) as sock:
        sock.sendall(hello)
        first = sock.recv(hs.CHALLENGE_BYTES)
        proof = hs.client_proof(b"right", hello, first[1:33])
    with socket.create_connection(address, timeout=20) as sock:
        sock.sendall(hello)
        assert sock.recv(hs.CHALLENGE_BYTES) != first
        sock.sendall(proof)
        assert sock.recv(1)[0] == hs.REFUSED_SECRET
    exchange_one(connect(near, (*address, gate.gate_id)), gate)


def test_a_port_range_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with (
            fb.ShuffleEnvironment(segments=16, segment_size=4096) as env,
            pytest.raises(ResourceError, match=f"ports {port}..{port}"),
        ):
            env.listen("127.0.0.1", (port, port))


def test_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as far,
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as near,
    ):
        gate = far.create_input_gate(ROWS, channels=1, epoch=11, secret=b"right")
        try:
            address = far.listen("::1")
        except ResourceError:
            pytest.skip("this machine has no IPv6 loopback")
        exchange_one(connect(near, (*address, gate.gate_id)), gate)


@pytest.mark.parametrize("shared", [False, True])
def test_a_gate_tells_of_the_producer_that_it_refused(shared: bool, caplog: pytest.LogCaptureFixture) -> None:
    """It waited for two minutes, and then said that its producers were slow, or not started."""
    other = fb.RowSerializer(fb.Schema.of(n="int64", more="string?"))
    config = fb.ExchangeConfig(stall_timeout_s=0.2)
    with (
        fb.ShuffleEnvironment(segments=64, shared=shared) as far,
        fb.ShuffleEnvironment(segments=64, shared=shared) as near,
    ):
        far.listen()
        gate = far.create_input_gate(ROWS, channels=1, config=config)
        why = r"the producer's schema \w{16} is not the consumer's \w{16}, struct<n: int64>: give both"
        with pytest.raises(SchemaMismatch, match=why):
            near.create_result_partition(other, [gate.address])
        (warned,) = [record.getMessage() for record in caplog.records if record.name == "fastbuf"]
        assert re.match(f"The producer of channel 0 was refused: {why}", warned)
        with pytest.raises(StallTimeout, match=rf"0 of 1 channels .*The producer of channel 0 was refused: {why}"):
            gate.poll()
        gate.close()
