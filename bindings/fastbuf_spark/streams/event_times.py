"""Event time in a task: the watermark of a source's splits, or of a gate's channels, and what of it is sent on.

A function may keep rows back until its input ends.  A watermark that overtook them would make them late, so behind
users' functions it goes on only where their output is drained: at a barrier, and each ``DRAIN_S``.
"""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbuf.errors import RecordError
from fastbuf.event_time.valve import Status, WatermarkValve
from fastbuf.event_time.watermarks import MAX, MIN, SplitWatermarks, Strategy
from fastbuf.exchange.events import Event, Watermark, WatermarkStatus
from fastbuf_spark.results import about

if TYPE_CHECKING:
    import pyarrow as pa

EVERY_S = 0.05  #: least time between two watermarks of a source
#: The same behind a user's function: for each watermark its input ends, and the function is called anew
DRAIN_S = 1.0


@dataclass(frozen=True)
class TimeSpec:
    """What ``with_watermark`` asks for.

    Attributes
    ----------
    column
        Of event times.
    idle_s
        A split without rows for so long holds nothing back; None: never.
    rule
        "split": the least watermark of the splits.  "spark": see :class:`SparkTime`.
    align_ms
        A split that is further ahead of the least watermark of all sources is not read; None: all are.
    arrives
        The column, where the source adds it with the times of arrival: see :class:`ArrivalTime`.
    """

    column: str
    strategy: Strategy
    idle_s: float | None
    rule: str = "split"
    align_ms: int | None = None
    arrives: pa.Field | None = None


