"""Groups, beside Spark's own ``groupBy().applyInArrow``: the same rows, types, places and order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conftest import failure, frames_in_a_row
from nights import nightly

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, SchemaError

pytestmark = pytest.mark.spark
MODES = ["blocking", "pipelined"]
COUNTED = "k string, n long, s long"
REAL = "elt(1 + id % 6, '0.0', '-0.0', 'NaN', 'Infinity', '-1.5', null)"
KEYS = {
    "int": "cast(id % 7 - 3 as int)",
    "long": "(id % 9) * 1234567890123",
    "string": "if(id % 7 = 0, null, elt(1 + id % 4, 'a', 'B', 'aa', 'É'))",
    "double": f"cast({REAL} as double)",
    "decimal": "if(id % 5 = 0, null, cast(id % 4 - 1.5 as decimal(20, 3)))",
    "date": "date_add(date'1969-12-30', cast(id % 5 as int))",
    "timestamp": "timestamp_micros((id % 5 - 2) * 86400123456)",
    "boolean": "if(id % 5 = 0, null, id % 2 = 0)",
    "binary": "cast(elt(1 + id % 3, 'x', '', 'xy') as binary)",
    "struct": "if(id % 4 = 0, null, named_struct('x', cast(id % 3 as int), 'y', if(id % 2 = 0, null, 'z')))",
    "array": "if(id % 4 = 0, null, array(cast(id % 3 as int), null))",
}


def text(scalar: Any) -> str:
    """A key as text; of -0.0 and 0.0, and of many NaN, any may be the first."""
    value = scalar.as_py()
    return repr(value + 0.0 if isinstance(value, float) else value)


def counted(key: Any, table: pa.Table) -> pa.Table:
    keys = ",".join(map(text, key))
    return pa.table({"k": [keys], "n": [table.num_rows], "s": pa.array([pc.sum(table["n"]).as_py()], pa.int64())})


def listed(df: Any) -> list[Any]:
    """Rows with their partitions, in the order in which they come."""
    from pyspark.sql import functions as F

    return [repr(tuple(row)) for row in df.select(F.spark_partition_id(), "*").collect()]


def same(made: Any, want: Any) -> int:
    """Both have the same schema and rows; how many."""
    assert made.schema == want.schema
    rows = sorted(repr(tuple(row)) for row in want.collect())
    assert sorted(repr(tuple(row)) for row in made.collect()) == rows
    return len(rows)


def frame(spark: Any, expression: str = "id % 7", rows: int = 80) -> Any:
    return spark.range(0, rows, 1, 2).selectExpr("id as n", f"{expression} as k")


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_of_every_type(spark: Any, kind: str) -> None:
    """The same groups, in the same partitions, in the same order."""
    df = frame(spark, KEYS[kind])
    want = listed(df.repartition(2, "k").groupBy("k").applyInArrow(counted, COUNTED))
    assert len(want) > 1
    for mode in MODES:
        assert listed(fbs.group_by(df, "k", num_partitions=2, mode=mode).apply_in_arrow(counted, COUNTED)) == want


def table_form(table: pa.Table) -> pa.Table:
    table = table.sort_by("n")  # Spark's rows of a group come in any order
    return table.slice(0, 2).append_column("rows", pa.array([table.num_rows] * min(2, table.num_rows), pa.int64()))


def hinted(table: pa.Table) -> pa.Table:
    return table_form(table)


def stream_form(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"n": batch["n"], "k": batch["k"], "rows": pa.array([0] * batch.num_rows, pa.int64())})


def keyed_stream(key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = sum(batch.num_rows for batch in batches)
    (k,) = key
    yield pa.record_batch({"n": [rows], "k": pa.array([k.as_py()], k.type), "rows": [rows]})


def unread_stream(key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reads nothing."""
    (k,) = key
    yield pa.record_batch({"n": [1], "k": pa.array([k.as_py()], k.type), "rows": [1]})


def no_rows(table: pa.Table) -> pa.Table:
    """Of every other group an empty table; of some one without columns."""
    k = table["k"][0].as_py()
    if k % 3 == 0:
        return pa.table({})
    return table_form(table) if k % 2 else table_form(table).slice(0, 0)


FORMS = [table_form, hinted, stream_form, keyed_stream, unread_stream, no_rows]


