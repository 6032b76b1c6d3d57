"""kill -9 of a participant at random points: the others end with the named error, and all their segments are home."""

from __future__ import annotations

import multiprocessing as mp
import os
import random
import signal
import threading
import time
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.errors import PeerLost

ROUNDS = 500 if os.environ.get("FASTBUF_LONG") == "1" else 25
ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))


def server() -> Any:
    """Children forked from a process without threads that has fastbuf loaded."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["fastbuf", __name__])
    return context


def produce(address: tuple[str, int], gate_id: int, channel: int, started: Any) -> None:
    """Writes until it is killed."""
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        writer = env.create_result_partition(ROWS, [(*address, gate_id)], channel=channel, epoch=1, secret=b"k")
        started.set()
        k = 0
        while True:
            writer.emit((k, "t" * (k % 300)))
            k += 1


def consume(pipe: Any) -> None:
    """Reads until it is killed."""
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        gate = env.create_input_gate(ROWS, channels=1, epoch=1, secret=b"k")
        pipe.send((env.listen(), gate.gate_id))
        for _ in gate:
            pass


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_a_killed_producer_is_named_within_a_second() -> None:
    context = server()
    rng = random.Random(7)
    with fb.ShuffleEnvironment(segments=128, segment_size=4096) as env:
        address = env.listen()
        for _ in range(ROUNDS):
            gate = env.create_input_gate(ROWS, channels=2, epoch=1, secret=b"k")
            started = [context.Event(), context.Event()]
            children = [
                context.Process(target=produce, args=(address, gate.gate_id, i, started[i]), daemon=True)
                for i in range(2)
            ]
            for child in children:
                child.start()
            outcome: list[Any] = []

            def read(gate: fb.InputGate = gate, outcome: list[Any] = outcome) -> None:
                try:
                    for _ in gate:
                        pass
                except fb.FastbufError as lost:
                    outcome.append((time.monotonic(), lost))

            reader = threading.Thread(target=read)
            reader.start()
            for event in started:
                assert event.wait(20)
            time.sleep(rng.random() * 0.05)  # a random point of the stream
            assert children[0].pid is not None
            os.kill(children[0].pid, signal.SIGKILL)
            killed = time.monotonic()
            reader.join(10)
            when, error = outcome[0]
            assert isinstance(error, PeerLost)
            assert "channel 0" in str(error)
            assert when - killed < 1.0
            gate.close()
            for child in children:
                child.kill()
                child.join(10)
            assert env.pool.available == 128
            env.pool.audit()


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_a_killed_consumer_is_named_to_the_writer_within_a_second() -> None:
    context = server()
    rng = random.Random(8)
    for _ in range(max(5, ROUNDS // 5)):
        ours, theirs = context.Pipe()
        child = context.Process(target=consume, args=(theirs,), daemon=True)
        child.start()
        address, gate_id = ours.recv()
        with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
            writer = env.create_result_partition(ROWS, [(*address, gate_id)], epoch=1, secret=b"k")
            stop = time.monotonic() + rng.random() * 0.05
            k = 0
            while time.monotonic() < stop:
                writer.emit((k, "t" * (k % 300)))
                k += 1
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            killed = time.monotonic()
            with pytest.raises(PeerLost, match="consumer"):
                writer.emit_many((k, "u" * 200) for k in range(10_000_000))
            assert time.monotonic() - killed < 1.0
            writer.abort("over")
            assert env.pool.available == 64
        child.join(10)
