"""Python stages that the tests ship to Spark's workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

COUNTS = "k long, n long, total long"
DOUBLED = "k long, id long"


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Drops every id that is a multiple of 5, doubles the rest; other columns than it gets."""
    for batch in batches:
        batch = batch.filter(pc.not_equal(pc.subtract(batch["id"], pc.multiply(pc.divide(batch["id"], 5), 5)), 0))
        yield pa.RecordBatch.from_arrays([batch["k"], pc.multiply(batch["id"], 2)], names=["k", "id"])


def counts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row for each key of the partition: wrong if a key were in two partitions, or a row lost or twice."""
    tables = [pa.Table.from_batches([b]) for b in batches]
    if tables:
        found = pa.concat_tables(tables).group_by("k").aggregate([("id", "count"), ("id", "sum")])
        yield from found.rename_columns(["k", "n", "total"]).combine_chunks().to_batches()


def lingering(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Takes its time to go when nobody reads it any more."""
    try:
        yield from batches
    finally:
        time.sleep(3)  # longer than the next run takes to form


def first_batch_only(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, 1)
        return


class Failing:
    """Fails on the batch after ``after`` batches, in all tasks or in one partition."""

    def __init__(self, words: str, after: int = 0, partition: int | None = None) -> None:
        self.words = words
        self.after = after
        self.partition = partition

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        for number, batch in enumerate(batches):
            if number >= self.after and self.partition in (None, context.partitionId()):
                raise ValueError(self.words)
            yield batch


class FailingOnce:
    """Fails in the first attempt of partition 0, after ``after`` batches."""

    def __init__(self, words: str, after: int) -> None:
        self.words = words
        self.after = after

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        fails = context.partitionId() == 0 and context.attemptNumber() == 0
        for number, batch in enumerate(batches):
            if fails and number == self.after:
                raise ValueError(self.words)
            yield batch


def with_batch_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A first stage that says of each row how many came in its batch."""
    for batch in batches:
        rows = pa.array([batch.num_rows] * batch.num_rows, pa.int64())
        yield pa.RecordBatch.from_arrays([rows, batch["id"]], names=["rows", "id"])


def largest(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The largest of the column ``rows``."""
    import pyarrow.compute as pc

    found = max(pc.max(batch["rows"]).as_py() for batch in batches)
    yield pa.record_batch({"rows": pa.array([found], pa.int64())})


def never_ending(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task that only a kill ends."""
    yield from batches
    while True:
        time.sleep(0.1)  # it is meant to hang
