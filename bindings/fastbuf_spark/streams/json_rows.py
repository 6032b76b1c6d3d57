"""Rows as JSON objects, one for each: what brokers carry in values, and databases in columns of documents.

pyarrow's reader parses what it can; what it cannot (dates, binaries, a time zone) it reads as text, which is converted.
Numbers, times and binaries are written as Spark's ``to_json`` writes them; nulls are written too.
"""

from __future__ import annotations

import base64
import functools
import io
import itertools
import re
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

from fastbuf.errors import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

    Texts = list[str]

#: A time with an offset from UTC
OFFSET = r"\d\d:\d\d\S*(Z|[+-]\d\d(:?\d\d)?)$"
#: Floats that are no JSON numbers are strings, as Spark writes and reads them; pyarrow's reader takes them bare
_SPECIAL = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
_QUOTED = re.compile(rb':\s*"(NaN|-?Infinity)"')


class JsonReader:
    """Reads records into batches.

    Parameters
    ----------
    schema
        Of the rows.  Fields that a record has not are null, others that it has are left out.

    Raises
    ------
    SchemaError
        A type that is not read from JSON; the message names the column.
    """

    def __init__(self, schema: pa.Schema) -> None:
        import pyarrow as pa
        from pyarrow import json as arrow_json

        self._schema = schema
        self._wire = pa.schema([pa.field(each.name, _wire_type(each.type, each.name)) for each in schema])
        self._options = arrow_json.ParseOptions(explicit_schema=self._wire, unexpected_field_behavior="ignore")

    def read(self, values: Sequence[bytes | None]) -> tuple[pa.RecordBatch, dict[int, str]]:
        """The rows of records, and what is wrong with those that have none, by their places.

        A record of None is a row of nulls.
        """
        import pyarrow as pa

        wrong: dict[int, str] = {}
        parts: list[pa.RecordBatch] = []
        self._read(values, 0, parts, wrong)
        if len(parts) == 1:
            return parts[0], wrong
        table = pa.Table.from_batches(parts, self._schema).combine_chunks()
        return (table.to_batches() or [self._empty()])[0], wrong

    def _empty(self) -> pa.RecordBatch:
        import pyarrow as pa

        return pa.RecordBatch.from_pylist([], schema=self._schema)

    def _read(
        self, values: Sequence[bytes | None], begin: int, parts: list[pa.RecordBatch], wrong: dict[int, str]
    ) -> None:
        """Parse all; where that fails, each half: bad records are few, and each costs a logarithm of the rest."""
        import pyarrow as pa

        if not values:
            return
        try:
            parts.append(self._parse(values))
        except (ValueError, pa.ArrowException) as error:  # UnicodeDecodeError is a ValueError
            if len(values) == 1:
                bare = _QUOTED.sub(rb":\1", values[0] or b"")
                if values[0] is not None and bare != values[0]:
                    self._read([bare], begin, parts, wrong)
                else:
                    wrong[begin] = str(error).partition("\n")[0].replace(" in row 0", "")
                return
            half = len(values) // 2
            self._read(values[:half], begin, parts, wrong)
            self._read(values[half:], begin + half, parts, wrong)

    def _parse(self, values: Sequence[bytes | None]) -> pa.RecordBatch:
        import pyarrow as pa
        from pyarrow import json as arrow_json

        texts = [b"{}" if value is None else value.strip() for value in values]
        # Objects may stand side by side, or go on in the next record.  If each has both ends, and there are as many
        # objects as records, none does
        if not all(text[:1] == b"{" and text[-1:] == b"}" for text in texts):
            raise ValueError("it is no JSON object")
        if not len(self._schema):
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(texts), pa.struct([])))
        joined = b"\n".join(texts)
        joined.decode()  # pyarrow does not look at it
        size = arrow_json.ReadOptions(use_threads=False, block_size=len(joined) + 1)
        table = arrow_json.read_json(io.BytesIO(joined), size, self._options)
        if table.num_rows != len(texts):
            raise ValueError("it is more than one JSON object")
        columns = [
            _converted(table.column(place).combine_chunks(), field.type) for place, field in enumerate(self._schema)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _wire_type(kind: pa.DataType, column: str) -> pa.DataType:
    """The type that pyarrow's JSON reader is asked for."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_struct(kind) and not is_variant(kind):
        return pa.struct([pa.field(each.name, _wire_type(each.type, column)) for each in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        inner = kind.value_field
        items = inner.with_type(_wire_type(inner.type, column)).with_nullable(True)
        return pa.list_(items) if types.is_list(kind) else pa.large_list(items)
    if types.is_date(kind) or types.is_time(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return pa.string()
    if types.is_timestamp(kind):
        return kind if kind.tz in (None, "UTC") else pa.string()
    if types.is_nested(kind) or types.is_duration(kind):
        raise SchemaError(
            f"column {column!r} has the type {kind}, which is not read from JSON: "
            'read the records as they are (format="raw"), and parse them in a function'
        )
    return kind


def _converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """What was read, in the type that is wanted."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    if values.type.equals(kind):
        return values
    if types.is_struct(kind):
        parts = [_converted(values.field(place), field.type) for place, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=values.is_null())
    if types.is_list(kind) or types.is_large_list(kind):
        list_class = pa.ListArray if types.is_list(kind) else pa.LargeListArray
        items = _converted(values.values, kind.value_type)
        return list_class.from_arrays(values.offsets, items, type=kind, mask=values.is_null())
    if types.is_binary(kind) or types.is_large_binary(kind):
        decode = functools.partial(base64.b64decode, validate=True)
        return pa.array([None if text is None else decode(text) for text in values.to_pylist()], kind)
    if types.is_timestamp(kind) and types.is_string(values.type):
        return _instants(values, kind)
    if types.is_time(kind):  # there is no cast from text
        day = pc.binary_join_element_wise("1970-01-01", values, " ")
        return day.cast(pa.timestamp("ns")).cast(kind)
    return values.cast(kind)


def _instants(values: pa.Array, kind: pa.TimestampType) -> pa.Array:
    """Times as text; without an offset they are of the column's zone, as Spark has it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    with_offset = pc.match_substring_regex(values, OFFSET)
    instants = pc.if_else(with_offset, values, None).cast(kind)
    plain = pc.if_else(with_offset, None, values).cast(pa.timestamp(kind.unit))
    local = pc.assume_timezone(plain, kind.tz, ambiguous="earliest", nonexistent="latest")
    return pc.coalesce(instants, local)


def is_variant(kind: pa.DataType) -> bool:
    """Whether a type is how Spark carries a VARIANT."""
    from pyarrow import types

    return bool(types.is_struct(kind)) and any((each.metadata or {}).get(b"variant") == b"true" for each in kind)


def check_writable(schema: pa.Schema) -> None:
    """Raise SchemaError, with the column, for a type that is not written as JSON."""
    for field in schema:
        _writer_of(field.type, field.name)


def json_rows(batch: pa.RecordBatch) -> list[str]:
    """The rows as JSON objects."""
    return _objects(batch.schema, batch.columns, batch.num_rows)


def json_values(values: pa.Array) -> list[str]:
    """The values of a column as JSON; ``null`` for nulls."""
    texts = _writer_of(values.type, "values")(values)
    if not values.null_count:
        return texts
    return [text if valid else "null" for text, valid in zip(texts, values.is_valid().to_pylist(), strict=True)]


def _objects(fields: Any, columns: Sequence[pa.Array], rows: int) -> list[str]:
    if not columns:
        return ["{}"] * rows
    names = (encode_basestring(field.name).replace("%", "%%") for field in fields)
    template = "{" + ",".join(f"{name}:%s" for name in names) + "}"
    return [template % row for row in zip(*map(json_values, columns), strict=True)]


def _writer_of(kind: pa.DataType, column: str) -> Callable[[pa.Array], Texts]:
    """What writes values of a type, whatever it makes of nulls."""
    from pyarrow import types

    if is_variant(kind) or types.is_duration(kind):
        raise SchemaError(f"column {column!r} has the type {kind}, which is not written as JSON: cast it in a function")
    if types.is_struct(kind):
        for field in kind:
            _writer_of(field.type, column)
        return lambda values: _objects(kind, [values.field(place) for place in range(kind.num_fields)], len(values))
    if types.is_map(kind):
        _writer_of(kind.key_type, column)
        _writer_of(kind.item_type, column)
        return _maps
    if types.is_nested(kind):
        _writer_of(kind.value_type, column)
        return _lists
    if types.is_string(kind) or types.is_large_string(kind):
        return lambda values: list(
            map(encode_basestring, ("" if each is None else each for each in values.to_pylist()))
        )
    if types.is_binary(kind) or types.is_large_binary(kind):
        return lambda values: [f'"{base64.b64encode(each or b"").decode()}"' for each in values.to_pylist()]
    if types.is_floating(kind):
        return lambda values: [_SPECIAL.get(text, text) for text in values.cast("string").to_pylist()]
    if types.is_temporal(kind):
        return lambda values: [f'"{each}"' for each in temporal_text(values).to_pylist()]
    return lambda values: values.cast("string").to_pylist()


def temporal_text(values: pa.Array) -> pa.Array:
    """Dates and times in ISO 8601; instants in UTC, with a Z."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    kind = values.type
    if types.is_timestamp(kind):
        if kind.tz is not None:
            values = values.cast(pa.timestamp(kind.unit, "UTC"))
        return pc.replace_substring(values.cast("string"), " ", "T")
    return values.cast("string")


def _lists(values: pa.Array) -> Texts:
    return ["[" + ",".join(items) + "]" for items in _items(values, json_values(values.values))]


def _maps(values: pa.Array) -> Texts:
    keys = (key if key[:1] == '"' else f'"{key}"' for key in json_values(values.keys))
    pairs = [f"{key}:{item}" for key, item in zip(keys, json_values(values.items), strict=True)]
    return ["{" + ",".join(items) + "}" for items in _items(values, pairs)]


def _items(values: pa.Array, texts: Texts) -> list[Texts]:
    """The texts of all items, cut where values begin; offsets are from the beginning of all items."""
    offsets = values.offsets.to_pylist()
    return [texts[begin:end] for begin, end in itertools.pairwise(offsets)]
