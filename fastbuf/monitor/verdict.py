"""Diagnosis of running exchanges over the last seconds; short spikes are ignored.

A window is the last five seconds.  A root is named only if two of the last three windows, a second apart, name it.  It
must also remain a root if the worst three consecutive seconds of the last eight are left out, so that spikes of up to
two seconds are not reported.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fastbuf.monitor.diagnosis import diagnose_all
from fastbuf.monitor.figures import MOST_TARGETS
from fastbuf.monitor.task import IDLE, OK, OUTPUT_WAITS, REST, Task
from fastbuf.monitor.vitals import MOST_FRAMES
from fastbuf.monitor.words import Diagnosis, Root, remedy

WINDOW_S = 5.0
LEAST_S = 2.9  #: least length of a first, shorter window: three seconds of reports, which come a little early or late
LASTING_S = 8  #: seconds that are examined for lasting roots ...
SPIKE_S = 3  #: ... without the worst three of them, as a spike of two seconds touches three
WINDOWS, AGREE = 3, 2
SILENT_S = 3.0  #: a task without a report for this long is silent
KEEP_S = LASTING_S + WINDOWS + 2.0
MOST_CACHED = 64  #: most cached moments of a task
_COUNTED = ("bytes", "looks", "unread", "short_s", "major_faults")
_MEASURED = ("cpu_s", "queued_s", "gc_s", "stopped_s", "throttled_s", "machine_s", "jvm_gc_s")  #: if the kernel tells
_NUMBERS = ("records", *_COUNTED, *_MEASURED)
_TABLES = ("seconds", "blocked", "linked", "unsent", "frames")

Flat = dict[tuple[str, str], float]


def _flat(figures: Mapping[str, Any]) -> Flat:
    """All counters of a report; the difference of two reports is what happened between them."""
    flat = {(name, ""): float(figures[name]) for name in _NUMBERS if figures.get(name) is not None}
    for table in _TABLES:
        for name, value in (figures.get(table) or {}).items():
            if (table, name) != ("seconds", "starting"):
                flat[table, str(name)] = float(value)
    return flat


def _less(a: Flat, b: Flat) -> Flat:
    return {name: max(0.0, value - b.get(name, 0.0)) for name, value in a.items()}


def _cut(name: str, table: Mapping[str, Any]) -> bool:
    """Whether only its largest entries were told, so that a name that it lacks may have a smaller value."""
    return "rest" in table or len(table) >= {"unsent": MOST_TARGETS, "frames": MOST_FRAMES}.get(name, math.inf)


@dataclass
class Reports:
    """The reports of one task in the last seconds.

    Attributes
    ----------
    last
        Its newest figures.
    """

    last: Mapping[str, Any] = field(default_factory=dict)
    # Of each report: its time, its counters, and the names of tables that had only their largest entries
    _history: deque[tuple[float, Flat, frozenset[str]]] = field(default_factory=deque)
    _cache: dict[float, Flat] = field(default_factory=dict)

    def add(self, figures: Mapping[str, Any], now: float) -> None:
        """Add a report that came now (monotonic seconds); the last report of a task has no ``state``."""
        flat = _flat(figures)
        self._cache = {}
        if not self._history:  # the first report covers the time since the task began
            self._history.append((now - sum(figures.get("seconds", {}).values()), {}, frozenset()))
        self.last = figures
        self._fill(flat, now)
        self._history.append((now, flat, frozenset(name for name in _TABLES if _cut(name, figures.get(name) or {}))))
        while len(self._history) > 2 and self._history[1][0] < now - KEEP_S:
            self._history.popleft()

    def _fill(self, flat: Flat, now: float) -> None:
        """Estimate the earlier values of names that are new in a shortened table, as if they had grown evenly."""
        history = list(self._history)

        def knows(k: int, name: tuple[str, str]) -> bool:
            return name in history[k][1] or name[0] not in history[k][2]

        new = [name for name in flat if not knows(-1, name)]
        for name in new:
            newest = next((k for k in reversed(range(len(history))) if knows(k, name)), -1)
            # Never known: no growth, as its value may be of any time
            since, before = (
                (history[newest][0], history[newest][1].get(name, 0.0)) if newest >= 0 else (now, flat[name])
            )
            for k in range(newest + 1, len(history)):
                at, counters, cut = history[k]
                part = (at - since) / (now - since) if now > since else 0.0
                history[k] = at, {**counters, name: before + part * (flat[name] - before)}, cut
        if new:
            self._history = deque(history)  # at once, as another thread may read it

    @property
    def began(self) -> float:
        """When the known reports begin."""
        return self._history[0][0] if self._history else float("inf")

    def at(self, moment: float) -> Flat:
        """Its counters at a moment, interpolated between two reports; results are cached."""
        cache = self._cache  # another thread may replace it
        flat = cache.get(moment)
        if flat is None:
            if len(cache) > MOST_CACHED:  # without new reports, nothing else empties the cache
                cache.clear()
            flat = cache[moment] = self._at(moment)
        return flat

    def _at(self, moment: float) -> Flat:
        after: tuple[float, Flat] | None = None
        for when, flat, _ in reversed(tuple(self._history)):  # a copy, as another thread may add to it
            if when <= moment:
                if after is None:
                    return self._silent(flat, moment - when)
                part = (moment - when) / (after[0] - when)
                return {
                    name: flat.get(name, 0.0) + part * (value - flat.get(name, 0.0)) for name, value in after[1].items()
                }
            after = when, flat
        return {}

    def _silent(self, flat: Flat, passed: float) -> Flat:
        """Counters after the last report; a silent task is assumed to remain in its last state."""
        state = self.last.get("state")
        if state is None or passed < SILENT_S:
            return flat
        doing = ("seconds", str(state))
        return {**flat, doing: flat.get(doing, 0.0) + passed, ("silent_s", ""): passed}

    def between(self, begin: float, end: float) -> Flat:
        """What happened between two moments."""
        return _less(self.at(end), self.at(begin))


def task_of(stage: str, subtask: int, flat: Flat, figures: Mapping[str, Any]) -> Task:
    """A :class:`Task` from the counters of a period; other figures come from its last report."""

    def table(name: str) -> dict[str, float]:
        return {key: value for (where, key), value in flat.items() if where == name}

    def targets(name: str) -> dict[int, float]:
        return {REST if key == "rest" else int(key): value for key, value in table(name).items()}

    numbers: dict[str, Any] = {name: flat.get((name, ""), 0.0) for name in (*_COUNTED, "silent_s")}
    numbers.update({name: flat.get((name, "")) for name in _MEASURED if figures.get(name) is not None})
    return Task(
        stage,
        subtask,
        table("seconds"),
        rows=flat.get(("records", ""), 0.0),
        blocked=targets("blocked"),
        linked=targets("linked"),
        unsent=targets("unsent"),
        frames={line: count for line, count in table("frames").items() if count > 0},
        cores=int(figures.get("cores") or 0),
        host=str(figures.get("host") or ""),
        task=str(figures.get("task") or ""),
        hot_keys=dict(figures.get("hot_keys") or {}),
        key_values=dict(figures.get("key_values") or {}),
        links={int(target): dict(link) for target, link in (figures.get("links") or {}).items()},
        **numbers,
    )


def whole(stage: str, subtask: int, figures: Mapping[str, Any]) -> Task:
    """A :class:`Task` over its whole life."""
    return task_of(stage, subtask, _flat(figures), figures)


@dataclass
class Sides:
    """The tasks of one exchange by subtask, and the names of its stages."""

    producers: Mapping[int, Reports]
    consumers: Mapping[int, Reports]
    producing: str = "producers"
    consuming: str = "consumers"

    @property
    def running(self) -> bool:
        """Whether a task of it is running."""
        return any("state" in reports.last for reports in (*self.producers.values(), *self.consumers.values()))


Exchanges = Mapping[str, Sides]


def _diagnosed(exchanges: Exchanges, flats: Mapping[int, Flat]) -> dict[str, Diagnosis]:
    """The diagnoses of all exchanges, from the counters of each task."""

    def tasks(stage: str, reports: Mapping[int, Reports]) -> list[Task]:
        return [
            task_of(stage, subtask, flats[id(of_task)], of_task.last) for subtask, of_task in sorted(reports.items())
        ]

    return diagnose_all(
        {
            name: (tasks(sides.producing, sides.producers), tasks(sides.consuming, sides.consumers))
            for name, sides in exchanges.items()
        }
    )


def over_all(exchanges: Exchanges) -> dict[str, Diagnosis]:
    """Diagnose exchanges that have ended, each over all of its time: its last seconds are no longer its own."""
    every = [reports for s in exchanges.values() for reports in (*s.producers.values(), *s.consumers.values())]
    return _diagnosed(exchanges, {id(reports): _flat(reports.last) for reports in every})


def _trouble(flats: list[Flat], names: tuple[str, ...]) -> float:
    return sum(flat.get(("seconds", name), 0.0) for flat in flats for name in names)


def _place(root: Root) -> tuple[str, str, int | None]:
    return root.exchange, root.stage, root.subtask


@dataclass(frozen=True)
class _Window:
    diagnoses: dict[str, Diagnosis]
    lasting: dict[str, Diagnosis]

    def roots(self, name: str) -> list[Root]:
        """The roots of this window that are not a spike."""
        places = {_place(root) for root in self.lasting[name].roots}
        return [root for root in self.diagnoses[name].roots if _place(root) in places]


def _began(sides: Sides) -> float:
    """When both its sides were first known; infinite: one is not."""
    return max(
        min((reports.began for reports in side.values()), default=math.inf)
        for side in (sides.producers, sides.consumers)
    )


def _chains(exchanges: Exchanges) -> list[dict[str, Sides]]:
    """The exchanges with tasks in common: only these explain each other's waits."""
    chains: list[tuple[set[object], dict[str, Sides]]] = []
    for name, sides in exchanges.items():
        both = (*sides.producers.values(), *sides.consumers.values())
        tasks: set[object] = {reports.last.get("task") or id(reports) for reports in both}
        joined = {name: sides}
        for chain in [chain for chain in chains if chain[0] & tasks]:
            chains.remove(chain)
            tasks, joined = tasks | chain[0], {**chain[1], **joined}
        chains.append((tasks, joined))
    return [joined for _, joined in chains]


