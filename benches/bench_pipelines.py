"""Files in, stages, files out: pipelines beside Spark's own way of the same, on the same Parquet files.

Shape: FASTBUF_BENCH_ROWS rows (10 M; 20 k in a smoke run) of (long, long, double, string) in M = 4 files of Parquet;
``local[4]``, R = 1 partition after each shuffle, so that three in a row have slots; groups have R = 2, and each of the
two inputs of a cogroup half of the rows.  In one run, in turn: Spark at its defaults, Spark with ``maxBytesPerBatch``
lifted (it does not measure its Arrow batches then), and fastbuf's pipeline in blocking mode (auto) and in pipelined.
Seven rounds: a job of half a second still gets faster in the first few, as Java compiles what it runs often.

And one shuffle into R partitions, of which a pipeline's tasks serve many: to_df has a task for each, as Spark has (what
as many of Spark's own Python tasks take, of a row each, is a way of its own).  And the jobs above with R = 200,
Spark's default, where each stage has far more partitions than slots.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sessions import session

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
ROWS = int(os.environ.get("FASTBUF_BENCH_ROWS", "20_000" if SMOKE else "10_000_000"))
ROUNDS = int(os.environ.get("FASTBUF_BENCH_ROUNDS", "7"))
MAX_BYTES, NO_LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1)
RECORD = "k long, id long, x double, name string"
COUNTS, SUMS = "rows long, total long", "k long, id_sum long"
FILES = 4


def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A stage that hands on what it gets."""
    yield from batches


