"""A proxy between the two ends of a TCP exchange that delays, splits, truncates, duplicates and cuts their stream.

What only costs time changes nothing.  What costs bytes is an error that names the peer, at both ends, within a second;
no record is lost silently, altered or had twice, and no segment, descriptor or thread is left.
"""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from left_behind import nothing_left
from nights import nightly
from promises import PATIENCE_S, Reactions, own_time

import fastbuf as fb
from fastbuf.transports import handshake as hs

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
SEGMENT = 1024
RECORDS = 400
ROUNDS = 200 if os.environ.get("FASTBUF_LONG") == "1" else 25
TO_CONSUMER, TO_PRODUCER = 0, 1
# A connection begins with these bytes; after them come frames.
GREETING = (hs.HELLO_BYTES + hs.PROOF_BYTES, hs.CHALLENGE_BYTES + hs.VERDICT_HEAD_BYTES + hs.PROOF_BYTES)

Deed = Callable[[int, int, bytes], list[bytes] | None]


class Proxy:
    """Hands on what it gets, as `deed` has it: (direction, bytes before, data) -> pieces to send; None: cut."""

    def __init__(self, target: tuple[str, int], deed: Deed, reset: bool = False) -> None:
        self.target, self.deed, self.reset = target, deed, reset
        self.cut_at: float | None = None
        self.closing = False
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = self.server.getsockname()[:2]
        self.thread = threading.Thread(target=self.run, name="proxy")
        self.thread.start()

    def run(self) -> None:
        self.server.settimeout(0.05)
        while not self.closing:
            with contextlib.suppress(TimeoutError):
                near, _ = self.server.accept()
                with near, socket.create_connection(self.target, timeout=PATIENCE_S) as far:
                    cut = self.pump(near, far)
                if cut:
                    self.cut_at = own_time()  # now they are closed

    def pump(self, near: socket.socket, far: socket.socket) -> bool:
        """Until both have ended; True: until they are to be cut."""
        passed = [0, 0]
        with selectors.DefaultSelector() as ready:
            for direction, (source, sink) in enumerate(((near, far), (far, near))):
                source.setblocking(True)
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ready.register(source, selectors.EVENT_READ, (direction, sink))
            while not self.closing and ready.get_map():
                for key, _ in ready.select(0.05):
                    direction, sink = key.data
                    source: Any = key.fileobj
                    try:
                        data = source.recv(4096)
                        if not data:
                            ready.unregister(source)
                            sink.shutdown(socket.SHUT_WR)
                            continue
                        pieces = self.deed(direction, passed[direction], data)
                        if pieces is None:
                            if self.reset:
                                for end in (near, far):
                                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                            return True
                        passed[direction] += len(data)
                        for piece in pieces:
                            sink.sendall(piece)
                    except OSError:
                        return False
        return False

    def close(self) -> None:
        self.closing = True
        self.thread.join(PATIENCE_S)
        self.server.close()


SENT = [(k, "t" * (k % 97)) for k in range(RECORDS)]


