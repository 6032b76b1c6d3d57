"""When a window fires, what it fires, and how long it is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbuf.checks import flag, instance, one_of, whole
from fastbuf.errors import ConfigError
from fastbuf.event_time.watermarks import MAX, MIN
from fastbuf.event_time.windows import MOST_US

MODES = ("append", "update", "complete")


@dataclass(frozen=True)
class Trigger:
    """When windows fire before their end.  At the end they always do, and for rows that come after it.

    Parameters
    ----------
    rows
        A key's window, when so many of its rows have come since it fired; looked at behind each batch.
    every_ms
        All windows with new rows, each time that so long has passed by the clock.
    every_us
        All windows with new rows, each time that the watermark passes a multiple of this.
    """

    rows: int | None = None
    every_ms: int | None = None
    every_us: int | None = None

    def __post_init__(self) -> None:
        for name in ("rows", "every_ms", "every_us"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1, MOST_US)

    @property
    def early(self) -> bool:
        """Whether there are results before the end of a window."""
        return self != at_end

    def ticks(self, before: int, now: int) -> bool:
        """Whether the watermark passed a multiple of `every_us`."""
        return self.every_us is not None and now // self.every_us > before // self.every_us


at_end = Trigger()


@dataclass(frozen=True)
class Rules:
    """Lateness, trigger and output mode together.

    Parameters
    ----------
    lateness_us
        How long after its end a window is kept for rows that come late.
    trigger
        What fires it before its end.
    accumulate
        Whether a result has all rows of the window, or those alone that came since it fired.
    output_mode
        ``"append"``: a row goes out once.  So a window fires once, when no row can change it any more; unless it does
        not accumulate: then each result is of other rows.  ``"update"``: a result takes the place of an earlier one
        of its key and window.  ``"complete"``: at each change the results of all windows; none is ever dropped, and no
        row is late.
    dropped_us
        Windows that ended up to here are gone, whatever the lateness is now: operators before this one, which had
        another one, have dropped them.
    """

    lateness_us: int = 0
    trigger: Trigger = at_end
    accumulate: bool = True
    output_mode: str = "append"
    dropped_us: int = MIN

    def __post_init__(self) -> None:
        whole("lateness_us", self.lateness_us, 0, MOST_US)
        instance("trigger", self.trigger, Trigger)
        flag("accumulate", self.accumulate)
        one_of("output_mode", self.output_mode, MODES)
        if self.output_mode == "append" and self.accumulate and self.trigger.early:
            raise ConfigError(
                "early results would come again, and output_mode='append' has each row once: set output_mode='update', "
                "or accumulate=False, where each result is of new rows"
            )
        if self.output_mode == "complete" and not self.accumulate:
            raise ConfigError("output_mode='complete' has all rows of each window: it needs accumulate=True")

    @property
    def complete(self) -> bool:
        return self.output_mode == "complete"

    @property
    def keeps_all(self) -> bool:
        """Whether no row is late."""
        return self.complete and self.dropped_us == MIN

    @property
    def once(self) -> bool:
        """Whether a window fires when it is cleaned up, and at no other time."""
        return self.output_mode == "append" and self.accumulate

    @property
    def purges(self) -> bool:
        """Whether rows are dropped once they have fired, and their window goes on."""
        return not self.accumulate and (self.trigger.early or self.lateness_us > 0)

    def fires_at(self, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """The watermark at which windows with these ends fire."""
        return self.cleaned_at(ends) if self.once else np.where(ends - 1 <= self.dropped_us, MIN, ends - 1)

    def cleaned_at(self, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """The watermark at which they are dropped; a row that comes then is late for them."""
        at = np.where(self.complete | (ends > MAX - self.lateness_us), MAX, ends - 1 + self.lateness_us)
        return np.where(ends - 1 <= self.dropped_us, MIN, at)

    def dropped_through(self, watermark: int) -> int:
        """Windows that end up to here, and no others, are dropped with a watermark; a row before it has none."""
        if self.complete:
            return self.dropped_us
        return MAX if watermark == MAX else max(watermark - self.lateness_us, self.dropped_us, MIN)

    def state(self, watermark: int, waits: bool) -> dict[str, int]:
        """What a checkpoint keeps: the windows that have fired, and those that were dropped, each by the last end.

        ``waits``: rows of windows that have fired wait for the next watermark to be shown.
        """
        dropped = self.dropped_through(watermark)
        fired = dropped if self.once else MIN if waits else watermark
        return {"watermark": watermark, "fired": fired, "dropped": dropped}

    def restored(self, states: Sequence[Mapping[str, Any]]) -> tuple[Rules, int]:
        """The rules that go on from these states, whose rules may have been others, and with which watermark.

        What has not fired must do so with the next watermark, and what is gone stays so.
        """
        if not states:
            return self, MIN
        watermark = min(int(state["watermark"]) for state in states)
        fired = min(int(state.get("fired", watermark)) for state in states)  # a version before wrote none
        dropped = max(int(state.get("dropped", MIN)) for state in states)
        if MIN < fired < MAX and self.once:
            fired += self.lateness_us
        # In mode "complete" the next result has all windows anyway
        return replace(self, dropped_us=dropped), watermark if self.complete else min(watermark, fired)
