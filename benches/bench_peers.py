"""Files in, Python, a shuffle, Python: beside what people would pick instead of Spark, and beside no shuffle at all.

Shape: FASTBUF_BENCH_ROWS rows (10 M; 20 k in a smoke run) of (long, long, double, string) in 4 files of Parquet, on
all cores that there are.  Two jobs, in one run, in turn: stages before and behind a shuffle by key, which see all
columns; and sums of 10,007 groups.  fastbuf, Spark and Ray call a function for each group; Dask calls one for each
partition, which sums up its groups in pandas, and beside it fastbuf's "whole partitions" does so in Arrow.  Spark at
its defaults, and with ``maxBytesPerBatch`` lifted; Dask with P2P; Ray Data with its hash shuffle.  Each reads the files
itself, and is told which columns it needs.  For the groups also Polars and DuckDB, in one process and by their own
sums, and fastbuf's ``agg_arrow`` beside them.  What is not installed is left out, and named: ``pip install
fastbuf[peers]``.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from sessions import session

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
ROWS = int(os.environ.get("FASTBUF_BENCH_ROWS", "20_000" if SMOKE else "10_000_000"))
ROUNDS = int(os.environ.get("FASTBUF_BENCH_ROUNDS", "3"))
MAX_BYTES, NO_LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1)
CORES = len(os.sched_getaffinity(0))
FILES = 4
PARTS = 2  # behind the shuffle
KEYS = min(10_007, ROWS // 2)
RECORD = "k long, id long, x double, name string"
COUNTS, SUMS = "rows long, total long", "k long, id_sum long"
NEEDED = ["k", "id"]  # by the groups
PEERS = {"dask": "distributed", "ray": "ray.data", "polars": "polars", "duckdb": "duckdb"}

Way = Callable[[], None]


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def passed(table: Any) -> Any:
    """A stage that hands on what it gets."""
    return table


def counted(table: pa.Table) -> pa.Table:
    """Rows, and the sum of a column, so that nothing may be left undecoded or out."""
    return pa.table({"rows": [table.num_rows], "total": [pc.sum(table["id"]).as_py() or 0]})


def counted_frame(frame: Any) -> Any:
    import pandas as pd

    return pd.DataFrame({"rows": [len(frame)], "total": [int(frame["id"].sum())]})


def summed(table: pa.Table) -> pa.Table:
    """A group as one row."""
    return pa.table({"k": [table["k"][0].as_py()], "id_sum": [pc.sum(table["id"]).as_py()]})


def sums_of_frame(frame: Any) -> Any:
    """All groups of a partition, as a user of pandas writes it."""
    return frame.groupby("k", as_index=False)["id"].sum().rename(columns={"id": "id_sum"})


def sums_of_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All groups of a partition, as a user of Arrow writes it."""
    found = pa.Table.from_batches(list(batches)).group_by("k").aggregate([("id", "sum")])
    yield from found.select(["k", "id_sum"]).to_batches()


def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def counting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from counted(batch).to_batches()


def check_counts(rows: int, total: int) -> None:
    assert (rows, total) == (ROWS, ROWS * (ROWS - 1) // 2)


def check_sums(groups: int, total: int) -> None:
    assert (groups, total) == (KEYS, ROWS * (ROWS - 1) // 2)


@pytest.fixture(scope="module", autouse=True)
def workers_find_this_file() -> Iterator[None]:
    """Spark's, Dask's and Ray's workers import the functions above from here."""
    was = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), was]))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    yield
    os.environ["PYTHONPATH"] = was or ""


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with session("peers", spark_sql_shuffle_partitions=str(PARTS)) as made:
        yield made


@pytest.fixture(scope="module")
def files(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("peers") / "in")
    spark.range(0, ROWS, 1, FILES).selectExpr(
        f"pmod(id * 7919, {KEYS}) AS k", "id", "id * 0.5D AS x", "concat('user-', pmod(id, 1000)) AS name"
    ).write.parquet(path)
    return path


