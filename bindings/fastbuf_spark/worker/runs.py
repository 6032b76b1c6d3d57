"""An external sort: rows in the order of some columns, with bounded memory; sorted runs are spilled and merged.

What fits is sorted where it is.  Beyond that, sorted runs go to nameless files, each in small pieces with an index in
memory; 128 runs become one as soon as there are 128, so neither files nor memory grow with the rows.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fastbuf.errors import ResourceError
from fastbuf_spark.worker.memory import addresses_left, give_back
from fastbuf_spark.worker.nameless import NamelessFile
from fastbuf_spark.worker.order import Bounds, codes_by, placing
from fastbuf_spark.worker.placing import copied, permute

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

FAN_IN = 128  #: runs that are merged at once: where there are fewer, no row is written twice
#: A piece of a run has 1/PIECES of the memory: a merge holds up to two pieces of each run, as read and as sorted
PIECES = 8 * FAN_IN
LEAST_PIECE = 4 << 10
MOST_HELD = 1 << 30  #: most bytes of a run: it is sorted as one array, and offsets of strings have 32 bits
SLACK = 0.85  #: usable share of the memory: allocators keep more than they are asked for
PLACE_BYTES = 5  #: of a row while columns are copied: its place, and a boolean before it is packed


def in_order(
    source: Iterable[pa.RecordBatch], by: tuple[int, ...], memory_bytes: int, directory: str
) -> Iterator[pa.RecordBatch]:
    """The rows of ``source``, sorted as Spark does by the columns at ``by``; one batch if they fit into memory.

    Parameters
    ----------
    by
        Positions of columns; ``~i``: column ``i`` descending.
    memory_bytes
        Memory for rows, including copies made by the sort; at most a quarter of the addresses that this process has
        left.
    directory
        Directory of the nameless files; empty: where Spark's Python workers spill.
    """
    left = addresses_left()
    if left is not None:
        memory_bytes = min(memory_bytes, left // 4)
    with contextlib.ExitStack() as files:
        spilled = Runs(by, memory_bytes, directory)
        files.callback(spilled.close)
        batches: list[pa.RecordBatch] = []
        used = copies = rows = 0
        is_tight = False
        bounds = Bounds(by)
        for batch in source:
            batches.append(batch)
            bounds.add(batch)
            mine = copied(batch)
            used, copies, rows = used + mine[0], copies + mine[1], rows + batch.num_rows
            is_tight = 2 * used + PLACE_BYTES * rows > memory_bytes
            # First the order is found, then one column after the other is copied
            more = max(bounds.bytes_of(rows), PLACE_BYTES * rows + copies)
            if used + more > SLACK * memory_bytes or used > MOST_HELD:
                spilled.add(_sorted(batches, by, is_tight))
                used = copies = rows = 0
                bounds = Bounds(by)
        if not spilled:
            if batches:
                yield _sorted(batches, by, is_tight)
            return
        if batches:
            spilled.add(_sorted(batches, by, is_tight))
        yield from spilled.merged()


def _sorted(batches: list[pa.RecordBatch], by: tuple[int, ...], is_tight: bool) -> pa.RecordBatch:
    """The rows of these batches in order; empties the list, so that the rows do not exist three times."""
    result = _in_places(batches, placing(*codes_by(batches, by)), is_tight)
    batches.clear()
    return result


def _in_places(batches: list[pa.RecordBatch], places: np.ndarray | None, is_tight: bool = False) -> pa.RecordBatch:
    return together(batches) if places is None else permute(batches, places, is_tight)


def together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate several batches."""
    import pyarrow as pa

    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches).combine_chunks()
    for field, column in zip(table.schema, table.columns, strict=True):
        if column.num_chunks > 1:
            raise ResourceError(
                f"{len(batches)} batches of {table.nbytes} bytes do not fit into one: offsets of column {field.name!r} "
                "have 32 bits; lower spark.fastbuf.memoryBytes"
            )
    columns = [column.chunk(0) if column.num_chunks else pa.array([], column.type) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


class Run:
    """A sorted run in a nameless file."""

    def __init__(self, directory: str, piece_bytes: int) -> None:
        self._file = NamelessFile(directory)
        self._piece_bytes = piece_bytes
        self._schema: pa.Schema | None = None
        self._ends = array("Q")  # where each piece ends in the file
        self.longest = 0  #: bytes of the longest piece, which has one row at least

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows, which sort after those already written."""
        self._schema = batch.schema
        step = max(1, batch.num_rows * self._piece_bytes // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, step):
            piece = memoryview(batch.slice(start, step).serialize())
            self._file.append(piece)
            self._ends.append(self._file.nbytes)
            self.longest = max(self.longest, len(piece))

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self._file.nbytes

    def piece(self, number: int) -> pa.RecordBatch:
        """Read one piece."""
        import pyarrow as pa

        begin = self._ends[number - 1] if number else 0
        data = self._file.read(begin, self._ends[number] - begin)
        return pa.ipc.read_record_batch(pa.py_buffer(data), self._schema)

    def close(self) -> None:
        """Free the disk space."""
        self._file.close()


class Runs:
    """The runs, a few of each size; false if there is none."""

    def __init__(self, by: tuple[int, ...], memory_bytes: int, directory: str) -> None:
        self._by = by
        self._memory_bytes = memory_bytes
        self._piece_bytes = max(LEAST_PIECE, memory_bytes // PIECES)
        #: Fewer than FAN_IN where pieces would become too small
        self.fan_in = max(2, min(FAN_IN, FAN_IN * memory_bytes // (PIECES * LEAST_PIECE)))
        self._directory = directory
        self._levels: list[list[Run]] = []

    def __bool__(self) -> bool:
        return bool(self._levels)

    def add(self, batch: pa.RecordBatch) -> None:
        """Write a sorted batch as a run."""
        run = Run(self._directory, self._piece_bytes)
        self._put(0, run)
        run.write(batch)
        del batch
        level = 0
        while len(self._levels[level]) >= self._at_once(self._levels[level]):
            self._put(level + 1, self._one(self._levels[level]))
            level += 1
        give_back()

    def merged(self) -> Iterator[pa.RecordBatch]:
        """All rows in order; removes the runs."""
        runs = [run for level in reversed(self._levels) for run in level]
        self._levels = [runs]
        while len(runs) > (most := self._at_once(runs)):
            # The last runs are the shortest; as few as make the rest enough
            count = min(most, len(runs) - most + 1)
            some = runs[-count:]
            del runs[-count:]
            try:
                runs.append(self._one(some))
            finally:
                _close(some)
        yield from self._rounds(runs)

    def _at_once(self, runs: list[Run]) -> int:
        """How many of them are merged at once: fewer where rows are long, as a merge holds a piece of each, twice."""
        longest = max(run.longest for run in runs)
        return max(2, min(self.fan_in, self._memory_bytes // (2 * longest)))

    def _rounds(self, runs: list[Run]) -> Iterator[pa.RecordBatch]:
        return _merge(runs, self._by, self._piece_bytes * self.fan_in // len(runs))

    def close(self) -> None:
        """Free all disk space."""
        for runs in self._levels:
            _close(runs)

    def _put(self, level: int, run: Run) -> None:
        if level == len(self._levels):
            self._levels.append([])
        self._levels[level].append(run)

    def _one(self, runs: list[Run]) -> Run:
        """Merge several runs into one, and close them."""
        target = Run(self._directory, self._piece_bytes)
        try:
            for batch in self._rounds(runs):
                target.write(batch)
        except BaseException:
            target.close()
            raise
        _close(runs)
        return target


def _close(runs: list[Run]) -> None:
    for run in runs:
        run.close()
    runs.clear()


class _Cursor:
    """The position of a merge in a run, and its rows that were read but not returned."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._next = 0
        self.batches: list[pa.RecordBatch] = []
        self.rows = 0
        self._row_bytes: list[float] = []  # of each held batch: nbytes of a slice costs as much as reading it
        self._bytes = 0.0

    @property
    def ended(self) -> bool:
        return self._next == len(self._run)

    def fill(self, least_bytes: int) -> None:
        """Read until `least_bytes` are in memory, the same for each run: so a round returns most of what was read."""
        while not self.ended and self._bytes < least_bytes:
            batch = self._run.piece(self._next)
            used = batch.nbytes
            self.batches.append(batch)
            self._row_bytes.append(used / batch.num_rows)
            self._bytes += used
            self.rows += batch.num_rows
            self._next += 1

    def take(self, rows: int) -> list[pa.RecordBatch]:
        """Remove the first rows."""
        self.rows -= rows
        parts = []
        while rows:
            first = self.batches[0]
            count = min(rows, first.num_rows)
            self._bytes -= count * self._row_bytes[0]
            rows -= count
            if count < first.num_rows:
                parts.append(first.slice(0, count))
                self.batches[0] = first.slice(count)
            else:
                parts.append(self.batches.pop(0))
                self._row_bytes.pop(0)
        return parts


def _merge(runs: list[Run], by: tuple[int, ...], run_bytes: int) -> Iterator[pa.RecordBatch]:
    """Merges sorted runs.

    Each round sorts the rows up to the smallest of the runs' last read rows: all unread rows sort after it.
    """
    import numpy as np

    cursors = [_Cursor(run) for run in runs]
    while True:
        for cursor in cursors:
            cursor.fill(run_bytes)
        cursors = [cursor for cursor in cursors if cursor.rows]
        if not cursors:
            return
        codes, bound = codes_by([batch for cursor in cursors for batch in cursor.batches], by)
        theirs = np.split(codes, np.cumsum([cursor.rows for cursor in cursors])[:-1])
        lasts = [mine[-1] for cursor, mine in zip(cursors, theirs, strict=True) if not cursor.ended]
        if lasts:
            least = min(lasts)
            theirs = [mine[: np.searchsorted(mine, least, "right")] for mine in theirs]
        parts = [part for cursor, mine in zip(cursors, theirs, strict=True) for part in cursor.take(len(mine))]
        batch = _in_places(parts, placing(np.concatenate(theirs), bound))
        del codes, theirs, parts
        yield batch
        del batch
