"""Folding: reading many small input partitions in few tasks.

A task costs Spark and Python some 8 ms, whatever it reads, and consumers hold part of the slots: 400 inputs of a few
rows took half a minute.  So if there are many more partitions than slots, Spark's ``coalesce`` makes each task read
several of them, one after the other.  The function before the shuffle must not notice: it is still called once for each
partition.  For this a column with the partition's number is added, and batches are split by it.  Partitions without
rows do not appear there; the producer that reads last gets their numbers, and calls the function for them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from fastbuf_spark.schema import BatchFunction

MANY = 8  #: input is folded if it has more partitions per slot than this
TASKS = 4  #: producer tasks per slot after folding; several, so that one long task does not delay everything
MARK = "__fastbuf_partition"


@dataclass(frozen=True)
class Fold:
    """The number of input partitions, and the number of tasks that read them."""

    partitions: int
    tasks: int


def fold(partitions: int | None, slots: int) -> Fold | None:
    """How to fold that many partitions for that many slots; None: do not fold."""
    slots = max(1, slots)
    if partitions is None or partitions <= MANY * slots:
        return None
    return Fold(partitions, TASKS * slots)


def folded(df: DataFrame, how: Fold, marked: bool) -> DataFrame:
    """The DataFrame in fewer partitions; ``marked``: with an additional column for the original partition."""
    if marked:
        from pyspark.sql import functions as F

        longest = max(map(len, df.columns))
        df = df.select("*", F.spark_partition_id().alias(MARK.ljust(longest + 1, "_")))  # longer than each name
    return df.coalesce(how.tasks)


def each_partition(
    source: Iterable[pa.RecordBatch], before: BatchFunction, empty: Callable[[list[int]], list[int]]
) -> Iterator[pa.RecordBatch]:
    """Call ``before`` for each partition that was folded into ``source``, and return its output.

    Parameters
    ----------
    source
        Batches with the partition's number as their last column; the rows of a partition are consecutive.
    empty
        Takes the partitions that had rows; returns the empty partitions that this task must process.
    """
    seen: list[int] = []
    for partition, rows in groupby(pieces(source), key=lambda piece: piece[0]):
        seen.append(partition)
        yield from before(batch for _, batch in rows)
    for _ in empty(seen):
        yield from before(iter(()))


def pieces(source: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows in a row that have the same number in the last column: the number, and the rows without that column."""
    import numpy as np
    import pyarrow as pa

    for batch in source:
        if not batch.num_rows:
            continue
        marks = batch.column(batch.num_columns - 1).to_numpy()
        rest = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=pa.schema(list(batch.schema)[:-1]))
        starts = [0, *(np.flatnonzero(np.diff(marks)) + 1).tolist()]
        for start, stop in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            yield int(marks[start]), rest.slice(start, stop - start)
