"""The same jobs from and to this machine's files, and from and to an S3 server with 20 ms of latency.

The server (``object_server.py``) is a process of its own on this machine, so that what it takes of the two cores falls
on the store's ways; a way of its own has no latency, and tells what is the server's and what is the latency's.
Shape: FASTBUF_BENCH_ROWS rows (10 M; 20 k in a smoke run) of (long, long, double, string) in 4 files of Parquet, or in
a Delta table; ``local[4]``, two partitions.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bench_pipelines import COUNTS, RECORD, ROWS, SUMS, check_counts, counting, passing, summed
from sessions import session

ROUNDS = int(os.environ.get("FASTBUF_BENCH_ROUNDS", "5"))
LATENCY_S = float(os.environ.get("FASTBUF_BENCH_LATENCY_S", "0.02"))
FILES = 4


@contextmanager
def store(folder: Path, latency_s: float) -> Iterator[str]:
    """A server of objects in a directory; its address."""
    folder.mkdir(exist_ok=True)
    program = Path(__file__).with_name("object_server.py")
    with subprocess.Popen(
        [sys.executable, str(program), str(folder), str(latency_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.stdin.close()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """Where the ways read and write: a path, and what readers and writers of files and of tables are told of it."""
    from pyarrow import fs

    folder = tmp_path_factory.mktemp("stores")
    objects = folder / "objects"
    with store(objects, 0.0) as near, store(objects, LATENCY_S) as far:
        made: dict[str, dict[str, Any]] = {"local": {"path": str(folder / "files"), "files": {}, "tables": {}}}
        for name, address in (("store", near), (f"store, {1000 * LATENCY_S:g} ms", far)):
            options = {
                "AWS_ENDPOINT_URL": f"http://{address}",
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": "someone",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_REGION": "us-east-1",
            }
            system = fs.S3FileSystem(
                access_key="someone",
                secret_key="secret",
                endpoint_override=address,
                scheme="http",
                region="us-east-1",
                allow_bucket_creation=True,
                allow_delayed_open=True,
            )
            system.create_dir("bucket")
            made[name] = {"path": "bucket", "files": {"filesystem": system}, "tables": {"storage_options": options}}
        yield made


@pytest.fixture(scope="module")
def spark(places: Any) -> Iterator[Any]:
    with session("stores") as made:
        yield made


@pytest.fixture(scope="module")
def inputs(spark: Any, places: dict[str, dict[str, Any]]) -> None:
    """The same files and the same table at each place."""
    import fastbuf_spark as fbs

    rows = spark.range(0, ROWS, 1, FILES).selectExpr(
        "pmod(id * 7919, 10007) AS k", "id", "id * 0.5D AS x", "concat('user-', pmod(id, 1000)) AS name"
    )
    for place in list(places.values())[:2]:  # the two stores have the same objects
        fbs.write_parquet(rows, f"{place['path']}/in", **place["files"])
        fbs.pipeline(rows).write_delta(uri(place, "table"), **place["tables"])


def uri(place: dict[str, Any], name: str) -> str:
    return f"{'' if place['path'].startswith('/') else 's3://'}{place['path']}/{name}"


def counted(spark: Any, place: dict[str, Any], out: str) -> None:
    """Read, and count in a second stage."""
    import fastbuf_spark as fbs

    read = fbs.read_parquet(spark, f"{place['path']}/in", **place["files"])
    check_counts(read.map_in_arrow(counting, COUNTS).to_arrow())


def copied(spark: Any, place: dict[str, Any], out: str) -> None:
    """Read, shuffle, write all rows."""
    import fastbuf_spark as fbs

    read = fbs.read_parquet(spark, f"{place['path']}/in", **place["files"])
    shuffled = read.map_in_arrow(passing, RECORD).shuffle("k", partitions=2)
    assert shuffled.write_parquet(f"{place['path']}/{out}", **place["files"]).rows == ROWS


def grouped(spark: Any, place: dict[str, Any], out: str) -> None:
    """Delta -> map -> shuffle -> groups -> Delta."""
    import fastbuf_spark as fbs

    read = fbs.read_delta(spark, uri(place, "table"), **place["tables"]).map_in_arrow(passing, RECORD)
    sums = read.group_by("k", partitions=2).apply_in_arrow(summed, SUMS)
    assert sums.write_delta(uri(place, out), **place["tables"]).rows == min(ROWS, 10_007)


JOBS: dict[str, Callable[[Any, dict[str, Any], str], None]] = {
    "files, counted": counted,
    "files to files": copied,
    "Delta to Delta": grouped,
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("job", JOBS)
def test_stores(
    job: str, spark: Any, places: dict[str, dict[str, Any]], inputs: None, in_turn: Any, benchmark: Any
) -> None:
    numbers, folder = itertools.count(), job.replace(" ", "-")

    def way(place: dict[str, Any]) -> Callable[[], None]:
        def run() -> None:
            out = f"{folder}-{next(numbers)}"
            JOBS[job](spark, place, out)
            if place["path"].startswith("/"):
                shutil.rmtree(f"{place['path']}/{out}", ignore_errors=True)

        return run

    benchmark.group = f"object stores, {job}, {ROWS:,} rows"
    in_turn(
        {name: way(place) for name, place in places.items()},
        rounds=ROUNDS,
        baselines=("local",),
        rows=ROWS,
    )
