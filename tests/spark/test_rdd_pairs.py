"""Pairs of an RDD come out as Spark's own partitionBy gives them: what each is, and in which partition."""

from __future__ import annotations

import datetime
import itertools
import math
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from conftest import failure, told
from nights import nightly
from pairs import Colour, Pair, Place
from pyspark.sql import Row

import fastbuf_spark as fbs

pytestmark = pytest.mark.spark
MODES = ["pipelined", "blocking"]

DAY = datetime.date(2024, 2, 29)
KEYS: dict[str, list[Any]] = {
    "floats": [0.0, -0.0, 1.0, 1, True, False, 0, math.inf, -math.inf, 0.1, 1e300, 5e-324, 2.0**63, 2**63],
    "none and text": [None, "", "a", "ü", "\U0001f600", "a\0b", "x" * 1000, b"", b"x", b"\xff" * 99],
    "surrogates": ["\udc00", "a", "\udc00b"],
    "tuples": [(), (1,), (None, 1), (1, (2, ("x", None), b"y")), ((), ()), (-1, -2.5, "k"), (1.0, True), Pair(1, 2)],
    "sets": [frozenset(), frozenset({1, "a", None}), frozenset({frozenset({1.5}), (1,)})],
    "decimals": [Decimal("1.50"), Decimal("1.5"), Decimal(1), Decimal("-0"), Decimal("1e400"), Decimal("Infinity"), 1],
    "times": [DAY, datetime.datetime(2024, 2, 29, 1, 2, 3), datetime.time(1), datetime.timedelta(1, 2, 3),
              datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)],
    "big ints": [2**61 - 1, 2**61, -(2**61), 2**63 - 1, 2**63, -(2**63), 10**30, -(10**30), -1, -2, 2**31, -(2**31)],
    "numpy": [np.int64(-7), np.int8(3), np.uint64(2**64 - 1), np.float64(0.1), np.float32(0.1), np.bool_(True),
              np.str_("k"), np.bytes_(b"k"), np.datetime64("2024-02-29")],
    "classes": [Colour.RED, Colour.BLUE, Place(1, "here"), Place(-1, "there")],
}  # fmt: skip
VALUES = [None, 7, 2**40, 0.5, "v", b"v", (1, "a"), [1, [2]], {"n": 1}, Place(2, "value"), np.arange(3), ()]


def shape(value: Any) -> Any:
    """Tells 1, 1.0 and True apart, and lets arrays be compared."""
    if type(value) in (tuple, list):
        return type(value).__name__, tuple(map(shape, value))
    return type(value).__name__, repr(value)


def parts(made: Any) -> list[list[Any]]:
    """What is in each partition, in an order of its own."""
    return [sorted(map(shape, part)) for part in made.glom().collect()]


@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_kind(spark: Any, kind: str, mode: str) -> None:
    pairs = [(key, VALUES[i % len(VALUES)]) for i, key in enumerate(KEYS[kind] * 12)]
    rdd = spark.sparkContext.parallelize(pairs, 3)
    made = fbs.partition_by(rdd, 3, mode=mode)
    assert parts(made) == parts(rdd.partitionBy(3))
    told(lambda run: (run.mode, run.records_sent, run.records_received), (mode, len(pairs), len(pairs)))


@pytest.mark.parametrize("mode", MODES)
def test_all_keys_together_and_a_partition_function(spark: Any, mode: str) -> None:
    keys = list(itertools.chain.from_iterable(KEYS.values()))
    random.Random(1).shuffle(keys)
    rdd = spark.sparkContext.parallelize([(key, i) for i, key in enumerate(keys * 5)], 2)
    assert parts(fbs.partition_by(rdd, 2, mode=mode)) == parts(rdd.partitionBy(2))

    def length(key: Any) -> int:
        return len(repr(key)) - 10**20

    assert parts(fbs.partition_by(rdd, 3, length, mode=mode)) == parts(rdd.partitionBy(3, length))


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_plain_pairs_in_their_thousands(spark: Any, mode: str) -> None:
    sc = spark.sparkContext
    made = {
        "ints": lambda i: (i * 7919 % 10007, i),
        "text": lambda i: (f"user-{i % 1009}", i - 2**40),
        "tuples": lambda i: ((i % 7, str(i)), (i * 0.5, None)),
        "now and then something else": lambda i: (i if i % 4000 else str(i), [i] if i % 999 == 0 else i),
        "now and then long": lambda i: (i, "x" * (70_000 if i % 5000 == 0 else i % 70)),
    }
    for name, make in made.items():
        rdd = sc.range(0, 20_000, 1, 3).map(make)
        assert parts(fbs.partition_by(rdd, 2, mode=mode)) == parts(rdd.partitionBy(2)), name


