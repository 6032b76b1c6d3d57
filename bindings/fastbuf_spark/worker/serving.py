"""The partition that a function is called for, where one task serves several of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_partition: int | None = None


@contextlib.contextmanager
def serving(partition: int) -> Iterator[None]:
    """While the block runs, this task serves ``partition``."""
    global _partition
    before, _partition = _partition, partition
    try:
        yield
    finally:
        _partition = before


def partition() -> int:
    """The partition that is served now; of a task that serves one, its number in Spark; outside of Spark 0."""
    from pyspark import TaskContext

    if _partition is not None:
        return _partition
    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())
