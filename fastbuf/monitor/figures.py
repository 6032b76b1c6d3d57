"""Small things that all who tell of a task share: shares of time, the longest waits, a bound on what is told."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastbuf.monitor.diagnosis import IDLE, LEVELS, PRESSED

if TYPE_CHECKING:
    from fastbuf.exchange.record_writer import RecordWriter

MOST_BYTES = 2048  #: of a task's report, once a second
MOST_TARGETS = 8  #: consumers that a producer names as those it waited for longest
MOST_KEYS, HOT_SHARE = 3, 0.05  #: keys that are told, and of all rows, from which one is
WINDOW = 5  #: reports that the shares of time are of
#: What a report that is too long leaves out, its longest first.
_TRIMMED = ("stacks", "key_values", "hot_keys", "frames")


def longest(blocked: Sequence[float], targets: Sequence[int]) -> dict[str, float]:
    """Seconds by partition of the consumers that were waited for longest; ``rest`` for all others."""
    order = sorted(range(len(blocked)), key=blocked.__getitem__, reverse=True)
    found = {str(targets[i]): blocked[i] for i in order[:MOST_TARGETS] if blocked[i] > 0}
    rest = sum(blocked[i] for i in order[MOST_TARGETS:])
    return {**found, "rest": rest} if rest else found


def ended(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of a task that does nothing any more."""
    return {name: value for name, value in figures.items() if name not in ("state", "target")}


def level_of(blocked: float) -> str:
    """``"OK"``, ``"LOW"`` or ``"HIGH"``, by Flink's bounds."""
    return next((level for bound, level in LEVELS if blocked <= bound), "HIGH")


def hottest(writer: RecordWriter) -> dict[str, dict[str, Any]]:
    """``hot_keys``: shares of the keys that come most often, by ``"partition:hash"``; ``key_values``: what these are,
    by hash, where that is known.
    """
    few = [each for each in writer.hot_keys().items() if each[1][0] >= HOT_SHARE][:MOST_KEYS]
    texts = writer.key_values()
    return {
        "hot_keys": {f"{part}:{key}": share for key, (share, part) in few},
        "key_values": {str(key): texts[key] for key, _ in few if key in texts},
    }


class Shares:
    """Which share of the last five reports' time a task was held back, idle, and busy."""

    def __init__(self) -> None:
        self._window: deque[tuple[float, dict[str, float]]] = deque([(time.monotonic(), {})], WINDOW + 1)

    def of(self, seconds: dict[str, float]) -> dict[str, float]:
        """With the seconds up to now, by what it did, of one more report."""
        now = time.monotonic()
        since, before = self._window[0]
        self._window.append((now, seconds))
        passed = max(now - since, 1e-9)

        def share(names: Iterable[str]) -> float:
            # A consumer's first wait is taken out of its waits once it knows that it was for producers to start
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
    """The same in no more than so many bytes of JSON: counters all stay, samples of code go as far as they must."""
    found: dict[str, Any] = _rounded(dict(figures))
    size = _bytes(found)
    for name in _TRIMMED:
        table = found.get(name)
        while table and size > most:
            # Of `stacks` those of one kind after the other; what was found least often goes first
            inner = max(table.values(), key=len) if name == "stacks" else table
            inner.pop(min(inner, key=inner.__getitem__))
            table = found[name] = {k: v for k, v in table.items() if v} if name == "stacks" else table
            size = _bytes(found)
    return {name: value for name, value in found.items() if name not in _TRIMMED or value}
