"""What operators of event time share: key groups, columns that are checked, late rows, results read to their end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastbuf.checks import whole
from fastbuf.errors import SchemaError
from fastbuf.event_time.arrow_rows import Hashes, key_numbers, microseconds
from fastbuf.event_time.spill import PART_BYTES, Spill

if TYPE_CHECKING:
    import pyarrow as pa

MOST_GROUPS = 1 << 15


def check_columns(whose: str, schema: pa.Schema, keys: Sequence[str], time: str) -> None:
    """Refuse an input without its keys and time, each once, or with a time that is none."""
    import pyarrow as pa

    for name in (time, *keys):
        if schema.names.count(name) != 1:
            count = schema.names.count(name)
            raise SchemaError(f"{whose} has {count} columns {name!r}; its columns are {schema.names}")
    kind = schema.field(time).type
    if not pa.types.is_timestamp(kind):
        raise SchemaError(f"the time {time!r} is a {kind}: it must be a timestamp; cast it before")


class Keyed:
    """The base of windows and joins.

    Parameters
    ----------
    keys
        Names and types of the columns of a key in the state.
    groups
        Number of key groups.
    keep_late
        Whether late rows are kept, or just counted.

    Raises
    ------
    SchemaError
        Rows cannot be grouped by such keys.
    """

    def __init__(self, keys: Sequence[tuple[str, pa.DataType]], groups: int, keep_late: bool) -> None:
        import pyarrow as pa

        whole("groups", groups, 1, MOST_GROUPS)
        names = [name for name, _ in keys]
        self._hashes = Hashes(names, groups)
        self._dirty = np.zeros(groups, bool)
        self._keep_late = keep_late
        self.late_rows = self.null_times = 0
        self._reading = False
        self._part_bytes = PART_BYTES
        empty = pa.schema(list(keys)).empty_table()
        try:
            self._hashes.groups(pa.RecordBatch.from_pylist([], empty.schema))
            if names:
                empty.group_by(names, use_threads=False).aggregate([])
                key_numbers(empty.columns, 0)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowKeyError) as error:
            reason, kinds = str(error).splitlines()[0], [kind for _, kind in keys]
            raise SchemaError(f"rows cannot be grouped by keys of these types: {reason}; they are {kinds}") from error

    def _spill(self, memory_bytes: int | None, directory: str, shares: int = 1) -> Spill | None:
        """What writes the rows beyond an equal share of the memory; None: there is no limit."""
        if memory_bytes is None:
            return None
        whole("memory_bytes", memory_bytes, 1)
        spill = Spill(max(1, memory_bytes // shares), directory, self._hashes.groups, len(self._dirty))
        self._part_bytes = spill.part_bytes
        return spill

    def _timed(self, batch: pa.RecordBatch, name: str) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        """The rows that have a time, and these in microseconds; the others are counted."""
        import pyarrow as pa

        times, valid = microseconds(batch.column(batch.schema.get_field_index(name)), name)
        if valid is not None:
            self.null_times += int((~valid).sum())
            batch, times = batch.filter(pa.array(valid)), times[valid]
        return batch, times

    @property
    def dirty(self) -> list[int]:
        """The groups that have changed since ``freeze``."""
        return [int(group) for group in np.flatnonzero(self._dirty)]

    def _check_read(self) -> None:
        if self._reading:
            raise RuntimeError(
                "the results of the last call have not been read to their end: read them before the next call"
            )

    def _read(self, results: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Results that must be read to their end before the next call."""
        self._reading = True
        return self._read_through(results)

    def _read_through(self, results: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from results
        self._reading = False
