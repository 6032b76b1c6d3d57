"""Times of a zone as instants, in all years: Arrow's own function knows no summer time after 2037."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)
_LAST = (dt.datetime(2037, 1, 1) - _EPOCH) // _MICROSECOND
#: The calendar with its days of the week is the same after 400 years, so that Python's years are enough
_CYCLE = dt.timedelta(days=146_097) // _MICROSECOND


def instants(local: pa.Array, zone: str) -> pa.Array:
    """Instants of times without a zone (microseconds), the earlier one where there are two.

    Raises
    ------
    pyarrow.ArrowInvalid
        A time is in an hour skipped by daylight saving.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    late = pc.greater_equal(local, pa.scalar(_LAST, local.type))
    rules = _rules(zone) if pc.any(late).as_py() else None
    if rules is None:
        return pc.assume_timezone(local, zone, ambiguous="earliest")
    nothing = pa.scalar(None, local.type)
    early = pc.assume_timezone(pc.if_else(late, nothing, local), zone, ambiguous="earliest")
    some = pc.if_else(late, local, nothing).dictionary_encode()
    found = [_instant(time, rules) for time in some.dictionary.cast(pa.int64()).to_pylist()]
    return pc.coalesce(early, pa.array(found, pa.int64()).cast(early.type).take(some.indices))


def _rules(zone: str) -> Any:
    """None for an offset: it is the same in all years."""
    try:
        return ZoneInfo(zone)
    except (KeyError, OSError, ValueError):
        return None


def _instant(time: int, rules: Any) -> int:
    import pyarrow as pa

    cycles, rest = divmod(time - _LAST, _CYCLE)
    local = _EPOCH + (_LAST + rest) * _MICROSECOND
    instant = local.replace(tzinfo=rules).astimezone(dt.UTC)
    if instant.astimezone(rules).replace(tzinfo=None) != local:
        raise pa.ArrowInvalid(f"{local} does not exist in {rules.key}")
    return (instant.replace(tzinfo=None) - _EPOCH) // _MICROSECOND + cycles * _CYCLE
