"""Parquet files: the schema that Spark reads them with, their row groups, and what Spark alone reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from fastbuf.errors import SchemaError
from fastbuf_spark.driver.file_types import MOST_DIGITS, nullable, refused
from fastbuf_spark.formats.base import Scanned, part_of, with_path
from fastbuf_spark.schema import arrow_schema
from fastbuf_spark.worker.reading import FIELD_ID, in_file

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from fastbuf_spark.driver.sources import Asked
    from fastbuf_spark.expressions import Skipping

SPARK_VERSION = b"org.apache.spark.version"
ROW_METADATA = b"org.apache.spark.sql.parquet.row.metadata"  #: Spark's own schema, in files written by Spark
#: Marks files with dates and times before 1582 in the Julian calendar
LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
PER_MS = {"microseconds": 1000, "nanoseconds": 1_000_000}  #: Parquet's units in a millisecond
VARIANT = b"variant"  #: in the metadata of a variant's field
SHREDDED = "typed_value"  #: the field that only shredded variants have


class Parquet(Scanned):
    """Parquet files, in row groups."""

    name = suffix = "parquet"
    title = "Parquet"
    codecs = ("snappy", "zstd", "gzip", "lz4", "brotli", "none")

    def layout(self) -> Any:
        import pyarrow.dataset as ds

        return ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")

    def tell(self, asked: Asked, files: list[str], summaries: list[str]) -> list[str]:
        """A summary, if there is one, counts first; where schemas are merged, last, or alone."""
        if not asked.is_set("mergeSchema"):
            return [*summaries, *files]
        only = [] if asked.is_set("parquet.respectSummaryFiles") else files
        return [*only, *reversed(summaries)]

    def schema_of(self, asked: Asked, fragment: Any) -> StructType:
        fragment.ensure_complete_metadata()
        ntz, texts = asked.is_set("parquet.inferTimestampNTZ.enabled", True), asked.is_set("parquet.binaryAsString")
        return parquet_schema(fragment.metadata, fragment.physical_schema, fragment.path, ntz, texts)

    def split(
        self, fragment: Any, size: int, schema: pa.Schema, skipping: Skipping | None
    ) -> list[tuple[Any, int, int]]:
        """Its row groups, with the bytes of the columns that are read."""
        with with_path(fragment.path):
            fragment.ensure_complete_metadata()
        check_calendar(fragment, schema)
        check_variants(fragment, schema)
        has_ids = any(FIELD_ID in (field.metadata or {}) for field in schema)
        if has_ids and not in_file(schema, fragment, list(fragment.physical_schema)).equals(schema):
            skipping = None  # names in a table's old files may be those of other columns now
        wanted = {name.casefold() for name in schema.names}  # an estimate, so a name in another case may count
        pieces = []
        for part in row_groups(fragment, schema, skipping):
            about = fragment.metadata.row_group(part.row_groups[0].id)
            columns = (about.column(i) for i in range(about.num_columns))
            tops = ((column, column.path_in_schema.partition(".")[0].casefold()) for column in columns)
            used = sum(column.total_uncompressed_size for column, top in tops if top in wanted)
            pieces.append((part, about.num_rows, used))
        return pieces

    def groups(self, fragment: Any) -> tuple[int, ...]:
        return tuple(group.id for group in fragment.row_groups)

    def joined(self, one: Any, other: Any, size: int, groups: tuple[int, ...]) -> Any:
        """Later row groups of the same file, which has a path: it may be of two file systems, or be given twice."""
        if other.filesystem is None or one.path != other.path or one.filesystem != other.filesystem:
            return None
        if list(groups) != sorted(set(groups)):
            return None
        return part_of(other.format, other, size, groups)

    def check_fragment(self, fragment: Any, fields: pa.Schema | None, schema: pa.Schema) -> None:
        check_calendar(fragment, schema)
        check_variants(fragment, schema)
        super().check_fragment(fragment, fields, schema)

    def least_time(self, fragment: Any, field: pa.Field) -> int | None:
        metadata, least = fragment.metadata, None
        for at in range(metadata.num_columns):
            column = metadata.schema.column(at)
            logical = json.loads(column.logical_type.to_json())
            if column.path != field.name or logical["Type"] != "Timestamp":
                continue
            if logical["isAdjustedToUTC"] != (field.type.tz is not None):
                return None
            for group in map(metadata.row_group, range(metadata.num_row_groups)):
                bounds = group.column(at).statistics
                if bounds is None or not bounds.has_min_max:
                    if bounds is not None and bounds.has_null_count and bounds.null_count == group.num_rows:
                        continue  # its rows have no times
                    return None
                value = bounds.min_raw // PER_MS.get(logical["timeUnit"], 1)
                least = value if least is None else min(least, value)
        return least

    def schema_in_files(self, struct: StructType, zone: str, version: str) -> pa.Schema:
        metadata = {ROW_METADATA: json.dumps(struct.jsonValue()).encode(), SPARK_VERSION: version.encode()}
        return file_schema(arrow_schema(struct, zone), metadata)

    def writer(self, sink: Any, schema: pa.Schema, compression: str, **options: Any) -> ParquetWriter:
        return ParquetWriter(sink, schema, compression, options)


class ParquetWriter:
    """Writes a file, a row group at a time."""

    def __init__(self, sink: Any, schema: pa.Schema, compression: str, options: Mapping[str, Any]) -> None:
        import pyarrow.parquet as pq

        self._footers: list[Any] = []
        how = {**options, "compression": compression, "metadata_collector": self._footers}
        self._writer = pq.ParquetWriter(sink, schema, **how)

    def write(self, table: pa.Table, rows: int) -> None:
        """Write row groups."""
        self._writer.write_table(table, row_group_size=rows)

    def close(self) -> Any:
        """Gives the footer."""
        self._writer.close()
        return self._footers[0]

    def abandon(self) -> None:
        """Let pyarrow's writer not end the file when it is collected: its sink is closed by then."""
        self._writer.is_open = False


