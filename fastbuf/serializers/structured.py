"""Conversion between NumPy structured arrays and record batches."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbuf.errors import RecordError, SchemaError
from fastbuf.serializers.schema import Schema


def record_batch(array: NDArray[Any]) -> Any:
    """A structured array as a ``pyarrow.RecordBatch``, as ``ColumnarSerializer`` and ``emit_batch`` convert one.

    Each field is copied once to make it contiguous.

    Raises
    ------
    SchemaError
        Arrow has no type for a field; the message names it.
    RecordError
        The array has a mask, or more than one dimension.
    """
    import pyarrow as pa

    if isinstance(array, np.ma.MaskedArray):
        raise RecordError("a masked array: masks are not read; give array.filled(), or a record batch with nulls")
    if array.ndim != 1:
        raise RecordError(f"a structured array of shape {array.shape}: rows have one dimension")
    schema = Schema.from_numpy(array.dtype).to_arrow()
    return pa.RecordBatch.from_arrays([_column(array[field.name], field.type) for field in schema], schema=schema)


def _column(values: NDArray[Any], kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_fixed_size_list(kind):
        items = values.reshape(values.shape[0] * values.shape[1], *values.shape[2:])
        return pa.FixedSizeListArray.from_arrays(_column(items, kind.value_type), type=kind)
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([_column(values[f.name], f.type) for f in kind], fields=list(kind))
    values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
    if pa.types.is_fixed_size_binary(kind):
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values.view(np.uint8))])
    return pa.array(values, type=kind)


def structured_array(batch: Any) -> NDArray[Any]:
    """A record batch as a structured array.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        Must have no nulls.  Timestamps with a zone become their instants in UTC.

    Returns
    -------
    ndarray
        A copy of shape (rows,).  Types: bool, int8 to uint64, float16 to float64, datetime64, timedelta64, ``V`` for a
        fixed_size_binary, ``U`` and ``S`` as wide as the longest string or binary, subarrays for fixed_size_lists, a
        structured field for a struct.

    Raises
    ------
    RecordError
        There is a null; the message names the column.
    SchemaError
        NumPy lacks the type: decimals, times of day, lists of any length, maps.

    Examples
    --------
    >>> array = np.array([(1, 0.5), (2, 1.5)], [("id", "<i8"), ("x", "<f4")])
    >>> cols = ColumnarSerializer(Schema.from_numpy(array.dtype))
    >>> bool((structured_array(cols.loads(cols.dumps(array))) == array).all())
    True
    """
    return _together(batch.schema.names, [_values(batch.column(i), name) for i, name in enumerate(batch.schema.names)])


def _together(names: list[str], columns: list[NDArray[Any]]) -> NDArray[Any]:
    rows = len(columns[0]) if columns else 0
    array = np.empty(rows, [(name, c.dtype, c.shape[1:]) for name, c in zip(names, columns, strict=True)])
    for name, column in zip(names, columns, strict=True):
        array[name] = column
    return array


def _values(column: Any, path: str) -> NDArray[Any]:
    import pyarrow as pa

    is_, kind = pa.types, column.type
    if column.null_count:
        raise RecordError(f"column {path!r} has {column.null_count:,} nulls, and NumPy has none: fill them before")
    if is_.is_dictionary(kind):
        return _values(column.cast(kind.value_type), path)
    if is_.is_struct(kind):
        parts = [_values(part, f"{path}.{kind.field(i).name}") for i, part in enumerate(column.flatten())]
        array = _together([field.name for field in kind], parts)
        return array if parts else np.empty(len(column), array.dtype)
    if is_.is_fixed_size_list(kind):
        items = _values(column.flatten(), f"{path}[]")
        return items.reshape(len(column), kind.list_size, *items.shape[1:])
    if is_.is_date32(kind):
        return np.asarray(column.view(pa.int32()).to_numpy().astype("<M8[D]"))
    if is_.is_date64(kind) or is_.is_timestamp(kind) or is_.is_duration(kind):
        unit = "ms" if is_.is_date64(kind) else kind.unit
        return np.asarray(column.view(pa.int64()).to_numpy().view(f"<{'m' if is_.is_duration(kind) else 'M'}8[{unit}]"))
    if is_.is_fixed_size_binary(kind):
        width = kind.byte_width
        data = np.frombuffer(column.buffers()[1], np.uint8, width * len(column), width * column.offset)
        return data.view(f"V{width}")
    if is_.is_integer(kind) or is_.is_floating(kind) or is_.is_boolean(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind):
        return np.array(column.to_pylist(), "U")
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_binary_view(kind):
        return np.array(column.to_pylist(), "S")
    raise SchemaError(f"column {path!r} has the type {kind}, which no structured array holds")
