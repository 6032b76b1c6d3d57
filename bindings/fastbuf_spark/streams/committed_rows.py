"""Which rows of a run's checkpoints are committed.

Another job that begins with a savepoint never sees the rows that its sinks had prepared: so a savepoint is taken when
these are committed.  And a checkpoint whose rows are all committed says so, so that the next start need not find them
where the output went.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastbuf.checkpoint.store import CheckpointError, CheckpointStore

Rows = dict[tuple[int, str], int]  #: by task and output: the newest checkpoint that has rows for it


@dataclass(frozen=True)
class _Exported:
    """A savepoint that is written; ``answer`` gets an error, or nothing."""

    checkpoint: int
    rows: Rows
    path: str
    answer: Callable[[str], None]


class CommittedRows:
    """What is committed of the rows of a run, as its tasks tell; see the module."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._checkpoint = 0  # the newest one of this run that is complete
        self._rows: Rows = {}  # what it names
        self._committed: Rows = {}
        self._exported: list[_Exported] = []

    def stored(self, checkpoint: int, acks: dict[int, dict[str, Any]]) -> None:
        """A checkpoint is complete."""
        self._checkpoint = checkpoint
        self._rows = {
            (task, output): max(numbers)
            for task, ack in acks.items()
            for output, waiting in ack["state"].get("rows", {}).items()
            if (numbers := [number for number, some in waiting if some])
        }

    def export(self, path: str, answer: Callable[[str], None]) -> None:
        """Copy the newest checkpoint; the answer comes when its rows are committed."""
        try:
            self._store.export(self._checkpoint, path)
        except Exception as error:
            answer(f"{type(error).__name__}: {error}")
        else:
            self._exported.append(_Exported(self._checkpoint, self._rows, path, answer))
            self._answer()

    def committed(self, task: int, output: str, checkpoint: int) -> None:
        """A task has committed its rows up to this checkpoint."""
        self._committed[task, output] = max(checkpoint, self._committed.get((task, output), checkpoint))
        self._answer()

    def end(self) -> None:
        """The run is over."""
        self._answer("the run has ended before all rows of the savepoint were committed")
        if self._rows and self._are_committed(self._rows):
            with contextlib.suppress(OSError, CheckpointError):  # the next start looks for them then
                self._store.settle(self._checkpoint)

    def _are_committed(self, rows: Rows) -> bool:
        return all(self._committed.get(key, -1) >= checkpoint for key, checkpoint in rows.items())

    def _answer(self, otherwise: str = "") -> None:
        left, self._exported = self._exported, []
        for each in left:
            try:
                if self._are_committed(each.rows):
                    self._store.settle(each.checkpoint, each.path)
                    each.answer("")
                elif otherwise:
                    shutil.rmtree(each.path, ignore_errors=True)  # so that it can be tried again
                    each.answer(otherwise)
                else:
                    self._exported.append(each)
            except Exception as error:
                each.answer(f"{type(error).__name__}: {error}")