@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("func", FORMS, ids=lambda func: func.__name__)
def test_every_form_of_function(spark: Any, func: Callable[..., Any], mode: str) -> None:
    schema = "n long, k long, rows long"
    df = frame(spark)
    made = fbs.group_by(df, "k", num_partitions=2, mode=mode).apply_in_arrow(func, schema)
    assert same(made, df.groupBy("k").applyInArrow(func, schema)) > 2


@nightly(mode="pipelined")
def fields(table: pa.Table) -> pa.Table:
    return pa.table({"k": [", ".join(map(str, table.schema))], "n": [0], "s": [0]})


def fields_of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"k": [", ".join(map(str, batch.schema))], "n": [0], "s": [0]})


@pytest.mark.parametrize("func", [fields, fields_of_batches], ids=["tables", "batches"])
def test_functions_see_the_schema_that_spark_shows(spark: Any, func: Callable[..., Any]) -> None:
    """Columns that cannot be null in Spark's plan allow null in Arrow, so that tables go together with a user's own."""
    df = spark.range(10, numPartitions=2).selectExpr("id % 2 as k", "id as n", "named_struct('x', id) as s")
    assert not df.schema["n"].nullable
    want = df.groupBy("k").applyInArrow(func, COUNTED).distinct().collect()
    assert fbs.group_by(df, "k", num_partitions=2).apply_in_arrow(func, COUNTED).distinct().collect() == want


@pytest.mark.parametrize("mode", MODES)
def test_inputs_of_any_shape(spark: Any, mode: str) -> None:
    """None, one group, and groups that are longer than Spark's batches and lie across them."""
    for df in (frame(spark, rows=0), frame(spark, "5"), frame(spark, "id % 3", rows=25_000)):
        made = fbs.group_by(df, "k", num_partitions=2, mode=mode).apply_in_arrow(counted, COUNTED)
        assert same(made, df.groupBy("k").applyInArrow(counted, COUNTED)) in (0, 1, 3)


def seen(table: pa.Table) -> pa.Table:
    """What the function sees of its input."""
    return pa.table({"names": [f"{table.schema.names} {table.num_columns}"], "n": [table.num_rows]})


def seen_key(key: Any, table: pa.Table) -> pa.Table:
    return pa.table({"names": [f"{table.schema.names} {key}"], "n": [table.num_rows]})


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_keys_of_every_shape(spark: Any, mode: str) -> None:
    """Expressions, several, nested fields, another case, names that stand twice: the function sees its own columns."""
    from pyspark.sql import functions as F

    schema = "names string, n long"
    df = frame(spark).withColumn("s", F.struct(F.col("n") % 3))
    shapes: list[Any] = [
        (df, (F.col("n") % 4,)),
        (df, ("k", (F.col("n") % 2).alias("odd"))),
        (df, ("K",)),
        (df, ("s.col1",)),
        (df, ("k", "k")),
    ]
    for of, keys in shapes:
        grouped = fbs.group_by(of, *keys, num_partitions=2, mode=mode)
        for func in (seen, seen_key):
            assert same(grouped.apply_in_arrow(func, schema), of.groupBy(*keys).applyInArrow(func, schema)) > 1
    # Names that Spark's own applyInArrow cannot take
    odd = fbs.group_by(df.toDF("a.b", "k", "k2").toDF("a.b", "k", "k"), F.col("`a.b`") % 2, num_partitions=2, mode=mode)
    assert sorted(map(tuple, odd.apply_in_arrow(seen, schema).collect())) == [("['a.b', 'k', 'k'] 3", 40)] * 2


