"""Stages in a row, beside Spark's own way of the same: the same rows, in each mode."""

from __future__ import annotations

import copy
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyspark
import pytest
from conftest import Sessions, failure, frames_in_a_row, in_the_end
from nights import nightly
from py4j.protocol import Py4JError
from test_sources import same

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, PreflightError
from fastbuf_spark.driver.pipeline import TASKS_OF_SLOT

pytestmark = pytest.mark.spark
MODES = ["pipelined", "blocking"]
ROWS = 20_000
PLAIN = "k long, n long, s string"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ROWS rows in four files."""
    path = tmp_path_factory.mktemp("in")
    each = ROWS // 4
    for i in range(4):
        ns = np.arange(i * each, (i + 1) * each)
        table = pa.table({"k": ns % 7, "n": ns, "s": pa.array([f"name {n % 100}" for n in ns])})
        pq.write_table(table, path / f"{i}.parquet")
    return path


def source_of(spark: Any, folder: Path, kind: str) -> fbs.Pipeline:
    return fbs.read_parquet(spark, folder) if kind == "files" else fbs.pipeline(spark.read.parquet(str(folder)))


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.set_column(1, "n", pc.multiply(batch["n"], 2))


def odd_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame[frame["k"] % 2 == 1]


def ends(table: pa.Table) -> pa.Table:
    return pa.table({"k": [table["k"][0].as_py()], "rows": pa.array([table.num_rows], pa.int64())})


def frame_ends(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": [frame["k"].iloc[0]], "rows": [len(frame)]})


@nightly(kind="files", mode="blocking")
@nightly(kind="frame")  # random jobs have frames, in both modes
@pytest.mark.parametrize("kind", ["files", "frame"])
@pytest.mark.parametrize("mode", MODES)
def test_each_verb_gives_what_spark_gives(spark: Any, folder: Path, kind: str, mode: str) -> None:
    """Alone, from files and from a DataFrame."""
    p, plain = source_of(spark, folder, kind), spark.read.parquet(str(folder))
    assert same(p.map_in_arrow(doubled, PLAIN).to_df(), plain.selectExpr("k", "n * 2 as n", "s")) == ROWS
    assert same(p.map_in_pandas(odd_frames, PLAIN).to_df(), plain.where("k % 2 = 1")) > ROWS // 3
    assert same(p.filter(pc.field("n") < 100).to_df(), plain.where("n < 100")) == 100
    assert p.count() == ROWS
    shuffled = p.shuffle("k", "s", partitions=2, mode=mode).to_df()
    placed = "spark_partition_id() as p", "*"
    assert same(shuffled.selectExpr(*placed), plain.repartition(2, "k", "s").selectExpr(*placed)) == ROWS
    in_turn = p.rebalance(2, mode=mode).to_df()
    shares = in_turn.selectExpr("spark_partition_id() as p").groupBy("p").count().select("count").collect()
    assert [row[0] for row in shares] == [ROWS // 2] * 2
    assert same(in_turn, plain) == ROWS
    everywhere = p.broadcast(2, mode=mode).to_df()
    copies = spark.range(2).selectExpr("cast(id as int) as p").crossJoin(plain)
    assert same(everywhere.selectExpr(*placed), copies) == 2 * ROWS
    counts = plain.groupBy("k").count().withColumnRenamed("count", "rows")
    groups = p.group_by("k", partitions=2, mode=mode)
    assert same(groups.apply_in_arrow(ends, "k long, rows long").to_df(), counts) == 7
    assert same(groups.apply_in_pandas(frame_ends, "k long, rows long").to_df(), counts) == 7
    assert same(groups.agg_arrow([("n", "count")]).to_df(), counts.withColumnRenamed("rows", "n_count")) == 7


@nightly(mode="auto")
@pytest.mark.parametrize("mode", [*MODES, "auto"])
def test_three_shuffles_in_a_row(spark: Any, folder: Path, mode: str) -> None:
    """With functions before, between and behind them."""
    p = fbs.read_parquet(spark, folder).map_in_arrow(doubled, PLAIN).shuffle("k", partitions=1, mode=mode)
    p = p.map_in_pandas(odd_frames, PLAIN).map_in_arrow(doubled, PLAIN).shuffle("s", mode=mode)
    p = p.filter(pc.field("n") > 1000).group_by("k", mode=mode).agg_arrow([("n", "sum"), ("n", "count")])
    plain = spark.read.parquet(str(folder)).selectExpr("k", "n * 4 as n").where("k % 2 = 1 and n > 1000")
    want = sorted(
        tuple(row)
        for row in plain.groupBy("k")
        .agg({"n": "sum", "*": "count"})
        .selectExpr("k", "`sum(n)`", "`count(1)`")
        .collect()
    )
    assert len(want) == 3
    assert sorted(tuple(row) for row in p.collect()) == want
    table = p.to_arrow()
    assert sorted(zip(*(table[i].to_pylist() for i in range(3)), strict=True)) == want
    assert sorted(tuple(row) for row in p.to_df().collect()) == want
    assert fbs.last_run() is not None


@pytest.mark.parametrize("mode", MODES)
def test_the_result_is_an_ordinary_dataframe(sessions: Sessions, folder: Path, mode: str) -> None:
    """It can be joined with itself, limited, cached; and given to other verbs, whose tasks go on with it."""
    spark = sessions.get("local[6]")
    p = fbs.read_parquet(spark, folder).shuffle("k", partitions=1, mode=mode).map_in_arrow(doubled, PLAIN)
    df, plain = p.to_df(), spark.read.parquet(str(folder)).selectExpr("k", "n * 2 as n", "s")
    assert p._built[True][0].mode == mode
    assert df.join(df.selectExpr("n", "s as other"), "n").count() == ROWS
    assert df.union(df).count() == 2 * ROWS
    assert len(df.limit(5).collect()) == 5
    again = fbs.map_in_arrow(p, doubled, PLAIN, keys="s", num_partitions=1)
    assert same(again, plain.selectExpr("k", "n * 2 as n", "s")) == ROWS
    assert "Scan" not in again._jdf.queryExecution().executedPlan().toString().replace("Scan ExistingRDD", "")
    assert same(fbs.repartition(p, 1, "k"), plain) == ROWS
    grouped = fbs.group_by(p, "k", num_partitions=1).apply_in_arrow(ends, "k long, rows long")
    assert grouped.count() == 7


def test_what_a_dataframe_has_is_told_to_be_there(spark: Any, folder: Path) -> None:
    p: Any = fbs.read_parquet(spark, folder)
    with pytest.raises(AttributeError, match=r"a Pipeline has no show: use that of its DataFrame, .to_df\(\).show"):
        p.show()
    with pytest.raises(AttributeError, match="'Pipeline' object has no attribute 'shwo'"):
        p.shwo()
    assert copy.copy(p).count() == ROWS


def pids(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        pid = pa.array([os.getpid()] * batch.num_rows, pa.int64())
        yield pa.RecordBatch.from_arrays([*batch.columns, pid], names=[*batch.schema.names, f"p{batch.num_columns}"])


def test_functions_in_a_row_share_a_task(spark: Any, folder: Path) -> None:
    """One process for a chain, the reading and both ends of shuffles included; another one behind start_new_chain."""
    p = fbs.read_parquet(spark, folder, ["k"]).map_in_arrow(pids, "k long, p1 long")
    p = p.map_in_arrow(pids, "k long, p1 long, p2 long").start_new_chain()
    p = p.map_in_arrow(pids, "k long, p1 long, p2 long, p3 long")
    rows = p.to_df().distinct().collect()
    assert rows
    assert all(row.p1 == row.p2 != row.p3 for row in rows)


def numbers(table: pa.Table) -> list[int]:
    return table["n"].to_pylist()


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_a_random_order_is_the_same_for_the_same_seed(spark: Any, folder: Path, mode: str) -> None:
    """Behind files by place, behind a shuffle by value; equal rows behind files do not stay together."""
    read = fbs.read_parquet(spark, folder)
    first = numbers(read.random_shuffle(7, partitions=2, mode=mode).to_arrow())
    assert sorted(first) == list(range(ROWS))
    assert numbers(read.random_shuffle(7, partitions=2, mode=mode).to_arrow()) == first
    assert numbers(read.random_shuffle(8, partitions=2, mode=mode).to_arrow()) != first
    # As many as one expects of a random order rise from one to the next, and from one before the last
    assert abs(sum(a < b for a, b in pairwise(first)) - ROWS / 2) < 400
    assert abs(np.corrcoef(first, range(ROWS))[0, 1]) < 0.05
    moved = read.shuffle("k", partitions=1, mode=mode).random_shuffle(7, partitions=2, mode=mode)
    second = numbers(moved.to_arrow())
    assert sorted(second) == list(range(ROWS))
    assert numbers(moved.to_arrow()) == second
    assert abs(np.corrcoef(second, range(ROWS))[0, 1]) < 0.05
    few = fbs.read_parquet(spark, folder, ["k"]).random_shuffle(7, partitions=1, mode=mode).to_arrow()["k"].to_numpy()
    assert abs((few[1:] == few[:-1]).mean() - 1 / 7) < 0.02


def test_a_random_shuffle_of_any_values(spark: Any) -> None:
    """Maps too, though Spark itself has no hash of them."""
    plain = spark.range(100).selectExpr("id", "map('a', id) as m", "array(map(id, struct(map(1, 'x') as i))) as deep")
    moved = fbs.pipeline(plain).random_shuffle(1, partitions=2).to_df()
    assert same(moved, plain) == 100
    assert {row[0] for row in moved.selectExpr("spark_partition_id()").distinct().collect()} == {0, 1}


def test_a_random_order_larger_than_memory(spark: Any, folder: Path) -> None:
    """Is sorted in files, and the same."""
    read = fbs.read_parquet(spark, folder)
    small = fbs.pipeline(read, conf=fbs.ShuffleConf(memory_bytes=256 << 10, segment_size=4096))
    want = numbers(read.random_shuffle(7, partitions=1).to_arrow())
    assert numbers(small.random_shuffle(7, partitions=1).to_arrow()) == want


class Counts:
    """Notes in a file how many rows it has seen."""

    __name__ = "counts"

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with self._path.open("a") as file:
                file.write(f"{batch.num_rows}\n")
            yield batch


class Holds:
    """Waits at its first batch until a file is there."""

    __name__ = "holds"

    def __init__(self, gate: Path) -> None:
        self._gate = gate

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while not self._gate.exists():
                time.sleep(0.02)  # between two looks
            yield batch


def test_the_last_stage_holds_up_the_source_through_all_others(spark: Any, tmp_path: Path) -> None:
    """As many rows are read as fit between them, however long it takes; then all of them."""
    rows, seen, gate = 2_000_000, tmp_path / "seen", tmp_path / "gate"
    seen.touch()
    (tmp_path / "in").mkdir()
    pq.write_table(
        pa.table({"k": np.arange(rows), "x": np.random.default_rng(1).random(rows)}),
        tmp_path / "in" / "a.parquet",
        row_group_size=50_000,
    )
    conf = fbs.ShuffleConf(memory_bytes=1 << 20, segment_size=8192, batch_rows=1000)
    p = fbs.pipeline(fbs.read_parquet(spark, tmp_path / "in"), conf=conf)
    p = p.map_in_arrow(Counts(seen), "k long, x double").shuffle("k", partitions=1, mode="pipelined")
    p = p.shuffle("x", partitions=1, mode="pipelined").map_in_arrow(Holds(gate), "k long, x double")

    def count() -> int:
        return sum(map(int, seen.read_text().split()))

    from threading import Thread

    found: list[int] = []
    running = Thread(target=lambda: found.append(p.count()))
    running.start()
    try:
        still = since = 0.0
        while time.monotonic() - since < 3 or not still:
            if count() != still:
                still, since = count(), time.monotonic()
            time.sleep(0.05)  # between two looks
            assert running.is_alive()
        # Two exchanges of a megabyte at each end, and the batches that are in hand
        assert 0 < still < rows // 4
    finally:
        gate.touch()
        running.join(120)
    assert found == [rows]
    assert count() == rows


def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        raise KeyError("the user's own")
    yield from ()


FAILING: dict[str, Callable[[fbs.Pipeline, str], fbs.Pipeline]] = {
    "before the first": lambda p, mode: (
        p.map_in_arrow(fails, PLAIN).shuffle("k", partitions=1, mode=mode).shuffle("s", mode=mode)
    ),
    "between": lambda p, mode: (
        p.shuffle("k", partitions=1, mode=mode).map_in_arrow(fails, PLAIN).shuffle("s", mode=mode)
    ),
    "behind the last": lambda p, mode: (
        p.shuffle("k", partitions=1, mode=mode).shuffle("s", mode=mode).map_in_arrow(fails, PLAIN)
    ),
}


@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", FAILING)
def test_a_failure_is_told_by_its_own_words_first(spark: Any, folder: Path, where: str, mode: str) -> None:
    """Whichever stage it was in, and soon; of exchanges behind it no other cause is told."""
    begin = time.monotonic()
    words = failure(FAILING[where](fbs.read_parquet(spark, folder), mode).collect)
    took = time.monotonic() - begin
    assert 'KeyError: "the user\'s own"' in words
    causes = [line for line in words.splitlines() if "Error: " in line or "Failed: " in line or "Lost: " in line]
    assert causes[0].endswith('KeyError: "the user\'s own"')
    assert words.rstrip().splitlines()[-1] == 'KeyError: "the user\'s own"'
    assert frames_in_a_row(words) == 1
    assert took < 8


def dies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        os.kill(os.getpid(), signal.SIGKILL)


@nightly(at=[0, 2])
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_kill_in_any_stage_shows_no_file(spark: Any, folder: Path, tmp_path: Path, at: int) -> None:
    """Of three shuffles that write: the run fails, soon, and nothing is there."""
    p = fbs.read_parquet(spark, folder)
    for stage in range(4):
        if stage:
            p = p.shuffle("k" if stage % 2 else "s", partitions=1, mode="pipelined")
        p = p.map_in_arrow(dies if stage == at else doubled, PLAIN)
    assert failure(lambda: p.write_parquet(tmp_path / "out"))
    assert in_the_end(lambda: list(tmp_path.iterdir()), lambda found: not found) == []


def test_slots_are_shared_out_over_all_shuffles(spark: Any, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of pipelined exchanges; explain says what each task may hold."""
    read = fbs.read_parquet(spark, folder).map_in_arrow(doubled, PLAIN)
    p = read.shuffle("k", partitions=2, mode="pipelined").shuffle("s").map_in_arrow(doubled, PLAIN)
    p = p.group_by("k", partitions=1, mode="pipelined").agg_arrow([("n", "sum")])
    p.explain()
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert "read_parquet: 4 files" in lines[0]
    assert lines[0].endswith("-> doubled")
    assert "== shuffle by k -> 2 partitions: pipelined" in lines[1]
    assert "== shuffle by s -> 2 partitions: blocking" in lines[3]
    assert lines[4].endswith("2 tasks: doubled")
    assert "== group by k -> 1 partition: pipelined" in lines[5]
    assert "slots   4 at the same time, of 4" in text
    assert "half of memory_bytes (64 MiB)" in text
    assert (
        "rows    512 MiB for a task that sorts them, as groups do (spark.python.worker.memory), 2048 MiB in 4" in text
    )
    assert "ports   any between executors" in text
    assert len(p.collect()) == 7
    read.shuffle("k").explain()
    assert "\nrows " not in capsys.readouterr().out, "nothing is sorted"
    fbs.pipeline(read.to_df(), conf=fbs.ShuffleConf(memory_bytes="8m")).random_shuffle(1).explain()
    assert (
        "\nrows    8 MiB for a task that sorts them, as groups do (memory_bytes), 32 MiB in 4"
        in capsys.readouterr().out
    )
    with pytest.raises(PreflightError, match="4 consumers hold a slot each and producers need one more: 5 > 4 slots"):
        read.shuffle("k", partitions=2, mode="pipelined").shuffle("s", mode="pipelined").collect()


