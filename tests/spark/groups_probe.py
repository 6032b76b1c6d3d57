"""Run by test_groups_memory in a process of its own: peak memory of fresh workers, as JSON on the last line."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import fastbuf_spark as fbs

ROWS, MEMORY = int(sys.argv[1]), int(sys.argv[2])
SCHEMA = "k long, rows long, bytes long, peak_kib long, sorted boolean"

os.environ["PYSPARK_PYTHON"] = sys.executable


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def read(key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reads a group batch by batch."""
    rows = used = 0
    last, is_sorted = -1, True
    for batch in batches:
        times = batch["t"].to_numpy()
        is_sorted = is_sorted and bool(times[0] >= last) and bool((times[1:] >= times[:-1]).all())
        last = times[-1]
        rows += batch.num_rows
        used += batch.nbytes
    row: Any = {"k": [key[0].as_py()], "rows": [rows], "bytes": [used], "peak_kib": [peak_kib()], "sorted": [is_sorted]}
    yield pa.record_batch(row)


def held(table: pa.Table) -> pa.Table:
    """Takes a group whole."""
    return table.slice(0, 0)


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same reading behind the same shuffle, without groups."""
    yield from read((pa.scalar(0),), batches)


spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.log.level", "OFF")
    .config("spark.driver.memory", "2g")
    .config("spark.driver.host", "127.0.0.1")
    # Every task its own process, so that a peak is of this task and of nothing before.
    .config("spark.python.worker.reuse", "false")
    .getOrCreate()
)
# Nine rows of ten have one key
data = spark.range(0, ROWS, 1, 1).selectExpr(
    "if(id % 10 = 0, id % 1000, 7) AS k", "id * 7919 % 1000003 AS t", "repeat(cast(id as string), 20) AS name"
)
conf = fbs.ShuffleConf(memory_bytes=MEMORY)
groups = {
    mode: fbs.group_by(data, "k", num_partitions=1, sort_by="t", mode=mode, conf=conf)
    for mode in ("pipelined", "blocking")
}
plans = {
    **{
        f"{mode} alone": fbs.map_in_arrow(data, identity, SCHEMA, keys="k", num_partitions=1, mode=mode, conf=conf)
        for mode in groups
    },
    **{mode: grouped.apply_in_arrow(read, SCHEMA) for mode, grouped in groups.items()},
}
result: dict[str, Any] = {}
for name, plan in plans.items():
    rows = plan.collect()
    result[name] = {
        "rows": sum(row.rows for row in rows),
        "bytes": sum(row.bytes for row in rows),
        "heaviest": max(row.bytes for row in rows),
        "peak": max(row.peak_kib for row in rows) << 10,
        "keys": [row.k for row in rows] == sorted({row.k for row in rows}),
        "sorted": all(row.sorted for row in rows),
    }
try:
    groups["blocking"].apply_in_arrow(held, "k long, t long, name string").collect()
except Exception as error:
    result["refused"] = str(error)[:20000]
spark.stop()
print(json.dumps(result))
