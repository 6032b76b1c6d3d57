"""Streams, for the page, the terminal and metrics: what a driver tells of its queries, with rates and shares of time.

A query is told as a JSON value::

    id, name, state, message, restarts, generation, began (seconds since 1970)
    stages       name, tasks, running, rows_in, rows_out, subtasks; where there are any watermark_ms, watermark_lag_s,
                 watermark_held_by, windows, late_rows
                 subtasks: subtask, state, rows_in, rows_out, seconds (by state: credit, link, segment, input)
    checkpoints  id, state, started_ms, duration_s, start_delay_s, alignment_s, sync_s, async_s, bytes, slowest, reason
    waiting      why the checkpoint in progress is not complete

Only ``id`` and ``name`` must be there.  Nothing here knows who runs the tasks.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastbuf.monitor.snapshot import plain
from fastbuf.monitor.task import LOW, OK, OUTPUT_WAITS, level

Query = Mapping[str, Any]
Source = Callable[[], Sequence[Query]]

RATE_S = 5.0  #: rates and shares are over the last seconds, since tasks tell once a second
SHOWN = 20  #: checkpoints of a query in a snapshot
ENDED = ("stopped", "finished", "failed")
PARTS = ("duration", "start_delay", "alignment", "sync", "async")  #: of a checkpoint, in seconds
TIMES = (("windows", "window is open", "windows are open"), ("late_rows", "late row", "late rows"))
NAMES = 64  #: names of queries of which counters are kept


def is_running(query: Query) -> bool:
    """Whether a query runs, or is about to run again."""
    return query.get("state") not in ENDED


class Queries:
    """Rates, shares and counters of streams, from one look to the next.

    Attributes
    ----------
    rows
        By query, stage and way (``in``, ``out``), over all runs.
    restarts
        By query.
    late
        Rows that came too late, by query and stage, over all runs.
    checkpoints
        By query and state (``completed``, ``failed``).
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, ...], float] = {}
        self.late: dict[tuple[str, ...], float] = {}
        self.restarts: dict[tuple[str, ...], float] = {}
        self.checkpoints: dict[tuple[str, ...], float] = {}
        self._names: OrderedDict[str, None] = OrderedDict()
        self._past: dict[tuple[Any, ...], deque[tuple[float, dict[str, float]]]] = {}
        self._last_totals: dict[tuple[Any, ...], dict[tuple[str, ...], float]] = {}  # by run and generation
        self._checked: dict[tuple[Any, ...], int] = {}

    def look(self, queries: Sequence[Query], at: float) -> list[dict[str, Any]]:
        """The queries as they are shown, the last that began at the end."""
        past: dict[tuple[Any, ...], deque[tuple[float, dict[str, float]]]] = {}
        shown = [self._query(query, at, past) for query in queries]
        self._past = past
        runs = {_run(query) for query in queries}
        ours = {(*_run(query), number) for query in queries for number in (None, query.get("generation"))}
        self._last_totals = {key: seen for key, seen in self._last_totals.items() if key in ours}
        self._checked = {run: last for run, last in self._checked.items() if run in runs}
        while len(self._names) > max(NAMES, len({str(query["name"]) for query in queries})):
            gone = self._names.popitem(last=False)[0]
            for totals in (self.rows, self.late, self.restarts, self.checkpoints):
                for labels in [labels for labels in totals if labels[0] == gone]:
                    del totals[labels]
        return sorted(shown, key=lambda query: query["began"])

    def _query(self, query: Query, at: float, past: dict[tuple[Any, ...], Any]) -> dict[str, Any]:
        self._count(query)
        stages = []
        for number, stage in enumerate(query.get("stages", ())):
            shown = {name: value for name, value in stage.items() if name != "subtasks"}
            subtasks = []
            for task in stage.get("subtasks", ()):
                key = (*_run(query), query.get("generation"), number, task["subtask"])
                subtasks.append({**task, **self._shares(key, task, at, past)})
            live = is_running(query)
            for name in ("rowsInPerSecond", "rowsOutPerSecond"):
                shown[name] = round(sum(task[name] for task in subtasks), 1) if live else 0.0
            for name in ("backPressured", "idle", "busy"):
                values = [task[name] for task in subtasks if task[name] is not None]
                shown[name] = max(values) if values and live else 0.0 if name == "backPressured" else None
            shown["level"] = level(shown["backPressured"])
            shown["waits"] = _most_waited(subtasks)
            stages.append({**shown, "subtasks": subtasks})
        checkpoints = list(query.get("checkpoints", ()))[-SHOWN:]
        whole = {"state": "starting", "message": "", "restarts": 0, "generation": 0, "began": 0.0, **query}
        result = plain({**whole, "stages": stages, "checkpoints": checkpoints, "running": is_running(query)})
        result["sentence"] = sentence(result)
        result["times"] = times(result) if result["running"] else []
        return dict(result)

    def _shares(
        self, key: tuple[Any, ...], task: Mapping[str, Any], at: float, past: dict[tuple[Any, ...], Any]
    ) -> dict[str, float | None]:
        """Rates of a task, and the shares of the last seconds in which it was held back, without rows, and busy."""
        seconds = {name: float(value) for name, value in (task.get("seconds") or {}).items()}
        now = {**seconds, "in": float(task.get("rows_in", 0)), "out": float(task.get("rows_out", 0))}
        seen = past[key] = self._past.get(key) or deque()
        seen.append((at, now))
        while len(seen) > 2 and at - seen[1][0] >= RATE_S:
            seen.popleft()
        since, before = seen[0]
        took = at - since

        def share(*names: str) -> float:
            grown = sum(now.get(name, 0.0) - before.get(name, 0.0) for name in names)
            return min(1.0, max(0.0, grown / took)) if took > 0 else 0.0

        pressed = share(*OUTPUT_WAITS)
        idle = share("input") if "input" in now else None  # a source does not tell how long it waits for rows
        rate = {name: max(0.0, (now[name] - before[name]) / took) if took > 0 else 0.0 for name in ("in", "out")}
        return {
            "rowsInPerSecond": rate["in"],
            "rowsOutPerSecond": rate["out"],
            "backPressured": pressed,
            "idle": idle,
            "busy": None if idle is None else max(0.0, 1.0 - pressed - idle),
        }

    def _count(self, query: Query) -> None:
        """Add what has grown: tasks of a new run count from 0."""
        name = str(query["name"])
        self._names[name] = None
        self._names.move_to_end(name)
        run, generation = _run(query), query.get("generation")

        def add(
            totals: dict[tuple[str, ...], float], labels: tuple[str, ...], value: Any, number: int | None = None
        ) -> None:
            seen = self._last_totals.setdefault((*run, number), {})
            value, before = float(value or 0), seen.get(labels, 0.0)
            totals[labels] = totals.get(labels, 0.0) + max(0.0, value - before)
            seen[labels] = max(value, before)

        add(self.restarts, (name,), query.get("restarts"))
        for stage in query.get("stages", ()):
            for way in ("in", "out"):
                add(self.rows, (name, str(stage["name"]), way), stage.get(f"rows_{way}"), generation)
            if stage.get("late_rows") is not None:
                add(self.late, (name, str(stage["name"])), stage["late_rows"], generation)
        last = self._checked.get(run, 0)
        for state in ("completed", "failed"):
            self.checkpoints.setdefault((name, state), 0.0)
        for checkpoint in query.get("checkpoints", ()):
            if checkpoint["id"] > last and checkpoint["state"] in ("completed", "failed"):
                self.checkpoints[name, checkpoint["state"]] += 1
                self._checked[run] = checkpoint["id"]


