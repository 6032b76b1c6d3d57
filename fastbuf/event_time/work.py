"""What is done with the rows of a window: aggregates, a function of two rows, or one of all rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastbuf.errors import RecordError, SchemaError
from fastbuf.event_time.aggregates import COUNT, Aggregates
from fastbuf.event_time.arrow_rows import int64s, key_numbers
from fastbuf.event_time.vectors import Objects, Vector, vector
from fastbuf.event_time.watermarks import MAX, MIN
from fastbuf.event_time.windows import Window

if TYPE_CHECKING:
    import pyarrow as pa


class Work(Protocol):
    """State of windows as rows of a table, and results from it.

    Attributes
    ----------
    merges
        Whether several rows of a key and window become one.
    columns
        Columns of the input that it needs; in tables of the state column ``x`` is ``rx``.
    state
        Schema of the state behind ``first``, without the columns that it is grouped by.
    """

    merges: bool
    columns: list[str]
    state: pa.Schema

    def bind(self, schema: pa.Schema, keys: Sequence[str], time: str, counts: bool) -> pa.Schema:
        """Take the input's schema, keys and time, and whether rows are counted; returns the schema of the results."""

    def first(self, table: pa.Table, by: Sequence[str]) -> pa.Table:
        """State of rows."""

    def again(self, table: pa.Table, by: Sequence[str]) -> pa.Table:
        """State of rows of state."""

    def vectors(self) -> list[Vector]:
        """The columns of `state` as arrays, if it merges."""


