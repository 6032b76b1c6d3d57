"""Watermarks of a source: bounds, idle splits, sources that run ahead."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from fastbuf.errors import ConfigError
from fastbuf.event_time.watermarks import (
    MAX,
    MIN,
    BoundedOutOfOrderness,
    Monotonous,
    Punctuated,
    SplitWatermarks,
    in_microseconds,
)


def ms(*times: int) -> np.ndarray:
    return np.array(times, np.int64)


def test_bound_is_flinks() -> None:
    marks = SplitWatermarks(BoundedOutOfOrderness(10))
    assert marks.current(0) == (None, True)  # no split: it must not hold back the others
    marks.open("a", 0)
    assert marks.current(0) == (None, False)
    marks.add("a", ms(100, 90), 0)
    assert marks.current(0) == (89, False)
    marks.add("a", ms(95), 0)
    assert marks.current(0) == (89, False)


def test_monotonous_and_least_time() -> None:
    marks = SplitWatermarks(Monotonous())
    marks.add("a", ms(MIN), 0)
    assert marks.current(0) == (MIN + 1, False)  # without falling below the least number
    marks.add("a", ms(-7), 0)
    assert marks.current(0) == (-8, False)


def test_punctuated_sees_the_rows() -> None:
    marks = SplitWatermarks(Punctuated(lambda times, batch: int(times.max()) if batch == "mark" else None))
    marks.add("a", ms(5), 0, "row")
    assert marks.current(0) == (None, False)
    marks.add("a", ms(7), 0, "mark")
    assert marks.current(0) == (7, False)
    with pytest.raises(ConfigError, match="the watermark"):
        SplitWatermarks(Punctuated(lambda times, batch: 1.5)).add("a", ms(1), 0)


def test_slowest_split_is_named() -> None:
    marks = SplitWatermarks(BoundedOutOfOrderness(0))
    marks.add("a", ms(100), 0)
    marks.add("b", ms(50), 0)
    marks.open("c", 0)
    assert marks.current(0) == (None, False)
    assert marks.holding() == "c"
    marks.add("c", ms(70), 0)
    assert marks.current(0) == (49, False)
    assert marks.holding() == "b"
    assert marks.watermarks() == {"a": 99, "b": 49, "c": 69}


def test_idle_split_holds_nothing_back() -> None:
    marks = SplitWatermarks(BoundedOutOfOrderness(0), idle_s=60)
    marks.add("a", ms(100), 0)
    marks.add("b", ms(50), 0)
    marks.add("a", ms(200), 50)
    assert marks.current(59) == (49, False)
    assert marks.current(60) == (199, False)
    marks.add("b", ms(60), 61)
    assert marks.current(61) == (199, False)  # never falls
    assert marks.current(200) == (199, True)
    assert marks.holding() is None


def test_clock_stands_still_while_the_task_cannot_read() -> None:
    marks = SplitWatermarks(BoundedOutOfOrderness(0), idle_s=60)
    marks.add("a", ms(100), 0)
    marks.blocked(for_s=1000)
    assert marks.current(1059)[1] is False
    assert marks.current(1060)[1] is True


def test_ended_split_counts_as_max_and_the_last_one_ends_time() -> None:
    marks = SplitWatermarks(BoundedOutOfOrderness(0))
    marks.add("a", ms(100), 0)
    marks.add("b", ms(50), 0)
    marks.remove("b")
    assert marks.current(0) == (99, False)
    marks.remove("a")
    assert marks.current(0) == (99, False)  # others may still be found
    marks.finish()
    assert marks.current(0) == (MAX, False)


def test_ended_splits_do_not_hide_how_far_they_came() -> None:
    marks = SplitWatermarks(BoundedOutOfOrderness(0))
    marks.add("a", ms(50), 0)
    assert marks.current(0) == (49, False)
    marks.add("b", ms(100), 0)
    marks.remove("b")
    marks.remove("a")
    assert marks.current(0) == (99, False)


def test_a_source_whose_splits_have_ended_is_idle_as_late_as_a_split() -> None:
    """As of files: rows of the next one would be late by the watermark of another source, if that counted alone."""
    marks = SplitWatermarks(BoundedOutOfOrderness(0), idle_s=60)
    assert marks.current(0) == (None, True)  # it never had one
    marks.add("a", ms(100), 0)
    marks.remove("a")
    assert marks.current(10) == (99, False)  # the clock starts now
    assert marks.holding() == "a"
    assert marks.current(69) == (99, False)
    marks.blocked(for_s=5)
    assert marks.current(74.9) == (99, False)
    assert marks.current(75) == (99, True)
    marks.add("b", ms(200), 80)
    marks.remove("b")
    assert marks.current(81) == (199, False)
    again = SplitWatermarks(BoundedOutOfOrderness(0), idle_s=60)
    again.restore([marks.state()])
    assert again.current(1000) == (199, False)
    assert again.current(1060) == (199, True)


def test_splits_that_have_to_wait_hold_back_and_are_not_idle() -> None:
    marks = SplitWatermarks(BoundedOutOfOrderness(0), idle_s=60)
    marks.open("a", 0)
    marks.open("b", 0)
    marks.add("a", ms(1001), 0)
    for now in (0, 50, 100):
        marks.add("a", ms(1001), now)
        marks.wait(["b"])
        assert marks.current(now) == (None, False)
    marks.wait([])
    marks.add("b", ms(501), 101)
    assert marks.current(101) == (500, False)
    assert marks.current(160.5) == (500, False)  # its clock begins where it is read


def test_splits_that_wait_hold_back_no_more_than_what_is_known_of_them() -> None:
    """By their least times; what rows say counts where it is later, and time never falls."""
    marks = SplitWatermarks(BoundedOutOfOrderness(10), idle_s=1)
    for split in "abc":
        marks.open(split, 0)
    marks.expect("b", 501)
    marks.expect("unknown", 1)
    marks.add("a", ms(301), 0)
    marks.wait(["b", "c"])
    assert marks.current(0) == (None, False)  # of c nothing is known
    marks.expect("c", 1001)
    assert marks.current(0) == (290, False)
    marks.remove("a")
    marks.wait(["c"])
    assert marks.current(0.5) == (500, False)
    marks.add("b", ms(505), 0.5)
    assert marks.current(0.5) == (500, False)
    marks.add("b", ms(2000), 0.5)
    assert marks.current(0.5) == (1000, False)
    marks.expect("b", 7)
    marks.expect("c", MAX)
    assert marks.current(0.5) == (1989, False)
    assert marks.watermarks() == {"b": 1989, "c": MAX - 1}


def test_sources_that_run_ahead_pause_and_are_not_idle() -> None:
    marks = SplitWatermarks(BoundedOutOfOrderness(0), idle_s=60)
    marks.add("a", ms(1001), 0)
    marks.add("b", ms(101), 0)
    assert marks.paused(900, 100) == []
    assert marks.paused(899, 100) == ["a"]
    assert marks.paused(5, None) == ["a", "b"]  # one of the others has no watermark yet
    assert marks.paused(899, 100) == ["a"]
    assert marks.current(100) == (1000, False)  # b is idle, a is held
    assert marks.paused(899, MAX) == []
    assert marks.current(159) == (1000, False)  # its clock starts where it may read again
    assert marks.current(160) == (1000, True)


def test_state_is_json_and_goes_to_other_tasks() -> None:
    marks = SplitWatermarks(BoundedOutOfOrderness(0))
    marks.add("a", ms(100), 0)
    marks.add("b", ms(50), 0)
    marks.current(0)
    state = json.loads(json.dumps(marks.state()))
    again = SplitWatermarks(BoundedOutOfOrderness(0))
    again.restore([state])
    assert again.current(7) == (49, False)
    assert again.state() == state
    one = SplitWatermarks(BoundedOutOfOrderness(0), idle_s=5)
    one.restore([state], ["a", "new"])
    assert one.watermarks() == {"a": 99, "new": None}
    assert one.current(100) == (49, False)  # the clock of idleness starts now
    assert one.current(105) == (49, True)


def test_watermark_is_a_model() -> None:
    """Against the definition, over random rows, ends, idleness."""
    for seed in range(200):
        dice = random.Random(seed)
        idle_s, delay = dice.choice([None, 3.0]), dice.choice([0, 5])
        marks = SplitWatermarks(BoundedOutOfOrderness(delay), idle_s)
        rows: dict[str, list[int]] = {}
        seen: dict[str, float] = {}
        best, now, ended, ended_at = MIN, 0.0, [MIN], -9.0
        for _ in range(50):
            now += dice.random() * 2
            name, step = dice.choice("abc"), dice.random()
            if step < 0.7:
                times = [dice.randrange(-50, 50) for _ in range(dice.randrange(4))]
                marks.add(name, ms(*times), now)
                rows.setdefault(name, []).extend(times)
                seen[name] = now
            elif step < 0.8 and name in rows:
                marks.remove(name)
                ended.append(max(rows.pop(name), default=MIN + delay + 1) - delay - 1)
                ended_at = now
            active = [n for n in rows if idle_s is None or now - seen[n] < idle_s]
            each = [max(rows[n]) - delay - 1 if rows[n] else MIN for n in active]
            best = max(best, min(each) if each else max(ended) if not rows else MIN)
            waits = not rows and len(ended) > 1 and (idle_s is None or now - ended_at < idle_s)
            assert marks.current(now) == (None if best == MIN else best, not active and not waits)


def test_microseconds_of_a_watermark() -> None:
    assert in_microseconds(9) == 9999
    assert in_microseconds(-1) == -1
    assert in_microseconds(MAX) == MAX
    assert in_microseconds(MIN) == MIN


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="delay_ms"):
        BoundedOutOfOrderness(-1)
    with pytest.raises(ConfigError, match="idle_s"):
        SplitWatermarks(Monotonous(), idle_s=-1)


def test_tasks_that_go_on_hold_what_the_slowest_held() -> None:
    """Each went on from the greatest time of all tasks, and rows that were in time before the restart were late."""
    tasks = [SplitWatermarks(BoundedOutOfOrderness(0)) for _ in range(3)]
    for marks, split, last in zip(tasks, "ab", (1000, 500), strict=False):  # the third has had none
        marks.open(split, 0)
        marks.add(split, ms(last), 0)
        marks.remove(split)
    before = [marks.current(0) for marks in tasks]
    assert before == [(999, False), (499, False), (None, True)]
    states = [json.loads(json.dumps(marks.state())) for marks in tasks]
    for count in (1, 3, 4):
        again = [SplitWatermarks(BoundedOutOfOrderness(0)) for _ in range(count)]
        for marks in again:
            marks.restore(states, [])
            assert marks.current(0) == (499, False)
        again[0].open("c", 0)
        again[0].add("c", ms(700), 0)
        assert again[0].current(0) == (699, False)


def test_a_task_that_goes_on_knows_whether_it_had_a_split() -> None:
    """One that never had one was idle at once, and held all others back behind a restart: for ever, without idle=."""
    one, two = (SplitWatermarks(BoundedOutOfOrderness(0)) for _ in range(2))
    one.open("a", 0)
    one.add("a", ms(1000), 0)
    one.remove("a")
    states = [marks.state() for marks in (one, two)]
    again = [SplitWatermarks(BoundedOutOfOrderness(0)) for _ in states]
    for marks, own in zip(again, states, strict=True):
        marks.restore(states, [], own)
    assert [marks.current(0) for marks in again] == [(999, False), (None, True)]
