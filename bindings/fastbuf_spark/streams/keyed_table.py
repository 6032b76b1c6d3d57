"""State of keys in columns: a row for each key, found by its hash; for work on whole batches.

No code of Python's runs for a row: ten thousand keys are looked up together, by some calls of NumPy.  Columns of fixed
width are arrays; others are arrays of Python's values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbuf.errors import SchemaMismatch
from fastbuf.event_time.arrow_rows import words_of
from fastbuf.event_time.hash_index import MOST_HASH, HashIndex, Places
from fastbuf_spark.streams.operators import KeyGroups

if TYPE_CHECKING:
    import pyarrow as pa

LEAST = 1024  #: places at first; doubled when they are full


class _Column:
    """A column of the state: values by place, and which of them are there."""

    def __init__(self, kind: pa.DataType) -> None:
        import pyarrow as pa

        self.kind = kind
        width = 0 if pa.types.is_nested(kind) or pa.types.is_null(kind) else _width(kind)
        self.dtype: Any = {0: object, 1: np.uint8, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}.get(
            width, f"V{width // 8}"
        )
        self.values = np.zeros(LEAST, self.dtype)
        self.valid = np.zeros(LEAST, bool)

    def grow(self, places: int) -> None:
        self.values, self.valid = _grown(self.values, places), _grown(self.valid, places)

    def read(self, places: Places) -> pa.Array:
        return _array(self.kind, self.values[places], self.valid[places])

    def raw(self, array: pa.Array) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The values of an array as they are stored here, and which of them are there."""
        import pyarrow as pa

        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        size = len(array)
        valid = np.ones(size, bool) if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
        if self.dtype is object:
            return _objects(array), valid
        if pa.types.is_boolean(self.kind):
            return array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8), valid
        return np.frombuffer(array.buffers()[1], self.dtype)[array.offset : array.offset + size], valid

    def write(self, places: Places, array: pa.Array) -> None:
        self.values[places], self.valid[places] = self.raw(array)


def _grown(old: NDArray[Any], places: int) -> NDArray[Any]:
    new = np.zeros(places, old.dtype)
    new[: len(old)] = old
    return new


def _objects(array: pa.Array) -> NDArray[Any]:
    objects = np.empty(len(array), object)
    objects[:] = array.to_pylist()
    return objects


def _width(kind: pa.DataType) -> int:
    """Bits of a value; 0: they differ."""
    try:
        return int(kind.bit_width)
    except ValueError:
        return 0


def _array(kind: pa.DataType, values: NDArray[Any], valid: NDArray[np.bool_]) -> pa.Array:
    import pyarrow as pa

    if values.dtype == object:
        return pa.array([value if there else None for value, there in zip(values, valid, strict=True)], kind)
    nulls = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    if pa.types.is_boolean(kind):
        values = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(kind, len(valid), [nulls, pa.py_buffer(np.ascontiguousarray(values))])


@dataclass(frozen=True)
class Keys:
    """The keys of a batch.

    Attributes
    ----------
    numbers
        For each row the number of its key, from 0 on, in the order of the keys' first rows.
    first
        The first row of each key.
    places
        Where each key's state is.
    is_new
        Whether it had none before.
    """

    numbers: Places
    first: Places
    places: Places
    is_new: NDArray[np.bool_]


