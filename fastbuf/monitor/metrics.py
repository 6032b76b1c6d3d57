"""Metrics for other systems: their names, kinds and labels, and their current values.

Prometheus, OpenTelemetry and the Grafana dashboard use this one list.  To keep the number of series small, no metric
has both a producer and a consumer as labels.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastbuf.monitor.queries import PARTS, age_s, last_completed
from fastbuf.monitor.recorder import Labels, Recorder

COUNTER, GAUGE = "counter", "gauge"


@dataclass(frozen=True)
class Metric:
    """The description of a metric.

    Attributes
    ----------
    name
        Its name in Prometheus, without the ``_total`` of counters.
    kind
        ``"counter"`` or ``"gauge"``.
    unit
        Its unit in OpenTelemetry: ``"s"``, ``"By"``, ``"1"``.
    labels
        Names of its labels.
    help
        Its description.
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
    "Time of a task by state: credit, link and segment are waits for its consumers, input for its producers; engine_in "
    "and engine_out are waits for Spark; codec is encoding and decoding of batches; user is the user's function",
)
EDGE_SECONDS = Metric(
    "fastbuf_edge_blocked_seconds",
    COUNTER,
    "s",
    ("exchange", "target"),
    "Time that producers waited for a consumer; target rest: the consumers with the shortest waits together",
)
RECORDS = Metric("fastbuf_records", COUNTER, "{record}", ("exchange", "stage"), "Records sent, and received")
BYTES = Metric("fastbuf_bytes", COUNTER, "By", ("exchange", "stage"), "Bytes sent, and received")
PRESSED = Metric(
    "fastbuf_back_pressured_ratio",
    GAUGE,
    "1",
    ("exchange", "stage"),
    "Share of the last five seconds in which a task was back-pressured; maximum over the stage's tasks",
)
BUSY = Metric(
    "fastbuf_busy_ratio",
    GAUGE,
    "1",
    ("exchange", "stage"),
    "Share of the last five seconds in which a task was busy; maximum over the stage's tasks",
)
LOSSES = Metric(
    "fastbuf_losses",
    COUNTER,
    "1",
    ("exchange", "stage", "kind"),
    "What an exchange that was told to go on has done without: buffers_dropped, records_dropped and consumers_cut of a "
    "broadcast, records_missed of its slow gate (on_slow_consumer), "
    "producers_lost and records_cut of a gate (on_peer_loss), skipped records (on_error)",
)
POOL = Metric(
    "fastbuf_pool_usage_ratio",
    GAUGE,
    "1",
    ("exchange", "side"),
    "Share of a task's segments that are in use (side out: producers, in: consumers); maximum over the tasks",
)
DIAGNOSIS = Metric(
    "fastbuf_diagnosis_info",
    GAUGE,
    "1",
    ("exchange", "stage", "subtask", "cause", "level"),
    "1 for each task that slows down a running exchange; subtask all: all tasks of the stage alike",
)
STREAM_INFO = Metric(
    "fastbuf_stream_info", GAUGE, "1", ("query", "state"), "1 for the state that a stream is in: running, restarting..."
)
STREAM_RESTARTS = Metric("fastbuf_stream_restarts", COUNTER, "1", ("query",), "Runs of a stream after its first")
STREAM_ROWS = Metric(
    "fastbuf_stream_rows",
    COUNTER,
    "{record}",
    ("query", "stage", "way"),
    "Rows that came into a stage (way in) and left it (way out), those that were read again after a restart too",
)
STREAM_PRESSED = Metric(
    "fastbuf_stream_back_pressured_ratio",
    GAUGE,
    "1",
    ("query", "stage"),
    "Share of the last five seconds in which a task waited for the stage behind it; maximum over the stage's tasks",
)
STREAM_LAG = Metric(
    "fastbuf_stream_watermark_lag_seconds",
    GAUGE,
    "s",
    ("query", "stage"),
    "Now less the watermark of a stage: how far its event time is behind",
)
STREAM_HELD_BY = Metric(
    "fastbuf_stream_watermark_held_by_info",
    GAUGE,
    "1",
    ("query", "stage", "split"),
    "1 for the split of a source that holds the watermark of a stage back",
)
STREAM_WINDOWS = Metric("fastbuf_stream_open_windows", GAUGE, "1", ("query", "stage"), "Windows that are open")
STREAM_LATE = Metric(
    "fastbuf_stream_late_rows",
    COUNTER,
    "{record}",
    ("query", "stage"),
    "Rows that came behind the watermark and their lateness, those that were read again after a restart too",
)
STREAM_CHECKPOINTS = Metric(
    "fastbuf_stream_checkpoints", COUNTER, "1", ("query", "state"), "Checkpoints that were completed, and that failed"
)
STREAM_CHECKPOINT_SECONDS = Metric(
    "fastbuf_stream_checkpoint_seconds",
    GAUGE,
    "s",
    ("query", "part"),
    "The newest complete checkpoint: its duration, and of the slowest task start_delay, alignment, sync, async",
)
STREAM_CHECKPOINT_BYTES = Metric(
    "fastbuf_stream_checkpoint_bytes", GAUGE, "By", ("query",), "What the newest complete checkpoint has written"
)
STREAM_CHECKPOINT_AGE = Metric(
    "fastbuf_stream_checkpoint_age_seconds",
    GAUGE,
    "s",
    ("query",),
    "Seconds since a checkpoint was complete, or since the stream began: what would be read again",
)
STREAMS = (
    STREAM_INFO,
    STREAM_RESTARTS,
    STREAM_ROWS,
    STREAM_PRESSED,
    STREAM_LAG,
    STREAM_HELD_BY,
    STREAM_WINDOWS,
    STREAM_LATE,
    STREAM_CHECKPOINTS,
    STREAM_CHECKPOINT_SECONDS,
    STREAM_CHECKPOINT_BYTES,
    STREAM_CHECKPOINT_AGE,
)
METRICS = (TASK_SECONDS, EDGE_SECONDS, RECORDS, BYTES, LOSSES, PRESSED, BUSY, POOL, DIAGNOSIS, *STREAMS)
FRESH_S = 0.9  #: a snapshot up to this age is used again


