"""Responses of the REST interface, with Flink's names and fields where it has them; pure functions of a snapshot.

Source: Apache Flink's REST API (``JobDetailsInfo``, ``JobVertexBackPressureInfo``, ``VertexFlameGraph``, aggregated
subtask metrics).  Only the ids are our own.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastbuf.monitor.flamegraph import flamegraph
from fastbuf.monitor.snapshot import PRODUCERS, Exchange, seconds_of, shares
from fastbuf.monitor.task import level

Snapshot = Mapping[str, Any]


class Unknown(LookupError):
    """There is no such job, vertex or metric; the text names it."""


def find_job(snapshot: Snapshot, job: str) -> dict[str, Any]:
    """The job with that id, or with an exchange of that id."""
    for entry in snapshot["jobs"]:
        if job == entry["id"] or any(job == exchange["id"] for exchange in entry["exchanges"]):
            return entry
    raise Unknown(f"there is no job {job}")


def find_vertex(snapshot: Snapshot, job: str, vertex: str) -> dict[str, Any]:
    """The vertex with that id."""
    for entry in find_job(snapshot, job)["vertices"]:
        if entry["id"] == vertex:
            return entry
    raise Unknown(f"job {job} has no vertex {vertex}")


def jobs(snapshot: Snapshot) -> dict[str, Any]:
    """``/jobs``."""
    return {"jobs": [{"id": job["id"], "status": job["state"]} for job in snapshot["jobs"]]}


def overview(snapshot: Snapshot) -> dict[str, Any]:
    """``/jobs/overview``."""
    return {
        "jobs": [
            {
                "jid": job["id"],
                "name": job["name"],
                "last-modification": _ms(snapshot["at"]),
                **_times(job),
                "tasks": _count(task for vertex in job["vertices"] for task in _states(vertex)),
            }
            for job in snapshot["jobs"]
        ]
    }


def details(snapshot: Snapshot, job: str) -> dict[str, Any]:
    """``/jobs/:id``."""
    entry = find_job(snapshot, job)
    return {
        "jid": entry["id"],
        "name": entry["name"],
        "isStoppable": False,
        **_times(entry),
        "now": _ms(snapshot["at"]),
        "vertices": [_vertex(entry, vertex) for vertex in entry["vertices"]],
        "status-counts": _count(vertex["state"] for vertex in entry["vertices"]),
        "plan": {"jid": entry["id"], "name": entry["name"], "nodes": [_node(entry, v) for v in entry["vertices"]]},
    }


def _times(job: Mapping[str, Any]) -> dict[str, Any]:
    begin, took = _ms(job["began"]), _ms(job["seconds"])
    over = job["state"] != "RUNNING"
    return {
        "state": job["state"],
        "start-time": begin,
        "end-time": begin + took if over else -1,
        "duration": took,
    }


def _vertex(job: Mapping[str, Any], vertex: Mapping[str, Any]) -> dict[str, Any]:
    sends = vertex["side"] == PRODUCERS

    def spent(share: str) -> int:
        times = map(seconds_of, vertex["subtasks"])  # of the whole life, not the shares of the last seconds
        return _ms(sum(shares({"seconds": seconds})[share] * sum(seconds.values()) for seconds in times))

    return {
        "id": vertex["id"],
        "name": vertex["name"],
        "parallelism": vertex["parallelism"],
        "status": vertex["state"],
        "start-time": _ms(job["began"]),
        "duration": _ms(job["seconds"]),
        "tasks": _count(_states(vertex)),
        "metrics": {
            "read-bytes": 0 if sends else vertex["bytes"],
            "write-bytes": vertex["bytes"] if sends else 0,
            "read-records": 0 if sends else vertex["records"],
            "write-records": vertex["records"] if sends else 0,
            "accumulated-backpressured-time": spent("backPressured"),
            "accumulated-idle-time": spent("idle"),
            "accumulated-busy-time": spent("busy"),
        },
    }


def _node(job: Mapping[str, Any], vertex: Mapping[str, Any]) -> dict[str, Any]:
    inputs = [
        {
            "num": number,
            "id": edge["from"],
            "ship_strategy": "FORWARD" if edge["kind"] == "forward" else "HASH",
            "exchange": edge.get("mode", "pipelined"),
        }
        for number, edge in enumerate(edge for edge in job["edges"] if edge["to"] == vertex["id"])
    ]
    return {
        "id": vertex["id"],
        "parallelism": vertex["parallelism"],
        "description": vertex["name"],
        "inputs": inputs,
    }


def _states(vertex: Mapping[str, Any]) -> list[str]:
    return ["RUNNING" if "state" in task else "FINISHED" for task in vertex["subtasks"]]


def _count(states: Any) -> dict[str, int]:
    return dict(Counter(states))


def backpressure(snapshot: Snapshot, job: str, vertex: str) -> dict[str, Any]:
    """``/jobs/:id/vertices/:v/backpressure``; the ratios come from measured time.

    ``samples`` is Flink's classic figure, if the task reports it: how many samples out of how many found it blocked.
    """
    entry = find_vertex(snapshot, job, vertex)
    return {
        "status": "ok",
        **_level(entry["level"]),
        "end-timestamp": _ms(snapshot["at"]),
        "subtasks": [
            {
                "subtask": task["subtask"],
                **_level(level(task["backPressured"])),
                "ratio": task["backPressured"],
                "idleRatio": task["idle"],
                "busyRatio": task["busy"],
                **({"samples": task["samples"]} if task.get("samples") else {}),
            }
            for task in entry["subtasks"]
        ],
    }


def _level(name: str) -> dict[str, str]:
    return {"backpressureLevel": name.lower(), "backpressure-level": name.lower()}


def flames(
    snapshot: Snapshot, exchanges: Sequence[Exchange], job: str, vertex: str, kind: str, subtask: int | None
) -> dict[str, Any]:
    """``/jobs/:id/vertices/:v/flamegraph``, of all subtasks or of one."""
    entry = find_vertex(snapshot, job, vertex)
    owner = next((exchange for exchange in exchanges if exchange.id == entry["exchange"]), None)
    tasks = {} if owner is None else owner.side(entry["side"])
    wanted = [figures for number, figures in tasks.items() if subtask is None or number == subtask]
    if subtask is not None and not wanted:
        raise Unknown(f"vertex {vertex} has no subtask {subtask}")
    return {"endTimestamp": _ms(snapshot["at"]), "data": flamegraph(wanted, kind)}


#: Flink's names of figures, and the factor to Flink's unit; all others have their own names.
_FLINKS = {
    "busy": ("busyTimeMsPerSecond", 1000),
    "backPressured": ("backPressuredTimeMsPerSecond", 1000),
    "idle": ("idleTimeMsPerSecond", 1000),
    "records": ("numRecords{}", 1),
    "bytes": ("numBytes{}", 1),
    "recordsPerSecond": ("numRecords{}PerSecond", 1),
    "bytesPerSecond": ("numBytes{}PerSecond", 1),
}


def metrics_of(vertex: Mapping[str, Any]) -> dict[str, list[float]]:
    """A vertex's metrics by name, each with the values of the subtasks that report it: all their numbers."""
    way = "Out" if vertex["side"] == PRODUCERS else "In"
    metrics: dict[str, list[float]] = {}
    for task in vertex["subtasks"]:
        for figure, value in task.items():
            if type(value) in (int, float) and figure not in ("subtask", "target"):
                name, factor = _FLINKS.get(figure, (figure, 1))
                metrics.setdefault(name.format(way), []).append(factor * float(value))
    return metrics