def halved(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A function before the shuffle."""
    for batch in batches:
        yield pa.record_batch({"h": pc.divide(batch["n"], 2), "n": batch["n"]})


@pytest.mark.parametrize("mode", MODES)
def test_a_function_before_the_shuffle(spark: Any, mode: str) -> None:
    df = frame(spark)
    made = fbs.group_by(df, "h", num_partitions=2, before=halved, before_schema="h long, n long", mode=mode)
    want = df.mapInArrow(halved, "h long, n long").groupBy("h").applyInArrow(counted, COUNTED)
    assert same(made.apply_in_arrow(counted, COUNTED), want) == 40


def in_turn(key: Any, table: pa.Table) -> pa.Table:
    return pa.table({"k": [key[0].as_py()], "ns": [[n.as_py() for n in table["n"]]]})


@pytest.mark.parametrize("mode", ["auto", *MODES])
def test_rows_of_a_group_in_an_order(spark: Any, mode: str) -> None:
    """As Spark sorts them: null first, NaN last; descending, the other way; by columns and by expressions."""
    from pyspark.sql import functions as F

    df = frame(spark).withColumn("x", F.expr(f"cast({REAL.replace('id', 'n')} as double)"))
    for order in (["x", "n"], [F.col("x"), -F.col("n")], [F.col("x").desc(), F.desc("n")], [(-F.col("x")).desc(), "n"]):
        moved = df.repartition(2, "k").sortWithinPartitions("k", *order)
        want = [tuple(r) for r in moved.groupBy("k").agg(F.collect_list("n")).collect()]
        grouped = fbs.group_by(df, "k", num_partitions=2, sort_by=order, mode=mode)
        made = grouped.apply_in_arrow(in_turn, "k long, ns array<long>").collect()
        assert [tuple(row) for row in made] == want
        assert len(want) == 7


def test_rows_in_descending_order_behind_files(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fastbuf's own shuffle serves: nothing has to be computed for it.  Where something has, the plan says why not."""
    from pyspark.sql import functions as F

    frame(spark).write.parquet(str(tmp_path / "in"))
    source, schema = fbs.read_parquet(spark, tmp_path / "in"), "k long, ns array<long>"
    computed = source.group_by("k", partitions=2, sort_by=-F.col("n")).apply_in_arrow(in_turn, schema)
    computed.explain()
    assert "Spark's own (key Column<'negative(n)'> is computed from what" in capsys.readouterr().out
    made = source.group_by("k", partitions=2, sort_by=F.desc("n")).apply_in_arrow(in_turn, schema)
    made.explain()
    assert "Spark's own" not in capsys.readouterr().out
    rows = made.collect()
    assert len(rows) == 7
    assert all(row.ns == sorted(row.ns, reverse=True) for row in rows)


def test_nulls_at_the_other_end_are_refused(spark: Any) -> None:
    from pyspark.sql import functions as F

    for order in (F.col("n").asc_nulls_last(), F.col("n").desc_nulls_first()):
        groups = fbs.group_by(frame(spark), "k", num_partitions=2, sort_by=["k", order])
        with pytest.raises(ConfigError, match=r"null.*isNull"):
            groups.apply_in_arrow(in_turn, "k long, ns array<long>")


def test_a_key_whose_equality_spark_alone_knows(spark: Any) -> None:
    df = frame(spark, "elt(1 + id % 4, 'a', 'A', 'b', 'B') collate UTF8_LCASE")
    want = df.groupBy("k").applyInArrow(in_turn, "k string, ns array<long>").selectExpr("lower(k)", "sort_array(ns)")
    for mode in ("auto", "blocking"):
        made = fbs.group_by(df, "k", num_partitions=2, sort_by="n", mode=mode)
        rows = made.apply_in_arrow(in_turn, "k string, ns array<long>")
        assert same(rows.selectExpr("lower(k)", "sort_array(ns)"), want) == 2
        assert all(row.ns == sorted(row.ns) for row in rows.collect())
    with pytest.raises(SchemaError, match="mode='pipelined' cannot run: key column 'k'"):
        fbs.group_by(df, "k", num_partitions=2, mode="pipelined").apply_in_arrow(in_turn, "k string, ns array<long>")


def all_of_them(key: Any, table: pa.Table) -> pa.Table:
    return pa.table({"key": [repr(key)], "n": [pc.sum(table["n"]).as_py()]})


def frame_of_all(key: Any, frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"key": [repr(key)], "n": [int(frame["n"].sum())]})


def streamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"key": ["()"], "n": [sum(pc.sum(batch["n"]).as_py() for batch in batches)]})


def both(key: Any, left: pa.Table, right: pa.Table) -> pa.Table:
    return pa.table({"key": [repr(key)], "n": [left.num_rows * 1000 + right.num_rows]})


