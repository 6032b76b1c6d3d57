"""Signs of life for Spark, which may end a worker that writes nothing to it for long (``killOnIdleTimeout``).

A task whose rows go into files, or to other tasks, would have nothing to write before its end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastbuf_spark.pyspark_private import flush_output

if TYPE_CHECKING:
    import pyarrow as pa

EVERY_S = 5.0  #: Spark's limit is in whole seconds, and minutes in practice


class GivesSigns:
    """The last function of a task, which gives signs of life: its batches without rows go to Spark, too."""


class Signs:
    """Gives a batch without rows when nothing has gone to Spark for ``EVERY_S``.

    Parameters
    ----------
    schema
        Of what the task gives Spark.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._due = time.monotonic() + EVERY_S

    def due(self) -> Iterator[pa.RecordBatch]:
        """To be called between two batches of the task's input."""
        if time.monotonic() >= self._due:
            import pyarrow as pa

            yield pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in self._schema], schema=self._schema)
            flush_output()  # the batch is in the worker's buffer by now
            self._due = time.monotonic() + EVERY_S
