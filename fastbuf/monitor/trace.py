"""A history as a Chrome trace, for ``chrome://tracing`` and Perfetto.

Source: Google's "Trace Event Format": complete events (``X``), counters (``C``) and names (``M``); times in
microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastbuf.monitor.snapshot import seconds_of

_US = 1e6


class _Slices:
    """The current slice of one task: consecutive moments with the same state are one slice."""

    def __init__(self) -> None:
        self.state = ""
        self.since = self.last = 0.0
        self.seconds: dict[str, float] = {}


class ChromeTrace:
    """Converts snapshots, the oldest first, to a trace: a process for each vertex, a thread for each subtask.

    Between two moments a task is shown in the state that took most of the time.  Counters show how far the producers of
    each exchange were blocked, and the records per second of each vertex.
    """

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._processes: dict[str, int] = {}
        self._tasks: dict[tuple[int, int], _Slices] = {}

    def add(self, moment: dict[str, Any]) -> None:
        """Add the next snapshot."""
        at = float(moment["at"])
        for job in moment["jobs"]:
            for vertex in job["vertices"]:
                if vertex["id"] not in self._processes:
                    self._processes[vertex["id"]] = len(self._processes) + 1
                    self._events.append(_name("process_name", self._processes[vertex["id"]], 0, vertex["name"]))
                process = self._processes[vertex["id"]]
                self._events.append(_counter(process, at, "records/s", vertex["recordsPerSecond"]))
                for task in vertex["subtasks"]:
                    self._step(process, task, at)
            for edge in job["edges"]:
                if edge["kind"] == "exchange" and edge["from"] in self._processes:
                    process = self._processes[edge["from"]]
                    self._events.append(_counter(process, at, "held back %", 100 * edge["blocked"]))

    def to_json(self) -> dict[str, Any]:
        """The trace as plain data; call it once, at the end."""
        for (process, number), slices in self._tasks.items():
            if slices.state:
                self._close(process, number, slices)
        self._tasks.clear()
        return {"traceEvents": self._events, "displayTimeUnit": "ms"}

    def _step(self, process: int, task: dict[str, Any], at: float) -> None:
        number = task["subtask"]
        slices = self._tasks.get((process, number))
        if slices is None:
            slices = self._tasks[process, number] = _Slices()
            slices.since = slices.last = at
            self._events.append(_name("thread_name", process, number, f"subtask {number}"))
        seconds = seconds_of(task)
        grown = {name: took - slices.seconds.get(name, 0.0) for name, took in seconds.items()}
        most = max(grown, key=grown.__getitem__, default="")
        state = most if most and grown[most] > 0 else task.get("state") or ""
        slices.seconds = seconds
        if state != slices.state:
            # The new state began at the moment before, not now
            if slices.state:
                self._close(process, number, slices)
                slices.since = slices.last
            slices.state = state
        slices.last = at

    def _close(self, process: int, number: int, slices: _Slices) -> None:
        if slices.last <= slices.since:
            return
        self._events.append(
            {
                "ph": "X",
                "name": slices.state,
                "cat": "task",
                "pid": process,
                "tid": number,
                "ts": round(slices.since * _US),
                "dur": round((slices.last - slices.since) * _US),
            }
        )


def chrome_trace(moments: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Convert snapshots, the oldest first, to a trace."""
    trace = ChromeTrace()
    for moment in moments:
        trace.add(moment)
    return trace.to_json()


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": {"name": name}}


def _counter(process: int, at: float, name: str, value: float) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": round(at * _US), "args": {name: value}}
