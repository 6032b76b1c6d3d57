"""Whole buffers of one channel leave by one call: in order, and whatever becomes of the channel while they are on
their way out."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", data="binary"))
SEGMENT = 64 * 1024
SEGMENTS = 512
QUEUED = 32
WINDOW = fb.ExchangeConfig(exclusive=200, floating=0, max_buffers_per_channel=QUEUED, checksum=True, stall_timeout_s=60)
RECORDS = 600
OPEN = 1 << 40
PASSED = 1 << 20
SENT = [(n, bytes([n % 251]) * (24 * 1024 + n)) for n in range(RECORDS)]


class Valve:
    """A relay of one connection that hands on to the consumer what it is told to."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.left = OPEN  #: bytes that may pass to the consumer
        self.closing = False
        self.server = socket.socket()
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # the producer's socket is full soon
        self.server.bind(("127.0.0.1", 0))
        self.server.listen()
        self.address = self.server.getsockname()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        near = self.server.accept()[0]
        with near, socket.create_connection(self.target) as far, selectors.DefaultSelector() as ready:
            ready.register(near, selectors.EVENT_READ, far)
            ready.register(far, selectors.EVENT_READ, near)
            while not self.closing and ready.get_map():
                for key, _ in ready.select(0.01):
                    source: Any = key.fileobj
                    if source is near and self.left <= 0:
                        time.sleep(0.001)  # what the producer says waits
                        continue
                    with contextlib.suppress(OSError):
                        data = source.recv(1 << 14)
                        if data:
                            key.data.sendall(data)
                            self.left -= len(data) if source is near and self.left < OPEN else 0
                            continue
                        ready.unregister(source)
                        key.data.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.closing = True
        self.left = OPEN
        self.thread.join(10)
        self.server.close()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)  # another thread's deed is looked for


Ends = tuple[fb.ShuffleEnvironment, list[fb.InputGate], list[fb.RecordWriter], Valve]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Two channels of one connection, through a valve; all segments come home."""
    with (
        fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=SEGMENT) as far,
        fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=SEGMENT) as near,
    ):
        valve = Valve(far.listen())
        gates = [far.create_input_gate(ROWS, channels=1, config=WINDOW) for _ in range(2)]
        writers = [
            near.create_result_partition(ROWS, [(*valve.address, gate.gate_id)], secret=gate.secret, config=WINDOW)
            for gate in gates
        ]
        yield near, gates, writers, valve
        for gate in gates:
            gate.close()
        until(lambda: far.pool.available == SEGMENTS and near.pool.available == SEGMENTS)
        valve.close()


def start(target: Callable[..., Any], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments)
    thread.start()
    return thread


def write(writer: fb.RecordWriter) -> None:
    with contextlib.suppress(fb.ExchangeAborted), writer:
        writer.emit_many(SENT)


def stuck(near: fb.ShuffleEnvironment, writers: list[fb.RecordWriter], valve: Valve) -> list[threading.Thread]:
    """Writers whose queues and socket are full, and a lot of the first one's is half out."""
    threads = [start(write, writers[0])]
    for _ in range(2):
        valve.left = PASSED
        until(lambda: valve.left <= 0 and near.pool.available <= SEGMENTS - QUEUED)
    threads.append(start(write, writers[1]))
    until(lambda: near.pool.available <= SEGMENTS - 2 * QUEUED)
    return threads


def overwrite(env: fb.ShuffleEnvironment) -> None:
    """Every free segment: what still points to one says something else from here on."""
    whole = bytes(SEGMENT)
    writer, (gate,) = env.exchange(serializer=ROWS, config=fb.ExchangeConfig(max_buffers_per_channel=SEGMENTS))
    while env.pool.available and writer.try_emit((0, whole)):
        pass
    gate.close()
    writer.abort()


def test_what_had_to_wait_comes_whole_and_in_order(ends: Ends) -> None:
    near, gates, writers, valve = ends
    threads = stuck(near, writers, valve)
    valve.left = OPEN
    got: list[list[Any]] = [[], []]
    readers = [start(lambda i=i: got[i].extend(gates[i])) for i in range(2)]
    for thread in threads + readers:
        thread.join(30)
    assert got == [SENT, SENT]


@pytest.mark.parametrize("how", ["cancelled", "aborted by its reader", "aborted by its writer"])
def test_a_channel_that_ends_with_a_lot_under_way_harms_no_other(ends: Ends, how: str) -> None:
    near, gates, writers, valve = ends
    threads = stuck(near, writers, valve)
    if how == "aborted by its writer":
        writers[0].abort("enough")
        overwrite(near)  # what was under way goes out from a copy
    else:
        if how == "aborted by its reader":
            gates[0].abort("enough")
        gates[0].close()
        threads[0].join(30)  # hears of it while what it sent waits
        assert not threads[0].is_alive()
    valve.left = OPEN
    assert list(gates[1]) == SENT
    if how == "aborted by its writer":
        with pytest.raises(fb.ExchangeAborted, match="enough"):
            list(gates[0])
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
