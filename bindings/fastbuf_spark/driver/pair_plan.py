"""Plans a shuffle of pairs, on the driver: checks it, chooses the mode, and makes the lazy RDD."""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from pyspark import RDD

from fastbuf_spark import pyspark_private
from fastbuf_spark.codec import RecordCodec, own_partition_func
from fastbuf_spark.conf import MODES, ShuffleConf
from fastbuf_spark.driver import exchanges, upstream
from fastbuf_spark.driver.checks import (
    check_conf,
    check_function,
    check_mode,
    check_session,
    cluster_of,
    partition_count,
    slots_of,
)
from fastbuf_spark.driver.cluster import judged
from fastbuf_spark.driver.mode import choose
from fastbuf_spark.errors import ArgumentTypeError
from fastbuf_spark.folding import fold
from fastbuf_spark.protocol import Target
from fastbuf_spark.shipping import AsItIs, named
from fastbuf_spark.spec import ExchangeSpec
from fastbuf_spark.worker.blocks import RecordMapSide, RecordReduceSide
from fastbuf_spark.worker.consumer import Consumer
from fastbuf_spark.worker.pairs import Combine, InPlace, MergeStage, Pairs, Sided
from fastbuf_spark.worker.producer import Producer

log = logging.getLogger("fastbuf_spark")


