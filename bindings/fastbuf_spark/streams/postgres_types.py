"""Which columns of a PostgreSQL table take which Arrow types, and how values are written for COPY."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbuf.errors import ConfigError, FastbufError
from fastbuf_spark.streams.json_rows import check_writable, is_variant, json_values, temporal_text

if TYPE_CHECKING:
    import pyarrow as pa

#: Digits before the point that a column of whole numbers needs in a numeric
DIGITS = {"int8": 3, "int16": 5, "int32": 10, "int64": 19}
DOCUMENTS = ("json", "jsonb")
#: Names of types in pg_type, by those of Arrow
TAKEN_BY = {
    "bool": ("bool",),
    "int8": ("int2", "int4", "int8", "numeric"),
    "int16": ("int2", "int4", "int8", "numeric"),
    "int32": ("int4", "int8", "numeric"),
    "int64": ("int8", "numeric"),
    "float": ("float4", "float8"),
    "double": ("float8",),
    "string": ("text", "varchar", "uuid", *DOCUMENTS),
    "binary": ("bytea",),
    "decimal": ("numeric",),
    "date": ("date",),
    "time": ("time",),
    "instant": ("timestamptz",),
    "timestamp": ("timestamp",),
    "duration": ("interval",),
    "nested": DOCUMENTS,
}


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    type
        Its name in pg_type; of an array, that of its elements.
    written
        The type as SQL writes it.
    modifier
        Length, precision, scale, as pg_attribute has it; -1 if there is none.
    required
        It takes no null.
    filled
        It has a value where none is given.
    generated
        It takes no value.
    """

    name: str
    type: str
    written: str
    modifier: int
    array: bool
    required: bool
    filled: bool
    generated: bool


COLUMNS = """
SELECT a.attname, coalesce(e.typname, b.typname, t.typname), format_type(a.atttypid, a.atttypmod), a.atttypmod,
       e.oid IS NOT NULL, a.attnotnull, a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
LEFT JOIN pg_type b ON b.oid = t.typbasetype
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""


def kind_of(kind: pa.DataType) -> str:
    """The key in :data:`TAKEN_BY` of an Arrow type; the type's own text if there is none."""
    from pyarrow import types

    for name, fits in {
        "string": lambda: types.is_string(kind) or types.is_large_string(kind),
        "binary": lambda: types.is_binary(kind) or types.is_large_binary(kind),
        "decimal": lambda: types.is_decimal(kind),
        "date": lambda: types.is_date(kind),
        "time": lambda: types.is_time(kind),
        "timestamp": lambda: types.is_timestamp(kind) and kind.tz is None,
        "instant": lambda: types.is_timestamp(kind),
        "duration": lambda: types.is_duration(kind),
        "nested": lambda: types.is_nested(kind) and not is_variant(kind),
    }.items():
        if fits():
            return name
    return str(kind)


def check_columns(schema: pa.Schema, columns: Mapping[str, Column], table: str) -> None:
    """Raise ConfigError, with all that is wrong, where a table does not take the rows."""
    wrong = []
    for field in schema:
        column = columns.get(field.name)
        if column is None:
            wrong.append(f"it has no column {field.name!r}")
        elif column.generated:
            wrong.append(f"column {field.name!r} is generated, and takes no values")
        elif (why := _refused(field, column)) is not None:
            wrong.append(f"column {field.name!r} is {column.written}, the rows have {field.type}{why}")
    for column in columns.values():
        if column.name not in schema.names and column.required and not (column.filled or column.generated):
            wrong.append(f"column {column.name!r} may not be null, has no default, and the rows have no such column")
    if wrong:
        raise ConfigError(
            f"table {table} does not take these rows: {'; '.join(wrong)}.  "
            "Change the table, or cast and name columns in the stream"
        )


def _refused(field: pa.Field, column: Column) -> str | None:
    """Why a column does not take a field: words that go on, perhaps none; None if it does."""
    from pyarrow import types

    kind = field.type
    if types.is_null(kind):
        return None
    if column.array:
        if not (types.is_list(kind) or types.is_large_list(kind)) or types.is_nested(kind.value_type):
            return ""
        kind = kind.value_type
        if types.is_null(kind):
            return None
    name = kind_of(kind)
    if column.type not in TAKEN_BY.get(name, ()):
        wanted = "" if name not in TAKEN_BY else f", which go to {', '.join(TAKEN_BY[name])}"
        return wanted if not column.array else ""
    if name == "nested":
        try:
            check_writable([field])
        except FastbufError as error:
            return f": {error}"
    return None if _wide_enough(kind, name, column) else ", which may not fit"


def _wide_enough(kind: pa.DataType, name: str, column: Column) -> bool:
    """Whether no value of the type is rounded, or too large."""
    if column.modifier == -1 or column.type == "varchar":  # which refuses what is too long
        return True
    if column.type == "numeric":
        precision, scale = (column.modifier - 4) >> 16 & 0xFFFF, ((column.modifier - 4) & 0x7FF ^ 1024) - 1024
        digits, fraction = (kind.precision, kind.scale) if name == "decimal" else (DIGITS[name], 0)
        return bool(scale >= fraction and precision - scale >= digits - fraction)
    return name not in ("timestamp", "instant", "time") or column.modifier >= 6


def copy_csv(batch: pa.RecordBatch, columns: Mapping[str, Column]) -> bytes:
    """The rows in the CSV that COPY reads: a null is nothing, text that is empty has quotes."""
    import pyarrow as pa
    from pyarrow import csv

    texts = [_copied(values, columns[name]) for name, values in zip(batch.schema.names, batch.columns, strict=True)]
    sink = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
    csv.write_csv(pa.RecordBatch.from_arrays(texts, batch.schema.names), sink, options)
    return sink.getvalue().to_pybytes()


def _copied(values: pa.Array, column: Column) -> pa.Array:
    """A column in types that Arrow's CSV has as PostgreSQL reads them."""
    import pyarrow as pa
    from pyarrow import types

    kind = values.type
    if column.array and not types.is_null(kind):
        return pa.array(_arrays(values, column), pa.large_string())
    if types.is_nested(kind):
        texts = json_values(values)
        return pa.array(texts, pa.large_string(), mask=values.is_null().to_numpy(zero_copy_only=False))
    if types.is_binary(kind) or types.is_large_binary(kind):
        return pa.array(
            [None if each is None else f"\\x{each.hex()}" for each in values.to_pylist()], pa.large_string()
        )
    if types.is_duration(kind):
        micros = values.cast(pa.duration("us")).cast("int64").to_pylist()
        return pa.array([None if each is None else f"{each} microseconds" for each in micros], pa.string())
    if types.is_temporal(kind):
        return temporal_text(values)
    if types.is_decimal(kind):
        return values.cast("string")
    return values


def _arrays(values: pa.Array, column: Column) -> list[str | None]:
    """Lists as PostgreSQL writes arrays."""
    import pyarrow.compute as pc

    items = _copied(values.flatten(), Column(**{**vars(column), "array": False})).cast("large_string").to_pylist()
    texts = ["NULL" if each is None else _quoted(each) for each in items]
    arrays: list[str | None] = []
    begin = 0
    for length in pc.list_value_length(values).to_pylist():
        if length is None:
            arrays.append(None)
            continue
        arrays.append("{" + ",".join(texts[begin : begin + length]) + "}")
        begin += length
    return arrays


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
