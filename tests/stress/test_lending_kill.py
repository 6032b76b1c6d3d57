"""Borrowers killed at random points: nothing is lost, nothing is handed out twice.  FASTBUF_LONG=1: 2,000 kills."""

from __future__ import annotations

import os
import random
import select
import signal
import time

import pytest
from nights import nightly

from fastbuf.memory import Borrower, Lender, NetworkBufferPool
from fastbuf.memory._testing import borrow_for_ever

pytestmark = pytest.mark.stress
KILLS = 2000 if os.environ.get("FASTBUF_LONG") == "1" else 200


@nightly
def test_borrowers_killed_at_random_points() -> None:
    rng = random.Random(7)
    network = NetworkBufferPool(24, 4096, memfd=True)
    local = network.create_local_pool(24)
    came_back = taken_back = 0
    for kill in range(KILLS):
        capacity = rng.choice([1, 2, 5, 16])
        to_child, from_parent = os.pipe()
        child = os.fork()
        if child == 0:
            rings = int.from_bytes(os.read(to_child, 4), "little")
            path = f"/proc/{os.getppid()}/fd/{rings}"  # made after the fork, so it is not the child's too
            borrow_for_ever(Borrower(network.arena.fileno(), path, writable=True))
        lender = Lender(network, child, capacity)
        os.write(from_parent, lender.fileno().to_bytes(4, "little"))
        until = time.monotonic() + rng.uniform(0, 0.004)
        lent = ended = 0
        holds: set[int] = set()
        while time.monotonic() < until or (kill % 2 == 0 and ended < 3):
            segment = local.try_request()
            if segment is not None:
                assert segment.index not in holds
                lent += lender.lend(segment)
                segment.recycle()
            ended += lender.collect()
            assert local.in_use == lender.lent == lent - ended
        os.kill(child, signal.SIGKILL)
        assert select.select([lender.sentinel], [], [], 30)[0], "the death was not seen"
        if rng.random() < 0.5:
            ended += lender.collect()
        rest = lender.take_back()
        assert lent == ended + rest
        assert (lender.lent, lender.refused, lender.take_back(), lender.collect() if rest == 0 else 0) == (0, 0, 0, 0)
        assert local.in_use == 0
        network.audit()
        came_back += ended
        taken_back += rest
        os.waitpid(child, 0)
        os.close(to_child)
        os.close(from_parent)
    every = local.request_many(24)
    assert sorted(segment.index for segment in every) == list(range(24))
    local.recycle_many(every)
    assert came_back > KILLS, "the borrowers did nothing"
    assert taken_back > KILLS // 4, "no borrower died with a loan"
