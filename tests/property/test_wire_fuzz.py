"""The wire under fire: frames a peer with the secret should never send. A named error each time, everything home."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import struct
import threading
import time

import pytest
from left_behind import held, new_since
from promises import PATIENCE_S

import fastbuf as fb
from fastbuf.config import FLOW_CONTROLS
from fastbuf.transports import handshake as hs
from fastbuf.transports import strangers

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))
HEADER = struct.Struct("<IBBHIIII")
DATA, CREDIT, EVENT, DONE, CANCEL, ABORT, PING, JOIN, RECALL, RETURN = range(1, 11)
ROUNDS = 2000 if os.environ.get("FASTBUF_LONG") == "1" else 150


def element(value: int) -> bytes:
    return ROWS.dumps([(value,)])[32:]


def join(address: tuple[str, int], gate: fb.InputGate, channel: int) -> socket.socket:
    """A peer that proves the secret, written from the description alone."""
    sock = socket.create_connection(address, timeout=PATIENCE_S)
    flow_control = gate.config.flow_control
    hello = hs.Hello(gate.gate_id, channel, 3, ROWS.fingerprint, 4096, os.urandom(32), flow_control=flow_control)
    hs.greet(sock, hello, b"s", "the listener")
    return sock


def greeting(gate_id: int, stream: int, channel: int = 1) -> bytes:
    """What a channel that would join says first."""
    return hs.Hello(gate_id, channel, 3, ROWS.fingerprint, 4096, bytes(32), stream).pack()


def frame(kind: int, stream: int, payload: bytes = b"", sequence: int = 0, value: int = 0, **other: int) -> bytes:
    length = other.get("length", len(payload))
    return (
        HEADER.pack(
            length, kind, other.get("flags", 0), other.get("zero", 0), stream, sequence, value, other.get("crc", 0)
        )
        + payload
    )


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        ([frame(DATA, 0, element(1), sequence=5)], "buffer 5 came where 0 was due"),
        ([frame(DATA, 0, element(1)), frame(DATA, 0, element(1))], "buffer 0 came where 1 was due"),
        ([frame(DATA, 0, element(1)), frame(DONE, 0, sequence=2)], "says it sent 2 buffers, 1 came"),
        ([frame(DATA, 0, element(1), length=1 << 31)], "impossible length"),
        ([frame(DATA, 0, b"", length=0)], "impossible length"),
        ([frame(DATA, 7, element(1))], "another channel"),
        ([frame(ABORT, 7, b"who?")], "another channel"),
        ([frame(PING, 7)], "unknown kind"),
        ([frame(PING, 0, value=2)], "unknown kind"),
        ([frame(PING, 0, b"?")], "impossible length"),
        ([frame(JOIN, 0, greeting(1, 0))], "that is not in a handshake"),
        ([frame(JOIN, 2, greeting(1, 2), value=1)], "unknown kind"),
        ([frame(JOIN, 1, greeting(1, 1))], "that is not in a handshake"),
        ([frame(JOIN, 1)], "impossible length"),
        ([frame(JOIN, 1, bytes(4129))], "impossible length"),
        ([frame(JOIN, 2, greeting(1, 2)), frame(DATA, 2, element(1))], "before it had proved its secret"),
        ([frame(JOIN, 2, greeting(1, 2)), frame(EVENT, 2, b"\x02" + bytes(8))], "before it had proved its secret"),
        ([frame(JOIN, 6, greeting(1, 6)), frame(JOIN, 4, greeting(1, 4))], "that is not in a handshake"),
        ([frame(JOIN, 2, greeting(1, 2)) for _ in range(3)], "that is not in a handshake"),
        ([frame(JOIN, k, greeting(1, k)) for k in range(2, 400, 2)], "that is not in a handshake"),
        ([frame(JOIN, 2, b"no greeting"), frame(ABORT, 2), frame(ABORT, 2)], "after the last one|another channel"),
        ([frame(99, 0)], "unknown kind"),
        ([frame(CREDIT, 0, value=5)], "unknown kind"),
        ([frame(RECALL, 0)], "unknown kind"),
        ([frame(RETURN, 0, value=3)], "gave back more credit than it had"),
        ([frame(RETURN, 0, value=1), frame(RETURN, 0, value=0xFFFFFFFF)], "gave back more credit than it had"),
        ([frame(RETURN, 7, value=1)], "another channel"),
        ([frame(RETURN, 0, b"?", value=1)], "impossible length"),
        ([frame(JOIN, 2, greeting(1, 2)), frame(RETURN, 2, value=1)], "before it had proved its secret"),
        ([frame(DATA, 0, element(1), zero=1)], "unknown kind"),
        ([frame(DATA, 0, element(1), flags=1, crc=1)], "has CRC32C"),
        ([frame(EVENT, 0, b"\x02" + bytes(8), sequence=1)], "buffer 1 came where 0 was due"),
        ([frame(EVENT, 0, bytes(5000))], "impossible length"),
        ([frame(EVENT, 0, b"\x09nonsense")], "are not a valid event"),
        ([frame(EVENT, 0, b"\x02" + bytes(8)) for _ in range(200)], "without event credit"),
        ([frame(EVENT, 0, b"\x02" + bytes(8))[:-3]], "lost without its end of partition"),
        ([frame(ABORT, 0, b"it broke over there")], "it broke over there"),
        ([frame(DATA, 0, element(1))[:-3]], "lost without its end of partition"),
        ([frame(DATA, 0, element(k), sequence=k) for k in range(50)], "without credit"),
        ([frame(DATA, 0, b"\xff\xff\xff\x7f" * 4)], "max_record_bytes"),
        ([frame(DATA, 0, b"\x03\x00\x00\x00abc"), frame(DONE, 0, sequence=1)], "record|bytes"),
        ([frame(DATA, 0, b"\x09\x00\x00\x00abc"), frame(DONE, 0, sequence=1)], "ended within a record"),
    ],
)
def test_each_violation_has_its_error(frames: list[bytes], error: str) -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        gate = env.create_input_gate(ROWS, channels=1, epoch=3, secret=b"s")
        with join(env.listen(), gate, 0) as sock:
            sock.sendall(b"".join(frames))
            if error.startswith("lost"):  # else the loss would be a second error, and either may be first
                sock.shutdown(socket.SHUT_WR)
            if error in (
                "without credit",
                "without event credit",
            ):  # reading would give credit: wait until we have been thrown out
                with contextlib.suppress(ConnectionError):
                    while sock.recv(4096):
                        pass
            with pytest.raises(fb.FastbufError, match=error):
                list(gate)
        gate.close()
        assert env.pool.available == 64


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        (frame(DONE, 0), "acknowledged before it was sent"),
        (frame(CREDIT, 0, value=0x7FFFFFFF) * 2, "more credit than"),
        (frame(CREDIT, 0, sequence=1), "more credit than"),
        (frame(CREDIT, 0), "unknown kind"),
        (frame(CREDIT, 0, value=1, crc=2), "unknown kind"),
        (frame(DATA, 0, element(1)), "unknown kind"),
        (frame(CREDIT, 3, value=1), "another channel"),
        (frame(JOIN, 0, b"again"), "that is not in a handshake"),
        (frame(JOIN, 9, b"new"), "that is not in a handshake"),
        (frame(PING, 1), "unknown kind"),
        (frame(CREDIT, 0, value=1)[:-1], "the connection was closed|Connection reset"),
    ],
)
def test_a_consumer_that_breaks_the_protocol(frames: bytes, error: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as env,
    ):

        def peer() -> None:
            sock, _ = server.accept()
            with sock:
                hello = sock.recv(hs.HELLO_BYTES, socket.MSG_WAITALL)
                sock.sendall(hs.pack_challenge(b"n" * 32))
                sock.recv(hs.PROOF_BYTES, socket.MSG_WAITALL)
                sock.sendall(hs.pack_welcome(b"s", hello, b"n" * 32) + frames)
                if not error.startswith("the conn"):
                    sock.recv(1)

        thread = threading.Thread(target=peer)
        thread.start()
        writer = env.create_result_partition(ROWS, [(*server.getsockname()[:2], 1)], epoch=3, secret=b"s")
        with pytest.raises(fb.ExchangeError, match=error):
            writer.emit_many((k,) for k in range(100_000_000))
        writer.abort("over")
        thread.join(PATIENCE_S)


def test_a_ping_is_answered_while_nobody_reads() -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        gate = env.create_input_gate(ROWS, channels=1, epoch=3, secret=b"s")
        with join(env.listen(), gate, 0) as sock:
            for _ in range(3):
                sock.sendall(frame(PING, 0))
            heard = b""
            while heard.count(frame(PING, 0, value=1)) < 1:
                part = sock.recv(4096)
                assert part
                heard += part
        gate.close()


@pytest.mark.parametrize("last", [b"nonsense", b"n" * hs.HELLO_BYTES])
def test_one_that_joins_without_proof_is_refused_and_the_first_goes_on(last: bytes) -> None:
    """On the wire: CHALLENGE, and for a wrong answer a refusal; the first channel's data comes through still."""
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        gate = env.create_input_gate(ROWS, channels=2, epoch=3, secret=b"s")
        with join(env.listen(), gate, 0) as sock:
            stream = sock.makefile("rb")

            def hear() -> tuple[int, int, int, bytes]:
                while True:
                    head = HEADER.unpack(stream.read(HEADER.size))
                    if head[1] != CREDIT:
                        return head[1], head[4], head[6], stream.read(head[0])

            sock.sendall(frame(JOIN, 2, greeting(gate.gate_id, 2)))
            kind, number, refused, challenge = hear()
            assert (kind, number, refused, len(challenge)) == (JOIN, 2, 0, hs.CHALLENGE_BYTES)
            sock.sendall(frame(JOIN, 2, last))
            kind, number, refused, verdict = hear()
            assert (kind, number, refused, verdict[0]) == (JOIN, 2, 1, hs.REFUSED_SECRET)
            sock.sendall(frame(DONE, 2) + frame(DATA, 0, element(5)) + frame(DONE, 0, sequence=1))
            assert hear()[:2] == (DONE, 0)
            assert gate.poll(PATIENCE_S) == [(5,)]
            # And the number it had is not given out again.
            sock.sendall(frame(JOIN, 2, greeting(gate.gate_id, 2)))
            assert stream.read() == b""
            stream.close()
        gate.close()
        assert env.pool.available == 64


