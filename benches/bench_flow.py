"""One slow channel among eight: how long the other seven take, by credit and by watermarks.

Shape: eight writers and eight gates, a thread each; the slow consumer rests a millisecond after every record. What is
measured is the time in which the seven others have all theirs. Once on one wire of a process, whose buffers are its
own, and once over TCP between two processes, where the kernel's buffers come on top: so there is more to send there.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fastbuf as fb

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
CHANNELS = 8
RECORDS = 300 if SMOKE else 5000
TEXT_BYTES = {"wire": 200, "tcp": 2000}
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


def write_all(writers: list[fb.RecordWriter], text: int) -> list[threading.Thread]:
    def write(writer: fb.RecordWriter) -> None:
        writer.emit_many((k, "x" * text) for k in range(RECORDS))
        writer.close()

    threads = [threading.Thread(target=write, args=(w,)) for w in writers]
    for thread in threads:
        thread.start()
    return threads


def on_one_wire(flow_control: str, slow: bool) -> Callable[[], float]:
    """A run within this process."""

    def run() -> float:
        with fb.ShuffleEnvironment(**SEGMENTS) as env:
            wire = env.create_wire(flow_control)
            gates = [env.create_input_gate(ROWS, channels=1, config=CONFIG) for _ in range(CHANNELS)]
            writers = [env.create_result_partition(ROWS, [wire.to(g)], config=CONFIG, maximum=8) for g in gates]
            began = time.perf_counter()
            readers = Readers(gates, slow)
            threads = write_all(writers, TEXT_BYTES["wire"])
            readers.wait_for_the_seven()
            taken = time.perf_counter() - began
            readers.end()
            for thread in threads:
                thread.join()
        return taken

    return run


# ---- two processes


def consume(control: Any) -> None:
    """The other process: does as it is told, until it is told None."""
    with fb.ShuffleEnvironment(**SEGMENTS) as env:
        addresses = {"credit": env.listen(), "watermark": env.listen_wire()}
        while (task := control.recv()) is not None:
            flow_control, slow = task
            secret = secrets.token_bytes(32)  # one of all gates: a wire under watermarks is proved once
            gates = [env.create_input_gate(ROWS, channels=1, secret=secret, config=CONFIG) for _ in range(CHANNELS)]
            control.send((addresses[flow_control], secret, [gate.gate_id for gate in gates]))
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


def over_tcp(control: Any, flow_control: str, slow: bool, held: list[int]) -> Callable[[], float]:
    """A run between two processes; `held` gets the most bytes that the watermarks let wait."""

    def run() -> float:
        with fb.ShuffleEnvironment(**SEGMENTS) as env:
            control.send((flow_control, slow))
            address, secret, gate_ids = control.recv()
            wire = env.create_wire("watermark", address) if flow_control == "watermark" else None
            targets = [wire.to(gate_id) if wire is not None else (*address, gate_id) for gate_id in gate_ids]
            writers = [env.create_result_partition(ROWS, [t], secret=secret, config=CONFIG, maximum=8) for t in targets]
            began = time.perf_counter()
            threads = write_all(writers, TEXT_BYTES["tcp"])
            assert control.recv() == "seven"
            taken = time.perf_counter() - began
            peaks = control.recv()
            assert max(peaks) <= CONFIG.exclusive + CONFIG.floating
            for thread in threads:
                thread.join()
            if wire is not None:
                stats = wire.stats()
                assert stats["peak_bytes"] < stats["high"] + SEGMENTS["segment_size"] + 24
                held.append(stats["peak_bytes"])
        return taken

    return run


def names(make: Callable[[str, bool], Callable[[], float]]) -> dict[str, Callable[[], float]]:
    return {
        f"{flow_control}, {'one slow' if slow else 'all fast'}": make(flow_control, slow)
        for flow_control in ("credit", "watermark")
        for slow in (False, True)
    }


@pytest.mark.timeout(600)
def test_one_slow_channel_among_eight(in_turn: Any, benchmark: Any) -> None:
    benchmark.group = f"one wire, {CHANNELS} channels of {RECORDS:,} records"
    in_turn(names(on_one_wire), rounds=5, baselines=("credit, all fast",), rows=RECORDS * (CHANNELS - 1))


@pytest.mark.timeout(600)
def test_one_slow_channel_among_eight_over_tcp(in_turn: Any, benchmark: Any, consumer: Any) -> None:
    held: list[int] = []
    benchmark.group = f"TCP, two processes, {CHANNELS} channels of {RECORDS:,} records"
    ways = names(lambda flow_control, slow: over_tcp(consumer, flow_control, slow, held))
    in_turn(ways, rounds=5, baselines=("credit, all fast",), rows=RECORDS * (CHANNELS - 1))
    benchmark.extra_info["most_bytes_queued_by_watermarks"] = max(held)
