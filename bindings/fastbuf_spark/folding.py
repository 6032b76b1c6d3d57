"""Many input partitions in few producers' tasks.

A task costs Spark and Python some 15 ms, whatever it reads, and consumers hold part of the slots: 400 inputs of a few
rows took half a minute.  So where there are many more than slots, Spark's ``coalesce`` has each task read several of
them, one after the other.  The function before the shuffle must not see that: it is called once for each partition, as
Spark calls it.  A column that says which partition a row is of cuts the batches; partitions without rows leave no trace
there, so the producer that reads last is told which they are, and calls the function for them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

MANY = 8  #: input partitions for each slot from which on they are folded
TASKS = 4  #: producers for each slot then, so that a long one leaves the others something to do
MARK = "__fastbuf_partition"

BatchFunction = Callable[[Iterator["pa.RecordBatch"]], Iterable["pa.RecordBatch"]]


@dataclass(frozen=True)
class Fold:
    """How many input partitions there are, and how many tasks read them."""

    partitions: int
    tasks: int


def fold(partitions: int | None, slots: int) -> Fold | None:
    """Whether, and how, to fold so many partitions for so many slots."""
    slots = max(1, slots)
    if partitions is None or partitions <= MANY * slots:
        return None
    return Fold(partitions, TASKS * slots)


def folded(df: DataFrame, how: Fold, marked: bool) -> DataFrame:
    """The DataFrame in fewer partitions; ``marked``: with one more column, the partition that each row was in."""
    if marked:
        from pyspark.sql import functions as F

        df = df.select("*", F.spark_partition_id().alias(MARK))
    return df.coalesce(how.tasks)


def partitions_of(df: Any) -> int | None:
    """Partitions of a DataFrame, if they can be had without running anything.

    With a shuffle in the plan and adaptive execution on, asking would run the stages below it, and Spark folds small
    partitions by itself.
    """
    plan = df._jdf.queryExecution().executedPlan()
    if "AdaptiveSparkPlan" in plan.getClass().getSimpleName():
        return None
    count = int(plan.outputPartitioning().numPartitions())
    return count if count > 0 else int(df._jdf.queryExecution().toRdd().getNumPartitions())


def each_partition(
    source: Iterable[pa.RecordBatch], before: BatchFunction, empty: Callable[[list[int]], list[int]]
) -> Iterator[pa.RecordBatch]:
    """What ``before`` gives for each partition that was folded into ``source``.

    Parameters
    ----------
    source
        Batches with the mark as their last column; a partition's rows come together.
    empty
        From the partitions that were seen to those without rows that this task is to see to.
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
