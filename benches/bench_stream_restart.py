"""A stream whose executor is killed with -9: from then to the first new row, and how long until the driver knew."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pytest
from sessions import session

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
ROUNDS = int(os.environ.get("FASTBUF_BENCH_ROUNDS", "3"))


@pytest.mark.benchmark(group="an executor is killed")
@pytest.mark.timeout(900)
def test_an_executor_is_killed(tmp_path: Path, in_turn: Any) -> None:
    """Two executors of one machine; the one with the sink goes.  Rows are seen at once (at least once)."""
    import fastbuf_spark as fbs

    out = tmp_path / "rows"
    out.mkdir()

    def seen(table: pa.Table, batch_id: int) -> None:
        (out / f"{time.time_ns()}").touch()

    def whose(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (tmp_path / f"worker-of-{os.getppid()}").touch()
        yield from batches

    def measure(spark: Any) -> dict[str, float]:
        for old in (*out.iterdir(), *tmp_path.glob("worker-of-*")):
            old.unlink()
        rows = fbs.stream_rate(spark, 1000.0, tasks=1).shuffle("value", partitions=1)
        stream = rows.map_in_arrow(whose, "timestamp timestamp, value long")
        query = stream.write_stream(
            fbs.to_function(seen), tempfile.mkdtemp(dir=tmp_path), every=0.2, guarantee="at_least_once"
        )
        end = time.monotonic() + 120
        while len(query.progress().get("checkpoints", ())) < 5:
            assert time.monotonic() < end, query.status
            time.sleep(0.05)  # between two looks
        (worker,) = tmp_path.glob("worker-of-*")
        daemon = int(worker.name.rpartition("-")[2])
        executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
        killed = time.time_ns()
        os.kill(executor, signal.SIGKILL)
        while not query.status["restarts"]:
            assert time.monotonic() < end, query.status
            time.sleep(0.005)  # between two looks: what is measured is longer by at most this
        knew = time.time_ns()
        while not (new := [int(path.name) for path in out.iterdir() if int(path.name) > knew]):
            assert time.monotonic() < end, query.status
            time.sleep(0.005)  # between two looks: what is measured is longer by at most this
        query.stop()
        return {"to the first new row": (min(new) - killed) / 1e9, "until the driver knew": (knew - killed) / 1e9}

    with session("kills", master="local-cluster[2,2,1024]") as spark:
        runs = [measure(spark) for _ in range(1 if SMOKE else ROUNDS)]
    medians = {name: float(median(run[name] for run in runs)) for name in runs[0]}
    in_turn({name: partial(float, seconds) for name, seconds in medians.items()}, rounds=1, warm_up=0)
