"""Two inputs of one exchange: each has functions of its own before the shuffle, and the rows of both travel together.

Spark's union of the two inputs has their columns in common places, and the side of each row as its last column.  An
input partition without rows has no side, so this is for inputs that have rows in every partition, as those have whose
rows say what a task is to read; and for inputs without functions, for which nothing is to be called then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from fastbuf_spark.folding import pieces
from fastbuf_spark.results import about
from fastbuf_spark.schema import conform, within_precision

if TYPE_CHECKING:
    import pyarrow as pa

    from fastbuf_spark.schema import BatchFunction


@dataclass(frozen=True)
class Input:
    """One of the two.

    Attributes
    ----------
    columns
        Where its columns are among those of the union.
    schema
        Of these columns.
    func
        Called with its rows; ``iter``: they travel as they are.
    output
        Schema of what ``func`` gives.
    places
        For each column that travels, the position in ``output``; None: null.
    """

    columns: tuple[int, ...]
    schema: pa.Schema
    func: BatchFunction
    output: pa.Schema
    places: tuple[int | None, ...]

    def batches(self, union: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What the function gives for these rows of the union."""
        import pyarrow as pa

        rows = (
            pa.RecordBatch.from_arrays([batch.column(i) for i in self.columns], schema=self.schema) for batch in union
        )
        whose = about(self.func)
        for batch in self.func(rows):
            # A batch without rows may also lack columns, as in Spark
            if batch.num_rows:
                yield within_precision(conform(batch, self.output, whose), whose)


@dataclass(frozen=True)
class TwoInputs:
    """The function before a shuffle of the union of two inputs.

    Attributes
    ----------
    schema
        Of what travels; the last column is true for rows of the right input.
    """

    left: Input
    right: Input
    schema: pa.Schema

    def __call__(self, union: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        inputs = (self.left, self.right)
        # Spark unites two inputs of a single partition in one partition: then the left one's rows come first
        for side, run in groupby(pieces(union), key=itemgetter(0)):
            here, is_right = inputs[side], pa.scalar(bool(side))
            for batch in here.batches(batch for _, batch in run):
                rows = batch.num_rows
                columns = [
                    pa.nulls(rows, field.type) if at is None else batch.column(at)
                    for at, field in zip(here.places, self.schema, strict=False)
                ]
                yield pa.RecordBatch.from_arrays([*columns, pa.repeat(is_right, rows)], schema=self.schema)
