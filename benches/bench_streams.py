"""Streams: a running sum of a million keys by a Python function, windows, latency, checkpoints.

Rows are numbers, of which each has its key (``stream_peers.py``); a checkpoint each second, into files, for all.
Beside fastbuf: Spark's ``transformWithStateInPandas`` and its own sum and windows in the JVM (state in RocksDB, one
micro-batch after the other, ``spark.sql.shuffle.partitions`` = 1: the default of 200 costs them more); PyFlink in
process and in thread mode, and Bytewax, where ``FASTBUF_PYFLINK`` and ``FASTBUF_BYTEWAX`` name a Python that has them.
Everybody has one task for each stage.

Seconds are those *for a million rows*: a run of many less a run of few, divided; so starts count nowhere, and a slow
way may have fewer rows than a fast one.  ``FASTBUF_BENCH_ROUNDS`` (3) rounds in turn.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import stream_peers as peers
from sessions import session

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
ROUNDS = int(os.environ.get("FASTBUF_BENCH_ROUNDS", "3"))
ROWS = int(os.environ.get("FASTBUF_BENCH_ROWS", "20_000" if SMOKE else "20_000_000"))
PAIRS = "k long, v long"
TIMED = "t timestamp, k long, v long"
FEW = 1_000

Way = Callable[[], float]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    rocks = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    with session(
        "streams", spark_sql_shuffle_partitions="1", spark_sql_streaming_stateStore_providerClass=rocks
    ) as made:
        yield made


def keyed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        values = batch["value"].to_numpy()
        yield pa.record_batch({"k": values * peers.FACTOR % peers.KEYS, "v": values})


def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"n": pa.array([sum(batch.num_rows for batch in batches)], pa.int64())})


def running(batch: pa.RecordBatch, numbers: np.ndarray, state: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The function on batches: its keys have numbers, and the state is a table of them."""
    sums = np.bincount(numbers, weights=batch["v"].to_numpy(), minlength=state.num_rows)
    totals = pa.array(state["total"].fill_null(0).to_numpy() + sums.astype(np.int64))
    return pa.record_batch({"total": totals}), pa.record_batch(
        {"k": batch["k"], "total": totals.take(pa.array(numbers))}
    )


class RunningSum:
    """Spark's ``StatefulProcessor``, for Spark and for fastbuf."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        import pandas as pd

        (total,) = self.total.get() or (0,)
        for frame in rows:
            total += int(frame["v"].sum())
        self.total.update((total,))
        yield pd.DataFrame({"k": [key[0]], "total": [total]})

    def handleExpiredTimer(self, key: Any, times: Any, info: Any) -> Iterator[Any]:
        return iter(())

    def close(self) -> None: ...


def ran(out: Any, folder: Path, mode: str = "append") -> float:
    """What a stream of ours takes to its end."""
    import fastbuf_spark as fbs

    result, begin = fbs.to_memory(), time.perf_counter()
    counts = out.map_in_arrow(counted, "n long")
    query = counts.write_stream(result, tempfile.mkdtemp(dir=folder), every=1.0, output_mode=mode)
    assert query.await_termination(600)
    assert query.status["state"] == "finished"
    seconds = time.perf_counter() - begin
    assert sum(result.table()["n"].to_pylist()) > 0
    return seconds


def timed_files(rows: int, folder: Path) -> Path:
    """The rows with their times, in eight files."""
    files = folder / f"rows-{rows}"
    if not files.exists():
        values = np.arange(rows, dtype=np.int64)
        times = pa.array(values * peers.US_PER_ROW, pa.int64()).view(pa.timestamp("us", "UTC"))
        table = pa.table({"t": times, "k": values * peers.FACTOR % peers.KEYS, "v": values})
        files.mkdir()
        step = -(-rows // 8)
        for number in range(0, rows, step):
            pq.write_table(table.slice(number, step), files / f"{number:012}.parquet")
    return files


def spark_ran(spark: Any, rows: int, folder: Path, work: Callable[[Any], Any], mode: str = "update") -> float:
    """What Spark takes, in micro-batches of four files."""
    files = timed_files(rows, folder)
    stream = spark.readStream.schema(TIMED).option("maxFilesPerTrigger", 4).parquet(str(files))
    writer = work(stream).writeStream.outputMode(mode).format("noop").trigger(availableNow=True)
    begin = time.perf_counter()
    query = writer.option("checkpointLocation", tempfile.mkdtemp(dir=folder)).start()
    assert query.awaitTermination(900)
    return time.perf_counter() - begin


def per_million(job: Callable[[int], float], rows: int) -> Way:
    """Seconds for a million rows, without the start."""

    warm: list[float] = []

    def measure() -> float:
        if not warm:  # the first start of a way takes longer than all others
            warm.append(job(FEW))
        few = job(FEW)
        return max(1e-9, (job(rows) - few) / rows * 1e6)

    return measure


def others(*names: str) -> dict[str, int]:
    """Peers that have a Python, and how many rows they get."""
    sizes = {
        "bytewax": 500_000,
        "flink-thread": 500_000,
        "flink-thread-window": 500_000,
        "flink-thread-sliding": 100_000,
    }
    return {name: 2 * FEW if SMOKE else sizes.get(name, 20_000) for name in names if peers.python_of(name)}


def beside(ways: dict[str, Way], names: tuple[str, ...], folder: Path) -> dict[str, Way]:
    """Ours and Spark's, and the peers that are here."""
    for name, rows in others(*names).items():
        ways[name] = per_million(lambda n, peer=name: peers.seconds_of(peer, n, folder), rows)  # type: ignore[misc]
    return ways


