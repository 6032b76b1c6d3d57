"""The recorder: takes snapshots of exchanges, and computes rates, totals and the history from them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

from fastbuf.monitor.history import RUNS, History
from fastbuf.monitor.snapshot import CONSUMERS, PRODUCERS, Exchange, Figures, seconds_of, snapshot

Source = Callable[[], Sequence[Exchange]]

RATE_S = 5.0  #: rates are over the last five seconds, since reports come once a second
Labels = tuple[str, ...]


class Recorder:
    """Takes snapshots of a source; may be used from any thread.

    Parameters
    ----------
    source
        Returns the current exchanges, including those that have ended recently.
    history
        Stores the snapshots.
    clock
        Returns seconds since 1970.
    """

    def __init__(self, source: Source, history: History | None = None, clock: Callable[[], float] = time.time) -> None:
        self.history = history or History()
        self.totals = Totals()
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._last: dict[str, Any] = {"at": 0.0, "jobs": []}
        self._exchanges: list[Exchange] = []
        self._past: dict[tuple[str, int], deque[tuple[float, float, float]]] = {}

    def look(self, older_than: float = 0.0) -> dict[str, Any]:
        """A snapshot of now, or the last one if it is not older than `older_than` seconds."""
        with self._lock:
            now = self._clock()
            if older_than and 0 <= now - self._last["at"] < older_than:
                return self._last
            self._exchanges = list(self._source())
            self._last = snapshot(self._exchanges, now, self._rates(now))
            self.totals.add(self._exchanges)
            self.history.add(self._last, self._exchanges)
            return self._last

    @property
    def exchanges(self) -> list[Exchange]:
        """The exchanges of the last snapshot, with their tasks' stacks."""
        return self._exchanges

    @property
    def running(self) -> list[Exchange]:
        """Those of them that are running."""
        return [exchange for exchange in self._exchanges if exchange.outcome == "running"]

    def _rates(self, now: float) -> dict[tuple[str, int], tuple[float, float]]:
        rates: dict[tuple[str, int], tuple[float, float]] = {}
        past: dict[tuple[str, int], deque[tuple[float, float, float]]] = {}
        for exchange in self._exchanges:
            if exchange.outcome != "running":
                continue
            for side in (PRODUCERS, CONSUMERS):
                vertex = exchange.vertex(side)
                for number, figures in exchange.side(side).items():
                    if "state" not in figures:
                        continue
                    seen = past[vertex, number] = self._past.get((vertex, number)) or deque()
                    records, size = float(figures.get("records") or 0), float(figures.get("bytes") or 0)
                    if seen and records < seen[-1][1]:  # a new attempt of the task
                        seen.clear()
                    seen.append((now, records, size))
                    while len(seen) > 2 and now - seen[1][0] >= RATE_S:
                        seen.popleft()
                    since, before, sent = seen[0]
                    if now > since:
                        rates[vertex, number] = ((records - before) / (now - since), (size - sent) / (now - since))
        self._past = past
        return rates


class Totals:
    """Counters by exchange name, added up over all its runs, so that they never decrease.

    Attributes
    ----------
    task_seconds
        By exchange, stage, subtask and state.
    blocked_seconds
        Waits of producers, by exchange and consumer.
    records, bytes
        By exchange and stage.
    """

    def __init__(self) -> None:
        self.task_seconds: dict[Labels, float] = {}
        self.blocked_seconds: dict[Labels, float] = {}
        self.records: dict[Labels, float] = {}
        self.bytes: dict[Labels, float] = {}
        self._before: dict[tuple[str, str, int], Figures] = {}
        self._names: OrderedDict[str, None] = OrderedDict()

    def add(self, exchanges: Sequence[Exchange]) -> None:
        """Add the growth since the last call."""
        before: dict[tuple[str, str, int], Figures] = {}
        for exchange in exchanges:
            self._names[exchange.name] = None
            self._names.move_to_end(exchange.name)
            for side in (PRODUCERS, CONSUMERS):
                for number, figures in exchange.side(side).items():
                    key = (exchange.id, side, number)
                    old = self._before.get(key, {})
                    if old is not figures:
                        self._grow(exchange, side, number, figures, old)
                    before[key] = figures
        self._before = before
        while len(self._names) > max(RUNS, len({exchange.name for exchange in exchanges})):
            self._forget(self._names.popitem(last=False)[0])

    def _grow(self, exchange: Exchange, side: str, number: int, figures: Figures, old: Figures) -> None:
        def add(totals: dict[Labels, float], labels: Labels, value: Any, before: Any) -> None:
            now, then = float(value or 0), float(before or 0)
            # Less than before: a new attempt of the task, which started from 0
            totals[labels] = totals.get(labels, 0.0) + (now - then if now >= then else now)

        name, stage = exchange.name, side
        seconds, were = seconds_of(figures), seconds_of(old)
        for state, took in seconds.items():
            add(self.task_seconds, (name, stage, str(number), state), took, were.get(state))
        blocked, was = figures.get("blocked") or {}, old.get("blocked") or {}
        for target, took in blocked.items():
            add(self.blocked_seconds, (name, str(target)), took, was.get(target))
        for totals, figure in ((self.records, "records"), (self.bytes, "bytes")):
            add(totals, (name, stage), figures.get(figure), old.get(figure))

    def _forget(self, name: str) -> None:
        for totals in (self.task_seconds, self.blocked_seconds, self.records, self.bytes):
            for labels in [labels for labels in totals if labels[0] == name]:
                del totals[labels]
