"""The types of the schema, one by one: said in text, given to Arrow and taken back, carried as rows and as columns."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from fastbuf.errors import SchemaError
from fastbuf.serializers import ColumnarSerializer, RowSerializer, Schema

pa = pytest.importorskip("pyarrow", reason="columns are pyarrow's")
AT = dt.datetime(2026, 11, 21, 7, 8, 9)
SPAN = dt.timedelta(days=-3, seconds=5)

#: Type -> values of it at its edges, as rows give and get them.
CASES: dict[str, list[Any]] = {
    "bool": [True, False],
    **{f"int{b}": [-(2 ** (b - 1)), -1, 0, 2 ** (b - 1) - 1] for b in (8, 16, 32, 64)},
    **{f"uint{b}": [0, 1, 2**b - 1] for b in (8, 16, 32, 64)},
    "float16": [0.5, -0.0, math.inf, 65504.0],
    "float32": [0.5, -0.0, -math.inf, 2.0**127],
    "float64": [0.1, -0.0, math.inf, 5e-324],
    "decimal128(38,0)": [Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(0)],
    "decimal128(5,-2)": [Decimal("9.9999E+6"), Decimal("0E+2")],
    "decimal256(76,10)": [Decimal(f"{10**75 + 1}E-10"), Decimal(f"-{10**75}E-10")],
    "date32": [dt.date.min, dt.date(1970, 1, 1), dt.date.max],
    "date64": [dt.date.min, dt.date(1970, 1, 1), dt.date.max],
    "time32[s]": [dt.time(), dt.time(23, 59, 59)],
    "time32[ms]": [dt.time(), dt.time(23, 59, 59, 999_000)],
    "time64[us]": [dt.time(), dt.time.max],
    "time64[ns]": [dt.time(), dt.time.max],
    "timestamp[s]": [AT, dt.datetime.min, dt.datetime(9999, 12, 31)],
    "timestamp[ms]": [AT, dt.datetime.min],
    "timestamp[us]": [AT, dt.datetime.min, dt.datetime.max],
    "timestamp[ns]": [AT, dt.datetime(1700, 1, 1)],
    **{f"timestamp[{unit},UTC]": [AT.replace(tzinfo=dt.UTC)] for unit in ("s", "ms", "us", "ns")},
    "timestamp[us,+05:30]": [AT.replace(tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30)))],
    "timestamp[us,Europe/Berlin]": [AT.replace(tzinfo=ZoneInfo("Europe/Berlin"))],
    **{f"duration[{unit}]": [SPAN, dt.timedelta()] for unit in ("s", "ms", "us", "ns")},
    **{kind: ["", "né", "x" * 100, "\U0001f600\0"] for kind in ("string", "large_string", "string_view")},
    **{kind: [b"", b"\0\xff", b"y" * 100] for kind in ("binary", "large_binary", "binary_view")},
    "fixed_size_binary(1)": [b"a", b"\0"],
    "fixed_size_binary(33)": [b"b" * 33],
    "list<int8>": [[], [1, -1]],
    "list<string?>": [[], ["a", None, ""]],
    "large_list<float64>": [[], [0.5] * 40],
    "large_list<list<bool?>?>": [[None, [], [True, None]]],
    "fixed_size_list(3)<int16>": [[1, 2, 3]],
    "fixed_size_list(2)<string?>": [["a", None]],
    "struct<a: int8, b: string?>": [(1, "x"), (2, None)],
    "struct<l: list<struct<d: date32?>>, m: map<int32, string?>>": [([(AT.date(),), (None,)], {1: "x", 2: None})],
    "map<string, int64>": [{}, {"a": 1, "b": -1}],
    "map<int8, list<string>>": [{1: ["x"], 2: []}],
    "dictionary<int8, string>": ["a", "b", "a"],
    "dictionary<uint16, int64>": [5, 5, -5],
    "list<dictionary<int32, string>>": [["a", "b"], ["b"]],
    "null": [None, None],
}


def cases() -> list[Any]:
    return [pytest.param(kind, nullable, id=f"{kind}{'?' * nullable}") for kind in CASES for nullable in (False, True)]


def given(kind: str, nullable: bool) -> tuple[Schema, list[tuple[Any, ...]]]:
    kind = "null?" if kind == "null" else f"{kind}{'?' * nullable}"
    values = [*CASES[kind.rstrip("?")], *([None] if nullable else [])]
    return Schema.of(x=kind, n="int32"), [(value, i) for i, value in enumerate(values)]


@pytest.mark.parametrize(("kind", "nullable"), cases())
def test_of_text_and_of_arrow(kind: str, nullable: bool) -> None:
    schema, _ = given(kind, nullable)
    assert Schema.of(x=schema["x"].type_text, n="int32") == schema
    arrow = schema.to_arrow()
    assert arrow.field("x").nullable == (nullable or kind == "null")
    assert Schema.from_arrow(arrow) == schema
    assert Schema.from_arrow(arrow).fingerprint == schema.fingerprint


@pytest.mark.parametrize(("kind", "nullable"), cases())
def test_rows(kind: str, nullable: bool) -> None:
    schema, records = given(kind, nullable)
    rows = RowSerializer(schema)
    for form in (records, [list(r) for r in records], [dict(zip(("n", "x"), r[::-1], strict=True)) for r in records]):
        found = rows.loads(rows.dumps(form))
        assert found == records
        assert list(map(str, found)) == list(map(str, records))  # -0.0, and True that is no 1
    assert list(rows.iter(rows.dumps(records))) == records
    assert [row.as_tuple() for row in rows.view(rows.dumps(records))] == records
    assert rows.view(rows.dumps(records)).values("x") == [x for x, _ in records]


def arrow_batch(schema: Schema, records: list[tuple[Any, ...]]) -> Any:
    """Records as a batch; structs as pyarrow wants them, zones converted."""
    arrow = schema.to_arrow()

    def as_arrow(value: Any, kind: Any) -> Any:
        if value is None:
            return None
        if pa.types.is_struct(kind):
            return {f.name: as_arrow(v, f.type) for f, v in zip(kind, value, strict=True)}
        if pa.types.is_map(kind):
            return [(k, as_arrow(v, kind.item_type)) for k, v in value.items()]
        if isinstance(value, list):
            return [as_arrow(v, kind.value_type) for v in value]
        return value

    column = [as_arrow(x, arrow.field("x").type) for x, _ in records]
    kind = arrow.field("x").type
    if pa.types.is_dictionary(kind):
        made = pa.array(column, kind.value_type).dictionary_encode().cast(kind)
    elif pa.types.is_float16(kind):
        import numpy as np

        made = pa.array([None if v is None else np.float16(v) for v in column], kind)
    else:
        made = pa.array(column, kind)
    return pa.record_batch([made, pa.array([n for _, n in records], pa.int32())], schema=arrow)


def plain(batch: Any) -> Any:
    """A dictionary's values: which number each has is of no account."""
    kind = batch.schema.field("x").type
    if not pa.types.is_dictionary(kind):
        return batch
    return batch.set_column(0, "x", batch["x"].cast(kind.value_type))


