"""The state of a task in checkpoints: frozen by the task's thread, written and acknowledged by a second one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from fastbuf.checkpoint.state import Confirmed
from fastbuf.checkpoint.store import StateFile, read_piece
from fastbuf_spark.streams.fail_points import reach
from fastbuf_spark.streams.messages import Acknowledge, Decline

if TYPE_CHECKING:
    from fastbuf_spark.streams.operators import KeyedOperator
    from fastbuf_spark.streams.spec import StreamSpec
    from fastbuf_spark.worker.control import Control


class Snapshots:
    """Takes the snapshots of one task."""

    def __init__(self, spec: StreamSpec, number: int, control: Control, operator: KeyedOperator | None) -> None:
        self._spec = spec
        self._number = number
        self._name = spec.stages[spec.place(number)[0]].name
        self._control = control
        self._operator = operator
        self._confirmed = Confirmed()
        self._ended: dict[int, list[str]] = {}  # splits that ended before a checkpoint which is not complete
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    def restore(self, pieces: Mapping[str, Any]) -> None:
        """Read the state of the key groups that are this task's."""
        if self._operator is None:
            return
        self._operator.open(self._spec.key_groups)
        for group, entry in pieces.items():
            self._operator.restore(int(group), read_piece(self._spec.folder, entry))
            self._confirmed.pieces[int(group)] = entry

    def ended(self, checkpoint: int, splits: list[str]) -> list[str]:
        """The splits that ended since the last checkpoint that is known to be complete."""
        self._ended[checkpoint] = list(splits)
        return [name for names in self._ended.values() for name in names]

    def take(self, checkpoint: int, state: dict[str, Any], figures: dict[str, Any], began: float) -> None:
        """Freeze, and have it written and acknowledged; `began`: when the task came to the barrier."""
        if self._writing is not None:  # of the one before, which may have been given up
            wait([self._writing])
            self.check()
        if self._operator is None:
            figures["sync_s"] = time.monotonic() - began
            self._control.send(Acknowledge(checkpoint, state, {**figures, "async_s": 0.0, "bytes": 0}))
            reach("acknowledged", checkpoint)
            return
        encoders = self._operator.freeze(self._confirmed.unconfirmed)
        self._confirmed.taken(checkpoint, frozenset(encoders))
        figures["sync_s"] = time.monotonic() - began
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, "fastbuf-state")
        self._writing = self._writer.submit(self._write, checkpoint, state, figures, encoders)

    def _write(
        self,
        checkpoint: int,
        state: dict[str, Any],
        figures: dict[str, Any],
        encoders: Mapping[int, Callable[[], bytes]],
    ) -> None:
        began = time.monotonic()
        file = StateFile(self._spec.folder, f"{checkpoint}-{self._spec.generation}-{self._number}")
        try:
            pieces: dict[int, list[Any] | None] = {}
            for group, encode in encoders.items():
                data = encode()
                pieces[group] = file.add(data).entry() if data else None
            reach("file written", checkpoint)
            size = file.close()
        except OSError as error:  # a full disk, or the like: these groups are written again with the next one
            file.abandon()
            self._control.send(Decline(checkpoint, f"its state cannot be written: {type(error).__name__}: {error}"))
            return
        except BaseException:
            file.abandon()
            raise
        reach("after fsync", checkpoint)
        entries = self._confirmed.written(checkpoint, pieces)
        state["operators"] = {self._name: {"pieces": {str(group): entry for group, entry in entries.items()}}}
        figures.update(async_s=time.monotonic() - began, bytes=size)
        self._control.send(Acknowledge(checkpoint, state, figures))
        reach("acknowledged", checkpoint)

    def check(self) -> None:
        """Lets go of what is written; raises what has failed."""
        if self._writing is not None and self._writing.done():
            writing, self._writing = self._writing, None
            assert self._operator is not None
            self._operator.thaw()
            writing.result()

    def complete(self, checkpoint: int) -> None:
        """A checkpoint is complete."""
        self._confirmed.complete(checkpoint)
        for number in [number for number in self._ended if number <= checkpoint]:
            del self._ended[number]

    def close(self) -> None:
        """End the thread."""
        if self._writer is not None:
            self._writer.shutdown(cancel_futures=True)
