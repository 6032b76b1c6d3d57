"""Shuffles of RDDs of pairs."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable, Iterable
from typing import Any

from pyspark.core.rdd import RDD, PipelinedRDD

from fastbuf.errors import ConfigError, PreflightError
from fastbuf_spark import exchanges
from fastbuf_spark.blocks import RecordMapSide, RecordReduceSide
from fastbuf_spark.checks import preflight
from fastbuf_spark.codec import RecordCodec
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.consumer import Consumer
from fastbuf_spark.plan import MODES
from fastbuf_spark.producer import Producer
from fastbuf_spark.spec import ExchangeSpec
from fastbuf_spark.stage import FusedTask, Placement, fastest, first_item

log = logging.getLogger("fastbuf_spark")


class BarrierResult(PipelinedRDD):
    """An RDD of a barrier stage, or mapped from one: ``take``, ``first`` and ``isEmpty`` run all partitions at once.

    Spark's own run one partition first, which a barrier stage refuses.
    """

    def take(self, num: int) -> list[Any]:
        """The first ``num`` elements, in the order of partitions."""
        if num <= 0:
            return []

        def head(source: Iterable[Any]) -> Iterable[list[Any]]:
            yield list(itertools.islice(iter(source), num))

        parts = self.context.runJob(self, head)
        return list(itertools.islice(itertools.chain.from_iterable(parts), num))

    def mapPartitionsWithIndex(
        self, f: Callable[[int, Iterable[Any]], Iterable[Any]], preservesPartitioning: bool = False
    ) -> RDD[Any]:
        """As in RDD; ``map``, ``filter`` and the like come through here."""
        return BarrierResult(self, f, preservesPartitioning)


def partition_by(
    rdd: RDD[Any],
    num_partitions: int,
    partition_func: Callable[[Any], int] | None = None,
    *,
    mode: str = "auto",
    conf: ShuffleConf | None = None,
) -> RDD[Any]:
    """The pairs of an RDD, placed by key as ``rdd.partitionBy(num_partitions, partition_func)`` places them.

    Parameters
    ----------
    rdd
        Of (key, value) pairs.
    num_partitions
        Partitions out.
    partition_func
        From a key to a number; default: Spark's ``portable_hash``.
    mode
        ``"pipelined"``, ``"fused"``, ``"blocking"``, or ``"auto"``: pipelined where :func:`preflight` allows it.
    conf
        Settings; by default those of the SparkContext (``spark.fastbuf.*``).

    Returns
    -------
    RDD
        Lazy.

    Raises
    ------
    PreflightError
        The mode that was asked for cannot run here.
    ConfigError
        An unknown mode, or no number of partitions.
    """
    from pyspark.rdd import Partitioner, portable_hash

    if mode not in MODES:
        raise ConfigError(f"mode is {mode!r}: it must be one of {', '.join(MODES)}")
    if isinstance(num_partitions, bool) or not isinstance(num_partitions, int) or num_partitions < 1:
        raise ConfigError(f"num_partitions is {num_partitions!r}: it must be a number from 1 up, and is never guessed")
    sc = rdd.context
    conf = conf or ShuffleConf.from_context(sc)
    codec = RecordCodec(Placement(num_partitions, fastest(partition_func), first_item))
    exchange, name = secrets.token_hex(16), "partition_by"
    chosen = _choose(rdd, num_partitions, mode)
    if chosen == "blocking":
        spec = exchanges.register_reports(sc, exchange, name, num_partitions, conf, codec)
        moved = rdd.mapPartitions(RecordMapSide(spec)).partitionBy(num_partitions, _itself)
        made = moved.mapPartitions(RecordReduceSide(spec), preservesPartitioning=True)
    elif chosen == "fused":
        spec = exchanges.register(sc, exchange, name, num_partitions, conf, codec, None)
        made = _barrier(rdd, FusedTask(spec, iter))
    else:

        def producers(spec: ExchangeSpec, epoch: int, targets: list[tuple[str, int, int]]) -> Callable[[], Any]:
            return lambda: rdd.mapPartitions(_plain(Producer(spec, epoch, targets).records)).collect()

        spec = exchanges.register(sc, exchange, name, num_partitions, conf, codec, producers)
        made = _barrier(sc.parallelize(range(num_partitions), num_partitions), Consumer(spec, iter))
    # Spark's own function: a join with what partitionBy has placed needs no shuffle more.
    made.partitioner = Partitioner(num_partitions, partition_func or portable_hash)
    return made


def _barrier(rdd: RDD[Any], task: Callable[[Iterable[Any]], Iterable[Any]]) -> RDD[Any]:
    def run(_: int, source: Iterable[Any]) -> Iterable[Any]:
        return task(source)

    return BarrierResult(rdd, run, isFromBarrier=True)


def _plain(call: Callable[[Any], Iterable[Any]]) -> Callable[[Iterable[Any]], Iterable[Any]]:
    def run(source: Iterable[Any]) -> Iterable[Any]:
        return call(source)

    return run


def _itself(partition: int) -> int:
    return partition


def _choose(rdd: RDD[Any], num_partitions: int, mode: str) -> str:
    if mode == "blocking":
        return mode
    wanted = "pipelined" if mode == "auto" else mode
    problems = list(preflight(rdd.context, num_partitions, wanted))
    if not problems and wanted == "fused" and rdd.getNumPartitions() != num_partitions:
        problems.append(
            f"a fused stage has as many partitions out as in, and the input has {rdd.getNumPartitions()}, not "
            f"{num_partitions}: use num_partitions={rdd.getNumPartitions()}, or mode='pipelined' or 'blocking'"
        )
    if problems and mode != "auto":
        raise PreflightError(f"mode='{mode}' cannot run: " + "; ".join(problems))
    chosen = "blocking" if problems else wanted
    log.info(
        "partition_by into %d partitions: mode='%s'%s",
        num_partitions,
        chosen,
        " (pipelined cannot run: " + "; ".join(problems) + ")" if problems else "",
    )
    return chosen
