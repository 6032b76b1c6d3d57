"""Plans a shuffle, on the driver: checks it, chooses the mode, and makes the lazy DataFrame."""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, PreflightError, SchemaError
from fastbuf_spark import exchanges, input_batches
from fastbuf_spark.blocks import PID, SHIPPED, MapSide, ReduceSide
from fastbuf_spark.checks import (
    check_conf,
    check_dataframe,
    check_function,
    check_mode,
    is_connect,
    partition_count,
    preflight,
    slots_of,
    spare_problem,
)
from fastbuf_spark.codec import BatchCodec
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.consumer import Consumer
from fastbuf_spark.determinism import order_is_fixed, unsteady
from fastbuf_spark.folding import fold, folded, partitions_of
from fastbuf_spark.keys import Keys, plain, resolve
from fastbuf_spark.producer import RESULT, Producer
from fastbuf_spark.schema import renaming, struct_type
from fastbuf_spark.shipping import named
from fastbuf_spark.spec import ExchangeSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]

log = logging.getLogger("fastbuf_spark")

MODES = ("auto", "pipelined", "blocking")


def map_in_arrow(
    df: DataFrame,
    func: BatchFunction,
    schema: StructType | str,
    *,
    keys: str | Column | Iterable[str | Column],
    num_partitions: int,
    before: BatchFunction | None = None,
    before_schema: StructType | str | None = None,
    mode: str = "auto",
    conf: ShuffleConf | None = None,
) -> DataFrame:
    """A Python stage, a shuffle by key, and another Python stage.

    The same rows, in the same partitions, as
    ``df.mapInArrow(before, before_schema).repartition(num_partitions, *keys).mapInArrow(func, schema)``.

    Parameters
    ----------
    df
        The input; in modes other than blocking each action on the result computes it again.
    func
        Takes and gives an iterator of record batches, once for each partition after the shuffle.
    schema
        Of what ``func`` gives: a StructType or DDL text.
    keys
        What rows are placed by, as in Spark's ``repartition``: a column's name or a Column, or several of them; of
        ``before_schema``'s columns, if there is a ``before``.  None, ``()``: in turn.  An expression travels as one
        more column.  By strings with a collation, maps, and expressions over ``before_schema``, Spark's own shuffle
        places the rows, in modes auto and blocking alone.
    num_partitions
        Partitions after the shuffle.
    before, before_schema
        As ``func`` and ``schema``, for each input partition before the shuffle.
    mode
        ``"pipelined"``, ``"blocking"``, or ``"auto"``: pipelined where two such shuffles and a producer have slots at
        the same time and the input is the same each time it is read, else blocking.
    conf
        Settings; by default those of the session (``spark.fastbuf.*``).

    Returns
    -------
    DataFrame
        Lazy.

    Raises
    ------
    PreflightError
        The mode that was asked for cannot run here; the message has the figures and what to set.
    ConfigError
        Arguments that contradict each other, or a key that is not found.
    SchemaError
        A column whose type cannot be carried, or a key that Spark does not hash.
    """
    check_dataframe(df)
    check_function("func", func)
    if (before is None) != (before_schema is None):
        raise ConfigError("before and before_schema go together: give both, or neither")
    if before is not None:
        check_function("before", before)
    result_schema = struct_type(schema)
    return _shuffle(df, func, result_schema, keys, num_partitions, before, before_schema, mode, conf)


def _shuffle(
    df: DataFrame,
    func: BatchFunction | None,
    result_schema: StructType,
    keys: Any,
    num_partitions: int,
    before: BatchFunction | None,
    before_schema: StructType | str | None,
    mode: str,
    conf: ShuffleConf | None,
) -> DataFrame:
    check_mode(mode, MODES)
    check_conf(conf)
    num_partitions = partition_count(num_partitions)
    spark = df.sparkSession
    conf = conf or ShuffleConf.from_session(spark)
    shipped = None if before_schema is None else struct_type(before_schema)
    found = resolve(df, keys, num_partitions, before, shipped)
    if found.by_spark:
        return _by_spark(df, func, result_schema, found, num_partitions, shipped, mode)
    codec, varies = found.codec, "" if is_connect(df) else unsteady(found.frame, not found.codec.keys)
    chosen, why = _choose(found.frame, num_partitions, mode, varies)
    if chosen == "blocking" and not codec.keys and not order_is_fixed(found.frame):
        # A map task that runs again would deal the same rows to other partitions; Spark's own sorts them before
        found = dataclasses.replace(found, by_spark="rows without a key go in turn, and their order is not fixed")
        return _by_spark(df, func, result_schema, found, num_partitions, shipped, chosen)
    df = found.frame
    if func is None:
        func, codec = identity, dataclasses.replace(codec, shown=codec.bare())
    name = getattr(func, "__name__", type(func).__name__)
    log.info("shuffle '%s' into %d partitions: mode='%s'%s", name, num_partitions, chosen, f" ({why})" if why else "")
    exchange = secrets.token_hex(16)
    if chosen == "blocking":
        return _blocking(df, func, result_schema, exchange, name, codec, num_partitions, conf)
    return _pipelined(df, func, result_schema, exchange, name, codec, num_partitions, conf, varies)


