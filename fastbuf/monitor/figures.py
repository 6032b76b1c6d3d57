"""Helpers for reports on tasks: shares of time, the longest waits, most frequent keys, a bound on the size."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastbuf.exchange.record_writer import RecordWriter
from fastbuf.monitor.task import IDLE, PRESSED

MOST_BYTES = 2048  #: most bytes of a task's report, sent once a second
MOST_TARGETS = 8  #: a producer reports its waits for this many consumers, those with the longest waits
MOST_KEYS, HOT_SHARE = 3, 0.05  #: most keys reported, and the least share of the rows that a reported key has
FADES = 0.8  #: of what a counter grew by, this is left one report later
WINDOW = 5  #: number of reports over which shares of time are computed
#: Tables that are shortened, in this order, if a report is too long.
_TRIMMED = ("stacks", "key_values", "hot_keys", "frames")


def longest(blocked: Sequence[float], targets: Sequence[int], lately: Sequence[float] = ()) -> dict[str, float]:
    """Seconds by partition of the consumers with the longest waits; ``rest``: all others together.

    With `lately` (:class:`Lately`), half of them are those with the longest waits of late.
    """
    order = sorted(range(len(blocked)), key=blocked.__getitem__, reverse=True)
    if lately:
        half = MOST_TARGETS // 2
        order[half:] = sorted(order[half:], key=lambda i: (lately[i], blocked[i]), reverse=True)
    waits = {str(targets[i]): blocked[i] for i in order[:MOST_TARGETS] if blocked[i] > 0}
    rest = sum(blocked[i] for i in order[MOST_TARGETS:])
    return {**waits, "rest": rest} if rest else waits


def ended(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a task that has ended: without its current state."""
    return {name: value for name, value in figures.items() if name not in ("state", "target")}


def hottest(writer: RecordWriter) -> dict[str, dict[str, Any]]:
    """``hot_keys``: shares of the most frequent keys, by ``"partition:hash"``; ``key_values``: their text, by hash."""
    few = [each for each in writer.hot_keys().items() if each[1][0] >= HOT_SHARE][:MOST_KEYS]
    texts = writer.key_values()
    return {
        "hot_keys": {f"{part}:{key}": share for key, (share, part) in few},
        "key_values": {str(key): texts[key] for key, _ in few if key in texts},
    }


class Lately:
    """How much counters have grown over the last reports; what is longer ago counts less."""

    def __init__(self) -> None:
        self._before: list[float] = []
        self._grown: list[float] = []

    def of(self, now: Sequence[float]) -> list[float]:
        """The growth of each, after adding a report."""
        before, grown = self._before or [0.0] * len(now), self._grown or [0.0] * len(now)
        self._grown = [FADES * g + n - b for g, n, b in zip(grown, now, before, strict=True)]
        self._before = list(now)
        return self._grown


class Shares:
    """The shares of time in which a task was back-pressured, idle and busy, over the last five reports."""

    def __init__(self) -> None:
        self._window: deque[tuple[float, dict[str, float]]] = deque([(time.monotonic(), {})], WINDOW + 1)

    def of(self, seconds: dict[str, float]) -> dict[str, float]:
        """The shares, after adding a report: the task's seconds up to now, by state."""
        now = time.monotonic()
        since, before = self._window[0]
        self._window.append((now, seconds))
        passed = max(now - since, 1e-9)

        def share(names: Iterable[str]) -> float:
            # May be negative: a consumer's first wait is moved from `input` to `starting` later
            return min(1.0, max(0.0, sum(seconds.get(name, 0.0) - before.get(name, 0.0) for name in names) / passed))

        pressed, idle = share(PRESSED), share(IDLE)
        return {"backPressured": pressed, "idle": idle, "busy": max(0.0, 1.0 - pressed - idle)}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return value


def _bytes(figures: dict[str, Any]) -> int:
    return len(json.dumps(figures, separators=(",", ":")))


def bounded(figures: Mapping[str, Any], most: int = MOST_BYTES) -> dict[str, Any]:
    """The figures in at most `most` bytes of JSON: counters stay, tables of samples are shortened as needed."""
    result: dict[str, Any] = _rounded(dict(figures))
    size = _bytes(result)
    for name in _TRIMMED:
        table = result.get(name)
        while table and size > most:
            # The least frequent entry goes first; `stacks` has two tables, of which the longer one is shortened
            inner = max(table.values(), key=len) if name == "stacks" else table
            inner.pop(min(inner, key=inner.__getitem__))
            table = result[name] = {k: v for k, v in table.items() if v} if name == "stacks" else table
            size = _bytes(result)
    return {name: value for name, value in result.items() if name not in _TRIMMED or value}
