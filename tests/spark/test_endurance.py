"""Run after run in one Spark session: workers are reused, and nothing grows."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import probes
import pytest
from conftest import driver, driver_since, in_the_end, no_run_left
from nights import nightly

import fastbuf_spark as fbs
from fastbuf.cli.demo import flights

LONG = os.environ.get("FASTBUF_LONG") == "1"
RUNS = 200 if LONG else 14
# Workers that met late connect late, and keep what they share: of few runs, that is not growth.  A descriptor that
# each task left behind would be more than this in as few
FDS_OF_PAIRS = 1 if LONG else 3
WARM = 4  # the first runs load modules and grow heaps
OFTEN = 4  # a worker that had more: two runs early and two late can be told apart from what one run holds for longer


def early_and_late(states: list[dict[str, int]], name: str) -> tuple[int, int]:
    """The most of the first runs after a worker's first, and the least of its last: what grows shows in both.

    One run may hold something for longer than another, and be seen with it.
    """
    few = min((len(states) - 1) // 2, max(2, len(states) // 4))
    return max(s[name] for s in states[1 : 1 + few]), min(s[name] for s in states[-few:])


@nightly(mode="blocking")
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["pipelined", "blocking"])
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
            no_run_left()
            before = driver()
    data.unpersist(blocking=True)
    driver_since(before, files=2, threads=2)
    assert in_the_end(probes.shared_files, lambda found: found <= shared) <= shared
    reused = {pid: states for pid, states in by_worker.items() if len(states) > OFTEN}
    assert reused, "no worker was reused"
    for pid, states in reused.items():
        for name, more in (("fds", FDS_OF_PAIRS), ("threads", 0), ("rss_kib", 16 * 1024)):
            early, late = early_and_late(states, name)
            assert late <= early + more, f"worker {pid}: {name} {early}, then {late}, in {len(states)} runs"
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
