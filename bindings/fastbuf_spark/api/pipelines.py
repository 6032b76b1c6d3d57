"""Pipelines: chains of stages, that is maps that share a task, and shuffles between them."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.api.cogroups import Cogrouped, check_sides
from fastbuf_spark.api.functions import pandas_rules
from fastbuf_spark.api.groups import Grouped
from fastbuf_spark.conf import MODES, ShuffleConf
from fastbuf_spark.driver import pipeline as steps
from fastbuf_spark.driver.checks import (
    check_conf,
    check_dataframe,
    check_function,
    check_mode,
    check_session,
    is_connect,
    partition_count,
)
from fastbuf_spark.driver.jobs import cancelled_with
from fastbuf_spark.driver.keys import as_keys
from fastbuf_spark.driver.plan import SPARKS_OWN
from fastbuf_spark.driver.sources import Source, check_filter
from fastbuf_spark.driver.staged import Staged
from fastbuf_spark.results import Checked, iterables
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
    from fastbuf_spark.driver.plan import BatchFunction

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
        return self._then(steps.Map(self._as_it_is(func), struct_type(schema), _name(func), None, special))

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
        from fastbuf_spark.pyspark_private import no_converters

        check_function("func", func, "takes an iterator of pandas.DataFrame and returns one")
        if no_converters():
            raise ConfigError(f"map_in_pandas cannot run: {no_converters()}; use map_in_arrow")
        result, sent, special = struct_type(schema), self._as_it_is(func), steps.Special.of(barrier, profile)
        return self._then(steps.Map(sent, result, _name(func), partial(_pandas_map, sent, result), special))

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
            Partitions after the shuffle; default: as many as the shuffle before.  For the first shuffle: half of
            Spark's slots, or fewer, so that all shuffles of the pipeline have slots at the same time.
        mode
            ``"pipelined"``, ``"blocking"`` or ``"auto"``.
        """
        given = as_keys(keys)
        if not given:
            raise ConfigError("shuffle has no keys: name a column, or use rebalance() to distribute rows in turn")
        return self._then(steps.Shuffle(given, _count(partitions), _mode(mode)))

    def rebalance(self, partitions: int | None = None, mode: str = "auto") -> Pipeline:
        """Distribute rows evenly over the partitions, in turn.  Parameters are those of :meth:`shuffle`."""
        return self._then(steps.Shuffle((), _count(partitions), _mode(mode)))

    def broadcast(self, partitions: int | None = None, mode: str = "auto") -> Pipeline:
        """Send all rows to every partition, so that the result has one copy of each row per partition.

        Parameters are those of :meth:`shuffle`.
        """
        return self._then(steps.Broadcast(_count(partitions), _mode(mode)))

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
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise ConfigError(f"seed is {seed!r}: give a whole number")
        number = operator.index(seed)
        return self._then(steps.RandomShuffle(number, _count(partitions), _mode(mode)))

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
        given = as_keys(keys)
        order = () if sort_by is None else as_keys(sort_by)
        return PipelineGroups(self, given, order, _count(partitions), _mode(mode))

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
        compression: str = "snappy",
        filesystem: Any = None,
    ) -> Written:
        """Write the rows to Parquet files; see :func:`fastbuf_spark.write_parquet`."""
        from fastbuf_spark.api.sinks import write_parquet

        return write_parquet(self, path, partition_by, mode, compression=compression, filesystem=filesystem)

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


@dataclasses.dataclass(frozen=True)
class PipelineGroups:
    """Rows grouped by key, made by :meth:`Pipeline.group_by`; it has the methods of :class:`Grouped`."""

    _before: Pipeline
    _keys: tuple[str | Column, ...]
    _order: tuple[str | Column, ...]
    _partitions: int | None
    _mode: str

    def apply_in_arrow(self, func: Callable[..., Any], schema: StructType | str) -> Pipeline:
        """See :meth:`Grouped.apply_in_arrow`."""
        return self._verb(func, lambda groups: groups.apply_in_arrow(func, schema))

    def apply_in_pandas(self, func: Callable[..., Any], schema: StructType | str) -> Pipeline:
        """See :meth:`Grouped.apply_in_pandas`."""
        return self._verb(func, lambda groups: groups.apply_in_pandas(func, schema))

    def apply_in_polars(self, func: Callable[..., Any], schema: StructType | str) -> Pipeline:
        """See :meth:`Grouped.apply_in_polars`."""
        return self._verb(func, lambda groups: groups.apply_in_polars(func, schema))

    def agg_arrow(self, aggregates: Iterable[tuple[str, str]]) -> Pipeline:
        """See :meth:`Grouped.agg_arrow`."""
        pairs = list(aggregates)
        return self._before._then(_GroupStep(self, "agg_arrow", lambda groups: groups.agg_arrow(pairs)))

    def cogroup(self, other: PipelineGroups) -> PipelineCogroups:
        """The groups of this and of another pipeline by the same keys, for a function that takes both.

        Parameters
        ----------
        other
            What another pipeline's ``group_by`` gives, with as many keys, and the same mode and partitions; the latter
            may be said on one side alone.  Settings are those of this pipeline, for the shuffles of the other one too.

        Notes
        -----
        Keys of two types are cast as in :meth:`Grouped.cogroup`: of that side Spark reads what its functions give.
        """
        check_sides(
            self,
            other,
            ("number of keys", lambda side: len(side._keys)),
            ("partitions", lambda side: side._partitions or self._partitions or other._partitions),
            ("mode", lambda side: side._mode),
        )
        return PipelineCogroups(self, other)

    def _verb(self, func: Any, call: Callable[[Grouped], Any]) -> Pipeline:
        return self._before._then(_GroupStep(self, _name(func), call, self._before._as_it_is(func)))

    @property
    def _by(self) -> str:
        return ", ".join(map(str, self._keys)) or "nothing"

    def _count(self, plan: steps.Plan, other: int | None = None) -> int:
        """Partitions of the groups; ``other``: what another side of a cogroup says."""
        count = plan.count(self._partitions or other, self._mode)
        return count if self._keys else 1

    def _of(self, at: Staged, plan: steps.Plan, count: int) -> Grouped:
        """The groups of the stage before them."""
        schema = None if at.head is None else at.schema
        return Grouped(
            at.frame,
            self._keys,
            count,
            self._order,
            at.before,
            schema,
            self._mode,
            plan.conf,
            plan.make(at, count),
            at.numbered,
        )


