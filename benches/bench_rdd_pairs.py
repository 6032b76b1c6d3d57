"""Pairs of an RDD by key: fastbuf's ``partition_by``, ``reduce_by_key`` and ``group_by_key`` beside Spark's own.

Shape: FASTBUF_BENCH_PAIRS pairs (2 M; 20 k in a smoke run) of (int, int) and (str, int), FASTBUF_BENCH_KEYS keys (a
million; a prime), cached as Python's pickles in M = 2 partitions; ``local[4]``, R = FASTBUF_BENCH_PARTITIONS (2).  In
one run, in turn: the floor (the cached pairs are read into Python, no shuffle), Spark's own, and fastbuf's modes.  Each
way ends in the sum of the values, or of groups and joins (with the first pair of each key) in the number of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import pytest
from sessions import session

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
PAIRS = int(os.environ.get("FASTBUF_BENCH_PAIRS", "20_000" if SMOKE else "2_000_000"))
ROUNDS = int(os.environ.get("FASTBUF_BENCH_ROUNDS", "5"))
MASTER, PARTS_IN = "local[4]", 2
PARTS_OUT = int(os.environ.get("FASTBUF_BENCH_PARTITIONS", "2"))
MODES = ("pipelined", "blocking") if PARTS_OUT <= 2 else ("blocking",)  # more consumers than slots: no pipelined
KEYS = int(os.environ.get("FASTBUF_BENCH_KEYS", "1_000_003"))


def of_ints(i: int) -> tuple[int, int]:
    return i * 7919 % KEYS, i


def of_text(i: int) -> tuple[str, int]:
    return f"user-{i * 7919 % KEYS}", i


KINDS: dict[str, Callable[[int], tuple[Any, int]]] = {"(int, int)": of_ints, "(str, int)": of_text}


def summed(pairs: Iterator[tuple[Any, int]]) -> Iterator[int]:
    """The sum of the values, in C: what is measured is how the pairs come here."""
    yield sum(map(itemgetter(1), pairs))


def lengths(groups: Iterator[tuple[Any, Any]]) -> Iterator[int]:
    """How many values there are, in C."""
    yield sum(map(len, map(itemgetter(1), groups)))


def first(pair: tuple[Any, int]) -> bool:
    """Whether it is its key's first: KEYS is a prime, so that as many pairs have as many keys."""
    return pair[1] < KEYS


def counted(pairs: Iterator[Any]) -> Iterator[int]:
    """How many pairs there are."""
    yield sum(1 for _ in pairs)


def added(a: int, b: int) -> int:
    """What a user writes as a lambda."""
    return a + b


def sum_of(rdd: Any) -> bool:
    return bool(sum(rdd.mapPartitions(summed).collect()) == PAIRS * (PAIRS - 1) // 2)


def count_of(rdd: Any) -> bool:
    return bool(sum(rdd.mapPartitions(lengths).collect()) == PAIRS)


def fastbuf(verb: str, *arguments: Any, mode: str) -> Any:
    import fastbuf_spark as fbs

    return getattr(fbs, verb)(*arguments, PARTS_OUT, mode=mode)


#: Spark's own and fastbuf's, and whether a result is right
VERBS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, str], Any], Callable[[Any], bool]]] = {
    "partition": (
        lambda rdd: rdd.partitionBy(PARTS_OUT),
        lambda rdd, mode: fastbuf("partition_by", rdd, mode=mode),
        sum_of,
    ),
    "reduce": (
        lambda rdd: rdd.reduceByKey(added, PARTS_OUT),
        lambda rdd, mode: fastbuf("reduce_by_key", rdd, added, mode=mode),
        sum_of,
    ),
    "group": (
        lambda rdd: rdd.groupByKey(PARTS_OUT),
        lambda rdd, mode: fastbuf("group_by_key", rdd, mode=mode),
        count_of,
    ),
    "join": (
        lambda rdd: rdd.join(rdd.filter(first), PARTS_OUT),
        lambda rdd, mode: fastbuf("join", rdd, rdd.filter(first), mode=mode),
        lambda rdd: sum(rdd.mapPartitions(counted).collect()) == PAIRS,
    ),
}


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    with session("pairs", master=MASTER) as spark:
        yield spark.sparkContext


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", VERBS)
def test_rdd_pairs(verb: str, kind: str, context: Any, in_turn: Any, benchmark: Any) -> None:
    pairs = context.range(0, PAIRS, 1, PARTS_IN).map(KINDS[kind]).cache()
    assert pairs.count() == PAIRS
    theirs, ours, right = VERBS[verb]

    def checked(make: Callable[[], Any], right: Callable[[Any], bool] = right) -> Callable[[], None]:
        def run() -> None:
            assert right(make())

        return run

    def way(mode: str) -> Callable[[], None]:
        return checked(lambda: ours(pairs, mode))

    benchmark.group = f"pairs of an RDD, {verb}, {kind}, {PAIRS:,}, {KEYS:,} keys"
    in_turn(
        {
            "floor": checked(lambda: pairs, sum_of),
            "spark": checked(lambda: theirs(pairs)),
            **{mode: way(mode) for mode in MODES},
        },
        rounds=ROUNDS,
        baselines=("floor", "spark"),
        speed_up_over="spark",
        rows=PAIRS,
        keys=KEYS,
        master=MASTER,
        partitions_in=PARTS_IN,
        partitions_out=PARTS_OUT,
    )
    pairs.unpersist(blocking=True)
