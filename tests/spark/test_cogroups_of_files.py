"""Groups of two pipelines by the same keys, beside Spark's own ``cogroup`` of the same files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from conftest import failure, told
from nights import nightly
from pyspark.sql import functions as F
from test_cogroups import SEEN, counted, doubled, framed, framed_key, inputs, told_key
from test_cogroups import told as seen
from test_folded_inputs import first_row
from test_groups import same

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, PreflightError, SchemaError

pytestmark = pytest.mark.spark
MODES = ["blocking", "pipelined"]
SIZES = "k string, l long, r long"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two inputs as files, some of them without rows: keys of both, of one, and null."""
    path = tmp_path_factory.mktemp("in")
    ns, ms = np.arange(60), np.arange(40)
    left = pa.table(
        {
            "n": ns,
            "k": pa.array([None if n % 7 == 0 else n % 7 for n in ns], pa.int64()),
            "x": ns * 0.5,
            "i": pa.array([None if n % 4 == 0 else n for n in ns], pa.int64()),
        }
    )
    right = pa.table(
        {
            "s": [f"user-{m}" for m in ms],
            "k": pa.array([None if m % 9 == 0 else m % 9 for m in ms], pa.int64()),
            "n": pa.array([None if m % 5 == 0 else m * 1.5 for m in ms], pa.float64()),
        }
    )
    for name, table in (("left", left), ("right", right)):
        (path / name).mkdir()
        half = len(table) // 2
        for i, part in enumerate((table.slice(0, half), table.slice(0, 0), table.slice(half))):
            pq.write_table(part, path / name / f"{i}.parquet", row_group_size=7)
    return path


@pytest.fixture
def splits_of_a_row_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row group is a split of its own; else so few rows are one."""
    from fastbuf_spark.driver import splits

    monkeypatch.setattr(splits, "MOST_BYTES", 1)
    monkeypatch.setattr(splits, "LEAST_BYTES", 1)


def ours(spark: Any, folder: Path) -> tuple[fbs.Pipeline, fbs.Pipeline]:
    return fbs.read_parquet(spark, folder / "left"), fbs.read_parquet(spark, folder / "right")


def theirs(spark: Any, folder: Path) -> tuple[Any, Any]:
    return spark.read.parquet(str(folder / "left")), spark.read.parquet(str(folder / "right"))


def sizes(key: Any, left: pa.Table, right: pa.Table) -> pa.Table:
    return pa.table({"k": [repr(key)], "l": [left.num_rows], "r": [right.num_rows]})


@nightly(but_one="mode")
@pytest.mark.parametrize("cut", ["one split", "many splits"])
@pytest.mark.parametrize("mode", MODES)
def test_files_are_cogrouped_as_spark_does(
    spark: Any, folder: Path, request: pytest.FixtureRequest, cut: str, mode: str
) -> None:
    if cut == "many splits":
        request.getfixturevalue("splits_of_a_row_group")
    a, b = (side.group_by("k", partitions=2, mode=mode) for side in ours(spark, folder))
    mine = a.cogroup(b)
    left, right = theirs(spark, folder)
    want = left.groupBy("k").cogroup(right.groupBy("k"))
    for func in (seen, told_key):
        assert same(mine.apply_in_arrow(func, SEEN).to_df(), want.applyInArrow(func, SEEN)) == 9
    for func in (framed, framed_key):
        assert same(mine.apply_in_pandas(func, SEEN).to_df(), want.applyInPandas(func, SEEN)) == 9


def none(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Leaves no row, and a batch without columns."""
    for batch in batches:
        yield batch.slice(0, 0).select([])