def test_partitions_that_nobody_counts_share_tasks(spark: Any, folder: Path, tmp_path: Path) -> None:
    """The function is called for each, and files are named by partition; a DataFrame has all partitions."""
    p = fbs.read_parquet(spark, folder).shuffle("n", partitions=100).map_in_arrow(rows_of_task, "rows long, task long")
    table = p.to_arrow()
    assert table.num_rows == 100
    assert sum(table["rows"].to_pylist()) == ROWS
    assert len(set(table["task"].to_pylist())) == 4 * TASKS_OF_SLOT, "of a local[4]"
    plain = spark.read.parquet(str(folder)).repartition(100, "n")
    want = [len(part) for part in plain.rdd.glom().collect()]
    assert table["rows"].to_pylist() == want, "in the order of the partitions"
    counted = p.to_df()
    assert counted.rdd.getNumPartitions() == 100
    assert [row.rows for row in counted.collect()] == want
    assert {row.task for row in counted.collect()} == set(range(100))
    moved = fbs.read_parquet(spark, folder).shuffle("n", partitions=100)
    assert moved.write_parquet(tmp_path / "out").files == sum(rows > 0 for rows in want)
    numbers_of_files = sorted(int(path.name.split("-")[1]) for path in (tmp_path / "out").glob("part-*"))
    assert numbers_of_files == [number for number, rows in enumerate(want) if rows]
    none = fbs.read_parquet(spark, folder, filter=pc.field("n") < 0).shuffle("n", partitions=100)
    assert none.map_in_arrow(rows_of_task, "rows long, task long").to_arrow()["rows"].to_pylist() == [0] * 100