@dataclasses.dataclass(frozen=True)
class PipelineCogroups:
    """Two pipelines' rows by key, as :meth:`PipelineGroups.cogroup` gives them; the verbs are those of
    :class:`Cogrouped`.
    """

    _left: PipelineGroups
    _right: PipelineGroups

    def apply_in_arrow(self, func: Callable[..., Any], schema: StructType | str) -> Pipeline:
        """See :meth:`Cogrouped.apply_in_arrow`."""
        return self._verb(func, lambda groups: groups.apply_in_arrow(func, schema))

    def apply_in_pandas(self, func: Callable[..., Any], schema: StructType | str) -> Pipeline:
        """See :meth:`Cogrouped.apply_in_pandas`."""
        return self._verb(func, lambda groups: groups.apply_in_pandas(func, schema))

    def _verb(self, func: Any, call: Callable[[Cogrouped], Any]) -> Pipeline:
        before = self._left._before
        return before._then(_CogroupStep(self._left, self._right, _name(func), call, before._as_it_is(func)))


@dataclasses.dataclass(frozen=True)
class _GroupStep:
    """A method of :class:`PipelineGroups` as a step of the pipeline."""

    groups: PipelineGroups
    name: str
    call: Callable[[Grouped], Any]
    sent: Any = None
    exchanges = 1

    def build(self, at: Staged, plan: steps.Plan) -> Staged:
        count = self.groups._count(plan)
        groups = dataclasses.replace(self.groups._of(at, plan, count), _sent=self.sent)
        made = _made(self.call(groups), groups)
        plan.holds_rows |= made.mode != SPARKS_OWN
        plan.entered(made, f"group by {self.groups._by}", count)
        plan.linked(self.name)
        return made


@dataclasses.dataclass(frozen=True)
class _CogroupStep:
    """A verb of two pipelines' groups as a step of the left one."""

    left: PipelineGroups
    right: PipelineGroups
    name: str
    call: Callable[[Cogrouped], Any]
    sent: Any

    @property
    def exchanges(self) -> int:
        return 1 + steps.exchanges_of(self.right._before._verbs)

    def build(self, at: Staged, plan: steps.Plan) -> Staged:
        numbers = [len(plan.stages)]
        other = plan.follow_beside(self.right._before._start, self.right._before._verbs)
        numbers.append(len(plan.stages))
        count = self.left._count(plan, self.right._partitions)
        sides = self.left._of(at, plan, count), self.right._of(other, plan, count)
        groups = Cogrouped(*sides, sides[0]._make, self.sent)
        made = _made(self.call(groups), groups)
        plan.holds_rows |= made.mode != SPARKS_OWN
        for number, through_jvm in zip(numbers, groups.through_jvm(), strict=True):
            if through_jvm:
                plan.stages[number - 1].links.append("rows through the JVM")
        keys = self.left._by if self.left._by == self.right._by else f"{self.left._by} and {self.right._by}"
        plan.entered(made, f"cogroup of stages {numbers[0]} and {numbers[1]} by {keys}", count)
        plan.linked(self.name)
        return made


def _made(made: Any, groups: Grouped | Cogrouped) -> Staged:
    """The stage that a verb gave, which is a DataFrame only if Spark's own groups serve."""
    if isinstance(made, Staged):
        return made
    return Staged(made, made.schema, in_order=False, mode=SPARKS_OWN, why=groups.why_sparks())


def entered(
    df: Any, before: BatchFunction | None, before_schema: StructType | None
) -> tuple[DataFrame, BatchFunction | None, StructType | None, dict[str, Any]]:
    """The input of a function for DataFrames, which may also be a pipeline; its functions are called first.

    The last item has further arguments for the shuffle.
    """
    if not isinstance(df, Pipeline):
        check_dataframe(df)
    if before is not None:
        before = Checked(before, several=iterables(df._session if isinstance(df, Pipeline) else df.sparkSession))
    if not isinstance(df, Pipeline):
        return df, before, before_schema, {}
    at = df._staged(shared=True)
    plan = df._built[True][1]
    if before is not None:
        assert before_schema is not None
        at = at.then(before, before_schema)
    known = {"in_order": at.in_order, "held": plan.held}
    return at.frame, at.before, None if at.head is None else at.schema, known


def _pandas_map(func: FrameFunction, result: StructType, spark: Any, given: StructType) -> Callable[..., Any]:
    arrow = arrow_schema(result, session_zone(spark), large_types(spark))
    return PandasMap(func, pandas_rules(spark, result, arrow))


def _filter(expression: Any, spark: Any, given: StructType) -> Callable[..., Any]:
    check_filter(expression, arrow_schema(given, session_zone(spark), large_types(spark)))
    return Filter(expression)


def _name(func: Any) -> str:
    return getattr(func, "__name__", type(func).__name__)


def _count(partitions: Any) -> int | None:
    return None if partitions is None else partition_count(partitions, "partitions")


def _mode(mode: str) -> str:
    check_mode(mode, MODES)
    return mode
