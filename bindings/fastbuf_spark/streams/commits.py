"""The second phase of two-phase commit, in a task of a sink: in order, in a thread of its own, tried some times."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fastbuf.checkpoint.store import KEPT
from fastbuf.exchange.named_thread import start_thread
from fastbuf_spark.streams.fail_points import reach
from fastbuf_spark.streams.messages import Committed
from fastbuf_spark.streams.sink import CommitFailed, Committable, SinkWriter

if TYPE_CHECKING:
    from fastbuf_spark.worker.control import Control

TRIES = 6
MOST_DUE = 3  #: complete checkpoints with rows that are not committed; at more of them no rows are read
FIRST_WAIT_S = 0.1  #: doubled after each failure


class Commits:
    """What a sink's task has prepared and not yet committed, for an output of this name."""

    def __init__(self, sink: SinkWriter, control: Control, output: str) -> None:
        self._sink = sink
        self._control = control
        self._output = output
        self._waiting: dict[int, Sequence[Committable]] = {}  # by checkpoint; those that are done leave
        self._due: deque[int] = deque()
        # Committed, by the order in which they were; a checkpoint that names them may be restored
        self._done: dict[int, Sequence[Committable]] = {}
        self._next_done = 0
        self._unnamed: dict[int, list[int]] = {}  # by checkpoint: those of the done that it does not name
        self._complete: deque[int] = deque(maxlen=KEPT)  # each of these may be restored
        self._changed = threading.Condition(threading.RLock())
        self._error: BaseException | None = None
        self._closed = False
        self._thread: Any = None

    def prepared(self, checkpoint: int, committables: Sequence[Committable]) -> None:
        """The sink has prepared for this checkpoint."""
        with self._changed:
            self._waiting[checkpoint] = committables

    def begin_from(self, checkpoints: Iterable[tuple[int, Sequence[Committable]]]) -> None:
        """Take over from an earlier run: each checkpoint that is there, with the committed rows that left its list.

        They are on the list of the checkpoint before it, and on no later one.
        """
        with self._changed:
            for checkpoint, committables in checkpoints:
                self._unnamed[checkpoint] = [self._note_done(committables)]
                self._complete.append(checkpoint)

    def _note_done(self, committables: Sequence[Committable]) -> int:
        place = self._next_done
        self._done[place], self._next_done = committables, place + 1
        return place

    def waiting(self) -> list[list[Any]]:
        """What is not known to be committed, by checkpoint: it goes into the next checkpoint too."""
        with self._changed:
            return [
                [number, list(some)] for number, some in sorted(self._waiting.items()) if some or number in self._due
            ]

    def snapshot(self, checkpoint: int) -> list[list[Any]]:
        """What this checkpoint names: see :meth:`waiting`."""
        with self._changed:
            self._unnamed[checkpoint] = list(self._done)
            return self.waiting()

    def complete(self, checkpoint: int) -> None:
        """Commit all up to this checkpoint; one that was passed over is committed with it."""
        with self._changed:
            if not self._complete or checkpoint > self._complete[-1]:
                self._complete.append(checkpoint)
            due = [number for number in sorted(self._waiting) if number <= checkpoint and number not in self._due]
            self._due.extend(due)
            if due and self._thread is None:
                self._thread = start_thread(self._run, "fastbuf-commit")
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self._due:
                        if self._closed:
                            return
                        self._changed.wait()
                    if self._closed:
                        return
                    number = self._due[0]
                    committables = self._waiting[number]
                if not self._commit(number, committables):
                    return
                with self._changed:
                    self._note_done(self._waiting.pop(number))
                    self._due.popleft()
                    self._changed.notify_all()
                self._forget()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _forget(self) -> None:
        """Have the sink forget what is done, and is named by none of the checkpoints that are kept."""
        with self._changed:
            if len(self._complete) < KEPT:
                return
            oldest = self._complete[0]
            over = {n for m in list(self._unnamed) if m <= oldest for n in self._unnamed.pop(m)}
            forgotten = [each for n in sorted(over) for each in self._done.pop(n, ())]
        if forgotten and hasattr(self._sink, "forget"):
            self._sink.forget(forgotten)

    def _commit(self, checkpoint: int, committables: Sequence[Committable]) -> bool:
        """False: closed before it worked."""
        reach("before commit", checkpoint)
        wait = FIRST_WAIT_S
        for left in reversed(range(TRIES)):
            try:
                self._sink.commit(checkpoint, committables)
                break
            except CommitFailed:
                raise
            except Exception as error:
                if not left:
                    raise CommitFailed(
                        f"the rows of checkpoint {checkpoint} could not be committed in {TRIES} tries: {error}; the "
                        f"checkpoint is complete, and a restart tries again. At risk: {list(committables)!s:.500}"
                    ) from error
                with self._changed:
                    if self._changed.wait_for(lambda: self._closed, wait):
                        return False
                wait *= 2
        reach("after commit", checkpoint)
        self._control.send(Committed(self._output, checkpoint))
        return True

    def is_behind(self) -> bool:
        """Whether the sink takes longer for its commits than from one checkpoint to the next."""
        with self._changed:
            return sum(bool(self._waiting[number]) for number in self._due) >= MOST_DUE

    def check(self) -> None:
        """Raises what has failed."""
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Until all that is due is committed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._due or self._error is not None)
        self.check()

    def close(self) -> None:
        """End the thread; a commit under way is waited for."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(60)
        with contextlib.suppress(OSError):  # the next start does it, too
            self._forget()  # the last checkpoints may have had nothing to commit
