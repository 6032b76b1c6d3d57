"""Converts between schemas of Spark, Arrow and fastbuf, and conforms batches to them."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from fastbuf.errors import SchemaError, SchemaMismatch
from fastbuf.serializers.schema import Field, Schema
from fastbuf_spark import pyspark_private
from fastbuf_spark.errors import ResultError, ResultTypeError, SchemaTypeError
from fastbuf_spark.java_text import java_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]

DEFAULT_ZONE = "UTC"
METADATA = b"SPARK::metadata::json"  #: of Spark's columns, in Arrow's fields


def struct_type(schema: StructType | str) -> StructType:
    """A schema given as a StructType or as DDL text.

    Raises
    ------
    SchemaError
        Something else.
    pyspark.errors.ParseException
        The text is no DDL.
    """
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        return schema
    if not isinstance(schema, str):
        words = f"a schema is a {type(schema).__name__}: give a StructType or DDL text, as in 'id long'"
        parameters = {"arg_name": "schema", "expected_type": "StructType or str", "arg_type": type(schema).__name__}
        raise SchemaTypeError(words, "NOT_EXPECTED_TYPE", parameters)
    parsed = StructType.fromDDL(schema)
    # DDL with a single type and no name ("long") is parsed as that type, not as a struct
    return parsed if isinstance(parsed, StructType) else StructType().add("value", parsed)


def twice(names: Iterable[str]) -> list[str]:
    """The names that stand more than once, each once, in the order of letters."""
    return sorted(name for name, times in Counter(names).items() if times > 1)


def arrow_schema(schema: StructType, zone: str, large: bool = False) -> pa.Schema:
    """The Arrow schema that Spark gives to ``mapInArrow`` for a schema.

    Parameters
    ----------
    zone
        The session's time zone: Spark's timestamps are instants, and Arrow's carry the zone they are shown in.
        Two stages of one plan share it, so that nothing is converted on the way.
    large
        Strings and binaries with offsets of 64 bits; see :func:`large_types`.

    Raises
    ------
    SchemaError
        A type that Spark's own ``mapInArrow`` does not carry; the message names the column and its type.
    """
    from pyspark.errors import PySparkException

    refused = (PySparkException, ValueError)  # the latter is Arrow's, for what array() makes: no element is a null
    try:
        return _arrow_schema(schema, zone, large)
    except refused:
        for field in schema:
            try:
                _arrow_schema(type(schema)([field]), zone, large)
            except refused as error:
                kind = field.dataType.simpleString()
                words = f"field {field.name!r} has Spark's type {kind}, which mapInArrow does not carry: {error}"
                raise SchemaTypeError(words, "UNSUPPORTED_DATA_TYPE_FOR_ARROW", {"data_type": kind}) from error
        raise


def _arrow_schema(schema: StructType, zone: str, large: bool) -> pa.Schema:
    import pyarrow as pa

    arrow = pyspark_private.to_arrow_schema(schema, zone, large)
    return pa.schema([_with_javas_text(_in_zone(field, zone)) for field in arrow])


def _with_javas_text(field: pa.Field) -> pa.Field:
    """A field whose metadata, and that of fields in it, has the bytes that the JVM gives it."""
    import pyarrow as pa

    kind, metadata = field.type, dict(field.metadata or {})
    if pa.types.is_struct(kind):
        field = field.with_type(pa.struct([_with_javas_text(kind.field(i)) for i in range(kind.num_fields)]))
    elif pa.types.is_list(kind):
        field = field.with_type(pa.list_(_with_javas_text(kind.value_field)))
    elif pa.types.is_map(kind):
        field = field.with_type(pa.map_(_with_javas_text(kind.key_field), _with_javas_text(kind.item_field)))
    if METADATA in metadata:
        field = field.with_metadata({**metadata, METADATA: java_json(json.loads(metadata[METADATA])).encode()})
    return field


def not_carried(schema: StructType, arrow: pa.Schema) -> str:
    """Why fastbuf does not carry these columns, if it does not: names the column and its type.

    Raises
    ------
    SchemaError
        There is no column.
    """
    import pyarrow as pa

    from fastbuf.serializers.columnar import ColumnarSerializer

    if not len(schema):
        raise SchemaError("the input of the shuffle has no columns: select at least one")
    for field, arrow_field in zip(schema, arrow, strict=True):
        try:
            ColumnarSerializer(Schema.from_arrow(pa.schema([arrow_field])))
        except SchemaError as error:
            return f"field {field.name!r} has Spark's type {field.dataType.simpleString()}: {error}"
    return ""


def _in_zone(field: pa.Field, zone: str) -> pa.Field:
    """A field whose timestamps, including nested ones, have the time zone ``zone``."""
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
        Arrow or fastbuf does not support a type (intervals of months); the message names the field.
    """
    return Schema.from_arrow(arrow_schema(struct_type(schema), zone))


