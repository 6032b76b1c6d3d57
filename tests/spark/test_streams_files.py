"""Files that appear in a directory, beside what Spark reads of it; and those that are killed in the middle of one."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from nights import nightly
from test_orc_avro import written
from test_streams_ends import until

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError
from fastbuf_spark.streams import fail_points
from fastbuf_spark.streams.query import StreamFailed

SCHEMA = "v long, s string, d double"


def rows(begin: int, end: int) -> pa.Table:
    values = list(range(begin, end))
    return pa.table({"v": values, "s": [f"text {v}" for v in values], "d": [v / 4 for v in values]})


def put(folder: Path, name: str, table: pa.Table, format: str) -> None:
    """Written under a hidden name beside the others, and renamed, as Spark does."""
    hidden = folder / f".{name}"
    if format == "parquet":
        pq.write_table(table, hidden)
    elif format == "csv":
        pyarrow.csv.write_csv(table, hidden, pyarrow.csv.WriteOptions(include_header=False, quoting_style="none"))
    elif format == "json":
        table.to_pandas().to_json(hidden, orient="records", lines=True)
    elif format == "orc":
        pyarrow.orc.write_table(table, hidden)
    elif format == "avro":
        kinds = {"v": "long", "s": "string", "d": "double"}
        written(hidden, kinds, table.to_pylist())
    else:
        with pa.OSFile(str(hidden), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    hidden.rename(folder / name)


@nightly(format=["orc", "avro"])
@pytest.mark.parametrize("format", ["parquet", "csv", "json", "ipc", "orc", "avro"])
def test_files_that_appear_meanwhile(spark: Any, tmp_path: Path, format: str) -> None:
    """Each once, hidden ones never, those that were read before a stop not again; all of them as Spark reads them."""
    folder = tmp_path / "in"
    folder.mkdir()
    put(folder, f"a.{format}", rows(0, 100), format)
    (folder / "_hidden").write_bytes(b"x")
    (folder / ".hidden").write_bytes(b"x")
    sink = fbs.to_memory()
    stream = fbs.stream_files(spark, str(folder), format, SCHEMA, tasks=1)
    query = stream.write_stream(sink, tmp_path / "chk", every=0.1, discover_every=0.05)
    until(lambda: sink.table().num_rows == 100)
    put(folder, f"b.{format}", rows(100, 150), format)
    until(lambda: sink.table().num_rows == 150)
    query.stop()
    put(folder, f"c.{format}", rows(150, 160), format)
    (folder / "_hidden").unlink()
    (folder / ".hidden").unlink()
    bounded = fbs.stream_files(spark, str(folder), format, SCHEMA, tasks=1, bounded=True)
    query = bounded.write_stream(sink, tmp_path / "chk", every=0.1)
    assert query.await_termination(60)
    found = sink.table().sort_by("v")
    if format in ("ipc", "avro"):
        assert found.to_pylist() == rows(0, 160).to_pylist()
        return
    wanted = spark.read.schema(SCHEMA).format(format).load(str(folder)).toArrow().sort_by("v")
    assert wanted.num_rows == 160
    assert found.to_pylist() == wanted.to_pylist()


def test_a_file_of_many_batches_and_a_kill_in_its_middle(spark: Any, tmp_path: Path) -> None:
    folder, killed = tmp_path / "in", tmp_path / "killed"
    folder.mkdir()
    killed.mkdir()
    total = 400_000
    pq.write_table(rows(0, total), folder / "big.parquet", row_group_size=50_000)

    def slowly(given: Any) -> Any:
        for each in given:
            time.sleep(0.03)
            yield each

    fail_points.ask(f"barrier out;{killed}")
    try:
        sink = fbs.to_parquet(tmp_path / "out")
        stream = fbs.stream_files(spark, str(folder), "parquet", SCHEMA, tasks=1, bounded=True)
        query = stream.map_in_arrow(slowly, SCHEMA).write_stream(sink, tmp_path / "chk", every=0.1)
        assert query.await_termination(120)
    finally:
        fail_points.ask("")
    assert os.listdir(killed)
    assert query.status["restarts"] == 1
    found = pq.read_table(tmp_path / "out", partitioning=None)["v"].to_pylist()
    assert len(found) == total
    assert sorted(found) == list(range(total))
    assert not list((tmp_path / "out" / "_fastbuf").rglob("*.parquet"))


def test_files_that_are_too_old_are_not_looked_for(spark: Any, tmp_path: Path) -> None:
    """But for those of the first look; those that were seen are forgotten: the checkpoint does not grow for ever."""
    from fastbuf.checkpoint.store import CheckpointStore

    folder = tmp_path / "in"
    folder.mkdir()
    now = time.time() - 600  # no file is from the future

    def aged(name: str, age: float) -> None:
        pq.write_table(rows(len(name), len(name) + 1), folder / f".{name}")
        os.utime(folder / f".{name}", (now - age, now - age))
        (folder / f".{name}").rename(folder / f"{name}.parquet")

    for name, age in (("very old", 5000), ("middle", 900), ("new", 0)):
        aged(name, age)
    sink = fbs.to_memory()
    stream = fbs.stream_files(spark, str(folder), "parquet", SCHEMA, tasks=1, max_file_age=1000)
    query = stream.write_stream(sink, tmp_path / "chk", every=0.1, discover_every=0.05)
    until(lambda: sink.table().num_rows == 3)
    aged("old that comes later", 4000)
    aged("newest", -500)
    until(lambda: sink.table().num_rows == 4)
    until(lambda: len(CheckpointStore(tmp_path / "chk").latest()["sources"]["source"]["state"]["seen"]) == 2)  # type: ignore[index]
    query.stop()
    assert sorted(sink.table()["v"].to_pylist()) == sorted(map(len, ("very old", "middle", "new", "newest")))


def test_files_come_in_the_order_of_their_times(spark: Any, tmp_path: Path) -> None:
    """One after the other, each whole, whatever their names are; behind a restart in the middle of one, too."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number, name in enumerate("zma"):
        pq.write_table(rows(100 * number, 100 * (number + 1)), folder / f"{name}.parquet", row_group_size=20)
        os.utime(folder / f"{name}.parquet", (1_700_000_000 + number,) * 2)

    def slow(batches: Any) -> Any:
        for batch in batches:
            time.sleep(0.1)
            yield batch

    sink = fbs.to_memory()
    stream = fbs.stream_files(spark, str(folder), "parquet", SCHEMA, bounded=True, tasks=1)
    query = stream.map_in_arrow(slow, SCHEMA).write_stream(sink, tmp_path / "chk", every=0.05)
    until(lambda: sink.table().num_rows)
    query.stop()
    assert 0 < sink.table().num_rows < 300
    assert stream.write_stream(sink, tmp_path / "chk", every=0.1).await_termination(60)
    assert sink.table()["v"].to_pylist() == list(range(300))


