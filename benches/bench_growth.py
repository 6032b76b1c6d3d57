"""How the exchange grows with its channels: M producers x R consumers between two processes over TCP, 1 x 1 to 64 x 64.

Shape: the same 20,000,000 records (int64, int64, float64, "user-N") in batches of 10,000, hashed by key; the M
producers take turns of 16 batches in one process, the R gates are read in turn in another.  The largest shape also in
turns of one batch: 128 MiB of buffers that are being filled are then gone through, in no cache.  Both environments take
their pages at the start (`prefault`): 64 x 64 does not touch all of its 280 MiB in a round or two, and the kernel's
clearing of them, once in a process's life, would be counted with the records.  Told: CPU of both processes per record
(throughput per core is its inverse) from the first record written to the last one read,
connections made before and closed after; and the segments that were held at most beside the formula's::

    producers  M * (R * exclusive + floating)        gates  R * (M * exclusive + floating)
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from statistics import median
from typing import Any

import pyarrow.compute as pc
import pytest
from bench_flink import ARROW, COLUMNS, batches
from message_ways import CONTEXT

import fastbuf as fb

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
SHAPES = [(1, 1), (4, 4)] if SMOKE else [(1, 1), (4, 4), (16, 16), (64, 64)]
TURN = 16  # batches that a producer writes before it is the next one's turn: 5 ms or so, as a scheduler would have it
BATCH = 10_000
BATCHES = 16 if SMOKE else 2_000
CONFIG = fb.ExchangeConfig()


def producers_hold(m: int, r: int) -> int:
    return m * (r * CONFIG.exclusive + CONFIG.floating)


def consumers_hold(m: int, r: int) -> int:
    return r * (m * CONFIG.exclusive + CONFIG.floating)


def consumer(control: Any, segments: int) -> None:
    """R gates of M channels, read in turn by one thread."""
    with fb.ShuffleEnvironment(segments=segments, prefault=True) as env:
        env.listen()
        control.send("ready")
        while (order := control.recv()) != "stop":
            m, r = order
            gates = [env.create_input_gate(COLUMNS, channels=m) for _ in range(r)]
            control.send([gate.address for gate in gates])
            assert control.recv() == "connected"
            cpu = time.process_time()
            records = total = 0
            left = list(gates)
            wait_s = None if r == 1 else 0.0
            while left:
                before = records
                for gate in list(left):
                    batch = gate.poll(wait_s)
                    if batch is not None:
                        records += batch.num_rows
                        total += pc.sum(batch["f0"]).as_py() or 0
                    elif gate.finished:
                        left.remove(gate)
                if r > 1 and records == before:  # nothing anywhere: one of them is waited for, the others soon after
                    time.sleep(0.0005)  # gives its core away: to poll on would count as CPU of records
            cpu = time.process_time() - cpu
            control.send((time.monotonic(), cpu, records, total, sum(g.stats()["peak_segments"] for g in gates)))
            for gate in gates:
                gate.close()


def produce(writers: list[fb.RecordWriter], sent: list[Any], turn: int) -> None:
    """The writers take turns, none of them waiting for credit while another could write."""
    at = 0
    busy: list[fb.RecordWriter] = []
    idle = list(writers)
    while at < BATCHES or busy:
        while idle and at < BATCHES:
            writer = idle.pop(0)
            through = True
            end = min(at + turn, BATCHES)
            while through and at < end:
                through = writer.try_emit_batch(sent[at % len(sent)])
                at += 1
            (idle if through else busy).append(writer)
        moved = [writer for writer in busy if writer.resume()]
        busy = [writer for writer in busy if writer not in moved]
        idle += moved
        if not moved and busy:
            time.sleep(0.0002)  # all wait for credit


@pytest.mark.timeout(900)
def test_growth(in_turn: Any, benchmark: Any) -> None:
    benchmark.group = f"{BATCHES * BATCH:,} records over TCP, by producers x consumers"
    sent = batches(16 * BATCH)
    assert sent[0].schema == ARROW
    expected = (BATCHES // 16) * sum(range(16 * BATCH))
    cpu_ns: dict[str, list[float]] = {}
    segments: dict[str, dict[str, int]] = {}

    most = max(SHAPES)
    with ExitStack() as stack:
        control, far = CONTEXT.Pipe()
        process = CONTEXT.Process(target=consumer, args=(far, consumers_hold(*most)), daemon=True)
        process.start()
        assert control.recv() == "ready"
        stack.callback(process.join, 10)
        stack.callback(control.send, "stop")
        segments_here = producers_hold(*most) + most[0] * CONFIG.overdraft
        env = stack.enter_context(fb.ShuffleEnvironment(segments=segments_here, prefault=True))

        def run(way: str, m: int, r: int, turn: int = TURN) -> float:
            control.send((m, r))
            targets = control.recv()
            writers = [
                env.create_result_partition(COLUMNS, targets, channel=i, selector=fb.hash_by("f0")) for i in range(m)
            ]
            control.send("connected")
            begin, cpu = time.monotonic(), time.process_time()
            produce(writers, sent, turn)
            cpu = time.process_time() - cpu
            peak_out = sum(writer.stats()["peak_segments"] for writer in writers)
            for writer in writers:
                writer.try_close()  # says the end to all before it waits for any
            for writer in writers:
                writer.close()
            end, theirs, records, total, peak_in = control.recv()
            assert (records, total) == (BATCHES * BATCH, expected)
            cpu_ns.setdefault(way, []).append((cpu + theirs) / records * 1e9)
            segments[way] = {
                "producers_peak": peak_out,
                "producers_formula": producers_hold(m, r),
                "gates_peak": peak_in,
                "gates_formula": consumers_hold(m, r),
            }
            assert peak_out <= producers_hold(m, r) + m * CONFIG.overdraft
            assert peak_in <= consumers_hold(m, r)
            return end - begin  # type: ignore[no-any-return]

        ways = {f"{m} x {r}": (lambda m=m, r=r: run(f"{m} x {r}", m, r)) for m, r in SHAPES}
        ways[f"{most[0]} x {most[1]}, turns of 1"] = lambda: run(f"{most[0]} x {most[1]}, turns of 1", *most, 1)
        in_turn(ways, rounds=5, baselines=("1 x 1",), rows=BATCHES * BATCH)
    keep = slice(0 if SMOKE else 1, None)  # the first is the warm-up
    benchmark.extra_info["cpu_ns_per_record"] = {way: median(all_[keep]) for way, all_ in cpu_ns.items()}
    benchmark.extra_info["segments"] = segments
