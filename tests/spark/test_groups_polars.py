"""Groups as polars frames, beside the same functions in Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from conftest import failure
from pyspark.sql import functions as F
from test_groups import frame, same
from test_groups_pandas import everything

import fastbuf_spark as fbs
from fastbuf.errors import SchemaError

pl = pytest.importorskip("polars", reason="polars is not installed: it comes with the extra 'bench'")
pytestmark = pytest.mark.spark
MODES = ["blocking", "pipelined"]


def whole(df: pl.DataFrame) -> pl.DataFrame:
    return df


def lazy(df: pl.DataFrame) -> Any:
    return df.lazy().select(pl.all())


def streamed(frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    yield from frames


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("func", [whole, lazy, streamed], ids=lambda func: func.__name__)
def test_values_of_every_type_come_back(spark: Any, func: Any, mode: str) -> None:
    df = everything(spark)
    made = fbs.group_by(df, "k", num_partitions=2, mode=mode).apply_in_polars(func, df.schema)
    assert same(made, df) == 80


def test_keys_and_sums(spark: Any) -> None:
    def summed(key: Any, df: pl.DataFrame) -> pl.DataFrame:
        return df.select(pl.col("n").sum(), pl.lit(key[0], pl.Int64).alias("k"))

    df = frame(spark)
    made = fbs.group_by(df, "k", num_partitions=2).apply_in_polars(summed, "k long, n long")
    assert same(made, df.groupBy("k").agg(F.sum("n").alias("n"))) == 7


def test_what_a_function_does_wrong_is_told(spark: Any) -> None:
    def other_types(df: pl.DataFrame) -> pl.DataFrame:
        return df.with_columns(pl.col("n").cast(pl.String))

    def no_frame(df: pl.DataFrame) -> Any:
        return 3

    grouped = fbs.group_by(frame(spark), "k", num_partitions=2, mode="blocking")
    said = failure(grouped.apply_in_polars(other_types, "k long, n long").collect)
    assert "column 'n' (expected int64, actual large_string)" in said
    assert "gave a int: it must give a polars.DataFrame" in failure(grouped.apply_in_polars(no_frame, "k long").collect)
    lower = fbs.group_by(frame(spark, "cast(id as string) collate UTF8_LCASE"), "k", num_partitions=2)
    with pytest.raises(SchemaError, match="apply_in_polars cannot run"):
        lower.apply_in_polars(whole, "k string")


def test_types_that_polars_alone_counts_in(spark: Any) -> None:
    """``pl.len()`` is 32 bits without a sign, and a Categorical a text: the schema has the types of Spark."""
    df = spark.range(0, 100, 1, 2).selectExpr("id % 3 as k", "id as n", "concat('t', id % 7) as t")

    def told(frame: pl.DataFrame) -> pl.DataFrame:
        kinds = pl.Enum([f"t{i}" for i in range(7)])
        return frame.sort("n").select(
            pl.col("k").first(),
            pl.len().alias("rows"),
            pl.col("t").n_unique().alias("texts"),
            pl.col("n").cast(pl.Float32).sum().alias("total"),
            pl.col("t").cast(pl.Categorical).first().alias("first"),
            pl.col("t").cast(kinds).last().alias("last"),
        )

    schema = "k long, rows long, texts int, total double, first string, last string"
    made = fbs.group_by(df, "k", num_partitions=2).apply_in_polars(told, schema)
    want = df.groupBy("k").agg(
        F.count("*").alias("rows"),
        F.countDistinct("t").cast("int").alias("texts"),
        F.sum("n").cast("double").alias("total"),
        F.min_by("t", "n").alias("first"),
        F.max_by("t", "n").alias("last"),
    )
    assert sorted(map(tuple, made.collect())) == sorted(map(tuple, want.collect()))
    many = fbs.group_by(df, "k", num_partitions=2)
    said = failure(many.apply_in_polars(lambda frame: frame.select("k", n=pl.lit(300)), "k long, n tinyint").collect)
    assert "column 'n' (expected int8, actual int32)" in said
