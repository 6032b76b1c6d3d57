"""One segment, requested and recycled, beside what Python code would otherwise take 32 KiB from.

Shape: one thread, a NetworkBufferPool of 2048 segments of 32 KiB, one LocalBufferPool with limit and statistics on;
each way runs N times (200,000; 2,000 in a smoke run), several rounds in turn.  The native suite is the same pair in C
without the GIL.

Further: what a local pool costs to make and to end while there are many, and how long a blocked requester sleeps on
after its segment has come home.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from statistics import median
from typing import Any

import numpy as np
import pytest
from cores import side_by_side

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
    """Acquire and recycle in C: alone, two threads on one pool or with a pool each, and from thread to thread.

    C++ peers are beside the first, the third and the last in ``bench_memory_peers.py``.
    """

    def alone() -> None:
        pair_loop(local, NATIVE_N)

    def batches() -> None:
        batch_loop(local, NATIVE_N // 32, 32)

    def both(first: LocalBufferPool, second: LocalBufferPool) -> None:
        side_by_side(lambda: pair_loop(first, NATIVE_N // 2), lambda: pair_loop(second, NATIVE_N // 2))

    handed = NATIVE_N // 4  # enough that starting a thread does not show

    def handover() -> None:
        ring = Handover()
        given: list[int] = []
        side_by_side(lambda: given.append(ring.give(local, handed)), lambda: ring.take(local, handed))
        assert given[0] > 0

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


def test_memory_local_pools(in_turn: InTurn, benchmark: Any) -> None:
    """Creating local pools, and destroying them: limits are worked out anew each time, for all pools there are."""
    counts = (10, 100) if SMOKE else (10, 100, 1000)
    segments = 65_536
    parts: dict[str, list[float]] = {}
    with NetworkBufferPool(segments, 64) as network:

        def many(count: int) -> None:
            begin = time.perf_counter()
            pools = [network.create_local_pool(4, maximum=64) for _ in range(count)]
            made = time.perf_counter()
            for pool in pools:
                pool.destroy()
            parts.setdefault(f"{count} pools", []).append((made - begin) / count)

        ways = {f"{count} pools": (lambda count=count: many(count)) for count in counts}
        seconds = in_turn(ways, rounds=2 if SMOKE else 3, baselines=("10 pools",), segments=segments)
        assert network.available == segments
    benchmark.extra_info["us_per_pool"] = {f"{n} pools": seconds[f"{n} pools"] / n * 1e6 for n in counts}
    benchmark.extra_info["us_to_create_one"] = {way: median(all_) * 1e6 for way, all_ in parts.items()}


def test_memory_wake_up(in_turn: InTurn, benchmark: Any) -> None:
    """From the moment one thread gives to the moment the other, which was asleep, has it.

    The sleeper notes that it is about to wait; the giver leaves it 200 us to fall asleep, takes the time, and gives.
    """
    rounds = 20 if SMOKE else 500
    latencies: dict[str, list[float]] = {}

    def measure(way: str, give: Callable[[], None], take: Callable[[], None]) -> None:
        waiting, given = threading.Semaphore(0), [0.0]
        mine = latencies.setdefault(way, [])

        def sleeper() -> None:
            for _ in range(rounds):
                waiting.release()
                take()
                mine.append(time.perf_counter() - given[0])

        thread = threading.Thread(target=sleeper)
        thread.start()
        for _ in range(rounds):
            waiting.acquire()
            time.sleep(0.0002)  # what is measured begins when the other sleeps
            given[0] = time.perf_counter()
            give()
        thread.join()

    with NetworkBufferPool(1, 64) as network:
        local = network.create_local_pool(1)
        held = [local.request()]
        queue: SimpleQueue[int] = SimpleQueue()
        condition, there = threading.Condition(), [0]

        def give_to_condition() -> None:
            with condition:
                there[0] += 1
                condition.notify()

        def take_from_condition() -> None:
            with condition:
                condition.wait_for(lambda: there[0] > 0)
                there[0] -= 1

        def recycle() -> None:
            held.pop().recycle()

        def request() -> None:
            held.append(local.request())  # for ever, as the others

        pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "fastbuf request": (recycle, request),
            "queue.SimpleQueue": (lambda: queue.put(1), queue.get),
            "threading.Condition": (give_to_condition, take_from_condition),
        }
        ways = {way: (lambda way=way, pair=pair: measure(way, *pair)) for way, pair in pairs.items()}
        in_turn(ways, rounds=2 if SMOKE else 3, baselines=("fastbuf request",), wake_ups=rounds)
        held.pop().recycle()
    for name, part in (("p50_us", 0.5), ("p99_us", 0.99)):
        benchmark.extra_info[name] = {w: sorted(all_)[int(part * len(all_))] * 1e6 for w, all_ in latencies.items()}
