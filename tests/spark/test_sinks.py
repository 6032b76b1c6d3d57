"""Files that the workers write, read back by Spark, after failures, retries and kills too."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, Sessions, failure, in_the_end
from nights import nightly
from pyspark.sql import functions as F
from test_sources import SPARKS, same

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, ResourceError, SchemaError

LONG = os.environ.get("FASTBUF_LONG") == "1"
pytestmark = pytest.mark.spark
MODES = ["pipelined", "blocking"]


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """20,000 rows in four files."""
    path = tmp_path / "in"
    path.mkdir()
    for i in range(4):
        ns = np.arange(i * 5000, (i + 1) * 5000)
        pq.write_table(pa.table({"k": ns % 7, "n": ns}), path / f"{i}.parquet")
    return path


def hidden(path: Path) -> list[str]:
    """What stands beside and in a directory that no reader looks at."""
    return [str(p) for base in (path.parent, path) for p in base.glob("[._]*") if p.name != "_SUCCESS"]


def test_every_type_comes_back_as_spark_wrote_it(spark: Any, tmp_path: Path) -> None:
    """In a zone that is not UTC."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        df = spark.range(0, 100, 1, 3).selectExpr(*SPARKS)
        df.write.parquet(str(tmp_path / "theirs"))
        wrote = fbs.write_parquet(df, tmp_path / "ours")
        assert (wrote.files, wrote.rows) == (3, 100)
        theirs = spark.read.parquet(str(tmp_path / "theirs"))
        assert same(spark.read.parquet(str(tmp_path / "ours")), theirs) == 100
        assert same(fbs.read_parquet(spark, tmp_path / "ours").to_df(), theirs) == 100
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def too_long(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A decimal with more digits than its type, which Arrow lets one make."""
    for batch in batches:
        numbers = pa.array([Decimal("12345678901234567890.12")] * batch.num_rows, pa.decimal128(22, 2))
        yield pa.record_batch({"id": batch.column(0), "v": numbers.cast(pa.decimal128(10, 2), safe=False)})


def one_too_long(table: pa.Table) -> pa.Table:
    return pa.Table.from_batches(too_long(iter(table.to_batches())))


def test_decimals_of_too_many_digits_are_refused(spark: Any, tmp_path: Path) -> None:
    """As by Spark; where no batch enters the JVM, Parquet would keep other numbers (508706309.32)."""
    schema = "id long, v decimal(10,2)"
    df = spark.range(20)
    assert failure(df.mapInArrow(too_long, schema).collect)
    source = fbs.pipeline(df)
    for i, made in enumerate(
        (
            source.map_in_arrow(too_long, schema),
            source.map_in_arrow(too_long, schema).shuffle("id", partitions=2),
            source.group_by("id", partitions=2).apply_in_arrow(one_too_long, schema),
        )
    ):
        told = failure(lambda i=i, made=made: made.write_parquet(tmp_path / str(i)))
        assert "too_long' (" in told
        assert "gave 12345678901234567890.12 in column v, whose type decimal128(10, 2) ends at 10 digits" in told
        assert not (tmp_path / str(i)).exists()


def test_structs_that_may_be_null_of_fields_that_may_not(spark: Any, tmp_path: Path) -> None:
    """At any depth: a null struct has no null in its fields, for Spark."""
    inner = "named_struct('x', id, 'y', named_struct('z', timestamp_seconds(id), 'w', array(id)))"
    some = f"if(id % 3 = 0, null, {inner})"
    df = spark.range(20).selectExpr(
        "id", f"{some} as s", f"array({some}) as a", f"map(id, {some}) as m", f"{inner} as n"
    )
    assert not df.schema["s"].dataType["x"].nullable
    assert fbs.write_parquet(df, tmp_path / "ours").rows == 20
    df.write.parquet(str(tmp_path / "theirs"))
    theirs = spark.read.parquet(str(tmp_path / "theirs"))
    assert same(spark.read.parquet(str(tmp_path / "ours")), theirs) == 20
    assert same(fbs.read_parquet(spark, tmp_path / "ours").to_df(), theirs) == 20


KEYS = "elt(1 + id % 4, 'a', 'b/c=d %', '', null) as s", "date_add(date'2020-01-01', cast(id % 2 as int)) as d"


def test_directories_named_by_values(spark: Any, tmp_path: Path) -> None:
    """As Spark names them, so that Spark reads the same back; each file in its directory."""
    df = spark.range(0, 200, 1, 2).selectExpr("id", *KEYS, "id % 3 = 0 as b")
    fbs.write_parquet(df, tmp_path / "ours", partition_by=["s", "d", "b"])
    df.write.partitionBy("s", "d", "b").parquet(str(tmp_path / "theirs"))
    assert same(spark.read.parquet(str(tmp_path / "ours")), spark.read.parquet(str(tmp_path / "theirs"))) == 200
    folders = [
        {str(p.parent.relative_to(tmp_path / name)) for p in (tmp_path / name).rglob("*.parquet")}
        for name in ("ours", "theirs")
    ]
    assert folders[0] == folders[1]


def test_directories_of_decimals(spark: Any, tmp_path: Path) -> None:
    """Without exponents, as Spark names them, so that both readers find numbers."""
    df = spark.range(40).selectExpr("id", "cast(cast(id % 4 as double) / 1e8 as decimal(20, 10)) as d")
    fbs.write_parquet(df, tmp_path / "ours", partition_by="d")
    df.write.partitionBy("d").parquet(str(tmp_path / "theirs"))
    theirs = spark.read.parquet(str(tmp_path / "theirs"))
    assert same(spark.read.parquet(str(tmp_path / "ours")), theirs) == 40
    assert same(fbs.read_parquet(spark, tmp_path / "ours").to_df(), theirs) == 40
    names = [sorted(p.name for p in (tmp_path / name).glob("d=*")) for name in ("ours", "theirs")]
    assert names[0] == names[1]


FLOATS = "1.0 0.1 1e-10 1e-3 9.99e-4 9999999.0 1.5e300 2.2250738585072014e-308 -2e38 0.0 NaN 3.4e38 -1e-30"


@pytest.mark.parametrize("kind", ["double", "float"])
def test_directories_of_floats(spark: Any, tmp_path: Path, kind: str) -> None:
    """Named as Spark names them, a zero by its sign; both readers find doubles, NaN and infinities among them.

    But 1.0E7 is a whole number for them, and with others the column is one of strings.
    """
    values = [*FLOATS.split(), "Infinity", "-Infinity", "-1.25", "1.25e7", "-0.0"]
    rows = ", ".join(f"({i}L, {kind}('{value}'))" for i, value in enumerate(values))
    df = spark.sql(f"select * from values {rows}, ({len(values)}L, null) as t(id, p)").coalesce(1)
    fbs.write_parquet(df, tmp_path / "ours", partition_by="p")
    df.where("id <> 18").write.partitionBy("p").parquet(str(tmp_path / "theirs"))
    df.where("id = 18").write.mode("append").partitionBy("p").parquet(str(tmp_path / "theirs"))  # it confuses zeros
    names = [sorted(p.name for p in (tmp_path / name).glob("p=*")) for name in ("ours", "theirs")]
    assert names[0] == names[1]
    own = spark.read.parquet(str(tmp_path / "theirs"))
    made = fbs.read_parquet(spark, tmp_path / "ours")
    assert made.schema["p"].dataType.simpleString() == own.schema["p"].dataType.simpleString() == "string"
    assert sorted(map(str, made.collect())) == sorted(map(str, own.collect()))
    for name in ("ours", "theirs"):
        shutil.rmtree(tmp_path / name / "p=1.25E7")
    own, made = spark.read.parquet(str(tmp_path / "theirs")), fbs.read_parquet(spark, tmp_path / "ours")
    assert made.schema["p"].dataType.simpleString() == own.schema["p"].dataType.simpleString() == "double"
    assert sorted(map(str, made.collect())) == sorted(map(str, own.collect()))


def test_directories_of_instants(spark: Any, tmp_path: Path) -> None:
    """In a zone that is not UTC; both readers find the same ones."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        df = spark.range(40).selectExpr("id", "timestamp_micros(id % 4 * 86400123450) as t")
        fbs.write_parquet(df, tmp_path / "ours", partition_by="t")
        theirs = spark.read.schema("id long, t timestamp").parquet(str(tmp_path / "ours"))
        assert theirs.exceptAll(df).count() == 0
        ours = fbs.read_parquet(spark, tmp_path / "ours", partition_types={"t": "timestamp"})
        assert same(ours.to_df(), theirs) == 40
        # Spark infers no microseconds, and so strings of all of them
        own = spark.read.parquet(str(tmp_path / "ours"))
        assert own.schema["t"].dataType.simpleString() == "string"
        assert same(fbs.read_parquet(spark, tmp_path / "ours").to_df(), own) == 40
        whole = df.selectExpr("id", "date_trunc('second', t) as t", "cast(id % 3 as decimal(38, 0)) * 1e20BD as d")
        fbs.write_parquet(whole, tmp_path / "whole", partition_by=["t", "d"])
        own = spark.read.parquet(str(tmp_path / "whole"))
        assert [own.schema[name].dataType.typeName() for name in "td"] == ["timestamp", "decimal"]
        assert same(fbs.read_parquet(spark, tmp_path / "whole").to_df(), own) == 40
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_directories_of_years_that_python_does_not_have(spark: Any, tmp_path: Path) -> None:
    """Before 1 and after 9999."""
    for number, zone in enumerate(["UTC", "America/New_York"]):
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            df = spark.range(9).selectExpr(
                "id",
                "date_add(date'0000-12-30', cast(id % 3 * 3652060 as int)) as d",
                "timestamp_micros((id % 3 - 1) * 253402300800120000) as t",
                "cast(timestamp_seconds(id % 2 * 253402300800) as timestamp_ntz) as n",
            )
            ours, theirs = tmp_path / f"ours{number}", tmp_path / f"theirs{number}"
            fbs.write_parquet(df, ours, partition_by=["d", "t", "n"])
            df.write.partitionBy("d", "t", "n").parquet(str(theirs))
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
        names = [{str(p.parent.relative_to(base)) for p in base.rglob("*.parquet")} for base in (ours, theirs)]
        assert names[0] == names[1]


def test_what_readers_would_not_see_is_refused(spark: Any, tmp_path: Path) -> None:
    """Spark writes it, and finds nothing."""
    for name in ("", ".x"):
        df = spark.range(3).selectExpr("id", f"id as `{name or 'k'}`").toDF("id", name)
        with pytest.raises(ConfigError, match="readers do not see, or do not understand"):
            fbs.write_parquet(df, tmp_path / "out", partition_by=[name])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("path", "error", "said"),
    [
        ("/proc/x", ResourceError, "cannot write to /proc/x"),
        ("a\0b", ConfigError, "no file can have a name"),
        ("a\udcff", ConfigError, "no file can have a name"),
        ("hdfs://localhost:1/x", ResourceError, "hdfs://localhost:1/x cannot be reached"),
    ],
)
def test_paths_that_are_none(spark: Any, path: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        fbs.write_parquet(spark.range(3), path)


def test_partition_by_takes_names_in_another_case(spark: Any, tmp_path: Path) -> None:
    """Unless spark.sql.caseSensitive is true."""
    df = spark.range(8).selectExpr("id", "id % 2 as Key", "id % 3 as other")
    fbs.write_parquet(df, tmp_path / "ours", partition_by=["key", "OTHER"])
    df.write.partitionBy("key", "OTHER").parquet(str(tmp_path / "theirs"))
    assert same(spark.read.parquet(str(tmp_path / "ours")), spark.read.parquet(str(tmp_path / "theirs"))) == 8
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(ConfigError, match="give names of"):
            fbs.write_parquet(df, tmp_path / "no", partition_by="key")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_no_rows_for_directories_are_no_file(spark: Any, tmp_path: Path) -> None:
    """As of Spark: a file above the directories would be in the way of readers."""
    df = spark.range(8).selectExpr("id", "id % 2 as k")
    fbs.write_parquet(df, tmp_path / "out", "k")
    assert fbs.write_parquet(df.where("id > 99"), tmp_path / "out", "k", "append") == fbs.Written(0, 0, 0)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["_SUCCESS", "k=0", "k=1"]
    assert same(fbs.read_parquet(spark, tmp_path / "out").to_df(), spark.read.parquet(str(tmp_path / "out"))) == 8
    fbs.write_parquet(df.where("id > 99"), tmp_path / "out", "k", "overwrite")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["_SUCCESS"]


def test_more_directories_than_files_that_are_open(spark: Any, tmp_path: Path) -> None:
    """A task has a bounded number of files open, and a bounded memory of what waits for them."""
    df = spark.range(0, 30_000, 1, 1).selectExpr("id", "repeat('x', 100) as s", "id % 200 as k")
    conf = fbs.ShuffleConf(memory_bytes=1 << 20, segment_size=4096)
    wrote = fbs.pipeline(df, conf=conf).write_parquet(tmp_path / "out", partition_by="k")
    assert wrote.files > 200
    assert same(spark.read.parquet(str(tmp_path / "out")), df.selectExpr("id", "s", "cast(k as int) as k")) == 30_000


def test_a_task_writes_one_file_to_each_directory(spark: Any, tmp_path: Path) -> None:
    """Of more directories than it has files open, too, as long as memory has room for the rows."""
    batch_rows = "spark.sql.execution.arrow.maxRecordsPerBatch"
    df = spark.range(0, 2000, 1, 1).selectExpr("id", "id % 100 as k")
    spark.conf.set(batch_rows, "500")
    try:
        wrote = fbs.write_parquet(df, tmp_path / "out", "k")
    finally:
        spark.conf.unset(batch_rows)
    assert (wrote.files, wrote.rows) == (100, 2000)


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_files_in_and_files_out(spark: Any, numbers: Path, tmp_path: Path, mode: str) -> None:
    """Through a shuffle and groups; then again in each of the modes."""
    out = tmp_path / "out"
    summed = fbs.read_parquet(spark, numbers).group_by("k", partitions=2, mode=mode).agg_arrow([("n", "sum")])
    wrote = summed.write_parquet(out)
    assert wrote.rows == 7
    want = sorted(spark.read.parquet(str(numbers)).groupBy("k").sum("n").collect())
    assert sorted(spark.read.parquet(str(out)).collect()) == want
    with pytest.raises(ResourceError, match="is there already"):
        summed.write_parquet(out)
    summed.write_parquet(out, mode="append")
    assert sorted(spark.read.parquet(str(out)).collect()) == sorted(want + want)
    # What it overwrites is what it reads
    fbs.read_parquet(spark, out).rebalance(2, mode=mode).write_parquet(out, mode="overwrite")
    assert sorted(spark.read.parquet(str(out)).collect()) == sorted(want + want)
    assert hidden(out) == []


def test_no_rows_are_a_file_with_the_schema(spark: Any, tmp_path: Path) -> None:
    """As of Spark."""
    df = spark.range(0).selectExpr("id", "'x' as s")
    wrote = fbs.write_parquet(df, tmp_path / "out")
    assert (wrote.files, wrote.rows) == (1, 0)
    assert same(spark.read.parquet(str(tmp_path / "out")), df.selectExpr("id", "nullif(s, 'x') as s")) == 0


def late_failure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise ValueError("after all rows")


@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["error", "overwrite", "append"])
def test_a_failed_run_leaves_what_was_there(spark: Any, numbers: Path, tmp_path: Path, mode: str, how: str) -> None:
    """Though its tasks have written all rows."""
    out = tmp_path / "out"
    if how != "error":
        fbs.write_parquet(spark.range(5), out)
    failing = fbs.read_parquet(spark, numbers).shuffle("k", partitions=2, mode=mode)
    words = failure(lambda: failing.map_in_arrow(late_failure, "k long, n long").write_parquet(out, mode=how))
    assert "ValueError: after all rows" in words
    if how == "error":
        assert not out.exists()
    else:
        assert spark.read.parquet(str(out)).count() == 5
    assert in_the_end(lambda: hidden(out), lambda found: not found) == []


