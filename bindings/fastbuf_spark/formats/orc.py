"""ORC files.  Their timestamps are what a clock showed that stood in the zone of Spark's JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from fastbuf.errors import SchemaError, SchemaMismatch
from fastbuf_spark.driver.file_types import of_arrow, refused
from fastbuf_spark.formats.base import Scanned
from fastbuf_spark.schema import types_in
from fastbuf_spark.worker.zones import instants

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from fastbuf_spark.driver.sources import Asked
    from fastbuf_spark.expressions import Skipping

CATALYST = b"spark.sql.catalyst.type"  #: in a column's attributes: Spark's type, where ORC has none of its own
NAMELESS = "_col"  #: how all names begin in files of old Hives, which have no others
FIRST_DAY = -141427  #: of the calendar of today, 1582-10-15: ORC has days before it in another one
UTC = ("UTC", "Etc/UTC", "GMT", "Z")


@dataclass(frozen=True)
class Orc(Scanned):
    """ORC files.

    Attributes
    ----------
    zone
        Of the clocks that its timestamps show; empty: no column has one.
    """

    name = "orc"
    title = "ORC"
    filters = False  # days and instants are known behind the reader only

    zone: str = ""

    def layout(self) -> Any:
        import pyarrow.dataset as ds

        return ds.OrcFileFormat()

    def with_columns(self, asked: Asked, schema: StructType) -> Self:
        from pyspark.sql.types import TimestampType

        names = schema.names if asked.columns is None else [*asked.columns]
        inside = {f.name: [isinstance(kind, TimestampType) for kind in types_in(f.dataType)] for f in schema.fields}
        if not any(map(any, inside.values())):
            return self
        # Of a function of Java's, as Spark tells it nowhere else
        zone = asked.spark.sql("SELECT reflect('java.time.ZoneId', 'systemDefault')").head()[0]
        nested = [name for name in names if any(inside.get(name, [])[1:])]
        if nested and zone not in UTC:
            raise SchemaError(
                f"column {nested[0]!r} has timestamps in it, and the JVM's zone is {zone}: only Spark converts them; "
                "use spark.read.orc, leave it out (columns=), or run Spark in UTC (-Duser.timezone=UTC)"
            )
        return replace(self, zone=zone)

    def schema_of(self, asked: Asked, fragment: Any) -> StructType:
        from pyspark.errors import PySparkException
        from pyspark.sql.types import StructType

        struct = StructType()
        for field in fragment.physical_schema:
            try:
                struct.add(field.name, _spark_type(field), True)
            except (SchemaError, PySparkException) as error:
                message = f"{fragment.path}: column {field.name!r} has ORC's type {field.type}: {error}; leave it out"
                struct.add(refused(field.name, SchemaError(f"{message} (columns=)")))
        return struct

    def fields(self, fragment: Any) -> pa.Schema | None:
        import pyarrow as pa

        return pa.schema([_shown(field) for field in fragment.physical_schema])

    def check_fragment(self, fragment: Any, fields: pa.Schema | None, schema: pa.Schema) -> None:
        names = fragment.physical_schema.names
        if names and all(name.startswith(NAMELESS) for name in names) and not set(schema.names) <= set(names):
            raise SchemaMismatch(
                f"{fragment.path} has columns without names ({', '.join(names[:3])}...), which Spark takes by their "
                "places: use spark.read.orc"
            )
        super().check_fragment(fragment, fields, schema)

    def read(
        self, fragment: Any, schema: pa.Schema, names: Sequence[str], skipping: Skipping | None, rows: int
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        zoned = {field.name for field in schema if pa.types.is_timestamp(field.type) and field.type.tz is not None}
        clocks = zoned & {field.name for field in fragment.physical_schema if _is_clock(field.type)}
        if self.zone in UTC:
            clocks = set()
        local = [field.with_type(pa.timestamp("us")) if field.name in clocks else field for field in schema]
        for batch in super().read(fragment, pa.schema(local), names, None, rows):
            for at, name in enumerate(names):
                if any(least < FIRST_DAY for least in _least_days(batch.column(at))):
                    raise SchemaMismatch(
                        f"{fragment.path}: column {name!r} has a day before 1582-10-15, in a calendar that only Spark "
                        "converts: use spark.read.orc, or leave it out (columns=)"
                    )
                if name in clocks:
                    try:
                        times = instants(batch.column(at), self.zone, "raise").cast(schema.field(name).type)
                    except pa.ArrowInvalid as error:
                        raise SchemaMismatch(
                            f"{fragment.path}: column {name!r} has a time that the zone of Spark's JVM, {self.zone}, "
                            f"has twice, or not at all: {error}; use spark.read.orc, or leave it out (columns=)"
                        ) from error
                    batch = batch.set_column(at, schema.field(name), times)
            yield batch


def _least_days(column: pa.Array) -> Iterator[int]:
    """The least one of each column of days, in a column at any depth."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_date32(column.type):
        least = pc.min(column.cast(pa.int32())).as_py()
        if least is not None:
            yield least
    elif pa.types.is_map(column.type):
        yield from _least_days(column.keys)
        yield from _least_days(column.items)
    elif pa.types.is_nested(column.type):
        for each in column.flatten() if pa.types.is_struct(column.type) else [column.flatten()]:
            yield from _least_days(each)


def _is_clock(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_timestamp(kind) and kind.tz is None


def _spark_type(field: pa.Field) -> DataType:
    import pyarrow as pa
    from pyspark.sql import types as T

    kind = field.type
    if CATALYST in (field.metadata or {}):
        return T.DataType.fromDDL(field.metadata[CATALYST].decode())
    if pa.types.is_timestamp(kind):
        return T.TimestampType()
    if pa.types.is_struct(kind):
        return T.StructType([T.StructField(each.name, _spark_type(each)) for each in kind])
    if pa.types.is_map(kind):
        return T.MapType(_spark_type(kind.key_field), _spark_type(kind.item_field))
    if pa.types.is_list(kind):
        return T.ArrayType(_spark_type(kind.value_field))
    spark_field = of_arrow(pa.schema([field]))[0]
    if isinstance(spark_field.dataType, T.NullType):
        raise SchemaError("Spark does not read it")
    return spark_field.dataType


def _shown(field: pa.Field) -> pa.Field:
    """The field with the type of its values, where Spark has written them as numbers, at any depth."""
    import pyarrow as pa

    kind, catalyst = field.type, (field.metadata or {}).get(CATALYST, b"")
    if pa.types.is_struct(kind):
        kind = pa.struct([_shown(each) for each in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_shown(kind.key_field), _shown(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_shown(kind.value_field))
    elif catalyst == b"timestamp_ntz":
        kind = pa.timestamp("us")
    elif catalyst.startswith(b"interval day"):
        kind = pa.duration("us")
    return field.with_type(kind)
