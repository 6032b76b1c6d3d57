"""``fastbuf shuffle`` from and to other places than files of this host: Delta tables, URIs, a store of objects."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from nights import nightly

from fastbuf.cli.app import cli

pytestmark = pytest.mark.spark
ROWS = pa.table({"user": [f"u{i % 7}" for i in range(50)], "amount": [float(i) for i in range(50)]})


def total(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What each user spent."""
    table = pa.Table.from_batches(batches, pa.schema({"user": pa.string(), "amount": pa.float64()}))
    yield from table.group_by("user").aggregate([("amount", "sum")]).to_batches()


@pytest.fixture
def shuffle(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command, in the session that is there; gives what it said."""
    monkeypatch.setattr("fastbuf.cli.spark.session", lambda *_: contextlib.nullcontext((spark, "no log")))
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds to both
    monkeypatch.setenv("PYTHONPATH", "")

    def run(source: object, target: object, *more: str) -> str:
        told = ["--key", "user", "--partitions", "2", "--schema", "user string, total double"]
        func = ["--func", "test_shuffle_command:total"]
        result = CliRunner().invoke(cli, ["shuffle", str(source), str(target), *told, *func, *more])
        return result.output if result.exit_code == 0 else f"failed: {result.output} {result.exception!r}"

    return run


def sums(table: pa.Table) -> dict[str, float]:
    return {row["user"]: row["total"] for row in table.to_pylist()}


WANT = {row["user"]: row["amount_sum"] for row in ROWS.group_by("user").aggregate([("amount", "sum")]).to_pylist()}


def test_delta_tables(shuffle: Any, tmp_path: Path) -> None:
    """One that is read and one that is replaced are known by their logs; a new one is asked for."""
    deltalake = pytest.importorskip("deltalake", reason="pip install 'fastbuf[delta]'")
    deltalake.write_deltalake(tmp_path / "in", ROWS.slice(0, 20))
    deltalake.write_deltalake(tmp_path / "in", ROWS.slice(20), mode="append")
    assert "7 rows" in shuffle(tmp_path / "in", f"delta:{tmp_path}/out")
    assert "is already there" in shuffle(tmp_path / "in", tmp_path / "out")
    assert "7 rows" in shuffle(tmp_path / "in", f"file://{tmp_path}/out", "--overwrite")
    made = deltalake.DeltaTable(tmp_path / "out")
    assert (made.version(), sums(made.to_pyarrow_table())) == (1, WANT)
    assert "has no column nobody; it has: user, amount" in shuffle(tmp_path / "in", tmp_path / "x", "--key", "nobody")


def test_uris(shuffle: Any, tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "in.parquet")
    for _ in range(2):
        assert "7 rows" in shuffle(f"file://{tmp_path}/in.parquet", f"file://{tmp_path}/out", "--overwrite")
        assert sums(pq.read_table(tmp_path / "out")) == WANT


@nightly
def test_a_store_of_objects(shuffle: Any, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the names of both, with the credentials of the environment."""
    pytest.importorskip("moto.server", reason="pip install 'moto[server]'")
    from object_store import served, store

    with served() as proxy:
        told = {"ACCESS_KEY_ID": "someone", "SECRET_ACCESS_KEY": "s3cr3t", "ENDPOINT_URL": f"http://{proxy.address}"}
        for name, value in told.items():
            monkeypatch.setenv(f"AWS_{name}", value)
            spark.sparkContext.environment[f"AWS_{name}"] = value  # that of workers
        try:
            system = store(proxy)
            with system.open_output_stream("bucket/in/a.parquet") as stream:
                pq.write_table(ROWS, stream)
            assert "7 rows" in shuffle("s3a://bucket/in", "s3://bucket/out")
            assert sums(pq.read_table("bucket/out", filesystem=system)) == WANT
            assert "is already there" in shuffle("s3a://bucket/in", "s3a://bucket/out")
            assert "not replaced in one step" in shuffle("s3a://bucket/in", "s3a://bucket/out", "--overwrite")
        finally:
            for name in told:
                del spark.sparkContext.environment[f"AWS_{name}"]
