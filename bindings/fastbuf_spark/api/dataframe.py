"""Shuffles of DataFrames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastbuf.errors import ConfigError
from fastbuf_spark.api.pipelines import entered
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver.checks import check_function
from fastbuf_spark.driver.keys import plain
from fastbuf_spark.driver.plan import shuffle
from fastbuf_spark.schema import struct_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from fastbuf_spark.api.pipelines import Pipeline
    from fastbuf_spark.driver.plan import BatchFunction


def map_in_arrow(
    df: DataFrame | Pipeline,
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
    """Run a Python stage, a shuffle by key, and another Python stage.

    The result has the same rows, in the same partitions, as
    ``df.mapInArrow(before, before_schema).repartition(num_partitions, *keys).mapInArrow(func, schema)``.

    Parameters
    ----------
    df
        The input: a DataFrame, or a :class:`Pipeline`, whose last functions then run in the same tasks as ``before``.
        Except in blocking mode, each action on the result computes the input again.
    func
        Takes and returns an iterator of record batches; called once for each partition after the shuffle.
    schema
        Output schema of ``func``: a StructType or DDL text.
    keys
        Columns to partition by, as in Spark's ``repartition``: a column's name or a Column, or several of them; with
        ``before``, of ``before_schema``'s columns.  ``()``: distribute rows in turn.  An expression is sent as an
        additional column.  For strings with a collation, maps, and expressions over ``before_schema``, Spark's own
        shuffle is used, in modes auto and blocking only.
    num_partitions
        Partitions after the shuffle.
    before, before_schema
        A function like ``func``, called for each input partition before the shuffle, and its output schema.
    mode
        ``"pipelined"``, ``"blocking"``, or ``"auto"``.  Auto is pipelined if the input is the same each time it is
        read, and Spark has slots for two such shuffles and a producer at the same time, besides all shuffles that the
        input reads; else blocking.
    conf
        Settings; default: those of the session (``spark.fastbuf.*``).

    Returns
    -------
    DataFrame
        Lazy.

    Raises
    ------
    PreflightError
        The requested mode cannot run here; the message has the figures and the settings to change.
    ConfigError
        Arguments that contradict each other, or a key that is not found.
    SchemaError
        A column's type is not supported, or Spark cannot hash a key.
    """
    check_function("func", func)
    if (before is None) != (before_schema is None):
        raise ConfigError("before and before_schema go together: give both, or neither")
    if before is not None:
        check_function("before", before)
    result_schema = struct_type(schema)
    shipped = None if before_schema is None else struct_type(before_schema)
    df, before, shipped, known = entered(df, before, shipped)
    return shuffle(df, func, result_schema, keys, num_partitions, before, shipped, mode, conf, **known)


def repartition(
    df: DataFrame | Pipeline,
    num_partitions: int,
    *keys: str | Column,
    mode: str = "auto",
    conf: ShuffleConf | None = None,
) -> DataFrame:
    """Partition the rows of a DataFrame like ``df.repartition(num_partitions, *keys)``.

    Parameters are those of :func:`map_in_arrow`.  Without keys, rows are distributed in turn.
    """
    df, before, shipped, known = entered(df, None, None)
    if shipped is not None:
        return shuffle(df, None, shipped, keys, num_partitions, before, shipped, mode, conf, **known)
    bare = plain(df)
    made = shuffle(df, None, bare.schema, keys, num_partitions, None, None, mode, conf)
    return made if bare is df else made.toDF(*df.schema.names)
