"""State of windows and joins beyond its memory: a table in a file without a name, which is mapped to be read."""

from __future__ import annotations

import math
import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastbuf.checks import spill_directory
from fastbuf.errors import ResourceError
from fastbuf.event_time.arrow_rows import int64s

if TYPE_CHECKING:
    import pyarrow as pa

GroupsOf = Callable[[Any], NDArray[np.int32]]
Labels = NDArray[np.int64]
LABEL = "w"  #: the column by which state is in order: a window's or pane's label, a session's start, a row's time
GROUP = "g"  #: in a file, the column of the key group
SETTING = "the directory for spilled state"
PART_ROWS = 1 << 18  #: of a part of what does not fit into memory
PART_BYTES, LEAST_PART_BYTES = 64 << 20, 4 << 20


class MappedFile:
    """A file that is mapped to be read; what was read of it costs memory until it is given back."""

    def __init__(self, file: IO[bytes]) -> None:
        self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def __len__(self) -> int:
        return len(self._map)

    def buffer(self) -> pa.Buffer:
        """All bytes."""
        import pyarrow as pa

        return pa.py_buffer(self._map)

    def release(self) -> None:
        """Give back the memory: whoever reads again reads the file, or what the system still has of it."""
        self._map.madvise(mmap.MADV_DONTNEED)


class _InFile(Protocol):
    file: MappedFile | None


R = TypeVar("R", bound=_InFile)


class Tiers(Generic[R]):
    """Tables of state, the later ones last; some may be in files.  Those of about one size become one."""

    def __init__(self) -> None:
        self.runs: list[R] = []

    def file_bytes(self) -> int:
        """Bytes of the files."""
        return sum(len(run.file) for run in self.runs if run.file is not None)

    def release(self) -> None:
        """Give back the memory of what was read of files."""
        for run in self.runs:
            if run.file is not None:
                run.file.release()


def alike(rows: Sequence[int], most: float = math.inf) -> int:
    """How many of the last tables to merge: each has no more rows than those behind it together, and below `most`."""
    count, behind = min(1, len(rows)), sum(rows[-1:])
    while count < len(rows) and rows[-1 - count] <= behind and rows[-1 - count] < most:
        behind += rows[-1 - count]
        count += 1
    return count


def parts_of(rows: int, nbytes: int, part_bytes: int = PART_BYTES) -> int:
    """In how many parts so much is put together; what is a little more than one part is one."""
    if rows <= 2 * PART_ROWS and nbytes <= 2 * part_bytes:
        return 1
    return max(-(-rows // PART_ROWS), -(-nbytes // part_bytes))


def weight(tables: Iterable[pa.Table]) -> tuple[int, int]:
    """Rows and bytes of tables."""
    some = list(tables)
    return sum(table.num_rows for table in some), sum(table.nbytes for table in some)


class Spill:
    """Writes tables to files.

    Parameters
    ----------
    limit
        Bytes of state that stay in memory.
    directory
        Directory of the files, which vanish with the process; empty: that for temporary files.
    groups_of, groups
        Gives the key group of each row of a table, and how many groups there are.
    """

    def __init__(self, limit: int, directory: str, groups_of: GroupsOf, groups: int) -> None:
        self.limit = limit
        self.part_bytes = min(PART_BYTES, max(limit, LEAST_PART_BYTES))
        self._directory = directory
        self.groups_of, self.groups = groups_of, groups

    def write(self, tables: Iterable[pa.Table]) -> tuple[pa.Table, Labels, Labels, pa.ChunkedArray, MappedFile]:
        """One table of several, whose labels rise from table to table, or their key groups within one label.

        Returns
        -------
        The table, by label and key group; its labels; where each starts; the group of each row; the file.

        Raises
        ------
        ResourceError
            There is no room for it.
        """
        labels: list[Labels] = []
        counts: list[NDArray[np.intp]] = []

        def in_order() -> Iterator[pa.Table]:
            for table in tables:
                table = self._in_order(table)
                each = np.unique(int64s(table.column(LABEL)), return_counts=True)
                labels.append(each[0])
                counts.append(each[1])
                yield table

        table, mapped = self.mapped(in_order())
        distinct, at = np.unique(np.concatenate(labels), return_inverse=True)
        rows = np.bincount(at, np.concatenate(counts)).astype(np.int64)
        return table.drop_columns([GROUP]), distinct, np.append(0, np.cumsum(rows)), table.column(GROUP), mapped

    def mapped(self, tables: Iterable[pa.Table]) -> tuple[pa.Table, MappedFile]:
        """One table of several, in a file; at least one, all of one schema.

        Raises
        ------
        ResourceError
            There is no room for it.
        """
        import pyarrow as pa

        directory = spill_directory(self._directory, SETTING)
        try:
            with tempfile.TemporaryFile(dir=directory) as file:
                writer = None
                for table in tables:
                    if writer is None:
                        writer = pa.ipc.new_stream(pa.PythonFile(file, "w"), table.schema)
                    writer.write_table(table)
                assert writer is not None
                writer.close()
                file.flush()
                mapped = MappedFile(file)
        except OSError as error:
            raise ResourceError(
                f"state beyond {self.limit} bytes cannot be written to {directory}: {error}; name a directory with "
                "room (spill_directory), or let more stay in memory (memory_bytes)"
            ) from error
        with pa.ipc.open_stream(mapped.buffer()) as stream:
            whole = stream.read_all()
        pa.default_memory_pool().release_unused()
        return whole, mapped

    def _in_order(self, table: pa.Table) -> pa.Table:
        import pyarrow as pa

        groups = self.groups_of(table).astype(np.int16)
        order = np.lexsort((groups, int64s(table.column(LABEL))))
        return table.take(order).append_column(GROUP, pa.array(groups[order])).combine_chunks()
