"""Shuffles of RDDs of pairs: placed by key, merged, grouped, joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver.checks import check_function
from fastbuf_spark.driver.pair_plan import PairShuffle
from fastbuf_spark.worker.pairs import Combine, Join, MergeStage, Pairs

if TYPE_CHECKING:
    from pyspark.core.rdd import RDD

#: How joins are called, and whether keys of the left and the right side alone come out
JOINS = {"inner": (False, False), "left": (True, False), "right": (False, True), "outer": (True, True)}


def partition_by(
    rdd: RDD[Any],
    num_partitions: int,
    partition_func: Callable[[Any], int] | None = None,
    *,
    mode: str = "auto",
    conf: ShuffleConf | None = None,
) -> RDD[Any]:
    """The pairs of an RDD, placed by key as ``rdd.partitionBy(num_partitions, partition_func)`` places them.

    As there, a record is a pair or what Python unpacks into two (a list, a Row, a string of two characters), and comes
    out as a tuple of two.

    Parameters
    ----------
    rdd
        Of (key, value) pairs.
    num_partitions
        Partitions out.
    partition_func
        From a key to a number; default: Spark's ``portable_hash``.
    mode
        ``"pipelined"``, ``"blocking"``, or ``"auto"``, as in :func:`map_in_arrow`.
    conf
        Settings; by default those of the SparkContext (``spark.fastbuf.*``).

    Returns
    -------
    RDD
        Lazy.  A task fails with RecordError on a record that is no pair; Spark's own fails too.

    Raises
    ------
    PreflightError
        The mode that was asked for cannot run here.
    ConfigError
        An unknown mode, or no number of partitions.

    Notes
    -----
    A key that Python hashes by its address in memory counts as 0: NaN (of float, NumPy and Decimal), and an object of a
    class without a hash of its own; also inside tuples.  So all NaN keys are in one partition.  Spark's own spreads
    them over all partitions, and in each run differently, since every NaN lies elsewhere once it has been pickled.  NaN
    inside a frozenset or a dataclass is placed as arbitrarily here as there.
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
    """The values of each key merged into one, as ``rdd.reduceByKey(func, num_partitions, partition_func)`` does.

    Values are merged before they are sent, where that makes them fewer, and again when they have come.

    Parameters
    ----------
    rdd, num_partitions, partition_func, mode, conf
        As in :func:`partition_by`.
    func
        From two values to one.  In which order values meet is not fixed, so it is to be associative and commutative.

    Returns
    -------
    RDD
        Lazy; of (key, value), in the partitions of :func:`partition_by`.

    Raises
    ------
    PreflightError, ConfigError
        As :func:`partition_by`.

    Notes
    -----
    The table of keys of each side takes up to ``memory_bytes`` where that is set, else as much as Spark's own may
    (``spark.python.worker.memory``, 512 MiB).  One that is full is sent, before the shuffle; behind it, it is written
    to a nameless file in parts, which are merged one after the other.
    """
    check_function("func", func, "takes two values and gives one")
    return _combined("reduce_by_key", rdd, None, func, func, num_partitions, partition_func, mode, conf)


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
    """The values of each key as one combiner, as ``rdd.combineByKey`` makes them.

    Parameters
    ----------
    rdd, num_partitions, partition_func, mode, conf
        As in :func:`partition_by`.
    create_combiner
        From a value to a combiner.
    merge_value
        From a combiner and a value to a combiner; it may be the first one, changed.
    merge_combiners
        From two combiners to one; it may be the first one, changed.

    Returns
    -------
    RDD
        Lazy; of (key, combiner).  Memory and order as of :func:`reduce_by_key`.

    Raises
    ------
    PreflightError, ConfigError
        As :func:`partition_by`.
    """
    check_function("create_combiner", create_combiner, "takes a value and gives a combiner")
    check_function("merge_value", merge_value, "takes a combiner and a value and gives a combiner")
    check_function("merge_combiners", merge_combiners, "takes two combiners and gives one")
    functions = create_combiner, merge_value, merge_combiners
    return _combined("combine_by_key", rdd, *functions, num_partitions, partition_func, mode, conf)


