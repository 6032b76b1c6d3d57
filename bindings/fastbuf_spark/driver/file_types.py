"""Spark's types of what files have, where nothing but Arrow's types is known of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastbuf.errors import SchemaError
from fastbuf_spark import pyspark_private

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructField, StructType

#: In the metadata of a field whose type is not supported: why.  It stands for the field until it is requested
REFUSED = "fastbuf_refused"
MOST_DIGITS = 38  #: most digits of Spark's decimals


def refused(name: str, error: SchemaError) -> StructField:
    """Stands for a column that cannot be read, until it is requested."""
    from pyspark.sql.types import NullType, StructField

    return StructField(name, NullType(), True, {REFUSED: str(error)})


def nullable(kind: Any) -> Any:
    """The type with nulls allowed everywhere, as Spark reads types from files."""
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(f.name, nullable(f.dataType), True, f.metadata) for f in kind.fields])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(nullable(kind.elementType), True)
    if isinstance(kind, T.MapType):
        return T.MapType(nullable(kind.keyType), nullable(kind.valueType), True)
    return kind


def of_arrow(schema: pa.Schema) -> StructType:
    """Spark's schema for an Arrow schema, for files without more information.

    A field whose type Spark does not have has the type void, and the reason in its metadata.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import types as T

    struct = T.StructType()
    for field in schema:
        try:
            spark_type = pyspark_private.from_arrow_type(_plain(field.type))
        except PySparkException as error:
            why = SchemaError(f"column {field.name!r} has Arrow's type {field.type}: {error}; leave it out (columns=)")
            struct.add(refused(field.name, why))
        else:
            struct.add(field.name, nullable(spark_type), True)
    return struct


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type to read one as that Spark has not: views, dictionaries, unsigned numbers and days, at any depth."""
    import pyarrow as pa

    views = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    # Arrow cannot decode a dictionary whose values are views: the type stays a view, which Spark then refuses
    if pa.types.is_dictionary(kind):
        return kind.value_type if kind.value_type in views else _plain(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    # No views of lists: what Arrow 26 casts them to has offsets beyond its memory
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type))
    unsigned = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20),
        pa.date64(): pa.date32(),
    }
    return (views | unsigned).get(kind, kind)
