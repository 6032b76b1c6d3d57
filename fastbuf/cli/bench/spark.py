"""Spark's own shuffle between two Python stages, against fastbuf's modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fastbuf.cli.bench.measure import Case, LeftOut, Size, Suite, Way, need

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

RECORD = "k long, id long, x double, name string"
COUNTED = "rows long, total long"
PARTITIONS = 2


def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """First stage: passes its batches on, so that the shuffle dominates."""
    yield from batches


def counting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Second stage: counts rows and sums a column, so that everything must be read and decoded."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = total = 0
    for batch in batches:
        rows += batch.num_rows
        total += pc.sum(batch["id"]).as_py() or 0
    yield pa.RecordBatch.from_pydict({"rows": [rows], "total": [total]})


@contextmanager
def shuffled(size: Size) -> Iterator[Case]:
    need("pyspark", "spark", "spark")
    need("pyarrow", "spark", "spark")
    from fastbuf.cli import doctor
    from fastbuf.cli.spark import session

    java = doctor.java()
    if java.state != doctor.OK:
        raise LeftOut(f"spark: Java: {java.detail} ({java.advice})")
    n = 1_000_000 // size.divide
    with session("fastbuf bench", "local[4]") as (spark, _):
        import fastbuf_spark as fbs

        data = spark.range(0, n, 1, 2).selectExpr(
            "pmod(id * 7919, 1000003) AS k", "id", "id * 0.5D AS x", "concat('user-', pmod(id, 1000)) AS name"
        )
        data = data.cache()
        data.count()

        def checked(plan: Callable[[], DataFrame]) -> Way:
            def run() -> None:
                table: Any = plan().toArrow()
                if (sum(table["rows"].to_pylist()), sum(table["total"].to_pylist())) != (n, n * (n - 1) // 2):
                    raise AssertionError(f"rows were lost: {table.to_pylist()}")

            return run

        def ours(mode: str) -> Way:
            return checked(
                lambda: fbs.map_in_arrow(
                    data,
                    counting,
                    COUNTED,
                    keys=["k"],
                    num_partitions=PARTITIONS,
                    before=passing,
                    before_schema=RECORD,
                    mode=mode,
                )
            )

        def spark_own() -> DataFrame:
            return data.mapInArrow(passing, RECORD).repartition(PARTITIONS, "k").mapInArrow(counting, COUNTED)

        stopped = fbs.preflight(spark, num_partitions=PARTITIONS)
        ways = {} if stopped else {"fastbuf, pipelined": ours("pipelined")}
        ways |= {"fastbuf, blocking": ours("blocking"), "Spark's own shuffle": checked(spark_own)}
        left_out = [f"spark, pipelined: {stopped}"] if stopped else []
        yield Case("Python stage, shuffle by key, Python stage", "row", n, ways, left_out)


SUITE = Suite("spark", (shuffled,), share=4.0, setup_s=15.0)
