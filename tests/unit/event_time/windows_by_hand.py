"""The window operator as its rules are told, one row and one window after the other: slow, and plain to read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HALF_HOUR = 1800 * 10**6
MIN, MAX = -(1 << 63), (1 << 63) - 1

Row = tuple[Any, int, Any]  # key, time, value


def clock(time: int, zone: ZoneInfo) -> int:
    """What clocks show, in microseconds since they showed 1970."""
    shown = (EPOCH + timedelta(microseconds=time)).astimezone(zone)
    return (shown.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


@cache
def first_shown(local: int, zone: ZoneInfo) -> int:
    """The first half of an hour from which on no clock shows less: where they are put back, the time before counts."""
    time = local // HALF_HOUR * HALF_HOUR - 30 * HALF_HOUR
    while any(clock(time + n * HALF_HOUR, zone) < local for n in range(6)):
        time += HALF_HOUR
    return time


@dataclass(frozen=True)
class Spec:
    """What windows, and when: sizes in microseconds."""

    kind: str  # tumbling, sliding, local, session, global
    size: int = 0
    slide: int = 0
    offset: int = 0
    zone: str = ""
    lateness: int = 0
    rows: int | None = None
    every_ms: int | None = None
    every_us: int | None = None
    accumulate: bool = True
    mode: str = "append"

    @property
    def early(self) -> bool:
        return self.rows is not None or self.every_ms is not None or self.every_us is not None

    def windows(self, time: int) -> list[tuple[int, int]]:
        if self.kind == "global":
            return [(MIN, MAX)]
        if self.kind == "local":
            zone = ZoneInfo(self.zone)
            last = (clock(time, zone) - self.offset) // self.slide * self.slide + self.offset + self.slide
            labels = range(last, last - self.size - 3 * self.slide, -self.slide)
            bounds = [(first_shown(label, zone), first_shown(label + self.size, zone)) for label in labels]
            return [(start, end) for start, end in bounds if start <= time < end]
        start = self.offset + math.floor(Fraction(time - self.offset, self.slide)) * self.slide
        found = []
        while start + self.size > time:
            found.append((start, start + self.size))
            start -= self.slide
        return found


@dataclass
class Content:
    rows: list[Row] = field(default_factory=list)
    new: int = 0  # rows since it fired


class ByHand:
    """Events in, lists of (key, start, end, rows) out."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.state: dict[tuple[Any, int, int], Content] = {}
        self.watermark = MIN
        self.late: list[Row] = []
        self.out: list[tuple[Any, int, int, list[Row]]] = []
        self.since = 0
        self.late_in = False
        self.ticked: int | None = None

    # ---- rules

    def ended(self, end: int) -> bool:
        return end - 1 <= self.watermark

    def cleaned_at(self, end: int) -> int:
        return MAX if self.spec.mode == "complete" else min(end - 1 + self.spec.lateness, MAX)

    def over(self, end: int) -> bool:
        return self.spec.mode != "complete" and self.cleaned_at(end) <= self.watermark

    @property
    def once(self) -> bool:
        return self.spec.mode == "append" and self.spec.accumulate

    def fire(self, window: tuple[Any, int, int]) -> None:
        content = self.state[window]
        if content.rows:
            self.out.append((*window, list(content.rows)))
        content.new = 0
        if not self.spec.accumulate:
            content.rows.clear()

    def fire_all(self) -> None:
        self.since, self.late_in = 0, False
        for window in self.state:
            if self.spec.early or self.ended(window[2]):
                self.fire(window)

    # ---- events

    def rows(self, rows: list[Row]) -> None:
        if not rows:
            return
        spec = self.spec
        touched = self.sessions(rows) if spec.kind == "session" else self.aligned(rows)
        if spec.mode == "complete":
            self.late_in |= any(self.ended(window[2]) for window in touched)
            if spec.rows is not None and self.since >= spec.rows:
                self.fire_all()
            return
        for window in touched:
            if self.ended(window[2]):
                if not self.once:
                    self.fire(window)
            elif spec.rows is not None and self.state[window].new >= spec.rows:
                self.fire(window)

    def aligned(self, rows: list[Row]) -> set[tuple[Any, int, int]]:
        touched = set()
        for row in rows:
            key, time, _ = row
            windows = [(key, *window) for window in self.spec.windows(time) if not self.over(window[1])]
            if not windows:
                if time + self.spec.lateness <= self.watermark and self.spec.mode != "complete":
                    self.late.append(row)
                continue
            for window in windows:
                content = self.state.setdefault(window, Content())
                content.rows.append(row)
                content.new += 1
                self.since += 1
            touched.update(windows)
        return touched

    def sessions(self, rows: list[Row]) -> set[tuple[Any, int, int]]:
        fresh: list[tuple[Any, int, int, Content, bool]] = []
        for row in rows:
            fresh.append((row[0], row[1], row[1] + self.spec.size, Content([row], 1), True))
        self.since += len(rows)
        all_ = [(*window, content, False) for window, content in self.state.items()] + fresh
        merged: list[tuple[Any, int, int, Content, bool]] = []
        for one in all_:  # what touches one of the merged joins it, until nothing does
            key, start, end, content, new = one
            again = True
            while again:
                again = False
                for other in merged:
                    if other[0] == key and start <= other[2] and end >= other[1]:
                        merged.remove(other)
                        start, end, new = min(start, other[1]), max(end, other[2]), new or other[4]
                        content = Content(other[3].rows + content.rows, other[3].new + content.new)
                        again = True
                        break
            merged.append((key, start, end, content, new))
        self.state, touched = {}, set()
        for key, start, end, content, new in merged:
            if self.over(end):
                self.late += content.rows
                continue
            self.state[key, start, end] = content
            if new:
                touched.add((key, start, end))
        return touched

    def advance(self, watermark: int) -> None:
        if watermark <= self.watermark:
            return
        before, self.watermark = self.watermark, watermark
        spec = self.spec
        due = []
        for window in self.state:
            at = self.cleaned_at(window[2]) if self.once else window[2] - 1
            if before < at <= watermark:
                due.append(window)
        if spec.mode == "complete":
            if due or self.late_in:
                self.fire_all()
        else:
            for window in due:
                self.fire(window)
            for window in [w for w in self.state if self.over(w[2])]:
                del self.state[window]
        if spec.every_us is not None and watermark // spec.every_us > before // spec.every_us:
            self.tick()

    def processing_time(self, now_ms: int) -> None:
        if self.spec.every_ms is None:
            return
        if self.ticked is None:
            self.ticked = now_ms
        if now_ms - self.ticked >= self.spec.every_ms:
            self.ticked = now_ms
            self.tick()

    def tick(self) -> None:
        if self.spec.mode == "complete":
            if self.since:
                self.fire_all()
            return
        for window, content in self.state.items():
            if content.new and not self.ended(window[2]):
                self.fire(window)
