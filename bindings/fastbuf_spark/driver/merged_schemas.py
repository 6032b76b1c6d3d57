"""The schema of several files together, as Spark merges theirs (``mergeSchema``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastbuf.errors import SchemaError
from fastbuf_spark.driver.file_types import MOST_DIGITS, REFUSED

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType


def merged(schemas: Iterable[tuple[str, StructType]], case: bool) -> StructType:
    """All columns, and all fields of structs at any depth, in the order in which they come.

    Parameters
    ----------
    schemas
        Each with the path of its file.
    case
        Whether names that differ in case are different ones; else the first counts.

    Raises
    ------
    SchemaError
        A column has types that Spark does not merge: only those of decimals of one scale may differ.
    """
    from pyspark.sql import types as T

    def of_fields(path: str, name: str, one: StructType, other: StructType) -> StructType:
        fields = {_folded(field.name, case): field for field in one.fields}
        if len(fields) < len(one.fields):
            raise SchemaError(f"{path}, or a file before it: {name or 'its schema'} has names twice, of {one.names}")
        for field in other.fields:
            key = _folded(field.name, case)
            mine = fields.get(key)
            fields[key] = field if mine is None else of_field(path, f"{name}.{field.name}".lstrip("."), mine, field)
        return T.StructType(list(fields.values()))

    def of_field(path: str, name: str, one: StructField, other: StructField) -> StructField:
        if REFUSED in one.metadata or REFUSED in other.metadata:
            return one if REFUSED in one.metadata else T.StructField(one.name, other.dataType, True, other.metadata)
        return T.StructField(one.name, of_types(path, name, one.dataType, other.dataType), True, one.metadata)

    def of_types(path: str, name: str, one: DataType, other: DataType) -> DataType:
        if one == other:
            return one
        if isinstance(one, T.StructType) and isinstance(other, T.StructType):
            return of_fields(path, name, one, other)
        if isinstance(one, T.ArrayType) and isinstance(other, T.ArrayType):
            return T.ArrayType(of_types(path, name, one.elementType, other.elementType))
        if isinstance(one, T.MapType) and isinstance(other, T.MapType):
            key = of_types(path, name, one.keyType, other.keyType)
            return T.MapType(key, of_types(path, name, one.valueType, other.valueType))
        if isinstance(one, T.DecimalType) and isinstance(other, T.DecimalType) and one.scale == other.scale:
            return T.DecimalType(min(max(one.precision, other.precision), MOST_DIGITS), one.scale)
        raise SchemaError(
            f"{path}: column {name!r} is {other.simpleString()}, and {one.simpleString()} in a file before it, which "
            "Spark does not merge either: give a schema=, or mergeSchema=False"
        )

    whole = T.StructType()
    for path, schema in schemas:
        whole = of_fields(path, "", whole, schema)
    return whole


def _folded(name: str, case: bool) -> str:
    return name if case else name.lower()
