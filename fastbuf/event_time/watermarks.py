"""Watermarks of a source: one for each split, and their minimum.

A watermark of w says: no row of w or before it is to be expected.  Times are milliseconds since 1970 here, as in
Flink's watermarks; clocks are seconds, and always an argument.  Rules: Flink's ``BoundedOutOfOrdernessWatermarks``,
``WatermarksWithIdleness``, ``WatermarkOutputMultiplexer`` and ``SourceCoordinator``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastbuf.checks import seconds_or_none, whole

MIN = -(1 << 63)  #: the watermark before the first one
MAX = (1 << 63) - 1  #: the watermark behind the last row: all is over
MOST_MS = MAX // 1000 - 1


def in_microseconds(watermark_ms: int) -> int:
    """The same watermark in microseconds: that of the last microsecond in its millisecond."""
    if watermark_ms >= MOST_MS:
        return MAX
    return MIN if watermark_ms <= -MOST_MS else watermark_ms * 1000 + 999


class Strategy(Protocol):
    """How far rows bring the watermark of their split."""

    def of(self, times: NDArray[np.int64], batch: Any) -> int | None:
        """The watermark behind these rows, of which there is one at least; None: they do not say."""


@dataclass(frozen=True)
class BoundedOutOfOrderness:
    """Rows come at most `delay_ms` behind the greatest time before them: the greatest time - delay - 1."""

    delay_ms: int

    def __post_init__(self) -> None:
        whole("delay_ms", self.delay_ms, 0, MOST_MS)

    def of(self, times: NDArray[np.int64], batch: Any) -> int | None:
        return max(int(times.max()) - self.delay_ms - 1, MIN + 1)


@dataclass(frozen=True)
class Monotonous(BoundedOutOfOrderness):
    """Times never fall within a split."""

    delay_ms: int = 0


@dataclass(frozen=True)
class Punctuated:
    """The rows themselves say it.

    Parameters
    ----------
    func
        Takes the times and the batch; returns a watermark, or None.
    """

    func: Callable[[NDArray[np.int64], Any], int | None]

    def of(self, times: NDArray[np.int64], batch: Any) -> int | None:
        watermark = self.func(times, batch)
        return None if watermark is None else whole("the watermark", watermark, MIN, MAX)


@dataclass
class _Split:
    watermark: int = MIN
    rows_at: float | None = None  # when rows came last; None: the clock starts with the next question


@dataclass
class SplitWatermarks:
    """The watermark of a source task: the least of its splits that are not idle.  It never falls.

    Parameters
    ----------
    strategy
        As :class:`BoundedOutOfOrderness`.
    idle_s
        A split without rows for so long is idle: it holds nothing back.  None: never.  When all have ended, the last
        one's place is kept for as long: another may come, as of files.
    """

    strategy: Strategy
    idle_s: float | None = None
    _splits: dict[str, _Split] = field(default_factory=dict)
    _emitted: int = MIN
    _passed: int = MIN  # the greatest watermark of a split that has ended
    _ended_at: float | None = None  # when the last one did; None: the clock starts with the next question
    _ended: str | None = None  # the name of the split that ended last
    _complete: bool = False
    _waiting: frozenset[str] = frozenset()  # splits whose turn has not come
    _paused: frozenset[str] = frozenset()  # splits that are too far ahead
    _holding: str | None = None

    def __post_init__(self) -> None:
        seconds_or_none("idle_s", self.idle_s, 0)

    def open(self, split: str, now: float) -> None:
        """A split from which rows are to come: until they do, it holds the watermark back."""
        self._splits.setdefault(split, _Split(rows_at=now))

    def add(self, split: str, times: NDArray[np.int64], now: float, batch: Any = None) -> None:
        """Rows of a split.

        Parameters
        ----------
        times
            Their times, without nulls; rows without a time count as rows all the same: give an empty array.
        now
            Seconds of any clock that does not go back.
        batch
            The rows, for :class:`Punctuated`.
        """
        state = self._splits.setdefault(split, _Split())
        state.rows_at = now
        mark = self.strategy.of(times, batch) if len(times) else None
        if mark is not None:
            state.watermark = max(state.watermark, mark)

    def remove(self, split: str) -> None:
        """The split has ended: it counts as :data:`MAX`."""
        state = self._splits.pop(split, None)
        if state is not None:
            self._passed = max(self._passed, state.watermark)
            self._ended, self._ended_at = split, None

    def finish(self) -> None:
        """No further split will come: when all have ended, so has time (:data:`MAX`)."""
        self._complete = True

    def blocked(self, for_s: float) -> None:
        """The task could not read for so long: the clocks of idleness stood still."""
        for state in self._splits.values():
            if state.rows_at is not None:
                state.rows_at += for_s
        if self._ended_at is not None:
            self._ended_at += for_s

    def current(self, now: float) -> tuple[int | None, bool]:
        """The watermark, None before the first; and whether the task is idle.

        A task that never had a split is idle at once: it must not hold back the others.  One whose splits have all
        ended is so after ``idle_s``: rows of the next one are not late because another source is faster.
        """
        active = []
        for name, state in self._splits.items():
            if state.rows_at is None or name in self._waiting or name in self._paused:
                state.rows_at = now
            if self.idle_s is None or now - state.rows_at < self.idle_s:
                active.append((state.watermark, name))
        least, self._holding = min(active, default=(MIN, None))
        waits = False
        if not self._splits:
            least = MAX if self._complete else self._passed
            if self._ended_at is None:
                self._ended_at = now
            had = self._ended is not None or self._passed != MIN
            waits = had and (self.idle_s is None or now - self._ended_at < self.idle_s)
            self._holding = self._ended if waits else None
        self._emitted = max(self._emitted, least)
        mark = None if self._emitted == MIN else self._emitted
        return mark, not active and not waits and self._emitted != MAX

    def holding(self) -> str | None:
        """The split that held the watermark back when it was asked for last."""
        return self._holding

    def watermarks(self) -> dict[str, int | None]:
        """The watermark of each split; None before its first."""
        return {name: None if state.watermark == MIN else state.watermark for name, state in self._splits.items()}

    def expect(self, split: str, least_ms: int) -> None:
        """No row of a split has a time before this one: then it holds back what is later alone, even if unread."""
        if split in self._splits:
            state = self._splits[split]
            state.watermark = max(state.watermark, min(least_ms - 1, MAX - 1))

    def wait(self, splits: Iterable[str]) -> None:
        """These are not read now: each holds the watermark back, and is not idle, however long that takes."""
        self._waiting = frozenset(splits)

    def paused(self, max_drift_ms: int, minimum: int | None) -> list[str]:
        """The splits that should not be read now, as they are more than `max_drift_ms` ahead of `minimum`.

        Parameters
        ----------
        minimum
            The least watermark of all tasks of all sources in the group, as they told last; None: one has none yet.
            A task that is idle does not count.

        Notes
        -----
        A split that is paused is not idle, however long that takes.
        """
        whole("max_drift_ms", max_drift_ms, 0, MAX)
        most = min((MIN if minimum is None else minimum) + max_drift_ms, MAX)
        self._paused = frozenset(name for name, state in self._splits.items() if state.watermark > most)
        return sorted(self._paused)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: JSON values."""
        return {
            "emitted": self._emitted,
            "passed": self._passed,
            "complete": self._complete,
            "splits": {name: state.watermark for name, state in self._splits.items()},
        }

    def restore(
        self,
        states: Iterable[Mapping[str, Any]],
        splits: Iterable[str] | None = None,
        own: Mapping[str, Any] | None = None,
    ) -> None:
        """Go on from the states of one task or of several; splits: those that are this task's now, None: all.

        With other splits than before, the watermark starts anew from theirs.  A task without one goes on from the last
        that it had (``own``: its state); where nobody knows which that is, as the number of tasks is another, from the
        least of all: rows that come next may be of the slowest.
        """
        states = list(states)
        before = {name: int(mark) for state in states for name, mark in state["splits"].items()}
        mine = set(before) if splits is None else set(splits)
        self._splits = {name: _Split(before.get(name, MIN)) for name in sorted(mine)}
        passed = [int(state["passed"]) for state in (states if own is None else [own])]
        self._passed = min((at for at in passed if at != MIN), default=MIN)
        self._complete = all(state["complete"] for state in states) and bool(states)
        self._emitted = min((int(state["emitted"]) for state in states), default=MIN)
