"""What is seen of a stream: figures for people and for pages, from what its tasks and its coordinator say."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastbuf_spark.streams.query import StreamingQuery
    from fastbuf_spark.streams.run import StreamRun, TaskView
    from fastbuf_spark.streams.spec import StreamSpec, StreamStage

PARTS = ("start_delay_s", "alignment_s", "sync_s", "async_s")
OUTPUT_WAITS = ("credit", "link", "segment")  #: what a writer may wait for


def progress_of(query: StreamingQuery, spec: StreamSpec, run: StreamRun | None) -> dict[str, Any]:
    """A JSON value: the query, its stages and tasks, its checkpoints."""
    progress: dict[str, Any] = {"id": query.id, "name": query.name, **query.status, "began": query.began}
    spec, tasks = (spec, []) if run is None else (run.spec, run.tasks)  # None: the first run is being prepared
    progress["generation"] = spec.generation
    views = [[view for view in tasks if view.stage == number] for number in range(len(spec.stages))]
    progress["stages"] = [_stage(run, stage, some) for stage, some in zip(spec.stages, views, strict=True)]
    progress["checkpoints"] = [] if run is None else [_checkpoint(run, each) for each in list(run.coordinator.history)]
    if run is not None and run.coordinator.in_progress is not None and query.is_active:
        progress["waiting"] = waiting_words(run)
    return progress


def _stage(run: StreamRun | None, spec: StreamStage, tasks: list[TaskView]) -> dict[str, Any]:
    stats = [view.stats for view in tasks]
    stage: dict[str, Any] = {
        "name": spec.name,
        "tasks": spec.tasks,
        "running": sum(view.running for view in tasks),
        "rows_in": sum(each.get("rows_in", 0) for each in stats),
        "rows_out": sum(each.get("rows_out", 0) for each in stats),
    }
    for name in (
        "state_keys",
        "state_rows",
        "state_bytes",
        "spilled_bytes",
        "windows",
        "late_rows",
        "null_times",
        "paused_splits",
    ):
        if any(name in each for each in stats):
            stage[name] = sum(each.get(name, 0) for each in stats)
    stage["subtasks"] = [_subtask(view.subtask, each) for view, each in zip(tasks, stats, strict=True)]
    stage.update({} if run is None else _watermark(run, tasks))
    return stage


def _watermark(run: StreamRun, tasks: list[TaskView]) -> dict[str, Any]:
    """The least watermark of a stage's tasks, and who holds that one back; one that has none yet is the least."""
    holders = [(view.stats.get("watermark_ms", -math.inf), _held_by(run, view)) for view in tasks]
    holders = [(mark, name) for mark, name in holders if name or mark > -math.inf]
    if not holders:
        return {}
    mark, name = min(holders, key=lambda each: each[0])
    figures: dict[str, Any] = {"watermark_held_by": name} if name else {}
    if mark > -math.inf:
        figures |= {"watermark_ms": mark, "watermark_lag_s": round(time.time() - mark / 1000, 3)}
    return figures


def _held_by(run: StreamRun, view: TaskView) -> str:
    """The split that holds a task's watermark back, or the source's task that has none yet; empty: nothing does."""
    while (channel := view.stats.get("held_by_channel")) is not None:
        view = run.tasks[run.spec.writers(view.stage)[channel]]
    split = view.stats.get("held_by")
    if split:
        return f"split {split} of {run.spec.stages[view.stage].name}"
    return "" if split is None else _task_name(run, view)


def _subtask(number: int, stats: dict[str, Any]) -> dict[str, Any]:
    """Rows of a task, and its seconds in each wait: for what is behind it, and (``input``) for what is before it."""
    seconds = {name: wait for name, wait in stats.get("writer", {}).items() if name in OUTPUT_WAITS}
    if "input" in stats.get("gate", {}):
        seconds["input"] = stats["gate"]["input"]
    counts = {"subtask": number, "rows_in": stats.get("rows_in", 0), "rows_out": stats.get("rows_out", 0)}
    return {**counts, "state": stats.get("state", "starting"), "seconds": seconds}


def _checkpoint(run: StreamRun, attempt: Any) -> dict[str, Any]:
    checkpoint = {
        "id": attempt.id,
        "state": attempt.state,
        "started_ms": attempt.started_ms,
        "duration_s": attempt.duration_s,
        "reason": attempt.reason,
    }
    figures = {number: ack["figures"] for number, ack in dict(attempt.acks).items()}
    for part in PARTS:
        if figures:
            checkpoint[part] = round(max(each.get(part, 0.0) for each in figures.values()), 6)
    checkpoint["bytes"] = sum(each.get("bytes", 0) for each in figures.values())
    if figures:
        slowest = max(figures, key=lambda number: sum(figures[number].get(part, 0.0) for part in PARTS))
        checkpoint["slowest"] = _task_name(run, run.tasks[slowest])
    return checkpoint


def _task_name(run: StreamRun, view: TaskView) -> str:
    return f"task {view.subtask} of {run.spec.stages[view.stage].name}"


def waiting_words(run: StreamRun) -> str:
    """Why the checkpoint in progress is not complete yet: which task, and what that task waits for."""
    waiting = sorted(run.coordinator.waiting_for())
    if not waiting:
        return "its metadata are being written"
    view = run.tasks[waiting[0]]  # of the first stage in which one is missing: those behind wait for it
    words = f"waits {run.coordinator.history[-1].duration_s:.1f} s for {_task_name(run, view)}"
    if len(waiting) > 1:
        words += f" and {len(waiting) - 1} more"
    blocked = view.stats.get("waits_for") or []
    if blocked:
        producer = run.spec.writers(view.stage)[blocked[0]]
        name = _task_name(run, run.tasks[producer])
        words += f": it waits for the barrier of channel {blocked[0]} ({name})"
        if producer in waiting:
            return words + _doing(run.tasks[producer], ", which ")
        return words + ", which lies behind rows that it has not read yet"
    if view.stage and view.stats.get("barrier", 0) != run.coordinator.in_progress:
        return words + ": the barriers lie behind rows that it has not read yet" + _doing(view, ", and it ")
    return words + _doing(view, ", which ")


def _doing(view: TaskView, before: str) -> str:
    """What keeps a task from its barrier, as it last told."""
    state = view.stats.get("state")
    if state == "credit":
        return f"{before}is held back by the stage behind it: that gives no credit"
    if state in OUTPUT_WAITS:
        return f"{before}is held back: it waits for {'memory' if state == 'segment' else 'the network'}"
    if state == "commit":
        return f"{before}waits for its sink, which takes longer to commit than from one checkpoint to the next"
    if state == "user":
        return f"{before}is busy in its functions"
    return ""
