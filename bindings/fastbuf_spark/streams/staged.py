"""Staged rows of sinks that cannot hide any: who prepared them, how often a commit is tried, and what is said of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fastbuf_spark.streams.sink import CommitFailed, Committable, SinkContext, StagedRows

if TYPE_CHECKING:
    import pyarrow as pa

#: Waits between attempts at a commit: a server that is started again is back by then
WAITS_S = (0.1, 0.5, 2.0, 5.0, 10.0, 20.0)
#: Checkpoints whose markers are kept, of each task: many more than checkpoints are
MARKERS_KEPT = 128


class StagingWriter:
    """What writers have in common whose rows wait in files until they are committed.

    Parameters
    ----------
    commit
        Commits some, each once; used by one thread.  Its ``close()`` is called at the end.
    """

    def __init__(self, context: SinkContext, commits: Any) -> None:
        self._context = context
        self._rows = StagedRows(context)
        self._commits = commits

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows.write(batch)

    def prepare(self, checkpoint: int) -> list[Committable]:
        whose = {"task": self._context.task, "checkpoint": checkpoint, "generation": self._context.generation}
        return [{**each, **whose} for each in self._rows.prepare()]

    def commit(self, checkpoint: int, committables: Sequence[Committable]) -> None:
        if committables:
            self._commits.commit(sorted(committables, key=lambda each: each["checkpoint"]))

    def forget(self, committables: Sequence[Committable]) -> None:
        for each in committables:  # until then a restart may commit them again
            StagedRows.remove(self._context, each)

    def close(self) -> None:
        self._rows.close()
        self._commits.close()


def rows_of(committables: Sequence[Committable]) -> str:
    """Which rows it is about, for an error."""
    rows = sum(each["rows"] for each in committables)
    first, last = (pick(each["checkpoint"] for each in committables) for pick in (min, max))
    files = ", ".join(each["file"] for each in committables)
    return f"{rows:,} rows of checkpoint {first if first == last else f'{first} to {last}'} ({files})"


def attempts(what: str) -> Iterator[Callable[[Exception], None]]:
    """One for each attempt; an attempt that fails calls it with its error, and the loop goes on after a while.

    Raises
    ------
    CommitFailed
        By the last of them.
    """

    def waiting(wait_s: float) -> Callable[[Exception], None]:
        return lambda error: time.sleep(wait_s)

    def giving_up(error: Exception) -> None:
        raise CommitFailed(
            f"{what} could not be committed in {len(WAITS_S) + 1} attempts: {error}.  "
            "Start the stream again when it can be: its last checkpoint has them"
        ) from None  # the error's context may show what connects to a server

    yield from map(waiting, WAITS_S)
    yield giving_up


def staged_batches(context: SinkContext, committable: Committable) -> Iterator[pa.RecordBatch]:
    """The rows of a file, as :meth:`StagedRows.batches`; also of one that has the right length and is broken.

    Raises
    ------
    CommitFailed
        The file is not there, or is not what was written.
    """
    import pyarrow as pa

    try:
        for batch in StagedRows.batches(context, committable):
            batch.validate(full=True)
            yield batch
    except (pa.ArrowException, OSError) as error:
        raise CommitFailed(f"{rows_of([committable])} are at risk: the file is broken: {error}") from error
