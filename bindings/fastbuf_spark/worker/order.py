"""Spark's ascending order of Arrow columns as integers: grouping and sorting without Python code per row.

A column becomes one integer (code) per row; codes compare as Spark compares the values: null is first and equal to
null, NaN is last and equal to NaN, -0.0 equals 0.0, texts and binaries compare by their bytes, arrays and structs value
by value.  The codes of several columns are combined into one, and rows are sorted by its digits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from fastbuf.errors import SchemaError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

NARROW = 1 << 40  #: integers within such a range need no dictionary: they are sorted by at most three digits
MOST = 1 << 62  #: upper bound of combined codes
ROW_BYTES = 36  #: most bytes for the codes and places of a row, while its place is found; besides texts


class Bounds:
    """The ranges of the columns at ``by`` in batches that are collected: they tell what finding an order will take."""

    def __init__(self, by: tuple[int, ...]) -> None:
        self._by = [i if i >= 0 else ~i for i in by]
        self._ranges: list[tuple[int, int]] | None = None
        self._is_narrow = True
        self._bytes = 12  # bytes of a row: its code, and its place or the code of another column
        self._text_bytes = 0  # of keys that are not numbers

    def add(self, batch: pa.RecordBatch) -> None:
        """Look at a further batch."""
        if not batch.num_rows:
            return
        columns = [batch.column(i) for i in self._by]
        self._text_bytes += sum(column.nbytes for column in columns if not _is_number(column.type))
        if not self._is_narrow:
            return
        self._is_narrow = all(_is_whole(column.type) and not column.null_count for column in columns)
        if not self._is_narrow:
            return
        ranges = [(int(values.min()), int(values.max())) for values in map(_numbers, columns)]
        if self._ranges is None:
            self._ranges = ranges
            self._bytes = 16 if any(column.type.bit_width > 8 for column in columns[1:]) else 12
        self._ranges = [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(self._ranges, ranges, strict=True)]

    def bytes_of(self, rows: int) -> int:
        """Most bytes that :func:`codes_by` and :func:`placing` take for so many rows of these batches."""
        bound = 1
        for low, high in self._ranges or ():
            bound *= min(high - low, NARROW) + 1
        if not self._is_narrow or not _is_counted(bound, rows):
            # Texts are put together, and each different one is in the dictionary
            return ROW_BYTES * rows + 2 * self._text_bytes
        return self._bytes * rows + 4 * bound


def codes_by(batches: list[pa.RecordBatch], by: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """The codes of all batches' columns at ``by``; ``~i`` is column ``i`` descending: NaN first, null last."""
    down = {place for place, i in enumerate(by) if i < 0}
    parts = ([batch.column(i if i >= 0 else ~i) for batch in batches] for i in by)
    return _combined(map(_of_parts, parts), sum(batch.num_rows for batch in batches), down)


def codes(columns: Iterable[pa.Array], rows: int) -> tuple[np.ndarray, int]:
    """A code for each row, from 0 up to a bound, in the order of the first column, then the second, and so on."""
    return _combined(map(_codes, columns), rows)


def _combined(
    columns: Iterator[tuple[np.ndarray, int]], rows: int, descending: Collection[int] = ()
) -> tuple[np.ndarray, int]:
    """One code for each row of the codes of several columns."""
    import numpy as np

    row_codes, bound = np.zeros(rows, np.int64), 1
    for place, (more, count) in enumerate(columns):
        if place in descending:
            more = count - 1 - more
        if bound == 1:
            row_codes, bound = more.astype(np.int64, copy=False), count
            continue
        if bound * count >= MOST:
            row_codes, bound = _dense(row_codes)
        if bound * count >= MOST:
            more, count = _dense(more)
        row_codes *= count  # in place: a new array costs more than what is computed
        row_codes += more
        bound *= count
    return row_codes, bound