class Reduction:
    """A function of two rows, by window and key: see :func:`reduce`."""

    merges = True

    def __init__(self, function: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]) -> None:
        self.function = function

    def bind(self, schema: pa.Schema, keys: Sequence[str], time: str, counts: bool) -> pa.Schema:
        import pyarrow as pa

        self.counts = counts
        self.columns = [name for name in schema.names if name not in keys and name != time]
        if not self.columns:
            raise SchemaError(f"reduce has no columns but the keys and the time, of {schema.names}")
        result = pa.schema([schema.field(name) for name in self.columns])
        fields = [pa.field(COUNT, pa.int64())] if counts else []
        self.state = pa.schema([*fields, *(pa.field(f"r{field.name}", field.type) for field in result)])
        self._is_nested = any(pa.types.is_nested(field.type) for field in result)
        return result

    def first(self, table: pa.Table, by: Sequence[str]) -> pa.Table:
        return self.again(counted(table) if self.counts else table, by)

    def again(self, table: pa.Table, by: Sequence[str]) -> pa.Table:
        import pyarrow as pa

        numbers = key_numbers([table.column(name) for name in by], table.num_rows)
        firsts = np.unique(numbers, return_index=True)[1]
        if len(firsts) == table.num_rows:
            return table.select([*by, *self.state.names])
        rows = self._dicts(table)
        by_key: dict[int, dict[str, Any]] = {}
        for number, row in zip(numbers.tolist(), rows, strict=True):
            by_key[number] = self.function(by_key[number], row) if number in by_key else row
        firsts.sort()
        states = table.select(list(by)).take(firsts)
        if self.counts:
            counts = np.bincount(numbers, int64s(table.column(COUNT)))[numbers[firsts]].astype(np.int64)
            states = states.append_column(COUNT, pa.array(counts))
        dicts = [by_key[n] for n in numbers[firsts].tolist()]
        for name, column in zip(self.columns, self._arrays(dicts), strict=True):
            states = states.append_column(f"r{name}", column)
        return states

    def results(self, table: pa.Table) -> list[pa.ChunkedArray]:
        return [table.column(f"r{name}") for name in self.columns]

    def _dicts(self, table: pa.Table) -> list[dict[str, Any]]:
        rows = table.select([f"r{name}" for name in self.columns]).rename_columns(self.columns).to_pylist()
        return list(rows)

    def _arrays(self, rows: list[dict[str, Any]]) -> list[pa.Array]:
        import pyarrow as pa

        kinds = [self.state.field(f"r{name}").type for name in self.columns]
        try:
            return [pa.array([r[name] for r in rows], kind) for name, kind in zip(self.columns, kinds, strict=True)]
        except (KeyError, TypeError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise RecordError(
                f"reduce must return a dict with {self.columns} of the input's types: {error!r}"
            ) from error

    def vectors(self) -> list[Vector]:
        counts = [vector(COUNT, self.state.field(COUNT).type, "sum")] if self.counts else []
        names = [f"r{name}" for name in self.columns]
        return [*counts, Objects(names, self._of_copies, self._dicts, self._arrays)]

    def _of_copies(self, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        """A function may write into what it is given, which is used again for other windows."""
        copies = copy.deepcopy if self._is_nested else dict
        return self.function(copies(one), copies(other))


class Application:
    """A function of all rows, by window and key: see :func:`apply_in_arrow`.  Rows are kept until the window ends."""

    merges = False

    def __init__(self, function: Callable[[tuple[Any, ...], Window, pa.Table], pa.Table], schema: pa.Schema) -> None:
        self.function = function
        self.schema = schema

    def bind(self, schema: pa.Schema, keys: Sequence[str], time: str, counts: bool) -> pa.Schema:
        import pyarrow as pa

        self.counts = counts
        self.columns = list(schema.names)
        self._input = schema
        fields = [pa.field(COUNT, pa.int64())] if counts else []
        self.state = pa.schema([*fields, *(pa.field(f"r{field.name}", field.type) for field in schema)])
        return self.schema

    def first(self, table: pa.Table, by: Sequence[str]) -> pa.Table:
        return (counted(table) if self.counts else table).select([*by, *self.state.names])

    def again(self, table: pa.Table, by: Sequence[str]) -> pa.Table:
        return table

    def calls(
        self, table: pa.Table, keys: Sequence[str], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> Iterator[pa.Table]:
        """One call for each run of rows of the same key and window."""
        import pyarrow as pa

        if not table.num_rows:
            return
        table = table.combine_chunks()
        numbers = key_numbers([table.column(name) for name in keys], table.num_rows)
        new = np.ones(table.num_rows, bool)
        new[1:] = np.any([np.diff(values) != 0 for values in (numbers, starts, ends)], axis=0)
        rows = table.select([f"r{name}" for name in self.columns]).rename_columns(self.columns).cast(self._input)
        firsts = np.flatnonzero(new).tolist()
        for first, end in zip(firsts, [*firsts[1:], table.num_rows], strict=True):
            key = tuple(table.column(name)[first] for name in keys)
            window = Window(*(None if t in (MIN, MAX) else int(t) for t in (starts[first], ends[first])))
            result = self.function(key, window, rows.slice(first, end - first))
            if not isinstance(result, pa.Table) or result.schema.names != self.schema.names:
                has = f"a table of {result.schema.names}" if isinstance(result, pa.Table) else type(result).__name__
                raise RecordError(f"apply_in_arrow must return a table of {self.schema.names}; it returned {has}")
            yield result if result.schema.equals(self.schema) else result.cast(self.schema)


def counted(table: pa.Table) -> pa.Table:
    """With a column that counts each row."""
    import pyarrow as pa

    return table.append_column(COUNT, pa.array(np.ones(table.num_rows, np.int64)))


def agg_arrow(aggregates: Iterable[tuple[Any, str]]) -> Aggregates:
    """Aggregates as (column, function); of all rows ``("", "count_all")``.

    Functions: sum, product, min, max, any, all, count, mean, count_all.  Results are named as ``amount_sum``.
    """
    return Aggregates(aggregates)


def reduce(function: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]) -> Reduction:
    """A function of two rows, as dicts without keys and time, that returns one such; rows in the order they came."""
    return Reduction(function)


def apply_in_arrow(function: Callable[[tuple[Any, ...], Window, pa.Table], pa.Table], schema: pa.Schema) -> Application:
    """A function of key, window and all its rows, that returns a table of that schema.

    The key is a tuple of Arrow's scalars; rows are in the order they came.
    """
    return Application(function, schema)
