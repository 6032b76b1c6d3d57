"""Spark's schemas as fastbuf's: every type there, Rows through a RowSerializer, refusals by name."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

pytest.importorskip("pyspark", reason="Spark's schemas are pyspark's")
from pyspark.sql import Row
from pyspark.sql import types as T

from fastbuf.errors import SchemaError
from fastbuf.serializers import RowSerializer, Schema
from fastbuf_spark import schema_of, struct_type_of
from fastbuf_spark.schema import twice

INNER = T.StructType([T.StructField("x", T.IntegerType(), False), T.StructField("y", T.StringType())])
EVERY = T.StructType(
    [
        T.StructField("b", T.BooleanType(), False),
        T.StructField("i8", T.ByteType()),
        T.StructField("i16", T.ShortType()),
        T.StructField("i32", T.IntegerType(), False),
        T.StructField("i64", T.LongType()),
        T.StructField("f32", T.FloatType()),
        T.StructField("f64", T.DoubleType(), False),
        T.StructField("s", T.StringType()),
        T.StructField("raw", T.BinaryType()),
        T.StructField("d", T.DecimalType(12, 3)),
        T.StructField("day", T.DateType()),
        T.StructField("at", T.TimestampType(), False),
        T.StructField("local", T.TimestampNTZType()),
        T.StructField("long", T.DayTimeIntervalType()),
        T.StructField("vec", T.ArrayType(T.DoubleType(), False), False),
        T.StructField("table", T.MapType(T.StringType(), T.LongType())),
        T.StructField("inner", INNER),
        T.StructField("nothing", T.NullType()),
    ]
)


def test_every_type() -> None:
    found = schema_of(EVERY, zone="Europe/Berlin")
    assert struct_type_of(found) == EVERY
    assert found == Schema.of(
        b="bool", i8="int8?", i16="int16?", i32="int32", i64="int64?", f32="float32?", f64="float64", s="string?",
        raw="binary?", d="decimal(12,3)?", day="date32?", at="timestamp[us,Europe/Berlin]", local="timestamp[us]?",
        long="duration[us]?", vec="list<float64>", table="map<string, int64?>?", inner="struct<x: int32, y: string?>?",
        nothing="null?",
    )  # fmt: skip


def test_rows_of_a_schema() -> None:
    schema = T.StructType().add("id", "long", nullable=False).add("price", T.DecimalType(10, 2))
    rows = RowSerializer(schema_of(schema.add("at", "timestamp").add("tags", T.ArrayType(T.StringType()))))
    when = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    records = [Row(id=1, price=Decimal("1.50"), at=when, tags=["a", None]), Row(id=2, price=None, at=None, tags=None)]
    assert rows.loads(rows.dumps(records)) == [tuple(record) for record in records]


def test_refused_by_name() -> None:
    bad = T.StructField("bad", T.CalendarIntervalType())
    with pytest.raises(SchemaError, match="field 'bad' has Spark's type interval"):
        schema_of(T.StructType([T.StructField("ok", T.LongType()), bad]))


@pytest.mark.parametrize(
    "kind", ["uint8", "float16", "struct<a: uint64>", "decimal256(50,2)", "list<decimal256(40,0)>"]
)
def test_what_spark_has_not_is_refused_by_name(kind: str) -> None:
    with pytest.raises(SchemaError, match="field 'bad' has the type"):
        struct_type_of(Schema.of(ok="int64", bad=kind))


def test_kinds_that_spark_has_one_of() -> None:
    found = struct_type_of(
        Schema.of(
            a="large_string?", b="fixed_size_binary(3)", c="fixed_size_list(2)<int8>", d="dictionary<int8, string>?"
        )
    )
    assert found == T.StructType(
        [
            T.StructField("a", T.StringType()),
            T.StructField("b", T.BinaryType(), False),
            T.StructField("c", T.ArrayType(T.ByteType(), False), False),
            T.StructField("d", T.StringType()),
        ]
    )


def test_names_that_stand_twice() -> None:
    assert twice(["b", "a", "c", "b", "a", "b"]) == ["a", "b"]
    assert twice(["a", "A", "aa"]) == twice([]) == []
