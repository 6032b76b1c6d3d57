"""kill -9 of a participant at random points: the others end with the named error, and all their segments are home."""

from __future__ import annotations

import multiprocessing as mp
import os
import random
import threading
import time
from typing import Any

import pytest
from left_behind import held, new_since
from promises import PATIENCE_S, Death, Reactions, own_time

import fastbuf as fb
from fastbuf.errors import PeerLost

# Of every five kills two are a producer's, two a consumer's, one that of a process that is both: 60, or 500.
ROUNDS = 100 if os.environ.get("FASTBUF_LONG") == "1" else 12
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


def take_part(pipe: Any, number: int, of: int) -> None:
    """Producer and consumer at once, in one thread: never blocks in a send; tells its end."""
    config = fb.ExchangeConfig(max_buffers_per_channel=2)
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        gate = env.create_input_gate(ROWS, channels=of, epoch=1, secret=b"k", config=config)
        pipe.send((env.listen(), gate.gate_id))
        targets = [(*address, gate_id) for address, gate_id in pipe.recv()]
        try:
            writer = env.create_result_partition(
                ROWS, targets, channel=number, epoch=1, secret=b"k", config=config, selector=fb.round_robin()
            )
            ours = time.monotonic() - own_time()  # what this process is late by from here on does not count
            pipe.send("connected")
            k = 0
            done = True
            while True:
                done = writer.try_emit((k, "t" * (k % 300))) if done else writer.resume()
                k += done
                gate.poll(0 if done else 0.001)
        except fb.FastbufError as error:
            told = ours + own_time(), type(error).__name__, str(error)
            writer.abort(f"participant {number} ends: {error}")
            gate.abort(str(error))
            gate.close()
        pipe.send((*told, env.pool.available))


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_a_participant_that_is_both_is_killed_and_all_the_others_end() -> None:
    context = server()
    rng = random.Random(9)
    reactions = Reactions(1.0)
    for _ in range(ROUNDS):
        pipes = [context.Pipe() for _ in range(3)]
        children = [
            context.Process(target=take_part, args=(theirs, i, 3), daemon=True) for i, (_, theirs) in enumerate(pipes)
        ]
        for child in children:
            child.start()
        for _, theirs in pipes:
            theirs.close()
        ours = [pipe for pipe, _ in pipes]
        places = [pipe.recv() for pipe in ours]
        for pipe in ours:
            pipe.send(places)
        assert [pipe.recv() for pipe in ours] == ["connected"] * 3
        time.sleep(rng.random() * 0.05)  # a random point of the stream
        dead = rng.randrange(3)
        death = Death(children[dead])
        death.done()
        for i, pipe in enumerate(ours):
            if i != dead:
                assert pipe.poll(PATIENCE_S), f"participant {i} hangs"
                when, kind, text, available = pipe.recv()
                assert kind in ("PeerLost", "ExchangeAborted"), text
                assert "lost" in text, text
                assert "PING" not in text, text
                reactions.add(when - death.clock)
                assert available == 64
        for child, pipe in zip(children, ours, strict=True):
            child.join(PATIENCE_S)
            pipe.close()
    reactions.check()


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_a_killed_producer_is_named_within_a_second() -> None:
    context = server()
    rng = random.Random(7)
    reactions = Reactions(1.0)
    with fb.ShuffleEnvironment(segments=128, segment_size=4096) as env:
        address = env.listen()
        before = None
        for _ in range(2 * ROUNDS):
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
                    outcome.append((own_time(), lost))

            reader = threading.Thread(target=read)
            reader.start()
            for event in started:
                assert event.wait(PATIENCE_S)
            time.sleep(rng.random() * 0.05)  # a random point of the stream
            death = Death(children[0])
            reader.join(PATIENCE_S)
            assert outcome, "the reader hangs"
            when, error = outcome[0]
            assert isinstance(error, PeerLost)
            assert "channel 0" in str(error)
            assert "PING" not in str(error)
            reactions.add(when - death.done())
            gate.close()
            for child in children:
                child.kill()
                child.join(PATIENCE_S)
                child.close()
            assert env.pool.available == 128
            env.pool.audit()
            del children, child, death
            if before is None:  # the first round starts what multiprocessing needs
                time.sleep(0.05)  # connections of those killed are closed when the I/O thread looks next
                before = held()
        assert not new_since(before)
    reactions.check()


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_a_killed_consumer_is_named_to_the_writer_within_a_second() -> None:
    context = server()
    rng = random.Random(8)
    reactions = Reactions(1.0)
    before = None
    for _ in range(2 * ROUNDS):
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
            death = Death(child)
            with pytest.raises(PeerLost, match="consumer") as lost:
                writer.emit_many((k, "u" * 200) for k in range(10_000_000))
            told = own_time()
            assert "PING" not in str(lost.value)
            reactions.add(told - death.done())
            writer.abort("over")
            assert env.pool.available == 64
        child.join(PATIENCE_S)
        child.close()
        ours.close(), theirs.close()
        before = before or held()  # the first round starts what multiprocessing needs
        assert not new_since(before)
    reactions.check()
