"""Spark's schemas and Arrow's: what travels, and what the user's functions see."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from fastbuf.errors import SchemaError, SchemaMismatch
from fastbuf.serializers.schema import Field, Schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

DEFAULT_ZONE = "UTC"


def struct_type(schema: StructType | str) -> StructType:
    """A schema given as a StructType or as DDL text.

    Raises
    ------
    pyspark.errors.ParseException
        The text is no DDL.
    """
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        return schema
    parsed = StructType.fromDDL(schema)
    # DDL of a single type without a name, "long", is a type and no row
    return parsed if isinstance(parsed, StructType) else StructType().add("value", parsed)


def arrow_schema(schema: StructType, zone: str) -> pa.Schema:
    """The Arrow schema that Spark gives to ``mapInArrow`` for a schema.

    Parameters
    ----------
    zone
        The session's time zone: Spark's timestamps are instants, and Arrow's carry the zone they are shown in.
        Two stages of one plan share it, so that nothing is converted on the way.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        made = to_arrow_schema(schema, timezone=zone)
    else:  # before Spark 4.3 it always said UTC, though the JVM's batches carry the session's zone
        made = pa.schema([_in_zone(field, zone) for field in to_arrow_schema(schema)])
    return pa.schema([field.remove_metadata() for field in made])


def _in_zone(field: pa.Field, zone: str) -> pa.Field:
    """A field whose instants, nested ones too, are shown in ``zone``."""
    import pyarrow as pa

    kind = field.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return field.with_type(pa.timestamp(kind.unit, tz=zone))
    if pa.types.is_list(kind):
        return field.with_type(pa.list_(_in_zone(kind.value_field, zone)))
    if pa.types.is_map(kind):
        return field.with_type(pa.map_(_in_zone(kind.key_field, zone), _in_zone(kind.item_field, zone)))
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([_in_zone(kind.field(i), zone) for i in range(kind.num_fields)]))
    return field


def schema_of(schema: StructType | str, zone: str = DEFAULT_ZONE) -> Schema:
    """The fastbuf schema of a Spark schema: for a RowSerializer of its Rows, or a ColumnarSerializer of its batches.

    Parameters
    ----------
    schema
        A StructType, or DDL text.
    zone
        Time zone of ``timestamp`` columns: a Row's datetimes must have one then.

    Returns
    -------
    Schema

    Raises
    ------
    SchemaError
        A type that Arrow or fastbuf has not (variant, interval, user-defined); the message names the field.
    """
    from pyspark.errors import PySparkTypeError

    wanted = struct_type(schema)
    for field in wanted:
        try:
            arrow_schema(type(wanted)([field]), zone)
        except PySparkTypeError as error:
            kind = field.dataType.simpleString()
            raise SchemaError(f"field {field.name!r} has Spark's type {kind}: {error}") from error
    return Schema.from_arrow(arrow_schema(wanted, zone))


def struct_type_of(schema: Schema) -> StructType:
    """The Spark schema of a fastbuf schema: what a DataFrame of its records or batches has.

    Parameters
    ----------
    schema
        Times of any unit are Spark's microseconds, and lists, strings and binaries of any kind Spark's only one.

    Returns
    -------
    StructType

    Raises
    ------
    SchemaError
        A type that Spark has not (unsigned, float16, decimal of more than 38 digits); the message names the field.
    """
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructType

    made = StructType()
    for field, arrow in zip(schema, schema.to_arrow(), strict=True):
        if _has_wide_decimal(field):
            raise SchemaError(f"field {field.name!r} has the type {field.type}: Spark's decimals end at 38 digits")
        try:
            made.add(field.name, from_arrow_type(arrow.type), arrow.nullable)
        except PySparkTypeError as error:
            raise SchemaError(
                f"field {field.name!r} has the type {field.type}, which Spark has not: {error}"
            ) from error
    return made


def _has_wide_decimal(field: Field) -> bool:
    return field.type.precision > 38 or any(map(_has_wide_decimal, field.type.children))


def session_zone(spark: Any) -> str:
    """The time zone of a session (classic or Connect)."""
    return spark.conf.get("spark.sql.session.timeZone", DEFAULT_ZONE) or DEFAULT_ZONE


def conform(batch: pa.RecordBatch, schema: pa.Schema, whose: str) -> pa.RecordBatch:
    """The batch with exactly this schema; columns are cast only where their types differ, and only safely.

    Parameters
    ----------
    whose
        Named in the error: whose batch it is.

    Raises
    ------
    SchemaMismatch
        Other columns, a type that cannot be cast safely, or a null where none is allowed.
    """
    import pyarrow as pa

    if not isinstance(batch, pa.RecordBatch):
        raise SchemaMismatch(f"{whose} gave a {type(batch).__name__}: it must give pyarrow.RecordBatch objects")
    if batch.schema.equals(schema):
        return batch
    if batch.schema.names != schema.names:
        raise SchemaMismatch(f"{whose} gave columns {batch.schema.names}; its schema has {schema.names}")
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        if not field.nullable and column.null_count:
            raise SchemaMismatch(f"{whose} gave {column.null_count} nulls in column {field.name}, which allows none")
        try:
            columns.append(column if column.type.equals(field.type) else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaMismatch(
                f"{whose} gave column {field.name} as {column.type}; its schema has {field.type}: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)
