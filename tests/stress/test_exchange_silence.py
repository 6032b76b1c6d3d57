"""Peers that fall silent without an end of their connection: found by PING, and nobody who is only slow is."""

from __future__ import annotations

import ctypes
import dataclasses
import multiprocessing as mp
import os
import selectors
import signal
import socket
import threading
import time
from typing import Any

import pytest
from nights import nightly
from promises import PATIENCE_S, own_time

import fastbuf as fb
from fastbuf.errors import ConfigError, PeerLost

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
INTERVAL = 2.0  # two of them must not pass where a thread that was to answer was only not run
CONFIG = fb.ExchangeConfig(ping_interval_s=INTERVAL, buffer_timeout_s=0.01)
SLACK = 3.0  # for a machine that does much else
SAYS = r"gave no sign of life, and no answer to a PING, for 4 s \(ping_interval_s 2\)"


def environment(transport: str) -> fb.ShuffleEnvironment:
    return fb.ShuffleEnvironment(segments=64, segment_size=4096, shared=transport == "memfd")


def settings(transport: str) -> fb.ExchangeConfig:
    return dataclasses.replace(CONFIG, transport=transport)


def stopped_consumer(pipe: Any, transport: str) -> None:
    try:
        with environment(transport) as env:
            gate = env.create_input_gate(ROWS, channels=1, secret=b"p", config=settings(transport))
            pipe.send((*env.listen(), gate.gate_id))
            for _ in gate:
                pass
    except fb.FastbufError as error:
        pipe.send(str(error))


def stopped_producer(pipe: Any, transport: str) -> None:
    try:
        with environment(transport) as env:
            writer = env.create_result_partition(ROWS, [pipe.recv()], secret=b"p", config=settings(transport))
            pipe.send("connected")
            k = 0
            while True:
                writer.emit((k, "t" * 100))
                k += 1
    except fb.FastbufError as error:
        pipe.send(str(error))


def busy_consumer(pipe: Any, transport: str) -> None:
    """Lets nobody else of its process have the interpreter for longer than a silence may last."""
    with environment(transport) as env:
        gate = env.create_input_gate(ROWS, channels=1, secret=b"p", config=settings(transport))
        pipe.send((*env.listen(), gate.gate_id))
        assert next(gate)[0] == 0
        ctypes.PyDLL(None).usleep(int(4 * INTERVAL * 1e6))  # a PyDLL keeps the interpreter's lock
        pipe.send(sum(1 for _ in gate))


def child(target: Any, pipe: Any, transport: str) -> Any:
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["fastbuf", __name__])
    process = context.Process(target=target, args=(pipe, transport), daemon=True)
    process.start()
    return process


def stop(process: Any) -> float:
    os.kill(process.pid, signal.SIGSTOP)
    return own_time()


def end(process: Any) -> None:
    process.kill()
    process.join(PATIENCE_S)


transports = pytest.mark.parametrize("transport", ["tcp", "memfd"])


def peer(name: str, transport: str) -> str:
    """How an error names it; the number of a process on the consumer's side of shared memory."""
    return name + (r" process \d+" if (name, transport) == ("producer", "memfd") else r" 127\.0\.0\.1:\d+")


@nightly(but_one="transport")
@pytest.mark.stress
@transports
@pytest.mark.parametrize("busy", [True, False], ids=["in the midst of data", "idle"])
def test_a_stopped_consumer_is_named_within_three_intervals(transport: str, busy: bool) -> None:
    """On shared memory it was not found at all: nothing is sent there, and the process had not ended."""
    ours, theirs = mp.Pipe()
    process = child(stopped_consumer, theirs, transport)
    try:
        with environment(transport) as env:
            writer = env.create_result_partition(ROWS, [ours.recv()], secret=b"p", config=settings(transport))
            writer.emit_many((k, "t") for k in range(1000 if busy else 1))
            at = stop(process)
            with pytest.raises(PeerLost, match=peer("consumer", transport) + r" \(channel 0\).*" + SAYS):
                writer.emit_many((k, "u" * 200) for k in range(10_000_000))
            assert own_time() - at < 3 * INTERVAL + SLACK
            assert not writer.cancelled
            writer.abort("over")
            os.kill(process.pid, signal.SIGCONT)  # it goes on, and is told that it was given up
            assert ours.poll(PATIENCE_S)
            assert "lost" in ours.recv()
            process.join(PATIENCE_S)
            assert env.pool.available == 64
    finally:
        end(process)


@nightly(transport="memfd")
@pytest.mark.stress
@transports
def test_a_stopped_producer_is_named_within_three_intervals(transport: str) -> None:
    ours, theirs = mp.Pipe()
    process = child(stopped_producer, theirs, transport)
    try:
        with environment(transport) as env:
            gate = env.create_input_gate(ROWS, channels=1, secret=b"p", config=settings(transport))
            ours.send((*env.listen(), gate.gate_id))
            assert ours.recv() == "connected"
            assert next(iter(gate))[0] == 0
            at = stop(process)
            with pytest.raises(PeerLost, match=peer("producer", transport) + r" \(channel 0\).*" + SAYS):
                for _ in gate:
                    pass
            assert own_time() - at < 3 * INTERVAL + SLACK
            gate.close()
            assert env.pool.available == 64
            os.kill(process.pid, signal.SIGCONT)
            assert ours.poll(PATIENCE_S)
            assert "lost" in ours.recv()
    finally:
        end(process)


@nightly(transport="memfd")
@pytest.mark.stress
@transports
def test_who_keeps_the_interpreter_to_itself_is_not_lost(transport: str) -> None:
    """It answers no PING of shared memory meanwhile; but it runs, or wants to, and that is seen."""
    ours, theirs = mp.Pipe()
    process = child(busy_consumer, theirs, transport)
    try:
        with environment(transport) as env:
            writer = env.create_result_partition(ROWS, [ours.recv()], secret=b"p", config=settings(transport))
            writer.emit_many((k, "u" * 200) for k in range(2000))
            writer.close()
            assert ours.recv() == 1999
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


@nightly(traffic=False)
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


@nightly(transport="tcp")
@pytest.mark.stress
@transports
def test_who_is_only_slow_is_not_lost(transport: str) -> None:
    """Without credit, without records, longer than a silence may last: the threads answer, whatever readers do."""
    config = fb.ExchangeConfig(
        ping_interval_s=INTERVAL, exclusive=1, floating=0, max_buffers_per_channel=2, transport=transport
    )
    with environment(transport) as far, environment(transport) as near:
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
