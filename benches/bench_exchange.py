"""The exchange between two processes: rows of (int64, int64, float64, "user-N"), hashed by key to two consumers.

Shape: batches of 10,000 rows (about 36 bytes a row), one producer process, two consumer processes, which count rows and
add up a column.  Peers in the same run do the same work with what Python has: pyarrow's ``take`` for the partitions,
then Arrow IPC bytes through ``multiprocessing.Pipe``, or pickled batches through ``multiprocessing.Queue``.
"""

from __future__ import annotations

import multiprocessing as mp
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fastbuf as fb

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
BATCH_ROWS = 10_000
BATCHES = 20 if SMOKE else 400
CONSUMERS = 2
SECRET = b"bench"
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


def fastbuf_consumer(control: Any) -> None:
    """A gate per run, until the parent says stop."""
    with fb.ShuffleEnvironment(segments=512) as env:
        address = env.listen()
        while control.recv() == "run":
            with env.create_input_gate(fb.ColumnarSerializer(SCHEMA), channels=1, secret=SECRET) as gate:
                control.send((*address, gate.gate_id))
                control.send(counted(gate))


def pipe_consumer(control: Any, data: Any) -> None:
    """Arrow IPC bytes until an empty message."""

    def batches() -> Iterator[pa.RecordBatch]:
        while message := data.recv_bytes():
            yield pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA)

    while control.recv() == "run":
        control.send(counted(batches()))


def queue_consumer(control: Any, data: Any) -> None:
    """Pickled batches until None."""
    while control.recv() == "run":
        control.send(counted(iter(data.get, None)))


class Way(ABC):
    """Consumer processes that stay, and a producer that is this process."""

    def __init__(self, target: Any, channels: list[Any], batches: list[pa.RecordBatch]) -> None:
        self.batches = batches
        self.channels = channels
        self.controls = []
        self.processes = []
        for i in range(CONSUMERS):
            ours, theirs = CONTEXT.Pipe()
            arguments = (theirs, channels[i][0]) if channels else (theirs,)
            process = CONTEXT.Process(target=target, args=arguments, daemon=True)
            process.start()
            self.controls.append(ours)
            self.processes.append(process)

    def sent(self) -> Iterator[pa.RecordBatch]:
        for i in range(BATCHES):
            yield self.batches[i % len(self.batches)]

    def run(self) -> None:
        for control in self.controls:
            control.send("run")
        self.produce()
        found = [control.recv() for control in self.controls]
        assert sum(rows for rows, _ in found) == BATCHES * BATCH_ROWS
        expected = sum(int(np.asarray(b["id"]).sum()) for b in self.batches) * (BATCHES // len(self.batches))
        assert sum(total for _, total in found) == expected

    @abstractmethod
    def produce(self) -> None: ...

    def close(self) -> None:
        for control, process in zip(self.controls, self.processes, strict=True):
            control.send("stop")
            process.join(10)


class FastbufTcp(Way):
    """Ours: hashed, gathered into segments, sent against credit."""

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        super().__init__(fastbuf_consumer, [], batches)
        self.env = fb.ShuffleEnvironment(segments=512)

    def produce(self) -> None:
        targets = [control.recv() for control in self.controls]
        with self.env.create_result_partition(
            fb.ColumnarSerializer(SCHEMA), targets, secret=SECRET, selector=fb.hash_by("k")
        ) as writer:
            for batch in self.sent():
                writer.emit_batch(batch)

    def close(self) -> None:
        self.env.close()
        super().close()


def split(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The peers' partitioning: NumPy hash, one ``take`` each."""
    to = (np.asarray(batch["k"]).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) % np.uint64(
        CONSUMERS
    )
    return [batch.take(pa.array(np.flatnonzero(to == i))) for i in range(CONSUMERS)]


class PipeIpc(Way):
    """multiprocessing.Pipe and Arrow IPC."""

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        super().__init__(pipe_consumer, [CONTEXT.Pipe(duplex=False) for _ in range(CONSUMERS)], batches)

    def produce(self) -> None:
        for batch in self.sent():
            for part, (_, out) in zip(split(batch), self.channels, strict=True):
                out.send_bytes(part.serialize())
        for _, out in self.channels:
            out.send_bytes(b"")


class QueuePickle(Way):
    """multiprocessing.Queue of bounded length."""

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        super().__init__(queue_consumer, [(CONTEXT.Queue(16),) for _ in range(CONSUMERS)], batches)

    def produce(self) -> None:
        for batch in self.sent():
            for part, (queue,) in zip(split(batch), self.channels, strict=True):
                queue.put(part)
        for (queue,) in self.channels:
            queue.put(None)


@pytest.mark.timeout(600)
def test_batches_hashed_to_two_processes(in_turn: Any, benchmark: Any) -> None:
    rows = BATCHES * BATCH_ROWS
    benchmark.group = f"exchange, 1 producer, {CONSUMERS} consumers, {rows:,} rows"
    batches = make_batches(20)
    with ExitStack() as stack:
        ways = {}
        for name, kind in (("fastbuf tcp", FastbufTcp), ("Pipe + Arrow IPC", PipeIpc), ("Queue + pickle", QueuePickle)):
            way = kind(batches)
            stack.callback(way.close)
            ways[name] = way.run
        in_turn(
            ways,
            rounds=9,
            baselines=("Pipe + Arrow IPC", "Queue + pickle"),
            speed_up_over="Pipe + Arrow IPC",
            rows=rows,
        )
