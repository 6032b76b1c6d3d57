"""Cuts the rows of a partition into groups, and calls the user's function with each.

Rows are sorted by key, and a group is a slice of them.  If they do not fit into memory, they come in pieces from
:mod:`fastbuf_spark.worker.runs`, and the last group of a piece may continue in the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, Protocol

from fastbuf.errors import ResourceError
from fastbuf_spark.results import about
from fastbuf_spark.schema import required, within_precision, without_nulls
from fastbuf_spark.worker.order import codes, group_starts
from fastbuf_spark.worker.runs import in_order
from fastbuf_spark.worker.small_results import gathered

if TYPE_CHECKING:
    import pyarrow as pa

ITERATORS = (
    "Let the function take and give iterators of batches (type hints: Iterator[pyarrow.RecordBatch], or "
    "Iterator[pandas.DataFrame])"
)


@dataclass(frozen=True)
class Layout:
    """The columns that arrive, by position.

    Attributes
    ----------
    shown
        Schema of the columns that the user's function sees, which come first.
    keys, order
        Columns that rows are grouped by, and sorted by within a group (``~i``: descending); they may come after the
        shown ones.
    names
        Names of the keys, as the user gave them.
    """

    shown: pa.Schema
    keys: tuple[int, ...]
    order: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Limits:
    """Limits of a task: its memory, and the size of batches given to the user's function and to Spark."""

    memory_bytes: int
    directory: str
    batch_rows: int
    batch_bytes: int


