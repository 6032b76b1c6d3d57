"""What a source of a stream is: splits that the driver finds, and a reader of them in each source task.

Offsets are any JSON values: the driver keeps them in checkpoints, and gives them back when a stream is restored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fastbuf.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Split:
    """A part of a source that is read in order by one task at a time: a file, a Kafka partition.

    Attributes
    ----------
    name
        The same for the life of the stream, and of no other split.
    offset
        Where to begin, a JSON value.
    """

    name: str
    offset: Any = None


@dataclass(frozen=True)
class Polled:
    """What a reader has read of a split.

    Attributes
    ----------
    batch
        Rows in the source's schema; None: none, the offset moved all the same or the split has ended.
    offset
        Where to go on after these rows.
    ended
        Whether the split has no more rows, ever.
    """

    split: str
    batch: pa.RecordBatch | None
    offset: Any
    ended: bool = False


class SplitReader(Protocol):
    """Reads the splits of one task; made and used by that task's thread alone.

    If it does not read all of them at once, ``waiting`` names those that have to wait: until they are read, they hold
    the watermark back.  If there is a ``least_times(column)``, no further than to the least time of each, once it has
    given it, in milliseconds since 1970.
    """

    def assign(self, splits: Sequence[Split]) -> None:
        """Further splits, each at its offset."""

    def poll(self, timeout_s: float) -> Polled | None:
        """The next rows of any split; None if none came within that time.  Splits get their turn."""

    def pause(self, splits: Sequence[str]) -> None:
        """Give no rows of these, until it is called again without them; what is read already may come."""

    def checkpointed(self, offsets: Mapping[str, Any]) -> None:
        """A checkpoint with these offsets is complete; for what others see of it.  An error is not told."""

    def close(self) -> None:
        """Let go of connections and files."""


class StreamSource(Protocol):
    """A source, as the driver has it; it is pickled for the tasks.

    Attributes
    ----------
    name
        For the plan.
    schema
        Schema of the rows.
    replayable
        Whether a split read again from an offset gives the same rows.
    bounded
        Whether the first call of ``splits`` gives all of them, and each ends.
    """

    @property
    def name(self) -> str: ...
    @property
    def schema(self) -> StructType: ...
    @property
    def replayable(self) -> bool: ...
    @property
    def bounded(self) -> bool: ...

    def splits(self, state: Any) -> tuple[list[Split], Any]:
        """The splits that were not there before, and the new state: a JSON value, None at first.  On the driver."""

    def reader(self, schema: pa.Schema) -> SplitReader:
        """A reader for one task, in a worker; batches have this schema."""


class UserSource:
    """A source made of a user's class: see :func:`fastbuf_spark.stream`.

    Its ``splits()`` gives names, or a mapping of names to offsets; ``read(split, offset)`` yields pairs of a record
    batch (None: nothing is there now) and the offset behind it, and returns where the split ends.
    """

    def __init__(self, source: Any, schema: StructType) -> None:
        for name in ("splits", "read"):
            if not callable(getattr(source, name, None)):
                raise ConfigError(f"a source needs a method {name}(), which {type(source).__name__} has not")
        self.source = source
        self.schema = schema
        self.name = str(getattr(source, "name", type(source).__name__))
        self.replayable = bool(getattr(source, "replayable", True))
        self.bounded = bool(getattr(source, "bounded", False))

    def splits(self, state: Any) -> tuple[list[Split], Any]:
        seen = set(state or ())
        splits = self.source.splits()
        offsets = dict(splits) if isinstance(splits, Mapping) else dict.fromkeys(splits)
        return [Split(str(n), offset) for n, offset in offsets.items() if n not in seen], sorted(seen | set(offsets))

    def reader(self, schema: pa.Schema) -> SplitReader:
        return IteratorReader(self.source.read, schema)


class IteratorReader:
    """A :class:`SplitReader` over one iterator for each split.

    Parameters
    ----------
    read
        Takes the name of a split and an offset; yields pairs of a batch, or None, and the offset behind it.
    in_turn
        Whether each split has its turn; else one after the other is read to its end.
    """

    def __init__(self, read: Any, schema: pa.Schema, in_turn: bool = True) -> None:
        self._read = read
        self._schema = schema
        self._in_turn = in_turn
        self._open: dict[str, Iterator[tuple[pa.RecordBatch | None, Any]]] = {}
        self._offsets: dict[str, Any] = {}
        self._paused: frozenset[str] = frozenset()

    def pause(self, splits: Sequence[str]) -> None:
        self._paused = frozenset(splits)

    def assign(self, splits: Sequence[Split]) -> None:
        for split in splits:
            self._open[split.name] = iter(self._read(split.name, split.offset))
            self._offsets[split.name] = split.offset

    @property
    def waiting(self) -> list[str]:
        """The splits that are not read before another one has ended."""
        return [] if self._in_turn else list(self._open)[1:]

    def poll(self, timeout_s: float) -> Polled | None:
        from fastbuf_spark.schema import conform

        names = [name for name in self._open if name not in self._paused]
        for name in names if self._in_turn else names[:1]:
            item = next(self._open[name], None)
            if item is None:
                del self._open[name]
                return Polled(name, None, self._offsets.pop(name), ended=True)
            if self._in_turn:
                self._open[name] = self._open.pop(name)  # behind the others
            batch, offset = item
            if batch is not None and batch.num_rows:
                self._offsets[name] = offset
                return Polled(name, conform(batch, self._schema, f"split {name}"), offset)
            if offset != self._offsets[name]:
                self._offsets[name] = offset
                return Polled(name, None, offset)
        return None

    def checkpointed(self, offsets: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        for split in self._open.values():
            if hasattr(split, "close"):
                split.close()
        self._open.clear()