@nightly
def test_a_file_that_has_to_wait_is_not_idle(spark: Any, tmp_path: Path) -> None:
    """Two files of the same times: rows of the second are not late, though the first takes longer than ``idle``."""
    folder = tmp_path / "in"
    folder.mkdir()
    times = pa.array([1_700_000_000 + 10 * n for n in range(100)], pa.timestamp("s", "UTC"))
    for name in "ab":
        pq.write_table(pa.table({"at": times, "k": [name] * 100}), folder / f"{name}.parquet", row_group_size=20)

    def slow(batches: Any) -> Any:
        for batch in batches:
            time.sleep(0.1)
            yield batch

    sink, schema = fbs.to_memory(), "at timestamp, k string"
    stream = fbs.stream_files(spark, str(folder), "parquet", schema, bounded=True, tasks=1)
    timed = stream.with_watermark("at", idle="0.2 seconds").map_in_arrow(slow, schema)
    counts = timed.group_by("k", partitions=1).window("1 minute").agg_arrow([([], "count_all")])
    assert counts.write_stream(sink, tmp_path / "chk", every=0.1).await_termination(60)
    assert sum(sink.table()["count_all"].to_pylist()) == 200


@pytest.mark.parametrize("order", ["by time", "backwards"])
@nightly(order="backwards")
def test_windows_of_files_that_wait_come_on_the_way(spark: Any, tmp_path: Path, order: str) -> None:
    """A file that waits holds nothing back that is before all its times, and no row is late."""
    folder, count = tmp_path / "in", 20
    folder.mkdir()
    begin = 1_700_000_000
    for number in range(count):
        hour = number if order == "by time" else count - number
        times = pa.array([begin + 3600 * hour + 36 * n for n in range(100)], pa.timestamp("s", "UTC"))
        pq.write_table(pa.table({"at": times, "k": [1] * 100}), folder / f"{number:02d}.parquet")

    def slow(batches: Any) -> Any:
        for batch in batches:
            time.sleep(0.1)  # so that there are checkpoints between files
            yield batch

    schema = "at timestamp, k long"
    stream = fbs.stream_files(spark, str(folder), "parquet", schema, bounded=True, tasks=1)
    timed = stream.with_watermark("at").map_in_arrow(slow, schema)
    counts = timed.group_by("k", partitions=1).window("1 hour").agg_arrow([([], "count_all")])
    query = counts.write_stream(fbs.to_parquet(tmp_path / "out"), tmp_path / "chk", every=0.1)
    assert query.await_termination(120)
    assert sum(pq.read_table(tmp_path / "out")["count_all"].to_pylist()) == 100 * count
    assert query.status["state"] == "finished"
    epochs = len(list((tmp_path / "out").glob("*.parquet")))
    assert epochs >= 3 if order == "by time" else epochs <= 2


