"""Avro files, by fastavro."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from fastbuf.errors import ConfigError, SchemaError, SchemaMismatch
from fastbuf_spark.driver.file_types import MOST_DIGITS, of_arrow, refused
from fastbuf_spark.formats.base import Format

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from fastbuf_spark.driver.sources import Asked
    from fastbuf_spark.expressions import Skipping

LEGACY = "org.apache.spark.legacyDateTime"  #: marks files with days before 1582 in the Julian calendar
CATALYST = "spark.sql.catalyst.type"  #: in a field's type: that of Spark, of which Avro has none
BLOCK_ROWS = 8 << 10  #: rows that are Python's objects at a time
READ_BYTES = 1 << 20
ODD = (ValueError, EOFError, KeyError, IndexError, TypeError)  #: what fastavro raises where a file is none of Avro's
#: What types are in Arrow, from which Spark's follow
_PLAIN = {
    "boolean": "bool",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "string": "string",
    "bytes": "binary",
    "enum": "string",
    "fixed": "binary",
}
_NESTED = ("array", "map", "record")
_LOGICAL = {
    ("int", "date"): "date32",
    ("long", "timestamp-millis"): "timestamp[ms, UTC]",
    ("long", "timestamp-micros"): "timestamp[us, UTC]",
    ("long", "local-timestamp-millis"): "timestamp[ms]",
    ("long", "local-timestamp-micros"): "timestamp[us]",
    ("string", "uuid"): "string",
}
_WIDER = {frozenset(("int", "long")): "long", frozenset(("float", "double")): "double"}
Convert = Callable[[Any], Any]


def package() -> Any:
    """The package fastavro."""
    try:
        import fastavro
    except ImportError as error:
        raise ConfigError("Avro files need the package fastavro: pip install 'fastbuf[avro]'") from error
    return fastavro


class Column(NamedTuple):
    """What a type of Avro's is in Arrow, and what makes its values of those that fastavro gives."""

    arrow: pa.DataType
    convert: Convert = lambda value: value


