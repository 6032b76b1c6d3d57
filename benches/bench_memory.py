"""One segment, requested and recycled, beside what Python code would otherwise take 32 KiB from.

Shape: one thread, a NetworkBufferPool of 2048 segments of 32 KiB, one LocalBufferPool with limit and statistics on;
each way runs N times (200,000; 2,000 in a smoke run), several rounds in turn.  The native suite is the same pair in C
without the GIL.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fastbuf.memory import LocalBufferPool, NetworkBufferPool
from fastbuf.memory._testing import Handover, batch_loop, pair_loop

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
N = 2_000 if SMOKE else 200_000
NATIVE_N = N * 10
SIZE = 32768
ROUNDS = 2 if SMOKE else 7

InTurn = Callable[..., dict[str, float]]


@pytest.fixture
def local() -> Iterator[LocalBufferPool]:
    with NetworkBufferPool(2048, SIZE) as network:
        pool = network.create_local_pool(64, maximum=512)
        yield pool
        assert pool.in_use == 0
        network.audit()


def test_memory_from_python(in_turn: InTurn, benchmark: Any, local: LocalBufferPool) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow.allocate_buffer is one of the peers")

    def segment() -> None:
        request = local.request
        for _ in range(N):
            request().recycle()

    def batches() -> None:
        request_many, recycle_many = local.request_many, local.recycle_many
        for _ in range(N // 32):
            recycle_many(request_many(32))

    def segment_and_view() -> None:
        request = local.request
        for _ in range(N):
            one = request()
            one.view().release()
            one.recycle()

    def numpy_empty() -> None:
        empty = np.empty
        for _ in range(N):
            empty(SIZE, np.uint8)

    def make_bytearray() -> None:
        for _ in range(N):
            bytearray(SIZE)

    def pyarrow_buffer() -> None:
        allocate = pa.allocate_buffer
        for _ in range(N):
            allocate(SIZE)

    free = list(range(512))

    def list_of_ints() -> None:
        pop, append = free.pop, free.append
        for _ in range(N):
            append(pop())

    ways = {
        "fastbuf request + recycle": segment,
        "fastbuf request_many(32) + recycle_many": batches,
        "fastbuf request + view + recycle": segment_and_view,
        "numpy.empty(32768)": numpy_empty,
        "bytearray(32768)": make_bytearray,
        "pyarrow.allocate_buffer(32768)": pyarrow_buffer,
        "list of ints pop + append": list_of_ints,
    }
    seconds = in_turn(ways, rounds=ROUNDS, baselines=("fastbuf request + recycle",), pairs=N, segment_bytes=SIZE)
    benchmark.extra_info["ns_per_pair"] = {way: s / N * 1e9 for way, s in seconds.items()}


def test_memory_native(in_turn: InTurn, benchmark: Any, local: LocalBufferPool) -> None:
    """Acquire and recycle in C: alone, two threads on one pool or with a pool each, and from thread to thread."""

    def alone() -> None:
        pair_loop(local, NATIVE_N)

    def batches() -> None:
        batch_loop(local, NATIVE_N // 32, 32)

    def both(first: LocalBufferPool, second: LocalBufferPool) -> None:
        thread = threading.Thread(target=pair_loop, args=(second, NATIVE_N // 2))
        thread.start()
        pair_loop(first, NATIVE_N // 2)
        thread.join()

    handed = NATIVE_N // 20

    def handover() -> None:
        ring = Handover()
        thread = threading.Thread(target=ring.take, args=(local, handed))
        thread.start()
        assert ring.give(local, handed) > 0
        thread.join()

    with NetworkBufferPool(128, SIZE) as other, other.create_local_pool(64) as one, other.create_local_pool(64) as two:
        ways = {
            "one thread": alone,
            "one thread, 32 at once": batches,
            "two threads, one pool": lambda: both(local, local),
            "two threads, a pool each": lambda: both(one, two),
            "one acquires, the other recycles": handover,
        }
        seconds = in_turn(ways, rounds=ROUNDS, baselines=("one thread",), pairs=NATIVE_N, pairs_handed_over=handed)
    pairs = dict.fromkeys(ways, NATIVE_N) | {"one acquires, the other recycles": handed}
    benchmark.extra_info["ns_per_pair"] = {way: s / pairs[way] * 1e9 for way, s in seconds.items()}
