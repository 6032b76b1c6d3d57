"""Run by test_memory_bound in a process of its own: peak memory of fresh workers, as JSON on the last line."""

from __future__ import annotations

import json
import os
import sys

import probes
from pyspark.sql import SparkSession

import fastbuf_spark as fbs

ROWS = int(sys.argv[1])
MEMORY = int(sys.argv[2])
MODE = sys.argv[3]

os.environ["PYSPARK_PYTHON"] = sys.executable
spark = (
    SparkSession.builder.master("local[4]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.log.level", "OFF")
    .config("spark.driver.memory", "2g")
    .config("spark.driver.host", "127.0.0.1")
    # Every task its own process, so that a peak is of this task and of nothing before.
    .config("spark.python.worker.reuse", "false")
    .getOrCreate()
)
data = spark.range(0, ROWS, 1, 2).selectExpr("id AS k", "id", "id * 0.5D AS x", "concat('user-', id) AS name")
schema = "k long, id long, x double, name string"

identity = data.mapInArrow(probes.with_peak, schema + ", producer_kib long").mapInArrow(
    probes.slowly_with_producers, "rows long, consumer long, producer long"
)
shuffled = fbs.map_in_arrow(
    data,
    probes.slowly_with_producers,
    "rows long, consumer long, producer long",
    keys=["k"],
    num_partitions=2,
    before=probes.with_peak,
    before_schema=schema + ", producer_kib long",
    mode=MODE,
    conf=fbs.ShuffleConf(memory_bytes=MEMORY),
)
result = {}
for name, plan in (("identity", identity), (MODE, shuffled)):
    rows = plan.collect()
    assert sum(r.rows for r in rows) == ROWS
    result[name] = {"consumer": max(r.consumer for r in rows), "producer": max(r.producer for r in rows)}
run = fbs.last_run()
result["segments"] = {
    "peak": run.peak_segments if run else 0,
    "cap": MEMORY // (32 * 1024),
    "waited": max((s["wait_s"] for s in run.producers.values()), default=0.0) if run else 0.0,
}
spark.stop()
print(json.dumps(result))