def through(
    deed: Deed, reset: bool = False, checksum: bool = False, channels: int = 1
) -> tuple[list[list[Any]], list[Any], Proxy]:
    """Channels of one connection through the proxy.

    Returns
    -------
    tuple
        What each consumer had; the errors as (who, when by `own_time`, error); the proxy.
    """
    config = fb.ExchangeConfig(checksum=checksum, buffer_timeout_s=0.005, stall_timeout_s=20, connect_timeout_s=20)
    segments = 64 * channels
    got: list[list[Any]] = [[] for _ in range(channels)]
    errors: list[Any] = []
    with (
        fb.ShuffleEnvironment(segments=segments, segment_size=SEGMENT) as far,
        fb.ShuffleEnvironment(segments=segments, segment_size=SEGMENT) as near,
    ):
        gates = [far.create_input_gate(ROWS, channels=1, epoch=9, secret=b"p", config=config) for _ in range(channels)]
        proxy = Proxy(far.listen(), deed, reset)

        def read(i: int) -> None:
            try:
                got[i].extend(iter(gates[i]))
            except fb.FastbufError as error:
                errors.append((f"consumer {i}", own_time(), error))
            finally:
                gates[i].close()

        def write(i: int) -> None:
            writer = None
            try:
                target = (*proxy.address, gates[i].gate_id)
                writer = near.create_result_partition(ROWS, [target], epoch=9, secret=b"p", config=config)
                for record in SENT:
                    writer.emit(record)
                writer.close()
            except fb.FastbufError as error:
                errors.append((f"producer {i}", own_time(), error))
                if writer is None:  # nobody will come
                    gates[i].abort("the producer could not connect")
                else:
                    writer.abort("over")

        threads = [threading.Thread(target=part, args=(i,)) for i in range(channels) for part in (read, write)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "somebody hangs"
        proxy.close()
        for env in (near, far):
            assert env.pool.available == segments
            env.pool.audit()
    return got, errors, proxy


@pytest.mark.timeout(600)
def test_channels_of_one_connection_split_and_cut() -> None:
    rng = random.Random(11)
    for place in [10**9] + [rng.randrange(300, 60_000) for _ in range(ROUNDS - 1)]:

        def tear(way: int, at: int, data: bytes, place: int = place) -> list[bytes] | None:
            if at + len(data) > place:
                return None
            middle = rng.randrange(len(data))
            return [data[:middle], data[middle:]]

        with nothing_left():
            got, errors, proxy = through(tear, bool(place & 1), checksum=True, channels=4)
        assert all(part == SENT[: len(part)] for part in got)
        if proxy.cut_at is None:
            assert errors == []
            assert got == [SENT] * 4
        failed = {who for who, _, _ in errors}
        for i, part in enumerate(got):
            assert len(part) == RECORDS or f"consumer {i}" in failed, "records were lost, and nobody said so"
        for who, _, error in errors:
            assert isinstance(error, fb.ExchangeError), (who, error)


def test_split_at_every_place() -> None:
    rng = random.Random(1)

    def split(direction: int, at: int, data: bytes) -> list[bytes]:
        pieces = []
        while data:
            n = rng.choice((1, 1, 2, 7, 23, 24, 25, 300))
            pieces.append(data[:n])
            data = data[n:]
        return pieces

    with nothing_left():
        assert through(split)[:2] == ([SENT], [])


def test_delayed() -> None:
    rng = random.Random(2)

    def delay(direction: int, at: int, data: bytes) -> list[bytes]:
        time.sleep(rng.random() * 0.004)  # the delay that is injected
        return [data]

    with nothing_left():
        assert through(delay)[:2] == ([SENT], [])


def places(seed: int, direction: int, total: int) -> list[int]:
    """Within the greeting, at its end, within and between frames."""
    rng = random.Random(seed)
    fixed = [0, 1, GREETING[direction] - 1, GREETING[direction], GREETING[direction] + 1, GREETING[direction] + 24]
    return fixed + [rng.randrange(total) for _ in range(ROUNDS - len(fixed))]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("reset", [False, True], ids=["truncated", "reset"])
@pytest.mark.parametrize("direction", [TO_CONSUMER, TO_PRODUCER], ids=["to the consumer", "to the producer"])
def test_cut_at_any_place(direction: int, reset: bool) -> None:
    reactions = Reactions(1.0)
    for place in places(3 + direction, direction, 20_000 if direction == TO_CONSUMER else 500):

        def cut(way: int, at: int, data: bytes, place: int = place) -> list[bytes] | None:
            if way == direction and at + len(data) > place:
                return None
            return [data]

        with nothing_left():
            (got,), errors, proxy = through(cut, reset)
        assert got == SENT[: len(got)]
        if proxy.cut_at is None:  # the exchange was over before so much had passed
            assert (got, errors) == (SENT, [])
            continue
        assert errors, f"cut at {place} of {direction}, and nobody noticed"
        for who, when, error in errors:
            assert isinstance(error, fb.ExchangeError), (who, error)
            reactions.add(when - proxy.cut_at)
        if len(errors) == 1:  # all that was to come had come: only the acknowledgement was lost
            assert errors[0][0] == "producer 0"
            assert got == SENT
    reactions.check()


@nightly(direction=TO_PRODUCER)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("direction", [TO_CONSUMER, TO_PRODUCER], ids=["to the consumer", "to the producer"])
def test_bytes_that_come_twice(direction: int) -> None:
    """Never a record twice or an altered one: an error, or, if the end had been read before, nothing."""
    rng = random.Random(5)
    noticed = 0
    for place in places(7 + direction, direction, 20_000 if direction == TO_CONSUMER else 400):
        done: list[int] = []

        def twice(way: int, at: int, data: bytes, place: int = place, done: list[int] = done) -> list[bytes]:
            if way != direction or done or at + len(data) <= place:
                return [data]
            done.append(at)
            n = rng.randint(1, len(data))
            return [data[:n], data[:n], data[n:]]

        with nothing_left():
            (got,), errors, _ = through(twice, checksum=True)
        noticed += bool(errors)
        assert got == SENT[: len(got)]
        assert errors or got == SENT
        for _, _, error in errors:
            assert isinstance(error, fb.FastbufError)
    assert noticed > ROUNDS // 3
