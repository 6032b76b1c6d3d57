"""The valve against a reference that looks at everything anew at each step, as Flink's rules are told in words."""

from __future__ import annotations

import random

import pytest

from fastbuf.errors import ConfigError
from fastbuf.event_time.valve import Status, WatermarkValve
from fastbuf.event_time.watermarks import MAX, MIN


class Reference:
    """Each rule as a line of its own, over lists of (watermark, active, aligned)."""

    def __init__(self, channels: int) -> None:
        self.channels = [{"mark": MIN, "active": True, "aligned": True} for _ in range(channels)]
        self.out: list[object] = []
        self.last, self.valve_active = MIN, True

    def emit(self, mark: int) -> None:
        if mark > self.last:
            self.last = mark
            self.out.append(mark)

    def least_of_aligned(self) -> None:
        aligned = [c["mark"] for c in self.channels if c["aligned"]]
        if aligned:
            self.emit(min(aligned))

    def watermark(self, i: int, mark: int) -> None:
        c = self.channels[i]
        if not self.valve_active or not c["active"] or mark <= c["mark"]:
            return
        c["mark"] = mark
        if not c["aligned"] and mark >= self.last:
            c["aligned"] = True
        self.least_of_aligned()

    def status(self, i: int, idle: bool) -> None:
        c = self.channels[i]
        if c["active"] != idle:
            return
        c["active"] = not idle
        if idle:
            c["aligned"] = False
            if not any(c["active"] for c in self.channels):
                if c["mark"] == self.last:
                    self.emit(max(c["mark"] for c in self.channels))
                self.valve_active = False
                self.out.append(Status.IDLE)
            elif c["mark"] == self.last:
                self.least_of_aligned()
        else:
            c["aligned"] = c["mark"] >= self.last
            if not self.valve_active:
                self.valve_active = True
                self.out.append(Status.ACTIVE)


@pytest.mark.parametrize("channels", [1, 2, 3, 7])
def test_valve_does_what_the_rules_say(channels: int) -> None:
    seen = set()
    for seed in range(400):
        dice = random.Random(seed * 31 + channels)
        valve, reference = WatermarkValve(channels), Reference(channels)
        for _ in range(60):
            i = dice.randrange(channels)
            reference.out.clear()
            kind = dice.choice(["watermark"] * 6 + ["idle"] * 2 + ["active"] * 2 + ["end"] * (dice.random() < 0.05))
            if kind == "watermark":
                mark = dice.randrange(-20, 30)
                out = valve.watermark(i, mark)
                reference.watermark(i, mark)
            elif kind == "end":
                out = valve.end(i)
                reference.status(i, False)
                reference.watermark(i, MAX)
            else:
                out = valve.status(i, kind == "idle")
                reference.status(i, kind == "idle")
            assert out == reference.out, (seed, kind, i)
            assert valve.idle is not reference.valve_active
            assert valve.last == reference.last
            seen.add((kind, len(out)))
    assert {("watermark", 1), ("idle", 1), ("active", 1)} <= seen
    if channels > 1:
        assert ("idle", 2) in seen  # flushed, then idle


def test_first_watermarks_of_all_channels_are_awaited() -> None:
    valve = WatermarkValve(2)
    assert valve.watermark(0, 10) == []
    assert valve.holding() == [1]
    assert valve.watermark(1, 5) == [5]
    assert valve.watermark(1, 20) == [10]
    assert valve.holding() == [0]
    assert valve.end(0) == [20]
    assert valve.end(1) == [MAX]
    assert valve.holding() == []


def test_channel_that_comes_back_behind_the_output_holds_nothing_back() -> None:
    valve = WatermarkValve(2)
    assert valve.watermark(0, 10) == []
    assert valve.status(1, idle=True) == [10]
    assert valve.status(1, idle=False) == []
    assert valve.watermark(0, 30) == [30]  # channel 1 stands at nothing
    assert valve.watermark(1, 25) == []
    assert valve.watermark(1, 35) == []  # aligned again: now it is channel 0 that holds
    assert valve.watermark(0, 40) == [35]


def test_idle_valve_flushes_only_what_the_last_active_channel_held_back() -> None:
    valve = WatermarkValve(2)
    valve.watermark(0, 10)
    assert valve.watermark(1, 50) == [10]
    assert valve.status(1, idle=True) == []
    assert valve.status(0, idle=True) == [50, Status.IDLE]
    assert valve.watermark(0, 60) == []  # an idle channel says nothing
    assert valve.status(0, idle=False) == [Status.ACTIVE]
    assert valve.watermark(0, 40) == []  # behind its own valve
    assert valve.watermark(0, 60) == [60]


def test_an_idle_channel_that_ends_is_active_first() -> None:
    valve = WatermarkValve(1)
    assert valve.status(0, idle=True) == [Status.IDLE]
    assert valve.end(0) == [Status.ACTIVE, MAX]


def test_restored_valve_gives_nothing_twice() -> None:
    valve = WatermarkValve(3, last=100)
    for channel in range(3):
        assert valve.watermark(channel, 90) == []
    assert valve.watermark(0, 110) == []
    assert valve.watermark(1, 120) == []
    assert valve.watermark(2, 105) == [105]


def test_a_valve_has_channels() -> None:
    with pytest.raises(ConfigError, match="channels is 0"):
        WatermarkValve(0)
