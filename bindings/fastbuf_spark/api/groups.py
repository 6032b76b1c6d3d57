"""Groups of a DataFrame's rows: like Spark's ``groupBy().applyInArrow``, after a fastbuf shuffle."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fastbuf.errors import SchemaError
from fastbuf_spark.api.aggregates import aggregated
from fastbuf_spark.api.cogroups import Cogrouped, cogrouped
from fastbuf_spark.api.functions import (
    argument_count,
    by_name,
    nullable,
    pandas_rules,
    takes_iterators,
    takes_polars_iterators,
)
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver.keys import Keys, resolve
from fastbuf_spark.driver.plan import limits_of, shuffle
from fastbuf_spark.driver.staged import called
from fastbuf_spark.pyspark_private import no_converters
from fastbuf_spark.schema import arrow_schema, large_types, session_zone, struct_type
from fastbuf_spark.worker.groups import GroupStage, Layout, Verb
from fastbuf_spark.worker.pandas_verbs import PandasRules, PandasVerb
from fastbuf_spark.worker.polars_verbs import PolarsVerb
from fastbuf_spark.worker.verbs import ArrowVerb

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from fastbuf_spark.driver.plan import BatchFunction


@dataclasses.dataclass(frozen=True)
class Grouped:
    """Rows grouped by key, made by :func:`group_by`.  Nothing runs before an action on the result of a method."""

    _df: DataFrame
    _keys: tuple[str | Column, ...]
    _num_partitions: int
    _sort_by: tuple[str | Column, ...]
    _before: BatchFunction | None
    _before_schema: StructType | None
    _mode: str
    _conf: ShuffleConf | None
    _make: Callable[..., Any] = shuffle  #: makes the shuffle: a DataFrame, or a stage of a pipeline
    _numbered: bool = False  #: rows of ``_df`` say what ``_before`` reads, and each partition has one
    _sent: Any = None  #: sent instead of the verb's function: as it was when a pipeline's verb was called

    def apply_in_arrow(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:
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
        DataFrame
            Lazy.  Within a partition groups come in the order of their keys.  A task fails with SchemaMismatch if
            ``func`` returns other columns, and with ResourceError if a group needs more memory than a task has for rows
            and ``func`` takes tables.
        """
        streams = takes_iterators(func, pandas=False)
        with_key = argument_count(func, (1, 2), "(data) or (key, data)") == 2
        result = struct_type(schema)
        made = self._arrow(result)
        verb = ArrowVerb(self._sent or func, with_key, streams, made, by_name(self._df.sparkSession))
        return self._run(verb, func, result, lambda groups: groups.applyInArrow(func, result))

    def apply_in_pandas(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:
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
        DataFrame
            As for :meth:`apply_in_arrow`.
        """
        streams = takes_iterators(func, pandas=True)
        with_key = argument_count(func, (1, 2), "(data) or (key, data)") == 2
        result = struct_type(schema)
        verb = PandasVerb(self._sent or func, with_key, streams, self._pandas_rules(result))
        return self._run(verb, func, result, lambda groups: groups.applyInPandas(func, result), no_converters())

    def apply_in_polars(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:
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
        DataFrame
            As for :meth:`apply_in_arrow`.

        Raises
        ------
        SchemaError
            Only Spark can partition by these keys, and it has no such method.
        """
        streams = takes_polars_iterators(func)
        with_key = argument_count(func, (1, 2), "(data) or (key, data)") == 2
        result = struct_type(schema)
        verb = PolarsVerb(self._sent or func, with_key, streams, self._arrow(result), by_name(self._df.sparkSession))
        found = self._found()
        if found.by_spark:
            raise SchemaError(f"apply_in_polars cannot run: {found.by_spark}; use apply_in_arrow, or another key")
        return self._shuffled(found, verb, func, result)

    def agg_arrow(self, aggregates: Iterable[tuple[str, str]]) -> DataFrame:
        """Aggregate the rows of each key with pyarrow's hash aggregation, partly before they are sent.

        Parameters
        ----------
        aggregates
            Pairs of a column's name and one of sum, product, min, max, mean, count, any, all.  Nulls are ignored; if
            all values are null, the result is null, and a count is 0.  A sum of whole numbers is a long, which wraps
            around; one of decimals beyond 38 digits fails, as in Spark; a mean is a double.

        Returns
        -------
        DataFrame
            Lazy; the keys, then a column ``<column>_<function>`` for each pair.

        Raises
        ------
        ConfigError
            An unknown function or column, or an expression as a key together with ``before``.
        SchemaError
            pyarrow cannot group by or aggregate a type in this way, or only Spark can partition by these keys.
        """
        return aggregated(self, aggregates)

    def cogroup(self, other: Grouped) -> Cogrouped:
        """Group this and another DataFrame by the same keys, for a function that takes the groups of both.

        Parameters
        ----------
        other
            The result of another :func:`group_by` with the same number of keys, partitions and mode; the settings of
            this one are used.

        Notes
        -----
        Keys of two types are cast to the one in which Spark compares them; columns stay as they are.
        Behind files and pipelined shuffles (a :class:`Pipeline`) the tasks in front of this shuffle call the functions
        before it.  Of a ``before`` over a DataFrame of Spark's the rows go through the JVM once more.
        """
        return cogrouped(self, other)

    def _run(
        self,
        verb: Verb,
        func: Callable[..., Any],
        result: StructType,
        by_spark: Callable[[Any], DataFrame],
        why: str = "",
    ) -> DataFrame:
        """Make the shuffle with the operation after it, or call ``by_spark`` if the keys, or ``why``, require it."""
        found = self._found()
        if found.by_spark or why:
            return by_spark(self.spark_groups(found.by_spark or why))
        return self._shuffled(found, verb, func, result)

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names of the keys, for error messages."""
        return tuple(map(str, self._keys))

    def _found(self) -> Keys:
        return resolve(
            self._df, self._keys, self._num_partitions, self._before, self._before_schema, order=self._sort_by
        )

    def why_sparks(self) -> str:
        """Why Spark's own groups are used; empty if they are not."""
        return self._found().by_spark or no_converters()

    def _shuffled(self, found: Keys, verb: Verb, func: Callable[..., Any], result: StructType) -> DataFrame:
        codec = found.codec
        shown = codec.schema if codec.shown is None else codec.shown
        layout = Layout(nullable(shown), codec.keys, found.order, self.key_names)
        found = dataclasses.replace(found, codec=dataclasses.replace(codec, whole=True))
        conf = ShuffleConf.of(self._df.sparkSession, self._conf)
        name = getattr(func, "__name__", type(func).__name__)
        stage = GroupStage(verb, layout, limits_of(self._df.sparkSession, conf), name)
        return self._make(
            self._df,
            stage,
            result,
            self._keys,
            self._num_partitions,
            self._before,
            self._before_schema,
            self._mode,
            conf,
            found,
        )

    def spark_groups(self, why: str) -> Any:
        """Spark's own groups, in the requested partitions and order; ``why``: the reason, for an error."""
        if self._mode not in ("auto", "blocking"):
            raise SchemaError(f"mode='{self._mode}' cannot run: {why}; use mode='auto' or 'blocking'")
        df = self._df
        if self._before is not None:
            assert self._before_schema is not None
            df = called(df, self._before, self._before_schema)
        moved = df.repartition(self._num_partitions, *self._keys)
        if self._sort_by:
            # Spark's groups need rows sorted by the keys; it sees that they already are, and does not sort again
            moved = moved.sortWithinPartitions(*self._keys, *self._sort_by)
        return moved.groupBy(*self._keys)

    def _arrow(self, schema: StructType) -> pa.Schema:
        spark = self._df.sparkSession
        return arrow_schema(schema, session_zone(spark), large_types(spark))

    def _pandas_rules(self, result: StructType) -> PandasRules:
        return pandas_rules(self._df.sparkSession, result, self._arrow(result))
