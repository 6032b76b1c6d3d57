"""The watermark of a gate: from those of its channels, by the rules of Flink's ``StatusWatermarkValve``."""

from __future__ import annotations

from enum import Enum

from fastbuf.checks import whole
from fastbuf.event_time.watermarks import MAX, MIN


class Status(Enum):
    """Whether watermarks are to be expected."""

    ACTIVE = "active"
    IDLE = "idle"


class WatermarkValve:
    """What a gate passes on of its channels' watermarks and statuses.

    The output is the least watermark of all *aligned* channels, if it is greater than the last one.  A channel is
    aligned if it is active, and has caught up with the output: one that comes back behind it does not hold it back.

    Parameters
    ----------
    channels
        How many there are.
    last
        What went out before, as a checkpoint keeps it: nothing up to it goes out again.
    """

    def __init__(self, channels: int, last: int = MIN) -> None:
        whole("channels", channels, 1)
        self.last = last
        self.idle = False
        self._marks = [last] * channels
        self._active = [True] * channels
        self._aligned = [True] * channels
        self._least = last  # of the aligned channels, when it was looked for last; MAX: it must be

    def watermark(self, channel: int, mark: int) -> list[int | Status]:
        """A watermark of a channel; what goes out."""
        before = self._marks[channel]
        if self.idle or not self._active[channel] or mark <= before:
            return []
        self._marks[channel] = mark
        if not self._aligned[channel]:
            self._aligned[channel] = mark >= self.last
        elif before > self._least:
            return []  # another channel holds it back, as before
        return self._advance()

    def status(self, channel: int, idle: bool) -> list[int | Status]:
        """A channel becomes idle, or active again; what goes out."""
        if idle != self._active[channel]:
            return []
        self._active[channel] = not idle
        self._least = MAX  # to be looked for
        stands_at_output = self._marks[channel] == self.last
        if not idle:
            self._aligned[channel] = self._marks[channel] >= self.last
            if self.idle:
                self.idle = False
                return [Status.ACTIVE]
            return []
        self._aligned[channel] = False
        if any(self._active):
            return self._advance() if stands_at_output else []
        out: list[int | Status] = []
        # No channel goes on, so the one that is furthest need not wait.  One that did not stand at the output did not
        # hold the others back: then they were looked at already.
        most = max(self._marks)
        if stands_at_output and most > self.last:
            self.last = most
            out.append(most)
        self.idle = True
        return [*out, Status.IDLE]

    def end(self, channel: int) -> list[int | Status]:
        """A channel has ended: its watermark is :data:`MAX`, even if it was idle."""
        return [*self.status(channel, idle=False), *self.watermark(channel, MAX)]

    def holding(self) -> list[int]:
        """The channels that hold the output back: those that stand at the least watermark."""
        aligned = [channel for channel, is_aligned in enumerate(self._aligned) if is_aligned]
        least = min((self._marks[channel] for channel in aligned), default=MAX)
        return [channel for channel in aligned if self._marks[channel] == least < MAX]

    def _advance(self) -> list[int | Status]:
        aligned = [mark for mark, is_aligned in zip(self._marks, self._aligned, strict=True) if is_aligned]
        if not aligned:
            return []
        self._least = min(aligned)
        if self._least <= self.last:
            return []
        self.last = self._least
        return [self.last]
