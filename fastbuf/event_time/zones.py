"""Local time that never goes back, for windows by the clocks of a time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastbuf.errors import ConfigError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STEP_S = 7 * 86400  #: two changes of a zone within so short a time, and back, are not seen
_RULES_S = 61 * 86400  #: the same where zones have but their rules


def _offset(zone: ZoneInfo, second: int) -> int:
    """Local time minus UTC at that second, in seconds."""
    moved = (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
    assert moved is not None
    return round(moved.total_seconds())


@lru_cache(maxsize=4096)
def _changes(zone: ZoneInfo, year: int) -> tuple[tuple[int, int], ...]:
    """The seconds of a year (UTC) at which the offset changes, and the new one; the first is the year's start."""
    start, end = (int((datetime(y, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds()) for y in (year, year + 1))
    changes = [(start, _offset(zone, start))]
    step = _STEP_S if 1850 <= year <= 2100 else _RULES_S
    for low in range(start, end, step):
        high = min(low + step, end - 1)
        while _offset(zone, high) != changes[-1][1]:  # the first second of the next offset
            before, after = max(low, changes[-1][0]), high
            while after - before > 1:
                middle = (before + after) // 2
                before, after = (middle, after) if _offset(zone, middle) == changes[-1][1] else (before, middle)
            changes.append((after, _offset(zone, after)))
    return tuple(changes)


class Zone:
    """Conversion of microseconds since 1970 in UTC to those of local clocks, and back.

    Where clocks are put back, what they show twice counts once: the hour before that counts as the moment to which
    they are put back.  So local time never falls, and a day in which that happens is one window of 25 hours.

    Parameters
    ----------
    name
        As ``"Europe/Berlin"``.
    """

    def __init__(self, name: str) -> None:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            self.zone = ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ConfigError(f"zone is {name!r:.80}: there is no such time zone here ({error})") from error
        self.name = name
        self._years = (1970, 1970)
        self._read()

    def __reduce__(self) -> tuple[type[Zone], tuple[str]]:
        return Zone, (self.name,)

    def __repr__(self) -> str:
        return f"Zone({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Zone) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def _read(self) -> None:
        first, last = self._years
        changes = [change for year in range(first, last + 1) for change in _changes(self.zone, year)]
        self._starts = np.array([second * SECOND for second, _ in changes], np.int64)
        self._offsets = np.array([offset * SECOND for _, offset in changes], np.int64)
        # What clocks show from the start of each on at least: earlier times are held down to that
        lows = np.minimum.accumulate((self._starts + self._offsets)[::-1])[::-1]
        self._lows = lows
        self._caps = np.append(lows[1:], np.iinfo(np.int64).max)

    def _cover(self, times: NDArray[np.int64]) -> None:
        if not len(times):
            return
        # A year more at each end: a change there may hold down what is before
        low, high = (int(np.datetime64(int(t), "us").astype("M8[Y]").astype(int)) for t in (times.min(), times.max()))
        low, high = (min(max(year, 2), 9998) for year in (low + 1970 - 1, high + 1970 + 1))
        first, last = min(low, self._years[0]), max(high, self._years[1])
        if (first, last) != self._years:
            self._years = first, last
            self._read()

    def local(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """What clocks show at these times, not falling."""
        self._cover(times)
        at = np.maximum(np.searchsorted(self._starts, times, "right") - 1, 0)
        return np.minimum(times + self._offsets[at], self._caps[at])

    def instant(self, local: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first time at which clocks show that, or more."""
        self._cover(local)
        at = np.maximum(np.searchsorted(self._lows, local, "left") - 1, 0)
        after = np.append(self._starts[1:], np.iinfo(np.int64).max)[at]
        return np.where(local <= self._caps[at], np.minimum(local - self._offsets[at], after), after)
