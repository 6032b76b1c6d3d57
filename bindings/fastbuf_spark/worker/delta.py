"""Tasks that write the files of a Delta table: with the statistics that its log has of each."""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from fastbuf_spark.worker.writing import Write

if TYPE_CHECKING:
    import pyarrow as pa

MOST_COLUMNS = 32  #: columns that have bounds in the log, as Delta's own writers do it
MOST_CHARACTERS = 32  #: of a text's bounds
MOST_DIGITS = 15  #: of decimals with bounds, which are numbers of JSON there: readers may make floats of longer ones
_LAST = "\U0010ffff"
_EPOCH = dt.datetime(1970, 1, 1)


@dataclass(frozen=True)
class DeltaWrite(Write):
    """Instants that name partitions are in UTC, and files are told with their statistics."""

    def _keys(self, batch: pa.RecordBatch) -> list[pa.Array]:
        import pyarrow as pa

        keys = super()._keys(batch)
        zoned = (pa.types.is_timestamp(key.type) and key.type.tz is not None for key in keys)
        return [
            key.cast(pa.timestamp(key.type.unit, "UTC")) if is_zoned else key
            for key, is_zoned in zip(keys, zoned, strict=True)
        ]

    def details(self, footer: Any) -> str:
        return json.dumps(statistics(footer, self.schema))


def statistics(footer: Any, schema: pa.Schema) -> dict[str, Any]:
    """What Delta's log has of a file: rows, nulls, least and greatest values of columns that are not nested."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    for at in range(footer.num_columns):
        name = footer.schema.column(at).path
        if schema.get_field_index(name) < 0:  # a field of a nested column
            continue
        chunks = [group.column(at).statistics for group in groups]
        if not all(each is not None and each.has_null_count for each in chunks):
            continue
        nulls[name] = sum(each.null_count for each in chunks)
        # A row group of nulls alone has no bounds, and any other without them has values that are not compared
        ranged = [each for each, group in zip(chunks, groups, strict=True) if each.null_count < group.num_rows]
        if len(least) >= MOST_COLUMNS or not ranged or not all(each.has_min_max for each in ranged):
            continue
        bounds = _bounds(ranged, schema.field(name).type)
        if bounds is not None:
            least[name], most[name] = bounds
    return {"numRecords": footer.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _bounds(chunks: list[Any], kind: pa.DataType) -> tuple[Any, Any] | None:
    """The least and greatest value as JSON has them; None: this type, or these values, have none there."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        low, high = min(each.min_raw for each in chunks) // 1000, -(-max(each.max_raw for each in chunks) // 1000)
        try:
            return _time(low, kind), _time(high, kind)
        except OverflowError:  # a year that few readers know
            return None
    try:
        low, high = min(each.min for each in chunks), max(each.max for each in chunks)
    except (OverflowError, ValueError):
        return None
    if pa.types.is_integer(kind):
        return low, high
    if pa.types.is_floating(kind):
        return (low, high) if math.isfinite(low) and math.isfinite(high) else None
    if pa.types.is_date(kind):
        return low.isoformat(), high.isoformat()
    if pa.types.is_decimal(kind) and kind.precision <= MOST_DIGITS:
        return float(Decimal(low)), float(Decimal(high))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        cut = high[:MOST_CHARACTERS]
        if len(high) > MOST_CHARACTERS:
            if high[MOST_CHARACTERS] == _LAST:
                return None
            cut += _LAST
        return low[:MOST_CHARACTERS], cut
    return None


def _time(milliseconds: int, kind: pa.DataType) -> str:
    at = _EPOCH + dt.timedelta(milliseconds=milliseconds)
    return at.isoformat(timespec="milliseconds") + ("" if kind.tz is None else "Z")
