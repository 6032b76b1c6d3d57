"""The main job: Python stage -> shuffle by key -> Python stage that counts, on rows of (long, long, double, string).

Shape: FASTBUF_BENCH_ROWS rows (10 M; 100 k in a smoke run), about 35 bytes each, cached.  In one run, in turn: floor
(one Python stage, no shuffle), Spark's own ``mapInArrow -> repartition(R, key) -> mapInArrow``, and fastbuf's modes.

All at Spark's defaults, under which it adds up an Arrow batch's bytes after every row; pipelined producers go without
where rows are known to be short, and so can be faster than the floor.  In the shape "unmeasured" nobody measures: the
session's ``spark.sql.execution.arrow.maxBytesPerBatch`` is lifted for all ways, Spark's own too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
ROWS = int(os.environ.get("FASTBUF_BENCH_ROWS", "100_000" if SMOKE else "10_000_000"))
ROUNDS = int(os.environ.get("FASTBUF_BENCH_ROUNDS", "5"))
MAX_BYTES, NO_LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1)
RECORD = "k long, id long, x double, name string"
KEY = "k"

# Name: Spark's master, partitions out (R), partitions in (M), modes, whether Spark measures Arrow batches.
SHAPES: dict[str, tuple[str, int, int, tuple[str, ...], bool]] = {
    "local[4] R=2 M=2": ("local[4]", 2, 2, ("pipelined", "blocking"), True),
    "local[4] R=2 M=16": ("local[4]", 2, 16, ("pipelined", "blocking"), True),
    "local[2] R=1 M=2": ("local[2]", 1, 2, ("pipelined", "blocking"), True),
    "local[4] R=2 M=2 unmeasured": ("local[4]", 2, 2, ("pipelined", "blocking"), False),
    "local[4] R=200 M=4": ("local[4]", 200, 4, ("blocking",), True),
    "local[4] R=200 M=4 unmeasured": ("local[4]", 200, 4, ("blocking",), False),
}


def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """First stage: hands on what it gets, so that the shuffle is what is measured."""
    yield from batches


def counting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Second stage: rows, and the sum of a column, so that nothing may be left undecoded or out."""
    import pyarrow.compute as pc

    rows = total = 0
    for batch in batches:
        rows += batch.num_rows
        total += pc.sum(batch["id"]).as_py() or 0
    yield pa.RecordBatch.from_pydict({"rows": [rows], "total": [total]})


@pytest.fixture(scope="module")
def sessions() -> Iterator[Callable[[str], SparkSession]]:
    """A session for a master; one at a time, since a JVM holds one SparkContext."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # The workers import the two stages from this file.
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    from pyspark.sql import SparkSession

    current: dict[str, SparkSession] = {}

    def get(master: str) -> SparkSession:
        if master not in current:
            for old in current.values():
                old.stop()
            current.clear()
            current[master] = (
                SparkSession.builder.master(master)
                .appName(f"fastbuf bench {master}")
                .config("spark.driver.memory", "6g")
                .config("spark.driver.host", "127.0.0.1")
                .config("spark.ui.enabled", "false")
                .config("spark.ui.showConsoleProgress", "false")
                .config("spark.log.level", "ERROR")
                .getOrCreate()
            )
        return current[master]

    yield get
    for spark in current.values():
        spark.stop()


def records(spark: SparkSession, partitions: int) -> DataFrame:
    """The rows, cached in ``partitions`` partitions."""
    data = spark.range(0, ROWS, 1, partitions).selectExpr(
        "pmod(id * 7919, 1000003) AS k", "id", "id * 0.5D AS x", "concat('user-', pmod(id, 1000)) AS name"
    )
    data = data.cache()
    assert data.count() == ROWS
    return data


def checked(plan: Callable[[], DataFrame]) -> Callable[[], None]:
    """Runs a plan and checks that every row arrived."""

    def run() -> None:
        found = plan().toArrow()
        assert sum(found["rows"].to_pylist()) == ROWS
        assert sum(found["total"].to_pylist()) == ROWS * (ROWS - 1) // 2

    return run


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shape", SHAPES)
def test_main_job(shape: str, sessions: Any, in_turn: Any, benchmark: Any) -> None:
    import fastbuf_spark as fbs

    master, partitions, parts_in, modes, measured = SHAPES[shape]
    spark = sessions(master)
    if measured:
        spark.conf.unset(MAX_BYTES)
    else:
        spark.conf.set(MAX_BYTES, NO_LIMIT)
    data = records(spark, parts_in)
    counts = "rows long, total long"

    def floor() -> DataFrame:
        return data.mapInArrow(counting, counts)

    def spark_own() -> DataFrame:
        return data.mapInArrow(passing, RECORD).repartition(partitions, KEY).mapInArrow(counting, counts)

    def ours(mode: str) -> Callable[[], DataFrame]:
        return lambda: fbs.map_in_arrow(
            data,
            counting,
            counts,
            keys=[KEY],
            num_partitions=partitions,
            before=passing,
            before_schema=RECORD,
            mode=mode,
        )

    benchmark.group = f"main job, {shape}, {ROWS:,} rows"
    in_turn(
        {"floor": checked(floor), "spark": checked(spark_own), **{mode: checked(ours(mode)) for mode in modes}},
        rounds=ROUNDS,
        baselines=("floor", "spark"),
        speed_up_over="spark",
        rows=ROWS,
        master=master,
        partitions_in=parts_in,
        partitions_out=partitions,
    )
    data.unpersist(blocking=True)
