"""The recorder: takes snapshots of exchanges, and computes rates, totals and the history from them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fastbuf.monitor.history import RUNS, History
from fastbuf.monitor.queries import Queries
from fastbuf.monitor.queries import Source as QuerySource
from fastbuf.monitor.snapshot import CONSUMERS, PRODUCERS, Exchange, Figures, seconds_of, snapshot
from fastbuf.monitor.task import LOSSES

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
    queries
        Returns the current streams, each as :mod:`fastbuf.monitor.queries` says.
    """

    def __init__(
        self,
        source: Source,
        history: History | None = None,
        clock: Callable[[], float] = time.time,
        queries: QuerySource | None = None,
    ) -> None:
        self.history = history or History()
        self.totals = Totals()
        self.queries = Queries()
        self._source = source
        self._query_source = queries
        self._clock = clock
        self._lock = threading.Lock()
        self._last: dict[str, Any] = {"at": 0.0, "jobs": [], "queries": []}
        self._exchanges: list[Exchange] = []
        self._past: dict[tuple[str, int], deque[tuple[float, float, float]]] = {}

    def look(self, older_than: float = 0.0) -> dict[str, Any]:
        """A snapshot of now, or the last one if it is not older than `older_than` seconds."""
        with self._lock:
            now = self._clock()
            if older_than and 0 <= now - self._last["at"] < older_than:
                return self._last
            self._exchanges = list(self._source())
            queries = () if self._query_source is None else self._query_source()
            self._last = {
                **snapshot(self._exchanges, now, self._rates(now)),
                "queries": self.queries.look(queries, now),
            }
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


class _Seen(NamedTuple):
    """The last figures of a task, and the highest value of each counter in this attempt."""

    figures: Figures
    records: float
    took: float
    most: dict[tuple[str, Labels], float]


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
    losses
        By exchange, stage and figure (:data:`LOSSES`).
    """

    def __init__(self) -> None:
        self.task_seconds: dict[Labels, float] = {}
        self.blocked_seconds: dict[Labels, float] = {}
        self.records: dict[Labels, float] = {}
        self.bytes: dict[Labels, float] = {}
        self.losses: dict[Labels, float] = {}
        self._before: dict[tuple[str, str, int], _Seen] = {}
        self._names: OrderedDict[str, None] = OrderedDict()

    def add(self, exchanges: Sequence[Exchange]) -> None:
        """Add the growth since the last call."""
        before: dict[tuple[str, str, int], _Seen] = {}
        for exchange in exchanges:
            self._names[exchange.name] = None
            self._names.move_to_end(exchange.name)
            for side in (PRODUCERS, CONSUMERS):
                for number, figures in exchange.side(side).items():
                    key = (exchange.id, side, number)
                    seen = self._before.get(key) or _Seen({}, 0.0, 0.0, {})
                    before[key] = seen if seen.figures is figures else self._grow(exchange, side, number, figures, seen)
        self._before = before
        while len(self._names) > max(RUNS, len({exchange.name for exchange in exchanges})):
            self._forget(self._names.popitem(last=False)[0])

    def _grow(self, exchange: Exchange, side: str, number: int, figures: Figures, seen: _Seen) -> _Seen:
        """Add the growth of a task above the highest values so far, as a value may fall a little or be left out."""
        seconds = seconds_of(figures)
        records, took = float(figures.get("records") or 0), sum(seconds.values())
        most = {} if records < seen.records or took < 0.5 * seen.took else seen.most  # a new attempt started from 0

        def add(name: str, labels: Labels, value: Any) -> None:
            now, totals = float(value or 0), getattr(self, name)
            before = most.get((name, labels), 0.0)
            totals[labels] = totals.get(labels, 0.0) + max(0.0, now - before)
            most[name, labels] = max(now, before)

        for state, value in seconds.items():
            add("task_seconds", (exchange.name, side, str(number), state), value)
        for target, value in (figures.get("blocked") or {}).items():
            add("blocked_seconds", (exchange.name, str(target)), value)
        for name in ("records", "bytes"):
            add(name, (exchange.name, side), figures.get(name))
        for name in LOSSES.keys() & figures.keys():
            add("losses", (exchange.name, side, name), figures[name])
        return _Seen(figures, records, took, most)

    def _forget(self, name: str) -> None:
        for totals in (self.task_seconds, self.blocked_seconds, self.records, self.bytes, self.losses):
            for labels in [labels for labels in totals if labels[0] == name]:
                del totals[labels]