def _run(query: Query) -> tuple[Any, ...]:
    """A query is started again under the same id."""
    return query["id"], query.get("began", 0.0)


def _most_waited(subtasks: Sequence[Mapping[str, Any]]) -> str | None:
    """What the task that is held back most waits for, as it last told."""
    worst = max(subtasks, key=lambda task: task["backPressured"], default=None)
    if worst is None or level(worst["backPressured"]) == OK:
        return None
    waits = {name: (worst.get("seconds") or {}).get(name, 0.0) for name in OUTPUT_WAITS}
    return max(waits, key=waits.__getitem__)


def holder(query: Query) -> int | None:
    """The stage that holds up those before it: the one behind the last that is held back; None: there is none."""
    pressed = [number for number, stage in enumerate(query["stages"][:-1]) if stage["level"] != OK]
    return pressed[-1] + 1 if pressed else None


def sentence(query: Query) -> str:
    """What a query is about, in a sentence for people; names stand between backticks."""
    name, state, message = query["name"], query["state"], query["message"]
    if state == "failed":
        return f"Stream `{name}` has failed: {message}"
    if state in (*ENDED, "starting") or not query["stages"]:
        return f"Stream `{name}` is {state}{f': {message}' if message else '.'}"
    if state == "restarting":
        return f"Stream `{name}` is about to start again: {message}"
    slow = holder(query)
    if slow is None:
        return f"Stream `{name}` keeps up: none of its stages is held back."
    before = query["stages"][slow - 1]
    how = "sometimes" if before["level"] == LOW else "most of the time"
    who = f"Stage `{query['stages'][slow]['name']}` of stream `{name}` holds up those before it"
    return f"{who}: `{before['name']}` waits for it {how} ({before['backPressured']:.0%})."


def times(query: Query) -> list[str]:
    """What its stages say of event time, a sentence each; names stand between backticks."""
    sentences = []
    for stage in query["stages"]:
        facts = []
        for key, one, more in TIMES:
            if (number := stage.get(key)) is not None:
                facts.append(f"{number:,} {one if number == 1 else more}")
        if stage.get("watermark_held_by"):
            facts.append(f"`{stage['watermark_held_by']}` holds its watermark back")
        if facts:
            sentences.append(f"`{stage['name']}`: {', '.join(facts)}.")
    return sentences


def last_completed(query: Query) -> dict[str, Any] | None:
    """Its newest complete checkpoint that is shown."""
    return next((each for each in reversed(query["checkpoints"]) if each["state"] == "completed"), None)


def age_s(query: Query, at: float) -> float:
    """Seconds since its newest checkpoint was complete, or since it began."""
    newest = last_completed(query)
    since = query["began"] if newest is None else newest["started_ms"] / 1000 + newest["duration_s"]
    return max(0.0, at - since) if math.isfinite(since) else 0.0