def mutate(rng: random.Random, good: bytes) -> bytes:
    data = bytearray(good)
    for _ in range(rng.randint(1, 8)):
        kind = rng.randrange(4)
        at = rng.randrange(len(data))
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + rng.randint(1, 30)]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randint(1, 30))
        else:
            data[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\x00\x00\x00\x00"])
        if not data:
            data = bytearray(good)
    return bytes(data)


@pytest.mark.parametrize("flow_control", FLOW_CONTROLS)
def test_mutated_streams_never_harm_an_honest_peer(flow_control: str) -> None:
    """Each round: a mad peer and an honest one on the same environment, at different gates."""
    rng = random.Random(20260101)
    good = frame(PING, 0) + frame(DATA, 0, element(0)) + frame(JOIN, 2, greeting(1, 2)) + frame(ABORT, 2)
    good += frame(EVENT, 0, b"\x02" + bytes(8), sequence=1)
    good += frame(DATA, 0, element(1), sequence=1) + frame(DONE, 0, sequence=2)
    with (
        fb.ShuffleEnvironment(segments=256, segment_size=4096) as env,
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as near,
    ):
        address = env.listen()
        honest_gate = env.create_input_gate(ROWS, channels=1, epoch=3, secret=b"s")
        honest = near.create_result_partition(ROWS, [(*address, honest_gate.gate_id)], epoch=3, secret=b"s")
        outcomes = {"error": 0, "records": 0}
        rounds = ROUNDS if flow_control == "credit" else ROUNDS // 4
        config = fb.ExchangeConfig(flow_control=flow_control)
        for k in range(rounds):
            gate = env.create_input_gate(ROWS, channels=1, epoch=3, secret=b"s", config=config)
            with join(address, gate, 0) as sock:
                sock.sendall(mutate(rng, good))
                with contextlib.suppress(OSError):  # it may have been thrown out already
                    sock.shutdown(socket.SHUT_WR)
                try:
                    records = list(gate)
                    assert all(isinstance(r, fb.Event) or len(r) == 1 for r in records)
                    outcomes["records"] += 1
                except fb.FastbufError:
                    outcomes["error"] += 1
            gate.close()
            honest.emit((k,))
            honest.flush()
            assert honest_gate.poll(PATIENCE_S) == [(k,)]
        closer = threading.Thread(target=honest.close)
        closer.start()
        assert list(honest_gate) == []
        closer.join(PATIENCE_S)
        assert outcomes["error"] > rounds // 2
        honest_gate.close()
        assert env.pool.available == 256


def knock(address: tuple[str, int], gate: fb.InputGate, rng: random.Random) -> bytes:
    """A stranger: a greeting with faults, or noise; -> the last it heard."""
    hello = hs.Hello(gate.gate_id, 0, 3, ROWS.fingerprint, 4096, rng.randbytes(32)).pack()
    kind = rng.randrange(4)
    first = hello if kind == 0 else mutate(rng, hello) if kind < 3 else rng.randbytes(rng.randint(1, 300))
    heard = b""
    with socket.create_connection(address, timeout=PATIENCE_S) as sock:
        try:
            sock.sendall(first)
            if len(first) < hs.HELLO_BYTES or kind == 1:
                sock.shutdown(socket.SHUT_WR)
            elif kind == 0:
                challenge = sock.recv(hs.CHALLENGE_BYTES, socket.MSG_WAITALL)
                assert challenge[0] == hs.WELCOME
                proof = hs.client_proof(b"s", hello, challenge[1 : 1 + hs.NONCE_BYTES])
                wrong = mutate(rng, proof)
                while wrong[: len(proof)] == proof:  # one change may have undone another
                    wrong = mutate(rng, proof)
                sock.sendall(wrong)
                sock.shutdown(socket.SHUT_WR)
            else:
                sock.sendall(rng.randbytes(hs.PROOF_BYTES))
            while part := sock.recv(4096):
                heard += part
        except TimeoutError:
            raise  # it was left to hang
        except OSError:
            pass  # thrown out while it spoke
    return heard


def test_mutated_greetings_never_harm_an_honest_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the secret is proved: dropped each time, nobody admitted, nothing kept, and the listener goes on."""
    rng = random.Random(20260102)
    monkeypatch.setattr(strangers, "PROOF_TIME_S", 3 * PATIENCE_S)  # who is wrong is dropped long before it is up

    with (
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as env,
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as near,
    ):
        address = env.listen()
        wanted = env.create_input_gate(ROWS, channels=1, epoch=3, secret=b"s")
        honest_gate = env.create_input_gate(ROWS, channels=1, epoch=3, secret=b"t")
        honest = near.create_result_partition(ROWS, [(*address, honest_gate.gate_id)], epoch=3, secret=b"t")
        before, memory = held(), 0
        for k in range(ROUNDS * 2):
            heard = knock(address, wanted, rng)
            assert len(heard) <= hs.CHALLENGE_BYTES + hs.VERDICT_HEAD_BYTES + hs.REASON_BYTES
            honest.emit((k,))
            honest.flush()
            assert honest_gate.poll(PATIENCE_S) == [(k,)]
            if k == ROUNDS // 2:
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert wanted.stats()["channels"] == 0
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 8 << 10, "the process grew"  # KiB
        assert not new_since(before)
        # The gate that strangers knocked for is as it was.
        writer = near.create_result_partition(ROWS, [(*address, wanted.gate_id)], epoch=3, secret=b"s")
        writer.emit((7,))
        writer.flush()
        assert wanted.poll(PATIENCE_S) == [(7,)]
        writer.abort()
        honest.abort()


def test_who_speaks_slowly_has_no_more_time_than_who_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not put the deadline off."""
    monkeypatch.setattr(strangers, "PROOF_TIME_S", 0.4)
    with fb.ShuffleEnvironment(segments=16, segment_size=4096) as env:
        gate = env.create_input_gate(ROWS, channels=1, epoch=3, secret=b"s")
        with socket.create_connection(env.listen(), timeout=PATIENCE_S) as sock:
            hello = hs.Hello(gate.gate_id, 0, 3, ROWS.fingerprint, 4096, b"n" * 32).pack()

            def drip() -> None:
                for k in range(len(hello)):
                    sock.sendall(hello[k : k + 1])
                    time.sleep(0.25)  # the stranger's slowness: within the time for a byte, and 20 s for all of them

            with pytest.raises(ConnectionError):
                drip()
        gate.close()
