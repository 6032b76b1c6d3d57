"""Fields of a structured NumPy dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastbuf.errors import SchemaError
from fastbuf.serializers.schema import DataType, Field


def fields_from_numpy(dtype: Any) -> list[Field]:
    """Fields of a structured dtype, none of them nullable.

    Raises
    ------
    SchemaError
        Not structured, or a field of objects, complex numbers, long doubles, or of a date unit Arrow has not.
    """
    dtype = np.dtype(dtype)
    if dtype.names is None:
        raise SchemaError(f"the dtype {dtype} is not structured: give it field names")
    assert dtype.fields is not None
    return [Field(name, _type(dtype.fields[name][0], name)) for name in dtype.names]


def _type(dtype: np.dtype[Any], path: str) -> DataType:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        found = _type(base, f"{path}[]")
        for length in reversed(shape):
            found = DataType("fixed_size_list", width=int(length), children=(Field("item", found),))
        return found
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
    raise SchemaError(f"field {path!r} has the dtype {dtype}, which fastbuf does not carry")