class WritesOn:
    """The first task fails as soon as the others write; these go on, to new directories all the time."""

    __name__ = "writes_on"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        list(batches)
        if context.partitionId() == 0:
            while len(list(self._folder.iterdir())) < 3:
                time.sleep(0.01)  # between two looks
            raise ValueError("one of them")
        for number in range(100_000):
            yield pa.record_batch({"k": [number], "n": [number]})
            if number == 1000:
                (self._folder / str(context.partitionId())).touch()


@nightly(how="append")
@pytest.mark.parametrize("how", ["error", "append"])
def test_tasks_that_write_on_when_the_run_has_failed(spark: Any, tmp_path: Path, how: str) -> None:
    """Spark does not end them at once: the error is the one that failed it, and what they write goes away."""
    out, marks = tmp_path / "files" / "out", tmp_path / "marks"
    marks.mkdir()
    if how == "append":
        fbs.write_parquet(spark.range(5).selectExpr("id as k", "id as n"), out, partition_by="k")
    conf = fbs.ShuffleConf(memory_bytes=64 << 10, segment_size=4096)
    p = fbs.pipeline(spark.range(0, 4, 1, 4).selectExpr("id as k", "id as n"), conf=conf)
    p = p.map_in_arrow(WritesOn(marks), "k long, n long")
    words = failure(lambda: p.write_parquet(out, partition_by="k", mode=how))
    assert "ValueError: one of them" in words

    def workers() -> list[str]:
        """Those that still write."""
        java = psutil.Process(spark.sparkContext._gateway.proc.pid)
        found = []
        for process in java.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found += [file.path for file in process.open_files() if file.path.startswith(str(tmp_path))]
        return found

    assert in_the_end(workers, lambda found: not found) == []
    assert in_the_end(lambda: hidden(out), lambda found: not found) == []
    assert len(list(out.rglob("*.parquet"))) == (5 if how == "append" else 0)


