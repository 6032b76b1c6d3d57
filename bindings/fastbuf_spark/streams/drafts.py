"""A stage while a stream is written, and how its arguments are read."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.conf import parse_seconds
from fastbuf_spark.streams.event_times import TimeSpec
from fastbuf_spark.streams.source import StreamSource
from fastbuf_spark.worker.chains import Link

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


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


def seconds_of(name: str, value: float | str) -> float:
    """An interval in seconds, from a number or from text with a unit."""
    if isinstance(value, str):
        return parse_seconds(name, value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigError(f"{name} is {value!r}: give seconds, or text with a unit, as in '10 seconds'")
    return float(value)


def millis_of(name: str, value: float | str) -> int:
    """An interval in milliseconds; see :func:`seconds_of`."""
    return round(seconds_of(name, value) * 1000)


def micros_of(name: str, value: float | str) -> int:
    """An interval in microseconds; see :func:`seconds_of`."""
    return round(seconds_of(name, value) * 1_000_000)
