"""What a source of a stream is: splits that the driver finds, and a reader of them in each source task.

Offsets are any JSON values: the driver keeps them in checkpoints, and gives them back when a stream is restored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

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
    given it, in milliseconds since 1970.  If it reads ahead, ``rest()`` gives what was read so, and nothing is read
    from then on.
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