class FailsOnce:
    """Raises in the first attempt of a task, when it has given all its rows."""

    __name__ = "fails_once"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            (self._folder / f"failed-{context.partitionId()}").touch()
            raise ValueError("the first attempt")


@pytest.mark.parametrize("mode", [*MODES, "none"])
def test_a_task_that_is_tried_again_writes_once(sessions: Sessions, numbers: Path, tmp_path: Path, mode: str) -> None:
    """The files of an attempt that did not count are seen by nobody."""
    spark = sessions.get("local[3,3]")
    failed = tmp_path / "failed"
    failed.mkdir()
    read = fbs.read_parquet(spark, numbers)
    moved = read if mode == "none" else read.shuffle("k", partitions=1, mode=mode)
    out = tmp_path / "out"
    moved.map_in_arrow(FailsOnce(failed), "k long, n long").write_parquet(out)
    assert list(failed.iterdir())
    assert same(spark.read.parquet(str(out)), spark.read.parquet(str(numbers))) == 20_000
    assert hidden(out) == []


class FailsFirst:
    """Raises once in all, when it has given all its rows."""

    __name__ = "fails_first"

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not self._mark.exists():
            self._mark.touch()
            raise ValueError("the first of all")


@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_stage_that_fails_once_writes_once(
    sessions: Sessions, numbers: Path, tmp_path: Path, at: int, mode: str
) -> None:
    """Before, between and behind two shuffles: Spark tries again, and each row is there once."""
    spark = sessions.get("local[3,3]")
    p, mark, out = fbs.read_parquet(spark, numbers), tmp_path / "mark", tmp_path / "out"
    for stage in range(3):
        if stage:
            p = p.shuffle("k" if stage == 1 else "n", partitions=1, mode=mode)
        if stage == at:
            p = p.map_in_arrow(FailsFirst(mark), "k long, n long")
    p.write_parquet(out)
    assert mark.exists()
    assert same(spark.read.parquet(str(out)), spark.read.parquet(str(numbers))) == 20_000
    assert hidden(out) == []


