"""pyarrow's aggregation on both sides of a shuffle, beside Spark's ``groupBy().agg``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conftest import failure
from nights import nightly
from test_groups import KEYS, frame

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, SchemaError

pytestmark = pytest.mark.spark
MODES = ["blocking", "pipelined"]
AGGREGATES = [("n", "sum"), ("n", "count"), ("x", "mean"), ("x", "min"), ("s", "max"), ("b", "any"), ("m", "sum")]
#: the same in Spark's words
WORDS = ["sum(n)", "count(n)", "avg(x)", "min(x)", "max(s)", "bool_or(b)", "sum(m)"]


def valued(spark: Any, key: str, rows: int = 80) -> Any:
    return spark.range(0, rows, 1, 2).selectExpr(
        f"{key} as k",
        "if(id % 7 = 0 or id % 5 = 1, null, id) as n",
        "if(id % 4 = 1, null, id * 0.5D) as x",
        "concat('user-', id % 13) as s",
        "id % 3 = 0 as b",
        "cast(id * 1.25 as decimal(20, 2)) as m",
    )


def rows(df: Any) -> list[str]:
    return sorted(repr([v + 0.0 if isinstance(v, float) else v for v in row]) for row in df.collect())


@pytest.mark.parametrize("kind", [kind for kind in KEYS if kind not in ("struct", "array", "binary", "date", "long")])
def test_results_are_sparks(spark: Any, kind: str) -> None:
    from pyspark.sql import functions as F

    df = valued(spark, KEYS[kind])
    want = rows(df.groupBy("k").agg(*map(F.expr, WORDS)))
    assert len(want) > 1
    for mode in MODES:
        made = fbs.group_by(df, "k", num_partitions=2, mode=mode).agg_arrow(AGGREGATES)
        assert made.columns == ["k", *map("_".join, AGGREGATES)]
        assert made.schema["k"].dataType == df.schema["k"].dataType
        assert rows(made.withColumn("m_sum", F.col("m_sum").cast("decimal(30, 2)"))) == want


@pytest.mark.parametrize("mode", MODES)
def test_rows_are_counted(spark: Any, mode: str) -> None:
    """Those of the null key too, which a count of the key leaves out; alone, among others, and behind a function."""
    from pyspark.sql import functions as F

    df = valued(spark, "if(id % 5 = 0, null, id % 5)")
    groups = fbs.group_by(df, "k", num_partitions=2, mode=mode)
    alone = groups.agg_arrow([([], "count_all")])
    assert alone.columns == ["k", "count_all"]
    assert rows(alone) == rows(df.groupBy("k").count())
    among = groups.agg_arrow([("n", "count"), ((), "count_all"), ("n", "sum"), ("", "count_all")])
    assert rows(among) == rows(df.groupBy("k").agg(F.count("n"), F.count("*"), F.sum("n"), F.count("*")))
    behind = fbs.pipeline(df).map_in_arrow(lambda batches: batches, df.schema).group_by("k", partitions=2)
    assert rows(behind.agg_arrow([([], "count_all"), ("s", "max")]).to_df()) == rows(
        df.groupBy("k").agg(F.count("*"), F.max("s"))
    )
    with pytest.raises(ConfigError, match="count_all has no column, the others have one"):
        groups.agg_arrow([("n", "count_all")])


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_inputs_and_keys_of_any_shape(spark: Any, mode: str) -> None:
    """No rows, expressions, several keys, more keys than a task keeps, and less memory than they need."""
    from pyspark.sql import functions as F

    for df, keys in (
        (valued(spark, "id", rows=0), ["k"]),
        (valued(spark, "id % 7"), [F.col("n") % 3, "k"]),
        (valued(spark, "id % 40000", rows=50_000), ["k"]),
    ):
        want = df.groupBy(*keys).agg(*map(F.expr, WORDS[:5]))
        conf = fbs.ShuffleConf(memory_bytes="2m", batch_bytes="1m")
        made = fbs.group_by(df, *keys, num_partitions=2, mode=mode, conf=conf).agg_arrow(AGGREGATES[:5])
        assert made.columns[: len(keys)] == want.columns[: len(keys)]
        assert rows(made) == rows(want)


def kept(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A function before the shuffle."""
    for batch in batches:
        yield pa.record_batch({"m": batch["n"], "k": batch["k"]})


def test_behind_a_function_before_the_shuffle(spark: Any) -> None:
    from pyspark.sql import functions as F

    df = frame(spark)
    grouped = fbs.group_by(df, "k", num_partitions=2, before=kept, before_schema="m long, k long")
    assert rows(grouped.agg_arrow([("m", "sum")])) == rows(df.groupBy("k").agg(F.sum("n")))
    with pytest.raises(ConfigError, match="no column 'n' in the output of before"):
        grouped.agg_arrow([("n", "sum")])