def taken(in_turn: Any, measure: Callable[[], dict[str, float]], **info: Any) -> None:
    """Several figures of one run: the medians of all runs."""
    runs = [measure() for _ in range(1 if SMOKE else ROUNDS)]
    medians = {name: float(median(run[name] for run in runs)) for name in runs[0]}
    in_turn({name: partial(float, seconds) for name, seconds in medians.items()}, rounds=1, warm_up=0, **info)


@pytest.mark.benchmark(group="running sum of 1 M keys, seconds for a million rows")
@pytest.mark.timeout(3600)
def test_running_sum(spark: Any, tmp_path: Path, in_turn: Any) -> None:
    import fastbuf_spark as fbs

    slow = 2 * FEW if SMOKE else 5_000

    def ours(rows: int, work: Callable[[Any], Any]) -> float:
        numbers = fbs.stream_rate(spark, 0, rows=rows, tasks=1).map_in_arrow(keyed, PAIRS)
        return ran(work(numbers.group_by("k", partitions=1)), tmp_path, "update")

    def by_spark(rows: int, work: Callable[[Any], Any]) -> float:
        return spark_ran(spark, rows, tmp_path, work)

    schema = "k long, total long"
    ways: dict[str, Way] = {
        "fastbuf, a function on batches": per_million(
            partial(ours, work=lambda g: g.transform_batches_with_state(running, schema, "total long")), ROWS
        ),
        "fastbuf, sum": per_million(partial(ours, work=lambda g: g.global_window().agg_arrow([("v", "sum")])), ROWS),
        "fastbuf, StatefulProcessor": per_million(
            partial(ours, work=lambda g: g.transform_with_state(RunningSum(), schema)), 2 * FEW if SMOKE else 20_000
        ),
        "Spark, StatefulProcessor": per_million(
            partial(
                by_spark,
                work=lambda s: s.groupBy("k").transformWithStateInPandas(RunningSum(), schema, "Update", "None"),
            ),
            slow,
        ),
        "Spark, sum in the JVM": per_million(partial(by_spark, work=lambda s: s.groupBy("k").sum("v")), ROWS // 20),
    }
    ways = beside(ways, ("flink-process", "flink-thread", "bytewax"), tmp_path)
    in_turn(ways, rounds=ROUNDS, warm_up=0, baselines=("fastbuf, a function on batches",), rows=1_000_000)


@pytest.mark.benchmark(group="windows of event time, 1 M keys, seconds for a million rows")
@pytest.mark.parametrize("shape", ["tumbling 10 s", "sliding 60 s by 10 s", "session 5 s"])
@pytest.mark.timeout(3600)
def test_windows(spark: Any, tmp_path: Path, in_turn: Any, shape: str) -> None:
    from pyspark.sql import functions as F

    import fastbuf_spark as fbs

    def ours(rows: int) -> float:
        stream = fbs.stream_files(spark, str(timed_files(rows, tmp_path)), schema=TIMED, bounded=True, tasks=1)
        keys = stream.with_watermark("t", "1 second").group_by("k", partitions=1)
        windows = {
            "tumbling 10 s": lambda: keys.window("10 seconds"),
            "sliding 60 s by 10 s": lambda: keys.window("60 seconds", slide="10 seconds"),
            "session 5 s": lambda: keys.session("5 seconds"),
        }
        return ran(windows[shape]().agg_arrow([("v", "sum")]), tmp_path)

    def by_spark(rows: int) -> float:
        windows = {
            "tumbling 10 s": lambda: F.window("t", "10 seconds"),
            "sliding 60 s by 10 s": lambda: F.window("t", "60 seconds", "10 seconds"),
            "session 5 s": lambda: F.session_window("t", "5 seconds"),
        }
        work = lambda s: s.withWatermark("t", "1 second").groupBy("k", windows[shape]()).sum("v")  # noqa: E731
        return spark_ran(spark, rows, tmp_path, work, "append")

    rows = 2 * FEW if SMOKE else ROWS // 4
    ways: dict[str, Way] = {"fastbuf": per_million(ours, rows), "Spark, in the JVM": per_million(by_spark, rows)}
    flink = {"tumbling 10 s": "window", "sliding 60 s by 10 s": "sliding"}.get(shape)
    ways = beside(ways, (f"flink-process-{flink}", f"flink-thread-{flink}") if flink else (), tmp_path)
    in_turn(ways, rounds=ROUNDS, warm_up=0, baselines=("fastbuf",), rows=1_000_000)


@pytest.mark.benchmark(group="latency, source to sink, at a paced rate, 1 M keys, a checkpoint each second")
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("rate", [1_000, 100_000, 500_000, 2_500_000])
@pytest.mark.timeout(600)
def test_latency(spark: Any, tmp_path: Path, in_turn: Any, rate: int, guarantee: str) -> None:
    """From the time at which a row was due, so a source that falls behind counts.

    Exactly once a row waits for its checkpoint, up to an interval, which is a second here.  The highest rate is half of
    what ``test_running_sum`` does in a second.
    """
    import fastbuf_spark as fbs

    seconds = 2 if SMOKE else 20
    out = tmp_path / "ages"
    out.mkdir()

    def at(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = batch["value"].to_numpy()
            due = batch["timestamp"].view(pa.int64())
            yield pa.record_batch({"k": values * peers.FACTOR % peers.KEYS, "v": values, "due": due})

    def totals(batch: pa.RecordBatch, numbers: np.ndarray, state: pa.RecordBatch) -> tuple[Any, pa.RecordBatch]:
        state, rows = running(batch, numbers, state)
        return state, rows.append_column("due", batch["due"])

    def ages(table: pa.Table, batch_id: int) -> None:
        now = time.time_ns() // 1000
        np.save(out / f"{now}.npy", now - table["due"].to_numpy())

    def measure() -> dict[str, float]:
        for old in out.iterdir():
            old.unlink()
        rows = fbs.stream_rate(spark, rate, rows=rate * seconds, tasks=1).map_in_arrow(at, "k long, v long, due long")
        sums = rows.group_by("k", partitions=1).transform_batches_with_state(
            totals, "k long, total long, due long", "total long"
        )
        query = sums.write_stream(fbs.to_function(ages), tempfile.mkdtemp(dir=tmp_path), every=1.0, guarantee=guarantee)
        assert query.await_termination(seconds + 300)
        # The first seconds open the keys and warm the workers
        files = sorted(out.iterdir(), key=lambda path: int(path.stem))
        begin = int(files[0].stem)
        late = np.concatenate([np.load(path) for path in files if int(path.stem) - begin > seconds * 3e5])
        cuts = quantiles(late.tolist()[:: max(1, len(late) // 100_000)], n=1000)
        return {"p50": cuts[499] / 1e6, "p99": cuts[989] / 1e6, "p99.9": cuts[998] / 1e6}

    taken(in_turn, measure, rate=rate, guarantee=guarantee)


@pytest.mark.benchmark(group="checkpoints of 1 M keys")
@pytest.mark.timeout(900)
def test_checkpoints(spark: Any, tmp_path: Path, in_turn: Any) -> None:
    """The same rows with a checkpoint each second and without any; and what one of an idle stream takes."""
    import fastbuf_spark as fbs

    def sums(stream: Any) -> Any:
        keys = stream.map_in_arrow(keyed, PAIRS).group_by("k", partitions=1)
        return keys.transform_batches_with_state(running, "k long, total long", "total long")

    def job(every: float) -> float:
        stream = sums(fbs.stream_rate(spark, 0, rows=ROWS, tasks=1)).map_in_arrow(counted, "n long")
        begin = time.perf_counter()
        query = stream.write_stream(fbs.to_memory(), tempfile.mkdtemp(dir=tmp_path), every=every)
        assert query.await_termination(600)
        done = [each for each in query.progress()["checkpoints"] if each["state"] == "completed"]
        pauses.append(max(each["sync_s"] for each in done))
        return time.perf_counter() - begin

    def idle() -> float:
        stream = sums(fbs.stream_rate(spark, 1.0, tasks=1)).map_in_arrow(counted, "n long")
        query = stream.write_stream(fbs.to_memory(), tempfile.mkdtemp(dir=tmp_path), every=0.2)
        time.sleep(1 if SMOKE else 8)  # of which each fifth of a second has a checkpoint
        done = [each["duration_s"] for each in query.progress()["checkpoints"] if each["state"] == "completed"]
        query.stop()
        return float(median(done))

    pauses: list[float] = []
    ways = {
        "each second": partial(job, 1.0),
        "none": partial(job, 3600.0),
        "longest pause of a task": lambda: pauses[-2],
    }
    in_turn({**ways, "one of an idle stream": idle}, rounds=ROUNDS, warm_up=1, baselines=("none",), rows=ROWS)
