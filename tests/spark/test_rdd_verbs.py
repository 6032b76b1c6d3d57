"""Pairs merged, grouped and joined by key: what Spark's own verbs give, in the same partitions."""

from __future__ import annotations

import functools
import itertools
import operator
import os
import random
import signal
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from conftest import failure, in_time, no_run_left, told
from nights import nightly
from pairs import Place
from pyspark.serializers import BatchedSerializer, CPickleSerializer
from test_rdd_pairs import KEYS, parts, shape

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError
from fastbuf_spark.driver.pair_plan import PairShuffle
from fastbuf_spark.pyspark_private import as_pickles

pytestmark = pytest.mark.spark
MODES = ["pipelined", "blocking"]
LONG = os.environ.get("FASTBUF_LONG") == "1"
#: One of those that are equal: which of them comes out is the one that came first
ALL_KEYS = list(dict.fromkeys(key for keys in KEYS.values() for key in keys))


def listed(values: Iterable[Any]) -> list[Any]:
    """The values of a key, in an order of their own."""
    return sorted(values, key=shape)


def groups(made: Any) -> list[list[Any]]:
    return parts(made.mapValues(listed))


def sides(made: Any) -> list[list[Any]]:
    return parts(made.mapValues(lambda both: tuple(listed(values) for values in both)))


