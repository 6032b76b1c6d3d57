"""Plans a shuffle on the driver: checks it, chooses the mode, and makes the lazy DataFrame."""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from fastbuf.errors import SchemaError
from fastbuf_spark import pyspark_private
from fastbuf_spark.codec import BatchCodec
from fastbuf_spark.conf import MODES, ShuffleConf
from fastbuf_spark.driver import exchanges, input_batches, upstream
from fastbuf_spark.driver.checks import (
    check_conf,
    check_mode,
    held_directories,
    is_connect,
    partition_count,
    preflight,
    slots_of,
)
from fastbuf_spark.driver.determinism import observed, order_is_fixed, unsteady
from fastbuf_spark.driver.keys import Keys, plain, resolve
from fastbuf_spark.driver.mode import choose
from fastbuf_spark.driver.staged import Staged, called
from fastbuf_spark.folding import Fold, fold, folded
from fastbuf_spark.protocol import Target
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

    BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]

log = logging.getLogger("fastbuf_spark")

SPARKS_OWN = "Spark's own"  #: the mode of a shuffle that Spark makes


@dataclasses.dataclass(frozen=True)
class _Exchange:
    """One planned shuffle of a DataFrame."""

    df: DataFrame
    func: BatchFunction
    schema: StructType
    codec: BatchCodec
    num_partitions: int
    conf: ShuffleConf
    name: str
    reduce_tasks: int
    is_special: bool  # its consumers' tasks are: a barrier stage, or of a profile of their own
    number: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))

    @property
    def context(self) -> Any:
        """The SparkContext."""
        return self.df.sparkSession.sparkContext


def shuffle(
    df: DataFrame,
    func: BatchFunction | None,
    result_schema: StructType,
    keys: Any,
    num_partitions: int,
    before: BatchFunction | None,
    shipped: StructType | None,
    mode: str,
    conf: ShuffleConf | None,
    found: Keys | None = None,
    **known: Any,
) -> DataFrame:
    """Implements :func:`fastbuf_spark.map_in_arrow`; without ``func`` the rows stay unchanged.

    ``found``: the keys, if they are resolved already.  ``known``: further arguments of :func:`staged`.
    """
    return staged(df, func, result_schema, keys, num_partitions, before, shipped, mode, conf, found, **known).to_df()


def staged(
    df: DataFrame,
    func: BatchFunction | None,
    result_schema: StructType,
    keys: Any,
    num_partitions: int,
    before: BatchFunction | None,
    shipped: StructType | None,
    mode: str,
    conf: ShuffleConf | None,
    found: Keys | None = None,
    in_order: bool = True,
    held: int = 0,
    reduce_tasks: int = 0,
    obstacle: str = "",
    name: str = "",
) -> Staged:
    """The stage after the shuffle.

    Parameters
    ----------
    in_order
        ``before`` keeps a fixed order of rows.
    held
        Slots that consumers of earlier exchanges hold, if this one is pipelined too.
    reduce_tasks
        In blocking mode, the tasks behind the shuffle; 0: one for each partition.
    obstacle
        Why this one cannot be pipelined; empty: no reason is known.
    name
        Name of the exchange, if different from that of ``func``.
    """
    check_mode(mode, MODES)
    check_conf(conf)
    num_partitions = partition_count(num_partitions)
    spark = df.sparkSession
    conf = ShuffleConf.of(spark, conf)
    found = found or resolve(df, keys, num_partitions, before, shipped)
    if found.by_spark:
        return _by_spark(func, result_schema, found, num_partitions, shipped, mode)
    codec = found.codec
    in_turn = not codec.keys and num_partitions > 1
    varies = "" if is_connect(df) else unsteady(found.frame, in_turn, in_order)
    chosen = choose(mode, conf.mode, partial(_obstacles, found.frame, held + num_partitions, obstacle))
    if chosen == "blocking" and in_turn and not (in_order and order_is_fixed(found.frame)):
        # A map task that runs again would distribute the same rows differently; Spark's own shuffle sorts them first
        by_spark = "rows without a key go in turn, and their order is not fixed"
        found = dataclasses.replace(found, frame=df, by_spark=by_spark)
        return _by_spark(func, result_schema, found, num_partitions, shipped, chosen)
    df = found.frame
    if func is None:
        func = identity
        if codec.before is None:  # else what is shown has the names that it gives
            codec = dataclasses.replace(codec, shown=codec.bare())
    name = name or getattr(func, "__name__", type(func).__name__)
    log.info("shuffle '%s' into %d partitions: mode='%s'", name, num_partitions, chosen)
    exchange = _Exchange(
        df, func, result_schema, codec, num_partitions, conf, name, reduce_tasks or num_partitions, bool(obstacle)
    )
    made = _blocking(exchange) if chosen == "blocking" else _pipelined(exchange, varies)
    return dataclasses.replace(made, mode=chosen)