def test_directories_that_are_no_directories(spark: Any, tmp_path: Path) -> None:
    """Refused, where a directory of that name would be made on each host; a URI of this host's files is a path."""
    stream = fbs.stream_rate(spark, 0, rows=10, tasks=1)
    with pytest.raises(ConfigError, match=r"path is 's3://bucket/out': .* have mounted.*to_delta writes to stores"):
        fbs.to_parquet("s3://bucket/out")
    with pytest.raises(ConfigError, match=r"checkpoint is 'gs://bucket/chk'"):
        stream.write_stream(fbs.to_memory(), "gs://bucket/chk")
    with pytest.raises(ConfigError, match=r"restore_from is 'hdfs://host/x'"):
        stream.write_stream(fbs.to_memory(), str(tmp_path / "chk"), restore_from="hdfs://host/x")
    with pytest.raises(ConfigError, match=r"checkpoint is 's3://bucket/chk'"):
        fbs.read_state("s3://bucket/chk", "x")
    query = stream.write_stream(fbs.to_parquet(f"file://{tmp_path}/out"), f"file://{tmp_path}/chk", every=0.1)
    with pytest.raises(ConfigError, match=r"path is 's3://bucket/save'"):
        query.savepoint("s3://bucket/save")
    assert query.await_termination(60)
    assert pq.read_table(tmp_path / "out").num_rows == 10
    assert (tmp_path / "chk").is_dir()
    assert not Path("s3:").exists()
    assert not Path("file:").exists()


@pytest.mark.parametrize("ignore", [False, True])
def test_a_file_that_is_removed_before_it_was_read(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, ignore: bool
) -> None:
    """Fails a run with what to set; with that set, the stream goes on without it."""
    folder = tmp_path / "in"
    folder.mkdir()
    put(folder, "a.parquet", rows(0, 10), "parquet")
    time.sleep(0.01)
    put(folder, "b.parquet", rows(10, 20), "parquet")
    begun = tmp_path / "begun"

    def slow(batches: Any) -> Any:
        for batch in batches:
            begun.touch()
            until(lambda: not (folder / "b.parquet").exists())
            yield batch

    sink = fbs.to_memory()
    files = fbs.stream_files(spark, str(folder), schema=SCHEMA, bounded=True, tasks=1, ignoreMissingFiles=ignore)
    query = files.map_in_arrow(slow, SCHEMA).write_stream(sink, str(tmp_path / "checkpoint"), every=0.2)
    until(begun.exists)
    (folder / "b.parquet").unlink()
    if ignore:
        assert query.await_termination(60)
        assert sorted(sink.table()["v"].to_pylist()) == list(range(10))
    else:
        # Without a checkpoint that knows of the file the next run begins anew, and no file is missing
        with contextlib.suppress(StreamFailed):
            query.await_termination(120)
        assert "b.parquet is gone since files were listed" in f"{caplog.text} {query.exception()}"
        assert "ignoreMissingFiles=True" in f"{caplog.text} {query.exception()}"