@dataclass(frozen=True)
class Avro(Format):
    """Avro files (object container files)."""

    name = "avro"
    title = "Avro"

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        package()
        return cls()

    def schema_of(self, asked: Asked, fragment: Any) -> StructType:
        import pyarrow as pa
        from pyspark.sql.types import StructType

        struct = StructType()
        with _opened(fragment) as blocks:
            for name, column in _columns(blocks, fragment.path).items():
                if isinstance(column, SchemaError):
                    struct.add(refused(name, column))
                else:
                    struct.add(of_arrow(pa.schema([(name, column.arrow)]))[0])
        return struct

    def fields(self, fragment: Any) -> pa.Schema | None:
        import pyarrow as pa

        with _opened(fragment) as blocks:
            columns = _columns(blocks, fragment.path).items()
        return pa.schema([(name, pa.null() if isinstance(each, SchemaError) else each.arrow) for name, each in columns])

    def read(
        self, fragment: Any, schema: pa.Schema, names: Sequence[str], skipping: Skipping | None, rows: int
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.dataset as ds

        partition_keys = ds.get_partition_keys(fragment.partition_expression)
        with _opened(fragment) as blocks:
            columns = _columns(blocks, fragment.path)
            for name in names:
                if name not in partition_keys and isinstance(error := columns.get(name), SchemaError):
                    raise error
            records = _records(blocks, fragment.path)
            while block := list(islice(records, BLOCK_ROWS)):
                arrays = []
                for name in names:
                    kind, column = schema.field(name).type, columns.get(name)
                    if name in partition_keys:
                        arrays.append(pa.repeat(pa.scalar(partition_keys[name], kind), len(block)))
                    elif isinstance(column, Column):
                        values = [column.convert(record[name]) for record in block]
                        arrays.append(pa.array(values, column.arrow).cast(kind))
                    else:
                        arrays.append(pa.nulls(len(block), kind))
                yield pa.RecordBatch.from_arrays(arrays, list(names))


@contextmanager
def _opened(fragment: Any) -> Iterator[Any]:
    """The blocks of a file."""
    with fragment.filesystem.open_input_file(fragment.path) as file:
        try:
            blocks = package().block_reader(io.BufferedReader(file, READ_BYTES))
        except ODD as error:
            raise SchemaMismatch(f"{fragment.path} is no Avro file: {error}") from error
        yield blocks


def _records(blocks: Any, path: str) -> Iterator[Any]:
    """The rows, with the values that Avro has for logical types: Python has not all years, and is slow to make them."""
    avro = package()
    try:
        plain = avro.parse_schema(_plain(blocks.writer_schema))
        for block in blocks:
            for _ in range(block.num_records):
                yield avro.schemaless_reader(block.bytes_, plain, None)
    except ODD as error:
        raise SchemaMismatch(f"{path} cannot be read as Avro: {error}") from error


def _plain(kind: Any) -> Any:
    """A type of Avro's without logical types."""
    if isinstance(kind, list):
        return [_plain(each) for each in kind]
    if not isinstance(kind, dict):
        return kind
    return {key: value if key == "symbols" else _plain(value) for key, value in kind.items() if key != "logicalType"}


def _columns(blocks: Any, path: str) -> dict[str, Column | SchemaError]:
    """The columns of a file, or why one is not read."""
    schema = blocks.writer_schema
    columns: dict[str, Column | SchemaError] = {}
    named: dict[str, Column | None] = {}
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SchemaMismatch(f"{path} has values that are no records, but {json.dumps(schema):.100}")
    for field in schema["fields"]:
        name, text = field["name"], json.dumps(field["type"])
        try:
            columns[name] = _column(field["type"], named)
            if LEGACY in blocks.metadata and re.search(r'"(date|timestamp-m)', text):
                raise SchemaError("its days may be of the calendar used before Spark 3, which only Spark converts")
        except SchemaError as error:
            columns[name] = SchemaError(
                f"{path}: column {name!r} has Avro's type {text:.200}: {error}; leave it out (columns=), or use "
                "Spark's reader"
            )
    return columns


def _column(kind: Any, named: dict[str, Column | None]) -> Column:
    """A type, if Spark's reader has it too.

    Parameters
    ----------
    named
        Types that have names, as they come; None: of a record whose fields are not all known yet.
    """
    import pyarrow as pa

    if isinstance(kind, list):
        left = [each for each in kind if each != "null"]
        wider = _WIDER.get(frozenset(each for each in left if isinstance(each, str))) if len(left) == 2 else None
        if len(left) != 1 and wider is None:
            raise SchemaError("it is a union, of which Spark makes a struct")
        return _column(wider or left[0], named)
    if isinstance(kind, str) and kind not in _PLAIN:
        column = named.get(kind)
        if column is None:
            raise SchemaError("it has itself in it" if kind in named else "Spark has no values of it")
        return column
    whole: dict[str, Any] = {"type": kind} if isinstance(kind, str) else kind
    base, logical = whole["type"], whole.get("logicalType")
    if not isinstance(base, str) or (base not in _PLAIN and base not in _NESTED):
        return _column(base, named)
    if CATALYST in whole:
        raise SchemaError(f"Spark wrote {whole[CATALYST]} so")
    if base == "array":
        item = _column(whole["items"], named)
        column = Column(pa.list_(item.arrow), _each(item.convert))
    elif base == "map":
        value = _column(whole["values"], named)
        column = Column(pa.map_(pa.string(), value.arrow), _pairs(value.convert))
    elif base == "record":
        named[whole["name"]] = None
        fields = {field["name"]: _column(field["type"], named) for field in whole["fields"]}
        shape = pa.struct([(name, field.arrow) for name, field in fields.items()])
        column = Column(shape, _struct({name: field.convert for name, field in fields.items()}))
    elif logical == "decimal":
        digits, scale = whole["precision"], whole.get("scale", 0)
        if digits > MOST_DIGITS:
            raise SchemaError(f"Spark's decimals have {MOST_DIGITS} digits at most")
        column = Column(pa.decimal128(digits, scale), _decimal(scale))
    elif logical is None or (base, logical) in _LOGICAL:
        column = Column(_arrow(_PLAIN[base] if logical is None else _LOGICAL[base, logical]))
    else:
        raise SchemaError("what Spark reads of it depends on its version")
    if "name" in whole:
        named[whole["name"]] = column
    return column


def _arrow(name: str) -> pa.DataType:
    import pyarrow as pa

    unit = name.removeprefix("timestamp[").rstrip("]").partition(", ")
    return pa.timestamp(unit[0], unit[2] or None) if "[" in name else pa.type_for_alias(name)


def _each(convert: Convert) -> Convert:
    return lambda values: None if values is None else [convert(value) for value in values]


def _pairs(convert: Convert) -> Convert:
    return lambda values: None if values is None else [(key, convert(value)) for key, value in values.items()]


def _struct(converts: dict[str, Convert]) -> Convert:
    return lambda values: (
        None if values is None else {name: convert(values[name]) for name, convert in converts.items()}
    )


def _decimal(scale: int) -> Convert:
    """By text: arithmetic would round to 28 digits."""
    return lambda value: None if value is None else Decimal(f"{int.from_bytes(value, 'big', signed=True)}E-{scale}")
