"""Puts the rows of several batches into one sorted batch, and copies each value only once.

Concatenating the batches and taking rows of the result would copy each value twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbuf.errors import ResourceError
from fastbuf_spark.worker.memory import give_back
from fastbuf_spark.worker.order import flags

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

COLUMN_BYTES = 1 << 10  #: what a column of a batch takes besides its values
MOST_TEXT = (1 << 31) - 1  #: bytes of a column of texts: its offsets have 32 bits
WIDTHS = (1, 2, 4, 8, 16)  #: bytes of values that are copied here; columns of other widths are left to Arrow


def permute(batches: list[pa.RecordBatch], places: np.ndarray, is_tight: bool = False) -> pa.RecordBatch:
    """One batch with the rows of all batches.

    Parameters
    ----------
    batches
        The list is emptied, and each column is dropped once it is copied.
    places
        For each row of all batches in turn, its number in the result: uint32, a permutation.
    is_tight
        Whether there is no memory for all rows twice: then what is dropped is given back at once, which costs time.
    """
    import pyarrow as pa

    schema = batches[0].schema
    columns = [[batch.column(i) for batch in batches] for i in reversed(range(len(schema)))]
    batches.clear()
    arrays: list[pa.Array] = []
    order: pa.Array | None = None  # for columns that are left to Arrow
    for field in schema:
        parts = columns.pop()
        if pa.types.is_boolean(field.type):
            arrays.append(_bits(parts, places))
        elif _width(field.type) in WIDTHS:
            arrays.append(_fixed(parts, places))
        elif pa.types.is_string(field.type) or pa.types.is_binary(field.type):
            arrays.append(_texts(parts, places))
        else:
            order = _order(places) if order is None else order
            arrays.append(pa.concat_arrays(parts).take(order))
        del parts
        if is_tight:
            give_back()
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def copied(batch: pa.RecordBatch) -> tuple[int, int]:
    """Bytes of a batch, and the most bytes that :func:`placed` makes of it before it drops something.

    A column that is left to Arrow is copied twice, the second time into memory that grows by doubling, by an order of
    four bytes a row; and the columns of a batch that was read as a whole, or is short, share memory, so that none of it
    is free before the last one is copied.
    """
    from pyarrow import types

    from fastbuf.serializers.assemble import ROWS_APART

    used, most = 0, 0
    for column in batch.columns:
        kind = column.type
        plain = types.is_boolean(kind) or _width(kind) in WIDTHS or types.is_string(kind) or types.is_binary(kind)
        mine = column.nbytes
        used += mine + COLUMN_BYTES
        most = max(most, mine if plain else 3 * mine + 4 * batch.num_rows)
    shared = batch.num_rows < ROWS_APART or any(
        part is not None and part.parent is not None for column in batch.columns for part in column.buffers()
    )
    return used, max(most, used) if shared else most


def _width(kind: pa.DataType) -> int:
    """Bytes of each value; 0: its length varies, or it is not a plain number or time."""
    from pyarrow import types

    plain = types.is_integer(kind) or types.is_floating(kind) or types.is_temporal(kind) or types.is_decimal(kind)
    return int(kind.bit_width) // 8 if plain else 0


def _order(places: np.ndarray) -> pa.Array:
    """The row for each place: the inverse of ``places``."""
    import numpy as np
    import pyarrow as pa

    order = np.empty(len(places), np.uint32)
    order[places] = np.arange(len(places), dtype=np.uint32)
    return pa.array(order)


def _fixed(parts: list[pa.Array], places: np.ndarray) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    from fastbuf.serializers.reorder import put_fixed

    kind = parts[0].type
    width = _width(kind)
    target = np.empty(len(places) * width, np.uint8)
    at = 0
    for part in parts:
        values = part.buffers()[1]
        if len(part):
            mine = np.frombuffer(values, np.uint8)[part.offset * width :]
            put_fixed(mine, width, places[at : at + len(part)], target)
        at += len(part)
    return pa.Array.from_buffers(kind, len(places), [_validity(parts, places), pa.py_buffer(target)])


def _bits(parts: list[pa.Array], places: np.ndarray) -> pa.Array:
    import pyarrow as pa

    values = _packed([flags(part.fill_null(False)) for part in parts], places)
    return pa.Array.from_buffers(pa.bool_(), len(places), [_validity(parts, places), values])


def _texts(parts: list[pa.Array], places: np.ndarray) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    from fastbuf.serializers.reorder import put_lengths, put_texts

    ends = np.zeros(len(places) + 1, np.int32)
    texts = []
    at = 0
    for part in parts:
        if not len(part):
            continue
        _, offsets, data = part.buffers()
        mine = np.frombuffer(offsets, np.int32)[part.offset : part.offset + len(part) + 1]
        put_lengths(mine, places[at : at + len(part)], ends)
        texts.append((mine, np.frombuffer(data or b"", np.uint8), places[at : at + len(part)]))
        at += len(part)
    total = int(ends.sum(dtype=np.int64))
    if total > MOST_TEXT:
        raise ResourceError(
            f"{len(places)} rows that are sorted at once have {total} bytes in a column of type {parts[0].type}, more "
            f"than its offsets can tell apart ({MOST_TEXT}): lower spark.fastbuf.memoryBytes"
        )
    np.cumsum(ends, out=ends)
    target = np.empty(total, np.uint8)
    for mine, data, to in texts:
        put_texts(mine, data, to, ends, target)
    buffers = [_validity(parts, places), pa.py_buffer(ends), pa.py_buffer(target)]
    return pa.Array.from_buffers(parts[0].type, len(places), buffers)


def _validity(parts: list[pa.Array], places: np.ndarray) -> pa.Buffer | None:
    if not any(part.null_count for part in parts):
        return None
    return _packed([flags(part.is_valid()) for part in parts], places)


def _packed(parts: list[np.ndarray], places: np.ndarray) -> pa.Buffer:
    """Booleans, given as bytes, in their places, one bit each."""
    import numpy as np
    import pyarrow as pa

    from fastbuf.serializers.reorder import put_fixed

    target = np.empty(len(places), np.uint8)
    at = 0
    for part in parts:
        put_fixed(part, 1, places[at : at + len(part)], target)
        at += len(part)
    return pa.py_buffer(np.packbits(target, bitorder="little"))
