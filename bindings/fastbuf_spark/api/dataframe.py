"""Shuffles of DataFrames: to partitions, and to groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.api.cogroups import Cogroups
from fastbuf_spark.api.groups import Grouped, Groups, Verb
from fastbuf_spark.api.pipelines import Pipeline, entered
from fastbuf_spark.conf import MODES, ShuffleConf
from fastbuf_spark.driver.checks import (
    check_barrier,
    check_conf,
    check_function,
    check_mode,
    partition_count,
    special_tasks,
)
from fastbuf_spark.driver.keys import as_keys
from fastbuf_spark.driver.plan import Shuffle
from fastbuf_spark.driver.staged import Staged
from fastbuf_spark.results import Checked, iterables
from fastbuf_spark.schema import struct_type

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from fastbuf_spark.schema import BatchFunction


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
    barrier: bool = False,
    profile: ResourceProfile | None = None,
) -> DataFrame:
    """Run a Python stage, a shuffle by key, and another Python stage.

    The result has the same rows, in the same partitions, as
    ``df.mapInArrow(before, before_schema).repartition(num_partitions, *keys).mapInArrow(func, schema)``.

    Parameters
    ----------
    df
        The input: a DataFrame, or a :class:`Pipeline`, whose last functions then run in the same tasks as ``before``.
        In pipelined mode each action on the result computes the input again.
    func
        Takes and returns an iterator of record batches; called once for each partition after the shuffle.  As in Spark
        anything that can be iterated over will do, unless
        ``spark.sql.execution.pythonUDF.mapInBatch.legacy.acceptAnyIterable.enabled`` is false.
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
        A function like ``func``, called for each input partition before the shuffle, and its output schema.  Its
        columns are cast to the schema's types where each value stays the same, as an int32 to a long; a double for a
        float, a timestamp for a date and the like are errors.  Those of ``func`` must have the types, as in Spark.
    mode
        ``"blocking"``: two stages of Spark, one after the other; rows wait in files of the map tasks.
        ``"pipelined"``: both at the same time, which takes a slot for each partition and one for a producer.
        ``"auto"``: what ``spark.fastbuf.mode`` says, blocking if it says nothing.
    conf
        Settings; default: those of the session (``spark.fastbuf.*``).
    barrier, profile
        As for Spark's ``mapInArrow``, of the stage that ``func`` is in: run its tasks all at once, as a barrier stage;
        what executors and tasks they need.  Not in pipelined mode.

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

    Notes
    -----
    The session's settings that functions see, as its time zone and ``spark.sql.execution.arrow.useLargeVarTypes``, are
    those at the time of this call; Spark reads them when it plans an action.
    """
    check_function("func", func)
    if (before is None) != (before_schema is None):
        raise ConfigError("before and before_schema go together: give both, or neither")
    if before is not None:
        check_function("before", before)
    result_schema = struct_type(schema)
    shipped = None if before_schema is None else struct_type(before_schema)
    at, held_slots = entered(df, before, shipped)
    shuffle = Shuffle(at, keys, num_partitions, mode, conf, held_slots, obstacle=special_tasks(barrier, profile))
    check_barrier(shuffle.spark, barrier, num_partitions)
    stage = shuffle.into(Checked(func, result_schema, iterables(shuffle.spark)), result_schema)
    return stage.to_df(barrier, profile)


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
    at, held_slots = entered(df, None, None)
    return Shuffle(at, keys, num_partitions, mode, conf, held_slots).moved().to_df()


def group_by(
    df: DataFrame | Pipeline,
    *keys: str | Column,
    num_partitions: int,
    sort_by: str | Column | Iterable[str | Column] | None = None,
    before: BatchFunction | None = None,
    before_schema: StructType | str | None = None,
    mode: str = "auto",
    conf: ShuffleConf | None = None,
) -> Grouped[DataFrame]:
    """Group the rows of a DataFrame by key, for a function that is called once for each group.

    The groups are those of ``df.groupBy(*keys)``, in the partitions of ``df.repartition(num_partitions, *keys)``.

    Parameters
    ----------
    df
        The input, a DataFrame or a :class:`Pipeline`; except in blocking mode, each action on the result computes it
        again.
    *keys
        Column names, Columns or expressions to group by; with ``before``, of ``before_schema``'s columns.  Null keys
        form one group, as do NaN keys, and 0.0 and -0.0.  None: all rows are one group, with the key ``()``.
    num_partitions
        Partitions after the shuffle; without keys one, as with Spark.
    sort_by
        Columns that the rows of a group are sorted by, as in Spark: ascending, with null first and NaN last, or
        descending with ``F.desc("x")`` or ``F.col("x").desc()``.
    before, before_schema
        A function over record batches, called for each input partition before the shuffle, and its output schema.
    mode
        ``"pipelined"``, ``"blocking"`` or ``"auto"``, as in :func:`map_in_arrow`.
    conf
        Settings; default: those of the session (``spark.fastbuf.*``).

    Returns
    -------
    Grouped

    Raises
    ------
    ConfigError
        A key that is not found, or arguments that contradict each other.
    SchemaError
        A key that Spark does not group by.

    Notes
    -----
    Rows that do not fit into ``memory_bytes`` are sorted in runs, written to nameless files, and merged; so a function
    that takes iterators can get a group of any length.  For keys that only Spark can compare (strings with a
    collation), modes auto and blocking use Spark's own ``groupBy``.
    """
    if (before is None) != (before_schema is None):
        raise ConfigError("before and before_schema go together: give both, or neither")
    if before is not None:
        check_function("before", before)
    check_mode(mode, MODES)
    shipped = None if before_schema is None else struct_type(before_schema)
    at, held_slots = entered(df, before, shipped)
    check_conf(conf)
    key_columns, count = as_keys(keys), partition_count(num_partitions)
    order = () if sort_by is None else as_keys(sort_by)
    return Grouped(_Stage(at, held_slots, conf), key_columns, count if key_columns else 1, order, mode)


@dataclass(frozen=True)
class _Stage:
    """What is grouped, where the methods of groups give a DataFrame at once."""

    at: Staged
    held_slots: int
    conf: ShuffleConf | None

    def groups(self, of: Grouped[DataFrame]) -> Groups:
        return Groups(
            Shuffle(self.at, of._keys, of._partitions or 1, of._mode, self.conf, self.held_slots), of._sort_by
        )

    def _grouped(self, groups: Grouped[DataFrame], verb: Verb) -> DataFrame:
        return verb.stage(self.groups(groups), verb.func).to_df()

    def _cogrouped(self, left: Grouped[DataFrame], right: Grouped[DataFrame], verb: Verb) -> DataFrame:
        other: Any = right._source
        return verb.stage(Cogroups(self.groups(left), other.groups(right)), verb.func).to_df()