def a_row_more(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One more row for each call, also for one without rows."""
    schema = pa.schema({"n": pa.int64(), "k": pa.int64(), "x": pa.float64(), "i": pa.int64()})
    for batch in batches:
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    yield pa.RecordBatch.from_pylist([{"n": -1, "k": -1}], schema=schema)


@nightly(mode="blocking")
@pytest.mark.usefixtures("splits_of_a_row_group")
@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
def test_each_side_has_functions_and_an_order_of_its_own(spark: Any, folder: Path, mode: str) -> None:
    """In the same tasks, each called with its own rows; keys under several names, and computed ones."""
    from pyspark.sql import functions as F

    a, b = ours(spark, folder)
    left, right = theirs(spark, folder)
    two = b.map_in_arrow(doubled, right.schema).filter(pc.field("s") != "user-3")
    down = a.group_by("k", partitions=2, sort_by=F.desc("n"), mode=mode)
    made = down.cogroup(two.group_by("k", sort_by=["s", "n"], mode=mode)).apply_in_arrow(counted, SEEN)
    assert [(row.l, row.r) for row in made.collect()] == [("True", "True")] * 9
    twice = right.mapInArrow(doubled, right.schema).where("s != 'user-3'")
    want = left.groupBy("k").cogroup(twice.groupBy("k")).applyInArrow(told_key, SEEN)
    made = a.group_by("k", mode=mode).cogroup(two.group_by("k", partitions=2, mode=mode))
    assert same(made.apply_in_arrow(told_key, SEEN).to_df(), want) == 9
    # A side without rows, and one that has the key and nothing else
    gone = b.map_in_arrow(none, right.schema)
    want = left.select("k").groupBy("k").cogroup(right.where("1 = 0").groupBy("k")).applyInArrow(told_key, SEEN)
    keys = fbs.read_parquet(spark, folder / "left", ["k"])
    made = keys.group_by("k", partitions=2, mode=mode).cogroup(gone.group_by("k", mode=mode))
    assert same(made.apply_in_arrow(told_key, SEEN).to_df(), want) == 7
    # An expression over what the files have: Spark computes it
    length = F.length("s").cast("long")
    want = left.groupBy(F.col("n") % 3).cogroup(right.groupBy(length - 6)).applyInArrow(told_key, SEEN)
    made = a.group_by(F.col("n") % 3, partitions=2, mode=mode).cogroup(b.group_by(length - 6, mode=mode))
    assert same(made.apply_in_arrow(told_key, SEEN).to_df(), want) == 3
    # The verb gives a key of two columns, and columns of other types in their places
    want = left.groupBy("k", "x").cogroup(right.groupBy("k", "n")).applyInArrow(sizes, SIZES)
    made = a.group_by("k", "x", partitions=2, mode=mode).cogroup(b.group_by("k", "n", mode=mode))
    rows = made.apply_in_arrow(sizes, SIZES).to_df()
    left_keys, right_keys = left.select("k", "x"), right.select("k", "n")
    assert rows.count() == left_keys.union(right_keys).distinct().count()
    assert rows.selectExpr("sum(l)", "sum(r)").collect()[0][:] == (60, 40)
    assert want.schema == rows.schema


@nightly(mode="blocking")
@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
def test_partitions_without_rows_are_functions_calls_too(spark: Any, folder: Path, mode: str) -> None:
    """Of a DataFrame of Spark's whose functions run before the shuffle, beside files; folded and not."""
    _, b = ours(spark, folder)
    left, right = theirs(spark, folder)
    for partitions in (3, 60):
        df = spark.range(0, 60, 1, partitions).selectExpr("id as n", "id % 7 as k", "id * 0.5D as x", "id as i")
        df = df.where("n < 20")
        func_of = df.mapInArrow(a_row_more, left.schema)
        want = func_of.groupBy("k").cogroup(right.groupBy("k")).applyInArrow(told_key, SEEN)
        a = fbs.pipeline(df).map_in_arrow(a_row_more, left.schema)
        made = a.group_by("k", partitions=1, mode=mode).cogroup(b.group_by("k", mode=mode))
        assert same(made.apply_in_arrow(told_key, SEEN).to_df(), want) == 11
        by = fbs.group_by(df, "k", num_partitions=1, before=a_row_more, before_schema=left.schema, mode=mode)
        made = fbs.group_by(b, "k", num_partitions=1, mode=mode).cogroup(by).apply_in_arrow(told_key, SEEN)
        want = right.groupBy("k").cogroup(func_of.groupBy("k")).applyInArrow(told_key, SEEN)
        assert same(made, want) == 11
    # Without functions nothing is called for them
    plain = fbs.pipeline(left.where("n < 20").repartition(9))
    want = right.groupBy("k").cogroup(left.where("n < 20").groupBy("k")).applyInArrow(told_key, SEEN)
    made = b.group_by("k", partitions=1, mode=mode).cogroup(plain.group_by("k", mode=mode))
    assert same(made.apply_in_arrow(told_key, SEEN).to_df(), want) == 9


@nightly(mode="blocking")
@pytest.mark.usefixtures("splits_of_a_row_group")
@pytest.mark.parametrize("mode", MODES)
def test_many_small_files_are_read_by_few_tasks(spark: Any, tmp_path: Path, mode: str) -> None:
    """The function before the shuffle is called once for each split, of either side, with rows of that side alone."""
    for name, rows in (("left", 50), ("right", 30)):
        (tmp_path / name).mkdir()
        table = pa.table({"k": np.arange(rows * 10) % 17, "n": np.arange(rows * 10)})
        pq.write_table(table, tmp_path / name / "a.parquet", row_group_size=10)
    schema = "k long, n long"
    a, b = (side.map_in_arrow(tenth, schema) for side in ours(spark, tmp_path))
    made = a.group_by("k", partitions=2, mode=mode).cogroup(b.group_by("k", mode=mode)).apply_in_arrow(sizes, SIZES)
    rows = made.collect()
    assert [sum(row[i] for row in rows) for i in (1, 2)] == [50, 30]
    if mode == "pipelined":
        assert told(lambda run: run.outcome, "ok").tasks == 8
    short = [side.map_in_arrow(first_row, schema) for side in ours(spark, tmp_path)]
    made = short[0].group_by("k", partitions=2, mode=mode).cogroup(short[1].group_by("k", mode=mode))
    rows = made.apply_in_arrow(sizes, SIZES).collect()
    assert [sum(row[i] for row in rows) for i in (1, 2)] == [50, 30]


@pytest.mark.usefixtures("splits_of_a_row_group")
def test_consumers_beside_many_splits_have_tasks_of_their_own(spark: Any, tmp_path: Path) -> None:
    """In one task they would ask one after the other, and the shuffle before would run for each of them."""
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
        table = pa.table({"k": np.arange(300) % 17, "n": np.arange(300)})
        pq.write_table(table, tmp_path / name / "a.parquet", row_group_size=10)
    a, b = ours(spark, tmp_path)
    moved = a.shuffle("n", partitions=2, mode="pipelined")
    made = moved.group_by("k", partitions=1, mode="pipelined").cogroup(b.group_by("k", mode="pipelined"))
    rows = made.apply_in_arrow(sizes, SIZES).collect()
    assert [sum(row[i] for row in rows) for i in (1, 2)] == [300, 300]
    assert told(lambda run: (run.name, run.partitions), ("shuffle by n", [0, 1]))


def tenth(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row, for a call with ten rows in a row."""
    (batch,) = batches
    assert batch["n"].to_pylist() == list(range(batch["n"][0].as_py(), batch["n"][0].as_py() + 10))
    yield batch.slice(0, 1)


@nightly(mode="blocking")
@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
def test_it_goes_on(spark: Any, folder: Path, tmp_path: Path, mode: str) -> None:
    """Behind shuffles and in front of them, to files and as an ordinary DataFrame."""
    a, b = ours(spark, folder)
    left, right = theirs(spark, folder)
    want = left.groupBy("k").cogroup(right.groupBy("k")).applyInArrow(sizes, SIZES)
    # Both sides, or one of them, come from a shuffle
    moved = a.shuffle("n", partitions=1, mode=mode)
    two = a.shuffle("n", partitions=2, mode=mode)
    for one, other in ((moved, b.shuffle("s", partitions=1, mode=mode)), (two, b), (a, b.rebalance(1, mode=mode))):
        made = one.group_by("k", partitions=1, mode=mode).cogroup(other.group_by("k", mode=mode))
        assert same(made.apply_in_arrow(sizes, SIZES).to_df(), want) == 9
    made = a.group_by("k", partitions=1, mode=mode).cogroup(b.group_by("k", mode=mode)).apply_in_arrow(sizes, SIZES)
    totals = made.map_in_arrow(doubled, SIZES).group_by("l", partitions=1, mode=mode).agg_arrow([("r", "sum")])
    assert sorted(totals.collect()) == sorted(want.union(want).groupBy("l").sum("r").collect())
    made.write_parquet(tmp_path / "out")
    assert same(spark.read.parquet(str(tmp_path / "out")), want) == 9
    df = made.to_df()
    assert df.join(df.selectExpr("k", "l as other"), "k").where("l = other").count() == 9
    assert df.union(df).count() == 18
    assert len(df.limit(3).collect()) == 3
    assert made.count() == 9
    # With itself
    again = a.group_by("k", partitions=1, mode=mode)
    want = left.groupBy("k").cogroup(left.groupBy("k")).applyInArrow(told_key, SEEN)
    assert same(again.cogroup(again).apply_in_arrow(told_key, SEEN).to_df(), want) == 7
    by = fbs.group_by(moved, "k", num_partitions=1, mode=mode)
    assert same(by.cogroup(by).apply_in_arrow(told_key, SEEN), want) == 7


@pytest.mark.parametrize("verb", ["pipeline", "group_by"])
def test_no_row_enters_the_jvm(spark: Any, folder: Path, verb: str) -> None:
    """The tasks before the shuffle read both sides' files: Spark sees a number for each split."""
    a, b = (side.map_in_arrow(doubled, side.schema) for side in ours(spark, folder))
    if verb == "pipeline":
        made = a.group_by("k", partitions=2, mode="blocking").cogroup(b.group_by("k", mode="blocking"))
        df = made.apply_in_arrow(sizes, SIZES).to_df()
    else:
        one, other = (fbs.group_by(side, "k", num_partitions=2, mode="blocking") for side in (a, b))
        df = one.cogroup(other).apply_in_arrow(sizes, SIZES)
    plan = df._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("MapInArrow") == 2, "one before Spark's shuffle, one behind it"
    assert df.selectExpr("sum(l)", "sum(r)").collect()[0][:] == (120, 80)


def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, 1)
        raise ValueError("no more of this")


def fails_in_a_group(left: pa.Table, right: pa.Table) -> pa.Table:
    raise ValueError("no more of this")


def other_columns(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select([0])


@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
def test_a_failure_is_told_by_its_own_words(spark: Any, folder: Path, mode: str) -> None:
    a, b = ours(spark, folder)
    groups = b.group_by("k", partitions=2, mode=mode)
    for func, words in ((fails, "ValueError: no more of this"), (other_columns, ") gave columns ['n']")):
        bad = a.map_in_arrow(func, a.schema).group_by("k", mode=mode)
        for made in (bad.cogroup(groups), groups.cogroup(bad)):
            assert words in failure(made.apply_in_arrow(sizes, SIZES).collect)
    good = a.group_by("k", mode=mode).cogroup(groups)
    assert "ValueError: no more of this" in failure(good.apply_in_arrow(fails_in_a_group, SIZES).collect)


def test_explain_tells_both_sides(spark: Any, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = ours(spark, folder)
    one = a.map_in_arrow(doubled, a.schema).group_by("k", partitions=2)
    made = one.cogroup(b.shuffle("s", partitions=1).group_by("k")).apply_in_arrow(sizes, SIZES)
    made.map_in_arrow(doubled, SIZES).explain()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("stage 1  1 task: read_parquet: 3 files")
    assert lines[0].endswith("-> doubled")
    assert lines[1].startswith("stage 2  1 task: read_parquet: 3 files")
    assert lines[2] == "    == shuffle by s -> 1 partition: blocking"
    assert lines[3] == "stage 3  1 task: rows as they come"
    assert lines[4] == "    == cogroup of stages 1 and 3 by k -> 2 partitions: blocking"
    assert lines[5] == "stage 4  2 tasks: sizes -> doubled"
    assert "no exchange holds some" in lines[6]
    assert "half of memory_bytes" in lines[7]
    both = a.shuffle("n", partitions=2).group_by("k"), b.shuffle("s", partitions=2).group_by("k", partitions=1)
    made = both[0].cogroup(both[1]).apply_in_arrow(sizes, SIZES)
    made.explain()
    assert "through the JVM" not in capsys.readouterr().out
    assert len(made.collect()) == 9
    live = [each.shuffle(by, partitions=1, mode="pipelined") for each, by in ((a, "n"), (b, "s"))]
    one, other = (each.group_by("k", partitions=1, mode="pipelined") for each in live)
    one.cogroup(other).apply_in_arrow(sizes, SIZES).explain()
    text = capsys.readouterr().out
    assert "== cogroup of stages 2 and 4 by k -> 1 partition: pipelined" in text
    assert "stage 5  1 task, each holds a slot from the beginning: sizes" in text
    assert "slots   4 at the same time, of 4" in text
    wide = b.shuffle("s", partitions=2, mode="pipelined").group_by("k", partitions=1, mode="pipelined")
    with pytest.raises(PreflightError, match="5 > 4 slots"):
        one.cogroup(wide).apply_in_arrow(sizes, SIZES).collect()


def test_what_does_not_fit_together_is_told(spark: Any, folder: Path) -> None:
    a, b = ours(spark, folder)
    one = a.group_by("k", partitions=2)
    with pytest.raises(ConfigError, match="number of keys is 1 on the left and 2 on the right"):
        one.cogroup(b.group_by("k", "n"))
    with pytest.raises(ConfigError, match="partitions is 2 on the left and 3 on the right"):
        one.cogroup(b.group_by("k", partitions=3))
    with pytest.raises(ConfigError, match="mode is auto on the left and blocking on the right"):
        one.cogroup(b.group_by("k", mode="blocking"))
    with pytest.raises(ConfigError, match="key 1 has the type bigint on the left and array<string> on the right"):
        one.cogroup(b.group_by(F.array("s"))).apply_in_arrow(sizes, SIZES).collect()
    with pytest.raises(ConfigError, match="func takes 1 arguments"):
        one.cogroup(b.group_by("k")).apply_in_arrow(len, SIZES).collect()
    with pytest.raises(ConfigError, match="cogroup needs the result of group_by, not a Pipeline:"):
        one.cogroup(b)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not a Grouped: the other side must be a PipelineGroups too"):
        one.cogroup(fbs.group_by(b, "k", num_partitions=2))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no key column"):
        one.cogroup(b.group_by("none")).apply_in_arrow(sizes, SIZES).collect()


def of_one_key(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = batch.num_rows
        yield pa.record_batch({"n": pa.array(range(rows), pa.int64()), "k": pa.array(["a"] * rows)})


def test_keys_whose_equality_spark_alone_knows(spark: Any, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = ours(spark, folder)
    lower = "n long, k string collate UTF8_LCASE"

    def only_sizes(left: pa.Table, right: pa.Table) -> pa.Table:
        return sizes("k", left, right)

    sides = a.map_in_arrow(of_one_key, lower), b.map_in_arrow(of_one_key, lower)
    made = sides[0].group_by("k", partitions=2).cogroup(sides[1].group_by("k")).apply_in_arrow(only_sizes, SIZES)
    assert [tuple(row) for row in made.collect()] == [("'k'", 60, 40)]
    made.explain()
    assert "Spark's own" in capsys.readouterr().out
    piped = [side.group_by("k", partitions=2, mode="pipelined") for side in sides]
    with pytest.raises(SchemaError, match="mode='pipelined' cannot run"):
        piped[0].cogroup(piped[1]).apply_in_arrow(only_sizes, SIZES).collect()


def test_columns_of_any_type(spark: Any, tmp_path: Path) -> None:
    """Nested ones, decimals, dates and maps, in places that sides share or not; and names with dots."""
    table = spark.range(40).selectExpr(
        "id % 5 as k",
        "named_struct('a', id, 'b', array(id, null)) as s",
        "cast(id as decimal(20, 3)) as d",
        "date_add(date'2020-01-01', cast(id as int)) as day",
        "map('x', id) as m",
    )
    table.write.parquet(str(tmp_path / "left"))
    other = table.selectExpr("s", "k as `the.key`", "d as day", "cast(d as decimal(10, 1)) as d")
    other.write.parquet(str(tmp_path / "right"))
    left, right = theirs(spark, tmp_path)
    a, b = ours(spark, tmp_path)
    # Spark's own does not find names with dots
    plain = right.toDF("s", "k", "day", "d")
    want = left.groupBy("k").cogroup(plain.groupBy("k")).applyInArrow(renamed, SEEN)
    for mode in MODES:
        made = a.group_by("k", partitions=2, mode=mode).cogroup(b.group_by("`the.key`", mode=mode))
        assert same(made.apply_in_arrow(renamed, SEEN).to_df(), want) == 5


def renamed(key: Any, left: pa.Table, right: pa.Table) -> pa.Table:
    return told_key(key, left, right.rename_columns(["s", "the.key", "day", "d"]))


def test_frames_of_spark_are_united_as_before(spark: Any) -> None:
    """Two pipelines that begin with DataFrames, and have no functions."""
    left, right = inputs(spark)
    want = left.groupBy("k").cogroup(right.groupBy("k")).applyInArrow(told_key, SEEN)
    for mode in MODES:
        a, b = (fbs.pipeline(df).group_by("k", partitions=2, mode=mode) for df in (left, right))
        assert same(a.cogroup(b).apply_in_arrow(told_key, SEEN).to_df(), want) == 9
