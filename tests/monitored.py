"""Exchanges as a driver would tell of them, for the tests of what shows them."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from fastbuf.monitor import Exchange, History, Recorder, Task, diagnose

BEGAN = 1_700_000_000.0
EVIL = "<img src=x onerror=\"document.title='had'\">"


def producer(wait_s: float, target: int, total_s: float = 20.0, **more: Any) -> dict[str, Any]:
    """Waits for one consumer, and for a tenth of that for all others; busy for the rest."""
    return {
        "records": 40_000,
        "bytes": 4_000_000,
        "segments": 64,
        "peak_segments": 60,
        "seconds": {"credit": wait_s, "link": 0.0, "segment": 0.1, "engine_in": 1.0, "user": total_s - wait_s - 1.1},
        "blocked": {str(target): 0.9 * wait_s, "rest": 0.1 * wait_s} if wait_s else {},
        "state": "credit" if wait_s > 1 else "user",
        **({"target": target} if wait_s > 1 else {}),
        "backPressured": wait_s / total_s,
        "idle": 1.0 / total_s,
        "busy": 1 - (wait_s + 1.0) / total_s,
        "outPoolUsage": 0.94 if wait_s > 1 else 0.2,
        "outputQueueLength": 9 if wait_s > 1 else 0,
        "samples": {"taken": 100, "blocked": round(100 * wait_s / total_s), "level": "HIGH" if wait_s > 10 else "LOW"},
        **more,
    }


def consumer(busy_s: float, total_s: float = 20.0, line: str = "etl.py:41 normalize", **more: Any) -> dict[str, Any]:
    """Busy for so long, and waiting for rows for the rest."""
    return {
        "records": 20_000,
        "bytes": 2_000_000,
        "segments": 64,
        "peak_segments": 12,
        "seconds": {"input": total_s - busy_s - 0.2, "engine_out": 0.2, "user": busy_s},
        "state": "user" if busy_s > 0.5 * total_s else "input",
        "backPressured": 0.01,
        "idle": (total_s - busy_s) / total_s - 0.01,
        "busy": busy_s / total_s,
        "frames": {line: round(4 * busy_s), "etl.py:44 normalize": round(busy_s)},
        "inPoolUsage": busy_s / total_s,
        "gc_s": 0.4,
        "queued_s": 0.2,
        **more,
    }


STACKS = {
    "on": {
        "pipeline.py:12 main;etl.py:30 total;etl.py:41 normalize;re.py:209 sub": 160,
        "pipeline.py:12 main;etl.py:30 total;etl.py:41 normalize": 60,
        "pipeline.py:12 main;etl.py:30 total;etl.py:47 add": 30,
        "pipeline.py:12 main;json.py:7 loads": 20,
    },
    "off": {"pipeline.py:12 main;etl.py:30 total;etl.py:52 look_up;socket.py:705 readinto": 40},
}


def tasks_of(stage: str, figures: dict[int, dict[str, Any]]) -> list[Task]:
    return [
        Task(
            stage,
            number,
            found["seconds"],
            {-1 if target == "rest" else int(target): held for target, held in found.get("blocked", {}).items()},
            found["records"],
            found["bytes"],
            frames=found.get("frames", {}),
        )
        for number, found in figures.items()
    ]


def exchange(
    id: str, name: str, producers: dict[int, Any], consumers: dict[int, Any], began: float = BEGAN, **more: Any
) -> Exchange:
    """With the diagnosis that its figures give."""
    found = diagnose(name, tasks_of("producers", producers), tasks_of(name, consumers))
    made = {"epoch": (1 << 62) + 1, "began": began, "seconds": 20.0, "tasks": len(producers), "diagnosis": found}
    return Exchange(id, name, producers=producers, consumers=consumers, **{**made, **more})


def two_in_a_row(slow_s: float = 19.0) -> list[Exchange]:
    """`clean` feeds `total`, whose subtask 3 is slow: all before it waits, subtask by subtask."""
    held = {"seconds": {"input": 0.8, "engine_out": 13.2, "user": 6.0}, "state": "engine_out"}
    held |= {"backPressured": 0.66, "idle": 0.04, "busy": 0.3}
    clean = exchange(
        "clean-1",
        "clean",
        {number: producer(11.0, number) for number in range(3)},
        {number: consumer(6.0, line="etl.py:12 clean", **held) for number in range(4)},
    )
    slow = consumer(slow_s, stacks=STACKS, records=9_000)
    total = exchange(
        "total-2",
        "total",
        {number: producer(14.0 + number, 3, buffers_dropped=3) for number in range(4)},
        {0: consumer(4.0), 1: consumer(4.4), 2: consumer(3.9), 3: slow},
        upstream=("clean-1",),
    )
    return [clean, total]


def healthy() -> Exchange:
    """Nobody waits."""
    return exchange("ok-3", "fine", {0: producer(0.1, 0)}, {0: consumer(10.0), 1: consumer(10.2)}, outcome="ok")


def many(tasks: int) -> Exchange:
    """As many producers as consumers; one of these is slow."""
    some = {
        number: {
            **producer(10.0, 7),
            "blocked": {"7": 8.0, **{str((number + k) % tasks): 0.25 for k in range(1, 8)}, "rest": 0.2},
        }
        for number in range(tasks)
    }
    return exchange("many-4", "many", some, {n: consumer(19.0 if n == 7 else 3.0) for n in range(tasks)})


def story(now: float, seconds: int = 180) -> tuple[History, Callable[[], list[Exchange]]]:
    """A job that began so long before ``now``, with what was seen of it: pressure builds up in its second minute."""
    begin = now - seconds

    def at(when: float) -> list[Exchange]:
        passed = max(1.0, when - begin)
        strength = min(1.0, max(0.05, (passed - 45) / 60)) * (0.94 + 0.06 * math.sin(passed / 4))
        # Seconds that are left for rows: the integral of what pressure takes away
        left = (
            passed - 0.6 * (max(0.0, min(60.0, passed - 45)) ** 2 / 120 + max(0.0, passed - 105)) + math.sin(passed / 4)
        )

        def told(tasks: Mapping[int, Any], pressed: float) -> dict[int, Any]:
            found = {}
            for number, figures in tasks.items():
                scale = passed / 20
                held = figures["backPressured"] * pressed
                records = int(figures["records"] * left / 20)
                found[number] = {
                    **figures,
                    "records": records,
                    "bytes": 104 * records,
                    "seconds": {name: took * scale for name, took in figures["seconds"].items()},
                    "blocked": {name: took * scale for name, took in figures.get("blocked", {}).items()},
                    "backPressured": held,
                    "busy": max(0.0, min(1.0, figures["busy"] + (figures["backPressured"] - held) * 0.3)),
                    "gc_s": 0.02 * scale + 0.1 * number,
                    "queued_s": 0.3 * scale,
                }
            return found

        return [
            dataclasses.replace(
                exchange,
                began=begin,
                seconds=passed,
                producers=told(exchange.producers, strength),
                consumers=told(exchange.consumers, strength),
            )
            for exchange in two_in_a_row()
        ]

    history = History()
    clock = [begin]
    recorder = Recorder(lambda: at(clock[0]), history, lambda: clock[0])
    while clock[0] < now - 1:
        clock[0] += 1
        recorder.look()
    return history, lambda: at(time.time())


def a_stream(held_s: float = 60.0, at: float = BEGAN + 100, **more: Any) -> dict[str, Any]:
    """A query as a driver tells of it: `running` is slow, so its source is held back, and its checkpoint waits."""

    def stage(name: str, seconds: dict[str, float], rows: int, **marks: Any) -> dict[str, Any]:
        task = {"subtask": 0, "state": "user", "rows_in": rows, "rows_out": rows, "seconds": seconds}
        return {"name": name, "tasks": 1, "running": 1, "rows_in": rows, "rows_out": rows, "subtasks": [task], **marks}

    def checkpoint(number: int, state: str = "completed", **parts: Any) -> dict[str, Any]:
        told = {"id": number, "state": state, "started_ms": 1000 * (at - 20 + 2 * number), "duration_s": 0.2}
        return {**told, "reason": "", "bytes": 1000 * number, "slowest": "task 0 of running", **parts}

    parts = {"start_delay_s": 0.1, "alignment_s": 0.05, "sync_s": 0.01, "async_s": 0.04}
    reason = "task 2 declined checkpoint 2: disk full"
    marks = {"watermark_ms": 1000 * (at - 5), "watermark_lag_s": 5.0}
    times = {"windows": 1200, "late_rows": 3, "watermark_held_by": "split b of source"}
    return {
        "id": "job-1",
        "name": "orders to parquet",
        "state": "running",
        "message": "",
        "restarts": 1,
        "generation": 2,
        "began": BEGAN,
        "stages": [
            stage("source", {"credit": held_s, "link": 0.0, "segment": 0.0}, 40_000),
            stage("running", {"credit": 0.0, "link": 0.0, "segment": 0.0, "input": 1.0}, 39_000, **marks, **times),
            stage("sink", {"input": 60.0}, 39_000, **marks),
        ],
        "checkpoints": [
            checkpoint(1, **parts),
            checkpoint(2, "failed", reason=reason),
            checkpoint(3, **parts, duration_s=2.5),
            checkpoint(4, "in progress"),
        ],
        "waiting": "waits 4.2 s for task 0 of running, which is busy in its functions",
        **more,
    }


def a_watched_stream(**more: Any) -> Recorder:
    """Looked at twice, so that there are rates: the source is held back for nine of ten seconds."""
    clock = [BEGAN + 90]
    recorder = Recorder(
        list,
        clock=lambda: clock[0],
        queries=lambda: [a_stream(9.0 if clock[0] > BEGAN + 90 else 0.0, clock[0], **more)],
    )
    recorder.look()
    clock[0] += 10
    recorder.look()
    return recorder