def _pipelined(exchange: _Exchange, varies: str) -> Staged:
    df, codec, num_partitions, sc = exchange.df, exchange.codec, exchange.num_partitions, exchange.context
    number, held = exchange.number, upstream.held_by_frame(df)
    if codec.before is not None:
        before: Any = AsItIs(sc, codec.before)
        codec = dataclasses.replace(codec, before=before)
    folds: list[Fold | None] = []

    def folding(partitions: int | None, consumers: int) -> Fold | None:
        # Consumers of another exchange in one task would join it one after the other, and each run its producers
        if held:
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

    spec = exchanges.register(sc, number, exchange.name, num_partitions, exchange.conf, codec, producers, varies)
    frame = requests(df.sparkSession, num_partitions, num_partitions + held, number)
    consumer = Consumer(spec, exchange.func)
    return Staged(frame, exchange.schema, consumer, f"fastbuf_consumer_{number}", in_order=False, numbered=True)


def requests(spark: Any, num_partitions: int, held: int = 0, exchange: str = "") -> DataFrame:
    """One row per partition, each in a partition of its own, with a size that Spark does not know.

    With a known size of so few rows, Spark would expect a small result and broadcast it in a join, however large it is.
    ``held``: slots of the tasks that read them and of consumers before them; 0: they read no exchange.  ``exchange``:
    the one that they read.
    """
    rows = spark.range(0, num_partitions, 1, num_partitions)
    hidden = pyspark_private.of_unknown_size(rows)
    if hidden is None:
        return rows
    frame, read = hidden
    if held:
        upstream.remember(spark.sparkContext, read, held)
        exchanges.lives_with(spark.sparkContext, exchange, read)
    # Then Spark knows that there is a single partition: unions and joins need no shuffle for it
    return frame.coalesce(1) if num_partitions == 1 else frame


def _by_spark(
    func: BatchFunction | None,
    result_schema: StructType,
    found: Keys,
    num_partitions: int,
    shipped: StructType | None,
    mode: str,
) -> Staged:
    """Spark's own shuffle between the same two functions."""
    if mode not in ("auto", "blocking"):
        raise SchemaError(f"mode='{mode}' cannot run: {found.by_spark}; use mode='auto' or 'blocking'")
    log.info("shuffle into %d partitions: Spark's own, since %s", num_partitions, found.by_spark)
    codec, df = found.codec, found.frame
    if shipped is not None:
        assert codec.before is not None
        df = called(df, codec.before, shipped)
    moved = df.repartition(num_partitions, *found.given)
    made = Staged(moved, moved.schema, in_order=False, mode=SPARKS_OWN, why=found.by_spark)
    if func is None:
        return made
    frame = plain(moved)
    second = func if frame is moved else renaming(func, moved.schema.names)
    return dataclasses.replace(made, frame=frame, schema=result_schema, head=Called(Chain((second,))), name="func")


def limits_of(spark: Any, conf: ShuffleConf) -> Limits:
    """The limits of a task that sorts its rows."""
    return Limits(conf.held_bytes(spark.conf.get), conf.spill_directory, conf.batch_rows, conf.batch_bytes)


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A stage that returns its input."""
    return batches


def _obstacles(df: DataFrame, consumers: int, obstacle: str) -> list[str]:
    """Why an exchange over this input cannot be pipelined, with as many consumers in all."""
    found = [*([obstacle] if obstacle else []), *preflight(df.sparkSession, consumers)]
    if not is_connect(df) and df.isStreaming:
        found.append("a streaming input cannot be read by a second job: use mode='blocking'")
    return found


def _blocking(exchange: _Exchange) -> Staged:
    df, number, spark = exchange.df, exchange.number, exchange.df.sparkSession
    about = (number, exchange.name, exchange.num_partitions, exchange.conf, exchange.codec)
    spec = ExchangeSpec(*about) if is_connect(df) else exchanges.register_reports(exchange.context, *about)
    directories = held_directories(spark, exchange.conf)
    # Rows that come through Spark are read as they come, for one partition
    tasks = exchange.reduce_tasks if directories else exchange.num_partitions
    spec = dataclasses.replace(spec, reduce_tasks=tasks, held_directories=directories)
    descriptions = df.mapInArrow(named(MapSide(spec), f"fastbuf_map_{number}"), DESCRIBED)
    moved = descriptions.repartitionById(tasks, SECTION)
    if not exchange.is_special:  # a barrier stage has no union
        moved = of_unknown_size(moved)
    head, name = ReduceSide(spec, exchange.func), f"fastbuf_reduce_{number}"
    return Staged(moved, exchange.schema, head, name, in_order=False, numbered=bool(directories))


def of_unknown_size(df: DataFrame) -> DataFrame:
    """The same rows, of which Spark does not know how many bytes they stand for.

    Descriptions are short.  By their bytes Spark would expect a small result and broadcast it in a join, however large
    it is.  So they are united with no rows of an unknown size.
    """
    return df if is_connect(df) or df.isStreaming else pyspark_private.with_nothing(df) or df
