"""Conversion of fields from and to structured NumPy dtypes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fastbuf.errors import SchemaError
from fastbuf.serializers.schema_types import FLOATS, INTEGERS, DataType, Field


def fields_from_numpy(dtype: Any) -> list[Field]:
    """Fields of a structured dtype, none of them nullable.

    Raises
    ------
    SchemaError
        The dtype is not structured, or a field has objects, complex numbers, long doubles, or a date unit that Arrow
        lacks.
    """
    dtype = np.dtype(dtype)
    if dtype.names is None:
        raise SchemaError(f"the dtype {dtype} is not structured: give it field names")
    assert dtype.fields is not None
    return [Field(name, _type(dtype.fields[name][0], name)) for name in dtype.names]


def _type(dtype: np.dtype[Any], path: str) -> DataType:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        data_type = _type(base, f"{path}[]")
        for length in reversed(shape):
            data_type = DataType("fixed_size_list", width=int(length), children=(Field("item", data_type),))
        return data_type
    if dtype.names is not None:
        assert dtype.fields is not None
        fields = (Field(name, _type(dtype.fields[name][0], f"{path}.{name}")) for name in dtype.names)
        return DataType("struct", children=tuple(fields))
    if dtype.kind == "b":
        return DataType("bool")
    if dtype.kind in "iu" or (dtype.kind == "f" and dtype.itemsize <= 8):
        return DataType(dtype.name)
    if dtype.kind == "U":
        return DataType("string")
    if dtype.kind == "S":
        return DataType("binary")
    if dtype.kind == "V":
        return DataType("fixed_size_binary", width=dtype.itemsize)
    if dtype.kind in "mM":
        unit, count = np.datetime_data(dtype)
        if count == 1 and unit in ("s", "ms", "us", "ns"):
            return DataType("timestamp" if dtype.kind == "M" else "duration", unit=unit)
        if count == 1 and unit == "D" and dtype.kind == "M":
            return DataType("date32")
    raise SchemaError(f"field {path!r} has the dtype {dtype}, which fastbuf does not support")


def dtype_from_fields(fields: Iterable[Field], path: str = "") -> np.dtype[Any]:
    """The structured dtype of fields, which must have fixed widths and no nulls.

    Raises
    ------
    SchemaError
        A field has no dtype; the message names it.
    """
    return np.dtype([(field.name, _dtype(field, f"{path}.{field.name}" if path else field.name)) for field in fields])


def _dtype(field: Field, path: str) -> Any:
    kind = field.type
    if field.nullable or kind.kind == "null":
        raise SchemaError(
            f"field {path!r} is nullable, and NumPy has no null: fill the nulls, and make the field not nullable"
        )
    if kind.kind == "dictionary":
        return _dtype(Field(field.name, kind.children[1].type, kind.children[1].nullable), path)
    if kind.kind == "bool":
        return np.dtype("?")
    if kind.kind in INTEGERS or kind.kind in FLOATS:
        return np.dtype(kind.kind).newbyteorder("<")
    if kind.kind in ("date32", "date64"):
        return np.dtype("<M8[D]" if kind.kind == "date32" else "<M8[ms]")
    if kind.kind in ("timestamp", "duration"):
        return np.dtype(f"<{'M' if kind.kind == 'timestamp' else 'm'}8[{kind.unit}]")
    if kind.kind == "fixed_size_binary":
        return np.dtype(f"V{kind.width}")
    if kind.kind == "fixed_size_list":
        inner = _dtype(kind.children[0], f"{path}[]")
        base, shape = inner.subdtype or (inner, ())
        return np.dtype((base, (kind.width, *shape)))
    if kind.kind == "struct":
        return dtype_from_fields(kind.children, path)
    raise SchemaError(f"field {path!r} has the type {kind}, which has no fixed width as a dtype needs")