class Group:
    """One group, valid until the next one is requested: its rows in one or more batches.

    Attributes
    ----------
    batch, shown
        The piece of sorted rows in which it begins: all columns, and those that the user's function sees.
    start, stop
        Range of its rows there.
    is_open
        Whether it may continue in the next piece.
    is_over
        Whether the next one was requested: an iterator of its batches that the function has kept ends, as Spark's.
    """

    def __init__(self, groups: Groups, start: int, stop: int, is_open: bool) -> None:
        self._groups = groups
        self.start = start
        self.stop = stop
        self.is_open = is_open
        self.is_over = False
        self.batch = groups.batch
        self.shown = groups.shown

    def key(self) -> tuple[pa.Scalar, ...]:
        """Its key, from its first row."""
        if self.is_open:
            return tuple(values[0] for values in self._groups.last_key)
        return tuple([column[self.start] for column in self._groups.keys])

    def key_columns(self) -> list[pa.Table]:
        """Its key, each column as a table with one value."""
        import pyarrow as pa

        groups = self._groups
        columns = groups.last_key if self.is_open else [column.slice(self.start, 1) for column in groups.keys]
        return [pa.table([column], names=["key"]) for column in columns]

    def key_columns_of_piece(self) -> list[pa.Array]:
        """The key columns of the whole piece of which it is a slice."""
        return self._groups.keys

    def table(self, remedy: str = ITERATORS) -> pa.Table:
        """All of its rows as one table.

        Parameters
        ----------
        remedy
            The advice in the error message.

        Raises
        ------
        ResourceError
            It needs more than the memory of the task, or than the addresses that this process may have.
        """
        first = self.shown.slice(self.start, self.stop - self.start)
        if not self.is_open:
            return first
        more = self._groups.rest()
        second = next(more, None)
        if second is None:
            return first
        import pyarrow as pa

        limit = self._groups.limits.memory_bytes
        named = zip(self._groups.layout.names, self.key(), strict=True)
        parts = [first, second]
        used = first.nbytes + second.nbytes
        try:
            for part in more:
                used += part.nbytes
                if used > limit:
                    parts.clear()
                else:
                    parts.append(part)
        except MemoryError as error:
            parts.clear()
            raise ResourceError(
                f"the group of {_words(named)} does not fit into the memory of this process, which could hold {used} "
                f"bytes of it. {remedy}, or raise spark.executor.pyspark.memory"
            ) from error
        if used > limit:
            raise ResourceError(
                f"the group of {_words(named)} has {used} bytes, more than a task may hold ({limit}), so it cannot be "
                f"passed to a function as a whole. {remedy}, or raise spark.fastbuf.memoryBytes"
            )
        return pa.concat_tables(parts)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Its rows, in batches of a bounded number of rows."""
        if self.is_over:
            return
        first = self.shown.slice(self.start, self.stop - self.start)
        self.batch = self.shown = None  # so that a long group does not keep its first piece in memory
        yield from self._cut(first)
        del first
        more = self._groups.rest() if self.is_open else iter(())
        while not self.is_over and (part := next(more, None)) is not None:
            yield from self._cut(part)
            del part  # free it before the next one is read

    def _cut(self, part: pa.Table) -> Iterator[pa.RecordBatch]:
        batches = part.to_batches(max_chunksize=self._groups.limits.batch_rows)
        return takewhile(lambda _: not self.is_over, batches)


def _words(named: Iterable[tuple[str, pa.Scalar]]) -> str:
    """A key as text, for messages."""
    return ", ".join(f"{name}={str(value.as_py())!r:.80}" for name, value in named)


class Groups:
    """Cuts sorted rows into groups.

    Parameters
    ----------
    pieces
        Batches of rows in the order of their keys.
    """

    def __init__(self, pieces: Iterator[pa.RecordBatch], layout: Layout, limits: Limits) -> None:
        self.layout = layout
        self.limits = limits
        self.batch: Any = None
        self.shown: Any = None
        self.keys: list[pa.Array] = []  # the key columns of this piece
        self.last_key: list[pa.Array] = []
        self._pieces = pieces
        self._bounds: list[int] = []
        self._at = 0

    def __iter__(self) -> Iterator[Group]:
        """The groups, one after the other; unread rows of a group are skipped when the next one is requested."""
        self._load()
        while self.batch is not None:
            bounds = self._bounds
            for i in range(self._at, len(bounds) - 2):
                group = Group(self, bounds[i], bounds[i + 1], False)
                yield group
                group.is_over = True
            # The last group of a piece may continue in the next one
            self.last_key = self._key(bounds[-2])
            self._at = len(bounds) - 1
            group = Group(self, bounds[-2], bounds[-1], True)
            yield group
            group.is_over = True
            for _ in self.rest():
                pass

    def rest(self) -> Iterator[pa.Table]:
        """The parts of the open group after the current piece; moves to the next group."""
        while self.batch is not None and self._at == len(self._bounds) - 1:
            self._load()
            if self.batch is None or not self._goes_on():
                return
            self._at = 1
            yield self.shown.slice(0, self._bounds[1])

    def _load(self) -> None:
        """Load the next piece."""
        import pyarrow as pa

        self.batch = self.shown = None  # free it before the next one is read
        self.keys = []
        self._at = 0
        batch = next(self._pieces, None)
        if batch is None:
            return
        self.keys = [batch.column(i) for i in self.layout.keys]
        self._bounds = [*group_starts(self.keys, batch.num_rows), batch.num_rows]
        self.batch = batch
        shown = self.layout.shown
        self.shown = pa.Table.from_arrays(batch.columns[: len(shown)], schema=shown)

    def _key(self, row: int) -> list[pa.Array]:
        """The key of a row, each column as a copy, so that it does not keep the piece in memory."""
        import pyarrow as pa

        return [column.take(pa.array([row])) for column in self.keys]

    def _goes_on(self) -> bool:
        """Whether the first row of this piece belongs to the last group of the piece before."""
        import pyarrow as pa

        pairs = zip(self.last_key, self._key(0), strict=True)
        pair, _ = codes(map(pa.concat_arrays, pairs), 2)
        return bool(pair[0] == pair[1])


class Verb(Protocol):
    """An operation on groups."""

    @property
    def func(self) -> Callable[..., Any]:
        """The user's function."""

    def caller(self) -> Callable[[Group], Iterable[pa.Table]]:
        """A callable that calls the user's function with a group, and returns tables of the result's schema.

        If it holds some tables back, it has a method ``rest``, which returns them at the end.
        """


class GroupStage:
    """The function of a task after the shuffle, for :class:`~fastbuf_spark.api.groups.Grouped`.

    Parameters
    ----------
    name
        Name of the user's function.
    """

    is_users = True  #: as of :class:`~fastbuf_spark.worker.chains.Link`

    def __init__(self, verb: Verb, layout: Layout, limits: Limits, name: str) -> None:
        self.verb = verb
        self.layout = layout
        self.limits = limits
        self.__name__ = name

    def __call__(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        limits, layout = self.limits, self.layout
        pieces = in_order(source, (*layout.keys, *layout.order), limits.memory_bytes, limits.directory)
        call = self.verb.caller()
        tables = (table for group in Groups(pieces, layout, limits) for table in call(group))
        # Tables that were held back are requested after the last group
        rest = (table for rest in [getattr(call, "rest", tuple)] for table in rest())
        whose = about(self.verb.func)
        whole = _without_nulls(chain(tables, rest), whose)
        return (within_precision(batch, whose) for batch in gathered(whole, limits))


def _without_nulls(tables: Iterable[pa.Table], whose: str) -> Iterator[pa.Table]:
    """Tables of one schema, each without nulls where that allows none."""
    columns = None
    for table in tables:
        if columns is None:
            columns = required(table.schema)
        yield without_nulls(table, columns, whose) if columns else table
