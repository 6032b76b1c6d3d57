"""Single records are hashed as batches are, and as Spark does: every type, nested ones too."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.errors import SchemaError

pa = pytest.importorskip("pyarrow", reason="the batches that records are compared with")
R = random.Random(4)
DAY = dt.datetime(2001, 2, 3)


def text() -> str:
    return "".join(R.choice("aé€\U0001f600 ") for _ in range(R.randrange(9)))


def real() -> float:
    return R.choice([R.gauss(0, 1e6), 0.0, -0.0, math.nan, math.inf, -math.inf])


def unscaled(digits: int) -> int:
    top = 10 ** R.randrange(1, digits + 1)
    return R.choice([R.randrange(1 - top, top), 0, -1, 127, 128, -128, -129, -(2**63) if digits > 18 else 5, 1 - top])


MAKE: dict[str, Any] = {
    "bool": lambda: R.random() < 0.5,
    "int8": lambda: R.randrange(-128, 128),
    "int16": lambda: R.randrange(-(2**15), 2**15),
    "int32": lambda: R.randrange(-(2**31), 2**31),
    "int64": lambda: R.randrange(-(2**63), 2**63),
    "uint8": lambda: R.randrange(256),
    "uint16": lambda: R.randrange(2**16),
    "uint32": lambda: R.randrange(2**32),
    "float32": real,
    "float64": real,
    "string": text,
    "large_string": text,
    "string_view": text,
    "binary": lambda: R.randbytes(R.randrange(9)),
    "binary_view": lambda: R.randbytes(R.randrange(20)),
    "fixed_size_binary(5)": lambda: R.randbytes(5),
    "date32": lambda: dt.date(1900, 1, 1) + dt.timedelta(R.randrange(90_000)),
    "timestamp[us]": lambda: DAY + dt.timedelta(microseconds=R.randrange(-(10**15), 10**15)),
    "timestamp[us,Europe/Berlin]": lambda: DAY.astimezone() + dt.timedelta(microseconds=R.randrange(-(10**15), 10**15)),
    "duration[us]": lambda: dt.timedelta(microseconds=R.randrange(-(10**15), 10**15)),
    "time64[ns]": lambda: (DAY + dt.timedelta(microseconds=R.randrange(86_400_000_000))).time(),
    "decimal128(18,4)": lambda: Decimal(unscaled(18)).scaleb(-4),
    "decimal128(38,10)": lambda: Decimal(f"{unscaled(38)}e-10"),
    "null": lambda: None,
    "dictionary<int8, string>": lambda: R.choice("abc"),
    "list<int64?>": lambda: [R.choice([None, R.randrange(9)]) for _ in range(R.randrange(4))],
    "large_list<string?>": lambda: [R.choice([None, text()]) for _ in range(R.randrange(4))],
    "fixed_size_list(2)<float32>": lambda: [real(), real()],
    "struct<a: int32?, b: list<struct<c: string?, d: decimal128(38,2)?>>?>": lambda: (
        R.choice([None, 1, 2]),
        R.choice([None, [(text(), None), (None, Decimal(unscaled(30)))]]),
    ),
}


@pytest.mark.parametrize("kind", MAKE)
def test_as_batches_are(kind: str) -> None:
    schema = fb.Schema.of(k=f"{kind}?", n="int64")
    rows = [(None if R.random() < 0.1 else MAKE[kind](), i) for i in range(400)]
    arrow = schema.to_arrow()

    def plain(value: Any, kind: Any) -> Any:  # a struct in Arrow's own way
        if value is None:
            return None
        if pa.types.is_struct(kind):
            return {f.name: plain(v, f.type) for f, v in zip(kind, value, strict=True)}
        if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
            return [plain(v, kind.value_type) for v in value]
        return value

    values = [plain(k, arrow.field("k").type) for k, _ in rows]
    batch = pa.record_batch([pa.array(values, arrow.field("k").type), pa.array(range(400))], schema=arrow)
    expected: list[list[int]] = [[] for _ in range(7)]
    for i, to in enumerate(fb.hash_partition(batch, ["k", "n"], 7).tolist()):
        expected[to].append(i)
    forms = [rows, [list(r) for r in rows], [dict(zip("nk", r[::-1], strict=True)) for r in rows]]
    for form in forms:
        with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
            writer, gates = env.exchange(fb.RowSerializer(schema), consumers=7, selector=fb.hash_by("k", "n"))
            writer.emit_many(form)
            writer.close()
            assert [[n for _, n in gate] for gate in gates] == expected


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("map<string, int64>", "'k' has the type map<string, int64>, .*Spark cannot hash maps"),
        ("list<map<int8, int8>>", r"'k\[\]' has the type map"),
        ("struct<a: float16>", r"'k\.a' has the type float16"),
        ("uint64", "cast it"),
        ("timestamp[ns]", "cast it"),
        ("decimal256(50,2)", "cast it"),
    ],
)
def test_what_spark_does_not_hash_is_refused_by_name(kind: str, named: str) -> None:
    for make in (fb.RowSerializer, fb.ColumnarSerializer):
        with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
            with pytest.raises(SchemaError, match=named):
                env.exchange(make(fb.Schema.of(k=kind)), consumers=2, selector=fb.hash_by("k"))
            assert env.pool.available == 64


def test_objects_have_no_fields_to_hash() -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        writer, _ = env.exchange(fb.PickledSerializer(), consumers=2, selector=fb.hash_by("k"))
        with pytest.raises(SchemaError, match="hash_by needs a serializer with a schema"):
            writer.emit({"k": 1})
        assert writer.records == 0
        writer.abort()
