"""Which windows a time is in: against loops over single times; zones against zoneinfo, minute by minute."""

from __future__ import annotations

import pickle
import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from nights import LONG

from fastbuf.errors import ConfigError
from fastbuf.event_time.windows import Session, Sliding, Tumbling, sessions
from fastbuf.event_time.zones import Zone

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = 3600 * 10**6
DAY = 24 * HOUR


def us(when: datetime) -> int:
    return (when - EPOCH) // timedelta(microseconds=1)


def windows_of(time: int, size: int, slide: int, offset: int) -> list[tuple[int, int]]:
    """Flink's loop, with its `r += size if r < 0`, over one time."""
    rest = abs(time - offset) % slide
    if time < offset:
        rest = (slide - rest) % slide
    start, out = time - rest, []
    while start > time - size:
        out.append((start, start + size))
        start -= slide
    return sorted(out)


def assigned(assigner: Tumbling | Sliding, times: list[int]) -> list[list[tuple[int, int]]]:
    panes = assigner.panes(np.array(times, np.int64))
    rows, labels = assigner.windows(panes)
    out: list[list[tuple[int, int]]] = [[] for _ in times]
    for row, start, end in zip(rows, assigner.starts(labels), assigner.ends(labels), strict=True):
        out[row].append((int(start), int(end)))
    return out


def test_windows_of_a_batch_are_those_of_each_time() -> None:
    for seed in range(300):
        dice = random.Random(seed)
        size, slide = dice.randrange(1, 60), dice.randrange(1, 60)
        offset = dice.randrange(1 - slide, slide)
        times = [dice.randrange(-300, 300) for _ in range(30)]
        expected = [windows_of(t, size, slide, offset) for t in times]
        assert assigned(Sliding(size, slide, offset), times) == expected, seed
        if size == slide:
            assert assigned(Tumbling(size, offset), times) == expected
        offset = dice.randrange(1 - size, size)
        assert assigned(Tumbling(size, offset), times) == [windows_of(t, size, size, offset) for t in times]


def test_floor_is_right_before_1970() -> None:
    assert assigned(Tumbling(10), [-1, -10, -11, 0]) == [[(-10, 0)], [(-10, 0)], [(-20, -10)], [(0, 10)]]