def skew(values: Sequence[float]) -> float:
    """Mean absolute deviation in per cent of the mean (Flink's FLIP-418)."""
    mean = statistics.fmean(values)
    return 100 * statistics.fmean(abs(value - mean) for value in values) / mean if mean else 0.0


AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "avg": statistics.fmean,
    "sum": sum,
    "skew": skew,
}


def subtask_metrics(
    snapshot: Snapshot,
    job: str,
    vertex: str,
    get: str | None = None,
    agg: str | None = None,
    subtasks: str | None = None,
) -> list[dict[str, Any]]:
    """``/jobs/:id/vertices/:v/subtasks/metrics``: names, or, with ``get``, values aggregated over subtasks.

    Parameters
    ----------
    get
        Names, separated by commas.
    agg
        Some of ``min,max,avg,sum,skew``; default: all.
    subtasks
        Only these: ``"0,3-5"``; default: all.
    """
    entry = find_vertex(snapshot, job, vertex)
    if subtasks:
        wanted = _ranges(subtasks)
        entry = {**entry, "subtasks": [task for task in entry["subtasks"] if task["subtask"] in wanted]}
    values = metrics_of(entry)
    if not get:
        return [{"id": name} for name in sorted(values)]
    asked = agg.split(",") if agg else list(AGGREGATES)
    for name in asked:
        if name not in AGGREGATES:
            raise Unknown(f"agg={name} is unknown: use {', '.join(AGGREGATES)}")
    return [
        {"id": name, **{way: round(AGGREGATES[way](values[name]), 6) for way in asked}}
        for name in get.split(",")
        if name in values
    ]


def _ranges(text: str) -> set[int]:
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.strip().isdecimal() or (last and not last.strip().isdecimal()):
            raise Unknown(f"subtasks={text} must be numbers and ranges, like 0,3-5")
        numbers.update(range(int(first), min(int(last or first), int(first) + 100_000) + 1))
    return numbers


def diagnosis(snapshot: Snapshot, job: str) -> dict[str, Any]:
    """``/jobs/:id/diagnosis``: the diagnosis of the job, and of each of its exchanges."""
    entry = find_job(snapshot, job)
    parts = [{"id": e["id"], "name": e["name"], "diagnosis": e["diagnosis"]} for e in entry["exchanges"]]
    return {"id": entry["id"], "diagnosis": entry["diagnosis"], "exchanges": parts}


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
