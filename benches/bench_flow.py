"""One slow channel among eight: how long the other seven take, under each flow control.

Shape: eight writers in one process and eight gates in another, a thread each; the slow consumer rests a millisecond
after every record. What is measured is the time in which the seven others have all theirs. ``make compare`` shows
more of the same.
"""

from __future__ import annotations

import dataclasses
import multiprocessing as mp
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.config import FLOW_CONTROLS

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
CHANNELS = 8
RECORDS = 300 if SMOKE else 5000
TEXT_BYTES = 2000
CONFIG = fb.ExchangeConfig(exclusive=2, floating=2, max_buffers_per_channel=4, transport="tcp")
ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
SEGMENTS = {"segments": 256, "segment_size": 4096}


class Readers:
    """A thread for each gate; the first is slow, if one is."""

    def __init__(self, gates: list[fb.InputGate], slow: bool) -> None:
        self.gates = gates
        self.slow = slow
        self.got = [0] * CHANNELS
        self.threads = [threading.Thread(target=self.read, args=(i,)) for i in range(CHANNELS)]
        for thread in self.threads:
            thread.start()

    def read(self, i: int) -> None:
        try:
            for _ in self.gates[i]:
                self.got[i] += 1
                if self.slow and i == 0:
                    time.sleep(0.001)  # what makes it slow
        except fb.errors.ExchangeClosed:
            assert i == 0

    def wait_for_the_seven(self) -> None:
        for thread in self.threads[1:]:
            thread.join()
        assert self.got[1:] == [RECORDS] * (CHANNELS - 1)

    def end(self) -> None:
        """The slow channel is cancelled when the others are through."""
        if self.slow:
            self.gates[0].close()
        for thread in self.threads:
            thread.join()
        for gate in self.gates:
            gate.close()


def write_all(writers: list[fb.RecordWriter]) -> list[threading.Thread]:
    def write(writer: fb.RecordWriter) -> None:
        writer.emit_many((k, "x" * TEXT_BYTES) for k in range(RECORDS))
        writer.close()

    threads = [threading.Thread(target=write, args=(w,)) for w in writers]
    for thread in threads:
        thread.start()
    return threads


# ---- two processes


def consume(control: Any) -> None:
    """The other process: does as it is told, until it is told None."""
    with fb.ShuffleEnvironment(**SEGMENTS) as env:
        env.listen()
        while (task := control.recv()) is not None:
            flow_control, slow = task
            config = dataclasses.replace(CONFIG, flow_control=flow_control)
            gates = [env.create_input_gate(ROWS, channels=1, config=config) for _ in range(CHANNELS)]
            control.send([gate.address for gate in gates])
            readers = Readers(gates, slow)
            readers.wait_for_the_seven()
            control.send("seven")
            readers.end()
            control.send([gate.stats()["peak_segments"] for gate in gates])


@pytest.fixture
def consumer() -> Iterator[Any]:
    control, theirs = mp.get_context("spawn").Pipe()
    process = mp.get_context("spawn").Process(target=consume, args=(theirs,), daemon=True)
    process.start()
    yield control
    control.send(None)
    process.join(10)


def over_tcp(control: Any, flow_control: str, slow: bool) -> Callable[[], float]:
    """A run between two processes."""

    def run() -> float:
        with fb.ShuffleEnvironment(**SEGMENTS) as env:
            control.send((flow_control, slow))
            config = dataclasses.replace(CONFIG, flow_control=flow_control)
            writers = [env.create_result_partition(ROWS, [t], config=config, maximum=8) for t in control.recv()]
            began = time.perf_counter()
            threads = write_all(writers)
            assert control.recv() == "seven"
            taken = time.perf_counter() - began
            assert max(control.recv()) <= CONFIG.exclusive + CONFIG.floating
            for thread in threads:
                thread.join()
        return taken

    return run


@pytest.mark.timeout(600)
def test_one_slow_channel_among_eight(in_turn: Any, benchmark: Any, consumer: Any) -> None:
    benchmark.group = f"TCP, two processes, {CHANNELS} channels of {RECORDS:,} records"
    ways = {"credit, all fast": over_tcp(consumer, "credit", False)}
    ways |= {f"{name}, one slow": over_tcp(consumer, name, True) for name in FLOW_CONTROLS}
    in_turn(ways, rounds=5, baselines=("credit, all fast",), rows=RECORDS * (CHANNELS - 1))
