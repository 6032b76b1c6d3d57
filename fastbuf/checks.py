"""Checks of settings, where they are given: an error has the name, the value and the range."""

from __future__ import annotations

import math
import operator
import os
import tempfile
from typing import Any

from fastbuf.errors import ConfigError, RecordError, ResourceError

MOST_SEGMENTS = (1 << 31) - 1  #: of a pool, and of all that is counted in segments
LEAST_SEGMENT_BYTES = 64  #: a cache line, and what a segment's size is a multiple of
MOST_SEGMENT_BYTES = 1 << 30


def whole(name: str, value: Any, low: int, high: int = MOST_SEGMENTS) -> int:
    """`value` as an int, if it is a whole number from `low` to `high`; NumPy's are, a bool is not."""
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if isinstance(value, bool) or not low <= number <= high:
        raise ConfigError(f"{name} is {value!r:.80}: it must be an integer from {low} to {high}")
    return number


def seconds_or_none(name: str, value: Any, low: float) -> float | None:
    """As :func:`seconds`, or None: no limit."""
    if value is None:
        return None
    try:
        return seconds(name, value, low)
    except ConfigError as error:
        raise ConfigError(f"{error}, or None (no limit)") from None


def seconds(name: str, value: Any, low: float = 0.0, high: float = math.inf, or_else: tuple[float, ...] = ()) -> float:
    """`value` as a float, if it is a number from `low` to `high`, or one of `or_else`; never NaN."""
    try:
        number = math.nan if isinstance(value, (str, bytes, bool)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if number in or_else or low <= number <= high:
        return number
    other = "".join(f", or {number:g}" for number in or_else)
    wanted = f"from {low:g} to {high:g}" if high != math.inf else f"of at least {low:g}"
    raise ConfigError(f"{name} is {value!r:.80}: it must be a number of seconds {wanted}{other}")


def timeout_or_none(value: Any) -> float | None:
    """`value` as seconds to wait, or None: no limit; what is left until a moment that has passed is below 0."""
    if value is None or (type(value) is float and value == value):  # poll and request are called for each record
        return value
    try:
        return seconds("timeout", value, -math.inf)
    except ConfigError:
        raise ConfigError(f"timeout is {value!r:.80}: it must be a number of seconds, or None (no limit)") from None


def flag(name: str, value: Any) -> bool:
    """`value` as a bool, if it is one, or NumPy's: ``"no"`` would count as true."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool"):
        raise ConfigError(f"{name} is {value!r:.80}: it must be True or False")
    return bool(value)


def writable_directory(name: str, value: Any) -> Any:
    """`value`, if it is None or the path of a directory of this host in which this process may make files."""
    if instance(name, value, str, os.PathLike, type(None)) is None:
        return None
    why = (
        "there is no such directory"
        if not os.path.exists(value)
        else "that is no directory"
        if not os.path.isdir(value)
        else "this process may not write to it"
        if not os.access(value, os.W_OK | os.X_OK)
        else ""
    )
    if why:
        raise ConfigError(f"{name} is {os.fspath(value)!r:.200}: {why}; make it, or name another")
    return value


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """`value`, if it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{name} is {value!r:.80}: it must be one of {', '.join(choices)}")
    return value


def instance(name: str, value: Any, *kinds: type) -> Any:
    """`value`, if it is of one of these types."""
    if not isinstance(value, kinds):
        wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ConfigError(f"{name} is {value!r:.80}, of type {type(value).__name__}: it must be {wanted}")
    return value


def records_given(value: Any) -> Any:
    """`value`, if it can be iterated over."""
    try:
        iter(value)
    except TypeError:
        raise RecordError(
            f"{value!r:.80} ({type(value).__name__}): give records in a list or another iterable"
        ) from None
    return value


def spill_directory(directory: Any, setting: str) -> str:
    """`directory`, or the system's directory for temporary files; the error names `setting` as the remedy."""
    try:
        return os.fspath(directory or tempfile.gettempdir())
    except FileNotFoundError as error:  # the message has the directories that were tried
        raise ResourceError(f"{error.strerror}: set {setting}, or TMPDIR, to one that can be written to") from error


def segment_bytes(value: Any) -> int:
    """`value` as the bytes of a segment: one rule for arenas, pools, environments and Spark's settings."""
    size = whole("segment_size", value, LEAST_SEGMENT_BYTES, MOST_SEGMENT_BYTES)
    if size % LEAST_SEGMENT_BYTES:
        below = size // LEAST_SEGMENT_BYTES * LEAST_SEGMENT_BYTES
        raise ConfigError(
            f"segment_size is {size}: it must be a multiple of {LEAST_SEGMENT_BYTES} bytes from {LEAST_SEGMENT_BYTES} "
            f"to {MOST_SEGMENT_BYTES}, as {below} or {below + LEAST_SEGMENT_BYTES}"
        )
    return size


def named_host(name: str, value: Any) -> str:
    """`value`, if it may be the name or address of a host."""
    text = str(instance(name, value, str))
    if not text:
        raise ConfigError(f"{name} is '': give an address; '0.0.0.0' is all of this host's")
    try:
        text.encode("idna")
    except UnicodeError as error:
        raise ConfigError(f"{name} is {value!r:.80}: this cannot be a name of a host ({error})") from None
    return text


def port(name: str, value: Any, low: int = 0) -> int:
    """`value` as the number of a TCP port."""
    return whole(name, value, low, 65535)