def sorting(row_codes: np.ndarray, bound: int) -> np.ndarray | None:
    """Row numbers in the order of their codes, equal codes in input order; None: the rows are in order already."""
    import numpy as np

    if bound == 1 or _ascending(row_codes):
        return None
    # NumPy uses radix sort for 16 bits, several times as fast as comparing longer numbers
    order: np.ndarray = np.argsort(row_codes.astype(np.uint16), kind="stable")
    for shift in range(16, (bound - 1).bit_length(), 16):
        digit = (row_codes[order] >> shift).astype(np.uint16)
        order = order[np.argsort(digit, kind="stable")]
    return order


def placing(row_codes: np.ndarray, bound: int) -> np.ndarray | None:
    """The new place of each row in the order of :func:`sorting`; None: the rows are in order already."""
    from fastbuf.serializers.reorder import counted_places, places_of

    if not _is_counted(bound, len(row_codes)):
        order = sorting(row_codes, bound)
        return None if order is None else places_of(order)
    return None if _ascending(row_codes) else counted_places(row_codes, bound)


def _is_counted(bound: int, rows: int) -> bool:
    """Whether rows are sorted by counting; else the counts would take more memory than the codes."""
    return bound <= 2 * rows


def _ascending(row_codes: np.ndarray) -> bool:
    return bool((row_codes[1:] >= row_codes[:-1]).all())


def starts(row_codes: np.ndarray) -> list[int]:
    """Start of each run of equal codes."""
    import numpy as np

    return [0, *(np.flatnonzero(row_codes[1:] != row_codes[:-1]) + 1).tolist()] if len(row_codes) else []


def group_starts(columns: list[pa.Array], rows: int) -> list[int]:
    """Start of each group of equal values, of rows in the order of these columns."""
    import numpy as np

    if not all(_is_whole(column.type) and not column.null_count for column in columns):
        return starts(codes(columns, rows)[0])
    if not rows:
        return []
    differs = np.zeros(rows - 1, bool)  # whether a row differs from the one before it
    for values in map(_numbers, columns):
        differs |= values[1:] != values[:-1]
    return [0, *(np.flatnonzero(differs) + 1).tolist()]


def flags(column: pa.Array) -> np.ndarray:
    """Booleans without nulls as bytes, 0 or 1; Arrow's own conversions take several times as long."""
    import numpy as np

    if not len(column):
        return np.zeros(0, np.uint8)
    packed = np.frombuffer(column.buffers()[1], np.uint8)
    first, skip = divmod(column.offset, 8)
    return np.unpackbits(packed[first:], count=skip + len(column), bitorder="little")[skip:]


def _of_parts(parts: list[pa.Array]) -> tuple[np.ndarray, int]:
    """The codes of a column that comes in parts; of whole numbers without a copy of the column."""
    import numpy as np
    import pyarrow as pa

    if len(parts) == 1:
        return _codes(parts[0])
    kind = parts[0].type
    if _is_whole(kind) and not any(part.null_count for part in parts):
        ranges = [(int(values.min()), int(values.max())) for values in map(_numbers, parts) if len(values)]
        low, high = min((a for a, _ in ranges), default=0), max((b for _, b in ranges), default=0)
        if high - low < NARROW:
            row_codes: np.ndarray = np.empty(sum(map(len, parts)), _code_type(kind.bit_width))
            at = 0
            for values in map(_numbers, parts):
                np.subtract(values, low, out=row_codes[at : at + len(values)], dtype=row_codes.dtype)
                at += len(values)
            return row_codes, high - low + 1
    return _codes(pa.chunked_array(parts).combine_chunks())


def _is_whole(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_boolean(kind) or types.is_temporal(kind))


def _is_number(kind: pa.DataType) -> bool:
    from pyarrow import types

    return _is_whole(kind) or bool(types.is_floating(kind))


def _code_type(bits: int) -> type:
    """The type of codes of numbers with so many bits."""
    import numpy as np

    return np.int64 if bits > 8 else np.int16