def prepended(had: tuple[Any, ...], more: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(sorted((*more, *had), key=shape))


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def of_all_kinds(spark: Any) -> Any:
    """Pairs whose keys are of every type, many of a key and few, in no order."""
    pairs = [(key, i) for i, key in enumerate(ALL_KEYS * 7)]
    random.Random(2).shuffle(pairs)
    return spark.sparkContext.parallelize(pairs, 3)


def test_values_are_reduced_as_sparks_own(of_all_kinds: Any, mode: str) -> None:
    made = fbs.reduce_by_key(of_all_kinds, operator.add, 3, mode=mode)
    assert parts(made) == parts(of_all_kinds.reduceByKey(operator.add, 3))
    told(lambda run: (run.mode, run.name), (mode, "reduce_by_key"))


def test_equal_keys_of_different_types_are_one(spark: Any, mode: str) -> None:
    rdd = spark.sparkContext.parallelize([(key, 1) for key in (0, 0.0, -0.0, False, 1, True, 1.0, None, "0")], 3)
    found = fbs.reduce_by_key(rdd, operator.add, 2, mode=mode).collect()
    assert dict(found) == {0: 4, 1: 3, None: 1, "0": 1}
    assert len(found) == 4


def test_values_are_combined_as_sparks_own(of_all_kinds: Any, mode: str) -> None:
    functions = (lambda value: (value,)), (lambda had, value: prepended(had, (value,))), prepended
    made = fbs.combine_by_key(of_all_kinds, *functions, 3, mode=mode)
    assert parts(made) == parts(of_all_kinds.combineByKey(*functions, 3))


def test_combiners_that_are_changed_in_place(spark: Any, mode: str) -> None:
    def append(had: list[int], value: int) -> list[int]:
        had.append(value)
        return had

    def extend(had: list[int], more: list[int]) -> list[int]:
        had.extend(more)
        return had

    rdd = spark.sparkContext.range(0, 9_000, 1, 3).map(lambda i: (i % 100, i))
    made = fbs.combine_by_key(rdd, lambda value: [value], append, extend, 2, mode=mode)
    assert groups(made) == groups(rdd.groupByKey(2))


def test_values_are_grouped_as_sparks_own(of_all_kinds: Any, mode: str) -> None:
    made = fbs.group_by_key(of_all_kinds, 3, mode=mode)
    assert groups(made) == groups(of_all_kinds.groupByKey(3))
    told(lambda run: (run.mode, run.name), (mode, "group_by_key"))
    key, values = made.filter(lambda pair: pair[0] == "a").first()
    assert key == "a"
    assert len(values) == len(list(values)) == len(list(values)) == 7 * ALL_KEYS.count("a")


def test_a_partition_function(spark: Any, mode: str) -> None:
    def last(key: str) -> int:
        return int(key[-1]) - 100

    rdd = spark.sparkContext.parallelize([(f"k{i % 13}", i) for i in range(500)], 2)
    assert parts(fbs.reduce_by_key(rdd, max, 3, last, mode=mode)) == parts(rdd.reduceByKey(max, 3, last))
    assert groups(fbs.group_by_key(rdd, 3, last, mode=mode)) == groups(rdd.groupByKey(3, last))


@nightly(but_one="mode")
@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
def test_pairs_are_joined_as_sparks_own(spark: Any, how: str, mode: str) -> None:
    sc = spark.sparkContext
    left = sc.parallelize([(key, i) for i, key in enumerate(ALL_KEYS[::2] * 3)], 3)
    right = sc.parallelize([(key, f"v{i}") for i, key in enumerate(ALL_KEYS[::3] * 2)], 2)
    own: dict[str, Callable[..., Any]] = {
        "inner": left.join,
        "left": left.leftOuterJoin,
        "right": left.rightOuterJoin,
        "outer": left.fullOuterJoin,
    }
    assert parts(fbs.join(left, right, 3, how=how, mode=mode)) == parts(own[how](right, 3))


@nightly(mode="blocking")
def test_values_of_two_are_grouped_as_sparks_own(spark: Any, mode: str) -> None:
    sc = spark.sparkContext
    left = sc.parallelize([(key, i) for i, key in enumerate(ALL_KEYS[::2] * 3)], 3)
    right = sc.parallelize([[key, Place(i, "other")] for i, key in enumerate(ALL_KEYS[::3] * 2)], 1)
    made = fbs.co_group(left, right, 2, mode=mode)
    assert sides(made) == sides(left.cogroup(right, 2))
    assert sides(fbs.co_group(left, left, 2, mode=mode)) == sides(left.cogroup(left, 2))
    zipped = sc.range(0, 9, 1, 2).map(str).zip(sc.range(1, 10, 1, 2))  # which Spark keeps by another serializer
    assert sides(fbs.co_group(zipped, left, 2, mode=mode)) == sides(zipped.cogroup(left, 2))


def test_nothing_comes_of_nothing(spark: Any, mode: str) -> None:
    sc = spark.sparkContext
    empty, none = sc.parallelize([], 3), sc.emptyRDD()
    some = sc.parallelize([("k", 1), ("l", 2)], 2)
    assert fbs.reduce_by_key(empty, operator.add, 2, mode=mode).glom().collect() == [[], []]
    assert fbs.group_by_key(none, 2, mode=mode).collect() == []
    assert fbs.join(some, empty, 2, mode=mode).collect() == []
    assert sorted(fbs.join(none, some, 2, how="right", mode=mode).collect()) == [("k", (None, 1)), ("l", (None, 2))]
    assert sides(fbs.co_group(some, none, 2, mode=mode)) == sides(some.cogroup(none, 2))


def test_settings_of_the_session_are_read(spark: Any) -> None:
    """Not those with which the context began alone."""
    pairs = spark.sparkContext.parallelize([(i % 3, i) for i in range(9)], 2)
    for name, words in (("memoryByte", "is not a setting"), ("memoryBytes", "at least 8 are needed")):
        spark.conf.set(f"spark.fastbuf.{name}", "1k")
        try:
            with pytest.raises(ConfigError, match=words):
                fbs.reduce_by_key(pairs, operator.add, 2)
        finally:
            spark.conf.unset(f"spark.fastbuf.{name}")
    assert dict(fbs.reduce_by_key(pairs, operator.add, 2).collect()) == {0: 9, 1: 12, 2: 15}


def test_one_key_has_all(spark: Any, mode: str) -> None:
    rdd = spark.sparkContext.range(0, 50_000, 1, 3).map(lambda i: ("the one", i))
    assert fbs.reduce_by_key(rdd, operator.add, 3, mode=mode).collect() == [("the one", sum(range(50_000)))]
    assert fbs.group_by_key(rdd, 3, mode=mode).mapValues(sorted).collect() == [("the one", list(range(50_000)))]


@nightly(but_one="mode")
@pytest.mark.parametrize("key", [[1], {1: 2}, ("a", [1])], ids=repr)
def test_keys_that_cannot_be_hashed_fail_here_and_there(spark: Any, key: Any, mode: str) -> None:
    rdd = spark.sparkContext.parallelize([(1, 1), (key, 1)], 1)
    theirs = failure(lambda: rdd.reduceByKey(operator.add, 2).count())
    assert "TypeError" in theirs
    assert "unhashable" in theirs
    for make in (
        lambda: fbs.reduce_by_key(rdd, operator.add, 2, mode=mode),
        lambda: fbs.group_by_key(rdd, 2, mode=mode),
        lambda: fbs.join(rdd, rdd, 2, mode=mode),
    ):
        text = failure(lambda make=make: make().count())
        assert "TypeError" in text
        assert "unhashable" in text


def test_what_is_no_pair_is_named(spark: Any, mode: str) -> None:
    rdd = spark.sparkContext.parallelize([(1, 1), (1, 2, 3)], 1)
    for make in (
        lambda: fbs.reduce_by_key(rdd, operator.add, 2, mode=mode),
        lambda: fbs.group_by_key(rdd, 2, mode=mode),
    ):
        assert "record 1 is not a (key, value) pair" in failure(lambda make=make: make().count())


@nightly(but_one="mode")
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_function_that_fails_is_what_the_user_sees(spark: Any, where: str, mode: str) -> None:
    """Before: two values in one partition meet.  After: values of two partitions do."""
    words = "no two of these are alike"

    def refuse(a: int, b: int) -> int:
        raise ValueError(words)

    pairs = [(1, i) for i in range(4 if where == "before" else 2)]
    text = failure(fbs.reduce_by_key(spark.sparkContext.parallelize(pairs, 2), refuse, 2, mode=mode).count)
    assert words in text
    assert "refuse" in text


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_worker_that_is_killed(spark: Any, where: str, mode: str) -> None:
    """In the middle of what is merged before the shuffle, or of what reads the groups behind it."""
    rdd = spark.sparkContext.range(0, 100_000, 1, 2).map(lambda i: (i % 1000, i))
    rdd.count()

    def dies(had: int, value: int) -> int:
        if value >= 99_000:
            os.kill(os.getpid(), signal.SIGKILL)
        return had + value

    def read(values: Iterable[int]) -> int:
        return functools.reduce(dies, values)

    if where == "before":
        made = fbs.reduce_by_key(rdd, dies, 2, mode=mode)
    else:
        conf = fbs.ShuffleConf(memory_bytes=1 << 20, segment_size=4096)  # files are open when it dies
        made = fbs.group_by_key(rdd, 2, mode=mode, conf=conf).mapValues(read)
    assert in_time(60, lambda: failure(made.count))
    no_run_left()
    assert fbs.reduce_by_key(rdd, operator.add, 2, mode=mode).values().sum() == sum(range(100_000))


def test_a_function_cannot_end_the_input_early(spark: Any, mode: str) -> None:
    """StopIteration, raised where nobody expects it, would read like the end of the records."""

    def stops(a: int, b: int) -> int:
        return next(iter(()))

    rdd = spark.sparkContext.parallelize([(1, i) for i in range(10)], 2)
    assert "StopIteration" in failure(fbs.reduce_by_key(rdd, stops, 2, mode=mode).count)


def test_what_is_in_its_place_already_does_not_travel(spark: Any, mode: str) -> None:
    rdd = spark.sparkContext.range(0, 2_000, 1, 3).map(lambda i: (i % 50, i))
    placed = fbs.partition_by(rdd, 2, mode=mode)
    made = fbs.reduce_by_key(placed, operator.add, 2, mode=mode)
    assert made.toDebugString().count(b"Shuffled") == placed.toDebugString().count(b"Shuffled")
    assert parts(made) == parts(rdd.reduceByKey(operator.add, 2))
    assert groups(fbs.group_by_key(placed, 2, mode=mode)) == groups(rdd.groupByKey(2))
    joined = fbs.group_by_key(placed, 2).join(made)  # of one partitioner: Spark shuffles nothing either
    assert joined.getNumPartitions() == 2
    assert joined.count() == 50


@pytest.mark.parametrize("how", ["join", "fullOuterJoin", "cogroup", "groupWith"])
def test_sides_that_are_in_their_place_do_not_travel(spark: Any, mode: str, how: str) -> None:
    """With either side in its place, with both, and with an RDD that is both sides."""
    sc = spark.sparkContext
    left = sc.range(0, 60, 1, 3).map(lambda i: (f"k{i % 20}", i)).cache()
    right = sc.range(0, 40, 1, 2).map(lambda i: (f"k{i % 30}", (i, None))).cache()
    third = sc.parallelize([(f"k{i}", 1.5) for i in range(0, 50, 7)], 2)

    def theirs(a: Any, b: Any) -> Any:
        return a.groupWith(b, third.partitionBy(2), a) if how == "groupWith" else getattr(a, how)(b, 2)

    def ours(a: Any, b: Any) -> Any:
        if how == "groupWith":
            return fbs.group_with(a, b, third.partitionBy(2), a, num_partitions=2, mode=mode)
        if how == "cogroup":
            return fbs.co_group(a, b, 2, mode=mode)
        return fbs.join(a, b, 2, how="inner" if how == "join" else "outer", mode=mode)

    def records(rdd: Any) -> list[Any]:
        return [sorted(map(read, part)) for part in rdd.glom().collect()]

    def read(pair: Any) -> Any:
        key, values = pair
        return key, repr([sorted(each, key=repr) for each in values] if how in ("cogroup", "groupWith") else values)

    def shuffles(rdd: Any) -> int:
        return int(rdd.toDebugString().count(b"ShuffledRDD"))

    at_left, at_right = fbs.partition_by(left, 2, mode=mode).cache(), right.partitionBy(2)
    expected = records(theirs(left.partitionBy(2), at_right))
    for a, b in ((at_left, at_right), (at_left, right), (left, at_right)):
        made = ours(a, b)
        assert records(made) == expected
        assert made.partitioner == at_right.partitioner
        assert shuffles(made) == shuffles(theirs(a.partitionBy(2), b.partitionBy(2)))
    assert records(ours(at_left, at_left)) == records(theirs(left.partitionBy(2), left.partitionBy(2)))


def test_what_only_python_takes_for_one_partitioner_is_shuffled(spark: Any, mode: str) -> None:
    rdd = spark.sparkContext.range(0, 60, 1, 3).map(lambda i: (i % 7, i))
    placed = rdd.partitionBy(2)
    other = rdd.partitionBy(2).mapPartitions(iter)
    other.partitioner = placed.partitioner  # which the RDD in Java has not
    assert sides(fbs.co_group(placed, other, 2, mode=mode)) == sides(rdd.cogroup(rdd, 2))


def test_some_of_the_partitions_alone(spark: Any, mode: str) -> None:
    """Runs for some partitions each must have read the same keys, however merging went."""
    rdd = spark.sparkContext.range(0, 30_000, 1, 3).map(lambda i: (i % 300, 1)).repartition(2)
    made = fbs.reduce_by_key(rdd, operator.add, 3, mode=mode)
    assert {count for _, count in made.take(250)} == {100}
    assert dict(made.toLocalIterator()) == dict.fromkeys(range(300), 100)


@nightly(mode="blocking")
def test_more_keys_than_memory(spark: Any, mode: str) -> None:
    conf = fbs.ShuffleConf(memory_bytes=1 << 20, segment_size=4096)
    rdd = spark.sparkContext.range(0, 60_000, 1, 3).map(lambda i: (f"k{i * 7919 % 20_011}", i))
    made = fbs.reduce_by_key(rdd, operator.add, 2, mode=mode, conf=conf)
    assert parts(made) == parts(rdd.reduceByKey(operator.add, 2))
    assert groups(fbs.group_by_key(rdd, 2, mode=mode, conf=conf)) == groups(rdd.groupByKey(2))
    two = rdd.filter(lambda pair: pair[1] % 3 == 0)
    assert sides(fbs.co_group(rdd, two, 2, mode=mode, conf=conf)) == sides(rdd.cogroup(two, 2))


@nightly(mode="blocking")
def test_many_partitions_in_few_tasks(spark: Any, mode: str) -> None:
    """Of two RDDs: each side's partitions are read by tasks of that side."""
    sc = spark.sparkContext
    left = sc.range(0, 5_000, 1, 41).map(lambda i: (i % 97, i))
    right = sc.range(0, 500, 1, 3).map(lambda i: (i % 89, -i))
    assert sides(fbs.co_group(left, right, 2, mode=mode)) == sides(left.cogroup(right, 2))
    assert parts(fbs.reduce_by_key(left, operator.add, 2, mode=mode)) == parts(left.reduceByKey(operator.add, 2))


def test_arguments_that_cannot_be(spark: Any) -> None:
    rdd = spark.sparkContext.parallelize([(1, 1)], 1)
    wrong: list[Callable[[], Any]] = [
        lambda: fbs.reduce_by_key(rdd, 7, 2),
        lambda: fbs.combine_by_key(rdd, max, None, max, 2),
        lambda: fbs.join(rdd, rdd, 2, how="cross"),
        lambda: fbs.join(rdd, [(1, 1)], 2),
        lambda: fbs.group_by_key(rdd, 0),
        lambda: fbs.group_by_key(rdd, 2, mode="fast"),
    ]
    for call in wrong:
        with pytest.raises(ConfigError):
            call()


def test_every_key_comes_once(spark: Any, mode: str) -> None:
    """However many runs of records a partition has: sent when a table is full, and between two tries to merge."""
    conf = fbs.ShuffleConf(memory_bytes=1 << 20, segment_size=4096)
    rdd = spark.sparkContext.range(0, 200_000, 1, 2).map(lambda i: (i % 70_001, 1))
    made = fbs.reduce_by_key(rdd, operator.add, 2, mode=mode, conf=conf).collect()
    counts = dict(made)
    assert len(made) == len(counts) == 70_001
    assert counts == {k: len(range(k, 200_000, 70_001)) for k in range(70_001)}
    assert set(itertools.chain(counts.values())) == {2, 3}


def test_a_table_may_have_what_sparks_own_may_unless_it_was_said(spark: Any) -> None:
    rdd = spark.sparkContext.parallelize([(1, 1)], 1)

    def table(conf: fbs.ShuffleConf | None) -> int:
        return PairShuffle.of("it", [rdd], 2, None, "blocking", conf).table_bytes

    assert table(None) == rdd._memory_limit() << 20
    assert table(fbs.ShuffleConf(memory_bytes="8m")) == 8 << 20


MIXES: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "ints": lambda i: (i * 7919 % 997, i),
    "strs": lambda i: (f"käse-{i * 7919 % 997}", i / 2),
    "a sum of more than 64 bits": lambda i: (i % 5, 2**61),
    "keys of other types later on": lambda i: (i % 7 if i < 4_000 else i % 7 + 0.5, 1),
    "values of other types later on": lambda i: (i % 7, 1 if i < 4_000 else 0.5),
    "no value": lambda i: (i % 7, None if i % 1_000 == 999 else 1),
}


