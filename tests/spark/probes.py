"""Stages that report on the worker they run in; imported by the workers."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

STATE = "pid long, rows long, fds long, threads long, rss_kib long, peak_kib long"


def figures() -> dict[str, int]:
    """Descriptors, threads and memory of this process."""
    status = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(("VmRSS", "Thr"))
    )
    return {
        "pid": os.getpid(),
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
        "rss_kib": int(status["VmRSS"].split()[0]),
        "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def state(rows: int) -> pa.RecordBatch:
    """One row of STATE."""
    found = figures() | {"rows": rows}
    names = [field.split()[0] for field in STATE.split(", ")]
    return pa.record_batch({name: pa.array([found[name]], pa.int64()) for name in names})


def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hands on what it gets."""
    yield from batches


def reporting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Counts rows and reports at the end."""
    rows = 0
    for batch in batches:
        rows += batch.num_rows
    yield state(rows)


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same, as a consumer that is slower than its producers."""
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        time.sleep(0.02)  # the slow consumer that is tested
    yield state(rows)


def with_peak(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A first stage that adds its worker's peak memory to every row, so that it arrives at the other end."""
    for batch in batches:
        peak = pa.array([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss] * batch.num_rows, pa.int64())
        yield pa.RecordBatch.from_arrays([*batch.columns, peak], names=[*batch.schema.names, "producer_kib"])


def slowly_with_producers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Slow; reports its own peak memory and the largest of its producers'."""
    import pyarrow.compute as pc

    rows = producers = 0
    asked = time.monotonic()
    for batch in batches:
        rows += batch.num_rows
        producers = max(producers, pc.max(batch["producer_kib"]).as_py() or 0)
        time.sleep(max(0.04, 2 * (time.monotonic() - asked)))  # slow, beside producers that are not fast either
        asked = time.monotonic()
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield pa.record_batch(
        {
            "rows": pa.array([rows], pa.int64()),
            "consumer": pa.array([own], pa.int64()),
            "producer": pa.array([producers], pa.int64()),
        }
    )


def with_pid(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A first stage that adds its worker's pid to every row."""
    for batch in batches:
        pid = pa.array([os.getpid()] * batch.num_rows, pa.int64())
        yield pa.RecordBatch.from_arrays([*batch.columns, pid], names=[*batch.schema.names, "sender"])


def both_pids(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What arrived of the senders' pids, beside the own."""
    for batch in batches:
        own = pa.array([os.getpid()] * batch.num_rows, pa.int64())
        yield pa.RecordBatch.from_arrays([batch["sender"], own], names=["sender", "receiver"])


def shared_files() -> set[str]:
    """What is in /dev/shm, but for what other programs put there and drop again: semaphores, and the JVM's figures."""
    if not os.path.isdir("/dev/shm"):
        return set()
    return {name for name in os.listdir("/dev/shm") if not name.startswith(("sem.", "hsperf"))}
