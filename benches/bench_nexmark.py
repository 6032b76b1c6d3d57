"""Nexmark: each query as a stream of fastbuf, and by the DataStream API of Flink 2.3 (``flink/NexmarkJob.java``).

Both make the same events in their own process (``nexmark/events.py``), so neither pays for parsing; both have one task
for each stage, the state in memory, a checkpoint each second, and count their results, which must be as many.  Rows are
those of the kinds that a query reads: the others are not made.

Seconds and CPU seconds are those *for a million rows*: a run of many less a run of few, divided; so starts count
nowhere.  CPU is that of all processes: the driver, Spark's JVM and its workers, or Flink's JVM.  ``FASTBUF_BENCH_ROWS``
(10,000,000) events, ten times as many where bids, 46 of 50, are not read; ``FASTBUF_BENCH_ROUNDS`` (3) rounds in turn.

Flink's jars: see ``flink_cluster.py``; without them, Flink is left out.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import flink_cluster
import psutil
import pyarrow as pa
import pytest
from nexmark.events import EPOCH, PLACES, Nexmark
from nexmark.queries import QUERIES, READS, Input
from sessions import session

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
ROUNDS = int(os.environ.get("FASTBUF_BENCH_ROUNDS", "3"))
EVENTS = int(os.environ.get("FASTBUF_BENCH_ROWS", "20_000" if SMOKE else "10_000_000")) // EPOCH * EPOCH
FEW = 200 * EPOCH
NOT_ALIKE = ("q4", "q12")  #: how many results there are depends on batches, and on the clock


class Flink:
    """A JVM that runs one order after the other, so that it is warm."""

    def __init__(self, folder: Path) -> None:
        source, lib = Path(__file__).parent / "flink" / "NexmarkJob.java", os.environ["FASTBUF_FLINK_LIB"]
        (folder / "log4j2.properties").write_text("rootLogger.level = ERROR\n")
        compiling = ["javac", "-nowarn", "-Xlint:-unchecked", "-cp", f"{lib}/*", "-d", str(folder), str(source)]
        subprocess.run(compiling, check=True, stderr=subprocess.DEVNULL)
        command = ["java", "-Xms2g", "-Xmx2g", *flink_cluster.FLAGS, "-cp", f"{folder}:{lib}/*"]
        command += [f"-Dlog4j2.configurationFile={folder}/log4j2.properties", "NexmarkJob", str(folder / "checkpoints")]
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder
            )
        self._log = folder / "log"

    def run(self, query: str, nexmark: Nexmark) -> tuple[float, float, int]:
        """Seconds, CPU seconds and number of results."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        before = cpu_s(self.process.pid)
        print(query, nexmark.events, nexmark.rate, nexmark.seed, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().split()
        if not answer:
            raise RuntimeError("Flink ended: " + self._log.read_text()[-2000:])
        return float(answer[0]), cpu_s(self.process.pid) - before, int(answer[1])

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)


def cpu_s(root: int) -> float:
    """CPU seconds of a process, of all below it, and of those that have ended."""
    processes = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    used = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # it has ended since: its time is now its parent's
            return cpu_s(root)
        used += times.user + times.system + times.children_user + times.children_system
    return used


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with session("nexmark", master="local[6]") as made:
        yield made


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink | None]:
    why = flink_cluster.missing()
    if why is not None:
        print(f"without Flink: {why}")
        yield None
        return
    made = Flink(tmp_path_factory.mktemp("flink"))
    yield made
    made.close()


def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"n": pa.array([sum(batch.num_rows for batch in batches)], pa.int64())})


def rows_of(query: str, events: int) -> int:
    """Those of the kinds that it reads."""
    return events // EPOCH * sum(PLACES[kind][1] - PLACES[kind][0] for kind in READS[query])


@pytest.mark.benchmark(group="Nexmark, seconds for a million rows")
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.timeout(3600)
def test_nexmark(spark: Any, flink: Flink | None, tmp_path: Path, in_turn: Any, benchmark: Any, query: str) -> None:
    import fastbuf_spark as fbs

    benchmark.group = f"Nexmark {query}: {str(QUERIES[query].__doc__).partition(':')[0].strip('.')}"
    events = EVENTS if "bid" in READS[query] else 10 * EVENTS
    cpu: dict[str, list[float]] = {}
    results: dict[int, int] = {}

    def ours(nexmark: Nexmark) -> tuple[float, float, int]:
        out = QUERIES[query](Input(spark, nexmark)).map_in_arrow(counted, "n long")
        sink, begin, before = fbs.to_memory(), time.perf_counter(), cpu_s(os.getpid())
        mode = "update" if query == "q4" else "append"  # running results
        stream = out.write_stream(sink, tempfile.mkdtemp(dir=tmp_path), every=1.0, output_mode=mode)
        assert stream.await_termination(1800)
        assert stream.status["state"] == "finished"
        used = time.perf_counter() - begin, cpu_s(os.getpid()) - before
        return *used, sum(sink.table()["n"].to_pylist())

    def checked(run: Callable[[Nexmark], tuple[float, float, int]], count: int) -> tuple[float, float]:
        seconds, cpu_seconds, rows = run(Nexmark(count))
        assert query in NOT_ALIKE or results.setdefault(count, rows) == rows
        return seconds, cpu_seconds

    def per_million(way: str, run: Callable[[Nexmark], tuple[float, float, int]]) -> Callable[[], float]:
        warm: list[Any] = []

        def measure() -> float:
            if not (warm or SMOKE):  # a JVM's first minutes are not its later ones
                warm.append(checked(run, events // 5))
            few, many = checked(run, FEW), checked(run, events)
            each = [(b - a) / rows_of(query, events - FEW) * 1e6 for a, b in zip(few, many, strict=True)]
            cpu.setdefault(way, []).append(each[1])
            return max(1e-9, each[0])

        return measure

    ways = {"fastbuf": per_million("fastbuf", ours)}
    if flink is not None:
        ways["Flink"] = per_million("Flink", lambda nexmark: flink.run(query, nexmark))
    in_turn(ways, rounds=ROUNDS, warm_up=0, baselines=("fastbuf",), rows=1_000_000, events=events)
    # A run of few that happened to take more CPU than one of many says nothing: no figure then
    benchmark.extra_info["cpu_s"] = {way: median(each) for way, each in cpu.items() if median(each) > 0}
