"""Peers that fall silent without an end of their connection: found by PING, and nobody who is only slow is."""

from __future__ import annotations

import multiprocessing as mp
import os
import selectors
import signal
import socket
import threading
import time
from typing import Any

import pytest
from promises import PATIENCE_S, own_time

import fastbuf as fb
from fastbuf.errors import ConfigError, PeerLost

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
INTERVAL = 2.0  # two of them must not pass where a thread that was to answer was only not run
CONFIG = fb.ExchangeConfig(ping_interval_s=INTERVAL, buffer_timeout_s=0.01)
SLACK = 3.0  # for a machine that does much else
SAYS = r"gave no sign of life, and no answer to a PING, for 4 s \(ping_interval_s 2\)"


def stopped_consumer(pipe: Any) -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        gate = env.create_input_gate(ROWS, channels=1, secret=b"p", config=CONFIG)
        pipe.send((*env.listen(), gate.gate_id))
        for _ in gate:
            pass


def stopped_producer(pipe: Any) -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        writer = env.create_result_partition(ROWS, [pipe.recv()], secret=b"p", config=CONFIG)
        pipe.send("connected")
        k = 0
        while True:
            writer.emit((k, "t" * 100))
            k += 1


def child(target: Any, pipe: Any) -> Any:
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["fastbuf", __name__])
    process = context.Process(target=target, args=(pipe,), daemon=True)
    process.start()
    return process


def stop(process: Any) -> float:
    os.kill(process.pid, signal.SIGSTOP)
    return own_time()


def end(process: Any) -> None:
    process.kill()
    process.join(PATIENCE_S)


@pytest.mark.stress
def test_a_stopped_consumer_is_named_within_three_intervals() -> None:
    ours, theirs = mp.Pipe()
    process = child(stopped_consumer, theirs)
    try:
        with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
            writer = env.create_result_partition(ROWS, [ours.recv()], secret=b"p", config=CONFIG)
            writer.emit_many((k, "t") for k in range(1000))
            at = stop(process)
            with pytest.raises(PeerLost, match=r"consumer 127\.0\.0\.1:\d+ \(channel 0\).*" + SAYS):
                writer.emit_many((k, "u" * 200) for k in range(10_000_000))
            assert own_time() - at < 3 * INTERVAL + SLACK
            writer.abort("over")
            assert env.pool.available == 64
    finally:
        end(process)


@pytest.mark.stress
def test_a_stopped_producer_is_named_within_three_intervals() -> None:
    ours, theirs = mp.Pipe()
    process = child(stopped_producer, theirs)
    try:
        with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
            gate = env.create_input_gate(ROWS, channels=1, secret=b"p", config=CONFIG)
            ours.send((*env.listen(), gate.gate_id))
            assert ours.recv() == "connected"
            assert next(iter(gate))[0] == 0
            at = stop(process)
            with pytest.raises(PeerLost, match=r"producer 127\.0\.0\.1:\d+ \(channel 0\).*" + SAYS):
                for _ in gate:
                    pass
            assert own_time() - at < 3 * INTERVAL + SLACK
            gate.close()
            assert env.pool.available == 64
    finally:
        end(process)


class Swallower:
    """A proxy that from some moment on hands on nothing, and says nothing about it: a firewall that forgot."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.swallows = False
        self.closing = False
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = self.server.getsockname()[:2]
        self.thread = threading.Thread(target=self.run, name="swallower")
        self.thread.start()

    def run(self) -> None:
        near, _ = self.server.accept()
        with near, socket.create_connection(self.target) as far, selectors.DefaultSelector() as ready:
            ready.register(near, selectors.EVENT_READ, far)
            ready.register(far, selectors.EVENT_READ, near)
            while not self.closing and ready.get_map():
                for key, _ in ready.select(0.02):
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if not data:
                        ready.unregister(key.fileobj)
                    elif not self.swallows:
                        key.data.sendall(data)

    def close(self) -> None:
        self.closing = True
        self.thread.join(PATIENCE_S)
        self.server.close()


@pytest.mark.stress
@pytest.mark.parametrize("traffic", [True, False], ids=["in the midst of data", "idle"])
def test_a_cut_that_nobody_is_told_of_is_found_by_both_ends(traffic: bool) -> None:
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as far,
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as near,
    ):
        gate = far.create_input_gate(ROWS, channels=1, secret=b"p", config=CONFIG)
        proxy = Swallower(far.listen())
        writer = near.create_result_partition(ROWS, [(*proxy.address, gate.gate_id)], secret=b"p", config=CONFIG)
        errors: dict[str, Any] = {}

        def read() -> None:
            try:
                for _ in gate:
                    pass
            except fb.FastbufError as error:
                errors["consumer"] = error

        reader = threading.Thread(target=read)
        reader.start()
        writer.emit_many((k, "t" * 50) for k in range(2000))
        writer.flush()
        proxy.swallows = True
        at = own_time()

        def wait() -> None:
            if traffic:
                writer.emit_many((k, "u" * 200) for k in range(10_000_000))
            else:
                writer.partition.wait_closed(PATIENCE_S)  # as close waits, with nothing left to be sent

        with pytest.raises(PeerLost, match=SAYS):
            wait()
        reader.join(PATIENCE_S)
        assert own_time() - at < 3 * INTERVAL + SLACK
        assert isinstance(errors["consumer"], PeerLost)
        assert "gave no sign of life" in str(errors["consumer"])
        writer.abort("over")
        gate.close()
        proxy.close()
        assert near.pool.available == 64
        assert far.pool.available == 64


@pytest.mark.stress
def test_who_is_only_slow_is_not_lost() -> None:
    """Without credit, without records, longer than a silence may last: the I/O threads answer, whatever readers do."""
    config = fb.ExchangeConfig(ping_interval_s=INTERVAL, exclusive=1, floating=0, max_buffers_per_channel=2)
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as far,
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as near,
    ):
        address = far.listen()
        gates = [far.create_input_gate(ROWS, channels=1, secret=b"p", config=config) for _ in range(2)]
        full, idle = (
            near.create_result_partition(ROWS, [(*address, gate.gate_id)], secret=b"p", config=config) for gate in gates
        )
        sent = 0
        while full.try_emit((sent, "v" * 300)):
            sent += 1
        time.sleep(4 * INTERVAL)  # who is silent is lost within three
        idle.emit((1, "idle"))
        idle.flush()
        assert gates[1].poll(PATIENCE_S) == [(1, "idle")]
        got = threading.Thread(target=lambda: records.extend(gates[0]))
        records: list[Any] = []
        got.start()
        while not full.resume():
            time.sleep(0.001)  # polling is the point: the non-blocking interface
        full.close()
        got.join(PATIENCE_S)
        assert [n for n, _ in records] == list(range(sent + 1))
        closer = threading.Thread(target=idle.close)
        closer.start()
        assert list(gates[1]) == []
        closer.join(PATIENCE_S)


@pytest.mark.parametrize("interval", [0, -1, 0.001, float("nan")])
def test_an_interval_that_there_cannot_be(interval: float) -> None:
    with pytest.raises(ConfigError, match="ping_interval_s"):
        fb.ExchangeConfig(ping_interval_s=interval)
