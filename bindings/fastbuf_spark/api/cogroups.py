"""Groups of two inputs by the same keys: one shuffle carries the rows of both.

Spark unites what it reads of the two sides, and columns of the same type share a place: the rows themselves;
or, where producers read files or another shuffle, the numbers of what they are to read, and each side's functions are
called in the producers (:mod:`fastbuf_spark.worker.sides`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.api.functions import argument_count, by_name, nullable
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver.keys import Keys, as_column, as_keys, resolve
from fastbuf_spark.driver.plan import limits_of, shuffle
from fastbuf_spark.driver.staged import called
from fastbuf_spark.errors import ArgumentTypeError
from fastbuf_spark.pyspark_private import no_converters
from fastbuf_spark.schema import struct_type
from fastbuf_spark.worker.cogroups import ArrowPairVerb, PandasPairVerb, Place
from fastbuf_spark.worker.groups import GroupStage, Layout
from fastbuf_spark.worker.sides import Input, TwoInputs

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from fastbuf_spark.api.groups import Grouped
    from fastbuf_spark.driver.plan import BatchFunction


@dataclasses.dataclass(frozen=True)
class Cogrouped:
    """The rows of two DataFrames grouped by key, made by :meth:`Grouped.cogroup`.

    A function gets the groups of both sides for a key; a side without that key is empty.  Both must fit into
    ``memory_bytes`` together.
    """

    _left: Grouped
    _right: Grouped
    _make: Callable[..., Any] = shuffle  #: what becomes of the shuffle: a DataFrame, or a stage of a pipeline
    _sent: Any = None  #: as for :class:`Grouped`

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
        with_key = argument_count(func, (2, 3), "(left, right) or (key, left, right)") == 3
        result, left = struct_type(schema), self._left
        arrow, named_columns = left._arrow(result), by_name(left._df.sparkSession)

        def verb(*places: Any) -> ArrowPairVerb:
            return ArrowPairVerb(self._sent or func, with_key, arrow, named_columns, *places)

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
        with_key = argument_count(func, (2, 3), "(left, right) or (key, left, right)") == 3
        result = struct_type(schema)
        rules = self._left._pandas_rules(result)

        def verb(*places: Any) -> PandasPairVerb:
            return PandasPairVerb(self._sent or func, with_key, rules, *places)

        return self._run(verb, func, result, lambda groups: groups.applyInPandas(func, result), no_converters())

    def _run(
        self,
        verb: Callable[..., Any],
        func: Callable[..., Any],
        result: StructType,
        by_spark: Callable[[Any], DataFrame],
        why: str = "",
    ) -> DataFrame:
        left = self._left
        why = self._only_spark() or why
        sides = self._sides
        if why:
            return by_spark(sides[0].grouped.spark_groups(why).cogroup(sides[1].grouped.spark_groups(why)))
        travelling, orders = _travelling(sides)
        frame, before, shipped = _union(sides, travelling, left._arrow)
        keys = [f"s{i}" for i in range(len(left._keys))]
        found = resolve(frame, keys, left._num_partitions, before, shipped, order=["side", *orders])
        conf = ShuffleConf.of(frame.sparkSession, left._conf)
        places = tuple(
            Place(nullable(left._arrow(side.shown)), tuple(taken.index(i) for i in range(len(side.shown))))
            for side, taken in zip(sides, travelling.taken, strict=True)
        )
        stage = GroupStage(
            verb(found.order[0], places),
            Layout(found.codec.schema, found.codec.keys, found.order, left.key_names),
            limits_of(frame.sparkSession, conf),
            getattr(func, "__name__", type(func).__name__),
        )
        return self._make(frame, stage, result, keys, left._num_partitions, before, shipped, left._mode, conf, found)

    @cached_property
    def _sides(self) -> tuple[Side, Side]:
        """Both sides, with keys of the same types."""
        left, right = Side.of(self._left), Side.of(self._right)
        spark = self._left._df.sparkSession
        pairs = zip(left.key_types, right.key_types, strict=True)
        types = [_common(spark, number, *pair) for number, pair in enumerate(pairs, 1)]
        return left.cast(types), right.cast(types)

    def why_sparks(self) -> str:
        """Why Spark's own groups serve, where they do."""
        return self._only_spark() or no_converters()

    def _only_spark(self) -> str:
        left, right = self._sides
        return left.found.by_spark or right.found.by_spark

    def through_jvm(self) -> tuple[bool, bool]:
        """For each side, whether Spark reads what its function before the shuffle gives."""
        left, right = self._sides
        return (
            self._left._before is not None and left.before is None,
            self._right._before is not None and right.before is None,
        )


