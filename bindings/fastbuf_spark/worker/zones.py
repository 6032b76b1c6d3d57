"""Times of a zone as instants, in all years: Arrow's own function knows no summer time after 2037."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    import pyarrow as pa

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::(\d{2}))?$")
_EPOCH = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)
_LAST = (dt.datetime(2037, 1, 1) - _EPOCH) // _MICROSECOND
_MOST = (dt.datetime(9999, 1, 1) - _EPOCH) // _MICROSECOND
#: The calendar with its days of the week is the same after 400 years: for years that Python has not
_CYCLE = dt.timedelta(days=146_097) // _MICROSECOND


def instants(local: pa.Array, zone: str, ambiguous: str = "earliest") -> pa.Array:
    """Instants of times without a zone (microseconds).

    Parameters
    ----------
    ambiguous
        Which one it is where there are two: ``"earliest"``, or ``"raise"``.

    Raises
    ------
    pyarrow.ArrowInvalid
        A time is in an hour skipped by daylight saving.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    zone = _arrow_zone(zone)
    late = pc.greater_equal(local, pa.scalar(_LAST, local.type))
    rules = _rules(zone) if pc.any(late).as_py() else None
    if rules is None:
        return pc.assume_timezone(local, zone, ambiguous=ambiguous)
    nothing = pa.scalar(None, local.type)
    early = pc.assume_timezone(pc.if_else(late, nothing, local), zone, ambiguous=ambiguous)
    some = pc.if_else(late, local, nothing).dictionary_encode()
    times = [_instant(time, rules, ambiguous) for time in some.dictionary.cast(pa.int64()).to_pylist()]
    return pc.coalesce(early, pa.array(times, pa.int64()).cast(early.type).take(some.indices))


def _arrow_zone(zone: str) -> str:
    """The zone by a name that Arrow knows: offsets have several in Java."""
    if zone == "Z":
        return "UTC"
    offset = _OFFSET.match(zone)
    return f"{offset[1]}{int(offset[2]):02d}:{offset[3] or '00'}" if offset else zone


def _rules(zone: str) -> Any:
    """None for an offset: it is the same in all years."""
    try:
        return ZoneInfo(zone)
    except (KeyError, OSError, ValueError):
        return None


def _instant(time: int, rules: Any, ambiguous: str) -> int:
    import pyarrow as pa

    cycles = max(0, (time - _MOST) // _CYCLE + 1)
    local = _EPOCH + (time - cycles * _CYCLE) * _MICROSECOND
    instant = local.replace(tzinfo=rules).astimezone(dt.UTC)
    if instant.astimezone(rules).replace(tzinfo=None) != local:
        raise pa.ArrowInvalid(f"{local} does not exist in {rules.key}")
    if ambiguous == "raise" and local.replace(tzinfo=rules, fold=1).astimezone(dt.UTC) != instant:
        raise pa.ArrowInvalid(f"{local} comes twice in {rules.key}")
    return (instant.replace(tzinfo=None) - _EPOCH) // _MICROSECOND + cycles * _CYCLE