def _codes(column: pa.Array) -> tuple[np.ndarray, int]:
    import numpy as np
    import pyarrow as pa
    from pyarrow import types

    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return _codes(column.storage)
    if types.is_null(kind):
        return np.zeros(len(column), np.int64), 1
    if types.is_struct(kind):
        return _nulls_first(column, *codes(column.flatten(), len(column)))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _nulls_first(column, *_of_lists(column))
    if types.is_floating(kind):
        return _nulls_first(column, *_of_numbers(_in_order(_numbers(column))))
    if _is_whole(kind):
        return _nulls_first(column, *_of_numbers(_numbers(column)))
    if types.is_decimal(kind) or _is_text(kind):
        return _nulls_first(column, *_of_dictionary(column))
    raise SchemaError(f"rows cannot be grouped or sorted by a column of type {kind}")


def _is_text(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )


def _nulls_first(column: pa.Array, row_codes: np.ndarray, bound: int) -> tuple[np.ndarray, int]:
    if column.null_count:
        row_codes += 1
        row_codes *= column.is_valid().to_numpy(zero_copy_only=False)
        bound += 1
    return row_codes, bound


def _numbers(column: pa.Array) -> np.ndarray:
    """Fixed-length values as NumPy numbers; those of nulls are arbitrary, but occur in other rows too."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    kind = column.type
    if types.is_boolean(kind):
        if not column.null_count:
            return flags(column).view(np.int8)
        column = column.cast(pa.int8())
    elif types.is_temporal(kind):
        column = column.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    if column.null_count:
        least = pc.min(column)
        column = column.fill_null(least if least.is_valid else pa.scalar(0, column.type))
    return column.to_numpy(zero_copy_only=False)


def _in_order(values: np.ndarray) -> np.ndarray:
    """Integers that compare as these floats do."""
    import numpy as np

    values = values + values.dtype.type(0)  # -0.0 becomes 0.0
    values[np.isnan(values)] = np.nan  # make all NaNs equal, and greater than infinity
    bits: np.ndarray = values.view(np.int64 if values.dtype.itemsize == 8 else np.int32)
    np.bitwise_xor(bits, (1 << (8 * bits.itemsize - 1)) - 1, out=bits, where=bits < 0)
    return bits


def _of_numbers(values: np.ndarray) -> tuple[np.ndarray, int]:
    import numpy as np

    if not len(values):
        return np.zeros(0, np.int64), 1
    low, high = int(values.min()), int(values.max())
    if high - low < NARROW:
        row_codes: np.ndarray = values.astype(_code_type(8 * values.dtype.itemsize))
        row_codes -= low
        return row_codes, high - low + 1
    return _dense(values)


def _dense(values: np.ndarray) -> tuple[np.ndarray, int]:
    """The rank of each number among the different ones; in half of the memory of ``np.unique``."""
    import numpy as np

    if not len(values):
        return np.zeros(0, np.int64), 1
    order = np.argsort(values)
    ranks = values[order]
    differs = ranks[1:] != ranks[:-1]
    ranks = ranks.view(np.int64) if ranks.itemsize == 8 else np.empty(len(values), np.int64)
    ranks[0] = 0
    np.cumsum(differs, out=ranks[1:])
    row_codes: np.ndarray = np.empty(len(values), np.int64)
    row_codes[order] = ranks
    return row_codes, int(ranks[-1]) + 1


def _of_dictionary(column: pa.Array) -> tuple[np.ndarray, int]:
    import numpy as np
    import pyarrow.compute as pc

    encoded = column.dictionary_encode()
    count = len(encoded.dictionary)
    if not count:
        return np.zeros(len(column), np.int64), 1
    rank = np.empty(count, np.int64)
    rank[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(count)
    return rank[encoded.indices.fill_null(0).to_numpy()], count


def _of_lists(column: pa.Array) -> tuple[np.ndarray, int]:
    """Lists compare as the byte strings of their items' codes, in big-endian order."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    items, _ = _codes(column.flatten())
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.zeros(len(column) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    buffers = [None, pa.py_buffer(ends * 8), pa.py_buffer(items.astype(">i8"))]
    return _of_dictionary(pa.Array.from_buffers(pa.large_binary(), len(column), buffers))