DRIVER = """
import sys, time
sys.path.insert(0, {root!r})
from pyspark.sql import SparkSession
import fastbuf_spark as fbs

def waits(batches):
    for batch in batches:
        yield batch
    open(marks, "a").write("x")
    time.sleep(600)

marks = sys.argv[3]
spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
read = fbs.read_parquet(spark, sys.argv[1]).shuffle("k", partitions=2, mode="pipelined")
read.map_in_arrow(waits, "k long, n long").write_parquet(sys.argv[2], mode="append")
"""


@pytest.mark.parametrize("there", [False, True] if LONG else [True])
def test_a_driver_that_is_killed_leaves_nothing_to_see(spark: Any, numbers: Path, tmp_path: Path, there: bool) -> None:
    """When its tasks have written; and the next write takes away what it left."""
    out, marks = tmp_path / "out", tmp_path / "marks"
    if there:
        fbs.write_parquet(spark.range(5).selectExpr("id as k", "id as n"), out)
    program = tmp_path / "driver.py"
    program.write_text(DRIVER.format(root=str(ROOT)))
    path = os.pathsep.join([str(ROOT), str(ROOT / "bindings")])
    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen(
            [sys.executable, str(program), str(numbers), str(out), str(marks)],
            env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            waiting = in_the_end(lambda: marks.exists() and marks.read_text(), lambda text: text == "xx")
            assert waiting == "xx", (tmp_path / "log").read_text()[-2000:]
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    assert hidden(out) != []
    assert (spark.read.parquet(str(out)).count() if there else out.exists()) == (5 if there else False)
    fbs.read_parquet(spark, numbers).write_parquet(out, mode="append")
    assert spark.read.parquet(str(out)).count() == 20_000 + (5 if there else 0)
    assert hidden(out) == []


def test_what_cannot_be_is_said_at_once(spark: Any, tmp_path: Path) -> None:
    """Before anything runs, and without a trace."""
    df = spark.range(3).selectExpr("id", "1.5d as x", "null as v")
    with pytest.raises(SchemaError, match="void"):
        fbs.write_parquet(df, tmp_path / "out")
    waits = df.selectExpr("id", "make_dt_interval(id) as i")
    with pytest.raises(SchemaError, match="interval day to second, which names no directory"):
        fbs.write_parquet(waits, tmp_path / "out", partition_by="i")
    with pytest.raises(ConfigError, match="leave one for the files"):
        fbs.write_parquet(df.select("id"), tmp_path / "out", partition_by="id")
    for odd in (F.col("id"), [F.col("id")], 5, ["id", "ID"], ["id", None], ""):
        with pytest.raises(ConfigError, match=r"partition_by is .*: give names of \['id', 'x'\], each once"):
            fbs.write_parquet(df.drop("v"), tmp_path / "out", partition_by=odd)
    with pytest.raises(SchemaError, match="partition_by: 's' has the type string collate UTF8_LCASE"):
        fbs.write_parquet(df.selectExpr("id", "'a' collate UTF8_LCASE as s"), tmp_path / "out", partition_by="s")
    spark.conf.set("spark.sql.session.timeZone", "GMT+5")
    try:
        with pytest.raises(ConfigError, match=r"Python does not know spark.sql.session.timeZone='GMT\+5': set it to"):
            fbs.write_parquet(df.selectExpr("id", "timestamp_seconds(id) as t"), tmp_path / "out", partition_by="t")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    for empty in (df.select(), df.selectExpr("id", "array(struct()) as s")):
        with pytest.raises(SchemaError, match="has a struct without fields"):
            fbs.write_parquet(empty, tmp_path / "out")
    for twice in ("named_struct('x', id, 'X', id)", "array(named_struct('x', id, 'X', id))"):
        with pytest.raises(SchemaError, match=r"\['x', 'X'\] has a name twice"):
            fbs.write_parquet(df.selectExpr("id", f"{twice} as s"), tmp_path / "out")
    with pytest.raises(ConfigError, match="compression is 'zip'"):
        fbs.write_parquet(df.drop("v"), tmp_path / "out", compression="zip")
    with pytest.raises(ConfigError, match="mode is 'replace'"):
        fbs.write_parquet(df.drop("v"), tmp_path / "out", mode="replace")
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "DYNAMIC")
    try:
        with pytest.raises(ConfigError, match="partitionOverwriteMode is dynamic, and write_parquet replaces"):
            fbs.write_parquet(df.drop("v"), tmp_path / "out", "id", "overwrite")
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "settings", "codec", "groups"),
    [
        ({}, {}, "SNAPPY", {3000: 1}),
        ({"row_group_size": 1000}, {"spark.sql.parquet.compression.codec": "zstd"}, "ZSTD", {1000: 3}),
        ({"compression": "UNCOMPRESSED"}, {"spark.sql.parquet.compression.codec": "gzip"}, "UNCOMPRESSED", {3000: 1}),
        ({}, {"spark.hadoop.parquet.block.size": "1"}, "SNAPPY", {1000: 3}),
        ({"compression": "lz4_raw"}, {"spark.sql.files.maxRecordsPerFile": "700"}, "LZ4", {700: 4, 200: 1}),
    ],
)
def test_files_are_written_as_people_set_it(
    spark: Any, tmp_path: Path, given: Any, settings: dict[str, str], codec: str, groups: dict[int, int]
) -> None:
    """By arguments, or by what Spark's own writer is told."""
    df = spark.range(0, 3000, 1, 1)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        wrote = fbs.write_parquet(df, tmp_path / "a", **given)
    finally:
        for name in ("spark.sql.execution.arrow.maxRecordsPerBatch", *settings):
            spark.conf.unset(name)
    files = [pq.ParquetFile(path).metadata for path in (tmp_path / "a").glob("*.parquet")]
    found = [file.row_group(i) for file in files for i in range(file.num_row_groups)]
    assert Counter(group.num_rows for group in found) == groups
    assert {group.column(0).compression for group in found} == {codec}
    assert (wrote.rows, wrote.files) == (3000, len(files))
    assert len(files) == (5 if "700" in settings.values() else 1)
    assert spark.read.parquet(str(tmp_path / "a")).distinct().count() == 3000


@pytest.mark.parametrize(
    ("given", "settings", "said"),
    [
        ({"compression": "lzo"}, {}, "compression is 'lzo'"),
        ({}, {"spark.sql.parquet.compression.codec": "lzo"}, r"spark\.sql\.parquet\.compression\.codec is 'lzo'"),
        ({"row_group_size": 0}, {}, "row_group_size is 0"),
        ({}, {"spark.hadoop.parquet.block.size": "64m"}, "block.size is '64m': give a whole number"),
        ({}, {"spark.sql.parquet.writeLegacyFormat": "true"}, "writeLegacyFormat is 'true'"),
        ({}, {"spark.sql.parquet.outputTimestampType": "INT96"}, "outputTimestampType is 'INT96'"),
    ],
)
def test_what_a_writer_does_not_honour(
    spark: Any, tmp_path: Path, given: Any, settings: dict[str, str], said: str
) -> None:
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        with pytest.raises(ConfigError, match=said):
            fbs.write_parquet(spark.range(3), tmp_path / "a", **given)
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert os.listdir(tmp_path) == []
