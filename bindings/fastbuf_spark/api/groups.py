"""Groups of a DataFrame's rows: like Spark's ``groupBy().applyInArrow``, after a fastbuf shuffle."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from fastbuf.errors import SchemaError
from fastbuf_spark.api.aggregates import Aggregated
from fastbuf_spark.api.cogroups import Cogrouped, check_sides
from fastbuf_spark.api.functions import (
    Applied,
    nullable,
    pandas_rules,
    takes_iterators,
    takes_polars_iterators,
)
from fastbuf_spark.driver.keys import Keys
from fastbuf_spark.driver.plan import Shuffle, sparks_own
from fastbuf_spark.driver.staged import Staged
from fastbuf_spark.schema import arrow_schema, large_types, session_zone
from fastbuf_spark.worker.groups import GroupStage, Layout
from fastbuf_spark.worker.pandas_verbs import PandasRules, PandasVerb
from fastbuf_spark.worker.polars_verbs import PolarsVerb
from fastbuf_spark.worker.verbs import ArrowVerb

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


Frame = TypeVar("Frame")


class Verb(Protocol):
    """A method of groups."""

    @property
    def func(self) -> Any:
        """The user's function, if it has one."""

    @property
    def name(self) -> str:
        """For the plan."""

    def stage(self, groups: Any, sent: Any) -> Staged:
        """The stage that it makes of groups; ``sent``: the function as it is sent."""


class Source(Protocol):
    """What rows are grouped of: a DataFrame or a pipeline."""

    def _grouped(self, groups: Grouped[Any], verb: Verb) -> Any:
        """What a verb gives: a DataFrame, or a pipeline."""

    def _cogrouped(self, left: Grouped[Any], right: Grouped[Any], verb: Verb) -> Any:
        """The same for two groups."""


@dataclasses.dataclass(frozen=True)
class Grouped(Generic[Frame]):
    """Rows grouped by key, made by :func:`group_by`.  Nothing runs before an action on the result of a method.

    Of a :class:`Pipeline` (:meth:`Pipeline.group_by`) methods give a Pipeline, else a DataFrame.
    """

    _source: Source
    _keys: tuple[str | Column, ...]
    _partitions: int | None
    _sort_by: tuple[str | Column, ...]
    _mode: str

    def apply_in_arrow(self, func: Callable[..., Any], schema: StructType | str) -> Frame:
        """Call a function with each group, as Spark's ``applyInArrow`` does.

        Parameters
        ----------
        func
            Takes and returns a ``pyarrow.Table``; or, if its type hints say so, an ``Iterator[pyarrow.RecordBatch]``.
            With two arguments, the first is the key: a tuple of ``pyarrow.Scalar``.
        schema
            Output schema of ``func``: a StructType or DDL text.

        Returns
        -------
        DataFrame or Pipeline
            Lazy.  Within a partition groups come in the order of their keys.  A task fails with SchemaMismatch if
            ``func`` returns other columns, and with ResourceError if a group needs more memory than a task has for rows
            and ``func`` takes tables.
        """
        return self._apply(Applied.of(ArrowVerb, func, schema, "applyInArrow", takes_iterators(func, pandas=False)))

    def apply_in_pandas(self, func: Callable[..., Any], schema: StructType | str) -> Frame:
        """Call a function with each group, as Spark's ``applyInPandas`` does.

        Parameters
        ----------
        func
            Takes and returns a ``pandas.DataFrame``; or, if its type hints say so, an ``Iterator[pandas.DataFrame]``.
            With two arguments, the first is the key: a tuple of values.
        schema
            Output schema of ``func``: a StructType or DDL text.  Its columns are matched and converted by Spark's
            settings.

        Returns
        -------
        DataFrame or Pipeline
            As for :meth:`apply_in_arrow`.
        """
        return self._apply(Applied.of(PandasVerb, func, schema, "applyInPandas", takes_iterators(func, pandas=True)))

    def apply_in_polars(self, func: Callable[..., Any], schema: StructType | str) -> Frame:
        """Call a function with each group as a polars DataFrame; polars must be installed on the workers.

        Parameters
        ----------
        func
            Takes a ``polars.DataFrame`` and returns one, or a ``LazyFrame``; or, if its type hints say so, takes and
            returns an ``Iterator[polars.DataFrame]``.  With two arguments, the first is the key: a tuple of values.
        schema
            Output schema of ``func``: a StructType or DDL text.

        Returns
        -------
        DataFrame or Pipeline
            As for :meth:`apply_in_arrow`.

        Raises
        ------
        SchemaError
            Only Spark can partition by these keys, and it has no such method.
        """
        return self._apply(Applied.of(PolarsVerb, func, schema, "", takes_polars_iterators(func)))

    def agg_arrow(self, aggregates: Iterable[tuple[Any, str]]) -> Frame:
        """Aggregate the rows of each key with pyarrow's hash aggregation, partly before they are sent.

        Parameters
        ----------
        aggregates
            Pairs of a column's name and one of sum, product, min, max, mean, count, any, all.  Nulls are ignored; if
            all values are null, the result is null, and a count is 0.  ``([], "count_all")`` counts rows.  A sum of
            whole numbers is a long, which wraps around; one of decimals has 38 digits, and fails beyond them, as in
            Spark; a mean is a double.

        Returns
        -------
        DataFrame or Pipeline
            Lazy; the keys, then a column ``<column>_<function>`` for each pair, or ``count_all``.

        Raises
        ------
        ConfigError
            An unknown function or column, or an expression as a key together with ``before``.
        SchemaError
            pyarrow cannot group by or aggregate a type in this way, or only Spark can partition by these keys.
        """
        return self._apply(Aggregated(tuple(aggregates)))

    def cogroup(self, other: Grouped[Frame]) -> Cogrouped[Frame]:
        """Group these and other rows by the same keys, for a function that takes the groups of both.

        Parameters
        ----------
        other
            What ``group_by`` of another DataFrame, or of another pipeline, gives, with the same number of keys,
            partitions and mode; of pipelines, partitions may be said on one side alone.  The settings of this one are
            used, and of pipelines for the shuffles of the other one too.

        Notes
        -----
        Keys of two types are cast to the one in which Spark compares them; columns stay as they are.
        Behind files and pipelined shuffles (a :class:`Pipeline`) the tasks in front of this shuffle call the functions
        before it.  Of a ``before`` over a DataFrame of Spark's the rows go through the JVM once more.
        """
        check_sides(
            self,
            other,
            ("number of keys", lambda side: len(side._keys)),
            (self._counted, lambda side: side._partitions or self._partitions or other._partitions),
            ("mode", lambda side: side._mode),
        )
        return self._cogrouped(self, other)

    _counted: ClassVar[str] = "num_partitions"
    _cogrouped: ClassVar[type[Cogrouped[Any]]] = Cogrouped

    def _apply(self, verb: Verb) -> Frame:
        frame: Frame = self._source._grouped(self, verb)
        return frame


