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

from fastbuf.errors import BlockCorrupt, BlockTruncated, SchemaError
from fastbuf.serializers.schema import Schema
from fastbuf.serializers.schema_types import BINARIES, FLOATS, INTEGERS, STRINGS, DataType

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


class _Column:
    """The parts of one parsed column."""

    def __init__(self, kind: DataType, rows: int) -> None:
        self.kind = kind
        self.rows = rows
        self.bits: NDArray[np.uint8] | None = None
        self.values: NDArray[Any] | None = None
        self.ends: NDArray[np.uint32] | None = None  # all offsets but the first
        self.children: list[_Column] = []


class _Chunk:
    """Reads one chunk; every length is compared with what is left before it is used."""

    def __init__(self, payload: memoryview) -> None:
        self.payload = payload
        self.at = 0
        self.node = 0
        self.flags = b""

    def take(self, path: str, size: int) -> memoryview:
        left = len(self.payload) - self.at
        if size > left:
            raise BlockTruncated(
                f"a columnar chunk of {len(self.payload):,} bytes: {path} needs {size:,} bytes and {left:,} are left"
            )
        self.at += size
        return self.payload[self.at - size : self.at]

    def part(self, path: str, size: int) -> memoryview:
        """A part, without the zeros that pad it to a multiple of 8."""
        raw = self.take(path, -(-size // 8) * 8)
        if any(raw[size:]):
            raise BlockCorrupt(f"a columnar chunk of {len(self.payload):,} bytes: {path} has padding that is not 0")
        return raw[:size]

    def array(self, path: str, dtype: Any, rows: int) -> NDArray[Any]:
        dtype = np.dtype(dtype)
        raw = self.part(path, rows * dtype.itemsize)
        if dtype.subdtype is None:
            return np.frombuffer(raw, dtype, rows) if rows else np.empty(0, dtype)
        width = dtype.itemsize
        return np.frombuffer(raw, np.uint8).reshape(rows, width) if rows * width else np.empty((rows, width), np.uint8)

    def flag(self) -> bool:
        self.node += 1
        return bool(self.flags[self.node >> 3] >> (self.node & 7) & 1)

    def read(self, kind: DataType, nullable: bool, rows: int, path: str, entries: bool = False) -> _Column:
        # A nested field may hold nulls wherever its parent is null, whatever its own type says; but neither the
        # entries of a map nor their keys.
        if kind.kind == "dictionary":
            kind, nullable = kind.children[1].type, True
        found, flag = _Column(kind, rows), self.flag()
        if flag:
            if not nullable or kind.kind == "null":
                raise BlockCorrupt(f"a columnar chunk: {path} has nulls and the schema allows none")
            found.bits = self.array(path, np.uint8, (rows + 7) // 8)
        dtype = _dtype(kind)
        if dtype is not None:
            found.values = self.array(path, dtype, rows)
        elif kind.kind == "bool":
            found.values = self.array(path, np.uint8, (rows + 7) // 8)
        elif kind.kind in STRINGS | BINARIES:
            found.ends = self.read_ends(path, rows)
            found.values = self.array(path, np.uint8, int(found.ends[-1]) if rows else 0)
        elif kind.kind in ("list", "large_list", "map"):
            found.ends = self.read_ends(path, rows)
            inner = DataType("struct", children=kind.children) if kind.kind == "map" else kind.children[0].type
            below, is_map = int(found.ends[-1]) if rows else 0, kind.kind == "map"
            found.children = [self.read(inner, not is_map, below, f"{path}[]", is_map)]
        elif kind.kind == "fixed_size_list":
            found.children = [self.read(kind.children[0].type, True, rows * kind.width, f"{path}[]")]
        elif kind.kind == "struct":
            found.children = [
                self.read(f.type, not entries or i > 0, rows, f"{path}.{f.name}") for i, f in enumerate(kind.children)
            ]
        return found

    def read_ends(self, path: str, rows: int) -> NDArray[np.uint32]:
        if not rows:
            return np.empty(0, "<u4")
        offsets = self.array(path, "<u4", rows + 1)
        if offsets[0] or bool((offsets[1:] < offsets[:-1]).any()):
            raise BlockCorrupt(
                f"a columnar chunk of {len(self.payload):,} bytes: {path} has offsets that decrease, or do not "
                "begin at 0"
            )
        return offsets[1:]


class ColumnView:
    """The columns of one chunk, in place.

    Attributes
    ----------
    names : tuple of str
    rows : int
    """

    def __init__(self, schema: Schema, payload: memoryview) -> None:
        chunk = _Chunk(payload)
        self.names = schema.names
        self.rows = int.from_bytes(chunk.take("the chunk", 4), "little")
        self._columns: dict[str, _Column] = {}
        nodes = 1 + sum(_nodes(field.type) for field in schema)
        flags = bytes(chunk.take("the chunk", -(-(8 + (nodes + 7) // 8) // 8) * 8 - 8))
        if int.from_bytes(flags, "little") >> nodes or flags[0] & 1:
            raise BlockCorrupt(f"a columnar chunk of {len(payload):,} bytes has a flag that is unknown for its type")
        chunk.flags = flags
        for field in schema:
            path = f"column {field.name!r}"
            self._columns[field.name] = chunk.read(field.type, field.nullable, self.rows, path)
        rest = len(payload) - chunk.at
        if rest:
            raise BlockCorrupt(f"a columnar chunk of {len(payload):,} bytes: {rest:,} belong to no column")

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
        if column.values is None or column.ends is not None or column.kind.kind == "bool":
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
        if inner.values is None or inner.kind.kind == "bool" or (inner is not column and inner.ends is not None):
            raise SchemaError(f"column {name!r} ({column.kind}) cannot be an array in place: use loads()")
        return inner.values, column.ends

    def valid(self, name: str) -> NDArray[np.bool_] | None:
        """Which rows have values; None: all. It is unpacked, so it is a copy."""
        bits = self._column(name).bits
        return None if bits is None else np.unpackbits(bits, count=self.rows, bitorder="little").astype(bool)


def _nodes(kind: DataType) -> int:
    if kind.kind == "dictionary":
        return _nodes(kind.children[1].type)
    return 1 + (kind.kind == "map") + sum(_nodes(child.type) for child in kind.children)


def views(schema: Schema, body: memoryview) -> Iterator[ColumnView]:
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
        yield ColumnView(schema, body[at + 4 : at + 4 + size])
        at += 4 + size
