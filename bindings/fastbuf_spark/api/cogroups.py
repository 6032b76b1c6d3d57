"""Groups of two inputs by the same keys: one shuffle carries the rows of both.

Spark unites what it reads of the two sides, and columns of the same type share a place: the rows themselves;
or, where producers read files or another shuffle, the numbers of what they are to read, and each side's functions are
called in the producers (:mod:`fastbuf_spark.worker.sides`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fastbuf.errors import ConfigError
from fastbuf_spark.api.functions import Applied, nullable
from fastbuf_spark.driver.keys import Keys, as_column
from fastbuf_spark.driver.plan import sparks_own
from fastbuf_spark.driver.staged import Staged
from fastbuf_spark.errors import ArgumentTypeError
from fastbuf_spark.worker.chains import Called, Chain
from fastbuf_spark.worker.cogroups import Place
from fastbuf_spark.worker.groups import GroupStage, Layout
from fastbuf_spark.worker.pandas_verbs import PandasVerb
from fastbuf_spark.worker.sides import Input, TwoInputs
from fastbuf_spark.worker.verbs import ArrowVerb

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from fastbuf_spark.api.groups import Grouped, Groups


Frame = TypeVar("Frame")


@dataclasses.dataclass(frozen=True)
class Cogrouped(Generic[Frame]):
    """The rows of two DataFrames, or of two pipelines, grouped by key, made by :meth:`Grouped.cogroup`.

    A function gets the groups of both sides for a key; a side without that key is empty.  Both must fit into
    ``memory_bytes`` together.
    """

    _left: Grouped[Frame]
    _right: Grouped[Frame]

    def apply_in_arrow(self, func: Callable[..., Any], schema: StructType | str) -> Frame:
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
        DataFrame or Pipeline
            Lazy; as for :meth:`Grouped.apply_in_arrow`.
        """
        return self._apply(Applied.of(ArrowVerb, func, schema, "applyInArrow", sides=2))

    def apply_in_pandas(self, func: Callable[..., Any], schema: StructType | str) -> Frame:
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
        DataFrame or Pipeline
            Lazy; as for :meth:`Grouped.apply_in_arrow`.
        """
        return self._apply(Applied.of(PandasVerb, func, schema, "applyInPandas", sides=2))

    def _apply(self, verb: Applied) -> Frame:
        frame: Frame = self._left._source._cogrouped(self._left, self._right, verb)
        return frame


@dataclasses.dataclass(frozen=True)
class Cogroups:
    """Rows of two stages grouped by the same keys, of which verbs make the next stage."""

    left: Groups
    right: Groups

    def run(self, verb: Applied, sent: Any) -> Staged:
        """As :meth:`Groups.run`."""
        sides, left = self.sides, self.left
        why = sides[0].keys.by_spark or sides[1].keys.by_spark or verb.why_sparks()
        verb.check_sparks(why)
        if why:
            theirs = [side.groups.spark_groups(why) for side in sides]
            return sparks_own(verb.by_spark(theirs[0].cogroup(theirs[1])), why)
        travelling, orders = _travelling(sides)
        keys = [f"s{i}" for i in range(len(left.shuffle.keys))]
        shuffle = dataclasses.replace(left.shuffle, at=_union(sides, travelling, left.arrow), keys=keys)
        shuffle_keys = shuffle.resolved(["side", *orders])
        places = tuple(
            Place(nullable(left.arrow(side.shown)), tuple(taken.index(i) for i in range(len(side.shown))))
            for side, taken in zip(sides, travelling.taken, strict=True)
        )
        stage = GroupStage(
            verb.worker(left, sent, (shuffle_keys.order[0], places)),
            Layout(shuffle_keys.codec.schema, shuffle_keys.codec.keys, shuffle_keys.order, left.key_names),
            shuffle.limits,
            verb.name,
        )
        return shuffle.into(stage, verb.result, shuffle_keys)

    @cached_property
    def sides(self) -> tuple[Side, Side]:
        """Both sides, with keys of the same types."""
        left, right = Side.of(self.left), Side.of(self.right)
        pairs = zip(left.key_types, right.key_types, strict=True)
        types = [_common(self.left.spark, number, *pair) for number, pair in enumerate(pairs, 1)]
        return left.cast(types), right.cast(types)

    def through_jvm(self) -> list[bool]:
        """For each side, whether Spark reads what its functions before the shuffle give."""
        stages = self.left.shuffle.at, self.right.shuffle.at
        return [at.head is not None and side.at.head is None for at, side in zip(stages, self.sides, strict=True)]


@dataclasses.dataclass(frozen=True)
class Side:
    """One side's input.

    Attributes
    ----------
    groups
        What it is made of.
    at
        The stage whose functions producers call; without any, its rows travel as they are.
    keys
        Its keys; ``keys.frame`` is what Spark reads.
    """

    groups: Groups
    at: Staged
    keys: Keys

    @classmethod
    def of(cls, groups: Groups) -> Side:
        at = groups.shuffle.at
        if at.head is not None:
            if at.numbered and not groups.keys.by_spark:
                return cls(groups, at, groups.keys)
            # The functions are to be called for partitions without rows too, which do not say which side they are of;
            # or a key is computed from what they give, which Spark can do
            df = at.to_df()
            at = Staged(df, df.schema)
            groups = dataclasses.replace(groups, shuffle=dataclasses.replace(groups.shuffle, at=at))
        return cls(groups, at, groups.keys)

    @property
    def shown(self) -> StructType:
        """The columns that users see."""
        return self.at.schema

    @property
    def key_types(self) -> list[DataType]:
        """Types of its keys."""
        if self.keys.by_spark:
            return [field.dataType for field in self.keys.frame.select(*self.keys.given).schema.fields]
        return [self.carried[place].dataType for place in self.keys.codec.keys]

    def cast(self, types: list[DataType]) -> Side:
        """The side with keys of these types; what functions see of its columns stays as it is."""
        own = self.key_types
        if all(map(_same, own, types)):
            return self
        keys = [
            key if _same(kind, wanted) else as_column(key).cast(wanted)
            for key, kind, wanted in zip(self.groups.shuffle.keys, own, types, strict=True)
        ]
        shuffle = dataclasses.replace(self.groups.shuffle, at=self.at, keys=tuple(keys))
        return Side.of(dataclasses.replace(self.groups, shuffle=shuffle))

    @property
    def carried(self) -> StructType:
        """All columns that may travel: those of expressions stand behind those that are shown."""
        return self.keys.frame.schema if self.at.head is None else self.shown


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

        halves = []
        for frame, taken, flag in zip(frames, self.taken, flags, strict=True):
            chosen = []
            for place, at in enumerate(taken):
                column = F.lit(None).cast(self.types[place]) if at is None else F.col(f"`{frame.columns[at]}`")
                chosen.append(column.alias(f"s{place}"))
            halves.append(frame.select(*chosen, F.lit(flag).alias("side")))
        return halves[0].union(halves[1])


def _travelling(sides: tuple[Side, Side]) -> tuple[_Places, list[str | Column]]:
    """The places of what travels, and those that rows are sorted by.

    Keys have the first places.  A column that is sorted by shares its place with none: the other side's rows would be
    put into that order too.
    """
    from pyspark.sql import functions as F

    places = _Places()
    orders: list[str | Column] = []
    left, right = sides
    for a, b in zip(left.keys.codec.keys, right.keys.codec.keys, strict=True):
        places.both(a, b, left.carried[a].dataType)
    for number, side in enumerate(sides):
        mine = places.taken[number]
        sorted_by: dict[int, bool] = {}  # whether it is descending
        for i in side.keys.order:
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


def _union(sides: tuple[Side, Side], travelling: _Places, arrow: Callable[[StructType], pa.Schema]) -> Staged:
    """A stage of the rows of both sides' inputs, in which producers call the sides' functions."""
    from pyspark.sql.types import BooleanType, StructType

    frames = [side.keys.frame for side in sides]
    if all(side.at.head is None for side in sides):
        df = travelling.union(frames, (False, True))
        return Staged(df, df.schema)
    common = _Places()
    for number, frame in enumerate(frames):
        for column, field in enumerate(frame.schema.fields):
            common.add(number, column, field.dataType)
    inputs = [
        Input(
            tuple(taken.index(column) for column in range(len(side.keys.frame.schema))),
            arrow(side.keys.frame.schema),
            side.at.before or iter,
            arrow(side.carried),
            tuple(places),
        )
        for side, taken, places in zip(sides, common.taken, travelling.taken, strict=True)
    ]
    shipped = StructType()
    for place, kind in enumerate(travelling.types):
        shipped.add(f"s{place}", kind)
    shipped.add("side", BooleanType(), False)
    head = Called(Chain((TwoInputs(inputs[0], inputs[1], arrow(shipped)),)))
    return Staged(common.union(frames, (0, 1)), shipped, head)


def check_sides(left: Any, right: Any, *figures: tuple[str, Callable[[Any], Any]]) -> None:
    """ConfigError unless both sides are of one kind, and the same in each of these figures."""
    if type(right) is not type(left):
        kind = type(left).__name__
        words = (
            f"cogroup needs the result of group_by, not a {type(right).__name__}: the other side must be a {kind} too"
        )
        raise ArgumentTypeError.of(words, "other", kind, right)
    for name, of in figures:
        a, b = of(left), of(right)
        if a != b:
            raise ConfigError(f"{name} is {a} on the left and {b} on the right: both sides must have the same")
