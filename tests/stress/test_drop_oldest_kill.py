"""kill -9 of a slow subscriber at random points, while the writer takes back what it has not come to.

The other subscriber gets all, and every segment comes home.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import random
import time
from typing import Any

import pytest

import fastbuf as fb

pytestmark = [pytest.mark.stress, pytest.mark.timeout(1800)]
ROUNDS = 60 if os.environ.get("FASTBUF_LONG") == "1" else 3
ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
SEGMENTS = 96
PATIENCE_S = 30.0


def subscribe(pipe: Any, transport: str, seed: int) -> None:
    """Reads a little, with rests, until it is killed."""
    rng = random.Random(seed)
    config = fb.ExchangeConfig(transport=transport, max_buffers_per_channel=4)
    with fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=1024, shared=transport == "memfd") as env:
        gate = env.create_input_gate(ROWS, channels=1, config=config)
        env.listen()
        pipe.send(gate.address)
        last = -1
        while True:
            for n, text in gate.poll(PATIENCE_S):
                assert n > last
                assert text == f"{n}" + "t" * (n * 37 % 3000)
                last = n
            pipe.send(gate.stats()["records_missed"])
            time.sleep(rng.random() * 0.01)


@pytest.mark.parametrize("transport", ["memfd", "tcp"])
def test_a_killed_subscriber(transport: str) -> None:
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["fastbuf", __name__])
    rng = random.Random(36)
    config = fb.ExchangeConfig(transport=transport, max_buffers_per_channel=4, buffer_timeout_s=0.001)
    missed = 0
    for seed in range(ROUNDS):
        ours, theirs = context.Pipe()
        child = context.Process(target=subscribe, args=(theirs, transport, seed), daemon=True)
        child.start()
        address = ours.recv()
        with fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=1024, shared=transport == "memfd") as env:
            other = env.create_input_gate(ROWS, channels=1)
            writer = env.create_result_partition(
                ROWS,
                [other, address],
                selector=fb.broadcast(),
                config=config,
                on_slow_consumer="drop_oldest",
                on_peer_loss="cancel",
            )
            assert transport in writer.stats()["transports"]
            sent = got = 0
            end = time.monotonic() + PATIENCE_S
            kill_at = rng.randrange(50, 400)  # records that were dropped for it
            closed_at = None
            while closed_at is None or sent < closed_at + 200:
                assert time.monotonic() < end
                writer.emit((sent, f"{sent}" + "t" * (sent * 37 % 3000)))
                sent += 1
                while got < sent:  # nothing of it waits for the slow one, nor for the dead
                    got += len(other.poll(0.05) or ())
                    assert time.monotonic() < end
                if closed_at is None and writer.records_dropped()[1] >= kill_at:
                    child.kill()
                    closed_at = sent
            writer.finish()
            assert other.poll(PATIENCE_S) is None
            writer.close()
            assert writer.records_dropped()[0] == 0
        child.join(PATIENCE_S)
        try:
            while ours.poll():
                missed += ours.recv() > 0
        except (EOFError, ConnectionError):
            pass
        assert env.pool.available == SEGMENTS
        env.pool.audit()
    assert missed  # it knew of gaps before it was killed