def struct_type_of(schema: Schema) -> StructType:
    """The Spark schema of a fastbuf schema, for a DataFrame of its records or batches.

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
        Spark does not support a type (unsigned, float16, decimal of more than 38 digits); the message names the field.
    """
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.types import StructType

    struct = StructType()
    for field, arrow in zip(schema, schema.to_arrow(), strict=True):
        if _has_wide_decimal(field):
            raise SchemaError(f"field {field.name!r} has the type {field.type}: Spark's decimals end at 38 digits")
        try:
            struct.add(field.name, pyspark_private.from_arrow_type(arrow.type), arrow.nullable)
        except PySparkTypeError as error:
            raise SchemaError(
                f"field {field.name!r} has the type {field.type}, which Spark does not have: {error}"
            ) from error
    return struct


def _has_wide_decimal(field: Field) -> bool:
    return field.type.precision > 38 or any(map(_has_wide_decimal, field.type.children))


def session_zone(spark: Any) -> str:
    """The time zone of a session (classic or Connect)."""
    # Without a default of our own: if none is set it is that of Spark's process
    return str(spark.conf.get("spark.sql.session.timeZone"))


def large_types(spark: Any) -> bool:
    """Whether a session's Python functions get strings and binaries with 64-bit offsets."""
    return str(spark.conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false")).lower() == "true"


def types_in(kind: DataType) -> Iterator[DataType]:
    """A Spark type, and all types within it."""
    from pyspark.sql import types as T

    yield kind
    inner: list[DataType] = []
    if isinstance(kind, T.StructType):
        inner = [field.dataType for field in kind.fields]
    elif isinstance(kind, T.ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, T.MapType):
        inner = [kind.keyType, kind.valueType]
    for each in inner:
        yield from types_in(each)


def conform(batch: pa.RecordBatch, schema: pa.Schema, whose: str) -> pa.RecordBatch:
    """The batch with exactly this schema; columns are cast only where their types differ, and only safely.

    Columns, and fields within them, are taken by position whatever their names, as Spark takes them.

    Parameters
    ----------
    whose
        Named in the error: whose batch it is.

    Raises
    ------
    SchemaMismatch
        Another number of columns, a type that cannot be cast safely, a cast that may alter values without an error, or
        a null where none is allowed.
    """
    import pyarrow as pa

    if not isinstance(batch, pa.RecordBatch):
        words = f"{whose} gave a {type(batch).__name__}: it must give pyarrow.RecordBatch objects"
        raise ResultTypeError(
            words, "UDF_RETURN_TYPE", {"expected": "pyarrow.RecordBatch", "actual": type(batch).__name__}
        )
    # With metadata: else names of the fields within lists count as equal, and so do Spark's marks of variants
    if batch.schema.equals(schema, check_metadata=True):
        return without_nulls(batch, required(schema), whose)
    if batch.num_columns != len(schema):
        words = f"{whose} gave columns {batch.schema.names}; its schema has {schema.names}"
        counts = {"expected": str(len(schema)), "actual": str(batch.num_columns)}
        raise ResultError(words, "RESULT_COLUMN_SCHEMA_MISMATCH", counts)
    names = batch.schema.names
    swapped = names != schema.names and sorted(names) == sorted(schema.names)
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        try:
            column = _without_views(column)
            if not column.type.equals(field.type, check_metadata=True):
                given = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
                if swapped and is_text(given) != is_text(field.type):
                    raise pa.ArrowInvalid(f"columns are taken by position: it gave {names}, not {schema.names}")
                if alters(column.type, field.type):
                    raise pa.ArrowInvalid("a cast may alter values; make it in the function, or change the schema")
                named = _named(column.type, field.type)
                column = column if column.type.equals(named) else column.view(named)
                column = cast(column, field.type)
            columns.append(column)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            words = f"{whose} gave column {field.name} as {column.type}; its schema has {field.type}: {error}"
            raise ResultError(words, "RESULT_COLUMN_TYPES_MISMATCH", {"mismatch": field.name}) from error
    return without_nulls(pa.RecordBatch.from_arrays(columns, schema=schema), required(schema), whose)


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a type are texts."""
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


Values = TypeVar("Values", "pa.Array", "pa.ChunkedArray")


def cast(values: Values, kind: pa.DataType) -> Values:
    """Arrow's own cast, but for fields that may not be null: these it looks at below structs that are null, too.

    pyarrow 18 refuses any field that may be null where ``kind`` allows no null.

    Raises
    ------
    pyarrow.ArrowInvalid
        The values do not fit, or some are null where none may be.
    """
    import numpy as np
    import pyarrow as pa

    try:
        return values.cast(kind)
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        lenient = _nullable(kind)
        if lenient.equals(kind):
            raise
    # Taken, it lacks what lies outside of a slice: a null there would be one too many for the view
    whole = values.cast(lenient).take(np.arange(len(values)))
    if isinstance(whole, pa.ChunkedArray):
        return pa.chunked_array([_filled(chunk).view(kind) for chunk in whole.chunks], kind)
    return _filled(whole).view(kind)


def _filled(values: pa.Array) -> pa.Array:
    """Below structs that are null, the values of another one: a null that nobody sees counts as one for a view."""
    import numpy as np
    import pyarrow as pa

    if not pa.types.is_struct(values.type):
        return values
    parts = [values.field(i) for i in range(values.type.num_fields)]
    if values.null_count:
        there = values.is_valid().to_numpy(zero_copy_only=False)
        if not there.any():
            return pa.array([None] * len(values), values.type)
        at = np.where(there, np.arange(len(values)), there.argmax())
        parts = [part.take(at) for part in parts]
    return pa.StructArray.from_arrays(list(map(_filled, parts)), fields=list(values.type), mask=values.is_null())


def _nullable(kind: pa.DataType) -> pa.DataType:
    """The type whose fields may all be null, at any depth, but for keys of maps."""
    import pyarrow as pa

    def field(old: pa.Field) -> pa.Field:
        return old.with_nullable(True).with_type(_nullable(old.type))

    if pa.types.is_struct(kind):
        return pa.struct([field(each) for each in kind])
    if pa.types.is_map(kind):
        key = kind.key_field
        return pa.map_(key.with_type(_nullable(key.type)), field(kind.item_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(field(kind.value_field), kind.list_size)
    for is_list, list_of in ((pa.types.is_list, pa.list_), (pa.types.is_large_list, pa.large_list)):
        if is_list(kind):
            return list_of(field(kind.value_field))
    return kind


Rows = TypeVar("Rows", "pa.RecordBatch", "pa.Table")


def required(schema: pa.Schema) -> dict[int, pa.Field]:
    """The columns in which something may not be null, by position: they themselves, or what they consist of."""
    return {place: field for place, field in enumerate(schema) if _is_required(field)}


def without_nulls(rows: Rows, columns: dict[int, pa.Field], whose: str) -> Rows:
    """The rows, that have no null where ``columns``, which :func:`required` gave, allow none; Arrow does not look.

    Raises
    ------
    SchemaMismatch
        They have some.
    """
    for place, field in columns.items():
        column = rows.column(place)
        for values in getattr(column, "chunks", (column,)):
            if path := _null_in(values, field, field.name):
                raise SchemaMismatch(
                    f"{whose} gave nulls in column {path!r}, which its schema says has none: fill them there, "
                    "or let the schema allow null"
                )
    return rows


def _is_required(field: pa.Field) -> bool:
    return not field.nullable or any(map(_is_required, _parts(field.type)))


def _parts(kind: pa.DataType) -> list[pa.Field]:
    """What values of a type consist of and may be null: of a map the values alone, whose keys Arrow looks at."""
    from pyarrow import types

    return [kind.item_field] if types.is_map(kind) else _fields(kind)


def _null_in(values: pa.Array, field: pa.Field, path: str) -> str:
    """The path to a null that ``field`` does not allow; empty if there is none."""
    from pyarrow import types

    if not field.nullable and values.null_count:
        return path
    kind, wanted = values.type, _parts(field.type)
    if len(_parts(kind)) != len(wanted) or not any(map(_is_required, wanted)):
        return ""
    values = values.drop_null()  # what is below a null is no value
    if types.is_map(kind):
        parts = [values.items[values.offsets[0].as_py() : values.offsets[-1].as_py()]]
    else:
        parts = values.flatten() if types.is_struct(kind) else [values.flatten()]
    nulls = (_null_in(part, child, f"{path}.{child.name}") for part, child in zip(parts, wanted, strict=True))
    return next(filter(None, nulls), "")


def within_precision(batch: pa.RecordBatch, whose: str) -> pa.RecordBatch:
    """The batch, whose decimals, at any depth, have no more digits than their types: Arrow itself does not look.

    Parquet would keep other numbers; Spark refuses such decimals as they come into the JVM, where some never come.

    Raises
    ------
    SchemaMismatch
        One has more.
    """
    import pyarrow.compute as pc

    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        for values in _decimals(column):
            ends = pc.min_max(values)
            for number in (ends["min"].as_py(), ends["max"].as_py()):
                if number is not None and len(number.as_tuple().digits) > values.type.precision:
                    raise SchemaMismatch(
                        f"{whose} gave {number} in column {name}, whose type {values.type} ends at "
                        f"{values.type.precision} digits: declare a wider one, or round it in the function"
                    )
    return batch


def _decimals(values: pa.Array) -> Iterator[pa.Array]:
    """The decimals in a column, at any depth."""
    from pyarrow import types

    kind = values.type
    if types.is_decimal(kind):
        yield values
    elif any(types.is_decimal(field.type) or types.is_nested(field.type) for field in _fields(kind)):
        if types.is_map(kind):
            start, stop = values.offsets[0].as_py(), values.offsets[-1].as_py()
            parts = [values.keys[start:stop], values.items[start:stop]]
        else:
            parts = values.flatten() if types.is_struct(kind) else [values.flatten()]
        for part in parts:
            yield from _decimals(part)


def alters(actual: pa.DataType, wanted: pa.DataType, by_name: bool = False) -> bool:
    """Whether what Arrow calls a safe cast may give other values, at any depth; Spark refuses such types.

    Parameters
    ----------
    by_name
        Fields of structs belong together by their names, as in files; else by position.
    """
    from pyarrow import types

    if types.is_dictionary(actual):
        actual = actual.value_type
    pairs = list(zip(_fields(actual), _fields(wanted), strict=False))
    if by_name and types.is_struct(actual) and types.is_struct(wanted):
        mine = {field.name: field for field in _fields(actual)}
        pairs = [(mine[field.name], field) for field in _fields(wanted) if field.name in mine]
    if any(alters(one.type, other.type, by_name) for one, other in pairs):
        return True
    return (
        (types.is_timestamp(wanted) and (types.is_integer(actual) or (wanted.tz is not None and types.is_date(actual))))
        or (types.is_date(wanted) and types.is_timestamp(actual))
        or (types.is_timestamp(actual) and (types.is_string(wanted) or types.is_large_string(wanted)))
        or (types.is_boolean(wanted) and not (types.is_boolean(actual) or types.is_null(actual)))
        or (types.is_float32(wanted) and types.is_float64(actual))
        or (types.is_decimal(wanted) and types.is_floating(actual))
        or (types.is_floating(wanted) and types.is_decimal(actual))
    )


def _fields(kind: pa.DataType) -> list[pa.Field]:
    """Those of a struct; the one of a list; key and value of a map, as a struct."""
    return [kind.field(i) for i in range(kind.num_fields)]


def _named(actual: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """The actual type with the wanted names of fields, at any depth.

    A cast looks fields up by name, and makes nulls of those that it does not find.

    Raises
    ------
    pyarrow.ArrowInvalid
        One has more fields than the other.
    """
    import pyarrow as pa

    def named(mine: pa.Field, other: pa.Field) -> pa.Field:
        return mine.with_name(other.name).with_type(_named(mine.type, other.type))

    if pa.types.is_struct(actual) and pa.types.is_struct(wanted):
        if actual.num_fields != wanted.num_fields:
            raise pa.ArrowInvalid(f"{actual.num_fields} fields instead of {wanted.num_fields}")
        return pa.struct(list(map(named, actual, wanted)))
    if pa.types.is_map(actual) and pa.types.is_map(wanted):
        return pa.map_(named(actual.key_field, wanted.key_field), named(actual.item_field, wanted.item_field))
    if pa.types.is_fixed_size_list(actual) and hasattr(wanted, "value_field"):
        return pa.list_(named(actual.value_field, wanted.value_field), actual.list_size)
    for is_list, list_of in ((pa.types.is_list, pa.list_), (pa.types.is_large_list, pa.large_list)):
        if is_list(actual) and hasattr(wanted, "value_field"):
            return list_of(named(actual.value_field, wanted.value_field))
    return actual


def _without_views(values: pa.Array) -> pa.Array:
    """Lists for list views, at any depth: Arrow's own cast gives them one offset too few, and so other values."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if not _has_views(kind):
        return values
    if pa.types.is_struct(kind):
        parts = [_without_views(values.field(i)) for i in range(kind.num_fields)]
        names = [field.name for field in kind]
        return pa.StructArray.from_arrays(parts, names, mask=values.is_null())
    if not _is_view(kind):
        raise pa.ArrowInvalid("list views are not read within lists and maps of another kind")
    ends = np.cumsum(pc.fill_null(pc.list_value_length(values), 0).to_numpy())
    offsets = pa.array(np.concatenate([[0], ends]), pa.int64())
    items = _without_views(values.flatten())
    return pa.LargeListArray.from_arrays(offsets, items, mask=values.is_null())


def _is_view(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_list_view(kind) or types.is_large_list_view(kind))


def _has_views(kind: pa.DataType) -> bool:
    return _is_view(kind) or any(_has_views(field.type) for field in _fields(kind))


def renaming(func: BatchFunction, names: Iterable[str]) -> BatchFunction:
    """The function, called with batches whose columns are renamed to these names."""
    shown = list(names)

    def renamed(batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        return func(batch.rename_columns(shown) for batch in batches)

    return renamed
