"""Partitions of rows, other than by hash: by range, in turn, at random, or by the user's function.

Each partitioner is made for a number of partitions and returns an int32 array of shape (rows,) for a batch (Arrow's, or
a NumPy structured array), which :class:`BatchScatter` takes. ``fb.custom(partitioner)`` makes a channel selector of it;
for ranges use ``fb.range_by``.  Ranges need pyarrow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbuf.checks import flag, whole
from fastbuf.errors import RecordError, SchemaError
from fastbuf.serializers.frames import batch_of, is_stream

Ids = NDArray[np.int32]
SAMPLE_PER_PARTITION = 100  #: rows per partition from which the bounds of ranges are chosen; Spark's default


class BatchPartitioner:
    """Base of the partitioners of batches.

    Parameters
    ----------
    partitions : int
        From 1 to 2**31 - 1.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions = whole("partitions", partitions, 1)

    def partition(self, batch: Any) -> Ids:
        """Partition of each row of a batch: int32, of shape (rows,)."""
        raise NotImplementedError

    def __call__(self, batch: Any, n: int) -> Ids:
        """The signature that ``fb.custom`` calls."""
        if n != self.partitions:
            raise ValueError(f"a partitioner into {self.partitions} partitions was given to {n} consumers")
        return self.partition(batch)


class RoundRobinPartitioner(BatchPartitioner):
    """Each row to the next partition, continued from batch to batch.

    Parameters
    ----------
    partitions : int
    start : int
        Partition of the first row. Spark starts each task at another one, so that short tasks do not all fill partition
        0.
    """

    def __init__(self, partitions: int, start: int = 0) -> None:
        super().__init__(partitions)
        self._next = whole("start", start, 0) % self.partitions

    def partition(self, batch: Any) -> Ids:
        rows = _rows(batch)
        ids = (np.arange(self._next, self._next + rows, dtype=np.int64) % self.partitions).astype(np.int32)
        self._next = (self._next + rows) % self.partitions
        return ids


class RandomPartitioner(BatchPartitioner):
    """Each row to a random partition, all equally likely.

    Parameters
    ----------
    partitions : int
    seed : int, optional
        The same seed gives the same partitions for the same batches; None: different ones each time.
    """

    def __init__(self, partitions: int, seed: int | None = None) -> None:
        super().__init__(partitions)
        self._random = np.random.default_rng(None if seed is None else whole("seed", seed, 0, (1 << 64) - 1))

    def partition(self, batch: Any) -> Ids:
        return self._random.integers(0, self.partitions, _rows(batch), dtype=np.int32)


class CustomPartitioner(BatchPartitioner):
    """By a function of the user, with checks.

    Parameters
    ----------
    func : callable
        Takes a batch and the number of partitions; returns one integer per row.
    partitions : int
    """

    def __init__(self, func: Callable[[Any, int], Any], partitions: int) -> None:
        super().__init__(partitions)
        self._func = func

    def partition(self, batch: Any) -> Ids:
        ids = np.asarray(self._func(batch, self.partitions))
        rows = _rows(batch)
        if ids.shape != (rows,) or (rows and ids.dtype.kind not in "iub"):
            raise RecordError(
                f"the partition function gave {ids.dtype} of shape {ids.shape}: one integer for each of "
                f"{rows:,} rows is needed"
            )
        bad = np.flatnonzero((ids < 0) | (ids >= self.partitions))
        if len(bad):
            raise RecordError(f"the partition function gave row {bad[0]} {ids[bad[0]]} of {self.partitions} partitions")
        return ids.astype(np.int32)


