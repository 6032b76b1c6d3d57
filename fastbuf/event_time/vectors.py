"""Partial results as arrays, one entry for each key: NumPy puts those of many keys together at once.

Where there is no value, an entry has one that changes nothing (0 for a sum), so that no mask is looked at.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbuf.errors import RecordError

if TYPE_CHECKING:
    import pyarrow as pa

Bools = NDArray[np.bool_]
WIDE = decimal.Context(prec=76)
DECIMALS_END = "a sum of decimals has more than 38 digits, and Spark's end there"


class Vector:
    """How a column of state is put together.

    Attributes
    ----------
    names
        Of the columns in tables of the state.
    put
        A ufunc that makes one array of two.
    none
        What stands where there is no value.
    """

    names: list[str]
    dtype: Any
    put: Any
    none: Any

    def read(self, table: pa.Table) -> tuple[NDArray[Any], Bools]:
        """Values, and where there are some."""
        raise NotImplementedError

    def arrays(self, values: NDArray[Any], valid: Bools) -> list[pa.Array]:
        """The same as columns."""
        raise NotImplementedError


class Plain(Vector):
    """Numbers, times and booleans."""

    def __init__(self, name: str, kind: pa.DataType, dtype: Any, put: Any, none: Any) -> None:
        self.names, self._kind, self.dtype, self.put, self.none = [name], kind, np.dtype(dtype), put, none

    def read(self, table: pa.Table) -> tuple[NDArray[Any], Bools]:
        import pyarrow as pa

        column = one_array(table.column(self.names[0]))
        if pa.types.is_boolean(self._kind):
            values = column.fill_null(self.none).to_numpy(zero_copy_only=False)
            return values, column.is_valid().to_numpy(zero_copy_only=False)
        values = np.frombuffer(column.buffers()[1], self.dtype)[column.offset : column.offset + len(column)]
        if not column.null_count:
            return values, np.ones(len(values), bool)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        return np.where(valid, values, self.none).astype(self.dtype), valid

    def arrays(self, values: NDArray[Any], valid: Bools) -> list[pa.Array]:
        import pyarrow as pa

        nulls = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        bits = np.packbits(values, bitorder="little") if pa.types.is_boolean(self._kind) else values
        return [pa.Array.from_buffers(self._kind, len(values), [nulls, pa.py_buffer(np.ascontiguousarray(bits))])]


class Objects(Vector):
    """Python's values: texts, decimals, rows.

    Parameters
    ----------
    put
        Makes one of two.
    load, store
        Make a list of them from the columns, and columns from such a list.
    """

    dtype = np.dtype(object)
    none = None

    def __init__(
        self,
        names: Sequence[str],
        put: Callable[[Any, Any], Any],
        load: Callable[[pa.Table], list[Any]],
        store: Callable[[list[Any]], list[pa.Array]],
    ) -> None:
        self.names, self._load, self._store = list(names), load, store
        self.put = np.frompyfunc(lambda a, b: b if a is None else a if b is None else put(a, b), 2, 1)

    def read(self, table: pa.Table) -> tuple[NDArray[Any], Bools]:
        rows = self._load(table)
        values = np.empty(len(rows), object)
        values[:] = rows
        return values, np.array([row is not None for row in rows], bool)

    def arrays(self, values: NDArray[Any], valid: Bools) -> list[pa.Array]:
        return self._store(values.tolist())


def one_array(column: Any) -> pa.Array:
    """A column as one array; without a copy if it is one piece."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def vector(name: str, kind: pa.DataType, call: str) -> Vector:
    """How partial results of this type are put together: by sum, product, min, max, any or all."""
    import pyarrow as pa

    if pa.types.is_boolean(kind):
        least = call in ("all", "min")
        return Plain(name, kind, bool, np.logical_and if least else np.logical_or, least)
    if pa.types.is_floating(kind):
        # Of NaN and a number Arrow takes the number; -0.0 changes no other number, nor itself
        way = {"sum": (np.add, -0.0), "product": (np.multiply, 1.0), "min": (np.fmin, np.nan), "max": (np.fmax, np.nan)}
        return Plain(name, kind, kind.to_pandas_dtype(), *way[call])
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        dtype = np.dtype(kind.to_pandas_dtype() if pa.types.is_integer(kind) else f"int{kind.bit_width}")
        ends = np.iinfo(dtype)
        whole = {"sum": (np.add, 0), "min": (np.minimum, ends.max), "max": (np.maximum, ends.min)}
        return Plain(name, kind, dtype, *whole[call])

    def store(values: list[Any]) -> list[pa.Array]:
        try:
            return [pa.array(values, kind)]
        except pa.ArrowInvalid as error:
            raise RecordError(f"{DECIMALS_END}: {error}") from error

    put: Any = {"sum": WIDE.add, "min": min, "max": max}[call]
    return Objects([name], put, lambda table: list(table.column(name).to_pylist()), store)


class Totals:
    """What has been put together for each key.

    Attributes
    ----------
    there
        The keys that have rows.
    """

    def __init__(self, vectors: Sequence[Vector], keys: int) -> None:
        self._vectors = vectors
        self.there = np.zeros(keys, bool)
        self._values = [np.full(keys, each.none, each.dtype) for each in vectors]
        self._valid = [np.zeros(keys, bool) for _ in vectors]

    @property
    def nbytes(self) -> int:
        return sum(mine.nbytes for mine in self._all())

    def grow(self, keys: int) -> None:
        """Make room for more keys: the double, so that it is seldom done."""
        if keys > len(self.there):
            more = Totals(self._vectors, max(2 * len(self.there), keys))
            for new, old in zip(more._all(), self._all(), strict=True):
                new[: len(old)] = old
            self.there, self._values, self._valid = more.there, more._values, more._valid

    def _all(self) -> list[NDArray[Any]]:
        return [self.there, *self._values, *self._valid]

    def add(self, at: NDArray[Any], rows: Sequence[tuple[NDArray[Any], Bools]], before: bool = False) -> None:
        """Rows of keys, none of which is there twice; `before`: they are older than what is here."""
        for each, mine, ok, (values, valid) in zip(self._vectors, self._values, self._valid, rows, strict=True):
            old = mine[at]
            mine[at] = each.put(values, old) if before else each.put(old, values)
            ok[at] |= valid
        self.there[at] = True

    def copies(self, at: NDArray[Any]) -> list[NDArray[Any]]:
        """Copies of what is here of some keys, for :meth:`put_back`."""
        return [mine[at] for mine in self._all()]

    def put_back(self, at: NDArray[Any], copies: Sequence[NDArray[Any]]) -> None:
        for mine, old in zip(self._all(), copies, strict=True):
            mine[at] = old

    def with_newer(self, newer: Totals, keys: Any) -> list[pa.Array]:
        """The columns of both together; `keys`: a slice, or numbers."""
        columns = []
        for i, each in enumerate(self._vectors):
            values = each.put(self._values[i][keys], newer._values[i][keys])
            columns += each.arrays(values, self._valid[i][keys] | newer._valid[i][keys])
        return columns
