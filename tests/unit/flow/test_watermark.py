"""The marks, and what credit is for: one slow channel among eight on one wire."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastbuf as fb
from fastbuf.errors import ConfigError
from fastbuf.flow.watermark import WatermarkPolicy

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
CHANNELS = 8
RECORDS = 3000


def test_the_marks_are_flinks() -> None:
    policy = WatermarkPolicy(1000)
    assert (policy.high, policy.low, policy.writable) == (2000, 1001, True)
    assert policy.add(1999)
    assert not policy.add(1)
    assert not policy.remove(998)  # 1002 are left: between the marks nothing changes
    assert policy.remove(1)
    assert policy.add(998)  # up again, and still below the high one
    assert WatermarkPolicy().high == 2 * 32768


def test_what_cannot_be_is_refused() -> None:
    policy = WatermarkPolicy(1000)
    for call in (lambda: policy.add(-1), lambda: policy.remove(1), lambda: WatermarkPolicy(0)):
        with pytest.raises(ConfigError):
            call()
    with fb.ShuffleEnvironment(segments=8) as env, pytest.raises(ConfigError, match="'credit' or 'watermark'"):
        env.create_wire("hope")


@given(st.lists(st.integers(-300, 300), max_size=80))
def test_it_is_a_hysteresis_of_the_bytes_queued(steps: list[int]) -> None:
    policy = WatermarkPolicy(100)
    queued, writable = 0, True
    for step in steps:
        if step < 0:
            step = -min(-step, queued)
            assert policy.remove(-step) == policy.writable
        else:
            assert policy.add(step) == policy.writable
        queued += step
        if queued <= 101:
            writable = writable or step <= 0
        elif queued >= 200:
            writable = writable and step <= 0
        assert (policy.queued, policy.writable) == (queued, writable)


class Eight:
    """Eight channels on one wire, each to a gate of its own; the first one's is not read until it is asked for.

    Each writes `RECORDS`; the seven that are read go on until they are told that it is `enough`.
    """

    def __init__(self, env: fb.ShuffleEnvironment, flow_control: str) -> None:
        config = fb.ExchangeConfig(exclusive=1, floating=1, max_buffers_per_channel=2)
        self.wire = env.create_wire(flow_control)
        self.gates = [env.create_input_gate(ROWS, channels=1, config=config) for _ in range(CHANNELS)]
        self.writers = [
            env.create_result_partition(ROWS, [self.wire.to(gate)], config=config, maximum=4) for gate in self.gates
        ]
        self.enough = threading.Event()
        self.sent = [0] * CHANNELS
        self.got = [0] * CHANNELS
        self.threads = [threading.Thread(target=self.write, args=(i,)) for i in range(CHANNELS)]
        self.threads += [threading.Thread(target=self.read, args=(i,)) for i in range(1, CHANNELS)]
        for thread in self.threads:
            thread.start()

    def write(self, i: int) -> None:
        while self.sent[i] < RECORDS or (i and not self.enough.is_set()):
            self.writers[i].emit((self.sent[i], "x" * 200))
            self.sent[i] += 1
        self.writers[i].close()

    def read(self, i: int) -> None:
        for _ in self.gates[i]:
            self.got[i] += 1

    def finish(self) -> None:
        self.enough.set()
        self.read(0)
        for thread in self.threads:
            thread.join(60)
        assert self.got == self.sent
        assert min(self.got) >= RECORDS
        for gate in self.gates:
            assert gate.audit()


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)  # polling a state that has no event
    return condition()


def nothing_comes(eight: Eight) -> bool:
    stood = list(eight.got)
    time.sleep(0.5)  # time to go on, if anything could
    return eight.got == stood


def test_by_credit_one_slow_channel_among_eight_holds_up_no_other() -> None:
    with fb.ShuffleEnvironment(segments=200, segment_size=2048) as env:
        eight = Eight(env, "credit")
        assert until(lambda: min(eight.got[1:]) >= RECORDS)
        assert eight.gates[0].pool.in_use <= 2
        assert eight.wire.stats()["stopped_s"] == 0
        eight.finish()


def test_by_watermarks_it_holds_up_all() -> None:
    """The weakness that credit was made for: a channel whose consumer waits stops the wire for everybody."""
    with fb.ShuffleEnvironment(segments=200, segment_size=2048) as env:
        eight = Eight(env, "watermark")
        # By credit this never is: the seven are not done before `enough`.
        assert until(lambda: nothing_comes(eight) and eight.wire.stats()["stopped_s"] > 0)
        assert all(thread.is_alive() for thread in eight.threads)
        stats = eight.wire.stats()
        assert stats["peak_bytes"] <= stats["high"] + 2048
        eight.finish()
