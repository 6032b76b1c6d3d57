"""Windows: which a row belongs to, for all rows of a batch at once.

All is in **microseconds** since 1970, as Spark's and Arrow's timestamps: sizes, slides, offsets, gaps, starts, ends.
A window has its start and not its end.  With a zone, sizes and slides are those of local clocks (:class:`Zone`).

A *label* names a window: where it starts, in local time.  A *pane* is a part that windows share: sliding windows of a
minute by ten seconds are made of panes of ten seconds, and a row is in one pane, not in six windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastbuf.checks import whole
from fastbuf.errors import ConfigError
from fastbuf.event_time.watermarks import MAX, MIN
from fastbuf.event_time.zones import Zone

Times = NDArray[np.int64]
MOST_US = 1 << 60  #: of sizes and gaps, and of times, before 1970 and after: 36,000 years
MOST_OVERLAP = 100_000  #: windows that one row may be in
MOST_SHIFT_US = 26 * 3_600_000_000  #: more than the time of any zone is from UTC


class Window(NamedTuple):
    """What a function is told of its window: start and end in microseconds since 1970; of a global one, None."""

    start: int | None
    end: int | None


@dataclass(frozen=True)
class Aligned:
    """Windows that start at multiples of `slide` from `offset` on, and last `size`: the base of two."""

    size: int
    slide: int
    offset: int
    zone: Zone | None

    def __post_init__(self) -> None:
        whole("size", self.size, 1, MOST_US)
        whole("slide", self.slide, 1, MOST_US)
        whole("offset", self.offset, 1 - self.slide, self.slide - 1)
        if self.size > self.slide * MOST_OVERLAP:
            raise ConfigError(
                f"windows of {self.size} us by {self.slide} us: a row would be in {-(-self.size // self.slide)} of "
                f"them; at most {MOST_OVERLAP}: make the slide longer"
            )

    @property
    def pane(self) -> int:
        """Length of a pane."""
        return gcd(self.size, self.slide)

    def local(self, times: Times) -> Times:
        return times if self.zone is None else self.zone.local(times)

    def panes(self, times: Times) -> Times:
        """The label of the pane of each time.  Floor division: right before 1970, too."""
        local = self.local(times)
        return local - (local - self.offset) % self.pane

    def last_windows(self, panes: Times) -> Times:
        """The label of the last window that may have each pane; with a slide beyond the size, it may end before."""
        return panes - (panes - self.offset) % self.slide

    def windows(self, panes: Times) -> tuple[NDArray[np.intp], Times]:
        """All pairs of a pane and a window that it is in: index of the pane, label of the window; in this order."""
        overlap = -(-self.size // self.slide)
        back = np.arange(overlap - 1, -1, -1, dtype=np.int64) * self.slide
        labels = self.last_windows(panes)[:, None] - back
        inside = labels + self.size > panes[:, None]
        return np.nonzero(inside)[0], labels[inside]

    def ended(self, panes: Times, before: int, now: int) -> Times:
        """The labels, in order, of the windows with one of these panes that end as the watermark rises to `now`.

        Others are not made: of an hour by a second each pane has 3,600.
        """
        margin = 0 if self.zone is None else MOST_SHIFT_US
        bounds = before + 1 - self.size - margin, now + 1 - self.size + margin  # of labels that end so
        least, most = (max(-4 * MOST_US, min(bound, 4 * MOST_US)) for bound in bounds)
        low, high = np.maximum(panes - self.size + 1, least), np.minimum(panes, most)
        first = -((self.offset - low) // self.slide)  # of the multiples of slide, rounded up
        counts = np.maximum((high - self.offset) // self.slide - first + 1, 0)
        ends = np.cumsum(counts)
        steps = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
        labels = np.unique((np.repeat(first, counts) + steps) * self.slide + self.offset)
        at = self.ends(labels) - 1
        return labels[(at > before) & (at <= now)]

    def starts(self, labels: Times) -> Times:
        """When the windows of these labels start."""
        return labels if self.zone is None else self.zone.instant(labels)

    def ends(self, labels: Times) -> Times:
        """When they end."""
        return self.starts(labels + self.size)


class Tumbling(Aligned):
    """Windows one after the other: each row is in one.

    Parameters
    ----------
    size
        In microseconds.
    offset
        Windows start at its multiples plus this.
    zone
        As ``"Europe/Berlin"``: sizes and offset are by local clocks.  A day is what clocks there call one, be it of 23
        or 25 hours.
    """

    def __init__(self, size: int, offset: int = 0, zone: str | None = None) -> None:
        super().__init__(size, size, offset, None if zone is None else Zone(zone))

    def __reduce__(self) -> tuple[type[Tumbling], tuple[int, int, str | None]]:
        return Tumbling, (self.size, self.offset, None if self.zone is None else self.zone.name)


class Sliding(Aligned):
    """Windows of `size`, one each `slide`: each row is in size / slide of them.

    Parameters
    ----------
    size, slide
        In microseconds.
    offset, zone
        As of :class:`Tumbling`.
    """

    def __init__(self, size: int, slide: int, offset: int = 0, zone: str | None = None) -> None:
        super().__init__(size, slide, offset, None if zone is None else Zone(zone))

    def __reduce__(self) -> tuple[type[Sliding], tuple[int, int, int, str | None]]:
        return Sliding, (self.size, self.slide, self.offset, None if self.zone is None else self.zone.name)


@dataclass(frozen=True)
class Session:
    """Rows of a key with less than `gap` between them, or just that: a row is a window of `gap`, and windows that
    touch are one."""

    gap: int

    def __post_init__(self) -> None:
        whole("gap", self.gap, 1, MOST_US)


@dataclass(frozen=True)
class Global:
    """One window for all; it fires by triggers, and at the end of the stream."""

    def panes(self, times: Times) -> Times:
        return np.zeros(len(times), np.int64)

    def starts(self, labels: Times) -> Times:
        return np.full(len(labels), MIN, np.int64)

    def ends(self, labels: Times) -> Times:
        return np.full(len(labels), MAX, np.int64)


def order_of(columns: list[NDArray[np.int64]], stable: bool = False) -> NDArray[np.intp]:
    """The order of rows by these numbers, the first of which counts most; stable: equal rows stay as they are."""
    kind: Literal["stable"] | None = "stable" if stable else None
    spans = [(int(column.min()), int(column.max()) - int(column.min()) + 1) for column in columns]
    columns = [column for column, (_, span) in zip(columns, spans, strict=True) if span > 1] or columns[:1]
    spans = [(low, span) for low, span in spans if span > 1]
    if len(columns) == 1:
        return np.argsort(columns[0], kind=kind)
    if prod(span for _, span in spans) >= MAX:
        return np.lexsort(columns[::-1])
    # One number for each row: NumPy sorts these several times as fast
    codes = np.zeros(len(columns[0]), np.int64)
    for column, (low, span) in zip(columns, spans, strict=True):
        codes = codes * span + (column - low)
    return np.argsort(codes, kind=kind)


def sessions(keys: NDArray[np.int64], starts: Times, ends: Times) -> tuple[NDArray[np.intp], NDArray[np.intp], Times]:
    """Merge the windows of each key that overlap or touch.

    Parameters
    ----------
    keys
        A number for each row, the same for the same key.

    Returns
    -------
    order, firsts, ends
        The order of the rows by key and start; where in that order a session begins; the end of each session.
    """
    if not len(keys):
        return np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0, np.int64)
    order = order_of([keys, starts])
    keys, starts, ends = keys[order], starts[order], ends[order]
    # The greatest end so far within the key.  Keys rise, so a greatest number over all does it, if the key stands in
    # its upper digits; ends are numbered if they would not leave room for it.
    keys = np.append(0, np.cumsum(keys[1:] != keys[:-1]))
    values = None
    low, high = int(ends.min()), int(ends.max())
    if (int(keys[-1]) + 1) * (high - low + 1) >= MAX:
        values, ends = np.unique(ends, return_inverse=True)
        low, high = 0, len(values) - 1
    span = high - low + 1
    reach = np.maximum.accumulate(keys * span + (ends - low)) - keys * span + low
    if values is not None:
        reach = values[reach]
    new = np.ones(len(keys), bool)
    new[1:] = (keys[1:] != keys[:-1]) | (starts[1:] > reach[:-1])
    firsts = np.flatnonzero(new)
    return order, firsts, reach[np.append(firsts[1:], len(keys)) - 1]
