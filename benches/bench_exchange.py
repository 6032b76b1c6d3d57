"""The exchange between processes: rows of (int64, int64, float64, "user-N"), hashed by key to one or two consumers.

Shape: batches of 10,000 rows (about 36 bytes a row), one producer process, one or two consumer processes, which count
rows and add up a column.  Ours over TCP may have 32 segments of 32 KiB under way to each; beside it over shared memory.
Peers in the same run do the same work with what Python has: pyarrow's ``take`` for the partitions, then Arrow IPC bytes
through ``multiprocessing.Pipe``, or pickled batches through ``multiprocessing.Queue``, which may hold 16 of them.
"""

from __future__ import annotations

import multiprocessing as mp
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from two_processes import cpu_s

import fastbuf as fb

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
BATCH_ROWS = 10_000
BATCHES = 20 if SMOKE else 400
WINDOW = 32  #: segments of a channel under way: 1 MiB
GOAL = 30e6  #: rows a second over TCP between two processes,
GOAL_CPU_NS = 60  #: and CPU time of both for each
SCHEMA = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("x", pa.float64()), ("name", pa.string())])
CONTEXT = mp.get_context("spawn")


def make_batches(n: int) -> list[pa.RecordBatch]:
    """A few different batches; a run sends them again and again."""
    rng = np.random.default_rng(1)
    made = []
    for i in range(n):
        k = rng.integers(0, 1_000_003, BATCH_ROWS)
        ids = np.arange(i * BATCH_ROWS, (i + 1) * BATCH_ROWS)
        names = pa.array([f"user-{x}" for x in k])
        made.append(pa.RecordBatch.from_arrays([pa.array(k), pa.array(ids), pa.array(ids * 0.5), names], schema=SCHEMA))
    return made


def counted(batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
    import pyarrow.compute as pc

    rows = total = 0
    for batch in batches:
        rows += batch.num_rows
        total += pc.sum(batch["id"]).as_py() or 0
    return rows, total


def settings(transport: str) -> fb.ExchangeConfig:
    return fb.ExchangeConfig(transport=transport, floating=WINDOW - 2, max_buffers_per_channel=WINDOW)


def fastbuf_consumer(control: Any, transport: str) -> None:
    """A gate per run, until the parent says stop."""
    with fb.ShuffleEnvironment(segments=512, shared=transport == "memfd") as env:
        env.listen()
        while control.recv() == "run":
            began = cpu_s()
            with env.create_input_gate(fb.ColumnarSerializer(SCHEMA), channels=1, config=settings(transport)) as gate:
                control.send(gate.address)
                found = counted(gate)
                control.send((*found, cpu_s() - began))


def pipe_consumer(control: Any, data: Any) -> None:
    """Arrow IPC bytes until an empty message."""

    def batches() -> Iterator[pa.RecordBatch]:
        while message := data.recv_bytes():
            yield pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA)

    while control.recv() == "run":
        began = cpu_s()
        found = counted(batches())
        control.send((*found, cpu_s() - began))


def queue_consumer(control: Any, data: Any) -> None:
    """Pickled batches until None."""
    while control.recv() == "run":
        began = cpu_s()
        found = counted(iter(data.get, None))
        control.send((*found, cpu_s() - began))


