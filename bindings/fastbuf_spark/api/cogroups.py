"""Cogroups: groups of two DataFrames by the same keys, with one shuffle for the rows of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver.keys import Keys, as_keys, resolve
from fastbuf_spark.driver.plan import shuffle
from fastbuf_spark.schema import struct_type
from fastbuf_spark.shipping import named
from fastbuf_spark.worker.cogroups import ArrowPairVerb, PandasPairVerb, Place
from fastbuf_spark.worker.groups import GroupStage, Layout

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from fastbuf_spark.api.groups import Grouped


@dataclasses.dataclass(frozen=True)
class Cogrouped:
    """The rows of two DataFrames grouped by key, made by :meth:`Grouped.cogroup`.

    A function gets the groups of both sides for a key; a side without that key is empty.  Both must fit into
    ``memory_bytes`` together.
    """

    _left: Grouped
    _right: Grouped

    def apply_in_arrow(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:
        """Call a function with each pair of groups, as Spark's ``cogroup().applyInArrow`` does.

        Parameters
        ----------
        func
            Takes two ``pyarrow.Table`` and returns one; with three arguments, the first is the key: a tuple of
            ``pyarrow.Scalar``.
        schema
            Output schema of ``func``: a StructType or DDL text.

        Returns
        -------
        DataFrame
            Lazy; as for :meth:`Grouped.apply_in_arrow`.
        """
        from fastbuf_spark.api.groups import BY_NAME, argument_count

        with_key = argument_count(func, (2, 3), "(left, right) or (key, left, right)") == 3
        result, left = struct_type(schema), self._left
        arrow, by_name = left._arrow(result), left._setting(BY_NAME, "true")

        def verb(*places: Any) -> ArrowPairVerb:
            return ArrowPairVerb(func, with_key, arrow, by_name, *places)

        return self._run(verb, func, result, lambda groups: groups.applyInArrow(func, result))

    def apply_in_pandas(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:
        """Call a function with each pair of groups, as Spark's ``cogroup().applyInPandas`` does.

        Parameters
        ----------
        func
            Takes two ``pandas.DataFrame`` and returns one; with three arguments, the first is the key: a tuple of
            values.
        schema
            Output schema of ``func``: a StructType or DDL text.

        Returns
        -------
        DataFrame
            Lazy; as for :meth:`Grouped.apply_in_arrow`.
        """
        from fastbuf_spark.api.groups import argument_count, no_converters

        with_key = argument_count(func, (2, 3), "(left, right) or (key, left, right)") == 3
        result = struct_type(schema)
        rules = self._left._pandas_rules(result)

        def verb(*places: Any) -> PandasPairVerb:
            return PandasPairVerb(func, with_key, rules, *places)

        return self._run(verb, func, result, lambda groups: groups.applyInPandas(func, result), no_converters())

    def _run(
        self,
        verb: Callable[..., Any],
        func: Callable[..., Any],
        result: StructType,
        by_spark: Callable[[Any], DataFrame],
        why: str = "",
    ) -> DataFrame:
        left, right = self._left, self._right
        sides = [_Side.of(grouped) for grouped in (left, right)]
        for side in sides:
            why = why or side.found.by_spark
        if why:
            return by_spark(left.spark_groups(why).cogroup(right.spark_groups(why)))
        union, orders = _union(*sides)
        keys = [f"s{i}" for i in range(len(left._keys))]
        found = resolve(union, keys, left._num_partitions, order=["side", *orders])
        conf = left._conf or ShuffleConf.from_session(union.sparkSession)
        places = tuple(Place(left._arrow(each.shown), each.columns) for each in sides)
        from fastbuf_spark.api.groups import limits_of

        stage = GroupStage(
            verb(found.order[0], places),
            Layout(found.codec.schema, found.codec.keys, found.order, left.key_names),
            limits_of(conf),
            getattr(func, "__name__", type(func).__name__),
        )
        return shuffle(union, stage, result, keys, left._num_partitions, None, None, left._mode, conf, found)


@dataclasses.dataclass
class _Side:
    """One side: its rows, its columns, and their positions among the columns that are sent."""

    found: Keys
    shown: StructType
    columns: tuple[int, ...] = ()

    @classmethod
    def of(cls, grouped: Grouped) -> _Side:
        df = grouped._df
        if grouped._before is not None:
            assert grouped._before_schema is not None
            before = grouped._before
            df = df.mapInArrow(named(lambda batches: iter(before(batches)), "before"), grouped._before_schema)
        return cls(resolve(df, grouped._keys, grouped._num_partitions, order=grouped._sort_by), df.schema)


def _union(left: _Side, right: _Side) -> tuple[DataFrame, list[str | Column]]:
    """The rows of both sides with columns s0, s1, ... and ``side``; and the columns that rows are sorted by.

    Keys come first.  A column of the right side shares a column with one of the left side of the same type, unless one
    of the two is sorted by, since the other side's rows would be sorted too.
    """
    from pyspark.sql import functions as F

    types: list[DataType] = []
    taken: list[list[int | None]] = [[], []]  # by side and place: the column there
    ordered: set[int] = set()
    orders: list[str | Column] = []
    for i, (a, b) in enumerate(zip(left.found.codec.keys, right.found.codec.keys, strict=True)):
        one, other = left.found.frame.schema[a].dataType, right.found.frame.schema[b].dataType
        if one.simpleString() != other.simpleString():
            raise ConfigError(
                f"key {i + 1} has the type {one.simpleString()} on the left and {other.simpleString()} on the right: "
                "cast one of them"
            )
        types.append(one)
        taken[0].append(a)
        taken[1].append(b)
    for number, side in enumerate((left, right)):
        mine, fields = taken[number], side.found.frame.schema.fields
        sorted_by: dict[int, bool] = {}  # whether it is descending
        for i in side.found.order:
            column = i if i >= 0 else ~i
            if column not in mine:
                sorted_by.setdefault(column, i < 0)
        for column in [*range(len(side.shown)), *(c for c in sorted_by if c >= len(side.shown))]:
            if column in mine:
                continue
            kind = fields[column].dataType
            free = [p for p, at in enumerate(mine) if at is None and types[p] == kind and p not in ordered]
            if free and column not in sorted_by:
                place = free[0]
            else:
                place = len(types)
                types.append(kind)
                for places in taken:
                    places.append(None)
            mine[place] = column
            if column in sorted_by:
                ordered.add(place)
        for column, descending in sorted_by.items():
            name = f"s{mine.index(column)}"
            orders.append(F.desc(name) if descending else name)
        side.columns = tuple(mine.index(column) for column in range(len(side.shown)))
    frames = []
    for number, side in enumerate((left, right)):
        frame, chosen = side.found.frame, []
        for place, at in enumerate(taken[number]):
            made = F.lit(None).cast(types[place]) if at is None else F.col(f"`{frame.columns[at]}`")
            chosen.append(made.alias(f"s{place}"))
        frames.append(frame.select(*chosen, F.lit(bool(number)).alias("side")))
    return frames[0].union(frames[1]), orders


def cogrouped(left: Grouped, right: Any) -> Cogrouped:
    """Implements :meth:`Grouped.cogroup`."""
    if not isinstance(right, type(left)):
        raise ConfigError(f"cogroup needs the result of group_by, not a {type(right).__name__}")
    for name, a, b in (
        ("number of keys", len(as_keys(left._keys)), len(as_keys(right._keys))),
        ("num_partitions", left._num_partitions, right._num_partitions),
        ("mode", left._mode, right._mode),
    ):
        if a != b:
            raise ConfigError(f"{name} is {a} on the left and {b} on the right: both sides must have the same")
    return Cogrouped(left, right)