class RangePartitioner(BatchPartitioner):
    """By ranges of key columns: every key of a partition is above the keys of the partitions before it.

    Parameters
    ----------
    keys : str, or sequence of str
        Names of the key columns, the most significant first.
    bounds : pyarrow.RecordBatch or Table, pandas or polars DataFrame, or NumPy structured array
        The key columns of the last row of every partition but the last one, ascending: partitions - 1 rows.
    ascending : bool
        False: the largest keys go to partition 0.

    Notes
    -----
    A row goes to the first partition whose bound is not less than its keys (Spark's rule). Nulls are less than
    everything, NaN is greater than every number. A row costs a binary search; numbers, dates and timestamps are
    compared directly, other types by their rank among the bounds and the batch.
    """

    def __init__(self, keys: str | Sequence[str], bounds: Any, *, ascending: bool = True) -> None:
        bounds = _arrow(bounds)
        super().__init__(bounds.num_rows + 1)
        self.keys = (keys,) if isinstance(keys, str) else tuple(keys)
        self.ascending = flag("ascending", ascending)
        if not self.keys:
            raise ValueError("at least one key column is needed")
        self.bounds = _columns(bounds, self.keys)
        if np.any(np.diff(_places(_columns(bounds, self.keys), self.bounds)) < 0):
            raise ValueError("the bounds are not in ascending order")
        self._marks: list[tuple[Any, ...]] | None = None
        self._widths = [_FLOATS.get(str(column.type)) for column in self.bounds]

    @classmethod
    def from_sample(
        cls, sample: Any, keys: str | Sequence[str], partitions: int, *, ascending: bool = True, seed: int = 0
    ) -> RangePartitioner:
        """Bounds that divide a sample evenly.

        Parameters
        ----------
        sample : pyarrow.RecordBatch or Table, pandas or polars DataFrame, NumPy structured array, or iterable of these
            Rows of the data, or all of them: at most 100 per partition are drawn.
        keys, ascending
            See the class.
        partitions : int
            Number of partitions; there are fewer if the sample has fewer different keys.
        seed : int
            Seed of the draw.

        Raises
        ------
        SchemaError
            There is no such column, or its type has no order.
        RecordError
            The sample is empty.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        names = (keys,) if isinstance(keys, str) else tuple(keys)
        partitions = whole("partitions", partitions, 1)
        table = sample if isinstance(sample, pa.Table) else pa.Table.from_batches(_batches(sample))
        missing = [name for name in names if table.schema.names.count(name) != 1]
        if missing:
            raise SchemaError(f"no column, or more than one, {missing[0]!r}: the columns are {table.schema.names}")
        table = table.select(list(names)).combine_chunks()
        if not table.num_rows:
            raise RecordError("the sample has no rows: bounds cannot be chosen")
        most = SAMPLE_PER_PARTITION * partitions
        if table.num_rows > most:
            table = table.take(np.sort(np.random.default_rng(seed).choice(table.num_rows, most, replace=False)))
        columns = [_whole(table.column(name)) for name in names]
        order = np.lexsort([code for column in reversed(columns) for code in reversed(_codes(column, column)[0])])
        cuts = order[np.arange(1, partitions) * len(order) // partitions]
        batch = pa.RecordBatch.from_arrays([pc.take(column, pa.array(cuts)) for column in columns], names=list(names))
        # A key so frequent that it spans several cuts bounds one partition only.
        places = _places(_columns(batch, names), _columns(batch, names))
        return cls(names, batch.take(pa.array(np.unique(places, return_index=True)[1])), ascending=ascending)

    def partition(self, batch: Any) -> Ids:
        ids = _places(_columns(_arrow(batch), self.keys), self.bounds)
        return ids if self.ascending else (self.partitions - 1 - ids).astype(np.int32)

    def place(self, keys: Sequence[Any]) -> int:
        """Partition of one record, the same as :meth:`partition` gives its row.

        Parameters
        ----------
        keys : sequence
            Python values of its key fields.

        Raises
        ------
        TypeError
            A value cannot be compared with the bounds.
        """
        if self._marks is None:
            columns = (map(_mark, _values(column)) for column in self.bounds)
            self._marks = list(zip(*columns, strict=True))
        pairs = zip(keys, self._widths, strict=True)
        marks = [_mark(key if width is None or key is None else width(key)) for key, width in pairs]
        partition = bisect_left(self._marks, tuple(marks))
        return partition if self.ascending else self.partitions - 1 - partition


#: Python's floats are rounded to the type of their column before they are compared.
_FLOATS = {"float": np.float32, "halffloat": np.float16}


def _mark(value: Any) -> tuple[Any, ...]:
    # In the order of values: None first, NaN last. A tuple is a value with several parts.
    parts = value if isinstance(value, tuple) else (value,)
    if parts[0] is None:
        return (0,)
    return (2,) if parts[0] != parts[0] else (1, *parts)


def _values(column: Any) -> list[Any]:
    """Python values of a column; nanoseconds, which Python lacks, are a second part."""
    import pyarrow as pa

    if getattr(column.type, "unit", "") != "ns":
        return list(column.to_pylist())
    fine = np.asarray(column.view(pa.int64()).fill_null(0))
    kind = pa.duration("us")
    if pa.types.is_timestamp(column.type):
        kind = pa.timestamp("us", column.type.tz)
    elif pa.types.is_time(column.type):
        kind = pa.time64("us")
    whole = pa.array(fine // 1000, pa.int64(), mask=~np.asarray(column.is_valid())).view(kind).to_pylist()
    return [(value, rest) if rest else value for value, rest in zip(whole, (fine % 1000).tolist(), strict=True)]


def _rows(batch: Any) -> int:
    return batch.num_rows if hasattr(batch, "num_rows") else len(batch)


def _arrow(batch: Any) -> Any:
    """A batch as an Arrow batch, with its names and columns."""
    if isinstance(batch, np.ndarray):
        from fastbuf.serializers.columnar import from_numpy

        return from_numpy(batch)
    if hasattr(batch, "schema") and hasattr(batch, "column"):
        return batch
    if is_stream(batch):
        return batch_of(batch)
    import pyarrow as pa

    return pa.record_batch(batch)


def _batches(sample: Any) -> list[Any]:
    if isinstance(sample, np.ndarray) or hasattr(sample, "__arrow_c_array__") or is_stream(sample):
        return [_arrow(sample)]
    return [_arrow(batch) for batch in sample]


def _whole(column: Any) -> Any:
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def _columns(batch: Any, keys: Iterable[str]) -> list[Any]:
    names = batch.schema.names
    for key in keys:
        if names.count(key) != 1:
            raise SchemaError(f"the batch has {names.count(key)} columns named {key!r}; its columns are {names}")
    return [batch.column(names.index(key)) for key in keys]


def _codes(column: Any, bounds: Any) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Arrays that sort like the column's values, and the same for the bounds: whether a value is valid, and it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type != bounds.type:
        raise SchemaError(f"a key column is {column.type}, its bounds are {bounds.type}: cast one of them")
    is_ = pa.types
    kind = column.type
    if is_.is_temporal(kind) and not is_.is_interval(kind):
        wide = pa.int32() if kind.bit_width == 32 else pa.int64()
        column, bounds = column.view(wide), bounds.view(wide)
    elif not (is_.is_integer(kind) or is_.is_floating(kind) or is_.is_boolean(kind)):
        try:
            both = pa.concat_arrays([column, bounds])
            ranks = pc.rank(both, sort_keys="ascending", tiebreaker="dense")
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise SchemaError(f"a key column is {kind}, which has no order: {error}") from error
        codes = ranks.to_numpy().astype(np.int64)
        valid = np.asarray(both.is_valid())
        codes[~valid] = 0
        split = len(column)
        return [valid[:split], codes[:split]], [valid[split:], codes[split:]]
    return _numbers(column), _numbers(bounds)


def _numbers(column: Any) -> list[NDArray[Any]]:
    valid = np.asarray(column.is_valid())
    values = column if column.null_count == 0 else column.fill_null(False if column.type == "bool" else 0)
    return [valid, values.to_numpy(zero_copy_only=False)]


def _places(columns: list[Any], bounds: list[Any]) -> Ids:
    """How many bounds are less than each row: one binary search for all rows."""
    rows, n = len(columns[0]), len(bounds[0])
    pairs = [
        pair for column, bound in zip(columns, bounds, strict=True) for pair in zip(*_codes(column, bound), strict=True)
    ]
    if len(columns) == 1 and bool(pairs[0][0].all()) and bool(pairs[0][1].all()):
        return np.searchsorted(pairs[1][1], pairs[1][0], side="left").astype(np.int32)
    low, high = np.zeros(rows, np.int64), np.full(rows, n, np.int64)
    for _ in range(n.bit_length()):
        middle = np.minimum((low + high) // 2, max(n - 1, 0))
        less, same = np.zeros(rows, bool), np.ones(rows, bool)
        for values, bound in pairs:
            other = bound[middle]
            below, equal = other < values, other == values
            if values.dtype.kind == "f":
                nan, other_nan = np.isnan(values), np.isnan(other)
                below, equal = below | (nan & ~other_nan), equal | (nan & other_nan)
            less |= same & below
            same &= equal
        open_ = low < high
        low = np.where(open_ & less, middle + 1, low)
        high = np.where(open_ & ~less, middle, high)
    return low.astype(np.int32)
