"""Run by test_groups_memory in a process of its own: the most that any Python worker of a job had, as JSON at the end.

Looked at from outside, thirty times a second, and told by each task's last function too, as it may grow after the last
look.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import fastbuf_spark as fbs

MEMORY, FILE_ROWS, FOLDER = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
GROUPS, TIMES = 100, 4.2  # of the memory, in a group
PAD = 200
SCHEMA = "k long, rows long, bytes long, peak long"
PLAIN = "k long, j long, name string"
MODES = ("pipelined", "blocking")
LOOKS_S = 0.03


def most(pid: int | str = "self") -> int:
    """Bytes that a process has had at most; 0 of one that has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) << 10
    return 0


def read(key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reads a group batch by batch."""
    rows = used = 0
    for batch in batches:
        rows += batch.num_rows
        used += batch.nbytes
    yield pa.record_batch({"k": [key[0].as_py()], "rows": [rows], "bytes": [used], "peak": [most()]})


def alone(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same reading of all rows, without a shuffle; the code of one, and of a sort, takes its place all the same."""
    import fastbuf_spark.worker.consumer
    import fastbuf_spark.worker.producer
    import fastbuf_spark.worker.verbs  # noqa: F401
    from fastbuf_spark.worker.runs import in_order

    few = (pa.record_batch({"k": [i % 7], "name": ["x" * PAD]}) for i in range(2000))
    assert sum(batch.num_rows for batch in in_order(few, (0,), 64 << 10, "")) == 2000
    yield from read((pa.scalar(0),), batches)


def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


spark = (
    SparkSession.builder.master("local[4]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.log.level", "OFF")
    .config("spark.driver.memory", "2g")
    .config("spark.driver.host", "127.0.0.1")
    # What blocks come in: PySpark holds two batches while it reads, 64 MiB each if nothing is said
    .config("spark.sql.execution.arrow.maxBytesPerBatch", "1m")
    # Every task its own process, so that a peak is of this task and of nothing before
    .config("spark.python.worker.reuse", "false")
    .getOrCreate()
)


def measured(job: Callable[[], list[Any]]) -> dict[str, Any]:
    """What a job gave, and the most that one of its workers had."""
    java = psutil.Process(spark.sparkContext._gateway.proc.pid)
    peaks: dict[int, int] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOKS_S):
            for daemon in java.children():
                with contextlib.suppress(psutil.Error):
                    for worker in daemon.children():
                        peaks[worker.pid] = max(peaks.get(worker.pid, 0), most(worker.pid))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        rows = job()
    finally:
        over.set()
        thread.join()
    return {
        "rows": sum(row.rows for row in rows),
        "groups": len(rows),
        "heaviest": max(row.bytes for row in rows),
        "least": min(row.bytes for row in rows),
        "workers": len(peaks),
        "peak": max([*peaks.values(), *(row.peak for row in rows)]),
    }


# Batches that are small beside the memory: a task looks what it has when it has taken one
conf = fbs.ShuffleConf(memory_bytes=MEMORY, segment_size=8192, batch_rows=max(100, MEMORY // (40 * PAD)))
of_rows = int(GROUPS * TIMES * MEMORY / (PAD + 20))
hundred = spark.range(0, of_rows, 1, 4).selectExpr(
    f"id * 7919 % {GROUPS} as k", "id as j", f"repeat('x', {PAD}) as name"
)

for number, ns in enumerate(np.array_split(np.arange(FILE_ROWS), 4)):
    # Nine rows of ten have one key
    keys = np.where(ns % 10 == 0, ns % 1000, 7)
    names = pa.array([f"a name of some length {n}" for n in ns])
    pq.write_table(pa.table({"k": keys, "j": ns * 7919 % 10007, "name": names}), f"{FOLDER}/{number}.parquet")
files = fbs.pipeline(fbs.read_parquet(spark, FOLDER), conf=conf)


def two_shuffles(mode: str) -> Any:
    moved = files.map_in_arrow(passing, PLAIN).shuffle("j", partitions=1, mode=mode).map_in_arrow(passing, PLAIN)
    return moved.group_by("k", partitions=1, sort_by="j", mode=mode).apply_in_arrow(read, SCHEMA)


jobs: dict[str, Callable[[], list[Any]]] = {
    "rows alone": hundred.mapInArrow(alone, SCHEMA).collect,
    "files alone": files.map_in_arrow(alone, SCHEMA).collect,
}
for mode in MODES:
    grouped = fbs.group_by(hundred, "k", num_partitions=2, mode=mode, conf=conf)
    jobs[f"hundred groups, {mode}"] = grouped.apply_in_arrow(read, SCHEMA).collect
    jobs[f"two shuffles, {mode}"] = two_shuffles(mode).collect
result = {name: measured(job) for name, job in jobs.items()}
result["of rows"] = {"rows": of_rows}
spark.stop()
print(json.dumps(result))