class Way(ABC):
    """Consumer processes that stay, and a producer that is this process."""

    def __init__(self, target: Any, arguments: list[Any], batches: list[pa.RecordBatch]) -> None:
        self.batches = batches
        self.controls = []
        self.processes = []
        self.cpu: list[float] = []  #: seconds of all processes, of each run
        for argument in arguments:
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=target, args=(theirs, argument), daemon=True)
            process.start()
            self.controls.append(ours)
            self.processes.append(process)

    def sent(self) -> Iterator[pa.RecordBatch]:
        for i in range(BATCHES):
            yield self.batches[i % len(self.batches)]

    def run(self) -> None:
        for control in self.controls:
            control.send("run")
        began = cpu_s()
        self.produce()
        found = [control.recv() for control in self.controls]
        self.cpu.append(cpu_s() - began + sum(used for *_, used in found))
        assert sum(rows for rows, *_ in found) == BATCHES * BATCH_ROWS
        expected = sum(int(np.asarray(b["id"]).sum()) for b in self.batches) * (BATCHES // len(self.batches))
        assert sum(total for _, total, _ in found) == expected

    @abstractmethod
    def produce(self) -> None: ...

    def close(self) -> None:
        for control, process in zip(self.controls, self.processes, strict=True):
            control.send("stop")
            process.join(10)


class Fastbuf(Way):
    """Ours: hashed, gathered into segments, sent against credit, or lent."""

    def __init__(self, batches: list[pa.RecordBatch], consumers: int, transport: str) -> None:
        super().__init__(fastbuf_consumer, [transport] * consumers, batches)
        self.config = settings(transport)
        self.env = fb.ShuffleEnvironment(segments=512, shared=transport == "memfd")

    def produce(self) -> None:
        targets = [control.recv() for control in self.controls]
        with self.env.create_result_partition(
            fb.ColumnarSerializer(SCHEMA), targets, selector=fb.hash_by("k"), config=self.config
        ) as writer:
            for batch in self.sent():
                writer.emit_batch(batch)

    def close(self) -> None:
        self.env.close()
        super().close()


def split(batch: pa.RecordBatch, consumers: int) -> list[pa.RecordBatch]:
    """The peers' partitioning: NumPy hash, one ``take`` each; nothing where there is one consumer."""
    if consumers == 1:
        return [batch]
    to = (np.asarray(batch["k"]).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) % np.uint64(
        consumers
    )
    return [batch.take(pa.array(np.flatnonzero(to == i))) for i in range(consumers)]


class PipeIpc(Way):
    """multiprocessing.Pipe and Arrow IPC."""

    def __init__(self, batches: list[pa.RecordBatch], consumers: int) -> None:
        pipes = [CONTEXT.Pipe(duplex=False) for _ in range(consumers)]
        self.outs = [out for _, out in pipes]
        super().__init__(pipe_consumer, [receive for receive, _ in pipes], batches)

    def produce(self) -> None:
        for batch in self.sent():
            for part, out in zip(split(batch, len(self.outs)), self.outs, strict=True):
                out.send_bytes(part.serialize())
        for out in self.outs:
            out.send_bytes(b"")


class QueuePickle(Way):
    """multiprocessing.Queue of bounded length."""

    def __init__(self, batches: list[pa.RecordBatch], consumers: int) -> None:
        self.queues = [CONTEXT.Queue(16) for _ in range(consumers)]
        super().__init__(queue_consumer, self.queues, batches)

    def produce(self) -> None:
        for batch in self.sent():
            for part, queue in zip(split(batch, len(self.queues)), self.queues, strict=True):
                queue.put(part)
        for queue in self.queues:
            queue.put(None)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("consumers", [1, 2])
def test_batches_hashed_to_processes(in_turn: Any, benchmark: Any, consumers: int) -> None:
    rows = BATCHES * BATCH_ROWS
    benchmark.group = f"exchange, 1 producer, {consumers} consumers, {rows:,} rows"
    batches = make_batches(20)
    made: dict[str, Callable[[], Way]] = {
        "fastbuf tcp": lambda: Fastbuf(batches, consumers, "tcp"),
        "fastbuf memfd": lambda: Fastbuf(batches, consumers, "memfd"),
        "Pipe + Arrow IPC": lambda: PipeIpc(batches, consumers),
        "Queue + pickle": lambda: QueuePickle(batches, consumers),
    }
    with ExitStack() as stack:
        ways = {}
        for name, make in made.items():
            ways[name] = make()
            stack.callback(ways[name].close)
        in_turn(
            {name: way.run for name, way in ways.items()},
            rounds=9,
            baselines=("Pipe + Arrow IPC", "Queue + pickle"),
            speed_up_over="Pipe + Arrow IPC",
            rows=rows,
        )
    for name, way in ways.items():
        figures = benchmark.extra_info["ways"][name]
        figures["M_rows_per_s"] = rows / figures["median_s"] / 1e6
        figures["of_the_goal"] = rows / figures["median_s"] / GOAL
        figures["cpu_ns_a_row"] = median(way.cpu) / rows * 1e9
        figures["cpu_of_the_goal"] = figures["cpu_ns_a_row"] / GOAL_CPU_NS
