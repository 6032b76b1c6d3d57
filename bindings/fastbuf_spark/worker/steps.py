"""Functions over record batches that implement steps of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf_spark import pyspark_private
from fastbuf_spark.results import ANY_ITERABLE, each
from fastbuf_spark.worker.chains import Chain
from fastbuf_spark.worker.groups import Limits
from fastbuf_spark.worker.pandas_verbs import PandasRules
from fastbuf_spark.worker.runs import in_order

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa

MANY = 1 << 30  #: divisor of a row's hash that keeps the most bits
GOLDEN = 0x9E3779B97F4A7C15  #: constant of splitmix64 (Steele, Lea, Flood 2014), like the multipliers below
MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Filter:
    """Keeps the rows for which a ``pyarrow.compute`` expression is true."""

    expression: Any

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            yield from pa.Table.from_batches([batch]).filter(self.expression).to_batches()


@dataclass(frozen=True)
class Select:
    """Keeps columns, and computes others by ``pyarrow.compute`` expressions; ``shown``: the schema of both."""

    columns: tuple[str, ...]
    expressions: tuple[tuple[str, Any], ...]
    shown: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        wanted = {name: pc.field(name) for name in self.columns} | dict(self.expressions)
        for batch in batches:
            if not self.expressions:
                yield batch.select(list(self.columns))
                continue
            scanner = ds.dataset(pa.Table.from_batches([batch])).scanner(columns=wanted, use_threads=False)
            yield from scanner.to_table().cast(self.shown).to_batches()


@dataclass(frozen=True)
class PandasMap:
    """Calls a function over an iterator of pandas frames with Spark's own conversions, like ``mapInPandas``.

    ``at_once``: each frame is given on before the next is asked for; else small ones are converted together.
    """

    func: Callable[[Iterator[pd.DataFrame]], Iterable[pd.DataFrame]]
    rules: PandasRules
    at_once: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pandas as pd

        from fastbuf_spark.worker.pandas_verbs import Results

        results = Results(self.rules, self.func, whole=False)
        frames = self.func(self._frames(batches))
        for frame in each(self.func, frames, pd.DataFrame, self.rules.several, ANY_ITERABLE):
            for table in results.add(frame):
                yield from table.to_batches()
            if self.at_once:
                for table in results.rest():
                    yield from table.to_batches()
        for table in results.rest():
            yield from table.to_batches()

    def _frames(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            frame = pyspark_private.to_frame(batch, self.rules.zone, self.rules.int_extension)
            # The memory is Arrow's.  While a second frame shares it, pandas copies it before the function writes to it
            twin = frame.copy(deep=False)
            yield frame
            del frame, twin


@dataclass(frozen=True)
class Copies:
    """Copies each batch once for each value of an additional column; rows with the same value go to one partition."""

    values: tuple[int, ...]
    column: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for value in self.values:
                added = pa.repeat(pa.scalar(value, pa.int32()), batch.num_rows)
                yield _with(batch, added, self.column)


@dataclass(frozen=True)
class Drawn:
    """Adds a column with a random number for each row, from the seed, the split, and the row's number in the split.

    ``before`` are the functions called before, for one split after the other.
    """

    before: Chain
    seed: int
    column: str

    def __call__(self, source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np

        requests = [batch.slice(i, 1) for batch in source for i in range(batch.num_rows)]
        for request in requests:
            split, row = int(request.column(0)[0].as_py()), 0
            base = splitmix(np.array([self.seed & MASK], np.uint64) ^ np.uint64(split * GOLDEN & MASK))[0]
            for batch in self.before(iter([request])):
                numbers = np.arange(row, row + batch.num_rows, dtype=np.uint64) * np.uint64(GOLDEN) + base
                row += batch.num_rows
                yield _with(batch, _longs(splitmix(numbers)), self.column)


@dataclass(frozen=True)
class Hashed:
    """Adds a column with a random number for each row, from the seed and the row's values; the order does not matter.

    Rows with the same values get the same number, so they stay together.
    """

    seed: int
    column: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np

        from fastbuf.serializers.partition import HashPartitioner

        for batch in batches:
            keys = list(range(batch.num_columns))
            # Two hashes of 30 bits; the first is the seed of the second
            listed = _maps_as_lists(batch)
            bits = [HashPartitioner(k, MANY).partition(listed).astype(np.uint64) for k in (keys, keys + keys)]
            numbers = (bits[0] << np.uint64(30)) | bits[1]
            numbers ^= splitmix(np.array([self.seed & MASK], np.uint64))[0]
            yield _with(batch, _longs(splitmix(numbers)), self.column)


def _maps_as_lists(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Spark cannot hash maps, but it can hash lists of entries."""
    import pyarrow as pa

    kinds = [_listed(kind) for kind in batch.schema.types]
    if kinds == batch.schema.types:
        return batch
    columns = [column if column.type == kind else column.cast(kind) for column, kind in zip(batch, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _listed(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_map(kind):
        return pa.list_(pa.struct([("key", _listed(kind.key_type)), ("value", _listed(kind.item_type))]))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _listed(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_listed(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_listed(kind.value_type))
    return kind


def splitmix(numbers: np.ndarray) -> np.ndarray:
    """Mixes 64-bit numbers: the last steps of splitmix64."""
    import numpy as np

    mixed = numbers + np.uint64(GOLDEN)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def _longs(numbers: np.ndarray) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    return pa.array(numbers.view(np.int64))


def _with(batch: pa.RecordBatch, column: pa.Array, name: str) -> pa.RecordBatch:
    import pyarrow as pa

    schema = batch.schema.append(pa.field(name, column.type))
    return pa.RecordBatch.from_arrays([*batch.columns, column], schema=schema)


@dataclass(frozen=True)
class WithoutLast:
    """Removes the last column; with ``limits`` it first sorts the rows by it, spilling to files if necessary."""

    limits: Limits | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        limits = self.limits
        if limits is not None:
            batches = _sorted_by_last(iter(batches), limits)
        for batch in batches:
            schema = pa.schema(list(batch.schema)[:-1])
            yield pa.RecordBatch.from_arrays(batch.columns[:-1], schema=schema)


def _sorted_by_last(batches: Iterator[pa.RecordBatch], limits: Limits) -> Iterator[pa.RecordBatch]:
    first = next(batches, None)
    if first is None:
        return

    def all_of_them() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    for batch in in_order(all_of_them(), (first.num_columns - 1,), limits.memory_bytes, limits.directory):
        for start in range(0, batch.num_rows, limits.batch_rows):
            yield batch.slice(start, limits.batch_rows)


def count_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row: the number of rows."""
    import pyarrow as pa

    yield pa.record_batch({"rows": pa.array([sum(batch.num_rows for batch in batches)], pa.int64())})
