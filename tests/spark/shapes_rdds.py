"""Shapes of RDDs of pairs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from shapes_base import ROWS, SIX, Shuffle, Table, in_parts, pairs

TABLE = Table()
shape = TABLE.shape


def some(found: Any) -> tuple[int, bool]:
    """Of elements that Spark may choose: how many, and whether each is one of ``pairs``, once."""
    found = list(found)
    return len(found), len(set(found)) == len(found) and all(k == i % 97 and 0 <= i < ROWS for k, i in found)


@shape(cheap=True, chooses=True)
def rdd_glom(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return in_parts(made.pairs(pairs(spark)))


@shape(cheap=True, chooses=True)
def rdd_take_first_empty(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    rdd = made.pairs(pairs(spark))
    return some(rdd.take(5)), some([rdd.first()]), rdd.isEmpty(), some(rdd.filter(lambda pair: pair[1] > 9).take(3))


@shape(cheap=True)
def rdd_top(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return made.pairs(pairs(spark)).top(5, key=lambda pair: pair[1])


@shape(cheap=True)
def rdd_local_iterator(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    rdd = made.pairs(pairs(spark))
    return sorted(rdd.toLocalIterator()), some(itertools.islice(rdd.toLocalIterator(), 3)), rdd.count()


@shape(cheap=True)
def rdd_union(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return in_parts(made.pairs(pairs(spark)).union(pairs(spark, 300, 2)))


@shape(cheap=True)
def rdd_union_of_one_partitioner(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    """Spark reads partition n of both in one task where their partitioners are one object in Java; else in turn."""
    return sorted(made.pairs(pairs(spark)).union(own.pairs(pairs(spark, 300, 2))).collect())


@shape()
def rdd_zip(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    rdd = made.pairs(pairs(spark))
    both = rdd.zip(rdd.map(lambda pair: pair[1])).collect()
    return sorted(pair for pair, _ in both), sorted(value for _, value in both)


@shape(master=SIX)
def rdd_join(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return in_parts(made.pairs(pairs(spark, 500)).join(made.pairs(pairs(spark, 200))))


@shape(cheap=True)
def rdd_join_with_sparks_own(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return sorted(made.pairs(pairs(spark, 500)).join(own.pairs(pairs(spark, 200))).collect())


@shape(master=SIX)
def rdd_cogroup(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    both = made.pairs(pairs(spark, 500)).cogroup(made.pairs(pairs(spark, 200)))
    return in_parts(both.mapValues(lambda sides: [sorted(side) for side in sides]))


@shape(parts=1)
def rdd_cartesian(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return sorted(made.pairs(pairs(spark, 100)).cartesian(made.pairs(pairs(spark, 20))).collect())


@shape(cheap=True)
def rdd_reduce_by_key(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return in_parts(made.pairs(pairs(spark)).reduceByKey(max))


@shape()
def rdd_sort_by_key(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return [key for key, _ in made.pairs(pairs(spark)).sortByKey(numPartitions=2).collect()]


@shape()
def rdd_cached(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    rdd = made.pairs(pairs(spark)).cache()
    try:
        return some(rdd.take(3)), in_parts(rdd), rdd.coalesce(1).count(), in_parts(rdd.union(rdd))
    finally:
        rdd.unpersist(blocking=True)


@shape()
def rdd_shuffled_again(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return in_parts(made.pairs(made.pairs(pairs(spark), parts=1).map(lambda pair: (pair[1], pair[0])), parts=2))