def counting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows, and the sum of a column, so that nothing may be left undecoded or out."""
    import pyarrow.compute as pc

    rows = total = 0
    for batch in batches:
        rows += batch.num_rows
        total += pc.sum(batch["id"]).as_py() or 0
    yield pa.RecordBatch.from_pydict({"rows": [rows], "total": [total]})


def summed(table: pa.Table) -> pa.Table:
    """A group as one row."""
    import pyarrow.compute as pc

    return pa.table({"k": [table["k"][0].as_py()], "id_sum": [pc.sum(table["id"]).as_py()]})


def summed_pair(left: pa.Table, right: pa.Table) -> pa.Table:
    """Two groups of a key as one row."""
    import pyarrow.compute as pc

    key = (left if left.num_rows else right)["k"][0].as_py()
    return pa.table({"k": [key], "id_sum": [(pc.sum(left["id"]).as_py() or 0) + (pc.sum(right["id"]).as_py() or 0)]})


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with session("pipelines") as made:
        yield made


@pytest.fixture(scope="module")
def files(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("pipelines") / "in")
    spark.range(0, ROWS, 1, FILES).selectExpr(
        "pmod(id * 7919, 10007) AS k", "id", "id * 0.5D AS x", "concat('user-', pmod(id, 1000)) AS name"
    ).write.parquet(path)
    return path


def check_counts(table: pa.Table) -> None:
    assert sum(table["rows"].to_pylist()) == ROWS
    assert sum(table["total"].to_pylist()) == ROWS * (ROWS - 1) // 2


Ways = tuple[Callable[[], None], Callable[[str], None]]  #: Spark's, and fastbuf's in a mode


def shuffles(spark: Any, files: str, out: str, count: int, partitions: int = 1) -> Ways:
    """Parquet -> map -> shuffle -> map, as many times; counted at the end."""
    import fastbuf_spark as fbs

    def theirs() -> None:
        df = spark.read.parquet(files)
        for number in range(count):
            df = df.mapInArrow(passing, RECORD).repartition(partitions, "k" if number % 2 == 0 else "name")
        check_counts(df.mapInArrow(counting, COUNTS).toArrow())

    def ours(mode: str) -> None:
        p = fbs.read_parquet(spark, files)
        for number in range(count):
            key = "k" if number % 2 == 0 else "name"
            p = p.map_in_arrow(passing, RECORD).shuffle(key, partitions=partitions, mode=mode)
        check_counts(p.map_in_arrow(counting, COUNTS).to_arrow())

    return theirs, ours


def groups(spark: Any, files: str, out: str, count: int, partitions: int = 2) -> Ways:
    """Parquet -> map -> shuffle -> group -> Parquet."""
    import fastbuf_spark as fbs

    def done() -> None:
        import pyarrow.parquet as pq

        assert sum(pq.read_table(out)["id_sum"].to_pylist()) == ROWS * (ROWS - 1) // 2
        shutil.rmtree(out)

    def theirs() -> None:
        mapped = spark.read.parquet(files).mapInArrow(passing, RECORD)
        mapped.groupBy("k").applyInArrow(summed, SUMS).write.parquet(out)
        done()

    def ours(mode: str) -> None:
        mapped = fbs.read_parquet(spark, files).map_in_arrow(passing, RECORD)
        mapped.group_by("k", partitions=partitions, mode=mode).apply_in_arrow(summed, SUMS).write_parquet(out)
        done()

    return theirs, ours


def delta_groups(spark: Any, files: str, out: str, count: int, partitions: int = 2) -> Ways:
    """The same from a Delta table to another; Spark, which has no reader of these here, from Parquet to Parquet."""
    import deltalake

    import fastbuf_spark as fbs

    table = f"{Path(out).parent}/table"
    fbs.read_parquet(spark, files).write_delta(table)

    def ours(mode: str) -> None:
        mapped = fbs.read_delta(spark, table).map_in_arrow(passing, RECORD)
        mapped.group_by("k", partitions=partitions, mode=mode).apply_in_arrow(summed, SUMS).write_delta(out)
        sums = deltalake.DeltaTable(out).to_pyarrow_table(
            columns=["id_sum"]
        )  # without Spark, as the other way's are read
        assert sum(sums["id_sum"].to_pylist()) == ROWS * (ROWS - 1) // 2
        shutil.rmtree(out)

    return groups(spark, files, out, count, partitions)[0], ours


def cogroups(spark: Any, files: str, out: str, count: int, partitions: int = 2) -> Ways:
    """Two Parquet inputs, half of the rows each -> shuffle -> cogroup."""
    import fastbuf_spark as fbs

    left, right = (f"{Path(out).parent}/{side}" for side in ("left", "right"))
    rows = spark.read.parquet(files)
    rows.where(f"id < {ROWS // 2}").write.parquet(left)
    rows.where(f"id >= {ROWS // 2}").select("k", "id", "name").write.parquet(right)

    def check(table: pa.Table) -> None:
        assert sum(table["id_sum"].to_pylist()) == ROWS * (ROWS - 1) // 2

    def theirs() -> None:
        one, other = (spark.read.parquet(path).groupBy("k") for path in (left, right))
        check(one.cogroup(other).applyInArrow(summed_pair, SUMS).toArrow())

    def ours(mode: str) -> None:
        one, other = (
            fbs.read_parquet(spark, path).group_by("k", partitions=partitions, mode=mode) for path in (left, right)
        )
        check(one.cogroup(other).apply_in_arrow(summed_pair, SUMS).to_arrow())

    return theirs, ours


JOBS: dict[str, tuple[Callable[..., Ways], int]] = {
    "one shuffle": (shuffles, 1),
    "two shuffles": (shuffles, 2),
    "three shuffles": (shuffles, 3),
    "groups to files": (groups, 1),
    "groups, Delta to Delta": (delta_groups, 1),
    "cogroup of files": (cogroups, 1),
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("job", JOBS)
def test_pipelines(job: str, spark: Any, files: str, tmp_path: Path, in_turn: Any, benchmark: Any) -> None:
    make, count = JOBS[job]
    theirs, ours = make(spark, files, str(tmp_path / "out"), count)

    benchmark.group = f"pipelines, {job}, {ROWS:,} rows"
    in_turn(
        {
            "spark": theirs,
            "spark, lifted": lifted(spark, theirs),
            "fastbuf": partial(ours, "auto"),
            "fastbuf, pipelined": partial(ours, "pipelined"),
        },
        rounds=ROUNDS,
        baselines=("spark", "spark, lifted"),
        speed_up_over="spark",
        rows=ROWS,
    )


def lifted(spark: Any, theirs: Callable[[], None]) -> Callable[[], None]:
    """Spark's way while it does not measure its batches."""

    def run() -> None:
        spark.conf.set(MAX_BYTES, NO_LIMIT)
        try:
            theirs()
        finally:
            spark.conf.unset(MAX_BYTES)

    return run


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("job", [job for job in JOBS if job != "one shuffle"])
def test_jobs_of_200_partitions(job: str, spark: Any, files: str, tmp_path: Path, in_turn: Any, benchmark: Any) -> None:
    make, count = JOBS[job]
    theirs, ours = make(spark, files, str(tmp_path / "out"), count, 200)

    benchmark.group = f"{job} of 200 partitions, {ROWS:,} rows"
    in_turn(
        {"spark": theirs, "spark, lifted": lifted(spark, theirs), "fastbuf": partial(ours, "auto")},
        rounds=min(3, ROUNDS),
        baselines=("spark", "spark, lifted"),
        speed_up_over="spark",
        rows=ROWS,
    )


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("partitions", [2, 64, 200, 1000])
def test_any_number_of_partitions(partitions: int, spark: Any, files: str, in_turn: Any, benchmark: Any) -> None:
    import fastbuf_spark as fbs

    def theirs() -> None:
        df = spark.read.parquet(files).mapInArrow(passing, RECORD).repartition(partitions, "k")
        check_counts(df.mapInArrow(counting, COUNTS).toArrow())

    def ours() -> Any:
        p = fbs.read_parquet(spark, files).map_in_arrow(passing, RECORD).shuffle("k", partitions=partitions)
        return p.map_in_arrow(counting, COUNTS)

    def one_row_each() -> None:
        """As many Python tasks, of a row each."""
        assert spark.range(0, partitions, 1, partitions).mapInArrow(passing, "id long").count() == partitions

    benchmark.group = f"one shuffle into {partitions} partitions, {ROWS:,} rows"
    in_turn(
        {
            "spark": theirs,
            "spark, lifted": lifted(spark, theirs),
            "fastbuf": lambda: check_counts(ours().to_arrow()),
            "fastbuf, to_df": lambda: check_counts(ours().to_df().toArrow()),
            "tasks alone": one_row_each,
        },
        rounds=min(3, ROUNDS),
        baselines=("spark", "spark, lifted"),
        speed_up_over="spark",
        rows=ROWS,
    )
