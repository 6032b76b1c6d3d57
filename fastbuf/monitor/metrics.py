"""The figures that other systems collect: their names, kinds and labels, and their values of now.

One list, which Prometheus, OpenTelemetry and the Grafana dashboard read.  No label has a value for each pair of
producer and consumer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fastbuf.monitor.recorder import Labels, Recorder

COUNTER, GAUGE = "counter", "gauge"


@dataclass(frozen=True)
class Metric:
    """What one figure is called.

    Attributes
    ----------
    name
        Prometheus's, without the ``_total`` of counters.
    kind
        ``"counter"`` or ``"gauge"``.
    unit
        OpenTelemetry's: ``"s"``, ``"By"``, ``"1"``.
    labels
        Names of its labels.
    help
        What it is.
    """

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    help: str


TASK_SECONDS = Metric(
    "fastbuf_task_state_seconds",
    COUNTER,
    "s",
    ("exchange", "stage", "subtask", "state"),
    "Time of a task by what it did: credit, link and segment are waits for what comes after it, input for what comes "
    "before; engine_in and engine_out for Spark; codec encodes and decodes batches; user is the function's",
)
EDGE_SECONDS = Metric(
    "fastbuf_edge_blocked_seconds",
    COUNTER,
    "s",
    ("exchange", "target"),
    "Time that producers waited for a consumer; target rest: for those that were waited for least",
)
RECORDS = Metric("fastbuf_records", COUNTER, "{record}", ("exchange", "stage"), "Records sent, and received")
BYTES = Metric("fastbuf_bytes", COUNTER, "By", ("exchange", "stage"), "Bytes sent, and received")
PRESSED = Metric(
    "fastbuf_back_pressured_ratio",
    GAUGE,
    "1",
    ("exchange", "stage"),
    "Share of the last five seconds in which a stage's tasks were held back: the worst task",
)
BUSY = Metric("fastbuf_busy_ratio", GAUGE, "1", ("exchange", "stage"), "The same of being busy: the busiest task")
POOL = Metric(
    "fastbuf_pool_usage_ratio",
    GAUGE,
    "1",
    ("exchange", "side"),
    "Share of its segments that a task has in use (side out: producers, in: consumers): the fullest task",
)
DIAGNOSIS = Metric(
    "fastbuf_diagnosis_info",
    GAUGE,
    "1",
    ("exchange", "stage", "subtask", "cause", "level"),
    "1 for each task that holds up an exchange under way; subtask all: all of them alike",
)
METRICS = (TASK_SECONDS, EDGE_SECONDS, RECORDS, BYTES, PRESSED, BUSY, POOL, DIAGNOSIS)
FRESH_S = 0.9  #: a look so old will do


def measure(recorder: Recorder) -> Iterator[tuple[Metric, dict[Labels, float]]]:
    """Each metric with its values of now, by labels."""
    look = recorder.look(FRESH_S)
    totals = recorder.totals
    yield TASK_SECONDS, dict(totals.task_seconds)
    yield EDGE_SECONDS, dict(totals.blocked_seconds)
    yield RECORDS, dict(totals.records)
    yield BYTES, dict(totals.bytes)
    pressed: dict[Labels, float] = {}
    busy: dict[Labels, float] = {}
    pools: dict[Labels, float] = {}
    diagnoses: dict[Labels, float] = {}

    def most(found: dict[Labels, float], labels: Labels, value: float) -> None:
        found[labels] = max(value, found.get(labels, 0.0))

    for job in look["jobs"]:
        if job["state"] != "RUNNING":
            continue
        names = {exchange["id"]: exchange["name"] for exchange in job["exchanges"]}
        for vertex in job["vertices"]:
            name, stage = names[vertex["exchange"]], vertex["side"]
            most(pressed, (name, stage), vertex["backPressured"]["max"])
            most(busy, (name, stage), vertex["busy"]["max"])
            for task in vertex["subtasks"]:
                for side in ("in", "out"):
                    if task.get(f"{side}PoolUsage") is not None:
                        most(pools, (name, side), task[f"{side}PoolUsage"])
        for root in (job["diagnosis"] or {}).get("roots", []):
            subtask = "all" if root["subtask"] is None else str(root["subtask"])
            stage = "consumers" if root["vertex"].endswith("-consumers") else "producers"
            diagnoses[root["exchange"], stage, subtask, root["cause"], job["diagnosis"]["level"]] = 1.0
    yield PRESSED, pressed
    yield BUSY, busy
    yield POOL, pools
    yield DIAGNOSIS, diagnoses
