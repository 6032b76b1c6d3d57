"""A stage while a stream is written, and how its arguments are read."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

from fastbuf.errors import ConfigError
from fastbuf.event_time.windows import MOST_US
from fastbuf_spark.conf import DURATION, parse_seconds
from fastbuf_spark.errors import ArgumentTypeError
from fastbuf_spark.streams.event_times import TimeSpec
from fastbuf_spark.streams.source import StreamSource
from fastbuf_spark.worker.chains import Link

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Seconds, text with units (``"1 hour 30 minutes"``), or a timedelta
Duration: TypeAlias = float | str | dt.timedelta
MOST_YEARS = MOST_US // (31_557_600 * 1_000_000)


@dataclasses.dataclass(frozen=True)
class Draft:
    """A stage while a stream is written."""

    label: str
    tasks: int | None
    schema: StructType  # of what it gives so far
    input_schema: StructType
    source: StreamSource | None = None
    operator: Any = None
    links: tuple[Link, ...] = ()
    functions: tuple[Any, ...] = ()
    words: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    time: TimeSpec | None = None
    computed: tuple[Link, ...] = ()  #: select and filter before event time
    computes: bool = True  #: whether all links are such
    inputs: tuple[int, ...] = ()  #: the stages that it reads from


def label_of(func: Any) -> str:
    """The name of a function, or of the class of an object that is called."""
    return getattr(func, "__name__", type(func).__name__)


def millis_of(name: str, value: Duration) -> int:
    """The same in milliseconds."""
    return round(seconds_of(name, value) * 1000)


def micros_of(name: str, value: Duration, signed: bool = False) -> int:
    """The same in microseconds."""
    micros = round(seconds_of(name, value, signed) * 1_000_000)
    if abs(micros) > MOST_US:
        raise ConfigError(f"{name} is {value!r}: at most {MOST_YEARS:,} years")
    return micros


def seconds_of(name: str, value: Duration, signed: bool = False) -> float:
    """A duration in seconds, from a number, from text with units, or a timedelta; ``signed``: it may be negative."""
    if isinstance(value, str):
        seconds = parse_seconds(name, value)
    elif isinstance(value, dt.timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ConfigError(f"{name} is {value!r}: {DURATION}")
    else:
        seconds = float(value)
    if seconds < 0 and not signed:
        raise ConfigError(f"{name} is {value!r}: a duration may not be negative")
    return seconds


def name_of_column(what: str, column: object) -> str:
    """The name of a column, where only a name is taken."""
    if not isinstance(column, str):
        words = f"{what} takes the name of a column, as 'time', not a {type(column).__name__}"
        raise ArgumentTypeError.of(words, what, "str", column)
    return column
