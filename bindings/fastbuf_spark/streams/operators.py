"""What an operator with keyed state is, for the task that runs it, and where a row's key group is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


class KeyedOperator(Protocol):
    """Rows of a task's keys in, rows out; its state is in key groups.  Used by the task's thread alone."""

    def open(self, key_groups: int) -> None:
        """Called before all else."""

    def rows(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """What some rows give."""

    def watermark(self, time_ms: int) -> Iterable[pa.RecordBatch]:
        """What becomes due when no older rows are expected any more."""

    def processing_time(self, now_ms: int) -> Iterable[pa.RecordBatch]:
        """What is due by the clock; called some times in a second."""

    def end(self) -> Iterable[pa.RecordBatch]:
        """What the end of a bounded input gives."""

    def freeze(self, more: frozenset[int]) -> Mapping[int, Callable[[], bytes]]:
        """The key groups that changed since the last call, and ``more``: each with what encodes it, in another thread.

        An empty text of bytes: nothing is left in this group.
        """

    def thaw(self) -> None:
        """All of them are encoded."""

    def restore(self, group: int, data: bytes) -> None:
        """The state of a group, as it was encoded."""

    def figures(self) -> dict[str, Any]:
        """What is seen of it."""

    def close(self) -> None:
        """The task ends."""


class KeyGroups:
    """Finds the key group of each row, by Spark's Murmur3 of the keys: the same on all hosts and in all versions.

    Parameters
    ----------
    keys
        Names of the key columns.
    groups
        Number of key groups.
    """

    def __init__(self, keys: Iterable[str], groups: int) -> None:
        from fastbuf.serializers.partition import HashPartitioner

        self._hashed = HashPartitioner(tuple(keys), groups)

    def of(self, batch: pa.RecordBatch) -> np.ndarray:
        """Key group of each row: int32, of shape (rows,)."""
        return self._hashed.partition(batch)


class ByKeyGroup:
    """Sends each row to the task that owns its key group; for ``fb.custom``."""

    def __init__(self, keys: Iterable[str], groups: int, tasks: int) -> None:
        from fastbuf.checkpoint.key_groups import owners

        self._groups = KeyGroups(keys, groups)
        self._owners = owners(tasks, groups)

    def __call__(self, batch: pa.RecordBatch, n: int) -> np.ndarray:
        return self._owners[self._groups.of(batch)]
