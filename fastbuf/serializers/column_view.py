"""Columns of a block as NumPy arrays that point into the block: nothing is copied.

Lifetime: every array holds an export of the block's bytes, so while any of them is in use, a bytearray cannot be
resized and a segment cannot be recycled (``SegmentExported``).  The arrays are read-only.  They are aligned if the
block begins at a multiple of 8 bytes in memory; NumPy works with them either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbuf.errors import BlockTruncated, SchemaError
from fastbuf.serializers.assemble import BatchAssembler
from fastbuf.serializers.schema import Schema
from fastbuf.serializers.schema_types import FLOATS, INTEGERS, DataType

#: NumPy's type of a kind's slots; a unit is appended where there is one. Times and date32 are integers.
_DTYPES = {
    "date32": "<i4",
    "date64": "<M8[ms]",
    "time32": "<i4",
    "time64": "<i8",
    "timestamp": "<M8",
    "duration": "<m8",
}


def _dtype(kind: DataType) -> np.dtype[Any] | None:
    if kind.kind in INTEGERS | FLOATS:
        return np.dtype(kind.kind).newbyteorder("<")
    if kind.kind in ("timestamp", "duration"):
        return np.dtype(f"{_DTYPES[kind.kind]}[{kind.unit}]")
    if kind.kind in _DTYPES:
        return np.dtype(_DTYPES[kind.kind])
    if kind.kind in ("decimal128", "decimal256"):
        return np.dtype(("u1", (16 if kind.kind == "decimal128" else 32,)))
    return np.dtype(("u1", (kind.width,))) if kind.kind == "fixed_size_binary" else None


def _array(payload: memoryview, dtype: Any, count: int, at: int) -> NDArray[Any]:
    return np.frombuffer(payload, dtype, count, at) if count else np.empty(0, dtype)


class _Column:
    """One column of a chunk, and those within it; takes the parts of their nodes, in preorder."""

    def __init__(self, kind: DataType, payload: memoryview, parts: Iterator[tuple[int, int, int, int, int]]) -> None:
        self.kind = kind = kind.children[1].type if kind.kind == "dictionary" else kind
        self.values: NDArray[Any] | None = None
        self.ends: NDArray[np.uint32] | None = None  # all offsets but the first
        children = [child.type for child in kind.children]
        rows, bits, body, text, total = next(parts)
        self.bits = _array(payload, np.uint8, (rows + 7) // 8, bits) if bits >= 0 else None
        dtype = _dtype(kind)
        if dtype is not None:
            base, shape = dtype.subdtype or (dtype, ())
            self.values = _array(payload, base, rows * dtype.itemsize // base.itemsize, body).reshape(rows, *shape)
        elif kind.kind not in ("null", "bool", "struct", "fixed_size_list"):
            self.ends = _array(payload, "<u4", rows, body + 4)
            if not children:
                self.values = _array(payload, np.uint8, total, text)
            elif kind.kind == "map":
                children = [DataType("struct", children=kind.children)]
        self.children = [_Column(child, payload, parts) for child in children]


class ColumnView:
    """The columns of one chunk, in place.

    Attributes
    ----------
    names : tuple of str
    rows : int
    """

    def __init__(self, schema: Schema, assembler: BatchAssembler, payload: memoryview) -> None:
        parts = iter(assembler.parts(payload))
        self.names = schema.names
        self.rows = next(parts)[0]
        self._columns = {field.name: _Column(field.type, payload, parts) for field in schema}

    def __len__(self) -> int:
        return self.rows

    def _column(self, name: str) -> _Column:
        try:
            return self._columns[name]
        except KeyError:
            raise SchemaError(f"no column {name!r}: the columns are {self.names}") from None

    def __getitem__(self, name: str) -> NDArray[Any]:
        """A fixed-width column: shape (rows,); a fixed_size_list: (rows, items). Values of null rows are arbitrary."""
        column, shape = self._column(name), [self.rows]
        while column.kind.kind == "fixed_size_list":
            shape.append(column.kind.width)
            column = column.children[0]
        if column.values is None or column.ends is not None:
            raise SchemaError(f"column {name!r} ({column.kind}) cannot be an array in place: use pieces(), or loads()")
        return column.values.reshape(*shape, *column.values.shape[1:])

    def pieces(self, name: str) -> tuple[NDArray[Any], NDArray[np.uint32]]:
        """A column of strings, binaries, or lists of fixed width: all values in one array, and the end of each.

        Value i is ``values[ends[i - 1]:ends[i]]``, the first one starts at 0; strings are UTF-8 bytes.
        """
        column = self._column(name)
        if column.ends is None:
            raise SchemaError(f"column {name!r} ({column.kind}) has no pieces: read it by its name")
        inner = column if column.values is not None else column.children[0]
        if inner.values is None or (inner is not column and inner.ends is not None):
            raise SchemaError(f"column {name!r} ({column.kind}) cannot be an array in place: use loads()")
        return inner.values, column.ends

    def valid(self, name: str) -> NDArray[np.bool_] | None:
        """Which rows have values; None: all. It is unpacked, so it is a copy."""
        bits = self._column(name).bits
        return None if bits is None else np.unpackbits(bits, count=self.rows, bitorder="little").astype(bool)


def views(schema: Schema, assembler: BatchAssembler, body: memoryview) -> Iterator[ColumnView]:
    """Each chunk of a block's body; see :class:`ColumnView`.

    Raises
    ------
    BlockTruncated, BlockCorrupt
        A chunk is damaged; raised when it is reached.
    """
    body, at = body.toreadonly(), 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "little")
        left = len(body) - at - 4
        if size > left:
            raise BlockTruncated(f"an element at byte {at:,} announces {size:,} bytes and {left:,} are left")
        yield ColumnView(schema, assembler, body[at + 4 : at + 4 + size])
        at += 4 + size