def _pipelined(
    df: DataFrame,
    func: BatchFunction,
    schema: StructType,
    exchange: str,
    name: str,
    codec: BatchCodec,
    num_partitions: int,
    conf: ShuffleConf,
    varies: str,
) -> DataFrame:
    sc = df.sparkSession.sparkContext

    def producers(spec: ExchangeSpec, epoch: int, targets: list[exchanges.Target]) -> Callable[[], Any]:
        def action() -> Any:
            how = fold(partitions_of(df), (slots_of(sc) or num_partitions + 1) - len(targets))
            marked = how is not None and codec.before is not None
            source = df if how is None else folded(df, how, marked)
            producer = Producer(spec, epoch, targets, how if marked else None)
            # In the job's own thread, so that these properties are this job's alone
            for key, value in input_batches.properties(df, spec.conf.max_row_bytes).items():
                sc.setLocalProperty(key, value)
            return source.mapInArrow(named(producer.batches, f"fastbuf_producer_{exchange}"), RESULT).collect()

        return action

    spec = exchanges.register(sc, exchange, name, num_partitions, conf, codec, producers, varies)
    requests = _requests(df.sparkSession, num_partitions)
    return requests.mapInArrow(named(Consumer(spec, func).batches, f"fastbuf_consumer_{exchange}"), schema)


def _requests(spark: Any, num_partitions: int) -> DataFrame:
    """One row for each partition, in a partition of its own, of a size that Spark does not know.

    Of so few rows Spark would think that the result is small, and broadcast it in a join, however large it is.
    """
    from pyspark.sql import DataFrame

    rows = spark.range(0, num_partitions, 1, num_partitions)
    try:
        made = rows._jdf.queryExecution().toRdd(), rows._jdf.schema(), False
        requests = DataFrame(spark._jsparkSession.internalCreateDataFrame(*made), spark)
        # Spark knows then that it is a single one, as it knows of its own: unions and joins need no shuffle for it
        return requests.coalesce(1) if num_partitions == 1 else requests
    except Exception as error:  # not public: another version may not have it
        log.debug("the size of the result is not hidden from Spark: %s", error)
        return rows


def repartition(
    df: DataFrame, num_partitions: int, *keys: str | Column, mode: str = "auto", conf: ShuffleConf | None = None
) -> DataFrame:
    """The rows of a DataFrame in other partitions; the same placement as ``df.repartition(num_partitions, *keys)``.

    Parameters are those of :func:`map_in_arrow`.  Without keys rows go to the partitions in turn.
    """
    check_dataframe(df)
    bare = plain(df)
    made = _shuffle(df, None, bare.schema, keys, num_partitions, None, None, mode, conf)
    return made if bare is df else made.toDF(*df.schema.names)


def _by_spark(
    df: DataFrame,
    func: BatchFunction | None,
    result_schema: StructType,
    found: Keys,
    num_partitions: int,
    shipped: StructType | None,
    mode: str,
) -> DataFrame:
    """Spark's own shuffle between the same two functions."""
    if mode not in ("auto", "blocking"):
        raise SchemaError(f"mode='{mode}' cannot run: {found.by_spark}; use mode='auto' or 'blocking', or another key")
    log.info("shuffle into %d partitions: Spark's own, since %s", num_partitions, found.by_spark)
    codec = found.codec
    if shipped is not None:
        assert codec.before is not None
        first = codec.before if codec.given is None else renaming(codec.before, codec.given)
        df = found.frame.mapInArrow(named(lambda batches: iter(first(batches)), "before"), shipped)
    moved = df.repartition(num_partitions, *found.given)
    if func is None:
        return moved
    frame = plain(moved)
    second = func if frame is moved else renaming(func, moved.schema.names)
    return frame.mapInArrow(named(lambda batches: iter(second(batches)), "func"), result_schema)


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The stage that does nothing."""
    return batches


def _choose(df: DataFrame, num_partitions: int, mode: str, varies: str) -> tuple[str, str]:
    """The mode that will run, and why it is not pipelined if it was left open."""
    if mode == "blocking":
        return mode, ""
    problems = list(preflight(df.sparkSession, num_partitions))
    if not is_connect(df):
        if df.isStreaming:
            problems.append("a streaming input cannot be read by a second job: use mode='blocking'")
        if mode == "auto" and not problems:
            spare = spare_problem(df.sparkSession.sparkContext, num_partitions)
            problems += [spare] if spare else [f"its input is not deterministic: {varies}"] if varies else []
    if not problems:
        return "pipelined", ""
    if mode == "auto":
        return "blocking", "not pipelined: " + "; ".join(problems)
    raise PreflightError(f"mode='{mode}' cannot run: " + "; ".join(problems))


def _blocking(
    df: DataFrame,
    func: BatchFunction,
    schema: StructType,
    exchange: str,
    name: str,
    codec: BatchCodec,
    num_partitions: int,
    conf: ShuffleConf,
) -> DataFrame:
    if is_connect(df):
        spec = ExchangeSpec(exchange, name, num_partitions, conf, codec)
    else:
        spec = exchanges.register_reports(df.sparkSession.sparkContext, exchange, name, num_partitions, conf, codec)
    blocks = df.mapInArrow(named(MapSide(spec), f"fastbuf_map_{exchange}"), SHIPPED)
    moved = blocks.repartitionById(num_partitions, PID)
    return moved.mapInArrow(named(ReduceSide(spec, func), f"fastbuf_reduce_{exchange}"), schema)
