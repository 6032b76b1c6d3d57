"""The flow controls as what they are: functions of positions, times and announcements, without a socket."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastbuf as fb
from fastbuf.config import FLOW_CONTROLS
from fastbuf.errors import ConfigError
from fastbuf.flow.flow_control import PidRateEstimator, ReceivingEnd, SendingEnd

GO_ON, STOP = FASTER, SLOWER = 1, 2
RATE_UNIT = 64


def test_the_marks_are_flinks() -> None:
    end = SendingEnd("watermark", 1000)
    assert end.writable
    assert end.queue(1999)
    assert not end.queue(1)
    assert not end.channel().may_send(), "one connection, one mark for all its channels"
    assert not end.written(998)  # 1002 are left: between the marks nothing changes
    assert end.written(1)
    assert end.queue(998)  # up again, and still below the high one
    assert end.channel().may_send()


@given(st.lists(st.integers(-300, 300), max_size=80))
def test_watermarks_are_a_hysteresis_of_the_bytes_queued(steps: list[int]) -> None:
    end = SendingEnd("watermark", 100)
    queued, writable = 0, True
    for step in steps:
        if step < 0:
            step = -min(-step, queued)
            assert end.written(-step) == end.writable
        else:
            assert end.queue(step) == end.writable
        queued += step
        if queued <= 101:
            writable = writable or step <= 0
        elif queued >= 200:
            writable = writable and step <= 0
        assert (end.queued, end.writable) == (queued, writable)


@pytest.mark.parametrize("flow_control", sorted({*FLOW_CONTROLS} - {"watermark"}))
def test_no_other_looks_at_the_bytes_queued(flow_control: str) -> None:
    end = SendingEnd(flow_control, 1000)
    assert end.queue(1 << 40)
    assert end.queued == 0


def test_a_buffer_leaves_against_a_credit() -> None:
    channel = SendingEnd("credit").channel()
    assert not channel.may_send()
    channel.credit = 2
    for left in (1, 0):
        assert channel.may_send()
        channel.sent(32768)
        assert channel.credit == left
    assert not channel.may_send()


def test_what_cannot_be_is_refused() -> None:
    end = SendingEnd("watermark", 1000)
    for call in (
        lambda: end.queue(-1),
        lambda: end.written(1),
        lambda: SendingEnd("watermark", 0),
        lambda: SendingEnd("hope"),
        lambda: ReceivingEnd("hope"),
        lambda: PidRateEstimator(interval_s=0),
        lambda: PidRateEstimator(least=float("nan")),
        lambda: PidRateEstimator(derivative=-0.1),
        lambda: fb.ExchangeConfig(flow_control="hope"),
        lambda: fb.ExchangeConfig(flow_control="watermark", transport="memfd"),
    ):
        with pytest.raises(ConfigError):
            call()


@pytest.mark.parametrize(
    ("flow_control", "said"),
    [("credit", 1), ("watermark", 1), ("on_off", 0), ("on_off", 3), ("stepwise", 0), ("stepwise", 3), ("pid_rate", 0)],
)
def test_an_announcement_that_there_is_not(flow_control: str, said: int) -> None:
    channel = SendingEnd(flow_control).channel()
    assert not channel.heard(said)
    assert channel.rate == 0


# ---- on_off: Storm


def test_one_gate_that_is_nearly_full_stops_the_source_everywhere() -> None:
    source = SendingEnd("on_off")
    channels = [source.channel() for _ in range(4)]
    assert all(c.may_send() for c in channels)
    assert channels[2].heard(STOP)
    assert not any(c.may_send() for c in channels)
    assert channels[1].heard(STOP)
    assert channels[1].heard(STOP), "said twice, it counts once"
    assert channels[2].heard(GO_ON)
    assert not any(c.may_send() for c in channels), "the other's gate has not said so"
    assert channels[1].over(), "it has ended, and was the last"
    assert all(c.may_send() for c in channels)
    assert not channels[1].over()


def test_the_gates_marks_are_storms() -> None:
    gate = ReceivingEnd("on_off")
    assert [gate.took(used, 10) for used in range(1, 11)] == [None] * 8 + [STOP, None]
    assert [gate.released(used, 10) for used in range(9, -1, -1)] == [None] * 5 + [GO_ON] + [None] * 4
    assert gate.took(1, 1) == STOP, "a gate of one segment"
    assert gate.released(0, 1) == GO_ON


# ---- stepwise: JStorm


def test_the_rate_goes_down_and_up_in_steps() -> None:
    channel = SendingEnd("stepwise").channel()
    assert channel.heard(FASTER)
    assert channel.rate == 0, "nobody has slowed it down"
    now = 1.0
    for _ in range(100):
        assert channel.may_send(now)
        channel.sent(10_000, now)
        now += 0.01
    assert channel.heard(SLOWER, now)
    first = channel.rate
    assert first == pytest.approx(0.75 * 1e6, rel=0.02), "a quarter below what it sent"
    while channel.may_send(now):
        channel.sent(10_000, now)
    assert channel.heard(SLOWER, now + 1)
    assert channel.rate < first
    rates = []
    for _ in range(50):
        assert channel.heard(FASTER, now)
        rates.append(channel.rate)
    steps = [b / a for a, b in itertools.pairwise(rates)]
    assert all(step == pytest.approx(9 / 8, rel=0.01) for step in steps)
    for _ in range(1000):
        channel.heard(FASTER, now)
    assert channel.rate == 0, "there is no limit any more"


@pytest.mark.parametrize("rate_bytes", [64_000, 1_000_000, 64_000_000])
def test_a_rate_is_kept_however_the_clock_is_looked_at(rate_bytes: int) -> None:
    channel = SendingEnd("pid_rate").channel()
    assert channel.heard(rate_bytes // RATE_UNIT)
    random_steps = random.Random(1)
    now, sent = 0.0, 0
    while now < 20:
        while channel.may_send(now):
            channel.sent(4096, now)
            sent += 4096
        now += random_steps.random() * 0.01
    assert sent == pytest.approx(20 * rate_bytes, rel=0.1)


def test_a_gate_says_slower_once_a_step_and_faster_only_after_that() -> None:
    gate = ReceivingEnd("stepwise")
    assert gate.released(0, 10, now=1.0) is None, "nobody was slowed down"
    assert gate.took(9, 10, now=1.1) == SLOWER
    assert gate.took(10, 10, now=1.29) is None
    assert gate.took(10, 10, now=1.31) == SLOWER
    assert gate.released(6, 10, now=1.6) is None, "between the marks it stays"
    assert gate.released(3, 10, now=1.6) == FASTER


# ---- pid_rate: Spark Streaming


def test_the_first_batch_gives_no_rate_and_neither_does_one_of_nothing() -> None:
    pid = PidRateEstimator(interval_s=0.02, derivative=0.0, least=10)
    assert pid.compute(0.0, 0, 1.0, 0) is None
    assert pid.compute(0.0, 10, 0, 0) is None
    assert pid.compute(1.0, 10, 0.01, 0) is None
    assert pid.compute(1.0, 10, 0.01, 0) is None, "no time has passed"
    assert pid.compute(2.0, 20, 0.01, 0) == pytest.approx(2000)


def test_it_follows_the_speed_where_nothing_waits() -> None:
    pid = PidRateEstimator(interval_s=1.0, least=10)
    speeds = [1000, 1000, 400, 2500, 2500]
    got = [pid.compute(k + 1.0, speed, 1.0, 0) for k, speed in enumerate(speeds)]
    assert got[1:] == pytest.approx(speeds[1:])


def test_what_waits_is_worked_off() -> None:
    """Source: the formula of Spark's class: latest - error - 0.2 * (delay * speed / interval)."""
    pid = PidRateEstimator(interval_s=2.0)
    pid.compute(1.0, 1000, 1.0, 0)
    assert pid.compute(3.0, 1000, 1.0, 4.0) == pytest.approx(1000 - 0.2 * (4.0 * 1000 / 2.0))


