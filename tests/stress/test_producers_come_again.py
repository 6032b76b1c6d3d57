"""kill -9 of producers of a gate that outlives them: what came whole is given out once, and they come again.

A producer that is started again goes on behind what its consumer has, as a service would: so each record comes once.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import random
import time
from typing import Any

import pytest
from left_behind import held, new_since
from promises import PATIENCE_S

import fastbuf as fb

pytestmark = [pytest.mark.stress, pytest.mark.timeout(1800)]
ROUNDS = 100 if os.environ.get("FASTBUF_LONG") == "1" else 4
ROWS = fb.RowSerializer(fb.Schema.of(channel="int64", n="int64", text="string"))
CONFIG = fb.ExchangeConfig(max_buffers_per_channel=4, buffer_timeout_s=0.005)
SEGMENTS = 64


def server() -> Any:
    """Children forked from a process without threads that has fastbuf loaded."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["fastbuf", __name__])
    return context


def text(n: int) -> str:
    return f"{n}" + "t" * (n * 37 % 3000)  # many records lie in two or three segments


def produce(address: Any, channel: int, first: int, shared: bool) -> None:
    """Writes from number `first` on, until it is killed."""
    with fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=1024, shared=shared) as env:
        writer = env.create_result_partition(ROWS, [address], channel=channel, config=CONFIG)
        n = first
        while True:
            writer.emit((channel, n, text(n)))
            n += 1


@pytest.mark.parametrize(("way", "on_peer_loss"), [("memfd", "forget"), ("tcp", "wait")])
def test_producers_are_killed_and_come_again(way: str, on_peer_loss: str) -> None:
    context = server()
    idle = context.Process(target=int)  # the first child starts what multiprocessing needs
    idle.start()
    idle.join(PATIENCE_S)
    idle.close()
    before = held()
    kill_and_start(context, way == "memfd", on_peer_loss)
    assert not new_since(before)


def kill_and_start(context: Any, shared: bool, on_peer_loss: str) -> None:
    rng = random.Random(11)
    channels = 2 if on_peer_loss == "wait" else None
    with fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=1024, shared=shared) as env:
        env.listen()
        gate = env.create_input_gate(ROWS, channels=channels, config=CONFIG, on_peer_loss=on_peer_loss)
        due = {0: 0, 1: 0}
        children = {}

        def start(channel: int) -> None:
            arguments = (gate.address, channel, due[channel], shared)
            children[channel] = context.Process(target=produce, args=arguments, daemon=True)
            children[channel].start()

        def read(seconds: float) -> None:
            for channel, n, came in gate.poll(seconds) or ():
                assert n == due[channel]
                assert came == text(n)
                due[channel] += 1

        for channel in due:
            start(channel)
        for kill in range(ROUNDS):
            victim, other = kill % 2, 1 - kill % 2
            had = dict(due)
            end = time.monotonic() + PATIENCE_S
            while due[victim] == had[victim]:  # it has come, or come again
                assert time.monotonic() < end
                read(0.05)
            stop = time.monotonic() + rng.random() * 0.02
            while time.monotonic() < stop:
                read(0.005)
            children[victim].kill()
            children[victim].join(PATIENCE_S)
            while gate.stats()["producers_lost"] == kill:
                assert time.monotonic() < end
                read(0.05)
            assert "was lost without its end of partition" in gate.lost[victim]
            gate.audit()
            had = dict(due)
            while due[other] == had[other]:  # the other one goes on
                assert time.monotonic() < end
                read(0.05)
            start(victim)
        assert gate.stats()["records"] == sum(due.values())
        assert gate.stats()["channels"] == 2
        assert 0 < gate.stats()["records_cut"] <= ROUNDS
        gate.close()
        for child in children.values():
            child.kill()
            child.join(PATIENCE_S)
            child.close()
    env.pool.audit()
    assert env.pool.available == SEGMENTS
