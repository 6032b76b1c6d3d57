"""The messages between the tasks of a stream and its coordinator, over the driver's rendezvous."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastbuf_spark.protocol import FromDriver, FromWorker


@dataclass(frozen=True)
class TaskStart(FromDriver):
    """All tasks have joined: connect, restore, and begin.

    ``targets``: the gates of the stage behind, by subtask; ``splits``: names and offsets for a source; ``pieces``: for
    each operator its state files by key group; ``rows``: for each output checkpoints and committables to commit first;
    ``times``: for each split, or for the gate, the watermark in milliseconds; ``committed_rows``: for each
    output the checkpoints that are there, each with committables that are done and that the one before named last.
    """

    targets: tuple[tuple[str, int, int], ...] = ()
    splits: tuple[tuple[str, Any], ...] = ()
    pieces: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, Any] = field(default_factory=dict)
    times: dict[str, Any] = field(default_factory=dict)
    committed_rows: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AddSplits(FromDriver):
    """To a source: further splits, by name and offset; ``last``: there will be no more.

    The first says that the source has been listed, even if it has no splits; ``any_yet``: whether it has had some, for
    any of its tasks.
    """

    splits: tuple[tuple[str, Any], ...]
    last: bool = False
    any_yet: bool = True


@dataclass(frozen=True)
class TriggerCheckpoint(FromDriver):
    """To a source: a barrier is due here; ``final``: behind all rows of a bounded input.

    ``greatest``: by stage the greatest time of rows before the last checkpoint, in milliseconds, for Spark's watermark.
    """

    checkpoint: int
    timestamp_ms: int
    final: bool = False
    greatest: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointComplete(FromDriver):
    """The checkpoint exists: commit; with ``final`` the task ends then."""

    checkpoint: int
    final: bool = False


@dataclass(frozen=True)
class CheckpointAbort(FromDriver):
    """The checkpoint will never be complete."""

    checkpoint: int
    reason: str


@dataclass(frozen=True)
class AlignTime(FromDriver):
    """To a source: the least watermark of the others that are aligned, in milliseconds: splits too far ahead wait."""

    least_ms: int


@dataclass(frozen=True)
class Drain(FromDriver):
    """To a source: stop reading, as if the input ended here."""


@dataclass(frozen=True)
class TaskJoin(FromWorker[TaskStart]):
    """A task of a run has made its gate."""

    task: int
    generation: int
    host: str
    port: int
    gate: int


@dataclass(frozen=True)
class TaskRunning(FromWorker[None]):
    """It has restored its state, and takes rows."""

    restored_s: float


@dataclass(frozen=True)
class Acknowledge(FromWorker[None]):
    """Its part of a checkpoint is durable.

    ``state``: ``pieces`` by operator, ``splits`` with offsets and ``ended`` ones of a source, ``rows`` of a sink,
    ``times``; ``figures``: seconds of the parts, bytes.
    """

    checkpoint: int
    state: dict[str, Any]
    figures: dict[str, Any]


@dataclass(frozen=True)
class Decline(FromWorker[None]):
    """It cannot take part in a checkpoint."""

    checkpoint: int
    reason: str


@dataclass(frozen=True)
class Outage(FromWorker[None]):
    """The task has failed by something that is away for a while: a server, room on a disk; the run ends."""

    reason: str


@dataclass(frozen=True)
class DataEnd(FromWorker[None]):
    """All rows of a bounded input have passed it."""


@dataclass(frozen=True)
class Committed(FromWorker[None]):
    """Its rows of a checkpoint are visible where the output goes, and so are those of the checkpoints before it."""

    output: str
    checkpoint: int


@dataclass(frozen=True)
class Collected(FromWorker[None]):
    """Rows of a sink in the driver's memory: an Arrow stream, in base 64, and a name by which they count once."""

    output: str
    name: str
    rows: str


@dataclass(frozen=True)
class TaskFigures(FromWorker[None]):
    """What the task does, once a second."""

    stats: dict[str, Any]