@dataclasses.dataclass(frozen=True)
class PairShuffle:
    """The request for a shuffle of the pairs of one RDD, or of several together.

    Attributes
    ----------
    name
        Name of the operation, for the log and errors.
    sides
        The RDDs; if there are several, each value is sent with the number of its RDD.
    table_bytes
        Memory for a task's table of keys: ``memory_bytes`` if that was set, else as much as Spark allows its own.
    """

    name: str
    sides: Sequence[RDD[Any]]
    partitions: int
    partition_func: Callable[[Any], int] | None
    mode: str
    conf: ShuffleConf
    table_bytes: int

    @classmethod
    def of(
        cls,
        name: str,
        sides: Sequence[Any],
        num_partitions: int,
        partition_func: Callable[[Any], int] | None,
        mode: str,
        conf: ShuffleConf | None,
    ) -> PairShuffle:
        """Check the arguments, and make the request.

        Raises
        ------
        ConfigError
            An argument is not valid.
        """
        for rdd in sides:
            if not isinstance(rdd, RDD):
                words = f"rdd is a {type(rdd).__module__}.{type(rdd).__name__}: give an RDD of pairs"
                raise ArgumentTypeError.of(words, "rdd", "RDD", rdd)
            check_session(rdd.context)
        check_mode(mode, MODES)
        check_conf(conf)
        num_partitions = partition_count(num_partitions)
        if partition_func is not None:
            check_function("partition_func", partition_func, "takes a key and returns a number")
        sc = sides[0].context
        settings = conf.checked_on(sc.master) if conf else ShuffleConf.from_context(sc)
        table = settings.held_bytes(sc.getConf().get)
        return cls(name, sides, num_partitions, partition_func, mode, settings, table)

    def merged(
        self, create: Callable[[Any], Any] | None, merge_value: Callable[..., Any], merge: Callable[..., Any]
    ) -> RDD[Any]:
        """The values of each key merged into one, before the shuffle and after it."""
        combine = Combine(create, merge_value, self.table_bytes)
        return self.run(combine, MergeStage(merge, 0, None, self.table_bytes, self.conf.spill_directory))

    def grouped(self, finish: Callable[[Pairs], Pairs] | None = None) -> RDD[Any]:
        """The values of each key, of several RDDs by their side; ``finish``: what becomes of the pairs."""
        sides = len(self.sides) if len(self.sides) > 1 else 0
        return self.run(stage=MergeStage(None, sides, finish, self.table_bytes, self.conf.spill_directory))

    def run(
        self,
        combine: Combine | None = None,
        stage: Callable[[Iterable[list[Any]]], Iterable[Any]] = iter,
    ) -> RDD[Any]:
        """The lazy RDD.

        Parameters
        ----------
        combine
            Merging before the shuffle, if any.
        stage
            The function after the shuffle: takes groups of pairs as they were sent, returns lists of result records.
        """
        from pyspark.rdd import Partitioner, portable_hash

        sc = self.sides[0].context
        place = self.partition_func or portable_hash
        partitioner = Partitioner(self.partitions, place)
        here = [stage is not iter and rdd.partitioner == partitioner for rdd in self.sides]
        if any(here):  # as in Spark, what is already partitioned this way is not shuffled
            sides = zip(self.sides, here, strict=True)
            union = together([rdd if is_here else self._alone(rdd) for rdd, is_here in sides])
            if union.getNumPartitions() == self.partitions:
                in_place = named(InPlace(combine, stage), "fastbuf_in_place", flat=True)
                result = union.mapPartitions(in_place, preservesPartitioning=True)
                result.partitioner = partitioner
                return result
        func = own_partition_func(self.partition_func)
        codec = RecordCodec(self.partitions, None, func, packed=stage is not iter)
        pickles = [pyspark_private.as_pickles(rdd) for rdd in self.sides]
        codecs = [
            dataclasses.replace(
                codec, combine=combine, side=side if len(pickles) > 1 else None, pickled=source is not None
            )
            for side, source in enumerate(pickles)
        ]
        sources = [rdd if source is None else source for source, rdd in zip(pickles, self.sides, strict=True)]
        spec = ExchangeSpec(secrets.token_hex(16), self.name, self.partitions, self.conf, codec)
        mode = choose(self.mode, self.conf.mode, lambda: self._obstacles(sc))
        log.info("%s into %d partitions: mode='%s'", self.name, self.partitions, mode)
        if mode == "blocking":
            spec = exchanges.register_reports(sc, spec)
            tasks = [RecordMapSide(dataclasses.replace(spec, codec=own)) for own in codecs]
            sent = [
                rdd.mapPartitions(named(pyspark_private.keyed(task), "fastbuf_map"))
                for rdd, task in zip(sources, tasks, strict=True)
            ]
            moved = pyspark_private.moved(sent, self.partitions, place)
            reduce_side = named(RecordReduceSide(spec, stage), "fastbuf_reduce", flat=True)
            result = moved.mapPartitions(reduce_side, preservesPartitioning=True)
        else:
            spec = exchanges.register(sc, spec, self._producers(sources, codecs), self._unsteady())
            requests = pyspark_private.numbers_of(sc, self.partitions, place)
            read = pyspark_private.jvm_rdd(requests)
            upstream.remember(sc, read, self.partitions + upstream.held_by_rdds(self.sides))
            exchanges.lives_with(sc, spec.exchange, read)
            consumer = named(Consumer(spec, stage).records, "fastbuf_consumer", flat=True)
            result = requests.mapPartitions(consumer, preservesPartitioning=True)
        result.partitioner = partitioner
        return result

    def _obstacles(self, sc: Any) -> Iterable[str]:
        return judged(cluster_of(sc, self.conf), self.partitions, "pipelined", self.conf)

    def _alone(self, rdd: RDD[Any]) -> RDD[Any]:
        """One of the RDDs, shuffled without the others."""
        return dataclasses.replace(self, sides=[rdd]).run()

    def _producers(self, sides: list[RDD[Any]], codecs: list[RecordCodec]) -> exchanges.Producers:
        sc = self.sides[0].context
        # With its function as it is now, which producers would pickle later, together with their own
        sides = [pyspark_private.with_function(rdd, partial(AsItIs, sc)) for rdd in sides]
        shipped: list[Any] = [AsItIs(sc, codec) for codec in codecs]

        def producers(spec: ExchangeSpec, epoch: int, targets: list[Target]) -> Callable[[], Any]:
            def action() -> Any:
                counts = [rdd.getNumPartitions() for rdd in sides]
                how = fold(sum(counts), (slots_of(sc) or self.partitions + 1) - len(targets))
                parts = []
                for rdd, count, codec in zip(sides, counts, shipped, strict=True):
                    share = count if how is None else max(1, how.tasks * count // sum(counts))
                    source = rdd if how is None else rdd.coalesce(share)
                    producer = Producer(dataclasses.replace(spec, codec=codec), epoch, targets)
                    parts.append(source.mapPartitions(named(producer.records, "fastbuf_producer")))
                return (parts[0] if len(parts) == 1 else sc.union(parts)).collect()

            return action

        return producers

    def _unsteady(self) -> str:
        """The reason if, according to Spark, an RDD's rows may differ each time it is computed; else empty."""
        levels = [str(pyspark_private.jvm_rdd(rdd).outputDeterministicLevel()) for rdd in self.sides]
        return "Spark calls the RDD INDETERMINATE" if "INDETERMINATE" in levels else ""


def together(sides: Sequence[RDD[Any]]) -> RDD[Any]:
    """RDDs of one partitioner as one, whose tasks read a partition of each; of several, values have their side.

    Spark makes such a union of RDDs that have the same partitioner in Java too; else it has more partitions.
    """
    if len(sides) == 1:
        return sides[0]
    sided = [
        rdd.mapPartitions(named(Sided(side), "fastbuf_side"), preservesPartitioning=True)
        for side, rdd in enumerate(sides)
    ]
    return sided[0].context.union(sided)
