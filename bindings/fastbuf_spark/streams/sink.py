"""What a sink of a stream is, and two-phase commit.

A task writes rows, and *prepares* at each barrier: what was written since the last one is durable, but not seen, and
known by *committables*, JSON values that the checkpoint keeps.  When it is complete the task *commits* them.
A stream that is restored commits those of its checkpoint once more, so a commit must be idempotent; it may be another
task that does it.  Order and rules are Flink's (``TwoPhaseCommitSinkFunction``, ``CommitterOperator``).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fastbuf.checkpoint.store import sync_directory
from fastbuf.errors import ConfigError, FastbufError
from fastbuf_spark.errors import ArgumentTypeError

if TYPE_CHECKING:
    import pyarrow as pa

Committable = dict[str, Any]


class CommitFailed(FastbufError):
    """Rows of a complete checkpoint could not be made visible; the message says which."""


@dataclass(frozen=True)
class SinkContext:
    """Where a sink's writer is.

    Attributes
    ----------
    job
        Name of the stream, of 32 hexadecimal digits: the same for the life of its checkpoints.
    task, generation
        Number of the task among those of the sink, and of the run since the stream was first started.
    schema
        Of the rows.
    folder
        A directory of the checkpoint's for rows that wait; all hosts see it.
    exactly_once
        Else at least once: rows may be visible at once, and ``prepare`` has to see to it that they are.
    """

    job: str
    task: int
    generation: int
    schema: pa.Schema
    folder: str
    exactly_once: bool


class SinkWriter(Protocol):
    """Writes the rows of one task."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""

    def prepare(self, checkpoint: int) -> list[Committable]:
        """What was written since the last call is durable when this returns; what is to be committed."""

    def commit(self, checkpoint: int, committables: Sequence[Committable]) -> None:
        """Make rows visible, once, however often it is called; in a thread of its own, in the checkpoints' order.

        Raises
        ------
        CommitFailed
            It cannot be done, and rows are at risk; other errors are tried again some times.
        """

    def close(self) -> None:
        """Let go of what is open; rows that were not prepared are of no use."""

    # A writer may also have ``forget(committables)``: they are committed, and no checkpoint that is kept names them, so
    # none will ever commit them again.  Called from the thread of ``commit``.


class Sink(Protocol):
    """A sink, as the driver has it; it is pickled for the tasks.

    Attributes
    ----------
    name
        For the plan.
    output_modes
        Those of "append", "update", "complete" that it can do.
    """

    @property
    def name(self) -> str: ...
    @property
    def output_modes(self) -> tuple[str, ...]: ...

    def check(self, schema: pa.Schema, exactly_once: bool) -> None:
        """Called on the driver before the stream starts; raises ConfigError for what it cannot do."""

    def restore(self, context: SinkContext, committables: Sequence[Committable]) -> None:
        """Called on the driver before the tasks of a generation start: ends what is of this job and not in
        ``committables``, which are those of all checkpoints that are kept; the tasks commit those of the newest then.
        """

    def writer(self, context: SinkContext) -> SinkWriter:
        """A writer for one task, in a worker."""


def check_sink(name: str, sink: object) -> None:
    """An error for an argument that is no sink."""
    if not all(hasattr(sink, each) for each in ("name", "output_modes", "check", "restore", "writer")):
        words = f"{name} is {sink!r:.100}: give a sink, as fbs.to_parquet(path) or another function to_... makes one"
        raise ArgumentTypeError.of(words, name, "sink", sink)


class StagedRows:
    """Rows that wait in a file of the checkpoint's until they are committed, for sinks that cannot hide rows.

    Parameters
    ----------
    context
        The writer's.
    """

    def __init__(self, context: SinkContext) -> None:
        self._context = context
        self._sink: Any = None
        self._writer: Any = None
        self._path = Path()
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        import pyarrow as pa

        if self._writer is None:
            context = self._context
            name = f"rows-{context.generation}-{context.task}-{secrets.token_hex(8)}.arrow"
            self._path = Path(context.folder, name)
            self._sink = open(self._path, "xb")  # noqa: SIM115
            self._writer = pa.ipc.new_file(self._sink, context.schema)
        self._writer.write_batch(batch)
        self._rows += batch.num_rows

    def prepare(self) -> list[Committable]:
        """The file of the rows since the last call, durable; none if there are no rows."""
        if self._writer is None:
            return []
        self._writer.close()
        self._sink.flush()
        os.fsync(self._sink.fileno())
        size = self._sink.tell()
        self._sink.close()
        sync_directory(self._path.parent)
        committable: Committable = {"file": self._path.name, "rows": self._rows, "bytes": size}
        self._writer, self._rows = None, 0
        return [committable]

    @staticmethod
    def batches(context: SinkContext, committable: Committable) -> Iterator[pa.RecordBatch]:
        """The rows of a file.

        Raises
        ------
        CommitFailed
            The file is not there, or is not what was written.
        """
        import pyarrow as pa

        path = Path(context.folder, committable["file"])
        at_risk = f"{committable['rows']} rows of a complete checkpoint are at risk: {path}"
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise CommitFailed(f"{at_risk} is gone, and they were not committed before") from None
        if size != committable["bytes"]:
            raise CommitFailed(f"{at_risk} has {size} bytes, {committable['bytes']} were written")
        with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)

    @staticmethod
    def remove(context: SinkContext, committable: Committable) -> None:
        """Remove the file of rows that are committed; that it is gone is no error."""
        Path(context.folder, committable["file"]).unlink(missing_ok=True)

    @staticmethod
    def keep_only(context: SinkContext, committables: Sequence[Committable]) -> None:
        """Remove the files of rows that no checkpoint knows."""
        names = {each["file"] for each in committables}
        for path in Path(context.folder).glob("rows-*.arrow"):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close; what was not prepared is removed."""
        if self._writer is not None:
            self._sink.close()
            self._writer = None
            self._path.unlink(missing_ok=True)


def to(sink: Any) -> Sink:
    """A sink of your own: an object with what :class:`Sink` has.

    ``name``, ``output_modes``, ``check`` and ``restore`` may be missing; ``writer(context)`` gives an object with
    ``write``, ``prepare``, ``commit`` and ``close`` (:class:`SinkWriter`).
    """
    if not callable(getattr(sink, "writer", None)):
        raise ConfigError(f"a sink needs a method writer(context), which {type(sink).__name__} has not")
    return sink if all(hasattr(sink, each) for each in _MEMBERS) else _UserSink(sink)


_MEMBERS = ("name", "output_modes", "check", "restore", "writer")


class _UserSink:
    """A user's sink, with what it leaves out."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.name = getattr(sink, "name", type(sink).__name__)
        self.output_modes = tuple(getattr(sink, "output_modes", ("append", "update", "complete")))

    def check(self, schema: pa.Schema, exactly_once: bool) -> None:
        if hasattr(self._sink, "check"):
            self._sink.check(schema, exactly_once)

    def restore(self, context: SinkContext, committables: Sequence[Committable]) -> None:
        if hasattr(self._sink, "restore"):
            self._sink.restore(context, committables)

    def writer(self, context: SinkContext) -> SinkWriter:
        writer: SinkWriter = self._sink.writer(context)
        return writer