def _window(chain: Exchanges, end: float) -> _Window:
    """The window that ends at `end`, of those exchanges of a chain that have enough reports."""
    exchanges = {name: sides for name, sides in chain.items() if end - _began(sides) >= LEAST_S}
    began = min(map(_began, exchanges.values()), default=end)
    reports = {id(each): each for s in exchanges.values() for each in (*s.producers.values(), *s.consumers.values())}
    diagnoses = _diagnosed(exchanges, {key: each.between(end - WINDOW_S, end) for key, each in reports.items()})
    seconds = [(end - k - 1, end - k) for k in range(min(LASTING_S, int(end - began)))]
    slices = [{key: each.between(*second) for key, each in reports.items()} for second in seconds]
    head = all(diagnosis.level == OK for diagnosis in diagnoses.values())
    waits = IDLE if head else OUTPUT_WAITS
    trouble = [_trouble(list(flats.values()), waits) for flats in slices]
    starts = range(max(1, len(slices) - SPIKE_S + 1))
    worst = max(starts, key=lambda k: sum(trouble[k : k + SPIKE_S]))
    steady = [flats for k, flats in enumerate(slices) if not worst <= k < worst + SPIKE_S]
    rest: dict[int, Flat] = {key: {} for key in reports}
    for flats in steady:
        for key, flat in flats.items():
            for name, value in flat.items():  # scaled to the length of a window, on which the confidence depends
                rest[key][name] = rest[key].get(name, 0.0) + value * WINDOW_S / len(steady)
    return _Window(diagnoses, _diagnosed(exchanges, rest))


