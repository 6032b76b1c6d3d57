"""Conversion of types from and to pyarrow.  Only this module needs pyarrow; it is imported when first used."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from fastbuf.errors import SchemaError
from fastbuf.serializers.schema_types import CHILD_NAMES, DECIMALS, PLAIN, DataType, Field

#: str of a plain pyarrow type -> our kind.
_PLAIN_NAMES = {
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "date32[day]": "date32",
    "date64[ms]": "date64",
}
_FACTORIES = {"bool": "bool_", "float16": "float16", "float32": "float32", "float64": "float64"}


def field_from_arrow(field: Any, path: str, name: str | None = None) -> Field:
    """Our field for an Arrow field; `path` names it in errors, `name` replaces its name."""
    return Field(field.name if name is None else name, type_from_arrow(field.type, path), bool(field.nullable))


def type_from_arrow(kind: Any, path: str) -> DataType:
    """Our type for an Arrow type.

    Raises
    ------
    SchemaError
        fastbuf does not support the Arrow type: extension, union, run-end encoded, interval, list view.
    """
    is_ = pa.types
    if not isinstance(kind, pa.DataType):
        raise SchemaError(f"the type of field {path!r} is neither a text, a DataType nor a pyarrow type: {kind!r}")
    if isinstance(kind, pa.BaseExtensionType):
        raise SchemaError(f"field {path!r} has the extension type {kind}: cast it to its storage, {kind.storage_type}")
    text = str(kind)
    plain = _PLAIN_NAMES.get(text, text)
    if plain in PLAIN:
        return DataType(plain)
    if is_.is_decimal(kind):
        # Arrow's decimal32 and decimal64 would become another type (decimal128): they are refused below.
        if is_.is_decimal128(kind) or is_.is_decimal256(kind):
            name = "decimal128" if is_.is_decimal128(kind) else "decimal256"
            return DataType(name, precision=kind.precision, scale=kind.scale)
    elif is_.is_timestamp(kind):
        return DataType("timestamp", unit=kind.unit, zone=kind.tz or "")
    elif is_.is_time32(kind) or is_.is_time64(kind):
        return DataType("time32" if is_.is_time32(kind) else "time64", unit=kind.unit)
    elif is_.is_duration(kind):
        return DataType("duration", unit=kind.unit)
    elif is_.is_fixed_size_binary(kind):
        return DataType("fixed_size_binary", width=kind.byte_width)
    elif is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        name = "list" if is_.is_list(kind) else "large_list" if is_.is_large_list(kind) else "fixed_size_list"
        width = kind.list_size if name == "fixed_size_list" else 0
        return DataType(name, width=width, children=(field_from_arrow(kind.value_field, f"{path}[]", "item"),))
    elif is_.is_map(kind):
        key = Field("key", type_from_arrow(kind.key_type, f"{path}.key"))
        return DataType("map", children=(key, field_from_arrow(kind.item_field, f"{path}.value", "value")))
    elif is_.is_struct(kind):
        fields = (kind.field(i) for i in range(kind.num_fields))
        return DataType("struct", children=tuple(field_from_arrow(f, f"{path}.{f.name}") for f in fields))
    elif is_.is_dictionary(kind):
        index = Field("index", type_from_arrow(kind.index_type, path))
        return DataType("dictionary", children=(index, Field("value", type_from_arrow(kind.value_type, path))))
    other = f"decimal128({kind.precision}, {kind.scale})" if is_.is_decimal(kind) else "another"
    raise SchemaError(
        f"field {path!r} has the Arrow type {kind}, which fastbuf does not support: cast it to {other}, or leave it out"
    )


def field_to_arrow(field: Field) -> Any:
    """The pyarrow.Field for our field."""
    nullable = field.nullable or field.type.kind == "null"  # pyarrow refuses any other field of nulls
    return pa.field(field.name, type_to_arrow(field.type), nullable=nullable)


def type_to_arrow(kind: DataType) -> Any:
    """The pyarrow.DataType for our type."""
    name = kind.kind
    if name in PLAIN:
        return getattr(pa, _FACTORIES.get(name, name))()
    if name in DECIMALS:
        return getattr(pa, name)(kind.precision, kind.scale)
    if name == "timestamp":
        return pa.timestamp(kind.unit, tz=kind.zone or None)
    if name in ("time32", "time64", "duration"):
        return getattr(pa, name)(kind.unit)
    if name == "fixed_size_binary":
        return pa.binary(kind.width)
    children = [field_to_arrow(child) for child in kind.children]
    if name == "struct":
        return pa.struct(children)
    if name == "map":
        return pa.map_(*children)
    if name == "dictionary":
        return pa.dictionary(children[0].type, children[1].type)
    assert name in CHILD_NAMES
    if name == "fixed_size_list":
        return pa.list_(children[0], kind.width)
    return pa.list_(children[0]) if name == "list" else pa.large_list(children[0])
