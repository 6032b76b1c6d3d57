"""Durations as people write them: numbers, texts with units, and timedelta."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pytest

from fastbuf.errors import ConfigError
from fastbuf_spark.streams.drafts import micros_of, seconds_of


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0),
        (2.5, 2.5),
        ("10 seconds", 10),
        ("500 ms", 0.5),
        (" 2h ", 7200),
        ("1 hour 30 minutes", 5400),
        ("1h30m", 5400),
        ("1 WEEK 2 days", 777600),
        ("2 weeks", 1209600),
        ("3 microseconds", 3e-6),
        ("1 minute 5 seconds 250 milliseconds", 65.25),
        ("interval 5 minutes", 300),
        ("1 hour -30 minutes", 1800),
        (dt.timedelta(minutes=1.5), 90),
        (dt.timedelta(0), 0),
    ],
)
def test_what_is_taken(value: Any, seconds: float) -> None:
    assert seconds_of("every", value) == pytest.approx(seconds)
    assert micros_of("every", value) == round(seconds * 1_000_000)


@pytest.mark.parametrize(
    "value", ["-10 seconds", "- 10 seconds", "5 seconds -15 seconds", -10, dt.timedelta(seconds=-10)]
)
def test_a_negative_one(value: Any) -> None:
    """Where it is a bound, and nowhere else."""
    assert seconds_of("lower", value, signed=True) == -10
    with pytest.raises(ConfigError, match=r"^delay is .*: a duration may not be negative$"):
        seconds_of("delay", value)


@pytest.mark.parametrize(
    "value",
    ["10", "", "five seconds", "1 month", "1 fortnight", "1 hour and 2 minutes", True, math.nan, math.inf, None, [1]],
)
def test_what_is_none(value: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"^every is .*: give a number of seconds, a datetime.timedelta, or a text .*week"
    ):
        seconds_of("every", value)
