"""What the golden files hold.  Run as a script it writes those that are missing, and touches none that is there."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from fastbuf.serializers import ColumnarSerializer, PickledSerializer, RowSerializer, Schema

FOLDER = Path(__file__).parent / "golden"

EVERY = Schema.of(
    nothing="null?", flag="bool", i8="int8", i16="int16?", i32="int32", i64="int64?", u8="uint8", u16="uint16",
    u32="uint32?", u64="uint64", f16="float16", f32="float32?", f64="float64", text="string?", large="large_string",
    view="string_view?", raw="binary", raw2="large_binary?", raw3="binary_view", fixed="fixed_size_binary(3)?",
    d="decimal128(10,2)?", d2="decimal256(50,5)", day="date32", day2="date64?", t1="time32[s]", t2="time32[ms]?",
    t3="time64[us]", t4="time64[ns]", ts1="timestamp[s]", ts2="timestamp[ms]?", ts3="timestamp[us]",
    ts4="timestamp[ns]", tz="timestamp[us,UTC]?", du1="duration[s]", du2="duration[ms]", du3="duration[us]?",
    du4="duration[ns]", vec="list<float32>", opt="list<int16?>?", texts="large_list<string?>",
    pair="fixed_size_list(2)<int32>", inner='struct<a: int8, "b c": string?>?', table="map<string, int64?>",
    code="dictionary<int32, string>?",
)  # fmt: skip
WHEN = dt.datetime(2026, 11, 21, 7, 8, 9)
CLOCK = dt.time(7, 8, 9)
LONG = dt.timedelta(days=-3, seconds=5)
RECORDS: list[tuple[Any, ...]] = [
    (
        None, True, -8, -1600, 32, -64, 8, 1600, 32 << 20, 2**64 - 1, 0.5, -1.25, 6.4, "né", "large", "a view",
        b"\0raw", b"", b"\xff", b"abc", Decimal("-12.50"), Decimal("1.00001"), WHEN.date(), dt.date(1969, 12, 31),
        CLOCK, CLOCK, CLOCK, CLOCK, WHEN, WHEN, WHEN, WHEN, WHEN.replace(tzinfo=dt.UTC), LONG, LONG, LONG, LONG,
        [1.5, -2.5], [1, None, -1], ["x", None, ""], [1, -1], (7, "é"), {"k": 1, "n": None}, "red",
    ),
    (
        None, False, 127, None, -(2**31), None, 255, 0, None, 0, -0.0, None, -0.0, None, "", None, b"", None, b"",
        None, None, Decimal(-(10**44)), dt.date(1, 1, 1), None, dt.time(), None, dt.time.max, dt.time(),
        dt.datetime(1, 1, 1), None, dt.datetime.max, dt.datetime(1970, 1, 1), None, dt.timedelta(), dt.timedelta(),
        None, dt.timedelta(microseconds=1), [], None, [], [0, 2**31 - 1], None, {}, None,
    ),
]  # fmt: skip


class Outside:
    """An object with a buffer that stays out of its pickle; it comes back as a bytearray."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return bytearray, (pickle.PickleBuffer(bytes(range(256)) * 16),)


OBJECTS: list[Any] = [None, 7, -(2**70), 1.5, "né", b"\0", (1, ("two",)), {"k": [True, False]}, {3}, Outside()]


def batch() -> Any:
    """The records as a record batch."""
    import pyarrow as pa

    arrow = EVERY.to_arrow()
    columns = []
    for field, values in zip(arrow, zip(*RECORDS, strict=True), strict=True):
        if pa.types.is_struct(field.type):
            values = tuple(value and dict(zip(("a", "b c"), value, strict=True)) for value in values)
        if pa.types.is_float16(field.type):  # pyarrow 18 makes them of NumPy's alone
            values = tuple(map(np.float16, values))
        plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        made = pa.array(values, plain)
        columns.append(made.dictionary_encode().cast(field.type) if plain != field.type else made)
    return pa.RecordBatch.from_arrays(columns, schema=arrow)


def blocks() -> dict[str, bytes]:
    """Each golden block by name, as the code makes it now."""
    data = batch()
    return {
        "rows": RowSerializer(EVERY).dumps(RECORDS),
        "rows-checksum": RowSerializer(EVERY, checksum=True).dumps(RECORDS),
        "rows-empty": RowSerializer(EVERY).dumps([]),
        "columns": ColumnarSerializer(EVERY).dumps(data),
        "columns-checksum": ColumnarSerializer(EVERY, checksum=True).dumps(data.slice(1)),
        "columns-empty": ColumnarSerializer(EVERY).dumps(data.slice(0, 0)),
        "pickles": PickledSerializer(group=1).dumps(OBJECTS),
        "pickles-groups-checksum": PickledSerializer(checksum=True, group=4).dumps(OBJECTS),
        "pickles-empty": PickledSerializer().dumps([]),
    }


def as_hex(block: bytes) -> str:
    """32 bytes a line: the first line is the header."""
    return "".join(f"{block[at : at + 32].hex(' ', 4)}\n" for at in range(0, len(block), 32))


def golden(name: str) -> bytes:
    """A block as it was when its format was fixed."""
    return bytes.fromhex((FOLDER / f"{name}.hex").read_text())


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, block in blocks().items():
        path = FOLDER / f"{name}.hex"
        if not path.exists():
            path.write_text(as_hex(block))
