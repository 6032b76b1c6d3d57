"""Whether the columns of rows are those that a table has, or that a table of this kind can have."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, SchemaError
from fastbuf_spark.driver.file_types import nullable
from fastbuf_spark.schema import types_in

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def check_types(schema: StructType, pattern: re.Pattern[str], kind: str, advice: str = "") -> None:
    """SchemaError for columns whose types, that are not nested, are not these, by their names."""
    from pyspark.sql import types as T

    for field in schema.fields:
        for each in types_in(field.dataType):
            nested = isinstance(each, T.StructType | T.ArrayType | T.MapType)
            if not nested and not pattern.fullmatch(each.simpleString()):
                raise SchemaError(
                    f"field {field.name!r} has Spark's type {field.dataType.simpleString()}, which {kind} does not "
                    f"have{advice}"
                )


def matched(table: str, shown: StructType, needed: Collection[str], rows: StructType) -> list[str]:
    """The table's own names for columns of rows.

    Parameters
    ----------
    shown
        The table's columns.
    needed
        Those that rows must have.

    Raises
    ------
    SchemaError
        Columns, or their types, are others.
    """
    theirs = {field.name.casefold(): field for field in shown.fields}
    for field in rows.fields:
        other = theirs.get(field.name.casefold())
        if other is None:
            raise SchemaError(f"{table} has no column {field.name!r}, only {shown.names}")
        mine, wanted = (nullable(each.dataType).simpleString() for each in (field, other))
        if mine != wanted:
            raise SchemaError(f"column {field.name!r} is {mine}, and {wanted} in {table}: cast it")
    names = {field.name.casefold() for field in rows.fields}
    lacks = [name for name in needed if name.casefold() not in names]
    if lacks:
        raise SchemaError(f"the rows have no column {lacks}, which {table} needs")
    return [theirs[field.name.casefold()].name for field in rows.fields]


def renamed(schema: StructType, names: Sequence[str]) -> StructType:
    """The schema with other names of its columns."""
    from pyspark.sql.types import StructField, StructType

    pairs = zip(schema.fields, names, strict=True)
    return StructType([StructField(name, field.dataType, field.nullable, field.metadata) for field, name in pairs])


def partition_values(predicate: Any, by: Collection[str]) -> list[tuple[str, list[Any]]]:
    """The partitions that an overwrite replaces: of each column its values.  ConfigError for anything else."""
    chosen: list[tuple[str, list[Any]]] = []
    for each in predicate:
        if len(each) != 3 or each[0] not in by or each[1] not in ("=", "in"):
            raise ConfigError(
                f"predicate is {predicate!r:.200}: give triples of a column of {list(by)}, which are the table's "
                "partitions, '=' or 'in', and a value, or a list of them"
            )
        chosen.append((each[0], list(each[2]) if each[1] == "in" else [each[2]]))
    return chosen


def check_replaced(name: str, value: Any, values: Collection[Any]) -> None:
    """ConfigError for rows with this value, if an overwrite replaces others."""
    if value not in values:
        raise ConfigError(
            f"there are rows with {name}={value!r}, and predicate replaces {name} in {sorted(values, key=str)}: filter "
            "them, or leave predicate out"
        )