@dataclasses.dataclass(frozen=True)
class Side:
    """One side's input.

    Attributes
    ----------
    grouped
        What it is made of.
    found
        Its keys; ``found.frame`` is what Spark reads.
    shown
        The columns that users see.
    before
        The function that producers call with the rows of ``found.frame``; None: these rows travel themselves.
    """

    grouped: Grouped
    found: Keys
    shown: StructType
    before: BatchFunction | None = None

    @classmethod
    def of(cls, grouped: Grouped) -> Side:
        df, before, schema = grouped._df, grouped._before, grouped._before_schema
        if before is not None:
            assert schema is not None
            if grouped._numbered:
                found = grouped._found()
                if not found.by_spark:
                    return cls(grouped, found, schema, before)
            # The function is to be called for partitions without rows too, which do not say which side they are of; or
            # a key is computed from what it gives, which Spark can do
            df = called(df, before, schema)
        found = resolve(df, grouped._keys, grouped._num_partitions, order=grouped._sort_by)
        return cls(grouped, found, df.schema)

    @property
    def key_types(self) -> list[DataType]:
        """Types of its keys."""
        if self.found.by_spark:
            return [field.dataType for field in self.found.frame.select(*self.found.given).schema.fields]
        return [self.carried[place].dataType for place in self.found.codec.keys]

    def cast(self, types: list[DataType]) -> Side:
        """The side with keys of these types; what functions see of its columns stays as it is."""
        own = self.key_types
        if all(map(_same, own, types)):
            return self
        keys = [
            key if _same(kind, wanted) else as_column(key).cast(wanted)
            for key, kind, wanted in zip(self.grouped._keys, own, types, strict=True)
        ]
        return Side.of(dataclasses.replace(self.grouped, _keys=tuple(keys)))

    @property
    def carried(self) -> StructType:
        """All columns that may travel: those of expressions stand behind those that are shown."""
        return self.found.frame.schema if self.before is None else self.shown


def _same(one: DataType, other: DataType) -> bool:
    return one.simpleString() == other.simpleString()


