"""Resolves the keys of a shuffle on the driver: names and expressions become column positions.

Spark itself resolves everything except the plain name of one column, so a key means the same as in ``df.repartition(n,
*keys)``.  An expression becomes an additional last column, which user functions do not see.  Spark's own shuffle is
used where fastbuf's hash differs from Spark's (collations, maps), or where an expression is over the output of the
function before the shuffle.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, SchemaError
from fastbuf_spark import pyspark_private
from fastbuf_spark.codec import BatchCodec
from fastbuf_spark.driver.checks import is_connect
from fastbuf_spark.errors import ArgumentTypeError, ColumnError
from fastbuf_spark.schema import arrow_schema, large_types, not_carried, session_zone

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from fastbuf_spark.driver.staged import Staged

log = logging.getLogger("fastbuf_spark")

EXTRA = "__fastbuf_key_"  #: names of the columns that hold expressions
#: Types that fastbuf hashes exactly like Spark; for others Spark's own shuffle is used.
_HASHED = frozenset(
    {"BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType", "DecimalType"}
    | {"BinaryType", "DateType", "TimestampType", "TimestampNTZType", "DayTimeIntervalType", "TimeType", "NullType"}
)
#: Spark refuses variants, and its tasks fail for the other two.
_NEVER = {"VariantType": "variants", "GeographyType": "geographies", "GeometryType": "geometries"}


@dataclass(frozen=True)
class Keys:
    """The input of a shuffle, and its keys.

    Attributes
    ----------
    given
        The keys, as Spark's ``repartition`` takes them; empty: rows are distributed in turn.
    frame
        The DataFrame to read: the input, renamed if Spark needs plain names, with expressions as additional columns.
        If ``by_spark``, the input as it is.
    codec
        Encoding of the rows; its keys are positions.
    by_spark
        Why only Spark's own shuffle can place the rows; empty if fastbuf can.
    order
        Positions of the columns by which rows are sorted within their groups; ``~i``: column ``i`` descending.
    """

    given: tuple[str | Column, ...]
    frame: DataFrame
    codec: BatchCodec
    by_spark: str = ""
    order: tuple[int, ...] = ()


def resolve(at: Staged, keys: Any, num_partitions: int, order: Any = ()) -> Keys:
    """Resolve the keys of a shuffle.

    Parameters
    ----------
    at
        The stage in front of it.
    keys
        One or more names or Columns, of the stage's output.
    num_partitions
        Partitions after the shuffle.
    order
        Like ``keys``: columns to sort rows by after the shuffle.  It does not affect their partition.

    Raises
    ------
    ConfigError
        A value is not a key, or Spark cannot resolve it; the message has Spark's text.
    SchemaError
        Spark's own ``mapInArrow`` does not support a column, or Spark does not hash a key; the message names it and its
        type.
    """
    df, before, columns = at.frame, at.before, at.schema
    given = as_keys(keys)
    key_count = len(given)
    down = [False] * key_count
    for key in as_keys(order):
        bare, descending = _direction(df, key)
        given += (bare,)
        down.append(descending)
    large, zone = large_types(df.sparkSession), session_zone(df.sparkSession)
    shown = arrow_schema(columns, zone, large)
    indexes = [_plain_name(key, columns.names) for key in given]
    if None in indexes:
        indexes = _asked(at, given, indexes, num_partitions)
    wide, why = df, not_carried(columns, shown)
    expressions = [key for key, place in zip(given, indexes, strict=True) if place is None]
    if expressions and before is None:
        wide = df.select("*", *(as_column(key).alias(f"{EXTRA}{i}") for i, key in enumerate(expressions)))
        places = iter(range(len(columns), len(wide.schema)))
        indexes = [next(places) if place is None else place for place in indexes]
    elif expressions:
        why = why or f"key {_text(expressions[0])} is computed from what the function before the shuffle gives"
    types = wide.schema if before is None else columns
    for key, place in zip(given, indexes, strict=True):
        if place is not None:
            why = why or _check_key(key, types[place].name, types[place].dataType)
    frame = plain(wide)
    if why:
        # fastbuf sends nothing then: the codec only describes the functions' input, and Spark finds the keys by name
        return Keys(given[:key_count], df, BatchCodec(shown, (), before), why)
    wire = arrow_schema(frame.schema, zone, large) if before is None else _plain_names(shown)
    positions = tuple(place for place in indexes if place is not None)
    codec = BatchCodec(wire, positions[:key_count], before, None if wire.names == shown.names else shown)
    sorted_by = zip(positions[key_count:], down[key_count:], strict=True)
    return Keys(given[:key_count], frame, codec, "", tuple(~i if descending else i for i, descending in sorted_by))


def as_keys(keys: Any) -> tuple[str | Column, ...]:
    """Keys as a tuple: one or more names and Columns.

    Raises
    ------
    ConfigError
        A value is neither.
    """
    from pyspark.sql import Column

    if isinstance(keys, str | Column):
        return (keys,)
    if not isinstance(keys, Iterable):
        words = f"keys is {_text(keys)}: give a column's name, a Column, or a list of them; none is ()"
        raise ArgumentTypeError.of(words, "keys", "Column or str", keys)
    columns = tuple(keys)
    if len(columns) == 1 and isinstance(columns[0], list | tuple):  # Spark's repartition accepts this too
        columns = tuple(columns[0])
    for key in columns:
        if not isinstance(key, str | Column):
            number = "; a number of partitions is given by name, as in partitions=8 (num_partitions=8 in group_by)"
            number = number if isinstance(key, int) else ""
            words = f"key {_text(key)} is neither a column's name nor a Column{number}"
            raise ArgumentTypeError.of(words, "keys", "Column or str", key)
    return columns


def _direction(df: DataFrame, key: str | Column) -> tuple[str | Column, bool]:
    """The column to sort by, and whether descending, for ``F.desc("x")`` and ``F.col("x").desc()``.

    Raises
    ------
    ConfigError
        The requested position of nulls is not Spark's default.
    """
    if isinstance(key, str):
        return key, False
    order = pyspark_private.sort_order(key, df.sparkSession, is_connect(df))
    if order is None:
        return key, False
    bare, descending, nulls_first = order
    if nulls_first == descending:
        ends = ("descending has null last", "first") if descending else ("ascending has null first", "last")
        raise ConfigError(
            f"sort_by {_text(key)}: {ends[0]}; for null {ends[1]} sort by whether it is null before: "
            f"sort_by=[F.col(...).isNull(){'.desc()' if descending else ''}, ...]"
        )
    return bare, descending


def plain(df: DataFrame) -> DataFrame:
    """The DataFrame, renamed if ``mapInArrow`` cannot take its names: duplicates, dots, backticks."""
    names = df.schema.names
    return df.toDF(*_numbered(names)) if _awkward(names) else df


def _awkward(names: list[str]) -> bool:
    return len({name.casefold() for name in names}) < len(names) or any("." in name or "`" in name for name in names)


def numbered(schema: StructType) -> StructType:
    """The schema with the names c0, c1, ..."""
    from pyspark.sql.types import StructField, StructType

    names = _numbered(schema.names)
    return StructType([StructField(n, f.dataType, f.nullable) for n, f in zip(names, schema.fields, strict=True)])


def _numbered(names: list[str]) -> list[str]:
    return [f"c{i}" for i in range(len(names))]


def _plain_names(schema: pa.Schema) -> pa.Schema:
    """The schema of the encoded rows, in which names must be unique."""
    import pyarrow as pa

    if len(set(schema.names)) == len(schema.names):
        return schema
    return pa.schema([field.with_name(name) for field, name in zip(schema, _numbered(schema.names), strict=True)])


def _plain_name(key: str | Column, names: list[str]) -> int | None:
    """The position of a key that is the name of exactly one column, whether Spark ignores case or not; else None."""
    if not isinstance(key, str) or "." in key or "`" in key or key not in names:
        return None
    folded = key.casefold()
    return names.index(key) if sum(name.casefold() == folded for name in names) == 1 else None


def _asked(
    at: Staged, given: tuple[str | Column, ...], indexes: list[int | None], num_partitions: int
) -> list[int | None]:
    """Positions of the keys, from Spark; None for a key that is an expression."""
    from pyspark.errors import AnalysisException, PySparkException

    df, names = at.frame, at.schema.names
    staged = df if at.before is None else plain(df).mapInArrow(_nothing, at.schema)
    try:
        asked = staged.repartition(num_partitions, *given)
        if is_connect(df):
            assert asked.schema  # this calls the server
            return indexes
    except (PySparkException, ValueError) as error:
        reason = str(error).split(";")[0].split("\n")[0]
        words = f"no key column {', '.join(map(_text, given))}: {reason}; what is shuffled has the columns {names}"
        found_none = ColumnError.of(words, error) if isinstance(error, AnalysisException) else ConfigError(words)
        raise found_none from error
    try:
        return _positions(asked, staged, len(given))
    except Exception as error:  # this Spark lacks a method: compute the expressions instead, which is correct too
        log.debug("positions of the keys are not known: %s", error)
        return indexes


def _positions(asked: DataFrame, staged: DataFrame, keys: int) -> list[int | None]:
    """Positions of Spark's resolved keys among the columns."""
    plan = pyspark_private.analyzed_plan(asked)
    while plan.getClass().getSimpleName() != "RepartitionByExpression":
        # a key that is not a function of its row is computed below this node, and removed above it
        plan = plan.children().apply(0)
    output, resolved = pyspark_private.analyzed_plan(staged).output(), plan.partitionExpressions()
    ids = [output.apply(i).exprId().toString() for i in range(output.size())]
    places: list[int | None] = []
    for i in range(keys):
        key = resolved.apply(i)
        own = key.exprId().toString() if key.getClass().getSimpleName() == "AttributeReference" else None
        places.append(ids.index(own) if own in ids else None)
    return places