#: Blocks are made of pickles alike in both modes
BY_DAY = (("ints", "blocking"), ("keys of other types later on", "pipelined"), ("no value", "pipelined"))
KEPT = [(mix, mode) for mode in MODES for mix in MIXES if LONG or (mix, mode) in BY_DAY]


@pytest.mark.parametrize(("mix", "mode"), KEPT)
def test_what_is_kept_as_pickles_is_as_what_is_made(spark: Any, mix: str, mode: str) -> None:
    """Pairs that no object is made of, and those that come among them: however Spark has them."""
    sc = spark.sparkContext
    records = [MIXES[mix](i) for i in range(9_000)]
    made = sc.range(0, 9_000, 1, 3).map(MIXES[mix])
    kept = {
        "parallelized": sc.parallelize(records, 3),
        "one at a time": made._reserialize(BatchedSerializer(CPickleSerializer(), 1)),
        "cached": sc.range(0, 9_000, 1, 3).map(MIXES[mix]).cache(),
        "shuffled": made.partitionBy(4, hash),
        "of two": made.filter(lambda pair: pair[0] != 3).union(made.filter(lambda pair: pair[0] == 3)),
        "fewer": sc.range(0, 9_000, 1, 9).map(MIXES[mix]).coalesce(2),
    }
    wanted = groups(made.groupByKey(2))
    if mix != "no value":
        most, total = (parts(made.reduceByKey(merge, 2)) for merge in (max, operator.add))
    placed = [sorted(map(repr, each)) for each in made.partitionBy(2).glom().collect()]
    # By day, three of the six of each mixture but one: as they are kept, and as they are mixed, are shown apart
    some = slice(None) if LONG or mix == "ints" else slice(list(MIXES).index(mix) % 2, None, 2)
    for name, rdd in list(kept.items())[some]:
        assert groups(fbs.group_by_key(rdd, 2, mode=mode)) == wanted, name
        moved = fbs.partition_by(rdd, 2, mode=mode).glom().collect()
        assert [sorted(map(repr, each)) for each in moved] == placed, name
        if mix != "no value":
            assert parts(fbs.reduce_by_key(rdd, max, 2, mode=mode)) == most, name
            assert parts(fbs.reduce_by_key(rdd, operator.add, 2, mode=mode)) == total, name
    assert sides(fbs.co_group(kept["cached"], made, 2, mode=mode)) == sides(made.cogroup(made, 2))
    kept["cached"].unpersist()


def test_which_rdds_are_read_as_pickles(spark: Any) -> None:
    sc = spark.sparkContext
    made = sc.range(0, 10, 1, 2).map(lambda i: (i, i))
    assert as_pickles(made) is None  # the function runs in the same task
    assert as_pickles(made.cache()) is not None
    assert as_pickles(sc.parallelize([(1, 2)])) is not None
    assert as_pickles(made.zip(made)) is None  # kept by another serializer
    assert as_pickles(made.barrier().mapPartitions(iter)) is None
    assert as_pickles(made.partitionBy(3)) is not None
    made.unpersist()
