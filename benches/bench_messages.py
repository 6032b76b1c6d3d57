"""Messages of bytes from one Python process to another: how many, how many bytes, and how long there and back.

Shapes: 64 B, 1 KiB, 32 KiB and 1 MiB, sent in a loop by this process and counted by another one; and ping-pong of 64 B
between two processes that have a core each, with a buffer timeout of 0.  Ours are rows of one binary field.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

import pytest
from message_ways import WAYS, Pair

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
MESSAGES = {64: 100_000, 1024: 50_000, 32 * 1024: 10_000, 1 << 20: 400}
TRIPS = 50 if SMOKE else 2_000


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", MESSAGES)
def test_messages_throughput(in_turn: Any, benchmark: Any, size: int) -> None:
    n = 50 if SMOKE else MESSAGES[size]
    benchmark.group = f"messages of {size:,} B from process to process"
    with ExitStack() as stack:
        ways = {}
        for way in WAYS:
            pair = Pair(way, size)
            stack.callback(pair.close)
            ways[way] = lambda pair=pair: pair.throughput(n)
        seconds = in_turn(
            ways, rounds=7, baselines=("multiprocessing.Pipe",), speed_up_over="multiprocessing.Pipe", rows=n
        )
    benchmark.extra_info["messages_per_s"] = {way: n / s for way, s in seconds.items()}
    benchmark.extra_info["gb_per_s"] = {way: n * size / s / 1e9 for way, s in seconds.items()}


@pytest.mark.timeout(600)
def test_messages_ping_pong(in_turn: Any, benchmark: Any) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("ping-pong is between two cores, and this process may use one")
    trips: dict[str, list[float]] = {}
    benchmark.group = "64 B there and back between two cores"

    def measure(way: str, pair: Pair) -> None:
        trips.setdefault(way, []).extend(pair.round_trips(TRIPS))

    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, cores)
        ways = {}
        for way in WAYS:
            pair = Pair(way, 64, timeout_s=0, core=cores[1])
            stack.callback(pair.close)
            ways[way] = lambda way=way, pair=pair: measure(way, pair)
        os.sched_setaffinity(0, {cores[0]})
        in_turn(ways, rounds=7, baselines=("socketpair",), rows=TRIPS)
    for name, part in (("p50_us", 0.5), ("p99_us", 0.99)):
        benchmark.extra_info[name] = {way: sorted(all_)[int(part * len(all_))] * 1e6 for way, all_ in trips.items()}