@pytest.mark.parametrize("mode", MODES)
def test_what_is_unpacked_into_two_comes_out_as_a_tuple(spark: Any, mode: str) -> None:
    records = [[1, 2], "ab", b"ab", Pair(1, "v"), Row(k=1, v="w"), Row("k", "v"), {"k": 1, "w": 2}, (3, 4),
               np.array([5, 6]), ["k", [1]], ("", "")]  # fmt: skip
    rdd = spark.sparkContext.parallelize(records * 3, 2)
    made = fbs.partition_by(rdd, 2, mode=mode)
    want = parts(rdd.partitionBy(2))
    assert parts(made) == want
    assert {name for part in want for name, _ in part} == {"tuple"}


@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("record", [(1, 2, 3), (1,), "abc", 7, None], ids=repr)
def test_what_is_no_pair_fails_here_and_there(spark: Any, record: Any, mode: str) -> None:
    rdd = spark.sparkContext.parallelize([(1, 1), record], 1)
    assert "unpack" in failure(lambda: rdd.partitionBy(2).count())
    assert "record 1 is not a (key, value) pair" in failure(lambda: fbs.partition_by(rdd, 2, mode=mode).count())


@pytest.mark.parametrize("mode", MODES)
def test_nan_is_in_one_partition_and_all_others_where_spark_has_them(spark: Any, mode: str) -> None:
    nans = [float("nan"), np.float64("nan"), Decimal("NaN"), (1, float("nan"))]
    keys = [*KEYS["floats"], *nans, *KEYS["tuples"]]
    rdd = spark.sparkContext.parallelize([(key, i) for i, key in enumerate(keys * 50)], 4)

    def without_nan(found: list[list[Any]]) -> list[list[Any]]:
        return [[pair for pair in part if "nan" not in repr(pair).lower()] for part in found]

    found, want = parts(fbs.partition_by(rdd, 3, mode=mode)), parts(rdd.partitionBy(3))
    assert without_nan(found) == without_nan(want)
    assert sorted(itertools.chain.from_iterable(found)) == sorted(itertools.chain.from_iterable(want))
    places = {i: p for p, part in enumerate(found) for pair in part for i in [int(pair[1][1][1])]}
    for at in range(len(KEYS["floats"]), len(KEYS["floats"]) + len(nans)):
        assert len({places[i] for i in range(at, 50 * len(keys), len(keys))}) == 1


def test_sparks_own_spreads_nan_over_all_partitions(spark: Any) -> None:
    """What the docstrings of partition_by and RecordGroups say: each NaN goes by where it lies in memory."""
    rdd = spark.sparkContext.parallelize([(float("nan"), i) for i in range(2000)], 2)
    # A prime: the addresses of floats have a common factor
    assert sum(1 for part in rdd.partitionBy(3).glom().collect() if part) > 1


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_what_reads_it_may_stop_early_and_go_on(spark: Any, mode: str) -> None:
    rdd = spark.sparkContext.range(0, 30_000, 1, 3).map(lambda i: (i % 100, i))
    made = fbs.partition_by(rdd, 2, mode=mode)
    assert len(made.take(5)) == 5
    first: Iterator[Any] = made.mapPartitions(lambda pairs: itertools.islice(pairs, 3))
    assert len(first.collect()) == 6  # type: ignore[attr-defined]
    assert dict(made.reduceByKey(lambda a, b: a + b).collect()) == {k: sum(range(k, 30_000, 100)) for k in range(100)}
    assert made.values().sum() == sum(range(30_000))
    empty = fbs.partition_by(rdd.filter(lambda _: False), 2, mode=mode)
    assert empty.glom().collect() == [[], []]