class KeyedTable:
    """A row of state for each key.

    Parameters
    ----------
    keys, values
        Schemas of the key, and of the state.
    groups
        Number of key groups.
    """

    def __init__(self, keys: pa.Schema, values: pa.Schema, groups: int) -> None:
        self.keys, self.values = keys, values
        self._groups = KeyGroups(keys.names, groups)
        self._hashes = KeyGroups(keys.names, MOST_HASH)
        self._index = HashIndex()
        self._columns = [_Column(field.type) for field in (*keys, *values)]
        self._group = np.zeros(LEAST, np.int16)
        self._hash = np.zeros(LEAST, np.int64)
        self._alive = np.zeros(LEAST, bool)
        self._free: list[int] = []
        self._used = 0
        self._dirty = np.zeros(groups, bool)

    def __len__(self) -> int:
        return self._used - len(self._free)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns, without what Python's values take."""
        return sum(column.values.nbytes + column.valid.nbytes for column in self._columns)

    def find(self, batch: pa.RecordBatch) -> Keys:
        """Where the state of a batch's keys is; a new key gets a place, with nulls."""
        import pyarrow as pa

        from fastbuf.event_time.aggregates import normal

        columns = [normal(batch.column(name)) for name in self.keys.names]
        numbers, first = _distinct(columns, batch.num_rows)
        distinct = columns if len(first) == batch.num_rows else [column.take(pa.array(first)) for column in columns]
        rows = pa.RecordBatch.from_arrays(distinct, schema=_plain(self.keys))
        hashes = self._hashes.of(rows).astype(np.int64)
        key_columns = self._columns[: len(self.keys)]
        key_values = [column.raw(array) for column, array in zip(key_columns, rows.columns, strict=True)]

        def equal(places: Places, which: Places) -> NDArray[np.bool_]:
            mask = np.ones(len(places), bool)
            for column, (values, valid) in zip(key_columns, key_values, strict=True):
                same = column.valid[places] == valid[which]
                mask &= same & ((column.values[places] == values[which]) | ~valid[which])
            return mask

        places = self._index.find(hashes, equal)
        is_new = places < 0
        if is_new.any():
            fresh = np.flatnonzero(is_new)
            new_places = self._take(len(fresh))
            places[fresh] = new_places
            new = rows.take(pa.array(fresh))
            self._group[new_places] = self._groups.of(new)
            self._hash[new_places] = hashes[fresh]
            self._alive[new_places] = True
            for column, array in zip(key_columns, new.columns, strict=True):
                column.write(new_places, array)
            for column in self._columns[len(self.keys) :]:
                column.valid[new_places] = False
            self._index.add(hashes[fresh], new_places)
        self._dirty[self._group[places]] = True
        return Keys(numbers, first, places, is_new)

    def _take(self, count: int) -> Places:
        free = self._free[-count:] if self._free else []
        del self._free[len(self._free) - len(free) :]
        more = count - len(free)
        if self._used + more > len(self._alive):
            size = max(2 * len(self._alive), self._used + more)
            for column in self._columns:
                column.grow(size)
            self._group, self._hash, self._alive = (_grown(old, size) for old in (self._group, self._hash, self._alive))
        places = np.array([*free, *range(self._used, self._used + more)], np.int64)
        self._used += more
        return places

    def read_keys(self, places: Places) -> list[pa.Array]:
        """The keys at some places."""
        return [column.read(places) for column in self._columns[: len(self.keys)]]

    def read(self, places: Places) -> pa.RecordBatch:
        """The state at some places."""
        import pyarrow as pa

        columns = [column.read(places) for column in self._columns[len(self.keys) :]]
        return pa.RecordBatch.from_arrays(columns, schema=self.values)

    def write(self, places: Places, state: Any) -> None:
        """Set the state at some places, of which none is there twice."""
        for column, values in zip(self._columns[len(self.keys) :], state.columns, strict=True):
            column.write(places, values)

    def remove(self, places: Places) -> None:
        """Remove some keys."""
        self._index.remove(self._hash[places], places)
        self._dirty[self._group[places]] = True
        self._alive[places] = False
        self._free.extend(places.tolist())

    def where(self, test: Callable[[list[NDArray[Any]]], NDArray[np.bool_]]) -> Places:
        """Places whose values pass a test of the raw columns of the state."""
        used = [column.values[: self._used] for column in self._columns[len(self.keys) :]]
        return np.flatnonzero(test(used) & self._alive[: self._used])

    # ---- snapshots

    def freeze(self, more: frozenset[int]) -> Mapping[int, Callable[[], bytes]]:
        """Copies of the columns as they are; each group is encoded from them, in another thread."""
        self._dirty[list(more)] = True
        groups = np.flatnonzero(self._dirty).tolist()
        self._dirty[:] = False
        if not groups:
            return {}
        used = self._used
        copies = [(column.kind, column.values[:used].copy(), column.valid[:used].copy()) for column in self._columns]
        frozen = _Frozen(self.keys, self.values, copies, self._group[:used].copy(), self._alive[:used].copy())
        return {group: partial(frozen.encode, group) for group in groups}

    def restore(self, data: bytes) -> None:
        """The rows of a key group.

        Raises
        ------
        SchemaMismatch
            Their values have other types: read as those here, each would be another number.
        """
        import pyarrow as pa

        with pa.ipc.open_stream(data) as reader:
            table = reader.read_all().combine_chunks()
        before, now = words_of(table.schema)[len(self.keys) :], words_of(self.values)
        if before != now:
            raise SchemaMismatch(f"the state in the checkpoint has columns {before}, and the stream's state has {now}")
        for batch in table.to_batches():
            keys = self.find(batch.select(self.keys.names))
            self.write(keys.places, batch.select(range(len(self.keys), batch.num_columns)))
        self._dirty[:] = False


class _Frozen:
    """The columns at one moment."""

    def __init__(self, keys: pa.Schema, values: pa.Schema, columns: list[Any], group: Any, alive: Any) -> None:
        import pyarrow as pa

        self._schema = pa.schema([*_plain(keys), *values])
        self._columns = columns
        self._group = group
        self._alive = alive
        self._order: Any = None

    def encode(self, group: int) -> bytes:
        """A group as an Arrow stream; an empty text if it has no rows."""
        import pyarrow as pa

        if self._order is None:
            places = np.flatnonzero(self._alive)
            self._order = places[np.argsort(self._group[places], kind="stable")]  # 16 bits: a radix sort
            sorted_groups = self._group[self._order]
            self._bounds = np.searchsorted(sorted_groups, np.arange(int(sorted_groups[-1]) + 2 if len(places) else 1))
        if group + 1 >= len(self._bounds):
            return b""
        places = self._order[self._bounds[group] : self._bounds[group + 1]]
        if not len(places):
            return b""
        columns = [_array(kind, values[places], valid[places]) for kind, values, valid in self._columns]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        return bytes(sink.getvalue())


def _plain(schema: pa.Schema) -> pa.Schema:
    """The schema with fields that may be null, and without metadata."""
    import pyarrow as pa

    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _distinct(columns: Sequence[pa.Array], rows: int) -> tuple[Places, Places]:
    """For each row the number of its key, in the order of the keys' first rows; and these rows."""
    encoded = [column.dictionary_encode(null_encoding="encode") for column in columns]
    if len(columns) == 1:
        numbers = encoded[0].indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return numbers, _first_rows(numbers, len(encoded[0].dictionary))
    codes = np.zeros(rows, np.int64)
    for each in encoded:
        codes = codes * len(each.dictionary) + each.indices.to_numpy(zero_copy_only=False)
        _, codes = np.unique(codes, return_inverse=True)
    first = _first_rows(codes, int(codes.max()) + 1 if rows else 0)
    order = np.argsort(first, kind="stable")
    renumbered = np.empty(len(order), np.int64)
    renumbered[order] = np.arange(len(order))
    return renumbered[codes], first[order]


def _first_rows(numbers: Places, count: int) -> Places:
    first = np.empty(count, np.int64)
    first[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)
    return first


def concat(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """One batch of several."""
    import pyarrow as pa

    whole = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return whole[0] if whole else pa.RecordBatch.from_pylist([], schema)
