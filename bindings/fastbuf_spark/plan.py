"""Plans a shuffle, on the driver: checks it, chooses the mode, and makes the lazy DataFrame."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, PreflightError
from fastbuf_spark import exchanges, input_batches
from fastbuf_spark.blocks import PID, SHIPPED, MapSide, ReduceSide
from fastbuf_spark.checks import is_connect, partitions_of, preflight
from fastbuf_spark.codec import BatchCodec
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.consumer import Consumer
from fastbuf_spark.producer import RESULT, Producer
from fastbuf_spark.schema import arrow_schema, session_zone, struct_type
from fastbuf_spark.spec import ExchangeSpec
from fastbuf_spark.stage import FusedTask

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]

log = logging.getLogger("fastbuf_spark")

MODES = ("auto", "pipelined", "fused", "blocking")
LIMIT_SETTING = "spark.sql.limit.initialNumPartitions"


def map_in_arrow(
    df: DataFrame,
    func: BatchFunction,
    schema: StructType | str,
    *,
    keys: str | Iterable[str],
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
        Columns (of ``before_schema``, if there is a ``before``) by whose hash rows are placed; none: in turn.
    num_partitions
        Partitions after the shuffle.
    before, before_schema
        As ``func`` and ``schema``, for each input partition before the shuffle.
    mode
        ``"pipelined"``, ``"fused"``, ``"blocking"``, or ``"auto"``: pipelined where :func:`preflight` allows it, else
        blocking.
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
        Arguments that contradict each other.
    SchemaError
        A column whose type cannot be carried, or a key that Spark does not hash.
    """
    if (before is None) != (before_schema is None):
        raise ConfigError("before and before_schema go together: give both, or neither")
    spark = df.sparkSession
    conf = conf or ShuffleConf.from_session(spark)
    zone = session_zone(spark)
    shipped = struct_type(before_schema) if before_schema is not None else df.schema
    codec = BatchCodec(arrow_schema(shipped, zone), (keys,) if isinstance(keys, str) else tuple(keys), before)
    _check(codec, num_partitions, mode)
    chosen, why = _choose(df, num_partitions, mode)
    below = 0 if chosen == "blocking" else exchanges.chain_below(df)
    name = getattr(func, "__name__", type(func).__name__)
    log.info("shuffle '%s' into %d partitions: mode='%s'%s", name, num_partitions, chosen, f" ({why})" if why else "")
    exchange = secrets.token_hex(16)
    result_schema = struct_type(schema)
    if chosen == "blocking":
        return _blocking(df, func, result_schema, exchange, name, codec, num_partitions, conf)
    _allow_limits(spark, num_partitions)
    if chosen == "fused":
        spec = exchanges.register(
            spark.sparkContext,
            exchange,
            name,
            num_partitions,
            conf,
            codec,
            None,
            below,
            exchanges.limited(spark, exchange),
        )
        return df.mapInArrow(named(FusedTask(spec, func), f"fastbuf_fused_{exchange}"), result_schema, barrier=True)

    def producers(spec: ExchangeSpec, epoch: int, targets: list[tuple[str, int, int]]) -> Callable[[], Any]:
        call = named(Producer(spec, epoch, targets).batches, f"fastbuf_producer_{exchange}")

        def action() -> Any:
            # In the job's own thread, so that these properties are this job's alone
            for key, value in input_batches.properties(df, spec.conf.max_row_bytes).items():
                spark.sparkContext.setLocalProperty(key, value)
            return df.mapInArrow(call, RESULT).collect()

        return action

    spec = exchanges.register(spark.sparkContext, exchange, name, num_partitions, conf, codec, producers, below)
    tasks = spark.range(0, num_partitions, 1, num_partitions)
    return tasks.mapInArrow(named(Consumer(spec, func), f"fastbuf_consumer_{exchange}"), result_schema, barrier=True)


def repartition(
    df: DataFrame, num_partitions: int, *keys: str, mode: str = "auto", conf: ShuffleConf | None = None
) -> DataFrame:
    """The rows of a DataFrame in other partitions; the same placement as ``df.repartition(num_partitions, *keys)``.

    Parameters are those of :func:`map_in_arrow`.  Without keys rows go to the partitions in turn.
    """
    return map_in_arrow(df, identity, df.schema, keys=keys, num_partitions=num_partitions, mode=mode, conf=conf)


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The stage that does nothing."""
    return batches


def named(call: Callable[[Iterator[Any]], Iterator[Any]], name: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A plain function, as ``mapInArrow`` wants one, that Spark's plans call by this name."""

    def stage(batches: Iterator[Any]) -> Iterator[Any]:
        return call(batches)

    stage.__name__ = stage.__qualname__ = name
    return stage


def _check(codec: BatchCodec, num_partitions: int, mode: str) -> None:
    import pyarrow as pa

    from fastbuf.serializers.columnar import ColumnarSerializer
    from fastbuf.serializers.partition import HashPartitioner

    if mode not in MODES:
        raise ConfigError(f"mode is {mode!r}: it must be one of {', '.join(MODES)}")
    if isinstance(num_partitions, bool) or not isinstance(num_partitions, int) or num_partitions < 1:
        raise ConfigError(f"num_partitions is {num_partitions!r}: it must be a number from 1 up, and is never guessed")
    unknown = [key for key in codec.keys if not isinstance(key, str) or key not in codec.schema.names]
    if unknown:
        raise ConfigError(f"no key column {unknown}; what is shuffled has the columns {codec.schema.names}")
    # A type that cannot be carried, or a key that Spark does not hash, is told here and not by a task
    ColumnarSerializer(codec.schema)
    if codec.keys:
        empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in codec.schema], schema=codec.schema)
        HashPartitioner(codec.keys, num_partitions).partition(empty)


def _choose(df: DataFrame, num_partitions: int, mode: str) -> tuple[str, str]:
    """The mode that will run, and why it is not pipelined if it was left open."""
    if mode == "blocking":
        return mode, ""
    wanted = "pipelined" if mode == "auto" else mode
    problems = list(preflight(df.sparkSession, num_partitions, wanted))
    if not is_connect(df):
        if df.isStreaming and wanted == "pipelined":
            problems.append("a streaming input cannot be read by a second job: use mode='fused' or 'blocking'")
        if not problems and wanted == "pipelined":
            problems += exchanges.chain_problems(df, num_partitions)
        if not problems and wanted == "fused":
            problems += _fused_problems(df, num_partitions)
    if not problems:
        return wanted, ""
    if mode == "auto":
        return "blocking", "pipelined cannot run: " + "; ".join(problems)
    raise PreflightError(f"mode='{mode}' cannot run: " + "; ".join(problems))


def _fused_problems(df: DataFrame, num_partitions: int) -> list[str]:
    found = partitions_of(df)
    if found is None or found == num_partitions:
        return []  # an unknown count is checked by the tasks
    return [
        f"a fused stage has as many partitions out as in, and the input has {found}, not {num_partitions}: use "
        f"num_partitions={found}, repartition the input yourself, or mode='pipelined' or 'blocking'"
    ]


def _allow_limits(spark: Any, num_partitions: int) -> None:
    """Have ``show``, ``take``, ``head`` and ``limit`` run all partitions at once, as a barrier stage must."""
    if int(spark.conf.get(LIMIT_SETTING, "1")) < num_partitions:
        spark.conf.set(LIMIT_SETTING, str(num_partitions))
        log.info(
            "set %s=%d in this Spark session, since a barrier stage runs all its partitions",
            LIMIT_SETTING,
            num_partitions,
        )


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