def verdicts(exchanges: Exchanges, now: float) -> dict[str, Diagnosis]:
    """Diagnose each exchange now: roots that two of the last three windows name.

    Parameters
    ----------
    exchanges
        By name; a task in several exchanges has the same ``task`` in each.
    now
        Monotonic seconds, the same clock as the reports'.
    """
    diagnoses = {}
    for chain in _chains(exchanges):
        windows = [_window(chain, now - k) for k in range(WINDOWS)]
        diagnoses.update({name: _agreed(name, [each for each in windows if name in each.diagnoses]) for name in chain})
    return {name: diagnoses[name] for name in exchanges}


def _agreed(name: str, windows: list[_Window]) -> Diagnosis:
    if not windows:
        return Diagnosis(OK, 0.0)
    named = [{_place(root): root for root in window.roots(name)} for window in windows]
    roots = []
    for place in dict.fromkeys(place for by_place in named for place in by_place):
        seen = [by_place[place] for by_place in named if place in by_place]
        if len(seen) < AGREE:
            continue
        causes = [root.cause for root in seen if root.cause != "unknown"]
        cause = next((c for c in causes if causes.count(c) >= AGREE), "unknown")
        chosen = next((root for root in seen if root.cause == cause), None)
        advice, newest = remedy("unknown", None, {}), seen[0]
        roots.append(chosen or replace(newest, cause="unknown", remedy=advice, key=None, suspected=newest.cause))
    now = windows[0].diagnoses[name]
    return Diagnosis(now.level, now.blocked, sorted(roots, key=lambda root: -root.share))
