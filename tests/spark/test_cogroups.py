"""Groups of two DataFrames, beside Spark's own ``cogroup``: in Arrow and in pandas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from conftest import failure
from nights import nightly
from test_groups import same

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, SchemaError

pytestmark = pytest.mark.spark
MODES = ["blocking", "pipelined"]
SEEN = "k string, l string, r string"


def inputs(spark: Any) -> tuple[Any, Any]:
    """Two frames with keys of both, of one, and null; columns of the same types and of others."""
    left = spark.range(0, 60, 1, 2).selectExpr(
        "id as n", "if(id % 7 = 0, null, id % 7) as k", "id * 0.5D as x", "if(id % 4 = 0, null, id) as i"
    )
    right = spark.range(0, 40, 1, 2).selectExpr(
        "concat('user-', id) as s", "if(id % 9 = 0, null, id % 9) as k", "if(id % 5 = 0, null, id * 1.5D) as n"
    )
    return left, right


def told(left: pa.Table, right: pa.Table) -> pa.Table:
    # Spark's rows of a group come in any order
    texts = [f"{list(map(str, part.schema))} {sorted(map(repr, part.to_pylist()))}" for part in (left, right)]
    return pa.table({"k": [""], "l": [texts[0]], "r": [texts[1]]})


def told_key(key: Any, left: pa.Table, right: pa.Table) -> pa.Table:
    return told(left, right).set_column(0, "k", pa.array([repr(key)]))


def framed(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    texts = [
        f"{part.dtypes.to_string()} {part.index} {sorted(map(repr, part.to_dict('records')))}" for part in (left, right)
    ]
    return pd.DataFrame({"k": [""], "l": [texts[0]], "r": [texts[1]]})


def framed_key(key: Any, left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return framed(left, right).assign(k=repr(key))


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_both_sides_are_sparks(spark: Any, mode: str) -> None:
    left, right = inputs(spark)
    a, b = (fbs.group_by(df, "k", num_partitions=2, mode=mode) for df in (left, right))
    theirs, ours = left.groupBy("k").cogroup(right.groupBy("k")), a.cogroup(b)
    for func in (told, told_key):
        assert same(ours.apply_in_arrow(func, SEEN), theirs.applyInArrow(func, SEEN)) == 9
    for func in (framed, framed_key):
        assert same(ours.apply_in_pandas(func, SEEN), theirs.applyInPandas(func, SEEN)) == 9


@nightly(mode="pipelined")
@pytest.mark.parametrize("mode", MODES)
def test_keys_of_every_shape(spark: Any, mode: str) -> None:
    """Expressions, several keys, a side without rows, a key's column in another place."""
    from pyspark.sql import functions as F

    left, right = inputs(spark)
    shapes: list[Any] = [
        (left, [F.col("n") % 3], right, [F.length("s").cast("long") - 6]),
        (left, ["k", "n"], right, ["k", F.length("s").cast("long")]),
        (left, ["k"], right.where("1 = 0"), ["k"]),
        (left.select("k"), ["k"], right, ["k"]),
    ]
    for a, one, b, other in shapes:
        theirs = a.groupBy(*one).cogroup(b.groupBy(*other)).applyInArrow(told_key, SEEN)
        sides = [fbs.group_by(df, *keys, num_partitions=2, mode=mode) for df, keys in ((a, one), (b, other))]
        assert same(sides[0].cogroup(sides[1]).apply_in_arrow(told_key, SEEN), theirs) > 1
    # Keys that are null on one side alone, at which Spark's own fails
    one, other = (fbs.group_by(df, *keys, num_partitions=2, mode=mode) for df, keys in ((left, "kx"), (right, "kn")))
    made = one.cogroup(other).apply_in_arrow(told_key, SEEN).select("k").collect()
    want = left.select("k", "x").union(right.select("k", "n")).distinct().count()
    assert len(made) == len(set(made)) == want