def test_the_change_of_the_error_counts_if_it_is_to() -> None:
    pid = PidRateEstimator(interval_s=1.0, proportional=1.0, integral=0.0, derivative=0.5, least=1)
    pid.compute(1.0, 1000, 1.0, 0)
    assert pid.compute(3.0, 600, 1.0, 0) == pytest.approx(1000 - 400 - 0.5 * (400 - 0) / 2)


def test_no_rate_is_below_the_least() -> None:
    pid = PidRateEstimator()
    for k in range(20):
        rate = pid.compute(k + 1.0, 10, 1.0, 60.0)
    assert rate == 100


def test_a_gate_says_what_its_reader_gets_done() -> None:
    """1000 records of 640 bytes a second by two channels: each may send half of that."""
    gate = ReceivingEnd("pid_rate")
    said = []
    for k in range(100):
        now = 1.0 + k * 0.01
        gate.reads(True, k * 10, now)
        what = gate.released(1, 10, now + 0.009, n=6400, waiting=0, channels=2)
        if what is not None:
            said.append(what * RATE_UNIT)
    assert len(said) == pytest.approx(9, abs=1), "one an interval, but for the first"
    assert said[-1] == pytest.approx(320_000, rel=0.1)


def test_an_idle_reader_is_not_a_slow_one() -> None:
    """It takes 1 ms for 10 records and then has nothing for 99: it can do 10,000 a second."""
    gate = ReceivingEnd("pid_rate")
    said = None
    for k in range(100):
        now = 1.0 + k * 0.1
        gate.reads(True, k * 10, now)
        said = gate.released(0, 10, now + 0.001, n=1000) or said
        gate.reads(False, (k + 1) * 10, now + 0.001)
    assert said is not None
    assert said * RATE_UNIT == pytest.approx(100 * 10_000, rel=0.1)


@pytest.mark.parametrize("flow_control", ["credit", "watermark"])
def test_gates_of_these_announce_nothing(flow_control: str) -> None:
    gate = ReceivingEnd(flow_control)
    assert gate.took(10, 10, 1.0) is None
    assert gate.released(0, 10, 2.0) is None
