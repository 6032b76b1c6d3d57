"""The exchange between two processes beside Flink's between two JVMs: the same records, keyed by their first field.

Throughput: records (int64, int64, float64, "user-N") from one process to another over TCP (and, ours, through shared
memory too): made one at a time and sent by Flink (object reuse on, buffer timeout 100 ms), as tuples and ready record
batches of 10,000 by fastbuf, hashed by key with Spark's Murmur3 to two gates of the other process.  The receiver counts
the records and adds up a field.  Seconds run from the first record to the last one counted; CPU is that of both
processes, whole.

Latency: one record every millisecond, buffer timeout 0, from made to received (one way, one clock).

Both have 2 exclusive segments a channel and 8 floating ones a gate; ``FASTBUF_BENCH_FLOATING`` gives both more.

Needs Flink's jars: see ``flink_cluster.py``.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from statistics import median
from typing import Any

import flink_cluster
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from message_ways import CONTEXT

import fastbuf as fb

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
BATCH = 10_000
RECORDS = 20 * BATCH if SMOKE else 20_000_000
TUPLES = BATCH if SMOKE else 4_000_000
PAUSE_US = 1_000
PACED = 50 if SMOKE else 5_000
ARROW = pa.schema([("f0", pa.int64()), ("f1", pa.int64()), ("f2", pa.float64()), ("f3", pa.string())])
COLUMNS = fb.ColumnarSerializer(ARROW)
ROWS = fb.RowSerializer(fb.Schema.of(f0="int64", f1="int64", f2="float64", f3="string"))

pytestmark = [
    pytest.mark.skipif(flink_cluster.missing() is not None, reason=str(flink_cluster.missing())),
    pytest.mark.timeout(900),
]


def settings(**more: Any) -> fb.ExchangeConfig:
    floating = flink_cluster.FLOATING
    return fb.ExchangeConfig(floating=floating, max_buffers_per_channel=floating + 2, **more)


def batches(records: int) -> list[pa.RecordBatch]:
    ids = np.arange(records)
    names = [f"user-{i % 1_000_003}" for i in range(records)]
    columns = [pa.array(ids), pa.array(1_700_000_000_000 + ids), pa.array(ids * 0.25), pa.array(names)]
    return pa.Table.from_arrays(columns, schema=ARROW).to_batches(max_chunksize=BATCH)  # type: ignore[no-any-return]


def count(gate: fb.InputGate, into: list[tuple[int, int]]) -> None:
    records = total = 0
    if gate.serializer.kind == "columnar":
        for batch in gate:
            records += batch.num_rows
            total += pc.sum(batch["f0"]).as_py() or 0
    else:
        for f0, _, _, _ in gate:
            records += 1
            total += f0
    into.append((records, total))


def receiver(control: Any, shared: bool) -> None:
    """A process with two gates, each read by a thread of its own; or with one that measures ages."""
    with fb.ShuffleEnvironment(segments=4096, shared=shared) as env:
        env.listen()
        control.send("ready")
        while (order := control.recv()) != "stop":
            if order == "latency":
                config = settings(buffer_timeout_s=0)
                with env.create_input_gate(ROWS, channels=1, config=config) as gate:
                    control.send([gate.address])
                    control.send([time.monotonic_ns() - f1 for _, f1, _, _ in gate])
                continue
            cpu = time.process_time()
            found: list[tuple[int, int]] = []
            kind = COLUMNS if order == "batches" else ROWS
            gates = [env.create_input_gate(kind, channels=1, config=settings()) for _ in range(2)]
            threads = [threading.Thread(target=count, args=(gate, found)) for gate in gates]
            for thread in threads:
                thread.start()
            control.send([gate.address for gate in gates])
            for thread in threads:
                thread.join()
            control.send((time.monotonic(), time.process_time() - cpu, *map(sum, zip(*found, strict=True))))
            for gate in gates:
                gate.close()


class Ours:
    """This process sends, another receives."""

    def __init__(self, transport: str = "tcp") -> None:
        self.transport = transport
        self.control, far = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=receiver, args=(far, transport == "memfd"), daemon=True)
        self.process.start()
        assert self.control.recv() == "ready"
        self.env = fb.ShuffleEnvironment(segments=4096, shared=transport == "memfd")

    def writer(self, kind: Any, **more: Any) -> fb.RecordWriter:
        config = settings(transport=self.transport, **more)
        return self.env.create_result_partition(kind, self.control.recv(), selector=fb.hash_by("f0"), config=config)

    def run(self, what: str, sent: list[Any], repeats: int, expected: tuple[int, int]) -> tuple[float, float]:
        """Seconds and CPU seconds of `sent` handed over `repeats` times."""
        self.control.send(what)
        with self.writer(COLUMNS if what == "batches" else ROWS) as writer:
            cpu, begin = time.process_time(), time.monotonic()
            for _ in range(repeats):
                if what == "batches":
                    for batch in sent:
                        writer.emit_batch(batch)
                else:
                    writer.emit_many(sent)
        end, theirs, records, total = self.control.recv()
        assert (records, total) == expected
        return end - begin, time.process_time() - cpu + theirs

    def ages(self, n: int) -> list[float]:
        """Nanoseconds on the way of n records, one every PAUSE_US."""
        self.control.send("latency")
        with self.writer(ROWS, buffer_timeout_s=0) as writer:
            due = time.monotonic_ns()
            for i in range(n):
                due += PAUSE_US * 1000
                time.sleep(max(0.0, (due - time.monotonic_ns()) / 1e9))  # the pace is the measurement's shape
                writer.emit((i, time.monotonic_ns(), i * 0.25, "user-1"))
        ages = sorted(self.control.recv()[n // 5 :])
        return [ages[len(ages) // 2] / 1e3, ages[len(ages) * 99 // 100] / 1e3]

    def close(self) -> None:
        self.control.send("stop")
        self.process.join(10)
        self.env.close()


def test_flink_throughput(in_turn: Any, benchmark: Any) -> None:
    benchmark.group = "records keyed from process to process over TCP, beside Flink"
    made = batches(20 * BATCH)
    repeats = RECORDS // (20 * BATCH)
    tuples = [tuple(row.values()) for row in pa.Table.from_batches(made[:10]).to_pylist()][:TUPLES]
    rates: dict[str, list[float]] = {}
    cpu_ns: dict[str, list[float]] = {}

    def note(way: str, records: int, seconds: float, cpu_s: float) -> float:
        rates.setdefault(way, []).append(records / seconds / 1e6)
        cpu_ns.setdefault(way, []).append(cpu_s / records * 1e9)
        return seconds / records * RECORDS  # all ways are told as seconds for the same number of records

    with ExitStack() as stack:
        ours, shared = Ours(), Ours("memfd")
        stack.callback(ours.close)
        stack.callback(shared.close)
        cluster = stack.enter_context(flink_cluster.FlinkCluster())

        def from_batches(way: str, end: Ours) -> float:
            expected = (RECORDS, repeats * sum(range(20 * BATCH)))
            return note(way, RECORDS, *end.run("batches", made, repeats, expected))

        def from_tuples() -> float:
            times = TUPLES // len(tuples)
            expected = (TUPLES, times * sum(range(len(tuples))))
            return note("fastbuf tuples", TUPLES, *ours.run("tuples", tuples, times, expected))

        def flink() -> float:
            before = cluster.cpu_s()
            seconds, records, total = cluster.order(f"throughput {RECORDS}")
            assert (records, total) == (RECORDS, RECORDS * (RECORDS - 1) // 2)
            return note("Flink", RECORDS, seconds, cluster.cpu_s() - before)

        ways = {
            "fastbuf batches": lambda: from_batches("fastbuf batches", ours),
            "fastbuf batches, memfd": lambda: from_batches("fastbuf batches, memfd", shared),
            "fastbuf tuples": from_tuples,
            "Flink": flink,
        }
        in_turn(ways, rounds=5, baselines=("Flink",), speed_up_over="Flink", rows=RECORDS)
    keep = slice(0 if SMOKE else 1, None)  # the first is the warm-up
    benchmark.extra_info["million_records_per_s"] = {way: median(all_[keep]) for way, all_ in rates.items()}
    benchmark.extra_info["cpu_ns_per_record"] = {way: median(all_[keep]) for way, all_ in cpu_ns.items()}


def test_flink_latency(in_turn: Any, benchmark: Any) -> None:
    benchmark.group = "one record a millisecond over TCP, from made to received, beside Flink"
    percentiles: dict[str, list[list[float]]] = {"fastbuf": [], "Flink": []}
    with ExitStack() as stack:
        ours = Ours()
        stack.callback(ours.close)
        cluster = stack.enter_context(flink_cluster.FlinkCluster())

        def note(way: str, found: list[float]) -> float:
            percentiles[way].append(found)
            return found[0] / 1e6

        ways = {
            "fastbuf": lambda: note("fastbuf", ours.ages(PACED)),
            "Flink": lambda: note("Flink", cluster.order(f"latency {PACED} {PAUSE_US}")),
        }
        in_turn(ways, rounds=3, baselines=("Flink",))
    for i, name in enumerate(("p50_us", "p99_us")):
        benchmark.extra_info[name] = {way: median(one[i] for one in all_) for way, all_ in percentiles.items()}