def measure(recorder: Recorder) -> dict[Metric, dict[Labels, float]]:
    """Each metric with its current values, by labels."""
    look = recorder.look(FRESH_S)
    totals = recorder.totals
    values: dict[Metric, dict[Labels, float]] = {metric: {} for metric in METRICS}
    values[TASK_SECONDS] = dict(totals.task_seconds)
    values[EDGE_SECONDS] = dict(totals.blocked_seconds)
    values[RECORDS] = dict(totals.records)
    values[BYTES] = dict(totals.bytes)
    values[LOSSES] = dict(totals.losses)

    def most(metric: Metric, labels: Labels, value: float) -> None:
        values[metric][labels] = max(value, values[metric].get(labels, 0.0))

    for job in look["jobs"]:
        if job["state"] != "RUNNING":
            continue
        names = {exchange["id"]: exchange["name"] for exchange in job["exchanges"]}
        for vertex in job["vertices"]:
            name, stage = names[vertex["exchange"]], vertex["side"]
            most(PRESSED, (name, stage), vertex["backPressured"]["max"])
            most(BUSY, (name, stage), vertex["busy"]["max"])
            for task in vertex["subtasks"]:
                for side in ("in", "out"):
                    if task.get(f"{side}PoolUsage") is not None:
                        most(POOL, (name, side), task[f"{side}PoolUsage"])
        for root in (job["diagnosis"] or {}).get("roots", []):
            subtask = "all" if root["subtask"] is None else str(root["subtask"])
            stage = "consumers" if root["vertex"].endswith("-consumers") else "producers"
            name = names.get(root["exchange"], root["exchange"])
            most(DIAGNOSIS, (name, stage, subtask, root["cause"], job["diagnosis"]["level"]), 1.0)
    values[STREAM_RESTARTS] = dict(recorder.queries.restarts)
    values[STREAM_ROWS] = dict(recorder.queries.rows)
    values[STREAM_LATE] = dict(recorder.queries.late)
    values[STREAM_CHECKPOINTS] = dict(recorder.queries.checkpoints)
    for query in look["queries"]:
        name = query["name"]
        most(STREAM_INFO, (name, query["state"]), 1.0)
        if not query["running"]:
            continue
        most(STREAM_CHECKPOINT_AGE, (name,), age_s(query, look["at"]))
        for stage in query["stages"]:
            most(STREAM_PRESSED, (name, stage["name"]), stage["backPressured"])
            if stage.get("watermark_lag_s") is not None:
                most(STREAM_LAG, (name, stage["name"]), stage["watermark_lag_s"])
            if stage.get("windows") is not None:
                most(STREAM_WINDOWS, (name, stage["name"]), stage["windows"])
            if stage.get("watermark_held_by"):
                most(STREAM_HELD_BY, (name, stage["name"], stage["watermark_held_by"]), 1.0)
        if (newest := last_completed(query)) is not None:
            most(STREAM_CHECKPOINT_BYTES, (name,), newest.get("bytes", 0))
            for part in PARTS:
                most(STREAM_CHECKPOINT_SECONDS, (name, part), newest.get(f"{part}_s") or 0.0)
    return values