def row_groups(fragment: Any, schema: pa.Schema, skipping: Skipping | None) -> list[Any]:
    """A fragment for each row group that may have rows which match."""
    import pyarrow as pa

    parts = fragment.split_by_row_group(schema=schema)
    if skipping is None or not skipping.cases:
        return list(parts)
    sink = pa.BufferOutputStream()
    fragment.metadata.write_metadata_file(sink)
    footer = sink.getvalue()
    ids: set[int] = set()
    for case in skipping.cases:
        # Bounds leave NaN out, so a row group is looked at once more for rows that have it
        expression = reduce(and_, case.values(), fragment.partition_expression)
        stub = fragment.format.make_fragment(pa.BufferReader(footer), partition_expression=expression)
        try:
            ids.update(part.row_groups[0].id for part in stub.split_by_row_group(skipping.filter, schema=schema))
        except pa.ArrowInvalid:  # the filter has no value of NaN: reading tells it, if there is one
            return list(parts)
    return [part for part in parts if part.row_groups[0].id in ids]


def check_calendar(fragment: Any, schema: pa.Schema) -> None:
    """SchemaError if a Parquet file has dates or times before 1582 in the Julian calendar: Spark converts them."""
    from pyarrow import types

    key_values = fragment.metadata.metadata or {}
    version = key_values.get(SPARK_VERSION, b"").decode()
    legacy = any(key in key_values for key in LEGACY) or version.startswith(("1.", "2."))
    if legacy and any(_has(field, lambda each: types.is_temporal(each.type)) for field in schema):
        raise SchemaError(
            f"{fragment.path} has dates in the calendar used before Spark 3 ({version or 'legacy'}): only Spark "
            "converts them; use spark.read.parquet"
        )


def check_variants(fragment: Any, schema: pa.Schema) -> None:
    """SchemaError if a Parquet file has a variant in several columns, which only Spark puts together."""
    theirs = {field.name.casefold(): field for field in fragment.physical_schema}
    for field in schema:
        other = theirs.get(field.name.casefold(), field)
        shredded = _has(other, lambda each: each.name == SHREDDED)
        if shredded and _has(field, lambda each: VARIANT in (each.metadata or {})):
            raise SchemaError(
                f"{fragment.path}: column {field.name!r} has shredded variants, which only Spark puts together: use "
                "spark.read.parquet, or leave it out (columns=)"
            )


def _has(field: pa.Field, test: Callable[[pa.Field], bool]) -> bool:
    """Whether a field, or one in it, is such."""
    return test(field) or any(_has(field.type.field(i), test) for i in range(field.type.num_fields))


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

    key_values = metadata.metadata or {}
    if ROW_METADATA in key_values:
        return nullable(StructType.fromJson(json.loads(key_values[ROW_METADATA])))
    leaves = (metadata.schema.column(i) for i in range(metadata.num_columns))
    struct = StructType()
    for field in arrow:
        below = [next(leaves) for _ in range(_leaves(field.type))]
        try:
            struct.add(field.name, _spark_type(field.type, iter(below), path, ntz, texts), True)
        except SchemaError as error:
            struct.add(refused(field.name, error))
    return struct


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
    types: dict[str, type[DataType]] = {
        "String": T.StringType,
        "Enum": T.StringType,
        "JSON": T.StringType,
        "BSON": T.BinaryType,
        "Date": T.DateType,
        "Null": T.IntegerType,
        "None": plain.get(physical, T.NullType),
    }
    if name in types and types[name] is not T.NullType:
        return types[name]()
    raise SchemaError(
        f"{path}: column {leaf.path!r} has Parquet's type {physical} ({leaf.logical_type}), which Spark does not read "
        "either; leave it out (columns=), or read the files by pyarrow in a function of your own"
    )


def file_schema(shown: pa.Schema, metadata: Mapping[bytes, bytes]) -> pa.Schema:
    """The schema of files as Spark writes it: timestamps in UTC, intervals as numbers, Spark's schema in the footer.

    But fields of a struct that may be null may be null too: Arrow has nulls there, which it does not write otherwise.
    """
    import pyarrow as pa

    return pa.schema([_field_in_files(field, False) for field in shown], metadata=dict(metadata))


def _field_in_files(field: pa.Field, nullable: bool) -> pa.Field:
    """``nullable``: whether it is in a struct that may be null."""
    nullable |= field.nullable
    return field.with_type(_in_files(field.type, nullable)).with_nullable(nullable)


def _in_files(kind: pa.DataType, nullable: bool) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us", "UTC")
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(_field_in_files(kind.value_field, False))
    if pa.types.is_map(kind):
        return pa.map_(_field_in_files(kind.key_field, False), _field_in_files(kind.item_field, False))
    if pa.types.is_struct(kind):
        return pa.struct([_field_in_files(kind.field(i), nullable) for i in range(kind.num_fields)])
    return kind