def rows_of_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    rows = sum(batch.num_rows for batch in batches)
    yield pa.record_batch({"rows": [rows], "task": [TaskContext.get().partitionId()]})


@pytest.mark.parametrize(
    ("columns", "mode", "lifted", "told"),
    [
        (["id"], "blocking", False, True),
        (["id"], "blocking", True, False),
        (["id"], "pipelined", False, False),  # rows of fixed length: the producers' job goes without
        (["id", "cast(id AS string) s"], "pipelined", False, True),
    ],
)
def test_inputs_that_spark_measures_are_told(
    spark: Any, columns: list[str], mode: str, lifted: bool, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = "spark.sql.execution.arrow.maxBytesPerBatch"
    p = fbs.pipeline(spark.range(10).selectExpr(*columns)).shuffle("id", partitions=1, mode=mode)
    if lifted:
        spark.conf.set(limit, str(2**31 - 1))
    try:
        p.explain()
    finally:
        spark.conf.unset(limit)
    shown = capsys.readouterr().out
    assert ("\ninput   of stage 1: Spark adds up the bytes of an Arrow batch after every row" in shown) == told
    assert (f"set {limit}=2147483647" in shown) == told


def test_keys_that_spark_alone_places(spark: Any, folder: Path) -> None:
    """Expressions over what a function gave: Spark's own shuffle takes care."""
    from pyspark.sql import functions as F

    read = fbs.read_parquet(spark, folder)
    moved = read.shuffle(F.col("k") + 1, partitions=2).shuffle("s", partitions=1)
    assert moved._staged(shared=False).mode == "blocking"
    assert moved._built[False][1].stages[1].mode == "Spark's own"
    assert same(moved.to_df(), spark.read.parquet(str(folder))) == ROWS


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_names_that_need_quotes(spark: Any, mode: str) -> None:
    """Dots and backticks in names of columns, through maps and shuffles."""
    df = spark.range(100).selectExpr("id % 7 as `a.b`", "id as `c``d`", "id as e")
    p = fbs.pipeline(df)
    assert same(p.shuffle("e", partitions=1, mode=mode).to_df(), df) == 100
    assert same(p.shuffle("`a.b`", partitions=1, mode=mode).map_in_arrow(passed, df.schema).to_df(), df) == 100
    assert same(p.map_in_arrow(passed, df.schema).rebalance(1, mode=mode).to_df(), df) == 100


def test_columns_go_by_position_as_in_spark(spark: Any) -> None:
    """Whatever a function calls them, and the fields within them."""
    df = spark.range(0, 60, 1, 3).selectExpr("id % 5 as k", "named_struct('x', id, 'y', cast(id as string)) as s")

    def renamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            x, y = batch["s"].flatten()
            yield pa.record_batch({"key": batch["k"], "pair": pa.StructArray.from_arrays([x, y], ["a", "b"])})

    want = sorted(map(repr, df.mapInArrow(renamed, df.schema).collect()))
    more = {"before": renamed, "before_schema": df.schema}
    for made in (
        fbs.pipeline(df).map_in_arrow(renamed, df.schema).to_df(),
        fbs.pipeline(df).map_in_arrow(renamed, df.schema).shuffle("k", partitions=2).to_df(),
        fbs.map_in_arrow(df, iter, df.schema, keys="k", num_partitions=2, mode="pipelined", **more),
        fbs.map_in_arrow(df, renamed, df.schema, keys="k", num_partitions=2, mode="blocking", **more),
    ):
        assert sorted(map(repr, made.collect())) == want


def test_columns_of_the_same_name(spark: Any) -> None:
    """A DataFrame may have them, after a join for one."""
    df = spark.range(100).selectExpr("id % 7 as k", "id as x", "string(id) as x")
    assert same(fbs.pipeline(df).shuffle("k", partitions=1).to_df(), df) == 100
    p = fbs.pipeline(df).shuffle("k", partitions=1, mode="blocking").shuffle("k", partitions=1)
    assert same(p.to_df(), df) == 100
    assert same(p.shuffle("k", partitions=1, mode="blocking").to_df(), df) == 100
    assert same(fbs.repartition(p, 1, "k"), df) == 100


def test_a_column_with_the_name_that_a_step_adds(spark: Any) -> None:
    df = spark.range(50).selectExpr("id % 7 as k", "id as __fastbuf_step", "id as __FASTBUF_STEP_")
    assert same(fbs.pipeline(df).broadcast(2).to_df(), df.union(df)) == 100
    assert same(fbs.pipeline(df).random_shuffle(1, 1).to_df(), df) == 50
    assert same(fbs.pipeline(df).map_in_arrow(passed, df.schema).random_shuffle(1, 1).to_df(), df) == 50


def test_a_session_that_was_stopped_is_told(spark: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    df = spark.range(5)
    made = fbs.pipeline(df).shuffle("id", partitions=1)
    files = fbs.read_parquet(spark, folder)
    pairs = spark.sparkContext.parallelize([(1, 2)], 1)
    monkeypatch.setattr(spark.sparkContext, "_jsc", None)  # as stop() leaves it
    for action in (
        made.collect,
        files.count,
        lambda: fbs.repartition(df, 1, "id"),
        lambda: fbs.group_by(df, "id", num_partitions=1),
        lambda: fbs.partition_by(pairs, 1),
    ):
        with pytest.raises(ConfigError, match="has been stopped: make one"):
            action()


def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def test_what_cannot_be_is_said(spark: Any, folder: Path) -> None:
    """Most of it at once."""
    p = fbs.read_parquet(spark, folder)
    with pytest.raises(ConfigError, match="shuffle has no keys"):
        p.shuffle()
    with pytest.raises(ConfigError, match="agg_arrow has no keys"):
        p.group_by().agg_arrow([("n", "sum")]).collect()
    with pytest.raises(ConfigError, match="compute expression"):
        p.filter("n > 3")
    with pytest.raises(ConfigError, match="mode is 'fast'"):
        p.shuffle("k", mode="fast")
    with pytest.raises(ConfigError, match="seed is 'x'"):
        p.random_shuffle("x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="seed is True: give a whole number"):
        p.random_shuffle(True)
    with pytest.raises(ConfigError, match=r"^partitions is 0: it must be a number from 1 up; 1073741824"):
        p.rebalance(0)
    with pytest.raises(
        ConfigError,
        match=r"^\[NOT_EXPECTED_TYPE\] partitions is 'k': it must be a number from 1 up; as in partitions=8",
    ):
        p.rebalance("k")  # type: ignore[arg-type]
    for keys in (("k", 8), (8, "k")):  # as in df.repartition(8, "k")
        with pytest.raises(ConfigError, match="a number of partitions is given by name, as in partitions=8"):
            p.shuffle(*keys)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no key column"):
        p.shuffle("none", partitions=1).collect()
    with pytest.raises(ConfigError, match="not a DataFrame of Spark's"):
        fbs.pipeline(pd.DataFrame({"a": [1]}))


@pytest.mark.parametrize(("action", "mode", "most"), [("collect", "pipelined", 2), ("write_parquet", "blocking", 1)])
def test_control_c_ends_the_jobs_too(spark: Any, tmp_path: Path, action: str, mode: str, most: int) -> None:
    """PySpark tries to cancel them through the connection that waits for the action, and they went on for minutes."""

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(60)  # stands for work; Spark ends the worker
            yield batch

    made = fbs.pipeline(spark.range(0, 100, 1, 2)).shuffle("id", partitions=2, mode=mode).map_in_arrow(slow, "id long")
    tracker = spark.sparkContext.statusTracker()

    def press() -> None:
        # Pipelined: the consumers' and the producers'
        in_the_end(lambda: len(tracker.getActiveJobsIds()), lambda jobs: jobs == most)
        os.kill(os.getpid(), signal.SIGINT)

    presses = threading.Thread(target=press)
    presses.start()
    # PySpark 4.1 raises an error of Py4J's
    with pytest.raises(KeyboardInterrupt if pyspark.__version__ >= "4.2" else (KeyboardInterrupt, Py4JError)):
        made.collect() if action == "collect" else made.write_parquet(tmp_path / "out")
    presses.join()
    begin = time.monotonic()
    assert in_the_end(tracker.getActiveJobsIds, lambda jobs: not jobs) == []
    assert spark.range(7).count() == 7
    assert time.monotonic() - begin < 30, "half of what a batch takes"
    assert list(tmp_path.iterdir()) == []


def test_a_function_may_write_on_to_what_it_gave_to_the_next(spark: Any) -> None:
    """Both are called in one task; Spark, which has the JVM between them, keeps them apart."""

    def reusing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        memory = np.zeros(1000)
        for batch in batches:
            for start in range(0, batch.num_rows, 1000):
                memory[:] = batch["v"].slice(start, 1000).to_numpy()
                yield pa.record_batch({"v": pa.array(memory)})

    def keeping(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept = list(batches)
        yield pa.record_batch({"total": [sum(sum(batch["v"].to_pylist()) for batch in kept)]})

    def keeping_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        kept = list(frames)
        yield pd.DataFrame({"total": [float(sum(frame.v.sum() for frame in kept))]})

    df = spark.range(0, 8000, 1, 2).selectExpr("cast(id as double) as v")
    maps = fbs.pipeline(df).map_in_arrow(reusing, "v double")
    for made in (
        maps.map_in_arrow(keeping, "total double"),
        maps.map_in_pandas(keeping_frames, "total double"),
        fbs.pipeline(df)
        .group_by("v", partitions=2)
        .apply_in_arrow(lambda t: t, "v double")
        .map_in_arrow(keeping, "total double"),
    ):
        assert sum(row.total for row in made.collect()) == 8000 * 7999 / 2