def _common(spark: Any, number: int, left: DataType, right: DataType) -> DataType:
    """The type in which Spark compares two keys.

    Spark's own cogroup compares them as they are in memory, and so a decimal's 1.00 with a bigint's 100.

    Raises
    ------
    ConfigError
        It does not compare them, or not without losing the text of one.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import NullType, StringType, StructType

    if _same(left, right):
        return left
    why = ""
    try:
        both = spark.createDataFrame([], StructType().add("a", left).add("b", right))
        kind: DataType = both.where("a = b").selectExpr("coalesce(a, b) as k").schema["k"].dataType
    except PySparkException as error:
        why = f" ({str(error).splitlines()[0]})"
    else:
        if not isinstance(kind, StringType) or all(isinstance(each, StringType | NullType) for each in (left, right)):
            return kind
    raise ConfigError(
        f"key {number} has the type {left.simpleString()} on the left and {right.simpleString()} on the right, which "
        f"Spark does not compare{why}: cast one of them"
    )


class _Places:
    """Columns of two sides in common places s0, s1, ...: columns of the same type share one.

    Attributes
    ----------
    types
        Of the places.
    taken
        By side and place: the side's column there, or None.
    """

    def __init__(self) -> None:
        self.types: list[DataType] = []
        self.taken: tuple[list[int | None], list[int | None]] = ([], [])
        self._alone: set[int] = set()

    def both(self, left: int, right: int, kind: DataType) -> None:
        """A new place for a column of each side."""
        self.types.append(kind)
        self.taken[0].append(left)
        self.taken[1].append(right)

    def add(self, side: int, column: int, kind: DataType, alone: bool = False) -> None:
        """A place for a column; ``alone``: one that the other side has no column in."""
        mine = self.taken[side]
        free = (p for p, at in enumerate(mine) if at is None and self.types[p] == kind and p not in self._alone)
        place = None if alone else next(free, None)
        if place is None:
            place = len(self.types)
            self.types.append(kind)
            for places in self.taken:
                places.append(None)
        mine[place] = column
        if alone:
            self._alone.add(place)

    def union(self, frames: Iterable[DataFrame], flags: tuple[Any, Any]) -> DataFrame:
        """The rows of two frames in these places, and the flag of their side as the last column."""
        from pyspark.sql import functions as F

        made = []
        for frame, taken, flag in zip(frames, self.taken, flags, strict=True):
            chosen = []
            for place, at in enumerate(taken):
                column = F.lit(None).cast(self.types[place]) if at is None else F.col(f"`{frame.columns[at]}`")
                chosen.append(column.alias(f"s{place}"))
            made.append(frame.select(*chosen, F.lit(flag).alias("side")))
        return made[0].union(made[1])


def _travelling(sides: tuple[Side, Side]) -> tuple[_Places, list[str | Column]]:
    """The places of what travels, and those that rows are sorted by.

    Keys have the first places.  A column that is sorted by shares its place with none: the other side's rows would be
    put into that order too.
    """
    from pyspark.sql import functions as F

    places = _Places()
    orders: list[str | Column] = []
    left, right = sides
    for a, b in zip(left.found.codec.keys, right.found.codec.keys, strict=True):
        places.both(a, b, left.carried[a].dataType)
    for number, side in enumerate(sides):
        mine = places.taken[number]
        sorted_by: dict[int, bool] = {}  # whether it is descending
        for i in side.found.order:
            column = i if i >= 0 else ~i
            if column not in mine:
                sorted_by.setdefault(column, i < 0)
        for column in [*range(len(side.shown)), *(c for c in sorted_by if c >= len(side.shown))]:
            if column not in mine:
                places.add(number, column, side.carried[column].dataType, alone=column in sorted_by)
        for column, descending in sorted_by.items():
            name = f"s{mine.index(column)}"
            orders.append(F.desc(name) if descending else name)
    return places, orders


def _union(
    sides: tuple[Side, Side], travelling: _Places, arrow: Callable[[StructType], pa.Schema]
) -> tuple[DataFrame, BatchFunction | None, StructType | None]:
    """The rows of both sides' inputs, the function that producers call with them, and the schema of what it gives."""
    from pyspark.sql.types import BooleanType, StructType

    frames = [side.found.frame for side in sides]
    if all(side.before is None for side in sides):
        return travelling.union(frames, (False, True)), None, None
    common = _Places()
    for number, frame in enumerate(frames):
        for column, field in enumerate(frame.schema.fields):
            common.add(number, column, field.dataType)
    inputs = [
        Input(
            tuple(taken.index(column) for column in range(len(side.found.frame.schema))),
            arrow(side.found.frame.schema),
            side.before or iter,
            arrow(side.carried),
            tuple(places),
        )
        for side, taken, places in zip(sides, common.taken, travelling.taken, strict=True)
    ]
    shipped = StructType()
    for place, kind in enumerate(travelling.types):
        shipped.add(f"s{place}", kind)
    shipped.add("side", BooleanType(), False)
    return common.union(frames, (0, 1)), TwoInputs(inputs[0], inputs[1], arrow(shipped)), shipped


def cogrouped(left: Grouped, right: Any) -> Cogrouped:
    """Implements :meth:`Grouped.cogroup`."""
    check_sides(
        left,
        right,
        ("number of keys", lambda side: len(as_keys(side._keys))),
        ("num_partitions", lambda side: side._num_partitions),
        ("mode", lambda side: side._mode),
    )
    return Cogrouped(left, right)


def check_sides(left: Any, right: Any, *figures: tuple[str, Callable[[Any], Any]]) -> None:
    """ConfigError unless both sides are of one kind, and the same in each of these figures."""
    if not isinstance(right, type(left)):
        kind = type(left).__name__
        words = (
            f"cogroup needs the result of group_by, not a {type(right).__name__}: the other side must be a {kind} too"
        )
        raise ArgumentTypeError.of(words, "other", kind, right)
    for name, of in figures:
        a, b = of(left), of(right)
        if a != b:
            raise ConfigError(f"{name} is {a} on the left and {b} on the right: both sides must have the same")
