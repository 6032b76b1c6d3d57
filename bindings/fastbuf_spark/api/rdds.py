"""Shuffles of RDDs of pairs: partitioning, merging, grouping and joining by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver.checks import check_function
from fastbuf_spark.driver.pair_plan import PairShuffle
from fastbuf_spark.errors import ArgumentError
from fastbuf_spark.worker.pairs import Join

if TYPE_CHECKING:
    from pyspark import RDD

#: Names of joins, and whether keys that only the left or only the right side has are in the result
JOINS = {"inner": (False, False), "left": (True, False), "right": (False, True), "outer": (True, True)}


def partition_by(
    rdd: RDD[Any],
    num_partitions: int,
    partition_func: Callable[[Any], int] | None = None,
    *,
    mode: str = "auto",
    conf: ShuffleConf | None = None,
) -> RDD[Any]:
    """Partition the pairs of an RDD by key, like ``rdd.partitionBy(num_partitions, partition_func)``.

    As in Spark, a record is a pair, or an object that Python unpacks into two (a list, a Row, a string of two
    characters); in the result it is a tuple of two.

    Parameters
    ----------
    rdd
        An RDD of (key, value) pairs.
    num_partitions
        Partitions of the result.
    partition_func
        Maps a key to a number; default: Spark's ``portable_hash``.
    mode
        ``"pipelined"``, ``"blocking"``, or ``"auto"``, as in :func:`map_in_arrow`.
    conf
        Settings; default: those of the SparkContext (``spark.fastbuf.*``).

    Returns
    -------
    RDD
        Lazy.  A task fails with RecordError on a record that is not a pair, as in Spark.

    Raises
    ------
    PreflightError
        The requested mode cannot run here; so do the other functions of pairs.
    ConfigError
        An unknown mode, or an invalid number of partitions.

    Notes
    -----
    Keys that Python hashes by their address in memory are hashed as 0: NaN (float, NumPy and Decimal) and objects of a
    class without its own hash, also inside tuples.  So all NaN keys are in one partition.  Spark spreads them over all
    partitions, differently in each run, since a NaN has another address after pickling.  NaN inside a frozenset or a
    dataclass is placed arbitrarily, as in Spark.
    """
    return PairShuffle.of("partition_by", [rdd], num_partitions, partition_func, mode, conf).run()


def reduce_by_key(
    rdd: RDD[Any],
    func: Callable[[Any, Any], Any],
    num_partitions: int,
    partition_func: Callable[[Any], int] | None = None,
    *,
    mode: str = "auto",
    conf: ShuffleConf | None = None,
) -> RDD[Any]:
    """Merge the values of each key into one, like ``rdd.reduceByKey(func, num_partitions, partition_func)``.

    Values are merged before they are sent, if that reduces their number, and again after the shuffle.

    Parameters
    ----------
    rdd, num_partitions, partition_func, mode, conf
        As in :func:`partition_by`.
    func
        Merges two values into one.  It must be associative and commutative, as the order of merging is not fixed.

    Returns
    -------
    RDD
        Lazy; (key, value) pairs, partitioned as by :func:`partition_by`.

    Notes
    -----
    On each side the table of keys takes up to ``memory_bytes`` if that is set, else as much as Spark allows its own
    (``spark.python.worker.memory``, 512 MiB).  Before the shuffle a full table is sent; after it, a full table is
    written to a nameless file in parts, which are merged one after the other.
    """
    check_function("func", func, "takes two values and returns one")
    shuffle = PairShuffle.of("reduce_by_key", [rdd], num_partitions, partition_func, mode, conf)
    return shuffle.merged(None, func, func)


def combine_by_key(
    rdd: RDD[Any],
    create_combiner: Callable[[Any], Any],
    merge_value: Callable[[Any, Any], Any],
    merge_combiners: Callable[[Any, Any], Any],
    num_partitions: int,
    partition_func: Callable[[Any], int] | None = None,
    *,
    mode: str = "auto",
    conf: ShuffleConf | None = None,
) -> RDD[Any]:
    """Combine the values of each key, like ``rdd.combineByKey``.

    Parameters
    ----------
    rdd, num_partitions, partition_func, mode, conf
        As in :func:`partition_by`.
    create_combiner
        Makes a combiner from a value.
    merge_value
        Merges a value into a combiner, and returns the combiner; it may modify its first argument.
    merge_combiners
        Merges two combiners, and returns the result; it may modify its first argument.

    Returns
    -------
    RDD
        Lazy; (key, combiner) pairs.  Memory and order are as for :func:`reduce_by_key`.
    """
    check_function("create_combiner", create_combiner, "takes a value and returns a combiner")
    check_function("merge_value", merge_value, "takes a combiner and a value and returns a combiner")
    check_function("merge_combiners", merge_combiners, "takes two combiners and returns one")
    shuffle = PairShuffle.of("combine_by_key", [rdd], num_partitions, partition_func, mode, conf)
    return shuffle.merged(create_combiner, merge_value, merge_combiners)


def group_by_key(
    rdd: RDD[Any],
    num_partitions: int,
    partition_func: Callable[[Any], int] | None = None,
    *,
    mode: str = "auto",
    conf: ShuffleConf | None = None,
) -> RDD[Any]:
    """Group the values of each key, like ``rdd.groupByKey(num_partitions, partition_func)``.

    Parameters
    ----------
    rdd, num_partitions, partition_func, mode, conf
        As in :func:`partition_by`.

    Returns
    -------
    RDD
        Lazy; (key, values) pairs.  Values have a length and can be iterated several times.  What does not fit into
        memory (see :func:`reduce_by_key`) is written to a nameless file.  The values of a key that has very many are
        read from it during iteration, so that they are never all in memory, unless you collect them.
    """
    return PairShuffle.of("group_by_key", [rdd], num_partitions, partition_func, mode, conf).grouped()


def co_group(
    rdd: RDD[Any],
    other: RDD[Any],
    num_partitions: int,
    partition_func: Callable[[Any], int] | None = None,
    *,
    mode: str = "auto",
    conf: ShuffleConf | None = None,
) -> RDD[Any]:
    """Group the values of each key of either RDD, like ``rdd.cogroup(other, num_partitions)``.

    Parameters
    ----------
    rdd, other
        RDDs of (key, value) pairs.
    num_partitions, partition_func, mode, conf
        As in :func:`partition_by`.

    Returns
    -------
    RDD
        Lazy; (key, (values, other's values)), both as in :func:`group_by_key`.  An RDD that is partitioned this way
        already is not shuffled, as in Spark.
    """
    return PairShuffle.of("co_group", [rdd, other], num_partitions, partition_func, mode, conf).grouped()


def group_with(
    rdd: RDD[Any],
    *others: RDD[Any],
    num_partitions: int,
    partition_func: Callable[[Any], int] | None = None,
    mode: str = "auto",
    conf: ShuffleConf | None = None,
) -> RDD[Any]:
    """Group the values of each key of several RDDs, like ``rdd.groupWith(*others)``.

    Parameters
    ----------
    rdd, *others
        RDDs of (key, value) pairs, any number of them.
    num_partitions, partition_func, mode, conf
        As in :func:`partition_by`.

    Returns
    -------
    RDD
        Lazy; (key, (values, the first other's values, ...)), all as in :func:`group_by_key`.

    Raises
    ------
    ConfigError
        There is no other RDD.
    """
    if not others:
        raise ConfigError("group_with has one RDD alone: give others, or use group_by_key")
    return PairShuffle.of("group_with", [rdd, *others], num_partitions, partition_func, mode, conf).grouped()


def join(
    rdd: RDD[Any],
    other: RDD[Any],
    num_partitions: int,
    partition_func: Callable[[Any], int] | None = None,
    *,
    how: str = "inner",
    mode: str = "auto",
    conf: ShuffleConf | None = None,
) -> RDD[Any]:
    """Join two RDDs by key, like ``rdd.join(other, num_partitions)``.

    Parameters
    ----------
    rdd, other
        RDDs of (key, value) pairs.
    how
        ``"inner"``, ``"left"``, ``"right"`` or ``"outer"``, like ``leftOuterJoin`` and the others: keys that only this
        side has are in the result with None for the other side's value.
    num_partitions, partition_func, mode, conf
        As in :func:`partition_by`.

    Returns
    -------
    RDD
        Lazy; (key, (value, other's value)).  An RDD that is partitioned this way already is not shuffled, as in Spark.
    """
    if how not in JOINS:
        allowed = ", ".join(JOINS)
        parameters = {"arg_name": "how", "allowed_values": allowed}
        raise ArgumentError(f"how is {how!r}: it must be one of {allowed}", "VALUE_NOT_ALLOWED", parameters)
    return PairShuffle.of("join", [rdd, other], num_partitions, partition_func, mode, conf).grouped(Join(*JOINS[how]))
