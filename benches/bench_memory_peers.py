"""One segment acquired and recycled in C, beside what C++ programs would take a buffer from.

Shapes: one thread; two threads on one pool; one thread acquires and another recycles.  Ours is a LocalBufferPool with
limit, reference counts and statistics on; a loop looks up once which thread it runs in, as a compiler does for the
thread_local of a C++ peer, and as moodycamel's tokens do.  The peers (``peers/pools.cpp``) have no limit and count
nothing, and what a thread keeps in the last of them nobody else gets.  A library that is not installed is named and
left out (Debian: libboost-dev, libconcurrentqueue-dev).  Where two threads take part, each has a core of its own
(``cores.py``), and the time of one cache line there and back is in ``extra_info``: on a virtual machine it is 55 ns or
600 from one minute to the next, as its cores are moved, and the time of a pair with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from cores import side_by_side
from native_peers import compiled

from fastbuf.memory import LocalBufferPool, NetworkBufferPool
from fastbuf.memory._testing import Handover, pair_loop

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
SIZE = 32768
PEERS = {
    "malloc + free": 0,
    "std::mutex + std::vector": 1,
    "boost::lockfree::stack": 2,
    "moodycamel::ConcurrentQueue, tokens": 3,
    "an array a thread over a lock-free list, by hand": 4,
}
LINE = "a cache line there and back, a tenth as often"
ABSENT = {2: "boost (libboost-dev)", 3: "moodycamel's queue (libconcurrentqueue-dev)"}


def one_thread(local: LocalBufferPool, pairs: int) -> None:
    pair_loop(local, pairs)


def two_threads(local: LocalBufferPool, pairs: int) -> None:
    side_by_side(lambda: pair_loop(local, pairs // 2), lambda: pair_loop(local, pairs // 2))


def thread_to_thread(local: LocalBufferPool, pairs: int) -> None:
    ring = Handover()
    given: list[int] = []
    side_by_side(lambda: given.append(ring.give(local, pairs)), lambda: ring.take(local, pairs))
    assert given[0] > 0


@pytest.mark.parametrize("shape", [one_thread, two_threads, thread_to_thread])
def test_memory_beside_cpp(in_turn: Any, benchmark: Any, shape: Callable[[LocalBufferPool, int], None]) -> None:
    library = compiled("pools")
    if library is None:
        pytest.skip("no C++ compiler (g++ or clang++): the peers of this bench are C++")
    number = (one_thread, two_threads, thread_to_thread).index(shape)
    pairs = 10_000 if SMOKE else (4_000_000, 2_000_000, 500_000)[number]  # enough that starting a thread does not show
    benchmark.group = f"acquire + recycle, {shape.__name__.replace('_', ' ')}"

    def peer(kind: int) -> Callable[[], None]:
        return lambda: check(library.run(kind, number, pairs))

    def check(result: int) -> None:
        assert result == 0

    with NetworkBufferPool(2048, SIZE) as network, network.create_local_pool(64, maximum=1024) as local:
        ways: dict[str, Callable[[], None]] = {"fastbuf LocalBufferPool": lambda: shape(local, pairs)}
        for way, kind in PEERS.items():
            if library.run(kind, 0, 1) == 0:
                ways[way] = peer(kind)
            else:
                print(f"left out: {way}, {ABSENT[kind]} is not installed")
        if shape is not one_thread:
            ways[LINE] = lambda: check(library.line_there_and_back(pairs // 10))
        seconds = in_turn(ways, rounds=15, baselines=("fastbuf LocalBufferPool",), pairs=pairs, segment_bytes=SIZE)
        if LINE in seconds:
            benchmark.extra_info["line_there_and_back_ns"] = seconds.pop(LINE) / (pairs // 10) * 1e9
        assert local.in_use == 0
        network.audit()
    benchmark.extra_info["ns_per_pair"] = {way: s / pairs * 1e9 for way, s in seconds.items()}
