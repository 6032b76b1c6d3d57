"""kill -9 of either end of a memfd channel at random points: all segments come home, once, and who lives is told.

Of every five kills two are a producer's, two a writing producer's consumer and one that of a consumer whose producer is
idle or has closed already: nobody there asks for a segment, and they come home all the same.
"""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from left_behind import held, new_since
from promises import PATIENCE_S, Death, Reactions, own_time

import fastbuf as fb
from fastbuf.errors import PeerLost

pytestmark = [pytest.mark.stress, pytest.mark.timeout(1800)]
ROUNDS = 100 if os.environ.get("FASTBUF_LONG") == "1" else 12
ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
CONFIG = fb.ExchangeConfig(transport="memfd", max_buffers_per_channel=4)
SEGMENTS = 64


def server() -> Any:
    """Children forked from a process without threads that has fastbuf loaded."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["fastbuf", __name__])
    return context


def produce(address: tuple[str, int], gate_id: int, channel: int, started: Any) -> None:
    """Writes until it is killed."""
    with fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=4096, shared=True) as env:
        writer = env.create_result_partition(
            ROWS, [(*address, gate_id)], channel=channel, epoch=1, secret=b"k", config=CONFIG
        )
        started.set()
        k = 0
        while True:
            writer.emit((k, f"{k}" + "t" * (k % 300)))
            k += 1


def consume(pipe: Any, most: int) -> None:
    """Reads `most` records, then no more, until it is killed."""
    with fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=4096, shared=True) as env:
        gate = env.create_input_gate(ROWS, channels=1, epoch=1, secret=b"k", config=CONFIG)
        pipe.send((env.listen(), gate.gate_id))
        for n, text in gate:
            assert text.startswith(f"{n}")
            if n == most:
                break
        signal.pause()


def until(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while not true() and time.monotonic() < end:
        time.sleep(0.001)  # what another thread is about to do
    return true()


def test_a_killed_producer() -> None:
    context = server()
    rng = random.Random(17)
    reactions = Reactions(1.0)
    before = held()
    with fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=4096, shared=True) as env:
        address = env.listen()
        for kill in range(2 * ROUNDS):
            gate = env.create_input_gate(ROWS, channels=1, epoch=1, secret=b"k", config=CONFIG)
            started = context.Event()
            child = context.Process(target=produce, args=(address, gate.gate_id, 0, started), daemon=True)
            child.start()
            assert started.wait(PATIENCE_S)
            expected = 0
            stop = time.monotonic() + rng.random() * 0.02
            death: Death | None = None
            lost = ""
            try:
                while True:
                    if death is None and time.monotonic() > stop:
                        death = Death(child)
                    for n, text in gate.poll(0.01) or ():
                        assert n == expected
                        assert text == f"{n}" + "t" * (n % 300)
                        expected += 1
                    assert time.monotonic() - stop < PATIENCE_S, "the death was not seen"
            except PeerLost as error:
                told, lost = own_time(), str(error)
            assert "was lost without its end of partition" in lost
            assert death is not None, lost
            reactions.add(told - death.done())
            gate.close()
            child.join(PATIENCE_S)
            child.close()
            assert env.pool.available == SEGMENTS
            del child, started, death
            if kill == 0:
                before = held()  # the first round starts what multiprocessing needs
        assert not new_since(before)
    reactions.check()


def test_a_killed_consumer_of_a_writer_that_writes() -> None:
    context = server()
    rng = random.Random(18)
    reactions = Reactions(1.0)
    for _ in range(2 * ROUNDS):
        ours, theirs = context.Pipe()
        child = context.Process(target=consume, args=(theirs, rng.choice([0, 50, 10**9])), daemon=True)
        child.start()
        address, gate_id = ours.recv()
        with fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=4096, shared=True) as env:
            writer = env.create_result_partition(ROWS, [(*address, gate_id)], epoch=1, secret=b"k", config=CONFIG)
            stop = time.monotonic() + rng.random() * 0.02
            k, done = 0, True
            while time.monotonic() < stop:
                done = writer.try_emit((k, f"{k}" + "t" * (k % 300))) if done else writer.resume()
                k += done
            death = Death(child)
            lost = ""
            try:
                while time.monotonic() - stop < PATIENCE_S:
                    done = writer.try_emit((k, "u" * 200)) if done else writer.resume()
                    k += done
                    if not done:  # a loop without a pause would wait for the processor, and `own_time` stand still
                        time.sleep(0.001)
            except PeerLost as error:
                told, lost = own_time(), str(error)
            assert "was lost before it acknowledged" in lost
            reactions.add(told - death.done())
            writer.abort("over")
            assert env.pool.available == SEGMENTS
            env.pool.audit()
        child.join(PATIENCE_S)
        child.close()
    reactions.check()


def test_a_killed_consumer_of_a_writer_that_does_nothing() -> None:
    context = server()
    rng = random.Random(19)
    reactions = Reactions(1.0)
    with fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=4096, shared=True) as env:
        for kill in range(ROUNDS):
            ours, theirs = context.Pipe()
            child = context.Process(target=consume, args=(theirs, rng.choice([0, 20, 40])), daemon=True)
            child.start()
            address, gate_id = ours.recv()
            writer = env.create_result_partition(
                ROWS, [(*address, gate_id)], epoch=1, secret=b"k", config=CONFIG, on_peer_loss="cancel"
            )
            k = 0
            while k < rng.choice([5, 40]) and writer.try_emit((k, f"{k}" + "t" * 300)):
                k += 1
            writer.flush()
            closes = kill % 3 == 0 and writer.resume()
            if closes:
                writer.close()
            time.sleep(rng.random() * 0.005)  # a random point of the reading
            death = Death(child)
            # All but the one that the writer is filling.
            assert until(lambda most=1 - closes: env.pool.stats().in_use <= most), "what was lent is still out"
            if not closes:
                assert until(lambda writer=writer: writer.cancelled), "the writer was not told"
            reactions.add(own_time() - death.done())
            if not closes:
                writer.abort("over")
            assert env.pool.available == SEGMENTS
            env.pool.audit()
            child.join(PATIENCE_S)
            child.close()
    reactions.check()


def consume_with_a_child(pipe: Any) -> None:
    """Reads for ever, and so does its child live, with a duplicate of every descriptor: it is C code that forks."""
    with fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=4096, shared=True) as env:
        gate = env.create_input_gate(ROWS, channels=1, epoch=1, secret=b"k", config=CONFIG)
        pipe.send((env.listen(), gate.gate_id))
        assert gate.poll(PATIENCE_S)
        child = ctypes.PyDLL(None).fork()  # Python's hooks, which close them, do not run
        if child == 0:
            signal.pause()
        pipe.send(child)
        for _ in gate:
            pass


def test_a_killed_consumer_whose_child_lives() -> None:
    """The control line does not end then: the child has it too."""
    context = server()
    reactions = Reactions(1.0)
    for _ in range(ROUNDS // 3):
        ours, theirs = context.Pipe()
        process = context.Process(target=consume_with_a_child, args=(theirs,), daemon=True)
        process.start()
        address, gate_id = ours.recv()
        with fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=4096, shared=True) as env:
            writer = env.create_result_partition(ROWS, [(*address, gate_id)], epoch=1, secret=b"k", config=CONFIG)
            writer.emit((1, "1"))
            writer.flush()
            child = ours.recv()
            death = Death(process)
            began = time.monotonic()
            lost = ""
            try:
                while time.monotonic() - began < PATIENCE_S:
                    writer.emit((1, "1" * 300))
            except PeerLost as error:
                told, lost = own_time(), str(error)
            finally:
                os.kill(child, signal.SIGKILL)
            assert "the process has ended" in lost
            reactions.add(told - death.done())
            writer.abort("over")
            assert env.pool.available == SEGMENTS
        process.join(PATIENCE_S)
    reactions.check()
