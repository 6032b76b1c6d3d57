"""Rows of Arrow tables by their keys: numbers for keys, rows in the order of keys, rows whose keys are among others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbuf.errors import SchemaError
from fastbuf.event_time.hash_index import MOST_HASH
from fastbuf.event_time.windows import MOST_US, order_of
from fastbuf.serializers.partition import HashPartitioner

if TYPE_CHECKING:
    import pyarrow as pa

_HASHES = 1 << 22  #: of a table of marks
_PART_ROWS = 1 << 14  #: rows that are grouped together, where there are many groups


def int64s(column: Any) -> NDArray[np.int64]:
    """A column of int64 without nulls, as an array; without a copy if it is one piece."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # of no rows, in some versions
        return np.empty(0, np.int64)
    values: NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
    return values


def microseconds(column: pa.Array, name: str) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """Times in microseconds; and which of them are valid, None: all."""
    import pyarrow as pa
    import pyarrow.compute as pc

    unit = column.type.unit
    valid = pc.is_valid(column).to_numpy(zero_copy_only=False) if column.null_count else None
    times = int64s(pc.fill_null(column.cast(pa.int64()), 0))
    most = {"s": 1_000_000, "ms": 1000}.get(unit)
    if len(times) and (int(times.min()) < -(MOST_US // (most or 1)) or int(times.max()) > MOST_US // (most or 1)):
        # Nanoseconds cannot be so many
        worst = int(times[np.argmax(np.abs(times // 2))])
        raise SchemaError(
            f"column {name!r} has the time {worst} {unit}: at most 36,000 years from 1970 can be in windows"
        )
    if most:
        times = times * most
    return (times // 1000 if unit == "ns" else times), valid


def words_of(fields: Iterable[pa.Field]) -> list[str]:
    """Names and types of columns; the zone in which times are shown is none of the type."""
    import pyarrow as pa

    def kind(of: pa.DataType) -> str:
        return f"timestamp[{of.unit}, tz]" if pa.types.is_timestamp(of) and of.tz else str(of)

    return [f"{field.name} {kind(field.type)}" for field in fields]


def in_zones_of(fields: Iterable[pa.Field], table: pa.Table) -> pa.Table:
    """A table of state; its times are shown in the zones of these fields, and are the same moments."""
    import pyarrow as pa

    for field in fields:
        at = table.schema.get_field_index(field.name)
        if at >= 0 and pa.types.is_timestamp(field.type) and table.field(at).type != field.type:
            table = table.set_column(at, field.name, table.column(at).cast(field.type))
    return table


def key_numbers(columns: Sequence[Any], rows: int) -> NDArray[np.int64]:
    """A number for each row, from 0 on: the same for the same key; null is a key like others."""
    import pyarrow as pa

    numbers = np.zeros(rows, np.int64)
    most = 1
    for column in columns:
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        if pa.types.is_dictionary(column.type):  # one may have a value twice
            column = column.cast(column.type.value_type)
        coded = column.dictionary_encode(null_encoding="encode")
        values = len(coded.dictionary)
        if most * max(values, 1) > 1 << 40:
            distinct, numbers = np.unique(numbers, return_inverse=True)
            most = len(distinct)
        numbers = numbers * max(values, 1) + coded.indices.to_numpy(zero_copy_only=False)
        most *= max(values, 1)
    if most > max(4 * rows, 1):
        numbers = np.unique(numbers, return_inverse=True)[1]
    return numbers


class Hashes:
    """Spark's hashes of the keys of tables."""

    def __init__(self, keys: Sequence[str], groups: int) -> None:
        self.keys = list(keys)
        self._marks = HashPartitioner(self.keys, _HASHES) if self.keys else None
        self._groups = HashPartitioner(self.keys, groups) if self.keys else None
        self._wide = HashPartitioner(self.keys, MOST_HASH) if self.keys else None

    def _of(self, hasher: HashPartitioner | None, table: Any) -> NDArray[np.int32]:
        import pyarrow as pa

        if hasher is None:
            return np.zeros(table.num_rows, np.int32)
        keys = table.select(self.keys)
        if isinstance(keys, pa.RecordBatch):
            return hasher.partition(keys)
        batches = keys.to_batches()
        return np.concatenate([hasher.partition(b) for b in batches]) if batches else np.empty(0, np.int32)

    def groups(self, table: Any) -> NDArray[np.int32]:
        """The key group of each row."""
        return self._of(self._groups, table)

    def wide(self, table: Any) -> NDArray[np.int64]:
        """Hashes that few keys share, from 0 to 2^30."""
        return self._of(self._wide, table).astype(np.int64)

    def maybe(self, table: pa.Table, others: pa.Table) -> NDArray[np.bool_]:
        """Which rows may have the keys of one of the others: those that do, and a few more."""
        marks = np.zeros(_HASHES, bool)
        marks[self._of(self._marks, others)] = True
        chosen: NDArray[np.bool_] = marks[self._of(self._marks, table)]
        return chosen

    def among(self, table: pa.Table, others: pa.Table, *also: str) -> NDArray[np.bool_]:
        """Which rows have the keys, and the values of the columns `also`, of one of the others."""
        import pyarrow as pa

        maybe = np.flatnonzero(self.maybe(table, others))
        columns = [*also, *self.keys]
        both = pa.concat_tables([others.select(columns), table.select(columns).take(maybe)])
        numbers = key_numbers(both.columns, others.num_rows + len(maybe))
        marks = np.zeros(int(numbers.max(initial=0)) + 1, bool)
        marks[numbers[: others.num_rows]] = True
        chosen = np.zeros(table.num_rows, bool)
        chosen[maybe] = marks[numbers[others.num_rows :]]
        return chosen


def grouped(table: pa.Table, by: Sequence[str], aggregates: Sequence[Any]) -> pa.Table:
    """One row for each value of the columns `by`.

    Of many values pyarrow's table of groups is larger than the processor's caches: then it is faster by parts.
    """
    import pyarrow as pa

    # A task must not start threads; without them groups come in the order of their first row
    if table.num_rows < 8 * _PART_ROWS:
        return table.group_by(list(by), use_threads=False).aggregate(list(aggregates))
    table = table.combine_chunks()
    hashes = HashPartitioner(list(by), _HASHES).partition(table.select(list(by)).to_batches()[0])
    if 2 * len(np.unique(hashes[:_PART_ROWS])) < _PART_ROWS:
        return table.group_by(list(by), use_threads=False).aggregate(list(aggregates))
    parts = min(table.num_rows // _PART_ROWS, 256)
    part = (hashes % parts).astype(np.uint8)  # of which NumPy sorts by counting
    table = table.take(np.argsort(part, kind="stable"))
    ends = np.cumsum(np.bincount(part)).tolist()
    pieces = [table.slice(start, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    tables = [piece.group_by(list(by), use_threads=False).aggregate(list(aggregates)) for piece in pieces]
    return pa.concat_tables(tables)


def in_order(table: pa.Table, by: Sequence[str], stable: bool = True) -> pa.Table:
    """The rows by these columns; where they are of a type that has no order, as they stand.

    stable: rows that are equal in these stay in their order.
    """
    order = order_by(table, by, stable)
    return table if order is None else table.take(order)


def order_by(table: pa.Table, by: Sequence[str], stable: bool = True) -> NDArray[np.int64] | None:
    """The order of :func:`in_order`; None: as they stand."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if table.num_rows < 2:
        return None
    columns = [table.column(name) for name in by]
    if all(column.type == pa.int64() and not column.null_count for column in columns):
        return order_of([int64s(column) for column in columns], stable)
    try:
        order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in by])
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid):
        return None
    return np.asarray(order.to_numpy(), np.int64)


def key_values(columns: Sequence[Any], rows: int) -> NDArray[np.int64]:
    """As :func:`key_numbers`, but any numbers."""
    import pyarrow as pa

    if len(columns) == 1 and columns[0].type == pa.int64() and not columns[0].null_count:
        return int64s(columns[0])
    return key_numbers(columns, rows)


def sorted_by(table: pa.Table, values: NDArray[np.int64]) -> tuple[pa.Table, NDArray[np.int64]]:
    """The rows by these numbers, one for each; rows of the same stay in their order."""
    if len(values) < 2 or bool(np.all(values[1:] >= values[:-1])):
        return table, values
    order = np.argsort(values, kind="stable")
    return table.take(order), values[order]
