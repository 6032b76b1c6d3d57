"""Rows as JSON, written and read."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbuf.errors import SchemaError
from fastbuf_spark.streams.json_rows import JsonReader, check_writable, json_rows, json_values

UTC = datetime.UTC
INNER = pa.struct([("d", pa.date32()), ("l", pa.list_(pa.binary())), ("t", pa.timestamp("us", "Europe/Berlin"))])
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("o", pa.bool_()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", "Europe/Berlin")),
        ("u", pa.timestamp("us", "UTC")),
        ("n", pa.timestamp("us")),
        ("c", pa.time64("ns")),
        ("m", pa.decimal128(38, 18)),
        ("l", pa.list_(pa.list_(pa.int32()))),
        ('a "%s" b', INNER),
    ]
)
ROWS: list[dict[str, Any]] = [
    {
        "i": -(2**63),
        "f": 0.1,
        "g": 0.5,
        "o": True,
        "s": '"\\\n\t%s é \U0001f600\u2028',
        "b": bytes(range(256)),
        "d": datetime.date(1, 1, 1),
        "t": datetime.datetime(2024, 3, 31, 1, 30, tzinfo=UTC),
        "u": datetime.datetime(1900, 1, 1, tzinfo=UTC),
        "n": datetime.datetime(1969, 12, 31, 23, 59, 59, 999999),
        "c": datetime.time(23, 59, 59, 999999),
        "m": Decimal("12345678901234567890.123456789012345678"),
        "l": [[1, None], [], None],
        'a "%s" b': {
            "d": datetime.date(9999, 12, 31),
            "l": [b"", None, b"\xff"],
            "t": datetime.datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
        },
    },
    {name: None for name in SCHEMA.names},
    {
        "i": 0,
        "f": -5e-324,
        "g": 3.4028234663852886e38,
        "o": False,
        "s": "",
        "b": b"",
        "d": None,
        "t": None,
        "u": None,
        "n": None,
        "c": None,
        "m": Decimal("-0.5"),
        "l": [],
        'a "%s" b': {"d": None, "l": None, "t": None},
    },
]


def read(schema: pa.Schema, *values: bytes | None) -> list[dict[str, Any]]:
    batch, wrong = JsonReader(schema).read(values)
    assert wrong == {}
    batch.validate(full=True)
    assert batch.schema.equals(schema)
    return batch.to_pylist()


@pytest.mark.parametrize("begin", [0, 1, 2])
def test_what_is_written_is_read_again(begin: int) -> None:
    batch = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA).slice(begin)
    texts = json_rows(batch)
    for text in texts:
        assert list(json.loads(text)) == SCHEMA.names  # by a reader that is strict
    assert read(SCHEMA, *(text.encode() for text in texts)) == batch.to_pylist()


def test_floats_that_json_has_not_are_strings() -> None:
    schema = pa.schema([("f", pa.float64()), ("s", pa.string())])
    rows = [{"f": float(name), "s": "x"} for name in ("nan", "inf", "-inf")] + [{"f": 1.0, "s": None}]
    texts = json_rows(pa.RecordBatch.from_pylist(rows, schema=schema))
    assert [json.loads(text)["f"] for text in texts] == ["NaN", "Infinity", "-Infinity", 1]
    found = read(schema, *(text.encode() for text in texts))
    assert [repr(row["f"]) for row in found] == ["nan", "inf", "-inf", "1.0"]


def test_maps_are_written_as_objects() -> None:
    kind = pa.map_(pa.int32(), pa.date32())
    values = pa.array([[(1, datetime.date(2024, 2, 29)), (2, None)], None, []], kind)
    assert json_values(values) == ['{"1":"2024-02-29","2":null}', "null", "{}"]
    assert json_values(values.slice(2)) == ["{}"]
    check_writable(pa.schema([("m", kind)]))


def test_times_without_an_offset_are_of_the_columns_zone() -> None:
    texts = [
        "2024-07-01T12:00:00",
        "2024-07-01 12:00:00Z",
        "2024-07-01T12:00:00-02:30",
        "2024-03-31 02:30:00",
        "2024-07-01",
    ]
    values = [json.dumps({"t": text}).encode() for text in texts]
    hours = [(10, 0), (12, 0), (14, 30), (1, 0), (22, 0)]
    found = read(pa.schema([("t", pa.timestamp("us", "Europe/Berlin"))]), *values)
    told = [row["t"].astimezone(UTC) for row in found]
    assert [(each.hour, each.minute) for each in told] == hours


def test_fields_that_are_missing_or_more() -> None:
    schema = pa.schema([("i", pa.int32()), ("s", pa.struct([("x", pa.int32()), ("y", pa.int32())]))])
    assert read(schema, b'{"z": [1, {}], "s": {"y": 1, "q": 2}}', b"{}", None, b' \t{ "i" : 1 }\n') == [
        {"i": None, "s": {"x": None, "y": 1}},
        {"i": None, "s": None},
        {"i": None, "s": None},
        {"i": 1, "s": None},
    ]
    assert JsonReader(schema).read([])[0].num_rows == 0


BAD = {
    b"": "no JSON object",
    b"[1]": "no JSON object",
    b"7": "no JSON object",
    b'{"i": 1}{"i": 2}': "more than one",
    b'{"i": 1},{"i": 2}': "",
    b'{"i": "1"}': "number to string",
    b'{"i": 1.5}': "1.5",
    b'{"i": 2147483648}': "2147483648",
    b'{"i": 1, "i": 2}': "twice",
    b'{"i": 1': "no JSON object",
    b', "i": 2}': "no JSON object",
    b'{"s": "\xff"}': "utf-8",
    b'{"b": "*"}': "base64",
    b'{"d": "2024-02-30"}': "2024-02-30",
    b'{"m": 1.255}': "scale",
}


@given(st.lists(st.sampled_from([b'{"i": 1}', None, *BAD]), max_size=30))
def test_bad_records_are_found_wherever_they_stand(values: list[bytes | None]) -> None:
    schema = pa.schema(
        [("i", pa.int32()), ("s", pa.string()), ("b", pa.binary()), ("d", pa.date32()), ("m", pa.decimal128(5, 2))]
    )
    batch, wrong = JsonReader(schema).read(values)
    assert sorted(wrong) == [place for place, value in enumerate(values) if value in BAD]
    assert batch.column("i").to_pylist() == [None if value is None else 1 for value in values if value not in BAD]
    for place, why in wrong.items():
        assert BAD[values[place] or b""] in why


def test_types_that_have_no_json() -> None:
    variant = pa.struct([("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})])
    for kind in (pa.duration("us"), variant, pa.list_(pa.duration("us")), pa.struct([("x", variant)])):
        with pytest.raises(SchemaError, match=r"column 'c' has the type .* not written as JSON"):
            check_writable(pa.schema([("c", kind)]))
        with pytest.raises(SchemaError, match=r"column 'c' has the type .* not read from JSON"):
            JsonReader(pa.schema([("c", kind)]))
