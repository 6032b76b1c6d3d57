"""Which expressions of pyarrow are refused before a job, and in what words."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from fastbuf.errors import ConfigError, SchemaError
from fastbuf_spark.expressions import check_filter, type_given, used

F = pc.field
SCHEMA = pa.schema(
    [
        *(("l", pa.int64()), ("i", pa.int32()), ("u", pa.uint32()), ("tiny", pa.int8()), ("f", pa.float32())),
        *(("d", pa.float64()), ("t", pa.string()), ("yes", pa.bool_())),
        *(("st", pa.struct([("x", pa.int64())])), ("deep", pa.struct([("st", pa.struct([("x", pa.int32())]))]))),
        ("list", pa.list_(pa.int64())),
    ]
)
BIG = (1 << 25) + 3  #: what no float of 32 bits is


def fails_at_great_numbers(expression: Any) -> bool:
    """Whether it fails for whole numbers that no float of 32 bits is, and not for small ones: Arrow's own answer."""

    def rows(number: int) -> pa.Table:
        numbers = {"l": number, "i": number, "u": number, "st": {"x": number}, "deep": {"st": {"x": number}}}
        row = numbers | {"tiny": 1, "f": 1.0, "d": 1.0, "t": "a", "yes": True, "list": [number]}
        return pa.Table.from_pylist([row], SCHEMA)

    ds.dataset(rows(5)).to_table(columns={"v": expression})
    try:
        ds.dataset(rows(BIG)).to_table(columns={"v": expression})
    except pa.ArrowInvalid as error:
        return "16777216" in str(error)
    return False


@pytest.mark.parametrize(
    "expression",
    [
        F("l") * 2.5,
        (F("l") - 1) * 2.5,
        (F("i") - 1000) * 2.5,
        (F("l") + F("l")) * 2.5,
        (F("l") + F("tiny")) * 2.5,
        pc.negate(F("l")) * 2.5,
        F("u") * 2.5,
        F("st", "x") * 2.5,
        F("deep", "st", "x") * 2.5,
        pc.list_element(F("list"), 0) * 2.5,
        F("l") > 2.5,
        F("l") * F("f"),
        F("i") > F("f"),
        pc.if_else(F("d") > 0, F("l"), 2.5),
        pc.if_else(F("yes"), F("l"), 0) * 2.5,
        pc.if_else(pc.invert(F("yes")), 1, F("l")) * 2.5,
        pc.coalesce(F("l"), 2.5),
        (F("l") * 2.5).cast("float"),
        F("i").cast("int64") * 2.5,
        (pc.utf8_length(F("t")) + F("l")) * 2.5,
    ],
    ids=str,
)
def test_floats_of_32_bits(expression: Any) -> None:
    """Arrow adds a cast to them, which fails for great numbers: said before a job, whatever is beside the number."""
    assert fails_at_great_numbers(expression)
    with pytest.raises(ConfigError, match=r"beside a float of 32 bits .*cast one side to double"):
        type_given("select v", expression, SCHEMA, SchemaError)


def test_numbers_that_are_divided_before() -> None:
    """A greater number fails, which 64 bits have."""
    with pytest.raises(ConfigError, match="16777216"):
        type_given("select v", F("l") / 1000 * 2.5, SCHEMA, SchemaError)


@pytest.mark.parametrize(
    "expression",
    [
        F("l") * F("d"),
        F("l") > 2,
        F("l") > 2.1,  # no float of 32 bits is 2.1
        F("l") * pc.scalar(2.5).cast("double"),
        F("l") * F("f").cast("double"),
        F("l").cast("double") * F("f"),
        F("tiny") * 2.5,
        F("tiny") > F("f"),
        F("f") * 2.5,
        F("l").isin([1.5]),
        pc.utf8_length(F("t")) * 2.5,
        pc.bit_wise_and(F("l"), 7) * 2.5,
        F("l") / 0,
        F("l") * F("l") * F("l"),
        F("l").cast("int8"),
        F("l").cast("float"),  # the user's own, which says so when it fails
        F("l").cast("float") * 2.5,
        F("st", "x").cast("float") > F("f"),
        F("l").cast(pa.float32(), safe=False) * F("f"),
    ],
    ids=str,
)
def test_what_is_taken(expression: Any) -> None:
    type_given("select v", expression, SCHEMA, SchemaError)


@pytest.mark.parametrize("text", ["-", "-" * 20])
def test_a_text_that_is_repeated_is_not_made(text: str) -> None:
    """By a great number it has gigabytes."""
    pool = pa.default_memory_pool()
    most = max(pool.max_memory(), pool.bytes_allocated() + (64 << 20))
    repeated = pc.binary_repeat(pc.scalar(text), F("i"))
    for expression in (repeated, pc.if_else(pc.binary_length(repeated) * 2.5 > F("f"), F("i") * 2.5, 0)):
        type_given("select v", expression, SCHEMA, SchemaError)
    assert pool.max_memory() <= most


def test_filters() -> None:
    check_filter(F("l") > 2, SCHEMA)
    check_filter(pc.scalar(True), SCHEMA)
    for wrong, words in (
        (F("l") + 1, "it gives int64: give one that is true or false"),
        (F("z") > 1, r"is not valid here: No match for FieldRef.Name\(z\).*; the columns are \['l', 'i'"),
        (F("t") > 1, "is not valid here"),
        (F("l") > 2.5, r"16777216.*pc\.scalar\(2\.5\)\.cast\('double'\)"),
        (F("i") > F("f"), "filter .*16777216"),
        ("l > 2", "give a pyarrow.compute expression"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_filter(wrong, SCHEMA)


def test_the_type_that_is_given() -> None:
    assert type_given("x", F("l") + 1, SCHEMA, SchemaError) == pa.int64()
    assert type_given("x", F("st", "x"), SCHEMA, SchemaError) == pa.int64()
    decimals = pa.schema([("n", pa.decimal128(38, 0))])
    with pytest.raises(SchemaError, match=r"^select v is not valid here: a decimal meets a whole number"):
        type_given("select v", F("n") * 10, decimals, SchemaError)


def test_columns_that_are_used() -> None:
    assert used((F("l") > 1) & F("yes"), SCHEMA) == ["l", "yes"]
    assert used(pc.scalar(True), SCHEMA) == []