@dataclasses.dataclass(frozen=True)
class Groups:
    """Rows of a stage grouped by key, of which verbs make the next stage.

    Attributes
    ----------
    shuffle
        What brings the rows of a key together.
    sort_by
        Columns that the rows of a group are sorted by.
    """

    shuffle: Shuffle
    sort_by: tuple[str | Column, ...] = ()

    @property
    def spark(self) -> Any:
        """The session."""
        return self.shuffle.spark

    @cached_property
    def keys(self) -> Keys:
        """The keys."""
        return self.shuffle.resolved(self.sort_by)

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names of the keys, for error messages."""
        return tuple(map(str, self.shuffle.keys))

    def run(self, verb: Applied, sent: Any) -> Staged:
        """The stage of a verb: behind a shuffle, or Spark's own if keys or verb require it."""
        keys, codec = self.keys, self.keys.codec
        why = keys.by_spark or verb.why_sparks()
        verb.check_sparks(why)
        if why:
            return sparks_own(verb.by_spark(self.spark_groups(why)), why)
        layout = Layout(nullable(codec.shown or codec.schema), codec.keys, keys.order, self.key_names)
        keys = dataclasses.replace(keys, codec=dataclasses.replace(codec, whole=True))
        stage = GroupStage(verb.worker(self, sent), layout, self.shuffle.limits, verb.name)
        return self.shuffle.into(stage, verb.result, keys)

    def spark_groups(self, why: str) -> Any:
        """Spark's own groups, in the requested partitions and order; ``why``: the reason, for an error."""
        shuffle = self.shuffle
        if shuffle.mode not in ("auto", "blocking"):
            raise SchemaError(f"mode='{shuffle.mode}' cannot run: {why}; use mode='auto' or 'blocking'")
        moved = shuffle.at.to_df().repartition(shuffle.num_partitions, *shuffle.keys)
        if self.sort_by:
            # Spark's groups need rows sorted by the keys; it sees that they already are, and does not sort again
            moved = moved.sortWithinPartitions(*shuffle.keys, *self.sort_by)
        return moved.groupBy(*shuffle.keys)

    def arrow(self, schema: StructType) -> pa.Schema:
        """Arrow's schema of columns."""
        return arrow_schema(schema, session_zone(self.spark), large_types(self.spark))

    def pandas_rules(self, result: StructType) -> PandasRules:
        """How a result is converted from pandas."""
        return pandas_rules(self.spark, result, self.arrow(result))
