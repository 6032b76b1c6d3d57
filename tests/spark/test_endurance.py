"""Run after run in one Spark session: workers are reused, and nothing grows."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from typing import Any

import probes
import pytest

import fastbuf_spark as fbs
from fastbuf.cli.demo import flights

RUNS = 200 if os.environ.get("FASTBUF_LONG") == "1" else 12
WARM = 4  # the first runs load modules and grow heaps
OFTEN = RUNS // 6  # Spark gives tasks to its idle workers by turns, and tests before this one may have left several


def driver() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()


@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["pipelined", "fused", "blocking"])
def test_nothing_grows(spark: Any, mode: str) -> None:
    data = spark.createDataFrame(flights().select(["tailnum", "month", "day", "dep_delay"])).repartition(2).cache()
    rows = data.count()
    by_worker: dict[int, list[dict[str, int]]] = defaultdict(list)
    shared = probes.shared_files()
    before = driver()
    for run in range(RUNS):
        plan = fbs.map_in_arrow(
            data,
            probes.reporting,
            probes.STATE,
            keys=["tailnum"],
            num_partitions=2,
            before=probes.passing,
            before_schema=data.schema,
            mode=mode,
        )
        found = plan.collect()
        assert sum(r.rows for r in found) == rows
        for r in found:
            by_worker[r.pid].append(r.asDict())
        if run == WARM:
            before = driver()
    after = driver()
    data.unpersist(blocking=True)
    assert after[0] <= before[0] + 2, f"descriptors of the driver: {before[0]}, then {after[0]}"
    assert after[1] <= before[1] + 2, f"threads of the driver: {before[1]}, then {after[1]}"
    assert probes.shared_files() <= shared
    reused = {pid: states for pid, states in by_worker.items() if len(states) > OFTEN}
    assert reused, "no worker was reused"
    for pid, states in reused.items():
        half = states[len(states) // 2]
        last = states[-1]
        assert last["fds"] <= half["fds"] + 1, f"worker {pid}: {half['fds']} descriptors, then {last['fds']}"
        assert last["threads"] <= half["threads"], f"worker {pid}: {half['threads']} threads, then {last['threads']}"
        grown = last["rss_kib"] - half["rss_kib"]
        assert grown < 16 * 1024, f"worker {pid} grew by {grown} KiB over {len(states) - len(states) // 2} runs"
    print(
        mode,
        {pid: (s[0]["rss_kib"], s[-1]["rss_kib"], s[-1]["fds"], s[-1]["threads"], len(s)) for pid, s in reused.items()},
    )


@pytest.mark.spark
def test_runs_end_so_that_their_workers_can_be_used_again(spark: Any) -> None:
    data = spark.range(0, 20_000, 1, 2)
    workers: set[int] = set()
    for run in range(6):
        made = fbs.map_in_arrow(
            data,
            probes.both_pids,
            "sender long, receiver long",
            keys="id",
            num_partitions=2,
            before=probes.with_pid,
            before_schema="id long, sender long",
            mode="pipelined",
        )
        rows = made.distinct().collect()
        if run:
            workers |= {r.sender for r in rows} | {r.receiver for r in rows}
    # Two consumers and two producers at a time; twice as many if a task starts before the last one's worker is back
    assert len(workers) <= 8, f"{len(workers)} workers for five runs of two producers and two consumers"