ZONES = ["Europe/Berlin", "America/Sao_Paulo", "America/Havana", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"]
ZONES += ["Pacific/Apia", "Africa/Casablanca", "America/Scoresbysund", "America/St_Johns"] if LONG else []


@pytest.mark.parametrize("name", ZONES)
def test_local_days_are_those_of_the_calendar(name: str) -> None:
    """Over the changes of two years, each ten minutes: a row is in the window of the day that a calendar has there."""
    tz = ZoneInfo(name)
    for year in (2011, 2016):
        start = datetime(year, 1, 1, tzinfo=UTC)
        times = [start + timedelta(minutes=10 * i) for i in range(6 * 24 * 366)]
        raw = np.array([us(t) for t in times])
        days = np.array([us(t.astimezone(tz).replace(tzinfo=UTC)) // DAY for t in times])
        twice = np.minimum.accumulate(days[::-1])[::-1]  # an hour that comes again over midnight is of the first day
        panes = Tumbling(DAY, zone=name).panes(raw)
        assert (panes // DAY == twice).all()
        if name in ("Europe/Berlin", "America/Havana", "UTC"):
            assert (twice == days).all()
        starts, ends = Tumbling(DAY, zone=name).starts(panes), Tumbling(DAY, zone=name).ends(panes)
        assert ((starts <= raw) & (raw < ends)).all()
        change = np.flatnonzero(np.diff(panes))
        assert (ends[change] == starts[change + 1]).all()  # one after the other, without a hole
        assert (ends[change] <= raw[change + 1]).all()


def test_days_of_23_and_25_hours() -> None:
    day = Tumbling(DAY, zone="Europe/Berlin")
    for when, hours in ((datetime(2024, 3, 31, 12), 23), (datetime(2024, 10, 27, 12), 25), (datetime(2024, 7, 1), 24)):
        at = np.array([us(when.replace(tzinfo=ZoneInfo("Europe/Berlin")))])
        labels = day.panes(at)
        start, end = int(day.starts(labels)[0]), int(day.ends(labels)[0])
        assert end - start == hours * HOUR
        assert (EPOCH + timedelta(microseconds=start)).astimezone(ZoneInfo("Europe/Berlin")).hour == 0


def test_shifts_by_local_clocks() -> None:
    """Of six hours: that with the change has five, or seven; all start at 0, 6, 12, 18."""
    shift = Tumbling(6 * HOUR, zone="Europe/Berlin")
    start = us(datetime(2024, 1, 1, tzinfo=UTC))
    labels = np.unique(shift.panes(np.arange(start, start + 366 * DAY, HOUR)))
    lengths, counts = np.unique((shift.ends(labels) - shift.starts(labels)) // HOUR, return_counts=True)
    assert list(lengths) == [5, 6, 7]
    assert list(counts[[0, 2]]) == [1, 1]
    hours = {
        (EPOCH + timedelta(microseconds=int(t))).astimezone(ZoneInfo("Europe/Berlin")).hour
        for t in shift.starts(labels)
    }
    assert hours == {0, 6, 12, 18}


def test_sliding_days_share_days() -> None:
    week = Sliding(7 * DAY, DAY, zone="Europe/Berlin")
    at = us(datetime(2024, 3, 31, 10, tzinfo=UTC))
    found = assigned(week, [at])[0]
    assert len(found) == 7
    assert all(end - start == 7 * DAY - HOUR for start, end in found)


def test_zone_of_far_times_and_none() -> None:
    zone = Zone("Europe/Berlin")
    far = np.array([us(datetime(2, 1, 1, tzinfo=UTC)), us(datetime(9999, 12, 1, tzinfo=UTC))])
    assert (np.abs(zone.local(far) - far) < DAY).all()
    assert len(zone.local(np.empty(0, np.int64))) == 0
    with pytest.raises(ConfigError, match="no such time zone"):
        Tumbling(DAY, zone="Mars/Olympus")


def test_windows_are_pickled() -> None:
    for assigner in (Tumbling(10, 3, "Europe/Berlin"), Sliding(10, 5, 1), Session(5)):
        assert pickle.loads(pickle.dumps(assigner)) == assigner


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Tumbling(0), "size is 0"),
        (lambda: Tumbling(10, 10), "offset is 10"),
        (lambda: Sliding(10, 0), "slide is 0"),
        (lambda: Sliding(10**6, 1), "make the slide longer"),
        (lambda: Session(0), "gap is 0"),
    ],
)
def test_settings_are_checked(make: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()  # type: ignore[operator]


def test_sessions_merge_what_touches() -> None:
    for seed in range(300):
        dice = random.Random(seed)
        n = dice.randrange(40)
        scale = dice.choice([1, 10**17])  # the latter: numbers that leave no room for a key
        rows = [(dice.randrange(4), dice.randrange(-50, 50)) for _ in range(n)]
        rows = [(key, start * scale, start * scale + dice.randrange(1, 9) * scale) for key, start in rows]
        expected: list[list[int]] = []
        for key, start, end in sorted(rows):
            if expected and expected[-1][0] == key and start <= expected[-1][2]:
                expected[-1][2] = max(expected[-1][2], end)
            else:
                expected.append([key, start, end])
        keys, starts, ends = (np.array([row[i] for row in rows], np.int64) for i in range(3))
        order, firsts, reach = sessions(keys, starts, ends)
        found = [[int(keys[order[f]]), int(starts[order[f]]), int(e)] for f, e in zip(firsts, reach, strict=True)]
        assert found == expected, seed
