"""The schema that Spark reads a file with.  From Parquet's types, since Arrow's lack details that Spark uses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastbuf.errors import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructField, StructType

ROW_METADATA = b"org.apache.spark.sql.parquet.row.metadata"  #: Spark's own schema, in files written by Spark
#: In the metadata of a field whose type is not supported: why.  It stands for the field until it is requested
REFUSED = "fastbuf_refused"
MOST_DIGITS = 38  #: most digits of Spark's decimals


def parquet_schema(metadata: Any, arrow: pa.Schema, path: str, ntz: bool, texts: bool) -> StructType:
    """The schema that Spark's reader derives from a Parquet file.

    Parameters
    ----------
    metadata
        Metadata of the file (``pyarrow.parquet.FileMetaData``).
    arrow
        Its Arrow schema, which shows how types are nested.
    ntz, texts
        Spark's settings ``spark.sql.parquet.inferTimestampNTZ.enabled`` and ``binaryAsString``.

    Returns
    -------
    StructType
        A field whose type Spark does not read either has the type void, and the reason in its metadata.
    """
    from pyspark.sql.types import StructType

    told = metadata.metadata or {}
    if ROW_METADATA in told:
        return nullable(StructType.fromJson(json.loads(told[ROW_METADATA])))
    leaves = (metadata.schema.column(i) for i in range(metadata.num_columns))
    made = StructType()
    for field in arrow:
        below = [next(leaves) for _ in range(_leaves(field.type))]
        try:
            made.add(field.name, _spark_type(field.type, iter(below), path, ntz, texts), True)
        except SchemaError as error:
            made.add(refused(field.name, error))
    return made


def refused(name: str, error: SchemaError) -> StructField:
    """Stands for a column that cannot be read, until it is requested."""
    from pyspark.sql.types import NullType, StructField

    return StructField(name, NullType(), True, {REFUSED: str(error)})


def _leaves(kind: pa.DataType) -> int:
    """Number of Parquet columns of a field."""
    import pyarrow as pa

    kind = _stored(kind)
    if pa.types.is_struct(kind):
        return sum(_leaves(kind.field(i).type) for i in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _leaves(kind.key_type) + _leaves(kind.item_type)
    return _leaves(kind.value_type) if _is_list(kind) else 1


def _stored(kind: pa.DataType) -> pa.DataType:
    """What Parquet has of a type: an extension's, as of an interval of pandas or a tensor, is that of its storage."""
    import pyarrow as pa

    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return hasattr(kind, "value_field") and not pa.types.is_run_end_encoded(kind)


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


def _spark_type(kind: pa.DataType, leaves: Iterator[Any], path: str, ntz: bool, texts: bool) -> DataType:
    import pyarrow as pa
    from pyspark.sql import types as T

    kind = _stored(kind)
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return T.StructType([T.StructField(f.name, _spark_type(f.type, leaves, path, ntz, texts)) for f in fields])
    if pa.types.is_map(kind):
        key = _spark_type(kind.key_type, leaves, path, ntz, texts)
        return T.MapType(key, _spark_type(kind.item_type, leaves, path, ntz, texts))
    if _is_list(kind):
        return T.ArrayType(_spark_type(kind.value_type, leaves, path, ntz, texts))
    return _leaf(next(leaves), path, ntz, texts)


def _leaf(leaf: Any, path: str, ntz: bool, texts: bool) -> DataType:
    from pyspark.sql import types as T

    physical, logical = leaf.physical_type, json.loads(leaf.logical_type.to_json())
    name = logical["Type"]
    if physical == "INT96":
        return T.TimestampType()
    if name == "Timestamp" and logical["timeUnit"] != "nanoseconds":
        return T.TimestampType() if logical["isAdjustedToUTC"] or not ntz else T.TimestampNTZType()
    if name == "Decimal" and logical["precision"] <= MOST_DIGITS:
        return T.DecimalType(logical["precision"], logical["scale"])
    if name == "Int":
        signed: dict[int, type[DataType]] = {8: T.ByteType, 16: T.ShortType, 32: T.IntegerType, 64: T.LongType}
        wider: dict[int, type[DataType]] = {8: T.ShortType, 16: T.IntegerType, 32: T.LongType}
        bits = logical["bitWidth"]
        return signed[bits]() if logical["isSigned"] else wider[bits]() if bits < 64 else T.DecimalType(20, 0)
    plain: dict[str, type[DataType]] = {
        "BOOLEAN": T.BooleanType,
        "INT32": T.IntegerType,
        "INT64": T.LongType,
        "FLOAT": T.FloatType,
        "DOUBLE": T.DoubleType,
        "BYTE_ARRAY": T.StringType if texts else T.BinaryType,
        "FIXED_LEN_BYTE_ARRAY": T.BinaryType,
    }
    known: dict[str, type[DataType]] = {
        "String": T.StringType,
        "Enum": T.StringType,
        "JSON": T.StringType,
        "BSON": T.BinaryType,
        "Date": T.DateType,
        "Null": T.IntegerType,
        "None": plain.get(physical, T.NullType),
    }
    if name in known and known[name] is not T.NullType:
        return known[name]()
    raise SchemaError(
        f"{path}: column {leaf.path!r} has Parquet's type {physical} ({leaf.logical_type}), which Spark does not read "
        "either; leave it out (columns=), or read the files by pyarrow in a function of your own"
    )
