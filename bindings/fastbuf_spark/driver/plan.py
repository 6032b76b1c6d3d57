"""Plans a shuffle on the driver: checks it, chooses the mode, and makes the lazy DataFrame."""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from fastbuf.errors import SchemaError
from fastbuf_spark import pyspark_private
from fastbuf_spark.conf import MODES, ShuffleConf
from fastbuf_spark.driver import exchanges, input_batches, upstream
from fastbuf_spark.driver.checks import (
    NO_DRIVER,
    check_conf,
    check_mode,
    cluster_of,
    is_connect,
    partition_count,
    slots_of,
)
from fastbuf_spark.driver.cluster import judged
from fastbuf_spark.driver.determinism import observed, order_is_fixed, unsteady
from fastbuf_spark.driver.keys import Keys, plain, resolve
from fastbuf_spark.driver.mode import choose
from fastbuf_spark.driver.staged import Renamed, Staged
from fastbuf_spark.folding import Fold, fold, folded
from fastbuf_spark.protocol import Target
from fastbuf_spark.results import name_of
from fastbuf_spark.schema import renaming
from fastbuf_spark.shipping import AsItIs, named
from fastbuf_spark.spec import ExchangeSpec
from fastbuf_spark.worker.blocks import MapSide, ReduceSide
from fastbuf_spark.worker.chains import Called, Chain
from fastbuf_spark.worker.consumer import Consumer
from fastbuf_spark.worker.groups import Limits
from fastbuf_spark.worker.held import DESCRIBED, SECTION
from fastbuf_spark.worker.producer import RESULT, Producer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from fastbuf_spark.schema import BatchFunction

log = logging.getLogger("fastbuf_spark")

SPARKS_OWN = "Spark's own"  #: the mode of a shuffle that Spark makes


@dataclasses.dataclass(frozen=True)
class Shuffle:
    """A shuffle as a verb asks for it: of a DataFrame, of a pipeline's stage, of groups.

    Attributes
    ----------
    at
        The stage in front of it.
    keys, num_partitions, mode, conf
        As in :func:`fastbuf_spark.map_in_arrow`.
    held_slots
        Slots that consumers of earlier exchanges hold, if this one is pipelined too.
    reduce_tasks
        In blocking mode, the tasks behind the shuffle; 0: one for each partition.
    obstacle
        Why this one cannot be pipelined: its consumers' tasks are a barrier stage, or of a profile of their own.
    """

    at: Staged
    keys: Any
    num_partitions: int
    mode: str
    conf: ShuffleConf | None
    held_slots: int = 0
    reduce_tasks: int = 0
    obstacle: str = ""

    @property
    def spark(self) -> Any:
        """The session."""
        return self.at.frame.sparkSession

    def resolved(self, order: Any = ()) -> Keys:
        """Its keys; ``order``: columns to sort rows by behind it."""
        return resolve(self.at, self.keys, self.num_partitions, order)

    def into(self, func: BatchFunction | None, schema: StructType, keys: Keys | None = None, name: str = "") -> Staged:
        """The stage behind it.

        Parameters
        ----------
        func, schema
            The stage's function and the schema of its output; None: the rows stay unchanged.
        keys
            The keys, if they are resolved already.
        name
            Name of the exchange, if different from that of ``func``.
        """
        check_mode(self.mode, MODES)
        check_conf(self.conf)
        count = partition_count(self.num_partitions)
        conf = ShuffleConf.of(self.spark, self.conf)
        keys = keys or self.resolved()
        if keys.by_spark:
            return self._by_spark(func, schema, keys, keys.by_spark, self.mode)
        codec, df = keys.codec, keys.frame
        in_turn = not codec.keys and count > 1
        varies = "" if is_connect(df) else unsteady(df, in_turn, self.at.in_order)
        chosen = choose(self.mode, conf.mode, partial(_obstacles, df, count, self.held_slots, conf, self.obstacle))
        if chosen == "blocking" and in_turn and not (self.at.in_order and order_is_fixed(df)):
            # A map task that runs again would distribute the same rows differently; Spark's own shuffle sorts them
            why = "rows without a key go in turn, and their order is not fixed"
            return self._by_spark(func, schema, keys, why, chosen)
        if func is None:
            func = identity
            if codec.before is None:  # else what is shown has the names that it gives
                codec = dataclasses.replace(codec, shown=codec.bare())
        name = name or name_of(func)
        log.info("shuffle '%s' into %d partitions: mode='%s'", name, count, chosen)
        spec = ExchangeSpec(secrets.token_hex(16), name, count, conf, codec, reduce_tasks=self.reduce_tasks or count)
        if chosen == "blocking":
            stage = _blocking(df, spec, func, schema, bool(self.obstacle))
        else:
            stage = _pipelined(df, spec, func, schema, varies)
        return dataclasses.replace(stage, mode=chosen)

    @property
    def limits(self) -> Limits:
        """The limits of a task behind it that sorts its rows."""
        return limits_of(self.spark, ShuffleConf.of(self.spark, self.conf))

    def moved(self, name: str = "") -> Staged:
        """The stage behind it whose rows are those in front of it."""
        at = self.at
        stage = self.into(None, plain(at.frame).schema if at.head is None else at.schema, name=name)
        return stage if stage.schema.names == at.schema.names else stage.then(Renamed(at.schema.names), at.schema)

    def _by_spark(self, func: BatchFunction | None, schema: StructType, keys: Keys, why: str, mode: str) -> Staged:
        """Spark's own shuffle between the same two functions."""
        if mode not in ("auto", "blocking"):
            raise SchemaError(f"mode='{mode}' cannot run: {why}; use mode='auto' or 'blocking'")
        log.info("shuffle into %d partitions: Spark's own, since %s", self.num_partitions, why)
        moved = self.at.to_df().repartition(self.num_partitions, *keys.given)
        stage = sparks_own(moved, why)
        if func is None:
            return stage
        frame = plain(moved)
        second = func if frame is moved else renaming(func, moved.schema.names)
        return dataclasses.replace(stage, frame=frame, schema=schema, head=Called(Chain((second,))), name="func")