@pytest.fixture(scope="module")
def dask_client() -> Iterator[Any]:
    if not installed(PEERS["dask"]):
        yield None
        return
    import dask
    from distributed import Client, LocalCluster

    workers = {"n_workers": CORES, "threads_per_worker": 1, "memory_limit": "8GB", "dashboard_address": None}
    with (
        dask.config.set({"dataframe.shuffle.method": "p2p"}),
        LocalCluster(silence_logs=logging.ERROR, **workers) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def ray_data() -> Iterator[Any]:
    if not installed(PEERS["ray"]):
        yield None
        return
    import ray
    import ray.data

    ray.init(
        num_cpus=CORES,
        include_dashboard=False,
        object_store_memory=4 << 30,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.shuffle_strategy = ray.data.context.ShuffleStrategy.HASH_SHUFFLE
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    yield ray.data
    ray.shutdown()


def of_shuffle(spark: Any, files: str, dask_client: Any, ray_data: Any) -> dict[str, Way]:
    """Parquet -> stage -> shuffle by key -> stage that counts."""
    import fastbuf_spark as fbs

    def of_table(table: pa.Table) -> None:
        check_counts(sum(table["rows"].to_pylist()), sum(table["total"].to_pylist()))

    def sparks() -> None:
        moved = spark.read.parquet(files).mapInArrow(passing, RECORD).repartition(PARTS, "k")
        of_table(moved.mapInArrow(counting, COUNTS).toArrow())

    def fastbufs() -> None:
        read = fbs.read_parquet(spark, files).map_in_arrow(passing, RECORD)
        of_table(read.shuffle("k", partitions=PARTS).map_in_arrow(counting, COUNTS).to_arrow())

    def dasks() -> None:
        import dask.dataframe as dd

        moved = dd.read_parquet(files).map_partitions(passed).shuffle("k", npartitions=PARTS)
        found = moved.map_partitions(counted_frame, meta={"rows": "int64", "total": "int64"}).compute()
        check_counts(found["rows"].sum(), found["total"].sum())

    def rays() -> None:
        read = ray_data.read_parquet(files).map_batches(passed, batch_format="pyarrow", batch_size=65536)
        moved = read.repartition(PARTS, keys=["k"]).map_batches(counted, batch_format="pyarrow", batch_size=None)
        found = moved.take_all()
        check_counts(sum(row["rows"] for row in found), sum(row["total"] for row in found))

    ways: dict[str, Way] = {"fastbuf": fastbufs, "spark": sparks, "spark, lifted": lifted(spark, sparks)}
    if dask_client is not None:
        ways["dask p2p"] = dasks
    if ray_data is not None:
        ways["ray data"] = rays
    return ways


def of_groups(spark: Any, files: str, dask_client: Any, ray_data: Any) -> dict[str, Way]:
    """Parquet -> a function of each group -> a row for each."""
    import fastbuf_spark as fbs

    def of_table(table: pa.Table) -> None:
        check_sums(table.num_rows, pc.sum(table["id_sum"]).as_py())

    def sparks() -> None:
        of_table(spark.read.parquet(files).select(*NEEDED).groupBy("k").applyInArrow(summed, SUMS).toArrow())

    def fastbufs() -> None:
        groups = fbs.read_parquet(spark, files, NEEDED).group_by("k", partitions=PARTS)
        of_table(groups.apply_in_arrow(summed, SUMS).to_arrow())

    def fastbufs_partitions() -> None:
        moved = fbs.read_parquet(spark, files, NEEDED).shuffle("k", partitions=PARTS)
        of_table(moved.map_in_arrow(sums_of_partition, SUMS).to_arrow())

    def fastbufs_own() -> None:
        groups = fbs.read_parquet(spark, files, NEEDED).group_by("k", partitions=PARTS)
        of_table(groups.agg_arrow([("id", "sum")]).to_arrow())

    def dasks() -> None:
        import dask.dataframe as dd

        moved = dd.read_parquet(files, columns=NEEDED).shuffle("k", npartitions=PARTS)
        found = moved.map_partitions(sums_of_frame, meta={"k": "int64", "id_sum": "int64"}).compute()
        check_sums(len(found), found["id_sum"].sum())

    def rays() -> None:
        groups = ray_data.read_parquet(files, columns=NEEDED).groupby("k", num_partitions=PARTS)
        found = groups.map_groups(summed, batch_format="pyarrow").to_pandas()
        check_sums(len(found), found["id_sum"].sum())

    def polarses() -> None:
        import polars as pl

        found = pl.scan_parquet(f"{files}/*.parquet").group_by("k").agg(pl.col("id").sum()).collect()
        check_sums(len(found), found["id"].sum())

    def duckdbs() -> None:
        import duckdb

        with duckdb.connect() as connection:
            found = connection.sql(f"SELECT k, sum(id)::BIGINT AS id_sum FROM '{files}/*.parquet' GROUP BY k").arrow()
            of_table(found if isinstance(found, pa.Table) else found.read_all())

    ways: dict[str, Way] = {
        "fastbuf": fastbufs,
        "fastbuf, whole partitions": fastbufs_partitions,
        "fastbuf, agg_arrow": fastbufs_own,
    }
    ways.update({"spark": sparks, "spark, lifted": lifted(spark, sparks)})
    if dask_client is not None:
        ways["dask p2p"] = dasks
    if ray_data is not None:
        ways["ray data"] = rays
    for name, own in (("polars", polarses), ("duckdb", duckdbs)):
        if installed(PEERS[name]):
            ways[f"{name}, one process"] = own
    return ways


def lifted(spark: Any, way: Way) -> Way:
    """The same with Spark's Arrow batches unmeasured."""

    def run() -> None:
        spark.conf.set(MAX_BYTES, NO_LIMIT)
        try:
            way()
        finally:
            spark.conf.unset(MAX_BYTES)

    return run


JOBS = {"shuffle": of_shuffle, "groups": of_groups}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("job", JOBS)
def test_peers(job: str, spark: Any, files: str, dask_client: Any, ray_data: Any, in_turn: Any, benchmark: Any) -> None:
    absent = [name for name, module in PEERS.items() if not installed(module)]
    if absent:
        warnings.warn(f"left out, as they are not installed: {', '.join(absent)}", stacklevel=1)
    ways = JOBS[job](spark, files, dask_client, ray_data)
    benchmark.group = f"peers, {job}, {ROWS:,} rows"
    ours = tuple(way for way in ways if way.startswith("fastbuf"))
    in_turn(ways, rounds=ROUNDS, baselines=ours, rows=ROWS, partitions=PARTS, cores=CORES, absent=absent)
