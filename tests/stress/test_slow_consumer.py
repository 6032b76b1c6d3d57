"""A consumer far slower than its producer, for long: nothing grows, the producer keeps its pace, both recover at once.

Eight seconds of it; FASTBUF_LONG=1 makes it ten minutes.  In a process of its own: resident memory is told by process,
and in one that has run thousands of tests before, it is the kernel's collapsing of freed heap into huge pages, 2 MiB at
a time, that is measured.
"""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import os
import threading
import time

import pytest
from nights import nightly

import fastbuf as fb

LONG = os.environ.get("FASTBUF_LONG") == "1"
SLOW_S = 600.0 if LONG else 8.0
MOST_SLOW_RATE = 5000  # records a second: a producer alone makes some hundred thousand
FASTER = 16  # so many times as fast it must be able to go
EXCLUSIVE, FLOATING = 2, 8
ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
TEXT = "x" * 200
SEGMENT = 4096


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Run:
    """A producer that never rests, over TCP, and the consumer's side of it."""

    def __init__(self, near: fb.ShuffleEnvironment, far: fb.ShuffleEnvironment) -> None:
        config = fb.ExchangeConfig(exclusive=EXCLUSIVE, floating=FLOATING, batch_rows=20)
        self.gate = far.create_input_gate(ROWS, channels=1, config=config)
        far.listen()
        self.writer = near.create_result_partition(ROWS, [self.gate.address], config=config)
        self.stop = threading.Event()
        self.consumed = 0
        self.thread = threading.Thread(target=self.produce)
        self.thread.start()

    def produce(self) -> None:
        for k in itertools.count():
            if k % 100 == 0 and self.stop.is_set():
                break
            self.writer.emit((k, TEXT))
        self.writer.close()

    def take(self) -> None:
        records = self.gate.poll(60)
        assert records, "nothing came"
        assert records[0][0] == self.consumed, "lost or out of order"
        self.consumed += len(records)

    def check(self) -> None:
        """What holds at every moment."""
        sent = self.writer.totals()[0]
        announced = int(self.gate.credits["announced"][0])  # read later, and it only grows
        assert sent <= announced, "a buffer was sent that there was no credit for"
        assert self.gate.pool.in_use <= EXCLUSIVE + FLOATING
        assert self.writer.stats()["peak_segments"] <= self.writer.stats()["segments"] + 5  # and the overdraft
        assert self.gate.audit()

    def for_a_second(self) -> int:
        """As fast as it goes; records."""
        before = self.consumed
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            self.take()
        return self.consumed - before


PR_SET_THP_DISABLE = 41


def slow_consumer() -> None:
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT) as near,
        fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT) as far,
    ):
        run = Run(near, far)
        rate = min(MOST_SLOW_RATE, max(run.for_a_second() for _ in range(3)) / FASTER)
        assert rate > 100, "this machine cannot tell slow from fast"
        # From here on at a fixed pace: by the clock, so that a late record does not slow the average.
        began, first = time.monotonic(), run.consumed
        begin = end = (0, 0, 0, 0.0)  # produced, consumed, resident bytes, seconds
        while (now := time.monotonic() - began) < SLOW_S:
            while run.consumed - first < now * rate:
                run.take()
            run.check()
            if now > SLOW_S / 4:  # what there was room for has been filled long ago
                end = (run.writer.records, run.consumed, resident_bytes(), now)
                begin = begin if any(begin) else end
            time.sleep(0.005)  # this is what makes it slow
        produced, consumed, resident, seconds = (b - a for a, b in zip(begin, end, strict=True))
        on_the_way = sum(env.pool.total for env in (near, far)) * SEGMENT // len(TEXT)
        assert abs(produced - consumed) <= 0.05 * consumed + on_the_way, f"{produced} written, {consumed} read"
        assert seconds > SLOW_S / 4, "too short to tell"
        assert abs(consumed - rate * seconds) <= 0.1 * rate * SLOW_S, "the consumer was not that slow"
        assert resident < 1 << 20, f"{resident} bytes more than at the beginning"
        # And it recovers within a second; another one, or two, if there is somebody else who has the machine just now.
        assert any(run.for_a_second() > 4 * rate for _ in range(3))
        run.stop.set()
        while not run.gate.finished:
            run.consumed += len(run.gate.poll(60) or [])
        run.thread.join(60)
        assert run.consumed == run.writer.records
        run.gate.close()
        for env in (near, far):
            assert env.pool.stats().in_use == 0


@nightly
@pytest.mark.stress
@pytest.mark.timeout(900)
def test_a_slow_consumer_for_long() -> None:
    process = multiprocessing.get_context("spawn").Process(target=slow_consumer)
    process.start()
    process.join(SLOW_S + 200)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode == 0, "what went wrong stands above"