@pytest.mark.parametrize(("kind", "nullable"), [case for case in cases() if "list<dictionary" not in case.id])
def test_columns(kind: str, nullable: bool) -> None:
    schema, records = given(kind, nullable)
    batch = arrow_batch(schema, records)
    for made in (ColumnarSerializer(schema), ColumnarSerializer(batch.schema), ColumnarSerializer()):
        for piece in (batch, batch.slice(1), batch.slice(0, 0)):
            found = made.loads(made.dumps(piece))
            found.validate(full=True)
            assert found.schema == batch.schema, "dictionaries stay dictionaries, views views"
            assert plain(found).equals(plain(piece))
    many = ColumnarSerializer(schema)
    assert (
        pa.Table.from_batches([many.loads(many.dumps([batch, batch.slice(1), batch]))]).num_rows == 3 * len(records) - 1
    )


REFUSED = {
    "extension": lambda: pa.uuid(),
    "run_end_encoded": lambda: pa.run_end_encoded(pa.int32(), pa.string()),
    "union": lambda: pa.sparse_union([pa.field("a", pa.int8())]),
    "list_view": lambda: pa.list_view(pa.int8()),
    "interval": lambda: pa.month_day_nano_interval(),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("wrap", ["alone", "in a list", "in a struct"])
def test_what_cannot_be_carried_is_refused_when_the_schema_is_made(kind: str, wrap: str) -> None:
    made = REFUSED[kind]()
    wrapped = {"alone": made, "in a list": pa.list_(made), "in a struct": pa.struct([("s", made)])}[wrap]
    name = {"alone": "'bad'", "in a list": r"'bad\[\]'", "in a struct": r"'bad\.s'"}[wrap]
    arrow = pa.schema([("good", pa.int8()), ("bad", wrapped)])
    for make in (Schema.from_arrow, ColumnarSerializer, lambda a: Schema.of(good="int8", bad=a.field("bad").type)):
        with pytest.raises(SchemaError, match=name):
            make(arrow)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("list<dictionary<int32, string>>", "'x' has a dictionary within list.*only whole columns"),
        ("struct<d: dictionary<int8, int8>>", "'x' has a dictionary within struct"),
        ("list<" * 70 + "int8" + ">" * 70, "nested deeper than 64"),
    ],
)
def test_what_columns_cannot_carry_is_refused_when_the_serializer_is_made(kind: str, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        ColumnarSerializer(Schema.of(x=kind))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("map<list<int8>, int8>", "'x' .*only maps with plain keys"),
        ("map<struct<a: int8>, int8>", "'x' .*only maps with plain keys"),
        ("fixed_size_binary(0)", "'x' .*of 1 byte or more"),
        ("timestamp[us,Nowhere/Land]", "'x': no time zone 'Nowhere/Land'"),
        ("list<struct<z: timestamp[us,Nowhere/Land]>>", r"'x\[\]\.z': no time zone"),
        ("list<" * 70 + "int8" + ">" * 70, "nested deeper than 64"),
    ],
)
def test_what_rows_cannot_carry_is_refused_when_the_serializer_is_made(kind: str, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        RowSerializer(Schema.of(x=kind))
