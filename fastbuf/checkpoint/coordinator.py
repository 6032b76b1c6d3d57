"""When checkpoints are triggered, and how each of them ends: the driver's half of the protocol.

A state machine that knows neither sockets nor clocks: times and what tasks say go in, what is to be sent or written
comes out.  One checkpoint at a time, with the rules of Flink's ``CheckpointCoordinator``, ``CheckpointRequestDecider``
and ``CheckpointFailureManager``.  A checkpoint is complete once its metadata stand, and tasks are told then::

    Trigger ─► acknowledge of each task ─► Store ─► stored ─► Complete
       └── decline, or the timeout ──┐       └── store_failed ──┐
                                     └──────────────────────────┴─► Abort, and Fail after too many in a row
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from fastbuf.checks import seconds, whole
from fastbuf.errors import ConfigError

HISTORY = 100  #: attempts that are remembered


@dataclass(frozen=True)
class Trigger:
    """Send it to the source tasks: they emit the barrier.

    Attributes
    ----------
    checkpoint
        Its id; ids only grow.
    timestamp_ms
        When, by the wall clock; for the barrier.
    final
        Whether it is the last one, behind the last row.
    """

    checkpoint: int
    timestamp_ms: int
    final: bool


@dataclass(frozen=True)
class Store:
    """All tasks have acknowledged: write the metadata, then call ``stored`` or ``store_failed``; `acks` by task."""

    checkpoint: int
    acks: dict[int, dict[str, Any]]
    final: bool


@dataclass(frozen=True)
class Complete:
    """Tell all tasks: they commit."""

    checkpoint: int
    final: bool


@dataclass(frozen=True)
class Abort:
    """Tell all tasks: it will never be complete."""

    checkpoint: int
    reason: str


@dataclass(frozen=True)
class Fail:
    """Too many checkpoints failed in a row: the run ends."""

    reason: str


Out = Trigger | Store | Complete | Abort | Fail


@dataclass
class Attempt:
    """A checkpoint that was triggered, for those who watch.

    Attributes
    ----------
    id, final
        As triggered.
    started_ms
        When, by the wall clock.
    duration_s
        From the trigger to its end; so far, if it is in progress: to what was last heard of it.
    state
        "completed", "failed" or "in progress".
    reason
        Why it failed, else "".
    acks
        What the tasks said, by task.
    """

    id: int
    started_ms: int
    final: bool = False
    duration_s: float = 0.0
    state: Literal["completed", "failed", "in progress"] = "in progress"
    reason: str = ""
    acks: dict[int, dict[str, Any]] = field(default_factory=dict)


class CheckpointCoordinator:
    """Triggers checkpoints, one at a time, and follows each to its end.

    Each method returns what is to be done, in this order; only ``tick`` and ``trigger`` trigger.  Times are seconds of
    a monotonic clock.

    Parameters
    ----------
    tasks
        The tasks that acknowledge: all of the run's.
    interval_s
        From one trigger to the next; one that takes longer is followed by the next at once. Infinite: only
        :meth:`trigger` does.
    timeout_s
        From the trigger to the last acknowledgement.
    min_pause_s
        At least this passes between the completion of one and the next; :meth:`trigger` does not wait for it.
    tolerated
        Failures in a row that do not end the run.
    last
        The id of the last completed checkpoint, of an earlier run; ids go on from it. 0: none.
    now
        When it begins.

    Attributes
    ----------
    in_progress
        The checkpoint that is, or None.
    completed
        The last one that is complete, or `last`.
    failures
        In a row, up to now.
    history
        The last attempts, oldest first.
    """

    def __init__(
        self,
        tasks: Iterable[int],
        interval_s: float,
        *,
        timeout_s: float = 600.0,
        min_pause_s: float = 0.0,
        tolerated: int = 0,
        last: int = 0,
        now: float = 0.0,
    ) -> None:
        self.tasks = frozenset(tasks)
        if not self.tasks:
            raise ConfigError("tasks is empty: a checkpoint is complete when tasks have acknowledged it")
        self.interval_s = seconds("interval_s", interval_s)
        self.timeout_s = seconds("timeout_s", timeout_s, 0.001)
        self.min_pause_s = seconds("min_pause_s", min_pause_s)
        self.tolerated = whole("tolerated", tolerated, 0)
        self.completed = whole("last", last, 0, (1 << 64) - 1)
        self.in_progress: int | None = None
        self.failures = 0
        self.history: deque[Attempt] = deque(maxlen=HISTORY)
        self._last = self.completed  # the newest id that was given out
        self._began = now  # when the last one was triggered
        self._ended = -math.inf  # when the last one was complete
        self._wanted: Literal["", "one", "final"] = ""  # asked for, not triggered yet
        self._storing = False  # all have acknowledged, the metadata are being written
        self._over = False  # the final one is complete, or too many have failed

    def waiting_for(self) -> frozenset[int]:
        """The tasks that have not acknowledged the one in progress."""
        return frozenset() if self.in_progress is None else self.tasks - self.history[-1].acks.keys()

    def next_due(self, now: float) -> float:
        """Seconds until :meth:`tick` has something to do; 0: now, infinite: until something else happens."""
        if self._over or self._storing:
            return math.inf
        if self.in_progress is not None:
            return max(self._began + self.timeout_s - now, 0.0)
        due = max(self._began + self.interval_s, self._ended + self.min_pause_s)
        return 0.0 if self._wanted else max(due - now, 0.0)

    def tick(self, now: float, wall_ms: int) -> list[Out]:
        """Trigger what is due, and give up what takes too long."""
        outs: list[Out] = []
        if self.in_progress is not None and not self._storing:
            self.history[-1].duration_s = now - self._began
            if self.next_due(now) == 0.0:
                silent = sorted(self.waiting_for())
                outs += self._end(
                    f"checkpoint {self.in_progress} expired: {len(silent)} of {len(self.tasks)} tasks had not "
                    f"acknowledged it after {self.timeout_s:g} s: {str(silent)[1:-1]:.200}",
                    now,
                )
        if self.in_progress is None and self.next_due(now) == 0.0:
            self._last += 1
            self.in_progress, self._began = self._last, now
            self.history.append(Attempt(self._last, wall_ms, self._wanted == "final"))
            self._wanted = ""
            outs.append(Trigger(self._last, wall_ms, self.history[-1].final))
        return outs

    def trigger(self, now: float, wall_ms: int, final: bool = False) -> list[Out]:
        """Trigger one now; if another is in progress, :meth:`tick` does when that has ended.

        Parameters
        ----------
        final
            It is the last one: none is triggered behind it, and if it fails, it is tried again.
        """
        if self._over or (self.in_progress is not None and self.history[-1].final):
            return []
        self._wanted = "final" if final else self._wanted or "one"
        return self.tick(now, wall_ms)

    def acknowledge(self, task: int, checkpoint: int, ack: dict[str, Any], now: float) -> list[Out]:
        """A task's part is durable. What comes late, or again, does nothing.

        Parameters
        ----------
        ack
            What the checkpoint keeps of the task.
        """
        if not self._is_collecting(task, checkpoint):
            return []
        attempt = self.history[-1]
        attempt.acks.setdefault(task, ack)
        attempt.duration_s = now - self._began
        if self.waiting_for():
            return []
        self._storing = True
        return [Store(checkpoint, dict(attempt.acks), attempt.final)]

    def decline(self, task: int, checkpoint: int, reason: str, now: float) -> list[Out]:
        """A task cannot take part. What comes late does nothing."""
        if not self._is_collecting(task, checkpoint):
            return []
        return self._end(f"task {task} declined checkpoint {checkpoint}: {reason}", now)

    def stored(self, checkpoint: int, now: float) -> list[Out]:
        """The metadata stand in their place."""
        if not self._storing or checkpoint != self.in_progress:
            return []
        self.completed, self.failures = checkpoint, 0
        return self._end("", now)

    def store_failed(self, checkpoint: int, reason: str, now: float) -> list[Out]:
        """The metadata do not stand. If that is not certain, end the run instead: the checkpoint may be restored."""
        if not self._storing or checkpoint != self.in_progress:
            return []
        return self._end(f"checkpoint {checkpoint} could not be stored: {reason}", now)

    def _is_collecting(self, task: int, checkpoint: int) -> bool:
        if task not in self.tasks:
            raise ConfigError(f"task is {task!r:.80}: there are tasks {sorted(self.tasks)!s:.200}")
        return checkpoint == self.in_progress and not self._storing

    def _end(self, reason: str, now: float) -> list[Out]:
        """The one in progress has failed for this reason, or is complete if there is none."""
        attempt = self.history[-1]
        attempt.duration_s, attempt.reason, attempt.state = (
            now - self._began,
            reason,
            "failed" if reason else "completed",
        )
        self.in_progress, self._storing = None, False
        if not reason:
            self._ended, self._over = now, attempt.final
            return [Complete(attempt.id, attempt.final)]
        if attempt.final:
            self._wanted = "final"
        self.failures += 1
        if self.failures <= self.tolerated:
            return [Abort(attempt.id, reason)]
        self._over = True
        message = f"{self.failures} checkpoints failed in a row, {self.tolerated} are tolerated; the last one: {reason}"
        return [Abort(attempt.id, reason), Fail(message)]
