"""Cogroups by keys of different types, which are cast as Spark casts what it compares."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import failure
from nights import nightly
from pyspark.sql import functions as F
from pyspark.sql import types as T

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, SchemaError
from fastbuf_spark.api.cogroups import _common

pytestmark = pytest.mark.spark
SEEN = "k string, l string, r string"
DAY = "date_add(date'2020-01-01', cast(id as int))"
#: Of the left, of the right, and the type in which Spark compares them
PAIRS = [
    ("cast(id as int)", "id", "bigint"),
    ("cast(id as tinyint)", "cast(id as smallint)", "smallint"),
    ("cast(id as decimal(10, 2))", "id", "decimal(22,2)"),
    ("id", "cast(id as decimal(38, 0))", "decimal(38,0)"),
    ("cast(id as decimal(5, 1))", "cast(id as decimal(20, 3))", "decimal(20,3)"),
    ("cast(id as float)", "cast(id as double)", "double"),
    ("cast(id as double)", "cast(id as decimal(10, 2))", "double"),
    ("cast(id as float)", "cast(id as int)", "double"),
    (DAY, f"cast({DAY} as timestamp)", "timestamp"),
    (f"cast({DAY} as timestamp_ntz)", DAY, "timestamp_ntz"),
    ("cast(id as string)", "id", "bigint"),
    ("cast(id as string)", "cast(cast(id as string) as binary)", "binary"),
    (f"cast({DAY} as string)", DAY, "date"),
    ("array(id)", "array(cast(id as int))", "array<bigint>"),
    ("named_struct('a', id)", "named_struct('a', cast(id as int))", "struct<a:bigint>"),
    ("id", "id", "bigint"),
]
KINDS = (
    "int|bigint|double|decimal(10,2)|decimal(38,0)|string|binary|date|timestamp|void|boolean|array<int>|array<bigint>"
)
MORE = "tinyint|smallint|float|decimal(38,18)|timestamp_ntz|interval day to second|struct<a:int>|struct<a:bigint>"


def sides(spark: Any) -> tuple[Any, Any]:
    """Keys of both, of one, and null, as ``a0``, ``a1``, ... and ``b0``, ``b1``, ..."""
    made = []
    for at, (name, first, last) in enumerate([("a", 0, 12), ("b", 4, 18)]):
        keys = [f"if(id % 5 = 0, null, {pair[at]}) as {name}{i}" for i, pair in enumerate(PAIRS)]
        made.append(spark.range(first, last, 1, 2).selectExpr("id as n", *keys))
    return made[0], made[1]


def told(key: Any, left: pa.Table, right: pa.Table) -> pa.Table:
    def names(kinds: list[pa.DataType]) -> str:  # files' fields may be null, and so may those of a common type
        return str(list(map(str, kinds))).replace(" not null", "")

    shown = [f"{names(part.schema.types)} {sorted(map(str, part.to_pylist()))}" for part in (left, right)]
    return pa.table({"k": [f"{names([each.type for each in key])} {key}"], "l": [shown[0]], "r": [shown[1]]})


def framed(key: Any, left: Any, right: Any) -> Any:
    return told(
        tuple(map(pa.scalar, map(str, key))), pa.table(left.astype(str)), pa.table(right.astype(str))
    ).to_pandas()


def rows(df: Any) -> list[Any]:
    return sorted(tuple(row) for row in df.collect())


def cast_by_hand(spark: Any) -> Any:
    """Spark's own groups, whose keys are cast to what it compares them in."""
    frames = [
        df.groupBy(*(F.col(f"{name}{i}").cast(kind) for i, (_, _, kind) in enumerate(PAIRS)))
        for name, df in zip("ab", sides(spark), strict=True)
    ]
    return frames[0].cogroup(frames[1])


