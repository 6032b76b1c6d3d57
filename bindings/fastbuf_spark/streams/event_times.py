"""Event time in a task: the watermark of a source's splits, or of a gate's channels, and what of it is sent on.

A function may keep rows back until its input ends.  A watermark that overtook them would make them late, so behind
users' functions it goes on only where their output is drained: at a barrier, and each ``DRAIN_S``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf.errors import RecordError
from fastbuf.event_time.valve import Status, WatermarkValve
from fastbuf.event_time.watermarks import MAX, MIN, SplitWatermarks, Strategy
from fastbuf.exchange.events import Event, Watermark, WatermarkStatus

if TYPE_CHECKING:
    import pyarrow as pa

EVERY_S = 0.05  #: a source sends its watermark this often at most
DRAIN_S = 1.0  #: and behind users' functions


@dataclass(frozen=True)
class TimeSpec:
    """What ``with_watermark`` asks for.

    Attributes
    ----------
    column
        Of event times.
    idle_s
        A split without rows for so long holds nothing back; None: never.
    """

    column: str
    strategy: Strategy
    idle_s: float | None


class _News:
    """What the next stage knows of the watermark, and what it is to be told."""

    def __init__(self, told: int = MIN) -> None:
        self.mark = self._told = told
        self.idle = self._told_idle = False

    @property
    def is_due(self) -> bool:
        return self.mark > self._told or self.idle != self._told_idle

    def take(self) -> list[Event]:
        made: list[Event] = []
        if self._told_idle and (not self.idle or self.mark > self._told):
            made.append(WatermarkStatus(idle=False))
            self._told_idle = False
        if self.mark > self._told:
            made.append(Watermark(self.mark))
            self._told = self.mark
        if self.idle and not self._told_idle:
            made.append(WatermarkStatus(idle=True))
            self._told_idle = True
        return made

    def figures(self) -> dict[str, Any]:
        return {} if self.mark in (MIN, MAX) else {"watermark_ms": self.mark}


class SourceTime:
    """The watermark of a source's task; without a specification there is none.

    Parameters
    ----------
    restored
        By task, what the tasks of the checkpoint kept.
    stage
        Name of the source's stage.
    """

    def __init__(self, spec: TimeSpec | None, restored: Mapping[str, Any], stage: str) -> None:
        self._spec = spec
        self._stage = stage
        self._states = [each["splits"] for each in restored.values() if each.get("stage") == stage]
        self._marks = None if spec is None else SplitWatermarks(spec.strategy, spec.idle_s)
        self._news = _News()
        self._looked = 0.0
        self._restored = False
        self.waiting: Callable[[], Iterable[str]] = tuple  #: the splits that are not read yet; the task sets it

    def assign(self, splits: Iterable[str]) -> None:
        """Further splits; the first call has those that were restored."""
        if self._marks is None:
            return
        names = list(splits)
        if self._states and not self._restored:
            self._marks.restore(self._states, names)
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

    def rows(self, split: str, batch: pa.RecordBatch) -> None:
        """Rows of a split pass."""
        if self._marks is None or self._spec is None:
            return
        import pyarrow as pa
        import pyarrow.compute as pc

        column = batch.column(self._spec.column)
        if column.null_count:
            column = pc.drop_null(column)
        try:
            micros = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64()).to_numpy()
        except pa.ArrowInvalid as error:
            raise RecordError(f"column {self._spec.column!r} has a time that is out of range: {error}") from error
        self._marks.add(split, micros // 1000, time.monotonic(), batch)

    def look(self, at_once: bool = False) -> bool:
        """Whether there is something to tell."""
        if self._marks is None or self._news.mark == MAX:
            return self._news.is_due
        now = time.monotonic()
        if at_once or now - self._looked >= EVERY_S:
            self._looked = now
            self._marks.wait(self.waiting())
            mark, self._news.idle = self._marks.current(now)
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
        made = self._news.figures()
        if self._marks is not None and (name := self._marks.holding()):
            made["held_by"] = name
        return made


class GateTime:
    """The watermark of a task behind a gate."""

    def __init__(self, channels: int, restored: Mapping[str, Any], stage: str) -> None:
        marks = [int(each["mark"]) for each in restored.values() if each.get("stage") == stage and "mark" in each]
        self.restored = min(marks, default=MIN)
        self._stage = stage
        self._valve = WatermarkValve(channels, self.restored)
        self._news = _News(self.restored)

    def _out(self, made: list[int | Status]) -> int | None:
        moved = None
        for each in made:
            if isinstance(each, Status):
                self._news.idle = each is Status.IDLE
            else:
                moved = self._news.mark = each
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
        made = self._news.figures()
        if made and (channels := self._valve.holding()):
            made["held_by"] = f"channel {channels[0]}"
        return made
