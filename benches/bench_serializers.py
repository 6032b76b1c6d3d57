"""Rows to bytes and back, 1,000 records at a time, beside what Python has for it (``record_peers.py``).

One operation is a thousand records; a way is run often enough within a round that the clock does not count.  Every way
gives back the same records; that is checked before anything is measured.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from record_peers import MAKE, record_ways

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
RECORDS = 1000
REPEATS = 1 if SMOKE else 20
ROUNDS = 2 if SMOKE else 21
LYING_ABOUT = 5_000 if SMOKE else 200_000


def repeated(work: Callable[[Any], Any], given: Any) -> Callable[[], None]:
    def run() -> None:
        for _ in range(REPEATS):
            work(given)

    return run


def kept(work: Callable[[Any], Any], given: Any) -> Callable[[], float]:
    """The same without the freeing of what it made, which is the interpreter's."""

    def run() -> float:
        seconds = 0.0
        for _ in range(REPEATS):
            begin = time.perf_counter()
            found = work(given)
            seconds += time.perf_counter() - begin
            del found
        return seconds

    return run


def per_record(seconds: dict[str, float], records: int = RECORDS * REPEATS) -> dict[str, float]:
    return {name: round(median * 1e9 / records, 1) for name, median in seconds.items()}


@pytest.mark.parametrize("shape", ["A", "B"])
@pytest.mark.parametrize("way", ["encode", "decode", "decode, freed outside"])
def test_records(in_turn: Callable[..., dict[str, float]], benchmark: Any, shape: str, way: str) -> None:
    """ns per record of every peer, and the ratio of each to ours (above 1: slower than fastbuf's rows).

    "decode" counts what a loop over blocks pays: the records are made, and freed before the next are.  "freed outside"
    counts the making alone, of every way.
    """
    records = [MAKE[shape](i) for i in range(RECORDS)]
    ways: dict[str, Callable[[], float | None]] = {}
    size = {}
    for name, peer in record_ways(shape, RECORDS).items():
        given = peer.given(records)
        data = peer.encode(given)
        assert peer.decode(data) == (peer.wanted(records) if peer.wanted else given), name
        size[name] = round(len(data) / RECORDS, 1)
        if way == "encode":
            ways[name] = repeated(peer.encode, given)
        else:
            ways[name] = (repeated if way == "decode" else kept)(peer.decode, data)
    seconds = in_turn(
        ways,
        rounds=ROUNDS,
        warm_up=1,
        baselines=("fastbuf rows",),
        shape=shape,
        records=RECORDS,
        bytes_per_record=size,
    )
    benchmark.extra_info["ns_per_record"] = per_record(seconds)


@pytest.mark.parametrize("shape", ["A", "B"])
def test_records_that_lie_about(in_turn: Callable[..., dict[str, float]], benchmark: Any, shape: str) -> None:
    """ns per record to encode blocks of many records that were shuffled since they were made, as a sort does."""
    records = [MAKE[shape](i) for i in range(LYING_ABOUT)]
    random.Random(1).shuffle(records)
    blocks = [records[i : i + RECORDS] for i in range(0, LYING_ABOUT, RECORDS)]
    peers = record_ways(shape, RECORDS)

    def all_blocks(encode: Callable[[Any], Any]) -> Callable[[], None]:
        def run() -> None:
            for block in blocks:
                encode(block)

        return run

    seconds = in_turn(
        {name: all_blocks(peers[name].encode) for name in ("fastbuf rows", "pickle 5", "marshal")},
        rounds=3,
        baselines=("fastbuf rows",),
        shape=shape,
        records=LYING_ABOUT,
    )
    benchmark.extra_info["ns_per_record"] = per_record(seconds, LYING_ABOUT)
