"""Pipelines: chains of stages, that is maps that share a task, and shuffles between them."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fastbuf.errors import ConfigError
from fastbuf_spark.api.cogroups import Cogrouped, Cogroups
from fastbuf_spark.api.functions import check_converters, pandas_rules
from fastbuf_spark.api.groups import Grouped, Groups, Verb
from fastbuf_spark.conf import MODES, ShuffleConf
from fastbuf_spark.driver import pipeline as steps
from fastbuf_spark.driver.checks import (
    check_conf,
    check_dataframe,
    check_function,
    check_mode,
    check_session,
    is_connect,
    partition_count_or_none,
)
from fastbuf_spark.driver.jobs import cancelled_with
from fastbuf_spark.driver.keys import as_keys
from fastbuf_spark.driver.plan import SPARKS_OWN
from fastbuf_spark.driver.selection import Selection
from fastbuf_spark.driver.sources import Source
from fastbuf_spark.driver.staged import Staged
from fastbuf_spark.expressions import check_filter
from fastbuf_spark.results import Checked, iterables, name_of
from fastbuf_spark.schema import arrow_schema, large_types, session_zone, struct_type
from fastbuf_spark.shipping import AsItIs
from fastbuf_spark.worker.steps import Filter, PandasMap, count_rows

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.resource import ResourceProfile
    from pyspark.sql import Column, DataFrame, Row
    from pyspark.sql.types import StructType

    from fastbuf_spark.api.sinks import Written
    from fastbuf_spark.schema import BatchFunction

    FrameFunction = Callable[[Iterator[pd.DataFrame]], Iterable[pd.DataFrame]]


def pipeline(source: Any, *, conf: ShuffleConf | None = None) -> Pipeline:
    """Start a chain of stages from a DataFrame, or from files that the workers read.

    Parameters
    ----------
    source
        A DataFrame, or the result of ``read_parquet`` or a similar function.
    conf
        Settings of all its shuffles; default: those of the session (``spark.fastbuf.*``).  A task that takes part in
        two shuffles uses half of ``memory_bytes`` for each.

    Returns
    -------
    Pipeline
    """
    check_conf(conf)
    if isinstance(source, Pipeline):
        return source if conf is None else Pipeline(source._start, source._verbs, conf)
    check_dataframe(source)
    return Pipeline(source, conf=conf)


class Pipeline:
    """A chain of stages, made by :func:`pipeline` or ``read_parquet``.  Each method returns a new one; nothing runs.

    Functions without a shuffle between them are called in the same task, each with the output of the one before.  The
    sending and the receiving side of a shuffle also run in the tasks of the functions next to them.  Between stages no
    row enters the JVM.  Every function takes and returns an iterator, and is called once for each partition.

    Shuffles have a mode, as in :func:`map_in_arrow`; :meth:`explain` shows it.  Where nobody can count the partitions
    behind a blocking shuffle, a task serves several, one after the other: in front of another shuffle, and of all
    actions but those on :meth:`to_df`.
    """

    def __init__(
        self,
        start: Source | DataFrame,
        verbs: tuple[steps.Step, ...] = (),
        conf: ShuffleConf | None = None,
    ) -> None:
        self._start = start
        self._verbs = verbs
        self._conf = conf
        self._built: dict[bool, tuple[Staged, steps.Plan]] = {}

    def _then(self, step: steps.Step) -> Pipeline:
        return Pipeline(self._start, (*self._verbs, step), self._conf)

    def map_in_arrow(
        self,
        func: BatchFunction,
        schema: StructType | str,
        *,
        barrier: bool = False,
        profile: ResourceProfile | None = None,
    ) -> Pipeline:
        """Call a function over record batches, as Spark's ``mapInArrow`` does.

        Parameters
        ----------
        func
            Takes and returns an iterator of ``pyarrow.RecordBatch``.
        schema
            Output schema of ``func``: a StructType or DDL text.
        barrier, profile
            As for Spark's ``mapInArrow``, of the stage that the function is in: it ends there, and a shuffle that it
            begins with is not pipelined.
        """
        check_function("func", func)
        special = steps.Special.of(barrier, profile)
        return self._then(steps.Map(self._as_it_is(func), struct_type(schema), name_of(func), None, special))

    def map_in_pandas(
        self,
        func: FrameFunction,
        schema: StructType | str,
        *,
        barrier: bool = False,
        profile: ResourceProfile | None = None,
    ) -> Pipeline:
        """Call a function over pandas DataFrames, as Spark's ``mapInPandas`` does.

        Parameters
        ----------
        func
            Takes and returns an iterator of ``pandas.DataFrame``.
        schema
            Output schema of ``func``: a StructType or DDL text.
        barrier, profile
            As for :meth:`map_in_arrow`.
        """
        check_function("func", func, "takes an iterator of pandas.DataFrame and returns one")
        check_converters("use map_in_arrow, or to_df().mapInPandas")
        result, sent, special = struct_type(schema), self._as_it_is(func), steps.Special.of(barrier, profile)
        return self._then(steps.Map(sent, result, name_of(func), partial(_pandas_map, sent, result), special))

    def filter(self, expression: Any) -> Pipeline:
        """Keep the rows for which an expression is true.

        Parameters
        ----------
        expression
            A ``pyarrow.compute`` expression, as in ``pc.field("amount") > 3``.  Directly after a source it is applied
            when the files are read.  For a Column or SQL text, filter Spark's DataFrame before.
        """
        if isinstance(self._start, Source) and not self._verbs:
            return Pipeline(self._start.filtered(expression), (), self._conf)
        if not type(expression).__module__.startswith("pyarrow"):
            check_filter(expression, None)
        return self._then(steps.Map(Filter(expression), None, "filter", partial(_filter, expression)))

    def select(self, *columns: str, **expressions: Any) -> Pipeline:
        """Keep some columns, and compute others, in the order in which they are given.

        Parameters
        ----------
        *columns
            Names.
        **expressions
            ``pyarrow.compute`` expressions by the names of their columns, as in ``total=pc.field("price") * 2``.  What
            they give of nulls, NaN, decimals and casts of times is Arrow's, and not always what Spark's SQL gives.
        """
        return self._then(steps.Select(Selection.of(columns, expressions)))

    def start_new_chain(self) -> Pipeline:
        """Call the following functions in separate Python processes, to which rows go through the JVM.

        For functions that must not share a process, or that shall use a second core of their task.
        """
        return self._then(steps.NewChain())

    def shuffle(self, *keys: str | Column, partitions: int | None = None, mode: str = "auto") -> Pipeline:
        """Partition the rows by keys, as ``df.repartition(partitions, *keys)`` does.

        Parameters
        ----------
        *keys
            Names of columns, or Columns.
        partitions
            Partitions after the shuffle; default: as many as the shuffle before.  For the first shuffle: as many as
            Spark has slots, or more of large files; of a pipelined one half of the slots, or fewer, so that all
            shuffles of the pipeline have slots at the same time.
        mode
            ``"pipelined"``, ``"blocking"`` or ``"auto"``.
        """
        key_columns = as_keys(keys)
        if not key_columns:
            raise ConfigError("shuffle has no keys: name a column, or use rebalance() to distribute rows in turn")
        return self._then(steps.Repartition(key_columns, partition_count_or_none(partitions), _mode(mode)))

    def rebalance(self, partitions: int | None = None, mode: str = "auto") -> Pipeline:
        """Distribute rows evenly over the partitions, in turn.  Parameters are those of :meth:`shuffle`."""
        return self._then(steps.Repartition((), partition_count_or_none(partitions), _mode(mode)))

    def broadcast(self, partitions: int | None = None, mode: str = "auto") -> Pipeline:
        """Send all rows to every partition, so that the result has one copy of each row per partition.

        Parameters are those of :meth:`shuffle`.
        """
        return self._then(steps.Broadcast(partition_count_or_none(partitions), _mode(mode)))

    def random_shuffle(self, seed: int, partitions: int | None = None, mode: str = "auto") -> Pipeline:
        """Put the rows into a random order, over all partitions and within each; for training data.

        Parameters
        ----------
        seed
            The same seed gives the same order for the same files, split in the same way: after a source and maps, the
            order depends on a row's position.  Elsewhere it depends on its values, so equal rows stay together.
        partitions, mode
            As for :meth:`shuffle`.

        Notes
        -----
        Rows that do not fit into a task's memory (``memory_bytes`` if given, else ``spark.python.worker.memory``) are
        sorted in nameless files.
        """
        if isinstance(seed, bool | np.bool_) or not hasattr(seed, "__index__"):
            raise ConfigError(f"seed is {seed!r}: give a whole number")
        number = operator.index(seed)
        return self._then(steps.RandomShuffle(number, partition_count_or_none(partitions), _mode(mode)))

    def group_by(
        self,
        *keys: str | Column,
        partitions: int | None = None,
        sort_by: str | Column | Iterable[str | Column] | None = None,
        mode: str = "auto",
    ) -> PipelineGroups:
        """Group the rows by key, for a function that is called once for each group; see :func:`fastbuf_spark.group_by`.

        Parameters
        ----------
        *keys, sort_by
            As for :func:`fastbuf_spark.group_by`.
        partitions, mode
            As for :meth:`shuffle`.
        """
        key_columns = as_keys(keys)
        order = () if sort_by is None else as_keys(sort_by)
        return PipelineGroups(self, key_columns, partition_count_or_none(partitions), order, _mode(mode))

    def _grouped(self, groups: Grouped[Any], verb: Verb) -> Pipeline:
        """With a step that calls a method of groups."""
        return self._then(_GroupStep(verb, verb.func and self._as_it_is(verb.func), groups))

    def _cogrouped(self, left: Grouped[Any], right: Grouped[Any], verb: Verb) -> Pipeline:
        """The same of two pipelines' groups."""
        return self._then(_GroupStep(verb, self._as_it_is(verb.func), left, right))

    def to_df(self) -> DataFrame:
        """The result as an ordinary DataFrame; lazy, and each action on it runs the pipeline again."""
        return self._staged(shared=True).to_df()

    def collect(self) -> list[Row]:
        """The rows, on the driver."""
        df = self._staged(shared=False).to_df()
        with cancelled_with(self._session):
            return df.collect()

    def to_arrow(self) -> pa.Table:
        """The rows as one table, on the driver."""
        df = self._staged(shared=False).to_df()
        with cancelled_with(self._session):
            return df.toArrow()

    def count(self) -> int:
        """The number of rows; the workers count them, and send no rows."""
        df = self._staged(shared=False).then(count_rows, struct_type("rows long")).to_df()
        with cancelled_with(self._session):
            return sum(row[0] for row in df.collect())

    def write_parquet(
        self,
        path: Any,
        partition_by: str | Iterable[str] | None = None,
        mode: str = "error",
        *,
        compression: str | None = None,
        row_group_size: int | None = None,
        filesystem: Any = None,
    ) -> Written:
        """Write the rows to Parquet files; see :func:`fastbuf_spark.write_parquet`."""
        from fastbuf_spark.api.sinks import write_parquet

        how: dict[str, Any] = {"compression": compression, "row_group_size": row_group_size, "filesystem": filesystem}
        return write_parquet(self, path, partition_by, mode, **how)

    def write_ipc(
        self, path: Any, partition_by: str | Iterable[str] | None = None, mode: str = "error", **options: Any
    ) -> Written:
        """Write the rows to Arrow IPC files; see :func:`fastbuf_spark.write_ipc`."""
        from fastbuf_spark.api.sinks import write_ipc

        return write_ipc(self, path, partition_by, mode, **options)

    def write_delta(
        self, path: Any, mode: str = "append", partition_by: str | Iterable[str] | None = None, **options: Any
    ) -> Written:
        """Write the rows to a Delta table; see :func:`fastbuf_spark.write_delta`."""
        from fastbuf_spark.api.tables import write_delta

        return write_delta(self, path, mode, partition_by, **options)

    def write_iceberg(
        self,
        catalog: Any,
        table: Any,
        mode: str = "append",
        partition_by: str | Iterable[str] | None = None,
        **options: Any,
    ) -> Written:
        """Write the rows to an Iceberg table; see :func:`fastbuf_spark.write_iceberg`."""
        from fastbuf_spark.api.iceberg import write_iceberg

        return write_iceberg(self, catalog, table, mode, partition_by, **options)

    @property
    def schema(self) -> StructType:
        """Schema of the result."""
        return self._staged(shared=True).schema

    def explain(self) -> None:
        """Print the plan: stages, the functions chained in each, slots, memory, modes and the reasons for them."""
        print(self._terminal()[1].text())

    def __repr__(self) -> str:
        start = self._start.about if isinstance(self._start, Source) else repr(self._start)
        return f"Pipeline({start}, {len(self._verbs)} steps)"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            from pyspark.sql import DataFrame

            if not name.startswith("_") and hasattr(DataFrame, name):
                raise AttributeError(f"a Pipeline has no {name}: use that of its DataFrame, .to_df().{name}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def _session(self) -> Any:
        return self._start.spark if isinstance(self._start, Source) else self._start.sparkSession

    def _as_it_is(self, func: Any) -> Any:
        return AsItIs(None if is_connect(self._session) else self._session.sparkContext, func)

    def _terminal(self) -> tuple[Staged, steps.Plan]:
        """The last stage, for an action of the pipeline itself, and the plan."""
        self._staged(shared=False)
        return self._built[False]

    def _staged(self, shared: bool) -> Staged:
        check_session(self._session)
        if shared not in self._built:
            self._built[shared] = steps.build(self._start, self._verbs, self._conf, shared)
        return self._built[shared][0]


class PipelineGroups(Grouped["Pipeline"]):
    """Rows of a pipeline grouped by key, made by :meth:`Pipeline.group_by`: :class:`Grouped`, and methods give a
    Pipeline.
    """

    _counted = "partitions"


class PipelineCogroups(Cogrouped["Pipeline"]):
    """The rows of two pipelines by key, as :meth:`PipelineGroups.cogroup` gives them: see :class:`Cogrouped`."""


PipelineGroups._cogrouped = PipelineCogroups


@dataclasses.dataclass(frozen=True)
class _GroupStep:
    """A verb of groups, or of two groups, as a step of the (left) pipeline."""

    verb: Verb
    sent: Any
    left: Grouped[Pipeline]
    right: Grouped[Pipeline] | None = None

    @property
    def exchanges(self) -> int:
        return 1 if self.right is None else 1 + steps.exchanges_of(_source(self.right)._verbs)

    def build(self, at: Staged, plan: steps.Plan) -> Staged:
        left, right, numbers = self.left, self.right, [len(plan.stages)]
        sides = [side for side in (left, right) if side is not None]
        by = [", ".join(map(str, side._keys)) or "nothing" for side in sides]
        if right is not None:
            other = plan.follow_beside(_source(right)._start, _source(right)._verbs)
            numbers.append(len(plan.stages))
        count = plan.count(next((side._partitions for side in sides if side._partitions), None), left._mode)
        count = count if left._keys else 1

        def groups(side: Grouped[Pipeline], at: Staged) -> Groups:
            return Groups(plan.shuffle(at, side._keys, count, side._mode), side._sort_by)

        if right is None:
            stage, what = self.verb.stage(groups(left, at), self.sent), f"group by {by[0]}"
        else:
            both = Cogroups(groups(left, at), groups(right, other))
            stage = self.verb.stage(both, self.sent)
            for number, through_jvm in zip(numbers, both.through_jvm(), strict=True):
                if through_jvm:
                    plan.stages[number - 1].links.append("rows through the JVM")
            keys = " and ".join(dict.fromkeys(by))
            what = f"cogroup of stages {numbers[0]} and {numbers[1]} by {keys}"
        plan.holds_rows |= stage.mode != SPARKS_OWN
        plan.entered(stage, what, count)
        plan.linked(self.verb.name)
        return stage


def _source(groups: Grouped[Any]) -> Pipeline:
    assert isinstance(groups._source, Pipeline)
    return groups._source


def entered(df: Any, before: BatchFunction | None, before_schema: StructType | None) -> tuple[Staged, int]:
    """The stage in front of a shuffle of a DataFrame, or of a pipeline: with ``before``; and the slots held before."""
    held_slots = 0
    if isinstance(df, Pipeline):
        at, held_slots, spark = df._staged(shared=True), df._built[True][1].held_slots, df._session
    else:
        check_dataframe(df)
        at, spark = Staged(df, df.schema), df.sparkSession
    if before is not None:
        assert before_schema is not None
        at = at.then(Checked(before, several=iterables(spark)), before_schema)
    return at, held_slots


def _pandas_map(func: FrameFunction, result: StructType, spark: Any, schema: StructType) -> Callable[..., Any]:
    arrow = arrow_schema(result, session_zone(spark), large_types(spark))
    return PandasMap(func, pandas_rules(spark, result, arrow))


def _filter(expression: Any, spark: Any, schema: StructType) -> Callable[..., Any]:
    check_filter(expression, arrow_schema(schema, session_zone(spark), large_types(spark)))
    return Filter(expression)


def _mode(mode: str) -> str:
    check_mode(mode, MODES)
    return mode
