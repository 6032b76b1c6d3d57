"""Latency against throughput at buffer timeouts of 0, 1, 10, 100 ms and -1 (only full buffers), between two processes.

Latency: a record (int64, int64, float64, "user-N") every 200 us for a second and more, from made to received, one way,
one clock.  Throughput: the same records as fast as they go, from tuples, at the same timeout.  Both over TCP.  At -1
nothing leaves before its buffer is full, which at 5,000 records a second takes about 200 ms.

``python benches/plot_timeouts.py .benchmarks/last.json timeouts.svg`` draws the plot.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import Any

import pytest
from bench_flink import ROWS
from message_ways import CONTEXT

import fastbuf as fb

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
TIMEOUTS_S = {"0": 0.0, "1 ms": 0.001, "10 ms": 0.01, "100 ms": 0.1, "-1": -1.0}
RECORDS = 2_000 if SMOKE else 500_000
PACED = 200 if SMOKE else 5_000
PAUSE_NS = 200_000


def receiver(control: Any) -> None:
    """A gate for each order; gives the nanoseconds each record was on its way, or how many came."""
    with fb.ShuffleEnvironment(segments=256) as env:
        env.listen()
        while (order := control.recv()) != "stop":
            what, timeout_s = order
            config = fb.ExchangeConfig(buffer_timeout_s=timeout_s)
            with env.create_input_gate(ROWS, channels=1, config=config) as gate:
                control.send(gate.address)
                if what == "latency":
                    control.send([time.monotonic_ns() - made for _, made, _, _ in gate])
                else:
                    control.send((sum(1 for _ in gate), time.monotonic()))


@pytest.mark.timeout(600)
def test_timeouts(in_turn: Any, benchmark: Any) -> None:
    benchmark.group = "buffer timeouts: latency of paced records, and records/s"
    ages: dict[str, list[int]] = {}
    sent = [(i, 1_700_000_000_000 + i, i * 0.25, f"user-{i}") for i in range(10_000)]
    with ExitStack() as stack:
        control, far = CONTEXT.Pipe()
        process = CONTEXT.Process(target=receiver, args=(far,), daemon=True)
        process.start()
        stack.callback(process.join, 10)
        stack.callback(control.send, "stop")
        env = stack.enter_context(fb.ShuffleEnvironment(segments=256))

        def writer(what: str, timeout_s: float) -> fb.RecordWriter:
            control.send((what, timeout_s))
            config = fb.ExchangeConfig(buffer_timeout_s=timeout_s)
            return env.create_result_partition(ROWS, [control.recv()], config=config)

        def run(way: str, timeout_s: float) -> float:
            with writer("latency", timeout_s) as out:
                due = time.monotonic_ns()
                for i in range(PACED):
                    due += PAUSE_NS
                    time.sleep(max(0.0, (due - time.monotonic_ns()) / 1e9))  # the pace, as the shape says
                    out.emit((i, time.monotonic_ns(), i * 0.25, "user-1"))
            ages.setdefault(way, []).extend(control.recv()[PACED // 5 :])
            with writer("throughput", timeout_s) as out:
                begin = time.monotonic()
                left = RECORDS
                while left > 0:
                    out.emit_many(sent[:left])
                    left -= len(sent)
            records, end = control.recv()
            assert records == RECORDS
            return end - begin  # type: ignore[no-any-return]

        ways = {way: (lambda way=way, s=s: run(way, s)) for way, s in TIMEOUTS_S.items()}
        seconds = in_turn(ways, rounds=5, baselines=("100 ms",), rows=RECORDS)
    benchmark.extra_info["records_per_s"] = {way: RECORDS / s for way, s in seconds.items()}
    for name, part in (("p50_us", 0.5), ("p99_us", 0.99)):
        benchmark.extra_info[name] = {way: sorted(all_)[int(part * len(all_))] / 1e3 for way, all_ in ages.items()}
