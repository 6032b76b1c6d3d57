"""Shuffles of RDDs of pairs."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable, Iterable
from typing import Any

from pyspark.core.rdd import RDD
from pyspark.serializers import BatchedSerializer, CPickleSerializer, NoOpSerializer, pack_long

from fastbuf.errors import ConfigError, PreflightError
from fastbuf_spark.codec import RecordCodec, own_partition_func
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver import exchanges
from fastbuf_spark.driver.checks import (
    check_conf,
    check_function,
    check_mode,
    partition_count,
    preflight,
    slots_of,
    spare_problem,
)
from fastbuf_spark.driver.plan import MODES
from fastbuf_spark.folding import fold
from fastbuf_spark.shipping import named
from fastbuf_spark.spec import ExchangeSpec
from fastbuf_spark.worker.blocks import RecordMapSide, RecordReduceSide
from fastbuf_spark.worker.consumer import Consumer
from fastbuf_spark.worker.producer import Producer

log = logging.getLogger("fastbuf_spark")


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
    from pyspark.rdd import Partitioner, portable_hash

    if not isinstance(rdd, RDD):
        raise ConfigError(f"rdd is a {type(rdd).__module__}.{type(rdd).__name__}: give an RDD of pairs")
    check_mode(mode, MODES)
    check_conf(conf)
    num_partitions = partition_count(num_partitions)
    if partition_func is not None:
        check_function("partition_func", partition_func, "takes a key and gives a number")
    sc = rdd.context
    conf = conf or ShuffleConf.from_context(sc)
    codec = RecordCodec(num_partitions, None, own_partition_func(partition_func))
    exchange, name = secrets.token_hex(16), "partition_by"
    chosen = _choose(rdd, num_partitions, mode)
    place = partition_func or portable_hash
    if chosen == "blocking":
        spec = exchanges.register_reports(sc, exchange, name, num_partitions, conf, codec)
        keyed: Any = rdd.mapPartitions(named(_keyed(RecordMapSide(spec)), "fastbuf_map"))
        keyed._bypass_serializer = True
        jvm: Any = sc._jvm
        pairs = jvm.PairwiseRDD(keyed._jrdd.rdd()).asJavaPairRDD()
        moved = _placed(sc, pairs, num_partitions, place, NoOpSerializer())
        made = moved.mapPartitions(named(_flat(RecordReduceSide(spec)), "fastbuf_reduce"), preservesPartitioning=True)
    else:

        def producers(spec: ExchangeSpec, epoch: int, targets: list[exchanges.Target]) -> Callable[[], Any]:
            def action() -> Any:
                how = fold(rdd.getNumPartitions(), (slots_of(sc) or num_partitions + 1) - len(targets))
                source = rdd if how is None else rdd.coalesce(how.tasks)
                return source.mapPartitions(named(Producer(spec, epoch, targets).records, "fastbuf_producer")).collect()

            return action

        spec = exchanges.register(sc, exchange, name, num_partitions, conf, codec, producers, _unsteady(rdd))
        requests = _requests(sc, num_partitions, place)
        made = requests.mapPartitions(
            named(_flat(Consumer(spec, iter).records), "fastbuf_consumer"), preservesPartitioning=True
        )
    made.partitioner = Partitioner(num_partitions, place)
    return made


def _placed(sc: Any, pairs: Any, num_partitions: int, place: Callable[[Any], int], serializer: Any) -> RDD[Any]:
    """The values of a JVM RDD of (partition, value) pairs, in their partitions.

    As in PySpark's own ``partitionBy``: to the JVM a partitioner is the address of the Python function, so that a join
    or union with what Spark has placed by the same function needs no shuffle more.
    """
    partitioner = sc._jvm.PythonPartitioner(num_partitions, id(place))
    return RDD(sc._jvm.PythonRDD.valueOfPair(pairs.partitionBy(partitioner)), sc, serializer)


def _requests(sc: Any, num_partitions: int, place: Callable[[Any], int]) -> RDD[int]:
    """The number of each partition, in it."""
    serializer = BatchedSerializer(CPickleSerializer())
    pairs = sc._jvm.java.util.ArrayList()
    for partition in range(num_partitions):
        pairs.add(sc._jvm.scala.Tuple2(partition, bytearray(serializer.serializer.dumps([partition]))))
    return _placed(sc, sc._jsc.parallelizePairs(pairs, 1), num_partitions, place, serializer)


def _keyed(task: Callable[[Any], Iterable[tuple[int, bytes]]]) -> Callable[[Any], Iterable[bytes]]:
    """The pairs of a task as the JVM reads them: a partition of eight bytes, then a value."""

    def run(source: Any) -> Iterable[bytes]:
        for partition, block in task(source):
            yield pack_long(partition)
            yield block

    return run


def _unsteady(rdd: RDD[Any]) -> str:
    """What Spark says of an RDD whose rows, or whose partitions' rows, differ each time it is computed."""
    level = str(rdd._jrdd.rdd().outputDeterministicLevel())
    return f"Spark calls the RDD {level}" if level == "INDETERMINATE" else ""


def _flat(task: Callable[[Any], Iterable[list[Any]]]) -> Callable[[Any], Iterable[Any]]:
    """Gives the records of a task that gives lists of them; without a step of Python's for each."""

    def run(source: Any) -> Iterable[Any]:
        return itertools.chain.from_iterable(task(source))

    return run


def _choose(rdd: RDD[Any], num_partitions: int, mode: str) -> str:
    if mode == "blocking":
        return mode
    problems = list(preflight(rdd.context, num_partitions))
    if problems and mode != "auto":
        raise PreflightError(f"mode='{mode}' cannot run: " + "; ".join(problems))
    if mode == "auto" and not problems:
        problems = [p for p in (spare_problem(rdd.context, num_partitions), _unsteady(rdd)) if p]
    chosen = "blocking" if problems else "pipelined"
    why = " (not pipelined: " + "; ".join(problems) + ")" if problems else ""
    log.info("partition_by into %d partitions: mode='%s'%s", num_partitions, chosen, why)
    return chosen