@nightly(mode="pipelined")
@pytest.mark.parametrize("mode", ["blocking", "pipelined"])
def test_keys_are_cast_as_for_an_equality(spark: Any, mode: str) -> None:
    """All at once: rows of both sides meet if all their keys are equal.  Columns stay as they are."""
    groups = [
        fbs.group_by(df, *(f"{name}{i}" for i in range(len(PAIRS))), num_partitions=2, mode=mode)
        for name, df in zip("ab", sides(spark), strict=True)
    ]
    ours, theirs = groups[0].cogroup(groups[1]), cast_by_hand(spark)
    made = rows(ours.apply_in_arrow(told, SEEN))
    assert made == rows(theirs.applyInArrow(told, SEEN))
    assert (
        sum("[]" not in row[1] and "[]" not in row[2] for row in made) == 7
    )  # 4 to 11, but the multiples of 5, and null
    if mode == "pipelined":
        assert rows(ours.apply_in_pandas(framed, SEEN)) == rows(theirs.applyInPandas(framed, SEEN))


def test_keys_of_pipelines(spark: Any, tmp_path: Path) -> None:
    """The same where workers read files."""
    groups = []
    for name, df in zip("ab", sides(spark), strict=True):
        df.write.parquet(str(tmp_path / name))
        keys = [f"{name}{i}" for i in range(len(PAIRS))]
        groups.append(fbs.read_parquet(spark, tmp_path / name).group_by(*keys, partitions=2))
    made = groups[0].cogroup(groups[1]).apply_in_arrow(told, SEEN)
    assert rows(made.to_df()) == rows(cast_by_hand(spark).applyInArrow(told, SEEN))


def test_keys_where_spark_serves(spark: Any) -> None:
    """Spark's own groups get keys of one type too: it compares a decimal's 1.00 with a bigint's 100."""
    left = spark.range(1, 4).selectExpr("cast(id as decimal(10, 2)) as k", "cast(id as string) collate UTF8_LCASE as c")
    right = spark.range(1, 301).selectExpr("id as k", "cast(id % 3 + 1 as string) collate UTF8_LCASE as c")
    piped = [fbs.group_by(df, "k", "c", num_partitions=2, mode="pipelined") for df in (left, right)]
    with pytest.raises(SchemaError, match=r"(?i)collate"):
        piped[0].cogroup(piped[1]).apply_in_arrow(told, SEEN)
    groups = [fbs.group_by(df, "k", "c", num_partitions=2) for df in (left, right)]
    made = rows(groups[0].cogroup(groups[1]).apply_in_arrow(told, SEEN))
    theirs = [df.groupBy(F.col("k").cast("decimal(22,2)"), "c") for df in (left, right)]
    assert made == rows(theirs[0].cogroup(theirs[1]).applyInArrow(told, SEEN))


def pairs_of(kinds: str) -> list[tuple[str, str]]:
    return list(itertools.combinations(kinds.split("|"), 2))


@pytest.mark.parametrize("ansi", ["true", "false"])
@nightly(kinds=f"{KINDS}|{MORE}")
@pytest.mark.parametrize("kinds", [KINDS, f"{KINDS}|{MORE}"], ids=["some", "all"])
def test_the_common_type_is_that_of_an_equality(spark: Any, kinds: str, ansi: str) -> None:
    """Of any two types that Spark compares; a text and another without ANSI are not cast, as that loses texts."""
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        for left, right in pairs_of(kinds):
            one, other = T.DataType.fromDDL(left), T.DataType.fromDDL(right)
            both = spark.createDataFrame([], T.StructType().add("a", one).add("b", other))
            said = failure(lambda both=both: both.where("a = b").schema)
            if said or (ansi == "false" and {"string", "boolean"} & {left, right} and "void" not in (left, right)):
                with pytest.raises(ConfigError, match=r"which Spark does not compare.*: cast one of them"):
                    _common(spark, 1, one, other)
                continue
            compared = both.where("a = b")._jdf.queryExecution().analyzed().condition().left().dataType()
            assert _common(spark, 1, one, other).simpleString() == compared.simpleString(), (left, right)
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def test_what_spark_does_not_compare_is_refused(spark: Any) -> None:
    left, right = spark.range(3), spark.range(3).selectExpr("id > 1 as k")
    groups = fbs.group_by(left, "id", num_partitions=2), fbs.group_by(right, "k", num_partitions=2)
    words = r"key 1 has the type bigint on the left and boolean on the right, which Spark does not compare \(.*cast one"
    with pytest.raises(ConfigError, match=words):
        groups[0].cogroup(groups[1]).apply_in_arrow(told, SEEN)