def _pipelined(df: DataFrame, spec: ExchangeSpec, func: BatchFunction, schema: StructType, varies: str) -> Staged:
    number, num_partitions, sc = spec.exchange, spec.partitions, df.sparkSession.sparkContext
    held_slots = upstream.held_by_frame(df)
    codec: Any = spec.codec
    if codec.before is not None:
        codec = dataclasses.replace(codec, before=AsItIs(sc, codec.before))
    folds: list[Fold | None] = []

    def folding(partitions: int | None, consumers: int) -> Fold | None:
        # A folded task reads several input partitions, one after the other.  If each comes from another exchange, each
        # asks that exchange alone, which then runs its producers once more for it
        if held_slots:
            return None
        if codec.keys:
            return fold(partitions, (slots_of(sc) or num_partitions + 1) - consumers)
        if not folds:  # producers that place rows in turn must be the same in every run
            folds.append(fold(partitions, (slots_of(sc) or num_partitions + 1) - num_partitions))
        return folds[0]

    def producers(spec: ExchangeSpec, epoch: int, targets: list[Target]) -> Callable[[], Any]:
        def action() -> Any:
            partitions = pyspark_private.partitions_of(df)
            if partitions == 0 and not observed(df):
                return []  # Spark would plan a job for a tenth of a second, to run nothing
            how = folding(partitions, len(targets))
            marked = how is not None and codec.before is not None
            source = df if how is None else folded(df, how, marked)
            producer = Producer(spec, epoch, targets, how if marked else None)
            # In the job's own thread, so that only this job has these properties
            for key, value in input_batches.properties(df, spec.conf.max_row_bytes).items():
                sc.setLocalProperty(key, value)
            return source.mapInArrow(named(producer.batches, f"fastbuf_producer_{number}"), RESULT).collect()

        return action

    spec = exchanges.register(sc, dataclasses.replace(spec, codec=codec), producers, varies)
    frame = requests(df.sparkSession, num_partitions, num_partitions + held_slots, number)
    consumer = Consumer(spec, func)
    return Staged(frame, schema, consumer, f"fastbuf_consumer_{number}", in_order=False, numbered=True)


def requests(spark: Any, num_partitions: int, held_slots: int = 0, exchange: str = "") -> DataFrame:
    """One row per partition, each in a partition of its own, with a size that Spark does not know.

    With a known size of so few rows, Spark would expect a small result and broadcast it in a join, however large it is.
    ``held_slots``: slots of the tasks that read them and of consumers before them; 0: they read no exchange.
    ``exchange``: the one that they read.
    """
    rows = spark.range(0, num_partitions, 1, num_partitions)
    hidden = pyspark_private.of_unknown_size(rows)
    if hidden is None:
        return rows
    frame, read = hidden
    if held_slots:
        upstream.remember(spark.sparkContext, read, held_slots)
        exchanges.lives_with(spark.sparkContext, exchange, read)
    # Then Spark knows that there is a single partition: unions and joins need no shuffle for it
    return frame.coalesce(1) if num_partitions == 1 else frame


def sparks_own(frame: DataFrame, why: str) -> Staged:
    """A stage that Spark's own shuffle begins."""
    return Staged(frame, frame.schema, in_order=False, mode=SPARKS_OWN, why=why)


def limits_of(spark: Any, conf: ShuffleConf) -> Limits:
    """The limits of a task that sorts its rows."""
    return Limits(conf.held_bytes(spark.conf.get), conf.spill_directory, conf.batch_rows, conf.batch_bytes)


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A stage that returns its input."""
    return batches


def _obstacles(df: DataFrame, consumers: int, held_slots: int, conf: ShuffleConf, obstacle: str) -> list[str]:
    """Why an exchange over this input cannot be pipelined, beside consumers of others that hold slots."""
    reasons = [*([obstacle] if obstacle else [])]
    if is_connect(df):
        return [*reasons, NO_DRIVER]
    reasons += judged(cluster_of(df.sparkSession.sparkContext, conf), consumers, "pipelined", conf, held_slots)
    if df.isStreaming:
        reasons.append("a streaming input cannot be read by a second job: use mode='blocking'")
    return reasons


def _blocking(df: DataFrame, spec: ExchangeSpec, func: BatchFunction, schema: StructType, is_special: bool) -> Staged:
    number = spec.exchange
    if not is_connect(df):
        spec = exchanges.register_reports(df.sparkSession.sparkContext, spec)
    # Rows that come through Spark are read as they come, for one partition
    tasks = spec.reduce_tasks if spec.held else spec.partitions
    spec = dataclasses.replace(spec, reduce_tasks=tasks)
    descriptions = df.mapInArrow(named(MapSide(spec), f"fastbuf_map_{number}"), DESCRIBED)
    moved = descriptions.repartitionById(tasks, SECTION)
    if not is_special:  # a barrier stage has no union
        moved = of_unknown_size(moved)
    head, name = ReduceSide(spec, func), f"fastbuf_reduce_{number}"
    return Staged(moved, schema, head, name, in_order=False, numbered=spec.held is not None)


def of_unknown_size(df: DataFrame) -> DataFrame:
    """The same rows, of which Spark does not know how many bytes they stand for.

    Descriptions are short.  By their bytes Spark would expect a small result and broadcast it in a join, however large
    it is.  So they are united with no rows of an unknown size.
    """
    return df if is_connect(df) or df.isStreaming else pyspark_private.with_nothing(df) or df