@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [80, 0])
def test_without_keys_all_rows_are_one_group(spark: Any, rows: int, mode: str) -> None:
    """As of Spark's groupBy(): the key is (), and there is one partition; of no rows there is no group."""
    from pyspark.sql import functions as F

    df, schema = frame(spark, rows=rows), "key string, n long"
    groups = fbs.group_by(df, num_partitions=3, mode=mode)
    line = fbs.pipeline(df).group_by(partitions=3, mode=mode)
    small = df.where("n < 7")
    few = fbs.group_by(small, num_partitions=2, mode=mode)
    for made, want in [
        (groups.apply_in_arrow(all_of_them, schema), df.groupBy().applyInArrow(all_of_them, schema)),
        (groups.apply_in_pandas(frame_of_all, schema), df.groupBy().applyInPandas(frame_of_all, schema)),
        (groups.apply_in_arrow(streamed, schema), df.groupBy().applyInArrow(all_of_them, schema)),
        (line.apply_in_arrow(all_of_them, schema).to_df(), df.groupBy().applyInArrow(all_of_them, schema)),
        (
            groups.cogroup(few).apply_in_arrow(both, schema),
            df.groupBy().cogroup(small.groupBy()).applyInArrow(both, schema),
        ),
    ]:
        assert same(made, want) == min(rows, 1)
        assert made.rdd.getNumPartitions() == 1
    ordered = fbs.group_by(
        df, num_partitions=3, sort_by=F.desc("n"), mode=mode, before=halved, before_schema="h long, n long"
    )
    listing = ordered.apply_in_arrow(lambda table: pa.table({"ns": [table["n"].to_pylist()]}), "ns array<long>")
    assert [row.ns for row in listing.collect()] == ([list(range(79, -1, -1))] if rows else [])
    with pytest.raises(ConfigError, match="number of keys is 0 on the left and 1 on the right"):
        groups.cogroup(fbs.group_by(df, "k", num_partitions=1, mode=mode))


def fails(table: pa.Table) -> pa.Table:
    raise KeyError("of the user's own")


def stops(table: pa.Table) -> pa.Table:
    raise StopIteration("of the user's own")


def no_table(table: pa.Table) -> Any:
    return [1]


def other_names(table: pa.Table) -> pa.Table:
    return pa.table({"n": [1], "z": [2]})


def other_types(table: pa.Table) -> pa.Table:
    return pa.table({"k": ["a"], "n": [2.5]})


def batch_by_batch(table: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from table.to_batches()


WRONG: dict[Callable[..., Any], list[str]] = {
    fails: ["KeyError", "of the user's own", "in fails"],
    stops: ["StopIteration", "of the user's own"],
    no_table: ["the function 'no_table' (", "test_groups.py:", "gave a list: it must give a pyarrow.Table"],
    other_names: ["Missing: k.", "Unexpected: z."],
    other_types: ["column 'k' (expected int64, actual string), column 'n' (expected int64, actual double)"],
    batch_by_batch: ["gave a generator: it must give a pyarrow.Table, or, unless it is of cogroup, say by its hints"],
}


@nightly(but_one="mode")
@pytest.mark.parametrize(
    ("func", "mode"), [*((func, "blocking") for func in WRONG), (fails, "pipelined"), (other_names, "pipelined")]
)
def test_what_a_function_does_wrong_is_told(spark: Any, func: Callable[..., Any], mode: str) -> None:
    df = frame(spark)
    made = fbs.group_by(df, "k", num_partitions=2, mode=mode).apply_in_arrow(func, "k long, n long")
    said = failure(made.collect)
    for words in WRONG[func]:
        assert words in said
    assert frames_in_a_row(said) == 1


def test_what_is_wrong_before_anything_runs(spark: Any) -> None:
    df = frame(spark)
    with pytest.raises(ConfigError, match="agg_arrow has no keys"):
        fbs.group_by(df, num_partitions=2).agg_arrow([("n", "sum")])
    with pytest.raises(ConfigError, match="no key column 'nope'"):
        fbs.group_by(df, "nope", num_partitions=2).apply_in_arrow(seen, "names string, n long")
    with pytest.raises(ConfigError, match="num_partitions is 'k'"):
        fbs.group_by(df, "k", num_partitions="k")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="func takes 0 arguments"):
        fbs.group_by(df, "k", num_partitions=2).apply_in_arrow(lambda: None, "n long")
    with pytest.raises(ConfigError, match="before and before_schema go together"):
        fbs.group_by(df, "k", num_partitions=2, before=halved)
    with pytest.raises(ConfigError, match="func is 3"):
        fbs.group_by(df, "k", num_partitions=2).apply_in_arrow(3, "n long")  # type: ignore[arg-type]