@dataclass(frozen=True)
class Marks:
    """What a user's function says of a batch, for :class:`~fastbuf.event_time.watermarks.Punctuated`."""

    func: Callable[[pa.RecordBatch], Any]

    def __call__(self, times: NDArray[np.int64], batch: pa.RecordBatch) -> int | None:
        import pyarrow as pa

        mark = self.func(batch)
        if isinstance(mark, dt.datetime):
            mark = pa.scalar(
                mark if mark.tzinfo is not None else mark.replace(tzinfo=dt.UTC), pa.timestamp("us", "UTC")
            )
        if mark is None or (isinstance(mark, pa.Scalar) and not mark.is_valid):
            return None
        if not isinstance(mark, pa.TimestampScalar):
            raise RecordError(
                f"{about(self.func)} must return a watermark, which is a datetime or a timestamp of pyarrow, or None; "
                f"it returned {mark!r:.100} ({type(mark).__name__})"
            )
        micros = mark.cast(pa.timestamp("us", mark.type.tz), safe=False).value
        return max((micros - 999) // 1000, MIN + 1)  # a watermark includes all microseconds of its millisecond


class _News:
    """What the next stage knows of the watermark, and what it is to be told."""

    def __init__(self, last_mark: int = MIN) -> None:
        self.mark = self._last_mark = last_mark
        self.idle = self._last_idle = False

    @property
    def is_due(self) -> bool:
        return self.mark > self._last_mark or self.idle != self._last_idle

    def take(self) -> list[Event]:
        events: list[Event] = []
        if self._last_idle and (not self.idle or self.mark > self._last_mark):
            events.append(WatermarkStatus(idle=False))
            self._last_idle = False
        if self.mark > self._last_mark:
            events.append(Watermark(self.mark))
            self._last_mark = self.mark
        if self.idle and not self._last_idle:
            events.append(WatermarkStatus(idle=True))
            self._last_idle = True
        return events

    def figures(self) -> dict[str, Any]:
        return {} if self.mark in (MIN, MAX) else {"watermark_ms": self.mark}


def millis(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    """The times of a column, without nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = batch.column(name)
    if column.null_count:
        column = pc.drop_null(column)
    try:
        micros = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise RecordError(f"column {name!r} has a time that is out of range: {error}") from error
    return np.asarray(micros // 1000)


class SourceTime:
    """The watermark of a source's task; without a specification there is none.

    Parameters
    ----------
    restored
        By task, what the tasks of the checkpoint kept.
    stage
        Name of the source's stage.
    place
        Which of its tasks this is, and how many there are.
    """

    def __init__(
        self, spec: TimeSpec | None, restored: Mapping[str, Any], stage: str, place: tuple[int, int] = (0, 0)
    ) -> None:
        self._spec = spec
        self._stage = stage
        tasks = [restored[task] for task in sorted(restored, key=int)]
        self._states = [each["splits"] for each in tasks if each.get("stage") == stage and "splits" in each]
        self._own = self._states[place[0]] if 0 < len(self._states) == place[1] else None
        self._marks = None if spec is None else SplitWatermarks(spec.strategy, spec.idle_s)
        self._column = "" if spec is None else spec.column
        self._news = _News()
        self._looked = 0.0
        self._restored = False
        self.waiting: Callable[[], Iterable[str]] = tuple  #: the splits that are not read yet; the task sets it
        #: Of the column with times, the least ones of splits that are new since; the task sets it
        self.least: Callable[[str], Mapping[str, int]] = lambda column: {}
        self._paused: list[str] = []
        # A task without splits is not idle before: it may yet get older rows than all others.  Nor is one of a source
        # that has had no split at all, for as long as a split may be without rows.
        self._listed_at = math.inf
        self._any_yet = False
        self.others = MAX  # the least watermark of the other tasks that are aligned, as the driver told last

    def listed(self, any_yet: bool) -> None:
        """The source has been listed; whether it has had a split, for any task."""
        self._listed_at = min(self._listed_at, time.monotonic())
        self._any_yet |= any_yet

    def _may_be_idle(self, now: float) -> bool:
        if self._any_yet:
            return self._listed_at < math.inf
        idle_s = None if self._spec is None else self._spec.idle_s
        return idle_s is not None and now - self._listed_at >= idle_s

    def assign(self, splits: Iterable[str]) -> None:
        """Further splits; the first call has those that were restored."""
        if self._marks is None:
            return
        names = list(splits)
        if self._states and not self._restored:
            self._marks.restore(self._states, names, self._own)
        for name in names:
            self._marks.open(name, time.monotonic())
        self._restored = True

    def remove(self, split: str) -> None:
        """A split has ended."""
        if self._marks is not None:
            self._marks.remove(split)

    def finish(self) -> None:
        """All rows are read: time ends."""
        if self._marks is not None:
            self._news.mark, self._news.idle = MAX, False

    def rows(self, split: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of a split pass: they go on as this returns them."""
        if self._marks is not None and self._spec is not None:
            self._marks.add(split, millis(batch, self._spec.column), time.monotonic(), batch)
        return batch

    def epoch(self, greatest: int | None) -> None:
        """A barrier is due; the greatest time of all tasks up to the one before is for :class:`SparkTime`."""

    def paused(self) -> list[str]:
        """The splits that are so far ahead that they wait for the others, by the rule of Flink's alignment."""
        if self._marks is None or self._spec is None or self._spec.align_ms is None:
            return []
        mark, idle = self._marks.current(time.monotonic())
        own = MAX if idle else MIN if mark is None else mark
        self._paused = self._marks.paused(self._spec.align_ms, min(own, self.others))
        return self._paused

    def look(self, at_once: bool = False) -> bool:
        """Whether there is something to tell."""
        if self._marks is None or self._news.mark == MAX:
            return self._news.is_due
        now = time.monotonic()
        if at_once or now - self._looked >= EVERY_S:
            self._looked = now
            self._marks.wait(self.waiting())
            for split, least in self.least(self._column).items():
                self._marks.expect(split, least)
            mark, idle = self._marks.current(now)
            self._news.idle = idle and self._may_be_idle(now)
            if mark is not None and mark != MAX:
                self._news.mark = max(self._news.mark, mark)
        return self._news.is_due

    def news(self) -> list[Event]:
        """The events that the next stage has not been sent yet."""
        return self._news.take()

    def snapshot(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {} if self._marks is None else {"stage": self._stage, "splits": self._marks.state()}

    def figures(self) -> dict[str, Any]:
        """What is seen of it."""
        figures = self._news.figures()
        if self._marks is not None and not self._news.idle and self._news.mark != MAX:
            figures["held_by"] = self._marks.holding() or ""  # it has no split yet, and waits for one
        if self._news.idle:
            figures["idle"] = True
        if self._paused:
            figures["paused_splits"] = len(self._paused)
        return figures


class SparkTime(SourceTime):
    """Spark's rule: the greatest time of all tasks less the delay, at the end of an epoch, for the next one.

    Spark drops the rows of a batch by the watermark of the batch before, and then drops windows by its own
    (``eventTimeWatermarkForLateEvents`` and ``ForEviction``).  So the watermark that all rows up to an epoch give is
    sent behind the rows of the next one.
    """

    def __init__(self, spec: TimeSpec, restored: Mapping[str, Any], stage: str) -> None:
        super().__init__(None, {}, stage)
        self._times = spec
        before = [each["greatest"] for each in restored.values() if each.get("stage") == stage and "greatest" in each]
        self._greatest = max(before, default=MIN)

    def finish(self) -> None:
        self._news.mark = MAX

    def rows(self, split: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        times = millis(batch, self._times.column)
        if len(times):
            self._greatest = max(self._greatest, int(times.max()))
        return batch

    def epoch(self, greatest: int | None) -> None:
        if greatest is not None:
            mark = self._times.strategy.of(np.array([greatest]), None)
            self._news.mark = max(self._news.mark, MIN if mark is None else mark)

    def snapshot(self) -> dict[str, Any]:
        return {} if self._greatest == MIN else {"stage": self._stage, "greatest": self._greatest}


class ArrivalTime(SourceTime):
    """The time at which rows come: it goes on by the clock, with rows or without, and never back."""

    def __init__(self, spec: TimeSpec, restored: Mapping[str, Any], stage: str) -> None:
        super().__init__(None, {}, stage)
        self._field = spec.arrives
        # Of all tasks: a split may have been read by another one, on a machine whose clock is ahead
        own = (each for each in restored.values() if each.get("stage") == stage)
        self._last_us = max((each.get("arrival_us", 0) for each in own), default=0)  # none: its rows had times before

    def _now_us(self) -> int:
        self._last_us = max(self._last_us, time.time_ns() // 1000)
        return self._last_us

    def finish(self) -> None:
        self._news.mark = MAX

    def rows(self, split: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        assert self._field is not None
        times = pa.array(np.full(batch.num_rows, self._now_us())).cast(self._field.type)
        return pa.RecordBatch.from_arrays([*batch.columns, times], schema=batch.schema.append(self._field))

    def look(self, at_once: bool = False) -> bool:
        now = time.monotonic()
        if self._news.mark != MAX and (at_once or now - self._looked >= EVERY_S):
            self._looked = now
            self._news.mark = max(self._news.mark, self._now_us() // 1000 - 1)
        return self._news.is_due

    def snapshot(self) -> dict[str, Any]:
        return {"stage": self._stage, "arrival_us": self._last_us}


def source_time(
    spec: TimeSpec | None, restored: Mapping[str, Any], stage: str, place: tuple[int, int] = (0, 0)
) -> SourceTime:
    """The watermark of a source's task by the rule that is asked for."""
    if spec is not None and spec.arrives is not None:
        return ArrivalTime(spec, restored, stage)
    if spec is not None and spec.rule == "spark":
        return SparkTime(spec, restored, stage)
    return SourceTime(spec, restored, stage, place)


class GateTime:
    """The watermark of a task behind a gate."""

    def __init__(self, channels: int, restored: Mapping[str, Any], stage: str) -> None:
        #: What the tasks of the checkpoint kept
        self.restored = [each for each in restored.values() if each.get("stage") == stage and "mark" in each]
        mark = min((int(each["mark"]) for each in self.restored), default=MIN)
        self._stage = stage
        self._valve = WatermarkValve(channels, mark)
        self._news = _News(mark)

    def _out(self, changes: list[int | Status]) -> int | None:
        moved = None
        for change in changes:
            if isinstance(change, Status):
                self._news.idle = change is Status.IDLE
            else:
                moved = self._news.mark = change
        return moved

    def watermark(self, channel: int, time_ms: int) -> int | None:
        """A channel's watermark; the task's own, if that moves it."""
        return self._out(self._valve.watermark(channel, time_ms))

    def status(self, channel: int, idle: bool) -> int | None:
        """A channel has no rows for now, or has some again."""
        return self._out(self._valve.status(channel, idle))

    def end(self, channel: int) -> int | None:
        """A channel's rows are all read."""
        return self._out(self._valve.end(channel))

    def look(self, at_once: bool = False) -> bool:
        """Whether there is something to tell."""
        return self._news.is_due

    def news(self) -> list[Event]:
        """The events that the next stage has not been sent yet."""
        return self._news.take()

    def snapshot(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {} if self._valve.last in (MIN, MAX) else {"stage": self._stage, "mark": self._valve.last}

    def figures(self) -> dict[str, Any]:
        """What is seen of it."""
        figures = self._news.figures()
        if not self._news.idle and (channels := self._valve.holding()):
            figures["held_by_channel"] = channels[0]
        return figures
