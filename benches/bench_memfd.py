"""Two processes of one host that share memory: segments by reference, bytes in place, records.

Shape: this process writes, another reads, each on a core of its own where there are two; segments of 32 KiB. Beside
it, in the same run: the same hand-over by hand, which spins and does nothing else (the limit), and TCP with the same
records.  A message there and back is in ``bench_messages.py``.

Both go round over the same number of segments, QUEUED: with less of them what is written stays in the writer's cache,
with more it is read from the cache that both cores share, and either may be the faster (`FASTBUF_BENCH_QUEUED` tries).
fastbuf finds its 16 in a pool of 512, asks of each whether it was cancelled, revoked or flushed, and rings for every
16th and for whoever sleeps, as a batch of so many does; the limit has its 16 in an arena of its own, and asks nothing.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import pyarrow as pa
import pytest
from two_processes import TwoProcesses, cpu_s

import fastbuf as fb
from fastbuf.exchange._testing import limit_read, limit_write, read_raw, write_raw

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
CONTEXT = mp.get_context("spawn")
SEGMENT = 32 * 1024
QUEUED = int(os.environ.get("FASTBUF_BENCH_QUEUED", "16"))
ROWS = fb.RowSerializer(fb.Schema.of(k="int64", id="int64", x="float64", name="string"))
BATCHES = fb.ColumnarSerializer(
    pa.schema([("k", pa.int64()), ("id", pa.int64()), ("x", pa.float64()), ("name", pa.string())])
)
BATCH_ROWS = 10_000


def settings(transport: str, **more: Any) -> fb.ExchangeConfig:
    return fb.ExchangeConfig(transport=transport, **more)


CORES = sorted(os.sched_getaffinity(0))


def pin(core: int | None) -> None:
    """Keeps this process on one core, of several; None: on any."""
    os.sched_setaffinity(0, CORES if core is None or len(CORES) == 1 else {CORES[core]})


# ---- the other process


def counted(gate: fb.InputGate) -> int:
    rows = 0
    while (got := gate.poll()) is not None:
        rows += len(got) if isinstance(got, list) else got.num_rows
    return rows


def serve(control: Any) -> None:
    """Does what it is told, until it is told None."""
    with fb.ShuffleEnvironment(segments=512, segment_size=SEGMENT, shared=True) as env:
        env.listen()
        while (task := control.recv()) is not None:
            kind, *arguments = task
            pin(None if kind == "count" else 1)
            if kind == "limit":
                path, buffers, look = arguments
                arena = fb.Arena.attach(path, writable=True)
                control.send("ready")
                limit_read(arena, buffers, look)
                arena.close()
            else:
                config, serializer = arguments[:2]
                gate = env.create_input_gate(serializer, channels=1, config=config)
                control.send(gate.address)
                if kind == "raw":
                    read_raw(gate, *arguments[2:])
                else:
                    began = cpu_s()
                    control.send((counted(gate), cpu_s() - began))
                gate.close()


# ---- this one


class Bench(TwoProcesses):
    """The other process, and an environment of this one."""

    def __init__(self) -> None:
        self.control, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        self.env = fb.ShuffleEnvironment(segments=512, segment_size=SEGMENT, shared=True)
        self.address = self.env.listen()

    def connect(self, kind: str, config: fb.ExchangeConfig, serializer: Any, *more: Any) -> fb.RecordWriter:
        self.control.send((kind, config, serializer, *more))
        target = self.control.recv()
        return self.env.create_result_partition(serializer, [target], config=config)

    def raw(self, buffers: int, fill: bool, look: int) -> float:
        """Through a memfd channel, until the reader, which cancels then, has had them all; -> seconds of that alone."""
        config = settings("memfd", max_buffers_per_channel=QUEUED, exclusive=QUEUED)
        writer = self.connect("raw", config, ROWS, buffers, look)
        began = time.perf_counter()
        write_raw(writer, buffers, fill)
        while not writer.cancelled:
            time.sleep(0.00002)  # the reader is at its last buffers
        taken = time.perf_counter() - began
        writer.abort()
        return taken

    def limit(self, buffers: int, fill: bool, look: int) -> float:
        """By hand."""
        arena = fb.Arena(QUEUED + 1, SEGMENT, memfd=True)
        self.control.send(("limit", f"/proc/{os.getpid()}/fd/{arena.fileno()}", buffers, look))
        assert self.control.recv() == "ready"
        began = time.perf_counter()
        limit_write(arena, buffers, fill)
        taken = time.perf_counter() - began
        arena.close()
        return taken

    def tuples(self, config: fb.ExchangeConfig, records: list[tuple], times: int) -> float:
        """CPU seconds of both processes."""
        pin(None)
        began = cpu_s()
        writer = self.connect("count", config, ROWS)
        with writer:
            for _ in range(times):
                writer.emit_many(records)
        rows, theirs = self.control.recv()
        assert rows == len(records) * times
        return cpu_s() - began + theirs

    def batches(self, config: fb.ExchangeConfig, batches: list[pa.RecordBatch], times: int) -> float:
        """CPU seconds of both processes."""
        pin(None)
        began = cpu_s()
        writer = self.connect("count", config, BATCHES)
        with writer:
            for _ in range(times):
                for batch in batches:
                    writer.emit_batch(batch)
        rows, theirs = self.control.recv()
        assert rows == sum(batch.num_rows for batch in batches) * times
        return cpu_s() - began + theirs


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    pin(0)
    yield made
    pin(None)
    made.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("what", "fill", "look"),
    [("by reference", False, 0), ("copied in, touched", True, 1), ("copied in, summed", True, 2)],
)
def test_segments(bench: Bench, in_turn: Any, benchmark: Any, what: str, fill: bool, look: int) -> None:
    buffers = 1000 if SMOKE else 20_000 if fill else 1_000_000
    benchmark.group = f"memfd, {buffers:,} segments of {SEGMENT} bytes, {what}"
    taken: dict[str, list[float]] = {"fastbuf memfd": [], "limit, by hand": []}
    ways: dict[str, Callable[[], Any]] = {
        "fastbuf memfd": lambda: taken["fastbuf memfd"].append(bench.raw(buffers, fill, look)),
        "limit, by hand": lambda: taken["limit, by hand"].append(bench.limit(buffers, fill, look)),
    }
    in_turn(ways, rounds=15, baselines=("limit, by hand",), segments=buffers, bytes=buffers * SEGMENT)
    for way, seconds in taken.items():  # without connecting, which the whole runs have in them
        figures = benchmark.extra_info["ways"][way]
        figures["segments_per_s"] = buffers / median(seconds)
        figures["GB_per_s"] = buffers * SEGMENT / median(seconds) / 1e9
        figures["of_the_limit"] = median(taken["limit, by hand"]) / median(seconds)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", ["tuples", "record batches"])
def test_records(bench: Bench, in_turn: Any, benchmark: Any, what: str) -> None:
    records = [(k * 7919 % 1_000_003, k, k * 0.5, f"user-{k}") for k in range(BATCH_ROWS)]
    batch = (
        pa.RecordBatch.from_pylist([dict(zip(BATCHES.schema.names, r, strict=True)) for r in records])
        if what != "tuples"
        else None
    )
    times = 2 if SMOKE else 40 if what == "tuples" else 400
    rows = times * BATCH_ROWS

    cpu: dict[str, list[float]] = {}
    shapes = {
        "fastbuf memfd": settings("memfd"),
        "fastbuf tcp": settings("tcp"),
        "fastbuf tcp, 32 segments": settings("tcp", floating=30, max_buffers_per_channel=32),
    }

    def run(way: str, config: fb.ExchangeConfig) -> Callable[[], None]:
        used = cpu.setdefault(way, [])
        if batch is None:
            return lambda: used.append(bench.tuples(config, records, times))
        return lambda: used.append(bench.batches(config, [batch], times))

    benchmark.group = f"memfd and TCP, {rows:,} {what}"
    in_turn({way: run(way, config) for way, config in shapes.items()}, rounds=7, baselines=("fastbuf tcp",), rows=rows)
    for way, seconds in cpu.items():
        benchmark.extra_info["ways"][way]["cpu_ns_a_row"] = median(seconds) / rows * 1e9
        benchmark.extra_info["ways"][way]["M_rows_per_s"] = rows / benchmark.extra_info["ways"][way]["median_s"] / 1e6