def test_sums_of_decimals_end_at_38_digits(spark: Any) -> None:
    """Arrow's own wrap around."""
    nines = "cast('9' || repeat('0', 37) as decimal(38, 0))"
    df = spark.range(0, 8, 1, 2).selectExpr("id % 2 as k", f"if(id % 4 < 2, 1, -1) * {nines} as m")
    pairs = [("m", "sum")]
    assert rows(fbs.group_by(df, "k", num_partitions=2).agg_arrow(pairs)) == rows(df.groupBy("k").agg({"m": "sum"}))
    positive = df.selectExpr("k", "abs(m) as m")
    assert "Overflow in sum of decimals" in failure(positive.groupBy("k").agg({"m": "sum"}).collect)
    said = failure(fbs.group_by(positive, "k", num_partitions=2).agg_arrow(pairs).collect)
    assert "a sum of decimals has more than 38 digits" in said


def test_what_a_function_before_gives_is_checked(spark: Any) -> None:
    """Types are cast if no value is lost; other columns than its schema's are refused, as by the other verbs."""
    from pyspark.sql import functions as F

    def narrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"m": batch["n"].cast(pa.int8()), "k": batch["k"].cast(pa.int32())})

    def half(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"m": pc.add(batch["n"].cast(pa.float64()), 0.5), "k": batch["k"]})

    def more(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"m": batch["n"], "k": batch["k"], "z": batch["n"]})

    df = frame(spark)
    made = [
        fbs.group_by(df, "k", num_partitions=2, before=before, before_schema="m long, k long").agg_arrow([("m", "sum")])
        for before in (narrow, half, more)
    ]
    assert rows(made[0]) == rows(df.groupBy("k").agg(F.sum("n")))
    assert "gave column m as double; its schema has int64" in failure(made[1].collect)
    assert ") gave columns ['m', 'k', 'z']; its schema has ['m', 'k']" in failure(made[2].collect)


def test_a_product_is_a_double_as_sparks(spark: Any) -> None:
    """Products of decimals and of whole numbers wrapped around, and those of decimals were rounded at each step."""
    from pyspark.sql import functions as F

    df = spark.range(60).selectExpr("id % 3 as k", "cast(1.5 as decimal(10,1)) as d", "id * 1000 + 1 as n")
    made = fbs.group_by(df, "k", num_partitions=2).agg_arrow([("d", "product"), ("n", "product")])
    own = df.groupBy("k").agg(F.product("d"), F.product("n"))
    for mine, theirs in zip(sorted(made.collect()), sorted(own.collect()), strict=True):
        assert tuple(mine) == pytest.approx(tuple(theirs), rel=1e-12)
    assert [field.dataType.simpleString() for field in made.schema] == ["bigint", "double", "double"]


def test_what_cannot_be_aggregated_is_told(spark: Any) -> None:
    df = frame(spark, KEYS["struct"])
    grouped = fbs.group_by(df, "n", num_partitions=2)
    with pytest.raises(ConfigError, match=r"aggregate \('n', 'median'\): give \(column, function\), of sum"):
        grouped.agg_arrow([("n", "median")])
    with pytest.raises(ConfigError, match=r"no such column: .*`nope`.*the input has"):
        grouped.agg_arrow([("nope", "sum")])
    with pytest.raises(ConfigError, match="no aggregates"):
        grouped.agg_arrow([])
    with pytest.raises(SchemaError, match="pyarrow does not aggregate"):
        grouped.agg_arrow([("k", "sum")])
    with pytest.raises(SchemaError, match="pyarrow does not aggregate"):
        fbs.group_by(df, "k", num_partitions=2).agg_arrow([("n", "sum")])
    named = df.selectExpr("n", "n > 3 as flag", "cast(n as string) as s")
    for column, function, kind in (("flag", "sum", "boolean"), ("flag", "mean", "boolean"), ("s", "mean", "string")):
        with pytest.raises(SchemaError, match=f"no {function} of column '{column}', which is a {kind}: cast it"):
            fbs.group_by(named, "n", num_partitions=2).agg_arrow([(column, function)])
    lower = frame(spark, "cast(id as string) collate UTF8_LCASE")
    with pytest.raises(SchemaError, match=r"agg_arrow cannot run: .*groupBy\(\)\.agg\(\)"):
        fbs.group_by(lower, "k", num_partitions=2).agg_arrow([("n", "sum")])