def counted(key: Any, left: pa.Table, right: pa.Table) -> pa.Table:
    ns, ss = left["n"].to_pylist(), right["s"].to_pylist()
    return pa.table({"k": [repr(key)], "l": [str(ns == sorted(ns, reverse=True))], "r": [str(ss == sorted(ss))]})


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A function before the shuffle."""
    for batch in batches:
        yield from (batch, batch)


@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("down", ["-n", "n DESC"])
def test_each_side_in_its_order_and_behind_a_function(spark: Any, mode: str, down: str) -> None:
    from pyspark.sql import functions as F

    left, right = inputs(spark)
    order = -F.col("n") if down == "-n" else F.desc("n")
    a = fbs.group_by(left, "k", num_partitions=2, sort_by=order, mode=mode)
    b = fbs.group_by(
        right, "k", num_partitions=2, sort_by=["s", "n"], before=doubled, before_schema=right.schema, mode=mode
    )
    rows = a.cogroup(b).apply_in_arrow(counted, SEEN).collect()
    assert [(row.l, row.r) for row in rows] == [("True", "True")] * 9


def test_pieces_of_less_memory(spark: Any) -> None:
    """Groups that come from merged runs, and one that does not fit."""
    left, right = inputs(spark)
    many = left.selectExpr("k", "repeat('x', 2000) as w", "explode(sequence(1, 60)) as j")
    conf = fbs.ShuffleConf(memory_bytes="2m")

    def sizes(key: Any, a: pa.Table, b: pa.Table) -> pa.Table:
        return pa.table({"k": [repr(key)], "l": [str(a.num_rows)], "r": [str(b.num_rows)]})

    theirs = many.groupBy("k").cogroup(right.groupBy("k")).applyInArrow(sizes, SEEN)
    a, b = (fbs.group_by(df, "k", num_partitions=2, conf=conf) for df in (many, right))
    assert same(a.cogroup(b).apply_in_arrow(sizes, SEEN), theirs) == 9
    one = fbs.group_by(many.selectExpr("1 as k", "w"), "k", num_partitions=2, mode="blocking", conf=conf)
    said = failure(one.cogroup(one).apply_in_arrow(sizes, SEEN).collect)
    for words in ("ResourceError", "k='1' has", "more than a task may hold (2097152)"):
        assert words in said


def test_what_does_not_fit_together_is_told(spark: Any) -> None:
    left, right = inputs(spark)
    a, b = (fbs.group_by(df, "k", num_partitions=2) for df in (left, right))
    with pytest.raises(ConfigError, match="number of keys is 1 on the left and 2 on the right"):
        a.cogroup(fbs.group_by(right, "k", "n", num_partitions=2))
    with pytest.raises(ConfigError, match="num_partitions is 2 on the left and 3 on the right"):
        a.cogroup(fbs.group_by(right, "k", num_partitions=3))
    with pytest.raises(ConfigError, match="key 1 has the type bigint on the left and boolean on the right"):
        a.cogroup(fbs.group_by(right.selectExpr("n > 1 as s"), "s", num_partitions=2)).apply_in_arrow(told, SEEN)
    with pytest.raises(ConfigError, match="func takes 1 arguments"):
        a.cogroup(b).apply_in_arrow(len, SEEN)
    with pytest.raises(ConfigError, match="cogroup needs the result of group_by, not a DataFrame"):
        a.cogroup(right)


def test_keys_whose_equality_spark_alone_knows(spark: Any) -> None:
    df = spark.range(0, 40, 1, 2).selectExpr("elt(1 + id % 4, 'a', 'A', 'b', 'B') collate UTF8_LCASE as k", "id as n")

    def sizes(a: pa.Table, b: pa.Table) -> pa.Table:
        return pa.table({"k": ["k"], "l": [str(a.num_rows)], "r": [str(b.num_rows)]})

    sides = [fbs.group_by(of, "k", num_partitions=2) for of in (df, df.where("n < 20"))]
    rows = sides[0].cogroup(sides[1]).apply_in_arrow(sizes, SEEN).collect()
    assert [tuple(row) for row in rows] == [("k", "20", "10")] * 2
    piped = [fbs.group_by(df, "k", num_partitions=2, mode="pipelined")] * 2
    with pytest.raises(SchemaError, match="mode='pipelined' cannot run"):
        piped[0].cogroup(piped[1]).apply_in_arrow(sizes, SEEN)
