"""Hypothesis strategies: schemas of all that rows carry, and records of them."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

from hypothesis import strategies as st

from fastbuf.serializers import DataType, Field, Schema

EXACT = decimal.Context(prec=200)
US = dt.timedelta(microseconds=1)
EPOCH = dt.datetime(1970, 1, 1)
FIRST, LAST = (dt.datetime.min - EPOCH) // US, (dt.datetime.max - EPOCH) // US
PER = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
NS_BOUND = (2**63 - 1) // 1000

HUGE = st.integers(1000, 20_000)

PLAIN = [
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("bool", "null", "float16", "float32", "float64", "string", "large_string", "string_view", "date32", "date64"),
    *("binary", "large_binary", "binary_view"),
]


def plain_types() -> st.SearchStrategy[DataType]:
    """Types without children."""
    return st.one_of(
        st.sampled_from(PLAIN).map(DataType),
        st.builds(
            lambda kind, precision, share: DataType(kind, precision=precision, scale=int(precision * share)),
            st.just("decimal128"),
            st.integers(1, 38),
            st.floats(-1, 1),
        ),
        st.builds(lambda p, s: DataType("decimal256", precision=p, scale=s), st.integers(1, 76), st.integers(-20, 76)),
        st.sampled_from(["s", "ms"]).map(lambda unit: DataType("time32", unit=unit)),
        st.sampled_from(["us", "ns"]).map(lambda unit: DataType("time64", unit=unit)),
        st.sampled_from(list(PER)).map(lambda unit: DataType("duration", unit=unit)),
        st.builds(
            lambda unit, zone: DataType("timestamp", unit=unit, zone=zone),
            st.sampled_from(list(PER)),
            st.sampled_from(["", "UTC", "+05:30"]),
        ),
        st.integers(1, 9).map(lambda width: DataType("fixed_size_binary", width=width)),
        st.builds(
            lambda kind, null: DataType("dictionary", children=(Field("index", "int8"), Field("value", kind, null))),
            st.sampled_from(["string", "int32", "float64", "date32"]),
            st.booleans(),
        ),
    )


def _nested(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    item = st.builds(lambda kind, null: Field("item", kind, null), inner, st.booleans())
    value = st.builds(lambda kind, null: Field("value", kind, null), inner, st.booleans())
    key = st.sampled_from(["int32", "string", "date32"]).map(lambda kind: Field("key", DataType(kind)))
    return st.one_of(
        item.map(lambda field: DataType("list", children=(field,))),
        item.map(lambda field: DataType("large_list", children=(field,))),
        st.builds(lambda f, n: DataType("fixed_size_list", width=n, children=(f,)), item, st.integers(0, 3)),
        fields(inner, 3).map(lambda found: DataType("struct", children=tuple(found))),
        st.builds(lambda k, v: DataType("map", children=(k, v)), key, value),
    )


def fields(types: st.SearchStrategy[DataType], most: int) -> st.SearchStrategy[list[Field]]:
    """Fields, named by their position: tests of schemas have odd names."""
    return st.lists(st.tuples(types, st.booleans()), max_size=most).map(
        lambda found: [Field(f"f{i}", kind, null) for i, (kind, null) in enumerate(found)]
    )


def schemas() -> st.SearchStrategy[Schema]:
    """Schemas of up to 6 fields, some of them nested."""
    return fields(st.one_of(plain_types(), st.recursive(plain_types(), _nested, max_leaves=3)), 6).map(Schema)


def _moments(unit: str, low: int, high: int) -> st.SearchStrategy[int]:
    if unit == "ns":
        low, high = max(low, -NS_BOUND), min(high, NS_BOUND)
    per = PER[unit]
    return st.integers(-(-low // per), high // per).map(lambda n: n * per)


def values(kind: DataType) -> st.SearchStrategy[Any]:
    """Values that a type holds exactly."""
    name = kind.kind
    if name == "null":
        return st.none()
    if name == "bool":
        return st.booleans()
    if "int" in name:
        bits = int(name.split("int")[1])
        return st.integers(0, 2**bits - 1) if name[0] == "u" else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if name.startswith("float"):
        return st.floats(width=int(name[5:]))
    if "string" in name:
        return st.one_of(st.text(max_size=20), HUGE.map(lambda n: "x" * n), HUGE.map(lambda n: "x" * n + "\U0001f600"))
    if name == "fixed_size_binary":
        return st.binary(min_size=kind.width, max_size=kind.width)
    if "binary" in name:
        return st.one_of(st.binary(max_size=40), HUGE.map(bytes))
    if name.startswith("decimal"):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda n: decimal.Decimal(n).scaleb(-kind.scale, EXACT))
    if name == "dictionary":
        return cells(kind.children[1])
    if name.startswith("date"):
        return st.dates()
    if name.startswith(("time3", "time6")):
        return _moments(kind.unit, 0, 86_400_000_000 - 1).map(lambda us: (EPOCH + us * US).time())
    if name == "duration":
        return _moments(kind.unit, -(2**62), 2**62).map(lambda us: us * US)
    if name == "timestamp":
        day = 86_400_000_000 if kind.zone else 0  # so that no zone leaves the years 1 to 9999
        zone = {"": None, "UTC": dt.UTC, "+05:30": dt.timezone(dt.timedelta(hours=5, minutes=30))}[kind.zone]
        moments = _moments(kind.unit, FIRST + day, LAST - day)
        if zone is None:
            return moments.map(lambda us: EPOCH + us * US)
        return moments.map(lambda us: (EPOCH + us * US).replace(tzinfo=dt.UTC).astimezone(zone))
    if name in ("list", "large_list"):
        return st.lists(cells(kind.children[0]), max_size=9)
    if name == "fixed_size_list":
        return st.lists(cells(kind.children[0]), min_size=kind.width, max_size=kind.width)
    if name == "map":
        return st.dictionaries(cells(kind.children[0]), cells(kind.children[1]), max_size=4)
    assert name == "struct"
    return st.tuples(*(cells(child) for child in kind.children))


def cells(field: Field) -> st.SearchStrategy[Any]:
    """Values of a field, None among them if it is nullable."""
    found = values(field.type)
    return st.one_of(st.none(), found) if field.nullable else found


@st.composite
def schemas_and_records(draw: st.DrawFn, most: int = 3) -> tuple[Schema, list[tuple[Any, ...]]]:
    """A schema and some records of it.  A field of type null is nullable, as nothing else fits it."""
    schema = draw(schemas())
    return schema, draw(st.lists(st.tuples(*(cells(field) for field in schema)), max_size=most))


def same(left: Any, right: Any) -> bool:
    """Equality by type and value; NaN equals NaN, -0.0 does not equal 0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, dt.datetime):
        return left == right and left.utcoffset() == right.utcoffset()
    return bool(left == right)