def group_by_key(
    rdd: RDD[Any],
    num_partitions: int,
    partition_func: Callable[[Any], int] | None = None,
    *,
    mode: str = "auto",
    conf: ShuffleConf | None = None,
) -> RDD[Any]:
    """The values of each key together, as ``rdd.groupByKey(num_partitions, partition_func)`` gives them.

    Parameters
    ----------
    rdd, num_partitions, partition_func, mode, conf
        As in :func:`partition_by`.

    Returns
    -------
    RDD
        Lazy; of (key, values).  Values are sized and may be read as often as you like.  What does not fit into memory
        (as of :func:`reduce_by_key`) is in a nameless file, from which the values of a key that has very many are read
        as they are asked for: a loop over them does not have them all in memory.  Whoever collects them, has.

    Raises
    ------
    PreflightError, ConfigError
        As :func:`partition_by`.
    """
    shuffle = PairShuffle.of("group_by_key", [rdd], num_partitions, partition_func, mode, conf)
    return shuffle.run(stage=_stage(shuffle))


def co_group(
    rdd: RDD[Any],
    other: RDD[Any],
    num_partitions: int,
    partition_func: Callable[[Any], int] | None = None,
    *,
    mode: str = "auto",
    conf: ShuffleConf | None = None,
) -> RDD[Any]:
    """For each key of either RDD its values in both, as ``rdd.cogroup(other, num_partitions)`` gives them.

    Parameters
    ----------
    rdd, other
        Of (key, value) pairs.
    num_partitions, partition_func, mode, conf
        As in :func:`partition_by`.

    Returns
    -------
    RDD
        Lazy; of (key, (values, other's values)), each as in :func:`group_by_key`.

    Raises
    ------
    PreflightError, ConfigError
        As :func:`partition_by`.
    """
    shuffle = PairShuffle.of("co_group", [rdd, other], num_partitions, partition_func, mode, conf)
    return shuffle.run(stage=_stage(shuffle, sides=2))


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
    """Each value of a key with each of the other RDD's, as ``rdd.join(other, num_partitions)`` gives them.

    Parameters
    ----------
    rdd, other
        Of (key, value) pairs.
    how
        ``"inner"``, ``"left"``, ``"right"`` or ``"outer"``, as ``leftOuterJoin`` and the others: a key that this side
        alone has comes out with None for the other one's value.
    num_partitions, partition_func, mode, conf
        As in :func:`partition_by`.

    Returns
    -------
    RDD
        Lazy; of (key, (value, other's value)).

    Raises
    ------
    PreflightError, ConfigError
        As :func:`partition_by`; an unknown ``how``.
    """
    if how not in JOINS:
        raise ConfigError(f"how is {how!r}: it must be one of {', '.join(JOINS)}")
    shuffle = PairShuffle.of("join", [rdd, other], num_partitions, partition_func, mode, conf)
    return shuffle.run(stage=_stage(shuffle, sides=2, finish=Join(*JOINS[how])))


def _combined(
    name: str,
    rdd: RDD[Any],
    create: Callable[[Any], Any] | None,
    merge_value: Callable[[Any, Any], Any],
    merge_combiners: Callable[[Any, Any], Any],
    num_partitions: int,
    partition_func: Callable[[Any], int] | None,
    mode: str,
    conf: ShuffleConf | None,
) -> RDD[Any]:
    shuffle = PairShuffle.of(name, [rdd], num_partitions, partition_func, mode, conf)
    combine = Combine(create, merge_value, shuffle.table_bytes)
    return shuffle.run(combine, _stage(shuffle, merge_combiners))


def _stage(
    shuffle: PairShuffle,
    merge: Callable[[Any, Any], Any] | None = None,
    sides: int = 0,
    finish: Callable[[Pairs], Pairs] | None = None,
) -> MergeStage:
    return MergeStage(merge, sides, finish, shuffle.table_bytes, shuffle.conf.spill_directory)