def _check_key(key: str | Column, name: str, kind: DataType) -> str:
    """Why only Spark's own shuffle can place rows by a key of this type; empty if fastbuf can.

    Raises
    ------
    SchemaError
        Spark does not hash the type.
    """
    column = f"key {_text(key)}" if name.startswith(EXTRA) else f"key column {name!r}"
    odd = _odd(kind)
    if odd is None:
        return ""
    part, never = odd
    inside = "" if part is kind else f", in which is {part.simpleString()}"
    what = f"{column} has Spark's type {kind.simpleString()}{inside}"
    if never:
        raise SchemaError(f"{what}: Spark cannot hash {never}; use another key")
    return f"{what}, whose rows only Spark's own shuffle can place"


def unhashable(kind: DataType) -> str:
    """Why fastbuf does not place rows by a key of this type; empty if it does."""
    odd = _odd(kind)
    return "" if odd is None else f"its type is {kind.simpleString()}"


def _odd(kind: DataType) -> tuple[DataType, str] | None:
    """The first nested type that fastbuf does not hash, and Spark's name for it if Spark does not hash it either."""
    from pyspark.sql import types as T

    name = type(kind).__name__
    if name in _NEVER:
        return kind, _NEVER[name]
    parts: list[DataType] = []
    if isinstance(kind, T.UserDefinedType):
        parts = [kind.sqlType()]
    elif isinstance(kind, T.ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, T.StructType):
        parts = [field.dataType for field in kind.fields]
    elif isinstance(kind, T.MapType):
        parts = [kind.keyType, kind.valueType]
    nested = [odd for odd in map(_odd, parts) if odd is not None]
    if nested:
        return next((odd for odd in nested if odd[1]), nested[0])
    if isinstance(kind, T.MapType):
        return kind, ""
    if isinstance(kind, T.StringType):
        return None if getattr(kind, "collation", "UTF8_BINARY") == "UTF8_BINARY" else (kind, "")
    return None if parts or name in _HASHED or isinstance(kind, T.StructType) else (kind, "")


def as_column(key: str | Column) -> Column:
    """A key as a Column."""
    from pyspark.sql import functions as F

    return F.col(key) if isinstance(key, str) else key


def _text(key: Any) -> str:
    text = repr(key)
    return text if isinstance(key, str) or text.startswith("Column<") else f"{text:.100} ({type(key).__name__})"


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return iter(())
