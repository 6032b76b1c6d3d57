"""Two hosts with a bad network between them: 5 % of the packets are lost, each takes 20 ms, and then the cable is cut.

Each end is a process in a network namespace of its own, with a tun device; the link between them is this process, which
hands on packets late, or not at all.  (The kernel's netem would do the same where it is built in.)
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import multiprocessing as mp
import os
import random
import selectors
import socket
import struct
import threading
import time
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import pytest

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
CHANNELS = 3
RECORDS = 1500
INTERVAL = 3.0  # two of them must not pass where packets only got lost, each time for twice as long
LOSS, DELAY_S = 0.05, 0.02
NEAR, FAR = "10.77.0.1", "10.77.0.2"
CONFIG = fb.ExchangeConfig(ping_interval_s=INTERVAL, buffer_timeout_s=0.01)
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
TUNSETIFF, IFF_TUN_NO_PI = 0x400454CA, 0x1001
SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFFLAGS, IFF_UP_RUNNING = 0x8916, 0x891C, 0x8914, 0x41


def enter_network(address: str) -> int:
    """A namespace of its own for this thread and what it starts; -> the other end of its only cable."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET | (CLONE_NEWUSER if os.geteuid() else 0)):
        raise OSError(ctypes.get_errno(), "no network namespace")
    cable = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(cable, TUNSETIFF, struct.pack("16sH22x", b"cable", IFF_TUN_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, "255.255.255.0")):
            packed = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(control, request, struct.pack("16s16s8x", b"cable", packed))
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH22x", b"cable", IFF_UP_RUNNING))
    return cable


def connected(pipe: Any, address: str) -> bool:
    """Enters a network and gives the parent its cable; False: that is not permitted here, and the parent is told."""
    try:
        cable = enter_network(address)
    except OSError as error:
        pipe.send(str(error))
        return False
    pipe.send("")
    send_handle(pipe, cable, os.getppid())
    os.close(cable)
    return True


def consume(pipe: Any) -> None:
    if not connected(pipe, FAR):
        return
    with fb.ShuffleEnvironment(segments=128, segment_size=4096) as env:
        gates = [env.create_input_gate(ROWS, channels=1, config=CONFIG) for _ in range(CHANNELS)]
        env.listen(FAR)
        pipe.send([gate.address for gate in gates])
        got: list[list[Any]] = [[] for _ in gates]
        while min(len(part) for part in got) < RECORDS:
            for gate, part in zip(gates, got, strict=True):
                part += gate.poll(0.01) or []
        pipe.send(got)
        errors = []
        for gate in gates:
            try:
                for _ in gate:
                    pass
            except fb.FastbufError as error:
                errors.append((time.monotonic(), type(error).__name__, str(error)))
            gate.close()
        pipe.send((errors, env.pool.available))


def produce(pipe: Any) -> None:
    if not connected(pipe, NEAR):
        return
    targets = pipe.recv()
    with fb.ShuffleEnvironment(segments=128, segment_size=4096) as env:
        writers = [env.create_result_partition(ROWS, [target], config=CONFIG) for target in targets]
        errors: list[Any] = []

        def send(writer: fb.RecordWriter) -> None:
            writer.emit_many((k, "x" * (k % 120)) for k in range(RECORDS))
            writer.flush()
            try:
                writer.emit_many((-1, "") for _ in iter(lambda: time.sleep(0.05), 1))  # a trickle, until it is cut
            except fb.FastbufError as error:
                errors.append((time.monotonic(), type(error).__name__, str(error)))
                writer.abort("over")

        threads = [threading.Thread(target=send, args=(writer,)) for writer in writers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pipe.send((errors, env.pool.available))


class Link:
    """Hands packets on between two cables: each after a delay, some never, and none once it is cut."""

    def __init__(self, cables: list[int]) -> None:
        self.cables = cables
        self.lost = self.passed = 0
        self.cut = self.closing = False
        self.thread = threading.Thread(target=self.run, name="link")
        self.thread.start()

    def run(self) -> None:
        rng = random.Random(8)
        order = itertools.count()
        under_way: list[tuple[float, int, int, bytes]] = []
        with selectors.DefaultSelector() as ready:
            for cable, other in zip(self.cables, reversed(self.cables), strict=True):
                ready.register(cable, selectors.EVENT_READ, other)
            while not self.closing:
                wait = under_way[0][0] - time.monotonic() if under_way else 0.05
                for key, _ in ready.select(max(0.0, wait)):
                    packet = os.read(key.fd, 65536)
                    if self.cut or rng.random() < LOSS:
                        self.lost += 1
                    else:
                        heapq.heappush(under_way, (time.monotonic() + DELAY_S, next(order), key.data, packet))
                while under_way and under_way[0][0] <= time.monotonic():
                    *_, cable, packet = heapq.heappop(under_way)
                    if not self.cut:
                        os.write(cable, packet)
                        self.passed += 1
        for cable in self.cables:
            os.close(cable)

    def close(self) -> None:
        self.closing = True
        self.thread.join(10)


@pytest.mark.stress
@pytest.mark.timeout(300)
def test_loss_and_delay_change_nothing_and_a_cut_is_named() -> None:
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["fastbuf", __name__])
    pipes = [context.Pipe() for _ in range(2)]
    ends = [
        context.Process(target=target, args=(theirs,), daemon=True)
        for target, (_, theirs) in zip((produce, consume), pipes, strict=True)
    ]
    link = None
    try:
        for end in ends:
            end.start()
        producer, consumer = (ours for ours, _ in pipes)
        refused = [pipe.recv() for pipe in (producer, consumer)]
        if any(refused):
            pytest.skip(f"network namespaces or tun devices are not permitted here: {refused}")
        link = Link([recv_handle(pipe) for pipe in (producer, consumer)])
        producer.send(consumer.recv())
        assert consumer.poll(120), "nothing, or not all, came through"
        for part in consumer.recv():
            assert part[:RECORDS] == [(k, "x" * (k % 120)) for k in range(RECORDS)]
        assert link.lost > link.passed * LOSS / 3, "the network was better than it should be"
        link.cut = True
        at = time.monotonic()
        for pipe, peer in ((producer, "consumer"), (consumer, "producer")):
            assert pipe.poll(60), f"what waits for a {peer} hangs"
            errors, available = pipe.recv()
            assert len(errors) == CHANNELS
            assert available == 128
            for when, kind, text in errors:
                assert kind == "PeerLost"
                assert text.startswith(peer)
                assert "no answer to a PING" in text
                assert when - at < 4 * INTERVAL  # three, and what the machine is late by
    finally:
        if link is not None:
            link.close()
        for end in ends:
            end.kill()
            end.join(10)
