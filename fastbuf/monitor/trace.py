"""A history as a Chrome trace, for ``chrome://tracing`` and Perfetto.

Source: Google's "Trace Event Format": complete events (``X``), counters (``C``) and names (``M``); times in
microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_US = 1e6


class _Slices:
    """What one task did, moment by moment: equal states in a row are one slice."""

    def __init__(self) -> None:
        self.state = ""
        self.since = self.last = 0.0
        self.seconds: dict[str, float] = {}


def chrome_trace(moments: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Snapshots, the oldest first, as a trace: a process for each vertex, a thread for each subtask.

    Between two moments a task is said to have done what took most of that time; counters tell how far the producers of
    each exchange were held back, and the records that went through a vertex in a second.
    """
    events: list[dict[str, Any]] = []
    processes: dict[str, int] = {}
    tasks: dict[tuple[int, int], _Slices] = {}
    at = begin = None
    for moment in moments:
        at = float(moment["at"])
        begin = at if begin is None else begin
        for job in moment["jobs"]:
            for vertex in job["vertices"]:
                if vertex["id"] not in processes:
                    processes[vertex["id"]] = len(processes) + 1
                    events.append(_name("process_name", processes[vertex["id"]], 0, vertex["name"]))
                process = processes[vertex["id"]]
                events.append(_counter(process, at, "records/s", vertex["recordsPerSecond"]))
                for task in vertex["subtasks"]:
                    _step(events, tasks, process, task, at)
            for edge in job["edges"]:
                if edge["kind"] == "exchange" and edge["from"] in processes:
                    events.append(_counter(processes[edge["from"]], at, "held back %", 100 * edge["blocked"]))
    for (process, number), slices in tasks.items():
        if slices.state and at is not None:
            _close(events, process, number, slices, at)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"begin": begin}}


def _step(
    events: list[dict[str, Any]], tasks: dict[tuple[int, int], _Slices], process: int, task: dict[str, Any], at: float
) -> None:
    number = task["subtask"]
    slices = tasks.get((process, number))
    if slices is None:
        slices = tasks[process, number] = _Slices()
        slices.since = slices.last = at
        events.append(_name("thread_name", process, number, f"subtask {number}"))
    seconds = task.get("seconds") or {}
    grown = {name: took - slices.seconds.get(name, 0.0) for name, took in seconds.items()}
    most = max(grown, key=grown.__getitem__, default="")
    state = most if most and grown[most] > 0 else task.get("state") or ""
    slices.seconds = seconds
    if state != slices.state:
        # What grew since the moment before began there, not now
        if slices.state:
            _close(events, process, number, slices, slices.last)
            slices.since = slices.last
        slices.state = state
    slices.last = at


def _close(events: list[dict[str, Any]], process: int, number: int, slices: _Slices, until: float) -> None:
    if until > slices.since:
        events.append(
            {
                "ph": "X",
                "name": slices.state,
                "cat": "task",
                "pid": process,
                "tid": number,
                "ts": round(slices.since * _US),
                "dur": round((until - slices.since) * _US),
            }
        )


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": {"name": name}}


def _counter(process: int, at: float, name: str, value: float) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": round(at * _US), "args": {name: value}}
